//! The codec: a command becomes a request, and the answer to it an event. Pure, without sockets and without a clock, so that
//! the client, the simulator and the tests drive the very same code.
//!
//! What never enters: who is asked, with which credentials, when and how often.

mod access;
mod command;
mod config;
mod event;
mod failure_cause;
mod field;
mod ha;
mod identifiers;
mod object;
mod options;
mod property;
mod request;
mod response;
mod scalar;
mod upid;
mod write_basis;

pub use access::{Expiry, Permissions, ProxmoxUser, RolePrivileges, SpreadFilter, TokenState};
pub use command::{CloneDisks, ConfigSet, MigrationMode, ProxmoxCommand, ProxmoxRead, ProxmoxWrite, encode};
pub use config::GuestConfig;
pub use event::{
    AcceptedChange, ClusterStatus, GuestResource, GuestStatus, IdAvailability, ListedTask, NodeGuest, ProxmoxEvent, ProxmoxSnapshot,
    ProxmoxSnapshots, ProxmoxTaskState, ProxmoxVersion, ResourceList, decode,
};
pub use failure_cause::{FailureCause, classify_text};
pub use field::UnwritableChange;
pub use ha::{HaService, HaStatus};
pub use identifiers::{ConfigDigest, DiskKey, DiskSize, GuestPath, SnapshotName, StorageName, UserId};
pub use options::TagOptions;
pub use request::{BASE, HttpMethod, HttpRequest, percent_encode};
pub(super) use response::shorten;
pub use response::{Delivery, EscapedText, HttpResponse, ProxmoxFailure};
pub use upid::Upid;
pub use write_basis::WriteBasis;
