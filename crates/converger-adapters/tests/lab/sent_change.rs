//! One change with its promise: the command that sends it and the readings that judge it, through the requests that the engine uses.
//!
//! A guest that left its node is followed, and a guest that is not found proves nothing, except about a clone: it was not made, or not yet.

use converger_adapters::proxmox::actuator::{ProxmoxActuator, command_for};
use converger_adapters::proxmox::client::ProxmoxTransport;
use converger_adapters::proxmox::codec::ProxmoxCommand;
use converger_core::action::{Change, GuestClone};
use converger_core::apply::promise::{PostChangeReading, PromiseCheck, TaskEnd, check_promise, required_reads};
use converger_core::apply::{
    ConfigRevision, EnvFault, EnvRequest, EnvResponse, Evidence, GuestAddress, GuestGuards, LiveConfig, LiveStatus, Operation, OperationId,
    OperationSource, OperationTarget, RunId,
};
use converger_core::artifact::Digest;
use converger_core::guest::{EnvironmentName, NodeName, RunState};
use converger_core::normalize::WordSet;
use converger_core::observe::{ObservedStatus, SnapshotTree};
use converger_core::plan::{Step, StepReason};

/// A change as an operation, and what was read before it was sent.
pub(crate) struct SentChange {
    operation: Operation,
    before: Result<PromiseReadings, UnreadPromise>,
}

/// What a promise may depend on.
#[derive(Debug)]
struct PromiseReadings {
    node: NodeName,
    live: Option<LiveStatus>,
    config: Option<LiveConfig>,
    snapshots: Option<SnapshotTree>,
}

/// Why a promise could not be read.
#[derive(Debug)]
enum UnreadPromise {
    /// The guest is not where it should be, and was found nowhere else.
    NotFound(EnvFault),
    /// The reading failed.
    Unreadable(EnvFault),
}

impl SentChange {
    /// Reads what the promise depends on, before the change is sent to the guest at this address.
    pub(crate) async fn prepare<E: ProxmoxTransport>(actuator: &ProxmoxActuator<E>, address: &GuestAddress, change: Change) -> Self {
        let operation = new_operation(address, change);
        let before = read_promise(actuator, &operation).await;
        Self { operation, before }
    }

    /// The command that sends the change, bound to a config if it must be.
    pub(crate) fn command(&self, revision: Option<ConfigRevision>) -> ProxmoxCommand {
        let (address, change) = (self.operation.sending_address(), self.operation.step.change.clone());
        match command_for(&EnvRequest::Send { address, change, revision }) {
            Ok(command) => command,
            Err(unsent) => panic!("nothing is sent: {unsent:?}"),
        }
    }

    /// Whether the promise was kept before the change was sent.
    pub(crate) fn check_before(&self) -> PromiseCheck {
        self.check(&self.before, 0, None)
    }

    /// Whether the promise is kept now; `elapsed_secs` is a lower bound of the time since the reading before the change.
    pub(crate) async fn check_now<E: ProxmoxTransport>(
        &self,
        actuator: &ProxmoxActuator<E>,
        elapsed_secs: u64,
        task: Option<TaskEnd>,
    ) -> PromiseCheck {
        self.check(&read_promise(actuator, &self.operation).await, elapsed_secs, task)
    }

    fn check(&self, after: &Result<PromiseReadings, UnreadPromise>, elapsed_secs: u64, task: Option<TaskEnd>) -> PromiseCheck {
        let is_clone = matches!(self.operation.step.change, Change::Clone(_));
        match after {
            Ok(after) => {
                let was_running = |live: &&LiveStatus| live.status == ObservedStatus::Known(RunState::Running);
                let before = self.before.as_ref().ok().and_then(|before| before.live.as_ref()).filter(was_running);
                check_promise(
                    &self.operation,
                    PostChangeReading {
                        live: after.live.as_ref(),
                        config: after.config.as_ref(),
                        snapshots: after.snapshots.as_ref(),
                        node: Some(&after.node),
                        uptime_before_secs: before.and_then(|live| live.uptime_secs),
                        elapsed_secs,
                        recorded_uptime_secs: None,
                        task,
                    },
                )
            }
            Err(UnreadPromise::NotFound(cause)) if is_clone => PromiseCheck::NotKept(cause.add_to_evidence(Evidence::default())),
            Err(UnreadPromise::NotFound(cause) | UnreadPromise::Unreadable(cause)) => {
                PromiseCheck::Unclear(cause.add_to_evidence(Evidence::default()))
            }
        }
    }
}

/// The operation of a change. A clone belongs to the guest that it makes.
fn new_operation(address: &GuestAddress, change: Change) -> Operation {
    let guards = GuestGuards { ha: None, lock: None, protection: false, tags: WordSet::default(), template: false };
    let new_target = |vmid, name: &str, node: &NodeName| OperationTarget {
        vmid,
        kind: address.kind,
        name: name.into(),
        node: node.clone(),
        identity: None,
        guards: guards.clone(),
    };
    let guest = match &change {
        Change::Clone(clone) => {
            let GuestClone { vmid, name, node, .. } = &**clone;
            new_target(*vmid, name.as_str(), node)
        }
        _ => new_target(address.vmid, "web", &address.node),
    };
    let step = Step { change, reason: StepReason::Requested, from: RunState::Stopped, wait: Box::default() };
    let (id, run) = (OperationId::new("run-1-0"), RunId::new("run-1"));
    let (Some(id), Some(run), Some(environment)) = (id, run, EnvironmentName::new("lab")) else { panic!("ids and a name") };
    Operation::new(id, run, environment, guest, step, 0, Digest::of_bytes(b"plan"), OperationSource::Convergent)
}

/// Reads what the promise depends on, at the guest's own node; a guest that left it is followed once.
async fn read_promise<E: ProxmoxTransport>(actuator: &ProxmoxActuator<E>, operation: &Operation) -> Result<PromiseReadings, UnreadPromise> {
    let own = operation.guest.address();
    let cause = match read_promise_at(actuator, operation, &own).await {
        Err(UnreadPromise::NotFound(cause)) if !matches!(operation.step.change, Change::Clone(_)) => cause,
        other => return other,
    };
    match actuator.request(&EnvRequest::Locate(own.vmid)).await {
        EnvResponse::Located(Some(found)) if found.kind == own.kind && found.node != own.node => {
            read_promise_at(actuator, operation, &found).await
        }
        EnvResponse::Located(_) => Err(UnreadPromise::NotFound(cause)),
        other => Err(unread_promise(other)),
    }
}

async fn read_promise_at<E: ProxmoxTransport>(
    actuator: &ProxmoxActuator<E>,
    operation: &Operation,
    address: &GuestAddress,
) -> Result<PromiseReadings, UnreadPromise> {
    let needed = required_reads(operation);
    let mut readings = PromiseReadings { node: address.node.clone(), live: None, config: None, snapshots: None };
    if needed.status {
        match actuator.request(&EnvRequest::Status(address.clone())).await {
            EnvResponse::Status(live) => readings.live = Some(live),
            other => return Err(unread_promise(other)),
        }
    }
    if needed.config {
        match actuator.request(&EnvRequest::Config(address.clone())).await {
            EnvResponse::Config(config) => readings.config = Some(*config),
            other => return Err(unread_promise(other)),
        }
    }
    if needed.snapshots {
        match actuator.request(&EnvRequest::Snapshots(address.clone())).await {
            EnvResponse::Snapshots(tree) => readings.snapshots = Some(tree),
            other => return Err(unread_promise(other)),
        }
    }
    Ok(readings)
}

fn unread_promise(response: EnvResponse) -> UnreadPromise {
    match response {
        EnvResponse::GuestNotFound(cause) => UnreadPromise::NotFound(cause),
        EnvResponse::Unreadable(cause) => UnreadPromise::Unreadable(cause),
        other => panic!("the response belongs to another request: {other:?}"),
    }
}
