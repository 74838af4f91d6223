//! The ledger of a state directory, as commands read it: page by page, each entry as it is kept.
//!
//! What never enters: making a store. Whoever only looks leaves nothing behind.

use std::path::{Path, PathBuf};

use converger_core::artifact::Digest;
use converger_core::evidence::{Entry, parse_entry};
use converger_core::failure::Code;
use converger_ledger::{Hash, Hashes, Tile, TiledHashes};
use converger_store::{Heads, LIST_MAX, Store as _, StoreError};

use super::super::memory::{self, Memory};
use super::super::{Stop, spine};
use crate::{config, files, state};

pub(in super::super) struct Book {
    memory: Memory,
}

/// What is kept is not what was recorded.
pub(in super::super) fn broken(what: impl Into<String>) -> Stop {
    Stop::broken(Code::IntegrityViolation, what)
}

impl Book {
    /// The ledger that converger.toml leads to.
    pub(in super::super) fn open(config: Option<&Path>) -> Result<Self, Stop> {
        let configured = config::path(config).map(|_| config::survey(config).map_err(spine::misconfigured)).transpose()?;
        let directory = state::directory(configured.and_then(|configured| configured.state).as_deref())
            .map_err(|text| Stop::input(text).code(Code::ConfigInvalid))?;
        Self::at(&directory)
    }

    /// The ledger in a directory.
    pub(in super::super) fn at(directory: &Path) -> Result<Self, Stop> {
        if !converger_store::is_used(directory) {
            let text = format!("there is no ledger in {}: nothing was decided there yet", files::shown(directory));
            return Err(Stop::input(text)
                .code(Code::UsageWrong)
                .help("`converger apply`, `hold` and `freeze` begin one; --config names another state directory"));
        }
        Ok(Self { memory: memory::at(directory)? })
    }

    pub(in super::super) fn directory(&self) -> &PathBuf {
        &self.memory.directory
    }

    pub(in super::super) fn memory(&self) -> &Memory {
        &self.memory
    }

    pub(in super::super) fn heads(&self) -> Result<Heads, Stop> {
        self.memory.wait(self.memory.store.heads()).map_err(|error| memory::failed(&error))
    }

    /// What is told about each entry from this place on and before that: its place, and its bytes.
    pub(in super::super) fn each(&self, from: u64, to: u64, mut told: impl FnMut(u64, &[u8]) -> Result<(), Stop>) -> Result<(), Stop> {
        let mut next = from;
        while next < to {
            let limit = u32::try_from(to - next).unwrap_or(LIST_MAX).min(LIST_MAX);
            let page = self.memory.wait(self.memory.store.entries(next, limit)).map_err(|error| memory::failed(&error))?;
            if page.is_empty() {
                return Err(broken(format!("entry {next} is missing")));
            }
            for entry in page {
                told(next, &entry)?;
                next += 1;
            }
        }
        Ok(())
    }

    /// One entry as it is kept.
    pub(in super::super) fn one(&self, index: u64) -> Result<Vec<u8>, Stop> {
        let size = self.heads()?.all.size;
        if index >= size {
            let stop = Stop::input(format!("there is no entry {index}: the ledger has {size}")).code(Code::UsageWrong);
            return Err(stop.help("entries are counted from 0"));
        }
        let mut found = Vec::new();
        self.each(index, index + 1, |_, entry| {
            found = entry.to_vec();
            Ok(())
        })?;
        Ok(found)
    }

    /// What an entry says.
    pub(in super::super) fn entry(&self, index: u64, bytes: &[u8]) -> Result<Entry, Stop> {
        parse_entry(bytes).map_err(|error| broken(format!("entry {index} is none that this program writes: {error}")))
    }

    /// What is kept under a digest.
    pub(in super::super) fn blob(&self, digest: Digest) -> Result<Option<Vec<u8>>, Stop> {
        self.memory.wait(self.memory.store.blob(digest)).map_err(|error| memory::failed(&error))
    }

    /// The hashes of a tile.
    pub(in super::super) fn tile(&self, tile: Tile) -> Result<Vec<Hash>, Stop> {
        let found: Result<_, StoreError> = self.memory.wait(self.memory.store.hashes(tile));
        found.map_err(|error| memory::failed(&error))?.ok_or_else(|| broken(format!("{} is missing", tile.path())))
    }

    /// The roots of its subtrees, where it has this size.
    pub(in super::super) fn hashes(&self, size: u64) -> impl Hashes<Error = Stop> {
        TiledHashes::new(size, |tile| self.tile(tile))
    }
}
