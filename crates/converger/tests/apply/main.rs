//! `converger apply` as a process: signals, terminals, two processes at once.
//!
//! The time of the lab stands still unless a test advances it, so that a task is in flight for exactly as long as the test wants. What is
//! sent and when is tested in the engine; expected output is tested in the scenarios.

#[path = "../scenarios/lab.rs"]
#[allow(dead_code, reason = "the scenarios need more of it")]
mod lab;
mod signals;
mod stage;
mod terminal;
mod verbosity;
