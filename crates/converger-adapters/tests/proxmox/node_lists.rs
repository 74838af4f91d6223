//! Where run-states come from: the lists of the nodes, checked against the cluster's list, which may be five minutes old.

use converger_adapters::proxmox::codec::HttpAnswer;
use converger_adapters::proxmox::observe::{Needs, Reason};
use converger_core::guest::RunState;
use converger_core::observe::Reading;

use crate::desk::{ALONE, Desk, Guest, cluster_of, failure, guest, raw, read, success};
use crate::observe::{cause, declared, find, running, three};

const RUNNING: Option<RunState> = Some(RunState::Running);
const STOPPED: Option<RunState> = Some(RunState::Stopped);

/// A running guest that the cluster's list has last heard of when its process had run for so long, and its node lists now like this.
fn reported(vmid: u32, then: &str, then_secs: u32, own: &str) -> Guest {
    let plain = running(vmid, "n1");
    let listed = plain
        .listed
        .map(|row| row.replace("\"running\"", &format!("\"{then}\"")).replace("\"uptime\":100", &format!("\"uptime\":{then_secs}")));
    Guest { listed, own: Some(own.replace("$", &vmid.to_string())), ..plain }
}

fn container(vmid: u32, node: &str) -> Guest {
    let plain = guest(vmid, node);
    Guest { kind: "lxc", listed: plain.listed.map(|row| row.replace("qemu", "lxc")), ..plain }
}

const OWN_RUNNING: &str = r#"{"vmid":$,"status":"running","name":"g$","uptime":1000}"#;
const OWN_STOPPED: &str = r#"{"vmid":$,"status":"stopped","name":"g$","uptime":0}"#;

fn paths(desk: &Desk) -> Vec<String> {
    desk.requests().iter().map(|path| path.trim_start_matches("GET /api2/extjs/").to_owned()).collect()
}

#[test]
fn g1_a_stopped_guest_is_not_converged_because_a_stale_list_says_running() {
    let stopped = Guest { current: guest(100, "n1").current, ..reported(100, "running", 990, OWN_STOPPED) };
    let desk = Desk::with(ALONE, [(100, stopped)]);
    let taken = read(&desk, &[100], &declared(RUNNING, false, &[100]), None).expect("a reading");
    assert_eq!((cause(&taken, 100).as_str(), find(&taken, 100).source.as_deref()), ("stopped", Some("live")));
}

#[test]
fn g4_a_thousand_converged_guests_cost_one_request_per_node_and_kind() {
    let cluster = cluster_of("lab", 1, &[("n1", 1), ("n2", 1), ("n3", 1)]);
    let guests = (100..1100).map(|vmid| (vmid, if vmid % 2 == 0 { guest(vmid, "n1") } else { running(vmid, "n2") }));
    let desk = Desk::with(&cluster, guests.chain([(2000, container(2000, "n2")), (2001, guest(2001, "n3"))]));
    let ids: Vec<u64> = (100..1100).chain([2000]).collect();
    let taken = read(&desk, &ids, &declared(None, false, &ids), None).expect("a reading");
    assert_eq!(taken.observation.guests.len(), 1002);
    assert!(ids.iter().all(|vmid| matches!(cause(&taken, *vmid).as_str(), "running" | "stopped")));
    assert!(ids.iter().all(|vmid| find(&taken, *vmid).source.as_deref() == Some("node-list")));
    let expected = ["cluster/status", "cluster/resources?type=vm", "nodes/n1/qemu", "nodes/n2/qemu", "nodes/n2/lxc", "cluster/status"];
    let mut requests = paths(&desk);
    requests[2..5].sort_by_key(|path| (path.contains("n2"), path.contains("lxc")));
    assert_eq!(requests, expected, "no guest in scope is on n3");
}

#[test]
fn g4_a_late_report_costs_one_request_more_per_node_however_many_guests_it_has() {
    let guests = (100..1100).map(|vmid| (vmid, reported(vmid, "running", 10, OWN_RUNNING)));
    let desk = Desk::with(ALONE, guests).instead("qemu?full=1", vec![full(100..1100)]);
    let ids: Vec<u64> = (100..1100).collect();
    let taken = read(&desk, &ids, &declared(RUNNING, false, &ids), None).expect("a reading");
    assert!(ids.iter().all(|vmid| cause(&taken, *vmid) == "running"));
    assert_eq!(paths(&desk), ["cluster/status", "cluster/resources?type=vm", "nodes/n1/qemu", "nodes/n1/qemu?full=1", "cluster/status"]);
    let said: Vec<(Reason, &str)> = taken.notes.iter().map(|note| (note.reason, note.text.as_str())).collect();
    let text = "pvestatd on node n1 has not reported to the cluster for 990 s; run-states were read from the node itself";
    assert_eq!(said, [(Reason::ReportLate, text)]);
}

/// The list in full, where every monitor says `running`.
fn full(ids: std::ops::Range<u32>) -> HttpAnswer {
    let rows = ids.map(|vmid| format!(r#"{{"vmid":{vmid},"status":"running","qmpstatus":"running","name":"g{vmid}","uptime":1000}}"#));
    success(&format!("[{}]", rows.collect::<Vec<_>>().join(",")))
}

/// Both lists about a guest, and what follows: its run-state, what else is read of it, and whether a person is told that the report is late.
#[test]
fn both_lists_decide_the_run_state_together() {
    let paused = r#"{"vmid":$,"status":"running","qmpstatus":"paused","name":"g$","uptime":1000}"#.replace('$', "100");
    let full = &["qemu?full=1"][..];
    let cases: [(&str, Guest, &str, &[&str], bool); 9] = [
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
        let desk = Desk::with(ALONE, [(100, guest)]).instead("qemu?full=1", vec![success(&format!("[{paused}]"))]);
        let taken = read(&desk, &[100], &declared(None, false, &[100]), None).expect("a reading");
        assert_eq!(cause(&taken, 100), expected, "{name}");
        let asked: Vec<String> =
            paths(&desk).into_iter().filter_map(|path| Some(path.strip_prefix("nodes/n1/")?.replace("qemu/", ""))).collect();
        assert_eq!(asked[1..], *more, "{name}");
        assert_eq!(taken.notes.iter().any(|note| note.reason == Reason::ReportLate), is_late, "{name}: {:?}", taken.notes);
    }
}

#[test]
fn a_container_has_no_pause_that_would_be_asked_for() {
    let row = r#"{"vmid":100,"type":"lxc","node":"n1","status":"running","name":"g100","uptime":10}"#;
    let own =
        r#"{"vmid":100,"status":"running","name":"g100","uptime":500,"lock":"backup","tags":"b;a","template":0,"cpus":2,"maxmem":1024}"#;
    let desk = Desk::with(ALONE, [(100, Guest { listed: Some(row.into()), own: Some(own.into()), ..container(100, "n1") })]);
    let taken = read(&desk, &[100], &declared(None, false, &[100]), None).expect("a reading");
    let guest = find(&taken, 100);
    assert_eq!((cause(&taken, 100).as_str(), guest.cpus, guest.maxmem), ("running", Some(2), Some(1024)));
    assert_eq!((&guest.lock, &guest.template), (&Reading::Read(Some("backup".into())), &Reading::Read(false)));
    assert_eq!(guest.tags.as_ref().read().expect("read").iter().collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!(paths(&desk).len(), 4);
}

#[test]
fn g17_a_run_state_is_unknown_where_the_list_of_its_node_cannot_be_read() {
    let malformed = HttpAnswer { body: b"{\"data\":".to_vec(), ..success("") };
    let cases = [
        (raw(595, "No route to host"), "node-silent", "node n2 does not answer (595 No route to host); unknown on it: guest 101"),
        (raw(596, "Connection timed out"), "node-silent", "node n2 does not answer (596 Connection timed out); unknown on it: guest 101"),
        (
            failure("\"403\"", "Permission check failed"),
            "node-list-unread",
            "node n2 does not list its guests (403 Permission check failed); unknown on it: guest 101",
        ),
        (failure("500", "oops"), "node-list-unread", "node n2 does not list its guests (500 oops); unknown on it: guest 101"),
        (malformed, "node-list-unread", ""),
        (success("{}"), "node-list-unread", ""),
        (success("null"), "node-list-unread", ""),
    ];
    for (answer, word, text) in cases {
        for needs in [declared(RUNNING, false, &[100, 101]), declared(STOPPED, true, &[100, 101])] {
            let desk = three().instead("n2/qemu", vec![answer.clone()]);
            let taken = read(&desk, &[100, 101], &needs, None).expect("a reading");
            assert_eq!((cause(&taken, 100).as_str(), cause(&taken, 101).as_str()), ("stopped", word), "{answer:?}");
            assert_eq!(desk.requests().iter().filter(|path| path.contains("nodes/n2")).count(), 1, "one attempt");
            let row = find(&taken, 101);
            assert!(row.run_state.is_none() && !row.lock.is_read() && !row.ha.is_read() && !row.tags.is_read(), "{row:?}");
            assert_eq!(taken.notes.len(), 1, "{:?}", taken.notes);
            assert!(text.is_empty() || taken.notes[0].text == text, "{:?}", taken.notes);
            assert!(!taken.notes[0].remedy("svc@pve!probe").contains('<'), "{}", taken.notes[0].remedy("svc@pve!probe"));
        }
    }
}

#[test]
fn g17_the_list_of_one_kind_that_cannot_be_read_says_nothing_about_the_other() {
    let desk =
        Desk::with(ALONE, [(100, guest(100, "n1")), (200, container(200, "n1"))]).instead("n1/lxc", vec![raw(596, "Connection timed out")]);
    let taken = read(&desk, &[100, 200], &Needs::Declared([].into()), None).expect("a reading");
    assert_eq!((cause(&taken, 100).as_str(), cause(&taken, 200).as_str()), ("stopped", "no-answer"));
    assert!(taken.observation.nodes.iter().all(|node| node.online));
    let silent = Desk::with(&cluster_of("lab", 1, &[("n1", 1), ("n2", 1)]), [(100, guest(100, "n2")), (200, container(200, "n2"))])
        .instead("n2/qemu", vec![raw(595, "Connection refused")]);
    let taken = read(&silent, &[100, 200], &Needs::Declared([].into()), None).expect("a reading");
    assert_eq!((cause(&taken, 100).as_str(), cause(&taken, 200).as_str()), ("node-silent", "node-silent"));
    assert_eq!(silent.requests().iter().filter(|path| path.contains("nodes/")).count(), 1, "it is not asked for the second list");
}

#[test]
fn g17_a_pause_that_cannot_be_excluded_leaves_the_guest_unknown() {
    for (answer, word) in [
        (raw(596, "Connection timed out"), "no-answer"),
        (failure("500", "oops"), "node-list-unread"),
        (success(r#"[{"vmid":100,"status":"running","name":"g100","uptime":1000}]"#), "answer-malformed"),
    ] {
        let desk = Desk::with(ALONE, [(100, reported(100, "running", 10, OWN_RUNNING)), (101, guest(101, "n1"))]);
        let desk = desk.instead("qemu?full=1", vec![answer]);
        let taken = read(&desk, &[100, 101], &declared(None, false, &[100, 101]), None).expect("a reading");
        assert_eq!((cause(&taken, 100).as_str(), cause(&taken, 101).as_str()), (word, "stopped"));
    }
}

#[test]
fn a_guest_that_the_list_of_its_node_lacks_is_looked_for_by_itself() {
    let lacks = || three().instead("n1/qemu", vec![success("[]")]);
    let gone = || failure("500", "Configuration file 'nodes/n1/qemu-server/100.conf' does not exist");
    let cases = [
        ("it is there all the same", lacks(), "stopped"),
        ("it moved", lacks().instead("100/pending", vec![gone()]), "moved-while-read"),
        (
            "it vanished",
            lacks().instead("100/pending", vec![gone()]).instead("nextid?vmid=100", vec![success("\"100\"")]),
            "gone-while-read",
        ),
        (
            "the token lost its privilege",
            lacks().instead("100/pending", vec![failure("\"403\"", "Permission check failed (/vms/100, VM.Audit)")]),
            "not-permitted",
        ),
    ];
    for (name, desk, expected) in cases {
        let taken = read(&desk, &[100], &declared(STOPPED, false, &[100]), None).expect("a reading");
        assert_eq!(cause(&taken, 100), expected, "{name}");
        assert!(taken.observation.complete, "{name}: the cluster lists it");
    }
}

#[test]
fn a_guest_that_moved_is_listed_by_two_nodes_and_the_one_that_the_cluster_names_counts() {
    let both = r#"[{"vmid":100,"status":"stopped","name":"g100","uptime":0},{"vmid":101,"status":"running","name":"g101","uptime":105}]"#;
    let taken =
        read(&three().instead("n2/qemu", vec![success(both)]), &[100, 101], &declared(None, false, &[100, 101]), None).expect("a reading");
    assert_eq!((cause(&taken, 100).as_str(), cause(&taken, 101).as_str()), ("stopped", "running"));
    assert_eq!((find(&taken, 100).node, find(&taken, 101).node), (0, 1));
}

#[test]
fn g17_a_list_of_a_node_that_lacks_very_many_guests_is_not_believed_and_they_are_not_asked_for_one_by_one() {
    let ids: Vec<u64> = (100..133).collect();
    let desk = Desk::with(ALONE, (100..133).map(|vmid| (vmid, running(vmid, "n1")))).instead("n1/qemu", vec![success("[]")]);
    let taken = read(&desk, &ids, &declared(RUNNING, true, &ids), None).expect("a reading");
    assert!(ids.iter().all(|vmid| cause(&taken, *vmid) == "list-shrunken"));
    assert_eq!(desk.requests().len(), 4);
    assert_eq!(taken.notes[0].text, "the qemu list of node n1 lacks 33 guests that the cluster lists there");
}

#[test]
fn g3_a_row_of_a_node_list_that_makes_no_sense_leaves_the_guest_unknown() {
    let own = OWN_RUNNING.replace("$", "100").replace("1000", "105");
    for (from, to) in [
        (r#""status":"running""#, r#""status":["running"]"#),
        (r#""name":"g100""#, r#""name":{}"#),
        (r#""name":"g100","#, ""),
        (r#""name":"g100""#, r#""name":"g100","lock":null"#),
        (r#""name":"g100""#, r#""name":"g100","tags":["prod"]"#),
        (r#""name":"g100""#, r#""name":"g100","template":"yes""#),
    ] {
        let row = Guest { own: Some(own.replace(from, to)), ..running(100, "n1") };
        let taken = read(&Desk::with(ALONE, [(100, row)]), &[100], &declared(None, true, &[100]), None).expect("a reading");
        assert_eq!((cause(&taken, 100).as_str(), taken.notes.len()), ("answer-malformed", 1), "{to}: {:?}", taken.notes);
    }
    let twice = success(&format!("[{own},{own}]"));
    let desk = Desk::with(ALONE, [(100, running(100, "n1"))]).instead("n1/qemu", vec![twice]);
    assert_eq!(cause(&read(&desk, &[100], &declared(None, false, &[100]), None).expect("a reading"), 100), "answer-malformed");
}

#[test]
fn where_everything_is_read_no_list_of_a_node_is_asked_for() {
    let desk = three();
    let taken = read(&desk, &[100, 101], &Needs::Everything, None).expect("a reading");
    assert_eq!((cause(&taken, 100).as_str(), cause(&taken, 101).as_str()), ("stopped", "running"));
    assert!(!desk.requests().iter().any(|path| path.ends_with("/qemu")));
}
