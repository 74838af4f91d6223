//! What a reading says, and what it takes: from the list alone, with details, and where something is not as it should be.

use converger_adapters::proxmox::codec::{Cause, HttpAnswer};
use converger_adapters::proxmox::observe::{Need, Needs, Reason, Taken, Unread};
use converger_core::desired;
use converger_core::document::Notation;
use converger_core::guest::{Identity, Kind, RunState, Vmid};
use converger_core::normalize::{Field, Value};
use converger_core::observe::{Ha, ObservedGuest, Pending, Reading, Status, TagCase};

use crate::desk::{ALONE, Desk, Guest, cluster_of, failure, guest, raw, read, success};

pub(crate) fn vmid(number: u64) -> Vmid {
    Vmid::new(number).expect("an id")
}

pub(crate) fn declared(state: Option<RunState>, config: bool, ids: &[u64]) -> Needs {
    Needs::Declared(ids.iter().map(|id| (vmid(*id), Need { kind: Kind::Qemu, state, config, tags: false })).collect())
}

pub(crate) fn find(taken: &Taken, number: u64) -> &ObservedGuest {
    taken.observation.find(vmid(number)).expect("listed")
}

pub(crate) fn cause(taken: &Taken, number: u64) -> String {
    match &find(taken, number).status {
        Status::Unknown(cause) => cause.as_deref().unwrap_or("none").to_owned(),
        Status::Known(state) => state.word().to_owned(),
    }
}

pub(crate) fn running(vmid: u32, node: &str) -> Guest {
    let plain = guest(vmid, node);
    Guest {
        listed: plain.listed.map(|row| row.replace("stopped", "running")),
        current: plain.current.replace("stopped", "running"),
        ..plain
    }
}

pub(crate) fn three() -> Desk {
    let cluster = cluster_of("lab", 1, &[("n1", 1), ("n2", 1)]);
    Desk::with(&cluster, [(100, guest(100, "n1")), (101, running(101, "n2")), (200, guest(200, "n1"))])
}

#[test]
fn only_guests_that_are_to_change_or_whose_config_is_managed_are_read_one_by_one() {
    let desk = three();
    let mut needs = match declared(Some(RunState::Stopped), false, &[100, 101]) {
        Needs::Declared(needs) => needs,
        Needs::Everything => unreachable!("declared"),
    };
    needs.insert(vmid(200), Need { kind: Kind::Qemu, state: None, config: true, tags: false });
    let taken = read(&desk, &[100, 101, 200], &Needs::Declared(needs), None).expect("a reading");
    let requests = desk.requests();
    let mut singly: Vec<&str> = requests.iter().filter_map(|path| path.strip_prefix("GET /api2/extjs/nodes/")).collect();
    singly.sort_unstable();
    singly.retain(|path| path.contains("qemu/"));
    assert_eq!(singly, ["n1/qemu/200/pending", "n2/qemu/101/pending", "n2/qemu/101/pending", "n2/qemu/101/status/current"]);
    assert_eq!(find(&taken, 100).config, Reading::Unread);
    assert_eq!((find(&taken, 101).source.as_deref(), find(&taken, 200).source.as_deref()), (Some("live"), Some("node-list")));
}

#[test]
fn needs_follow_from_the_declared_state() {
    let text = "version: 1\nenvironment: lab\nguests:\n  - {vmid: 100, kind: qemu, name: a, state: running}\n  \
                - {vmid: 101, kind: lxc, name: b, config: {tags: [x]}}\n  - {vmid: 102, kind: qemu, identity: {ctime: 5}}\n";
    let desired = desired::parse(text.as_bytes(), Notation::Yaml).expect("parsed");
    let Needs::Declared(needs) = Needs::of(&desired) else { panic!("declared") };
    assert_eq!(needs[&vmid(100)], Need { kind: Kind::Qemu, state: Some(RunState::Running), config: false, tags: false });
    assert_eq!(needs[&vmid(101)], Need { kind: Kind::Lxc, state: None, config: true, tags: true });
    assert!(needs[&vmid(102)].config);
}

#[test]
fn what_the_list_says_is_in_the_words_of_the_core() {
    let row = r#"{"vmid":"100","type":"lxc","node":"n1","status":"running","name":"ct","template":"0","lock":"backup","tags":"b;a","hastate":"started","maxcpu":"2","maxmem":1024,"unheard":[1]}"#;
    let desk = Desk::with(ALONE, [(100, Guest { kind: "lxc", listed: Some(row.into()), ..guest(100, "n1") })]);
    let taken = read(&desk, &[100], &declared(None, false, &[100]), None).expect("a reading");
    let row = find(&taken, 100);
    assert_eq!((row.kind, &row.status), (Kind::Lxc, &Status::Known(RunState::Running)));
    assert_eq!(row.lock, Reading::Read(Some("backup".into())));
    assert_eq!(row.ha, Reading::Read(Some(Ha { state: Some("started".into()) })));
    assert_eq!((&row.template, row.cpus, row.maxmem), (&Reading::Read(false), Some(2), Some(1024)));
    assert_eq!(row.tags.as_ref().read().expect("read").iter().collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!((&row.protection, &row.pending, &row.identity), (&Reading::Unread, &Reading::Unread, &Reading::Unread));
}

#[test]
fn a_guest_that_is_read_in_full_has_its_guards_marks_and_what_waits() {
    let pending = r#"[{"key":"name","value":"g100"},{"key":"cores","value":2,"pending":4},{"key":"protection","value":1},{"key":"tags","value":"prod"},
        {"key":"smbios1","value":"uuid=ABC"},{"key":"meta","value":"creation-qemu=9,ctime=17"},{"key":"net0","pending":"virtio"},{"key":"digest","value":"0fe8"}]"#;
    let current = r#"{"status":"running","qmpstatus":"paused","name":"g100","ha":{"managed":1,"state":null}}"#;
    let desk = Desk::with(ALONE, [(100, Guest { pending: pending.into(), current: current.into(), ..guest(100, "n1") })]);
    let taken = read(&desk, &[100], &Needs::Everything, None).expect("a reading");
    let row = find(&taken, 100);
    assert_eq!(row.status, Status::Unknown(Some("run-state-unclear".into())));
    assert_eq!(row.run_state.as_deref(), Some("paused"), "the raw word is kept");
    assert_eq!(row.ha, Reading::Read(Some(Ha { state: None })));
    assert_eq!((&row.protection, &row.template, &row.lock), (&Reading::Read(true), &Reading::Read(false), &Reading::Read(None)));
    assert_eq!(row.identity, Reading::Read(Box::new(Identity::Qemu { uuid: Some("abc".into()), ctime: Some(17) })));
    let waits: Box<[Pending]> = [Pending::Known(Field::Cores, Some(Value::Count(4))), Pending::Other("net0".into())].into();
    assert_eq!(row.pending, Reading::Read(waits));
    assert_eq!(row.config.as_ref().read().expect("read").get(Field::Cores), Some(&Value::Count(2)));
    assert_eq!(row.digest.as_deref(), Some("0fe8"));
}

#[test]
fn raw_run_states_are_running_stopped_or_unknown() {
    let of = |word: &str| {
        let desk = Desk::with(
            ALONE,
            [(100, Guest { listed: guest(100, "n1").listed.map(|row| row.replace("stopped", word)), ..guest(100, "n1") })],
        );
        let taken = read(&desk, &[100], &declared(None, false, &[100]), None).expect("a reading");
        assert_eq!(find(&taken, 100).run_state.as_deref(), Some(word));
        cause(&taken, 100)
    };
    assert_eq!((of("running"), of("stopped")), ("running".into(), "stopped".into()));
    for word in [
        "paused",
        "suspended",
        "prelaunch",
        "io-error",
        "internal-error",
        "guest-panicked",
        "inmigrate",
        "postmigrate",
        "save-vm",
        "shutdown",
        "new-word",
    ] {
        assert_eq!(of(word), "run-state-unclear", "{word}");
    }
}

#[test]
fn a_guest_that_the_cache_does_not_know_yet_is_known_by_its_own_node() {
    let row = r#"{"vmid":100,"type":"qemu","node":"n1","status":"unknown","id":"qemu/100"}"#;
    let desk = Desk::with(ALONE, [(100, Guest { listed: Some(row.into()), ..guest(100, "n1") })]);
    let taken = read(&desk, &[100], &declared(None, true, &[100]), None).expect("a reading");
    assert_eq!((cause(&taken, 100).as_str(), find(&taken, 100).name.as_deref()), ("stopped", Some("g100")));
    let taken = read(&desk, &[100], &declared(Some(RunState::Stopped), false, &[100]), None).expect("a reading");
    assert_eq!((cause(&taken, 100).as_str(), find(&taken, 100).source.as_deref()), ("stopped", Some("node-list")));
}

#[test]
fn guests_of_a_node_that_is_offline_are_unknown_and_it_is_not_asked() {
    let desk = Desk { cluster: cluster_of("lab", 1, &[("n1", 1), ("n2", 0)]), ..three() };
    let taken = read(&desk, &[100, 101], &Needs::Everything, None).expect("a reading");
    assert_eq!((cause(&taken, 100).as_str(), cause(&taken, 101).as_str()), ("stopped", "node-offline"));
    assert!(!desk.requests().iter().any(|path| path.contains("nodes/n2")));
    assert!(taken.observation.complete, "its guests are listed");
}

#[test]
fn a_node_that_falls_silent_after_its_list_is_asked_no_more_and_counts_as_offline() {
    let guests = (100..120).map(|vmid| (vmid, guest(vmid, "n2"))).chain([(200, guest(200, "n1"))]);
    let cluster = cluster_of("lab", 1, &[("n1", 1), ("n2", 1)]);
    let ids: Vec<u64> = (100..120).chain([200]).collect();
    for answer in [raw(595, "No route to host"), raw(595, "Connection refused")] {
        let mut desk = Desk::with(&cluster, guests.clone());
        for vmid in 100..120 {
            desk = desk.instead(&format!("qemu/{vmid}/pending"), vec![answer.clone()]);
        }
        let taken = read(&desk, &ids, &declared(None, true, &ids), None).expect("a reading");
        let asked = desk.requests().iter().filter(|path| path.contains("nodes/n2/qemu/")).count();
        assert!(asked <= 2, "two may be under way at once; {asked} were sent");
        assert!((100..120).all(|vmid| cause(&taken, vmid) == "node-silent"));
        assert_eq!(cause(&taken, 200), "stopped");
        let online: Vec<bool> = taken.observation.nodes.iter().map(|node| node.online).collect();
        assert_eq!(online, [true, false]);
    }
}

#[test]
fn a_guest_that_moves_vanishes_or_is_renamed_while_it_is_read_is_unknown() {
    let gone = failure("500", "Configuration file 'nodes/n1/qemu-server/100.conf' does not exist");
    let moved = three().instead("100/pending", vec![gone.clone()]);
    let taken = read(&moved, &[100], &declared(None, true, &[100]), None).expect("a reading");
    assert_eq!(cause(&taken, 100), "moved-while-read");
    let vanished = three().instead("100/pending", vec![gone]).instead("nextid?vmid=100", vec![success("\"100\"")]);
    let taken = read(&vanished, &[100], &declared(None, true, &[100]), None).expect("a reading");
    assert_eq!(cause(&taken, 100), "gone-while-read");
    let renamed = three().instead("100/pending", vec![success(r#"[{"key":"name","value":"other"}]"#)]);
    let taken = read(&renamed, &[100], &declared(None, true, &[100]), None).expect("a reading");
    assert_eq!(cause(&taken, 100), "renamed-while-read");
    assert_eq!(taken.notes[0].text, r#"guest 100: the list calls it "g100", and its node "other""#);
    let other = guest(100, "n1").current.replace("g100", "other");
    let between = three().instead("100/status/current", vec![success(&other)]);
    let taken = read(&between, &[100], &Needs::Everything, None).expect("a reading");
    assert_eq!(cause(&taken, 100), "renamed-while-read");
    assert_eq!(
        taken.notes[0].text, r#"guest 100: its config calls it "g100", and its run-state "other""#,
        "names that are equal are no cause"
    );
}

/// What `/pending` gives of a guest called `g100`, with these marks and this digest.
fn marked(marks: &str, digest: &str) -> HttpAnswer {
    success(&format!(r#"[{{"key":"name","value":"g100"}},{{"key":"cores","value":2}},{marks}{{"key":"digest","value":"{digest}"}}]"#))
}

#[test]
fn g1_the_run_state_of_one_guest_is_never_put_beside_the_config_of_another() {
    let uuid = |uuid: &str| format!(r#"{{"key":"smbios1","value":"uuid={uuid}"}},"#);
    let doubts = [
        ("made anew under its name", [marked(&uuid("a"), "01"), marked(&uuid("b"), "02")]),
        ("made anew without marks", [marked(&uuid("a"), "01"), marked("", "02")]),
        ("without marks, and changed", [marked("", "01"), marked("", "02")]),
    ];
    for (name, configs) in doubts {
        let desk = three().instead("100/pending", configs.into());
        let taken = read(&desk, &[100, 101], &Needs::Everything, None).expect("a reading");
        assert_eq!((cause(&taken, 100).as_str(), cause(&taken, 101).as_str()), ("replaced-while-read", "running"), "{name}");
        let row = find(&taken, 100);
        assert!(!row.config.is_read() && !row.identity.is_read() && !row.ha.is_read() && row.digest.is_none(), "{name}: {row:?}");
        assert_eq!(taken.notes.iter().map(|note| note.reason).collect::<Vec<_>>(), [Reason::Replaced], "{name}");
    }
    let itself = [
        ("changed meanwhile", [marked(&uuid("a"), "01"), marked(&uuid("A"), "02")]),
        ("without marks and unchanged", [marked("", "01"), marked("", "01")]),
    ];
    for (name, configs) in itself {
        let desk = three().instead("100/pending", configs.into());
        let taken = read(&desk, &[100], &Needs::Everything, None).expect("a reading");
        assert_eq!(cause(&taken, 100), "stopped", "{name}");
        let order: Vec<String> = desk.requests().into_iter().filter(|path| path.contains("qemu/100")).collect();
        let ends: Vec<&str> = order.iter().filter_map(|path| path.rsplit('/').next()).collect();
        assert_eq!(ends, ["pending", "current", "pending"], "{name}");
    }
}

#[test]
fn a_container_is_not_itself_by_the_name_of_its_root_disk_alone() {
    let config = |mac: &str, digest: &str| {
        let net = if mac.is_empty() { String::new() } else { format!(r#"{{"key":"net0","value":"name=eth0,hwaddr={mac}"}},"#) };
        success(&format!(
            r#"[{{"key":"hostname","value":"g100"}},{{"key":"rootfs","value":"local:100/vm-100-disk-0.raw,size=1G"}},{net}{{"key":"digest","value":"{digest}"}}]"#
        ))
    };
    let (one, other) = ("BC:24:11:00:00:01", "BC:24:11:00:00:02");
    for (before, after, expected) in
        [(one, one, "stopped"), (one, other, "replaced-while-read"), ("", "", "replaced-while-read"), ("", one, "replaced-while-read")]
    {
        let container = Guest { kind: "lxc", listed: guest(100, "n1").listed.map(|row| row.replace("qemu", "lxc")), ..guest(100, "n1") };
        let desk = Desk::with(ALONE, [(100, container)]).instead("100/pending", vec![config(before, "01"), config(after, "02")]);
        let taken = read(&desk, &[100], &Needs::Everything, None).expect("a reading");
        assert_eq!(cause(&taken, 100), expected, "{before} {after}");
    }
}

#[test]
fn a_guest_without_a_name_is_shown_under_one_made_of_its_id() {
    let nameless = Guest {
        listed: guest(100, "n1").listed.map(|row| row.replace("g100", "VM 100")),
        pending: r#"[{"key":"digest","value":"0fe8"}]"#.into(),
        ..guest(100, "n1")
    };
    let taken = read(&Desk::with(ALONE, [(100, nameless)]), &[100], &declared(None, true, &[100]), None).expect("a reading");
    assert_eq!((cause(&taken, 100).as_str(), find(&taken, 100).name.as_deref()), ("stopped", Some("VM 100")));
}

#[test]
fn a_guest_that_cannot_be_read_is_unknown_for_that_reason() {
    let reasons = [
        (failure("\"403\"", "Permission check failed (/vms/100, VM.Audit)"), "not-permitted"),
        (failure("500", "something odd"), "unreadable"),
        (HttpAnswer { body: b"{\"data\":".to_vec(), ..success("") }, "answer-malformed"),
        (
            success(r#"[{"key":"name","value":"g100"},{"key":"tags","value":"prod;#1"},{"key":"digest","value":"0f"}]"#),
            "config-not-understood",
        ),
    ];
    for (answer, word) in reasons {
        let desk = three().instead("100/pending", vec![answer]);
        let taken = read(&desk, &[100, 101], &declared(None, true, &[100, 101]), None).expect("a reading");
        assert_eq!((cause(&taken, 100).as_str(), cause(&taken, 101).as_str()), (word, "running"));
        assert_eq!(taken.notes.len(), 1, "{:?}", taken.notes);
        assert!(find(&taken, 100).config == Reading::Unread);
    }
}

#[test]
fn g2_absence_is_proven_by_id_permission_and_the_nodes_themselves() {
    let desk = three();
    let taken = read(&desk, &[100, 999], &declared(None, false, &[100, 999]), None).expect("a reading");
    assert!(taken.observation.complete && taken.observation.find(vmid(999)).is_none());
    let expected = [
        "GET /api2/extjs/cluster/status",
        "GET /api2/extjs/cluster/resources?type=vm",
        "GET /api2/extjs/nodes/n1/qemu",
        "GET /api2/extjs/cluster/nextid?vmid=999",
        "GET /api2/extjs/access/permissions?path=%2Fvms%2F999",
        "GET /api2/extjs/nodes/n1/qemu/999/status/current",
        "GET /api2/extjs/nodes/n1/lxc/999/status/current",
        "GET /api2/extjs/nodes/n2/qemu/999/status/current",
        "GET /api2/extjs/nodes/n2/lxc/999/status/current",
        "GET /api2/extjs/nodes/n1/qemu/999/status/current",
        "GET /api2/extjs/nodes/n1/lxc/999/status/current",
        "GET /api2/extjs/cluster/status",
    ];
    assert_eq!(desk.requests(), expected);
}

#[test]
fn g2_what_is_not_seen_is_not_missing() {
    let one_down = Desk { cluster: cluster_of("lab", 1, &[("n1", 1), ("n2", 0)]), ..three() };
    let doubts: [(&str, Desk, Reason); 7] = [
        ("a node is down", one_down, Reason::NotProven),
        ("it is hidden", Desk { forbidden: [100].into(), ..three() }, Reason::Hidden),
        ("it would be hidden", Desk { forbidden: [999].into(), ..three() }, Reason::NotPermitted),
        ("a node has it", three().instead("999/status/current", vec![success(&guest(999, "n1").current)]), Reason::ListShrunken),
        ("a node does not answer", three().instead("n2/qemu/999/status/current", vec![raw(595, "No route to host")]), Reason::NotProven),
        ("the id cannot be asked for", three().instead("nextid?vmid=999", vec![failure("500", "oops")]), Reason::NotProven),
        ("nobody says what the token may do", three().instead("%2F999", vec![raw(596, "")]), Reason::NotProven),
    ];
    for (name, desk, reason) in doubts {
        let taken = read(&desk, &[100, 999], &declared(None, false, &[100, 999]), None).expect("a reading");
        assert!(!taken.observation.complete, "{name}");
        let note = taken.notes.iter().find(|note| note.reason == reason).unwrap_or_else(|| panic!("{name}: {:?}", taken.notes));
        assert!(!note.remedy("svc@pve!probe").contains('<'), "{}", note.remedy("svc@pve!probe"));
    }
}

#[test]
fn g2_a_guest_that_moves_to_a_node_that_was_asked_already_is_not_missing() {
    // It is on n2 while n1 is asked, and on n1 while n2 is; neither the list nor the ids know of it.
    let gone = failure("500", "Configuration file 'nodes/n1/qemu-server/999.conf' does not exist");
    let desk = three().instead("n1/qemu/999/status/current", vec![gone, success(&guest(999, "n1").current)]);
    let taken = read(&desk, &[999], &declared(None, false, &[999]), None).expect("a reading");
    assert!(!taken.observation.complete);
    assert_eq!(taken.notes[0].reason, Reason::ListShrunken);
}

/// A cluster of which n2 is not the node that answers, with as many guests there, of which these hang.
fn hanging(count: u32, hung: &[u32]) -> (Desk, Vec<u64>) {
    let cluster = cluster_of("lab", 1, &[("n1", 1), ("n2", 1)]);
    let ids: Vec<u64> = (100..100 + u64::from(count)).collect();
    let desk = Desk::with(&cluster, (100..100 + count).map(|vmid| (vmid, guest(vmid, "n2"))));
    let hang = |desk: Desk, vmid: &u32| desk.instead(&format!("{vmid}/pending"), vec![raw(596, "Connection timed out")]);
    (hung.iter().fold(desk, hang), ids)
}

#[test]
fn g1_one_guest_that_hangs_does_not_silence_its_node() {
    for hung in [100_u32, 103, 107] {
        let (desk, ids) = hanging(8, &[hung]);
        let taken = read(&desk, &ids, &declared(None, true, &ids), None).expect("a reading");
        for vmid in 100..108 {
            assert_eq!(cause(&taken, vmid), if vmid == u64::from(hung) { "no-answer" } else { "stopped" }, "{hung} hangs, {vmid} was read");
        }
        assert!(taken.observation.nodes.iter().all(|node| node.online), "a node that answers is online");
        let said: Vec<&str> = taken.notes.iter().map(|note| note.text.as_str()).collect();
        assert_eq!(said, [format!("node n2 answers, but not about guest {hung} (596 Connection timed out)")]);
    }
}

#[test]
fn g1_a_node_that_stops_answering_half_way_is_left_and_what_it_said_before_counts() {
    let (desk, ids) = hanging(40, &(104..140).collect::<Vec<u32>>());
    let taken = read(&desk, &ids, &declared(None, true, &ids), None).expect("a reading");
    let asked = desk.requests().iter().filter(|path| path.contains("nodes/n2/qemu/")).count();
    assert!((8..=9).contains(&asked), "four answered, and four in a row or one more did not; {asked} were sent");
    assert!((100..104).all(|vmid| cause(&taken, vmid) == "stopped"));
    assert!((104..140).all(|vmid| cause(&taken, vmid) == "no-answer"));
}

#[test]
fn g1_a_guest_that_hangs_on_the_node_that_answers_here_is_that_guest() {
    let desk = three().instead("100/pending", vec![raw(596, "Connection timed out")]);
    let taken = read(&desk, &[100], &declared(None, true, &[100]), None).expect("a reading");
    assert_eq!((cause(&taken, 100).as_str(), cause(&taken, 200).as_str()), ("no-answer", "stopped"));
}

#[test]
fn g2_a_node_that_fell_silent_while_it_was_read_proves_nothing() {
    let desk = three().instead("101/pending", vec![raw(595, "Connection refused")]);
    let taken = read(&desk, &[101, 999], &declared(None, true, &[101, 999]), None).expect("a reading");
    assert!(!taken.observation.complete);
    let reasons: Vec<Reason> = taken.notes.iter().map(|note| note.reason).collect();
    assert_eq!(reasons, [Reason::NodeSilent, Reason::NotProven]);
}

#[test]
fn g2_an_empty_list_is_not_an_empty_cluster() {
    // The list and the ids come from one source, which was empty for a moment; the node reads its files.
    let empty = three().instead("resources?type=vm", vec![success("[]")]).instead("nextid?vmid=100", vec![success("\"100\"")]);
    let taken = read(&empty, &[100], &declared(None, false, &[100]), None).expect("a reading");
    assert!(!taken.observation.complete);
    let reasons: Vec<Reason> = taken.notes.iter().map(|note| note.reason).collect();
    assert_eq!(reasons, [Reason::ListEmpty, Reason::ListShrunken]);
}

#[test]
fn g2_many_that_vanish_at_once_are_not_believed() {
    let ids: Vec<u64> = (100..200).collect();
    let desk = Desk::with(ALONE, [(500, guest(500, "n1"))]);
    let taken = read(&desk, &ids, &declared(None, false, &ids), None).expect("a reading");
    assert!(!taken.observation.complete);
    assert_eq!(desk.requests().len(), 3, "nothing is asked for one by one");
}

#[test]
fn g1_quorum_must_hold_before_and_after() {
    let with = cluster_of("lab", 1, &[("n1", 1), ("n2", 1)]);
    let without = cluster_of("lab", 0, &[("n1", 1), ("n2", 0)]);
    for (before, after) in [(&with, &without), (&without, &with), (&without, &without)] {
        let desk = || three().instead("cluster/status", vec![success(before), success(after)]);
        let taken = read(&desk(), &[100, 101], &declared(None, false, &[100, 101]), None).expect("a reading");
        assert!(!taken.observation.quorate);
        assert!(taken.observation.complete, "all that was asked for is listed");
        assert_eq!(cause(&taken, 101), "node-offline");
        let taken = read(&desk(), &[999], &declared(None, false, &[999]), None).expect("a reading");
        assert!(!taken.observation.complete, "without quorum nothing is proven absent");
    }
}

#[test]
fn g1_a_cluster_that_cannot_be_read_again_is_not_read_whole_and_lost_no_quorum_that_anybody_saw() {
    let (n1, n2) = (three().cluster, three().cluster.replace(r#""local":1"#, r#""local":9"#).replace(r#""local":0"#, r#""local":1"#));
    let n2 = success(&n2.replace(r#""local":9"#, r#""local":0"#));
    for last in [raw(596, "Connection timed out"), raw(500, "oops"), n2] {
        let desk = || three().instead("cluster/status", vec![success(&n1), last.clone()]);
        let taken = read(&desk(), &[100], &declared(None, false, &[100]), None).expect("a reading");
        assert_eq!((taken.observation.quorate, taken.observation.complete), (true, false), "{last:?}");
        assert_eq!(taken.notes[0].reason, Reason::ClusterUnread);
        let taken = read(&desk(), &[999], &declared(None, false, &[999]), None).expect("a reading");
        let unlisted: Vec<&str> = taken.observation.unlisted.iter().map(|own| &*own.cause).collect();
        assert_eq!(unlisted, ["cluster-unread"], "nothing is proven absent");
    }
}

#[test]
fn g1_guests_of_a_node_that_fell_silent_are_unknown_also_where_the_cluster_cannot_be_read_again() {
    let desk = three().instead("cluster/status", vec![success(&three().cluster), raw(596, "Connection timed out")]);
    let desk = desk.instead("100/pending", vec![raw(595, "Connection refused")]);
    let taken = read(&desk, &[100], &declared(None, true, &[100]), None).expect("a reading");
    assert_eq!((cause(&taken, 100).as_str(), cause(&taken, 200).as_str()), ("node-silent", "node-silent"));
    assert_eq!(cause(&taken, 101), "running", "the other node answered");
}

#[test]
fn a_node_that_answers_for_another_cluster_gives_no_reading() {
    let error = read(&three(), &[100], &Needs::Everything, Some("production")).expect_err("refused").to_string();
    assert_eq!(error, "desk is in the cluster `lab`, not in `production`");
    assert!(read(&three(), &[100], &Needs::Everything, Some("lab")).is_ok());
    let alone = Desk::with(ALONE, [(100, guest(100, "n1"))]);
    assert!(read(&alone, &[100], &Needs::Everything, Some("n1")).is_ok(), "a node in no cluster goes by its own name");
    let other = cluster_of("other", 1, &[("n1", 1), ("n2", 1)]);
    let swapped = three().instead("cluster/status", vec![success(&three().cluster), success(&other)]);
    assert!(matches!(read(&swapped, &[100], &Needs::Everything, Some("lab")), Err(Unread::OtherCluster { .. })));
}

#[test]
fn without_the_list_or_the_cluster_there_is_no_reading_and_it_is_said_what_to_do() {
    let down = raw(500, "RPCEnvironment init request failed: Unable to load access control list: Connection refused");
    let cases = [
        (
            "cluster/status",
            failure("\"403\"", "Permission check failed (/, Sys.Audit)"),
            Cause::Forbidden,
            "pveum acl modify / --users 'svc@pve' --tokens 'svc@pve!probe' --roles PVEAuditor",
        ),
        ("cluster/status", raw(401, "Authentication failed!"), Cause::Unauthenticated, "the secret is that of the token svc@pve!probe"),
        ("cluster/status", down, Cause::ClusterDown, "pve-cluster"),
        ("cluster/status", raw(301, "Moved Permanently"), Cause::Redirected, "the address of the API itself"),
        ("resources?type=vm", HttpAnswer { body: b"<html>".to_vec(), ..success("") }, Cause::Malformed, "Proxmox VE's own"),
    ];
    for (path, answer, expected, part) in cases {
        let desk = three().instead(path, vec![answer]);
        let unread = read(&desk, &[100], &Needs::Everything, None).expect_err("no reading");
        let Unread::Failed { failure, .. } = &unread else { panic!("{unread}") };
        assert_eq!(failure.cause, expected);
        let remedy = unread.remedy();
        assert!(remedy.contains(part), "{unread}: {remedy}");
    }
}

#[test]
fn rows_that_nobody_can_have_do_not_hide_others() {
    let rows = r#"[{"vmid":5,"type":"qemu","node":"n1","status":"running"},{"type":"storage","id":"storage/n1/local"},
        {"vmid":101,"type":"oci","node":"n1","status":"running"},{"vmid":100,"type":"qemu","node":"gone-node","status":"stopped","name":"g100"}]"#;
    let desk = three().instead("resources?type=vm", vec![success(rows)]);
    let taken = read(&desk, &[100, 101], &declared(None, false, &[100, 101]), None).expect("a reading");
    assert_eq!(cause(&taken, 100), "node-offline", "its node is no member of the cluster");
    assert!(!taken.observation.complete, "what is listed in a way that is not understood is not missing");
}

#[test]
fn the_rule_for_tags_is_read_once_and_only_where_tags_are_declared() {
    let with_tags = |tags| match declared(None, true, &[100]) {
        Needs::Declared(needs) => Needs::Declared(needs.into_iter().map(|(vmid, need)| (vmid, Need { tags, ..need })).collect()),
        needs => needs,
    };
    let asked = |desk: &Desk| desk.requests().iter().filter(|path| path.ends_with("/cluster/options")).count();
    for (answer, needs, expected) in [
        (success(r#"{"tag-style":{"case-sensitive":1}}"#), with_tags(true), (Some(TagCase::Kept), 1)),
        (success("{}"), with_tags(true), (Some(TagCase::Lowered), 1)),
        (success(r#"{"tag-style":{"case-sensitive":"odd"}}"#), with_tags(true), (None, 1)),
        (failure("\"403\"", "Permission check failed"), with_tags(true), (None, 1)),
        (success("{}"), with_tags(false), (None, 0)),
        (success("{}"), Needs::Everything, (None, 0)),
    ] {
        let desk = three().instead("cluster/options", vec![answer]);
        let taken = read(&desk, &[100], &needs, None).expect("a reading");
        assert_eq!((taken.observation.tag_case, asked(&desk)), expected, "{needs:?}");
    }
    let listed = guest(100, "n1").listed.map(|row| row.replace(r#""template":0"#, r#""template":0,"tags":"web""#));
    let desk = Desk::with(ALONE, [(100, Guest { listed, ..guest(100, "n1") })]).instead("cluster/options", vec![success("{}")]);
    let taken = read(&desk, &[100], &Needs::Everything, None).expect("a reading");
    assert_eq!((taken.observation.tag_case, asked(&desk)), (Some(TagCase::Lowered), 1), "all is read, and a guest has tags");
}

#[test]
fn g1_a_config_without_its_digest_leaves_the_guest_unknown() {
    for pending in [r#"[{"key":"name","value":"g100"},{"key":"cores","value":2}]"#, r#"[{"key":"name","value":"g100"},{"key":"digest"}]"#] {
        for needs in [Needs::Everything, declared(None, true, &[100])] {
            let desk = three().instead("100/pending", vec![success(pending)]);
            let taken = read(&desk, &[100, 200], &needs, None).expect("a reading");
            assert_eq!(cause(&taken, 100), "answer-malformed", "{pending}");
            let text = "guest 100: its config came without a `digest`, which every release of Proxmox sends";
            assert_eq!(taken.notes.iter().map(|note| note.text.as_str()).collect::<Vec<_>>(), [text], "{pending}");
            assert_eq!(cause(&taken, 200), "stopped", "others are not concerned");
        }
    }
}

#[test]
fn g1_an_answer_with_a_key_twice_or_a_list_for_an_object_leaves_the_guest_unknown() {
    let digest = r#"{"key":"digest","value":"0fe8"}"#;
    let name = r#"{"key":"name","value":"g100"}"#;
    let bodies = [
        ("100/pending", format!(r#"[{name},{{"key":"cores","value":2,"value":4}},{digest}]"#)),
        ("100/pending", format!(r#"[{name},{{"key":"cores","key":"protection","value":0}},{digest}]"#)),
        ("100/pending", format!(r#"[{name},["protection",0],{digest}]"#)),
        ("100/pending", format!(r#"{{"name":"g100","digest":"0fe8"}}"#)),
        ("100/status/current", r#"{"status":"stopped","name":"g100","ha":{"managed":1,"managed":0}}"#.to_owned()),
        ("100/status/current", r#"{"status":"stopped","status":"running","name":"g100","ha":{"managed":0}}"#.to_owned()),
        ("100/status/current", r#"["stopped",100,"stopped","g100",null,5,1,512,{"managed":0}]"#.to_owned()),
    ];
    for (path, body) in bodies {
        let taken = read(&three().instead(path, vec![success(&body)]), &[100, 200], &Needs::Everything, None).expect("a reading");
        assert_eq!((cause(&taken, 100).as_str(), cause(&taken, 200).as_str()), ("answer-malformed", "stopped"), "{body}");
        assert!(taken.notes.iter().any(|note| note.text.contains("the answer is not what this call gives")), "{body}: {:?}", taken.notes);
    }
    let envelope = HttpAnswer { body: br#"[[{"key":"name","value":"g100"}],1]"#.to_vec(), ..success("") };
    let taken = read(&three().instead("100/pending", vec![envelope]), &[100], &Needs::Everything, None).expect("a reading");
    assert_eq!(cause(&taken, 100), "answer-malformed");
}

#[test]
fn g2_a_row_of_the_list_that_does_not_say_where_its_guest_is_leaves_it_unknown() {
    for (row, field) in [
        (r#"{"vmid":101,"type":"qemu","status":"stopped","name":"g101"}"#, "node"),
        (r#"{"vmid":101,"type":"qemu","node":["n1"],"status":"stopped","name":"g101"}"#, "node"),
        (r#"{"vmid":101,"node":"n1","status":"stopped","name":"g101"}"#, "type"),
        (r#"{"vmid":101,"type":{"x":1},"node":"n1","status":"stopped","name":"g101"}"#, "type"),
    ] {
        let rows = format!("[{row},{}]", guest(100, "n1").listed.unwrap_or_default());
        let desk = three().instead("resources?type=vm", vec![success(&rows)]);
        let taken = read(&desk, &[100, 101], &declared(None, false, &[100, 101]), None).expect("a reading");
        let text = format!("guest 101: its row in the list of guests has no usable `{field}`");
        assert_eq!(taken.notes.iter().map(|note| note.text.as_str()).collect::<Vec<_>>(), [text.as_str()], "{row}");
        let unlisted: Vec<(u32, &str)> = taken.observation.unlisted.iter().map(|own| (own.vmid.get(), &*own.cause)).collect();
        assert_eq!((unlisted, taken.observation.complete), (vec![(101, "answer-malformed")], false), "{row}");
        // A row outside of the scope concerns nobody.
        let taken = read(&desk, &[100], &declared(None, false, &[100]), None).expect("a reading");
        assert!(taken.observation.complete && taken.notes.is_empty(), "{row}: {:?}", taken.notes);
        // Beside a whole row of the same guest it leaves open which of them counts.
        let rows = format!("[{row},{}]", guest(101, "n1").listed.unwrap_or_default());
        let taken = read(&three().instead("resources?type=vm", vec![success(&rows)]), &[101], &Needs::Everything, None).expect("a reading");
        assert_eq!(cause(&taken, 101), "answer-malformed", "{row}");
    }
}

#[test]
fn g2_a_list_with_a_row_of_nobody_is_no_list() {
    for row in [
        r#"{"type":"qemu","node":"n1","status":"stopped","name":"g101"}"#,
        r#"{"vmid":"x","type":"qemu","node":"n1","status":"stopped"}"#,
        r#"{"vmid":[101],"type":"qemu","node":"n1","status":"stopped"}"#,
        r#"{"vmid":101,"vmid":102,"type":"qemu","node":"n1","status":"stopped"}"#,
        r#"[101,"qemu","n1","stopped","g101"]"#,
        r#"5"#,
    ] {
        let rows = format!("[{},{row}]", guest(100, "n1").listed.unwrap_or_default());
        let desk = three().instead("resources?type=vm", vec![success(&rows)]);
        let unread = read(&desk, &[100], &declared(None, false, &[100]), None).expect_err("no reading");
        assert!(unread.to_string().contains("the list of guests cannot be read: 200 the answer is not what this call gives"), "{unread}");
        assert!(!unread.remedy().is_empty(), "{unread}");
    }
}

#[test]
fn the_order_of_rows_and_answers_does_not_show() {
    let desk = three();
    let first = read(&desk, &[100, 101, 200], &Needs::Everything, None).expect("a reading");
    let rows: Vec<String> = desk.guests.values().rev().filter_map(|guest| guest.listed.clone()).collect();
    let reversed = three().instead("resources?type=vm", vec![success(&format!("[{}]", rows.join(",")))]);
    assert_eq!(read(&reversed, &[100, 101, 200], &Needs::Everything, None).expect("a reading"), first);
}

#[test]
fn g3_guards_in_a_form_that_is_not_understood_leave_the_guest_unknown() {
    for item in [
        r#""protection","value":[1]"#,
        r#""protection","value":"yes""#,
        r#""lock","value":{"x":"backup"}"#,
        r#""tags","value":["prod"]"#,
        r#""name","value":"g100""#,
    ] {
        let pending = guest(100, "n1").pending.replace(r#""cores","value":2"#, item);
        let desk = Desk::with(ALONE, [(100, Guest { pending, ..guest(100, "n1") })]);
        let taken = read(&desk, &[100], &Needs::Everything, None).expect("a reading");
        assert_eq!(cause(&taken, 100), "config-not-understood", "{item}");
        let row = find(&taken, 100);
        assert_eq!((&row.protection, &row.template, &row.lock), (&Reading::Unread, &Reading::Unread, &Reading::Unread), "{item}");
    }
}

#[test]
fn g3_a_row_of_the_list_that_makes_no_sense_leaves_the_guest_unknown() {
    for part in [r#""lock":{"x":1}"#, r#""tags":["prod"]"#, r#""hastate":["started"]"#, r#""status":["stopped"]"#] {
        let listed = guest(100, "n1").listed.map(|row| row.replace(r#""status":"stopped""#, part));
        for needs in [Needs::Everything, declared(None, false, &[100])] {
            let desk = Desk::with(ALONE, [(100, Guest { listed: listed.clone(), ..guest(100, "n1") })]);
            let taken = read(&desk, &[100], &needs, None).expect("a reading");
            assert_eq!((cause(&taken, 100).as_str(), taken.notes.len()), ("answer-malformed", 1), "{part}: {:?}", taken.notes);
        }
    }
    let listed = guest(100, "n1").listed.map(|row| row.replace(r#""template":0"#, r#""template":"true""#));
    let taken =
        read(&Desk::with(ALONE, [(100, Guest { listed, ..guest(100, "n1") })]), &[100], &Needs::Everything, None).expect("a reading");
    assert_eq!(cause(&taken, 100), "answer-malformed");
}

#[test]
fn g17_whether_high_availability_has_a_guest_is_known_only_where_its_node_says_so() {
    let listed = guest(100, "n1").listed.map(|row| row.replace(r#""template":0"#, r#""template":0,"hastate":"started""#));
    let own = Guest { listed, ..guest(100, "n1") };
    let taken = read(&Desk::with(ALONE, [(100, own.clone())]), &[100], &Needs::Everything, None).expect("a reading");
    assert_eq!(find(&taken, 100).ha, Reading::Read(None), "the list is older than what the node says");
    for ha in ["[]", "{}", r#"{"managed":"yes"}"#] {
        let current = own.current.replace(r#"{"managed":0}"#, ha);
        let taken =
            read(&Desk::with(ALONE, [(100, Guest { current, ..own.clone() })]), &[100], &Needs::Everything, None).expect("a reading");
        assert_eq!(cause(&taken, 100), "answer-malformed", "{ha}");
    }
}

#[test]
fn g2_two_views_in_one_reading_prove_nothing() {
    let lab = cluster_of("lab", 1, &[("n1", 1), ("n2", 1)]);
    let after = |rows: &str| three().instead("cluster/status", vec![success(&lab), success(rows)]);
    let ask = |desk: &Desk| read(desk, &[100, 999], &declared(None, false, &[100, 999]), None);
    let other = ask(&after(&cluster_of("other", 1, &[("n1", 1), ("n2", 1)]))).expect_err("another cluster");
    assert!(matches!(&other, Unread::OtherCluster { found, wanted, .. } if found == "other" && wanted == "lab"), "{other}");
    let moved = ask(&after(&cluster_of("lab", 1, &[("n2", 1), ("n1", 1)]))).expect("a reading");
    assert!(moved.observation.quorate && !moved.observation.complete);
    assert!(moved.notes.iter().any(|note| note.reason == Reason::ClusterUnread), "{:?}", moved.notes);
    let grown = ask(&after(&cluster_of("lab", 1, &[("n1", 1), ("n2", 1), ("n3", 1)]))).expect("a reading");
    assert!(grown.observation.quorate && !grown.observation.complete);
    assert!(grown.notes.iter().any(|note| note.reason == Reason::NotProven), "{:?}", grown.notes);
    let alone = three().instead("cluster/status", vec![success(ALONE), success(&lab)]);
    assert!(ask(&alone).is_err(), "a node that is alone is not the cluster that answers later");
    assert!(ask(&after(&lab)).expect("a reading").observation.complete);
}

#[test]
fn that_a_guest_moved_is_said_only_where_its_id_is_known_to_be_taken() {
    let gone = || failure("500", "Configuration file 'nodes/n1/qemu-server/100.conf' does not exist");
    for (next_id, expected) in [(failure("500", "nextid broke"), "unreadable"), (raw(401, "No ticket"), "unreadable")] {
        let desk = three().instead("100/pending", vec![gone()]).instead("nextid?vmid=100", vec![next_id]);
        let taken = read(&desk, &[100], &declared(None, true, &[100]), None).expect("a reading");
        assert_eq!(cause(&taken, 100), expected);
        assert!(taken.notes[0].text.contains("whether its id is free"), "{:?}", taken.notes);
    }
    let desk = three().instead("100/pending", vec![gone()]);
    assert_eq!(cause(&read(&desk, &[100], &declared(None, true, &[100]), None).expect("a reading"), 100), "moved-while-read");
}

#[test]
fn a_token_that_is_not_accepted_any_more_is_no_matter_of_what_it_may_do() {
    let desk = three().instead("100/pending", vec![raw(401, "No ticket")]);
    let taken = read(&desk, &[100], &declared(None, true, &[100]), None).expect("a reading");
    assert_eq!(cause(&taken, 100), "unreadable");
    assert!(
        taken.notes[0].text.contains("401 No ticket") && !taken.notes[0].remedy("svc@pve!probe").contains("pveum"),
        "{:?}",
        taken.notes
    );
}
