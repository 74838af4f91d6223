//! What binds a config write to the reading that it was checked on, as the engine carries it: text that it does not look into.
//!
//! What never enters: whether the write may be sent.

use converger_core::apply::Revision;

use crate::proxmox::codec::{Basis, GuestConfig};

/// The revision of a reading; none where Proxmox gave no digest, or more than can be kept.
pub(super) fn of(config: &GuestConfig) -> Option<Revision> {
    Revision::new(&Basis::of(config)?.text()?)
}

/// What a write rests on; none where it is not a revision of ours.
pub(super) fn basis(revision: &Revision) -> Option<Basis> {
    Basis::parse(revision.as_str())
}
