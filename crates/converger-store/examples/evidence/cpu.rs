//! CPU time of the whole process: on a busy machine the wall clock measures other processes, and a store works on its own threads.

use rustix::time::{ClockId, clock_gettime};

/// The least CPU time of each work on one input, in nanoseconds. The works take turns, so that disturbances affect all of them. They must
/// not be inlined, so that callgrind can count them by name.
pub(crate) fn least_cpu_ns<T: ?Sized, const WORKS: usize>(repetitions: u32, input: &T, works: [fn(&T); WORKS]) -> [u64; WORKS] {
    let mut least = [u64::MAX; WORKS];
    for _ in 0..repetitions {
        for (work, least) in works.iter().zip(&mut least) {
            let start = process_cpu_ns();
            work(input);
            *least = (*least).min(process_cpu_ns() - start);
        }
    }
    least
}

/// The CPU time that this process has used so far.
pub(crate) fn process_cpu_ns() -> u64 {
    let used = clock_gettime(ClockId::ProcessCPUTime);
    // Both values are positive, and the sum overflows only after five hundred years.
    used.tv_sec.cast_unsigned() * 1_000_000_000 + used.tv_nsec.cast_unsigned()
}
