//! The key that signs checkpoints: created on first use, in a private file of its own, never in the database.
//!
//! The ledger names the key in an entry. A key that no entry names signs nothing: someone else put it there.

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

/// A key has one line; a larger file is not one.
const KEY_BYTES_MAX: u64 = 4096;

/// The key of a ledger. If it has none, a key is created and recorded in the ledger before it signs anything.
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
        // Another process recorded its key first. There is one key file, so it is the same key, or the check below reports it.
        Err(StoreError::Refused(StoreRefusal::SecondKey)) => {
            load_recorded_signer(state)?.ok_or_else(|| integrity_error("the key that the ledger names appeared and disappeared"))
        }
        Err(error) => Err(store_error(&error)),
    }
}

/// The key of a ledger that names none yet. An existing file was left by a process that died before it recorded the key.
///
/// # Errors
/// The key cannot be read or written, or is not the one that the ledger names.
pub fn load_unrecorded_signer(state: &StateDirectory) -> Result<NoteSigner, RuntimeError> {
    let path = state.path().join(KEY_FILE);
    let name = || Ok::<_, RuntimeError>(format!("converger-{:016x}", host::random().map_err(RuntimeError::failed)?));
    read_key_file(&path)?.map_or_else(|| create_key_file(&path, &name()?), Ok)
}

/// The key that the ledger names, if it names one. Creates nothing.
fn load_recorded_signer(state: &StateDirectory) -> Result<Option<NoteSigner>, RuntimeError> {
    let path = state.path().join(KEY_FILE);
    let shown = files::display_path(&path);
    let Some(named) = recorded_key_in_store(state)? else { return Ok(None) };
    finish_rekey(state.path(), named.current())?;
    match read_key_file(&path)? {
        Some(signer) if named.current() == signer.verifier().to_string() => Ok(Some(signer)),
        Some(_) => Err(integrity_error(format!("{shown} is not the key that the ledger names: someone replaced it"))
            .with_help("restore the right one from a copy, and find out who wrote the file")),
        None => Err(integrity_error(format!("the key of this ledger is missing: {shown}")).with_help(
            "restore it from a copy; without one, `converger ledger rekey --reason \"...\"` creates a new key and records that",
        )),
    }
}

/// The keys that a ledger names, each with the index of its entry: the first one, and one for each replacement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedKeys(Vec<(u64, String)>);

impl NamedKeys {
    /// The keys; `None` if there are none.
    pub fn of(named: Vec<(u64, String)>) -> Option<Self> {
        (!named.is_empty()).then_some(Self(named))
    }

    /// The key that signs now.
    pub fn current(&self) -> &str {
        self.at(u64::MAX)
    }

    /// The key that signed when the ledger had this size. The first key also signed before its own entry.
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

/// The keys that the ledger in a directory names, read without opening it for writing.
///
/// # Errors
/// The key cannot be read or written, or is not the one that the ledger names.
pub fn recorded_key(directory: &Path) -> Result<Option<NamedKeys>, RuntimeError> {
    let Some(store) = StoreView::open(directory).map_err(|error| unreadable_error(&error))? else { return Ok(None) };
    find_named_keys(&store)
}

/// The same for the open store. Reading its file beside it would load file and log into memory.
///
/// # Errors
/// The key cannot be read or written, or is not the one that the ledger names.
pub fn recorded_key_in_store(state: &StateDirectory) -> Result<Option<NamedKeys>, RuntimeError> {
    find_named_keys(state.store())
}

/// The keys that a ledger names. All entries are read, because any of them may replace the key.
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

/// How many entries are read at once.
const PAGE_ENTRIES: u32 = 256;

/// A new key is in this file until the ledger names it, so that a process that is killed in between leaves the old key in place.
const NEXT_FILE: &str = "ledger.key.next";

/// Whether the new key file holds this key: a process was killed after the ledger named it and before the file was moved.
///
/// # Errors
/// The key cannot be read or written, or is not the one that the ledger names.
pub fn matches_next_key(directory: &Path, named: &str) -> Result<bool, RuntimeError> {
    Ok(read_key_file(&directory.join(NEXT_FILE))?.is_some_and(|next| next.verifier().to_string() == named))
}

/// Moves the new key file into place if the ledger names its key.
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
            .with_help("let this user write there and try again: the ledger already names the new key")
    })
}

/// Creates a new key for the log of this name, in the file for the next key.
///
/// # Errors
/// The key cannot be read or written, or is not the one that the ledger names.
pub fn make_next(directory: &Path, name: &str) -> Result<NoteSigner, RuntimeError> {
    let path = directory.join(NEXT_FILE);
    // A file whose key the ledger does not name was left by a process that was killed before it recorded the key.
    match fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(RuntimeError::failed(format!("cannot remove {}: {error}", files::display_path(&path)))
                .with_code(FailureCode::JournalUnwritable));
        }
        _ => {}
    }
    create_key_file(&path, name)
}

/// The key file of a state directory, whether or not the ledger names its key.
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
        // A backup is one file, and never contains the key.
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => return Ok(None),
        file => file.map_err(unreadable)?,
    };
    let mode = file.metadata().map_err(unreadable)?.permissions().mode();
    if mode & 0o077 != 0 {
        let text =
            format!("others may read or write {}, and anyone who has it can sign (mode {:03o})", files::display_path(path), mode & 0o777);
        return Err(RuntimeError::failed(text)
            .with_help(format!("chmod 600 {}", files::display_path(path)))
            .with_code(FailureCode::JournalUnreadable));
    }
    let mut text = String::new();
    file.take(KEY_BYTES_MAX).read_to_string(&mut text).map_err(unreadable)?;
    // The text is a secret and must not be shown.
    NoteSigner::parse(&text).map(Some).map_err(|error| integrity_error(format!("{} is damaged: {error}", files::display_path(path))))
}

fn create_key_file(path: &Path, name: &str) -> Result<NoteSigner, RuntimeError> {
    let failed = |what: &str| {
        RuntimeError::failed(format!("cannot create {}: {what}", files::display_path(path))).with_code(FailureCode::JournalUnwritable)
    };
    let mut secret = [0; 32];
    let random = |bytes: &mut [u8]| fs::File::open("/dev/urandom").and_then(|mut source| source.read_exact(bytes));
    random(&mut secret).map_err(|error| failed(&error.to_string()))?;
    let signer = NoteSigner::new(name, &secret).map_err(|error| failed(&error.to_string()))?;
    match files::create_private(path, |file| writeln!(file, "{}", signer.to_secret_text())) {
        // Another process created the file in the meantime; that key counts.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            read_key_file(path)?.ok_or_else(|| failed("it appeared and disappeared"))
        }
        made => made.map(|()| signer).map_err(|error| failed(&error.to_string())),
    }
}
