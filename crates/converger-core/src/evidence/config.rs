//! What a kept configuration put in force, as far as a decision rests on it: a decision that was held against something else was not made under
//! it.
//!
//! What never enters: how a configuration is written. It is kept as it was understood.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::approve::Mode;
use crate::guest::Vmid;
use crate::policy::{Circumstances, Limits, Rules};

/// What was in force.
pub(super) struct InForce {
    limits: Limits,
    rules: Rules,
    is_frozen: bool,
    pub(super) mode: Option<Mode>,
}

/// The parts of a configuration that decide; others are not looked at.
#[derive(Deserialize)]
struct ConfigRow {
    /// The one that the decision is about, where one is configured.
    #[serde(default)]
    environments: BTreeMap<String, EnvironmentRow>,
    /// As they were in force, built in or not: what is built in may be another another day.
    limits: LimitsRow,
    #[serde(default)]
    freeze: FreezeRow,
}

#[derive(Default, Deserialize)]
struct EnvironmentRow {
    mode: Option<ModeRow>,
    #[serde(default)]
    protect: ProtectRow,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum ModeRow {
    Solo,
    Shared,
}

#[derive(Default, Deserialize)]
struct ProtectRow {
    #[serde(default)]
    ids: Vec<u64>,
    #[serde(default)]
    names: Vec<String>,
    #[serde(default)]
    tags: Vec<String>,
}

#[derive(Deserialize)]
struct LimitsRow {
    guests: u32,
    percent: u32,
    stops: u32,
}

#[derive(Default, Deserialize)]
struct FreezeRow {
    #[serde(default)]
    on: bool,
}

impl InForce {
    /// Reads what is kept.
    ///
    /// # Errors
    /// It is no configuration, or one of several environments.
    pub(super) fn read(bytes: &[u8]) -> Result<Self, String> {
        // A list would be read as the members of a row, in their order.
        let members: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        let ConfigRow { mut environments, limits, freeze } = serde_json::from_value(members.into()).map_err(|error| error.to_string())?;
        let own = environments.pop_first().map(|(_, own)| own).unwrap_or_default();
        if !environments.is_empty() {
            return Err("it has several environments, and a decision is about one".into());
        }
        let id = |number: u64| Vmid::new(number).ok_or("it protects what is no guest");
        let ids = own.protect.ids.into_iter().map(id).collect::<Result<Vec<_>, _>>()?;
        let LimitsRow { guests, percent, stops } = limits;
        Ok(Self {
            limits: Limits { guests, percent, stops },
            rules: Rules::new(ids, own.protect.names, own.protect.tags),
            is_frozen: freeze.on,
            mode: own.mode.map(|mode| match mode {
                ModeRow::Solo => Mode::Solo,
                ModeRow::Shared => Mode::Shared,
            }),
        })
    }

    /// Whether a decision was held against this.
    ///
    /// # Errors
    /// What is another.
    pub(super) fn agrees(&self, rules: &Rules, limits: Limits, circumstances: &Circumstances) -> Result<(), &'static str> {
        let protection = |rules: &Rules| (rules.ids().to_vec(), rules.names().to_vec(), rules.tags().to_vec());
        if limits != self.limits {
            Err("it has other limits than the decision was held against")
        } else if protection(rules) != protection(&self.rules) {
            Err("it protects other guests than the decision was held against")
        } else if self.is_frozen && circumstances.freeze.is_none() {
            // The other way round a person may have said it.
            Err("it freezes the environment, and the decision was made as if it did not")
        } else {
            Ok(())
        }
    }
}
