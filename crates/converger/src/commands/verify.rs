//! `converger verify`: whether a record is whole, and where it is not. Offline, from an export, a state directory, or a receipt alone.
//!
//! Nothing that is found is believed before it was checked: bytes by hashes, hashes by the signature, entries by the rules that the journal is
//! held to, and the journal by the entries.
//!
//! What never enters: mending. What is broken is evidence, and stays as it is.

mod database;
mod deep;
mod directory;

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use converger_core::failure::Code;
use converger_ledger::{Receipt, Verifier};
use serde_json::json;

use super::ledger::{Book, broken, line};
use super::{Stop, shown, spine, witness};
use crate::cli::Verifying;
use crate::exit::End;
use crate::render::{self, styled};
use crate::{config, files, output};

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
}

pub(super) fn verify(arguments: &Verifying) -> Result<End, Stop> {
    let key = arguments.key.as_deref().map(verifier).transpose()?;
    let whole = match &arguments.path {
        None => {
            let book = Book::open(arguments.config.as_deref())?;
            let whole = database::verify(&book, key)?;
            witness::guard(book.directory(), named_witness(arguments.config.as_deref())?.as_deref())?;
            whole
        }
        Some(path) if arguments.db => database::verify(&Book::at(path)?, key)?,
        Some(path) if path.is_dir() => directory::verify(path, key)?,
        Some(path) => receipt(path, key)?,
    };
    let written = if arguments.json {
        output::json(|out| writeln!(out, "{}", as_json(&whole)))
    } else {
        write!(anstream::stdout(), "{}", text(&whole))
    };
    shown(written, End::Done)
}

/// The witness that converger.toml names.
fn named_witness(config: Option<&Path>) -> Result<Option<PathBuf>, Stop> {
    let survey = config::path(config).map(|_| config::survey(config).map_err(spine::misconfigured)).transpose()?;
    Ok(survey.and_then(|survey| survey.witness))
}

fn verifier(text: &str) -> Result<Verifier, Stop> {
    // A key, or a file that has one.
    let read = || files::read(Path::new(text)).ok().and_then(|text| String::from_utf8(text.bytes).ok());
    let given = if text.contains('+') { text.to_owned() } else { read().unwrap_or_else(|| text.to_owned()) };
    Verifier::parse(&given).map_err(|error| {
        Stop::input(format!("--key: {error}")).code(Code::UsageWrong).help("`converger ledger key` prints it where the ledger is")
    })
}

fn text(whole: &Whole) -> String {
    let mut text = format!("{} {}\n", styled(render::GREEN.bold(), "whole:"), whole.what);
    if let Some(root) = &whole.root {
        let _ = writeln!(text, "  {} {} entries, root {root}", styled(render::CYAN, "ledger"), whole.entries);
    }
    if let Some(verifier) = &whole.verifier {
        let _ = writeln!(text, "  {}    {verifier}", styled(render::CYAN, "key"));
    }
    if whole.gone > 0 {
        let _ = writeln!(text, "  {}   {} named by entries and no longer kept", styled(render::CYAN, "gone"), whole.gone);
    }
    for note in &whole.notes {
        let _ = writeln!(text, "  {}   {note}", styled(render::CYAN, "note"));
    }
    text
}

fn as_json(whole: &Whole) -> serde_json::Value {
    json!({
        "schema": "converger.verified/1", "whole": true, "what": whole.what, "entries": whole.entries, "root": whole.root,
        "key": whole.verifier.as_ref().map(ToString::to_string), "gone": whole.gone, "notes": whole.notes,
    })
}

/// A receipt is checked alone: with the key, and with nothing else.
fn receipt(path: &Path, key: Option<Verifier>) -> Result<Whole, Stop> {
    let name = files::shown(path);
    let read = files::read(path).map_err(|error| Stop::input(format!("cannot read {name}: {error}")).code(Code::FileUnreadable))?;
    let text = String::from_utf8(read.bytes).map_err(|_| broken(format!("{name} is no receipt: it is not text")))?;
    let receipt = Receipt::parse(&text).map_err(|error| broken(format!("{name}: {error}")))?;
    let key = key.ok_or_else(|| {
        Stop::input("a receipt is checked with the key of its ledger")
            .code(Code::UsageWrong)
            .help("--key KEY, as `converger ledger key` prints it where the ledger is")
    })?;
    let checkpoint = receipt.verify(&key).map_err(|error| broken(format!("{name} proves nothing: {error}")))?;
    let entry = converger_core::evidence::parse_entry(&receipt.entry)
        .map_err(|error| broken(format!("{name}: its entry is none that this program writes: {error}")))?;
    Ok(Whole {
        what: format!("{name} proves entry {} of {}\n{}", receipt.index, checkpoint.origin, line(receipt.index, &entry).trim_end()),
        entries: checkpoint.size,
        root: Some(checkpoint.root.to_string()),
        verifier: Some(key),
        gone: 0,
        notes: Vec::new(),
    })
}

/// Something is not logged, or logged and not there.
fn unlogged(what: impl Into<String>) -> Stop {
    Stop::broken(Code::UnloggedExecution, what)
}
