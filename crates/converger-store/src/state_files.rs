//! Which files in a state directory belong to the store.
//!
//! Must not open or change any of them.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;

use crate::lock;
use crate::sqlite::STORE_FILE;

/// The file with the key that signs checkpoints; the key is never in the database.
pub const KEY_FILE: &str = "ledger.key";

/// Whether a path is, or could become, a file of this state directory: the store, its WAL, the key or the lock of an environment.
///
/// Call this before writing a user-named file. Links are followed, so an output path cannot overwrite the store through one.
#[must_use]
pub fn is_state_file(directory: &Path, path: &Path) -> bool {
    let resolved = fs::canonicalize(path).ok();
    [Some(path), resolved.as_deref()].into_iter().flatten().any(|path| is_inside(directory, path) && is_state_file_name(path.file_name()))
}

/// Whether a directory contains a store or remains of one.
#[must_use]
pub fn has_state(directory: &Path) -> bool {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.into_iter().any(|entry| {
        let name = entry.file_name();
        is_store_file_name(&name.to_string_lossy()) || lock::is_lock_file(&entry.path())
    })
}

fn is_inside(directory: &Path, path: &Path) -> bool {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    matches!((fs::canonicalize(parent), fs::canonicalize(directory)), (Ok(parent), Ok(directory)) if parent == directory)
}

/// Whether this is, or could become, the name of a file of a state directory. Other files must not be written there under such a name.
fn is_state_file_name(name: Option<&OsStr>) -> bool {
    let name = name.map(OsStr::to_string_lossy).unwrap_or_default();
    is_store_file_name(&name) || name.ends_with(lock::LOCK_SUFFIX)
}

fn is_store_file_name(name: &str) -> bool {
    name.starts_with(STORE_FILE) || name.starts_with(KEY_FILE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recognises_store_log_key_and_lock_files_only() {
        let above = tempfile::tempdir().expect("a directory");
        let directory = above.path().join("state");
        fs::create_dir(&directory).expect("made");
        for name in ["converger.db", "converger.db-wal", "converger.db-shm", "converger.db-journal", "lab.lock", KEY_FILE] {
            assert!(is_state_file(&directory, &directory.join(name)), "{name}");
            assert!(is_state_file(&directory, &above.path().join("state/../state").join(name)), "{name}");
            assert!(!is_state_file(&directory, &above.path().join(name)), "{name}");
        }
        for name in ["result.json", "lab.locked", ".", ""] {
            assert!(!is_state_file(&directory, &directory.join(name)), "{name}");
        }
        let link = above.path().join("result.json");
        std::os::unix::fs::symlink(directory.join("converger.db"), &link).expect("linked");
        assert!(!is_state_file(&directory, &link), "the link is dangling");
        fs::write(directory.join("converger.db"), "").expect("written");
        assert!(is_state_file(&directory, &link));
    }
}
