//! Finds the process that is writing to a store, using `/proc/locks`.
//!
//! It reads the metadata of files and never opens them: closing a database file would release the locks that this process has on it.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use rustix::fs::{major, minor};

/// The process that holds a write lock on a database or its shared-memory file. `None` if the lock is gone or the system does not show
/// it, as on a network file system or across containers.
pub(super) fn writer_of(path: &Path) -> Option<u32> {
    let locks = fs::read_to_string("/proc/locks").ok()?;
    let mut index = path.as_os_str().to_owned();
    index.push("-shm");
    [path, Path::new(&index)].into_iter().filter_map(|file| fs::metadata(file).ok()).find_map(|file| {
        let id = format!("{:02x}:{:02x}:{}", major(file.dev()), minor(file.dev()), file.ino());
        locks.lines().find_map(|line| holder(line, &id))
    })
}

/// Parses a line such as `1: POSIX  ADVISORY  WRITE 4711 fe:00:1234 120 120`.
fn holder(line: &str, file: &str) -> Option<u32> {
    let words: Vec<&str> = line.split_whitespace().collect();
    match words[..] {
        [_, "POSIX", _, "WRITE", pid, of, ..] if of == file => pid.parse().ok().filter(|pid| *pid > 0),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_only_the_holder_of_a_write_lock_on_this_file() {
        let line = |kind: &str, mode: &str, pid: &str, file: &str| {
            holder(&format!("7: {kind}  ADVISORY  {mode} {pid} {file} 120 120"), "fe:00:1234")
        };
        assert_eq!(line("POSIX", "WRITE", "4711", "fe:00:1234"), Some(4711));
        assert_eq!(line("POSIX", "READ", "4711", "fe:00:1234"), None);
        assert_eq!(line("FLOCK", "WRITE", "4711", "fe:00:1234"), None);
        assert_eq!(line("POSIX", "WRITE", "4711", "fe:00:1235"), None);
        assert_eq!(line("POSIX", "WRITE", "0", "fe:00:1234"), None, "a process of another container");
        assert_eq!(holder("7: -> POSIX  ADVISORY  WRITE 4711 fe:00:1234 120 120", "fe:00:1234"), None, "it waits for the lock");
        assert_eq!(holder("", "fe:00:1234"), None);
    }
}
