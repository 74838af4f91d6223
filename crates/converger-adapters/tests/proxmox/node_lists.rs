//! Run-states come from the lists of the nodes, combined with the cluster's list, which may be five minutes old.

use converger_adapters::proxmox::codec::HttpResponse;
use converger_adapters::proxmox::observe::{ReadSet, UnknownReason};
use converger_core::guest::RunState;
use converger_core::observe::Reading;

use crate::observe::{declared_needs, find_guest, running_guest, status_or_cause, three_guests};
use crate::scripted_proxmox::{
    STANDALONE_NODE, ScriptedGuest, ScriptedProxmox, cluster_rows, failure_response, raw_response, stopped_guest, success_response,
    take_reading,
};

const RUNNING: Option<RunState> = Some(RunState::Running);
const STOPPED: Option<RunState> = Some(RunState::Stopped);

/// A running guest whose uptime was `then_secs` at the last report to the cluster, and whose node lists it as `own` now.
fn reported(vmid: u32, then: &str, then_secs: u32, own: &str) -> ScriptedGuest {
    let plain = running_guest(vmid, "n1");
    let listed = plain
        .listed
        .map(|row| row.replace("\"running\"", &format!("\"{then}\"")).replace("\"uptime\":100", &format!("\"uptime\":{then_secs}")));
    ScriptedGuest { listed, own: Some(own.replace("$", &vmid.to_string())), ..plain }
}

fn container(vmid: u32, node: &str) -> ScriptedGuest {
    let plain = stopped_guest(vmid, node);
    ScriptedGuest { kind: "lxc", listed: plain.listed.map(|row| row.replace("qemu", "lxc")), ..plain }
}

const OWN_RUNNING: &str = r#"{"vmid":$,"status":"running","name":"g$","uptime":1000}"#;
const OWN_STOPPED: &str = r#"{"vmid":$,"status":"stopped","name":"g$","uptime":0}"#;

fn paths(proxmox: &ScriptedProxmox) -> Vec<String> {
    proxmox.requests().iter().map(|path| path.trim_start_matches("GET /api2/extjs/").to_owned()).collect()
}

#[test]
fn g1_stale_list_does_not_make_a_stopped_guest_converged() {
    let stopped = ScriptedGuest { current: stopped_guest(100, "n1").current, ..reported(100, "running", 990, OWN_STOPPED) };
    let proxmox = ScriptedProxmox::with_guests(STANDALONE_NODE, [(100, stopped)]);
    let reading = take_reading(&proxmox, &[100], &declared_needs(RUNNING, false, &[100]), None).expect("a reading");
    assert_eq!((status_or_cause(&reading, 100).as_str(), find_guest(&reading, 100).source.as_deref()), ("stopped", Some("live")));
}

#[test]
fn g4_thousand_converged_guests_cost_one_request_per_node_and_kind() {
    let cluster = cluster_rows("lab", 1, &[("n1", 1), ("n2", 1), ("n3", 1)]);
    let guests = (100..1100).map(|vmid| (vmid, if vmid % 2 == 0 { stopped_guest(vmid, "n1") } else { running_guest(vmid, "n2") }));
    let proxmox = ScriptedProxmox::with_guests(&cluster, guests.chain([(2000, container(2000, "n2")), (2001, stopped_guest(2001, "n3"))]));
    let ids: Vec<u64> = (100..1100).chain([2000]).collect();
    let reading = take_reading(&proxmox, &ids, &declared_needs(None, false, &ids), None).expect("a reading");
    assert_eq!(reading.observation.guests.len(), 1002);
    assert!(ids.iter().all(|vmid| matches!(status_or_cause(&reading, *vmid).as_str(), "running" | "stopped")));
    assert!(ids.iter().all(|vmid| find_guest(&reading, *vmid).source.as_deref() == Some("node-list")));
    let expected = ["cluster/status", "cluster/resources?type=vm", "nodes/n1/qemu", "nodes/n2/qemu", "nodes/n2/lxc", "cluster/status"];
    let mut requests = paths(&proxmox);
    requests[2..5].sort_by_key(|path| (path.contains("n2"), path.contains("lxc")));
    assert_eq!(requests, expected, "no guest in scope is on n3");
}

#[test]
fn g4_late_report_costs_one_more_request_per_node() {
    let guests = (100..1100).map(|vmid| (vmid, reported(vmid, "running", 10, OWN_RUNNING)));
    let proxmox = ScriptedProxmox::with_guests(STANDALONE_NODE, guests).with_override("qemu?full=1", vec![full(100..1100)]);
    let ids: Vec<u64> = (100..1100).collect();
    let reading = take_reading(&proxmox, &ids, &declared_needs(RUNNING, false, &ids), None).expect("a reading");
    assert!(ids.iter().all(|vmid| status_or_cause(&reading, *vmid) == "running"));
    assert_eq!(paths(&proxmox), ["cluster/status", "cluster/resources?type=vm", "nodes/n1/qemu", "nodes/n1/qemu?full=1", "cluster/status"]);
    let notes: Vec<(UnknownReason, &str)> = reading.notes.iter().map(|note| (note.reason, note.text.as_str())).collect();
    let text = "pvestatd on node n1 has not reported to the cluster for 990 s; run-states were read from the node itself";
    assert_eq!(notes, [(UnknownReason::ReportLate, text)]);
}

/// The full list, in which every monitor reports `running`.
fn full(ids: std::ops::Range<u32>) -> HttpResponse {
    let rows = ids.map(|vmid| format!(r#"{{"vmid":{vmid},"status":"running","qmpstatus":"running","name":"g{vmid}","uptime":1000}}"#));
    success_response(&format!("[{}]", rows.collect::<Vec<_>>().join(",")))
}

/// Both lists of a guest, and the result: its run-state, further reads, and whether a note reports the late report.
#[test]
fn both_lists_determine_the_run_state() {
    let paused = r#"{"vmid":$,"status":"running","qmpstatus":"paused","name":"g$","uptime":1000}"#.replace('$', "100");
    let full = &["qemu?full=1"][..];
    let cases: [(&str, ScriptedGuest, &str, &[&str], bool); 9] = [
        ("both say running, the report is recent", reported(100, "running", 970, OWN_RUNNING), "running", &[], false),
        (
            "both say running, the report is too old to exclude a pause",
            reported(100, "running", 969, OWN_RUNNING),
            "run-state-unclear",
            full,
            false,
        ),
        ("the report is very old", reported(100, "running", 900, OWN_RUNNING), "run-state-unclear", full, true),
        ("a pause is only in the cluster's list", reported(100, "paused", 995, OWN_RUNNING), "run-state-unclear", &[], false),
        ("the report is of an earlier process", reported(100, "running", 5000, OWN_RUNNING), "run-state-unclear", full, false),
        ("there is no report", reported(100, "unknown", 0, OWN_RUNNING), "run-state-unclear", full, true),
        ("there is no report and no process", reported(100, "unknown", 0, OWN_STOPPED), "stopped", &[], false),
        ("the node says running, the cluster stopped", reported(100, "stopped", 0, OWN_RUNNING), "run-state-unclear", full, false),
        ("the node says stopped, the cluster paused", reported(100, "paused", 995, OWN_STOPPED), "stopped", &[], false),
    ];
    for (name, guest, expected, more, is_late) in cases {
        let proxmox = ScriptedProxmox::with_guests(STANDALONE_NODE, [(100, guest)])
            .with_override("qemu?full=1", vec![success_response(&format!("[{paused}]"))]);
        let reading = take_reading(&proxmox, &[100], &declared_needs(None, false, &[100]), None).expect("a reading");
        assert_eq!(status_or_cause(&reading, 100), expected, "{name}");
        let requested_paths: Vec<String> =
            paths(&proxmox).into_iter().filter_map(|path| Some(path.strip_prefix("nodes/n1/")?.replace("qemu/", ""))).collect();
        assert_eq!(requested_paths[1..], *more, "{name}");
        assert_eq!(reading.notes.iter().any(|note| note.reason == UnknownReason::ReportLate), is_late, "{name}: {:?}", reading.notes);
    }
}

#[test]
fn containers_need_no_monitor_state() {
    let row = r#"{"vmid":100,"type":"lxc","node":"n1","status":"running","name":"g100","uptime":10}"#;
    let own =
        r#"{"vmid":100,"status":"running","name":"g100","uptime":500,"lock":"backup","tags":"b;a","template":0,"cpus":2,"maxmem":1024}"#;
    let proxmox = ScriptedProxmox::with_guests(
        STANDALONE_NODE,
        [(100, ScriptedGuest { listed: Some(row.into()), own: Some(own.into()), ..container(100, "n1") })],
    );
    let reading = take_reading(&proxmox, &[100], &declared_needs(None, false, &[100]), None).expect("a reading");
    let guest = find_guest(&reading, 100);
    assert_eq!((status_or_cause(&reading, 100).as_str(), guest.cpus, guest.maxmem), ("running", Some(2), Some(1024)));
    assert_eq!((&guest.lock, &guest.template), (&Reading::Read(Some("backup".into())), &Reading::Read(false)));
    assert_eq!(guest.tags.as_ref().into_option().expect("read").iter().collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!(paths(&proxmox).len(), 4);
}

#[test]
fn g17_run_state_is_unknown_if_the_node_list_is_unreadable() {
    let malformed = HttpResponse { body: b"{\"data\":".to_vec(), ..success_response("") };
    let cases = [
        (raw_response(595, "No route to host"), "node-silent", "node n2 does not respond (595 No route to host); unknown on it: guest 101"),
        (
            raw_response(596, "Connection timed out"),
            "node-silent",
            "node n2 does not respond (596 Connection timed out); unknown on it: guest 101",
        ),
        (
            failure_response("\"403\"", "Permission check failed"),
            "node-list-unread",
            "node n2 does not list its guests (403 Permission check failed); unknown on it: guest 101",
        ),
        (failure_response("500", "oops"), "node-list-unread", "node n2 does not list its guests (500 oops); unknown on it: guest 101"),
        (malformed, "node-list-unread", ""),
        (success_response("{}"), "node-list-unread", ""),
        (success_response("null"), "node-list-unread", ""),
    ];
    for (answer, code, text) in cases {
        for needs in [declared_needs(RUNNING, false, &[100, 101]), declared_needs(STOPPED, true, &[100, 101])] {
            let proxmox = three_guests().with_override("n2/qemu", vec![answer.clone()]);
            let reading = take_reading(&proxmox, &[100, 101], &needs, None).expect("a reading");
            assert_eq!((status_or_cause(&reading, 100).as_str(), status_or_cause(&reading, 101).as_str()), ("stopped", code), "{answer:?}");
            assert_eq!(proxmox.requests().iter().filter(|path| path.contains("nodes/n2")).count(), 1, "one attempt");
            let row = find_guest(&reading, 101);
            assert!(row.run_state.is_none() && !row.lock.is_read() && !row.ha.is_read() && !row.tags.is_read(), "{row:?}");
            assert_eq!(reading.notes.len(), 1, "{:?}", reading.notes);
            assert!(text.is_empty() || reading.notes[0].text == text, "{:?}", reading.notes);
            assert!(!reading.notes[0].remedy("svc@pve!probe").contains('<'), "{}", reading.notes[0].remedy("svc@pve!probe"));
        }
    }
}

#[test]
fn g17_unreadable_list_of_one_kind_does_not_affect_the_other() {
    let proxmox = ScriptedProxmox::with_guests(STANDALONE_NODE, [(100, stopped_guest(100, "n1")), (200, container(200, "n1"))])
        .with_override("n1/lxc", vec![raw_response(596, "Connection timed out")]);
    let reading = take_reading(&proxmox, &[100, 200], &ReadSet::Declared([].into()), None).expect("a reading");
    assert_eq!((status_or_cause(&reading, 100).as_str(), status_or_cause(&reading, 200).as_str()), ("stopped", "no-answer"));
    assert!(reading.observation.nodes.iter().all(|node| node.online));
    let silent_node = ScriptedProxmox::with_guests(
        &cluster_rows("lab", 1, &[("n1", 1), ("n2", 1)]),
        [(100, stopped_guest(100, "n2")), (200, container(200, "n2"))],
    )
    .with_override("n2/qemu", vec![raw_response(595, "Connection refused")]);
    let reading = take_reading(&silent_node, &[100, 200], &ReadSet::Declared([].into()), None).expect("a reading");
    assert_eq!((status_or_cause(&reading, 100).as_str(), status_or_cause(&reading, 200).as_str()), ("node-silent", "node-silent"));
    assert_eq!(silent_node.requests().iter().filter(|path| path.contains("nodes/")).count(), 1, "the second list is not requested");
}

#[test]
fn g17_guest_that_may_be_paused_is_unknown() {
    for (answer, code) in [
        (raw_response(596, "Connection timed out"), "no-answer"),
        (failure_response("500", "oops"), "node-list-unread"),
        (success_response(r#"[{"vmid":100,"status":"running","name":"g100","uptime":1000}]"#), "answer-malformed"),
    ] {
        let proxmox = ScriptedProxmox::with_guests(
            STANDALONE_NODE,
            [(100, reported(100, "running", 10, OWN_RUNNING)), (101, stopped_guest(101, "n1"))],
        );
        let proxmox = proxmox.with_override("qemu?full=1", vec![answer]);
        let reading = take_reading(&proxmox, &[100, 101], &declared_needs(None, false, &[100, 101]), None).expect("a reading");
        assert_eq!((status_or_cause(&reading, 100).as_str(), status_or_cause(&reading, 101).as_str()), (code, "stopped"));
    }
}

#[test]
fn guest_missing_from_its_node_list_is_read_by_itself() {
    let with_short_list = || three_guests().with_override("n1/qemu", vec![success_response("[]")]);
    let missing_response = || failure_response("500", "Configuration file 'nodes/n1/qemu-server/100.conf' does not exist");
    let cases = [
        ("it is there all the same", with_short_list(), "stopped"),
        ("it moved", with_short_list().with_override("100/pending", vec![missing_response()]), "moved-while-read"),
        (
            "it vanished",
            with_short_list()
                .with_override("100/pending", vec![missing_response()])
                .with_override("nextid?vmid=100", vec![success_response("\"100\"")]),
            "gone-while-read",
        ),
        (
            "the token lost its privilege",
            with_short_list()
                .with_override("100/pending", vec![failure_response("\"403\"", "Permission check failed (/vms/100, VM.Audit)")]),
            "not-permitted",
        ),
    ];
    for (name, proxmox, expected) in cases {
        let reading = take_reading(&proxmox, &[100], &declared_needs(STOPPED, false, &[100]), None).expect("a reading");
        assert_eq!(status_or_cause(&reading, 100), expected, "{name}");
        assert!(reading.observation.complete, "{name}: the cluster lists it");
    }
}

#[test]
fn guest_listed_by_two_nodes_is_read_from_the_clusters_node() {
    let both = r#"[{"vmid":100,"status":"stopped","name":"g100","uptime":0},{"vmid":101,"status":"running","name":"g101","uptime":105}]"#;
    let reading = take_reading(
        &three_guests().with_override("n2/qemu", vec![success_response(both)]),
        &[100, 101],
        &declared_needs(None, false, &[100, 101]),
        None,
    )
    .expect("a reading");
    assert_eq!((status_or_cause(&reading, 100).as_str(), status_or_cause(&reading, 101).as_str()), ("stopped", "running"));
    assert_eq!((find_guest(&reading, 100).node, find_guest(&reading, 101).node), (0, 1));
}

#[test]
fn g17_node_list_lacking_many_guests_is_not_trusted() {
    let ids: Vec<u64> = (100..133).collect();
    let proxmox = ScriptedProxmox::with_guests(STANDALONE_NODE, (100..133).map(|vmid| (vmid, running_guest(vmid, "n1"))))
        .with_override("n1/qemu", vec![success_response("[]")]);
    let reading = take_reading(&proxmox, &ids, &declared_needs(RUNNING, true, &ids), None).expect("a reading");
    assert!(ids.iter().all(|vmid| status_or_cause(&reading, *vmid) == "list-shrunken"));
    assert_eq!(proxmox.requests().len(), 4);
    assert_eq!(reading.notes[0].text, "the qemu list of node n1 lacks 33 guests that the cluster lists there");
}

#[test]
fn g3_invalid_node_list_row_leaves_the_guest_unknown() {
    let own = OWN_RUNNING.replace("$", "100").replace("1000", "105");
    for (from, to) in [
        (r#""status":"running""#, r#""status":["running"]"#),
        (r#""name":"g100""#, r#""name":{}"#),
        (r#""name":"g100","#, ""),
        (r#""name":"g100""#, r#""name":"g100","lock":null"#),
        (r#""name":"g100""#, r#""name":"g100","tags":["prod"]"#),
        (r#""name":"g100""#, r#""name":"g100","template":"yes""#),
    ] {
        let row = ScriptedGuest { own: Some(own.replace(from, to)), ..running_guest(100, "n1") };
        let reading =
            take_reading(&ScriptedProxmox::with_guests(STANDALONE_NODE, [(100, row)]), &[100], &declared_needs(None, true, &[100]), None)
                .expect("a reading");
        assert_eq!((status_or_cause(&reading, 100).as_str(), reading.notes.len()), ("answer-malformed", 1), "{to}: {:?}", reading.notes);
    }
    let twice = success_response(&format!("[{own},{own}]"));
    let proxmox = ScriptedProxmox::with_guests(STANDALONE_NODE, [(100, running_guest(100, "n1"))]).with_override("n1/qemu", vec![twice]);
    assert_eq!(
        status_or_cause(&take_reading(&proxmox, &[100], &declared_needs(None, false, &[100]), None).expect("a reading"), 100),
        "answer-malformed"
    );
}

#[test]
fn reading_everything_requests_no_node_lists() {
    let proxmox = three_guests();
    let reading = take_reading(&proxmox, &[100, 101], &ReadSet::Everything, None).expect("a reading");
    assert_eq!((status_or_cause(&reading, 100).as_str(), status_or_cause(&reading, 101).as_str()), ("stopped", "running"));
    assert!(!proxmox.requests().iter().any(|path| path.ends_with("/qemu")));
}
