//! CPU time of the whole process, because the wall clock of a busy machine measures the neighbours, and a store works on a thread of its own.

use rustix::time::{ClockId, clock_gettime};

/// The least CPU time of each of several works on one input, in nanoseconds. They take turns, so that what disturbs the
/// machine disturbs all of them. Works are functions that are not inlined, so that callgrind can count them by name.
pub(crate) fn least_cpu_ns<T: ?Sized, const WORKS: usize>(turns: u32, input: &T, works: [fn(&T); WORKS]) -> [u64; WORKS] {
    let mut least = [u64::MAX; WORKS];
    for _ in 0..turns {
        for (work, least) in works.iter().zip(&mut least) {
            let start = process_cpu_ns();
            work(input);
            *least = (*least).min(process_cpu_ns() - start);
        }
    }
    least
}

/// What this process has used so far.
pub(crate) fn process_cpu_ns() -> u64 {
    let used = clock_gettime(ClockId::ProcessCPUTime);
    // Neither is below zero, and a process does not work for five hundred years.
    used.tv_sec.cast_unsigned() * 1_000_000_000 + used.tv_nsec.cast_unsigned()
}
