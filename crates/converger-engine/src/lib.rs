//! The hand: how the steps of an approved plan are carried out, so that being killed at any moment costs nothing.
//!
//! [`operation`] is one step on its way, as a pure state machine: `step(state, event) -> (state, command)`, with one external
//! request or one durable commit per transition. Whoever drives it carries the command out and feeds back what came of it.
//!
//! [`schedule`] says which operation comes next, as another one.
//!
//! [`drive`] ties both together for all runs of one environment, as a third one.
//!
//! [`executor`] carries out what a drive wants done, over a [`Actuator`] and a store, and is as thin as that: its [`Executor`] accepts runs while others are in flight.
//!
//! [`clock`] is time, handed in.
//!
//! What never enters: Proxmox. What is asked and what comes back are words of `converger_core::apply`.

pub mod operation;
pub mod schedule;

pub mod run_machine;

pub mod clock;
pub mod executor;

pub use clock::Clock;
pub use executor::{Actuator, Executor};

#[cfg(test)]
mod testing;
