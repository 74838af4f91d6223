//! Executes the steps of an approved plan so that a crash at any moment is safe.
//!
//! [`operation`] is one step in execution, as a pure state machine: `step(state, event) -> (state, command)`, with one external request
//! or one durable commit per transition. The caller executes the command and feeds the result back as the next event.
//!
//! [`schedule`] decides which operation starts next, as a second state machine.
//!
//! [`run_machine`] combines both for all runs of one environment, as a third one.
//!
//! [`executor`] executes the commands of the run machine with an [`Actuator`] and a store, and does nothing else. Its [`Executor`]
//! accepts runs while others are in flight.
//!
//! [`clock`] is the source of time, passed in by the caller.
//!
//! Must not depend on Proxmox: requests and responses are types of `converger_core::apply`.

pub mod operation;
pub mod schedule;

pub mod run_machine;

pub mod clock;
pub mod executor;

pub use clock::Clock;
pub use executor::{Actuator, Executor};

#[cfg(test)]
mod testing;
