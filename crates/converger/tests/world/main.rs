//! The client and the lab in one process: what the client sends, what it makes of the answers, and what the lab knows to be true.
//!
//! Neither crate knows the other; here they meet, without sockets and on a virtual clock.

mod actuator;
mod api;
mod changes;
mod claims;
mod client;
mod config_forms;
mod facts;
mod facts_page;
mod fields;
mod host_reaching_keys;
mod interference;
mod lab_transport;
mod observation;
mod random_labs;
mod truth_history;

#[path = "../../../converger-adapters/tests/lab/commands.rs"]
mod commands;
#[path = "../../../converger-adapters/tests/lab/wire.rs"]
mod wire;
