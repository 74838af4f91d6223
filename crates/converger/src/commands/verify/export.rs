//! Reads decisions from an export, after verifying its log in the same way as `converger verify`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use converger_core::apply::{JournalRecord, OperationHistory, OperationId, RunId};
use converger_core::artifact::Digest;
use converger_core::evidence::{LedgerEntry, LedgerReplay};
use converger_core::failure::FailureCode;

use super::super::CommandError;
use super::super::ledger::broken;
use super::{UNTRUSTED_KEY, export_files, parse_verifier, with_source_help};
use crate::{files, output};

/// An export whose signature, hashes and entries are verified.
pub(in super::super) struct VerifiedExport {
    path: PathBuf,
    replay: LedgerReplay,
    /// The index of the intent of each operation.
    started_at: BTreeMap<OperationId, u64>,
    /// A note for people.
    note: Option<&'static str>,
}

impl VerifiedExport {
    /// Verifies an export with the given key, or with the one in the export. Entries passed to `visit_entry` are verified once this returns `Ok`.
    pub(in super::super) fn open(
        path: &Path,
        key: Option<&str>,
        mut visit_entry: impl FnMut(u64, LedgerEntry),
    ) -> Result<Self, CommandError> {
        if !path.is_dir() {
            let text = format!("{} is not an export: it is not a directory", files::display_path(path));
            return Err(CommandError::input_error(text)
                .with_code(FailureCode::FileUnreadable)
                .with_help("`converger ledger export DIR` creates one on the machine of the ledger"));
        }
        let known = key.map(parse_verifier).transpose()?;
        let note = known.is_none().then_some(UNTRUSTED_KEY);
        let key = known.map_or_else(|| export_files::key_beside_log(path), Ok)?;
        let mut intent_indices = BTreeMap::new();
        let (ledger_check, _, _) = export_files::check_log(path, &key, None, |index, entry| {
            if let LedgerEntry::Record(JournalRecord::Intent { operation, .. }) = entry {
                intent_indices.insert(operation.id.clone(), index);
            }
            visit_entry(index, entry.clone());
        })
        .map_err(with_source_help)?;
        export_files::check_key_recorded(&ledger_check, &key).map_err(with_source_help)?;
        Ok(Self { path: path.to_owned(), replay: ledger_check.into_replay(), started_at: intent_indices, note })
    }

    /// Prints the note.
    pub(in super::super) fn print_note(&self) {
        if let Some(note) = self.note {
            output::print_warning(note);
        }
    }

    /// The input with this digest.
    pub(in super::super) fn blob(&self, digest: Digest) -> Result<Option<Vec<u8>>, CommandError> {
        match export_files::read_blob(&self.path, digest)? {
            Some(bytes) if Digest::of_bytes(&bytes) != digest => {
                let found = Digest::of_bytes(&bytes);
                Err(with_source_help(broken(format!("the input {digest} in {} has the digest {found}", files::display_path(&self.path)))))
            }
            kept => Ok(kept),
        }
    }

    /// The operations of a run, in their order.
    pub(in super::super) fn operations(&self, run: &RunId) -> Vec<OperationHistory> {
        let mut own: Vec<&OperationHistory> = self.replay.operations().values().filter(|history| history.operation.run == *run).collect();
        own.sort_by_key(|history| self.started_at.get(history.id()));
        own.into_iter().cloned().collect()
    }

    /// An operation, according to its entries.
    pub(in super::super) fn operation(&self, id: &OperationId) -> Option<&OperationHistory> {
        self.replay.operations().get(id)
    }
}
