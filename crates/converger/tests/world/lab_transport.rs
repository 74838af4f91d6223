//! An in-process transport into the lab: it carries the client's requests to a world, on a clock that advances only with the duration of
//! responses. No sockets, no threads, no real time; one seed gives one course of events.
//!
//! A bystander sees every state of the world and may interfere between and during requests. Must not depend on how the client interprets a
//! response.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use converger_adapters::proxmox::client::ProxmoxTransport;
use converger_adapters::proxmox::codec::{HttpRequest, HttpResponse, ProxmoxFailure};
use converger_lab::{Flavour, LabRequest, LabResponse, World, WorldEvent, WorldSpec};

use crate::wire;

/// A bystander while the client talks to the lab.
pub(crate) trait LabBystander: Send {
    /// Called when a request is about to arrive or its response is about to leave. Returns whether it changed something.
    fn interfere(&mut self, _world: &mut World, _now_ms: u64) -> bool {
        false
    }

    /// The world may have changed.
    fn observe_state(&mut self, _world: &World, _entry: &str) {}
}

/// A bystander that does nothing.
impl LabBystander for () {}

/// A running lab with its bystander.
pub(crate) struct InProcessLab<B> {
    pub(crate) world: World,
    pub(crate) now_ms: u64,
    pub(crate) bystander: B,
    /// The node that requests are sent to.
    pub(crate) entry: String,
    /// `user@realm!name=secret`.
    token: String,
    /// The methods with a checked request and response.
    pub(crate) checked: CheckedMethods,
}

/// API methods: release, verb and path template.
pub(crate) type CheckedMethods = BTreeSet<(Flavour, &'static str, &'static str)>;

impl<B: LabBystander> InProcessLab<B> {
    /// Lets time pass; the bystander sees every event.
    pub(crate) fn advance_to(&mut self, now_ms: u64) {
        while let Some(at_ms) = self.world.next_event_ms().filter(|at_ms| *at_ms <= now_ms) {
            self.world.advance_to(at_ms);
            self.notify_bystander();
        }
        self.world.advance_to(now_ms);
        self.now_ms = self.now_ms.max(now_ms);
    }

    pub(crate) fn advance(&mut self, ms: u64) {
        self.advance_to(self.now_ms + ms);
    }

    /// Applies an event now.
    pub(crate) fn inject_event(&mut self, event: WorldEvent) {
        self.world.apply_event(self.now_ms, event);
        self.notify_bystander();
    }

    /// Shows the current state to the bystander.
    pub(crate) fn notify_bystander(&mut self) {
        self.bystander.observe_state(&self.world, &self.entry);
    }

    /// Carries one request; the clock advances until the response is complete or the client gives up.
    fn carry_request(&mut self, request: &LabRequest, deadline_ms: u64) -> LabResponse {
        self.let_bystander_interfere();
        let answer = self.world.answer_at(self.now_ms, &self.entry, request);
        if request.method != "GET" {
            self.notify_bystander();
        }
        self.verify(request, &answer);
        self.let_bystander_interfere();
        self.advance(answer.delay_ms.min(deadline_ms));
        answer
    }

    fn verify(&mut self, request: &LabRequest, answer: &LabResponse) {
        let flavour = self.world.flavour();
        let template = wire::verify_exchange(flavour, request, answer);
        let verb = ["GET", "POST", "PUT", "DELETE"].into_iter().find(|verb| *verb == request.method);
        self.checked.extend(template.zip(verb).map(|(template, verb)| (flavour, verb, template)));
    }

    fn let_bystander_interfere(&mut self) {
        if self.bystander.interfere(&mut self.world, self.now_ms) {
            self.notify_bystander();
        }
    }
}

/// The client's transport to one node of a lab.
pub(crate) struct LabTransport<B> {
    lab: Arc<Mutex<InProcessLab<B>>>,
    endpoint: String,
    deadline_ms: u64,
}

impl<B> Clone for LabTransport<B> {
    fn clone(&self) -> Self {
        Self { lab: Arc::clone(&self.lab), endpoint: self.endpoint.clone(), deadline_ms: self.deadline_ms }
    }
}

impl<B: LabBystander> LabTransport<B> {
    /// A transport to `entry` with the first token of a setting, at the first moment of its world.
    pub(crate) fn new(spec: &WorldSpec, entry: &str, bystander: B) -> Self {
        let world = World::new(spec).unwrap_or_else(|error| panic!("{error}"));
        let token = spec.tokens.iter().next().map(|(id, token)| format!("{id}={}", token.secret)).unwrap_or_default();
        let deadline_ms = wire::deadline_ms();
        let lab = InProcessLab { world, now_ms: spec.start_ms, bystander, entry: entry.to_owned(), token, checked: CheckedMethods::new() };
        Self { lab: Arc::new(Mutex::new(lab)), endpoint: format!("{entry}:8006"), deadline_ms }
    }

    /// The lab, between two requests.
    pub(crate) fn lock_lab(&self) -> MutexGuard<'_, InProcessLab<B>> {
        self.lab.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<B: LabBystander> ProxmoxTransport for LabTransport<B> {
    async fn exchange(&self, sent: &HttpRequest) -> Result<HttpResponse, ProxmoxFailure> {
        let mut lab = self.lock_lab();
        let request = wire::build_request(wire::request_template(&lab.token), sent);
        let answer = lab.carry_request(&request, self.deadline_ms);
        wire::receive_response(&self.endpoint, sent, answer, self.deadline_ms)
    }

    fn endpoint_name(&self) -> &str {
        &self.endpoint
    }
}
