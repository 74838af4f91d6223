//! The clock of a served world: wall clock, accelerated, or advanced by requests only.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use tokio::time::{Duration, Instant};

/// How time passes in a served world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClockMode {
    /// Starts now and runs `speed` times as fast as the wall clock. Clients really wait for delayed responses.
    Real {
        /// 1 is the speed of the wall clock.
        speed: u32,
    },
    /// Starts at the time of the world spec. Each request advances it by `step_ms` and by the delay of its response; nobody waits.
    Virtual {
        /// Milliseconds per request.
        step_ms: u64,
    },
}

impl ClockMode {
    /// The start time of the world.
    pub(super) fn start_ms(self, setting_ms: u64) -> u64 {
        let now = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis());
        match self {
            Self::Real { .. } => u64::try_from(now()).unwrap_or(setting_ms),
            Self::Virtual { .. } => setting_ms,
        }
    }
}

/// The clock of a world that is being served.
#[derive(Clone)]
pub(super) struct WorldClock {
    clock: ClockMode,
    begin_ms: u64,
    started: Instant,
    /// How far requests have advanced a virtual clock.
    advanced_ms: Arc<Mutex<u64>>,
}

impl WorldClock {
    pub(super) fn start(clock: ClockMode, begin_ms: u64) -> Self {
        Self { clock, begin_ms, started: Instant::now(), advanced_ms: Arc::default() }
    }

    /// The arrival time of a request. A virtual clock continues from `world_ms`, because the holder of the world may have advanced it.
    pub(super) fn arrival_ms(&self, world_ms: u64) -> u64 {
        match self.clock {
            ClockMode::Real { .. } => self.now_ms(),
            ClockMode::Virtual { step_ms } => {
                let behind_ms = world_ms.saturating_sub(self.now_ms());
                self.begin_ms.saturating_add(self.advance_virtual(behind_ms.saturating_add(step_ms)))
            }
        }
    }

    /// The current time. Does not advance a virtual clock.
    pub(super) fn now_ms(&self) -> u64 {
        match self.clock {
            ClockMode::Real { speed } => {
                let passed_ms = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
                self.begin_ms.saturating_add(passed_ms.saturating_mul(u64::from(speed.max(1))))
            }
            ClockMode::Virtual { .. } => self.begin_ms.saturating_add(self.advance_virtual(0)),
        }
    }

    /// The real time until a time of the world; `None` for a virtual clock, which only requests advance.
    pub(super) fn duration_until(&self, moment_ms: u64) -> Option<Duration> {
        match self.clock {
            ClockMode::Real { speed } => {
                Some(Duration::from_millis(moment_ms.saturating_sub(self.now_ms()).div_ceil(u64::from(speed.max(1)))))
            }
            ClockMode::Virtual { .. } => None,
        }
    }

    /// Waits for the delay of a response.
    pub(super) async fn wait_delay(&self, delay_ms: u64) {
        match self.clock {
            ClockMode::Real { speed } if delay_ms > 0 => {
                tokio::time::sleep(Duration::from_millis(delay_ms / u64::from(speed.max(1)))).await
            }
            ClockMode::Real { .. } => {}
            ClockMode::Virtual { .. } => drop(self.advance_virtual(delay_ms)),
        }
    }

    fn advance_virtual(&self, step_ms: u64) -> u64 {
        let mut moved_ms = self.advanced_ms.lock().unwrap_or_else(PoisonError::into_inner);
        *moved_ms = moved_ms.saturating_add(step_ms);
        *moved_ms
    }
}
