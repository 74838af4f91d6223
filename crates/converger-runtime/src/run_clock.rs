//! The clock of a run: the clock of this machine or, for a lab whose time advances with requests only, one that never waits.
//!
//! The engine decides how long anything waits.

use std::sync::Arc;
use std::time::Duration;

use converger_core::apply::Uptime;
use converger_engine::clock::{Clock, SystemClock};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::config;
use crate::host::WallClock;

/// The clock of one environment. Clones share the elapsed time.
#[derive(Clone, Debug)]
pub struct RunClock {
    clock: config::ClockSetting,
    wall: WallClock,
    /// When the clock was created.
    began: Instant,
    /// The sum of all waits with a lab's clock, none of which really waits.
    passed_ms: Arc<watch::Sender<u64>>,
}

impl RunClock {
    /// A clock that starts now, with this wall clock.
    #[must_use]
    pub fn new(clock: config::ClockSetting, wall: WallClock) -> Self {
        Self { clock, wall, began: Instant::now(), passed_ms: Arc::new(watch::Sender::new(0)) }
    }

    /// Whether waits take real time.
    #[must_use]
    pub fn is_real(&self) -> bool {
        self.clock == config::ClockSetting::Real
    }

    /// Returns once this many seconds have passed since the clock was created.
    pub async fn after(&self, seconds: u64) {
        match self.clock {
            config::ClockSetting::Real => tokio::time::sleep_until(self.began + Duration::from_secs(seconds)).await,
            config::ClockSetting::Requests => {
                let is_over = |passed_ms: &u64| *passed_ms >= seconds.saturating_mul(1000);
                // Nothing can advance the clock any more.
                if self.passed_ms.subscribe().wait_for(is_over).await.is_err() {
                    std::future::pending::<()>().await;
                }
            }
        }
    }
}

impl Clock for RunClock {
    fn now_ms(&self) -> u64 {
        self.wall.now_ms()
    }

    fn monotonic_ms(&self) -> u64 {
        SystemClock.monotonic_ms()
    }

    fn uptime(&self) -> Option<Uptime> {
        SystemClock.uptime()
    }

    async fn sleep(&self, ms: u64) {
        match self.clock {
            config::ClockSetting::Real => SystemClock.sleep(ms).await,
            config::ClockSetting::Requests => {
                self.passed_ms.send_modify(|passed_ms| *passed_ms = passed_ms.saturating_add(ms));
                tokio::task::yield_now().await;
            }
        }
    }
}
