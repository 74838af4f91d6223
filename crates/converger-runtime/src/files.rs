//! Reading inputs and writing artifacts: bounded, whole or not at all, and with messages that say what to do.

mod new_file;
mod own;

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use converger_core::document::{Notation, TEXT_BYTES_MAX, is_invisible};

use new_file::{NewFile, remove_left_of};
use own::Found;

pub use new_file::is_left;
pub use own::{OwnFile, Replaces, is_own, is_taken};

/// A text that was read, with the name to show it under.
#[derive(Debug)]
pub struct InputText {
    /// The name, fit to be shown.
    pub name: String,
    /// What is in it.
    pub bytes: Vec<u8>,
}

/// Reads a file of at most the size that is accepted.
///
/// # Errors
/// What the system says.
pub fn read(path: &Path) -> io::Result<InputText> {
    read_at_most(path, TEXT_BYTES_MAX)
}

/// Reads a file, and one byte more than `most` at the most: enough to know that it is too large.
///
/// # Errors
/// What the system says.
pub fn read_at_most(path: &Path, most: usize) -> io::Result<InputText> {
    let mut bytes = Vec::new();
    check_readable(path)?;
    File::open(path)?.take(most as u64 + 1).read_to_end(&mut bytes)?;
    Ok(InputText { name: display_path(path), bytes })
}

/// Whether a file can be read without waiting for somebody who may never write: pipes, sockets and devices are refused.
///
/// Standard input and what a shell lays under `/dev/fd` are read, because somebody is at the other end of them.
///
/// # Errors
/// What the system says.
pub fn check_readable(path: &Path) -> io::Result<()> {
    let kind = fs::metadata(path)?.file_type();
    let is_endless = kind.is_fifo() || kind.is_socket() || kind.is_block_device() || kind.is_char_device();
    if !is_endless || path == Path::new("/dev/null") || is_descriptor(path) {
        return Ok(());
    }
    Err(io::Error::other("it is a pipe, a socket or a device, and not a regular file"))
}

/// Whether a path is a descriptor of this process, as `/dev/stdin` and `<(command)` in a shell are.
fn is_descriptor(path: &Path) -> bool {
    let own = fs::canonicalize("/proc/self/fd").ok();
    let room = path.parent().and_then(|room| fs::canonicalize(room).ok());
    path == Path::new("/dev/stdin") || own.is_some() && own == room
}

/// A path for people: nothing in a name must act on a terminal or be overlooked.
pub fn display_path(path: &Path) -> String {
    escape_hidden(&path.display().to_string())
}

/// A path as it is typed in a command line: a shell takes it for one word.
pub fn shell_argument(path: &Path) -> String {
    let shown = display_path(path);
    let is_plain = |character: char| character.is_ascii_alphanumeric() || "-_./@:+,=".contains(character);
    if !shown.is_empty() && shown.chars().all(is_plain) { shown } else { format!("'{}'", shown.replace('\'', r"'\''")) }
}

/// The same for any text that somebody else wrote.
pub fn escape_hidden(text: &str) -> String {
    let escaped = |character: char| if is_invisible(character) { character.escape_default().collect() } else { vec![character] };
    text.chars().flat_map(escaped).collect()
}

/// The notation of a file by its ending; whatever is not `.json` is YAML.
pub fn detect_notation(path: &Path) -> Notation {
    match path.extension() {
        Some(ending) if ending.eq_ignore_ascii_case("json") => Notation::Json,
        _ => Notation::Yaml,
    }
}

/// Writes a file whole, and then has it take its place, so that a crash or a full disk leaves the old one. What is there is replaced only where it
/// is what `replaces` says.
///
/// A device, a pipe or a directory is not replaced, and what a link leads to is written, not the link.
///
/// # Errors
/// What the system says.
pub fn replace<T>(path: &Path, replaces: Replaces<'_>, write: impl FnOnce(&mut File) -> io::Result<T>) -> io::Result<T> {
    replace_with_readers(path, replaces, FileReaders::Inherited, write)
}

/// The same for what nobody else may read.
///
/// # Errors
/// What the system says.
pub fn replace_private<T>(path: &Path, replaces: Replaces<'_>, write: impl FnOnce(&mut File) -> io::Result<T>) -> io::Result<T> {
    replace_with_readers(path, replaces, FileReaders::Owner, write)
}

/// Who may read a file that is written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum FileReaders {
    /// As the file that was there, or as the user's mask says.
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
    remove_left_of(&path);
    own::look(&path, replaces)?;
    // Somebody may have put another file there since.
    write_whole(&path, readers, write, |new| match own::look(&path, replaces)? {
        Found::Nothing => new.take_name(&path),
        Found::Replaceable => new.replace(&path),
    })
}

/// Replaces a file by `text` if it still is what was read. Of two who do so at once one is refused.
///
/// Whoever does not know about the lock, such as an editor, is seen until the moment at which the new file takes its place.
///
/// # Errors
/// What the system says.
pub fn replace_if_unchanged(path: &Path, read: &[u8], text: &[u8]) -> io::Result<()> {
    replace_if_unchanged_with(path, read, |file| file.write_all(text))
}

fn replace_if_unchanged_with(path: &Path, read: &[u8], write: impl FnOnce(&mut File) -> io::Result<()>) -> io::Result<()> {
    let path = resolve_target(path)?;
    let changed = || io::Error::other("somebody changed it since it was read; run the command again");
    let held = File::options().read(true).write(true).open(&path)?;
    held.try_lock().map_err(|_| io::Error::other("another program is changing it; run the command again"))?;
    let is_same = || -> io::Result<()> {
        let (held, there) = (held.metadata()?, fs::metadata(&path)?);
        // Whoever replaced it meanwhile left the lock on a file that nobody finds any more.
        let is_held = (held.dev(), held.ino()) == (there.dev(), there.ino());
        if is_held && self::read(&path)?.bytes == read { Ok(()) } else { Err(changed()) }
    };
    is_same()?;
    remove_left_of(&path);
    write_whole(&path, FileReaders::Inherited, write, |new| is_same().and_then(|()| new.replace(&path)))
}

/// Whether a file can take this place: what is there may be replaced, and another can be made beside it. What is there tells too little: in some
/// places, such as below `/proc`, files are regular and no other can be made.
///
/// # Errors
/// What the system says.
pub fn check_replaceable(path: &Path, replaces: Replaces<'_>) -> io::Result<()> {
    let path = resolve_target(path)?;
    own::look(&path, replaces)?;
    NewFile::beside(&path, 0o600).map(drop)
}

/// The file that is meant, if it can be replaced.
fn resolve_target(path: &Path) -> io::Result<PathBuf> {
    if path.file_name().is_none() {
        return Err(io::Error::other("it is not the name of a file"));
    }
    if path == Path::new("-") {
        return Err(io::Error::other("`-` is not a file; --json prints to standard output"));
    }
    own::check_link_target(path)?;
    if path.is_symlink() && !path.exists() {
        return Err(io::Error::other("it is a link that leads nowhere"));
    }
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    if fs::metadata(&path).is_ok_and(|there| !there.is_file()) {
        return Err(io::Error::other("it is there and not a regular file"));
    }
    Ok(path)
}

/// Writes a file for `path`, whole and durable, and then has it take its `place`.
fn write_whole<T>(
    path: &Path,
    readers: FileReaders,
    write: impl FnOnce(&mut File) -> io::Result<T>,
    place: impl FnOnce(&mut NewFile) -> io::Result<()>,
) -> io::Result<T> {
    let mut new = NewFile::beside(path, if readers == FileReaders::Owner { 0o600 } else { 0o666 })?;
    if let Some(there) = fs::metadata(path).ok().filter(|_| readers == FileReaders::Inherited) {
        copy_owner_and_mode(&new.file, &there)?;
    }
    let value = write(&mut new.file)?;
    new.file.flush()?;
    new.file.sync_all()?;
    place(&mut new)?;
    // From here on the file is there, whatever a crash leaves of it.
    let unsure = |error| io::Error::other(format!("it is in place, but a crash may undo that: its directory cannot be synced ({error})"));
    sync_parent_directory(path).map_err(unsure)?;
    Ok(value)
}

/// Owner, group and mode of the file that was there. Only root may give a file away; for others the owner is who writes.
fn copy_owner_and_mode(file: &File, there: &fs::Metadata) -> io::Result<()> {
    let new = file.metadata()?;
    if (new.uid(), new.gid()) != (there.uid(), there.gid()) {
        let given = std::os::unix::fs::fchown(file, Some(there.uid()), Some(there.gid()));
        given.or_else(|error| if error.kind() == io::ErrorKind::PermissionDenied { Ok(()) } else { Err(error) })?;
    }
    file.set_permissions(there.permissions())
}

/// Writes a file that is not there yet, whole: its name is there once it is, and whoever takes it meanwhile is not written over.
///
/// # Errors
/// What the system says.
pub fn create<T>(path: &Path, write: impl FnOnce(&mut File) -> io::Result<T>) -> io::Result<T> {
    create_as(path, FileReaders::Inherited, write)
}

/// The same for what nobody else may read.
///
/// # Errors
/// What the system says.
pub fn create_private<T>(path: &Path, write: impl FnOnce(&mut File) -> io::Result<T>) -> io::Result<T> {
    create_as(path, FileReaders::Owner, write)
}

fn create_as<T>(path: &Path, readers: FileReaders, write: impl FnOnce(&mut File) -> io::Result<T>) -> io::Result<T> {
    remove_left_of(path);
    write_whole(path, readers, write, |new| new.take_name(path))
}

/// The same for one of many files in a directory that was tidied before ([`remove_stale_temporaries`]).
///
/// # Errors
/// What the system says.
pub fn create_in_tidied<T>(path: &Path, write: impl FnOnce(&mut File) -> io::Result<T>) -> io::Result<T> {
    write_whole(path, FileReaders::Inherited, write, |new| new.take_name(path))
}

/// The name of a file is durable once its directory is.
fn sync_parent_directory(path: &Path) -> io::Result<()> {
    File::open(new_file::room(path))?.sync_all()
}

/// Removes what writers that are no longer there left beside files in a directory and those below it, so many deep: they were killed between
/// writing a file and putting it into its place.
///
/// # Errors
/// What the system says.
pub fn remove_stale_temporaries(directory: &Path, rooms_max: usize) -> io::Result<()> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_dir() && rooms_max > 0 {
            remove_stale_temporaries(&entry.path(), rooms_max - 1)?;
        } else if kind.is_file() && is_left(&entry.file_name()) {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// Whether two paths are one file.
///
/// Standard input (`-`) is the file that it was redirected from, where it was.
pub fn are_same_file(left: &Path, right: &Path) -> bool {
    let right = if right == Path::new("-") { Path::new("/dev/stdin") } else { right };
    match (fs::canonicalize(left), fs::canonicalize(right)) {
        (Ok(left), Ok(right)) => left == right,
        _ => false,
    }
}

/// Whether a file is, or would be, somewhere in a directory.
pub fn is_under(path: &Path, directory: &Path) -> bool {
    let room = path.parent().filter(|room| !room.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let meant = fs::canonicalize(path).or_else(|_| fs::canonicalize(room));
    matches!((meant, fs::canonicalize(directory)), (Ok(meant), Ok(directory)) if meant.starts_with(&directory))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removes_only_temporaries_of_dead_processes() {
        let room = tempfile::tempdir().expect("a directory");
        let below = room.path().join("tile");
        fs::create_dir(&below).expect("made");
        // No process has so high a number; this one is at work.
        let (left, own) = ("000.4294967295.tmp", format!("001.{}.tmp", std::process::id()));
        let kept = ["checkpoint", "notes.tmp", ".tmp", "a.b.tmp", own.as_str()];
        for name in kept.iter().chain(&[left]) {
            fs::write(room.path().join(name), name).and_then(|()| fs::write(below.join(name), name)).expect("written");
        }
        remove_stale_temporaries(room.path(), 1).expect("it is tidied");
        for place in [room.path(), &below] {
            assert!(kept.iter().all(|name| place.join(name).exists()) && !place.join(left).exists(), "{}", place.display());
        }
        remove_stale_temporaries(&room.path().join("nowhere"), 1).expect("what is not there is tidy");
    }

    #[test]
    fn finds_an_unwritable_directory_before_writing() {
        let room = tempfile::tempdir().expect("a directory");
        let place = room.path().join("result.json");
        for _ in 0..2 {
            check_replaceable(&place, Replaces::Anything).expect("it can be written");
            assert!(fs::read_dir(room.path()).expect("read").all(|file| file.expect("read").path() == place), "nothing is left beside it");
            fs::write(&place, "old").expect("written");
        }
        assert_eq!(fs::read_to_string(&place).expect("read"), "old", "what is there is not touched");
        // Regular files for all that can be seen of them, also for root.
        for elsewhere in ["/proc/self/mem", "/proc/self/environ", "/proc/version"] {
            assert!(check_replaceable(Path::new(elsewhere), Replaces::Anything).is_err(), "{elsewhere}");
        }
        let is = |path: &Path| check_replaceable(path, Replaces::Anything);
        assert!(is(room.path()).is_err() && is(&room.path().join("none/result.json")).is_err());
    }

    #[test]
    fn failed_write_leaves_the_old_file_and_no_temporary() {
        let room = tempfile::tempdir().expect("a directory");
        let path = room.path().join("plan.json");
        fs::write(&path, "old").expect("written");
        let failed = replace(&path, Replaces::Anything, |file| {
            file.write_all(b"half")?;
            Err::<(), _>(io::Error::other("disk full"))
        });
        assert!(failed.is_err());
        assert_eq!(fs::read_to_string(&path).expect("read"), "old");
        assert_eq!(fs::read_dir(room.path()).expect("listed").count(), 1);
    }

    #[test]
    fn refuses_to_replace_a_file_that_changed_since_it_was_read() {
        let room = tempfile::tempdir().expect("a directory");
        let path = room.path().join("desired.yaml");
        let told = |failed: io::Result<()>| failed.expect_err("refused").to_string();
        fs::write(&path, "theirs").expect("written");
        assert!(told(replace_if_unchanged(&path, b"read", b"ours")).contains("somebody changed it"));
        let edited = replace_if_unchanged_with(&path, b"theirs", |file| fs::write(&path, "edited").and_then(|()| file.write_all(b"ours")));
        assert!(told(edited).contains("somebody changed it"));
        assert_eq!(fs::read_to_string(&path).expect("read"), "edited");
        let inside = replace_if_unchanged_with(&path, b"edited", |file| {
            assert!(told(replace_if_unchanged(&path, b"edited", b"second")).contains("another program is changing it"));
            file.write_all(b"first")
        });
        assert!(inside.is_ok(), "{inside:?}");
        assert_eq!(fs::read_to_string(&path).expect("read"), "first");
        assert_eq!(fs::read_dir(room.path()).expect("listed").count(), 1);
    }

    #[test]
    fn concurrent_replacements_lose_no_write() {
        let room = tempfile::tempdir().expect("a directory");
        let path = room.path().join("desired.yaml");
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
        let room = tempfile::tempdir().expect("a directory");
        let path = room.path().join("desired.yaml");
        fs::write(&path, "old").expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).expect("set");
        // Only root may give a file away: whoever else runs this sees that the own file stays the own.
        let _ = std::os::unix::fs::chown(&path, Some(12_345), Some(12_346));
        let before = fs::metadata(&path).expect("there");
        replace_if_unchanged(&path, b"old", b"new").expect("written");
        let after = fs::metadata(&path).expect("there");
        assert_ne!(before.ino(), after.ino());
        assert_eq!((before.mode(), before.uid(), before.gid()), (after.mode(), after.uid(), after.gid()));
    }

    #[test]
    fn new_file_appears_whole_and_replaces_none() {
        let room = tempfile::tempdir().expect("a directory");
        let path = room.path().join("desired.yaml");
        let created = create(&path, |file| {
            assert!(!path.exists(), "a crash here would leave it empty");
            file.write_all(b"whole")
        });
        assert!(created.is_ok(), "{created:?}");
        let second = create(&path, |file| file.write_all(b"other")).expect_err("it is there");
        assert_eq!(second.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read_to_string(&path).expect("read"), "whole");
        assert_eq!(fs::read_dir(room.path()).expect("listed").count(), 1);
    }

    #[test]
    fn refuses_to_read_a_pipe() {
        let room = tempfile::tempdir().expect("a directory");
        let pipe = room.path().join("pipe");
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
