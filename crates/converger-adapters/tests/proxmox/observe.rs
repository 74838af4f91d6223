//! The content and the cost of observations: from the list alone, with details, and with irregularities.

use converger_adapters::proxmox::codec::{FailureCause, HttpResponse};
use converger_adapters::proxmox::observe::{ExtraReads, GuestNeed, ProxmoxReading, ReadSet, ReadingError, UnknownReason};
use converger_core::desired;
use converger_core::document::Notation;
use converger_core::guest::{GuestIdentity, GuestKind, RunState, Vmid};
use converger_core::normalize::{Field, FieldValue};
use converger_core::observe::{HaState, ObservedGuest, ObservedStatus, PendingChange, Reading, TagCase};

use crate::scripted_proxmox::{
    STANDALONE_NODE, ScriptedGuest, ScriptedProxmox, cluster_rows, failure_response, raw_response, stopped_guest, success_response,
    take_reading,
};

pub(crate) fn test_vmid(number: u64) -> Vmid {
    Vmid::new(number).expect("an id")
}

pub(crate) fn declared_needs(state: Option<RunState>, config: bool, ids: &[u64]) -> ReadSet {
    ReadSet::Declared(
        ids.iter()
            .map(|id| (test_vmid(*id), GuestNeed { kind: GuestKind::Qemu, state, config, tags: false, extras: ExtraReads::default() }))
            .collect(),
    )
}

pub(crate) fn find_guest(reading: &ProxmoxReading, number: u64) -> &ObservedGuest {
    reading.observation.find(test_vmid(number)).expect("listed")
}

pub(crate) fn status_or_cause(reading: &ProxmoxReading, number: u64) -> String {
    match &find_guest(reading, number).status {
        ObservedStatus::Unknown(cause) => cause.as_deref().unwrap_or("none").to_owned(),
        ObservedStatus::Known(state) => state.word().to_owned(),
    }
}

pub(crate) fn running_guest(vmid: u32, node: &str) -> ScriptedGuest {
    let plain = stopped_guest(vmid, node);
    ScriptedGuest {
        listed: plain.listed.map(|row| row.replace("stopped", "running")),
        current: plain.current.replace("stopped", "running"),
        ..plain
    }
}

pub(crate) fn three_guests() -> ScriptedProxmox {
    let cluster = cluster_rows("lab", 1, &[("n1", 1), ("n2", 1)]);
    ScriptedProxmox::with_guests(
        &cluster,
        [(100, stopped_guest(100, "n1")), (101, running_guest(101, "n2")), (200, stopped_guest(200, "n1"))],
    )
}

#[test]
fn reads_details_only_of_changing_or_managed_guests() {
    let proxmox = three_guests();
    let mut needs = match declared_needs(Some(RunState::Stopped), false, &[100, 101]) {
        ReadSet::Declared(needs) => needs,
        ReadSet::Everything | ReadSet::Lists | ReadSet::DeclaredBirths(_) | ReadSet::Intent(_) => unreachable!("declared"),
    };
    needs
        .insert(test_vmid(200), GuestNeed { kind: GuestKind::Qemu, state: None, config: true, tags: false, extras: ExtraReads::default() });
    let reading = take_reading(&proxmox, &[100, 101, 200], &ReadSet::Declared(needs), None).expect("a reading");
    let requests = proxmox.requests();
    let mut singly: Vec<&str> = requests.iter().filter_map(|path| path.strip_prefix("GET /api2/extjs/nodes/")).collect();
    singly.sort_unstable();
    singly.retain(|path| path.contains("qemu/"));
    assert_eq!(singly, ["n1/qemu/200/pending", "n2/qemu/101/pending", "n2/qemu/101/pending", "n2/qemu/101/status/current"]);
    assert_eq!(find_guest(&reading, 100).config, Reading::Unread);
    assert_eq!(
        (find_guest(&reading, 101).source.as_deref(), find_guest(&reading, 200).source.as_deref()),
        (Some("live"), Some("node-list"))
    );
}

#[test]
fn derives_needs_from_the_desired_state() {
    let text = "version: 1\nenvironment: lab\nguests:\n  - {vmid: 100, kind: qemu, name: a, state: running}\n  \
                - {vmid: 101, kind: lxc, name: b, config: {tags: [x]}}\n  - {vmid: 102, kind: qemu, identity: {ctime: 5}}\n";
    let desired = desired::parse(text.as_bytes(), Notation::Yaml).expect("parsed");
    let ReadSet::Declared(needs) = ReadSet::for_desired(&desired) else { panic!("declared") };
    assert_eq!(
        needs[&test_vmid(100)],
        GuestNeed { kind: GuestKind::Qemu, state: Some(RunState::Running), config: false, tags: false, extras: ExtraReads::default() }
    );
    assert_eq!(
        needs[&test_vmid(101)],
        GuestNeed { kind: GuestKind::Lxc, state: None, config: true, tags: true, extras: ExtraReads::default() }
    );
    assert!(needs[&test_vmid(102)].config);
}

#[test]
fn maps_list_rows_to_core_values() {
    let row = r#"{"vmid":"100","type":"lxc","node":"n1","status":"running","name":"ct","template":"0","lock":"backup","tags":"b;a","hastate":"started","maxcpu":"2","maxmem":1024,"unheard":[1]}"#;
    let proxmox = ScriptedProxmox::with_guests(
        STANDALONE_NODE,
        [(100, ScriptedGuest { kind: "lxc", listed: Some(row.into()), ..stopped_guest(100, "n1") })],
    );
    let reading = take_reading(&proxmox, &[100], &declared_needs(None, false, &[100]), None).expect("a reading");
    let row = find_guest(&reading, 100);
    assert_eq!((row.kind, &row.status), (GuestKind::Lxc, &ObservedStatus::Known(RunState::Running)));
    assert_eq!(row.lock, Reading::Read(Some("backup".into())));
    assert_eq!(row.ha, Reading::Read(Some(HaState { state: Some("started".into()) })));
    assert_eq!((&row.template, row.cpus, row.maxmem), (&Reading::Read(false), Some(2), Some(1024)));
    assert_eq!(row.tags.as_ref().into_option().expect("read").iter().collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!((&row.protection, &row.pending, &row.identity), (&Reading::Unread, &Reading::Unread, &Reading::Unread));
}

#[test]
fn full_reading_has_guards_birth_marks_and_pending_config() {
    let pending = r#"[{"key":"name","value":"g100"},{"key":"cores","value":2,"pending":4},{"key":"protection","value":1},{"key":"tags","value":"prod"},
        {"key":"smbios1","value":"uuid=ABC"},{"key":"meta","value":"creation-qemu=9,ctime=17"},{"key":"net0","pending":"virtio"},{"key":"digest","value":"0fe8"}]"#;
    let current = r#"{"status":"running","qmpstatus":"paused","name":"g100","ha":{"managed":1,"state":null}}"#;
    let proxmox = ScriptedProxmox::with_guests(
        STANDALONE_NODE,
        [(100, ScriptedGuest { pending: pending.into(), current: current.into(), ..stopped_guest(100, "n1") })],
    );
    let reading = take_reading(&proxmox, &[100], &ReadSet::Everything, None).expect("a reading");
    let row = find_guest(&reading, 100);
    assert_eq!(row.status, ObservedStatus::Unknown(Some("run-state-unclear".into())));
    assert_eq!(row.run_state.as_deref(), Some("paused"), "the raw word is kept");
    assert_eq!(row.ha, Reading::Read(Some(HaState { state: None })));
    assert_eq!((&row.protection, &row.template, &row.lock), (&Reading::Read(true), &Reading::Read(false), &Reading::Read(None)));
    assert_eq!(row.identity, Reading::Read(Box::new(GuestIdentity::Qemu { uuid: Some("abc".into()), ctime: Some(17) })));
    let pending_changes: Box<[PendingChange]> =
        [PendingChange::Known(Field::Cores, Some(FieldValue::Count(4))), PendingChange::Other("net0".into())].into();
    assert_eq!(row.pending, Reading::Read(pending_changes));
    assert_eq!(row.config.as_ref().into_option().expect("read").get(Field::Cores), Some(&FieldValue::Count(2)));
    assert_eq!(row.digest.as_deref(), Some("0fe8"));
}

#[test]
fn raw_run_states_are_running_stopped_or_unknown() {
    let of = |run_state: &str| {
        let proxmox = ScriptedProxmox::with_guests(
            STANDALONE_NODE,
            [(
                100,
                ScriptedGuest {
                    listed: stopped_guest(100, "n1").listed.map(|row| row.replace("stopped", run_state)),
                    ..stopped_guest(100, "n1")
                },
            )],
        );
        let reading = take_reading(&proxmox, &[100], &declared_needs(None, false, &[100]), None).expect("a reading");
        assert_eq!(find_guest(&reading, 100).run_state.as_deref(), Some(run_state));
        status_or_cause(&reading, 100)
    };
    assert_eq!((of("running"), of("stopped")), ("running".into(), "stopped".into()));
    for run_state in [
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
        assert_eq!(of(run_state), "run-state-unclear", "{run_state}");
    }
}

#[test]
fn reads_an_unreported_guest_from_its_node() {
    let row = r#"{"vmid":100,"type":"qemu","node":"n1","status":"unknown","id":"qemu/100"}"#;
    let proxmox =
        ScriptedProxmox::with_guests(STANDALONE_NODE, [(100, ScriptedGuest { listed: Some(row.into()), ..stopped_guest(100, "n1") })]);
    let reading = take_reading(&proxmox, &[100], &declared_needs(None, true, &[100]), None).expect("a reading");
    assert_eq!((status_or_cause(&reading, 100).as_str(), find_guest(&reading, 100).name.as_deref()), ("stopped", Some("g100")));
    let reading = take_reading(&proxmox, &[100], &declared_needs(Some(RunState::Stopped), false, &[100]), None).expect("a reading");
    assert_eq!((status_or_cause(&reading, 100).as_str(), find_guest(&reading, 100).source.as_deref()), ("stopped", Some("node-list")));
}

#[test]
fn guests_of_an_offline_node_are_unknown_without_requests() {
    let proxmox = ScriptedProxmox { cluster: cluster_rows("lab", 1, &[("n1", 1), ("n2", 0)]), ..three_guests() };
    let reading = take_reading(&proxmox, &[100, 101], &ReadSet::Everything, None).expect("a reading");
    assert_eq!((status_or_cause(&reading, 100).as_str(), status_or_cause(&reading, 101).as_str()), ("stopped", "node-offline"));
    assert!(!proxmox.requests().iter().any(|path| path.contains("nodes/n2")));
    assert!(reading.observation.complete, "its guests are listed");
}

#[test]
fn node_unreachable_after_its_list_is_abandoned_and_offline() {
    let guests = (100..120).map(|vmid| (vmid, stopped_guest(vmid, "n2"))).chain([(200, stopped_guest(200, "n1"))]);
    let cluster = cluster_rows("lab", 1, &[("n1", 1), ("n2", 1)]);
    let ids: Vec<u64> = (100..120).chain([200]).collect();
    for answer in [raw_response(595, "No route to host"), raw_response(595, "Connection refused")] {
        let mut proxmox = ScriptedProxmox::with_guests(&cluster, guests.clone());
        for vmid in 100..120 {
            proxmox = proxmox.with_override(&format!("qemu/{vmid}/pending"), vec![answer.clone()]);
        }
        let reading = take_reading(&proxmox, &ids, &declared_needs(None, true, &ids), None).expect("a reading");
        let request_count = proxmox.requests().iter().filter(|path| path.contains("nodes/n2/qemu/")).count();
        assert!(request_count <= 2, "two may be in flight; {request_count} were sent");
        assert!((100..120).all(|vmid| status_or_cause(&reading, vmid) == "node-silent"));
        assert_eq!(status_or_cause(&reading, 200), "stopped");
        let online: Vec<bool> = reading.observation.nodes.iter().map(|node| node.online).collect();
        assert_eq!(online, [true, false]);
    }
}

#[test]
fn guest_changed_during_the_reading_is_unknown() {
    let missing_response = failure_response("500", "Configuration file 'nodes/n1/qemu-server/100.conf' does not exist");
    let moved = three_guests().with_override("100/pending", vec![missing_response.clone()]);
    let reading = take_reading(&moved, &[100], &declared_needs(None, true, &[100]), None).expect("a reading");
    assert_eq!(status_or_cause(&reading, 100), "moved-while-read");
    let vanished = three_guests()
        .with_override("100/pending", vec![missing_response])
        .with_override("nextid?vmid=100", vec![success_response("\"100\"")]);
    let reading = take_reading(&vanished, &[100], &declared_needs(None, true, &[100]), None).expect("a reading");
    assert_eq!(status_or_cause(&reading, 100), "gone-while-read");
    let renamed = three_guests().with_override("100/pending", vec![success_response(r#"[{"key":"name","value":"other"}]"#)]);
    let reading = take_reading(&renamed, &[100], &declared_needs(None, true, &[100]), None).expect("a reading");
    assert_eq!(status_or_cause(&reading, 100), "renamed-while-read");
    assert_eq!(reading.notes[0].text, r#"guest 100: its name is "g100" in the list and "other" on its node"#);
    let other = stopped_guest(100, "n1").current.replace("g100", "other");
    let between = three_guests().with_override("100/status/current", vec![success_response(&other)]);
    let reading = take_reading(&between, &[100], &ReadSet::Everything, None).expect("a reading");
    assert_eq!(status_or_cause(&reading, 100), "renamed-while-read");
    assert_eq!(
        reading.notes[0].text, r#"guest 100: its name is "g100" in its config and "other" in its run-state"#,
        "equal names are not reported"
    );
}

/// The `/pending` response of a guest named `g100` with these marks and this digest.
fn config_with_marks(marks: &str, digest: &str) -> HttpResponse {
    success_response(&format!(
        r#"[{{"key":"name","value":"g100"}},{{"key":"cores","value":2}},{marks}{{"key":"digest","value":"{digest}"}}]"#
    ))
}

#[test]
fn g1_never_combines_run_state_and_config_of_different_guests() {
    let uuid = |uuid: &str| format!(r#"{{"key":"smbios1","value":"uuid={uuid}"}},"#);
    let doubts = [
        ("recreated with the same name", [config_with_marks(&uuid("a"), "01"), config_with_marks(&uuid("b"), "02")]),
        ("recreated without marks", [config_with_marks(&uuid("a"), "01"), config_with_marks("", "02")]),
        ("without marks, and changed", [config_with_marks("", "01"), config_with_marks("", "02")]),
    ];
    for (name, configs) in doubts {
        let proxmox = three_guests().with_override("100/pending", configs.into());
        let reading = take_reading(&proxmox, &[100, 101], &ReadSet::Everything, None).expect("a reading");
        assert_eq!(
            (status_or_cause(&reading, 100).as_str(), status_or_cause(&reading, 101).as_str()),
            ("replaced-while-read", "running"),
            "{name}"
        );
        let row = find_guest(&reading, 100);
        assert!(!row.config.is_read() && !row.identity.is_read() && !row.ha.is_read() && row.digest.is_none(), "{name}: {row:?}");
        assert_eq!(reading.notes.iter().map(|note| note.reason).collect::<Vec<_>>(), [UnknownReason::Replaced], "{name}");
    }
    let itself = [
        ("changed meanwhile", [config_with_marks(&uuid("a"), "01"), config_with_marks(&uuid("A"), "02")]),
        ("without marks and unchanged", [config_with_marks("", "01"), config_with_marks("", "01")]),
    ];
    for (name, configs) in itself {
        let proxmox = three_guests().with_override("100/pending", configs.into());
        let reading = take_reading(&proxmox, &[100], &ReadSet::Everything, None).expect("a reading");
        assert_eq!(status_or_cause(&reading, 100), "stopped", "{name}");
        let order: Vec<String> = proxmox.requests().into_iter().filter(|path| path.contains("qemu/100")).collect();
        let ends: Vec<&str> = order.iter().filter_map(|path| path.rsplit('/').next()).collect();
        assert_eq!(ends, ["pending", "current", "pending"], "{name}");
    }
}

#[test]
fn root_disk_name_alone_does_not_identify_a_container() {
    let config = |mac: &str, digest: &str| {
        let net = if mac.is_empty() { String::new() } else { format!(r#"{{"key":"net0","value":"name=eth0,hwaddr={mac}"}},"#) };
        success_response(&format!(
            r#"[{{"key":"hostname","value":"g100"}},{{"key":"rootfs","value":"local:100/vm-100-disk-0.raw,size=1G"}},{net}{{"key":"digest","value":"{digest}"}}]"#
        ))
    };
    let (one, other) = ("BC:24:11:00:00:01", "BC:24:11:00:00:02");
    for (before, after, expected) in
        [(one, one, "stopped"), (one, other, "replaced-while-read"), ("", "", "replaced-while-read"), ("", one, "replaced-while-read")]
    {
        let container = ScriptedGuest {
            kind: "lxc",
            listed: stopped_guest(100, "n1").listed.map(|row| row.replace("qemu", "lxc")),
            ..stopped_guest(100, "n1")
        };
        let proxmox = ScriptedProxmox::with_guests(STANDALONE_NODE, [(100, container)])
            .with_override("100/pending", vec![config(before, "01"), config(after, "02")]);
        let reading = take_reading(&proxmox, &[100], &ReadSet::Everything, None).expect("a reading");
        assert_eq!(status_or_cause(&reading, 100), expected, "{before} {after}");
    }
}

#[test]
fn nameless_guest_gets_a_name_from_its_id() {
    let nameless = ScriptedGuest {
        listed: stopped_guest(100, "n1").listed.map(|row| row.replace("g100", "VM 100")),
        pending: r#"[{"key":"digest","value":"0fe8"}]"#.into(),
        ..stopped_guest(100, "n1")
    };
    let reading =
        take_reading(&ScriptedProxmox::with_guests(STANDALONE_NODE, [(100, nameless)]), &[100], &declared_needs(None, true, &[100]), None)
            .expect("a reading");
    assert_eq!((status_or_cause(&reading, 100).as_str(), find_guest(&reading, 100).name.as_deref()), ("stopped", Some("VM 100")));
}

#[test]
fn unreadable_guest_is_unknown_with_its_cause() {
    let reasons = [
        (failure_response("\"403\"", "Permission check failed (/vms/100, VM.Audit)"), "not-permitted"),
        (failure_response("500", "something odd"), "unreadable"),
        (HttpResponse { body: b"{\"data\":".to_vec(), ..success_response("") }, "answer-malformed"),
        (
            success_response(r#"[{"key":"name","value":"g100"},{"key":"tags","value":"prod;#1"},{"key":"digest","value":"0f"}]"#),
            "config-not-understood",
        ),
    ];
    for (answer, code) in reasons {
        let proxmox = three_guests().with_override("100/pending", vec![answer]);
        let reading = take_reading(&proxmox, &[100, 101], &declared_needs(None, true, &[100, 101]), None).expect("a reading");
        assert_eq!((status_or_cause(&reading, 100).as_str(), status_or_cause(&reading, 101).as_str()), (code, "running"));
        assert_eq!(reading.notes.len(), 1, "{:?}", reading.notes);
        assert!(find_guest(&reading, 100).config == Reading::Unread);
    }
}

#[test]
fn g2_absence_is_proven_by_id_permission_and_the_nodes_themselves() {
    let proxmox = three_guests();
    let reading = take_reading(&proxmox, &[100, 999], &declared_needs(None, false, &[100, 999]), None).expect("a reading");
    assert!(reading.observation.complete && reading.observation.find(test_vmid(999)).is_none());
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
    assert_eq!(proxmox.requests(), expected);
}

#[test]
fn g2_unseen_guest_is_not_missing() {
    let one_down = ScriptedProxmox { cluster: cluster_rows("lab", 1, &[("n1", 1), ("n2", 0)]), ..three_guests() };
    let doubts: [(&str, ScriptedProxmox, UnknownReason); 7] = [
        ("a node is down", one_down, UnknownReason::NotProven),
        ("it is hidden", ScriptedProxmox { forbidden: [100].into(), ..three_guests() }, UnknownReason::Hidden),
        ("it would be hidden", ScriptedProxmox { forbidden: [999].into(), ..three_guests() }, UnknownReason::NotPermitted),
        (
            "a node has it",
            three_guests().with_override("999/status/current", vec![success_response(&stopped_guest(999, "n1").current)]),
            UnknownReason::ListShrunken,
        ),
        (
            "a node does not respond",
            three_guests().with_override("n2/qemu/999/status/current", vec![raw_response(595, "No route to host")]),
            UnknownReason::NotProven,
        ),
        (
            "the id cannot be checked",
            three_guests().with_override("nextid?vmid=999", vec![failure_response("500", "oops")]),
            UnknownReason::NotProven,
        ),
        ("the permissions cannot be read", three_guests().with_override("%2F999", vec![raw_response(596, "")]), UnknownReason::NotProven),
    ];
    for (name, proxmox, reason) in doubts {
        let reading = take_reading(&proxmox, &[100, 999], &declared_needs(None, false, &[100, 999]), None).expect("a reading");
        assert!(!reading.observation.complete, "{name}");
        let note = reading.notes.iter().find(|note| note.reason == reason).unwrap_or_else(|| panic!("{name}: {:?}", reading.notes));
        assert!(!note.remedy("svc@pve!probe").contains('<'), "{}", note.remedy("svc@pve!probe"));
    }
}

#[test]
fn g2_guest_moving_during_the_search_is_not_missing() {
    // The guest is on n2 while n1 is asked, and on n1 while n2 is asked. Neither the list nor the ids contain it.
    let missing_response = failure_response("500", "Configuration file 'nodes/n1/qemu-server/999.conf' does not exist");
    let proxmox = three_guests()
        .with_override("n1/qemu/999/status/current", vec![missing_response, success_response(&stopped_guest(999, "n1").current)]);
    let reading = take_reading(&proxmox, &[999], &declared_needs(None, false, &[999]), None).expect("a reading");
    assert!(!reading.observation.complete);
    assert_eq!(reading.notes[0].reason, UnknownReason::ListShrunken);
}

/// A cluster whose endpoint is on n1, with `count` guests on n2, of which these hang.
fn cluster_with_hanging_guests(count: u32, hung: &[u32]) -> (ScriptedProxmox, Vec<u64>) {
    let cluster = cluster_rows("lab", 1, &[("n1", 1), ("n2", 1)]);
    let ids: Vec<u64> = (100..100 + u64::from(count)).collect();
    let proxmox = ScriptedProxmox::with_guests(&cluster, (100..100 + count).map(|vmid| (vmid, stopped_guest(vmid, "n2"))));
    let hang = |proxmox: ScriptedProxmox, vmid: &u32| {
        proxmox.with_override(&format!("{vmid}/pending"), vec![raw_response(596, "Connection timed out")])
    };
    (hung.iter().fold(proxmox, hang), ids)
}

#[test]
fn g1_one_hanging_guest_does_not_silence_its_node() {
    for hung in [100_u32, 103, 107] {
        let (proxmox, ids) = cluster_with_hanging_guests(8, &[hung]);
        let reading = take_reading(&proxmox, &ids, &declared_needs(None, true, &ids), None).expect("a reading");
        for vmid in 100..108 {
            assert_eq!(
                status_or_cause(&reading, vmid),
                if vmid == u64::from(hung) { "no-answer" } else { "stopped" },
                "{hung} hangs, {vmid} was read"
            );
        }
        assert!(reading.observation.nodes.iter().all(|node| node.online), "a responding node is online");
        let note_texts: Vec<&str> = reading.notes.iter().map(|note| note.text.as_str()).collect();
        assert_eq!(note_texts, [format!("node n2 responds, but not for guest {hung} (596 Connection timed out)")]);
    }
}

#[test]
fn g1_abandons_a_stalled_node_and_keeps_its_earlier_responses() {
    let (proxmox, ids) = cluster_with_hanging_guests(40, &(104..140).collect::<Vec<u32>>());
    let reading = take_reading(&proxmox, &ids, &declared_needs(None, true, &ids), None).expect("a reading");
    let request_count = proxmox.requests().iter().filter(|path| path.contains("nodes/n2/qemu/")).count();
    assert!((8..=9).contains(&request_count), "four got a response, then four or five in a row did not; {request_count} were sent");
    assert!((100..104).all(|vmid| status_or_cause(&reading, vmid) == "stopped"));
    assert!((104..140).all(|vmid| status_or_cause(&reading, vmid) == "no-answer"));
}

#[test]
fn g1_hanging_guest_on_the_local_node_affects_only_itself() {
    let proxmox = three_guests().with_override("100/pending", vec![raw_response(596, "Connection timed out")]);
    let reading = take_reading(&proxmox, &[100], &declared_needs(None, true, &[100]), None).expect("a reading");
    assert_eq!((status_or_cause(&reading, 100).as_str(), status_or_cause(&reading, 200).as_str()), ("no-answer", "stopped"));
}

#[test]
fn g2_node_that_fell_silent_proves_nothing() {
    let proxmox = three_guests().with_override("101/pending", vec![raw_response(595, "Connection refused")]);
    let reading = take_reading(&proxmox, &[101, 999], &declared_needs(None, true, &[101, 999]), None).expect("a reading");
    assert!(!reading.observation.complete);
    let reasons: Vec<UnknownReason> = reading.notes.iter().map(|note| note.reason).collect();
    assert_eq!(reasons, [UnknownReason::NodeSilent, UnknownReason::NotProven]);
}

#[test]
fn g2_empty_list_is_not_an_empty_cluster() {
    // The list and the ids come from one source, which was empty for a moment; the node reads its files.
    let empty = three_guests()
        .with_override("resources?type=vm", vec![success_response("[]")])
        .with_override("nextid?vmid=100", vec![success_response("\"100\"")]);
    let reading = take_reading(&empty, &[100], &declared_needs(None, false, &[100]), None).expect("a reading");
    assert!(!reading.observation.complete);
    let reasons: Vec<UnknownReason> = reading.notes.iter().map(|note| note.reason).collect();
    assert_eq!(reasons, [UnknownReason::ListEmpty, UnknownReason::ListShrunken]);
}

#[test]
fn g2_mass_disappearance_is_not_believed() {
    let ids: Vec<u64> = (100..200).collect();
    let proxmox = ScriptedProxmox::with_guests(STANDALONE_NODE, [(500, stopped_guest(500, "n1"))]);
    let reading = take_reading(&proxmox, &ids, &declared_needs(None, false, &ids), None).expect("a reading");
    assert!(!reading.observation.complete);
    assert_eq!(proxmox.requests().len(), 3, "no guest is searched for");
}

#[test]
fn g1_quorum_must_hold_before_and_after() {
    let with = cluster_rows("lab", 1, &[("n1", 1), ("n2", 1)]);
    let without = cluster_rows("lab", 0, &[("n1", 1), ("n2", 0)]);
    for (before, after) in [(&with, &without), (&without, &with), (&without, &without)] {
        let new_proxmox = || three_guests().with_override("cluster/status", vec![success_response(before), success_response(after)]);
        let reading = take_reading(&new_proxmox(), &[100, 101], &declared_needs(None, false, &[100, 101]), None).expect("a reading");
        assert!(!reading.observation.quorate);
        assert!(reading.observation.complete, "all guests in scope are listed");
        assert_eq!(status_or_cause(&reading, 101), "node-offline");
        let reading = take_reading(&new_proxmox(), &[999], &declared_needs(None, false, &[999]), None).expect("a reading");
        assert!(!reading.observation.complete, "without quorum nothing is proven absent");
    }
}

#[test]
fn g1_failed_final_cluster_read_is_incomplete_but_keeps_quorum() {
    let (n1, n2) =
        (three_guests().cluster, three_guests().cluster.replace(r#""local":1"#, r#""local":9"#).replace(r#""local":0"#, r#""local":1"#));
    let n2 = success_response(&n2.replace(r#""local":9"#, r#""local":0"#));
    for last in [raw_response(596, "Connection timed out"), raw_response(500, "oops"), n2] {
        let new_proxmox = || three_guests().with_override("cluster/status", vec![success_response(&n1), last.clone()]);
        let reading = take_reading(&new_proxmox(), &[100], &declared_needs(None, false, &[100]), None).expect("a reading");
        assert_eq!((reading.observation.quorate, reading.observation.complete), (true, false), "{last:?}");
        assert_eq!(reading.notes[0].reason, UnknownReason::ClusterUnread);
        let reading = take_reading(&new_proxmox(), &[999], &declared_needs(None, false, &[999]), None).expect("a reading");
        let unlisted: Vec<&str> = reading.observation.unlisted.iter().map(|own| &*own.cause).collect();
        assert_eq!(unlisted, ["cluster-unread"], "nothing is proven absent");
    }
}

#[test]
fn g1_guests_of_a_silent_node_stay_unknown_without_a_final_cluster_read() {
    let proxmox = three_guests()
        .with_override("cluster/status", vec![success_response(&three_guests().cluster), raw_response(596, "Connection timed out")]);
    let proxmox = proxmox.with_override("100/pending", vec![raw_response(595, "Connection refused")]);
    let reading = take_reading(&proxmox, &[100], &declared_needs(None, true, &[100]), None).expect("a reading");
    assert_eq!((status_or_cause(&reading, 100).as_str(), status_or_cause(&reading, 200).as_str()), ("node-silent", "node-silent"));
    assert_eq!(status_or_cause(&reading, 101), "running", "the other node responded");
}

#[test]
fn another_cluster_gives_no_observation() {
    let error = take_reading(&three_guests(), &[100], &ReadSet::Everything, Some("production")).expect_err("refused").to_string();
    assert_eq!(error, "desk is in the cluster `lab`, not in `production`");
    assert!(take_reading(&three_guests(), &[100], &ReadSet::Everything, Some("lab")).is_ok());
    let alone = ScriptedProxmox::with_guests(STANDALONE_NODE, [(100, stopped_guest(100, "n1"))]);
    assert!(take_reading(&alone, &[100], &ReadSet::Everything, Some("n1")).is_ok(), "a node without a cluster has its own name");
    let other = cluster_rows("other", 1, &[("n1", 1), ("n2", 1)]);
    let swapped = three_guests().with_override("cluster/status", vec![success_response(&three_guests().cluster), success_response(&other)]);
    assert!(matches!(take_reading(&swapped, &[100], &ReadSet::Everything, Some("lab")), Err(ReadingError::OtherCluster { .. })));
}

#[test]
fn unreadable_list_or_cluster_gives_an_error_with_a_remedy() {
    let down = raw_response(500, "RPCEnvironment init request failed: Unable to load access control list: Connection refused");
    let cases = [
        (
            "cluster/status",
            failure_response("\"403\"", "Permission check failed (/, Sys.Audit)"),
            FailureCause::Forbidden,
            "pveum acl modify / --users 'svc@pve' --tokens 'svc@pve!probe' --roles PVEAuditor",
        ),
        (
            "cluster/status",
            raw_response(401, "Authentication failed!"),
            FailureCause::Unauthenticated,
            "the secret belongs to the token svc@pve!probe",
        ),
        ("cluster/status", down, FailureCause::ClusterDown, "pve-cluster"),
        ("cluster/status", raw_response(301, "Moved Permanently"), FailureCause::Redirected, "the address of the API itself"),
        (
            "resources?type=vm",
            HttpResponse { body: b"<html>".to_vec(), ..success_response("") },
            FailureCause::Malformed,
            "that of Proxmox VE itself",
        ),
    ];
    for (path, answer, expected, part) in cases {
        let proxmox = three_guests().with_override(path, vec![answer]);
        let unread = take_reading(&proxmox, &[100], &ReadSet::Everything, None).expect_err("no reading");
        let ReadingError::Failed { failure, .. } = &unread else { panic!("{unread}") };
        assert_eq!(failure.cause, expected);
        let remedy = unread.remedy();
        assert!(remedy.contains(part), "{unread}: {remedy}");
    }
}

#[test]
fn invalid_rows_do_not_hide_others() {
    let rows = r#"[{"vmid":5,"type":"qemu","node":"n1","status":"running"},{"type":"storage","id":"storage/n1/local"},
        {"vmid":101,"type":"oci","node":"n1","status":"running"},{"vmid":100,"type":"qemu","node":"gone-node","status":"stopped","name":"g100"}]"#;
    let proxmox = three_guests().with_override("resources?type=vm", vec![success_response(rows)]);
    let reading = take_reading(&proxmox, &[100, 101], &declared_needs(None, false, &[100, 101]), None).expect("a reading");
    assert_eq!(status_or_cause(&reading, 100), "node-offline", "its node is not a member of the cluster");
    assert!(!reading.observation.complete, "a guest with an invalid row is not missing");
}

#[test]
fn tag_rule_is_read_once_and_only_if_tags_are_declared() {
    let with_tags = |tags| match declared_needs(None, true, &[100]) {
        ReadSet::Declared(needs) => ReadSet::Declared(needs.into_iter().map(|(vmid, need)| (vmid, GuestNeed { tags, ..need })).collect()),
        needs => needs,
    };
    let count_requests = |proxmox: &ScriptedProxmox| proxmox.requests().iter().filter(|path| path.ends_with("/cluster/options")).count();
    for (answer, needs, expected) in [
        (success_response(r#"{"tag-style":{"case-sensitive":1}}"#), with_tags(true), (Some(TagCase::Kept), 1)),
        (success_response("{}"), with_tags(true), (Some(TagCase::Lowered), 1)),
        (success_response(r#"{"tag-style":{"case-sensitive":"odd"}}"#), with_tags(true), (None, 1)),
        (failure_response("\"403\"", "Permission check failed"), with_tags(true), (None, 1)),
        (success_response("{}"), with_tags(false), (None, 0)),
        (success_response("{}"), ReadSet::Everything, (None, 0)),
    ] {
        let proxmox = three_guests().with_override("cluster/options", vec![answer]);
        let reading = take_reading(&proxmox, &[100], &needs, None).expect("a reading");
        assert_eq!((reading.observation.tag_case, count_requests(&proxmox)), expected, "{needs:?}");
    }
    let listed = stopped_guest(100, "n1").listed.map(|row| row.replace(r#""template":0"#, r#""template":0,"tags":"web""#));
    let proxmox = ScriptedProxmox::with_guests(STANDALONE_NODE, [(100, ScriptedGuest { listed, ..stopped_guest(100, "n1") })])
        .with_override("cluster/options", vec![success_response("{}")]);
    let reading = take_reading(&proxmox, &[100], &ReadSet::Everything, None).expect("a reading");
    assert_eq!(
        (reading.observation.tag_case, count_requests(&proxmox)),
        (Some(TagCase::Lowered), 1),
        "everything is read, and a guest has tags"
    );
}

#[test]
fn observation_is_independent_of_row_order() {
    let proxmox = three_guests();
    let first = take_reading(&proxmox, &[100, 101, 200], &ReadSet::Everything, None).expect("a reading");
    let rows: Vec<String> = proxmox.guests.values().rev().filter_map(|guest| guest.listed.clone()).collect();
    let reversed = three_guests().with_override("resources?type=vm", vec![success_response(&format!("[{}]", rows.join(",")))]);
    assert_eq!(take_reading(&reversed, &[100, 101, 200], &ReadSet::Everything, None).expect("a reading"), first);
}

#[test]
fn g3_unreadable_guards_leave_the_guest_unknown() {
    for item in [
        r#""protection","value":[1]"#,
        r#""protection","value":"yes""#,
        r#""lock","value":{"x":"backup"}"#,
        r#""tags","value":["prod"]"#,
        r#""name","value":"g100""#,
    ] {
        let pending = stopped_guest(100, "n1").pending.replace(r#""cores","value":2"#, item);
        let proxmox = ScriptedProxmox::with_guests(STANDALONE_NODE, [(100, ScriptedGuest { pending, ..stopped_guest(100, "n1") })]);
        let reading = take_reading(&proxmox, &[100], &ReadSet::Everything, None).expect("a reading");
        assert_eq!(status_or_cause(&reading, 100), "config-not-understood", "{item}");
        let row = find_guest(&reading, 100);
        assert_eq!((&row.protection, &row.template, &row.lock), (&Reading::Unread, &Reading::Unread, &Reading::Unread), "{item}");
    }
}

#[test]
fn g3_invalid_list_row_leaves_the_guest_unknown() {
    for part in [r#""lock":{"x":1}"#, r#""tags":["prod"]"#, r#""hastate":["started"]"#, r#""status":["stopped"]"#] {
        let listed = stopped_guest(100, "n1").listed.map(|row| row.replace(r#""status":"stopped""#, part));
        for needs in [ReadSet::Everything, declared_needs(None, false, &[100])] {
            let proxmox = ScriptedProxmox::with_guests(
                STANDALONE_NODE,
                [(100, ScriptedGuest { listed: listed.clone(), ..stopped_guest(100, "n1") })],
            );
            let reading = take_reading(&proxmox, &[100], &needs, None).expect("a reading");
            assert_eq!(
                (status_or_cause(&reading, 100).as_str(), reading.notes.len()),
                ("answer-malformed", 1),
                "{part}: {:?}",
                reading.notes
            );
        }
    }
    let listed = stopped_guest(100, "n1").listed.map(|row| row.replace(r#""template":0"#, r#""template":"true""#));
    let reading = take_reading(
        &ScriptedProxmox::with_guests(STANDALONE_NODE, [(100, ScriptedGuest { listed, ..stopped_guest(100, "n1") })]),
        &[100],
        &ReadSet::Everything,
        None,
    )
    .expect("a reading");
    assert_eq!(status_or_cause(&reading, 100), "answer-malformed");
}

#[test]
fn g17_ha_ownership_is_known_only_from_the_node() {
    let listed = stopped_guest(100, "n1").listed.map(|row| row.replace(r#""template":0"#, r#""template":0,"hastate":"started""#));
    let own = ScriptedGuest { listed, ..stopped_guest(100, "n1") };
    let reading = take_reading(&ScriptedProxmox::with_guests(STANDALONE_NODE, [(100, own.clone())]), &[100], &ReadSet::Everything, None)
        .expect("a reading");
    assert_eq!(find_guest(&reading, 100).ha, Reading::Read(None), "the list is older than the node's response");
    for ha in ["[]", "{}", r#"{"managed":"yes"}"#] {
        let current = own.current.replace(r#"{"managed":0}"#, ha);
        let reading = take_reading(
            &ScriptedProxmox::with_guests(STANDALONE_NODE, [(100, ScriptedGuest { current, ..own.clone() })]),
            &[100],
            &ReadSet::Everything,
            None,
        )
        .expect("a reading");
        assert_eq!(status_or_cause(&reading, 100), "answer-malformed", "{ha}");
    }
}

#[test]
fn g2_two_cluster_views_in_one_observation_prove_nothing() {
    let lab = cluster_rows("lab", 1, &[("n1", 1), ("n2", 1)]);
    let after = |rows: &str| three_guests().with_override("cluster/status", vec![success_response(&lab), success_response(rows)]);
    let read_guests = |proxmox: &ScriptedProxmox| take_reading(proxmox, &[100, 999], &declared_needs(None, false, &[100, 999]), None);
    let other = read_guests(&after(&cluster_rows("other", 1, &[("n1", 1), ("n2", 1)]))).expect_err("another cluster");
    assert!(matches!(&other, ReadingError::OtherCluster { found, wanted, .. } if found == "other" && wanted == "lab"), "{other}");
    let moved = read_guests(&after(&cluster_rows("lab", 1, &[("n2", 1), ("n1", 1)]))).expect("a reading");
    assert!(moved.observation.quorate && !moved.observation.complete);
    assert!(moved.notes.iter().any(|note| note.reason == UnknownReason::ClusterUnread), "{:?}", moved.notes);
    let grown = read_guests(&after(&cluster_rows("lab", 1, &[("n1", 1), ("n2", 1), ("n3", 1)]))).expect("a reading");
    assert!(grown.observation.quorate && !grown.observation.complete);
    assert!(grown.notes.iter().any(|note| note.reason == UnknownReason::NotProven), "{:?}", grown.notes);
    let alone = three_guests().with_override("cluster/status", vec![success_response(STANDALONE_NODE), success_response(&lab)]);
    assert!(read_guests(&alone).is_err(), "a node without a cluster is not the cluster that responds later");
    assert!(read_guests(&after(&lab)).expect("a reading").observation.complete);
}

#[test]
fn reports_a_move_only_if_the_id_is_taken() {
    let missing_response = || failure_response("500", "Configuration file 'nodes/n1/qemu-server/100.conf' does not exist");
    for (next_id, expected) in [(failure_response("500", "nextid broke"), "unreadable"), (raw_response(401, "No ticket"), "unreadable")] {
        let proxmox = three_guests().with_override("100/pending", vec![missing_response()]).with_override("nextid?vmid=100", vec![next_id]);
        let reading = take_reading(&proxmox, &[100], &declared_needs(None, true, &[100]), None).expect("a reading");
        assert_eq!(status_or_cause(&reading, 100), expected);
        assert!(reading.notes[0].text.contains("whether its id is free"), "{:?}", reading.notes);
    }
    let proxmox = three_guests().with_override("100/pending", vec![missing_response()]);
    assert_eq!(
        status_or_cause(&take_reading(&proxmox, &[100], &declared_needs(None, true, &[100]), None).expect("a reading"), 100),
        "moved-while-read"
    );
}

#[test]
fn rejected_token_is_not_reported_as_missing_permission() {
    let proxmox = three_guests().with_override("100/pending", vec![raw_response(401, "No ticket")]);
    let reading = take_reading(&proxmox, &[100], &declared_needs(None, true, &[100]), None).expect("a reading");
    assert_eq!(status_or_cause(&reading, 100), "unreadable");
    assert!(
        reading.notes[0].text.contains("401 No ticket") && !reading.notes[0].remedy("svc@pve!probe").contains("pveum"),
        "{:?}",
        reading.notes
    );
}
