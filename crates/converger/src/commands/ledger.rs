//! `converger ledger`: shows entries, and writes checkpoints, exports and receipts that others can verify.
//!
//! Entries are not written here: each is committed together with the change that it records.

mod entry_lines;
mod export;
mod prove;
mod prune;
mod rekey;
mod time_argument;

use std::collections::VecDeque;
use std::io::{self, Write as _};
use std::path::Path;

use converger_core::document::is_invisible;
use converger_core::evidence::{EntryFilter, EntryQuery, LedgerEntry, write_entry};
use converger_core::failure::FailureCode;
use converger_ledger::{Checkpoint, NoteSigner};
use converger_runtime::ledger_reader::{self, entry_out_of_range_error, parse_entry_at};
use converger_runtime::state_dir::run_blocking;
use converger_runtime::{Author, ConfigSource, LedgerLocation, StateDirectory, StateLocation, ledger_key, witness};
use converger_store::StoreError;
use converger_store::StoreReader as _;
use serde_json::{Value as Json, json};

use super::verify::VerifiedExport;
use super::{CommandError, finish_output, holds};
use crate::cli::{ExportArgs, LedgerArgs, LedgerCommand, LedgerSourceArgs, ProveArgs, ResyncArgs, ShowEntryArgs, TailArgs};
use crate::exit_status::ExitStatus;
use crate::files::{OwnFile, Replaces};
use crate::{fatal, files, host, line_wrap, output};

pub(super) use entry_lines::render_entry;
pub(super) use export::blob_path;

/// The stored bytes are not the recorded ones.
pub(super) fn broken(what: impl Into<String>) -> CommandError {
    ledger_reader::integrity_error(what).into()
}

/// The store cannot be read, or is damaged.
pub(super) fn damaged(error: &StoreError) -> CommandError {
    ledger_reader::ledger_store_error(error).into()
}

pub(super) async fn run_ledger(ledger: &LedgerCommand) -> Result<ExitStatus, CommandError> {
    match ledger {
        LedgerCommand::Tail(tailing) => show_tail(tailing),
        LedgerCommand::Show(showing) => show_entry(showing),
        LedgerCommand::Checkpoint(arguments) => print_checkpoint(arguments).await,
        LedgerCommand::Key(arguments) => print_key(arguments).await,
        LedgerCommand::Export(exporting) => run_export(exporting).await,
        LedgerCommand::Prove(prove_arguments) => run_prove(prove_arguments).await,
        LedgerCommand::Resync(resyncing) => run_resync(resyncing).await,
        LedgerCommand::Rekey(rekeying) => rekey::rekey(rekeying).await,
        LedgerCommand::Prune(pruning) => prune::run_prune(pruning).await,
    }
}

fn show_tail(tailing: &TailArgs) -> Result<ExitStatus, CommandError> {
    let mut out = String::new();
    for (index, bytes) in last_entries(tailing)? {
        let text =
            if tailing.json { format!("{}\n", entry_json(index, &bytes)?) } else { render_entry(index, &parse_entry_at(index, &bytes)?) };
        out.push_str(&text);
    }
    let text = if out.is_empty() && !tailing.json { "no entries\n".to_owned() } else { out };
    let written = if tailing.json {
        output::print_json(|to| write!(to, "{text}"))
    } else {
        write!(anstream::stdout(), "{}", line_wrap::wrap_for_stdout(&text))
    };
    finish_output(written, ExitStatus::Done)
}

/// Stored entries with their indices.
type StoredEntries = Vec<(u64, Vec<u8>)>;

/// The last entries that match.
fn last_entries(tailing: &TailArgs) -> Result<StoredEntries, CommandError> {
    let TailArgs { source, count, .. } = tailing;
    let (wanted, count) = (entry_query(tailing)?, *count as usize);
    if let Some(path) = &source.copy.from {
        let mut filter = EntryFilter::new(wanted);
        let mut last = read_export(path, source, |_, entry| filter.accepts(entry))?.1;
        return Ok(last.split_off(last.len().saturating_sub(count)));
    }
    ledger_location(source)?.read(|reader| {
        let (size, mut last, mut filter) = (reader.heads()?.all.size, VecDeque::new(), EntryFilter::new(wanted.clone()));
        // Without a filter, earlier entries need not be read.
        let first = if wanted.is_all() { size.saturating_sub(count as u64) } else { 0 };
        reader.for_each_entry::<CommandError>(first, size, |index, bytes| {
            if wanted.is_all() || filter.accepts(&reader.parse_entry(index, bytes)?) {
                last.push_back((index, bytes.to_vec()));
            }
            if last.len() > count {
                last.pop_front();
            }
            Ok(())
        })?;
        Ok(last.into())
    })
}

/// The filter of the arguments.
fn entry_query(TailArgs { run, guest, kind, since, .. }: &TailArgs) -> Result<EntryQuery, CommandError> {
    let since_ms = since.as_deref().map(|since| time_argument::parse_time_ms("--since", since, host::now_ms())).transpose()?;
    Ok(EntryQuery { run: run.clone(), guest: *guest, kind: kind.as_deref().map(Into::into), since_ms })
}

/// The state directory to read.
fn ledger_location(source: &LedgerSourceArgs) -> Result<LedgerLocation, CommandError> {
    match &source.copy.db {
        Some(directory) => Ok(LedgerLocation::from_directory(directory)),
        None => Ok(LedgerLocation::from_config(source.config.as_deref())?),
    }
}

/// One stored entry.
fn read_entry(source: &LedgerSourceArgs, index: u64) -> Result<Vec<u8>, CommandError> {
    let Some(path) = &source.copy.from else { return Ok(ledger_location(source)?.read(|reader| reader.read_entry(index))?) };
    let (size, found) = read_export(path, source, |own, _| own == index)?;
    found.into_iter().next().map(|(_, bytes)| bytes).ok_or_else(|| entry_out_of_range_error(index, size).into())
}

/// The number of entries of a verified export, and those that match.
fn read_export(
    path: &Path,
    source: &LedgerSourceArgs,
    mut is_meant: impl FnMut(u64, &LedgerEntry) -> bool,
) -> Result<(u64, StoredEntries), CommandError> {
    let (mut size, mut entries, mut unwritten) = (0, Vec::new(), None);
    let export = VerifiedExport::open(path, source.copy.key.as_deref(), |index, entry| {
        size = index + 1;
        if is_meant(index, &entry) {
            match write_entry(&entry) {
                Ok(bytes) => entries.push((index, bytes)),
                Err(error) => unwritten = Some(error),
            }
        }
    })?;
    export.print_note();
    match unwritten {
        Some(error) => Err(CommandError::failure(format!("cannot encode an entry: {error}"))),
        None => Ok((size, entries)),
    }
}

/// A stored entry with its index, as JSON.
pub(super) fn entry_json(index: u64, entry: &[u8]) -> Result<Json, CommandError> {
    let entry: Json = serde_json::from_slice(entry).map_err(|error| broken(format!("entry {index} is not JSON: {error}")))?;
    Ok(json!({ "index": index, "entry": entry }))
}

fn show_entry(showing: &ShowEntryArgs) -> Result<ExitStatus, CommandError> {
    let bytes = read_entry(&showing.source, showing.index)?;
    let (json, line) = (entry_json(showing.index, &bytes)?, render_entry(showing.index, &parse_entry_at(showing.index, &bytes)?));
    let written = if showing.json {
        output::print_json(|out| writeln!(out, "{json}"))
    } else {
        writeln!(anstream::stdout(), "{line}{}", escape_json(&json["entry"]))
    };
    finish_output(written, ExitStatus::Done)
}

/// Indented JSON without characters that act on a terminal or are invisible; it is equivalent JSON.
fn escape_json(json: &Json) -> String {
    let escaped = |character: char| {
        let is_plain = character == '\n' || !is_invisible(character);
        if is_plain {
            character.to_string()
        } else {
            character.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}")).collect()
        }
    };
    format!("{json:#}").chars().map(escaped).collect()
}

pub(super) fn state_location(location: &LedgerLocation) -> StateLocation {
    StateLocation { directory: location.directory.clone(), witness: location.witness.clone() }
}

/// Opens the state directory of a ledger for writing.
pub(super) async fn open_state(location: &LedgerLocation) -> Result<StateDirectory, CommandError> {
    Ok(StateDirectory::open(&state_location(location), fatal::end_process()).await?)
}

/// A ledger with a fresh checkpoint.
struct SignedLedger {
    location: LedgerLocation,
    signer: NoteSigner,
    checkpoint: Checkpoint,
    /// The signed text of the checkpoint.
    text: String,
}

/// Signs the durable entries only, so that no signed entry can be lost. The open store knows which ones are durable; the file may have more
/// entries than the disk.
async fn sign_ledger(config: &ConfigSource) -> Result<SignedLedger, CommandError> {
    let location = LedgerLocation::from_source(config)?;
    // A missing ledger is not created, and nothing is written if the witness has seen another one.
    location.check_exists()?;
    let state = open_state(&location).await?;
    let signer = {
        let state = state.clone();
        run_blocking(move || ledger_key::load_or_create_signer(&state)).await?
    };
    // The key may have been recorded just now; the witness must know that entry.
    state.attest_ledger().await?;
    let head = state.store().heads().await.map_err(|error| damaged(&error))?.durable;
    // The root is recomputed from the entries, because a signature cannot be withdrawn.
    location.read(|reader| reader.check_root(head))?;
    let checkpoint = Checkpoint { origin: signer.verifier().name().to_owned(), size: head.size, root: head.root };
    let text = checkpoint.sign(&signer);
    Ok(SignedLedger { location, signer, checkpoint, text })
}

async fn print_checkpoint(arguments: &LedgerArgs) -> Result<ExitStatus, CommandError> {
    let signed = sign_ledger(&ConfigSource::read(arguments.config.as_deref())).await?;
    finish_output(write!(io::stdout(), "{}", signed.text), ExitStatus::Done)
}

async fn print_key(arguments: &LedgerArgs) -> Result<ExitStatus, CommandError> {
    let signed = sign_ledger(&ConfigSource::read(arguments.config.as_deref())).await?;
    finish_output(writeln!(io::stdout(), "{}", signed.signer.verifier()), ExitStatus::Done)
}

async fn run_export(exporting: &ExportArgs) -> Result<ExitStatus, CommandError> {
    let config = ConfigSource::read(exporting.ledger.config.as_deref());
    let signed = sign_ledger(&config).await?;
    let exported =
        match signed.location.read(|reader| export::write_export(reader, &signed, &exporting.directory, exporting.overwrite.overwrite))? {
            Some(exported) => exported,
            // An observation was pruned after the checkpoint was signed. Sign again, so that the entry about the pruning is included.
            None => {
                let signed = sign_ledger(&config).await?;
                let missing_evidence = || {
                    CommandError::evidence_error(
                        FailureCode::EvidenceMissing,
                        "an input that an entry names is missing, and no entry says that it was pruned",
                    )
                };
                signed
                    .location
                    .read(|reader| export::write_export(reader, &signed, &exporting.directory, exporting.overwrite.overwrite))?
                    .ok_or_else(missing_evidence)?
            }
        };
    let directory = files::display_path(&exporting.directory);
    let text = format!(
        "exported {} entries and {} other files to {directory}; `converger verify {directory}` verifies them on any machine\n",
        exported.entries, exported.blobs
    );
    finish_output(write!(anstream::stdout(), "{text}"), ExitStatus::Done)
}

async fn run_resync(resyncing: &ResyncArgs) -> Result<ExitStatus, CommandError> {
    let reason = holds::check_reason(&resyncing.reason, "why")?;
    let location = LedgerLocation::from_config(resyncing.ledger.config.as_deref())?;
    let witness = location.witness.as_deref().ok_or_else(|| {
        let config = resyncing.ledger.config.as_deref().map_or("converger.toml".to_owned(), files::display_path);
        CommandError::input_error(format!("{config} names no witness, so there is nothing to resync with"))
            .with_help(format!("name one with `witness = \"/other/storage/converger.checkpoint\"` in `[ledger]` of {config}"))
    })?;
    witness::check_separate(&location.directory, witness)?;
    location.check_exists()?;
    let size = {
        let (state, witness) = (StateDirectory::open_unwitnessed(&state_location(&location), fatal::end_process())?, witness.to_owned());
        run_blocking(move || witness::resync(&state, &witness, reason, Author::of_process())).await?
    };
    let directory = files::display_path(&location.directory);
    let text = format!(
        "{directory} is in service again; of the {size} entries that the witness had seen, those that are missing here stay lost\n"
    );
    finish_output(write!(anstream::stdout(), "{text}"), ExitStatus::Done)
}

async fn run_prove(arguments: &ProveArgs) -> Result<ExitStatus, CommandError> {
    let replaces = Replaces::own(OwnFile::Receipt, arguments.overwrite.overwrite);
    let config = ConfigSource::read(arguments.ledger.config.as_deref());
    if let Some(path) = &arguments.out {
        super::check_output_is_no_state(path, &config)?;
        super::check_output_replaceable(path, replaces)?;
    }
    let signed = sign_ledger(&config).await?;
    let (what, receipt) = signed.location.read(|reader| prove::prove(reader, &signed, &arguments.what))?;
    match &arguments.out {
        None => finish_output(write!(io::stdout(), "{receipt}"), ExitStatus::Done),
        Some(path) => {
            files::replace(path, replaces, |file| file.write_all(receipt.as_bytes())).map_err(|error| super::write_error(path, &error))?;
            let text = format!(
                "wrote a receipt of {what} to {0}; `converger verify {0} --key KEY` verifies it on any machine\n",
                files::display_path(path)
            );
            finish_output(write!(anstream::stdout(), "{text}"), ExitStatus::Done)
        }
    }
}
