//! What a configuration put in force, read from what a run kept of it: the inverse of the snapshot that `config` makes.
//!
//! What never enters: text that people write. It was understood when it was kept.

use std::collections::BTreeMap;

use converger_core::approve::Mode;
use converger_core::evidence::InForce;
use converger_core::guest::{EnvironmentName, Vmid};
use converger_core::policy::{Limits, Rules};
use serde::Deserialize;

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

/// Reads what is kept.
///
/// # Errors
/// It is no configuration, or one of several environments.
pub fn understood(bytes: &[u8]) -> Result<InForce, String> {
    // A list would be read as the members of a row, in their order.
    let members: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    let ConfigRow { mut environments, limits, freeze } = serde_json::from_value(members.into()).map_err(|error| error.to_string())?;
    let (name, own) = environments.pop_first().unzip();
    if !environments.is_empty() {
        return Err("it has several environments, and a decision is about one".into());
    }
    let environment = name.map(|name| EnvironmentName::new(&name).ok_or("it configures what is no environment")).transpose()?;
    let own: EnvironmentRow = own.unwrap_or_default();
    let id = |number: u64| Vmid::new(number).ok_or("it protects what is no guest");
    let ids = own.protect.ids.into_iter().map(id).collect::<Result<Vec<_>, _>>()?;
    let LimitsRow { guests, percent, stops } = limits;
    Ok(InForce {
        environment,
        limits: Limits { guests, percent, stops },
        rules: Rules::new(ids, own.protect.names, own.protect.tags),
        is_frozen: freeze.on,
        mode: own.mode.map(|mode| match mode {
            ModeRow::Solo => Mode::Solo,
            ModeRow::Shared => Mode::Shared,
        }),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_configuration_that_was_kept_puts_nothing_in_force() {
        let limits = r#""limits":{"guests":1,"percent":2,"stops":3}"#;
        let cases = [
            String::new(),
            "[]".into(),
            "{}".into(),
            r#"[{},{"guests":1,"percent":2,"stops":3},{}]"#.into(),
            format!(r#"{{"environments":{{"lab":{{}},"prod":{{}}}},{limits}}}"#),
            format!(r#"{{"environments":{{"lab":{{"mode":"alone"}}}},{limits}}}"#),
            format!(r#"{{"environments":{{"Not One":{{"mode":"solo"}}}},{limits}}}"#),
            format!(r#"{{"environments":{{"lab":{{"protect":{{"ids":[0]}}}}}},{limits}}}"#),
            r#"{"limits":{"guests":1,"percent":2}}"#.into(),
        ];
        for text in cases {
            assert!(understood(text.as_bytes()).is_err(), "{text}");
        }
    }

    /// What the program keeps of a text is what that text put in force, and what is built in where it says nothing.
    #[test]
    fn what_is_kept_is_what_was_in_force() {
        let environment = EnvironmentName::new("lab").expect("a name");
        let text = "[limits]\nguests = 7\n[freeze]\non = true\nreason = \"a move\"\n[environments.lab]\nmode = \"shared\"\n\
            [environments.lab.protect]\nids = [101]\nnames = [\"db-\"]\ntags = [\"core\"]\n";
        let found = super::super::snapshot(text, &environment, Limits { guests: 7, ..Limits::default() }).expect("understood");
        let InForce { environment: own, limits, rules, is_frozen, mode } = understood(&found).expect("kept");
        assert_eq!(own, Some(environment.clone()));
        assert_eq!((limits, is_frozen, mode), (Limits { guests: 7, ..Limits::default() }, true, Some(Mode::Shared)));
        let own = Rules::new(vec![Vmid::new(101).expect("an id")], vec!["db-".into()], vec!["core".into()]);
        assert_eq!((rules.ids(), rules.names(), rules.tags()), (own.ids(), own.names(), own.tags()));
        let bare = super::super::snapshot("", &environment, Limits::default()).expect("understood");
        let InForce { environment, limits, is_frozen, mode, .. } = understood(&bare).expect("kept");
        assert_eq!((environment, limits, is_frozen, mode), (None, Limits::default(), false, None));
    }
}
