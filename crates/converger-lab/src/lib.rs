//! A simulator of the Proxmox VE API. `World::answer(now, request)` is a pure function of the world
//! spec and of the earlier requests.
//!
//! It reproduces the texts, status codes, types, reason phrases, delays and quirks of Proxmox VE 7,
//! 8 and 9, so that a program can be tried and tested without a cluster. It shares no code with the
//! rest of this workspace; otherwise agreement with it would prove nothing. It must not read a
//! clock, entropy, files or sockets; the caller passes in what it needs (`server` is the only
//! module with sockets).
//!
//! ```
//! use converger_lab::{LabRequest, World, WorldSpec};
//!
//! let spec = WorldSpec::from_yaml(
//!     "nodes: { pve1: {} }
//! tokens: { 'root@pam!me': { secret: s3cret, full: true } }
//! guests: [{ vmid: 100, kind: qemu, node: pve1, name: web, state: running }]",
//! )?;
//! let mut world = World::new(&spec)?;
//! let request = LabRequest::new("GET", "/api2/json/nodes/pve1/qemu/100/status/current").with_token("root@pam!me=s3cret");
//! let answer = world.answer(spec.start_ms, &request);
//! assert_eq!(answer.status, 200);
//! assert!(String::from_utf8_lossy(&answer.body).contains("\"qmpstatus\":\"running\""));
//! # Ok::<(), String>(())
//! ```

mod access;
mod api;
mod config_update;
mod copy_on_write;
mod decode;
mod digest;
mod events;
mod fault;
mod firewall;
mod flavour;
mod guest;
mod guests;
mod ha;
mod json_text;
mod node;
mod node_view;
mod options;
mod random;
mod replication;
mod response;
mod route;
mod schema;
mod sections;
#[cfg(feature = "server")]
pub mod server;
mod storage;
mod task;
mod task_work;
mod truth;
mod verify;
mod wire;
mod word_map;
mod world;
mod world_spec;

pub use fault::{
    BadDay, FaultPlan, NodeService, RandomFaults, RequestFault, ResponseFault, SeededBadDay, TaskFault, TaskFaultEffect, TimedWorldEvent,
    WorldEvent,
};
pub use flavour::Flavour;
pub use guest::LabGuestKind;
pub use truth::{BirthMarks, DiskTruth, GuestSummary, GuestTruth, GuestVerb, HaTruth, SnapshotTruth};
pub use verify::{documented_methods, verify_request, verify_response};
pub use wire::{LabRequest, LabResponse, ResponseHeader, TlsIdentity, WireDelivery};
pub use world::{RequestRecord, World};
pub use world_spec::{
    AclSpec, GuestSpec, HaSpec, NewGuestSpec, NodeSpec, PoolSpec, ReplicationSpec, ScalarSpec, StorageSpec, TakenSnapshotSpec,
    TaskDurations, TokenSpec, UserSpec, WorldSize, WorldSpec,
};
