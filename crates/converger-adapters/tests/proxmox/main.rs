//! Tests of the Proxmox client with scripted responses: in process for the content of observations, over HTTPS on the loopback for the
//! transport.

mod actuator;
mod conformance;
mod damaged_responses;
mod https_server;
mod intent_needs;
mod inventory;
mod malformed_rows;
mod node_lists;
mod node_queue;
mod observe;
mod promises;
mod reading_budget;
mod recording_round_trip;
mod requests;
mod responses;
mod scripted_proxmox;
mod stored_config;
mod transport;
mod trust;
mod values;

#[path = "../lab/commands.rs"]
mod commands;
#[path = "../lab/sent_change.rs"]
mod sent_change;
#[path = "../lab/wire.rs"]
mod wire;
