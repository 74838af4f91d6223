//! `converger apply` as a process among people: signals, terminals, two at once.
//!
//! The time of the lab stands still unless a test moves it, so that a task is under way for exactly as long as the test wants. What
//! never enters here: what is sent and when (the tests of the engine), and goldens (the scenarios).

#[path = "../scenarios/lab.rs"]
#[allow(dead_code, reason = "the scenarios need more of it")]
mod lab;
mod signals;
mod stage;
mod terminal;
mod verbosity;
