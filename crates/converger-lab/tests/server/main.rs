//! The lab as a server, byte by byte: what Proxmox's server does with connections, callers that mean harm, faults on the
//! wire, and ports.
//!
//! Whatever has to do with time runs on streams in memory and on a clock that jumps ahead when nobody has anything to do.
//! What never enters here: what an answer says (see `facts` and `replay`).

mod connections;
mod faults;
mod hostile;
mod lab;
mod ports;
mod responses;
mod tls_identities;
