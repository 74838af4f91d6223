//! Which files in a state directory are the store's own.
//!
//! What never enters: opening or changing any of them.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;

use crate::lock;
use crate::sqlite::STORE_FILE;

/// The key that signs checkpoints, which is never in the database.
pub const KEY_FILE: &str = "ledger.key";

/// Whether a path is a file that is kept in this state directory, or would be one: the store, its log, or the lock of an environment.
///
/// Whoever is about to write a file asks this before, also where a link leads there.
#[must_use]
pub fn is_state_file(directory: &Path, path: &Path) -> bool {
    let meant = fs::canonicalize(path).ok();
    [Some(path), meant.as_deref()].into_iter().flatten().any(|path| is_inside(directory, path) && is_state_file_name(path.file_name()))
}

/// Whether something is remembered in a directory: a store, or what one has left.
#[must_use]
pub fn has_state(directory: &Path) -> bool {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.into_iter().any(|entry| {
        let name = entry.file_name();
        is_store_file_name(&name.to_string_lossy()) || lock::is_lock_file(&entry.path())
    })
}

fn is_inside(directory: &Path, path: &Path) -> bool {
    let room = path.parent().filter(|room| !room.as_os_str().is_empty()).unwrap_or(Path::new("."));
    matches!((fs::canonicalize(room), fs::canonicalize(directory)), (Ok(room), Ok(directory)) if room == directory)
}

/// Whether it is, or may become, a file of a state directory: nobody else's is written there under such a name.
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
        assert!(!is_state_file(&directory, &link), "it leads nowhere");
        fs::write(directory.join("converger.db"), "").expect("written");
        assert!(is_state_file(&directory, &link));
    }
}
