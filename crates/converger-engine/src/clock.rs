//! Time: the clock interface, the clock of this machine, and a clock for ages.
//!
//! Must not define how old something may be.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use converger_core::apply::{BootId, Uptime};
use rustix::time::{ClockId, clock_gettime};

/// A source of time, passed in by the caller.
pub trait Clock: Send + Sync + 'static {
    /// The time of day in milliseconds since 1970, for records.
    fn now_ms(&self) -> u64;

    /// Milliseconds of a clock that nobody can set, with an arbitrary start. It may stop while the machine is suspended.
    fn monotonic_ms(&self) -> u64;

    /// The boot id of this machine and the time since that boot; `None` if the system does not report them.
    fn uptime(&self) -> Option<Uptime>;

    /// Waits for this many milliseconds.
    fn sleep(&self, ms: u64) -> impl Future<Output = ()> + Send;
}

/// The clock of this machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now_ms(&self) -> u64 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    }

    fn monotonic_ms(&self) -> u64 {
        let up = clock_gettime(ClockId::Monotonic);
        let secs = u64::try_from(up.tv_sec).unwrap_or(0);
        secs.saturating_mul(1000).saturating_add(u64::try_from(up.tv_nsec).unwrap_or(0) / 1_000_000)
    }

    /// Reads the Linux boot id; on other systems the file does not exist. The uptime does not include suspended time, because a change
    /// that was marked before a suspend may be sent after it.
    fn uptime(&self) -> Option<Uptime> {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
        Some(Uptime { boot: BootId::new(boot.trim())?, ms: self.monotonic_ms() })
    }

    async fn sleep(&self, ms: u64) {
        tokio::time::sleep(Duration::from_millis(ms)).await;
    }
}

/// A time of day for computing ages: setting the clock back makes nothing younger. It advances at least as fast as the monotonic clock
/// and as the time of day, so that what is recent by it is recent by both.
#[derive(Clone, Copy, Debug, Default)]
pub struct MonotonicClock {
    last_ms: u64,
    monotonic_ms: u64,
}

impl MonotonicClock {
    /// The current time, given the time of day and the monotonic time.
    pub fn advance(&mut self, day_ms: u64, awake_ms: u64) -> u64 {
        // Before the first call nothing has an age.
        let went_by_ms = if self.last_ms == 0 { 0 } else { awake_ms.saturating_sub(self.monotonic_ms) };
        *self = Self { last_ms: day_ms.max(self.last_ms.saturating_add(went_by_ms)), monotonic_ms: awake_ms };
        self.last_ms
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn setting_the_clock_back_makes_nothing_younger() {
        let mut clock = MonotonicClock::default();
        let read = [(50_000, 7), (51_000, 1_007), (42_000, 15_007), (43_000, 16_007), (90_000, 17_007), (90_000, 17_007)];
        let times_ms = read.map(|(day_ms, awake_ms)| clock.advance(day_ms, awake_ms));
        assert_eq!(times_ms, [50_000, 51_000, 65_000, 66_000, 90_000, 90_000]);
    }

    #[test]
    fn sleeping_machine_makes_everything_older() {
        let mut clock = MonotonicClock::default();
        assert_eq!([(1_000, 10), (3_601_000, 11)].map(|(day_ms, awake_ms)| clock.advance(day_ms, awake_ms)), [1_000, 3_601_000]);
    }

    #[test]
    fn system_clock_is_monotonic() {
        let (first, second) = (SystemClock.monotonic_ms(), SystemClock.monotonic_ms());
        assert!(first > 0 && second >= first, "{first} {second}");
    }

    /// Decision 0016 depends on this: the boot id identifies the boot, and the uptime grows within it.
    #[test]
    fn uptime_grows_within_one_boot() {
        let [first, second] = [SystemClock.uptime(), SystemClock.uptime()].map(|uptime| uptime.expect("this is Linux"));
        assert!(first.boot == second.boot && first.ms > 0 && first.ms <= second.ms, "{first:?} {second:?}");
    }
}
