//! Where decisions are read from: a state directory, or an export of one.
//!
//! What never enters: what was decided, and the environment.

use std::cell::RefCell;
use std::path::Path;

use converger_core::apply::{History, OperationId, RunId};
use converger_core::artifact::Digest;
use converger_runtime::{LedgerLocation, LedgerReader};

use super::super::verify::Export;
use super::super::{Stop, not_kept};
use super::Decided;
use crate::cli::{FromExport, LedgerSource};
use crate::files;

/// What is asked for decisions.
pub(in super::super) enum Record<'r> {
    State(&'r LedgerReader),
    Export(&'r Export),
}

impl Record<'_> {
    /// What is kept under a digest.
    pub(in super::super) fn blob(&self, digest: Digest) -> Result<Option<Vec<u8>>, Stop> {
        match self {
            Self::State(book) => Ok(book.blob(digest)?),
            Self::Export(export) => export.blob(digest),
        }
    }

    /// The operations of a run, in their order.
    pub(in super::super) fn operations(&self, run: &RunId) -> Result<Vec<History>, Stop> {
        match self {
            Self::State(book) => Ok(book.operations(run)?),
            Self::Export(export) => Ok(export.operations(run)),
        }
    }

    /// An operation and what became of it.
    pub(in super::super) fn operation(&self, id: &OperationId) -> Result<Option<History>, Stop> {
        match self {
            Self::State(book) => Ok(book.operation(id)?),
            Self::Export(export) => Ok(export.operation(id).cloned()),
        }
    }
}

/// What is kept, for those who only know bytes and their absence.
pub(super) struct Keeper<'r> {
    record: &'r Record<'r>,
    /// What is kept and cannot be read is told as that, and not as missing.
    unread: RefCell<Option<Stop>>,
}

impl<'r> Keeper<'r> {
    pub(super) fn of(record: &'r Record<'r>) -> Self {
        Self { record, unread: RefCell::new(None) }
    }

    /// What is kept under a digest, where it can be read.
    pub(super) fn blob(&self, digest: Digest) -> Option<Vec<u8>> {
        self.record.blob(digest).unwrap_or_else(|stop| self.unread.replace(Some(stop)).and(None))
    }

    /// Whether all that was asked for could be read.
    pub(super) fn read(&self) -> Result<(), Stop> {
        self.unread.take().map_or(Ok(()), Err)
    }
}

/// Where a record is, as it was named.
pub(in super::super) enum Place<'p> {
    /// What converger.toml leads to.
    State(Option<&'p Path>),
    /// A state directory that was named.
    Directory(&'p Path),
    Export {
        path: &'p Path,
        key: Option<&'p str>,
    },
}

impl<'p> Place<'p> {
    pub(in super::super) fn of(source: &'p LedgerSource) -> Self {
        Self::from(&source.from, source.config.as_deref())
    }

    /// Where nothing else is named, the one that this converger.toml leads to.
    pub(super) fn from(from: &'p FromExport, config: Option<&'p Path>) -> Self {
        match (&from.from, &from.db) {
            (Some(path), _) => Self::Export { path, key: from.key.as_deref() },
            (None, Some(directory)) => Self::Directory(directory),
            (None, None) => Self::State(config),
        }
    }

    /// Where that is, for people.
    pub(in super::super) fn shown(&self) -> String {
        match self {
            Self::State(config) => LedgerLocation::from_config(*config).map_or_else(
                |stop| format!("no state directory: {}", stop.to_string().lines().next().unwrap_or_default()),
                |shelf| files::shown(&shelf.directory),
            ),
            Self::Export { path, .. } | Self::Directory(path) => files::shown(path),
        }
    }

    /// What is told of the record and of all that was decided in it.
    pub(in super::super) fn read<T>(&self, told: impl Fn(&Record<'_>, &Decided) -> Result<T, Stop>) -> Result<T, Stop> {
        match self {
            Self::State(config) => {
                LedgerLocation::from_config(*config)?.read(|book| told(&Record::State(book), &Decided::default().with(book)?))
            }
            Self::Directory(path) => {
                LedgerLocation::from_directory(path).read(|book| told(&Record::State(book), &Decided::default().with(book)?))
            }
            Self::Export { path, key } => exported(path, *key, Decided::default(), told),
        }
    }

    /// The same where there may be nothing at all, with an entry that is looked for by its index.
    pub(in super::super) fn read_if_there<T>(
        &self,
        sought: Option<u64>,
        told: impl Fn(&Record<'_>, &Decided) -> Result<T, Stop>,
    ) -> Result<Option<T>, Stop> {
        let all = |book: &LedgerReader| Decided::seeking(sought).with(book);
        match self {
            Self::State(config) => {
                let shelf = match LedgerLocation::from_config(*config) {
                    // A machine on which nothing says where records would be has none; codes are explained there too.
                    Err(_) if config.is_none() => return Ok(None),
                    shelf => shelf?,
                };
                shelf.read_if_there(|book| told(&Record::State(book), &all(book)?))
            }
            Self::Directory(path) => LedgerLocation::from_directory(path).read(|book| told(&Record::State(book), &all(book)?)).map(Some),
            Self::Export { path, key } => exported(path, *key, Decided::seeking(sought), told).map(Some),
        }
    }

    /// What is written of a record is not written over it.
    pub(in super::super) fn keeps_clear(&self, out: &Path) -> Result<(), Stop> {
        match self {
            Self::State(config) => not_kept(out, *config),
            Self::Export { path, .. } | Self::Directory(path) if files::is_under(out, path) => {
                let stop = Stop::input(format!("{} would be written into what is read", files::shown(out)));
                Err(stop.code(converger_core::failure::Code::FileTaken).help("name another file with --out"))
            }
            Self::Export { .. } | Self::Directory(_) => not_kept(out, None),
        }
    }
}

fn exported<T>(
    path: &Path,
    key: Option<&str>,
    mut decided: Decided,
    told: impl Fn(&Record<'_>, &Decided) -> Result<T, Stop>,
) -> Result<T, Stop> {
    let export = Export::open(path, key, |index, entry| decided.take(index, entry))?;
    export.tell_note();
    told(&Record::Export(&export), &decided)
}
