//! Requested actions from a seed: the world that they need, each request with its idempotency key, and which process asks for it when.
//!
//! What a request must send is kept in the raw texts of Proxmox, so that the oracles need no code that they judge.

mod provisioning;

use converger_core::apply::IdempotencyKey;
use converger_core::guest::{EnvironmentName, GuestKind, Vmid};
use converger_core::intent::{ActionRequest, ActionTarget, Intent};
use converger_core::testing::Rng;
use converger_lab::{GuestSpec, LabGuestKind, ScalarSpec, StorageSpec, TakenSnapshotSpec, WorldSpec};

use super::setup::{SimulationSetup, WantedGuest};

/// The id that clones get.
pub(crate) const NEW_ID: u32 = 120;
/// The template that linked clones are made from.
pub(crate) const TEMPLATE_ID: u32 = 900;
/// A snapshot that exists from the beginning, one that was made after it, and one that is requested.
pub(crate) const OLD_SNAPSHOT: &str = "base";
pub(crate) const LAST_SNAPSHOT: &str = "later";
pub(crate) const NEW_SNAPSHOT: &str = "fresh";
/// The storage of a node, and one that all nodes share.
pub(crate) const LOCAL_STORAGE: &str = "local";
const SHARED_STORAGE: &str = "shared";

/// A request as a person makes it, once or several times.
#[derive(Clone, Debug)]
pub(crate) struct SimulatedRequest {
    pub(crate) key: IdempotencyKey,
    pub(crate) intent: Intent,
    pub(crate) wanted: WantedRequest,
}

/// What a request may send.
#[derive(Clone, Debug, Default)]
pub(crate) struct WantedRequest {
    /// The guest that it is sent to.
    pub(crate) vmid: u32,
    pub(crate) verb: &'static str,
    /// The snapshot in its path.
    pub(crate) object: Option<&'static str>,
    /// Parameters that it must have.
    pub(crate) parameters: Vec<(&'static str, String)>,
    /// The config that it declares, of the new guest if it makes one.
    pub(crate) guest: WantedGuest,
    /// What it may send to the guest that it makes, afterwards.
    pub(crate) later: Vec<WantedRequest>,
}

impl WantedRequest {
    /// Its steps in order.
    pub(crate) fn steps(&self) -> impl Iterator<Item = &Self> {
        std::iter::once(self).chain(&self.later)
    }

    /// Whether it configures the guest that it makes.
    pub(crate) fn provisions(&self) -> bool {
        !self.later.is_empty()
    }
}

/// What a process is asked for, besides the declared state.
#[derive(Clone, Debug)]
pub(crate) struct RequestJob {
    /// The indices of the requests.
    pub(crate) requests: Vec<usize>,
    /// Whether a run of the declared state is in flight at the same time, and whether it comes first.
    pub(crate) desired: DesiredRun,
}

/// Whether the declared state is applied beside the requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DesiredRun {
    None,
    Before,
    After,
}

/// The kinds of requests that are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestKind {
    Power,
    ConfigSet,
    SnapshotCreate,
    SnapshotWithMemory,
    SnapshotDelete,
    SnapshotRollback,
    DiskGrow,
    Migrate,
    CloneFull,
    CloneLinked,
    /// A clone with a first configuration, a larger disk and a start.
    ProvisionFull,
    ProvisionLinked,
}

impl RequestKind {
    /// Those with a change of their own are drawn more often.
    const DRAWN: [Self; 21] = [
        Self::Power,
        Self::ConfigSet,
        Self::SnapshotCreate,
        Self::SnapshotWithMemory,
        Self::SnapshotDelete,
        Self::SnapshotDelete,
        Self::SnapshotRollback,
        Self::SnapshotRollback,
        Self::DiskGrow,
        Self::DiskGrow,
        Self::Migrate,
        Self::Migrate,
        Self::Migrate,
        Self::CloneFull,
        Self::CloneFull,
        Self::CloneLinked,
        Self::CloneLinked,
        Self::ProvisionFull,
        Self::ProvisionFull,
        Self::ProvisionLinked,
        Self::ProvisionLinked,
    ];
}

/// Draws requests for the guests of a world, and completes the world with what they need.
pub(crate) fn draw_requests(rng: &mut Rng, spec: &mut WorldSpec) -> (Vec<SimulatedRequest>, Vec<RequestJob>) {
    spec.storages = storages();
    for guest in &mut spec.guests {
        let storage = if rng.one_in(2) { SHARED_STORAGE } else { LOCAL_STORAGE };
        complete_guest(guest, storage);
    }
    let count = 1 + usize::from(rng.one_in(3));
    let mut requests: Vec<SimulatedRequest> = Vec::new();
    for number in 0..count {
        let kind = *rng.pick(&RequestKind::DRAWN).unwrap_or(&RequestKind::Power);
        let at = rng.index(spec.guests.len());
        let variant = rng.next_u64();
        requests.extend(build_request(kind, spec, at, variant, number));
    }
    let jobs = draw_jobs(rng, requests.len());
    (requests, jobs)
}

/// Each request is made again by the next process, with the same key.
fn draw_jobs(rng: &mut Rng, requests: usize) -> Vec<RequestJob> {
    if requests == 0 {
        return Vec::new();
    }
    let mut desired =
        || *rng.pick(&[DesiredRun::None, DesiredRun::None, DesiredRun::Before, DesiredRun::After]).unwrap_or(&DesiredRun::None);
    let first = RequestJob { requests: vec![0], desired: desired() };
    let second = RequestJob { requests: (0..requests).collect(), desired: desired() };
    let mut jobs = vec![first, second];
    if requests > 1 {
        jobs.push(RequestJob { requests: vec![1], desired: DesiredRun::None });
    }
    jobs
}

fn storages() -> std::collections::BTreeMap<String, StorageSpec> {
    let storage = |path: &str, shared| StorageSpec { path: Some(path.to_owned()), shared, ..StorageSpec::default() };
    [(LOCAL_STORAGE, storage("/var/lib/vz", false)), (SHARED_STORAGE, storage("/mnt/shared", true))]
        .map(|(name, storage)| (name.to_owned(), storage))
        .into()
}

/// The key of the first disk.
pub(crate) fn disk_key(is_qemu: bool) -> &'static str {
    if is_qemu { "scsi0" } else { "rootfs" }
}

/// Gives the guest a disk of 8 GiB.
fn complete_guest(guest: &mut GuestSpec, storage: &str) {
    let is_qemu = guest.kind == LabGuestKind::Qemu;
    let (vmid, format) = (guest.vmid, if is_qemu { "qcow2" } else { "raw" });
    let disk = format!("{storage}:{vmid}/vm-{vmid}-disk-0.{format},size=8G");
    guest.config.insert(disk_key(is_qemu).to_owned(), ScalarSpec::Text(disk));
    if !is_qemu {
        // Without a network device, nothing tells a clone of the container from another one under its id, and it gets no further step.
        let card = format!("name=eth0,bridge={},hwaddr=BC:24:11:00:08:{:02X},type=veth", provisioning::NEW_BRIDGE, vmid % 256);
        guest.config.insert("net0".to_owned(), ScalarSpec::Text(card));
    }
}

/// The request of a saga, and whether its guest runs.
pub(crate) fn saga_request(step: &str) -> Option<(RequestKind, bool)> {
    Some(match step {
        "snapshot.create" => (RequestKind::SnapshotCreate, false),
        "snapshot.ram" => (RequestKind::SnapshotWithMemory, true),
        "snapshot.delete" => (RequestKind::SnapshotDelete, false),
        "snapshot.rollback" => (RequestKind::SnapshotRollback, true),
        "disk.grow" => (RequestKind::DiskGrow, true),
        "migrate.online" | "migrate.restart" => (RequestKind::Migrate, true),
        "migrate.offline" => (RequestKind::Migrate, false),
        "clone.full" => (RequestKind::CloneFull, false),
        "clone.linked" => (RequestKind::CloneLinked, false),
        "provision.full" => (RequestKind::ProvisionFull, false),
        "provision.linked" => (RequestKind::ProvisionLinked, false),
        _ => return None,
    })
}

/// The request of a saga, which every process of it makes, and what it needs in the world. Nothing for a step that is declared.
pub(crate) fn request_step(step: &str, spec: &mut WorldSpec) -> (Vec<SimulatedRequest>, Vec<RequestJob>) {
    let Some((kind, _)) = saga_request(step) else { return Default::default() };
    spec.storages = storages();
    let storage = if kind == RequestKind::Migrate { SHARED_STORAGE } else { LOCAL_STORAGE };
    spec.guests.iter_mut().for_each(|guest| complete_guest(guest, storage));
    if kind == RequestKind::Migrate {
        spec.cluster = Some("lab".to_owned());
        spec.nodes.insert("pve2".to_owned(), Default::default());
        // Two nodes have no quorum without each other.
        spec.nodes.insert("pve3".to_owned(), Default::default());
    }
    let request = build_request(kind, spec, 0, 1, 0).unwrap_or_else(|| panic!("{step} can be requested"));
    let job = RequestJob { requests: vec![0], desired: DesiredRun::None };
    (vec![request], vec![job; SAGA_LIVES])
}

/// How many processes of a saga make its request.
const SAGA_LIVES: usize = 3;
/// How many processes try to undo it.
const UNDO_LIVES: usize = 5;

/// The request that a plan has published as the inverse of a step. Each process has a key of its own, as a person who tries again.
pub(crate) fn undo_request(forward: SimulationSetup, change: &str) -> SimulationSetup {
    let guest = &forward.spec.guests[0];
    let target = ActionTarget { kind: guest_kind(guest), vmid: guest_id(guest.vmid) };
    let (action, parameters, wanted) = match change {
        "snapshot.delete" => {
            let wanted = WantedRequest { object: Some(NEW_SNAPSHOT), ..new_wanted_request(guest, "delsnapshot") };
            ("vm.snapshot.delete", vec![("name", NEW_SNAPSHOT.to_owned())], wanted)
        }
        "migrate" => {
            let wanted = WantedRequest { parameters: vec![("target", guest.node.clone())], ..new_wanted_request(guest, "migrate") };
            let restart = (guest.kind == LabGuestKind::Lxc && guest.state.is_some()).then(|| ("mode", "restart".to_owned()));
            ("vm.migrate", [("node", guest.node.clone())].into_iter().chain(restart).collect(), wanted)
        }
        other => panic!("nobody knows how to ask for `{other}`"),
    };
    let intent = parse_request(action, target, &parameters);
    let request = |number| SimulatedRequest { key: request_key(action, number), intent: intent.clone(), wanted: wanted.clone() };
    let requests: Vec<SimulatedRequest> = (1..=UNDO_LIVES).map(request).collect();
    let jobs = (0..UNDO_LIVES).map(|number| RequestJob { requests: vec![number], desired: DesiredRun::None }).collect();
    SimulationSetup { requests, jobs, ..forward }
}

/// A request of this kind for a guest, with what it needs in the world. `None` if the guest cannot have it.
pub(crate) fn build_request(kind: RequestKind, spec: &mut WorldSpec, at: usize, variant: u64, number: usize) -> Option<SimulatedRequest> {
    if kind == RequestKind::CloneLinked {
        return Some(clone_request(provisioning::add_template(spec), false, number));
    }
    if kind == RequestKind::ProvisionLinked {
        return Some(provisioning::provision_request(provisioning::add_template(spec), false, variant, number));
    }
    let other_node = spec.nodes.keys().find(|node| **node != spec.guests[at].node).cloned();
    let guest = spec.guests.get_mut(at)?;
    let is_qemu = guest.kind == LabGuestKind::Qemu;
    let is_running = guest.state.is_some();
    let wanted = |verb: &'static str, parameters: &[(&'static str, &str)]| WantedRequest {
        vmid: guest.vmid,
        verb,
        parameters: parameters.iter().map(|(key, value)| (*key, (*value).to_owned())).collect(),
        ..WantedRequest::default()
    };
    let (action, parameters, wanted): (&str, Vec<(&str, String)>, WantedRequest) = match kind {
        RequestKind::Power => power_request(is_running, is_qemu, variant, &wanted),
        RequestKind::ConfigSet => {
            let (key, value) = if variant.is_multiple_of(2) { ("cores", "4") } else { ("description", "by request") };
            let mut own = wanted("config", &[(key, value)]);
            own.guest.config.insert(key, Some(value.to_owned()));
            ("vm.config.set", vec![(key, value.to_owned())], own)
        }
        RequestKind::SnapshotCreate | RequestKind::SnapshotWithMemory => {
            let ram = kind == RequestKind::SnapshotWithMemory && is_qemu && is_running;
            let own = wanted("snapshot", if ram { &[("snapname", NEW_SNAPSHOT), ("vmstate", "1")] } else { &[("snapname", NEW_SNAPSHOT)] });
            ("vm.snapshot.create", vec![("name", NEW_SNAPSHOT.to_owned()), ("ram", ram.to_string())], own)
        }
        RequestKind::SnapshotDelete => {
            add_snapshots(guest, variant);
            let own = WantedRequest { object: Some(OLD_SNAPSHOT), ..new_wanted_request(guest, "delsnapshot") };
            ("vm.snapshot.delete", vec![("name", OLD_SNAPSHOT.to_owned())], own)
        }
        RequestKind::SnapshotRollback => {
            add_snapshots(guest, variant);
            // A guest that continues from the snapshot itself shows no rollback.
            let name = if variant.is_multiple_of(4) { LAST_SNAPSHOT } else { OLD_SNAPSHOT };
            let own = WantedRequest { object: Some(name), ..new_wanted_request(guest, "rollback") };
            ("vm.snapshot.rollback", vec![("name", name.to_owned())], own)
        }
        RequestKind::DiskGrow => {
            let disk = disk_key(is_qemu);
            (
                "vm.disk.grow",
                vec![("disk", disk.to_owned()), ("size", "10GiB".to_owned())],
                wanted("resize", &[("disk", disk), ("size", "10G")]),
            )
        }
        RequestKind::Migrate => {
            let node = other_node?;
            let own = wanted("migrate", &[("target", &node)]);
            let mut parameters = vec![("node", node), ("local-disks", "true".to_owned())];
            if !is_qemu && is_running {
                parameters.push(("mode", "restart".to_owned()));
            }
            ("vm.migrate", parameters, own)
        }
        RequestKind::CloneFull => return Some(clone_request(guest, true, number)),
        RequestKind::ProvisionFull => return Some(provisioning::provision_request(guest, true, variant, number)),
        RequestKind::CloneLinked | RequestKind::ProvisionLinked => return None,
    };
    let target = ActionTarget { kind: guest_kind(guest), vmid: guest_id(guest.vmid) };
    Some(SimulatedRequest { key: request_key(action, number), intent: parse_request(action, target, &parameters), wanted })
}

fn new_wanted_request(guest: &GuestSpec, verb: &'static str) -> WantedRequest {
    WantedRequest { vmid: guest.vmid, verb, ..WantedRequest::default() }
}

type RequestParts<'p> = (&'static str, Vec<(&'p str, String)>, WantedRequest);

/// Makes the expectation of a verb with these parameters.
type WantedRequestMaker<'m> = dyn Fn(&'static str, &[(&'static str, &str)]) -> WantedRequest + 'm;

fn power_request(is_running: bool, is_qemu: bool, variant: u64, wanted: &WantedRequestMaker<'_>) -> RequestParts<'static> {
    let timeout = || vec![("timeout", "3".to_owned())];
    match (is_running, variant % 3) {
        (false, _) => ("vm.start", Vec::new(), wanted("start", &[])),
        (true, 0) => ("vm.shutdown", timeout(), wanted("shutdown", &[("timeout", "3")])),
        (true, 1) if is_qemu => ("vm.reboot", timeout(), wanted("reboot", &[("timeout", "3")])),
        (true, _) => ("vm.stop", Vec::new(), wanted("stop", &[])),
    }
}

/// Two snapshots, the older one with the memory of a running virtual machine now and then. Containers have none: their disks cannot have
/// snapshots here.
fn add_snapshots(guest: &mut GuestSpec, variant: u64) {
    if guest.kind != LabGuestKind::Qemu || !guest.taken.is_empty() {
        return;
    }
    let has_memory = guest.state.is_some() && (variant >> 8).is_multiple_of(2);
    let taken = |name: &str, age_s, ram| TakenSnapshotSpec { name: name.to_owned(), age_s, description: None, ram };
    guest.taken = vec![taken(OLD_SNAPSHOT, 5_000, has_memory), taken(LAST_SNAPSHOT, 1_000, false)];
}

fn clone_request(source: &GuestSpec, is_full: bool, number: usize) -> SimulatedRequest {
    let (parameters, sent) = clone_parameters(source, is_full);
    let target = ActionTarget { kind: guest_kind(source), vmid: guest_id(source.vmid) };
    SimulatedRequest {
        key: request_key("vm.clone", number),
        intent: parse_request("vm.clone", target, &parameters),
        wanted: WantedRequest { parameters: sent, ..new_wanted_request(source, "clone") },
    }
}

type Parameters = Vec<(&'static str, String)>;

/// The parameters of a clone, as requested and as sent.
fn clone_parameters(source: &GuestSpec, is_full: bool) -> (Parameters, Parameters) {
    let name = format!("web-{NEW_ID}");
    let disks = if is_full { "full" } else { "linked" };
    let name_key = if source.kind == LabGuestKind::Qemu { "name" } else { "hostname" };
    (
        vec![("newid", NEW_ID.to_string()), ("name", name.clone()), ("disks", disks.to_owned())],
        vec![("newid", NEW_ID.to_string()), (name_key, name), ("full", u32::from(is_full).to_string())],
    )
}

/// The same request under another key, as a person makes it who continues what was cut off.
pub(crate) fn continued_request(request: &SimulatedRequest, run: u64) -> SimulatedRequest {
    let key = IdempotencyKey::new(&format!("{}-again-{run}", request.key.as_str())).unwrap_or_else(|| panic!("a key"));
    SimulatedRequest { key, ..request.clone() }
}

fn guest_kind(guest: &GuestSpec) -> GuestKind {
    if guest.kind == LabGuestKind::Qemu { GuestKind::Qemu } else { GuestKind::Lxc }
}

fn guest_id(vmid: u32) -> Vmid {
    Vmid::new(u64::from(vmid)).unwrap_or_else(|| panic!("an id"))
}

fn request_key(action: &str, number: usize) -> IdempotencyKey {
    IdempotencyKey::new(&format!("{action}-{number}")).unwrap_or_else(|| panic!("a key"))
}

fn parse_request(action: &str, target: ActionTarget, parameters: &[(&str, String)]) -> Intent {
    let environment = EnvironmentName::new("lab").unwrap_or_else(|| panic!("a name"));
    let parameters = parameters.iter().map(|(name, value)| (*name, value.as_str()));
    ActionRequest::parse(environment, action, target, parameters).unwrap_or_else(|faults| panic!("{action}: {faults:?}")).into()
}
