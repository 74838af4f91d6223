//! The real client code with a transport into the lab: observe, plan, and send the planned changes.
//!
//! Must not do anything that the program itself would not do.

use std::future::Future;
use std::sync::Arc;

use converger_adapters::proxmox::actuator::{CallerIdentity, ProxmoxActuator};
use converger_adapters::proxmox::client::{ProxmoxSession, TokenId};
use converger_adapters::proxmox::codec::{GuestPath, ProxmoxCommand, ProxmoxEvent, ProxmoxFailure, ProxmoxRead, SnapshotName};
use converger_adapters::proxmox::observe::{self, ObservationRequest, ProxmoxReading, ReadSet, ReadingError};
use converger_core::action::Change;
use converger_core::apply::promise::{PromiseCheck, TaskEnd};
use converger_core::apply::{EnvRequest, EnvResponse, GuestAddress};
use converger_core::desired::{self, Desired, Scope};
use converger_core::document::Notation;
use converger_core::guest::{EnvironmentName, GuestKind, NodeName, Vmid};
use converger_core::plan::{self, Plan, Verdict};
use converger_core::policy::Rules;
use tokio::runtime::{Builder, Runtime};

use crate::lab_transport::{LabBystander, LabTransport};
use crate::sent_change::SentChange;

thread_local! {
    static RUNTIME: Runtime = Builder::new_current_thread().build().unwrap_or_else(|error| panic!("{error}"));
}

/// Runs a future to completion; it waits for nothing but the lab.
pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    RUNTIME.with(|runtime| runtime.block_on(future))
}

pub(crate) fn environment_name() -> EnvironmentName {
    EnvironmentName::new("lab").unwrap_or_else(|| panic!("a name"))
}

pub(crate) fn vmid(number: u32) -> Vmid {
    Vmid::new(u64::from(number)).unwrap_or_else(|| panic!("{number} is no id"))
}

pub(crate) fn node_name(name: &str) -> NodeName {
    NodeName::new(name).unwrap_or_else(|| panic!("{name} is no node"))
}

pub(crate) fn guest_path(on: &str, kind: GuestKind, number: u32) -> GuestPath {
    GuestPath { node: node_name(on), kind, vmid: vmid(number) }
}

pub(crate) fn snapshot_name(name: &str) -> SnapshotName {
    SnapshotName::new(name).unwrap_or_else(|| panic!("{name} is no snapshot"))
}

/// Parses a declared state from JSON.
pub(crate) fn parse_desired(text: &str) -> Desired {
    desired::parse(text.as_bytes(), Notation::Json).unwrap_or_else(|faults| panic!("{text}: {faults:?}"))
}

/// Takes one observation.
pub(crate) fn take_reading<B: LabBystander>(
    transport: &LabTransport<B>,
    scope: &Scope,
    read_set: &ReadSet,
    cluster: Option<&str>,
) -> Result<ProxmoxReading, ReadingError> {
    let environment = environment_name();
    let question = ObservationRequest { environment: &environment, cluster, token: crate::random_labs::TOKEN, scope, needs: read_set };
    block_on(observe::take_reading(&ProxmoxSession::new(transport.clone()), &question))
}

/// Plans towards a declared state on a fresh observation.
pub(crate) fn make_plan<B: LabBystander>(transport: &LabTransport<B>, desired: &Desired) -> Plan {
    let reading =
        take_reading(transport, &desired.scope(), &ReadSet::for_desired(desired), None).unwrap_or_else(|unread| panic!("{unread}"));
    let scoped = reading.observation.into_scoped(&desired.scope());
    plan::plan(Arc::new(desired.clone()), Arc::new(scoped), Arc::new(Rules::default()))
}

/// The verdict on the only declared guest.
pub(crate) fn plan_verdict<B: LabBystander>(transport: &LabTransport<B>, desired: &Desired) -> Verdict {
    make_plan(transport, desired).verdicts()[0].clone()
}

/// Sends one command and decodes the response.
pub(crate) fn call_command<B: LabBystander>(transport: &LabTransport<B>, command: ProxmoxCommand) -> Result<ProxmoxEvent, ProxmoxFailure> {
    block_on(ProxmoxSession::new(transport.clone()).call(&command))
}

pub(crate) fn call_read<B: LabBystander>(transport: &LabTransport<B>, read: ProxmoxRead) -> Result<ProxmoxEvent, ProxmoxFailure> {
    call_command(transport, ProxmoxCommand::Read(read))
}

/// An actuator with the client's own token.
pub(crate) fn new_actuator<B: LabBystander>(transport: &LabTransport<B>) -> ProxmoxActuator<LabTransport<B>> {
    let token = TokenId::new(crate::random_labs::TOKEN).unwrap_or_else(|| panic!("an id"));
    ProxmoxActuator::new(ProxmoxSession::new(transport.clone()), CallerIdentity { token, cluster: None })
}

/// Sends one request of the engine and interprets the response.
pub(crate) fn ask_environment<B: LabBystander>(transport: &LabTransport<B>, request: &EnvRequest) -> EnvResponse {
    block_on(new_actuator(transport).request(request))
}

/// A change with its promise, based on what was read before it was sent.
pub(crate) struct SentPromise {
    sent: SentChange,
    address: GuestAddress,
    made_ms: u64,
}

impl SentPromise {
    pub(crate) fn before_send<B: LabBystander>(transport: &LabTransport<B>, address: &GuestAddress, change: Change) -> Self {
        let sent = block_on(SentChange::prepare(&new_actuator(transport), address, change));
        Self { sent, address: address.clone(), made_ms: transport.lock_lab().now_ms }
    }

    /// The command that sends the change, bound to the config as it is now.
    pub(crate) fn command<B: LabBystander>(&self, transport: &LabTransport<B>) -> ProxmoxCommand {
        let revision = match ask_environment(transport, &EnvRequest::Config(self.address.clone())) {
            EnvResponse::Config(config) => config.revision,
            other => panic!("no config: {other:?}"),
        };
        self.sent.command(revision)
    }

    /// Whether the current state keeps the promise.
    pub(crate) fn check_kept<B: LabBystander>(&self, transport: &LabTransport<B>, task: Option<TaskEnd>) -> PromiseCheck {
        let passed_ms = transport.lock_lab().now_ms.saturating_sub(self.made_ms);
        block_on(self.sent.check_now(&new_actuator(transport), passed_ms / 1_000, task))
    }

    /// Whether the promise was kept before anything was sent.
    pub(crate) fn check_kept_before(&self) -> PromiseCheck {
        self.sent.check_before()
    }
}
