//! The Proxmox client, put before answers that this directory makes: in process for what a reading says, over HTTPS on the loopback
//! for what the wire does.

mod allowance;
mod answers;
mod conformance;
mod desk;
mod hand;
mod lanes;
mod node_lists;
mod observe;
mod promises;
mod requests;
mod robust;
mod server;
mod shelf;
mod transport;
mod trust;
mod values;
mod written;

#[path = "../lab/commands.rs"]
mod commands;
#[path = "../lab/wire.rs"]
mod wire;
