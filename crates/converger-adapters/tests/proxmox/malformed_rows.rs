//! Responses that are valid JSON and malformed for their call: the guest stays unknown, and other guests are not affected.

use converger_adapters::proxmox::codec::HttpResponse;
use converger_adapters::proxmox::observe::ReadSet;

use crate::observe::{declared_needs, status_or_cause, three_guests};
use crate::scripted_proxmox::{stopped_guest, success_response, take_reading};

#[test]
fn g1_config_without_digest_leaves_the_guest_unknown() {
    for pending in [r#"[{"key":"name","value":"g100"},{"key":"cores","value":2}]"#, r#"[{"key":"name","value":"g100"},{"key":"digest"}]"#] {
        for needs in [ReadSet::Everything, declared_needs(None, true, &[100])] {
            let proxmox = three_guests().with_override("100/pending", vec![success_response(pending)]);
            let reading = take_reading(&proxmox, &[100, 200], &needs, None).expect("a reading");
            assert_eq!(status_or_cause(&reading, 100), "answer-malformed", "{pending}");
            let text = "guest 100: its config came without a `digest`, which every release of Proxmox sends";
            assert_eq!(reading.notes.iter().map(|note| note.text.as_str()).collect::<Vec<_>>(), [text], "{pending}");
            assert_eq!(status_or_cause(&reading, 200), "stopped", "other guests are not affected");
        }
    }
}

#[test]
fn g1_response_with_duplicate_key_or_list_for_object_leaves_the_guest_unknown() {
    let digest = r#"{"key":"digest","value":"0fe8"}"#;
    let name = r#"{"key":"name","value":"g100"}"#;
    let bodies = [
        ("100/pending", format!(r#"[{name},{{"key":"cores","value":2,"value":4}},{digest}]"#)),
        ("100/pending", format!(r#"[{name},{{"key":"cores","key":"protection","value":0}},{digest}]"#)),
        ("100/pending", format!(r#"[{name},["protection",0],{digest}]"#)),
        ("100/pending", r#"{"name":"g100","digest":"0fe8"}"#.to_owned()),
        ("100/status/current", r#"{"status":"stopped","name":"g100","ha":{"managed":1,"managed":0}}"#.to_owned()),
        ("100/status/current", r#"{"status":"stopped","status":"running","name":"g100","ha":{"managed":0}}"#.to_owned()),
        ("100/status/current", r#"["stopped",100,"stopped","g100",null,5,1,512,{"managed":0}]"#.to_owned()),
    ];
    for (path, body) in bodies {
        let reading =
            take_reading(&three_guests().with_override(path, vec![success_response(&body)]), &[100, 200], &ReadSet::Everything, None)
                .expect("a reading");
        assert_eq!(
            (status_or_cause(&reading, 100).as_str(), status_or_cause(&reading, 200).as_str()),
            ("answer-malformed", "stopped"),
            "{body}"
        );
        assert!(reading.notes.iter().any(|note| note.text.contains("the response does not fit this call")), "{body}: {:?}", reading.notes);
    }
    let envelope = HttpResponse { body: br#"[[{"key":"name","value":"g100"}],1]"#.to_vec(), ..success_response("") };
    let reading =
        take_reading(&three_guests().with_override("100/pending", vec![envelope]), &[100], &ReadSet::Everything, None).expect("a reading");
    assert_eq!(status_or_cause(&reading, 100), "answer-malformed");
}

#[test]
fn g2_list_row_without_node_or_type_leaves_its_guest_unknown() {
    for (row, field) in [
        (r#"{"vmid":101,"type":"qemu","status":"stopped","name":"g101"}"#, "node"),
        (r#"{"vmid":101,"type":"qemu","node":["n1"],"status":"stopped","name":"g101"}"#, "node"),
        (r#"{"vmid":101,"node":"n1","status":"stopped","name":"g101"}"#, "type"),
        (r#"{"vmid":101,"type":{"x":1},"node":"n1","status":"stopped","name":"g101"}"#, "type"),
    ] {
        let rows = format!("[{row},{}]", stopped_guest(100, "n1").listed.unwrap_or_default());
        let proxmox = three_guests().with_override("resources?type=vm", vec![success_response(&rows)]);
        let reading = take_reading(&proxmox, &[100, 101], &declared_needs(None, false, &[100, 101]), None).expect("a reading");
        let text = format!("guest 101: its row in the list of guests has no usable `{field}`");
        assert_eq!(reading.notes.iter().map(|note| note.text.as_str()).collect::<Vec<_>>(), [text.as_str()], "{row}");
        let unlisted: Vec<(u32, &str)> = reading.observation.unlisted.iter().map(|own| (own.vmid.get(), &*own.cause)).collect();
        assert_eq!((unlisted, reading.observation.complete), (vec![(101, "answer-malformed")], false), "{row}");
        // A row outside the scope has no effect.
        let reading = take_reading(&proxmox, &[100], &declared_needs(None, false, &[100]), None).expect("a reading");
        assert!(reading.observation.complete && reading.notes.is_empty(), "{row}: {:?}", reading.notes);
        // Beside a complete row of the same guest, it is unclear which of the two counts.
        let rows = format!("[{row},{}]", stopped_guest(101, "n1").listed.unwrap_or_default());
        let reading = take_reading(
            &three_guests().with_override("resources?type=vm", vec![success_response(&rows)]),
            &[101],
            &ReadSet::Everything,
            None,
        )
        .expect("a reading");
        assert_eq!(status_or_cause(&reading, 101), "answer-malformed", "{row}");
    }
}

#[test]
fn g2_list_with_a_row_without_id_is_rejected() {
    for row in [
        r#"{"type":"qemu","node":"n1","status":"stopped","name":"g101"}"#,
        r#"{"vmid":"x","type":"qemu","node":"n1","status":"stopped"}"#,
        r#"{"vmid":[101],"type":"qemu","node":"n1","status":"stopped"}"#,
        r#"{"vmid":101,"vmid":102,"type":"qemu","node":"n1","status":"stopped"}"#,
        r#"[101,"qemu","n1","stopped","g101"]"#,
        r#"5"#,
    ] {
        let rows = format!("[{},{row}]", stopped_guest(100, "n1").listed.unwrap_or_default());
        let proxmox = three_guests().with_override("resources?type=vm", vec![success_response(&rows)]);
        let unread = take_reading(&proxmox, &[100], &declared_needs(None, false, &[100]), None).expect_err("no reading");
        assert!(unread.to_string().contains("the list of guests cannot be read: 200 the response does not fit this call"), "{unread}");
        assert!(!unread.remedy().is_empty(), "{unread}");
    }
}
