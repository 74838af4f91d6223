//! A file that is written whole before it has its name.
//!
//! It has no name at all while it is written, where the file system can do that: a process that is killed leaves nothing behind. Where a file is
//! replaced, a second name exists between two system calls; the next write of the same file removes what a killed process left there.
//!
//! What never enters: what is written, and which file may be replaced.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, RenameFlags, linkat, openat, renameat_with};
use rustix::io::Errno;

/// A file that is not in its place yet.
pub(super) struct NewFile {
    pub(super) file: File,
    /// The name that it has in the meantime, which is removed unless the file takes its place.
    name: Option<PathBuf>,
}

impl NewFile {
    /// Makes one in the directory of `path`.
    pub(super) fn beside(path: &Path, mode: u32) -> io::Result<Self> {
        match Self::nameless(path, mode) {
            Some(file) => Ok(Self { file, name: None }),
            None => Self::named(path, mode),
        }
    }

    /// None: this file system makes only files with names, or there is no `/proc` to name one by.
    fn nameless(path: &Path, mode: u32) -> Option<File> {
        let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
        let file: File = openat(CWD, room(path), flags, Mode::from_raw_mode(mode)).ok()?.into();
        descriptor(&file).exists().then_some(file)
    }

    fn named(path: &Path, mode: u32) -> io::Result<Self> {
        let name = temporary(path);
        // Created anew: a link that somebody put under this name would be followed otherwise.
        let open = || File::options().write(true).create_new(true).mode(mode).open(&name);
        let file = match open() {
            // A process of the same number was killed: in a container all have the same.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => fs::remove_file(&name).and_then(|()| open())?,
            opened => opened?,
        };
        Ok(Self { file, name: Some(name) })
    }

    /// Takes a name that is free.
    ///
    /// # Errors
    /// `AlreadyExists`: it is not free, and what has it stays.
    pub(super) fn take_name(&mut self, path: &Path) -> io::Result<()> {
        let Some(name) = &self.name else { return self.link(path) };
        let renamed = match renameat_with(CWD, name, CWD, path, RenameFlags::NOREPLACE) {
            // Some network file systems cannot; a second name for the same file is as exclusive, and the first is removed on drop.
            Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => return fs::hard_link(name, path),
            renamed => renamed.map_err(io::Error::from),
        };
        self.in_place(renamed)
    }

    /// Takes the place of another file.
    pub(super) fn replace(&mut self, path: &Path) -> io::Result<()> {
        let name = match &self.name {
            Some(name) => name.clone(),
            None => {
                let name = temporary(path);
                match self.link(&name) {
                    Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                        fs::remove_file(&name)?;
                        self.link(&name)?;
                    }
                    linked => linked?,
                }
                self.name = Some(name.clone());
                name
            }
        };
        self.in_place(fs::rename(name, path))
    }

    fn in_place(&mut self, renamed: io::Result<()>) -> io::Result<()> {
        if renamed.is_ok() {
            self.name = None;
        }
        renamed
    }

    /// Gives a file without a name one that is free.
    fn link(&self, path: &Path) -> io::Result<()> {
        Ok(linkat(CWD, descriptor(&self.file), CWD, path, AtFlags::SYMLINK_FOLLOW)?)
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if let Some(name) = &self.name {
            // Only untidy where it cannot be removed.
            let _ = fs::remove_file(name);
        }
    }
}

fn descriptor(file: &File) -> PathBuf {
    format!("/proc/self/fd/{}", file.as_raw_fd()).into()
}

/// The directory that a file is in.
pub(super) fn room(path: &Path) -> &Path {
    path.parent().filter(|room| !room.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// The name that a file has before it takes its place.
fn temporary(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(format!(".{}.tmp", std::process::id()));
    path.with_file_name(name)
}

/// Removes what killed processes left while they wrote this file.
pub(super) fn remove_left_of(path: &Path) {
    // What cannot be read or removed is only untidy.
    let (Some(own), Ok(entries)) = (path.file_name(), fs::read_dir(room(path))) else { return };
    let is_of_path = |name: &OsStr| name.as_encoded_bytes().strip_prefix(own.as_encoded_bytes()).is_some_and(is_ending);
    let names = entries.flatten().map(|entry| entry.file_name()).filter(|name| is_of_path(name) && is_left(name));
    for name in names.collect::<Vec<_>>() {
        let _ = fs::remove_file(room(path).join(name));
    }
}

/// `.123.tmp`
fn is_ending(rest: &[u8]) -> bool {
    let number = rest.strip_prefix(b".").and_then(|rest| rest.strip_suffix(b".tmp"));
    number.is_some_and(|number| !number.is_empty() && number.iter().all(u8::is_ascii_digit))
}

/// Whether a file has a name that [`temporary`] gives, and no process has that number. One that has it by now may be another: then the file
/// stays, and is only untidy.
pub fn is_left(name: &OsStr) -> bool {
    let number = name.to_str().and_then(|name| name.strip_suffix(".tmp")?.rsplit_once('.')).map(|(_, number)| number);
    number.and_then(|number| number.parse::<u32>().ok()).is_some_and(|number| !Path::new(&format!("/proc/{number}")).exists())
}
