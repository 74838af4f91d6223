//! Every change promises something that is read afterwards, and no answer to the change itself keeps it.

use converger_adapters::proxmox::client::{Session, TokenId};
use converger_adapters::proxmox::codec::{
    Basis, CloneDisks, ConfigSet, Digest, DiskKey, DiskSize, GuestPath, HttpAnswer, Migration, SnapshotName, Write,
};
use converger_adapters::proxmox::hand::{Caller, Hand};
use converger_core::action::FieldChange;
use converger_core::apply::Fact;
use converger_core::apply::promise::{Kept, Promise};
use converger_core::guest::{GuestName, Kind, NodeName, Vmid};
use converger_core::normalize::{Effect, Field, Value, Words};

use crate::desk::{self, Desk, cluster_of, failure, raw, success};
use crate::requests::change;

fn node(name: &str) -> NodeName {
    NodeName::new(name).expect("a name")
}

fn guest() -> GuestPath {
    GuestPath { node: node("n1"), kind: Kind::Qemu, vmid: Vmid::new(100).expect("an id") }
}

fn hand(desk: Desk) -> Hand<Desk> {
    Hand::new(Session::new(desk), Caller { token: TokenId::new("svc@pve!probe").expect("an id"), cluster: None })
}

fn run<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().expect("a runtime").block_on(future)
}

/// Reads what the promise asks for, before and after, is given this one after the other, and judges ten seconds later.
fn kept_from(write: &Write, before: HttpAnswer, after: HttpAnswer) -> Kept {
    let hand = hand(Desk::default().instead("", vec![before, after]));
    let promise = write.promise(&run(hand.read(write)));
    promise.kept(&run(hand.read(write)), 10)
}

/// The same where nothing before matters.
fn kept(write: &Write, after: &HttpAnswer) -> Kept {
    kept_from(write, raw(595, "nobody was asked"), after.clone())
}

/// The path of what is read to tell whether a change was done.
fn asked(write: &Write) -> Vec<String> {
    let desk = Desk::default().instead("", vec![raw(595, "No route to host")]);
    run(hand(desk.clone()).read(write));
    desk.requests()
}

fn status(word: &str) -> HttpAnswer {
    success(&format!(r#"{{"status":"{word}","qmpstatus":"{word}","ha":{{"managed":0}}}}"#))
}

fn gone() -> HttpAnswer {
    failure("500", "Configuration file 'nodes/n1/qemu-server/100.conf' does not exist")
}

fn is_yes(kept: &Kept) -> bool {
    matches!(kept, Kept::Yes(_))
}

fn is_no(kept: &Kept) -> bool {
    matches!(kept, Kept::No(_))
}

fn is_unclear(kept: &Kept) -> bool {
    matches!(kept, Kept::Unclear(_))
}

#[test]
fn power_is_kept_by_the_state_of_the_guest() {
    let up = vec![Write::Start(guest())];
    let down = vec![Write::Stop(guest()), Write::Shutdown { guest: guest(), timeout_secs: 5 }];
    for (writes, wanted, other) in [(up, "running", "stopped"), (down, "stopped", "running")] {
        for write in writes {
            assert!(is_yes(&kept(&write, &status(wanted))));
            assert!(is_no(&kept(&write, &status(other))));
            assert!(is_unclear(&kept(&write, &raw(595, "No route to host"))));
            assert!(is_unclear(&kept(&write, &gone())), "not there is neither running nor stopped");
        }
    }
}

#[test]
fn config_is_kept_in_effect_or_at_the_next_start() {
    let at_restart = |field, after| FieldChange { effect: Effect::AtRestart, ..change(field, after) };
    let changes = [
        at_restart(Field::Cores, Some(Value::Count(4))),
        at_restart(Field::Balloon, None),
        change(Field::Tags, Some(Value::Tags(Words::new(vec!["a".into()])))),
    ];
    let set = ConfigSet::new(guest(), &changes, &Basis::parse("0fe8").expect("a basis")).expect("writable");
    let write = Write::ConfigSet(set);
    let items = |cores: &str, rest: &str| {
        let digest = r#"{"key":"digest","value":"0fe9"}"#;
        success(&format!(r#"[{digest},{{"key":"cores",{cores}}},{{"key":"tags","value":"a"}}{rest}]"#))
    };
    let waits = |kept: &Kept, fields: &[&str]| {
        let words = Fact::Words(fields.iter().map(|field| (*field).into()).collect());
        is_yes(kept) && kept.seen().get("pending_restart") == Some(&words)
    };
    let now = kept(&write, &items(r#""value":4"#, ""));
    assert!(is_yes(&now) && now.seen().get("pending_restart").is_none(), "{now:?}");
    assert!(waits(&kept(&write, &items(r#""value":2,"pending":4"#, "")), &["cores"]));
    let both = r#",{"key":"balloon","value":64,"delete":1}"#;
    assert!(waits(&kept(&write, &items(r#""value":2,"pending":4"#, both)), &["cores", "balloon"]));
    for (cores, rest) in [
        (r#""value":2"#, ""),
        (r#""value":4,"pending":2"#, ""),
        (r#""value":4,"pending":"many""#, ""),
        (r#""value":4"#, r#",{"key":"balloon","value":64}"#),
    ] {
        assert!(is_no(&kept(&write, &items(cores, rest))), "{cores} {rest}");
    }
    assert!(is_unclear(&kept(&write, &items(r#""value":"x""#, ""))), "nobody knows what it says");
    assert!(is_unclear(&kept(&write, &success(r#"[{"key":"cores","value":4},{"key":"tags","value":"a"}]"#))), "cut off: it has no digest");
}

#[test]
fn snapshots_are_kept_by_the_list_of_them() {
    let name = SnapshotName::new("s1").expect("a name");
    let list = |rows: &str| success(&format!(r#"[{rows}{{"name":"current","parent":"s1"}}]"#));
    let create = Write::SnapshotCreate { guest: guest(), name: name.clone(), description: "".into() };
    let created = |before: &str, after: &str| kept_from(&create, list(before), list(after));
    assert!(is_yes(&created("", r#"{"name":"s1"},"#)));
    assert!(is_no(&created("", r#"{"name":"s1","snapstate":"prepare"},"#)));
    assert!(is_no(&created("", "")));
    let old = r#"{"name":"s1","snaptime":5},"#;
    assert!(is_no(&created(old, old)), "that one was there before");
    assert!(is_yes(&created(old, r#"{"name":"s1","snaptime":9},"#)));
    assert!(is_unclear(&kept(&create, &list(old))), "what was there before was not read");
    let delete = Write::SnapshotDelete { guest: guest(), name: name.clone() };
    assert!(is_yes(&kept(&delete, &list(""))));
    assert!(is_no(&kept(&delete, &list(r#"{"name":"s1","snapstate":"delete"},"#))));
    let rollback = Write::SnapshotRollback { guest: guest(), name };
    let elsewhere = || success(r#"[{"name":"s1"},{"name":"s2"},{"name":"current","parent":"s2"}]"#);
    let back = || list(r#"{"name":"s1"},"#);
    assert!(is_yes(&kept_from(&rollback, elsewhere(), back())));
    assert!(is_no(&kept_from(&rollback, elsewhere(), elsewhere())));
    assert!(is_unclear(&kept_from(&rollback, back(), back())), "it looks the same whether or not it was rolled back");
    assert!(is_unclear(&kept(&rollback, &back())));
}

#[test]
fn a_copy_is_there_when_it_is_no_longer_locked() {
    let to = Vmid::new(200).expect("an id");
    let name = GuestName::new("copy").expect("a name");
    let write = Write::Clone { guest: guest(), to, name, target: Some(node("n2")), disks: CloneDisks::Linked };
    assert_eq!(asked(&write), ["GET /api2/extjs/nodes/n2/qemu/200/pending"]);
    let not_yet = || failure("500", "Configuration file 'nodes/n2/qemu-server/200.conf' does not exist");
    let copied = |after: HttpAnswer| kept_from(&write, not_yet(), after);
    assert!(is_yes(&copied(success(r#"[{"key":"digest","value":"0f"},{"key":"name","value":"copy"}]"#))));
    assert!(is_no(&copied(success(r#"[{"key":"digest","value":"0f"},{"key":"name","value":"copy"},{"key":"lock","value":"clone"}]"#))));
    assert!(is_no(&copied(success(r#"[{"key":"digest","value":"0f"},{"key":"name","value":"other"}]"#))));
    assert!(is_no(&copied(not_yet())));
    assert!(is_unclear(&copied(raw(596, ""))));
    let there = || success(r#"[{"key":"digest","value":"0f"},{"key":"name","value":"copy"}]"#);
    assert!(is_unclear(&kept_from(&write, there(), there())), "somebody had the id before");
    assert!(is_unclear(&kept(&write, &there())), "whether somebody had the id before was not read");
}

#[test]
fn a_guest_that_moved_is_where_it_was_sent() {
    let write = Write::Migrate { node: node("n1"), vmid: guest().vmid, target: node("n2"), mode: Migration::LxcOffline };
    assert_eq!(asked(&write), ["GET /api2/extjs/nodes/n2/lxc/100/status/current"]);
    assert!(is_yes(&kept(&write, &status("stopped"))));
    assert!(is_no(&kept(&write, &gone())));
    assert!(is_unclear(&kept(&write, &raw(595, ""))));
}

#[test]
fn a_disk_that_grew_has_its_size() {
    let disk = DiskKey::new(Kind::Qemu, "scsi0").expect("a disk");
    let size = DiskSize::parse("32G").expect("a size");
    let write = Write::Grow { guest: guest(), disk, size, digest: Digest::new("0fe8").expect("a digest") };
    let disk = |size: &str| success(&format!(r#"[{{"key":"scsi0","value":"dir1:100/vm-100-disk-0.qcow2,size={size}"}}]"#));
    assert!(is_yes(&kept(&write, &disk("32G"))));
    assert!(is_yes(&kept(&write, &disk("1T"))));
    assert!(is_no(&kept(&write, &disk("31G"))) && is_no(&kept(&write, &success("[]"))));
}

/// Two nodes under quorum, on which nobody has the guest.
fn emptied() -> Desk {
    Desk::with(&cluster_of("house", 1, &[("n1", 1), ("n2", 1)]), [])
}

#[test]
fn g2_a_guest_that_was_removed_is_gone_and_silence_does_not_say_so() {
    let kept = |desk: Desk| Promise::IsGone.kept(&run(hand(desk).read(&Write::Delete(guest()))), 0);
    assert!(is_yes(&kept(emptied())));
    let still = Desk { guests: [(100, desk::guest(100, "n1"))].into(), ..emptied() };
    assert!(is_no(&kept(still.clone())));
    assert!(is_no(&kept(still.clone().instead("nextid?vmid=100", vec![success("\"100\"")]))), "the list of ids can be empty in silence");
    let elsewhere = || Desk { guests: [(100, desk::guest(100, "n2"))].into(), ..emptied() };
    assert!(is_unclear(&kept(elsewhere())), "its id is taken: it may have moved, or another guest has the id");
    let blind = elsewhere().instead("nextid?vmid=100", vec![success("\"100\"")]);
    assert!(is_no(&kept(blind)), "it is on the other node, whatever the list of ids says");
    for (path, answer) in [
        ("n1/qemu/100/status/current", raw(595, "No route to host")),
        ("n1/qemu/100/status/current", failure("\"403\"", "Permission check failed (/vms/100, VM.Audit)")),
        ("n2/lxc/100/status/current", raw(595, "No route to host")),
        ("nextid?vmid=100", raw(596, "")),
        ("permissions?path=%2Fvms%2F100", success("{}")),
        ("cluster/status", raw(596, "")),
    ] {
        assert!(is_unclear(&kept(emptied().instead(path, vec![answer]))), "{path}");
    }
}

#[test]
fn g2_without_quorum_before_and_after_nothing_is_gone() {
    let kept = |clusters: &[(u8, &[(&str, u8)])]| {
        let told = clusters.iter().map(|(quorate, nodes)| success(&cluster_of("house", *quorate, nodes)));
        let desk = emptied().instead("cluster/status", told.collect());
        Promise::IsGone.kept(&run(hand(desk).read(&Write::Delete(guest()))), 0)
    };
    let both: &[(&str, u8)] = &[("n1", 1), ("n2", 1)];
    assert!(is_yes(&kept(&[(1, both)])));
    assert!(is_unclear(&kept(&[(0, both)])), "never");
    assert!(is_unclear(&kept(&[(1, both), (0, both)])), "lost meanwhile");
    assert!(is_unclear(&kept(&[(1, both), (1, &[("n1", 1), ("n2", 0)])])), "a node went");
    assert!(is_unclear(&kept(&[(1, both), (1, &[("n1", 1), ("n2", 1), ("n3", 1)])])), "a node came that was not asked");
    assert!(is_unclear(&kept(&[(1, &[("n1", 1), ("n2", 0)])])), "a node that cannot be asked may have it");
}

#[test]
fn g2_another_cluster_does_not_say_what_is_gone_in_this_one() {
    let caller = Caller { token: TokenId::new("svc@pve!probe").expect("an id"), cluster: Some("garden".into()) };
    let hand = Hand::new(Session::new(emptied()), caller);
    assert!(is_unclear(&Promise::IsGone.kept(&run(hand.read(&Write::Delete(guest()))), 0)));
}

#[test]
fn a_reboot_is_kept_by_an_uptime_that_began_anew() {
    let write = Write::RebootQemu { node: node("n1"), vmid: guest().vmid, timeout_secs: 5 };
    let runs = |uptime: &str| success(&format!(r#"{{"status":"running","qmpstatus":"running","ha":{{"managed":0}}{uptime}}}"#));
    let kept = |before: HttpAnswer, after: HttpAnswer| kept_from(&write, before, after);
    assert!(is_yes(&kept(runs(",\"uptime\":70"), runs(",\"uptime\":\"9\""))));
    assert!(is_yes(&kept(runs(",\"uptime\":3"), runs(",\"uptime\":8"))), "ten seconds have gone by, and it was up for eight");
    assert!(is_no(&kept(runs(",\"uptime\":70"), runs(",\"uptime\":80"))), "it was running all the time");
    assert!(is_no(&kept(runs(",\"uptime\":70"), status("stopped"))), "it is down and not up again");
    assert!(is_unclear(&kept(runs(",\"uptime\":70"), runs(""))));
    assert!(is_unclear(&kept(runs(",\"uptime\":70"), raw(595, "No route to host"))));
    assert!(is_unclear(&kept(status("stopped"), runs(",\"uptime\":9"))), "it did not run before");
    assert!(is_unclear(&kept(raw(596, ""), runs(",\"uptime\":9"))));
}
