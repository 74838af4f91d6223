//! What time is for a served world: the wall's, faster than that, or moved by requests alone.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use tokio::time::{Duration, Instant};

/// What time is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClockMode {
    /// It begins now, and runs so many times as fast as elsewhere. Who waits for an answer really waits.
    Real {
        /// 1 is the time of the wall.
        speed: u32,
    },
    /// It begins where the setting says, and each request moves it by so much and by what its answer takes. Nobody waits.
    Virtual {
        /// Milliseconds for each request.
        step_ms: u64,
    },
}

impl ClockMode {
    /// When the world begins.
    pub(super) fn start_ms(self, setting_ms: u64) -> u64 {
        let now = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis());
        match self {
            Self::Real { .. } => u64::try_from(now()).unwrap_or(setting_ms),
            Self::Virtual { .. } => setting_ms,
        }
    }
}

/// The time of a world that is being served.
#[derive(Clone)]
pub(super) struct WorldClock {
    clock: ClockMode,
    begin_ms: u64,
    started: Instant,
    /// How far requests have moved a virtual clock.
    advanced_ms: Arc<Mutex<u64>>,
}

impl WorldClock {
    pub(super) fn start(clock: ClockMode, begin_ms: u64) -> Self {
        Self { clock, begin_ms, started: Instant::now(), advanced_ms: Arc::default() }
    }

    /// The moment at which a request arrives in a world that is so far. A clock that only requests move goes on from there: whoever
    /// holds the world may have let time pass in it.
    pub(super) fn arrival_ms(&self, world_ms: u64) -> u64 {
        match self.clock {
            ClockMode::Real { .. } => self.now_ms(),
            ClockMode::Virtual { step_ms } => {
                let behind_ms = world_ms.saturating_sub(self.now_ms());
                self.begin_ms.saturating_add(self.advance_virtual(behind_ms.saturating_add(step_ms)))
            }
        }
    }

    /// This moment, which moves nothing.
    pub(super) fn now_ms(&self) -> u64 {
        match self.clock {
            ClockMode::Real { speed } => {
                let passed_ms = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
                self.begin_ms.saturating_add(passed_ms.saturating_mul(u64::from(speed.max(1))))
            }
            ClockMode::Virtual { .. } => self.begin_ms.saturating_add(self.advance_virtual(0)),
        }
    }

    /// How long it really is until a moment of the world. A clock that only requests move reaches none by itself.
    pub(super) fn duration_until(&self, moment_ms: u64) -> Option<Duration> {
        match self.clock {
            ClockMode::Real { speed } => {
                Some(Duration::from_millis(moment_ms.saturating_sub(self.now_ms()).div_ceil(u64::from(speed.max(1)))))
            }
            ClockMode::Virtual { .. } => None,
        }
    }

    /// Lets the caller wait for what its answer takes.
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
