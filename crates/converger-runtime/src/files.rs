//! Reads inputs and writes artifacts: bounded, complete or not at all, and with errors that name a remedy.

mod new_file;
mod own;

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use converger_core::document::{Notation, TEXT_BYTES_MAX, is_invisible};

use new_file::{NewFile, remove_temporaries_of};
use own::Found;

pub use new_file::is_left;
pub use own::{OwnFile, Replaces, is_own, is_taken};

/// A text that was read, with its name for messages.
#[derive(Debug)]
pub struct InputText {
    /// The name, escaped for display.
    pub name: String,
    /// Its content.
    pub bytes: Vec<u8>,
}

/// Reads a file of at most the accepted size.
///
/// # Errors
/// Those of the system.
pub fn read(path: &Path) -> io::Result<InputText> {
    read_at_most(path, TEXT_BYTES_MAX)
}

/// Reads at most `most` bytes of a file and one more, which shows that it is too large.
///
/// # Errors
/// Those of the system.
pub fn read_at_most(path: &Path, most: usize) -> io::Result<InputText> {
    let mut bytes = Vec::new();
    check_readable(path)?;
    File::open(path)?.take(most as u64 + 1).read_to_end(&mut bytes)?;
    Ok(InputText { name: display_path(path), bytes })
}

/// Checks that a file can be read without waiting for a writer that may never come: pipes, sockets and devices are refused.
///
/// Standard input and descriptors that a shell passes as `/dev/fd/N` are accepted, because they have a writer.
///
/// # Errors
/// Those of the system.
pub fn check_readable(path: &Path) -> io::Result<()> {
    let kind = fs::metadata(path)?.file_type();
    let is_endless = kind.is_fifo() || kind.is_socket() || kind.is_block_device() || kind.is_char_device();
    if !is_endless || path == Path::new("/dev/null") || is_descriptor(path) {
        return Ok(());
    }
    Err(io::Error::other("it is a pipe, a socket or a device, and not a regular file"))
}

/// Whether a path is a descriptor of this process, such as `/dev/stdin` or `<(command)` in a shell.
fn is_descriptor(path: &Path) -> bool {
    let own = fs::canonicalize("/proc/self/fd").ok();
    let parent = path.parent().and_then(|parent| fs::canonicalize(parent).ok());
    path == Path::new("/dev/stdin") || own.is_some() && own == parent
}

/// A path for display: control characters and invisible ones are escaped.
pub fn display_path(path: &Path) -> String {
    escape_hidden(&path.display().to_string())
}

/// A path as one word of a shell command.
pub fn shell_argument(path: &Path) -> String {
    let shown = display_path(path);
    let is_plain = |character: char| character.is_ascii_alphanumeric() || "-_./@:+,=".contains(character);
    if !shown.is_empty() && shown.chars().all(is_plain) { shown } else { format!("'{}'", shown.replace('\'', r"'\''")) }
}

/// Escapes control characters and invisible ones in a text from outside.
pub fn escape_hidden(text: &str) -> String {
    let escaped = |character: char| if is_invisible(character) { character.escape_default().collect() } else { vec![character] };
    text.chars().flat_map(escaped).collect()
}

/// The notation of a file by its extension: JSON for `.json`, otherwise YAML.
pub fn detect_notation(path: &Path) -> Notation {
    match path.extension() {
        Some(ending) if ending.eq_ignore_ascii_case("json") => Notation::Json,
        _ => Notation::Yaml,
    }
}

/// Writes a new file completely and then moves it into place, so that a crash or a full disk leaves the old file. An existing file is replaced only if
/// `replaces` allows it.
///
/// A device, a pipe or a directory is never replaced. A link is followed: its target is replaced, not the link.
///
/// # Errors
/// Those of the system.
pub fn replace<T>(path: &Path, replaces: Replaces<'_>, write: impl FnOnce(&mut File) -> io::Result<T>) -> io::Result<T> {
    replace_with_readers(path, replaces, FileReaders::Inherited, write)
}

/// The same for a private file.
///
/// # Errors
/// Those of the system.
pub fn replace_private<T>(path: &Path, replaces: Replaces<'_>, write: impl FnOnce(&mut File) -> io::Result<T>) -> io::Result<T> {
    replace_with_readers(path, replaces, FileReaders::Owner, write)
}

/// Who may read the new file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum FileReaders {
    /// The same users as for the old file, or as the umask says.
    Inherited,
    Owner,
}

fn replace_with_readers<T>(
    path: &Path,
    replaces: Replaces<'_>,
    readers: FileReaders,
    write: impl FnOnce(&mut File) -> io::Result<T>,
) -> io::Result<T> {
    let path = resolve_target(path)?;
    remove_temporaries_of(&path);
    own::check_place(&path, replaces)?;
    // Another process may have put a file there in the meantime.
    write_whole(&path, readers, write, |new| match own::check_place(&path, replaces)? {
        Found::Nothing => new.take_name(&path),
        Found::Replaceable => new.replace(&path),
    })
}

/// Replaces a file by `text` if it is unchanged since it was read. Of two processes that do so at once, one is refused.
///
/// A change by a program that does not take the lock, such as an editor, is detected until the new file is moved into place.
///
/// # Errors
/// Those of the system.
pub fn replace_if_unchanged(path: &Path, read: &[u8], text: &[u8]) -> io::Result<()> {
    replace_if_unchanged_with(path, read, |file| file.write_all(text))
}

fn replace_if_unchanged_with(path: &Path, read: &[u8], write: impl FnOnce(&mut File) -> io::Result<()>) -> io::Result<()> {
    let path = resolve_target(path)?;
    let changed = || io::Error::other("it changed since it was read; run the command again");
    let held = File::options().read(true).write(true).open(&path)?;
    held.try_lock().map_err(|_| io::Error::other("another program is changing it; run the command again"))?;
    let is_same = || -> io::Result<()> {
        let (held, current) = (held.metadata()?, fs::metadata(&path)?);
        // If the file was replaced in the meantime, the lock is on a file that has no name any more.
        let is_held = (held.dev(), held.ino()) == (current.dev(), current.ino());
        if is_held && self::read(&path)?.bytes == read { Ok(()) } else { Err(changed()) }
    };
    is_same()?;
    remove_temporaries_of(&path);
    write_whole(&path, FileReaders::Inherited, write, |new| is_same().and_then(|()| new.replace(&path)))
}

/// Checks that a file can be written here: an existing one may be replaced, and a new one can be created beside it. The existing file alone tells too
/// little: below `/proc`, for example, files are regular but none can be created.
///
/// # Errors
/// Those of the system.
pub fn check_replaceable(path: &Path, replaces: Replaces<'_>) -> io::Result<()> {
    let path = resolve_target(path)?;
    own::check_place(&path, replaces)?;
    NewFile::beside(&path, 0o600).map(drop)
}

/// The target of a path, if it can be replaced.
fn resolve_target(path: &Path) -> io::Result<PathBuf> {
    if path.file_name().is_none() {
        return Err(io::Error::other("it is not the name of a file"));
    }
    if path == Path::new("-") {
        return Err(io::Error::other("`-` is not a file; --json prints to standard output"));
    }
    own::check_link_target(path)?;
    if path.is_symlink() && !path.exists() {
        return Err(io::Error::other("it is a link to a file that does not exist"));
    }
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    if fs::metadata(&path).is_ok_and(|metadata| !metadata.is_file()) {
        return Err(io::Error::other("it exists and is not a regular file"));
    }
    Ok(path)
}

/// Writes a new file for `path` completely and durably, then lets `place` move it there.
fn write_whole<T>(
    path: &Path,
    readers: FileReaders,
    write: impl FnOnce(&mut File) -> io::Result<T>,
    put_in_place: impl FnOnce(&mut NewFile) -> io::Result<()>,
) -> io::Result<T> {
    let mut new = NewFile::beside(path, if readers == FileReaders::Owner { 0o600 } else { 0o666 })?;
    if let Some(metadata) = fs::metadata(path).ok().filter(|_| readers == FileReaders::Inherited) {
        copy_owner_and_mode(&new.file, &metadata)?;
    }
    let value = write(&mut new.file)?;
    new.file.flush()?;
    new.file.sync_all()?;
    put_in_place(&mut new)?;
    // The file is in place now; only its durability is open.
    let unsure = |error| io::Error::other(format!("it is in place, but a crash may undo that: its directory cannot be synced ({error})"));
    sync_parent_directory(path).map_err(unsure)?;
    Ok(value)
}

/// Copies owner, group and mode of the old file. Only root may change an owner; for other users the new file stays their own.
fn copy_owner_and_mode(file: &File, metadata: &fs::Metadata) -> io::Result<()> {
    let new = file.metadata()?;
    if (new.uid(), new.gid()) != (metadata.uid(), metadata.gid()) {
        let given = std::os::unix::fs::fchown(file, Some(metadata.uid()), Some(metadata.gid()));
        given.or_else(|error| if error.kind() == io::ErrorKind::PermissionDenied { Ok(()) } else { Err(error) })?;
    }
    file.set_permissions(metadata.permissions())
}

/// Creates a file: its name appears once it is complete. A file that another process creates in the meantime is not overwritten.
///
/// # Errors
/// Those of the system.
pub fn create<T>(path: &Path, write: impl FnOnce(&mut File) -> io::Result<T>) -> io::Result<T> {
    create_as(path, FileReaders::Inherited, write)
}

/// The same for a private file.
///
/// # Errors
/// Those of the system.
pub fn create_private<T>(path: &Path, write: impl FnOnce(&mut File) -> io::Result<T>) -> io::Result<T> {
    create_as(path, FileReaders::Owner, write)
}

fn create_as<T>(path: &Path, readers: FileReaders, write: impl FnOnce(&mut File) -> io::Result<T>) -> io::Result<T> {
    remove_temporaries_of(path);
    write_whole(path, readers, write, |new| new.take_name(path))
}

/// Creates a private file that `write` fills by its path, as SQLite needs it. The file has a temporary name until it is complete and durable. An
/// existing file is not replaced, and after an error nothing is left.
///
/// # Errors
/// Those of `write`, and those of the system through `failed`.
pub fn create_private_by_path<T, E>(
    path: &Path,
    write: impl FnOnce(&Path) -> Result<T, E>,
    failed: impl Fn(io::Error) -> E,
) -> Result<T, E> {
    remove_temporaries_of(path);
    if fs::symlink_metadata(path).is_ok() {
        return Err(failed(io::ErrorKind::AlreadyExists.into()));
    }
    let mut new = NewFile::open_temporary(path, 0o600).map_err(&failed)?;
    let value = write(&new.temporary_path())?;
    let placed = new.file.sync_all().and_then(|()| new.take_name(path)).and_then(|()| sync_parent_directory(path));
    placed.map_err(failed)?;
    Ok(value)
}

/// The same for one of many files in a directory that was tidied before ([`remove_stale_temporaries`]).
///
/// # Errors
/// Those of the system.
pub fn create_in_tidied<T>(path: &Path, write: impl FnOnce(&mut File) -> io::Result<T>) -> io::Result<T> {
    write_whole(path, FileReaders::Inherited, write, |new| new.take_name(path))
}

/// Syncs the directory of a file, which makes its name durable.
fn sync_parent_directory(path: &Path) -> io::Result<()> {
    File::open(new_file::parent_directory(path))?.sync_all()
}

/// Removes temporary files of dead processes in a directory and its subdirectories, `depth_max` levels deep: they were killed between writing a file and
/// moving it into place.
///
/// # Errors
/// Those of the system.
pub fn remove_stale_temporaries(directory: &Path, depth_max: usize) -> io::Result<()> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_dir() && depth_max > 0 {
            remove_stale_temporaries(&entry.path(), depth_max - 1)?;
        } else if kind.is_file() && is_left(&entry.file_name()) {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// Whether two paths are one file.
///
/// `-` is the file that standard input was redirected from, if it was.
pub fn are_same_file(left: &Path, right: &Path) -> bool {
    let right = if right == Path::new("-") { Path::new("/dev/stdin") } else { right };
    match (fs::canonicalize(left), fs::canonicalize(right)) {
        (Ok(left), Ok(right)) => left == right,
        _ => false,
    }
}

/// Whether a file is, or would be, inside a directory.
pub fn is_under(path: &Path, directory: &Path) -> bool {
    let target = fs::canonicalize(path).or_else(|_| fs::canonicalize(new_file::parent_directory(path)));
    matches!((target, fs::canonicalize(directory)), (Ok(target), Ok(directory)) if target.starts_with(&directory))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removes_only_temporaries_of_dead_processes() {
        let directory = tempfile::tempdir().expect("a directory");
        let below = directory.path().join("tile");
        fs::create_dir(&below).expect("made");
        // No process has such a high id; this process is running.
        let (left, own) = ("000.4294967295.tmp", format!("001.{}.tmp", std::process::id()));
        let kept_names = ["checkpoint", "notes.tmp", ".tmp", "a.b.tmp", own.as_str()];
        for name in kept_names.iter().chain(&[left]) {
            fs::write(directory.path().join(name), name).and_then(|()| fs::write(below.join(name), name)).expect("written");
        }
        remove_stale_temporaries(directory.path(), 1).expect("it is tidied");
        for checked_directory in [directory.path(), &below] {
            assert!(
                kept_names.iter().all(|name| checked_directory.join(name).exists()) && !checked_directory.join(left).exists(),
                "{}",
                checked_directory.display()
            );
        }
        remove_stale_temporaries(&directory.path().join("nowhere"), 1).expect("a missing directory has nothing to remove");
    }

    #[test]
    fn finds_an_unwritable_directory_before_writing() {
        let directory = tempfile::tempdir().expect("a directory");
        let target = directory.path().join("result.json");
        for _ in 0..2 {
            check_replaceable(&target, Replaces::Anything).expect("it can be written");
            assert!(
                fs::read_dir(directory.path()).expect("read").all(|file| file.expect("read").path() == target),
                "nothing is left beside it"
            );
            fs::write(&target, "old").expect("written");
        }
        assert_eq!(fs::read_to_string(&target).expect("read"), "old", "what is there is not touched");
        // They look like regular files, even to root.
        for elsewhere in ["/proc/self/mem", "/proc/self/environ", "/proc/version"] {
            assert!(check_replaceable(Path::new(elsewhere), Replaces::Anything).is_err(), "{elsewhere}");
        }
        let is = |path: &Path| check_replaceable(path, Replaces::Anything);
        assert!(is(directory.path()).is_err() && is(&directory.path().join("none/result.json")).is_err());
    }

    #[test]
    fn failed_write_leaves_the_old_file_and_no_temporary() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("plan.json");
        fs::write(&path, "old").expect("written");
        let failed = replace(&path, Replaces::Anything, |file| {
            file.write_all(b"half")?;
            Err::<(), _>(io::Error::other("disk full"))
        });
        assert!(failed.is_err());
        assert_eq!(fs::read_to_string(&path).expect("read"), "old");
        assert_eq!(fs::read_dir(directory.path()).expect("listed").count(), 1);
    }

    #[test]
    fn refuses_to_replace_a_file_that_changed_since_it_was_read() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("desired.yaml");
        let error_text = |failed: io::Result<()>| failed.expect_err("refused").to_string();
        fs::write(&path, "theirs").expect("written");
        assert!(error_text(replace_if_unchanged(&path, b"read", b"ours")).contains("it changed since"));
        let edited = replace_if_unchanged_with(&path, b"theirs", |file| fs::write(&path, "edited").and_then(|()| file.write_all(b"ours")));
        assert!(error_text(edited).contains("it changed since"));
        assert_eq!(fs::read_to_string(&path).expect("read"), "edited");
        let inside = replace_if_unchanged_with(&path, b"edited", |file| {
            assert!(error_text(replace_if_unchanged(&path, b"edited", b"second")).contains("another program is changing it"));
            file.write_all(b"first")
        });
        assert!(inside.is_ok(), "{inside:?}");
        assert_eq!(fs::read_to_string(&path).expect("read"), "first");
        assert_eq!(fs::read_dir(directory.path()).expect("listed").count(), 1);
    }

    #[test]
    fn concurrent_replacements_lose_no_write() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("desired.yaml");
        fs::write(&path, "").expect("written");
        let add = |line: String| {
            let read = fs::read(&path).expect("read");
            replace_if_unchanged(&path, &read, &[&read[..], line.as_bytes()].concat()).is_ok().then_some(line)
        };
        let done: Vec<String> = std::thread::scope(|scope| {
            let all: Vec<_> = (0..4)
                .map(|thread| scope.spawn(move || (0..20).filter_map(|line| add(format!("{thread} {line}\n"))).collect::<Vec<_>>()))
                .collect();
            all.into_iter().flat_map(|thread| thread.join().expect("ended")).collect()
        });
        let text = fs::read_to_string(&path).expect("read");
        assert!(!done.is_empty());
        assert_eq!(text.lines().count(), done.len(), "{text}");
        assert!(done.iter().all(|line| text.contains(line.as_str())), "{text}");
    }

    #[test]
    fn replacement_keeps_mode_and_owner() {
        use std::os::unix::fs::PermissionsExt as _;
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("desired.yaml");
        fs::write(&path, "old").expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).expect("set");
        // Only root may change an owner: for other users this checks that the file stays their own.
        let _ = std::os::unix::fs::chown(&path, Some(12_345), Some(12_346));
        let before = fs::metadata(&path).expect("there");
        replace_if_unchanged(&path, b"old", b"new").expect("written");
        let after = fs::metadata(&path).expect("there");
        assert_ne!(before.ino(), after.ino());
        assert_eq!((before.mode(), before.uid(), before.gid()), (after.mode(), after.uid(), after.gid()));
    }

    #[test]
    fn new_file_appears_whole_and_replaces_none() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("desired.yaml");
        let created = create(&path, |file| {
            assert!(!path.exists(), "a crash here would leave it empty");
            file.write_all(b"whole")
        });
        assert!(created.is_ok(), "{created:?}");
        let second = create(&path, |file| file.write_all(b"other")).expect_err("it is there");
        assert_eq!(second.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read_to_string(&path).expect("read"), "whole");
        assert_eq!(fs::read_dir(directory.path()).expect("listed").count(), 1);
    }

    #[test]
    fn refuses_to_read_a_pipe() {
        let directory = tempfile::tempdir().expect("a directory");
        let pipe = directory.path().join("pipe");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).expect("a pipe");
        assert!(read(&pipe).expect_err("refused").to_string().contains("not a regular file"));
        assert!(read(Path::new("/dev/zero")).is_err());
        assert!(read(Path::new("/dev/null")).is_ok());
        let (reader, mut writer) = io::pipe().expect("a pipe");
        writer.write_all(b"substituted").expect("written");
        drop(writer);
        let path = format!("/dev/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&reader));
        assert_eq!(read(Path::new(&path)).expect("read").bytes, b"substituted");
    }

    #[test]
    fn only_the_json_extension_is_json() {
        assert_eq!(detect_notation(Path::new("a/desired.JSON")), Notation::Json);
        assert_eq!(detect_notation(Path::new("desired.yaml")), Notation::Yaml);
        assert_eq!(detect_notation(Path::new("json")), Notation::Yaml);
    }
}
