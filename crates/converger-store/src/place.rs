//! Which files in a state directory are the store's own.
//!
//! What never enters: opening or changing any of them.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;

use crate::lock;
use crate::sqlite::FILE;

/// The key that signs checkpoints, which is never in the database.
pub const KEY_FILE: &str = "ledger.key";

/// Whether a path is a file that is kept in this state directory, or would be one: the store, its log, or the lock of an environment.
///
/// Whoever is about to write a file asks this before, also where a link leads there.
#[must_use]
pub fn keeps(directory: &Path, path: &Path) -> bool {
    let meant = fs::canonicalize(path).ok();
    [Some(path), meant.as_deref()].into_iter().flatten().any(|path| is_in(directory, path) && is_own(path.file_name()))
}

/// Whether something is remembered in a directory: a store, or what one has left.
#[must_use]
pub fn is_used(directory: &Path) -> bool {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.into_iter().any(|entry| {
        let name = entry.file_name();
        is_of_the_store(&name.to_string_lossy()) || lock::is_one(&entry.path())
    })
}

fn is_in(directory: &Path, path: &Path) -> bool {
    let room = path.parent().filter(|room| !room.as_os_str().is_empty()).unwrap_or(Path::new("."));
    matches!((fs::canonicalize(room), fs::canonicalize(directory)), (Ok(room), Ok(directory)) if room == directory)
}

/// Whether it is, or may become, a file of a state directory: nobody else's is written there under such a name.
fn is_own(name: Option<&OsStr>) -> bool {
    let name = name.map(OsStr::to_string_lossy).unwrap_or_default();
    is_of_the_store(&name) || name.ends_with(lock::ENDING)
}

fn is_of_the_store(name: &str) -> bool {
    name.starts_with(FILE) || name.starts_with(KEY_FILE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_store_its_log_and_locks_are_kept_and_nothing_else() {
        let above = tempfile::tempdir().expect("a directory");
        let directory = above.path().join("state");
        fs::create_dir(&directory).expect("made");
        for name in ["converger.db", "converger.db-wal", "converger.db-shm", "converger.db-journal", "lab.lock", KEY_FILE] {
            assert!(keeps(&directory, &directory.join(name)), "{name}");
            assert!(keeps(&directory, &above.path().join("state/../state").join(name)), "{name}");
            assert!(!keeps(&directory, &above.path().join(name)), "{name}");
        }
        for name in ["result.json", "lab.locked", ".", ""] {
            assert!(!keeps(&directory, &directory.join(name)), "{name}");
        }
        let link = above.path().join("result.json");
        std::os::unix::fs::symlink(directory.join("converger.db"), &link).expect("linked");
        assert!(!keeps(&directory, &link), "it leads nowhere");
        fs::write(directory.join("converger.db"), "").expect("written");
        assert!(keeps(&directory, &link));
    }
}
