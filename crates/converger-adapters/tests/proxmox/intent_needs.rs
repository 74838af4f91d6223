//! What an intent needs beyond rows and configs: in how many requests it is read, and what a failed request leaves unread.

use converger_adapters::proxmox::codec::{HttpResponse, SnapshotName};
use converger_adapters::proxmox::observe::{
    BirthNeed, BirthNeeds, CapacityOf, ExtraReads, GuestNeed, IntentNeeds, NodeReads, ProxmoxReading, ReadSet,
};
use converger_core::guest::{GuestKind, NodeName};
use converger_core::observe::{Observation, ObservedNode, PlanView, Reading, Seen};

use crate::observe::{find_guest, test_vmid, three_guests};
use crate::scripted_proxmox::{ScriptedGuest, ScriptedProxmox, failure_response, scope_of, success_response, take_reading};

const SNAPSHOTS: &str = r#"[{"name":"ram1","snaptime":1794770687,"vmstate":1,"parent":"s1"},{"name":"s1","snaptime":1794770662,"vmstate":0},{"name":"current","parent":"ram1","running":0,"digest":"0fe8"}]"#;
const CAPACITY: &str = r#"{"cpuinfo":{"cpus":4,"model":"Lab CPU"},"memory":{"total":1000,"free":300,"available":600}}"#;
const STORAGES: &str =
    r#"[{"storage":"local","type":"dir","content":"iso,images","active":1,"shared":0,"avail":70,"total":90,"enabled":1}]"#;
const JOBS: &str = r#"[{"id":"101-0","guest":101,"jobnum":0,"target":"n1","type":"local"}]"#;

fn node_name(name: &str) -> NodeName {
    NodeName::new(name).expect("a name")
}

/// The needs of an intent: these extras of guests 100 and 101, and what is needed of nodes.
fn intent_needs(extras: &ExtraReads, nodes: NodeReads) -> ReadSet {
    let need =
        |vmid| (test_vmid(vmid), GuestNeed { kind: GuestKind::Qemu, state: None, config: false, tags: false, extras: extras.clone() });
    ReadSet::Intent(IntentNeeds { guests: [need(100), need(101)].into(), nodes })
}

fn with_disks(mut proxmox: ScriptedProxmox) -> ScriptedProxmox {
    for guest in proxmox.guests.values_mut() {
        let with = r#"{"key":"scsi0","value":"local:100/vm-100-disk-0.qcow2,size=8G"},{"key":"hostpci0","value":"01:00"},{"key":"digest""#;
        *guest = ScriptedGuest { pending: guest.pending.replace(r#"{"key":"digest""#, with), ..guest.clone() };
    }
    proxmox
}

fn answering_proxmox() -> ScriptedProxmox {
    with_disks(three_guests())
        .with_override("100/snapshot", vec![success_response(SNAPSHOTS)])
        .with_override("101/snapshot", vec![success_response(r#"[{"name":"current","digest":"0fe8"}]"#)])
        .with_override("snapshot=ram1", vec![success_response(r#"{"runningcpu":"host,+aes","digest":"0fe8"}"#)])
        .with_override("cluster/replication", vec![success_response(JOBS)])
        .with_override("n1/status", vec![success_response(CAPACITY)])
        .with_override("n2/status", vec![success_response(CAPACITY)])
        .with_override("n1/storage", vec![success_response(STORAGES)])
        .with_override("n2/storage", vec![success_response(STORAGES)])
}

fn read(proxmox: &ScriptedProxmox, needs: &ReadSet) -> ProxmoxReading {
    let reading = take_reading(proxmox, &[100, 101], needs, None).expect("a reading");
    let bytes = serde_json::to_vec(&reading.observation).expect("serialises");
    let again = converger_core::observe::parse(&bytes).unwrap_or_else(|faults| panic!("{faults:#?}"));
    assert_eq!(again, reading.observation, "a recording is read back as it was");
    reading
}

/// The requests that an intent costs beyond those of an observation that needs nothing.
fn extra_requests(needs: &ReadSet) -> Vec<String> {
    let (plain, own) = (answering_proxmox(), answering_proxmox());
    read(&plain, &intent_needs(&ExtraReads::default(), NodeReads::default()));
    read(&own, needs);
    let mut requests = own.requests();
    for request in plain.requests() {
        let index = requests.iter().position(|other| *other == request).unwrap_or_else(|| panic!("{request} is missing"));
        requests.remove(index);
    }
    requests.sort();
    requests.iter().map(|request| request.trim_start_matches("GET /api2/extjs/").to_owned()).collect()
}

fn node<'o>(observation: &'o Observation, name: &str) -> &'o ObservedNode {
    observation.nodes.iter().find(|node| node.name.as_str() == name).expect("listed")
}

#[test]
fn g4_every_need_costs_the_stated_number_of_requests() {
    let of_guests = |extras: ExtraReads| extra_requests(&intent_needs(&extras, NodeReads::default()));
    let of_nodes = |nodes: NodeReads| extra_requests(&intent_needs(&ExtraReads::default(), nodes));
    let configs = ["nodes/n1/qemu/100/pending", "nodes/n2/qemu/101/pending"];
    assert_eq!(of_guests(ExtraReads { disks: true, ..ExtraReads::default() }), configs);
    let snapshots = of_guests(ExtraReads { snapshots: true, ..ExtraReads::default() });
    assert_eq!(snapshots, [configs[0], "nodes/n1/qemu/100/snapshot", configs[1], "nodes/n2/qemu/101/snapshot"]);
    assert_eq!(of_guests(ExtraReads { replication: true, ..ExtraReads::default() }), ["cluster/replication"]);
    let capacity = |capacity| NodeReads { capacity, ..NodeReads::default() };
    assert_eq!(of_nodes(capacity(CapacityOf::AllNodes)), ["nodes/n1/status", "nodes/n2/status"]);
    assert_eq!(of_nodes(capacity(CapacityOf::Nodes([node_name("n2"), node_name("n9")].into()))), ["nodes/n2/status"]);
    assert_eq!(of_nodes(NodeReads { storages: [node_name("n2")].into(), ..NodeReads::default() }), ["nodes/n2/storage"]);
    let own_nodes = ExtraReads { own_node_capacity: true, own_node_storages: true, ..ExtraReads::default() };
    assert_eq!(of_guests(own_nodes), ["nodes/n1/status", "nodes/n1/storage", "nodes/n2/status", "nodes/n2/storage"]);
}

/// A declared state with templates costs nothing more as long as all of its guests exist.
#[test]
fn templates_are_read_only_if_a_guest_is_missing() {
    let requests_for = |vmid: u64| {
        let extras = ExtraReads { disks: true, own_node_capacity: true, ..ExtraReads::default() };
        let need = GuestNeed { kind: GuestKind::Qemu, state: None, config: true, tags: true, extras };
        let nodes = NodeReads { storages: [node_name("n2")].into(), ..NodeReads::default() };
        let birth = BirthNeed { vmid: test_vmid(vmid), template: test_vmid(200), need, nodes };
        let proxmox = answering_proxmox();
        let needs = ReadSet::DeclaredBirths(BirthNeeds { declared: [].into(), births: vec![birth] });
        take_reading(&proxmox, &[vmid, 200], &needs, None).expect("a reading");
        let is_detail = |path: &String| ["qemu/200", "/storage", "n1/status", "n2/status"].iter().any(|own| path.contains(own));
        let mut requests: Vec<String> = proxmox.requests().into_iter().filter(is_detail).collect();
        requests.sort();
        requests.iter().map(|request| request.trim_start_matches("GET /api2/extjs/").to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(requests_for(100), [""; 0]);
    assert_eq!(requests_for(300), ["nodes/n1/qemu/200/pending", "nodes/n1/status", "nodes/n2/storage"]);
}

#[test]
fn running_cpu_is_read_only_of_a_snapshot_with_memory() {
    let running_cpu_of = |name: &str| {
        let extras = ExtraReads { running_cpu_of: SnapshotName::new(name), ..ExtraReads::default() };
        let requests = extra_requests(&intent_needs(&extras, NodeReads::default()));
        requests.into_iter().filter(|request| request.contains("config")).collect::<Vec<_>>()
    };
    assert_eq!(running_cpu_of("ram1"), ["nodes/n1/qemu/100/config?snapshot=ram1"], "guest 101 has no such snapshot");
    assert_eq!(running_cpu_of("s1"), [""; 0]);
    assert_eq!(running_cpu_of("other"), [""; 0]);
}

#[test]
fn reads_what_an_intent_needs() {
    let extras = ExtraReads {
        snapshots: true,
        disks: true,
        replication: true,
        running_cpu_of: SnapshotName::new("ram1"),
        own_node_capacity: false,
        own_node_storages: true,
    };
    let reading = read(&answering_proxmox(), &intent_needs(&extras, NodeReads { capacity: CapacityOf::AllNodes, ..NodeReads::default() }));
    assert!(reading.notes.is_empty(), "{:?}", reading.notes);
    let (row, other) = (find_guest(&reading, 100), find_guest(&reading, 101));
    let tree = row.snapshots().into_option().expect("read");
    assert_eq!((tree.current.as_deref(), tree.list.len()), (Some("ram1"), 2));
    assert_eq!(tree.find("ram1").map(|snapshot| (snapshot.ram, snapshot.cpu.as_deref())), Some((true, Some("host,+aes"))));
    assert_eq!(other.snapshots().map(|tree| tree.list.len()), Reading::Read(0));
    assert_eq!((row.replicated(), other.replicated()), (Reading::Read(false), Reading::Read(true)));
    let disks = row.disks().into_option().expect("read");
    assert_eq!((disks.len(), disks[0].key.as_str(), disks[0].size.map(|size| size.kib())), (1, "scsi0", Some(8 << 20)));
    assert_eq!(row.host_devices().into_option(), Some(["hostpci0".into()].as_slice()));
    for name in ["n1", "n2"] {
        let node = node(&reading.observation, name);
        assert!(matches!(&node.capacity, Reading::Read(capacity) if capacity.memory_available == 600 && capacity.cpus == 4));
        assert!(matches!(&node.storages, Reading::Read(storages) if storages.len() == 1));
    }
}

#[test]
fn reads_nothing_that_nobody_needs() {
    for (needs, has_disks) in [
        (ReadSet::Lists, false),
        (ReadSet::Declared([].into()), false),
        (intent_needs(&ExtraReads::default(), NodeReads::default()), false),
        (ReadSet::Everything, true),
    ] {
        let proxmox = answering_proxmox();
        let reading = read(&proxmox, &needs);
        let row = find_guest(&reading, 100);
        assert_eq!((row.disks().is_read(), row.host_devices().is_read()), (has_disks, has_disks), "{needs:?}");
        assert!(!row.snapshots().is_read() && !row.replicated().is_read());
        assert!(reading.observation.nodes.iter().all(|node| !node.capacity.is_read() && !node.storages.is_read()));
        let extra = ["/snapshot", "/replication", "n1/status", "/storage", "/config"];
        assert!(!proxmox.requests().iter().any(|request| extra.iter().any(|end| request.ends_with(end))), "{:?}", proxmox.requests());
    }
}

/// Reads everything that an intent can need, with one response replaced.
fn read_with(path_end: &str, answer: HttpResponse) -> ProxmoxReading {
    let extras = ExtraReads {
        snapshots: true,
        replication: true,
        running_cpu_of: SnapshotName::new("ram1"),
        own_node_capacity: true,
        own_node_storages: true,
        ..ExtraReads::default()
    };
    read(&answering_proxmox().with_override(path_end, vec![answer]), &intent_needs(&extras, NodeReads::default()))
}

#[test]
fn g2_failed_read_leaves_its_part_unread_with_a_note() {
    let forbidden = |what: &str| failure_response("\"403\"", &format!("Permission check failed ({what})"));
    for (path_end, answer, code, remedy) in [
        ("100/snapshot", forbidden("/vms/100, VM.Audit"), "snapshots-unread", "pveum acl modify /vms/100 "),
        ("cluster/replication", failure_response("500", "replication.cfg is broken"), "replication-unread", "pvesr list"),
        ("n1/status", forbidden("/nodes/n1, Sys.Audit"), "capacity-unread", "needs Sys.Audit; on a node: pveum acl modify /nodes "),
        ("n1/storage", success_response("[]"), "storages-unread", "needs Datastore.Audit; on a node: pveum acl modify /storage "),
        ("n1/storage", success_response("{}"), "storages-unread", "pveum acl modify /storage "),
        ("n1/status", success_response("[]"), "capacity-unread", "pveum acl modify /nodes "),
        ("100/snapshot", success_response("[]"), "snapshots-unread", "observe again"),
    ] {
        let reading = read_with(path_end, answer);
        let notes = &reading.observation.notes;
        assert_eq!(notes.iter().map(|note| &*note.code).collect::<Vec<_>>(), [code], "{path_end}");
        assert!(notes[0].remedy.contains(remedy), "{path_end}: {}", notes[0].remedy);
        let (row, node) = (find_guest(&reading, 100), node(&reading.observation, "n1"));
        let is_read = [row.snapshots().is_read(), row.replicated().is_read(), node.capacity.is_read(), node.storages.is_read()];
        let unread = ["snapshots-unread", "replication-unread", "capacity-unread", "storages-unread"].map(|other| other != code);
        assert_eq!(is_read, unread, "{path_end}");
        assert!(matches!(reading.observation.presence(row.vmid, Some(row)), Seen::Present(..)), "the guest itself is known");
    }
    let reading = read_with("snapshot=ram1", failure_response("500", "snapshot 'ram1' does not exist"));
    let tree = find_guest(&reading, 100).snapshots().into_option().expect("the list was read");
    assert_eq!(tree.find("ram1").and_then(|snapshot| snapshot.cpu.as_deref()), None);
    assert!(reading.observation.notes[0].text.contains("the CPU of its snapshot ram1 could not be read"), "{:?}", reading.notes);
}

#[test]
fn snapshots_of_another_config_are_not_taken_for_those_of_the_guest() {
    for (path_end, body) in [
        ("100/snapshot", SNAPSHOTS.replace("0fe8", "0fe9")),
        ("100/snapshot", SNAPSHOTS.replace(r#","digest":"0fe8""#, "")),
        ("snapshot=ram1", r#"{"runningcpu":"host","digest":"0fe9"}"#.to_owned()),
    ] {
        let reading = read_with(path_end, success_response(&body));
        let snapshots = find_guest(&reading, 100).snapshots();
        let cpu = snapshots.into_option().and_then(|tree| tree.find("ram1")?.cpu.clone());
        assert_eq!((snapshots.is_read(), cpu), (path_end == "snapshot=ram1", None), "{body}");
        assert!(reading.notes.iter().any(|note| note.text.contains("its config changed while its snapshots were read")), "{body}");
    }
}

#[test]
fn disk_that_is_not_understood_leaves_the_disks_unread() {
    let mut proxmox = three_guests();
    let guest = proxmox.guests.get_mut(&100).expect("a guest");
    guest.pending = guest.pending.replace(r#"{"key":"digest""#, r#"{"key":"scsi0","value":"size=1G"},{"key":"digest""#);
    let reading = read(&proxmox, &ReadSet::Everything);
    let row = find_guest(&reading, 100);
    assert!(row.config.is_read() && !row.disks().is_read() && !row.host_devices().is_read());
    let texts: Vec<&str> = reading.notes.iter().map(|note| note.text.as_str()).collect();
    assert_eq!(texts, ["guest 100: the value of `scsi0` is not understood, so its disks are not known"]);
    assert!(read(&proxmox, &ReadSet::Declared([].into())).notes.is_empty(), "nobody needs the disks");
}

#[test]
fn absent_target_of_an_intent_is_proven_absent() {
    let proxmox = answering_proxmox();
    let needs = intent_needs(&ExtraReads { disks: true, ..ExtraReads::default() }, NodeReads::default());
    let reading = take_reading(&proxmox, &[100, 300], &needs, None).expect("a reading");
    let scoped = reading.observation.into_scoped(&scope_of(&[100, 300]));
    assert!(matches!(scoped.presence(test_vmid(300), scoped.find(test_vmid(300))), Seen::Missing));
    assert!(proxmox.requests().iter().any(|request| request.ends_with("cluster/nextid?vmid=300")));
    let taken = take_reading(&answering_proxmox(), &[100, 200], &needs, None).expect("a reading").observation;
    assert!(matches!(taken.presence(test_vmid(200), taken.find(test_vmid(200))), Seen::Present(..)));
}

#[test]
fn guest_of_another_kind_and_offline_node_are_not_asked() {
    let mut proxmox = answering_proxmox();
    proxmox.cluster = crate::scripted_proxmox::cluster_rows("lab", 1, &[("n1", 1), ("n2", 0)]);
    let extras = ExtraReads { snapshots: true, replication: true, own_node_capacity: true, ..ExtraReads::default() };
    let need = |kind| GuestNeed { kind, state: None, config: false, tags: false, extras: extras.clone() };
    let guests = [(test_vmid(100), need(GuestKind::Lxc)), (test_vmid(101), need(GuestKind::Qemu))].into();
    let nodes = NodeReads { capacity: CapacityOf::default(), storages: [node_name("n2")].into() };
    let reading = read(&proxmox, &ReadSet::Intent(IntentNeeds { guests, nodes }));
    assert!(reading.observation.guests.iter().all(|row| row.extras.is_none()));
    assert!(reading.observation.nodes.iter().all(|node| !node.capacity.is_read() && !node.storages.is_read()));
    let extra = ["/snapshot", "/replication", "/storage", "n1/status", "n2/status"];
    assert!(!proxmox.requests().iter().any(|request| extra.iter().any(|end| request.ends_with(end))), "{:?}", proxmox.requests());
}

#[test]
fn digest_of_an_observation_covers_what_an_intent_reads() {
    let digest = |storages: &str| {
        let proxmox = answering_proxmox().with_override("n2/storage", vec![success_response(storages)]);
        let needs = intent_needs(&ExtraReads::default(), NodeReads { storages: [node_name("n2")].into(), ..NodeReads::default() });
        let scoped = take_reading(&proxmox, &[100], &needs, None).expect("a reading").observation.into_scoped(&scope_of(&[100]));
        serde_json::to_string(&PlanView(&scoped)).expect("serialises")
    };
    assert!(digest(STORAGES).contains(r#""name":"n2""#), "no guest in scope is on the node");
    assert_ne!(digest(STORAGES), digest(&STORAGES.replace("\"avail\":70", "\"avail\":69")));
}
