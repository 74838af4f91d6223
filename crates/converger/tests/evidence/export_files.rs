//! An export in memory, by file path, so that each test can tamper with a copy of the original.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fs;
use std::path::Path;

/// File contents by path; the separator is `/`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ExportFiles(pub(crate) BTreeMap<String, Vec<u8>>);

impl ExportFiles {
    /// Reads all files below a directory.
    pub(crate) fn read(directory: &Path) -> Self {
        let mut files = Self::default();
        files.read_below(directory, "");
        files
    }

    fn read_below(&mut self, directory: &Path, before: &str) {
        for entry in fs::read_dir(directory).expect("a directory").map(|entry| entry.expect("an entry")) {
            let name = format!("{before}{}", entry.file_name().to_str().expect("text"));
            if entry.path().is_dir() {
                self.read_below(&entry.path(), &format!("{name}/"));
            } else {
                self.0.insert(name, fs::read(entry.path()).expect("a file"));
            }
        }
    }

    /// Writes the files to a new directory.
    pub(crate) fn write(&self, directory: &Path) {
        if directory.exists() {
            fs::remove_dir_all(directory).expect("removed");
        }
        for (name, bytes) in &self.0 {
            let path = directory.join(name);
            fs::create_dir_all(path.parent().expect("a room")).expect("made");
            fs::write(path, bytes).expect("written");
        }
    }

    /// The content of a file, which must exist.
    #[track_caller]
    pub(crate) fn file_mut(&mut self, name: &str) -> &mut Vec<u8> {
        self.0.get_mut(name).unwrap_or_else(|| panic!("there is no {name}"))
    }

    /// The first file below this path.
    #[track_caller]
    pub(crate) fn first_below(&self, path: &str) -> String {
        self.0.keys().find(|name| name.starts_with(path)).unwrap_or_else(|| panic!("there is nothing below {path}")).clone()
    }
}

impl converger_ledger::LogFiles for ExportFiles {
    type Error = Infallible;

    fn read(&mut self, path: &str) -> Result<Option<Vec<u8>>, Infallible> {
        Ok(self.0.get(path).cloned())
    }
}
