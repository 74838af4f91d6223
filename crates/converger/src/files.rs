//! Reading inputs and writing artifacts: bounded, whole or not at all, and with messages that say what to do.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use converger_core::document::{Notation, TEXT_BYTES_MAX, is_hidden};

/// A text that was read, with the name to show it under.
pub(crate) struct Text {
    pub(crate) name: String,
    pub(crate) bytes: Vec<u8>,
}

/// Reads a file of at most the size that is accepted.
pub(crate) fn read(path: &Path) -> io::Result<Text> {
    read_at_most(path, TEXT_BYTES_MAX)
}

/// Reads a file, and one byte more than `most` at the most: enough to know that it is too large.
pub(crate) fn read_at_most(path: &Path, most: usize) -> io::Result<Text> {
    let mut bytes = Vec::new();
    File::open(path)?.take(most as u64 + 1).read_to_end(&mut bytes)?;
    Ok(Text { name: shown(path), bytes })
}

/// A path for people: nothing in a name must act on a terminal or be overlooked.
pub(crate) fn shown(path: &Path) -> String {
    path.display()
        .to_string()
        .chars()
        .flat_map(|character| if is_hidden(character) { character.escape_default().collect() } else { vec![character] })
        .collect()
}

/// The notation of a file by its ending; whatever is not `.json` is YAML.
pub(crate) fn notation(path: &Path) -> Notation {
    match path.extension() {
        Some(ending) if ending.eq_ignore_ascii_case("json") => Notation::Json,
        _ => Notation::Yaml,
    }
}

/// Writes a file whole: beside it first, then in its place, so that a crash or a full disk leaves the old one.
///
/// A device, a pipe or a directory is not replaced, and what a link leads to is written, not the link.
pub(crate) fn replace<T>(path: &Path, write: impl FnOnce(&mut File) -> io::Result<T>) -> io::Result<T> {
    replace_as(path, Readers::Usual, write)
}

/// The same for what nobody else may read.
pub(crate) fn replace_private<T>(path: &Path, write: impl FnOnce(&mut File) -> io::Result<T>) -> io::Result<T> {
    replace_as(path, Readers::Owner, write)
}

/// Who may read a file that is written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Readers {
    /// As the file that was there, or as the user's mask says.
    Usual,
    Owner,
}

fn replace_as<T>(path: &Path, readers: Readers, write: impl FnOnce(&mut File) -> io::Result<T>) -> io::Result<T> {
    if path == Path::new("-") {
        return Err(io::Error::other("`-` is not a file; --json prints to standard output"));
    }
    if path.is_symlink() && !path.exists() {
        return Err(io::Error::other("it is a link that leads nowhere"));
    }
    let resolved = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let path = resolved.as_path();
    let there = fs::metadata(path).ok();
    if there.as_ref().is_some_and(|there| !there.is_file()) {
        return Err(io::Error::other("it is there and not a regular file"));
    }
    let beside = beside(path);
    // Created anew: a link that somebody laid under this name would be followed otherwise.
    let mode = if readers == Readers::Owner { 0o600 } else { 0o666 };
    let created = File::options().write(true).create_new(true).mode(mode).open(&beside);
    let written = created.and_then(|mut file| {
        if let Some(there) = there.as_ref().filter(|_| readers == Readers::Usual) {
            file.set_permissions(there.permissions())?;
        }
        let value = write(&mut file)?;
        file.flush()?;
        file.sync_all()?;
        Ok(value)
    });
    let replaced = written.and_then(|value| fs::rename(&beside, path).map(|()| value)).and_then(|value| sync_room(path).map(|()| value));
    if replaced.is_err() {
        // What matters is the first error; a leftover beside the file is only untidy.
        let _ = fs::remove_file(&beside);
    }
    replaced
}

/// Writes a file that is not there yet, whole: its name is taken first, so that whoever takes it meanwhile is not written over.
pub(crate) fn create<T>(path: &Path, write: impl FnOnce(&mut File) -> io::Result<T>) -> io::Result<T> {
    File::create_new(path)?;
    let written = replace(path, write);
    if written.is_err() {
        // What matters is the first error; an empty file declares nothing.
        let _ = fs::remove_file(path);
    }
    written
}

/// The name of a file is durable once its directory is.
fn sync_room(path: &Path) -> io::Result<()> {
    let room = path.parent().filter(|room| !room.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(room)?.sync_all()
}

fn beside(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(format!(".{}.tmp", std::process::id()));
    path.with_file_name(name)
}

/// Whether two paths are one file.
///
/// Standard input (`-`) is the file that it was redirected from, where it was.
pub(crate) fn are_one(left: &Path, right: &Path) -> bool {
    let right = if right == Path::new("-") { Path::new("/dev/stdin") } else { right };
    match (fs::canonicalize(left), fs::canonicalize(right)) {
        (Ok(left), Ok(right)) => left == right,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_write_leaves_the_old_file_and_nothing_beside_it() {
        let room = tempfile::tempdir().expect("a directory");
        let path = room.path().join("plan.json");
        fs::write(&path, "old").expect("written");
        let failed = replace(&path, |file| {
            file.write_all(b"half")?;
            Err::<(), _>(io::Error::other("disk full"))
        });
        assert!(failed.is_err());
        assert_eq!(fs::read_to_string(&path).expect("read"), "old");
        assert_eq!(fs::read_dir(room.path()).expect("listed").count(), 1);
    }

    #[test]
    fn only_the_ending_json_is_json() {
        assert_eq!(notation(Path::new("a/desired.JSON")), Notation::Json);
        assert_eq!(notation(Path::new("desired.yaml")), Notation::Yaml);
        assert_eq!(notation(Path::new("json")), Notation::Yaml);
    }
}
