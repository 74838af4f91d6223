//! Whether files are still where they were opened: a store that was moved, removed or replaced while it is open takes what is written to it
//! along, and the next process would know nothing of it.
//!
//! What never enters: opening, and what follows from it.

use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// A file as it was when it was opened: its place, and which file it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FileIdentity {
    path: PathBuf,
    device: u64,
    inode: u64,
}

impl FileIdentity {
    /// The file that is at a place now; none, where there is none.
    pub(crate) fn read_from(place: &Path) -> Option<Self> {
        fs::symlink_metadata(place).ok().map(|metadata| Self::from_metadata(place, &metadata))
    }

    /// The file that was opened at a place.
    pub(crate) fn from_metadata(place: &Path, metadata: &Metadata) -> Self {
        Self { path: place.to_path_buf(), device: metadata.dev(), inode: metadata.ino() }
    }

    /// Why what is written to it may be lost: it is not there any more, or another one is. What cannot be looked at is not there.
    pub(crate) fn replacement_cause(&self) -> Option<String> {
        match fs::symlink_metadata(&self.path) {
            Ok(found) if (found.dev(), found.ino()) == (self.device, self.inode) => None,
            Ok(_) => Some(format!("{} was replaced by another file while it was in use", self.path.display())),
            Err(error) => Some(format!("{} was taken away while it was in use: {error}", self.path.display())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn detects_a_moved_removed_or_replaced_file() {
        let room = tempfile::tempdir().expect("a directory");
        let place = room.path().join("file");
        assert_eq!(FileIdentity::read_from(&place), None);
        fs::write(&place, "1").expect("written");
        let standing = FileIdentity::read_from(&place).expect("there");
        fs::write(&place, "more").expect("written");
        assert_eq!(standing.replacement_cause(), None, "its content is not what is looked at");
        let aside = room.path().join("aside");
        fs::rename(&place, &aside).expect("moved");
        assert!(standing.replacement_cause().expect("lost").contains("taken away"));
        fs::copy(&aside, &place).expect("copied");
        assert!(standing.replacement_cause().expect("lost").contains("replaced"));
        fs::rename(&aside, &place).expect("put back");
        assert_eq!(standing.replacement_cause(), None);
        fs::rename(&place, &aside).expect("moved");
        std::os::unix::fs::symlink(&aside, &place).expect("linked");
        assert!(standing.replacement_cause().expect("lost").contains("replaced"), "a link is not the file");
    }
}
