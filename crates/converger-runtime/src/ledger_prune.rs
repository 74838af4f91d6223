//! Removes old readings from the store and records who did so. Entries are never removed.
//!
//! The readings that are still needed are found by reading the ledger. The store removes readings only if the ledger has not grown since: a
//! decision that was made meanwhile may need the same reading.

use converger_core::artifact::Digest;
use converger_core::evidence::{LedgerReplay, PRUNED_DIGESTS_MAX};
use converger_core::failure::FailureCode;
use converger_store::{Batch, Store as _, StoreError, StoreRefusal, StoreWrite};

use crate::author::Author;
use crate::error::RuntimeError;
use crate::ledger_reader::{LedgerLocation, LedgerReader, integrity_error};
use crate::state_dir::{StateDirectory, run_blocking, store_error};

/// A reading that can be removed, or was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrunableReading {
    /// Its digest.
    pub digest: Digest,
    /// Its length.
    pub bytes: u64,
}

/// The readings that can be removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrunableReadings {
    /// All of them.
    pub readings: Vec<PrunableReading>,
    /// The number of entries of the ledger that was read.
    ledger_size: u64,
}

/// How often the ledger is read again if it has grown.
const ATTEMPTS_MAX: usize = 4;

/// Finds the readings that only decisions before this time need.
///
/// # Errors
/// The ledger cannot be read, or is not as it was recorded.
pub fn find_prunable(reader: &LedgerReader, before_ms: u64) -> Result<PrunableReadings, RuntimeError> {
    let (mut replay, ledger_size) = (LedgerReplay::default(), reader.heads()?.all.size);
    reader.for_each_entry::<RuntimeError>(0, ledger_size, |index, bytes| {
        let applied = replay.apply_entry(reader.parse_entry(index, bytes)?);
        applied.map_err(|misplaced| integrity_error(format!("entry {index} is misplaced: {misplaced}")))
    })?;
    let mut readings = Vec::new();
    for digest in replay.unneeded_observations(before_ms) {
        // Readings that were pruned before are skipped.
        if let Some(bytes) = reader.blob(digest)? {
            readings.push(PrunableReading { digest, bytes: bytes.len() as u64 });
        }
    }
    Ok(PrunableReadings { readings, ledger_size })
}

impl StateDirectory {
    /// Removes the readings that only decisions before this time need, and returns what was removed.
    ///
    /// # Errors
    /// The ledger cannot be read or is not as it was recorded, it keeps growing, or the store or the witness cannot be written to. Readings that were
    /// removed until then stay removed, and the ledger says so.
    pub async fn prune_readings(&self, before_ms: u64, author: &Author) -> Result<Vec<PrunableReading>, RuntimeError> {
        let mut pruned = Vec::new();
        for _ in 0..ATTEMPTS_MAX {
            let location = LedgerLocation::from_directory(self.path());
            let found = run_blocking(move || location.read(|reader| find_prunable(reader, before_ms))).await?;
            if self.remove_readings(&found, before_ms, author, &mut pruned).await? == LedgerGrowth::Unchanged {
                self.attest_ledger().await?;
                return Ok(pruned);
            }
        }
        let text = "the ledger keeps growing, so that the readings in use cannot be determined";
        Err(RuntimeError::failed(text).with_code(FailureCode::JournalUnwritable).with_help("wait until the apply ends, then prune again"))
    }

    /// Removes these readings until the ledger is found to have grown by another write.
    async fn remove_readings(
        &self,
        found: &PrunableReadings,
        before_ms: u64,
        author: &Author,
        pruned: &mut Vec<PrunableReading>,
    ) -> Result<LedgerGrowth, RuntimeError> {
        let chunks = found.readings.chunks(PRUNED_DIGESTS_MAX);
        // Each removal adds one entry.
        for (chunk, seen) in chunks.zip(found.ledger_size..) {
            let digests = chunk.iter().map(|reading| reading.digest).collect();
            let write = StoreWrite::Prune { digests, seen, by: author.by.clone(), before_ms, at_ms: author.at_ms };
            match self.store().commit(Batch::from(write)).await {
                Ok(_) => pruned.extend_from_slice(chunk),
                Err(StoreError::Refused(StoreRefusal::LedgerGrown { .. })) => return Ok(LedgerGrowth::Grown),
                Err(error) => return Err(store_error(&error)),
            }
        }
        Ok(LedgerGrowth::Unchanged)
    }
}

/// Whether another write added entries to the ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LedgerGrowth {
    Unchanged,
    Grown,
}
