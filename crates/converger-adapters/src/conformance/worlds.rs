//! The worlds of the conformance checks. Each one is small and contains one situation that observers tend to get wrong.

use converger_core::desired::Scope;
use converger_core::guest::Vmid;
use converger_core::observe::{self, Observation};

/// A world with its known truth.
#[derive(Clone, Debug)]
pub struct KnownWorld {
    /// A short description of the situation.
    pub name: &'static str,
    /// What a perfect observer would report.
    pub observation: Observation,
    /// The scope of the observation.
    pub scope: Scope,
    /// Whether an observer can read all of it.
    pub is_readable: bool,
}

const UNSET_GUARDS: &str = r#""lock": null, "ha": null, "template": false, "protection": false, "tags": [], "pending": []"#;

/// Name, `complete`, `quorate`, rows, and the ids in scope. `QUIET` in a row is replaced with `UNSET_GUARDS`: guards that were read and
/// forbid nothing.
const WORLDS: [(&str, bool, bool, &str, &[u64]); 11] = [
    ("no guests", true, true, "", &[100]),
    ("one guest", true, true, r#"{"vmid": 100, "kind": "qemu", "name": "a", "node": "n1", "status": "running", QUIET}"#, &[100]),
    (
        "both kinds, with config",
        true,
        true,
        r#"{"vmid": 100, "kind": "qemu", "name": "a", "node": "n1", "status": "stopped", QUIET,
            "config": {"cores": 2, "memory": 2048, "description": "ä\nb", "onboot": true, "boot": ["scsi0"], "startup": {"order": 1}},
            "identity": {"uuid": "1c0d", "ctime": 1700000000}},
           {"vmid": 101, "kind": "lxc", "name": "b", "node": "n1", "status": "running", QUIET,
            "config": {"cores": 1, "memory": 512, "swap": 0, "cpulimit": 1500}, "identity": {"rootfs": "local:101/vm-101-disk-0.raw"}}"#,
        &[100, 101],
    ),
    (
        "others outside the scope",
        true,
        true,
        r#"{"vmid": 100, "kind": "qemu", "name": "a", "node": "n1", "status": "running", QUIET},
           {"vmid": 200, "kind": "qemu", "name": "theirs", "node": "n1", "status": "running", QUIET},
           {"vmid": 300, "kind": "lxc", "name": "theirs-too", "node": "n1", "status": "stopped", QUIET}"#,
        &[100, 101],
    ),
    (
        "an offline node",
        true,
        true,
        r#"{"vmid": 100, "kind": "qemu", "node": "n2", "status": "unknown", "cause": "node-offline"},
           {"vmid": 101, "kind": "qemu", "name": "cached", "node": "n2", "status": "running", QUIET}"#,
        &[100, 101],
    ),
    ("unknown without a cause", true, true, r#"{"vmid": 100, "kind": "lxc", "node": "n1", "status": "unknown"}"#, &[100]),
    (
        "an incomplete list",
        false,
        true,
        r#"{"vmid": 100, "kind": "qemu", "name": "a", "node": "n1", "status": "running", QUIET}"#,
        &[100, 101],
    ),
    ("no quorum", true, false, r#"{"vmid": 100, "kind": "qemu", "name": "a", "node": "n1", "status": "running", QUIET}"#, &[100]),
    (
        "guards that forbid changes",
        true,
        true,
        r#"{"vmid": 100, "kind": "qemu", "name": "a", "node": "n1", "status": "running", "lock": "backup", "ha": {"state": "migrate"},
            "template": false, "protection": true, "tags": ["prod", "web"], "pending": [{"key": "cores", "value": 4}, {"key": "net0"}]},
           {"vmid": 101, "kind": "qemu", "name": "b", "node": "n1", "status": "stopped", "lock": null, "ha": {"state": null},
            "template": true, "protection": false, "tags": [], "pending": [{"key": "description", "delete": true}]}"#,
        &[100, 101],
    ),
    (
        "fields that cannot be read",
        true,
        true,
        r#"{"vmid": 100, "kind": "qemu", "name": "a", "node": "n1", "status": "running"},
           {"vmid": 101, "kind": "lxc", "name": "b", "node": "n1", "status": "stopped", "lock": null, "tags": ["x"]}"#,
        &[100, 101],
    ),
    (
        "a name with control characters and an unknown run-state",
        true,
        true,
        r#"{"vmid": 100, "kind": "qemu", "name": "VM 100\u001b[31m", "node": "n1", "status": "unknown", "cause": "paused", "run_state": "paused", QUIET}"#,
        &[100],
    ),
];

/// All worlds.
///
/// # Panics
/// If one of the texts above is not an observation, which is a mistake in this file.
#[must_use]
pub fn known_worlds() -> Vec<KnownWorld> {
    WORLDS.iter().map(|(name, complete, quorate, rows, ids)| parse_world(name, *complete, *quorate, rows, ids)).collect()
}

fn parse_world(name: &'static str, complete: bool, quorate: bool, rows: &str, ids: &[u64]) -> KnownWorld {
    let text = format!(
        r#"{{"schema": "converger.observation/1", "environment": "stage", "complete": {complete}, "quorate": {quorate},
            "nodes": [{{"name": "n1", "online": true}}, {{"name": "n2", "online": false}}], "guests": [{}]}}"#,
        rows.replace("QUIET", UNSET_GUARDS)
    );
    let truth = observe::parse(text.as_bytes()).unwrap_or_else(|faults| panic!("the world `{name}` is malformed: {faults:?}"));
    // Guards were read and forbid nothing on every row, so all of it is readable.
    let is_quiet = rows.matches("QUIET").count() == rows.matches("vmid").count();
    // The absence of a guest needs a proof, which an offline node may prevent.
    let are_there = ids.iter().all(|id| rows.contains(&format!("\"vmid\": {id},")));
    let is_readable = complete && quorate && is_quiet && are_there && !rows.contains("unknown") && !rows.contains("n2");
    KnownWorld { name, observation: truth, scope: Scope::new(ids.iter().filter_map(|id| Vmid::new(*id)).collect()), is_readable }
}
