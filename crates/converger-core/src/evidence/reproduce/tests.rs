//! A recorded decision does not depend on rows of the tables that it does not use.

use std::collections::BTreeMap;

use serde_json::json;

use super::*;
use crate::action::{Action, ApprovalNeed, CATALOGUE, ChangeClass, Impact, Risk};
use crate::evidence::decision_record::record_decision_with;
use crate::evidence::{DecisionRecord, record_decision};
use crate::guest::GuestKind;
use crate::normalize::{FieldRule, TABLE};
use crate::testing::{RequestWorld, Rng, TestWorld, parse_config, some_config};

struct Recorded {
    decision: Decision,
    blobs: BTreeMap<Digest, Vec<u8>>,
}

impl Recorded {
    fn new(DecisionRecord { inputs, plan, judgement, blobs, .. }: DecisionRecord) -> Self {
        let blobs = blobs.into_iter().map(|bytes| (Digest::of_bytes(&bytes), bytes)).collect();
        Self { decision: Decision { inputs, plan, judgement }, blobs }
    }

    fn reproduce_with(&self, catalogue: &[Action], fields: &[FieldRule]) -> Result<(), ReproduceError> {
        let tables = DecisionTables { catalogue, fields };
        reproduce_with(&self.decision, |digest| self.blobs.get(&digest).cloned(), parse_config, tables).map(drop)
    }

    fn text(&self, part: DecisionPart) -> String {
        String::from_utf8(self.blobs[&self.decision.digest(part)].clone()).expect("text")
    }

    /// The same with other bytes for a part, named by their digest.
    fn with_part(&self, part: DecisionPart, text: &str) -> Self {
        let (mut decision, mut blobs) = (self.decision.clone(), self.blobs.clone());
        let digest = Digest::of_bytes(text.as_bytes());
        match part {
            DecisionPart::Rules => decision.inputs.rules = digest,
            _ => decision.inputs.catalogue = digest,
        }
        blobs.insert(digest, text.as_bytes().to_vec());
        Self { decision, blobs }
    }
}

fn judge_world(world: &TestWorld) -> Judged {
    judge(world.parse().expect("it parses").plan(), Limits::default(), Circumstances::default())
}

fn config_of(world: &TestWorld) -> Vec<u8> {
    some_config(&world.rules, Limits::default(), None)
}

/// A container whose memory is to be set, and which is to be started.
fn sample_world() -> TestWorld {
    let guest = json!({ "vmid": 100, "kind": "lxc", "name": "web", "state": "running", "config": { "memory": "2GiB" } });
    let row = json!({ "vmid": 100, "kind": "lxc", "name": "web", "node": "pve1", "status": "stopped", "lock": null, "ha": null,
        "template": false, "protection": false, "tags": [], "pending": [], "config": { "memory": 1024 } });
    TestWorld {
        desired: json!({ "version": 1, "environment": "lab", "guests": [guest] }),
        observation: json!({ "schema": "converger.observation/1", "environment": "lab", "complete": true, "quorate": true,
            "nodes": [{ "name": "pve1", "online": true }], "guests": [row] }),
        rules: Rules::default(),
    }
}

fn record(world: &TestWorld) -> Recorded {
    Recorded::new(record_decision(&judge_world(world), "0.1.0", config_of(world)).expect("memory takes it"))
}

/// The tables as they are after an action and a field were added, at their beginning.
fn extended_tables() -> (Vec<Action>, Vec<FieldRule>) {
    let action = Action {
        action: "vm.audit",
        approvals: ApprovalNeed::None,
        change: "audit",
        class: ChangeClass::Benign,
        impact: Impact::None,
        risk: Risk::Low,
    };
    let field = FieldRule { kind: GuestKind::Lxc, ..TABLE[0] };
    (std::iter::once(action).chain(CATALOGUE).collect(), std::iter::once(field).chain(TABLE).collect())
}

fn is_row(row: &FieldRule, kind: GuestKind, field: Field) -> bool {
    (row.kind, row.field) == (kind, field)
}

#[test]
fn a_decision_stores_only_the_rows_that_it_uses() {
    let recorded = record(&sample_world());
    let rows = |text: &str, pointer: &str, key: &str| -> Vec<String> {
        let value: serde_json::Value = serde_json::from_str(text).expect("JSON");
        let rows = value.pointer(pointer).and_then(serde_json::Value::as_array).cloned().expect("rows");
        rows.iter().map(|row| row[key].as_str().unwrap_or_default().to_owned()).collect()
    };
    assert_eq!(rows(&recorded.text(DecisionPart::Catalogue), "", "change"), ["config.set", "start"]);
    assert_eq!(rows(&recorded.text(DecisionPart::Rules), "/fields", "field"), ["memory"]);
}

/// `memory` decides whether a balloon fits, and `hotplug` and `numa` when a change of memory takes effect.
#[test]
fn fields_that_are_read_with_a_declared_one_are_bound_too() {
    let mut world = sample_world();
    world.desired["guests"][0]["kind"] = json!("qemu");
    world.observation["guests"][0]["kind"] = json!("qemu");
    let fields: serde_json::Value = serde_json::from_str(&record(&world).text(DecisionPart::Rules)).expect("JSON");
    let names: Vec<&str> = fields["fields"].as_array().into_iter().flatten().filter_map(|row| row["field"].as_str()).collect();
    assert_eq!(names, ["balloon", "hotplug", "memory", "numa"]);
}

#[test]
fn a_decision_is_reproduced_after_an_action_and_a_field_were_added() {
    let (catalogue, fields) = extended_tables();
    let mut rng = Rng::new(41);
    for _ in 0..300 {
        let world = TestWorld::random_small(&mut rng);
        assert_eq!(record(&world).reproduce_with(&catalogue, &fields), Ok(()), "{world:?}");
    }
}

/// What is recorded after the addition is the same too, so both programs agree on the digest of a plan.
#[test]
fn an_added_row_that_is_not_used_does_not_change_the_record() {
    let (catalogue, fields) = extended_tables();
    let (judged, config) = (judge_world(&sample_world()), config_of(&sample_world()));
    let tables = DecisionTables { catalogue: &catalogue, fields: &fields };
    let later = record_decision_with(&judged, "0.1.0", config.clone(), tables).expect("memory takes it");
    assert_eq!(later, record_decision(&judged, "0.1.0", config).expect("memory takes it"));
}

/// An action, the id of its guest, and its parameters.
type RequestSample = (&'static str, u64, &'static [(&'static str, &'static str)]);

/// One request of every action that has a change of its own.
const REQUESTS: [RequestSample; 7] = [
    ("vm.clone", 900, &[("newid", "120"), ("name", "web-3")]),
    ("vm.disk.grow", 100, &[("disk", "scsi0"), ("size", "40GiB")]),
    ("vm.migrate", 100, &[("node", "pve2")]),
    ("vm.snapshot.create", 100, &[("name", "before")]),
    ("vm.snapshot.delete", 100, &[("name", "old")]),
    ("vm.snapshot.rollback", 100, &[("name", "old")]),
    ("vm.stop", 100, &[]),
];

/// A plan that was recorded by a program that knew no other action is the same plan, byte for byte, in one that knows more.
#[test]
fn a_requested_plan_is_reproduced_whatever_other_actions_exist() {
    let (catalogue, fields) = extended_tables();
    for (action, vmid, parameters) in REQUESTS {
        let world = RequestWorld::default();
        let judged = || judge(world.plan_action(action, GuestKind::Qemu, vmid, parameters), Limits::default(), Circumstances::default());
        let config = || some_config(&world.rules, Limits::default(), None);
        let only: Vec<Action> = CATALOGUE.iter().filter(|row| row.action == action).copied().collect();
        let earlier = DecisionTables { catalogue: &only, fields: &TABLE };
        let before = record_decision_with(&judged(), "0.1.0", config(), earlier).expect("memory takes it");
        assert_eq!(before, record_decision(&judged(), "0.1.0", config()).expect("memory takes it"), "{action}");
        let recorded = Recorded::new(before);
        assert_eq!(recorded.reproduce_with(&catalogue, &fields), Ok(()), "{action}");
        let riskier: Vec<Action> = only.iter().map(|row| Action { approvals: ApprovalNeed::One, risk: Risk::Low, ..*row }).collect();
        let other = Err(ReproduceError::OtherTables { part: DecisionPart::Catalogue });
        assert_eq!(recorded.reproduce_with(&riskier, &TABLE), other, "{action}: its own row was changed");
        assert_eq!(recorded.reproduce_with(&[], &TABLE), other, "{action}: its own row is gone");
    }
}

#[test]
fn a_changed_or_removed_row_matters_only_if_the_decision_uses_it() {
    let recorded = record(&sample_world());
    let changed_action = |change: &str| CATALOGUE.map(|row| if row.change == change { Action { risk: Risk::High, ..row } } else { row });
    let changed_field = |kind, field| TABLE.map(|row| if is_row(&row, kind, field) { FieldRule { max: row.max - 1, ..row } } else { row });
    let removed_field = |kind, field| TABLE.into_iter().filter(|row| !is_row(row, kind, field)).collect::<Vec<_>>();
    let other = |part| Err(ReproduceError::OtherTables { part });
    assert_eq!(recorded.reproduce_with(&changed_action("stop"), &TABLE), Ok(()));
    assert_eq!(recorded.reproduce_with(&changed_action("start"), &TABLE), other(DecisionPart::Catalogue));
    assert_eq!(recorded.reproduce_with(&CATALOGUE[..3], &TABLE), other(DecisionPart::Catalogue));
    assert_eq!(recorded.reproduce_with(&CATALOGUE, &changed_field(GuestKind::Qemu, Field::Memory)), Ok(()));
    assert_eq!(recorded.reproduce_with(&CATALOGUE, &changed_field(GuestKind::Lxc, Field::Memory)), other(DecisionPart::Rules));
    assert_eq!(recorded.reproduce_with(&CATALOGUE, &removed_field(GuestKind::Lxc, Field::Swap)), Ok(()));
    assert_eq!(recorded.reproduce_with(&CATALOGUE, &removed_field(GuestKind::Lxc, Field::Memory)), other(DecisionPart::Rules));
}

/// Rows of our own tables that the decision does not use, or the lack of one that it uses, are a forged record.
#[test]
fn a_record_with_more_or_fewer_rows_than_the_decision_uses_is_refused() {
    let recorded = record(&sample_world());
    let unreadable = |part| Err(unreadable_error(part, "its rows are not those that the decision uses".into()));
    for rows in [&CATALOGUE[..], &[]] {
        let forged = recorded.with_part(DecisionPart::Catalogue, &serde_json::to_string(rows).expect("JSON"));
        assert_eq!(forged.reproduce_with(&CATALOGUE, &TABLE), unreadable(DecisionPart::Catalogue));
    }
    let mut rules: serde_json::Value = serde_json::from_str(&recorded.text(DecisionPart::Rules)).expect("JSON");
    for rows in [serde_json::to_value(TABLE.as_slice()).expect("JSON"), json!([])] {
        rules["fields"] = rows;
        let forged = recorded.with_part(DecisionPart::Rules, &rules.to_string());
        assert_eq!(forged.reproduce_with(&CATALOGUE, &TABLE), unreadable(DecisionPart::Rules));
    }
}
