//! A file that is written completely before it gets its name.
//!
//! If the file system allows it, the file has no name while it is written, so that a killed process leaves nothing behind. A replacement has a second
//! name between two system calls; the next write of the same file removes what a killed process left.
//!
//! What is written, and which file may be replaced, is decided elsewhere.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, RenameFlags, linkat, openat, renameat_with};
use rustix::io::Errno;

/// A file that is not in place yet.
pub(super) struct NewFile {
    pub(super) file: File,
    /// Its temporary name, which is removed unless the file is moved into place.
    name: Option<PathBuf>,
}

impl NewFile {
    /// Creates a file in the directory of `path`.
    pub(super) fn beside(path: &Path, mode: u32) -> io::Result<Self> {
        match Self::open_unnamed(path, mode) {
            Some(file) => Ok(Self { file, name: None }),
            None => Self::open_temporary(path, mode),
        }
    }

    /// A file without a name; `None` if the file system cannot create one, or if there is no `/proc` to give it a name later.
    fn open_unnamed(path: &Path, mode: u32) -> Option<File> {
        let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
        let file: File = openat(CWD, parent_directory(path), flags, Mode::from_raw_mode(mode)).ok()?.into();
        descriptor(&file).exists().then_some(file)
    }

    /// A file with a temporary name.
    pub(super) fn open_temporary(path: &Path, mode: u32) -> io::Result<Self> {
        let name = temporary_name(path);
        // `create_new`: a link under this name must not be followed.
        let open = || File::options().write(true).create_new(true).mode(mode).open(&name);
        let file = match open() {
            // A process with the same id was killed: in a container ids repeat.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => fs::remove_file(&name).and_then(|()| open())?,
            opened => opened?,
        };
        Ok(Self { file, name: Some(name) })
    }

    /// The temporary name; empty if the file has none.
    pub(super) fn temporary_path(&self) -> PathBuf {
        self.name.clone().unwrap_or_default()
    }

    /// Gives the file its name.
    ///
    /// # Errors
    /// `AlreadyExists`: another file has the name, and keeps it.
    pub(super) fn take_name(&mut self, path: &Path) -> io::Result<()> {
        let Some(name) = &self.name else { return self.link(path) };
        let renamed = match renameat_with(CWD, name, CWD, path, RenameFlags::NOREPLACE) {
            // Some network file systems cannot rename so. A hard link is as exclusive; the temporary name is removed on drop.
            Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => return fs::hard_link(name, path),
            renamed => renamed.map_err(io::Error::from),
        };
        self.in_place(renamed)
    }

    /// Replaces another file.
    pub(super) fn replace(&mut self, path: &Path) -> io::Result<()> {
        let name = match &self.name {
            Some(name) => name.clone(),
            None => {
                let name = temporary_name(path);
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

    /// Gives a file without a name this one, if it is free.
    fn link(&self, path: &Path) -> io::Result<()> {
        Ok(linkat(CWD, descriptor(&self.file), CWD, path, AtFlags::SYMLINK_FOLLOW)?)
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if let Some(name) = &self.name {
            // A file that cannot be removed does no harm.
            let _ = fs::remove_file(name);
        }
    }
}

fn descriptor(file: &File) -> PathBuf {
    format!("/proc/self/fd/{}", file.as_raw_fd()).into()
}

/// The directory of a file.
pub(super) fn parent_directory(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// The temporary name of a file.
fn temporary_name(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(format!(".{}.tmp", std::process::id()));
    path.with_file_name(name)
}

/// Removes temporary files that killed processes left beside this file.
pub(super) fn remove_temporaries_of(path: &Path) {
    // A file that cannot be removed does no harm.
    let (Some(own), Ok(entries)) = (path.file_name(), fs::read_dir(parent_directory(path))) else { return };
    let is_of_path = |name: &OsStr| name.as_encoded_bytes().strip_prefix(own.as_encoded_bytes()).is_some_and(is_ending);
    let names = entries.flatten().map(|entry| entry.file_name()).filter(|name| is_of_path(name) && is_left(name));
    for name in names.collect::<Vec<_>>() {
        let _ = fs::remove_file(parent_directory(path).join(name));
    }
}

/// Whether this is the ending of a temporary name: `.123.tmp`.
fn is_ending(rest: &[u8]) -> bool {
    let number = rest.strip_prefix(b".").and_then(|rest| rest.strip_suffix(b".tmp"));
    number.is_some_and(|number| !number.is_empty() && number.iter().all(u8::is_ascii_digit))
}

/// Whether a file has a temporary name and no process has its id. If another process has the id by now, the file stays, which does no harm.
pub fn is_left(name: &OsStr) -> bool {
    let number = name.to_str().and_then(|name| name.strip_suffix(".tmp")?.rsplit_once('.')).map(|(_, number)| number);
    number.and_then(|number| number.parse::<u32>().ok()).is_some_and(|number| !Path::new(&format!("/proc/{number}")).exists())
}
