//! The lab as a server, byte by byte: connection handling like Proxmox's, hostile clients, faults
//! on the wire, and ports.
//!
//! Tests that depend on time use streams in memory and a paused clock that jumps ahead when all
//! tasks are idle. What responses contain is tested in `facts` and `replay`.

mod connections;
mod faults;
mod hostile;
mod lab;
mod ports;
mod responses;
mod tls_identities;
