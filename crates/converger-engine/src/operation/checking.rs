//! Before the change is sent: the cluster, the guests that it relies on, its run-state and its config are read anew, and every
//! precondition must hold.
//!
//! What was read of the guest itself is then seconds old at most, or all of it is read once more (0017 says what may be older, and why): between the readings and the sending the machine may have
//! slept, a node been slow, a person pressed Ctrl-S. The very last word is the journal's: a hold, a freeze or a stop that came since
//! the intent keeps the change from being sent.
//!
//! A guest that is not where it was is followed once, and checked there from the start. What cannot be read after a few
//! attempts is refused: reading twice is harmless, and one lost answer is no reason to give up a lane.

use converger_core::apply::check::{self, Ready};
use converger_core::apply::{Answer, Ask, Cause, ConfigRead, Evidence, Findings, Live, Outcome, Place, Reliance, Revision, Trouble};
use converger_core::failure::Code;
use converger_core::refusal::Refusal;

use super::patience::next_ms;
use super::{Command, NotCleared, Stage, State, cause_of};

/// How often each reading is tried.
const TRIES_MAX: u32 = 3;
/// How old the readings of the guest may be when the change is sent.
pub(super) const FRESH_MS: u64 = 10_000;
/// How often a guest is checked, where its readings were too old or there was no room to send.
const CHECKS_MAX: u32 = 5;

/// What is being read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Checking {
    read: Read,
    tries: u32,
    waiting: bool,
}

/// A change that is ready to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Clearing {
    uptime_secs: Option<u64>,
    revision: Option<Revision>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Read {
    Cluster,
    /// The other guest with this number that the step relies on.
    Reliance(usize),
    Status,
    Where,
    Config(Box<Live>),
}

impl Checking {
    pub(super) fn is_waiting(&self) -> bool {
        self.waiting
    }

    fn of(read: Read) -> Self {
        Self { read, tries: 1, waiting: false }
    }
}

impl State {
    pub(super) fn check(&mut self) -> Option<Command> {
        self.checks += 1;
        self.ask_for(Checking::of(Read::Cluster))
    }

    fn ask_for(&mut self, checking: Checking) -> Option<Command> {
        let ask = match &checking.read {
            Read::Cluster => Ask::Cluster,
            Read::Reliance(number) => match self.reliance(*number) {
                Some(other) => Ask::Status(other.place.clone()),
                // All of them are as they must be.
                None => return self.ask_for(Checking::of(Read::Status)),
            },
            Read::Status => {
                self.checked_ms = self.now_ms;
                Ask::Status(self.place.clone())
            }
            Read::Where => Ask::Where(self.place.vmid),
            Read::Config(_) => Ask::Config(self.place.clone()),
        };
        self.stage = Stage::Checking(checking);
        Some(Command::Ask(ask))
    }

    pub(super) fn check_again(&mut self, checking: Checking) -> Option<Command> {
        self.ask_for(Checking { waiting: false, ..checking })
    }

    pub(super) fn checked(&mut self, checking: Checking, answer: Answer, now_ms: u64) -> Option<Command> {
        match (&checking.read, answer) {
            (Read::Cluster, Answer::Cluster(membership)) => match check::cluster(&membership, &self.place.node) {
                Some(refusal) => self.refuse(&refusal, now_ms),
                None => self.ask_for(Checking::of(Read::Reliance(0))),
            },
            (Read::Reliance(number), Answer::Status(live)) => self.relied_on(*number, &live, now_ms),
            (Read::Status, Answer::Status(live)) => self.ask_for(Checking::of(Read::Config(Box::new(live)))),
            (Read::Config(live), Answer::Config(config)) => self.judge(live, &config, now_ms),
            (Read::Status | Read::Config(_), Answer::NotThere(_)) => self.ask_for(Checking::of(Read::Where)),
            (Read::Where, Answer::Where(found)) => self.follow(found, now_ms),
            (_, other) => self.unread(checking, &other, now_ms),
        }
    }

    fn reliance(&self, number: usize) -> Option<&Reliance> {
        self.terms.as_ref().and_then(|terms| terms.reliance(number))
    }

    fn relied_on(&mut self, number: usize, live: &Live, now_ms: u64) -> Option<Command> {
        match self.reliance(number).and_then(|other| other.refusal(live)) {
            Some(refusal) => self.refuse(&refusal, now_ms),
            None => self.ask_for(Checking::of(Read::Reliance(number + 1))),
        }
    }

    fn judge(&mut self, live: &Live, config: &ConfigRead, now_ms: u64) -> Option<Command> {
        // INVARIANT: what has no terms was found in the journal, and begins with reading what became of it. It never comes here,
        // and if it did, it would be read and not sent.
        let Some(terms) = &self.terms else { return self.resolve(cause_of(&Answer::Where(None))) };
        match check::ready(&self.operation, terms, live, config) {
            Ready::Go => self.mark(Box::new(Clearing { uptime_secs: live.uptime_secs, revision: config.revision.clone() })),
            Ready::Refused(refusal) => self.refuse(&refusal, now_ms),
            Ready::AsWanted => self.nothing_to_send(live, "found_so", check::FOUND_BEFORE_SENDING, now_ms),
            Ready::NotNeeded => self.nothing_to_send(live, "not_needed", "what the restart is for is in effect", now_ms),
        }
    }

    pub(super) fn may_check_again(&self) -> bool {
        self.checks < CHECKS_MAX
    }

    /// Nothing was said against it. A clock that went back shows nothing about an age, so that it is read anew too.
    pub(super) fn cleared(&mut self, clearing: Clearing, now_ms: u64) -> Option<Command> {
        let is_fresh = now_ms.checked_sub(self.checked_ms).is_some_and(|age_ms| age_ms <= FRESH_MS);
        match clearing {
            Clearing { uptime_secs, revision } if is_fresh => self.send(uptime_secs, revision),
            _ if self.may_check_again() => self.check(),
            _ => self.refuse(
                &check::unread(&Cause::new(Trouble::Other, "too-slow", "what was read of it was old before it could be sent")),
                now_ms,
            ),
        }
    }

    pub(super) fn not_cleared(&mut self, why: NotCleared, now_ms: u64) -> Option<Command> {
        let outcome = match why {
            NotCleared::Refused(refusal) => Outcome::refused(&refusal),
            NotCleared::Stopped(code) => Outcome::not_run(code, Evidence::default()),
            NotCleared::NoRoom(cause) => return self.not_delivered(&cause, now_ms),
            NotCleared::Failed(text) => Outcome::not_run(Code::JournalUnwritable, Evidence::default().with("said", &*text)),
        };
        self.end(outcome, now_ms)
    }

    fn nothing_to_send(&mut self, live: &Live, key: &str, why: &str, now_ms: u64) -> Option<Command> {
        let observed = Evidence::default().with("run_state", &*live.word);
        self.end(Outcome::Done(Findings { evidence: Evidence::default().with(key, why), observed }), now_ms)
    }

    /// A guest may have been moved; it is the same guest if its marks say so, which is looked at again there.
    fn follow(&mut self, found: Option<Place>, now_ms: u64) -> Option<Command> {
        if let Some(refusal) = check::not_followed(&self.place, found.as_ref()) {
            return self.refuse(&refusal, now_ms);
        }
        let Some(found) = found.filter(|_| self.moves == 0) else { return self.refuse(&check::moved(), now_ms) };
        self.moves += 1;
        self.place = found;
        self.check()
    }

    fn unread(&mut self, checking: Checking, answer: &Answer, now_ms: u64) -> Option<Command> {
        let cause = cause_of(answer);
        if checking.tries < TRIES_MAX {
            let ms = next_ms(0) * u64::from(checking.tries);
            self.stage = Stage::Checking(Checking { tries: checking.tries + 1, waiting: true, ..checking });
            return self.wait(ms);
        }
        let refusal = match &checking.read {
            Read::Reliance(number) => self.reliance(*number).map_or_else(|| check::unread(&cause), Reliance::unread),
            Read::Cluster | Read::Status | Read::Where | Read::Config(_) => check::unread(&cause),
        };
        let said = Evidence::default().with("said", &*cause.text);
        self.end(Outcome::refused(&refusal).with_observed(said), now_ms)
    }

    fn refuse(&mut self, refusal: &Refusal, now_ms: u64) -> Option<Command> {
        self.end(Outcome::refused(refusal), now_ms)
    }
}
