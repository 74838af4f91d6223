//! The text that binds a config write to the config that it was checked against. The engine carries it without parsing it.
//!
//! Must not decide whether the write may be sent.

use converger_core::apply::ConfigRevision;

use crate::proxmox::codec::{GuestConfig, WriteBasis};

/// The revision of a config; `None` if Proxmox gave no digest, or if the text exceeds the limit.
pub(super) fn revision_of(config: &GuestConfig) -> Option<ConfigRevision> {
    ConfigRevision::new(&WriteBasis::from_config(config)?.to_text()?)
}

/// The basis of a write; `None` if `revision_of` did not produce the text.
pub(super) fn parse_basis(revision: &ConfigRevision) -> Option<WriteBasis> {
    WriteBasis::parse(revision.as_str())
}
