//! The table of privileges against the lab: with exactly what it names a verb works from reading to proof, and with any one of
//! them taken away it does not.

use std::collections::BTreeSet;

use converger_adapters::proxmox::client::TokenId;
use converger_adapters::proxmox::codec::{
    Accepted, Basis, Cause, CloneDisks, Command, ConfigSet, DiskKey, DiskSize, Event, GuestPath, Migration, Read, SnapshotName, TaskState,
    Write,
};
use converger_adapters::proxmox::doctor::need::{Verb, privileges_of};
use converger_adapters::proxmox::hand::{Caller, Hand};
use converger_adapters::proxmox::observe::{self, Needs, Question};
use converger_core::action::FieldChange;
use converger_core::apply::promise::Kept;
use converger_core::desired::Scope;
use converger_core::guest::{EnvironmentName, GuestName, Kind, NodeName};
use converger_core::normalize::{Boot, Effect, Field, Role, Shape, Startup, TABLE, Value, Words};
use converger_core::observe::{Reading, Status};
use converger_lab::{Act, Flavour, Setting};

use crate::bench::{Bench, FLAVOURS, TOKEN, WORLD, call, run, setting, vmid};

fn path(kind: Kind) -> GuestPath {
    let number = if kind == Kind::Qemu { 100 } else { 101 };
    GuestPath { node: NodeName::new("pve1").expect("a name"), kind, vmid: vmid(number) }
}

type Make = Box<dyn Fn(&observe::Taken, &Bench) -> Write>;

/// A write of a verb: how to make it from what was read, and whether the guest has to run.
struct Try {
    name: String,
    runs: bool,
    write: Make,
}

fn plain(name: &str, runs: bool, write: Write) -> Try {
    Try { name: name.to_owned(), runs, write: Box::new(move |_, _| write.clone()) }
}

/// Every write that a verb stands for.
fn tries(verb: Verb, kind: Kind) -> Vec<Try> {
    let guest = || path(kind);
    let name = |text| SnapshotName::new(text).expect("a name");
    let node = |text| NodeName::new(text).expect("a name");
    match verb {
        Verb::Read => vec![],
        Verb::Start => vec![plain("start", false, Write::Start(guest()))],
        Verb::Stop => {
            let mut tries = vec![
                plain("shutdown", true, Write::Shutdown { guest: guest(), timeout_secs: 60 }),
                plain("stop", true, Write::Stop(guest())),
            ];
            let reboot = Write::RebootQemu { node: node("pve1"), vmid: guest().vmid, timeout_secs: 60 };
            tries.extend((kind == Kind::Qemu).then(|| plain("reboot", true, reboot)));
            tries
        }
        Verb::Snapshot => {
            let create = Write::SnapshotCreate { guest: guest(), name: name("s2"), description: "d".into() };
            vec![plain("create", false, create), plain("delete", false, Write::SnapshotDelete { guest: guest(), name: name("s1") })]
        }
        Verb::Rollback => vec![plain("rollback", false, Write::SnapshotRollback { guest: guest(), name: name("s1") })],
        Verb::Clone => {
            let copy = GuestName::new("copy").expect("a name");
            let disks = CloneDisks::Full(None);
            vec![plain("clone", false, Write::Clone { guest: guest(), to: vmid(300), name: copy, target: None, disks })]
        }
        Verb::Migrate => {
            let mode = if kind == Kind::Qemu { Migration::QemuOffline } else { Migration::LxcOffline };
            vec![plain("migrate", false, Write::Migrate { node: node("pve1"), vmid: guest().vmid, target: node("pve2"), mode })]
        }
        Verb::Grow => vec![Try { name: "grow".into(), runs: false, write: Box::new(move |_, bench| grow(kind, bench)) }],
        Verb::Delete => vec![plain("delete", false, Write::Delete(guest()))],
        Verb::SetCpu | Verb::SetMemory | Verb::SetOptions | Verb::SetStartup | Verb::SetBoot => fields(verb, kind),
    }
}

fn config(kind: Kind, bench: &Bench) -> Box<converger_adapters::proxmox::codec::GuestConfig> {
    match call(&bench.session("pve1"), &Command::Read(Read::GuestPending(path(kind)))) {
        Ok(Event::Config(config)) => config,
        other => panic!("{other:?}"),
    }
}

fn grow(kind: Kind, bench: &Bench) -> Write {
    let digest = config(kind, bench).digest.expect("a digest");
    let disk = DiskKey::new(kind, if kind == Kind::Qemu { "scsi0" } else { "rootfs" }).expect("a disk");
    Write::Grow { guest: path(kind), disk, size: DiskSize::parse("16G").expect("a size"), digest }
}

/// One write for each field of the verb.
fn fields(verb: Verb, kind: Kind) -> Vec<Try> {
    let own = TABLE.iter().filter(|rule| rule.kind == kind && rule.role == Role::Managed && Verb::of_field(rule.field) == verb);
    own.map(|rule| {
        let field = rule.field;
        let write = move |_: &observe::Taken, bench: &Bench| {
            let config = config(kind, bench);
            let change = FieldChange { field, before: None, after: Some(sample(field)), pending: None, effect: Effect::Recorded };
            let basis = Basis::of(&config).expect("a digest");
            Write::ConfigSet(ConfigSet::new(path(kind), &[change], &basis).expect("writable"))
        };
        Try { name: field.word().to_owned(), runs: false, write: Box::new(write) }
    })
    .collect()
}

fn sample(field: Field) -> Value {
    match field.shape() {
        Shape::Flag => Value::Flag(true),
        Shape::Count => Value::Count(4),
        Shape::Mib => Value::Mib(256),
        Shape::Thousandths => Value::Thousandths(1500),
        Shape::Text => Value::Text("notes".into()),
        Shape::Tags => Value::Tags(Words::new(vec!["edge".into()])),
        Shape::Startup => Value::Startup(Startup { order: Some(1), up: None, down: None }),
        Shape::Boot => Value::Boot(Boot::Devices(["scsi0".into()].into())),
        Shape::Features => panic!("not managed"),
    }
}

/// A world in which token and user have exactly these privileges, everywhere.
fn with_privileges(flavour: Flavour, privileges: &BTreeSet<&str>) -> Setting {
    let list: Vec<&str> = privileges.iter().copied().collect();
    let list = list.join(", ");
    let acl = format!("[{{ path: /, role: exact, token: '{TOKEN}' }}, {{ path: /, role: exact, user: svc@pve }}]");
    setting(flavour, &format!("{WORLD}roles: {{ exact: [{list}] }}\nacl: {acl}\n"))
}

/// Reads, writes, waits for the task, and reads again: the whole of what the program does with a verb.
fn perform(setting: &Setting, kind: Kind, own: Option<&Try>) -> Result<(), String> {
    let mut bench = Bench::new(setting);
    if own.is_some_and(|own| own.runs) {
        let number = if kind == Kind::Qemu { 100 } else { 101 };
        bench = bench.act(Act::Start(number));
        bench.pass(20_000);
    }
    let taken = read(&bench, kind)?;
    let Some(own) = own else { return Ok(()) };
    let write = (own.write)(&taken, &bench);
    let caller = Caller { token: TokenId::new(TOKEN).expect("an id"), cluster: Some("house".into()) };
    let hand = Hand::new(bench.session("pve1"), caller);
    let before = bench.clock();
    let promise = write.promise(&run(hand.read(&write)));
    let accepted = call(&bench.session("pve1"), &Command::Write(write.clone())).map_err(|failure| failure.to_string())?;
    if let Event::Accepted(Accepted::Task(upid)) = accepted {
        ended(&bench, &Read::TaskStatus(upid))?;
    }
    // A reboot is over before the guest is up again.
    bench.pass(20_000);
    let passed = bench.clock().duration_since(before).expect("forwards");
    match promise.kept(&run(hand.read(&write)), passed.as_secs()) {
        Kept::Yes(_) => Ok(()),
        other => Err(format!("{other:?}")),
    }
}

fn ended(bench: &Bench, status: &Read) -> Result<(), String> {
    for _ in 0..200 {
        match call(&bench.session("pve1"), &Command::Read(status.clone())).map_err(|failure| failure.to_string())? {
            Event::Task(TaskState::Running) => bench.pass(1_000),
            Event::Task(TaskState::Ended { .. }) => return Ok(()),
            Event::Task(TaskState::Failed { cause, text }) => return Err(format!("task: {cause:?} {text}")),
            other => return Err(format!("{other:?}")),
        }
    }
    Err("the task does not end".into())
}

fn read(bench: &Bench, kind: Kind) -> Result<observe::Taken, String> {
    let environment = EnvironmentName::new("lab").expect("a name");
    let scope = Scope::new(vec![path(kind).vmid]);
    let question = Question { environment: &environment, cluster: Some("house"), token: TOKEN, scope: &scope, needs: &Needs::Everything };
    let taken = run(observe::read(&bench.session("pve1"), &question)).map_err(|unread| unread.to_string())?;
    let row = taken.observation.find(path(kind).vmid).ok_or_else(|| format!("unseen: {:?}", taken.notes))?;
    match (&row.status, &row.config) {
        (Status::Known(_), Reading::Read(_)) => Ok(taken),
        other => Err(format!("{other:?} {:?}", taken.notes)),
    }
}

/// The privileges that the table names for a verb, reading included, each as its alternatives.
fn needs(verb: Verb, flavour: Flavour, kind: Kind) -> Vec<&'static [&'static str]> {
    let major = u32::from(flavour.major());
    let mut needs: Vec<&[&str]> = Verb::Read.needs(major, kind).chain(verb.needs(major, kind)).map(|need| need.any_of).collect();
    needs.dedup();
    needs
}

fn exactly(needs: &[&'static [&'static str]]) -> BTreeSet<&'static str> {
    needs.iter().filter_map(|any_of| any_of.first().copied()).collect()
}

/// Every verb with every write of it, on every release and kind.
fn cases() -> Vec<(Flavour, Kind, Verb, Option<Try>)> {
    let mut cases = Vec::new();
    for (flavour, kind) in FLAVOURS.into_iter().flat_map(|flavour| Kind::ALL.map(|kind| (flavour, kind))) {
        cases.push((flavour, kind, Verb::Read, None));
        for verb in Verb::ALL {
            cases.extend(tries(verb, kind).into_iter().map(|own| (flavour, kind, verb, Some(own))));
        }
    }
    cases
}

#[test]
fn with_exactly_what_the_table_names_every_verb_works() {
    let cases = cases();
    for (flavour, kind, verb, own) in &cases {
        let exact = with_privileges(*flavour, &exactly(&needs(*verb, *flavour, *kind)));
        let name = own.as_ref().map_or("", |own| own.name.as_str());
        assert_eq!(perform(&exact, *kind, own.as_ref()), Ok(()), "{flavour:?} {kind} {verb:?} {name}");
    }
    assert!(cases.len() > 100, "{} cases", cases.len());
}

#[test]
fn without_any_one_of_them_it_does_not() {
    let mut count = 0;
    for (flavour, kind, verb, own) in cases() {
        let needs = needs(verb, flavour, kind);
        let whole = exactly(&needs);
        for any_of in needs {
            let privileges: BTreeSet<&str> = whole.iter().copied().filter(|privilege| !any_of.contains(privilege)).collect();
            let outcome = perform(&with_privileges(flavour, &privileges), kind, own.as_ref());
            let name = own.as_ref().map_or("", |own| own.name.as_str());
            let why = outcome.expect_err(&format!("{flavour:?} {kind} {verb:?} {name} works without {any_of:?}"));
            let is_denied = ["Permission check failed", "NotPermitted", "Forbidden", "Hidden", "not-permitted", "unseen"];
            assert!(is_denied.iter().any(|word| why.contains(word)), "{flavour:?} {kind} {verb:?} {name} without {any_of:?}: {why}");
            count += 1;
        }
    }
    assert!(count > 300, "{count} cases");
}

#[test]
fn where_one_of_several_will_do_any_of_them_does() {
    for (flavour, kind) in FLAVOURS.into_iter().flat_map(|flavour| Kind::ALL.map(|kind| (flavour, kind))) {
        let own = tries(Verb::Rollback, kind).remove(0);
        for privilege in ["VM.Snapshot", "VM.Snapshot.Rollback"] {
            let setting = with_privileges(flavour, &BTreeSet::from(["Sys.Audit", "VM.Audit", privilege]));
            assert_eq!(perform(&setting, kind, Some(&own)), Ok(()), "{flavour:?} {kind} {privilege}");
        }
    }
}

#[test]
fn every_release_knows_the_privileges_of_its_roles() {
    for flavour in FLAVOURS {
        let bench = Bench::new(&with_privileges(flavour, &BTreeSet::from(["Sys.Audit"])));
        let Ok(Event::Roles(roles)) = call(&bench.session("pve1"), &Command::Read(Read::Roles)) else { panic!("roles") };
        let known = roles.get("Administrator").expect("a role");
        for need in &converger_adapters::proxmox::doctor::need::NEEDS {
            for privilege in privileges_of(need.role, u32::from(flavour.major())) {
                assert!(known.contains(privilege), "{flavour:?} {} {privilege}", need.role);
            }
        }
    }
    assert_eq!(Cause::Forbidden, converger_adapters::proxmox::codec::classify("Permission check failed (/, Sys.Audit)"));
}
