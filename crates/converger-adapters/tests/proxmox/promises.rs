//! Every change promises something that is read afterwards, and no answer to the change itself keeps it.

use converger_adapters::proxmox::codec::{
    CloneDisks, Command, ConfigSet, Digest, DiskKey, DiskSize, Event, Failure, GuestPath, HttpAnswer, Kept, Migration, Read, SnapshotName,
    Write, decode, encode,
};
use converger_core::guest::{GuestName, Kind, NodeName, Vmid};
use converger_core::normalize::{Field, Value, Words};

use crate::desk::{failure, raw, success};
use crate::requests::change;

fn node(name: &str) -> NodeName {
    NodeName::new(name).expect("a name")
}

fn guest() -> GuestPath {
    GuestPath { node: node("n1"), kind: Kind::Qemu, vmid: Vmid::new(100).expect("an id") }
}

/// What the proofs of a change read like in these answers.
fn readings(write: &Write, answers: &[HttpAnswer]) -> Vec<Result<Event, Failure>> {
    let proofs = write.proofs();
    assert_eq!(proofs.len(), answers.len(), "{proofs:?}");
    proofs.into_iter().zip(answers).map(|(proof, answer)| decode(&Command::Read(proof), answer)).collect()
}

/// Asks what the promise asks for, before and after, is given this, and judges.
fn kept_from(write: &Write, before: &[HttpAnswer], after: &[HttpAnswer]) -> Kept {
    write.promise(&readings(write, before)).check(&readings(write, after))
}

/// The same where nothing before matters.
fn kept(write: &Write, after: &HttpAnswer) -> Kept {
    kept_from(write, &[raw(595, "nobody was asked")], std::slice::from_ref(after))
}

fn status(word: &str) -> HttpAnswer {
    success(&format!(r#"{{"status":"{word}","qmpstatus":"{word}"}}"#))
}

fn gone() -> HttpAnswer {
    failure("500", "Configuration file 'nodes/n1/qemu-server/100.conf' does not exist")
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
            assert_eq!(kept(&write, &status(wanted)), Kept::Yes);
            assert!(is_no(&kept(&write, &status(other))));
            assert!(is_unclear(&kept(&write, &raw(595, "No route to host"))));
            assert!(is_unclear(&kept(&write, &gone())), "not there is neither running nor stopped");
        }
    }
}

#[test]
fn config_is_kept_in_effect_or_at_the_next_start() {
    let changes = [
        change(Field::Cores, Some(Value::Count(4))),
        change(Field::Balloon, None),
        change(Field::Tags, Some(Value::Tags(Words::new(vec!["a".into()])))),
    ];
    let set = ConfigSet::new(guest(), &changes, None, Digest::new("0fe8").expect("a digest")).expect("writable");
    let write = Write::ConfigSet(set);
    let items = |cores: &str, rest: &str| success(&format!(r#"[{{"key":"cores",{cores}}},{{"key":"tags","value":"a"}}{rest}]"#));
    assert_eq!(kept(&write, &items(r#""value":4"#, "")), Kept::Yes);
    assert_eq!(kept(&write, &items(r#""value":2,"pending":4"#, "")), Kept::AtRestart([Field::Cores].into()));
    let both = r#",{"key":"balloon","value":64,"delete":1}"#;
    assert_eq!(kept(&write, &items(r#""value":2,"pending":4"#, both)), Kept::AtRestart([Field::Cores, Field::Balloon].into()));
    for (cores, rest) in [
        (r#""value":2"#, ""),
        (r#""value":4,"pending":2"#, ""),
        (r#""value":4,"pending":"many""#, ""),
        (r#""value":4"#, r#",{"key":"balloon","value":64}"#),
    ] {
        assert!(is_no(&kept(&write, &items(cores, rest))), "{cores} {rest}");
    }
    assert!(is_unclear(&kept(&write, &items(r#""value":"x""#, ""))));
}

#[test]
fn snapshots_are_kept_by_the_list_of_them() {
    let name = SnapshotName::new("s1").expect("a name");
    let list = |rows: &str| success(&format!(r#"[{rows}{{"name":"current","parent":"s1"}}]"#));
    let create = Write::SnapshotCreate { guest: guest(), name: name.clone(), description: "".into() };
    let created = |before: &str, after: &str| kept_from(&create, &[list(before)], &[list(after)]);
    assert_eq!(created("", r#"{"name":"s1"},"#), Kept::Yes);
    assert!(is_no(&created("", r#"{"name":"s1","snapstate":"prepare"},"#)));
    assert!(is_no(&created("", "")));
    let old = r#"{"name":"s1","snaptime":5},"#;
    assert!(is_no(&created(old, old)), "that one was there before");
    assert_eq!(created(old, r#"{"name":"s1","snaptime":9},"#), Kept::Yes);
    assert!(is_unclear(&kept(&create, &list(old))), "what was there before was not read");
    let delete = Write::SnapshotDelete { guest: guest(), name: name.clone() };
    assert_eq!(kept(&delete, &list("")), Kept::Yes);
    assert!(is_no(&kept(&delete, &list(r#"{"name":"s1","snapstate":"delete"},"#))));
    let rollback = Write::SnapshotRollback { guest: guest(), name };
    let elsewhere = || success(r#"[{"name":"s1"},{"name":"s2"},{"name":"current","parent":"s2"}]"#);
    let back = || list(r#"{"name":"s1"},"#);
    assert_eq!(kept_from(&rollback, &[elsewhere()], &[back()]), Kept::Yes);
    assert!(is_no(&kept_from(&rollback, &[elsewhere()], &[elsewhere()])));
    assert!(is_unclear(&kept_from(&rollback, &[back()], &[back()])), "it looks the same whether or not it was rolled back");
    assert!(is_unclear(&kept(&rollback, &back())));
}

#[test]
fn a_copy_is_there_when_it_is_no_longer_locked() {
    let to = Vmid::new(200).expect("an id");
    let name = GuestName::new("copy").expect("a name");
    let write = Write::Clone { guest: guest(), to, name, target: Some(node("n2")), disks: CloneDisks::Linked };
    assert_eq!(encode(&Command::Read(write.proofs()[0].clone())).path(), "/api2/extjs/nodes/n2/qemu/200/pending");
    let copied = |after: HttpAnswer| kept_from(&write, &[gone()], &[after]);
    assert_eq!(copied(success(r#"[{"key":"name","value":"copy"}]"#)), Kept::Yes);
    assert!(is_no(&copied(success(r#"[{"key":"name","value":"copy"},{"key":"lock","value":"clone"}]"#))));
    assert!(is_no(&copied(success(r#"[{"key":"name","value":"other"}]"#))));
    assert!(is_no(&copied(gone())));
    assert!(is_unclear(&copied(raw(596, ""))));
    let there = || success(r#"[{"key":"name","value":"copy"}]"#);
    assert!(is_unclear(&kept_from(&write, &[there()], &[there()])), "somebody had the id before");
    assert!(is_unclear(&kept(&write, &there())), "whether somebody had the id before was not read");
}

#[test]
fn a_guest_that_moved_is_where_it_was_sent() {
    let write = Write::Migrate { node: node("n1"), vmid: guest().vmid, target: node("n2"), mode: Migration::LxcOffline };
    assert_eq!(write.proofs(), [Read::GuestStatus(GuestPath { node: node("n2"), kind: Kind::Lxc, ..guest() })]);
    assert_eq!(kept(&write, &status("stopped")), Kept::Yes);
    assert!(is_no(&kept(&write, &gone())));
    assert!(is_unclear(&kept(&write, &raw(595, ""))));
}

#[test]
fn a_disk_that_grew_has_its_size() {
    let disk = DiskKey::new(Kind::Qemu, "scsi0").expect("a disk");
    let size = DiskSize::parse("32G").expect("a size");
    let write = Write::Grow { guest: guest(), disk, size, digest: Digest::new("0fe8").expect("a digest") };
    let disk = |size: &str| success(&format!(r#"[{{"key":"scsi0","value":"dir1:100/vm-100-disk-0.qcow2,size={size}"}}]"#));
    assert_eq!(kept(&write, &disk("32G")), Kept::Yes);
    assert_eq!(kept(&write, &disk("1T")), Kept::Yes);
    assert!(is_no(&kept(&write, &disk("31G"))) && is_no(&kept(&write, &success("[]"))));
}

#[test]
fn g2_a_guest_that_was_removed_is_gone_and_silence_does_not_say_so() {
    let write = Write::Delete(guest());
    let free = || success("\"100\"");
    let taken = || {
        let body = r#"{"success":0,"status":"400","message":"Parameter verification failed.\n","errors":{"vmid":"VM 100 already exists"},"data":null}"#;
        HttpAnswer { body: body.into(), ..success("null") }
    };
    let kept = |there: HttpAnswer, id: HttpAnswer| kept_from(&write, &[status("stopped"), taken()], &[there, id]);
    assert_eq!(kept(gone(), free()), Kept::Yes);
    assert!(is_no(&kept(status("stopped"), taken())));
    assert!(is_no(&kept(status("stopped"), free())), "the list of ids can be empty in silence");
    assert!(is_unclear(&kept(gone(), taken())), "it may have moved to another node");
    assert!(is_unclear(&kept(raw(595, "No route to host"), free())));
    assert!(is_unclear(&kept(gone(), raw(596, ""))));
    assert!(is_unclear(&kept(failure("\"403\"", "Permission check failed (/vms/100, VM.Audit)"), free())));
}

#[test]
fn a_reboot_is_kept_by_another_process() {
    let write = Write::RebootQemu { node: node("n1"), vmid: guest().vmid, timeout_secs: 5 };
    let runs = |pid: &str| success(&format!(r#"{{"status":"running","qmpstatus":"running"{pid}}}"#));
    let kept = |before: HttpAnswer, after: HttpAnswer| kept_from(&write, &[before], &[after]);
    assert_eq!(kept(runs(",\"pid\":7"), runs(",\"pid\":\"9\"")), Kept::Yes);
    assert!(is_no(&kept(runs(",\"pid\":7"), runs(",\"pid\":7"))), "it was running all the time");
    assert!(is_no(&kept(runs(",\"pid\":7"), status("stopped"))), "it is down and not up again");
    assert!(is_unclear(&kept(runs(",\"pid\":7"), runs(""))));
    assert!(is_unclear(&kept(runs(",\"pid\":7"), raw(595, "No route to host"))));
    assert!(is_unclear(&kept(status("stopped"), runs(",\"pid\":9"))), "it did not run before");
    assert!(is_unclear(&kept(raw(596, ""), runs(",\"pid\":9"))));
}
