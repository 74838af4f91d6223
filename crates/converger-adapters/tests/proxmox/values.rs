//! A written value is stored as Proxmox stores it and read back as the same value, and planning again finds nothing to do: for every
//! managed field, kind and release.

use std::collections::BTreeMap;
use std::sync::Arc;

use converger_adapters::proxmox::codec::{ConfigSet, GuestPath, ProxmoxCommand, ProxmoxWrite, WriteBasis, encode};
use converger_adapters::proxmox::observe::ReadSet;
use converger_core::action::{Change, FieldChange};
use converger_core::desired::{self, Desired};
use converger_core::document::Notation;
use converger_core::guest::{GuestKind, NodeName, Vmid};
use converger_core::normalize::{Field, FieldRole, TABLE};
use converger_core::plan::{self, Verdict};
use converger_core::policy::Rules;
use converger_core::testing::{HOSTILE_TEXTS, Rng, to_declared_form, wanted_values};

use crate::scripted_proxmox::{STANDALONE_NODE, ScriptedGuest, ScriptedProxmox, stopped_guest, take_reading};
use crate::stored_config::{ProxmoxRelease, StoredConfig};

/// A declared state with one field of one guest.
fn desired_with_field(kind: GuestKind, field: Field, value: &serde_json::Value) -> Desired {
    let config = serde_json::json!({field.word(): to_declared_form(field, value, &mut Rng::new(1))});
    let guest = serde_json::json!({"vmid": 100, "kind": kind.word(), "name": "g100", "config": config});
    let text = serde_json::json!({"version": 1, "environment": "lab", "guests": [guest]}).to_string();
    desired::parse(text.as_bytes(), Notation::Json).unwrap_or_else(|faults| panic!("{text}: {faults:?}"))
}

fn stored_config(flavour: ProxmoxRelease, kind: GuestKind, start: &[(&str, &str)]) -> StoredConfig {
    let name = if kind == GuestKind::Qemu { "name" } else { "hostname" };
    // Enough memory for every balloon; the initial values of a case take precedence.
    let own = [(name, "g100"), ("digest", "0fe8"), ("memory", "4096")];
    let keys = own.iter().chain(start).map(|(key, text)| ((*key).to_owned(), (*text).to_owned()));
    StoredConfig { flavour, kind: kind.word(), keys: keys.collect::<BTreeMap<_, _>>() }
}

/// The verdict on the guest with this stored config.
fn plan_verdict(stored: &StoredConfig, desired: Desired) -> Verdict {
    let listed = stopped_guest(100, "n1").listed.map(|row| row.replace("qemu", stored.kind));
    let guest = ScriptedGuest { kind: stored.kind, listed, pending: stored.pending_items(), ..stopped_guest(100, "n1") };
    let reading =
        take_reading(&ScriptedProxmox::with_guests(STANDALONE_NODE, [(100, guest)]), &[100], &ReadSet::for_desired(&desired), None)
            .expect("a reading");
    let scoped = reading.observation.into_scoped(&desired.scope());
    let plan = plan::plan(Arc::new(desired), Arc::new(scoped), Arc::new(Rules::default()));
    plan.verdicts()[0].clone()
}

fn config_changes(verdict: &Verdict) -> Option<&[FieldChange]> {
    let Verdict::Steps(steps) = verdict else { return None };
    match &steps[0].change {
        Change::ConfigSet(changes) => Some(changes),
        _ => None,
    }
}

/// Plans, writes the planned changes, and plans again.
fn check_round_trip(flavour: ProxmoxRelease, kind: GuestKind, field: Field, value: &serde_json::Value, start: &[(&str, &str)]) {
    let mut stored = stored_config(flavour, kind, start);
    let agent = stored.keys.get("agent").cloned();
    let case = format!("{flavour:?} {kind} {field:?} {value} from {start:?}");
    let first = plan_verdict(&stored, desired_with_field(kind, field, value));
    if let Some(changes) = config_changes(&first) {
        let guest = GuestPath { node: NodeName::new("n1").expect("a name"), kind, vmid: Vmid::new(100).expect("an id") };
        let basis = agent.map_or("0fe8".to_owned(), |agent| format!("0fe8\nagent {agent}"));
        let set = ConfigSet::new(guest, changes, &WriteBasis::parse(&basis).expect("a basis"))
            .unwrap_or_else(|fault| panic!("{case}: {fault:?}"));
        stored.write_form(encode(&ProxmoxCommand::Write(ProxmoxWrite::ConfigSet(set))).form().expect("a form"));
    }
    let second = plan_verdict(&stored, desired_with_field(kind, field, value));
    assert!(
        matches!(second, Verdict::Converged { pending_restart: false }),
        "{case}: {:?}\nthen {second:?}\nwith {:?}",
        first,
        stored.keys
    );
}

fn managed_fields() -> impl Iterator<Item = (GuestKind, Field)> {
    TABLE.iter().filter(|rule| rule.role == FieldRole::Managed).map(|rule| (rule.kind, rule.field))
}

#[test]
fn written_value_reads_back_and_plans_nothing() {
    let mut cases = 0;
    for (kind, field) in managed_fields() {
        let values = wanted_values(kind, field);
        for flavour in ProxmoxRelease::ALL {
            for value in &values {
                check_round_trip(flavour, kind, field, value, &[]);
                cases += 1;
            }
        }
    }
    assert!(cases > 200, "{cases}");
}

#[test]
fn written_value_reads_back_from_every_earlier_form() {
    let before: &[(&str, &[&str])] = &[
        ("agent", &["1", "0,fstrim_cloned_disks=1", "enabled=1,type=isa"]),
        ("balloon", &["0", "512"]),
        ("boot", &["cdn", "order=net0", "legacy=dn"]),
        ("cores", &["1", "16"]),
        ("cpulimit", &["0", "2", "0.5"]),
        ("cpuunits", &["100", "1024"]),
        ("description", &["old text", "a: b%"]),
        ("memory", &["512", "8192"]),
        ("onboot", &["0", "1"]),
        ("sockets", &["1", "4"]),
        ("startup", &["1", "order=5,up=1,down=2", "up=3"]),
        ("swap", &["0", "512"]),
        ("tags", &[" ", "old", "b;a"]),
    ];
    for (kind, field) in managed_fields() {
        let (_, texts) = before.iter().find(|(key, _)| *key == field.word()).expect("a form");
        for text in *texts {
            for value in wanted_values(kind, field) {
                check_round_trip(ProxmoxRelease::Nine, kind, field, &value, &[(field.word(), text)]);
            }
        }
    }
    check_round_trip(ProxmoxRelease::Eight, GuestKind::Qemu, Field::Memory, &serde_json::json!(2048), &[("memory", "current=1024")]);
    check_round_trip(ProxmoxRelease::Eight, GuestKind::Qemu, Field::Memory, &serde_json::json!(1024), &[("memory", "current=1024")]);
}

#[test]
fn texts_round_trip() {
    let seed = 0x5eed;
    let mut rng = Rng::new(seed);
    let parts = ["=", ";", "&", "+", "%", "%3B", "\n", " ", "ä", "😀", "a", "#", ":", "\"", "order=1", ","];
    for case in 0..300 {
        let text: String = (0..rng.index(12)).map(|_| rng.pick_word(&parts)).collect();
        let text = format!("x{text}");
        for kind in GuestKind::ALL {
            eprintln!("seed {seed} case {case} text {text:?}");
            check_round_trip(
                ProxmoxRelease::Nine,
                kind,
                Field::Description,
                &serde_json::json!(text.trim_end()),
                &[("description", "old")],
            );
        }
    }
    for text in HOSTILE_TEXTS.iter().filter(|text| !text.contains(|own: char| own.is_control() && own != '\n')) {
        check_round_trip(ProxmoxRelease::Nine, GuestKind::Qemu, Field::Description, &serde_json::json!(text.trim_end()), &[]);
    }
}
