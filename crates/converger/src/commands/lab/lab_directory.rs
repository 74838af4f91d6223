//! `--into`: the directory with the certificate of a lab and the files that describe how to reach it.
//!
//! Files that a lab did not write, or that were edited, are not replaced.

use std::fs::{self, File, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use converger_core::artifact::Digest;
use converger_core::failure::FailureCode;
use converger_lab::server::LabCertificates;

use super::CommandError;
use crate::files::{self, OwnFile, Replaces};

/// Certificates and keys, kept for the next start. A directory with this file belongs to a lab.
const CERTIFICATE: &str = "lab.pem";
/// The configuration of this program for the lab.
const CONFIG: &str = "converger.toml";
/// The secret of the token.
pub(super) const SECRET: &str = "secret";
/// Describes the lab for other programs. It exists while the lab runs.
pub(super) const CARD: &str = "lab.json";
/// The certificate of the authority, for clients that check names.
pub(super) const AUTHORITY: &str = "ca.pem";

/// The first words of a converger.toml that a lab wrote. The digest after them shows whether it was edited.
const CONFIG_MARKER: &str = "# Points to a lab. `converger lab --into` rewrites this file unless it has been edited; ";
/// The same in files of earlier versions.
const EARLIER_CONFIG_MARKER: &str = "# Leads to a lab. `converger lab --into` replaces it until somebody edits it; ";

/// The rest of the first line of a converger.toml that a lab wrote.
fn strip_marker(first_line: &str) -> Option<&str> {
    [CONFIG_MARKER, EARLIER_CONFIG_MARKER].into_iter().find_map(|marker| first_line.strip_prefix(marker))
}

/// Whether a lab wrote this converger.toml, edited since or not.
pub(in super::super) fn is_lab_config(path: &Path) -> bool {
    fs::read_to_string(path).is_ok_and(|text| text.lines().next().and_then(strip_marker).is_some())
}

/// The directory of a lab, locked while the lab runs.
pub(super) struct LabDirectory {
    path: PathBuf,
    /// Locked, because two labs would replace each other's files.
    _lock: File,
    config: ConfigHandling,
    /// Whether files of others may be replaced (`--overwrite`).
    overwrite: bool,
}

/// What to do with converger.toml.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ConfigHandling {
    Write,
    /// It was edited.
    Keep,
}

impl LabDirectory {
    /// Creates the directory, or opens that of an earlier lab.
    pub(super) fn claim(path: &Path, overwrite: bool) -> Result<Self, CommandError> {
        let created = fs::create_dir_all(path).map_err(|error| {
            CommandError::failure(format!("cannot create {}: {error}", files::display_path(path))).with_code(FailureCode::FileUnwritable)
        });
        created.map_err(with_other_directory_help)?;
        let config = if overwrite {
            ConfigHandling::Write
        } else {
            check_names_free(path)?;
            inspect_config(&path.join(CONFIG))?
        };
        let directory = Self { path: path.to_owned(), _lock: lock_directory(path)?, config, overwrite };
        directory.remove_card();
        Ok(directory)
    }

    /// An existing certificate is used again, so that its fingerprint stays valid.
    pub(super) fn load_or_create_identity(
        &self,
        new: impl FnOnce() -> Result<LabCertificates, CommandError>,
    ) -> Result<LabCertificates, CommandError> {
        let path = self.path.join(CERTIFICATE);
        let name = files::display_path(&path);
        match fs::read_to_string(&path) {
            Ok(pem) if pem.is_empty() => {
                let identity = new()?;
                // Into the locked file, which must not be replaced.
                fs::write(&path, identity.pem()).map_err(|error| write_error(&path, &error))?;
                Ok(identity)
            }
            Ok(pem) => {
                let wrong = |error| CommandError::input_error(format!("{name}: {error}")).with_code(FailureCode::InputInvalid);
                LabCertificates::from_pem(&pem).map_err(|error| wrong(error).with_help("remove it to create a new one"))
            }
            Err(error) => Err(read_error(&path, &error)),
        }
    }

    /// Writes converger.toml, unless it was edited.
    pub(super) fn write_config(&self, text: &str) -> Result<(), CommandError> {
        match self.config {
            ConfigHandling::Keep => Ok(()),
            ConfigHandling::Write => self.write_private(CONFIG, &format!("{CONFIG_MARKER}{}\n{text}", Digest::of_bytes(text.as_bytes()))),
        }
    }

    /// The file that is not replaced, for people.
    pub(super) fn describe_kept_config(&self) -> Option<String> {
        let name = files::display_path(&self.path.join(CONFIG));
        (self.config == ConfigHandling::Keep).then(|| format!("{name}, because it was edited; remove it to create a new one"))
    }

    /// Writes a file that only this user may read.
    pub(super) fn write_private(&self, name: &str, text: &str) -> Result<(), CommandError> {
        let path = self.path.join(name);
        // Whether converger.toml may be replaced was decided when the directory was locked.
        let own = if name == SECRET { Replaces::Own(OwnFile::LabSecret) } else { Replaces::Anything };
        files::replace_private(&path, self.replaces(&path, own, text), |file| file.write_all(text.as_bytes()))
            .map_err(|error| write_error(&path, &error))
    }

    /// Writes a file that every user may read.
    pub(super) fn write_public(&self, name: &str, text: &str) -> Result<(), CommandError> {
        let path = self.path.join(name);
        // The authority belongs to the certificate and stays the same with it.
        let own = if name == CARD { Replaces::Own(OwnFile::LAB) } else { Replaces::Same(text.as_bytes()) };
        files::replace(&path, self.replaces(&path, own, text), |file| file.write_all(text.as_bytes()))
            .map_err(|error| write_error(&path, &error))
    }

    /// Replaces a file of an earlier lab, an identical file, or anything with `--overwrite`.
    fn replaces<'t>(&self, path: &Path, own: Replaces<'t>, text: &'t str) -> Replaces<'t> {
        let is_same = || files::read_at_most(path, text.len()).is_ok_and(|existing| existing.bytes == text.as_bytes());
        if self.overwrite || is_same() { Replaces::Anything } else { own }
    }

    /// Removes lab.json, because the lab does not run.
    pub(super) fn remove_card(&self) {
        let card_path = self.path.join(CARD);
        if self.overwrite || files::is_own(&card_path, OwnFile::LAB) {
            // If it cannot be removed, it is out of date and its address does not respond.
            let _ = fs::remove_file(card_path);
        }
    }
}

/// In a directory of no lab, none of the files that a lab writes may exist.
fn check_names_free(directory: &Path) -> Result<(), CommandError> {
    let is_there = |name: &&str| directory.join(name).symlink_metadata().is_ok();
    if is_there(&CERTIFICATE) {
        return Ok(());
    }
    [CONFIG, SECRET, AUTHORITY, CARD].into_iter().find(is_there).map_or(Ok(()), |name| Err(foreign_file_error(&directory.join(name))))
}

/// Whether a lab wrote converger.toml, and whether it was edited since.
fn inspect_config(path: &Path) -> Result<ConfigHandling, CommandError> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(ConfigHandling::Write),
        Err(error) => return Err(read_error(path, &error)),
    };
    let (first, rest) = text.split_once('\n').unwrap_or((&text, ""));
    match strip_marker(first) {
        Some(digest) if digest == Digest::of_bytes(rest.as_bytes()).to_string() => Ok(ConfigHandling::Write),
        Some(_) => Ok(ConfigHandling::Keep),
        None => Err(foreign_file_error(path)),
    }
}

/// Locks the directory, by its certificate, because that file is never replaced.
fn lock_directory(directory: &Path) -> Result<File, CommandError> {
    let path = directory.join(CERTIFICATE);
    let open = File::options().read(true).write(true).create(true).truncate(false).mode(0o600).open(&path);
    let file = open.map_err(|error| write_error(&path, &error))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(with_other_directory_help(
            CommandError::failure(format!("another lab runs from {}", files::display_path(directory))).with_code(FailureCode::LabUnserved),
        )),
        Err(TryLockError::Error(error)) => Err(write_error(&path, &error)),
    }
}

fn foreign_file_error(path: &Path) -> CommandError {
    let stop = CommandError::input_error(format!("{} exists and was not written by a lab; it is not replaced", files::display_path(path)));
    stop.with_code(FailureCode::FileTaken).with_help("name another directory with --into, or add `--overwrite` to replace it")
}

fn write_error(path: &Path, error: &io::Error) -> CommandError {
    if files::is_taken(error) {
        return foreign_file_error(path);
    }
    with_other_directory_help(
        CommandError::failure(format!("cannot write {}: {error}", files::display_path(path))).with_code(FailureCode::FileUnwritable),
    )
}

fn read_error(path: &Path, error: &io::Error) -> CommandError {
    with_other_directory_help(
        CommandError::input_error(format!("cannot read {}: {error}", files::display_path(path))).with_code(FailureCode::FileUnreadable),
    )
}

fn with_other_directory_help(stop: CommandError) -> CommandError {
    stop.with_help("name another directory with --into")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recognises_a_configuration_of_an_earlier_version_unless_it_was_edited() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join(CONFIG);
        for marker in [CONFIG_MARKER, EARLIER_CONFIG_MARKER] {
            let text = format!("{marker}{}\nx = 1\n", Digest::of_bytes(b"x = 1\n"));
            fs::write(&path, &text).expect("written");
            assert!(inspect_config(&path).is_ok_and(|handling| handling == ConfigHandling::Write) && is_lab_config(&path));
            fs::write(&path, format!("{text}y = 2\n")).expect("written");
            assert!(inspect_config(&path).is_ok_and(|handling| handling == ConfigHandling::Keep) && is_lab_config(&path));
        }
        fs::write(&path, "x = 1\n").expect("written");
        assert!(inspect_config(&path).is_err() && !is_lab_config(&path));
    }
}
