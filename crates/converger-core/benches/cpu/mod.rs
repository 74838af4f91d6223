//! CPU time, because the wall clock of a busy machine measures the neighbours.

use std::{fs, thread};

/// The least CPU time of each of several works on one input, in nanoseconds. They take turns, so that what disturbs the
/// machine disturbs all of them. Works are functions that are not
/// inlined, so that callgrind can count them by name.
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

/// What this thread has used so far: the first number that the scheduler keeps of it.
fn thread_cpu_ns() -> u64 {
    // The scheduler brings its account up to date when it is called, and otherwise only with the next tick.
    thread::yield_now();
    let account = fs::read_to_string("/proc/self/schedstat").expect("Linux keeps an account of each process");
    account.split(' ').next().and_then(|time| time.parse().ok()).expect("the account begins with nanoseconds")
}
