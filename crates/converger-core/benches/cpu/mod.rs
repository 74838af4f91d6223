//! CPU time, because the wall clock of a busy machine measures the neighbours.

use rustix::time::{ClockId, clock_gettime};

/// The least CPU time of each of several works, in nanoseconds. They take turns, so that what disturbs the machine
/// disturbs all of them.
pub(crate) fn least<const WORKS: usize>(repetitions: u32, mut works: [&mut dyn FnMut(); WORKS]) -> [u64; WORKS] {
    let mut least = [u64::MAX; WORKS];
    for _ in 0..repetitions {
        for (work, least) in works.iter_mut().zip(&mut least) {
            let start = now_ns();
            work();
            *least = (*least).min(now_ns() - start);
        }
    }
    least
}

/// What this process has used so far.
fn now_ns() -> u64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0)
}
