//! `--into`: the directory in which a lab keeps its certificate and leaves what leads to it.
//!
//! Nothing is written over that somebody else wrote or edited. What never enters here: what the files say.

use std::fs::{self, File, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use converger_core::artifact::Digest;
use converger_core::failure::Code;
use converger_lab::server::Identity;

use super::Stop;
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
const MARK: &str = "# Leads to a lab. `converger lab --into` replaces it until somebody edits it; ";

/// A directory of a lab, held for as long as it runs.
pub(super) struct Room {
    path: PathBuf,
    /// Locked: two labs would write over each other's files.
    _lock: File,
    config: Config,
    /// A person said that files of others may be replaced.
    overwrite: bool,
}

/// What is done about converger.toml.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Config {
    Write,
    /// Somebody made it their own.
    Keep,
}

impl Room {
    /// Makes the directory, or finds it as a lab left it.
    pub(super) fn claim(path: &Path, overwrite: bool) -> Result<Self, Stop> {
        let made = fs::create_dir_all(path)
            .map_err(|error| Stop::failed(format!("cannot make {}: {error}", files::shown(path))).code(Code::FileUnwritable));
        made.map_err(elsewhere)?;
        let config = if overwrite {
            Config::Write
        } else {
            no_stranger(path)?;
            found(&path.join(CONFIG))?
        };
        let room = Self { path: path.to_owned(), _lock: lock(path)?, config, overwrite };
        room.is_over();
        Ok(room)
    }

    /// A certificate that is kept stays the same, so that a pin of it goes on to hold.
    pub(super) fn identity(&self, new: impl FnOnce() -> Result<Identity, Stop>) -> Result<Identity, Stop> {
        let path = self.path.join(CERTIFICATE);
        let name = files::shown(&path);
        match fs::read_to_string(&path) {
            Ok(pem) if pem.is_empty() => {
                let identity = new()?;
                // Into the file that is locked, and not in its place.
                fs::write(&path, identity.pem()).map_err(|error| unwritten(&path, &error))?;
                Ok(identity)
            }
            Ok(pem) => {
                let wrong = |error| Stop::input(format!("{name}: {error}")).code(Code::InputInvalid);
                Identity::from_pem(&pem).map_err(|error| wrong(error).help("remove it to have a new one made"))
            }
            Err(error) => Err(unread(&path, &error)),
        }
    }

    /// Writes converger.toml, unless somebody made it their own.
    pub(super) fn config(&self, text: &str) -> Result<(), Stop> {
        match self.config {
            Config::Keep => Ok(()),
            Config::Write => self.private(CONFIG, &format!("{MARK}{}\n{text}", Digest::of_bytes(text.as_bytes()))),
        }
    }

    /// What is left as it is, for people.
    pub(super) fn kept(&self) -> Option<String> {
        let name = files::shown(&self.path.join(CONFIG));
        (self.config == Config::Keep).then(|| format!("{name}, because it was edited; remove it to have a new one"))
    }

    /// Writes a file that nobody else may read.
    pub(super) fn private(&self, name: &str, text: &str) -> Result<(), Stop> {
        let path = self.path.join(name);
        // What of converger.toml may be replaced was found out when the directory was claimed.
        let own = if name == SECRET { Replaces::Own(OwnFile::LabSecret) } else { Replaces::Anything };
        files::replace_private(&path, self.replaces(&path, own, text), |file| file.write_all(text.as_bytes()))
            .map_err(|error| unwritten(&path, &error))
    }

    /// Writes a file that anybody may read.
    pub(super) fn public(&self, name: &str, text: &str) -> Result<(), Stop> {
        let path = self.path.join(name);
        // The authority is that of the certificate that is kept, and stays the same with it.
        let own = if name == CARD { Replaces::Own(OwnFile::LAB) } else { Replaces::Same(text.as_bytes()) };
        files::replace(&path, self.replaces(&path, own, text), |file| file.write_all(text.as_bytes()))
            .map_err(|error| unwritten(&path, &error))
    }

    /// What a lab left, what it would write again, or anything with `--overwrite`.
    fn replaces<'t>(&self, path: &Path, own: Replaces<'t>, text: &'t str) -> Replaces<'t> {
        let is_same = || files::read_at_most(path, text.len()).is_ok_and(|there| there.bytes == text.as_bytes());
        if self.overwrite || is_same() { Replaces::Anything } else { own }
    }

    /// The lab is not there, and nobody is to look for it.
    pub(super) fn is_over(&self) {
        let card = self.path.join(CARD);
        if self.overwrite || files::is_own(&card, OwnFile::LAB) {
            // Where it cannot be removed it is only old, and whoever asks at its address finds nobody.
            let _ = fs::remove_file(card);
        }
    }
}

/// In a directory that is no lab's, none of the names that a lab uses may be taken.
fn no_stranger(room: &Path) -> Result<(), Stop> {
    let is_there = |name: &&str| room.join(name).symlink_metadata().is_ok();
    if is_there(&CERTIFICATE) {
        return Ok(());
    }
    [CONFIG, SECRET, AUTHORITY, CARD].into_iter().find(is_there).map_or(Ok(()), |name| Err(foreign(&room.join(name))))
}

/// Whether converger.toml is a lab's, and as the lab left it.
fn found(path: &Path) -> Result<Config, Stop> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Config::Write),
        Err(error) => return Err(unread(path, &error)),
    };
    let (first, rest) = text.split_once('\n').unwrap_or((&text, ""));
    match first.strip_prefix(MARK) {
        Some(digest) if digest == Digest::of_bytes(rest.as_bytes()).to_string() => Ok(Config::Write),
        Some(_) => Ok(Config::Keep),
        None => Err(foreign(path)),
    }
}

/// Holds the directory. The lock is on the certificate, because that file is never replaced.
fn lock(room: &Path) -> Result<File, Stop> {
    let path = room.join(CERTIFICATE);
    let open = File::options().read(true).write(true).create(true).truncate(false).mode(0o600).open(&path);
    let file = open.map_err(|error| unwritten(&path, &error))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => {
            Err(elsewhere(Stop::failed(format!("another lab runs from {}", files::shown(room))).code(Code::LabUnserved)))
        }
        Err(TryLockError::Error(error)) => Err(unwritten(&path, &error)),
    }
}

fn foreign(path: &Path) -> Stop {
    let stop = Stop::input(format!("{} is there and was not left by a lab, so that it is not written over", files::shown(path)));
    stop.code(Code::FileTaken).help("name another directory with --into, or add `--overwrite` to replace it")
}

fn unwritten(path: &Path, error: &io::Error) -> Stop {
    if files::is_taken(error) {
        return foreign(path);
    }
    elsewhere(Stop::failed(format!("cannot write {}: {error}", files::shown(path))).code(Code::FileUnwritable))
}

fn unread(path: &Path, error: &io::Error) -> Stop {
    elsewhere(Stop::input(format!("cannot read {}: {error}", files::shown(path))).code(Code::FileUnreadable))
}

fn elsewhere(stop: Stop) -> Stop {
    stop.help("name another directory with --into")
}
