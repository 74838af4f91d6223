//! Detects files that were moved, removed or replaced while they were open. A process would keep writing to such a store, and the next
//! process would not find what it wrote.
//!
//! Must not open files or decide what follows from a replacement.

use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// A file as it was when it was opened: its path, and the device and inode that identify it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FileIdentity {
    path: PathBuf,
    device: u64,
    inode: u64,
}

impl FileIdentity {
    /// The file that is at a path now; `None` if there is none.
    pub(crate) fn read_from(path: &Path) -> Option<Self> {
        fs::symlink_metadata(path).ok().map(|metadata| Self::from_metadata(path, &metadata))
    }

    /// The file that was opened at a path.
    pub(crate) fn from_metadata(path: &Path, metadata: &Metadata) -> Self {
        Self { path: path.to_path_buf(), device: metadata.dev(), inode: metadata.ino() }
    }

    /// Why writes to the file may be lost: its path is gone or leads to another file. A path that cannot be inspected counts as gone.
    pub(crate) fn replacement_cause(&self) -> Option<String> {
        match fs::symlink_metadata(&self.path) {
            Ok(found) if (found.dev(), found.ino()) == (self.device, self.inode) => None,
            Ok(_) => Some(format!("{} was replaced by another file while it was in use", self.path.display())),
            Err(error) => Some(format!("{} was moved or removed while it was in use: {error}", self.path.display())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn detects_a_moved_removed_or_replaced_file() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("file");
        assert_eq!(FileIdentity::read_from(&path), None);
        fs::write(&path, "1").expect("written");
        let identity = FileIdentity::read_from(&path).expect("there");
        fs::write(&path, "more").expect("written");
        assert_eq!(identity.replacement_cause(), None, "its content does not matter");
        let moved_path = directory.path().join("aside");
        fs::rename(&path, &moved_path).expect("moved");
        assert!(identity.replacement_cause().expect("lost").contains("moved or removed"));
        fs::copy(&moved_path, &path).expect("copied");
        assert!(identity.replacement_cause().expect("lost").contains("replaced"));
        fs::rename(&moved_path, &path).expect("put back");
        assert_eq!(identity.replacement_cause(), None);
        fs::rename(&path, &moved_path).expect("moved");
        std::os::unix::fs::symlink(&moved_path, &path).expect("linked");
        assert!(identity.replacement_cause().expect("lost").contains("replaced"), "a link is not the file");
    }
}
