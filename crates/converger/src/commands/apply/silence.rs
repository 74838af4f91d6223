//! A network that is lost takes a minute to be noticed, and nobody should sit in front of a screen that says nothing for so long.
//!
//! What never enters: how long anything is waited for. That is the client's.

use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::{Either, select};

use crate::config::Clock;

/// How long nothing is said about an answer that does not come.
const PATIENCE: Duration = Duration::from_secs(2);

const WAITED_FOR: &str = "no answer for 2 s: it is waited for, and nothing is sent twice";

/// Says once that an answer is waited for, until there is one again.
pub(super) struct Silence {
    clock: Clock,
    is_told: AtomicBool,
}

impl Silence {
    pub(super) fn new(clock: Clock) -> Self {
        Self { clock, is_told: AtomicBool::new(false) }
    }

    /// The answer, whenever it comes.
    pub(super) async fn watched<T>(&self, answer: impl Future<Output = T>) -> T {
        match self.clock {
            Clock::Real => self.told(answer, tokio::time::sleep(PATIENCE), || drop(super::mention(WAITED_FOR))).await,
            // Time is moved by answers there: nobody waits for one.
            Clock::Requests => answer.await,
        }
    }

    async fn told<T>(&self, answer: impl Future<Output = T>, patience: impl Future<Output = ()>, say: impl Fn()) -> T {
        match select(pin!(answer), pin!(patience)).await {
            Either::Left((answer, _)) => {
                self.is_told.store(false, Ordering::SeqCst);
                answer
            }
            Either::Right(((), answer)) => {
                if !self.is_told.swap(true, Ordering::SeqCst) {
                    say();
                }
                answer.await
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::future::{pending, ready};

    use futures_util::FutureExt as _;

    use super::*;

    #[test]
    fn a_silence_is_told_once_and_again_only_after_an_answer() {
        let (silence, said) = (Silence::new(Clock::Real), Cell::new(0));
        let say = || said.set(said.get() + 1);
        let late = || silence.told(tokio::task::yield_now(), ready(()), say);
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(late());
        runtime.block_on(late());
        assert_eq!(said.get(), 1, "several answers are waited for, and it is said once");
        assert_eq!(silence.told(ready(7), pending(), say).now_or_never(), Some(7));
        assert_eq!(said.get(), 1, "what comes in time is not talked about");
        runtime.block_on(late());
        assert_eq!(said.get(), 2);
    }
}
