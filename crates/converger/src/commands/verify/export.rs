//! An export that decisions are read from: all that a stranger has. Nothing of it is believed before its log was checked, as `verify` does.
//!
//! What never enters: another way to read an export than the one that checks it.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use converger_core::apply::{History, OperationId, Record, RunId};
use converger_core::artifact::Digest;
use converger_core::evidence::{Entry, Replay};
use converger_core::failure::Code;

use super::super::Stop;
use super::super::ledger::broken;
use super::{UNTRUSTED_KEY, directory, given, verifier};
use crate::render::{self, styled};
use crate::{files, screen};

/// An export whose signature, hashes and entries are whole.
pub(in super::super) struct Export {
    path: PathBuf,
    replay: Replay,
    /// Where each operation was begun.
    begun: BTreeMap<OperationId, u64>,
    /// What a person should know of it.
    note: Option<&'static str>,
}

impl Export {
    /// Checks an export with the key that was given, or with the one beside it. What is told of its entries counts once this ends well.
    pub(in super::super) fn open(path: &Path, key: Option<&str>, mut told: impl FnMut(u64, Entry)) -> Result<Self, Stop> {
        if !path.is_dir() {
            let text = format!("{} is no directory, and an export is one", files::shown(path));
            return Err(Stop::input(text).code(Code::FileUnreadable).help("`converger ledger export DIR` makes one where the ledger is"));
        }
        let known = key.map(verifier).transpose()?;
        let note = known.is_none().then_some(UNTRUSTED_KEY);
        let key = known.map_or_else(|| directory::beside(path), Ok)?;
        let mut begun = BTreeMap::new();
        let (deep, _, _) = directory::log(path, &key, None, |index, entry| {
            if let Entry::Record(Record::Intent { operation, .. }) = entry {
                begun.insert(operation.id.clone(), index);
            }
            told(index, entry.clone());
        })
        .map_err(given)?;
        directory::named(&deep, &key).map_err(given)?;
        Ok(Self { path: path.to_owned(), replay: deep.into_replay(), begun, note })
    }

    /// Tells a person what they should know of it.
    pub(in super::super) fn tell_note(&self) {
        if let Some(note) = self.note {
            let _ = write!(anstream::stderr(), "{}", screen::err(&format!("{} {note}\n", styled(render::CYAN, "note:"))));
        }
    }

    /// What lies there under a digest: these bytes, or an error.
    pub(in super::super) fn blob(&self, digest: Digest) -> Result<Option<Vec<u8>>, Stop> {
        match directory::blob(&self.path, digest)? {
            Some(bytes) if Digest::of_bytes(&bytes) != digest => {
                let found = Digest::of_bytes(&bytes);
                Err(given(broken(format!("what entries name {digest} lies in {} with the digest {found}", files::shown(&self.path)))))
            }
            kept => Ok(kept),
        }
    }

    /// The operations of a run, in their order.
    pub(in super::super) fn operations(&self, run: &RunId) -> Vec<History> {
        let mut own: Vec<&History> = self.replay.operations().values().filter(|history| history.operation.run == *run).collect();
        own.sort_by_key(|history| self.begun.get(history.id()));
        own.into_iter().cloned().collect()
    }

    /// An operation, as its entries tell it.
    pub(in super::super) fn operation(&self, id: &OperationId) -> Option<&History> {
        self.replay.operations().get(id)
    }
}
