//! What binds a config write to the reading that it was checked on: the digest, and the guest agent's property, whose other options
//! a write keeps.
//!
//! What never enters: whether the write may be sent.

use converger_core::apply::Revision;

use crate::proxmox::codec::{Digest, GuestConfig};

/// The revision of a reading; none where Proxmox gave no digest, or more than can be kept.
pub(super) fn of(config: &GuestConfig) -> Option<Revision> {
    let digest = config.digest.as_ref()?.as_str();
    match &config.agent {
        Some(agent) => Revision::new(&format!("{digest}\n{agent}")),
        None => Revision::new(digest),
    }
}

/// The digest and the agent's property; none where it is not a revision of ours.
pub(super) fn parts(revision: &Revision) -> Option<(Digest, Option<&str>)> {
    let text = revision.as_str();
    let (digest, agent) = text.split_once('\n').map_or((text, None), |(digest, agent)| (digest, Some(agent)));
    Some((Digest::new(digest)?, agent))
}
