//! The key that signs checkpoints: made on first use, in a file of its own that nobody else can read, never in the database.
//!
//! The ledger names it in an entry. A key that no entry names signs nothing: it was put there by somebody else.

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use converger_core::evidence::Entry;
use converger_core::failure::Code;
use converger_ledger::Signer;
use converger_store::{Batch, KEY_FILE, Looked, Refused, Store as _, StoreError, Write};

use crate::error::RuntimeError;
use crate::ledger_reader::{broken, damaged, parse_entry_at};
use crate::state_dir::{StateDirectory, store_error, unreadable_error};
use crate::{files, host};

/// A key is one line; more is none.
const KEY_BYTES_MAX: u64 = 4096;

/// The key of a ledger. Where there is none yet, it is made, and the ledger says so before anything is signed with it.
///
/// # Errors
/// The key cannot be read or written, or is not the one that the ledger names.
pub fn signer(state: &StateDirectory) -> Result<Signer, RuntimeError> {
    if let Some(signer) = known(state)? {
        return Ok(signer);
    }
    let signer = unnamed(state)?;
    let key = Entry::Key { verifier: signer.verifier().to_string().into(), at_ms: host::now_ms() };
    match state.wait(state.store().commit(Batch::from(Write::decision(key)))) {
        Ok(_) => Ok(signer),
        // Somebody else signed for the first time at the same moment and came first. The file is one, so that theirs is this one, or is told.
        Err(StoreError::Refused(Refused::SecondKey)) => known(state)?.ok_or_else(|| broken("the key that the ledger names comes and goes")),
        Err(error) => Err(store_error(&error)),
    }
}

/// The key of a ledger that names none yet. One that is there was made by somebody who died before they could say so.
///
/// # Errors
/// The key cannot be read or written, or is not the one that the ledger names.
pub fn unnamed(state: &StateDirectory) -> Result<Signer, RuntimeError> {
    let path = state.path().join(KEY_FILE);
    read(&path)?.map_or_else(|| make(&path), Ok)
}

/// The key that the ledger names, if it names one. Nothing is made.
fn known(state: &StateDirectory) -> Result<Option<Signer>, RuntimeError> {
    let path = state.path().join(KEY_FILE);
    let shown = files::shown(&path);
    match (named_in(state)?, read(&path)?) {
        (None, _) => Ok(None),
        (Some(named), Some(signer)) if named == signer.verifier().to_string() => Ok(Some(signer)),
        (Some(_), Some(_)) => Err(broken(format!("{shown} is not the key that the ledger names: somebody replaced it"))
            .with_help("put the right one back from a copy, and find out who wrote there")),
        (Some(_), None) => Err(broken(format!("the key of this ledger is not there: {shown}"))
            .with_help("put it back from a copy; without it nothing new is signed, and what was signed stays so")),
    }
}

/// The key that the ledger in a directory names, for whoever only looks.
///
/// # Errors
/// The key cannot be read or written, or is not the one that the ledger names.
pub fn named(directory: &Path) -> Result<Option<String>, RuntimeError> {
    let Some(store) = Looked::open(directory).map_err(|error| unreadable_error(&error))? else { return Ok(None) };
    first_named(|next| store.entries(next, PAGE))
}

/// The same of the store that is open. It is asked itself: a second look at its file would bring file and log together in memory.
///
/// # Errors
/// The key cannot be read or written, or is not the one that the ledger names.
pub fn named_in(state: &StateDirectory) -> Result<Option<String>, RuntimeError> {
    first_named(|next| state.wait(state.store().entries(next, PAGE)))
}

/// The first key in entries that are read page by page. It stands at the beginning, where the first who signed put it.
fn first_named(read: impl Fn(u64) -> Result<Vec<Vec<u8>>, StoreError>) -> Result<Option<String>, RuntimeError> {
    let mut next = 0;
    loop {
        let page = read(next).map_err(|error| damaged(&error))?;
        if page.is_empty() {
            return Ok(None);
        }
        for bytes in &page {
            if let Entry::Key { verifier, .. } = parse_entry_at(next, bytes)? {
                return Ok(Some(verifier.into()));
            }
            next += 1;
        }
    }
}

/// So many entries are looked at before more are read.
const PAGE: u32 = 16;

/// The key in a state directory, whatever the ledger says of it.
///
/// # Errors
/// The key cannot be read or written, or is not the one that the ledger names.
pub fn key_in(directory: &Path) -> Result<Option<Signer>, RuntimeError> {
    read(&directory.join(KEY_FILE))
}

fn read(path: &Path) -> Result<Option<Signer>, RuntimeError> {
    let unreadable =
        |error: io::Error| RuntimeError::failed(format!("cannot read {}: {error}", files::shown(path))).with_code(Code::JournalUnreadable);
    let file = match files::answers(path).and_then(|()| fs::File::open(path)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file.map_err(unreadable)?,
    };
    let mode = file.metadata().map_err(unreadable)?.permissions().mode();
    if mode & 0o077 != 0 {
        let text = format!("others may read or write {}, and whoever has it can sign (mode {:03o})", files::shown(path), mode & 0o777);
        return Err(RuntimeError::failed(text).with_help(format!("chmod 600 {}", files::shown(path))).with_code(Code::JournalUnreadable));
    }
    let mut text = String::new();
    file.take(KEY_BYTES_MAX).read_to_string(&mut text).map_err(unreadable)?;
    // The text is a secret, and is shown nowhere.
    Signer::parse(&text).map(Some).map_err(|error| broken(format!("{} is damaged: {error}", files::shown(path))))
}

fn make(path: &Path) -> Result<Signer, RuntimeError> {
    let failed =
        |what: &str| RuntimeError::failed(format!("cannot make {}: {what}", files::shown(path))).with_code(Code::JournalUnwritable);
    let mut secret = [0; 32];
    let random = |bytes: &mut [u8]| fs::File::open("/dev/urandom").and_then(|mut source| source.read_exact(bytes));
    random(&mut secret).map_err(|error| failed(&error.to_string()))?;
    let name = format!("converger-{:016x}", host::random().map_err(|error| failed(&error))?);
    let signer = Signer::new(&name, &secret).map_err(|error| failed(&error.to_string()))?;
    match files::create_private(path, |file| writeln!(file, "{}", signer.to_secret())) {
        // Somebody else made one meanwhile: that one counts.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => read(path)?.ok_or_else(|| failed("it comes and goes")),
        made => made.map(|()| signer).map_err(|error| failed(&error.to_string())),
    }
}
