//! The real client code with a transport into the lab: observe, plan, and send the planned changes.
//!
//! Must not do anything that the program itself would not do.

use std::future::Future;
use std::sync::Arc;

use converger_adapters::proxmox::actuator::{CallerIdentity, ProxmoxActuator};
use converger_adapters::proxmox::client::{ProxmoxSession, TokenId};
use converger_adapters::proxmox::codec::{
    GuestPath, ProxmoxCommand, ProxmoxEvent, ProxmoxFailure, ProxmoxRead, ProxmoxWrite, SnapshotName,
};
use converger_adapters::proxmox::observe::{self, ObservationRequest, ProxmoxReading, ReadSet, ReadingError};
use converger_core::apply::promise::{Promise, PromiseCheck, PromiseReading};
use converger_core::desired::{self, Desired, Scope};
use converger_core::document::Notation;
use converger_core::guest::{EnvironmentName, GuestKind, NodeName, Vmid};
use converger_core::plan::{self, Plan, Verdict};
use converger_core::policy::Rules;
use tokio::runtime::{Builder, Runtime};

use crate::lab_transport::{LabBystander, LabTransport};

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

/// A change with its promise, based on what was read before it was sent.
pub(crate) struct SentPromise {
    promise: Promise,
    made_ms: u64,
    pub(crate) before: PromiseReading,
}

impl SentPromise {
    pub(crate) fn before_send<B: LabBystander>(transport: &LabTransport<B>, write: &ProxmoxWrite) -> Self {
        let before = block_on(new_actuator(transport).read_promise(write));
        Self { promise: write.promise(&before), made_ms: transport.lock_lab().now_ms, before }
    }

    /// Whether the current state keeps the promise.
    pub(crate) fn check_kept<B: LabBystander>(&self, transport: &LabTransport<B>, write: &ProxmoxWrite) -> PromiseCheck {
        let after = block_on(new_actuator(transport).read_promise(write));
        let passed_ms = transport.lock_lab().now_ms.saturating_sub(self.made_ms);
        self.promise.check(&after, passed_ms / 1_000)
    }

    /// Whether the promise was kept before anything was sent.
    pub(crate) fn check_kept_before(&self) -> PromiseCheck {
        self.promise.check(&self.before, 0)
    }
}
