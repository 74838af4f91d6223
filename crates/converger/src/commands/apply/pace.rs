//! What an apply waits by: the clock of this machine, or, on a lab whose time is moved by requests only, nothing at all.
//!
//! What never enters: how long anything is waited for. That is the engine's.

use std::sync::Arc;
use std::time::Duration;

use converger_core::apply::Uptime;
use converger_engine::clock::{Clock, SystemClock};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::config;

/// A clock of the engine.
#[derive(Clone, Debug)]
pub(super) struct Pace {
    clock: config::Clock,
    /// When the walk began.
    began: Instant,
    /// What was waited in all, where nobody really waits.
    passed_ms: Arc<watch::Sender<u64>>,
}

impl Pace {
    pub(super) fn new(clock: config::Clock) -> Self {
        Self { clock, began: Instant::now(), passed_ms: Arc::new(watch::Sender::new(0)) }
    }

    /// Comes back so many seconds after the walk began, as this clock counts them.
    pub(super) async fn after(&self, seconds: u64) {
        match self.clock {
            config::Clock::Real => tokio::time::sleep_until(self.began + Duration::from_secs(seconds)).await,
            config::Clock::Requests => {
                let is_over = |passed_ms: &u64| *passed_ms >= seconds.saturating_mul(1000);
                // Whoever could move it is gone: then it is never.
                if self.passed_ms.subscribe().wait_for(is_over).await.is_err() {
                    std::future::pending::<()>().await;
                }
            }
        }
    }
}

impl Clock for Pace {
    fn now_ms(&self) -> u64 {
        SystemClock.now_ms()
    }

    fn awake_ms(&self) -> u64 {
        SystemClock.awake_ms()
    }

    fn uptime(&self) -> Option<Uptime> {
        SystemClock.uptime()
    }

    async fn wait(&self, ms: u64) {
        match self.clock {
            config::Clock::Real => SystemClock.wait(ms).await,
            config::Clock::Requests => {
                self.passed_ms.send_modify(|passed_ms| *passed_ms = passed_ms.saturating_add(ms));
                tokio::task::yield_now().await;
            }
        }
    }
}
