//! Where recorded decisions are read from: a state directory, or an export of one.

use std::cell::RefCell;
use std::path::Path;

use converger_core::apply::{OperationHistory, OperationId, RunId};
use converger_core::artifact::Digest;
use converger_runtime::{ConfigSource, LedgerLocation, LedgerReader};

use super::super::verify::VerifiedExport;
use super::super::{CommandError, check_output_is_no_state};
use super::DecisionIndex;
use crate::cli::{LedgerCopyArgs, LedgerSourceArgs};
use crate::files;

/// An open ledger with its blobs and operations.
pub(in super::super) enum DecisionSource<'r> {
    State(&'r LedgerReader),
    Export(&'r VerifiedExport),
}

impl DecisionSource<'_> {
    /// The blob with this digest.
    pub(in super::super) fn blob(&self, digest: Digest) -> Result<Option<Vec<u8>>, CommandError> {
        match self {
            Self::State(ledger) => Ok(ledger.blob(digest)?),
            Self::Export(export) => export.blob(digest),
        }
    }

    /// The operations of a run, in their order.
    pub(in super::super) fn operations(&self, run: &RunId) -> Result<Vec<OperationHistory>, CommandError> {
        match self {
            Self::State(ledger) => Ok(ledger.operations(run)?),
            Self::Export(export) => Ok(export.operations(run)),
        }
    }

    /// An operation and its outcome.
    pub(in super::super) fn operation(&self, id: &OperationId) -> Result<Option<OperationHistory>, CommandError> {
        match self {
            Self::State(ledger) => Ok(ledger.operation(id)?),
            Self::Export(export) => Ok(export.operation(id).cloned()),
        }
    }
}

/// Reads blobs for callers that distinguish only bytes and absence.
pub(super) struct BlobReader<'r> {
    source: &'r DecisionSource<'r>,
    /// A blob that exists and cannot be read is reported as that, not as missing.
    error: RefCell<Option<CommandError>>,
}

impl<'r> BlobReader<'r> {
    pub(super) fn new(source: &'r DecisionSource<'r>) -> Self {
        Self { source, error: RefCell::new(None) }
    }

    /// The blob with this digest, if it can be read.
    pub(super) fn blob(&self, digest: Digest) -> Option<Vec<u8>> {
        self.source.blob(digest).unwrap_or_else(|error| self.error.replace(Some(error)).and(None))
    }

    /// Fails if a blob could not be read.
    pub(super) fn check_reads(&self) -> Result<(), CommandError> {
        self.error.take().map_or(Ok(()), Err)
    }
}

/// Where the ledger is, as the command line names it.
pub(in super::super) enum DecisionLocation<'p> {
    /// The state directory of converger.toml.
    State {
        config: ConfigSource,
        /// Whether the command line names the file.
        is_named: bool,
    },
    /// A state directory by its path.
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

    /// The named copy, or the state directory of this converger.toml.
    pub(super) fn from_copy(from: &'p LedgerCopyArgs, config: Option<&'p Path>) -> Self {
        match (&from.from, &from.db) {
            (Some(path), _) => Self::Export { path, key: from.key.as_deref() },
            (None, Some(directory)) => Self::Directory(directory),
            (None, None) => Self::State { config: ConfigSource::read(config), is_named: config.is_some() },
        }
    }

    /// The place in words.
    pub(in super::super) fn describe(&self) -> String {
        match self {
            Self::State { config, .. } => LedgerLocation::from_source(config).map_or_else(
                |error| format!("no state directory: {}", error.to_string().lines().next().unwrap_or_default()),
                |location| files::display_path(&location.directory),
            ),
            Self::Export { path, .. } | Self::Directory(path) => files::display_path(path),
        }
    }

    /// Calls `use_ledger` with the open ledger and its decisions.
    pub(in super::super) fn read<T>(
        &self,
        use_ledger: impl Fn(&DecisionSource<'_>, &DecisionIndex) -> Result<T, CommandError>,
    ) -> Result<T, CommandError> {
        match self {
            Self::State { config, .. } => LedgerLocation::from_source(config)?
                .read(|ledger| use_ledger(&DecisionSource::State(ledger), &DecisionIndex::default().read_ledger(ledger)?)),
            Self::Directory(path) => LedgerLocation::from_directory(path)
                .read(|ledger| use_ledger(&DecisionSource::State(ledger), &DecisionIndex::default().read_ledger(ledger)?)),
            Self::Export { path, key } => read_export(path, *key, DecisionIndex::default(), use_ledger),
        }
    }

    /// The same if there is a ledger, with the entry of this index.
    pub(in super::super) fn read_if_present<T>(
        &self,
        sought: Option<u64>,
        use_ledger: impl Fn(&DecisionSource<'_>, &DecisionIndex) -> Result<T, CommandError>,
    ) -> Result<Option<T>, CommandError> {
        let read_index = |ledger: &LedgerReader| DecisionIndex::for_entry(sought).read_ledger(ledger);
        match self {
            Self::State { config, is_named } => {
                let location = match LedgerLocation::from_source(config) {
                    // Codes are explained on machines without a state directory too.
                    Err(_) if !is_named => return Ok(None),
                    location => location?,
                };
                location.read_if_present(|ledger| use_ledger(&DecisionSource::State(ledger), &read_index(ledger)?))
            }
            Self::Directory(path) => {
                let location = LedgerLocation::from_directory(path);
                location.read(|ledger| use_ledger(&DecisionSource::State(ledger), &read_index(ledger)?)).map(Some)
            }
            Self::Export { path, key } => read_export(path, *key, DecisionIndex::for_entry(sought), use_ledger).map(Some),
        }
    }

    /// Refuses an output path inside the ledger that is read.
    pub(in super::super) fn check_output_path(&self, out: &Path) -> Result<(), CommandError> {
        match self {
            Self::State { config, .. } => check_output_is_no_state(out, config),
            Self::Export { path, .. } | Self::Directory(path) if files::is_under(out, path) => {
                let error = CommandError::input_error(format!("{} is inside the ledger that is read", files::display_path(out)));
                Err(error.with_code(converger_core::failure::FailureCode::FileTaken).with_help("name another file with --out"))
            }
            Self::Export { .. } | Self::Directory(_) => check_output_is_no_state(out, &ConfigSource::read(None)),
        }
    }
}

fn read_export<T>(
    path: &Path,
    key: Option<&str>,
    mut index: DecisionIndex,
    use_ledger: impl Fn(&DecisionSource<'_>, &DecisionIndex) -> Result<T, CommandError>,
) -> Result<T, CommandError> {
    let export = VerifiedExport::open(path, key, |entry_index, entry| index.add_entry(entry_index, entry))?;
    export.print_note();
    use_ledger(&DecisionSource::Export(&export), &index)
}
