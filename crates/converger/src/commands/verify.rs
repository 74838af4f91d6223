//! `converger verify`: verifies an export, a state directory or a receipt offline, and reports the first fault.
//!
//! Bytes are checked by hashes, hashes by the signature, entries by the rules of the journal, and the journal by the entries. Nothing is repaired:
//! a broken record is evidence.

mod export;
mod export_files;
mod receipt;

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;

use converger_core::evidence::FIRST_EPOCH;
use converger_core::failure::FailureCode;
use converger_ledger::NoteVerifier;
use converger_runtime::entry_check::EarlierCheckpoint;
use converger_runtime::state_check::{CheckedState, check_state};
use converger_runtime::{LedgerLocation, LedgerReader, witness};
use serde_json::json;

use super::{CommandError, finish_output};
use crate::cli::VerifyArgs;
use crate::exit_status::ExitStatus;
use crate::render::{self, apply_style};
use crate::{files, line_wrap, output};

pub(super) use export::VerifiedExport;

/// The result of a successful verification.
struct VerifyReport {
    what: String,
    entries: u64,
    root: Option<String>,
    /// The epoch after the last entry; `None` for a receipt.
    epoch: Option<u64>,
    verifier: Option<NoteVerifier>,
    /// The number of pruned inputs.
    pruned: u64,
    /// Notes for people.
    notes: Vec<String>,
    /// What a receipt proves, as JSON.
    proven: Option<serde_json::Value>,
    /// Whether the key was read from the export itself.
    is_key_unverified: bool,
}

const UNTRUSTED_KEY: &str = "the key is not verified: it was read from the export itself, so a forger could have made both; get the key from the operator of the ledger (`converger ledger key` prints it), and verify again with `--key KEY`";

impl VerifyReport {
    fn with_note(mut self, note: &str) -> Self {
        self.notes.push(note.to_owned());
        self
    }
}

pub(super) fn verify(arguments: &VerifyArgs) -> Result<ExitStatus, CommandError> {
    let found = verify_target(arguments);
    if let (Err(stop), true) = (&found, arguments.json)
        && stop.is_broken()
    {
        output::print_json(|out| writeln!(out, "{}", broken_json(stop))).map_err(|error| super::output_error(&error))?;
    }
    let whole = found?;
    let written = if arguments.json {
        output::print_json(|out| writeln!(out, "{}", report_json(&whole)))
    } else {
        write!(anstream::stdout(), "{}", line_wrap::wrap_for_stdout(&render_report(&whole)))
    };
    finish_output(written, ExitStatus::Done)
}

fn verify_target(arguments: &VerifyArgs) -> Result<VerifyReport, CommandError> {
    let key = arguments.key.as_deref().map(parse_verifier).transpose()?;
    if arguments.operation.is_some() && arguments.path.as_ref().is_none_or(|path| arguments.db || path.is_dir()) {
        let text = "--operation is for receipts, and this is not one";
        return Err(CommandError::input_error(text)
            .with_help("name a receipt, as `converger ledger prove` writes it; `converger ops show` shows an operation of the journal"));
    }
    Ok(match &arguments.path {
        None => verify_state_directory(arguments, &LedgerLocation::from_config(arguments.config.as_deref())?, key)?,
        Some(path) if arguments.db => verify_state_directory(arguments, &LedgerLocation::from_directory(path), key)?,
        Some(path) if path.is_dir() => {
            let is_theirs = key.is_none();
            let key = key.map_or_else(|| export_files::key_beside_log(path), Ok)?;
            let since = read_earlier_checkpoint(arguments)?;
            let whole = export_files::verify(path, key, since.as_ref()).map_err(with_source_help)?;
            if is_theirs { VerifyReport { is_key_unverified: true, ..whole }.with_note(UNTRUSTED_KEY) } else { whole }
        }
        Some(_) if arguments.since.is_some() => {
            let text = "--since is for exports and state directories: a receipt proves only its own entries";
            return Err(CommandError::input_error(text).with_help("verify an export or a state directory with --since"));
        }
        Some(path) => receipt::verify(path, key, arguments.operation.as_ref()).map_err(with_source_help)?,
    })
}

/// The help for an export or receipt that is broken: its reader has no state directory.
fn with_source_help(stop: CommandError) -> CommandError {
    if stop.remedy() != Some(FailureCode::IntegrityViolation.entry().remedy) {
        return stop;
    }
    stop.with_help("it is not what was signed: keep it as evidence, get it again from its source, and compare the key with the one that `converger ledger key` prints there")
}

/// Verifies a state directory, and compares it with its witness.
fn verify_state_directory(
    arguments: &VerifyArgs,
    location: &LedgerLocation,
    key: Option<NoteVerifier>,
) -> Result<VerifyReport, CommandError> {
    location.check_exists()?;
    if key.is_some() && arguments.since.is_none() {
        let text = "--key is for signatures, and a state directory has none";
        let help = "add a checkpoint with --since FILE, or verify an export";
        return Err(CommandError::input_error(text).with_help(help));
    }
    // The entries say which key signed it.
    let since = read_earlier_checkpoint(arguments)?;
    let whole = location.read(|reader| Ok::<_, CommandError>(state_report(reader, check_state(reader, key.as_ref(), since.as_ref())?)))?;
    witness::check_ledger(&location.directory, location.witness.as_deref())?;
    Ok(whole)
}

fn state_report(reader: &LedgerReader, checked: CheckedState) -> VerifyReport {
    let CheckedState { entries, root, verifier, pruned, operations, epoch, notes, .. } = checked;
    let operations = render::count_with_noun(operations, "operation");
    VerifyReport {
        what: format!("{}, with a journal of {operations}", files::display_path(reader.directory())),
        entries,
        root: Some(root.to_string()),
        epoch: Some(epoch),
        verifier,
        pruned,
        notes,
        proven: None,
        is_key_unverified: false,
    }
}

fn read_earlier_checkpoint(arguments: &VerifyArgs) -> Result<Option<EarlierCheckpoint>, CommandError> {
    let Some(path) = &arguments.since else { return Ok(None) };
    let name = files::display_path(path);
    let read = files::read(path)
        .map_err(|error| CommandError::input_error(format!("cannot read {name}: {error}")).with_code(FailureCode::FileUnreadable))?;
    Ok(Some(EarlierCheckpoint::parse(name, read.bytes)?))
}

fn parse_verifier(text: &str) -> Result<NoteVerifier, CommandError> {
    // A key, or a file that contains one.
    let read = || files::read(Path::new(text)).ok().and_then(|text| String::from_utf8(text.bytes).ok());
    let key_text = if text.contains('+') { text.to_owned() } else { read().unwrap_or_else(|| text.to_owned()) };
    NoteVerifier::parse(&key_text).map_err(|error| {
        CommandError::input_error(format!("--key: {error}")).with_help("`converger ledger key` prints it on the machine of the ledger")
    })
}

fn render_report(whole: &VerifyReport) -> String {
    let head = if whole.is_key_unverified {
        apply_style(render::YELLOW.bold(), "intact under an unverified key:")
    } else {
        apply_style(render::GREEN.bold(), "intact:")
    };
    let mut text = format!("{head} {}\n", whole.what);
    if let Some(root) = &whole.root {
        let _ = writeln!(text, "  {} {} entries, root {root}", apply_style(render::CYAN, "ledger"), whole.entries);
    }
    if let Some(epoch) = whole.epoch.filter(|epoch| *epoch != FIRST_EPOCH) {
        let _ = writeln!(text, "  {}  {epoch}", apply_style(render::CYAN, "epoch"));
    }
    if let Some(verifier) = &whole.verifier {
        let _ = writeln!(text, "  {}    {}", apply_style(render::CYAN, "key"), files::escape_hidden(&verifier.to_string()));
    }
    if whole.pruned > 0 {
        let _ = writeln!(text, "  {} {} inputs, as entries record", apply_style(render::CYAN, "gone"), whole.pruned);
    }
    for note in &whole.notes {
        let _ = writeln!(text, "  {}   {note}", apply_style(render::CYAN, "note"));
    }
    text
}

fn report_json(whole: &VerifyReport) -> serde_json::Value {
    let what = anstream::adapter::strip_str(&whole.what).to_string();
    json!({
        "schema": "converger.verified/1", "whole": true, "what": what, "entries": whole.entries, "root": whole.root, "epoch": whole.epoch,
        "key": whole.verifier.as_ref().map(ToString::to_string), "key_verified": !whole.is_key_unverified, "gone": whole.pruned, "notes": whole.notes, "proven": whole.proven,
    })
}

/// The fault as JSON; the same is reported on standard error.
fn broken_json(stop: &CommandError) -> serde_json::Value {
    json!({ "schema": "converger.verified/1", "whole": false, "code": stop.code_word(), "index": stop.entry_index(), "what": stop.message_text() })
}
