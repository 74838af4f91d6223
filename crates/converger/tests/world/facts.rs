//! What the client makes of Proxmox's ways, release by release: each test is a fact that the client relies on, read through the client. The lab's
//! own tests show that the lab has these ways; `docs/proxmox-facts.md` lists both.

use converger_adapters::proxmox::codec::{
    Basis, Cause, Command, ConfigSet, Delivery, Event, Failure, Read, SnapshotName, TaskState, Write,
};
use converger_adapters::proxmox::observe::{Need, Needs, Reason, Taken, Unread};
use converger_core::action::FieldChange;
use converger_core::apply::promise::Kept;
use converger_core::desired::Scope;
use converger_core::failure::Code;
use converger_core::guest::{Kind, RunState};
use converger_core::normalize::{Effect, Field, Value};
use converger_core::observe::{Ha, ObservedGuest, Pending, Reading, Status, TagCase};
use converger_lab::{Act, Flavour, GuestSetting, Part, RequestFault, Setting, Twist};

use crate::spine::read as take;
use crate::spine::{Pledge, ask, call, node, path, vmid};
use crate::way::Way;

/// Three nodes; a virtual machine and a container that run on the second, one of each that does not on the first.
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

/// One node in no cluster.
const ALONE: &str = "
nodes: { pve1: {} }
tokens: { root@pam!lab: { secret: lab, full: true } }
guests: [{ vmid: 100, kind: qemu, node: pve1, name: web }]
";

fn lab(yaml: &str, flavour: Flavour) -> Way<()> {
    let setting = Setting { flavour, ..Setting::from_yaml(yaml).unwrap_or_else(|error| panic!("{error}")) };
    let way = Way::new(&setting, "pve1", ());
    way.lab().pass(20_000);
    way
}

/// In 7, 8 and 9, on a fresh lab each.
fn in_every_release(yaml: &str, test: impl Fn(&Way<()>)) {
    for flavour in [Flavour::V7, Flavour::V8, Flavour::V9] {
        eprintln!("release {}", flavour.major());
        test(&lab(yaml, flavour));
    }
}

fn reading(way: &Way<()>, ids: &[u32], needs: &Needs) -> Result<Taken, Unread> {
    take(way, &Scope::new(ids.iter().map(|id| vmid(*id)).collect()), needs, None)
}

fn whole(way: &Way<()>, ids: &[u32]) -> Taken {
    reading(way, ids, &Needs::Everything).unwrap_or_else(|unread| panic!("{unread}"))
}

/// A reading for guests that are declared stopped, or with config where that is asked for.
fn declared(way: &Way<()>, id: u32, config: bool) -> Taken {
    let need = Need { kind: Kind::Qemu, state: None, config, tags: false };
    reading(way, &[id], &Needs::Declared([(vmid(id), need)].into())).unwrap_or_else(|unread| panic!("{unread}"))
}

fn row(taken: &Taken, id: u32) -> &ObservedGuest {
    taken.observation.find(vmid(id)).unwrap_or_else(|| panic!("{id} is not listed"))
}

fn state(taken: &Taken, id: u32) -> String {
    match &row(taken, id).status {
        Status::Known(state) => state.word().to_owned(),
        Status::Unknown(cause) => cause.as_deref().unwrap_or("").to_owned(),
    }
}

fn reasons(taken: &Taken) -> Vec<Reason> {
    taken.notes.iter().map(|note| note.reason).collect()
}

fn refused(answer: Result<Event, Failure>) -> (Delivery, Cause) {
    let failure = answer.expect_err("a failure");
    (failure.delivery, failure.cause)
}

/// The end of the task of a change that was taken on.
fn task(way: &Way<()>, write: Write) -> TaskState {
    let answer = call(way, Command::Write(write));
    let Ok(Event::Accepted(converger_adapters::proxmox::codec::Accepted::Task(upid))) = answer else { panic!("no task: {answer:?}") };
    way.lab().pass(60_000);
    match ask(way, Read::TaskStatus(upid)) {
        Ok(Event::Task(state)) => state,
        other => panic!("{other:?}"),
    }
}

fn failed(state: &TaskState) -> Option<Cause> {
    match state {
        TaskState::Failed { cause, .. } => Some(*cause),
        _ => None,
    }
}

#[test]
fn a_release_is_known_by_its_first_number() {
    for flavour in [Flavour::V7, Flavour::V8, Flavour::V9] {
        let Ok(Event::Version(version)) = ask(&lab(LAB, flavour), Read::Version) else { panic!("no version") };
        assert_eq!(version.major, u32::from(flavour.major()));
    }
}

#[test]
fn the_text_of_an_error_arrives_whole_in_every_release() {
    in_every_release(LAB, |way| {
        let failure = ask(way, Read::GuestStatus(path("pve1", Kind::Qemu, 999))).expect_err("not there");
        assert_eq!(&*failure.text, "Configuration file 'nodes/pve1/qemu-server/999.conf' does not exist");
        assert_eq!((failure.delivery, failure.cause, failure.status), (Delivery::No, Cause::NoSuchGuest, Some(500)));
    });
}

#[test]
fn a_guest_that_was_made_just_now_is_known_by_its_own_node() {
    in_every_release(LAB, |way| {
        let now_ms = way.lab().now_ms;
        let new = GuestSetting { name: Some("new".to_owned()), ..GuestSetting::new(110, converger_lab::Kind::Qemu, "pve2") };
        way.lab().world.add_guest(now_ms, &new).unwrap_or_else(|error| panic!("{error}"));
        let taken = whole(way, &[110]);
        assert_eq!((state(&taken, 110).as_str(), row(&taken, 110).name.as_deref()), ("stopped", Some("new")));
        let listed = declared(way, 110, false);
        assert_ne!(state(&listed, 110), "running", "nothing is made up where only the list is read");
    });
}

#[test]
fn a_guest_that_nobody_named_goes_by_its_id() {
    let nameless = "  - { vmid: 104, kind: qemu, node: pve1 }\n  - { vmid: 105, kind: lxc, node: pve1, bare: true }\n";
    in_every_release(&format!("{LAB}{nameless}"), |way| {
        let taken = whole(way, &[104, 105]);
        assert_eq!((row(&taken, 104).name.as_deref(), row(&taken, 105).name.as_deref()), (Some("VM 104"), Some("CT105")));
    });
}

#[test]
fn what_was_not_delivered_and_what_may_have_run_are_told_apart() {
    in_every_release(LAB, |way| {
        let stop = || call(way, Command::Write(Write::Stop(path("pve2", Kind::Qemu, 102))));
        let read = || ask(way, Read::GuestStatus(path("pve2", Kind::Qemu, 102)));
        way.lab().act(Act::ServiceDown("pve2".to_owned(), Part::Daemon));
        assert_eq!(refused(stop()), (Delivery::NotDelivered, Cause::NodeUnreachable));
        way.lab().act(Act::ServiceUp("pve2".to_owned(), Part::Daemon));
        way.lab().act(Act::Slow("pve2".to_owned(), 40_000));
        assert_eq!(refused(stop()), (Delivery::MayHaveRun, Cause::Interrupted));
        assert_eq!(refused(read()), (Delivery::NotDelivered, Cause::Interrupted), "a reading leaves nothing behind");
        way.lab().act(Act::Slow("pve2".to_owned(), 0));
        way.lab().pass(60_000);
        assert_eq!(state(&whole(way, &[102]), 102), "stopped", "it did run");
    });
}

#[test]
fn without_the_cluster_file_system_nothing_was_delivered_and_there_is_no_reading() {
    in_every_release(LAB, |way| {
        way.lab().act(Act::ServiceDown("pve1".to_owned(), Part::Files));
        let start = call(way, Command::Write(Write::Start(path("pve1", Kind::Qemu, 100))));
        assert_eq!(refused(start), (Delivery::NotDelivered, Cause::ClusterDown));
        let unread = reading(way, &[100], &Needs::Everything).expect_err("no reading");
        assert_eq!(unread.code(), Code::ClusterDown, "{unread}");
    });
}

#[test]
fn a_token_that_is_not_accepted_and_one_that_may_not_audit_give_no_reading() {
    let wrong = |yaml: &str, cause: Cause| {
        in_every_release(yaml, |way| {
            let Err(Unread::Failed { failure, .. }) = reading(way, &[100], &Needs::Everything) else { panic!("no reading") };
            assert_eq!(failure.cause, cause);
        });
    };
    wrong(&LAB.replace("full: true", "full: true, expire_s: 1"), Cause::Unauthenticated);
    wrong(&LAB.replace("full: true", "full: false"), Cause::Forbidden);
}

/// A token that may audit the cluster and sees some guests.
fn limited(paths: &str) -> String {
    let audit = "{ path: /, role: PVEAuditor, token: 'root@pam!lab', here_only: true }";
    format!("{}acl: [{audit}, {paths}]\n", LAB.replace("full: true", "full: false"))
}

#[test]
fn a_guest_that_may_not_be_seen_is_hidden_and_not_missing() {
    let yaml = limited("{ path: /vms/100, role: PVEAuditor, token: 'root@pam!lab' }");
    in_every_release(&yaml, |way| {
        let taken = whole(way, &[100, 102]);
        assert_eq!((state(&taken, 100).as_str(), taken.observation.complete), ("stopped", false));
        assert_eq!(reasons(&taken), [Reason::Hidden]);
        let taken = whole(way, &[100, 999]);
        assert_eq!((taken.observation.complete, reasons(&taken)), (false, vec![Reason::NotPermitted]), "it would not be seen");
    });
}

#[test]
fn a_permission_that_is_taken_away_while_it_is_read_is_a_cause() {
    let yaml = limited("{ path: /vms/100, role: PVEAuditor, token: 'root@pam!lab' }");
    in_every_release(&yaml, |way| {
        let guest = path("pve1", Kind::Qemu, 100);
        assert!(ask(way, Read::GuestPending(guest.clone())).is_ok());
        way.lab().act(Act::Revoke("/vms/100".to_owned()));
        assert_eq!(refused(ask(way, Read::GuestPending(guest))), (Delivery::No, Cause::Forbidden));
    });
}

#[test]
fn a_guest_that_nobody_has_is_missing() {
    in_every_release(LAB, |way| {
        let taken = whole(way, &[100, 999]);
        assert!(taken.observation.complete && taken.observation.find(vmid(999)).is_none(), "{:?}", taken.notes);
    });
}

#[test]
fn a_list_that_lacks_a_guest_or_is_empty_makes_nothing_missing() {
    in_every_release(LAB, |way| {
        way.lab().act(Act::Unlist(100));
        let taken = whole(way, &[100, 101]);
        assert_eq!((taken.observation.complete, reasons(&taken)), (false, vec![Reason::ListShrunken]));
        way.lab().act(Act::Blind("pve1".to_owned()));
        let taken = whole(way, &[100, 101]);
        assert!(!taken.observation.complete && taken.observation.guests.is_empty());
        assert_eq!(reasons(&taken), [Reason::ListEmpty, Reason::ListShrunken, Reason::ListShrunken]);
    });
}

#[test]
fn a_node_that_is_down_proves_no_absence() {
    in_every_release(LAB, |way| {
        way.lab().act(Act::NodeDown("pve3".to_owned()));
        let taken = whole(way, &[100, 999]);
        assert_eq!((taken.observation.complete, reasons(&taken)), (false, vec![Reason::NotProven]));
    });
}

#[test]
fn the_smaller_part_of_a_cluster_has_no_quorum_and_shows_what_it_last_knew() {
    in_every_release(LAB, |way| {
        way.lab().act(Act::Isolate(vec!["pve1".to_owned()]));
        let taken = whole(way, &[100, 102, 999]);
        assert!(!taken.observation.quorate && !taken.observation.complete);
        assert_eq!((state(&taken, 100).as_str(), state(&taken, 102).as_str()), ("stopped", "node-offline"));
        let start = call(way, Command::Write(Write::Start(path("pve1", Kind::Qemu, 100))));
        assert_eq!(refused(start), (Delivery::No, Cause::NoQuorum));
        let name = SnapshotName::new("s1").unwrap_or_else(|| panic!("a name"));
        let snapshot = Write::SnapshotCreate { guest: path("pve1", Kind::Qemu, 100), name, description: "".into() };
        assert_eq!(failed(&task(way, snapshot)), Some(Cause::NoQuorum), "files that cannot be written say so in the kernel's words");
    });
}

#[test]
fn a_node_in_no_cluster_is_quorate_and_goes_by_its_own_name() {
    in_every_release(ALONE, |way| {
        let scope = Scope::new(vec![vmid(100)]);
        let taken = take(way, &scope, &Needs::Everything, Some("pve1")).unwrap_or_else(|unread| panic!("{unread}"));
        assert!(taken.observation.quorate && taken.observation.complete);
        assert!(matches!(take(way, &scope, &Needs::Everything, Some("lab")), Err(Unread::OtherCluster { .. })));
    });
}

#[test]
fn the_list_is_old_and_the_guests_own_node_is_not() {
    in_every_release(LAB, |way| {
        way.lab().act(Act::Stop(102));
        let listed = declared(way, 102, false);
        assert_eq!((state(&listed, 102).as_str(), row(&listed, 102).source.as_deref()), ("stopped", Some("node-list")));
        let live = whole(way, &[102]);
        assert_eq!((state(&live, 102).as_str(), row(&live, 102).source.as_deref()), ("stopped", Some("live")));
        way.lab().pass(10_000);
        assert_eq!(state(&declared(way, 102, false), 102), "stopped");
    });
}

#[test]
fn without_pvestatd_run_states_and_pauses_are_those_of_the_node_and_people_are_told() {
    for stop in [Act::ServiceDown, Act::ServiceHung] {
        in_every_release(LAB, |way| {
            way.lab().act(stop("pve2".to_owned(), Part::Statd));
            // Within the life of the last report, and after it.
            for _ in 0..4 {
                way.lab().act(Act::Say(102, "paused".to_owned()));
                way.lab().pass(90_000);
                let paused = declared(way, 102, false);
                assert_eq!(
                    (state(&paused, 102).as_str(), reasons(&paused)),
                    ("run-state-unclear", vec![Reason::ReportLate, Reason::RunStateUnclear])
                );
                way.lab().act(Act::Say(102, "running".to_owned()));
                assert_eq!(state(&declared(way, 102, false), 102), "running");
            }
            way.lab().act(Act::Stop(102));
            assert_eq!(state(&declared(way, 102, false), 102), "stopped");
            way.lab().act(Act::Start(102));
            assert_eq!(state(&declared(way, 102, false), 102), "running");
            way.lab().act(Act::ServiceUp("pve2".to_owned(), Part::Statd));
            assert!(reasons(&declared(way, 102, false)).is_empty());
        });
    }
}

#[test]
fn guests_of_a_node_that_is_down_are_unknown_whatever_the_list_remembers() {
    in_every_release(LAB, |way| {
        way.lab().act(Act::NodeDown("pve2".to_owned()));
        assert_eq!(state(&declared(way, 102, false), 102), "node-offline");
        way.lab().pass(400_000);
        assert_eq!(state(&declared(way, 102, false), 102), "node-offline");
        way.lab().act(Act::NodeUp("pve2".to_owned()));
        assert_eq!(state(&declared(way, 102, true), 102), "stopped", "its own node knows");
    });
}

#[test]
fn a_guest_that_is_paused_or_in_trouble_is_neither_running_nor_stopped_for_a_plan() {
    for (word, cause) in [("paused", "run-state-unclear"), ("io-error", "run-state-unclear"), ("prelaunch", "run-state-unclear")] {
        in_every_release(LAB, |way| {
            way.lab().act(Act::Say(102, word.to_owned()));
            let scope = Scope::new(vec![vmid(102)]);
            let scoped = whole(way, &[102]).observation.within(&scope);
            let row = scoped.find(vmid(102)).unwrap_or_else(|| panic!("listed"));
            assert_eq!((&row.status, row.run_state.as_deref()), (&Status::Unknown(Some(cause.into())), Some(word)));
        });
    }
}

#[test]
fn a_guest_that_was_replaced_is_not_taken_for_the_one_that_the_list_remembers() {
    in_every_release(LAB, |way| {
        way.lab().act(Act::Recycle(100));
        assert_eq!(state(&whole(way, &[100]), 100), "renamed-while-read");
        way.lab().pass(20_000);
        assert_eq!(row(&whole(way, &[100]), 100).name.as_deref(), Some("other-100"));
    });
}

#[test]
fn a_guest_made_anew_under_its_name_is_known_by_its_marks_alone() {
    in_every_release(LAB, |way| {
        let before = row(&whole(way, &[100]), 100).identity.clone();
        way.lab().act(Act::Replace(100));
        way.lab().pass(20_000);
        let taken = whole(way, &[100]);
        let after = row(&taken, 100);
        assert!(before.is_read() && after.identity.is_read() && before != after.identity);
        assert_eq!((after.status.clone(), after.name.as_deref()), (Status::Known(RunState::Stopped), Some("web")));
    });
}

#[test]
fn what_the_manager_has_not_looked_at_has_no_word_yet() {
    in_every_release(LAB, |way| {
        assert_eq!(row(&whole(way, &[102]), 102).ha, Reading::Read(None));
        let request = converger_lab::Request::new("POST", "/api2/json/cluster/ha/resources").token("root@pam!lab=lab").form("sid=vm%3A102");
        let now_ms = way.lab().now_ms;
        assert_eq!(way.lab().world.answer(now_ms, &request).status, 200);
        assert_eq!(row(&whole(way, &[102]), 102).ha, Reading::Read(Some(Ha { state: None })));
        assert_eq!(row(&declared(way, 102, false), 102).ha, Reading::Read(Some(Ha { state: Some("started".into()) })));
    });
}

#[test]
fn a_change_of_a_managed_guest_is_queued_and_kept_later() {
    let yaml = format!("{LAB}ha: {{ 'vm:102': {{}} }}\n");
    in_every_release(&yaml, |way| {
        let stop = Write::Stop(path("pve2", Kind::Qemu, 102));
        let pledge = Pledge::of(way, &stop);
        let answer = call(way, Command::Write(stop.clone()));
        let Ok(Event::Accepted(converger_adapters::proxmox::codec::Accepted::Task(upid))) = answer else { panic!("{answer:?}") };
        assert_eq!(upid.worker(), "hastop");
        way.lab().pass(200);
        assert_eq!(ask(way, Read::TaskStatus(upid)), Ok(Event::Task(TaskState::Ended { warnings: 0 })));
        assert!(matches!(pledge.kept(way, &stop), Kept::No(_)), "the task only passed the request on");
        way.lab().pass(60_000);
        assert!(matches!(pledge.kept(way, &stop), Kept::Yes(_)));
    });
}

#[test]
fn a_config_means_the_same_whatever_its_values_are_written_as() {
    in_every_release(LAB, |way| {
        for (key, text) in
            [("cpulimit", "1.5"), ("onboot", "1"), ("agent", "1"), ("startup", "3"), ("tags", "b;a"), ("boot", "order=scsi0")]
        {
            way.lab().act(Act::Set(100, key.to_owned(), text.to_owned()));
        }
        let taken = whole(way, &[100]);
        let Reading::Read(config) = &row(&taken, 100).config else { panic!("{:?}", taken.notes) };
        assert_eq!(config.get(Field::Memory), Some(&Value::Mib(1024)), "a number in 7, text since");
        assert_eq!((config.get(Field::Cpulimit), config.get(Field::Onboot)), (Some(&Value::Thousandths(1500)), Some(&Value::Flag(true))));
        assert_eq!((config.get(Field::Agent), config.get(Field::Cores)), (Some(&Value::Flag(true)), Some(&Value::Count(2))));
        assert!(config.get(Field::Startup).is_some() && config.get(Field::Boot).is_some());
    });
}

#[test]
fn what_waits_is_read_with_what_is_in_effect() {
    in_every_release(LAB, |way| {
        way.lab().act(Act::SetPending(102, "cores".to_owned(), "8".to_owned()));
        way.lab().act(Act::SetPending(102, "net0".to_owned(), "virtio,bridge=vmbr0".to_owned()));
        let taken = whole(way, &[102]);
        let row = row(&taken, 102);
        let waits: Box<[Pending]> = [Pending::Known(Field::Cores, Some(Value::Count(8))), Pending::Other("net0".into())].into();
        assert_eq!(row.pending, Reading::Read(waits));
        assert_eq!(row.config.as_ref().read().and_then(|config| config.get(Field::Cores)), None, "it has no effect yet");
        assert_eq!(row.digest.as_deref(), way.lab().world.truth(102).map(|truth| truth.digest).as_deref());
    });
}

#[test]
fn a_container_goes_by_its_hostname_and_by_its_disk_and_card() {
    in_every_release(LAB, |way| {
        let taken = whole(way, &[101]);
        let row = row(&taken, 101);
        assert_eq!((row.kind, row.name.as_deref()), (Kind::Lxc, Some("dns")));
        let marks = row.identity.as_ref().read().map(|identity| identity.marks()).unwrap_or_else(|| panic!("no marks"));
        assert_eq!(marks[1], ("rootfs", Some("tank:vm-101-disk-0".to_owned())));
    });
}

#[test]
fn every_no_has_its_cause_and_changes_nothing() {
    in_every_release(LAB, |way| {
        let qemu = || path("pve1", Kind::Qemu, 100);
        let lxc = || path("pve1", Kind::Lxc, 101);
        let no = |write: Write| refused(call(way, Command::Write(write)));
        let shutdown = |guest| Write::Shutdown { guest, timeout_secs: 5 };
        assert_eq!(no(Write::Start(path("pve2", Kind::Lxc, 103))), (Delivery::No, Cause::AlreadyRunning));
        assert_eq!(no(Write::Stop(lxc())), (Delivery::No, Cause::NotRunning));
        assert_eq!(no(shutdown(lxc())), (Delivery::No, Cause::NotRunning));
        assert_eq!(no(Write::Delete(path("pve2", Kind::Qemu, 102))), (Delivery::No, Cause::Running));
        assert_eq!(no(Write::Delete(path("pve1", Kind::Qemu, 999))), (Delivery::No, Cause::NoSuchGuest));
        assert_eq!(no(Write::Start(path("pve9", Kind::Qemu, 100))), (Delivery::No, Cause::NodeUnknown));
        way.lab().act(Act::Set(100, "protection".to_owned(), "1".to_owned()));
        assert_eq!(no(Write::Delete(qemu())), (Delivery::No, Cause::Protected));
        way.lab().act(Act::Say(102, "paused".to_owned()));
        assert_eq!(no(shutdown(path("pve2", Kind::Qemu, 102))), (Delivery::No, Cause::Paused));
        way.lab().act(Act::Lock(101, "backup".to_owned()));
        assert_eq!(no(Write::Delete(lxc())), (Delivery::No, Cause::Locked));
        let truth = way.lab().world.truth(100).unwrap_or_else(|| panic!("it is there"));
        assert_eq!((truth.process, truth.snapshots.len()), (None, 0));
        let tasks = (100..104).map(|id| way.lab().world.tasks_about(id).count()).sum::<usize>();
        assert_eq!(tasks, 0, "each of them was said before a task was begun");
    });
}

/// The list of tasks is written after the worker was let go: that it is locked says nothing about the worker.
#[test]
fn a_locked_list_of_tasks_is_no_reason_to_think_that_nothing_runs() {
    in_every_release(LAB, |way| {
        let reason = "can't lock file '/var/log/pve/tasks/.active.lock' - got timeout";
        let twist = Some(Twist::After { status: 500, reason: reason.to_owned() });
        way.lab().world.add_request_fault(RequestFault { method: Some("POST".to_owned()), twist, ..RequestFault::default() });
        let (delivery, _) = refused(call(way, Command::Write(Write::Start(path("pve1", Kind::Qemu, 100)))));
        assert_eq!((delivery, way.lab().world.tasks_about(100).count()), (Delivery::MayHaveRun, 1));
    });
}

/// Somebody in between may have passed a change on before he answered in Proxmox's place; he is known by a body without `data`.
#[test]
fn an_error_without_data_is_of_somebody_in_between() {
    in_every_release(LAB, |way| {
        let page = |body: &str| Some(Twist::Instead { status: 500, reason: "no".to_owned(), body: body.to_owned(), html: false });
        let start = || refused(call(way, Command::Write(Write::Start(path("pve2", Kind::Lxc, 103))))).0;
        assert_eq!(start(), Delivery::No, "it runs already, says Proxmox");
        way.lab().world.add_request_fault(RequestFault { twist: page(r#"{"error":"bad gateway"}"#), ..RequestFault::default() });
        assert_eq!(start(), Delivery::MayHaveRun);
    });
}

#[test]
fn a_container_that_fails_after_it_was_written_may_have_been_written() {
    in_every_release(LAB, |way| {
        way.lab().act(Act::Set(101, "net0".to_owned(), "name=eth0,bridge=vmbr9,hwaddr=BC:24:11:00:00:01,type=veth".to_owned()));
        let guest = path("pve1", Kind::Lxc, 101);
        let Ok(Event::Config(config)) = ask(way, Read::GuestPending(guest.clone())) else { panic!("no config") };
        let after = Some(Value::Mib(1024));
        let change = FieldChange { field: Field::Memory, before: None, after, pending: None, effect: Effect::Live };
        let basis = Basis::of(&config).unwrap_or_else(|| panic!("no digest"));
        let write = Write::ConfigSet(ConfigSet::new(guest, &[change], &basis).unwrap_or_else(|fault| panic!("{fault:?}")));
        let pledge = Pledge::of(way, &write);
        assert_eq!(refused(call(way, Command::Write(write.clone()))), (Delivery::MayHaveRun, Cause::Other));
        assert!(matches!(pledge.kept(way, &write), Kept::Yes(_)));
    });
}

#[test]
fn a_tag_that_users_may_not_set_is_refused_for_what_it_is() {
    in_every_release(LAB, |way| {
        assert!(matches!(ask(way, Read::TagOptions), Ok(Event::TagOptions(options)) if options.tag_case == TagCase::Lowered));
        let deny = "Permission check failed (/, Sys.Modify for modifying tag 'web')";
        let twist = Some(Twist::Instead { status: 403, reason: deny.to_owned(), body: r#"{"data":null}"#.to_owned(), html: false });
        way.lab().world.add_request_fault(RequestFault { method: Some("POST".to_owned()), twist, ..RequestFault::default() });
        let start = Command::Write(Write::Start(path("pve1", Kind::Qemu, 100)));
        assert_eq!(refused(call(way, start)), (Delivery::No, Cause::TagForbidden));
    });
}

#[test]
fn a_task_that_was_taken_on_says_why_it_failed() {
    in_every_release(LAB, |way| {
        assert_eq!(failed(&task(way, Write::Start(path("pve2", Kind::Qemu, 102)))), Some(Cause::AlreadyRunning));
        assert_eq!(failed(&task(way, Write::Start(path("pve1", Kind::Qemu, 999)))), Some(Cause::NoSuchGuest));
        assert_eq!(task(way, Write::Stop(path("pve1", Kind::Qemu, 100))), TaskState::Ended { warnings: 0 }, "it was stopped already");
        way.lab().act(Act::Set(100, "template".to_owned(), "1".to_owned()));
        assert_eq!(failed(&task(way, Write::Start(path("pve1", Kind::Qemu, 100)))), Some(Cause::Template));
        way.lab().act(Act::Lock(102, "backup".to_owned()));
        assert_eq!(failed(&task(way, Write::Stop(path("pve2", Kind::Qemu, 102)))), Some(Cause::Locked));
    });
}

#[test]
fn a_snapshot_that_is_half_made_is_none() {
    in_every_release(LAB, |way| {
        let name = SnapshotName::new("half").unwrap_or_else(|| panic!("a name"));
        let create = Write::SnapshotCreate { guest: path("pve1", Kind::Qemu, 100), name, description: "".into() };
        let pledge = Pledge::of(way, &create);
        way.lab().act(Act::PrepareSnapshot(100, "half".to_owned()));
        let kept = pledge.kept(way, &create);
        assert!(matches!(&kept, Kept::No(seen) if seen.get("snapshot_state") == Some(&"prepare".into())), "{kept:?}");
    });
}

#[test]
fn a_task_that_nobody_remembers_has_a_cause_of_its_own() {
    in_every_release(LAB, |way| {
        let upid = "UPID:pve1:00000001:00000001:6AFA0639:qmstart:100:root@pam!lab:";
        let upid = converger_adapters::proxmox::codec::Upid::new(upid).unwrap_or_else(|| panic!("an id"));
        assert_eq!(refused(ask(way, Read::TaskStatus(upid))), (Delivery::No, Cause::NoSuchTask));
    });
}

#[test]
fn a_token_that_may_not_audit_finds_its_own_tasks_and_no_others() {
    let acl = "acl: [{ path: /vms, role: PVEVMUser, token: 'root@pam!lab' }]\n";
    let tokens = "tokens: { root@pam!lab: { secret: lab }, root@pam!other: { secret: other, full: true } }";
    let limited = LAB.replace("tokens: { root@pam!lab: { secret: lab, full: true } }", tokens) + acl;
    in_every_release(&limited, |way| {
        let tasks = |id| match ask(way, Read::Tasks { node: node("pve1"), vmid: vmid(id) }) {
            Ok(Event::Tasks(tasks)) => tasks.len(),
            other => panic!("no list: {other:?}"),
        };
        let start = call(way, Command::Write(Write::Start(path("pve1", Kind::Qemu, 100))));
        assert!(start.is_ok(), "{start:?}");
        let others = converger_lab::Request::new("POST", "/api2/json/nodes/pve1/lxc/101/status/start").token("root@pam!other=other");
        let now_ms = way.lab().now_ms;
        assert_eq!(way.lab().world.answer_at(now_ms, "pve1", &others).status, 200);
        assert_eq!((tasks(100), tasks(101)), (1, 0));
    });
}

#[test]
fn whether_a_task_runs_is_told_by_the_task_and_not_by_a_list() {
    in_every_release(LAB, |way| {
        let start = call(way, Command::Write(Write::Start(path("pve1", Kind::Qemu, 100))));
        let Ok(Event::Accepted(converger_adapters::proxmox::codec::Accepted::Task(upid))) = start else { panic!("{start:?}") };
        assert_eq!(ask(way, Read::TaskStatus(upid.clone())), Ok(Event::Task(TaskState::Running)));
        way.lab().pass(5_000);
        assert_eq!(ask(way, Read::TaskStatus(upid.clone())), Ok(Event::Task(TaskState::Ended { warnings: 0 })));
        let list = Read::Tasks { node: upid.node().clone(), vmid: vmid(100) };
        let Ok(Event::Tasks(tasks)) = ask(way, list) else { panic!("no list") };
        assert_eq!(tasks.iter().map(|task| &task.upid).collect::<Vec<_>>(), [&upid]);
        assert_eq!((upid.worker(), RunState::Running.word()), ("qmstart", state(&whole(way, &[100]), 100).as_str()));
    });
}

#[test]
fn the_identity_of_a_cluster_is_the_same_at_every_node_and_for_every_token() {
    in_every_release(LAB, |way| {
        let identity = |name: &str| match ask(way, Read::Certificates(node(name))) {
            Ok(Event::Identity(identity)) => identity,
            other => panic!("{other:?}"),
        };
        assert_eq!([identity("pve1"), identity("pve2"), identity("pve3")], [identity("pve1"), identity("pve1"), identity("pve1")]);
        let (own, alone) = (identity("pve1"), lab(ALONE, way.lab().world.flavour()));
        assert!(matches!(ask(&alone, Read::Certificates(node("pve1"))), Ok(Event::Identity(other)) if other != own), "another cluster");
    });
}
