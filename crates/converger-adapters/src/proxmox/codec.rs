//! The codec: encodes a command as a request and decodes the response into an event. It is pure, without sockets and without a clock,
//! so that the client, the simulator and the tests run the same code.
//!
//! Must not depend on the endpoint, on credentials, or on when and how often a request is sent.

mod access;
mod capacity;
mod command;
mod config;
mod day_one;
mod event;
mod failure_cause;
mod field;
mod ha;
mod hardware;
mod identifiers;
mod object;
mod options;
mod property;
mod provision;
mod request;
mod response;
mod scalar;
mod snapshots;
mod upid;
mod write_basis;

pub use access::{Expiry, Permissions, ProxmoxUser, RolePrivileges, SpreadFilter, TokenState};
pub use command::{ConfigSet, ProxmoxCommand, ProxmoxRead, ProxmoxWrite, encode};
pub use config::GuestConfig;
pub use event::{
    AcceptedChange, ClusterStatus, GuestResource, GuestStatus, IdAvailability, ListedTask, NodeGuest, ProxmoxEvent, ProxmoxTaskState,
    ProxmoxVersion, ResourceList, decode,
};
pub use failure_cause::{FailureCause, classify_text};
pub use field::UnwritableChange;
pub use ha::{HaService, HaStatus};
pub use identifiers::{ConfigDigest, DiskKey, DiskSize, GuestPath, SnapshotName, StorageName, UserId};
pub use options::TagOptions;
pub use provision::{ProvisionWrite, WritePassword};
pub use request::{BASE, HttpMethod, HttpRequest, percent_encode};
pub(super) use response::shorten;
pub use response::{Delivery, EscapedText, HttpResponse, ProxmoxFailure};
pub use snapshots::{ListedSnapshots, SnapshotConfig};
pub use upid::Upid;
pub use write_basis::WriteBasis;
