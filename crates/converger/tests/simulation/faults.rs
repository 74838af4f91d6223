//! Faults from a seed: on the wire, in the world, in tasks, in our process and in its store. Each fault waits for its trigger: the nth
//! request, the moment before or after a change is sent, or the nth command of the process.

use converger_core::guest::RunState;
use converger_core::testing::Rng;
use converger_lab::{
    GuestSpec, LabGuestKind, LabRequest, LabResponse, NodeService, RequestFault, ResponseFault, ScalarSpec, TaskFault, TaskFaultEffect,
    TlsIdentity, WireDelivery, WorldEvent,
};
use converger_store::CommitFault;

use super::requests::{self, NEW_ID};
use super::setup::{OTHER_TOKEN, SimulationSetup};

/// Kinds of faults; each must have an effect at least once in a long run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum FaultKind {
    LostBefore,
    LostAfter,
    Truncated,
    SlowAnswer,
    Refused595,
    GaveUp596,
    Garbled599,
    Redirected,
    Dripped,
    Page502,
    Busy503,
    SignInPage,
    Unauthorized,
    Forbidden,
    Died500,
    Empty200,
    Flooded,
    FloodedUnannounced,
    Compressed,
    NodeDown,
    Partition,
    ProxyDown,
    ProxyHung,
    DaemonDown,
    DaemonHung,
    FilesDown,
    FilesHung,
    StatdDown,
    StatdHung,
    SlowNode,
    VerySlowNode,
    Vanished,
    Unlisted,
    Blind,
    Recycled,
    Reborn,
    Locked,
    ChangedByHand,
    PendingByHand,
    TaggedProd,
    TaggedHold,
    Protected,
    Renamed,
    StartedByHand,
    StoppedByHand,
    Paused,
    Moved,
    HalfSnapshot,
    ClockJump,
    NodeClockJump,
    FewCpus,
    OtherFace,
    Revoked,
    HaTakesOver,
    OtherTask,
    SnapshotTaken,
    SnapshotDeleted,
    SnapshotRetaken,
    GuestCreated,
    GuestDeleted,
    IdReused,
    DiskGrown,
    StorageFilled,
    TaskFails,
    TaskFailsLate,
    TaskDoesNothing,
    TaskKilledHalfway,
    TaskHangs,
    TaskWarns,
    TaskKilled,
    CrashBefore,
    CrashAfter,
    PowerLost,
    StoreFull,
    SyncLost,
    SyncLostWritten,
    OwnClockJump,
    Asleep,
    Drained,
    HeldByPerson,
    Frozen,
    NoRoom,
}

impl FaultKind {
    /// The kinds that affect one request on the wire.
    pub(crate) fn wire_kinds() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().take_while(|kind| *kind < Self::NodeDown)
    }

    /// Whether a response shows this fault.
    pub(crate) fn is_visible_in(self, answer: &LabResponse) -> bool {
        let is = |status: u16| answer.status == status && answer.delivery == WireDelivery::Deliver;
        match self {
            Self::LostBefore => answer.delivery == WireDelivery::LostBefore,
            Self::LostAfter => answer.delivery == WireDelivery::LostAfter,
            Self::Truncated => matches!(answer.delivery, WireDelivery::Truncated(_)),
            Self::SlowAnswer => answer.delay_ms > 0,
            Self::Refused595 => is(595),
            Self::GaveUp596 => is(596),
            Self::Garbled599 => is(599),
            Self::Redirected => is(301),
            Self::Dripped => matches!(answer.delivery, WireDelivery::Drip { .. }),
            Self::Page502 => is(502),
            Self::Busy503 => is(503),
            Self::SignInPage => is(200) && answer.body.starts_with(b"<html>"),
            Self::Unauthorized => is(401),
            Self::Forbidden => is(403),
            Self::Died500 => is(500),
            Self::Empty200 => is(200) && answer.body == EMPTY_SUCCESS.as_bytes(),
            Self::Flooded => matches!(answer.delivery, WireDelivery::Flood { announced: true, .. }),
            Self::FloodedUnannounced => matches!(answer.delivery, WireDelivery::Flood { announced: false, .. }),
            Self::Compressed => matches!(answer.delivery, WireDelivery::GzipBomb(_)),
            _ => false,
        }
    }

    /// All kinds.
    pub(crate) const ALL: [Self; 82] = [
        Self::LostBefore,
        Self::LostAfter,
        Self::Truncated,
        Self::SlowAnswer,
        Self::Refused595,
        Self::GaveUp596,
        Self::Garbled599,
        Self::Redirected,
        Self::Dripped,
        Self::Page502,
        Self::Busy503,
        Self::SignInPage,
        Self::Unauthorized,
        Self::Forbidden,
        Self::Died500,
        Self::Empty200,
        Self::Flooded,
        Self::FloodedUnannounced,
        Self::Compressed,
        Self::NodeDown,
        Self::Partition,
        Self::ProxyDown,
        Self::ProxyHung,
        Self::DaemonDown,
        Self::DaemonHung,
        Self::FilesDown,
        Self::FilesHung,
        Self::StatdDown,
        Self::StatdHung,
        Self::SlowNode,
        Self::VerySlowNode,
        Self::Vanished,
        Self::Unlisted,
        Self::Blind,
        Self::Recycled,
        Self::Reborn,
        Self::Locked,
        Self::ChangedByHand,
        Self::PendingByHand,
        Self::TaggedProd,
        Self::TaggedHold,
        Self::Protected,
        Self::Renamed,
        Self::StartedByHand,
        Self::StoppedByHand,
        Self::Paused,
        Self::Moved,
        Self::HalfSnapshot,
        Self::ClockJump,
        Self::NodeClockJump,
        Self::FewCpus,
        Self::OtherFace,
        Self::Revoked,
        Self::HaTakesOver,
        Self::OtherTask,
        Self::SnapshotTaken,
        Self::SnapshotDeleted,
        Self::SnapshotRetaken,
        Self::GuestCreated,
        Self::GuestDeleted,
        Self::IdReused,
        Self::DiskGrown,
        Self::StorageFilled,
        Self::TaskFails,
        Self::TaskFailsLate,
        Self::TaskDoesNothing,
        Self::TaskKilledHalfway,
        Self::TaskHangs,
        Self::TaskWarns,
        Self::TaskKilled,
        Self::CrashBefore,
        Self::CrashAfter,
        Self::PowerLost,
        Self::StoreFull,
        Self::SyncLost,
        Self::SyncLostWritten,
        Self::OwnClockJump,
        Self::Asleep,
        Self::Drained,
        Self::HeldByPerson,
        Self::Frozen,
        Self::NoRoom,
    ];
}

/// The number of processors of every node.
pub(crate) const CPUS: u64 = 8;

/// The size to which another person grows a disk: more than any request asks for.
const FOREIGN_DISK_SIZE: &str = "12G";

/// A success response without data.
const EMPTY_SUCCESS: &str = "{\"success\":1,\"data\":null}";

/// When a fault occurs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FaultTrigger {
    /// Before the nth request to the world.
    Request(u64),
    /// Before a change is sent, after all checks have passed.
    BeforeSend,
    /// After a change was sent, before its response arrives.
    AfterSend,
    /// At the nth command of a process that executes operations, to the world or to its store.
    Command(u64),
    /// At the command that sends a change.
    Sending,
}

/// The first process without faults. A fault that waits for a change never occurs if there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FaultFreeRun {
    /// It sends this many requests and finds nothing to change.
    Reads(u64),
    Acts,
}

/// A fault that waits for its trigger.
#[derive(Clone, Debug)]
pub(crate) struct ScheduledFault {
    pub(crate) kind: FaultKind,
    pub(crate) trigger: FaultTrigger,
    pub(crate) vmid: u32,
    is_qemu: bool,
    pub(crate) node: String,
    /// The delay until it heals; `None` if it stays until everything heals.
    pub(crate) heals_ms: Option<u64>,
    pub(crate) number: u64,
}

/// A fault in the world.
pub(crate) enum FaultEffect {
    /// Affects the next request.
    Wire(ResponseFault),
    /// An event, optionally with one that heals it.
    Act(WorldEvent, Option<WorldEvent>),
    /// Affects the next task.
    Task(TaskFaultEffect),
    /// A foreign request at the guest's node.
    Other(LabRequest),
}

/// Draws the faults of a schedule, at least `least`.
pub(crate) fn draw_faults(
    rng: &mut Rng,
    simulation_setup: &SimulationSetup,
    least: usize,
    undisturbed: FaultFreeRun,
) -> Vec<ScheduledFault> {
    let count = *rng.pick(&[0, 1, 1, 2, 2, 2, 3, 3, 4, 6]).unwrap_or(&1);
    let nodes: Vec<&String> = simulation_setup.spec.nodes.keys().collect();
    let mut faults = Vec::new();
    for _ in 0..count.max(least) {
        let mut kind = *rng.pick(&FaultKind::ALL).unwrap_or(&FaultKind::LostAfter);
        while !is_possible(kind, simulation_setup, undisturbed) {
            kind = *rng.pick(&FaultKind::ALL).unwrap_or(&FaultKind::LostAfter);
        }
        let guest = rng.pick(&simulation_setup.spec.guests);
        faults.push(ScheduledFault {
            kind,
            trigger: draw_trigger(rng, kind, undisturbed),
            vmid: if kind == FaultKind::GuestCreated { NEW_ID } else { guest.map_or(100, |guest| guest.vmid) },
            is_qemu: guest.is_none_or(|guest| guest.kind == converger_lab::LabGuestKind::Qemu),
            node: rng.pick(&nodes).map_or_else(String::new, |node| (*node).clone()),
            heals_ms: rng.one_in(2).then(|| rng.below(90_000)),
            number: rng.next_u64(),
        });
    }
    if rng.one_in(50) {
        faults.extend(late_change_faults(rng, simulation_setup).into_iter().flatten());
    }
    if rng.one_in(20) {
        faults.extend(rare_faults(rng, simulation_setup).into_iter().flatten());
    }
    if rng.one_in(20) {
        faults.extend(stale_report_faults(rng, simulation_setup).into_iter().flatten());
    }
    if rng.one_in(6) {
        faults.extend(second_object_fault(rng, simulation_setup));
    }
    if simulation_setup.requests.iter().any(|request| request.wanted.provisions()) && rng.one_in(2) {
        faults.extend(new_guest_faults(rng, simulation_setup));
    }
    // Few worlds have a guest that is restarted.
    if rng.one_in(4) {
        faults.extend(cannot_start_again(simulation_setup));
    }
    faults
}

/// Whether the fault can have an effect at all.
fn is_possible(kind: FaultKind, simulation_setup: &SimulationSetup, undisturbed: FaultFreeRun) -> bool {
    let needs_change = kind >= FaultKind::CrashBefore || (FaultKind::TaskFails..=FaultKind::TaskKilled).contains(&kind);
    let is_about_requests = (FaultKind::SnapshotTaken..FaultKind::TaskFails).contains(&kind);
    (kind != FaultKind::Revoked || simulation_setup.is_granted)
        && (!is_about_requests || !simulation_setup.requests.is_empty())
        && (undisturbed == FaultFreeRun::Acts || !needs_change)
}

/// A change that takes effect long after it was sent: one worker of its node is slow while the others soon respond again, and the sender
/// dies.
fn late_change_faults(rng: &mut Rng, simulation_setup: &SimulationSetup) -> Option<[ScheduledFault; 2]> {
    let guest = rng.pick(&simulation_setup.spec.guests)?;
    let slow = ScheduledFault {
        kind: FaultKind::VerySlowNode,
        trigger: FaultTrigger::BeforeSend,
        vmid: guest.vmid,
        is_qemu: guest.kind == converger_lab::LabGuestKind::Qemu,
        node: guest.node.clone(),
        heals_ms: Some(rng.below(3_000)),
        number: rng.next_u64(),
    };
    let crash = ScheduledFault { kind: FaultKind::CrashAfter, trigger: FaultTrigger::Sending, ..slow.clone() };
    Some([slow, crash])
}

/// What hardly ever comes about by itself: the node of a guest is gone between the plan and the check of its first step, a task of ours is killed, one is
/// still at work when the next process asks for it, our token loses its privileges, and a guest is protected between the plan and the check.
fn rare_faults(rng: &mut Rng, simulation_setup: &SimulationSetup) -> Option<Vec<ScheduledFault>> {
    let entry = simulation_setup.spec.nodes.keys().next()?;
    let guest = rng.pick(&simulation_setup.spec.guests)?;
    let of =
        |kind, moment| ScheduledFault { vmid: guest.vmid, node: guest.node.clone(), heals_ms: None, ..ScheduledFault::at(kind, moment) };
    match rng.below(6) {
        0 | 1 if guest.node != *entry => Some(vec![of(FaultKind::NodeDown, FaultTrigger::Request(6 + rng.below(4)))]),
        2 => Some(vec![of(FaultKind::TaskKilled, FaultTrigger::AfterSend)]),
        3 => Some(vec![
            of(FaultKind::TaskHangs, FaultTrigger::BeforeSend),
            of(FaultKind::CrashAfter, FaultTrigger::Command(8 + rng.below(3))),
        ]),
        4 if simulation_setup.is_granted => Some(vec![of(FaultKind::Revoked, FaultTrigger::Request(1 + rng.below(10)))]),
        5 => Some(vec![of(FaultKind::TaggedProd, FaultTrigger::Request(6 + rng.below(4)))]),
        _ => None,
    }
}

/// A second object of the first request changes between its plan and its check: a snapshot, a disk, a source, or the new id.
fn second_object_fault(rng: &mut Rng, simulation_setup: &SimulationSetup) -> Option<ScheduledFault> {
    let request = simulation_setup.requests.first()?;
    let guest = simulation_setup.spec.guests.iter().find(|guest| guest.vmid == request.wanted.vmid)?;
    let kinds: &[FaultKind] = match request.wanted.verb {
        "snapshot" => &[FaultKind::SnapshotTaken],
        "delsnapshot" => &[FaultKind::SnapshotRetaken, FaultKind::SnapshotRetaken, FaultKind::SnapshotDeleted],
        // A rollback hardly ever fails by itself.
        "rollback" => &[FaultKind::SnapshotRetaken, FaultKind::SnapshotRetaken, FaultKind::SnapshotDeleted, FaultKind::TaskFails],
        "resize" => &[FaultKind::DiskGrown],
        "clone" => &[FaultKind::GuestCreated, FaultKind::Recycled, FaultKind::ChangedByHand, FaultKind::HeldByPerson],
        "migrate" => &[FaultKind::Reborn, FaultKind::Recycled, FaultKind::Moved],
        _ => return None,
    };
    let kind = *rng.pick(kinds)?;
    Some(ScheduledFault {
        kind,
        vmid: if kind == FaultKind::GuestCreated { NEW_ID } else { guest.vmid },
        is_qemu: guest.kind == LabGuestKind::Qemu,
        node: guest.node.clone(),
        number: rng.next_u64(),
        ..ScheduledFault::at(kind, FaultTrigger::Command(2 + rng.below(5)))
    })
}

/// The command that sends the first config of a new guest if nothing goes wrong and nothing else runs.
const FIRST_CONFIG_COMMAND: u64 = 21;

/// Something happens to a guest that a request makes, between two of its steps: another guest takes its id, a person works on it, or one of
/// its tasks fails. Now and then the process dies then, and the next one continues the request.
fn new_guest_faults(rng: &mut Rng, simulation_setup: &SimulationSetup) -> Vec<ScheduledFault> {
    const KINDS: [FaultKind; 16] = [
        FaultKind::IdReused,
        FaultKind::IdReused,
        FaultKind::Reborn,
        FaultKind::Recycled,
        FaultKind::ChangedByHand,
        FaultKind::StartedByHand,
        FaultKind::TaggedHold,
        FaultKind::Renamed,
        FaultKind::Locked,
        FaultKind::HeldByPerson,
        FaultKind::DiskGrown,
        FaultKind::Vanished,
        FaultKind::TaskFails,
        FaultKind::TaskHangs,
        FaultKind::TaskKilledHalfway,
        FaultKind::TaskKilled,
    ];
    let provisioned = simulation_setup.requests.iter().find(|request| request.wanted.provisions());
    let source = provisioned.and_then(|request| simulation_setup.spec.guests.iter().find(|guest| guest.vmid == request.wanted.vmid));
    let Some(source) = source else { return Vec::new() };
    // Its first config is mostly sent by this command.
    let is_lost = rng.one_in(3);
    let at = if is_lost { FIRST_CONFIG_COMMAND } else { 10 + rng.below(40) };
    let kinds: &[FaultKind] = if is_lost { &[FaultKind::LostBefore, FaultKind::DaemonHung] } else { &KINDS };
    let kind = *rng.pick(kinds).unwrap_or(&FaultKind::IdReused);
    let fault = ScheduledFault {
        kind,
        vmid: NEW_ID,
        is_qemu: source.kind == LabGuestKind::Qemu,
        node: source.node.clone(),
        // A daemon that hangs is not back before the process gives up.
        heals_ms: None,
        number: rng.next_u64(),
        ..ScheduledFault::at(kind, FaultTrigger::Command(at))
    };
    let dies = rng.one_in(2).then(|| ScheduledFault { kind: FaultKind::CrashAfter, ..fault.clone() });
    [fault].into_iter().chain(dies).collect()
}

/// pvestatd of a node with a running virtual machine hangs or dies at the first request and stays so, and the process dies when it sends its first change. A
/// report is only seen to be old by a reading that begins more than 30 s later: a process that lives takes its one reading before that.
fn stale_report_faults(rng: &mut Rng, simulation_setup: &SimulationSetup) -> Option<[ScheduledFault; 2]> {
    let is_running = |guest: &&GuestSpec| guest.kind == converger_lab::LabGuestKind::Qemu && guest.state.as_deref() == Some("running");
    let guest = simulation_setup.spec.guests.iter().find(is_running)?;
    let kind = if rng.one_in(2) { FaultKind::StatdHung } else { FaultKind::StatdDown };
    let no_report = ScheduledFault::at(kind, FaultTrigger::Request(1));
    let no_report = ScheduledFault { vmid: guest.vmid, node: guest.node.clone(), heals_ms: None, ..no_report };
    let crash = ScheduledFault { kind: FaultKind::CrashAfter, trigger: FaultTrigger::Sending, ..no_report.clone() };
    Some([no_report, crash])
}

/// A guest that is restarted goes down, and its node has too few processors to start it again.
fn cannot_start_again(simulation_setup: &SimulationSetup) -> Option<ScheduledFault> {
    let is_restarted = |guest: &&GuestSpec| {
        let restarts =
            simulation_setup.wanted.get(&guest.vmid).is_some_and(|wanted| wanted.restarts && wanted.state != Some(RunState::Stopped));
        restarts && guest.kind == converger_lab::LabGuestKind::Qemu && guest.state.is_some() && !guest.ignores_shutdown
    };
    let guest = simulation_setup.spec.guests.iter().find(is_restarted)?;
    let few = ScheduledFault::at(FaultKind::FewCpus, FaultTrigger::BeforeSend);
    Some(ScheduledFault { vmid: guest.vmid, node: guest.node.clone(), heals_ms: None, ..few })
}

fn draw_trigger(rng: &mut Rng, kind: FaultKind, undisturbed: FaultFreeRun) -> FaultTrigger {
    if let FaultFreeRun::Reads(requests) = undisturbed {
        return FaultTrigger::Request(1 + rng.below(requests.max(1)));
    }
    if kind >= FaultKind::CrashBefore {
        if rng.one_in(4) {
            return FaultTrigger::Sending;
        }
        let within = *rng.pick(&[8, 16, 32]).unwrap_or(&8);
        return FaultTrigger::Command(1 + rng.below(within));
    }
    let within = *rng.pick(&[8, 16, 32]).unwrap_or(&8);
    match rng.below(5) {
        0 | 1 => FaultTrigger::BeforeSend,
        2 => FaultTrigger::AfterSend,
        _ => FaultTrigger::Request(1 + rng.below(within)),
    }
}

impl ScheduledFault {
    /// A fault of the first guest and the first node with this trigger.
    pub(crate) fn at(kind: FaultKind, moment: FaultTrigger) -> Self {
        Self { kind, trigger: moment, vmid: 100, is_qemu: true, node: "pve1".to_owned(), heals_ms: Some(5_000), number: 0 }
    }

    /// The same fault of another guest.
    pub(crate) fn for_guest(self, vmid: u32) -> Self {
        Self { vmid, ..self }
    }

    /// Its effect on the world; `None` if it affects our process or its store.
    pub(crate) fn effect(&self) -> Option<FaultEffect> {
        self.wire_fault()
            .map(FaultEffect::Wire)
            .or_else(|| self.machine_fault())
            .or_else(|| self.guest_fault())
            .or_else(|| self.foreign_request())
    }

    fn wire_fault(&self) -> Option<ResponseFault> {
        let instead = |status: u16, reason: &str, body: &str| ResponseFault::Instead {
            status,
            reason: reason.to_owned(),
            body: body.to_owned(),
            html: body.starts_with('<'),
        };
        let after = |status: u16, reason: &str| ResponseFault::After { status, reason: reason.to_owned() };
        Some(match self.kind {
            FaultKind::LostBefore => ResponseFault::LostBefore,
            FaultKind::LostAfter => ResponseFault::LostAfter,
            FaultKind::Truncated => ResponseFault::Truncated(usize::try_from(self.number % 40).unwrap_or(0)),
            FaultKind::SlowAnswer => ResponseFault::Slow(self.number % 90_000),
            FaultKind::Refused595 => instead(595, "Connection refused", ""),
            FaultKind::GaveUp596 => after(596, "Connection timed out"),
            FaultKind::Garbled599 => after(599, "Garbled response"),
            FaultKind::Redirected => ResponseFault::Redirect("https://elsewhere:8006/".to_owned()),
            FaultKind::Dripped => ResponseFault::Drip { bytes: 7, every_ms: self.number % 200 },
            FaultKind::Page502 => instead(502, "Bad Gateway", "<html><body><h1>502 Bad Gateway</h1></body></html>"),
            FaultKind::Busy503 => instead(503, "Service Unavailable", ""),
            FaultKind::SignInPage => instead(200, "OK", "<html><body>Sign in to the guest network</body></html>"),
            FaultKind::Unauthorized => instead(401, "Authentication failed!", ""),
            FaultKind::Forbidden => instead(403, "Permission check failed", "{\"data\":null}"),
            FaultKind::Died500 => instead(500, "got no worker upid - start worker failed", "{\"data\":null}"),
            FaultKind::Empty200 => instead(200, "OK", EMPTY_SUCCESS),
            FaultKind::Flooded => self.flood_fault(false),
            FaultKind::FloodedUnannounced => self.flood_fault(true),
            FaultKind::Compressed => ResponseFault::GzipBomb(1 << 20),
            _ => return None,
        })
    }

    /// Blanks after the response, up to the size limit or far beyond it.
    fn flood_fault(&self, unannounced: bool) -> ResponseFault {
        ResponseFault::Flood { bytes: if self.number.is_multiple_of(2) { 1 << 12 } else { 1 << 30 }, unannounced }
    }

    fn machine_fault(&self) -> Option<FaultEffect> {
        let node = || self.node.clone();
        let service = |new_event: fn(String, NodeService) -> WorldEvent, part: NodeService| {
            FaultEffect::Act(new_event(node(), part), Some(WorldEvent::ServiceUp(node(), part)))
        };
        Some(match self.kind {
            FaultKind::NodeDown => FaultEffect::Act(WorldEvent::NodeDown(node()), Some(WorldEvent::NodeUp(node()))),
            FaultKind::Partition => FaultEffect::Act(WorldEvent::Isolate(vec![node()]), Some(WorldEvent::Heal)),
            FaultKind::ProxyDown => service(WorldEvent::ServiceDown, NodeService::Proxy),
            FaultKind::ProxyHung => service(WorldEvent::ServiceHung, NodeService::Proxy),
            FaultKind::DaemonDown => service(WorldEvent::ServiceDown, NodeService::Daemon),
            FaultKind::DaemonHung => service(WorldEvent::ServiceHung, NodeService::Daemon),
            FaultKind::FilesDown => service(WorldEvent::ServiceDown, NodeService::Files),
            FaultKind::FilesHung => service(WorldEvent::ServiceHung, NodeService::Files),
            FaultKind::StatdDown => service(WorldEvent::ServiceDown, NodeService::Statd),
            FaultKind::StatdHung => service(WorldEvent::ServiceHung, NodeService::Statd),
            FaultKind::SlowNode => FaultEffect::Act(WorldEvent::Slow(node(), self.slow_ms()), Some(WorldEvent::Slow(node(), 0))),
            // The proxy gives up after 30 s, but the node carries the request out, within the time that recovery waits for.
            FaultKind::VerySlowNode => FaultEffect::Act(WorldEvent::Slow(node(), self.slow_ms()), Some(WorldEvent::Slow(node(), 0))),
            FaultKind::Blind => FaultEffect::Act(WorldEvent::Blind(node()), Some(WorldEvent::Seeing(node()))),
            FaultKind::ClockJump => FaultEffect::Act(WorldEvent::ClockJump(self.jump_secs()), None),
            FaultKind::NodeClockJump => FaultEffect::Act(WorldEvent::NodeClockJump(node(), self.jump_secs()), None),
            // No virtual machine can start there, neither by a start nor by a reboot.
            FaultKind::FewCpus => FaultEffect::Act(WorldEvent::Cpus(node(), 0), Some(WorldEvent::Cpus(node(), CPUS))),
            FaultKind::OtherFace => {
                FaultEffect::Act(WorldEvent::Show(node(), self.tls_identity()), Some(WorldEvent::Show(node(), TlsIdentity::Own)))
            }
            FaultKind::StorageFilled => {
                let fill = |used| WorldEvent::FillStorage(requests::LOCAL_STORAGE.to_owned(), used);
                FaultEffect::Act(fill(1 << 50), Some(fill(0)))
            }
            FaultKind::Revoked => FaultEffect::Act(WorldEvent::Revoke("/".to_owned()), Some(WorldEvent::Regrant("/".to_owned()))),
            _ => return None,
        })
    }

    /// The extra delay of a slow node.
    fn slow_ms(&self) -> u64 {
        if self.kind == FaultKind::VerySlowNode { 30_000 + self.number % 25_000 } else { self.number % 29_000 }
    }

    /// Up to one hour ahead or back.
    fn jump_secs(&self) -> i64 {
        i64::try_from(self.number % 7_200).unwrap_or(0) - 3_600
    }

    fn tls_identity(&self) -> TlsIdentity {
        match self.number % 4 {
            0 => TlsIdentity::Expired,
            1 => TlsIdentity::OtherName,
            2 => TlsIdentity::OtherKey,
            _ => TlsIdentity::Noise,
        }
    }

    fn guest_fault(&self) -> Option<FaultEffect> {
        let vmid = self.vmid;
        let world_effect = |event: WorldEvent| FaultEffect::Act(event, None);
        let set = |key: &str, value: &str| FaultEffect::Act(WorldEvent::Set(vmid, key.to_owned(), value.to_owned()), None);
        Some(match self.kind {
            FaultKind::Vanished => FaultEffect::Act(WorldEvent::Vanish(vmid), Some(WorldEvent::Reappear(vmid))),
            FaultKind::Unlisted => FaultEffect::Act(WorldEvent::Unlist(vmid), Some(WorldEvent::Relist(vmid))),
            FaultKind::Recycled => world_effect(WorldEvent::Recycle(vmid)),
            // The same name, but another guest.
            FaultKind::Reborn if self.number % 2 == 1 => world_effect(WorldEvent::Replace(vmid)),
            FaultKind::Reborn if self.is_qemu => set("smbios1", "uuid=00000000-1111-2222-3333-444455556666"),
            FaultKind::Reborn => set("rootfs", "local:999/vm-999-disk-0.raw,size=8G"),
            FaultKind::Locked if self.number % 4 == 3 => {
                FaultEffect::Act(WorldEvent::HoldLockFile(vmid), Some(WorldEvent::FreeLockFile(vmid)))
            }
            FaultKind::Locked => FaultEffect::Act(WorldEvent::Lock(vmid, "backup".to_owned()), Some(WorldEvent::Unlock(vmid))),
            FaultKind::ChangedByHand => match self.number % 3 {
                0 => set("description", "by hand"),
                1 => set("cores", "3"),
                _ => set("balloon", "256"),
            },
            FaultKind::PendingByHand => {
                let (key, value) = self.pending_change();
                world_effect(WorldEvent::SetPending(vmid, key.to_owned(), value.to_owned()))
            }
            FaultKind::Renamed => set(if self.is_qemu { "name" } else { "hostname" }, "renamed"),
            FaultKind::TaggedProd => set("tags", "prod"),
            FaultKind::TaggedHold => set("tags", "converger-hold"),
            FaultKind::Protected => set("protection", "1"),
            FaultKind::StartedByHand => world_effect(WorldEvent::Start(vmid)),
            FaultKind::StoppedByHand => world_effect(WorldEvent::Stop(vmid)),
            FaultKind::Paused => {
                let process_state = if self.number.is_multiple_of(2) { "paused" } else { "io-error" };
                FaultEffect::Act(WorldEvent::Say(vmid, process_state.to_owned()), Some(WorldEvent::Say(vmid, "running".to_owned())))
            }
            FaultKind::Moved => world_effect(WorldEvent::Move(vmid, self.node.clone())),
            FaultKind::HalfSnapshot => {
                FaultEffect::Act(WorldEvent::PrepareSnapshot(vmid, "half".to_owned()), Some(WorldEvent::Unlock(vmid)))
            }
            FaultKind::HaTakesOver if self.number.is_multiple_of(2) => world_effect(WorldEvent::Manage(vmid, "started".to_owned())),
            FaultKind::TaskKilled => world_effect(WorldEvent::KillTask(vmid)),
            FaultKind::TaskFails => FaultEffect::Task(TaskFaultEffect::Fail("start failed: QEMU exited with code 1".to_owned())),
            FaultKind::TaskHangs => FaultEffect::Task(TaskFaultEffect::Hang),
            FaultKind::TaskWarns => FaultEffect::Task(TaskFaultEffect::Warnings(2)),
            FaultKind::TaskFailsLate => FaultEffect::Task(TaskFaultEffect::FailAfter("command failed: exit code 1".to_owned())),
            FaultKind::TaskDoesNothing => FaultEffect::Task(TaskFaultEffect::DoNothing),
            FaultKind::TaskKilledHalfway => FaultEffect::Task(TaskFaultEffect::Killed),
            FaultKind::SnapshotTaken => world_effect(WorldEvent::TakeSnapshot(vmid, requests::NEW_SNAPSHOT.to_owned())),
            FaultKind::SnapshotDeleted => world_effect(WorldEvent::DeleteSnapshot(vmid, requests::OLD_SNAPSHOT.to_owned())),
            FaultKind::SnapshotRetaken => world_effect(WorldEvent::RetakeSnapshot(vmid, requests::OLD_SNAPSHOT.to_owned())),
            FaultKind::GuestCreated => world_effect(WorldEvent::CreateGuest(Box::new(self.foreign_guest()))),
            FaultKind::GuestDeleted => world_effect(WorldEvent::DeleteGuest(vmid)),
            FaultKind::IdReused => world_effect(WorldEvent::ReuseId(Box::new(self.foreign_guest()))),
            FaultKind::DiskGrown => {
                world_effect(WorldEvent::GrowDisk(vmid, requests::disk_key(self.is_qemu).to_owned(), FOREIGN_DISK_SIZE.to_owned()))
            }
            _ => return None,
        })
    }

    /// A guest that a person makes with this id, with the name of the old one or of the requested one now and then. It shuts down within every
    /// declared timeout: a guest that does not cannot converge, and only the setup draws those.
    fn foreign_guest(&self) -> GuestSpec {
        let kind = if self.is_qemu { LabGuestKind::Qemu } else { LabGuestKind::Lxc };
        let name = if self.number.is_multiple_of(2) { format!("web-{}", self.vmid) } else { format!("foreign-{}", self.vmid) };
        let text = |key: &str, value: &str| (key.to_owned(), ScalarSpec::Text(value.to_owned()));
        // A container is known by its root volume and MAC address, and the volume is named after the id.
        let mac = format!("BC:24:12:00:{:02X}:01", self.number % 256);
        let card = (!self.is_qemu).then(|| text("net0", &format!("name=eth0,bridge=vmbr0,hwaddr={mac},type=veth")));
        let config = [text("cores", "1"), text("memory", "512")].into_iter().chain(card).collect();
        GuestSpec { name: Some(name), config, shutdown_ms: Some(300), ..GuestSpec::new(self.vmid, kind, &self.node) }
    }

    /// A foreign pending change: of keys that we never manage, or of keys that may be declared with another value.
    fn pending_change(&self) -> (&'static str, &'static str) {
        match (self.is_qemu, self.number % 4) {
            (true, 0) => ("bios", "ovmf"),
            (true, 1) => ("machine", "q35"),
            (false, 0 | 1) => ("features", "nesting=1"),
            (_, 2) => ("cores", "7"),
            (..) => ("memory", "4096"),
        }
    }

    /// Whether the response to a request of this path shows the effect on the world. `entry` is the node of the endpoint; effects on other
    /// nodes that it cannot show count as not visible.
    pub(crate) fn is_visible_in(&self, entry: &str, path: &str, answer: &LabResponse) -> bool {
        let is_entry = self.node == entry;
        let is_there = is_entry || path.contains(&format!("/nodes/{}/", self.node));
        let is = |status: u16, reason: &str| {
            answer.status == status && answer.delivery == WireDelivery::Deliver && answer.reason.contains(reason)
        };
        let is_refused = is(595, "Connection refused");
        let is_lost = |hangs: bool| is_entry && answer.delivery == WireDelivery::LostBefore && (answer.delay_ms > 0) == hangs;
        let lists = |what: &str| String::from_utf8_lossy(&answer.body).contains(what);
        let is_list = is(200, "") && path.contains("/cluster/resources");
        match self.kind {
            FaultKind::ProxyDown => is_lost(false) || (is_there && !is_entry && is_refused),
            FaultKind::ProxyHung => is_lost(true) || (is_there && !is_entry && is_refused),
            FaultKind::DaemonDown => is_there && is_refused,
            FaultKind::DaemonHung => is_there && is(596, "Connection timed out"),
            FaultKind::FilesDown | FaultKind::FilesHung => is_entry && is(500, "RPCEnvironment init request failed"),
            // The cluster's list is too old to show pauses, so the full list of the node is read.
            FaultKind::StatdDown | FaultKind::StatdHung => path.contains(&format!("/nodes/{}/qemu?full=1", self.node)) && is(200, ""),
            FaultKind::SlowNode => is_there && self.slow_ms() > 0 && answer.delay_ms >= self.slow_ms(),
            FaultKind::VerySlowNode => is_there && (answer.delay_ms >= self.slow_ms() || is(596, "Connection timed out")),
            FaultKind::Blind => is_entry && is_list && !lists("\"vmid\":"),
            FaultKind::Unlisted => is_list && !lists(&format!("\"vmid\":{}", self.vmid)),
            FaultKind::StorageFilled => is(200, "") && path.ends_with("/storage") && lists("\"avail\":0"),
            FaultKind::FewCpus => is_there && lists("vcpus allowed per VM"),
            // The response arrives intact and contains the rejection.
            FaultKind::Revoked => is(200, "") && lists("Permission check failed"),
            _ => false,
        }
    }

    /// A request of another user.
    fn foreign_request(&self) -> Option<FaultEffect> {
        let verb = if self.number.is_multiple_of(2) { "start" } else { "stop" };
        let (kind, service) = if self.is_qemu { ("qemu", "vm") } else { ("lxc", "ct") };
        let (path, form) = match self.kind {
            FaultKind::HaTakesOver => ("/api2/json/cluster/ha/resources".to_owned(), format!("sid={service}:{}&state=started", self.vmid)),
            FaultKind::OtherTask => (format!("/api2/json/nodes/localhost/{kind}/{}/status/{verb}", self.vmid), String::new()),
            _ => return None,
        };
        Some(FaultEffect::Other(
            LabRequest::new("POST", &path).with_token(OTHER_TOKEN).with_header("Content-Length", &form.len().to_string()).with_form(&form),
        ))
    }

    /// Its effect on the store.
    pub(crate) fn store_fault(&self) -> Option<CommitFault> {
        match self.kind {
            FaultKind::StoreFull => Some(CommitFault::Full),
            FaultKind::SyncLost => Some(CommitFault::LostUnwritten),
            FaultKind::SyncLostWritten => Some(CommitFault::LostWritten),
            _ => None,
        }
    }
}

/// The names of all faults of the lab and of the store that are drawn, including each service and each TLS identity.
#[cfg(test)]
pub(crate) fn drawn_fault_names() -> std::collections::BTreeSet<String> {
    let mut drawn = std::collections::BTreeSet::new();
    let mut add = |own: &str, debug_text: String| {
        let mut words = debug_text.split(|own: char| !own.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
        let first = words.next().unwrap_or_default();
        drawn.insert(format!("{own} {first}"));
        if first.starts_with("Service") || first == "Show" {
            drawn.insert(format!("{first} {}", words.next_back().unwrap_or_default()));
        }
    };
    for (kind, number) in FaultKind::ALL.into_iter().flat_map(|kind| (0..12).map(move |number| (kind, number))) {
        let scheduled_fault = ScheduledFault { number, ..ScheduledFault::at(kind, FaultTrigger::BeforeSend) };
        match scheduled_fault.effect() {
            Some(FaultEffect::Wire(response_fault)) => add("ResponseFault", format!("{response_fault:?}")),
            Some(FaultEffect::Task(effect)) => add("TaskFaultEffect", format!("{effect:?}")),
            Some(FaultEffect::Act(event, healing_event)) => {
                [Some(event), healing_event].into_iter().flatten().for_each(|event| add("WorldEvent", format!("{event:?}")))
            }
            Some(FaultEffect::Other(_)) | None => {}
        }
        scheduled_fault.store_fault().into_iter().for_each(|fault| add("CommitFault", format!("{fault:?}")));
    }
    drawn
}

/// A fault on the next request only.
pub(crate) fn fault_on_next_request(response_fault: ResponseFault) -> RequestFault {
    RequestFault { nth: Some(1), fault: Some(response_fault), ..RequestFault::default() }
}

/// A fault on the next task of a guest only.
pub(crate) fn fault_on_next_task(vmid: u32, effect: TaskFaultEffect) -> TaskFault {
    TaskFault { about: Some(vmid.to_string()), nth: Some(1), effect: Some(effect), ..TaskFault::default() }
}
