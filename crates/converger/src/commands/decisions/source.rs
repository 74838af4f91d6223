//! Where decisions are read from: a state directory, or an export of one.
//!
//! What never enters: what was decided, and the environment.

use std::cell::RefCell;
use std::path::Path;

use converger_core::apply::{OperationHistory, OperationId, RunId};
use converger_core::artifact::Digest;
use converger_runtime::{LedgerLocation, LedgerReader};

use super::super::verify::VerifiedExport;
use super::super::{CommandError, check_output_is_no_state};
use super::DecisionIndex;
use crate::cli::{LedgerCopyArgs, LedgerSourceArgs};
use crate::files;

/// What is asked for decisions.
pub(in super::super) enum DecisionSource<'r> {
    State(&'r LedgerReader),
    Export(&'r VerifiedExport),
}

impl DecisionSource<'_> {
    /// What is kept under a digest.
    pub(in super::super) fn blob(&self, digest: Digest) -> Result<Option<Vec<u8>>, CommandError> {
        match self {
            Self::State(book) => Ok(book.blob(digest)?),
            Self::Export(export) => export.blob(digest),
        }
    }

    /// The operations of a run, in their order.
    pub(in super::super) fn operations(&self, run: &RunId) -> Result<Vec<OperationHistory>, CommandError> {
        match self {
            Self::State(book) => Ok(book.operations(run)?),
            Self::Export(export) => Ok(export.operations(run)),
        }
    }

    /// An operation and what became of it.
    pub(in super::super) fn operation(&self, id: &OperationId) -> Result<Option<OperationHistory>, CommandError> {
        match self {
            Self::State(book) => Ok(book.operation(id)?),
            Self::Export(export) => Ok(export.operation(id).cloned()),
        }
    }
}

/// What is kept, for those who only know bytes and their absence.
pub(super) struct BlobReader<'r> {
    record: &'r DecisionSource<'r>,
    /// What is kept and cannot be read is told as that, and not as missing.
    error: RefCell<Option<CommandError>>,
}

impl<'r> BlobReader<'r> {
    pub(super) fn new(record: &'r DecisionSource<'r>) -> Self {
        Self { record, error: RefCell::new(None) }
    }

    /// What is kept under a digest, where it can be read.
    pub(super) fn blob(&self, digest: Digest) -> Option<Vec<u8>> {
        self.record.blob(digest).unwrap_or_else(|stop| self.error.replace(Some(stop)).and(None))
    }

    /// Whether all that was asked for could be read.
    pub(super) fn check_reads(&self) -> Result<(), CommandError> {
        self.error.take().map_or(Ok(()), Err)
    }
}

/// Where a record is, as it was named.
pub(in super::super) enum DecisionLocation<'p> {
    /// What converger.toml leads to.
    State(Option<&'p Path>),
    /// A state directory that was named.
    Directory(&'p Path),
    Export {
        path: &'p Path,
        key: Option<&'p str>,
    },
}

impl<'p> DecisionLocation<'p> {
    pub(in super::super) fn from_source(source: &'p LedgerSourceArgs) -> Self {
        Self::from_copy(&source.copy, source.config.as_deref())
    }

    /// Where nothing else is named, the one that this converger.toml leads to.
    pub(super) fn from_copy(from: &'p LedgerCopyArgs, config: Option<&'p Path>) -> Self {
        match (&from.from, &from.db) {
            (Some(path), _) => Self::Export { path, key: from.key.as_deref() },
            (None, Some(directory)) => Self::Directory(directory),
            (None, None) => Self::State(config),
        }
    }

    /// Where that is, for people.
    pub(in super::super) fn describe(&self) -> String {
        match self {
            Self::State(config) => LedgerLocation::from_config(*config).map_or_else(
                |stop| format!("no state directory: {}", stop.to_string().lines().next().unwrap_or_default()),
                |shelf| files::display_path(&shelf.directory),
            ),
            Self::Export { path, .. } | Self::Directory(path) => files::display_path(path),
        }
    }

    /// What is told of the record and of all that was decided in it.
    pub(in super::super) fn read<T>(
        &self,
        told: impl Fn(&DecisionSource<'_>, &DecisionIndex) -> Result<T, CommandError>,
    ) -> Result<T, CommandError> {
        match self {
            Self::State(config) => LedgerLocation::from_config(*config)?
                .read(|book| told(&DecisionSource::State(book), &DecisionIndex::default().read_ledger(book)?)),
            Self::Directory(path) => LedgerLocation::from_directory(path)
                .read(|book| told(&DecisionSource::State(book), &DecisionIndex::default().read_ledger(book)?)),
            Self::Export { path, key } => read_export(path, *key, DecisionIndex::default(), told),
        }
    }

    /// The same where there may be nothing at all, with an entry that is looked for by its index.
    pub(in super::super) fn read_if_present<T>(
        &self,
        sought: Option<u64>,
        told: impl Fn(&DecisionSource<'_>, &DecisionIndex) -> Result<T, CommandError>,
    ) -> Result<Option<T>, CommandError> {
        let all = |book: &LedgerReader| DecisionIndex::for_entry(sought).read_ledger(book);
        match self {
            Self::State(config) => {
                let shelf = match LedgerLocation::from_config(*config) {
                    // A machine on which nothing says where records would be has none; codes are explained there too.
                    Err(_) if config.is_none() => return Ok(None),
                    shelf => shelf?,
                };
                shelf.read_if_present(|book| told(&DecisionSource::State(book), &all(book)?))
            }
            Self::Directory(path) => {
                LedgerLocation::from_directory(path).read(|book| told(&DecisionSource::State(book), &all(book)?)).map(Some)
            }
            Self::Export { path, key } => read_export(path, *key, DecisionIndex::for_entry(sought), told).map(Some),
        }
    }

    /// What is written of a record is not written over it.
    pub(in super::super) fn check_output_path(&self, out: &Path) -> Result<(), CommandError> {
        match self {
            Self::State(config) => check_output_is_no_state(out, *config),
            Self::Export { path, .. } | Self::Directory(path) if files::is_under(out, path) => {
                let stop = CommandError::input_error(format!("{} would be written into what is read", files::display_path(out)));
                Err(stop.with_code(converger_core::failure::FailureCode::FileTaken).with_help("name another file with --out"))
            }
            Self::Export { .. } | Self::Directory(_) => check_output_is_no_state(out, None),
        }
    }
}

fn read_export<T>(
    path: &Path,
    key: Option<&str>,
    mut decided: DecisionIndex,
    told: impl Fn(&DecisionSource<'_>, &DecisionIndex) -> Result<T, CommandError>,
) -> Result<T, CommandError> {
    let export = VerifiedExport::open(path, key, |index, entry| decided.add_entry(index, entry))?;
    export.print_note();
    told(&DecisionSource::Export(&export), &decided)
}
