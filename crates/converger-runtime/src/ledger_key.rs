//! The key that signs checkpoints: made on first use, in a file of its own that nobody else can read, never in the database.
//!
//! The ledger names it in an entry. A key that no entry names signs nothing: it was put there by somebody else.

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use converger_core::evidence::LedgerEntry;
use converger_core::failure::FailureCode;
use converger_ledger::NoteSigner;
use converger_store::{Batch, KEY_FILE, Store as _, StoreError, StoreReader, StoreRefusal, StoreView, StoreWrite, key_named_in, wait_for};

use crate::error::RuntimeError;
use crate::ledger_reader::{integrity_error, ledger_store_error};
use crate::state_dir::{StateDirectory, store_error, unreadable_error};
use crate::{files, host};

/// A key is one line; more is none.
const KEY_BYTES_MAX: u64 = 4096;

/// The key of a ledger. Where there is none yet, it is made, and the ledger says so before anything is signed with it.
///
/// # Errors
/// The key cannot be read or written, or is not the one that the ledger names.
pub fn load_or_create_signer(state: &StateDirectory) -> Result<NoteSigner, RuntimeError> {
    if let Some(signer) = load_recorded_signer(state)? {
        return Ok(signer);
    }
    let signer = load_unrecorded_signer(state)?;
    let key = LedgerEntry::Key { verifier: signer.verifier().to_string().into(), at_ms: host::now_ms() };
    match wait_for(state.store().commit(Batch::from(StoreWrite::decision(key)))) {
        Ok(_) => Ok(signer),
        // Somebody else signed for the first time at the same moment and came first. The file is one, so that theirs is this one, or is told.
        Err(StoreError::Refused(StoreRefusal::SecondKey)) => {
            load_recorded_signer(state)?.ok_or_else(|| integrity_error("the key that the ledger names comes and goes"))
        }
        Err(error) => Err(store_error(&error)),
    }
}

/// The key of a ledger that names none yet. One that is there was made by somebody who died before they could say so.
///
/// # Errors
/// The key cannot be read or written, or is not the one that the ledger names.
pub fn load_unrecorded_signer(state: &StateDirectory) -> Result<NoteSigner, RuntimeError> {
    let path = state.path().join(KEY_FILE);
    let name = || Ok::<_, RuntimeError>(format!("converger-{:016x}", host::random().map_err(RuntimeError::failed)?));
    read_key_file(&path)?.map_or_else(|| create_key_file(&path, &name()?), Ok)
}

/// The key that the ledger names, if it names one. Nothing is made.
fn load_recorded_signer(state: &StateDirectory) -> Result<Option<NoteSigner>, RuntimeError> {
    let path = state.path().join(KEY_FILE);
    let shown = files::display_path(&path);
    let Some(named) = recorded_key_in_store(state)? else { return Ok(None) };
    finish_rekey(state.path(), named.current())?;
    match read_key_file(&path)? {
        Some(signer) if named.current() == signer.verifier().to_string() => Ok(Some(signer)),
        Some(_) => Err(integrity_error(format!("{shown} is not the key that the ledger names: somebody replaced it"))
            .with_help("put the right one back from a copy, and find out who wrote there")),
        None => Err(integrity_error(format!("the key of this ledger is not there: {shown}")).with_help(
            "put it back from a copy; if there is none, `converger ledger rekey --reason \"...\"` makes a new one and records that",
        )),
    }
}

/// The keys that a ledger names, each with the entry that does. There is one, and one more for each time that it was replaced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedKeys(Vec<(u64, String)>);

impl NamedKeys {
    /// None: no key is named.
    pub fn of(named: Vec<(u64, String)>) -> Option<Self> {
        (!named.is_empty()).then_some(Self(named))
    }

    /// The key that signs now.
    pub fn current(&self) -> &str {
        self.at(u64::MAX)
    }

    /// The key that signed when the ledger had so many entries. What was signed before the first was named is signed with that.
    pub fn at(&self, size: u64) -> &str {
        let before = self.0.iter().rev().find(|(index, _)| *index < size);
        before.or(self.0.first()).map_or("", |(_, key)| key)
    }

    /// Whether the ledger names this key.
    #[must_use]
    pub fn has(&self, key: &str) -> bool {
        self.0.iter().any(|(_, own)| own == key)
    }
}

/// The keys that the ledger in a directory names, for whoever only looks.
///
/// # Errors
/// The key cannot be read or written, or is not the one that the ledger names.
pub fn recorded_key(directory: &Path) -> Result<Option<NamedKeys>, RuntimeError> {
    let Some(store) = StoreView::open(directory).map_err(|error| unreadable_error(&error))? else { return Ok(None) };
    find_named_keys(&store)
}

/// The same of the store that is open. It is asked itself: a second look at its file would bring file and log together in memory.
///
/// # Errors
/// The key cannot be read or written, or is not the one that the ledger names.
pub fn recorded_key_in_store(state: &StateDirectory) -> Result<Option<NamedKeys>, RuntimeError> {
    find_named_keys(state.store())
}

/// The keys in entries that are read page by page. All entries are looked at, because any of them may replace the key.
fn find_named_keys(store: &impl StoreReader) -> Result<Option<NamedKeys>, RuntimeError> {
    let (mut next, mut named) = (0, Vec::new());
    loop {
        let page = wait_for(store.entries(next, PAGE_ENTRIES)).map_err(|error| ledger_store_error(&error))?;
        if page.is_empty() {
            return Ok(NamedKeys::of(named));
        }
        named.extend(page.iter().zip(next..).filter_map(|(bytes, index)| Some((index, key_named_in(bytes)?.into()))));
        next += page.len() as u64;
    }
}

/// So many entries are looked at before more are read.
const PAGE_ENTRIES: u32 = 256;

/// A new key lies here until the ledger names it: a process that is killed in between leaves the old one in its place.
const NEXT_FILE: &str = "ledger.key.next";

/// Whether this key waits to take its place: a process was killed after the ledger named it.
///
/// # Errors
/// The key cannot be read or written, or is not the one that the ledger names.
pub fn matches_next_key(directory: &Path, named: &str) -> Result<bool, RuntimeError> {
    Ok(read_key_file(&directory.join(NEXT_FILE))?.is_some_and(|next| next.verifier().to_string() == named))
}

/// Puts a new key into its place that the ledger names.
///
/// # Errors
/// The key cannot be read or written, or is not the one that the ledger names.
pub fn finish_rekey(directory: &Path, named: &str) -> Result<(), RuntimeError> {
    if !matches_next_key(directory, named)? {
        return Ok(());
    }
    let (next, path) = (directory.join(NEXT_FILE), directory.join(KEY_FILE));
    let moved = fs::rename(&next, &path).and_then(|()| fs::File::open(directory)?.sync_all());
    moved.map_err(|error| {
        RuntimeError::failed(format!("cannot move {} to {}: {error}", files::display_path(&next), files::display_path(&path)))
            .with_code(FailureCode::JournalUnwritable)
            .with_help("see to it that this user may write there, and try again: the ledger names the new key already")
    })
}

/// A new key for the log of this name, which is not in its place yet.
///
/// # Errors
/// The key cannot be read or written, or is not the one that the ledger names.
pub fn make_next(directory: &Path, name: &str) -> Result<NoteSigner, RuntimeError> {
    let path = directory.join(NEXT_FILE);
    // One that the ledger does not name was left by a process that was killed before it could say so.
    match fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(RuntimeError::failed(format!("cannot remove {}: {error}", files::display_path(&path)))
                .with_code(FailureCode::JournalUnwritable));
        }
        _ => {}
    }
    create_key_file(&path, name)
}

/// The key in a state directory, whatever the ledger says of it.
///
/// # Errors
/// The key cannot be read or written, or is not the one that the ledger names.
pub fn load_signer(directory: &Path) -> Result<Option<NoteSigner>, RuntimeError> {
    read_key_file(&directory.join(KEY_FILE))
}

fn read_key_file(path: &Path) -> Result<Option<NoteSigner>, RuntimeError> {
    let unreadable = |error: io::Error| {
        RuntimeError::failed(format!("cannot read {}: {error}", files::display_path(path))).with_code(FailureCode::JournalUnreadable)
    };
    let file = match files::check_readable(path).and_then(|()| fs::File::open(path)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file.map_err(unreadable)?,
    };
    let mode = file.metadata().map_err(unreadable)?.permissions().mode();
    if mode & 0o077 != 0 {
        let text =
            format!("others may read or write {}, and whoever has it can sign (mode {:03o})", files::display_path(path), mode & 0o777);
        return Err(RuntimeError::failed(text)
            .with_help(format!("chmod 600 {}", files::display_path(path)))
            .with_code(FailureCode::JournalUnreadable));
    }
    let mut text = String::new();
    file.take(KEY_BYTES_MAX).read_to_string(&mut text).map_err(unreadable)?;
    // The text is a secret, and is shown nowhere.
    NoteSigner::parse(&text).map(Some).map_err(|error| integrity_error(format!("{} is damaged: {error}", files::display_path(path))))
}

fn create_key_file(path: &Path, name: &str) -> Result<NoteSigner, RuntimeError> {
    let failed = |what: &str| {
        RuntimeError::failed(format!("cannot make {}: {what}", files::display_path(path))).with_code(FailureCode::JournalUnwritable)
    };
    let mut secret = [0; 32];
    let random = |bytes: &mut [u8]| fs::File::open("/dev/urandom").and_then(|mut source| source.read_exact(bytes));
    random(&mut secret).map_err(|error| failed(&error.to_string()))?;
    let signer = NoteSigner::new(name, &secret).map_err(|error| failed(&error.to_string()))?;
    match files::create_private(path, |file| writeln!(file, "{}", signer.to_secret_text())) {
        // Somebody else made one meanwhile: that one counts.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => read_key_file(path)?.ok_or_else(|| failed("it comes and goes")),
        made => made.map(|()| signer).map_err(|error| failed(&error.to_string())),
    }
}
