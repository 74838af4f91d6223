//! The client and the lab in one process: what the client sends, how it interprets the responses, and the truth of the lab.
//!
//! The two crates do not depend on each other; these tests combine them, without sockets and on a virtual clock.

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
mod intent_needs;
mod interference;
mod lab_transport;
mod observation;
mod random_labs;
mod truth_history;

#[path = "../../../converger-adapters/tests/lab/commands.rs"]
mod commands;
#[path = "../../../converger-adapters/tests/lab/sent_change.rs"]
mod sent_change;
#[path = "../../../converger-adapters/tests/lab/wire.rs"]
mod wire;
