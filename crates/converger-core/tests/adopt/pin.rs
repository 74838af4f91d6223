//! Which guests are pinned, which are not, and why.

use converger_core::adopt::{GuestPin, PinOutcome, PinRequest, PinResult, PinSelection, pin};
use converger_core::document::Notation;
use converger_core::observe::Scoped;
use serde_json::{Value, json};

use crate::{OTHER_UUID, UUID, guest_row, messages, observation_of, scope_of};

const HEAD: &str = "version: 1\nenvironment: lab\nguests:\n";

fn pin_all(again: &[u64]) -> PinRequest {
    PinRequest { selection: PinSelection::All, repin: scope_of(again) }
}

fn pin_text(guests: &str, observation: &Scoped, request: &PinRequest) -> PinResult {
    let text = format!("{HEAD}{guests}");
    pin(text.as_bytes(), Notation::Yaml, observation, request).unwrap_or_else(|faults| panic!("{text}\n{faults:#?}"))
}

/// Pins one declared guest with one row.
fn pin_one(guest: &str, row: Value, again: &[u64]) -> (PinResult, GuestPin) {
    let result = pin_text(guest, &observation_of(&[row], &json!({})), &pin_all(again));
    let [guest] = &result.guests[..] else { panic!("{result:#?}") };
    (result.clone(), guest.clone())
}

fn refusal_words(outcome: &PinOutcome) -> Vec<&'static str> {
    match outcome {
        PinOutcome::Refused(refusals) => refusals.iter().map(|refusal| refusal.code().word()).collect(),
        other => panic!("not refused: {other:?}"),
    }
}

const GUEST: &str = "- vmid: 100\n  kind: qemu\n  name: web-1\n";

#[test]
fn refuses_to_pin_a_guest_that_may_not_be_the_declared_one() {
    for (members, code) in [
        (json!({ "kind": "lxc", "identity": {} }), "kind-mismatch"),
        (json!({ "name": "web-2" }), "name-mismatch"),
        (json!({ "name": "WEB-1" }), "name-mismatch"),
        (json!({ "identity": null }), "guard-unread"),
        (json!({ "node": "pve2" }), "node-offline"),
        (json!({ "status": "unknown", "cause": "timeout" }), "guest-unknown"),
        (json!({ "vmid": 101 }), "guest-missing"),
    ] {
        let (result, guest) = pin_one(GUEST, guest_row(100, "qemu", &members), &[100]);
        assert_eq!(refusal_words(&guest.outcome), [code], "{members}");
        assert_eq!(result.text, format!("{HEAD}{GUEST}"), "{members}");
        assert_eq!(guest.absent, Vec::<&str>::new(), "{members}");
    }
}

#[test]
fn pins_nothing_on_an_untrustworthy_observation() {
    for (members, expected) in [
        (json!({ "quorate": false }), &["not-quorate"][..]),
        (json!({ "complete": false }), &["observation-incomplete"]),
        (json!({ "quorate": false, "complete": false }), &["not-quorate", "observation-incomplete"]),
    ] {
        let observation = observation_of(&[guest_row(100, "qemu", &json!({}))], &members);
        let result = pin_text(GUEST, &observation, &pin_all(&[100]));
        assert_eq!(refusal_words(&result.guests[0].outcome), expected);
        assert_eq!(result.refusals.len(), expected.len());
        assert_eq!(result.text, format!("{HEAD}{GUEST}"));
    }
}

#[test]
fn mismatched_pin_is_replaced_only_when_requested() {
    let guest = format!("- vmid: 100\n  kind: qemu\n  identity: {{ uuid: {OTHER_UUID} }}   # from the old host\n");
    for again in [&[][..], &[101]] {
        let (result, pinned) = pin_one(&guest, guest_row(100, "qemu", &json!({})), again);
        assert_eq!(refusal_words(&pinned.outcome), ["identity-mismatch"]);
        assert_eq!(result.text, format!("{HEAD}{guest}"));
    }
    let (result, pinned) = pin_one(&guest, guest_row(100, "qemu", &json!({})), &[100]);
    let PinOutcome::Replaced(_, differences) = pinned.outcome else { panic!("{pinned:?}") };
    assert_eq!(differences, [format!("uuid: pinned {OTHER_UUID}, observed {UUID}")]);
    let expected = format!("- vmid: 100\n  kind: qemu\n  identity: {{ uuid: {UUID}, ctime: 1700000000 }}   # from the old host\n");
    assert_eq!(result.text, format!("{HEAD}{expected}"));
}

#[test]
fn reports_a_guest_without_birth_marks() {
    let (result, guest) = pin_one(GUEST, guest_row(100, "qemu", &json!({ "identity": {} })), &[]);
    assert_eq!((guest.outcome, guest.absent), (PinOutcome::NoMarks, vec!["ctime", "uuid"]));
    assert_eq!(result.text, format!("{HEAD}{GUEST}"));
    // A pin is not replaced by nothing, even if requested.
    let pinned = format!("- vmid: 100\n  kind: qemu\n  identity: {{ uuid: {UUID} }}\n");
    let (result, guest) = pin_one(&pinned, guest_row(100, "qemu", &json!({ "identity": {} })), &[100]);
    assert_eq!(refusal_words(&guest.outcome), ["identity-mismatch"]);
    assert_eq!(result.text, format!("{HEAD}{pinned}"));
}

#[test]
fn omits_and_reports_marks_that_a_guest_never_had() {
    let (result, guest) = pin_one(GUEST, guest_row(100, "qemu", &json!({ "identity": { "uuid": UUID } })), &[]);
    assert_eq!(guest.absent, ["ctime"]);
    assert_eq!(result.text, format!("{HEAD}{GUEST}  identity: {{ uuid: {UUID} }}\n"));
    let container = "- vmid: 100\n  kind: lxc\n  name: web-1\n";
    let (result, guest) = pin_one(container, guest_row(100, "lxc", &json!({ "identity": { "rootfs": "zfs:subvol-100-disk-0" } })), &[]);
    assert_eq!(guest.absent, ["mac"]);
    assert_eq!(result.text, format!("{HEAD}{container}  identity: {{ rootfs: \"zfs:subvol-100-disk-0\" }}\n"));
}

#[test]
fn container_is_pinned_by_root_volume_and_first_mac() {
    let container = "- vmid: 100\n  kind: lxc\n  name: web-1\n";
    let (result, guest) = pin_one(container, guest_row(100, "lxc", &json!({})), &[]);
    assert!(matches!(guest.outcome, PinOutcome::Pinned(_)), "{guest:?}");
    let marks = "  identity: { rootfs: \"local-lvm:vm-100-disk-0\", mac: \"BC:24:11:00:00:01\" }\n";
    assert_eq!(result.text, format!("{HEAD}{container}{marks}"));
}

#[test]
fn matching_pin_stays_and_gains_missing_marks() {
    let whole = format!("- vmid: 100\n  kind: qemu\n  identity: {{ uuid: \"{}\", ctime: 1700000000 }}\n", UUID.to_uppercase());
    let (result, guest) = pin_one(&whole, guest_row(100, "qemu", &json!({})), &[100]);
    assert_eq!(guest.outcome, PinOutcome::Unchanged);
    assert_eq!(result.text, format!("{HEAD}{whole}"));
    let part = "- vmid: 100\n  kind: qemu\n  identity:\n    # since 2023\n    ctime: 1700000000   # born\n";
    let (result, guest) = pin_one(part, guest_row(100, "qemu", &json!({})), &[]);
    assert!(matches!(guest.outcome, PinOutcome::Completed(_)), "{guest:?}");
    assert_eq!(result.text, format!("{HEAD}{part}    uuid: {UUID}\n"));
}

#[test]
fn pins_only_the_selected_guests() {
    let guests = format!("{GUEST}- vmid: 101\n  kind: qemu\n  name: web-1\n");
    let rows = [guest_row(100, "qemu", &json!({})), guest_row(101, "qemu", &json!({}))];
    let request = PinRequest { selection: PinSelection::Only(scope_of(&[101, 105])), repin: scope_of(&[]) };
    let result = pin_text(&guests, &observation_of(&rows, &json!({})), &request);
    assert_eq!(result.guests.iter().map(|guest| guest.vmid.get()).collect::<Vec<_>>(), [101]);
    assert_eq!(result.text, format!("{HEAD}{guests}  identity: {{ uuid: {UUID}, ctime: 1700000000 }}\n"));
}

#[test]
fn refusing_one_guest_does_not_stop_the_others() {
    let guests = format!("{GUEST}- vmid: 101\n  kind: qemu\n  name: web-1\n");
    let result = pin_text(&guests, &observation_of(&[guest_row(101, "qemu", &json!({}))], &json!({})), &pin_all(&[]));
    assert_eq!(refusal_words(&result.guests[0].outcome), ["guest-missing"]);
    assert!(matches!(result.guests[1].outcome, PinOutcome::Pinned(_)), "{:?}", result.guests[1]);
    assert_eq!(result.text, format!("{HEAD}{guests}  identity: {{ uuid: {UUID}, ctime: 1700000000 }}\n"));
}

#[test]
fn text_with_faults_is_not_pinned() {
    let faults =
        pin(b"version: 1\nguests: []\n", Notation::Yaml, &observation_of(&[], &json!({})), &pin_all(&[])).expect_err("no environment");
    assert_eq!(messages(&faults), ["the file lacks the key `environment`"]);
}

/// Marks are untrusted text; whatever they contain, they stay one value.
#[test]
fn marks_that_look_like_syntax_stay_marks() {
    for mark in ["a, state: stopped", "x } ]", "a\nstate: stopped", "# no", "true", "12", "'", "\"", "\\", "\u{1b}[31m", " padded "] {
        for (guest, notation) in [
            ("version: 1\nenvironment: lab\nguests: [{vmid: 100, kind: qemu, name: web-1}]", Notation::Yaml),
            (r#"{"version":1,"environment":"lab","guests":[{"vmid":100,"kind":"qemu","name":"web-1"}]}"#, Notation::Json),
            ("version: 1\nenvironment: lab\nguests:\n- vmid: 100\n  kind: qemu\n  name: web-1", Notation::Yaml),
        ] {
            let observation = observation_of(&[guest_row(100, "qemu", &json!({ "identity": { "uuid": mark } }))], &json!({}));
            let result =
                pin(guest.as_bytes(), notation, &observation, &pin_all(&[])).unwrap_or_else(|faults| panic!("{mark:?} {faults:#?}"));
            let again = pin(result.text.as_bytes(), notation, &observation, &pin_all(&[])).expect("it parses");
            assert_eq!((again.guests[0].outcome.clone(), again.text), (PinOutcome::Unchanged, result.text), "{mark:?}");
        }
    }
}
