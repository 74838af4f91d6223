//! Every change has a promise that is checked by reading; the response to the change itself never keeps it.

use converger_adapters::proxmox::actuator::{CallerIdentity, ProxmoxActuator};
use converger_adapters::proxmox::client::{ProxmoxSession, TokenId};
use converger_adapters::proxmox::codec::{
    CloneDisks, ConfigDigest, ConfigSet, DiskKey, DiskSize, GuestPath, HttpResponse, MigrationMode, ProxmoxWrite, SnapshotName, WriteBasis,
};
use converger_core::action::FieldChange;
use converger_core::apply::Fact;
use converger_core::apply::promise::{Promise, PromiseCheck};
use converger_core::guest::{GuestKind, GuestName, NodeName, Vmid};
use converger_core::normalize::{ChangeEffect, Field, FieldValue, WordSet};

use crate::requests::field_change;
use crate::scripted_proxmox::{self, ScriptedProxmox, cluster_rows, failure_response, raw_response, success_response};

fn node_name(name: &str) -> NodeName {
    NodeName::new(name).expect("a name")
}

fn guest_path() -> GuestPath {
    GuestPath { node: node_name("n1"), kind: GuestKind::Qemu, vmid: Vmid::new(100).expect("an id") }
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

/// Gives `before` and `after` as the responses to the two reads, and checks the promise ten seconds later.
fn judge_promise_from(write: &ProxmoxWrite, before: HttpResponse, after: HttpResponse) -> PromiseCheck {
    let actuator = test_actuator(ScriptedProxmox::default().with_override("", vec![before, after]));
    let promise = write.promise(&block_on(actuator.read_promise(write)));
    promise.check(&block_on(actuator.read_promise(write)), 10)
}

/// Like [`judge_promise_from`], without a usable first response.
fn judge_promise(write: &ProxmoxWrite, after: &HttpResponse) -> PromiseCheck {
    judge_promise_from(write, raw_response(595, "not read"), after.clone())
}

/// The paths that are read to check a promise.
fn requested_paths(write: &ProxmoxWrite) -> Vec<String> {
    let proxmox = ScriptedProxmox::default().with_override("", vec![raw_response(595, "No route to host")]);
    block_on(test_actuator(proxmox.clone()).read_promise(write));
    proxmox.requests()
}

fn status_response(status: &str) -> HttpResponse {
    success_response(&format!(r#"{{"status":"{status}","qmpstatus":"{status}","ha":{{"managed":0}}}}"#))
}

fn gone_response() -> HttpResponse {
    failure_response("500", "Configuration file 'nodes/n1/qemu-server/100.conf' does not exist")
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
    let up = vec![ProxmoxWrite::Start(guest_path())];
    let down = vec![ProxmoxWrite::Stop(guest_path()), ProxmoxWrite::Shutdown { guest: guest_path(), timeout_secs: 5 }];
    for (writes, wanted, other) in [(up, "running", "stopped"), (down, "stopped", "running")] {
        for write in writes {
            assert!(is_kept(&judge_promise(&write, &status_response(wanted))));
            assert!(is_not_kept(&judge_promise(&write, &status_response(other))));
            assert!(is_unclear(&judge_promise(&write, &raw_response(595, "No route to host"))));
            assert!(is_unclear(&judge_promise(&write, &gone_response())), "a missing guest is neither running nor stopped");
        }
    }
}

#[test]
fn config_promise_is_kept_in_effect_or_pending() {
    let at_restart = |field, after| FieldChange { effect: ChangeEffect::AtRestart, ..field_change(field, after) };
    let changes = [
        at_restart(Field::Cores, Some(FieldValue::Count(4))),
        at_restart(Field::Balloon, None),
        field_change(Field::Tags, Some(FieldValue::Tags(WordSet::new(vec!["a".into()])))),
    ];
    let set = ConfigSet::new(guest_path(), &changes, &WriteBasis::parse("0fe8").expect("a basis")).expect("writable");
    let write = ProxmoxWrite::ConfigSet(set);
    let items = |cores: &str, rest: &str| {
        let digest = r#"{"key":"digest","value":"0fe9"}"#;
        success_response(&format!(r#"[{digest},{{"key":"cores",{cores}}},{{"key":"tags","value":"a"}}{rest}]"#))
    };
    let has_pending = |check: &PromiseCheck, fields: &[&str]| {
        let expected = Fact::Words(fields.iter().map(|field| (*field).into()).collect());
        is_kept(check) && check.evidence().get("pending_restart") == Some(&expected)
    };
    let now = judge_promise(&write, &items(r#""value":4"#, ""));
    assert!(is_kept(&now) && now.evidence().get("pending_restart").is_none(), "{now:?}");
    assert!(has_pending(&judge_promise(&write, &items(r#""value":2,"pending":4"#, "")), &["cores"]));
    let both = r#",{"key":"balloon","value":64,"delete":1}"#;
    assert!(has_pending(&judge_promise(&write, &items(r#""value":2,"pending":4"#, both)), &["cores", "balloon"]));
    for (cores, rest) in [
        (r#""value":2"#, ""),
        (r#""value":4,"pending":2"#, ""),
        (r#""value":4,"pending":"many""#, ""),
        (r#""value":4"#, r#",{"key":"balloon","value":64}"#),
    ] {
        assert!(is_not_kept(&judge_promise(&write, &items(cores, rest))), "{cores} {rest}");
    }
    assert!(is_unclear(&judge_promise(&write, &items(r#""value":"x""#, ""))), "the value is not understood");
    assert!(
        is_unclear(&judge_promise(&write, &success_response(r#"[{"key":"cores","value":4},{"key":"tags","value":"a"}]"#))),
        "truncated: it has no digest"
    );
}

#[test]
fn snapshot_promise_is_judged_by_the_list() {
    let name = SnapshotName::new("s1").expect("a name");
    let list = |rows: &str| success_response(&format!(r#"[{rows}{{"name":"current","parent":"s1"}}]"#));
    let create = ProxmoxWrite::SnapshotCreate { guest: guest_path(), name: name.clone(), description: "".into() };
    let created = |before: &str, after: &str| judge_promise_from(&create, list(before), list(after));
    assert!(is_kept(&created("", r#"{"name":"s1"},"#)));
    assert!(is_not_kept(&created("", r#"{"name":"s1","snapstate":"prepare"},"#)));
    assert!(is_not_kept(&created("", "")));
    let old = r#"{"name":"s1","snaptime":5},"#;
    assert!(is_not_kept(&created(old, old)), "the snapshot existed before");
    assert!(is_kept(&created(old, r#"{"name":"s1","snaptime":9},"#)));
    assert!(is_unclear(&judge_promise(&create, &list(old))), "the earlier snapshots were not read");
    let delete = ProxmoxWrite::SnapshotDelete { guest: guest_path(), name: name.clone() };
    assert!(is_kept(&judge_promise(&delete, &list(""))));
    assert!(is_not_kept(&judge_promise(&delete, &list(r#"{"name":"s1","snapstate":"delete"},"#))));
    let rollback = ProxmoxWrite::SnapshotRollback { guest: guest_path(), name };
    let elsewhere = || success_response(r#"[{"name":"s1"},{"name":"s2"},{"name":"current","parent":"s2"}]"#);
    let back = || list(r#"{"name":"s1"},"#);
    assert!(is_kept(&judge_promise_from(&rollback, elsewhere(), back())));
    assert!(is_not_kept(&judge_promise_from(&rollback, elsewhere(), elsewhere())));
    assert!(is_unclear(&judge_promise_from(&rollback, back(), back())), "it looks the same whether or not it was rolled back");
    assert!(is_unclear(&judge_promise(&rollback, &back())));
}

#[test]
fn clone_promise_is_kept_once_unlocked() {
    let to = Vmid::new(200).expect("an id");
    let name = GuestName::new("copy").expect("a name");
    let write = ProxmoxWrite::Clone { guest: guest_path(), to, name, target: Some(node_name("n2")), disks: CloneDisks::Linked };
    assert_eq!(requested_paths(&write), ["GET /api2/extjs/nodes/n2/qemu/200/pending"]);
    let not_yet = || failure_response("500", "Configuration file 'nodes/n2/qemu-server/200.conf' does not exist");
    let copied = |after: HttpResponse| judge_promise_from(&write, not_yet(), after);
    assert!(is_kept(&copied(success_response(r#"[{"key":"digest","value":"0f"},{"key":"name","value":"copy"}]"#))));
    assert!(is_not_kept(&copied(success_response(
        r#"[{"key":"digest","value":"0f"},{"key":"name","value":"copy"},{"key":"lock","value":"clone"}]"#
    ))));
    assert!(is_not_kept(&copied(success_response(r#"[{"key":"digest","value":"0f"},{"key":"name","value":"other"}]"#))));
    assert!(is_not_kept(&copied(not_yet())));
    assert!(is_unclear(&copied(raw_response(596, ""))));
    let present_response = || success_response(r#"[{"key":"digest","value":"0f"},{"key":"name","value":"copy"}]"#);
    assert!(is_unclear(&judge_promise_from(&write, present_response(), present_response())), "the id was taken before");
    assert!(is_unclear(&judge_promise(&write, &present_response())), "the id was not checked before");
}

#[test]
fn migration_promise_is_kept_on_the_target() {
    let write =
        ProxmoxWrite::Migrate { node: node_name("n1"), vmid: guest_path().vmid, target: node_name("n2"), mode: MigrationMode::LxcOffline };
    assert_eq!(requested_paths(&write), ["GET /api2/extjs/nodes/n2/lxc/100/status/current"]);
    assert!(is_kept(&judge_promise(&write, &status_response("stopped"))));
    assert!(is_not_kept(&judge_promise(&write, &gone_response())));
    assert!(is_unclear(&judge_promise(&write, &raw_response(595, ""))));
}

#[test]
fn grow_promise_is_judged_by_disk_size() {
    let disk = DiskKey::new(GuestKind::Qemu, "scsi0").expect("a disk");
    let size = DiskSize::parse("32G").expect("a size");
    let write = ProxmoxWrite::Grow { guest: guest_path(), disk, size, digest: ConfigDigest::new("0fe8").expect("a digest") };
    let disk = |size: &str| success_response(&format!(r#"[{{"key":"scsi0","value":"dir1:100/vm-100-disk-0.qcow2,size={size}"}}]"#));
    assert!(is_kept(&judge_promise(&write, &disk("32G"))));
    assert!(is_kept(&judge_promise(&write, &disk("1T"))));
    assert!(is_not_kept(&judge_promise(&write, &disk("31G"))) && is_not_kept(&judge_promise(&write, &success_response("[]"))));
}

/// Two nodes with quorum, neither of which has the guest.
fn empty_cluster() -> ScriptedProxmox {
    ScriptedProxmox::with_guests(&cluster_rows("house", 1, &[("n1", 1), ("n2", 1)]), [])
}

#[test]
fn g2_deleted_guest_is_gone_and_missing_responses_prove_nothing() {
    let judge = |proxmox: ScriptedProxmox| {
        Promise::Gone.check(&block_on(test_actuator(proxmox).read_promise(&ProxmoxWrite::Delete(guest_path()))), 0)
    };
    assert!(is_kept(&judge(empty_cluster())));
    let still_present = ScriptedProxmox { guests: [(100, scripted_proxmox::stopped_guest(100, "n1"))].into(), ..empty_cluster() };
    assert!(is_not_kept(&judge(still_present.clone())));
    assert!(
        is_not_kept(&judge(still_present.clone().with_override("nextid?vmid=100", vec![success_response("\"100\"")]))),
        "the list of ids can be empty without an error"
    );
    let elsewhere = || ScriptedProxmox { guests: [(100, scripted_proxmox::stopped_guest(100, "n2"))].into(), ..empty_cluster() };
    assert!(is_unclear(&judge(elsewhere())), "its id is taken: it may have moved, or another guest has its id");
    let blind = elsewhere().with_override("nextid?vmid=100", vec![success_response("\"100\"")]);
    assert!(is_not_kept(&judge(blind)), "it is on the other node, whatever the list of ids says");
    for (path, answer) in [
        ("n1/qemu/100/status/current", raw_response(595, "No route to host")),
        ("n1/qemu/100/status/current", failure_response("\"403\"", "Permission check failed (/vms/100, VM.Audit)")),
        ("n2/lxc/100/status/current", raw_response(595, "No route to host")),
        ("nextid?vmid=100", raw_response(596, "")),
        ("permissions?path=%2Fvms%2F100", success_response("{}")),
        ("cluster/status", raw_response(596, "")),
    ] {
        assert!(is_unclear(&judge(empty_cluster().with_override(path, vec![answer]))), "{path}");
    }
}

#[test]
fn g2_nothing_is_gone_without_quorum_before_and_after() {
    let judge = |clusters: &[(u8, &[(&str, u8)])]| {
        let responses = clusters.iter().map(|(quorate, nodes)| success_response(&cluster_rows("house", *quorate, nodes)));
        let proxmox = empty_cluster().with_override("cluster/status", responses.collect());
        Promise::Gone.check(&block_on(test_actuator(proxmox).read_promise(&ProxmoxWrite::Delete(guest_path()))), 0)
    };
    let both: &[(&str, u8)] = &[("n1", 1), ("n2", 1)];
    assert!(is_kept(&judge(&[(1, both)])));
    assert!(is_unclear(&judge(&[(0, both)])), "never");
    assert!(is_unclear(&judge(&[(1, both), (0, both)])), "quorum was lost in the meantime");
    assert!(is_unclear(&judge(&[(1, both), (1, &[("n1", 1), ("n2", 0)])])), "a node went offline");
    assert!(is_unclear(&judge(&[(1, both), (1, &[("n1", 1), ("n2", 1), ("n3", 1)])])), "a node joined that was not asked");
    assert!(is_unclear(&judge(&[(1, &[("n1", 1), ("n2", 0)])])), "an offline node may have it");
}

#[test]
fn g2_another_cluster_proves_no_absence() {
    let caller = CallerIdentity { token: TokenId::new("svc@pve!probe").expect("an id"), cluster: Some("garden".into()) };
    let actuator = ProxmoxActuator::new(ProxmoxSession::new(empty_cluster()), caller);
    assert!(is_unclear(&Promise::Gone.check(&block_on(actuator.read_promise(&ProxmoxWrite::Delete(guest_path()))), 0)));
}

#[test]
fn reboot_promise_is_kept_by_a_reset_uptime() {
    let write = ProxmoxWrite::RebootQemu { node: node_name("n1"), vmid: guest_path().vmid, timeout_secs: 5 };
    let runs = |uptime: &str| success_response(&format!(r#"{{"status":"running","qmpstatus":"running","ha":{{"managed":0}}{uptime}}}"#));
    let judge = |before: HttpResponse, after: HttpResponse| judge_promise_from(&write, before, after);
    assert!(is_kept(&judge(runs(",\"uptime\":70"), runs(",\"uptime\":\"9\""))));
    assert!(is_kept(&judge(runs(",\"uptime\":3"), runs(",\"uptime\":8"))), "ten seconds have passed, and its uptime is eight");
    assert!(is_not_kept(&judge(runs(",\"uptime\":70"), runs(",\"uptime\":80"))), "it ran all the time");
    assert!(is_not_kept(&judge(runs(",\"uptime\":70"), status_response("stopped"))), "it is down and not up again");
    assert!(is_unclear(&judge(runs(",\"uptime\":70"), runs(""))));
    assert!(is_unclear(&judge(runs(",\"uptime\":70"), raw_response(595, "No route to host"))));
    assert!(is_unclear(&judge(status_response("stopped"), runs(",\"uptime\":9"))), "it did not run before");
    assert!(is_unclear(&judge(raw_response(596, ""), runs(",\"uptime\":9"))));
}
