//! Ensures that only one process changes an environment: an operating-system lock on a file that contains the name of the holder.
//!
//! The lock ends with the process, however the process ends. After a `kill -9` the file is still there but unlocked, and the next process
//! takes it. The content of the file is for people; only the lock counts.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use converger_core::apply::is_valid_remark;
use converger_core::guest::EnvironmentName;
use thiserror::Error;

use crate::file_identity::FileIdentity;
use crate::sqlite::NO_FOLLOW;

/// The suffix of lock files.
pub(crate) const LOCK_SUFFIX: &str = ".lock";

/// The exclusive right to change an environment, held until it is dropped.
#[derive(Debug)]
#[must_use]
pub struct EnvironmentLock {
    // Kept open: closing the file releases the lock.
    file: File,
    identity: FileIdentity,
}

/// The process that holds the lock of an environment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockHolder {
    /// The name that it gave.
    pub name: String,
    /// The id of its process.
    pub pid: u32,
    /// When it took the lock, in milliseconds since 1970.
    pub since_ms: u64,
}

/// Why the lock of an environment cannot be taken.
#[derive(Debug, Error)]
pub enum LockError {
    /// Another process holds it.
    #[error("environment `{environment}` is in use by {}; wait until that process ends", describe_holder(holder.as_ref()))]
    Busy {
        /// The environment.
        environment: EnvironmentName,
        /// The holder; `None` if it has just started and has not written its name yet.
        holder: Option<LockHolder>,
    },
    /// The name of the holder is blank or too long, or has control characters in it.
    #[error("the holder's name must be one line of at most 4096 bytes")]
    InvalidName,
    /// The file cannot be used.
    #[error("cannot lock {place}; the state directory must exist, have free space and be writable for this user")]
    Unusable {
        /// The file.
        place: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
}

impl LockError {
    /// Whether the cause is a full disk.
    #[must_use]
    pub fn is_full(&self) -> bool {
        matches!(self, Self::Unusable { source, .. } if source.kind() == io::ErrorKind::StorageFull)
    }
}

fn describe_holder(holder: Option<&LockHolder>) -> String {
    match holder {
        Some(holder) => format!("{} (process {})", holder.name.escape_debug(), holder.pid),
        None => "another process that has just started".into(),
    }
}

impl EnvironmentLock {
    /// Takes the lock of an environment, or reports its holder. Never waits.
    ///
    /// # Errors
    /// Another process holds the lock, or the file cannot be used.
    pub fn acquire(state_directory: &Path, environment: &EnvironmentName, name: &str, at_ms: u64) -> Result<Self, LockError> {
        if !is_valid_remark(name) || name.chars().any(char::is_control) {
            return Err(LockError::InvalidName);
        }
        let path = state_directory.join(format!("{environment}{LOCK_SUFFIX}"));
        let unusable = |source| LockError::Unusable { place: path.clone(), source };
        let mut file = open_lock_file(&path).map_err(unusable)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(LockError::Busy { environment: environment.clone(), holder: read_holder(&mut file) });
            }
            Err(TryLockError::Error(error)) => return Err(unusable(error)),
        }
        let identity = FileIdentity::from_metadata(&path, &file.metadata().map_err(unusable)?);
        let lock = Self { file, identity };
        lock.write_holder(name, at_ms).map_err(unusable)?;
        Ok(lock)
    }

    /// The environments that have a lock file in a state directory: all that a process ever drove.
    ///
    /// # Errors
    /// The directory cannot be listed.
    pub fn list_environments(state_directory: &Path) -> io::Result<Vec<EnvironmentName>> {
        let mut environments = Vec::new();
        for entry in fs::read_dir(state_directory)? {
            let path = entry?.path();
            environments.extend(environment_of(&path).filter(|_| is_lock_file(&path)));
        }
        environments.sort();
        Ok(environments)
    }

    /// The file that was locked.
    pub(crate) fn file_identity(&self) -> &FileIdentity {
        &self.identity
    }

    /// Replaces the name of the previous holder.
    fn write_holder(&self, name: &str, at_ms: u64) -> io::Result<()> {
        let mut file = &self.file;
        file.set_len(0)?;
        file.rewind()?;
        file.write_all(format!("{}\n{at_ms}\n{name}\n", std::process::id()).as_bytes())
    }
}

impl Drop for EnvironmentLock {
    fn drop(&mut self) {
        // Empty the file, so that a process that finds the lock taken does not read the name of the previous holder. Closing the file
        // releases the lock.
        let _ = self.file.set_len(0);
    }
}

/// The file is truncated and written to, so links and files that are not regular are rejected.
fn open_lock_file(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600).custom_flags(NO_FOLLOW);
    let file = options.open(path)?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::Error::other("it is not a regular file")) }
}

/// Whether a file is the lock of an environment: its name fits, and it is empty or contains a holder. Other programs use the same suffix,
/// too.
pub(crate) fn is_lock_file(path: &Path) -> bool {
    if environment_of(path).is_none() {
        return false;
    }
    // A file that cannot be read may be a lock.
    let may_be_other = fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_file() && metadata.len() > 0);
    !may_be_other || File::open(path).map_or(true, |mut file| read_holder(&mut file).is_some())
}

/// The environment that a lock file of this name belongs to.
fn environment_of(path: &Path) -> Option<EnvironmentName> {
    path.file_name().and_then(OsStr::to_str).and_then(|name| name.strip_suffix(LOCK_SUFFIX)).and_then(EnvironmentName::new)
}

/// Parses the holder; `None` unless the content is exactly what `write_holder` writes.
fn read_holder(file: &mut File) -> Option<LockHolder> {
    let mut text = String::new();
    file.take(8192).read_to_string(&mut text).ok()?;
    let mut lines = text.strip_suffix('\n')?.split('\n');
    let (pid, since_ms, name) = (lines.next()?.parse().ok()?, lines.next()?.parse().ok()?, lines.next()?);
    (lines.next().is_none() && is_valid_remark(name)).then(|| LockHolder { name: name.into(), pid, since_ms })
}
