//! A scenario as a directory: its files, and how an expected file is compared or updated.
//!
//! How a scenario runs differs between recordings (`replay`) and labs (`live`).

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::diff::diff_lines;

/// The allowed files of a scenario with a recording: a misspelt name must not pass for an absent file.
const REPLAY_FILES: [&str; 9] = [
    "command",
    "converger.toml",
    "current.json",
    "desired.json",
    "desired.yaml",
    "expected.json",
    "expected.txt",
    "same-digest-as",
    "story.md",
];

/// The allowed files of a scenario with a lab, besides those that its commands or its converger.toml name.
const LIVE_FILES: [&str; 8] =
    ["commands", "converger.toml", "desired.yaml", "expected.txt", "lab.yaml", "other-lab.yaml", "secret", "story.md"];

/// One scenario.
pub(crate) struct Scenario {
    pub(crate) name: String,
    pub(crate) directory: PathBuf,
}

impl Scenario {
    pub(crate) fn open(directory: PathBuf) -> Self {
        let name = directory.file_name().expect("a scenario has a name").to_string_lossy().into_owned();
        Self { name, directory }
    }

    /// Whether it has a lab, and not a recording.
    pub(crate) fn is_live(&self) -> bool {
        self.directory.join("lab.yaml").exists()
    }

    /// The text of one of its files, if it exists.
    pub(crate) fn read(&self, file: &str) -> Option<String> {
        fs::read_to_string(self.directory.join(file)).ok()
    }

    pub(crate) fn expected_json(&self) -> Value {
        let text = self.read("expected.json").unwrap_or_else(|| panic!("{} has no expected.json", self.name));
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}/expected.json: {error}", self.name))
    }

    /// Its files with their contents.
    pub(crate) fn file_contents(&self) -> BTreeMap<String, Vec<u8>> {
        read_directory(&self.directory)
    }

    /// Checks that it has a story.md and no unknown files.
    pub(crate) fn check_files(&self, faults: &mut Vec<String>) {
        let named = [self.read("commands"), self.read("converger.toml")].map(Option::unwrap_or_default).concat();
        let has_meaning = |file: &str| {
            if self.is_live() { LIVE_FILES.contains(&file) || named.contains(file) } else { REPLAY_FILES.contains(&file) }
        };
        let content = self.file_contents();
        faults.extend(content.keys().filter(|file| !has_meaning(file)).map(|file| format!("the file {file} means nothing here")));
        if self.read("story.md").is_none_or(|story| story.trim().is_empty()) {
            faults.push("it has no story.md".into());
        }
    }

    /// Compares an expected file with the output, or updates it if requested.
    pub(crate) fn compare_or_update(&self, file: &str, actual: Option<String>, faults: &mut Vec<String>) {
        let path = self.directory.join(file);
        if is_update() {
            match actual {
                Some(actual) => fs::write(&path, actual).unwrap_or_else(|error| panic!("{}: {error}", path.display())),
                None if path.exists() => fs::remove_file(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display())),
                None => {}
            }
            return;
        }
        match (self.read(file), actual) {
            (Some(expected), Some(actual)) if expected != actual => {
                faults.push(format!("{file} differs:\n{}", diff_lines(&expected, &actual)))
            }
            (None, Some(actual)) => faults.push(format!("{file} is not there; it would be:\n{actual}")),
            (Some(_), None) => faults.push(format!("{file} is there, and nothing came out that it could be compared with")),
            _ => {}
        }
    }
}

/// The files of a directory with their contents.
pub(crate) fn read_directory(directory: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(directory).expect("a scenario is a directory").map(|entry| entry.expect("an entry").path());
    let content = entries.filter(|path| path.is_file()).map(|path| {
        let name = path.file_name().expect("a file has a name").to_string_lossy().into_owned();
        let bytes = fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        (name, bytes)
    });
    content.collect()
}

/// All scenarios by name.
pub(crate) fn all_scenarios() -> Vec<Scenario> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios");
    let entries = fs::read_dir(&root).expect("the scenarios are beside the crates").map(|entry| entry.expect("an entry").path());
    let mut directories: Vec<PathBuf> = entries.filter(|path| path.is_dir()).collect();
    if let Ok(beginning) = std::env::var("SCENARIOS") {
        directories.retain(|directory| directory.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&beginning)));
    }
    directories.sort();
    directories.into_iter().map(Scenario::open).collect()
}

/// Whether the expected files are being updated; a concurrent reader would see half of them.
pub(crate) fn is_update() -> bool {
    std::env::var_os("UPDATE_SCENARIOS").is_some_and(|update| update == "1")
}
