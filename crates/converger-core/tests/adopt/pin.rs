//! Which guests are pinned, which are not, and why.

use converger_core::adopt::{Chosen, GuestPin, Outcome, Pinned, Wish, pin};
use converger_core::document::Notation;
use converger_core::observe::Scoped;
use serde_json::{Value, json};

use crate::{OTHER_UUID, UUID, ids, messages, reading, row};

const HEAD: &str = "version: 1\nenvironment: lab\nguests:\n";

fn wish(again: &[u64]) -> Wish {
    Wish { chosen: Chosen::All, again: ids(again) }
}

fn pinned(guests: &str, observation: &Scoped, wish: &Wish) -> Pinned {
    let text = format!("{HEAD}{guests}");
    pin(text.as_bytes(), Notation::Yaml, observation, wish).unwrap_or_else(|faults| panic!("{text}\n{faults:#?}"))
}

/// One declared guest, one row, and what comes of it.
fn one(guest: &str, row: Value, again: &[u64]) -> (Pinned, GuestPin) {
    let result = pinned(guest, &reading(&[row], &json!({})), &wish(again));
    let [guest] = &result.guests[..] else { panic!("{result:#?}") };
    (result.clone(), guest.clone())
}

fn codes(outcome: &Outcome) -> Vec<&'static str> {
    match outcome {
        Outcome::Refused(refusals) => refusals.iter().map(|refusal| refusal.code().word()).collect(),
        other => panic!("not refused: {other:?}"),
    }
}

const GUEST: &str = "- vmid: 100\n  kind: qemu\n  name: web-1\n";

#[test]
fn what_is_not_surely_the_declared_guest_is_not_pinned() {
    for (members, code) in [
        (json!({ "kind": "lxc", "identity": {} }), "kind-mismatch"),
        (json!({ "name": "web-2" }), "name-mismatch"),
        (json!({ "name": "WEB-1" }), "name-mismatch"),
        (json!({ "identity": null }), "guard-unread"),
        (json!({ "node": "pve2" }), "node-offline"),
        (json!({ "status": "unknown", "cause": "timeout" }), "guest-unknown"),
        (json!({ "vmid": 101 }), "guest-missing"),
    ] {
        let (result, guest) = one(GUEST, row(100, "qemu", &members), &[100]);
        assert_eq!(codes(&guest.outcome), [code], "{members}");
        assert_eq!(result.text, format!("{HEAD}{GUEST}"), "{members}");
        assert_eq!(guest.absent, Vec::<&str>::new(), "{members}");
    }
}

#[test]
fn a_reading_that_cannot_be_believed_pins_nobody() {
    for (members, expected) in [
        (json!({ "quorate": false }), &["not-quorate"][..]),
        (json!({ "complete": false }), &["observation-incomplete"]),
        (json!({ "quorate": false, "complete": false }), &["not-quorate", "observation-incomplete"]),
    ] {
        let observation = reading(&[row(100, "qemu", &json!({}))], &members);
        let result = pinned(GUEST, &observation, &wish(&[100]));
        assert_eq!(codes(&result.guests[0].outcome), expected);
        assert_eq!(result.refusals.len(), expected.len());
        assert_eq!(result.text, format!("{HEAD}{GUEST}"));
    }
}

#[test]
fn a_pin_that_does_not_hold_is_replaced_only_for_a_guest_that_is_named() {
    let guest = format!("- vmid: 100\n  kind: qemu\n  identity: {{ uuid: {OTHER_UUID} }}   # from the old host\n");
    for again in [&[][..], &[101]] {
        let (result, pinned) = one(&guest, row(100, "qemu", &json!({})), again);
        assert_eq!(codes(&pinned.outcome), ["identity-mismatch"]);
        assert_eq!(result.text, format!("{HEAD}{guest}"));
    }
    let (result, pinned) = one(&guest, row(100, "qemu", &json!({})), &[100]);
    let Outcome::Replaced(_, differences) = pinned.outcome else { panic!("{pinned:?}") };
    assert_eq!(differences, [format!("uuid: pinned {OTHER_UUID}, observed {UUID}")]);
    let expected = format!("- vmid: 100\n  kind: qemu\n  identity: {{ uuid: {UUID}, ctime: 1700000000 }}   # from the old host\n");
    assert_eq!(result.text, format!("{HEAD}{expected}"));
}

#[test]
fn a_guest_without_marks_is_said_to_have_none() {
    let (result, guest) = one(GUEST, row(100, "qemu", &json!({ "identity": {} })), &[]);
    assert_eq!((guest.outcome, guest.absent), (Outcome::Unmarked, vec!["ctime", "uuid"]));
    assert_eq!(result.text, format!("{HEAD}{GUEST}"));
    // Nor is a pin replaced by nothing, whoever asks.
    let pinned = format!("- vmid: 100\n  kind: qemu\n  identity: {{ uuid: {UUID} }}\n");
    let (result, guest) = one(&pinned, row(100, "qemu", &json!({ "identity": {} })), &[100]);
    assert_eq!(codes(&guest.outcome), ["identity-mismatch"]);
    assert_eq!(result.text, format!("{HEAD}{pinned}"));
}

#[test]
fn a_mark_that_an_old_guest_never_had_is_left_out_and_said() {
    let (result, guest) = one(GUEST, row(100, "qemu", &json!({ "identity": { "uuid": UUID } })), &[]);
    assert_eq!(guest.absent, ["ctime"]);
    assert_eq!(result.text, format!("{HEAD}{GUEST}  identity: {{ uuid: {UUID} }}\n"));
    let container = "- vmid: 100\n  kind: lxc\n  name: web-1\n";
    let (result, guest) = one(container, row(100, "lxc", &json!({ "identity": { "rootfs": "zfs:subvol-100-disk-0" } })), &[]);
    assert_eq!(guest.absent, ["mac"]);
    assert_eq!(result.text, format!("{HEAD}{container}  identity: {{ rootfs: \"zfs:subvol-100-disk-0\" }}\n"));
}

#[test]
fn a_container_is_pinned_by_its_volume_and_its_first_card() {
    let container = "- vmid: 100\n  kind: lxc\n  name: web-1\n";
    let (result, guest) = one(container, row(100, "lxc", &json!({})), &[]);
    assert!(matches!(guest.outcome, Outcome::Pinned(_)), "{guest:?}");
    let marks = "  identity: { rootfs: \"local-lvm:vm-100-disk-0\", mac: \"BC:24:11:00:00:01\" }\n";
    assert_eq!(result.text, format!("{HEAD}{container}{marks}"));
}

#[test]
fn a_pin_that_holds_stays_and_is_completed_where_it_lacks_a_mark() {
    let whole = format!("- vmid: 100\n  kind: qemu\n  identity: {{ uuid: \"{}\", ctime: 1700000000 }}\n", UUID.to_uppercase());
    let (result, guest) = one(&whole, row(100, "qemu", &json!({})), &[100]);
    assert_eq!(guest.outcome, Outcome::Unchanged);
    assert_eq!(result.text, format!("{HEAD}{whole}"));
    let part = "- vmid: 100\n  kind: qemu\n  identity:\n    # since 2023\n    ctime: 1700000000   # born\n";
    let (result, guest) = one(part, row(100, "qemu", &json!({})), &[]);
    assert!(matches!(guest.outcome, Outcome::Completed(_)), "{guest:?}");
    assert_eq!(result.text, format!("{HEAD}{part}    uuid: {UUID}\n"));
}

#[test]
fn only_the_chosen_guests_are_looked_at() {
    let guests = format!("{GUEST}- vmid: 101\n  kind: qemu\n  name: web-1\n");
    let rows = [row(100, "qemu", &json!({})), row(101, "qemu", &json!({}))];
    let wish = Wish { chosen: Chosen::Only(ids(&[101, 105])), again: ids(&[]) };
    let result = pinned(&guests, &reading(&rows, &json!({})), &wish);
    assert_eq!(result.guests.iter().map(|guest| guest.vmid.get()).collect::<Vec<_>>(), [101]);
    assert_eq!(result.text, format!("{HEAD}{guests}  identity: {{ uuid: {UUID}, ctime: 1700000000 }}\n"));
}

#[test]
fn others_are_pinned_beside_one_that_is_refused() {
    let guests = format!("{GUEST}- vmid: 101\n  kind: qemu\n  name: web-1\n");
    let result = pinned(&guests, &reading(&[row(101, "qemu", &json!({}))], &json!({})), &wish(&[]));
    assert_eq!(codes(&result.guests[0].outcome), ["guest-missing"]);
    assert!(matches!(result.guests[1].outcome, Outcome::Pinned(_)), "{:?}", result.guests[1]);
    assert_eq!(result.text, format!("{HEAD}{guests}  identity: {{ uuid: {UUID}, ctime: 1700000000 }}\n"));
}

#[test]
fn a_text_with_faults_is_not_pinned() {
    let faults = pin(b"version: 1\nguests: []\n", Notation::Yaml, &reading(&[], &json!({})), &wish(&[])).expect_err("no environment");
    assert_eq!(messages(&faults), ["the file lacks the key `environment`"]);
}

/// Marks are words of others: whatever they hold, they stay one value.
#[test]
fn marks_that_look_like_syntax_stay_marks() {
    for mark in ["a, state: stopped", "x } ]", "a\nstate: stopped", "# no", "true", "12", "'", "\"", "\\", "\u{1b}[31m", " padded "] {
        for (guest, notation) in [
            ("version: 1\nenvironment: lab\nguests: [{vmid: 100, kind: qemu, name: web-1}]", Notation::Yaml),
            (r#"{"version":1,"environment":"lab","guests":[{"vmid":100,"kind":"qemu","name":"web-1"}]}"#, Notation::Json),
            ("version: 1\nenvironment: lab\nguests:\n- vmid: 100\n  kind: qemu\n  name: web-1", Notation::Yaml),
        ] {
            let observation = reading(&[row(100, "qemu", &json!({ "identity": { "uuid": mark } }))], &json!({}));
            let result = pin(guest.as_bytes(), notation, &observation, &wish(&[])).unwrap_or_else(|faults| panic!("{mark:?} {faults:#?}"));
            let again = pin(result.text.as_bytes(), notation, &observation, &wish(&[])).expect("it parses");
            assert_eq!((again.guests[0].outcome.clone(), again.text), (Outcome::Unchanged, result.text), "{mark:?}");
        }
    }
}
