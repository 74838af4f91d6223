//! What binds a config write to the reading that it was checked on, as the engine carries it: text that it does not look into.
//!
//! What never enters: whether the write may be sent.

use converger_core::apply::ConfigRevision;

use crate::proxmox::codec::{GuestConfig, WriteBasis};

/// The revision of a reading; none where Proxmox gave no digest, or more than can be kept.
pub(super) fn revision_of(config: &GuestConfig) -> Option<ConfigRevision> {
    ConfigRevision::new(&WriteBasis::from_config(config)?.to_text()?)
}

/// What a write rests on; none where it is not a revision of ours.
pub(super) fn parse_basis(revision: &ConfigRevision) -> Option<WriteBasis> {
    WriteBasis::parse(revision.as_str())
}
