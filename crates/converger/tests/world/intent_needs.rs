//! What an intent needs beyond rows and configs, read from the lab in every release: the content, and the number of requests.

use converger_adapters::proxmox::client::ProxmoxSession;
use converger_adapters::proxmox::observe::{
    CapacityOf, ExtraReads, GuestNeed, IntentNeeds, NodeReads, ObservationRequest, ProxmoxReading, ReadSet, take_reading,
};
use converger_core::desired::Scope;
use converger_core::guest::{GuestKind, StorageName};
use converger_core::observe::{ObservedGuest, Reading};
use converger_lab::{Flavour, WorldSpec};

use crate::changes::{ClientChange, prepare_lab};
use crate::client::{block_on, environment_name, node_name, snapshot_name, vmid};
use crate::lab_transport::LabTransport;

/// Reads guest 100 for an intent; returns the number of requests too.
fn read_for_intent(transport: &LabTransport<()>, kind: GuestKind, extras: ExtraReads, nodes: NodeReads) -> (ProxmoxReading, u64) {
    let need = GuestNeed { kind, state: None, config: true, tags: false, extras };
    let needs = ReadSet::Intent(IntentNeeds { guests: [(vmid(100), need)].into(), nodes });
    let (environment, scope) = (environment_name(), Scope::new(vec![vmid(100)]));
    let question = ObservationRequest { environment: &environment, cluster: None, token: "root@pam!lab", scope: &scope, needs: &needs };
    let session = ProxmoxSession::new(transport.clone());
    let reading = block_on(take_reading(&session, &question)).unwrap_or_else(|unread| panic!("{unread}"));
    let requests = session.request_count();
    (reading, requests)
}

fn guest_row(reading: &ProxmoxReading) -> &ObservedGuest {
    reading.observation.find(vmid(100)).unwrap_or_else(|| panic!("not listed"))
}

fn in_every_release(test: impl Fn(&LabTransport<()>, GuestKind)) {
    for flavour in [Flavour::V7, Flavour::V8, Flavour::V9] {
        for kind in GuestKind::ALL {
            eprintln!("release {}, {kind}", flavour.major());
            test(&prepare_lab(flavour, kind, ClientChange::Start), kind);
        }
    }
}

#[test]
fn g4_needs_of_an_intent_cost_the_stated_number_of_requests() {
    in_every_release(|transport, kind| {
        let requests = |extras: ExtraReads, nodes: NodeReads| {
            let (reading, requests) = read_for_intent(transport, kind, extras, nodes);
            assert!(reading.notes.is_empty(), "{:?}", reading.notes);
            requests
        };
        let none = ExtraReads::default;
        let plain = requests(none(), NodeReads::default());
        assert_eq!(requests(ExtraReads { disks: true, ..none() }, NodeReads::default()), plain);
        assert_eq!(requests(ExtraReads { snapshots: true, ..none() }, NodeReads::default()), plain + 1);
        let running_cpu_of = Some(snapshot_name("first"));
        assert_eq!(requests(ExtraReads { running_cpu_of, ..none() }, NodeReads::default()), plain + 1, "it contains no memory");
        assert_eq!(requests(ExtraReads { own_node_capacity: true, own_node_storages: true, ..none() }, NodeReads::default()), plain + 2);
        assert_eq!(requests(none(), NodeReads { capacity: CapacityOf::AllNodes, ..NodeReads::default() }), plain + 3);
        let storages = [node_name("pve1"), node_name("pve3")].into();
        assert_eq!(requests(none(), NodeReads { storages, ..NodeReads::default() }), plain + 2);
    });
}

#[test]
fn snapshots_and_disks_are_those_of_the_guest() {
    in_every_release(|transport, kind| {
        let extras = ExtraReads { snapshots: true, disks: true, ..ExtraReads::default() };
        let (reading, _) = read_for_intent(transport, kind, extras, NodeReads::default());
        let row = guest_row(&reading);
        let tree = row.snapshots().into_option().unwrap_or_else(|| panic!("unread: {:?}", reading.notes));
        let listed: Vec<_> = tree.list.iter().map(|own| (&*own.name, own.parent.as_deref(), own.ram, own.made_at.is_some())).collect();
        assert_eq!(listed, [("first", None, false, true), ("later", Some("first"), false, true)]);
        assert_eq!(tree.current.as_deref(), Some("later"));
        let disk = &row.disks().into_option().unwrap_or_else(|| panic!("unread: {:?}", reading.notes))[0];
        assert_eq!(disk.key.as_str(), if kind == GuestKind::Qemu { "scsi0" } else { "rootfs" });
        assert_eq!((disk.storage.as_ref().map(StorageName::as_str), &*disk.volume), (Some("tank"), "tank:vm-100-disk-0"));
        assert_eq!(disk.size.map(|size| size.kib()), Some(1 << 20));
        assert_eq!(row.host_devices().into_option(), Some([].as_slice()));
    });
}

#[test]
fn nodes_report_memory_processors_and_storages() {
    in_every_release(|transport, kind| {
        let extras = ExtraReads { own_node_storages: true, ..ExtraReads::default() };
        let nodes = NodeReads { capacity: CapacityOf::AllNodes, ..NodeReads::default() };
        let (reading, _) = read_for_intent(transport, kind, extras, nodes);
        for node in &reading.observation.nodes {
            let Reading::Read(capacity) = &node.capacity else { panic!("unread: {:?}", reading.notes) };
            let is_sound = capacity.cpus > 0 && (1..=capacity.memory_total).contains(&capacity.memory_available);
            assert!(is_sound && capacity.cpu_model.is_some(), "{capacity:?}");
            assert_eq!(node.storages.is_read(), node.name.as_str() == "pve1");
        }
        let own = reading.observation.node_of(guest_row(&reading)).unwrap_or_else(|| panic!("no node"));
        let tank = StorageName::new("tank").unwrap_or_else(|| panic!("a name"));
        let Reading::Read(Some(storage)) = own.storage(&tank) else { panic!("not listed: {own:?}") };
        assert!(storage.active && storage.content.iter().any(|word| word == "images"), "{storage:?}");
        assert!(storage.available <= storage.total && storage.available.is_some(), "{storage:?}");
    });
}

/// A token that may see the cluster and its guests, but neither nodes nor storages.
const GUEST_AUDITOR: &str = "
cluster: lab
nodes: { pve1: {}, pve2: {} }
tokens: { root@pam!lab: { secret: lab } }
roles: { Seer: [Sys.Audit] }
acl:
  - { path: /, token: root@pam!lab, role: Seer, here_only: true }
  - { path: /vms, token: root@pam!lab, role: PVEVMUser }
guests: [{ vmid: 100, kind: qemu, node: pve1, name: web }]
";

#[test]
fn g2_token_without_privileges_leaves_nodes_and_storages_unread() {
    for flavour in [Flavour::V7, Flavour::V8, Flavour::V9] {
        let spec = WorldSpec { flavour, ..WorldSpec::from_yaml(GUEST_AUDITOR).unwrap_or_else(|error| panic!("{error}")) };
        let transport = LabTransport::new(&spec, "pve1", ());
        transport.lock_lab().advance(20_000);
        let extras = ExtraReads { snapshots: true, own_node_capacity: true, own_node_storages: true, ..ExtraReads::default() };
        let (reading, _) = read_for_intent(&transport, GuestKind::Qemu, extras, NodeReads::default());
        let texts: Vec<&str> = reading.notes.iter().map(|note| note.text.as_str()).collect();
        let expected = [
            "the memory and CPUs of node pve1 could not be read: 403 Permission check failed (/nodes/pve1, Sys.Audit)",
            "node pve1 lists no storage that the token may see",
        ];
        assert_eq!(texts, expected, "{flavour:?}");
        let node = reading.observation.node_of(guest_row(&reading)).unwrap_or_else(|| panic!("no node"));
        assert_eq!((&node.capacity, &node.storages), (&Reading::Unread, &Reading::Unread));
        assert_eq!(guest_row(&reading).snapshots().map(|tree| tree.list.len()), Reading::Read(0));
    }
}
