//! A way into the lab: the client's requests are carried to a world in the same process, on a clock that only moves when an answer
//! takes its time. No sockets, no threads, no real time; one seed is one story.
//!
//! Whoever stands by sees every state that the world passes through and may interfere between and during requests. What never
//! enters: what the client makes of an answer, and what is expected of it.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use converger_adapters::proxmox::client::Exchange;
use converger_adapters::proxmox::codec::{Failure, HttpAnswer, HttpRequest};
use converger_lab::{Act, Answer, Flavour, Request, Setting, World};

use crate::wire;

/// Who else is there while the client talks to the lab.
pub(crate) trait Bystander: Send {
    /// A request is about to arrive, or its answer is about to leave: the moment to interfere. Whether something was done.
    fn act(&mut self, _world: &mut World, _now_ms: u64) -> bool {
        false
    }

    /// The world may have changed.
    fn see(&mut self, _world: &World, _entry: &str) {}
}

/// Nobody.
impl Bystander for () {}

/// A lab under way, and who stands by.
pub(crate) struct Lab<B> {
    pub(crate) world: World,
    pub(crate) now_ms: u64,
    pub(crate) bystander: B,
    /// The node that requests come to.
    pub(crate) entry: String,
    /// `user@realm!name=secret`.
    token: String,
    /// The methods of which a request and its answer were checked.
    pub(crate) checked: Checked,
}

/// Methods of the API: release, verb and template of the path.
pub(crate) type Checked = BTreeSet<(Flavour, &'static str, &'static str)>;

impl<B: Bystander> Lab<B> {
    /// Let time pass, with an eye on everything that happens meanwhile.
    pub(crate) fn pass_to(&mut self, now_ms: u64) {
        while let Some(at_ms) = self.world.next_event_ms().filter(|at_ms| *at_ms <= now_ms) {
            self.world.advance_to(at_ms);
            self.look();
        }
        self.world.advance_to(now_ms);
        self.now_ms = self.now_ms.max(now_ms);
    }

    pub(crate) fn pass(&mut self, ms: u64) {
        self.pass_to(self.now_ms + ms);
    }

    /// Let something happen now.
    pub(crate) fn act(&mut self, act: Act) {
        self.world.act(self.now_ms, act);
        self.look();
    }

    /// Have the world seen as it is now.
    pub(crate) fn look(&mut self) {
        self.bystander.see(&self.world, &self.entry);
    }

    /// One request and its answer, at the time at which it is whole, or at which the client gives up.
    fn carry(&mut self, request: &Request, deadline_ms: u64) -> Answer {
        self.interfere();
        let answer = self.world.answer_at(self.now_ms, &self.entry, request);
        if request.method != "GET" {
            self.look();
        }
        self.verify(request, &answer);
        self.interfere();
        self.pass(answer.delay_ms.min(deadline_ms));
        answer
    }

    fn verify(&mut self, request: &Request, answer: &Answer) {
        let flavour = self.world.flavour();
        let template = wire::verify(flavour, request, answer);
        let verb = ["GET", "POST", "PUT", "DELETE"].into_iter().find(|verb| *verb == request.method);
        self.checked.extend(template.zip(verb).map(|(template, verb)| (flavour, verb, template)));
    }

    fn interfere(&mut self) {
        if self.bystander.act(&mut self.world, self.now_ms) {
            self.look();
        }
    }
}

/// The client's way to one node of a lab.
pub(crate) struct Way<B> {
    lab: Arc<Mutex<Lab<B>>>,
    place: String,
    deadline_ms: u64,
}

impl<B> Clone for Way<B> {
    fn clone(&self) -> Self {
        Self { lab: Arc::clone(&self.lab), place: self.place.clone(), deadline_ms: self.deadline_ms }
    }
}

impl<B: Bystander> Way<B> {
    /// A way to `entry` for the first token of a setting, at the first moment of its world.
    pub(crate) fn new(setting: &Setting, entry: &str, bystander: B) -> Self {
        let world = World::new(setting).unwrap_or_else(|error| panic!("{error}"));
        let token = setting.tokens.iter().next().map(|(id, token)| format!("{id}={}", token.secret)).unwrap_or_default();
        let deadline_ms = wire::deadline_ms();
        let lab = Lab { world, now_ms: setting.start_ms, bystander, entry: entry.to_owned(), token, checked: Checked::new() };
        Self { lab: Arc::new(Mutex::new(lab)), place: format!("{entry}:8006"), deadline_ms }
    }

    /// The lab, between two requests.
    pub(crate) fn lab(&self) -> MutexGuard<'_, Lab<B>> {
        self.lab.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<B: Bystander> Exchange for Way<B> {
    async fn exchange(&self, sent: &HttpRequest) -> Result<HttpAnswer, Failure> {
        let mut lab = self.lab();
        let request = wire::request(wire::unsent(&lab.token), sent);
        let answer = lab.carry(&request, self.deadline_ms);
        wire::received(&self.place, sent, answer, self.deadline_ms)
    }

    fn place(&self) -> &str {
        &self.place
    }
}
