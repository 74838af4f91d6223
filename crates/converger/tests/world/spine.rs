//! The real spine over a way into the lab: observe, plan, and send what is planned.
//!
//! What never enters: expectations, and anything that the program itself would not do.

use std::future::Future;
use std::sync::Arc;

use converger_adapters::proxmox::client::{Session, TokenId};
use converger_adapters::proxmox::codec::{Command, Event, Failure, GuestPath, Read, Write};
use converger_adapters::proxmox::hand::{Caller, Hand};
use converger_adapters::proxmox::observe::{self, Needs, Question, Taken, Unread};
use converger_core::apply::promise::{Kept, Promise, Reading};
use converger_core::desired::{self, Desired, Scope};
use converger_core::document::Notation;
use converger_core::guest::{EnvironmentName, Kind, NodeName, Vmid};
use converger_core::plan::{self, Plan, Verdict};
use converger_core::policy::Rules;
use tokio::runtime::{Builder, Runtime};

use crate::way::{Bystander, Way};

thread_local! {
    static RUNTIME: Runtime = Builder::new_current_thread().build().unwrap_or_else(|error| panic!("{error}"));
}

/// Carries a future to its end; nothing here waits for anything but the lab.
pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    RUNTIME.with(|runtime| runtime.block_on(future))
}

pub(crate) fn environment() -> EnvironmentName {
    EnvironmentName::new("lab").unwrap_or_else(|| panic!("a name"))
}

pub(crate) fn vmid(number: u32) -> Vmid {
    Vmid::new(u64::from(number)).unwrap_or_else(|| panic!("{number} is no id"))
}

pub(crate) fn node(name: &str) -> NodeName {
    NodeName::new(name).unwrap_or_else(|| panic!("{name} is no node"))
}

pub(crate) fn path(on: &str, kind: Kind, number: u32) -> GuestPath {
    GuestPath { node: node(on), kind, vmid: vmid(number) }
}

/// The declared state in this JSON.
pub(crate) fn declared(text: &str) -> Desired {
    desired::parse(text.as_bytes(), Notation::Json).unwrap_or_else(|faults| panic!("{text}: {faults:?}"))
}

/// One reading.
pub(crate) fn read<B: Bystander>(way: &Way<B>, scope: &Scope, needs: &Needs, cluster: Option<&str>) -> Result<Taken, Unread> {
    let environment = environment();
    let question = Question { environment: &environment, cluster, token: crate::days::TOKEN, scope, needs };
    block_on(observe::read(&Session::new(way.clone()), &question))
}

/// What is planned towards a declared state, on a fresh reading.
pub(crate) fn plan<B: Bystander>(way: &Way<B>, desired: &Desired) -> Plan {
    let taken = read(way, &desired.scope(), &Needs::of(desired), None).unwrap_or_else(|unread| panic!("{unread}"));
    let scoped = taken.observation.within(&desired.scope());
    plan::plan(Arc::new(desired.clone()), Arc::new(scoped), Arc::new(Rules::default()))
}

/// What is decided about the only guest that is declared.
pub(crate) fn verdict<B: Bystander>(way: &Way<B>, desired: &Desired) -> Verdict {
    plan(way, desired).verdicts()[0].clone()
}

/// One command and its answer.
pub(crate) fn call<B: Bystander>(way: &Way<B>, command: Command) -> Result<Event, Failure> {
    block_on(Session::new(way.clone()).call(&command))
}

pub(crate) fn ask<B: Bystander>(way: &Way<B>, read: Read) -> Result<Event, Failure> {
    call(way, Command::Read(read))
}

/// A hand of the client's own token at a lab.
pub(crate) fn hand<B: Bystander>(way: &Way<B>) -> Hand<Way<B>> {
    let token = TokenId::new(crate::days::TOKEN).unwrap_or_else(|| panic!("an id"));
    Hand::new(Session::new(way.clone()), Caller { token, cluster: None })
}

/// A change on its way: what it promises by what was read before it was sent.
pub(crate) struct Pledge {
    promise: Promise,
    made_ms: u64,
    pub(crate) before: Reading,
}

impl Pledge {
    pub(crate) fn of<B: Bystander>(way: &Way<B>, write: &Write) -> Self {
        let before = block_on(hand(way).read(write));
        Self { promise: write.promise(&before), made_ms: way.lab().now_ms, before }
    }

    /// Whether it is kept by what is read now.
    pub(crate) fn kept<B: Bystander>(&self, way: &Way<B>, write: &Write) -> Kept {
        let after = block_on(hand(way).read(write));
        let passed_ms = way.lab().now_ms.saturating_sub(self.made_ms);
        self.promise.kept(&after, passed_ms / 1_000)
    }

    /// Whether it was kept before anything was sent.
    pub(crate) fn kept_before(&self) -> Kept {
        self.promise.kept(&self.before, 0)
    }
}
