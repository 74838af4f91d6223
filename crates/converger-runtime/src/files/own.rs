//! Which files a command may replace: those that the same command writes. Any other file may be a person's work, and stays unless they pass
//! `--overwrite`.
//!
//! A file is recognised by its schema id or its first line; the rest of its content does not matter.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use converger_core::document::TEXT_BYTES_MAX;
use converger_ledger::Checkpoint;
use serde::Deserialize;

/// A kind of file that a command writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnFile {
    /// A JSON document with this schema id.
    Json(&'static str),
    /// The receipt of an operation, or of one entry.
    Receipt,
    /// A signed checkpoint, as in a witness.
    Checkpoint,
    /// The token secret of a lab: one line with a UUID.
    LabSecret,
}

impl OwnFile {
    /// A plan.
    pub const PLAN: Self = Self::Json("converger.plan/1");
    /// An observation.
    pub const OBSERVATION: Self = Self::Json("converger.observation/1");
    /// The state of a lab.
    pub const LAB: Self = Self::Json("converger.lab/1");
}

impl fmt::Display for OwnFile {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Json(schema) => write!(out, "a JSON document with `\"schema\": \"{schema}\"`"),
            Self::Receipt => out.write_str("a receipt"),
            Self::Checkpoint => out.write_str("a signed checkpoint"),
            Self::LabSecret => out.write_str("the secret of a lab's token"),
        }
    }
}

/// Which file may be replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replaces<'b> {
    /// A file of this kind.
    Own(OwnFile),
    /// A file with these bytes.
    Same(&'b [u8]),
    /// Any regular file: a person passed `--overwrite`.
    Anything,
}

impl Replaces<'_> {
    /// A file of this kind, or any file with `--overwrite`.
    pub fn own(own: OwnFile, overwrite: bool) -> Self {
        if overwrite { Self::Anything } else { Self::Own(own) }
    }
}

/// The error of a path that has a file which may not be replaced.
#[derive(Debug)]
pub(super) struct TakenError {
    expected: String,
}

impl fmt::Display for TakenError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "it exists and is not {}", self.expected)
    }
}

impl std::error::Error for TakenError {}

/// Whether a write failed because the path has a file of another kind.
pub fn is_taken(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.is::<TakenError>())
}

/// What a writable path has now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    Nothing,
    Replaceable,
}

/// Checks a path before it is written.
///
/// An empty file has nothing to lose, so a file made with `mktemp` may be written.
///
/// # Errors
/// The path has a file that may not be replaced.
pub(super) fn check_place(path: &Path, replaces: Replaces<'_>) -> io::Result<Found> {
    let metadata = match fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Found::Nothing),
        result => result?,
    };
    if metadata.len() == 0 {
        return Ok(Found::Replaceable);
    }
    let expected = match replaces {
        Replaces::Anything => return Ok(Found::Replaceable),
        Replaces::Own(own) if is_own(path, own) => return Ok(Found::Replaceable),
        Replaces::Own(own) => own.to_string(),
        Replaces::Same(bytes) if super::read_at_most(path, bytes.len()).is_ok_and(|current| current.bytes == bytes) => {
            return Ok(Found::Replaceable);
        }
        Replaces::Same(_) => "what would be written there".to_owned(),
    };
    Err(io::Error::new(io::ErrorKind::AlreadyExists, TakenError { expected }))
}

/// Whether a file is of this kind.
pub fn is_own(path: &Path, own: OwnFile) -> bool {
    match own {
        OwnFile::Json(schema) => schema_of(path).is_some_and(|found| found == schema),
        OwnFile::Receipt => first_line(path).is_some_and(|line| converger_ledger::is_receipt_head(&line)),
        OwnFile::Checkpoint => {
            let read = super::read_at_most(path, CHECKPOINT_BYTES_MAX);
            read.is_ok_and(|text| Checkpoint::parse_unverified(&text.bytes).is_ok())
        }
        OwnFile::LabSecret => first_line(path).is_some_and(|line| is_uuid(&line)),
    }
}

/// A checkpoint has a few lines; a larger file is not one.
const CHECKPOINT_BYTES_MAX: usize = 64 << 10;

/// The schema id of a JSON document, at any position in it.
fn schema_of(path: &Path) -> Option<String> {
    #[derive(Deserialize)]
    struct Head {
        schema: String,
    }
    super::check_readable(path).ok()?;
    let file = File::open(path).ok()?.take(TEXT_BYTES_MAX as u64);
    serde_json::from_reader::<_, Head>(BufReader::new(file)).ok().map(|head| head.schema)
}

/// The first line of a text, if it is short.
fn first_line(path: &Path) -> Option<String> {
    const LINE_BYTES_MAX: u64 = 256;
    super::check_readable(path).ok()?;
    let mut line = String::new();
    BufReader::new(File::open(path).ok()?.take(LINE_BYTES_MAX)).read_line(&mut line).ok()?;
    line.strip_suffix('\n').map(str::to_owned)
}

fn is_uuid(text: &str) -> bool {
    let lengths = text.split('-').map(|part| (part.len(), part.bytes().all(|byte| byte.is_ascii_hexdigit())));
    lengths.eq([8, 4, 4, 4, 12].map(|length| (length, true)))
}

/// Checks that a link may be followed: its owner is the current user or root. Others could direct a write to any file of this user.
pub(super) fn check_link_target(path: &Path) -> io::Result<()> {
    let Ok(metadata) = fs::symlink_metadata(path) else { return Ok(()) };
    let is_trusted = [0, rustix::process::geteuid().as_raw()].contains(&metadata.uid());
    if !metadata.is_symlink() || is_trusted {
        return Ok(());
    }
    Err(io::Error::other("it is a link of another user; name the file itself"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recognises_a_file_by_its_schema_id_or_its_first_line_only() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("file");
        let is = |text: &str, own: OwnFile| {
            fs::write(&path, text).expect("written");
            is_own(&path, own)
        };
        assert!(is(r#"{"body":{"schema":"other"},"schema":"converger.plan/1"}"#, OwnFile::PLAN));
        assert!(is("{\n  \"schema\": \"converger.plan/1\"\n}\n", OwnFile::PLAN), "also as `jq` writes it");
        assert!(!is(r#"{"schema":"converger.result/1"}"#, OwnFile::PLAN));
        assert!(!is(r#"{"body":{"schema":"converger.plan/1"}}"#, OwnFile::PLAN), "the schema of a part is not that of the document");
        assert!(!is(r#"{"schema":"converger.plan/1"} and notes"#, OwnFile::PLAN));
        assert!(!is(r#"{"schema":"converger.plan/1","schema":"converger.plan/1"}"#, OwnFile::PLAN));
        assert!(!is("schema: converger.plan/1\n", OwnFile::PLAN));
        assert!(is("converger.receipt/1\n", OwnFile::Receipt) && is("c2sp.org/tlog-proof@v1\n", OwnFile::Receipt));
        assert!(!is("converger.receipt/10\n", OwnFile::Receipt) && !is("converger.receipt/1", OwnFile::Receipt));
        assert!(!is("notes\n", OwnFile::Checkpoint));
        assert!(is("5ec2e700-0000-4000-8000-000000000001\n", OwnFile::LabSecret) && !is("hunter2\n", OwnFile::LabSecret));
        assert!(!is_own(&directory.path().join("nothing"), OwnFile::PLAN));
    }
}
