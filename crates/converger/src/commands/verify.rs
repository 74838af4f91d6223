//! `converger verify`: whether a record is whole, and where it is not. Offline, from an export, a state directory, or a receipt alone.
//!
//! Nothing that is found is believed before it was checked: bytes by hashes, hashes by the signature, entries by the rules that the journal is
//! held to, and the journal by the entries.
//!
//! What never enters: mending. What is broken is evidence, and stays as it is.

mod database;
mod directory;
mod export;
mod heard;
mod receipt;

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;

use converger_core::failure::Code;
use converger_ledger::{BadCheckpoint, Checkpoint, Verifier};
use converger_runtime::{LedgerLocation, witness};
use serde_json::json;

use super::ledger::broken;
use super::{Stop, shown};
use crate::cli::Verifying;
use crate::exit::End;
use crate::render::{self, styled};
use crate::{files, output, screen};

pub(super) use export::Export;

/// What was found whole.
struct Whole {
    what: String,
    entries: u64,
    root: Option<String>,
    verifier: Option<Verifier>,
    /// Things that are named and no longer kept.
    gone: u64,
    /// What a person should know, though nothing is wrong.
    notes: Vec<String>,
    /// What a receipt proves, for programs.
    proven: Option<serde_json::Value>,
    /// Whether the key came with what it signs.
    is_key_unverified: bool,
}

const UNTRUSTED_KEY: &str = "the key is not verified: it was read from the export itself, and whoever made that could have made both; get the key from its source (`converger ledger key` prints it there), and verify again with `--key KEY`";

impl Whole {
    fn noting(mut self, note: &str) -> Self {
        self.notes.push(note.to_owned());
        self
    }
}

pub(super) fn verify(arguments: &Verifying) -> Result<End, Stop> {
    let found = checked(arguments);
    if let (Err(stop), true) = (&found, arguments.json)
        && stop.is_broken()
    {
        output::json(|out| writeln!(out, "{}", as_broken_json(stop))).map_err(|error| super::unshown(&error))?;
    }
    let whole = found?;
    let written = if arguments.json {
        output::json(|out| writeln!(out, "{}", as_json(&whole)))
    } else {
        write!(anstream::stdout(), "{}", screen::out(&text(&whole)))
    };
    shown(written, End::Done)
}

fn checked(arguments: &Verifying) -> Result<Whole, Stop> {
    let key = arguments.key.as_deref().map(verifier).transpose()?;
    if arguments.operation.is_some() && arguments.path.as_ref().is_none_or(|path| arguments.db || path.is_dir()) {
        let text = "--operation says what a receipt has to be about, and this is none";
        return Err(Stop::input(text)
            .help("name a receipt, as `converger ledger prove` writes it; `converger ops show` tells of an operation here"));
    }
    Ok(match &arguments.path {
        None => in_database(arguments, &LedgerLocation::from_config(arguments.config.as_deref())?, key)?,
        Some(path) if arguments.db => in_database(arguments, &LedgerLocation::from_directory(path), key)?,
        Some(path) if path.is_dir() => {
            let is_theirs = key.is_none();
            let key = key.map_or_else(|| directory::beside(path), Ok)?;
            let since = since(arguments)?;
            let whole = directory::verify(path, key, since.as_ref()).map_err(given)?;
            if is_theirs { Whole { is_key_unverified: true, ..whole }.noting(UNTRUSTED_KEY) } else { whole }
        }
        Some(_) if arguments.since.is_some() => {
            let text = "a receipt proves what is in it, and not what came before or after it: --since has no place there";
            return Err(Stop::input(text).help("check an export or a state directory with it"));
        }
        Some(path) => receipt::verify(path, key, arguments.operation.as_ref()).map_err(given)?,
    })
}

/// Whoever checks what was given to them has no state directory to look at.
fn given(stop: Stop) -> Stop {
    if stop.remedy() != Some(Code::IntegrityViolation.entry().remedy) {
        return stop;
    }
    stop.help("it is not what was signed: keep it as it is, get it once more from its source, and compare the key with the one that `converger ledger key` prints there")
}

/// A state directory, and the witness that keeps an eye on it.
fn in_database(arguments: &Verifying, shelf: &LedgerLocation, key: Option<Verifier>) -> Result<Whole, Stop> {
    shelf.must_be_there()?;
    if key.is_some() && arguments.since.is_none() {
        let text = "--key checks signatures, and nothing in a state directory is signed";
        let help = "give a checkpoint of it too that somebody kept (--since FILE), or check an export of it";
        return Err(Stop::input(text).help(help));
    }
    // Which key signed it is known once the entries were read.
    let since = since(arguments)?;
    let whole = shelf.read(|book| database::verify(book, key.as_ref(), since.as_ref()))?;
    witness::check_ledger(&shelf.directory, shelf.witness.as_deref())?;
    Ok(whole)
}

/// What was seen of a record before.
struct Since {
    /// The file that keeps it, for people.
    name: String,
    /// What it says, to be believed once it is known who signed it.
    checkpoint: Checkpoint,
    signed: Vec<u8>,
}

impl Since {
    fn is_signed_by(&self, key: &Verifier) -> Result<(), Stop> {
        Checkpoint::verify(&self.signed, key).map(drop).map_err(|error| no_checkpoint(&self.name, &error))
    }
}

fn since(arguments: &Verifying) -> Result<Option<Since>, Stop> {
    let Some(path) = &arguments.since else { return Ok(None) };
    let name = files::shown(path);
    let read = files::read(path).map_err(|error| Stop::input(format!("cannot read {name}: {error}")).code(Code::FileUnreadable))?;
    let checkpoint = Checkpoint::unverified(&read.bytes).map_err(|error| no_checkpoint(&name, &error))?;
    Ok(Some(Since { name, checkpoint, signed: read.bytes }))
}

fn no_checkpoint(name: &str, error: &BadCheckpoint) -> Stop {
    broken(format!("{name}: {error}")).help(
        "--since takes a checkpoint of this ledger that somebody kept, as `converger ledger checkpoint` prints it and as an export has it: \
         compare the file and the key with their source",
    )
}

fn verifier(text: &str) -> Result<Verifier, Stop> {
    // A key, or a file that has one.
    let read = || files::read(Path::new(text)).ok().and_then(|text| String::from_utf8(text.bytes).ok());
    let given = if text.contains('+') { text.to_owned() } else { read().unwrap_or_else(|| text.to_owned()) };
    Verifier::parse(&given)
        .map_err(|error| Stop::input(format!("--key: {error}")).help("`converger ledger key` prints it where the ledger is"))
}

fn text(whole: &Whole) -> String {
    let head = if whole.is_key_unverified {
        styled(render::YELLOW.bold(), "whole under an unverified key:")
    } else {
        styled(render::GREEN.bold(), "whole:")
    };
    let mut text = format!("{head} {}\n", whole.what);
    if let Some(root) = &whole.root {
        let _ = writeln!(text, "  {} {} entries, root {root}", styled(render::CYAN, "ledger"), whole.entries);
    }
    if let Some(verifier) = &whole.verifier {
        let _ = writeln!(text, "  {}    {}", styled(render::CYAN, "key"), files::plain(&verifier.to_string()));
    }
    if whole.gone > 0 {
        let _ = writeln!(text, "  {}   {} that a person let go, as entries say", styled(render::CYAN, "gone"), whole.gone);
    }
    for note in &whole.notes {
        let _ = writeln!(text, "  {}   {note}", styled(render::CYAN, "note"));
    }
    text
}

fn as_json(whole: &Whole) -> serde_json::Value {
    json!({
        "schema": "converger.verified/1", "whole": true, "what": whole.what, "entries": whole.entries, "root": whole.root,
        "key": whole.verifier.as_ref().map(ToString::to_string), "key_verified": !whole.is_key_unverified, "gone": whole.gone, "notes": whole.notes, "proven": whole.proven,
    })
}

/// What of it is broken, for programs; people are told the same on standard error.
fn as_broken_json(stop: &Stop) -> serde_json::Value {
    json!({ "schema": "converger.verified/1", "whole": false, "code": stop.code_word(), "index": stop.index(), "what": stop.sentence() })
}
