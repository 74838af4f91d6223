//! Measures CPU time, because wall-clock time on a busy machine includes other processes.

use std::{fs, thread};

/// The least CPU time of several functions on one input, in nanoseconds. They run alternately, so that disturbances of the machine affect
/// all of them. They must not be inlined, so that callgrind can count them by name.
pub(crate) fn measure_least<T: ?Sized, const WORKS: usize>(repetitions: u32, input: &T, works: [fn(&T); WORKS]) -> [u64; WORKS] {
    let mut least = [u64::MAX; WORKS];
    for _ in 0..repetitions {
        for (work, least) in works.iter().zip(&mut least) {
            let start = thread_cpu_ns();
            work(input);
            *least = (*least).min(thread_cpu_ns() - start);
        }
    }
    least
}

/// The CPU time of this thread so far: the first number in its schedstat.
fn thread_cpu_ns() -> u64 {
    // The scheduler updates its accounting when it is called, otherwise only at the next tick.
    thread::yield_now();
    let account = fs::read_to_string("/proc/self/schedstat").expect("Linux keeps an account of each process");
    account.split(' ').next().and_then(|time| time.parse().ok()).expect("the account begins with nanoseconds")
}
