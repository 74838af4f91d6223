//! The hand: what an operation asks becomes one request, and what comes back becomes words of the core.
//!
//! [`command`] and [`answer`] are pure, so that the program, the simulation and the tests use the very same code; [`Hand`] carries
//! them over a session. Each ask is sent at most once: an ask that cannot be put into a request is answered here, and nothing is
//! tried again. Where the age of a task decides, the [`clock`] of its node is read too: a task is dated by it, and by no other.
//!
//! What never enters: which ask comes next, whether a change may be sent at all, and what follows from an answer (the engine).

mod answer;
mod ask;
mod proof;
mod revision;

#[cfg(test)]
mod tests;

use converger_core::apply::promise::Reading;
use converger_core::apply::{Answer, Ask, Cause, Place};

use super::client::{Exchange, Session, TokenId, Turn};
use super::codec::Write;

pub use answer::{answer, clock};
pub use ask::command;

/// Who asks, and whom: what an answer is held against beyond what was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// The token whose tasks are ours.
    pub token: TokenId,
    /// The name that the cluster must have; of a node that is in no cluster, its own name.
    pub cluster: Option<Box<str>>,
}

/// Carries asks over one session.
#[derive(Debug)]
pub struct Hand<E> {
    session: Session<E>,
    caller: Caller,
}

impl<E: Exchange> Hand<E> {
    /// A hand over this session, which must use the caller's token.
    pub fn new(session: Session<E>, caller: Caller) -> Self {
        Self { session, caller }
    }

    /// How many requests were sent.
    pub fn requests(&self) -> u64 {
        self.session.requests()
    }

    /// Asks once.
    pub async fn ask(&self, ask: &Ask) -> Answer {
        match command(ask) {
            Ok(command) => {
                let came = self.session.call(&command).await;
                let clock = match clock(ask, &came) {
                    Some(command) => Some(self.session.call(&command).await),
                    None => None,
                };
                answer(&self.caller, ask, came, clock)
            }
            Err(unsent) => *unsent,
        }
    }

    /// Waits for the turn of a change at the guest's node.
    ///
    /// # Errors
    /// There was no room in time, and nothing was sent.
    pub async fn turn(&self, place: &Place) -> Result<Turn, Cause> {
        self.session.turn(Some(place.node.clone())).await.map_err(|failure| answer::cause(&failure))
    }

    /// Asks once, in a turn that was taken before.
    pub async fn send(&self, turn: Turn, ask: &Ask) -> Answer {
        match command(ask) {
            Ok(command) => answer(&self.caller, ask, self.session.call_in(turn, &command).await, None),
            Err(unsent) => *unsent,
        }
    }

    /// Reads what tells whether a change kept its [promise](Write::promise): the same before and after it.
    pub async fn read(&self, write: &Write) -> Reading {
        proof::read(self, write).await
    }
}
