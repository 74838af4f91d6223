//! Checks the table of privileges in the lab: with exactly its privileges a verb works from the first read to the proof, and without any
//! one of them it fails.

use std::collections::BTreeSet;

use converger_adapters::proxmox::actuator::{CallerIdentity, ProxmoxActuator};
use converger_adapters::proxmox::client::TokenId;
use converger_adapters::proxmox::codec::{
    AcceptedChange, DiskKey, DiskSize, FailureCause, GuestPath, ProxmoxCommand, ProxmoxEvent, ProxmoxRead, ProxmoxTaskState, SnapshotName,
};
use converger_adapters::proxmox::doctor::privilege_needs::{PrivilegedVerb, role_privileges};
use converger_adapters::proxmox::observe::{self, ObservationRequest, ReadSet};
use converger_core::action::{
    Change, CloneSource, ClonedDisks, DiskGrowth, ExistingSnapshot, FieldChange, GuestClone, Migration, MigrationMode, NewSnapshot,
    SnapshotRollback,
};
use converger_core::apply::promise::PromiseCheck;
use converger_core::apply::{EnvRequest, EnvResponse, GuestAddress, LiveConfig};
use converger_core::desired::Scope;
use converger_core::guest::{EnvironmentName, GuestKind, GuestName, NodeName, RunState};
use converger_core::intent::{ActionRequest, ActionTarget, RequestedAction};
use converger_core::normalize::{BootOrder, ChangeEffect, Field, FieldRole, FieldValue, StartupOrder, TABLE, ValueShape, WordSet};
use converger_core::observe::{ObservedStatus, Reading};
use converger_lab::{Flavour, WorldEvent, WorldSpec};

use crate::doctor_lab::{DoctorLab, FLAVOURS, TOKEN, WORLD, block_on, call_command, lab_setting, test_vmid};
use crate::sent_change::SentChange;

fn guest_path(kind: GuestKind) -> GuestPath {
    let number = if kind == GuestKind::Qemu { 100 } else { 101 };
    GuestPath { node: NodeName::new("pve1").expect("a name"), kind, vmid: test_vmid(number) }
}

fn guest_address(kind: GuestKind) -> GuestAddress {
    let GuestPath { node, kind, vmid } = guest_path(kind);
    GuestAddress { node, kind, vmid }
}

type MakeChange = Box<dyn Fn(&LiveConfig) -> Change>;

/// A change of a verb: how to build it from the config of the guest, and whether the guest must run.
struct VerbAttempt {
    name: String,
    must_run: bool,
    change: MakeChange,
}

fn fixed_attempt(name: &str, runs: bool, change: Change) -> VerbAttempt {
    VerbAttempt { name: name.to_owned(), must_run: runs, change: Box::new(move |_| change.clone()) }
}

/// All changes that belong to a verb.
fn attempts_of_verb(verb: PrivilegedVerb, kind: GuestKind) -> Vec<VerbAttempt> {
    match verb {
        PrivilegedVerb::Read => vec![],
        PrivilegedVerb::Start => vec![fixed_attempt("start", false, Change::Start)],
        PrivilegedVerb::Stop => {
            let mut tries =
                vec![fixed_attempt("shutdown", true, Change::Shutdown { timeout_secs: 60 }), fixed_attempt("stop", true, Change::Stop)];
            tries.extend((kind == GuestKind::Qemu).then(|| fixed_attempt("reboot", true, Change::Reboot { timeout_secs: 60 })));
            tries
        }
        PrivilegedVerb::SetNetwork => {
            vec![first_config_attempt(kind, &[("bridge", "vmbr0"), ("vlan", "30"), ("addresses", "10.0.0.7/24")])]
        }
        PrivilegedVerb::SetCloudInit if kind == GuestKind::Lxc => vec![],
        PrivilegedVerb::SetCloudInit => vec![first_config_attempt(kind, &[("ci-user", "debian"), ("dns", "10.0.0.53")])],
        PrivilegedVerb::Snapshot => snapshot_attempts(kind),
        PrivilegedVerb::Rollback => {
            let (parent, snapshot) = (None, existing_snapshot());
            let rollback = SnapshotRollback { parent, snapshot, state: RunState::Stopped, volumes: Box::default() };
            vec![fixed_attempt("rollback", false, Change::SnapshotRollback(Box::new(rollback)))]
        }
        PrivilegedVerb::Clone => {
            vec![VerbAttempt { name: "clone".into(), must_run: false, change: Box::new(move |config| clone(kind, config)) }]
        }
        PrivilegedVerb::Migrate => migration_attempts(kind),
        PrivilegedVerb::Grow => {
            vec![VerbAttempt { name: "grow".into(), must_run: false, change: Box::new(move |config| growth(kind, config)) }]
        }
        PrivilegedVerb::SetCpu
        | PrivilegedVerb::SetMemory
        | PrivilegedVerb::SetOptions
        | PrivilegedVerb::SetStartup
        | PrivilegedVerb::SetBoot => field_attempts(verb, kind),
    }
}

/// The first config write of a new guest, with these parameters of its request.
fn first_config_attempt(kind: GuestKind, parameters: &[(&str, &str)]) -> VerbAttempt {
    let environment = EnvironmentName::new("lab").expect("a name");
    let all = [("newid", "300"), ("name", "copy")].into_iter().chain(parameters.iter().copied());
    let request = ActionRequest::parse(environment, "vm.clone", ActionTarget { kind, vmid: guest_path(kind).vmid }, all);
    let request = request.unwrap_or_else(|faults| panic!("{faults:?}"));
    let RequestedAction::Clone(clone) = request.action() else { panic!("it is a clone") };
    fixed_attempt("first config", false, Change::Provision(Box::new(clone.provisioning.clone())))
}

/// The snapshot of the guests in [`WORLD`], which has no time.
fn existing_snapshot() -> ExistingSnapshot {
    ExistingSnapshot { made_at: 0, name: SnapshotName::new("s1").expect("a name"), ram: false }
}

fn snapshot_attempts(kind: GuestKind) -> Vec<VerbAttempt> {
    let create = |ram| {
        let name = SnapshotName::new("s2").expect("a name");
        Change::SnapshotCreate(Box::new(NewSnapshot { description: Some("d".into()), name, ram }))
    };
    let mut tries = vec![
        fixed_attempt("create", false, create(false)),
        fixed_attempt("delete", false, Change::SnapshotDelete(Box::new(existing_snapshot()))),
    ];
    tries.extend((kind == GuestKind::Qemu).then(|| fixed_attempt("create with memory", true, create(true))));
    tries
}

fn clone(kind: GuestKind, config: &LiveConfig) -> Change {
    let GuestAddress { node, vmid, .. } = guest_address(kind);
    let source = CloneSource {
        digest: config.digest.clone().expect("a digest"),
        identity: config.identity.clone(),
        kind,
        name: config.name.clone(),
        node: node.clone(),
        template: false,
        vmid,
    };
    let name = GuestName::new("copy").expect("a name");
    let clone = GuestClone {
        disks: ClonedDisks::Full,
        grows: false,
        name,
        node,
        pool: None,
        provisions: false,
        source,
        storage: None,
        vmid: test_vmid(300),
    };
    Change::Clone(Box::new(clone))
}

fn migration_attempts(kind: GuestKind) -> Vec<VerbAttempt> {
    let node = |text| NodeName::new(text).expect("a name");
    let running = if kind == GuestKind::Qemu { MigrationMode::Online } else { MigrationMode::Restart };
    [MigrationMode::Offline, running]
        .map(|mode| {
            let migration = Migration { from: node("pve1"), mode, storage: None, to: node("pve2"), volumes: Box::default() };
            fixed_attempt(mode.word(), mode != MigrationMode::Offline, Change::Migrate(Box::new(migration)))
        })
        .into()
}

fn growth(kind: GuestKind, config: &LiveConfig) -> Change {
    let disk = DiskKey::new(kind, if kind == GuestKind::Qemu { "scsi0" } else { "rootfs" }).expect("a disk");
    let own = config.disks.iter().find(|own| own.key == disk).expect("the disk");
    let (before, after) = (own.size.expect("a size"), DiskSize::parse("16G").expect("a size"));
    Change::DiskGrow(Box::new(DiskGrowth { after, before, disk, volume: Some(own.volume.clone()) }))
}

/// One write for each field of the verb.
fn field_attempts(verb: PrivilegedVerb, kind: GuestKind) -> Vec<VerbAttempt> {
    let own =
        TABLE.iter().filter(|rule| rule.kind == kind && rule.role == FieldRole::Managed && PrivilegedVerb::of_field(rule.field) == verb);
    own.map(|rule| {
        let field = rule.field;
        let after = Some(sample_value(field));
        let change = FieldChange { field, before: None, after, pending: None, effect: ChangeEffect::Recorded };
        fixed_attempt(field.word(), false, Change::ConfigSet(Box::new([change])))
    })
    .collect()
}

fn sample_value(field: Field) -> FieldValue {
    match field.shape() {
        ValueShape::Flag => FieldValue::Flag(true),
        ValueShape::Count => FieldValue::Count(4),
        ValueShape::Mib => FieldValue::Mib(256),
        ValueShape::Thousandths => FieldValue::Thousandths(1500),
        ValueShape::Text => FieldValue::Text("notes".into()),
        ValueShape::Tags => FieldValue::Tags(WordSet::new(vec!["edge".into()])),
        ValueShape::Startup => FieldValue::Startup(StartupOrder { order: Some(1), up: None, down: None }),
        ValueShape::Boot => FieldValue::Boot(BootOrder::Devices(["scsi0".into()].into())),
        ValueShape::Features => panic!("not managed"),
    }
}

/// A world in which token and user have exactly these privileges, everywhere.
fn with_privileges(flavour: Flavour, privileges: &BTreeSet<&str>) -> WorldSpec {
    let list: Vec<&str> = privileges.iter().copied().collect();
    let list = list.join(", ");
    let acl = format!("[{{ path: /, role: exact, token: '{TOKEN}' }}, {{ path: /, role: exact, user: svc@pve }}]");
    lab_setting(flavour, &format!("{WORLD}roles: {{ exact: [{list}] }}\nacl: {acl}\n"))
}

/// Reads, writes, waits for the task, and reads again, as the program does for a verb.
fn perform_attempt(spec: &WorldSpec, kind: GuestKind, own: Option<&VerbAttempt>) -> Result<(), String> {
    let mut bench = DoctorLab::new(spec);
    if own.is_some_and(|own| own.must_run) {
        let number = if kind == GuestKind::Qemu { 100 } else { 101 };
        bench = bench.apply_event(WorldEvent::Start(number));
        bench.advance_time(20_000);
    }
    take_reading(&bench, kind)?;
    let Some(own) = own else { return Ok(()) };
    let caller = CallerIdentity { token: TokenId::new(TOKEN).expect("an id"), cluster: Some("house".into()) };
    let actuator = ProxmoxActuator::new(bench.session("pve1"), caller);
    let before = bench.clock();
    let EnvResponse::Config(config) = block_on(actuator.request(&EnvRequest::Config(guest_address(kind)))) else {
        return Err("its config is unseen".into());
    };
    let sent = block_on(SentChange::prepare(&actuator, &guest_address(kind), (own.change)(&config)));
    assert!(!matches!(sent.check_before(), PromiseCheck::Kept(_)), "{kind} {}: kept before it is sent", own.name);
    let accepted = call_command(&bench.session("pve1"), &sent.command(config.revision)).map_err(|failure| failure.to_string())?;
    if let ProxmoxEvent::Accepted(AcceptedChange::Task(upid)) = accepted {
        wait_for_task(&bench, &ProxmoxRead::TaskStatus(upid))?;
    }
    // The task of a reboot ends before the guest is up again.
    bench.advance_time(20_000);
    let passed = bench.clock().duration_since(before).expect("forwards");
    match block_on(sent.check_now(&actuator, passed.as_secs(), None)) {
        PromiseCheck::Kept(_) => Ok(()),
        other => Err(format!("{other:?}")),
    }
}

fn wait_for_task(bench: &DoctorLab, status: &ProxmoxRead) -> Result<(), String> {
    for _ in 0..200 {
        match call_command(&bench.session("pve1"), &ProxmoxCommand::Read(status.clone())).map_err(|failure| failure.to_string())? {
            ProxmoxEvent::Task(ProxmoxTaskState::Running) => bench.advance_time(1_000),
            ProxmoxEvent::Task(ProxmoxTaskState::Ended { .. }) => return Ok(()),
            ProxmoxEvent::Task(ProxmoxTaskState::Failed { cause, text }) => return Err(format!("task: {cause:?} {text}")),
            other => return Err(format!("{other:?}")),
        }
    }
    Err("the task does not end".into())
}

fn take_reading(bench: &DoctorLab, kind: GuestKind) -> Result<observe::ProxmoxReading, String> {
    let environment = EnvironmentName::new("lab").expect("a name");
    let scope = Scope::new(vec![guest_path(kind).vmid]);
    let question =
        ObservationRequest { environment: &environment, cluster: Some("house"), token: TOKEN, scope: &scope, needs: &ReadSet::Everything };
    let reading = block_on(observe::take_reading(&bench.session("pve1"), &question)).map_err(|unread| unread.to_string())?;
    let row = reading.observation.find(guest_path(kind).vmid).ok_or_else(|| format!("unseen: {:?}", reading.notes))?;
    match (&row.status, &row.config) {
        (ObservedStatus::Known(_), Reading::Read(_)) => Ok(reading),
        other => Err(format!("{other:?} {:?}", reading.notes)),
    }
}

/// The privileges of a verb and of reading according to the table, each with its alternatives.
fn needed_privileges(verb: PrivilegedVerb, flavour: Flavour, kind: GuestKind) -> Vec<&'static [&'static str]> {
    let major = u32::from(flavour.major());
    let mut needs: Vec<&[&str]> = PrivilegedVerb::Read.needs(major, kind).chain(verb.needs(major, kind)).map(|need| need.any_of).collect();
    needs.dedup();
    needs
}

fn first_privileges(needs: &[&'static [&'static str]]) -> BTreeSet<&'static str> {
    needs.iter().filter_map(|any_of| any_of.first().copied()).collect()
}

/// Every verb with each of its writes, on every release and kind.
fn all_cases() -> Vec<(Flavour, GuestKind, PrivilegedVerb, Option<VerbAttempt>)> {
    let mut cases = Vec::new();
    for (flavour, kind) in FLAVOURS.into_iter().flat_map(|flavour| GuestKind::ALL.map(|kind| (flavour, kind))) {
        cases.push((flavour, kind, PrivilegedVerb::Read, None));
        for verb in PrivilegedVerb::ALL {
            cases.extend(attempts_of_verb(verb, kind).into_iter().map(|own| (flavour, kind, verb, Some(own))));
        }
    }
    cases
}

#[test]
fn every_verb_works_with_exactly_the_listed_privileges() {
    let cases = all_cases();
    for (flavour, kind, verb, own) in &cases {
        let spec = with_privileges(*flavour, &first_privileges(&needed_privileges(*verb, *flavour, *kind)));
        let name = own.as_ref().map_or("", |own| own.name.as_str());
        assert_eq!(perform_attempt(&spec, *kind, own.as_ref()), Ok(()), "{flavour:?} {kind} {verb:?} {name}");
    }
    assert!(cases.len() > 100, "{} cases", cases.len());
}

#[test]
fn no_verb_works_without_one_listed_privilege() {
    let mut count = 0;
    for (flavour, kind, verb, own) in all_cases() {
        let needs = needed_privileges(verb, flavour, kind);
        let whole = first_privileges(&needs);
        for any_of in needs {
            let privileges: BTreeSet<&str> = whole.iter().copied().filter(|privilege| !any_of.contains(privilege)).collect();
            let outcome = perform_attempt(&with_privileges(flavour, &privileges), kind, own.as_ref());
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
fn any_alternative_privilege_suffices() {
    for (flavour, kind) in FLAVOURS.into_iter().flat_map(|flavour| GuestKind::ALL.map(|kind| (flavour, kind))) {
        let own = attempts_of_verb(PrivilegedVerb::Rollback, kind).remove(0);
        for privilege in ["VM.Snapshot", "VM.Snapshot.Rollback"] {
            let spec = with_privileges(flavour, &BTreeSet::from(["Sys.Audit", "VM.Audit", privilege]));
            assert_eq!(perform_attempt(&spec, kind, Some(&own)), Ok(()), "{flavour:?} {kind} {privilege}");
        }
    }
}

#[test]
fn every_release_knows_the_privileges_of_its_roles() {
    for flavour in FLAVOURS {
        let bench = DoctorLab::new(&with_privileges(flavour, &BTreeSet::from(["Sys.Audit"])));
        let Ok(ProxmoxEvent::Roles(roles)) = call_command(&bench.session("pve1"), &ProxmoxCommand::Read(ProxmoxRead::Roles)) else {
            panic!("roles")
        };
        let known = roles.get("Administrator").expect("a role");
        for need in &converger_adapters::proxmox::doctor::privilege_needs::NEEDS {
            for privilege in role_privileges(need.role, u32::from(flavour.major())) {
                assert!(known.contains(privilege), "{flavour:?} {} {privilege}", need.role);
            }
        }
    }
    assert_eq!(FailureCause::Forbidden, converger_adapters::proxmox::codec::classify_text("Permission check failed (/, Sys.Audit)"));
}
