//! Where marks are inserted in texts of every layout, with complete texts before and after.

use std::collections::BTreeMap;

use converger_core::desired::insert_marks;
use converger_core::document::Notation;
use converger_core::guest::{GuestIdentity, Vmid};

use crate::messages;

fn qemu(uuid: Option<&str>, ctime: Option<u64>) -> GuestIdentity {
    GuestIdentity::Qemu { uuid: uuid.map(Into::into), ctime }
}

fn insert_marks_twice(text: &str, notation: Notation, wanted: &GuestIdentity) -> Result<String, String> {
    let marks = BTreeMap::from([(Vmid::new(100).expect("an id"), wanted.clone())]);
    let written = insert_marks(text.as_bytes(), notation, &marks).map_err(|faults| messages(&faults).join("; "))?;
    let again = insert_marks(written.as_bytes(), notation, &marks).map_err(|faults| messages(&faults).join("; "))?;
    assert_eq!(again, written, "inserting again must change nothing");
    Ok(written)
}

/// Checks that the parts between `«` and `»` are inserted.
fn check(notation: Notation, wanted: &GuestIdentity, after: &str) {
    let expected = after.replace(['«', '»'], "");
    let (mut before, mut rest) = (String::new(), after);
    while let Some((unchanged, inserted)) = rest.split_once('«') {
        before.push_str(unchanged);
        rest = inserted.split_once('»').expect("closed").1;
    }
    before.push_str(rest);
    assert_eq!(insert_marks_twice(&before, notation, wanted), Ok(expected), "{before}");
}

fn check_inserted(after: &str) {
    check(Notation::Yaml, &qemu(Some("u-1"), Some(5)), after);
}

/// Checks what a text becomes.
fn check_replaced(wanted: &GuestIdentity, before: &str, after: &str) {
    assert_eq!(insert_marks_twice(before, Notation::Yaml, wanted).as_deref(), Ok(after), "{before}");
}

#[test]
fn inserts_after_the_name_in_a_block() {
    check_inserted(
        "version: 1\nenvironment: lab\nguests:\n- vmid: 100\n  kind: qemu\n  name: a«\n  identity: { uuid: u-1, ctime: 5 }»\n  state: running\n",
    );
    check_inserted(
        "version: 1\nenvironment: lab\nguests:\n  -   vmid: 100\n      name: a  # c«\n      identity: { uuid: u-1, ctime: 5 }»\n      kind: qemu\n",
    );
    check_inserted(
        "version: 1\nenvironment: lab\nguests:\n  -\n    name: a\t# c\t«\n    identity: { uuid: u-1, ctime: 5 }»\n\n    # about the kind\n    kind: qemu\n    vmid: 100\n",
    );
}

#[test]
fn inserts_between_other_guests_and_comments() {
    check_inserted(
        "# top\nversion: 1\nenvironment: lab\n\nguests:\n  # first\n  - vmid: 99999\n    kind: lxc\n    name: a\n\n  # second\n  - vmid: 100 # id\n    # kinds\n    kind: qemu\n    name: \"b\"«\n    identity: { uuid: u-1, ctime: 5 }»\n    config:\n      # in config\n      cores: 2\n  # third\n  - vmid: 101\n    kind: lxc\n    name: c\n# end\n",
    );
}

#[test]
fn keeps_windows_line_breaks_and_a_missing_final_newline() {
    check_inserted(
        "version: 1\r\nenvironment: lab\r\nguests:\r\n- vmid: 100\r\n  kind: qemu\r\n  name: a«\r\n  identity: { uuid: u-1, ctime: 5 }»\r\n  state: running\r\n",
    );
    check_inserted(
        "version: 1\r\nenvironment: lab\r\nguests:\r\n- vmid: 100\r\n  kind: qemu\r\n  name: a«\r\n  identity: { uuid: u-1, ctime: 5 }»",
    );
    check_inserted(
        "version: 1\nenvironment: lab\nguests:\n- vmid: 100\n  kind: qemu\n  name: a # last«\n  identity: { uuid: u-1, ctime: 5 }»",
    );
    check_inserted("version: 1\renvironment: lab\rguests:\r- vmid: 100\r  kind: qemu\r  name: a«\r  identity: { uuid: u-1, ctime: 5 }»");
}

#[test]
fn handles_quoted_keys_and_multi_line_values() {
    check_inserted(
        "version: 1\nenvironment: lab\nguests:\n- \"vmid\": 100\n  'kind': qemu\n  \"name\":   'a'«\n  identity: { uuid: u-1, ctime: 5 }»\n",
    );
    check_inserted(
        "version: 1\nenvironment: lab\nguests:\n- vmid: 100\n  name:\n    a   # c«\n  identity: { uuid: u-1, ctime: 5 }»\n  kind: qemu\n",
    );
    check_inserted(
        "version: 1\nenvironment: lab\nguests:\n- vmid: 100\n  name: |-\n    a\n  kind: qemu«\n  identity: { uuid: u-1, ctime: 5 }»\n  config:\n    description: |\n      x\n      # no comment\n\n",
    );
    check_inserted(
        "version: 1\nenvironment: lab\nguests:\n- vmid: 100«\n  identity: { uuid: u-1, ctime: 5 }»\n  name: |-\n    a\n  kind: >-\n    qemu\n",
    );
    check_inserted(
        "version: 1\nenvironment: lab\nguests:\n- ? vmid\n  : 100\n  name: a«\n  identity: { uuid: u-1, ctime: 5 }»\n  kind: qemu\n",
    );
}

#[test]
fn inserts_into_yaml_flow_maps() {
    check_inserted("version: 1\nenvironment: lab\nguests:\n- {vmid: 100, kind: qemu, name: a«, identity: {uuid: u-1, ctime: 5}»}\n");
    check_inserted(
        "version: 1\nenvironment: lab\nguests:\n- { vmid: 100, name: a«, identity: { uuid: u-1, ctime: 5 }», kind: qemu }   # c\n",
    );
    check_inserted("version: 1\nenvironment: lab\nguests: [{vmid: 100, kind: qemu, name: a«, identity: {uuid: u-1, ctime: 5}»,},]\n");
    check_inserted(
        "{version: 1, environment: lab, guests: [{\n   vmid: 100,\n   name: \"a\"«,\n   identity: {uuid: u-1, ctime: 5}»,\n   kind: qemu\n   }]}",
    );
    // The comment stays beside the name.
    check_inserted(
        "{version: 1, environment: lab, guests: [{\n   vmid: 100,\n   name: a«, identity: {uuid: u-1, ctime: 5}», # c\n   kind: qemu\n   }]}",
    );
    check_inserted(
        "{version: 1, environment: lab, guests: [{\r\n   vmid: 100,\r\n   name: a«,\r\n   identity: {uuid: u-1, ctime: 5}»,\r\n   kind: qemu\r\n   }]}",
    );
}

#[test]
fn inserts_into_compact_and_indented_json() {
    let check = |after: &str| check(Notation::Json, &qemu(Some("u-1"), Some(5)), after);
    check(r#"{"version":1,"environment":"lab","guests":[{"vmid":100,"kind":"qemu","name":"a"«,"identity":{"uuid":"u-1","ctime":5}»}]}"#);
    check(
        r#"{"version": 1, "environment": "lab", "guests": [{"vmid": 100, "name": "a"«, "identity": {"uuid": "u-1", "ctime": 5}», "kind": "qemu"}]}"#,
    );
    check(
        "{\n  \"version\": 1, \"environment\": \"lab\",\n  \"guests\": [\n    {\n\t\t\"vmid\": 100,\n\t\t\"kind\": \"qemu\",\n\t\t\"name\": \"a\"«,\n\t\t\"identity\": {\"uuid\": \"u-1\", \"ctime\": 5}»\n    }\n  ]\n}\n",
    );
    let before = r#"{"version":1,"environment":"lab","guests":[{"vmid":100,"kind":"qemu","identity":{"ctime":5}}]}"#;
    let after = r#"{"version":1,"environment":"lab","guests":[{"vmid":100,"kind":"qemu","identity":{"uuid":"\"\u0007"}}]}"#;
    assert_eq!(insert_marks_twice(before, Notation::Json, &qemu(Some("\"\u{7}"), None)).as_deref(), Ok(after));
}

const HEAD: &str = "version: 1\nenvironment: lab\nguests:\n- vmid: 100\n  kind: qemu\n";

#[test]
fn replaced_marks_keep_their_quote_style() {
    let new = qemu(Some("u-2"), Some(6));
    for (old, replaced) in [
        ("{ uuid: u-1, ctime: 5 }", "{ uuid: u-2, ctime: 6 }"),
        ("{uuid: 'u-1' , # c\n    ctime: 5}", "{uuid: 'u-2' , # c\n    ctime: 6}"),
        ("\n    # a\n    ctime: 5   # b\n\n    uuid: \"u-1\"  # c", "\n    # a\n    ctime: 6   # b\n\n    uuid: \"u-2\"  # c"),
        ("\n    uuid:\n      u-1\n    ctime: 5", "\n    uuid:\n      u-2\n    ctime: 6"),
    ] {
        check_replaced(
            &new,
            &format!("{HEAD}  identity: {old}\n  state: running\n"),
            &format!("{HEAD}  identity: {replaced}\n  state: running\n"),
        );
    }
}

#[test]
fn removes_a_missing_mark_and_keeps_comments() {
    let new = qemu(Some("u-2"), None);
    for (old, left) in [
        ("{ uuid: u-1, ctime: 5 }", "{ uuid: u-2 }"),
        ("{ctime: 5, uuid: u-2}", "{uuid: u-2}"),
        ("{ctime: 5, # c\n    uuid: u-2}", "{ # c\n    uuid: u-2}"),
        ("{uuid: u-2, # c\n    ctime: 5}", "{uuid: u-2 # c\n    }"),
        ("\n    uuid: u-1\n    ctime: 5", "\n    uuid: u-2"),
        ("\n    ctime: 5\n    uuid: u-2", "\n    uuid: u-2"),
        ("\n    ctime: 5  # c\n    uuid: u-2", "\n      # c\n    uuid: u-2"),
        ("\n    ctime: 5 # born", "\n    uuid: u-2 # born"),
        ("{ ctime: 5 }", "{ uuid: u-2 }"),
    ] {
        for (rest, end) in [("\n  state: running\n", ""), ("\r\n", "\r\n"), ("", "")] {
            let (old, left) = (format!("{HEAD}  identity: {old}{rest}{end}"), format!("{HEAD}  identity: {left}{rest}{end}"));
            check_replaced(&new, &old, &left);
        }
    }
}

#[test]
fn unsupported_layout_is_a_fault_with_help() {
    for identity in ["\n    uuid: |-\n      u-1\n", "\n    ? uuid # c\n    : u-1\n"] {
        let text = format!("{HEAD}  identity: {identity}");
        let marks = BTreeMap::from([(Vmid::new(100).expect("an id"), qemu(Some("u-2"), Some(5)))]);
        let faults = insert_marks(text.as_bytes(), Notation::Yaml, &marks).expect_err("not understood");
        assert_eq!(messages(&faults), ["the birth marks of guest 100 cannot be written into a layout like this"]);
        let fault = &faults.list()[0];
        assert_eq!(fault.help.as_deref(), Some("write them by hand: identity: { uuid: u-2, ctime: 5 }"));
        assert_eq!(text.get(fault.span.start as usize..fault.span.end as usize), Some("100"));
    }
}

#[test]
fn guests_that_are_not_declared_change_nothing() {
    let text = format!("{HEAD}  name: a\n");
    let marks = BTreeMap::from([(Vmid::new(101).expect("an id"), qemu(Some("u-2"), None))]);
    assert_eq!(insert_marks(text.as_bytes(), Notation::Yaml, &marks).as_deref(), Ok(text.as_str()));
    assert_eq!(insert_marks(text.as_bytes(), Notation::Yaml, &BTreeMap::new()).as_deref(), Ok(text.as_str()));
}

/// A mark that would not read back is not written; here marks of the other kind, blank ones, and none.
#[test]
fn marks_of_the_other_kind_are_never_written() {
    let container = GuestIdentity::Lxc { rootfs: Some("a".into()), mac: None };
    assert!(insert_marks_twice(&format!("{HEAD}  name: a\n"), Notation::Yaml, &container).is_err());
    assert!(insert_marks_twice(&format!("{HEAD}  identity: {{ ctime: 5 }}\n"), Notation::Yaml, &container).is_err());
    assert!(insert_marks_twice(&format!("{HEAD}  name: a\n"), Notation::Yaml, &qemu(Some("  "), None)).is_err());
    assert!(insert_marks_twice(&format!("{HEAD}  name: a\n"), Notation::Yaml, &qemu(None, None)).is_err());
}
