//! What entries say, in their order: each is one that this program writes, none stands where it could not, and what they name is what it was.

use std::collections::BTreeMap;

use converger_core::artifact::Digest;
use converger_core::evidence::{Replay, parse_entry};

use super::super::Stop;
use super::super::ledger::{broken, digests};

/// A walk through the entries.
#[derive(Default)]
pub(super) struct Deep {
    pub(super) replay: Replay,
    /// What entries name by digest, with the first that does.
    named: BTreeMap<Digest, u64>,
}

impl Deep {
    pub(super) fn take(&mut self, index: u64, bytes: &[u8]) -> Result<(), Stop> {
        let entry = parse_entry(bytes).map_err(|error| broken(format!("entry {index} is none that this program writes: {error}")))?;
        for digest in digests(&entry) {
            self.named.entry(digest).or_insert(index);
        }
        self.replay.take(entry).map_err(|misplaced| broken(format!("entry {index} cannot stand where it does: {misplaced}")))
    }

    /// How many things that are named are no longer kept. One that is kept and is another is an error.
    pub(super) fn gone(&self, kept: impl Fn(Digest) -> Result<Option<Vec<u8>>, Stop>) -> Result<u64, Stop> {
        let mut gone = 0;
        for (digest, index) in &self.named {
            match kept(*digest)? {
                None => gone += 1,
                Some(bytes) if Digest::of_bytes(&bytes) == *digest => {}
                Some(bytes) => {
                    let found = Digest::of_bytes(&bytes);
                    return Err(broken(format!("what entry {index} names {digest} is kept with the digest {found}")));
                }
            }
        }
        Ok(gone)
    }
}
