//! `--into`: the directory in which a lab keeps its certificate and leaves what leads to it.
//!
//! Nothing is written over that somebody else wrote or edited. What never enters here: what the files say.

use std::fs::{self, File, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use converger_core::artifact::Digest;
use converger_core::failure::FailureCode;
use converger_lab::server::LabCertificates;

use super::CommandError;
use crate::files::{self, OwnFile, Replaces};

/// Certificates and keys, kept for the next time. A directory that has it is a lab's.
const CERTIFICATE: &str = "lab.pem";
/// Leads this program to the lab.
const CONFIG: &str = "converger.toml";
/// The secret of the token.
pub(super) const SECRET: &str = "secret";
/// Leads any other program to the lab. It is there while the lab runs.
pub(super) const CARD: &str = "lab.json";
/// The certificate of the authority, for clients that check names.
pub(super) const AUTHORITY: &str = "ca.pem";

/// The first words of a converger.toml that a lab left. The digest behind them shows whether somebody edited it.
const CONFIG_MARKER: &str = "# Leads to a lab. `converger lab --into` replaces it until somebody edits it; ";

/// A directory of a lab, held for as long as it runs.
pub(super) struct LabDirectory {
    path: PathBuf,
    /// Locked: two labs would write over each other's files.
    _lock: File,
    config: ConfigHandling,
    /// A person said that files of others may be replaced.
    overwrite: bool,
}

/// What is done about converger.toml.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ConfigHandling {
    Write,
    /// Somebody made it their own.
    Keep,
}

impl LabDirectory {
    /// Makes the directory, or finds it as a lab left it.
    pub(super) fn claim(path: &Path, overwrite: bool) -> Result<Self, CommandError> {
        let made = fs::create_dir_all(path).map_err(|error| {
            CommandError::failure(format!("cannot make {}: {error}", files::display_path(path))).with_code(FailureCode::FileUnwritable)
        });
        made.map_err(with_other_directory_help)?;
        let config = if overwrite {
            ConfigHandling::Write
        } else {
            check_names_free(path)?;
            inspect_config(&path.join(CONFIG))?
        };
        let room = Self { path: path.to_owned(), _lock: lock_directory(path)?, config, overwrite };
        room.remove_card();
        Ok(room)
    }

    /// A certificate that is kept stays the same, so that a pin of it goes on to hold.
    pub(super) fn load_or_create_identity(
        &self,
        new: impl FnOnce() -> Result<LabCertificates, CommandError>,
    ) -> Result<LabCertificates, CommandError> {
        let path = self.path.join(CERTIFICATE);
        let name = files::display_path(&path);
        match fs::read_to_string(&path) {
            Ok(pem) if pem.is_empty() => {
                let identity = new()?;
                // Into the file that is locked, and not in its place.
                fs::write(&path, identity.pem()).map_err(|error| write_error(&path, &error))?;
                Ok(identity)
            }
            Ok(pem) => {
                let wrong = |error| CommandError::input_error(format!("{name}: {error}")).with_code(FailureCode::InputInvalid);
                LabCertificates::from_pem(&pem).map_err(|error| wrong(error).with_help("remove it to have a new one made"))
            }
            Err(error) => Err(read_error(&path, &error)),
        }
    }

    /// Writes converger.toml, unless somebody made it their own.
    pub(super) fn write_config(&self, text: &str) -> Result<(), CommandError> {
        match self.config {
            ConfigHandling::Keep => Ok(()),
            ConfigHandling::Write => self.write_private(CONFIG, &format!("{CONFIG_MARKER}{}\n{text}", Digest::of_bytes(text.as_bytes()))),
        }
    }

    /// What is left as it is, for people.
    pub(super) fn describe_kept_config(&self) -> Option<String> {
        let name = files::display_path(&self.path.join(CONFIG));
        (self.config == ConfigHandling::Keep).then(|| format!("{name}, because it was edited; remove it to have a new one"))
    }

    /// Writes a file that nobody else may read.
    pub(super) fn write_private(&self, name: &str, text: &str) -> Result<(), CommandError> {
        let path = self.path.join(name);
        // What of converger.toml may be replaced was found out when the directory was claimed.
        let own = if name == SECRET { Replaces::Own(OwnFile::LabSecret) } else { Replaces::Anything };
        files::replace_private(&path, self.replaces(&path, own, text), |file| file.write_all(text.as_bytes()))
            .map_err(|error| write_error(&path, &error))
    }

    /// Writes a file that anybody may read.
    pub(super) fn write_public(&self, name: &str, text: &str) -> Result<(), CommandError> {
        let path = self.path.join(name);
        // The authority is that of the certificate that is kept, and stays the same with it.
        let own = if name == CARD { Replaces::Own(OwnFile::LAB) } else { Replaces::Same(text.as_bytes()) };
        files::replace(&path, self.replaces(&path, own, text), |file| file.write_all(text.as_bytes()))
            .map_err(|error| write_error(&path, &error))
    }

    /// What a lab left, what it would write again, or anything with `--overwrite`.
    fn replaces<'t>(&self, path: &Path, own: Replaces<'t>, text: &'t str) -> Replaces<'t> {
        let is_same = || files::read_at_most(path, text.len()).is_ok_and(|there| there.bytes == text.as_bytes());
        if self.overwrite || is_same() { Replaces::Anything } else { own }
    }

    /// The lab is not there, and nobody is to look for it.
    pub(super) fn remove_card(&self) {
        let card = self.path.join(CARD);
        if self.overwrite || files::is_own(&card, OwnFile::LAB) {
            // Where it cannot be removed it is only old, and whoever asks at its address finds nobody.
            let _ = fs::remove_file(card);
        }
    }
}

/// In a directory that is no lab's, none of the names that a lab uses may be taken.
fn check_names_free(room: &Path) -> Result<(), CommandError> {
    let is_there = |name: &&str| room.join(name).symlink_metadata().is_ok();
    if is_there(&CERTIFICATE) {
        return Ok(());
    }
    [CONFIG, SECRET, AUTHORITY, CARD].into_iter().find(is_there).map_or(Ok(()), |name| Err(foreign_file_error(&room.join(name))))
}

/// Whether converger.toml is a lab's, and as the lab left it.
fn inspect_config(path: &Path) -> Result<ConfigHandling, CommandError> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(ConfigHandling::Write),
        Err(error) => return Err(read_error(path, &error)),
    };
    let (first, rest) = text.split_once('\n').unwrap_or((&text, ""));
    match first.strip_prefix(CONFIG_MARKER) {
        Some(digest) if digest == Digest::of_bytes(rest.as_bytes()).to_string() => Ok(ConfigHandling::Write),
        Some(_) => Ok(ConfigHandling::Keep),
        None => Err(foreign_file_error(path)),
    }
}

/// Holds the directory. The lock is on the certificate, because that file is never replaced.
fn lock_directory(room: &Path) -> Result<File, CommandError> {
    let path = room.join(CERTIFICATE);
    let open = File::options().read(true).write(true).create(true).truncate(false).mode(0o600).open(&path);
    let file = open.map_err(|error| write_error(&path, &error))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(with_other_directory_help(
            CommandError::failure(format!("another lab runs from {}", files::display_path(room))).with_code(FailureCode::LabUnserved),
        )),
        Err(TryLockError::Error(error)) => Err(write_error(&path, &error)),
    }
}

fn foreign_file_error(path: &Path) -> CommandError {
    let stop = CommandError::input_error(format!(
        "{} is there and was not left by a lab, so that it is not written over",
        files::display_path(path)
    ));
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
