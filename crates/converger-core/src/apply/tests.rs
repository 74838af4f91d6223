//! Stored text is read back exactly or rejected, and journal records are accepted in one order only.

mod own_write;
mod restart;

use super::*;
use crate::guest::{GuestIdentity, GuestKind};
use crate::testing::{Rng, random_outcome, random_outcome_with_end, some_operations};

fn operation_text(operation: &Operation) -> String {
    String::from_utf8(write_operation(operation).expect("serialises")).expect("UTF-8")
}

fn sample_operation(seed: u64) -> Operation {
    some_operations(&mut Rng::new(seed), "run-1").swap_remove(0)
}

#[test]
fn operations_of_random_plans_are_canonical_and_read_back_unchanged() {
    let mut changes = std::collections::BTreeSet::new();
    let mut count = 0;
    for seed in 0..800 {
        for operation in some_operations(&mut Rng::new(seed), "run-1") {
            let text = operation_text(&operation);
            assert!(operation.is_storable(), "seed {seed}: {text}");
            assert_eq!(parse_operation(text.as_bytes()).as_ref(), Ok(&operation), "seed {seed}: {text}");
            let tree: serde_json::Value = serde_json::from_str(&text).expect("JSON");
            assert_eq!(serde_json_canonicalizer::to_string(&tree).expect("canonical"), text, "seed {seed}");
            changes.insert((operation.step.change.word(), operation.guest.kind, operation.source == OperationSource::Convergent));
            count += 1;
        }
    }
    assert!(count > 1500, "{count} operations are too few to prove anything");
    // Five changes, two kinds and two sources make 20. No field of a container waits for a restart, so no container is rebooted.
    assert_eq!(changes.len(), 18, "{changes:?}");
}

#[test]
fn outcomes_are_canonical_and_read_back_unchanged() {
    let mut rng = Rng::new(7);
    for case in 0..5000 {
        let outcome = random_outcome(&mut rng);
        let bytes = write_outcome(&outcome).expect("serialises");
        assert!(outcome.is_storable(), "case {case}");
        assert_eq!(parse_outcome(&bytes).as_ref(), Ok(&outcome), "case {case}: {}", String::from_utf8_lossy(&bytes));
        let tree: serde_json::Value = serde_json::from_slice(&bytes).expect("JSON");
        assert_eq!(serde_json_canonicalizer::to_vec(&tree).expect("canonical"), bytes, "case {case}");
    }
}

/// Removing, renaming or duplicating any member of a stored operation makes it unreadable.
#[test]
fn rejects_an_operation_with_a_missing_or_extra_member() {
    let text = operation_text(&sample_operation(3));
    let tree: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let mut tried = 0;
    for pointer in member_pointers(&tree, "") {
        let (parent, key) = pointer.rsplit_once('/').expect("a member");
        let of = |tree: &mut serde_json::Value| tree.pointer_mut(parent).and_then(|parent| parent.as_object_mut()).cloned().expect("map");
        let mut less = tree.clone();
        let mut map = of(&mut less);
        let value = map.remove(key).expect("there");
        *less.pointer_mut(parent).expect("there") = map.clone().into();
        // Birth marks and pending values may be absent, and `ha` may have no state; everything else is required.
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

fn member_pointers(tree: &serde_json::Value, at: &str) -> Vec<String> {
    let map = tree.as_object().into_iter().flatten();
    map.flat_map(|(key, value)| [vec![format!("{at}/{key}")], member_pointers(value, &format!("{at}/{key}"))].concat()).collect()
}

#[test]
fn another_schema_is_reported_before_other_faults() {
    let text =
        operation_text(&sample_operation(3)).replace(OPERATION_SCHEMA, "converger.operation/2").replacen('{', "{\"a_new_key\":1,", 1);
    let error = parse_operation(text.as_bytes()).expect_err("another schema");
    assert_eq!(error, StoredTextError::OtherSchema { found: "converger.operation/2".into(), known: OPERATION_SCHEMA });
    assert!(error.to_string().contains("converger.operation/2"), "{error}");
    assert!(matches!(parse_outcome(br#"{"schema":"x/9"}"#), Err(StoredTextError::OtherSchema { .. })));
    assert!(matches!(parse_outcome(br#"{"end":"done","schema":"converger.outcome/1"}"#), Err(StoredTextError::Invalid(_))));
}

#[test]
fn rejects_an_outcome_with_contradicting_members() {
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
fn unreadable_values_are_not_storable() {
    let operation = sample_operation(3);
    let with_marks =
        |identity| Operation { guest: OperationTarget { identity: Some(identity), ..operation.guest.clone() }, ..operation.clone() };
    let (upper, blank) = (Some("AB".into()), Some(" ".into()));
    let (same_kind, other) = match operation.guest.kind {
        GuestKind::Qemu => (
            [GuestIdentity::Qemu { uuid: upper, ctime: None }, GuestIdentity::Qemu { uuid: blank, ctime: None }],
            GuestIdentity::Lxc { rootfs: None, mac: None },
        ),
        GuestKind::Lxc => (
            [GuestIdentity::Lxc { rootfs: None, mac: Some("ab".into()) }, GuestIdentity::Lxc { rootfs: blank, mac: None }],
            GuestIdentity::Qemu { uuid: None, ctime: None },
        ),
    };
    for identity in same_kind.into_iter().chain([other]) {
        let operation = with_marks(identity);
        assert!(!operation.is_storable(), "{:?}", operation.guest.identity);
        assert_ne!(parse_operation(operation_text(&operation).as_bytes()), Ok(operation));
    }
    assert!(!is_storable(&JournalRecord::Intent { operation: Box::new(operation), at_ms: u64::MAX }));
}

#[test]
fn records_are_accepted_in_one_order_only() {
    let operation = sample_operation(5);
    let id = operation.id.clone();
    let task = TaskId::new("UPID:pve1:1:2:3:qmstart:101:root@pam:").expect("a task");
    let mut rng = Rng::new(1);
    let end_record = |outcome| JournalRecord::Ended { id: id.clone(), outcome, at_ms: 3 };
    let intent = JournalRecord::Intent { operation: Box::new(operation.clone()), at_ms: 1 };
    let tasked = JournalRecord::TaskStarted { id: id.clone(), task, at_ms: 2 };
    let marked = JournalRecord::Sending { id: id.clone(), at_ms: 2, up_ms: 7 };
    let resolved =
        JournalRecord::Resolved { id: id.clone(), resolution: Resolution::Done, by: "ann".into(), reason: "seen".into(), at_ms: 4 };
    let (done, held) = (
        end_record(random_outcome_with_end(&mut rng, OperationEnd::Done)),
        end_record(random_outcome_with_end(&mut rng, OperationEnd::Held)),
    );
    let refused = |before: &[&JournalRecord], next: &JournalRecord| {
        let mut history = OperationHistory::from_intent(Box::new(operation.clone()), 1);
        before.iter().for_each(|record| history.add_record(JournalRecord::clone(record)).expect("legal"));
        let was = history.clone();
        let illegal = history.add_record(next.clone()).expect_err("illegal");
        assert_eq!(history, was, "a refused record leaves no trace");
        illegal
    };
    assert_eq!(refused(&[], &intent), IllegalRecord::SecondIntent);
    assert_eq!(refused(&[&tasked], &marked), IllegalRecord::SentAlready);
    assert_eq!(refused(&[&marked, &marked, &tasked], &marked), IllegalRecord::SentAlready);
    assert_eq!(refused(&[&marked, &done], &marked), IllegalRecord::AlreadyEnded(OperationEnd::Done));
    assert_eq!(refused(&[], &JournalRecord::Sending { id: id.clone(), at_ms: 2, up_ms: u64::MAX }), IllegalRecord::NotStorable);
    assert_eq!(refused(&[&marked, &tasked], &tasked), IllegalRecord::SecondTask);
    assert_eq!(refused(&[&tasked], &tasked), IllegalRecord::SecondTask);
    assert_eq!(refused(&[&done], &tasked), IllegalRecord::AlreadyEnded(OperationEnd::Done));
    assert_eq!(refused(&[&tasked, &done], &held), IllegalRecord::AlreadyEnded(OperationEnd::Done));
    assert_eq!(refused(&[&held], &done), IllegalRecord::AlreadyEnded(OperationEnd::Held));
    assert_eq!(refused(&[], &resolved), IllegalRecord::NotHeld);
    assert_eq!(refused(&[&tasked], &resolved), IllegalRecord::NotHeld);
    assert_eq!(refused(&[&done], &resolved), IllegalRecord::NotHeld);
    let nameless =
        JournalRecord::Resolved { id: id.clone(), resolution: Resolution::Done, by: " ".into(), reason: "seen".into(), at_ms: 4 };
    assert_eq!(refused(&[&held], &nameless), IllegalRecord::NotStorable);
    assert_eq!(refused(&[&tasked, &held, &resolved], &resolved), IllegalRecord::AlreadyResolved(Resolution::Done));
}

#[test]
fn guest_is_occupied_while_its_operation_is_open_or_held() {
    let mut rng = Rng::new(1);
    let operation = sample_operation(5);
    let id = operation.id.clone();
    let mut history = OperationHistory::from_intent(Box::new(operation), 1);
    assert!(history.progress().is_open() && history.progress().occupies_guest() && !history.progress().is_held());
    history
        .add_record(JournalRecord::Ended { id: id.clone(), outcome: random_outcome_with_end(&mut rng, OperationEnd::Held), at_ms: 2 })
        .expect("legal");
    assert!(!history.progress().is_open() && history.progress().is_held() && history.progress().occupies_guest());
    let resolved = JournalRecord::Resolved { id, resolution: Resolution::NotRun, by: "ann".into(), reason: "log".into(), at_ms: 3 };
    history.add_record(resolved).expect("legal");
    assert!(!history.progress().is_held() && !history.progress().occupies_guest());
}
