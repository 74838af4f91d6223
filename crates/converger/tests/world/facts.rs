//! Facts about Proxmox that the client relies on, release by release: each test checks one fact through the client. The tests of the lab
//! show that the lab behaves that way; `docs/proxmox-facts.md` lists both.

use converger_adapters::proxmox::codec::{
    Delivery, DiskKey, DiskSize, FailureCause, GuestPath, ProxmoxCommand, ProxmoxEvent, ProxmoxFailure, ProxmoxRead, ProxmoxTaskState,
    ProxmoxWrite,
};
use converger_adapters::proxmox::observe::{ExtraReads, GuestNeed, ProxmoxReading, ReadSet, ReadingError, UnknownReason};
use converger_core::action::{Change, FieldChange, Migration, MigrationMode, NewSnapshot};
use converger_core::apply::GuestAddress;
use converger_core::apply::promise::PromiseCheck;
use converger_core::desired::Scope;
use converger_core::failure::FailureCode;
use converger_core::guest::{GuestKind, RunState};
use converger_core::normalize::{ChangeEffect, Field, FieldValue};
use converger_core::observe::{HaState, ObservedGuest, ObservedStatus, PendingChange, Reading, TagCase};
use converger_lab::{Flavour, GuestSpec, NodeService, RequestFault, ResponseFault, WorldEvent, WorldSpec};

use crate::changes::{address, new_snapshot};
use crate::client::take_reading as take;
use crate::client::{SentPromise, call_command, call_read, guest_path, node_name, snapshot_name, vmid};
use crate::lab_transport::LabTransport;

/// Three nodes; a running virtual machine and container on the second, and one stopped of each on the first.
const LAB: &str = "
cluster: lab
nodes: { pve1: {}, pve2: {}, pve3: {} }
storages: { tank: { type: rbd, shared: true } }
tokens: { root@pam!lab: { secret: lab, full: true } }
guests:
  - { vmid: 100, kind: qemu, node: pve1, name: web, config: { cores: 2, memory: 1024, scsi0: 'tank:vm-100-disk-0,size=8G' } }
  - { vmid: 101, kind: lxc, node: pve1, name: dns, config: { memory: 512, rootfs: 'tank:vm-101-disk-0,size=4G' } }
  - { vmid: 102, kind: qemu, node: pve2, name: db, state: running, config: { memory: 1024 } }
  - { vmid: 103, kind: lxc, node: pve2, name: mail, state: running, config: { memory: 512 } }
";

/// One node without a cluster.
const STANDALONE_NODE: &str = "
nodes: { pve1: {} }
tokens: { root@pam!lab: { secret: lab, full: true } }
guests: [{ vmid: 100, kind: qemu, node: pve1, name: web }]
";

fn start_lab(yaml: &str, flavour: Flavour) -> LabTransport<()> {
    let spec = WorldSpec { flavour, ..WorldSpec::from_yaml(yaml).unwrap_or_else(|error| panic!("{error}")) };
    let transport = LabTransport::new(&spec, "pve1", ());
    transport.lock_lab().advance(20_000);
    transport
}

/// Runs the test in 7, 8 and 9, each with a fresh lab.
fn in_every_release(yaml: &str, test: impl Fn(&LabTransport<()>)) {
    for flavour in [Flavour::V7, Flavour::V8, Flavour::V9] {
        eprintln!("release {}", flavour.major());
        test(&start_lab(yaml, flavour));
    }
}

fn read_guests(transport: &LabTransport<()>, ids: &[u32], read_set: &ReadSet) -> Result<ProxmoxReading, ReadingError> {
    take(transport, &Scope::new(ids.iter().map(|id| vmid(*id)).collect()), read_set, None)
}

fn full_reading(transport: &LabTransport<()>, ids: &[u32]) -> ProxmoxReading {
    read_guests(transport, ids, &ReadSet::Everything).unwrap_or_else(|unread| panic!("{unread}"))
}

/// An observation of a declared guest, optionally with its config.
fn declared_reading(transport: &LabTransport<()>, id: u32, config: bool) -> ProxmoxReading {
    let need = GuestNeed { kind: GuestKind::Qemu, state: None, config, tags: false, extras: ExtraReads::default() };
    read_guests(transport, &[id], &ReadSet::Declared([(vmid(id), need)].into())).unwrap_or_else(|unread| panic!("{unread}"))
}

fn guest_row(reading: &ProxmoxReading, id: u32) -> &ObservedGuest {
    reading.observation.find(vmid(id)).unwrap_or_else(|| panic!("{id} is not listed"))
}

fn guest_state(reading: &ProxmoxReading, id: u32) -> String {
    match &guest_row(reading, id).status {
        ObservedStatus::Known(state) => state.word().to_owned(),
        ObservedStatus::Unknown(cause) => cause.as_deref().unwrap_or("").to_owned(),
    }
}

fn note_reasons(reading: &ProxmoxReading) -> Vec<UnknownReason> {
    reading.notes.iter().map(|note| note.reason).collect()
}

fn failure_cause(answer: Result<ProxmoxEvent, ProxmoxFailure>) -> (Delivery, FailureCause) {
    let failure = answer.expect_err("a failure");
    (failure.delivery, failure.cause)
}

/// The end of the task of an accepted change.
fn run_task(transport: &LabTransport<()>, write: ProxmoxWrite) -> ProxmoxTaskState {
    let answer = call_command(transport, ProxmoxCommand::Write(write));
    let Ok(ProxmoxEvent::Accepted(converger_adapters::proxmox::codec::AcceptedChange::Task(upid))) = answer else {
        panic!("no task: {answer:?}")
    };
    transport.lock_lab().advance(60_000);
    match call_read(transport, ProxmoxRead::TaskStatus(upid)) {
        Ok(ProxmoxEvent::Task(state)) => state,
        other => panic!("{other:?}"),
    }
}

fn task_failure(state: &ProxmoxTaskState) -> Option<FailureCause> {
    match state {
        ProxmoxTaskState::Failed { cause, .. } => Some(*cause),
        _ => None,
    }
}

#[test]
fn release_is_read_from_the_major_version() {
    for flavour in [Flavour::V7, Flavour::V8, Flavour::V9] {
        let Ok(ProxmoxEvent::Version(version)) = call_read(&start_lab(LAB, flavour), ProxmoxRead::Version) else { panic!("no version") };
        assert_eq!(version.major, u32::from(flavour.major()));
    }
}

#[test]
fn error_text_arrives_whole_in_every_release() {
    in_every_release(LAB, |transport| {
        let failure = call_read(transport, ProxmoxRead::GuestStatus(guest_path("pve1", GuestKind::Qemu, 999))).expect_err("not there");
        assert_eq!(&*failure.text, "Configuration file 'nodes/pve1/qemu-server/999.conf' does not exist");
        assert_eq!((failure.delivery, failure.cause, failure.status), (Delivery::Rejected, FailureCause::NoSuchGuest, Some(500)));
    });
}

#[test]
fn new_guest_is_known_to_its_own_node_first() {
    in_every_release(LAB, |transport| {
        let now_ms = transport.lock_lab().now_ms;
        let new = GuestSpec { name: Some("new".to_owned()), ..GuestSpec::new(110, converger_lab::LabGuestKind::Qemu, "pve2") };
        transport.lock_lab().world.add_guest(now_ms, &new).unwrap_or_else(|error| panic!("{error}"));
        let reading = full_reading(transport, &[110]);
        assert_eq!((guest_state(&reading, 110).as_str(), guest_row(&reading, 110).name.as_deref()), ("stopped", Some("new")));
        let listed = declared_reading(transport, 110, false);
        assert_ne!(guest_state(&listed, 110), "running", "nothing is made up where only the list is read");
    });
}

#[test]
fn nameless_guest_is_named_after_its_id() {
    let nameless = "  - { vmid: 104, kind: qemu, node: pve1 }\n  - { vmid: 105, kind: lxc, node: pve1, bare: true }\n";
    in_every_release(&format!("{LAB}{nameless}"), |transport| {
        let reading = full_reading(transport, &[104, 105]);
        assert_eq!((guest_row(&reading, 104).name.as_deref(), guest_row(&reading, 105).name.as_deref()), (Some("VM 104"), Some("CT105")));
    });
}

#[test]
fn distinguishes_not_delivered_from_may_have_run() {
    in_every_release(LAB, |transport| {
        let stop = || call_command(transport, ProxmoxCommand::Write(ProxmoxWrite::Stop(guest_path("pve2", GuestKind::Qemu, 102))));
        let read = || call_read(transport, ProxmoxRead::GuestStatus(guest_path("pve2", GuestKind::Qemu, 102)));
        transport.lock_lab().inject_event(WorldEvent::ServiceDown("pve2".to_owned(), NodeService::Daemon));
        assert_eq!(failure_cause(stop()), (Delivery::NotDelivered, FailureCause::NodeUnreachable));
        transport.lock_lab().inject_event(WorldEvent::ServiceUp("pve2".to_owned(), NodeService::Daemon));
        transport.lock_lab().inject_event(WorldEvent::Slow("pve2".to_owned(), 40_000));
        assert_eq!(failure_cause(stop()), (Delivery::MayHaveRun, FailureCause::Interrupted));
        assert_eq!(failure_cause(read()), (Delivery::NotDelivered, FailureCause::Interrupted), "a reading leaves nothing behind");
        transport.lock_lab().inject_event(WorldEvent::Slow("pve2".to_owned(), 0));
        transport.lock_lab().advance(60_000);
        assert_eq!(guest_state(&full_reading(transport, &[102]), 102), "stopped", "it did run");
    });
}

#[test]
fn without_the_cluster_file_system_nothing_is_delivered_or_read() {
    in_every_release(LAB, |transport| {
        transport.lock_lab().inject_event(WorldEvent::ServiceDown("pve1".to_owned(), NodeService::Files));
        let start = call_command(transport, ProxmoxCommand::Write(ProxmoxWrite::Start(guest_path("pve1", GuestKind::Qemu, 100))));
        assert_eq!(failure_cause(start), (Delivery::NotDelivered, FailureCause::ClusterDown));
        let unread = read_guests(transport, &[100], &ReadSet::Everything).expect_err("no reading");
        assert_eq!(unread.code(), FailureCode::ClusterDown, "{unread}");
    });
}

#[test]
fn rejected_or_unprivileged_token_gives_no_observation() {
    let wrong = |yaml: &str, cause: FailureCause| {
        in_every_release(yaml, |transport| {
            let Err(ReadingError::Failed { failure, .. }) = read_guests(transport, &[100], &ReadSet::Everything) else {
                panic!("no reading")
            };
            assert_eq!(failure.cause, cause);
        });
    };
    wrong(&LAB.replace("full: true", "full: true, expire_s: 1"), FailureCause::Unauthenticated);
    wrong(&LAB.replace("full: true", "full: false"), FailureCause::Forbidden);
}

/// A token that may audit the cluster and sees some guests.
fn lab_with_limited_token(paths: &str) -> String {
    let audit = "{ path: /, role: PVEAuditor, token: 'root@pam!lab', here_only: true }";
    format!("{}acl: [{audit}, {paths}]\n", LAB.replace("full: true", "full: false"))
}

#[test]
fn guest_without_permission_is_hidden_and_not_missing() {
    let yaml = lab_with_limited_token("{ path: /vms/100, role: PVEAuditor, token: 'root@pam!lab' }");
    in_every_release(&yaml, |transport| {
        let reading = full_reading(transport, &[100, 102]);
        assert_eq!((guest_state(&reading, 100).as_str(), reading.observation.complete), ("stopped", false));
        assert_eq!(note_reasons(&reading), [UnknownReason::Hidden]);
        let reading = full_reading(transport, &[100, 999]);
        assert_eq!(
            (reading.observation.complete, note_reasons(&reading)),
            (false, vec![UnknownReason::NotPermitted]),
            "it would not be seen"
        );
    });
}

#[test]
fn permission_revoked_during_an_observation_is_a_cause() {
    let yaml = lab_with_limited_token("{ path: /vms/100, role: PVEAuditor, token: 'root@pam!lab' }");
    in_every_release(&yaml, |transport| {
        let guest = guest_path("pve1", GuestKind::Qemu, 100);
        assert!(call_read(transport, ProxmoxRead::GuestPending(guest.clone())).is_ok());
        transport.lock_lab().inject_event(WorldEvent::Revoke("/vms/100".to_owned()));
        assert_eq!(failure_cause(call_read(transport, ProxmoxRead::GuestPending(guest))), (Delivery::Rejected, FailureCause::Forbidden));
    });
}

#[test]
fn guest_on_no_node_is_missing() {
    in_every_release(LAB, |transport| {
        let reading = full_reading(transport, &[100, 999]);
        assert!(reading.observation.complete && reading.observation.find(vmid(999)).is_none(), "{:?}", reading.notes);
    });
}

#[test]
fn incomplete_or_empty_list_makes_nothing_missing() {
    in_every_release(LAB, |transport| {
        transport.lock_lab().inject_event(WorldEvent::Unlist(100));
        let reading = full_reading(transport, &[100, 101]);
        assert_eq!((reading.observation.complete, note_reasons(&reading)), (false, vec![UnknownReason::ListShrunken]));
        transport.lock_lab().inject_event(WorldEvent::Blind("pve1".to_owned()));
        let reading = full_reading(transport, &[100, 101]);
        assert!(!reading.observation.complete && reading.observation.guests.is_empty());
        assert_eq!(note_reasons(&reading), [UnknownReason::ListEmpty, UnknownReason::ListShrunken, UnknownReason::ListShrunken]);
    });
}

#[test]
fn offline_node_proves_no_absence() {
    in_every_release(LAB, |transport| {
        transport.lock_lab().inject_event(WorldEvent::NodeDown("pve3".to_owned()));
        let reading = full_reading(transport, &[100, 999]);
        assert_eq!((reading.observation.complete, note_reasons(&reading)), (false, vec![UnknownReason::NotProven]));
    });
}

#[test]
fn minority_partition_has_no_quorum_and_shows_stale_state() {
    in_every_release(LAB, |transport| {
        transport.lock_lab().inject_event(WorldEvent::Isolate(vec!["pve1".to_owned()]));
        let reading = full_reading(transport, &[100, 102, 999]);
        assert!(!reading.observation.quorate && !reading.observation.complete);
        assert_eq!((guest_state(&reading, 100).as_str(), guest_state(&reading, 102).as_str()), ("stopped", "node-offline"));
        let start = call_command(transport, ProxmoxCommand::Write(ProxmoxWrite::Start(guest_path("pve1", GuestKind::Qemu, 100))));
        assert_eq!(failure_cause(start), (Delivery::Rejected, FailureCause::NoQuorum));
        let snapshot = NewSnapshot { description: None, name: snapshot_name("s1"), ram: false };
        let snapshot = ProxmoxWrite::SnapshotCreate { guest: guest_path("pve1", GuestKind::Qemu, 100), snapshot };
        assert_eq!(
            task_failure(&run_task(transport, snapshot)),
            Some(FailureCause::NoQuorum),
            "files that cannot be written say so in the kernel's words"
        );
    });
}

#[test]
fn standalone_node_is_quorate_under_its_own_name() {
    in_every_release(STANDALONE_NODE, |transport| {
        let scope = Scope::new(vec![vmid(100)]);
        let reading = take(transport, &scope, &ReadSet::Everything, Some("pve1")).unwrap_or_else(|unread| panic!("{unread}"));
        assert!(reading.observation.quorate && reading.observation.complete);
        assert!(matches!(take(transport, &scope, &ReadSet::Everything, Some("lab")), Err(ReadingError::OtherCluster { .. })));
    });
}

#[test]
fn cluster_list_is_stale_and_the_guests_node_is_current() {
    in_every_release(LAB, |transport| {
        transport.lock_lab().inject_event(WorldEvent::Stop(102));
        let listed = declared_reading(transport, 102, false);
        assert_eq!((guest_state(&listed, 102).as_str(), guest_row(&listed, 102).source.as_deref()), ("stopped", Some("node-list")));
        let live = full_reading(transport, &[102]);
        assert_eq!((guest_state(&live, 102).as_str(), guest_row(&live, 102).source.as_deref()), ("stopped", Some("live")));
        transport.lock_lab().advance(10_000);
        assert_eq!(guest_state(&declared_reading(transport, 102, false), 102), "stopped");
    });
}

#[test]
fn without_pvestatd_run_states_come_from_the_node_with_a_note() {
    for stop in [WorldEvent::ServiceDown, WorldEvent::ServiceHung] {
        in_every_release(LAB, |transport| {
            transport.lock_lab().inject_event(stop("pve2".to_owned(), NodeService::Statd));
            // While the last report is kept, and after it has expired.
            for _ in 0..4 {
                transport.lock_lab().inject_event(WorldEvent::Say(102, "paused".to_owned()));
                transport.lock_lab().advance(90_000);
                let paused = declared_reading(transport, 102, false);
                assert_eq!(
                    (guest_state(&paused, 102).as_str(), note_reasons(&paused)),
                    ("run-state-unclear", vec![UnknownReason::ReportLate, UnknownReason::RunStateUnclear])
                );
                transport.lock_lab().inject_event(WorldEvent::Say(102, "running".to_owned()));
                assert_eq!(guest_state(&declared_reading(transport, 102, false), 102), "running");
            }
            transport.lock_lab().inject_event(WorldEvent::Stop(102));
            assert_eq!(guest_state(&declared_reading(transport, 102, false), 102), "stopped");
            transport.lock_lab().inject_event(WorldEvent::Start(102));
            assert_eq!(guest_state(&declared_reading(transport, 102, false), 102), "running");
            transport.lock_lab().inject_event(WorldEvent::ServiceUp("pve2".to_owned(), NodeService::Statd));
            assert!(note_reasons(&declared_reading(transport, 102, false)).is_empty());
        });
    }
}

#[test]
fn guests_of_an_offline_node_are_unknown() {
    in_every_release(LAB, |transport| {
        transport.lock_lab().inject_event(WorldEvent::NodeDown("pve2".to_owned()));
        assert_eq!(guest_state(&declared_reading(transport, 102, false), 102), "node-offline");
        transport.lock_lab().advance(400_000);
        assert_eq!(guest_state(&declared_reading(transport, 102, false), 102), "node-offline");
        transport.lock_lab().inject_event(WorldEvent::NodeUp("pve2".to_owned()));
        assert_eq!(guest_state(&declared_reading(transport, 102, true), 102), "stopped", "its own node knows");
    });
}

#[test]
fn paused_or_failing_guest_is_neither_running_nor_stopped() {
    for (run_state, cause) in [("paused", "run-state-unclear"), ("io-error", "run-state-unclear"), ("prelaunch", "run-state-unclear")] {
        in_every_release(LAB, |transport| {
            transport.lock_lab().inject_event(WorldEvent::Say(102, run_state.to_owned()));
            let scope = Scope::new(vec![vmid(102)]);
            let scoped = full_reading(transport, &[102]).observation.into_scoped(&scope);
            let row = scoped.find(vmid(102)).unwrap_or_else(|| panic!("listed"));
            assert_eq!((&row.status, row.run_state.as_deref()), (&ObservedStatus::Unknown(Some(cause.into())), Some(run_state)));
        });
    }
}

#[test]
fn replaced_guest_is_not_taken_for_the_listed_one() {
    in_every_release(LAB, |transport| {
        transport.lock_lab().inject_event(WorldEvent::Recycle(100));
        assert_eq!(guest_state(&full_reading(transport, &[100]), 100), "renamed-while-read");
        transport.lock_lab().advance(20_000);
        assert_eq!(guest_row(&full_reading(transport, &[100]), 100).name.as_deref(), Some("other-100"));
    });
}

#[test]
fn guest_recreated_under_its_name_differs_by_birth_marks_only() {
    in_every_release(LAB, |transport| {
        let before = guest_row(&full_reading(transport, &[100]), 100).identity.clone();
        transport.lock_lab().inject_event(WorldEvent::Replace(100));
        transport.lock_lab().advance(20_000);
        let reading = full_reading(transport, &[100]);
        let after = guest_row(&reading, 100);
        assert!(before.is_read() && after.identity.is_read() && before != after.identity);
        assert_eq!((after.status.clone(), after.name.as_deref()), (ObservedStatus::Known(RunState::Stopped), Some("web")));
    });
}

#[test]
fn ha_resource_has_no_state_until_the_manager_runs() {
    in_every_release(LAB, |transport| {
        assert_eq!(guest_row(&full_reading(transport, &[102]), 102).ha, Reading::Read(None));
        let request = converger_lab::LabRequest::new("POST", "/api2/json/cluster/ha/resources")
            .with_token("root@pam!lab=lab")
            .with_form("sid=vm%3A102");
        let now_ms = transport.lock_lab().now_ms;
        assert_eq!(transport.lock_lab().world.answer(now_ms, &request).status, 200);
        assert_eq!(guest_row(&full_reading(transport, &[102]), 102).ha, Reading::Read(Some(HaState { state: None })));
        assert_eq!(
            guest_row(&declared_reading(transport, 102, false), 102).ha,
            Reading::Read(Some(HaState { state: Some("started".into()) }))
        );
    });
}

#[test]
fn change_of_an_ha_guest_is_queued_and_done_later() {
    let yaml = format!("{LAB}ha: {{ 'vm:102': {{}} }}\n");
    in_every_release(&yaml, |transport| {
        let address = GuestAddress { node: node_name("pve2"), kind: GuestKind::Qemu, vmid: vmid(102) };
        let promise = SentPromise::before_send(transport, &address, Change::Stop);
        let answer = call_command(transport, promise.command(transport));
        let Ok(ProxmoxEvent::Accepted(converger_adapters::proxmox::codec::AcceptedChange::Task(upid))) = answer else {
            panic!("{answer:?}")
        };
        assert_eq!(upid.worker(), "hastop");
        transport.lock_lab().advance(200);
        assert_eq!(call_read(transport, ProxmoxRead::TaskStatus(upid)), Ok(ProxmoxEvent::Task(ProxmoxTaskState::Ended { warnings: 0 })));
        assert!(matches!(promise.check_kept(transport, None), PromiseCheck::NotKept(_)), "the task only passed the request on");
        transport.lock_lab().advance(60_000);
        assert!(matches!(promise.check_kept(transport, None), PromiseCheck::Kept(_)));
    });
}

#[test]
fn config_values_mean_the_same_in_every_json_type() {
    in_every_release(LAB, |transport| {
        for (key, text) in
            [("cpulimit", "1.5"), ("onboot", "1"), ("agent", "1"), ("startup", "3"), ("tags", "b;a"), ("boot", "order=scsi0")]
        {
            transport.lock_lab().inject_event(WorldEvent::Set(100, key.to_owned(), text.to_owned()));
        }
        let reading = full_reading(transport, &[100]);
        let Reading::Read(config) = &guest_row(&reading, 100).config else { panic!("{:?}", reading.notes) };
        assert_eq!(config.get(Field::Memory), Some(&FieldValue::Mib(1024)), "a number in 7, text since");
        assert_eq!(
            (config.get(Field::Cpulimit), config.get(Field::Onboot)),
            (Some(&FieldValue::Thousandths(1500)), Some(&FieldValue::Flag(true)))
        );
        assert_eq!((config.get(Field::Agent), config.get(Field::Cores)), (Some(&FieldValue::Flag(true)), Some(&FieldValue::Count(2))));
        assert!(config.get(Field::Startup).is_some() && config.get(Field::Boot).is_some());
    });
}

#[test]
fn pending_values_are_read_with_current_ones() {
    in_every_release(LAB, |transport| {
        transport.lock_lab().inject_event(WorldEvent::SetPending(102, "cores".to_owned(), "8".to_owned()));
        transport.lock_lab().inject_event(WorldEvent::SetPending(102, "net0".to_owned(), "virtio,bridge=vmbr0".to_owned()));
        let reading = full_reading(transport, &[102]);
        let row = guest_row(&reading, 102);
        let pending: Box<[PendingChange]> =
            [PendingChange::Known(Field::Cores, Some(FieldValue::Count(8))), PendingChange::Other("net0".into())].into();
        assert_eq!(row.pending, Reading::Read(pending));
        assert_eq!(row.config.as_ref().into_option().and_then(|config| config.get(Field::Cores)), None, "it has no effect yet");
        assert_eq!(row.digest.as_deref(), transport.lock_lab().world.guest_truth(102).map(|truth| truth.digest).as_deref());
    });
}

#[test]
fn container_is_identified_by_hostname_disk_and_network_card() {
    in_every_release(LAB, |transport| {
        let reading = full_reading(transport, &[101]);
        let row = guest_row(&reading, 101);
        assert_eq!((row.kind, row.name.as_deref()), (GuestKind::Lxc, Some("dns")));
        let marks = row.identity.as_ref().into_option().map(|identity| identity.marks()).unwrap_or_else(|| panic!("no marks"));
        assert_eq!(marks[1], ("rootfs", Some("tank:vm-101-disk-0".to_owned())));
    });
}

/// A growth of a container that is bound to the config as it is.
fn grow(transport: &LabTransport<()>, guest: GuestPath, size: &str) -> ProxmoxWrite {
    let Ok(ProxmoxEvent::Config(config)) = call_read(transport, ProxmoxRead::GuestPending(guest.clone())) else { panic!("no config") };
    let (disk, size) = (DiskKey::new(guest.kind, "rootfs"), DiskSize::parse(size));
    let (Some(disk), Some(size), Some(digest)) = (disk, size, config.digest) else { panic!("a disk, a size and a digest") };
    ProxmoxWrite::Grow { guest, disk, size, digest }
}

#[test]
fn every_rejection_has_a_cause_and_changes_nothing() {
    in_every_release(LAB, |transport| {
        let lxc = || guest_path("pve1", GuestKind::Lxc, 101);
        let no = |write: ProxmoxWrite| failure_cause(call_command(transport, ProxmoxCommand::Write(write)));
        let shutdown = |guest| ProxmoxWrite::Shutdown { guest, timeout_secs: 5 };
        assert_eq!(no(ProxmoxWrite::Start(guest_path("pve2", GuestKind::Lxc, 103))), (Delivery::Rejected, FailureCause::AlreadyRunning));
        assert_eq!(no(ProxmoxWrite::Stop(lxc())), (Delivery::Rejected, FailureCause::NotRunning));
        assert_eq!(no(shutdown(lxc())), (Delivery::Rejected, FailureCause::NotRunning));
        // A virtual machine runs, and its move is requested as if it were stopped.
        let offline = |guest| {
            let (from, to) = (node_name("pve2"), node_name("pve3"));
            let migration = Migration { from, mode: MigrationMode::Offline, storage: None, to, volumes: Box::default() };
            ProxmoxWrite::Migrate { guest, migration: Box::new(migration) }
        };
        for running in [guest_path("pve2", GuestKind::Qemu, 102), guest_path("pve2", GuestKind::Lxc, 103)] {
            assert_eq!(no(offline(running)), (Delivery::Rejected, FailureCause::Running));
        }
        assert_eq!(no(offline(guest_path("pve1", GuestKind::Qemu, 999))), (Delivery::Rejected, FailureCause::NoSuchGuest));
        assert_eq!(no(ProxmoxWrite::Start(guest_path("pve9", GuestKind::Qemu, 100))), (Delivery::Rejected, FailureCause::NodeUnknown));
        // In 7, growing a virtual machine's disk acts before it responds, so a failed growth is never taken for one that did nothing.
        assert_eq!(no(grow(transport, lxc(), "1G")), (Delivery::MayHaveRun, FailureCause::NotGrown));
        transport.lock_lab().inject_event(WorldEvent::Say(102, "paused".to_owned()));
        assert_eq!(no(shutdown(guest_path("pve2", GuestKind::Qemu, 102))), (Delivery::Rejected, FailureCause::Paused));
        transport.lock_lab().inject_event(WorldEvent::Lock(101, "backup".to_owned()));
        assert_eq!(no(grow(transport, lxc(), "16G")), (Delivery::Rejected, FailureCause::Locked));
        let truth = transport.lock_lab().world.guest_truth(100).unwrap_or_else(|| panic!("it is there"));
        assert_eq!((truth.process, truth.snapshots.len()), (None, 0));
        let tasks = (100..104).map(|id| transport.lock_lab().world.tasks_for_guest(id).count()).sum::<usize>();
        assert_eq!(tasks, 0, "each of them was said before a task was begun");
    });
}

/// The task list is written after the worker has started, so a locked list does not prove that the worker did not start.
#[test]
fn locked_task_list_does_not_prove_that_nothing_runs() {
    in_every_release(LAB, |transport| {
        let reason = "can't lock file '/var/log/pve/tasks/.active.lock' - got timeout";
        let response_fault = Some(ResponseFault::After { status: 500, reason: reason.to_owned() });
        transport.lock_lab().world.add_request_fault(RequestFault {
            method: Some("POST".to_owned()),
            fault: response_fault,
            ..RequestFault::default()
        });
        let (delivery, _) =
            failure_cause(call_command(transport, ProxmoxCommand::Write(ProxmoxWrite::Start(guest_path("pve1", GuestKind::Qemu, 100)))));
        assert_eq!((delivery, transport.lock_lab().world.tasks_for_guest(100).count()), (Delivery::MayHaveRun, 1));
    });
}

/// An intermediary may have forwarded a change before it responded in place of Proxmox; its body lacks `data`.
#[test]
fn error_without_data_comes_from_an_intermediary() {
    in_every_release(LAB, |transport| {
        let page = |body: &str| Some(ResponseFault::Instead { status: 500, reason: "no".to_owned(), body: body.to_owned(), html: false });
        let start = || {
            failure_cause(call_command(transport, ProxmoxCommand::Write(ProxmoxWrite::Start(guest_path("pve2", GuestKind::Lxc, 103))))).0
        };
        assert_eq!(start(), Delivery::Rejected, "it runs already, says Proxmox");
        transport.lock_lab().world.add_request_fault(RequestFault { fault: page(r#"{"error":"bad gateway"}"#), ..RequestFault::default() });
        assert_eq!(start(), Delivery::MayHaveRun);
    });
}

#[test]
fn failed_container_write_may_have_been_written() {
    in_every_release(LAB, |transport| {
        transport.lock_lab().inject_event(WorldEvent::Set(
            101,
            "net0".to_owned(),
            "name=eth0,bridge=vmbr9,hwaddr=BC:24:11:00:00:01,type=veth".to_owned(),
        ));
        let address = GuestAddress { node: node_name("pve1"), kind: GuestKind::Lxc, vmid: vmid(101) };
        let after = Some(FieldValue::Mib(1024));
        let change = FieldChange { field: Field::Memory, before: None, after, pending: None, effect: ChangeEffect::Live };
        let promise = SentPromise::before_send(transport, &address, Change::ConfigSet(Box::new([change])));
        assert_eq!(failure_cause(call_command(transport, promise.command(transport))), (Delivery::MayHaveRun, FailureCause::Other));
        assert!(matches!(promise.check_kept(transport, None), PromiseCheck::Kept(_)));
    });
}

#[test]
fn restricted_tag_is_rejected_with_its_own_cause() {
    in_every_release(LAB, |transport| {
        assert!(
            matches!(call_read(transport, ProxmoxRead::TagOptions), Ok(ProxmoxEvent::TagOptions(options)) if options.tag_case == TagCase::Lowered)
        );
        let deny = "Permission check failed (/, Sys.Modify for modifying tag 'web')";
        let response_fault =
            Some(ResponseFault::Instead { status: 403, reason: deny.to_owned(), body: r#"{"data":null}"#.to_owned(), html: false });
        transport.lock_lab().world.add_request_fault(RequestFault {
            method: Some("POST".to_owned()),
            fault: response_fault,
            ..RequestFault::default()
        });
        let start = ProxmoxCommand::Write(ProxmoxWrite::Start(guest_path("pve1", GuestKind::Qemu, 100)));
        assert_eq!(failure_cause(call_command(transport, start)), (Delivery::Rejected, FailureCause::TagForbidden));
    });
}

#[test]
fn failed_task_reports_its_cause() {
    in_every_release(LAB, |transport| {
        assert_eq!(
            task_failure(&run_task(transport, ProxmoxWrite::Start(guest_path("pve2", GuestKind::Qemu, 102)))),
            Some(FailureCause::AlreadyRunning)
        );
        assert_eq!(
            task_failure(&run_task(transport, ProxmoxWrite::Start(guest_path("pve1", GuestKind::Qemu, 999)))),
            Some(FailureCause::NoSuchGuest)
        );
        assert_eq!(
            run_task(transport, ProxmoxWrite::Stop(guest_path("pve1", GuestKind::Qemu, 100))),
            ProxmoxTaskState::Ended { warnings: 0 },
            "it was stopped already"
        );
        transport.lock_lab().inject_event(WorldEvent::Set(100, "template".to_owned(), "1".to_owned()));
        assert_eq!(
            task_failure(&run_task(transport, ProxmoxWrite::Start(guest_path("pve1", GuestKind::Qemu, 100)))),
            Some(FailureCause::Template)
        );
        transport.lock_lab().inject_event(WorldEvent::Lock(102, "backup".to_owned()));
        assert_eq!(
            task_failure(&run_task(transport, ProxmoxWrite::Stop(guest_path("pve2", GuestKind::Qemu, 102)))),
            Some(FailureCause::Locked)
        );
    });
}

#[test]
fn unfinished_snapshot_is_not_a_snapshot() {
    in_every_release(LAB, |transport| {
        let promise = SentPromise::before_send(transport, &address(GuestKind::Qemu), new_snapshot("half", false));
        transport.lock_lab().inject_event(WorldEvent::PrepareSnapshot(100, "half".to_owned()));
        let promise_check = promise.check_kept(transport, None);
        assert!(
            matches!(&promise_check, PromiseCheck::NotKept(seen) if seen.get("snapshot_state") == Some(&"prepare".into())),
            "{promise_check:?}"
        );
    });
}

#[test]
fn forgotten_task_has_its_own_cause() {
    in_every_release(LAB, |transport| {
        let upid = "UPID:pve1:00000001:00000001:6AFA0639:qmstart:100:root@pam!lab:";
        let upid = converger_adapters::proxmox::codec::Upid::new(upid).unwrap_or_else(|| panic!("an id"));
        assert_eq!(failure_cause(call_read(transport, ProxmoxRead::TaskStatus(upid))), (Delivery::Rejected, FailureCause::NoSuchTask));
    });
}

#[test]
fn token_without_audit_sees_only_its_own_tasks() {
    let acl = "acl: [{ path: /vms, role: PVEVMUser, token: 'root@pam!lab' }]\n";
    let tokens = "tokens: { root@pam!lab: { secret: lab }, root@pam!other: { secret: other, full: true } }";
    let limited = LAB.replace("tokens: { root@pam!lab: { secret: lab, full: true } }", tokens) + acl;
    in_every_release(&limited, |transport| {
        let tasks = |id| match call_read(transport, ProxmoxRead::Tasks { node: node_name("pve1"), vmid: vmid(id) }) {
            Ok(ProxmoxEvent::Tasks(tasks)) => tasks.len(),
            other => panic!("no list: {other:?}"),
        };
        let start = call_command(transport, ProxmoxCommand::Write(ProxmoxWrite::Start(guest_path("pve1", GuestKind::Qemu, 100))));
        assert!(start.is_ok(), "{start:?}");
        let others =
            converger_lab::LabRequest::new("POST", "/api2/json/nodes/pve1/lxc/101/status/start").with_token("root@pam!other=other");
        let now_ms = transport.lock_lab().now_ms;
        assert_eq!(transport.lock_lab().world.answer_at(now_ms, "pve1", &others).status, 200);
        assert_eq!((tasks(100), tasks(101)), (1, 0));
    });
}

#[test]
fn task_status_and_not_the_list_tells_whether_a_task_runs() {
    in_every_release(LAB, |transport| {
        let start = call_command(transport, ProxmoxCommand::Write(ProxmoxWrite::Start(guest_path("pve1", GuestKind::Qemu, 100))));
        let Ok(ProxmoxEvent::Accepted(converger_adapters::proxmox::codec::AcceptedChange::Task(upid))) = start else { panic!("{start:?}") };
        assert_eq!(call_read(transport, ProxmoxRead::TaskStatus(upid.clone())), Ok(ProxmoxEvent::Task(ProxmoxTaskState::Running)));
        transport.lock_lab().advance(5_000);
        assert_eq!(
            call_read(transport, ProxmoxRead::TaskStatus(upid.clone())),
            Ok(ProxmoxEvent::Task(ProxmoxTaskState::Ended { warnings: 0 }))
        );
        let list = ProxmoxRead::Tasks { node: upid.node().clone(), vmid: vmid(100) };
        let Ok(ProxmoxEvent::Tasks(tasks)) = call_read(transport, list) else { panic!("no list") };
        assert_eq!(tasks.iter().map(|task| &task.upid).collect::<Vec<_>>(), [&upid]);
        assert_eq!((upid.worker(), RunState::Running.word()), ("qmstart", guest_state(&full_reading(transport, &[100]), 100).as_str()));
    });
}

#[test]
fn cluster_identity_is_equal_on_every_node_and_for_every_token() {
    in_every_release(LAB, |transport| {
        let identity = |name: &str| match call_read(transport, ProxmoxRead::Certificates(node_name(name))) {
            Ok(ProxmoxEvent::Identity(identity)) => identity,
            other => panic!("{other:?}"),
        };
        assert_eq!([identity("pve1"), identity("pve2"), identity("pve3")], [identity("pve1"), identity("pve1"), identity("pve1")]);
        let (own, alone) = (identity("pve1"), start_lab(STANDALONE_NODE, transport.lock_lab().world.flavour()));
        assert!(
            matches!(call_read(&alone, ProxmoxRead::Certificates(node_name("pve1"))), Ok(ProxmoxEvent::Identity(other)) if other != own),
            "another cluster"
        );
    });
}
