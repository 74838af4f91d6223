//! The client and the lab in one process: what the client sends, what it makes of the answers, and what the lab knows to be true.
//!
//! Neither crate knows the other; here they meet, without sockets and on a virtual clock.

mod actions;
mod actuator;
mod api;
mod book;
mod claims;
mod days;
mod facts;
mod fields;
mod forms;
mod observation;
mod reach;
mod spine;
mod trouble;
mod way;
mod witness;

#[path = "../../../converger-adapters/tests/lab/commands.rs"]
mod commands;
#[path = "../../../converger-adapters/tests/lab/wire.rs"]
mod wire;
