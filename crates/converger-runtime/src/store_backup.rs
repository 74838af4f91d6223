//! Backs up the store: a verified copy of one moment, made while other processes may write.
//!
//! The signing key is not in it: anyone who gets a backup could sign with it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use converger_core::failure::FailureCode;
use converger_store::{StoreCopyError, copy_store};

use crate::error::RuntimeError;
use crate::files;
use crate::ledger_reader::{self, LedgerLocation};
use crate::state_check::{CheckedState, check_state};

/// A backup that was written.
#[derive(Clone, Debug)]
pub struct StoreBackup {
    /// The file.
    pub file: PathBuf,
    /// Its size.
    pub bytes: u64,
    /// What it contains.
    pub checked: CheckedState,
}

/// Copies the store of a state directory to a new file and verifies the copy. The file gets its name once it is verified and durable.
///
/// # Errors
/// There is no store, the store is not intact, or the file exists or cannot be written.
pub fn back_up(location: &LedgerLocation, file: &Path) -> Result<StoreBackup, RuntimeError> {
    check_target(&location.directory, file)?;
    location.check_exists()?;
    let write = |copy: &Path| {
        copy_store(&location.directory, copy).map_err(|error| copy_error(file, &error))?;
        let bytes = fs::metadata(copy).map_err(|error| target_error(file, &error))?.len();
        let checked = LedgerLocation::from_directory(copy).read(|reader| check_state(reader, None, None));
        Ok(StoreBackup { file: file.to_owned(), bytes, checked: checked.map_err(|error| broken_copy_error(file, copy, &error))? })
    };
    files::create_private_by_path(file, write, |error| target_error(file, &error))
}

fn check_target(directory: &Path, file: &Path) -> Result<(), RuntimeError> {
    let shown = files::display_path(file);
    if file.file_name().is_none() || file.is_dir() {
        let help = "name a file that does not exist yet";
        return Err(RuntimeError::input(format!("{shown} is not the name of a file")).with_code(FailureCode::FileTaken).with_help(help));
    }
    if files::is_under(file, directory) {
        let text = format!("{shown} is inside the state directory {}", files::display_path(directory));
        let help = "name a file on other storage: a lost state directory would take this backup with it";
        return Err(RuntimeError::input(text).with_code(FailureCode::FileTaken).with_help(help));
    }
    if fs::symlink_metadata(file).is_ok() {
        return Err(target_error(file, &io::ErrorKind::AlreadyExists.into()));
    }
    Ok(())
}

fn target_error(file: &Path, error: &io::Error) -> RuntimeError {
    let shown = files::display_path(file);
    if error.kind() == io::ErrorKind::AlreadyExists {
        let help = "name another file: a backup never replaces one";
        return RuntimeError::input(format!("{shown} exists already")).with_code(FailureCode::FileTaken).with_help(help);
    }
    RuntimeError::failed(format!("cannot write {shown}: {error}"))
        .with_code(FailureCode::FileUnwritable)
        .with_help("name a file in an existing directory that this user may write to; nothing was written there")
}

fn copy_error(file: &Path, error: &StoreCopyError) -> RuntimeError {
    match error {
        StoreCopyError::Source(error) => ledger_reader::open_error(error),
        StoreCopyError::TargetFull { .. } => RuntimeError::failed(format!("cannot write {}: its disk is full", files::display_path(file)))
            .with_code(FailureCode::FileUnwritable)
            .with_help("make room, or name a file on another disk; nothing is left of this backup"),
        StoreCopyError::Failed { cause, .. } => RuntimeError::failed(format!("cannot write {}: {cause}", files::display_path(file)))
            .with_code(FailureCode::FileUnwritable)
            .with_help("check both disks; nothing is left of this backup"),
    }
}

/// The copy is not intact. The pages are those of the store, so the store is not intact either, or the disk of the copy changes what is written to it.
fn broken_copy_error(file: &Path, copy: &Path, error: &RuntimeError) -> RuntimeError {
    // The copy has a temporary name, which means nothing to a reader and is gone.
    let copy = std::path::absolute(copy).unwrap_or_else(|_| copy.to_owned());
    let cause = error.to_string().replace(&format!("{}: ", files::display_path(&copy)), "");
    let text = format!("{} was not written, because the copy is not intact: {cause}", files::display_path(file));
    let help = "run `converger verify`: if the store itself is intact, the disk of the backup is faulty";
    let code = error.fault().and_then(|fault| fault.code()).unwrap_or(FailureCode::IntegrityViolation);
    let failed = if error.is_broken() { RuntimeError::broken(code, text) } else { RuntimeError::failed(text).with_code(code) };
    failed.with_help(help)
}
