//! Reads the effective configuration from the snapshot that a run recorded; the inverse of the snapshot that `config` writes.

use std::collections::BTreeMap;

use converger_core::approve::ApprovalMode;
use converger_core::evidence::EffectiveConfig;
use converger_core::guest::{EnvironmentName, Vmid};
use converger_core::policy::{Limits, Rules};
use serde::Deserialize;

/// The parts of a configuration that decisions depend on; others are ignored.
#[derive(Deserialize)]
struct ConfigSnapshot {
    /// The environment of the decision, if it is configured.
    #[serde(default)]
    environments: BTreeMap<String, EnvironmentSnapshot>,
    /// The effective limits, also if they were the built-in ones, which another version may change.
    limits: LimitsSnapshot,
    #[serde(default)]
    freeze: FreezeSnapshot,
}

#[derive(Default, Deserialize)]
struct EnvironmentSnapshot {
    mode: Option<ModeSnapshot>,
    #[serde(default)]
    protect: ProtectSnapshot,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum ModeSnapshot {
    Solo,
    Shared,
}

#[derive(Default, Deserialize)]
struct ProtectSnapshot {
    #[serde(default)]
    ids: Vec<u64>,
    #[serde(default)]
    names: Vec<String>,
    #[serde(default)]
    tags: Vec<String>,
}

#[derive(Deserialize)]
struct LimitsSnapshot {
    guests: u32,
    percent: u32,
    stops: u32,
}

#[derive(Default, Deserialize)]
struct FreezeSnapshot {
    #[serde(default)]
    on: bool,
}

/// Parses a recorded snapshot.
///
/// # Errors
/// The bytes are not a snapshot, or have several environments.
pub fn parse_config_snapshot(bytes: &[u8]) -> Result<EffectiveConfig, String> {
    // A list would be read as the members of a row, in their order.
    let members: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    let ConfigSnapshot { mut environments, limits, freeze } = serde_json::from_value(members.into()).map_err(|error| error.to_string())?;
    let (name, own) = environments.pop_first().unzip();
    if !environments.is_empty() {
        return Err("it has several environments, and a decision is about one".into());
    }
    let environment = name.map(|name| EnvironmentName::new(&name).ok_or("it configures what is no environment")).transpose()?;
    let own: EnvironmentSnapshot = own.unwrap_or_default();
    let id = |number: u64| Vmid::new(number).ok_or("it protects what is no guest");
    let ids = own.protect.ids.into_iter().map(id).collect::<Result<Vec<_>, _>>()?;
    let LimitsSnapshot { guests, percent, stops } = limits;
    Ok(EffectiveConfig {
        environment,
        limits: Limits { guests, percent, stops },
        rules: Rules::new(ids, own.protect.names, own.protect.tags),
        is_frozen: freeze.on,
        mode: own.mode.map(|mode| match mode {
            ModeSnapshot::Solo => ApprovalMode::Solo,
            ModeSnapshot::Shared => ApprovalMode::Shared,
        }),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_snapshot_is_an_error() {
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
            assert!(parse_config_snapshot(text.as_bytes()).is_err(), "{text}");
        }
    }

    /// The snapshot of a text has its effective values, including the built-in ones where the text has none.
    #[test]
    fn snapshot_round_trips_the_effective_config() {
        let environment = EnvironmentName::new("lab").expect("a name");
        let text = "[limits]\nguests = 7\n[freeze]\non = true\nreason = \"a move\"\n[environments.lab]\nmode = \"shared\"\n\
            [environments.lab.protect]\nids = [101]\nnames = [\"db-\"]\ntags = [\"core\"]\n";
        let found = super::super::snapshot_json(text, &environment, Limits { guests: 7, ..Limits::default() }).expect("understood");
        let EffectiveConfig { environment: own, limits, rules, is_frozen, mode } = parse_config_snapshot(&found).expect("kept");
        assert_eq!(own, Some(environment.clone()));
        assert_eq!((limits, is_frozen, mode), (Limits { guests: 7, ..Limits::default() }, true, Some(ApprovalMode::Shared)));
        let own = Rules::new(vec![Vmid::new(101).expect("an id")], vec!["db-".into()], vec!["core".into()]);
        assert_eq!((rules.ids(), rules.names(), rules.tags()), (own.ids(), own.names(), own.tags()));
        let default_snapshot = super::super::snapshot_json("", &environment, Limits::default()).expect("understood");
        let EffectiveConfig { environment, limits, is_frozen, mode, .. } = parse_config_snapshot(&default_snapshot).expect("kept");
        assert_eq!((environment, limits, is_frozen, mode), (None, Limits::default(), false, None));
    }
}
