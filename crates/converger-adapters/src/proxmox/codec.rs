//! The codec: a command becomes a request, and the answer to it an event. Pure, without sockets and without a clock, so that
//! the client, the simulator and the tests drive the very same code.
//!
//! What never enters: who is asked, with which credentials, when and how often.

mod access;
mod answer;
mod basis;
mod command;
mod config;
mod event;
mod field;
mod ha;
mod object;
mod options;
mod property;
mod reason;
mod request;
mod scalar;
mod upid;
mod words;

pub use access::{Expiry, Permissions, Roles, Spread, TokenState, User};
pub(super) use answer::shortened;
pub use answer::{Delivery, Failure, HttpAnswer, Shown};
pub use basis::Basis;
pub use command::{CloneDisks, Command, ConfigSet, Migration, Read, Write, encode};
pub use config::GuestConfig;
pub use event::{
    Accepted, Cluster, Event, GuestStatus, NextId, NodeGuest, Resource, ResourceList, Snapshot, Snapshots, Task, TaskState, Version, decode,
};
pub use field::Unwritable;
pub use ha::{HaResource, HaStatus};
pub use options::TagOptions;
pub use reason::{Cause, classify};
pub use request::{BASE, HttpRequest, Method, percent_encode};
pub use upid::Upid;
pub use words::{Digest, DiskKey, DiskSize, GuestPath, SnapshotName, StorageName, UserId};
