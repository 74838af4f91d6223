//! What was stored is read back exactly or refused by name, and records follow each other in one order only.

mod own_write;
mod restart;

use super::*;
use crate::guest::{Identity, Kind};
use crate::testing::{Rng, outcome, outcome_of, some_operations};

fn text_of(operation: &Operation) -> String {
    String::from_utf8(write_operation(operation).expect("serialises")).expect("UTF-8")
}

fn one(seed: u64) -> Operation {
    some_operations(&mut Rng::new(seed), "run-1").swap_remove(0)
}

#[test]
fn operations_of_random_plans_are_storable_canonical_and_read_back_as_they_were() {
    let mut words = std::collections::BTreeSet::new();
    let mut count = 0;
    for seed in 0..800 {
        for operation in some_operations(&mut Rng::new(seed), "run-1") {
            let text = text_of(&operation);
            assert!(operation.is_storable(), "seed {seed}: {text}");
            assert_eq!(parse_operation(text.as_bytes()).as_ref(), Ok(&operation), "seed {seed}: {text}");
            let tree: serde_json::Value = serde_json::from_str(&text).expect("JSON");
            assert_eq!(serde_json_canonicalizer::to_string(&tree).expect("canonical"), text, "seed {seed}");
            words.insert((operation.step.change.word(), operation.guest.kind, operation.source == Source::Convergent));
            count += 1;
        }
    }
    assert!(count > 1500, "{count} operations are too few to prove anything");
    // Five changes, two kinds, two sources; no field of a container waits for a restart, so that none is planned.
    assert_eq!(words.len(), 18, "{words:?}");
}

#[test]
fn outcomes_are_canonical_and_read_back_as_they_were() {
    let mut rng = Rng::new(7);
    for case in 0..5000 {
        let outcome = outcome(&mut rng);
        let bytes = write_outcome(&outcome).expect("serialises");
        assert!(outcome.is_storable(), "case {case}");
        assert_eq!(parse_outcome(&bytes).as_ref(), Ok(&outcome), "case {case}: {}", String::from_utf8_lossy(&bytes));
        let tree: serde_json::Value = serde_json::from_slice(&bytes).expect("JSON");
        assert_eq!(serde_json_canonicalizer::to_vec(&tree).expect("canonical"), bytes, "case {case}");
    }
}

/// Every member of a stored operation, taken away, renamed or doubled, makes it unreadable.
#[test]
fn an_operation_that_lost_or_gained_a_member_is_refused() {
    let text = text_of(&one(3));
    let tree: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let mut tried = 0;
    for pointer in members(&tree, "") {
        let (parent, key) = pointer.rsplit_once('/').expect("a member");
        let of = |tree: &mut serde_json::Value| tree.pointer_mut(parent).and_then(|parent| parent.as_object_mut()).cloned().expect("map");
        let mut less = tree.clone();
        let mut map = of(&mut less);
        let value = map.remove(key).expect("there");
        *less.pointer_mut(parent).expect("there") = map.clone().into();
        // A birth mark and a pending value may be absent, and `ha` may have no state; everything else must be there.
        if !["identity", "uuid", "ctime", "mac", "rootfs", "pending", "state"].contains(&key) && !parent.ends_with("/fields") {
            assert!(parse_operation(less.to_string().as_bytes()).is_err(), "without {pointer}");
        }
        map.insert(format!("{key}x"), value);
        *less.pointer_mut(parent).expect("there") = map.into();
        assert!(parse_operation(less.to_string().as_bytes()).is_err(), "renamed {pointer}");
        tried += 1;
    }
    assert!(tried > 20, "{tried}");
    for end in 0..text.len() {
        assert!(parse_operation(&text.as_bytes()[..end]).is_err(), "cut at {end}");
    }
    assert!(parse_operation(format!("{text}{text}").as_bytes()).is_err());
    assert!(parse_operation(text.replacen("\"id\":", "\"id\":\"a\",\"id\":", 1).as_bytes()).is_err());
}

fn members(tree: &serde_json::Value, at: &str) -> Vec<String> {
    let map = tree.as_object().into_iter().flatten();
    map.flat_map(|(key, value)| [vec![format!("{at}/{key}")], members(value, &format!("{at}/{key}"))].concat()).collect()
}

#[test]
fn another_schema_is_named_whatever_else_is_in_it() {
    let text = text_of(&one(3)).replace(OPERATION_SCHEMA, "converger.operation/2").replacen('{', "{\"a_new_key\":1,", 1);
    let error = parse_operation(text.as_bytes()).expect_err("another schema");
    assert_eq!(error, Malformed::OtherSchema { found: "converger.operation/2".into(), known: OPERATION_SCHEMA });
    assert!(error.to_string().contains("converger.operation/2"), "{error}");
    assert!(matches!(parse_outcome(br#"{"schema":"x/9"}"#), Err(Malformed::OtherSchema { .. })));
    assert!(matches!(parse_outcome(br#"{"end":"done","schema":"converger.outcome/1"}"#), Err(Malformed::Faults(_))));
}

#[test]
fn an_outcome_that_mixes_its_ends_is_refused() {
    for mixed in [
        r#"{"code":"x","end":"done","evidence":{},"observed":{},"schema":"converger.outcome/1"}"#,
        r#"{"end":"failed","evidence":{},"observed":{},"schema":"converger.outcome/1"}"#,
        r#"{"code":"x","end":"held","evidence":{},"observed":{},"schema":"converger.outcome/1"}"#,
        r#"{"code":"x","end":"failed","evidence":{},"observed":{},"release":"person","schema":"converger.outcome/1"}"#,
        r#"{"end":"done","evidence":{"a":1,"a":2},"observed":{},"schema":"converger.outcome/1"}"#,
        r#"{"end":"done","evidence":{"a":9007199254740992},"observed":{},"schema":"converger.outcome/1"}"#,
        r#"{"end":"done","evidence":{"a":1.5},"observed":{},"schema":"converger.outcome/1"}"#,
        r#"{"end":"done","evidence":{"a":true},"observed":{},"schema":"converger.outcome/1"}"#,
        r#"{"end":"done","evidence":{"A b":1},"observed":{},"schema":"converger.outcome/1"}"#,
    ] {
        assert!(parse_outcome(mixed.as_bytes()).is_err(), "{mixed}");
    }
}

#[test]
fn what_could_not_be_read_back_is_not_storable() {
    let operation = one(3);
    let with_marks = |identity| Operation { guest: Target { identity: Some(identity), ..operation.guest.clone() }, ..operation.clone() };
    let (upper, blank) = (Some("AB".into()), Some(" ".into()));
    let (ours, other) = match operation.guest.kind {
        Kind::Qemu => (
            [Identity::Qemu { uuid: upper, ctime: None }, Identity::Qemu { uuid: blank, ctime: None }],
            Identity::Lxc { rootfs: None, mac: None },
        ),
        Kind::Lxc => (
            [Identity::Lxc { rootfs: None, mac: Some("ab".into()) }, Identity::Lxc { rootfs: blank, mac: None }],
            Identity::Qemu { uuid: None, ctime: None },
        ),
    };
    for identity in ours.into_iter().chain([other]) {
        let operation = with_marks(identity);
        assert!(!operation.is_storable(), "{:?}", operation.guest.identity);
        assert_ne!(parse_operation(text_of(&operation).as_bytes()), Ok(operation));
    }
    assert!(!is_storable(&Record::Intent { operation: Box::new(operation), at_ms: u64::MAX }));
}

#[test]
fn records_follow_each_other_in_one_order_only() {
    let operation = one(5);
    let id = operation.id.clone();
    let task = TaskId::new("UPID:pve1:1:2:3:qmstart:101:root@pam:").expect("a task");
    let mut rng = Rng::new(1);
    let ended = |outcome| Record::Ended { id: id.clone(), outcome, at_ms: 3 };
    let intent = Record::Intent { operation: Box::new(operation.clone()), at_ms: 1 };
    let tasked = Record::Tasked { id: id.clone(), task, at_ms: 2 };
    let marked = Record::Sending { id: id.clone(), at_ms: 2, up_ms: 7 };
    let resolved = Record::Resolved { id: id.clone(), resolution: Resolution::Done, by: "ann".into(), reason: "seen".into(), at_ms: 4 };
    let (done, held) = (ended(outcome_of(&mut rng, End::Done)), ended(outcome_of(&mut rng, End::Held)));
    let refused = |before: &[&Record], next: &Record| {
        let mut history = History::begin(Box::new(operation.clone()), 1);
        before.iter().for_each(|record| history.add(Record::clone(record)).expect("legal"));
        let was = history.clone();
        let illegal = history.add(next.clone()).expect_err("illegal");
        assert_eq!(history, was, "a refused record leaves no trace");
        illegal
    };
    assert_eq!(refused(&[], &intent), Illegal::SecondIntent);
    assert_eq!(refused(&[&tasked], &marked), Illegal::SentAlready);
    assert_eq!(refused(&[&marked, &marked, &tasked], &marked), Illegal::SentAlready);
    assert_eq!(refused(&[&marked, &done], &marked), Illegal::AlreadyEnded(End::Done));
    assert_eq!(refused(&[], &Record::Sending { id: id.clone(), at_ms: 2, up_ms: u64::MAX }), Illegal::NotStorable);
    assert_eq!(refused(&[&marked, &tasked], &tasked), Illegal::SecondTask);
    assert_eq!(refused(&[&tasked], &tasked), Illegal::SecondTask);
    assert_eq!(refused(&[&done], &tasked), Illegal::AlreadyEnded(End::Done));
    assert_eq!(refused(&[&tasked, &done], &held), Illegal::AlreadyEnded(End::Done));
    assert_eq!(refused(&[&held], &done), Illegal::AlreadyEnded(End::Held));
    assert_eq!(refused(&[], &resolved), Illegal::NotHeld);
    assert_eq!(refused(&[&tasked], &resolved), Illegal::NotHeld);
    assert_eq!(refused(&[&done], &resolved), Illegal::NotHeld);
    let nameless = Record::Resolved { id: id.clone(), resolution: Resolution::Done, by: " ".into(), reason: "seen".into(), at_ms: 4 };
    assert_eq!(refused(&[&held], &nameless), Illegal::NotStorable);
    assert_eq!(refused(&[&tasked, &held, &resolved], &resolved), Illegal::AlreadyResolved(Resolution::Done));
}

#[test]
fn a_guest_is_occupied_until_its_operation_ended_and_was_not_left_held() {
    let mut rng = Rng::new(1);
    let operation = one(5);
    let id = operation.id.clone();
    let mut history = History::begin(Box::new(operation), 1);
    assert!(history.progress().is_open() && history.progress().occupies_guest() && !history.progress().is_held());
    history.add(Record::Ended { id: id.clone(), outcome: outcome_of(&mut rng, End::Held), at_ms: 2 }).expect("legal");
    assert!(!history.progress().is_open() && history.progress().is_held() && history.progress().occupies_guest());
    let resolved = Record::Resolved { id, resolution: Resolution::NotRun, by: "ann".into(), reason: "log".into(), at_ms: 3 };
    history.add(resolved).expect("legal");
    assert!(!history.progress().is_held() && !history.progress().occupies_guest());
}
