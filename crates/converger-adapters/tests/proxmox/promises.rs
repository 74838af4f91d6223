//! Every change has a promise that is checked by reading; the response to the change itself never keeps it.

use converger_adapters::proxmox::actuator::{CallerIdentity, ProxmoxActuator};
use converger_adapters::proxmox::client::{ProxmoxSession, TokenId};
use converger_adapters::proxmox::codec::{DiskKey, DiskSize, HttpResponse, SnapshotName, StorageName};
use converger_core::action::{
    Change, CloneSource, ClonedDisks, DiskGrowth, ExistingSnapshot, FieldChange, GuestClone, Migration, MigrationMode, NewSnapshot,
    SnapshotRollback,
};
use converger_core::apply::promise::{PromiseCheck, TaskEnd};
use converger_core::apply::{ConfigRevision, Fact, GuestAddress};
use converger_core::guest::{GuestIdentity, GuestKind, GuestName, NodeName, RunState, Vmid};
use converger_core::normalize::{ChangeEffect, Field, FieldValue, WordSet};

use crate::requests::field_change;
use crate::scripted_proxmox::{ScriptedProxmox, failure_response, raw_response, success_response};
use crate::sent_change::SentChange;

fn node_name(name: &str) -> NodeName {
    NodeName::new(name).expect("a name")
}

fn vmid(number: u64) -> Vmid {
    Vmid::new(number).expect("an id")
}

fn test_address(kind: GuestKind) -> GuestAddress {
    GuestAddress { node: node_name("n1"), kind, vmid: vmid(100) }
}

fn test_actuator(proxmox: ScriptedProxmox) -> ProxmoxActuator<ScriptedProxmox> {
    ProxmoxActuator::new(
        ProxmoxSession::new(proxmox),
        CallerIdentity { token: TokenId::new("svc@pve!probe").expect("an id"), cluster: None },
    )
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().expect("a runtime").block_on(future)
}

const PATHS: [&str; 4] = ["status/current", "pending", "snapshot", "cluster/resources?type=vm"];

/// What the reads of a promise return. A read that is not set is not expected, and says so.
#[derive(Clone)]
struct Readings([HttpResponse; 4]);

impl Readings {
    fn new() -> Self {
        Self(std::array::from_fn(|_| raw_response(595, "not expected")))
    }

    fn status(self, response: HttpResponse) -> Self {
        self.replace(0, response)
    }

    fn config(self, response: HttpResponse) -> Self {
        self.replace(1, response)
    }

    fn snapshots(self, response: HttpResponse) -> Self {
        self.replace(2, response)
    }

    fn list(self, response: HttpResponse) -> Self {
        self.replace(3, response)
    }

    fn replace(mut self, index: usize, response: HttpResponse) -> Self {
        self.0[index] = response;
        self
    }
}

/// A Proxmox whose reads return `before` once and `after` from then on.
fn scripted_proxmox(before: &Readings, after: &Readings) -> ScriptedProxmox {
    let script = PATHS.iter().zip(before.0.iter().zip(&after.0));
    script.fold(ScriptedProxmox::default(), |proxmox, (path, (before, after))| {
        proxmox.with_override(path, vec![before.clone(), after.clone()])
    })
}

/// Checks the promise of a change ten seconds after the reads before it.
fn judge_with_task(kind: GuestKind, change: Change, before: &Readings, after: &Readings, task: Option<TaskEnd>) -> PromiseCheck {
    let actuator = test_actuator(scripted_proxmox(before, after));
    let sent = block_on(SentChange::prepare(&actuator, &test_address(kind), change));
    block_on(sent.check_now(&actuator, 10, task))
}

fn judge_from(change: Change, before: &Readings, after: &Readings) -> PromiseCheck {
    judge_with_task(GuestKind::Qemu, change, before, after, None)
}

/// Checks the promise of a change that needs no reading from before.
fn judge(change: Change, after: &Readings) -> PromiseCheck {
    judge_from(change, after, after)
}

/// The paths that are read to check a promise.
fn requested_paths(kind: GuestKind, change: Change, after: &Readings) -> Vec<String> {
    let proxmox = scripted_proxmox(after, after);
    block_on(SentChange::prepare(&test_actuator(proxmox.clone()), &test_address(kind), change));
    proxmox.requests()
}

fn status_response(status: &str) -> HttpResponse {
    success_response(&format!(r#"{{"status":"{status}","qmpstatus":"{status}","ha":{{"managed":0}}}}"#))
}

fn status_reading(status: &str) -> Readings {
    Readings::new().status(status_response(status))
}

fn gone_response() -> HttpResponse {
    failure_response("500", "Configuration file 'nodes/n1/qemu-server/100.conf' does not exist")
}

fn empty_list() -> HttpResponse {
    success_response("[]")
}

/// A config of these items, with a digest.
fn config_response(items: &str) -> HttpResponse {
    success_response(&format!(r#"[{{"key":"digest","value":"0fe9"}}{items}]"#))
}

fn is_kept(check: &PromiseCheck) -> bool {
    matches!(check, PromiseCheck::Kept(_))
}

fn is_not_kept(check: &PromiseCheck) -> bool {
    matches!(check, PromiseCheck::NotKept(_))
}

fn is_unclear(check: &PromiseCheck) -> bool {
    matches!(check, PromiseCheck::Unclear(_))
}

#[test]
fn power_promise_is_judged_by_run_state() {
    let up = vec![Change::Start];
    let down = vec![Change::Stop, Change::Shutdown { timeout_secs: 5 }];
    for (changes, wanted, other) in [(up, "running", "stopped"), (down, "stopped", "running")] {
        for change in changes {
            let judge = |status: HttpResponse| judge(change.clone(), &Readings::new().status(status).list(empty_list()));
            assert!(is_kept(&judge(status_response(wanted))));
            assert!(is_not_kept(&judge(status_response(other))));
            assert!(is_unclear(&judge(raw_response(595, "No route to host"))));
            assert!(is_unclear(&judge(gone_response())), "a missing guest is neither running nor stopped");
        }
    }
}

#[test]
fn config_promise_is_kept_in_effect_or_pending() {
    let at_restart = |field, after| FieldChange { effect: ChangeEffect::AtRestart, ..field_change(field, after) };
    let changes = [
        at_restart(Field::Balloon, None),
        at_restart(Field::Cores, Some(FieldValue::Count(4))),
        field_change(Field::Tags, Some(FieldValue::Tags(WordSet::new(vec!["a".into()])))),
    ];
    let judge_config = |config: HttpResponse| judge(Change::ConfigSet(Box::new(changes.clone())), &Readings::new().config(config));
    let items = |cores: &str, rest: &str| config_response(&format!(r#",{{"key":"cores",{cores}}},{{"key":"tags","value":"a"}}{rest}"#));
    let has_pending = |check: &PromiseCheck, fields: &[&str]| {
        let expected = Fact::Words(fields.iter().map(|field| (*field).into()).collect());
        is_kept(check) && check.evidence().get("pending_restart") == Some(&expected)
    };
    let now = judge_config(items(r#""value":4"#, ""));
    assert!(is_kept(&now) && now.evidence().get("pending_restart").is_none(), "{now:?}");
    assert!(has_pending(&judge_config(items(r#""value":2,"pending":4"#, "")), &["cores"]));
    let both = r#",{"key":"balloon","value":64,"delete":1}"#;
    assert!(has_pending(&judge_config(items(r#""value":2,"pending":4"#, both)), &["balloon", "cores"]));
    for (cores, rest) in [
        (r#""value":2"#, ""),
        (r#""value":4,"pending":2"#, ""),
        (r#""value":4,"pending":"many""#, ""),
        (r#""value":4"#, r#",{"key":"balloon","value":64}"#),
    ] {
        assert!(is_not_kept(&judge_config(items(cores, rest))), "{cores} {rest}");
    }
    assert!(is_unclear(&judge_config(items(r#""value":"x""#, ""))), "the value is not understood");
    assert!(
        is_unclear(&judge_config(success_response(r#"[{"key":"cores","value":4},{"key":"tags","value":"a"}]"#))),
        "truncated: it has no digest"
    );
}

fn snapshot_name() -> SnapshotName {
    SnapshotName::new("s1").expect("a name")
}

/// The snapshot `s1`, made at second 5.
fn existing_snapshot(ram: bool) -> ExistingSnapshot {
    ExistingSnapshot { made_at: 5, name: snapshot_name(), ram }
}

/// A guest that continues from `parent`, with these snapshots.
fn snapshot_reading(rows: &str, parent: &str) -> Readings {
    let list = success_response(&format!(r#"[{rows}{{"name":"current"{parent}}}]"#));
    status_reading("stopped").config(config_response("")).snapshots(list)
}

#[test]
fn snapshot_promise_is_judged_by_the_list() {
    let judge_new = |ram: bool, rows: &str| {
        let new = NewSnapshot { description: None, name: snapshot_name(), ram };
        judge(Change::SnapshotCreate(Box::new(new)), &snapshot_reading(rows, ""))
    };
    assert!(is_not_kept(&judge_new(false, "")));
    assert!(is_kept(&judge_new(false, r#"{"name":"s1","snaptime":9},"#)));
    assert!(is_not_kept(&judge_new(false, r#"{"name":"s1","snaptime":9,"snapstate":"prepare"},"#)), "it is not finished");
    assert!(is_not_kept(&judge_new(false, r#"{"name":"S1","snaptime":9},"#)), "another name");
    assert!(is_kept(&judge_new(true, r#"{"name":"s1","snaptime":9,"vmstate":1},"#)));
    assert!(is_not_kept(&judge_new(true, r#"{"name":"s1","snaptime":9,"vmstate":0},"#)), "it has no memory");
    assert!(is_not_kept(&judge_new(false, r#"{"name":"s1","snaptime":9,"vmstate":1},"#)), "it has memory that was not requested");
    let judge_deleted =
        |rows: &str| judge(Change::SnapshotDelete(Box::new(existing_snapshot(false))), &snapshot_reading(rows, r#","parent":"s1""#));
    assert!(is_kept(&judge_deleted("")));
    assert!(is_not_kept(&judge_deleted(r#"{"name":"s1","snaptime":5},"#)));
    assert!(is_not_kept(&judge_deleted(r#"{"name":"s1","snaptime":5,"snapstate":"delete"},"#)));
    assert!(is_kept(&judge_deleted(r#"{"name":"s1","snaptime":9},"#)), "another snapshot has the same name");
    assert!(is_not_kept(&judge_deleted(r#"{"name":"s1","snaptime":9,"snapstate":"prepare"},"#)), "an unfinished one proves nothing");
    let unread = snapshot_reading("", "").snapshots(raw_response(596, ""));
    assert!(is_unclear(&judge(Change::SnapshotDelete(Box::new(existing_snapshot(false))), &unread)), "a list that was not read");
    let damaged = snapshot_reading("", "").snapshots(success_response("[]"));
    assert!(is_unclear(&judge(Change::SnapshotDelete(Box::new(existing_snapshot(false))), &damaged)), "a list without the guest itself");
}

/// The guest, its config and its snapshots are three reads; the config in between shows whose the snapshots are.
#[test]
fn snapshots_are_read_after_the_config() {
    let paths = requested_paths(GuestKind::Lxc, Change::SnapshotDelete(Box::new(existing_snapshot(false))), &snapshot_reading("", ""));
    assert_eq!(paths, ["GET /api2/extjs/nodes/n1/lxc/100/pending", "GET /api2/extjs/nodes/n1/lxc/100/snapshot"]);
}

/// The promise of a rollback to `s1` of a guest that continued from `parent` before.
fn rollback_to(parent: Option<&str>, ram: bool) -> Change {
    let state = if ram { RunState::Running } else { RunState::Stopped };
    let (parent, snapshot) = (parent.map(Into::into), existing_snapshot(ram));
    Change::SnapshotRollback(Box::new(SnapshotRollback { parent, snapshot, state, volumes: Box::default() }))
}

#[test]
fn rollback_promise_is_judged_by_the_parent_and_the_run_state() {
    let rows = r#"{"name":"s1","snaptime":5},{"name":"s2","snaptime":6},"#;
    let at = |name: &str| snapshot_reading(rows, &format!(r#","parent":"{name}""#));
    let task = |is_failed| Some(TaskEnd { is_failed, age_secs: None, is_moved: false });
    let judge_back = |parent, after: &Readings, task| judge_with_task(GuestKind::Qemu, rollback_to(parent, false), after, after, task);
    for parent in [None, Some("s2")] {
        assert!(is_kept(&judge_back(parent, &at("s1"), None)));
        assert!(is_not_kept(&judge_back(parent, &at("s2"), None)));
        assert!(is_not_kept(&judge_back(parent, &snapshot_reading(rows, ""), None)), "it continues from no snapshot");
        assert!(is_not_kept(&judge_back(parent, &at("s1").status(status_response("running")), None)), "it does not run afterwards");
    }
    assert!(is_unclear(&judge_back(Some("s1"), &at("s1"), None)), "it looks the same whether or not it was rolled back");
    assert!(is_unclear(&judge_back(Some("s1"), &at("s1"), task(true))));
    assert!(is_kept(&judge_back(Some("s1"), &at("s1"), task(false))), "its own task shows it");
    let judge_ram = |after: &Readings| judge_with_task(GuestKind::Qemu, rollback_to(Some("s2"), true), after, after, None);
    assert!(is_kept(&judge_ram(&at("s1").status(status_response("running")))));
    assert!(is_not_kept(&judge_ram(&at("s1"))), "its memory was saved, so it runs again");
}

/// A clone of guest 100 with the id 200 on another node.
fn clone_change(disks: ClonedDisks) -> Change {
    let identity = GuestIdentity::Qemu { uuid: Some("11111111-1111-4111-8111-111111111111".into()), ctime: Some(5) };
    let source = CloneSource {
        digest: "0fe8".into(),
        identity,
        kind: GuestKind::Qemu,
        name: "web".into(),
        node: node_name("n1"),
        template: disks == ClonedDisks::Linked,
        vmid: vmid(100),
    };
    let name = GuestName::new("copy").expect("a name");
    Change::Clone(Box::new(GuestClone {
        disks,
        grows: false,
        name,
        node: node_name("n2"),
        pool: None,
        provisions: false,
        source,
        storage: None,
        vmid: vmid(200),
    }))
}

#[test]
fn clone_promise_is_kept_once_unlocked() {
    let items = |rest: &str| {
        let own = "22222222-2222-4222-8222-222222222222";
        config_response(&format!(
            r#",{{"key":"name","value":"copy"}},{{"key":"smbios1","value":"uuid={own}"}},{{"key":"meta","value":"ctime=5"}}{rest}"#
        ))
    };
    for disks in [ClonedDisks::Linked, ClonedDisks::Full] {
        let judge_copy = |config: HttpResponse| judge(clone_change(disks), &Readings::new().config(config));
        let kept = judge_copy(items(""));
        assert!(is_kept(&kept) && kept.evidence().get("uuid").is_some(), "later steps rely on its marks: {kept:?}");
        assert!(is_not_kept(&judge_copy(items(r#",{"key":"lock","value":"clone"}"#))), "it is not complete");
        assert!(is_not_kept(&judge_copy(items(r#",{"key":"template","value":1}"#))));
        assert!(is_not_kept(&judge_copy(config_response(r#",{"key":"name","value":"other"}"#))));
        // Proxmox copies the creation time of the source: a guest with another one took the id, whatever its name is.
        let stranger = r#",{"key":"name","value":"copy"},{"key":"smbios1","value":"uuid=33333333-3333-4333-8333-333333333333"}"#;
        assert!(is_not_kept(&judge_copy(config_response(stranger))));
        assert!(is_not_kept(&judge_copy(config_response(&format!(r#"{stranger},{{"key":"meta","value":"ctime=6"}}"#)))));
        let not_made = failure_response("500", "Configuration file 'nodes/n2/qemu-server/200.conf' does not exist");
        assert!(is_not_kept(&judge_copy(not_made)), "it was not made, or not yet");
        assert!(is_unclear(&judge_copy(raw_response(596, ""))));
        let source_marks = r#",{"key":"name","value":"copy"},{"key":"smbios1","value":"uuid=11111111-1111-4111-8111-111111111111"},{"key":"meta","value":"ctime=5"}"#;
        assert!(is_not_kept(&judge_copy(config_response(source_marks))), "the source is no clone of itself");
    }
}

/// The change is sent to the source, and its result is read at the new guest.
#[test]
fn clone_is_sent_to_its_source_and_read_at_its_target() {
    let after = Readings::new().config(config_response(""));
    assert_eq!(requested_paths(GuestKind::Qemu, clone_change(ClonedDisks::Full), &after), ["GET /api2/extjs/nodes/n2/qemu/200/pending"]);
    let actuator = test_actuator(scripted_proxmox(&after, &after));
    let sent = block_on(SentChange::prepare(&actuator, &test_address(GuestKind::Qemu), clone_change(ClonedDisks::Full)));
    assert!(is_not_kept(&sent.check_before()));
    let request = converger_adapters::proxmox::codec::encode(&sent.command(ConfigRevision::new("0fe8")));
    assert_eq!(request.path(), "/api2/extjs/nodes/n1/qemu/100/clone");
}

fn migration_change(mode: MigrationMode) -> Change {
    let storage = StorageName::new("tank");
    Change::Migrate(Box::new(Migration { from: node_name("n1"), mode, storage, to: node_name("n2"), volumes: Box::default() }))
}

/// The list of guests, with guest 100 on this node.
fn list_with(kind: &str, node: &str) -> HttpResponse {
    success_response(&format!(
        r#"[{{"id":"{kind}/100","vmid":100,"type":"{kind}","node":"{node}","status":"stopped","name":"web","template":0}}]"#
    ))
}

/// A guest that arrives in another run-state was not migrated as promised.
#[test]
fn migration_promise_is_kept_on_the_target_in_the_same_run_state() {
    for (kind, mode, wanted, other) in [
        (GuestKind::Qemu, MigrationMode::Offline, "stopped", "running"),
        (GuestKind::Qemu, MigrationMode::Online, "running", "stopped"),
        (GuestKind::Lxc, MigrationMode::Offline, "stopped", "running"),
        (GuestKind::Lxc, MigrationMode::Restart, "running", "stopped"),
    ] {
        // The guest left its node, where it was read first, and is found in the list.
        let judge_moved = |node: &str, status: HttpResponse| {
            let proxmox = ScriptedProxmox::default()
                .with_override(&format!("n1/{}/100/status/current", kind.word()), vec![gone_response()])
                .with_override("cluster/resources?type=vm", vec![list_with(kind.word(), node)])
                .with_override(&format!("{node}/{}/100/status/current", kind.word()), vec![status]);
            let actuator = test_actuator(proxmox);
            let sent = block_on(SentChange::prepare(&actuator, &test_address(kind), migration_change(mode)));
            block_on(sent.check_now(&actuator, 10, None))
        };
        assert!(is_kept(&judge_moved("n2", status_response(wanted))), "{kind} {mode:?}");
        assert!(is_not_kept(&judge_moved("n2", status_response(other))), "{kind} {mode:?}");
        assert!(is_not_kept(&judge_moved("n3", status_response(wanted))), "{kind} {mode:?}: another node than requested");
        let locked = success_response(&format!(r#"{{"status":"{wanted}","qmpstatus":"{wanted}","lock":"migrate","ha":{{"managed":0}}}}"#));
        assert!(is_not_kept(&judge_moved("n2", locked)), "{kind} {mode:?}: it has not arrived");
        assert!(is_unclear(&judge_moved("n2", raw_response(595, ""))), "{kind} {mode:?}");
        let stays = Readings::new().status(status_response(wanted));
        assert!(is_not_kept(&judge_with_task(kind, migration_change(mode), &stays, &stays, None)), "{kind} {mode:?}: it did not leave");
    }
}

/// A guest that its node does not have, and that is in no list, is neither moved nor gone.
#[test]
fn g2_guest_that_is_not_found_proves_no_promise() {
    let changes = [
        Change::Start,
        Change::Stop,
        Change::SnapshotDelete(Box::new(existing_snapshot(false))),
        rollback_to(Some("s2"), false),
        migration_change(MigrationMode::Offline),
        growth_change(),
    ];
    for change in changes {
        for list in [empty_list(), list_with("lxc", "n2"), raw_response(596, ""), failure_response("\"403\"", "Permission check failed")] {
            let after = Readings([gone_response(), gone_response(), gone_response(), list]);
            assert!(is_unclear(&judge(change.clone(), &after)), "{change:?}");
        }
    }
}

fn growth_change() -> Change {
    let (before, after) = (DiskSize::parse("16G").expect("a size"), DiskSize::parse("32G").expect("a size"));
    let disk = DiskKey::new(GuestKind::Qemu, "scsi0").expect("a disk");
    Change::DiskGrow(Box::new(DiskGrowth { after, before, disk, volume: Some("dir1:100/vm-100-disk-0.qcow2".into()) }))
}

#[test]
fn grow_promise_is_judged_by_the_size_of_the_same_volume() {
    let judge_disk = |value: &str| {
        let config = config_response(&format!(r#",{{"key":"scsi0","value":"{value}"}}"#));
        judge(growth_change(), &Readings::new().config(config))
    };
    assert!(is_kept(&judge_disk("dir1:100/vm-100-disk-0.qcow2,size=32G")));
    assert!(is_kept(&judge_disk("dir1:100/vm-100-disk-0.qcow2,size=1T")), "another user made it even larger");
    assert!(is_not_kept(&judge_disk("dir1:100/vm-100-disk-0.qcow2,size=31G")));
    assert!(is_not_kept(&judge_disk("dir1:100/vm-100-disk-1.qcow2,size=32G")), "another volume under the same key");
    assert!(is_unclear(&judge_disk("dir1:100/vm-100-disk-0.qcow2")), "its size is not known");
    assert!(is_not_kept(&judge(growth_change(), &Readings::new().config(config_response("")))), "there is no such disk");
    assert!(is_unclear(&judge(growth_change(), &Readings::new().config(success_response("[]")))), "truncated: it has no digest");
}

#[test]
fn reboot_promise_is_kept_by_a_reset_uptime() {
    let status_of =
        |uptime: &str| success_response(&format!(r#"{{"status":"running","qmpstatus":"running","ha":{{"managed":0}}{uptime}}}"#));
    let runs = |uptime: &str| Readings::new().status(status_of(uptime));
    let judge = |before: &Readings, after: &Readings| judge_from(Change::Reboot { timeout_secs: 5 }, before, after);
    assert!(is_kept(&judge(&runs(",\"uptime\":70"), &runs(",\"uptime\":\"9\""))));
    assert!(is_kept(&judge(&runs(",\"uptime\":3"), &runs(",\"uptime\":8"))), "ten seconds have passed, and its uptime is eight");
    assert!(is_not_kept(&judge(&runs(",\"uptime\":70"), &runs(",\"uptime\":80"))), "it ran all the time");
    assert!(is_not_kept(&judge(&runs(",\"uptime\":70"), &status_reading("stopped"))), "it is down and not up again");
    assert!(is_unclear(&judge(&runs(",\"uptime\":70"), &runs(""))));
    assert!(is_unclear(&judge(&runs(",\"uptime\":70"), &Readings::new())));
    assert!(is_unclear(&judge(&status_reading("stopped"), &runs(",\"uptime\":9"))), "it did not run before");
    assert!(is_unclear(&judge(&Readings::new(), &runs(",\"uptime\":9"))));
}
