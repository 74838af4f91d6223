//! `converger ledger`: what was decided, entry by entry, and what strangers need to check it.
//!
//! What never enters: writing entries. They come with what they evidence.

mod export;
mod lines;
mod prove;
mod prune;
mod rekey;
mod when;

use std::collections::VecDeque;
use std::io::{self, Write as _};
use std::path::Path;

use converger_core::document::is_hidden;
use converger_core::evidence::{Entry, Sieve, Wanted, write_entry};
use converger_core::failure::Code;
use converger_ledger::{Checkpoint, Signer};
use converger_runtime::ledger_reader::{self, beyond, parse_entry_at};
use converger_runtime::state_dir::run_blocking;
use converger_runtime::{LedgerLocation, StateDirectory, StateLocation, ledger_key, witness};
use converger_store::Store as _;
use converger_store::StoreError;
use serde_json::{Value as Json, json};

use super::verify::Export;
use super::{Stop, people, shown};
use crate::cli::{Exporting, Ledger, LedgerPlace, LedgerSource, Proving, Resyncing, ShowingEntry, Tailing};
use crate::exit::End;
use crate::files::{OwnFile, Replaces};
use crate::{fatal, files, host, output, screen};

pub(super) use export::blob_path;
pub(super) use lines::line;

/// What is kept is not what was recorded.
pub(super) fn broken(what: impl Into<String>) -> Stop {
    ledger_reader::broken(what).into()
}

/// The store cannot be read, or is not as it was recorded.
pub(super) fn damaged(error: &StoreError) -> Stop {
    ledger_reader::damaged(error).into()
}

pub(super) async fn ledger(ledger: &Ledger) -> Result<End, Stop> {
    match ledger {
        Ledger::Tail(tailing) => tail(tailing),
        Ledger::Show(showing) => show(showing),
        Ledger::Checkpoint(place) => checkpoint(place).await,
        Ledger::Key(place) => print_key(place).await,
        Ledger::Export(exporting) => export(exporting).await,
        Ledger::Prove(proving) => prove(proving).await,
        Ledger::Resync(resyncing) => resync(resyncing).await,
        Ledger::Rekey(rekeying) => rekey::rekey(rekeying).await,
        Ledger::Prune(pruning) => prune::prune(pruning).await,
    }
}

fn tail(tailing: &Tailing) -> Result<End, Stop> {
    let mut out = String::new();
    for (index, bytes) in last(tailing)? {
        let text = if tailing.json { format!("{}\n", numbered(index, &bytes)?) } else { line(index, &parse_entry_at(index, &bytes)?) };
        out.push_str(&text);
    }
    let text = if out.is_empty() && !tailing.json { "no entries\n".to_owned() } else { out };
    let written = if tailing.json { output::json(|to| write!(to, "{text}")) } else { write!(anstream::stdout(), "{}", screen::out(&text)) };
    shown(written, End::Done)
}

/// Entries as they are kept, each with its place.
type Kept = Vec<(u64, Vec<u8>)>;

/// The last entries that are asked for.
fn last(tailing: &Tailing) -> Result<Kept, Stop> {
    let Tailing { source, count, .. } = tailing;
    let (wanted, count) = (wanted(tailing)?, *count as usize);
    if let Some(path) = &source.from.from {
        let mut sieve = Sieve::of(wanted);
        let mut last = exported(path, source, |_, entry| sieve.takes(entry))?.1;
        return Ok(last.split_off(last.len().saturating_sub(count)));
    }
    shelf(source)?.read(|book| {
        let (size, mut last, mut sieve) = (book.heads()?.all.size, VecDeque::new(), Sieve::of(wanted.clone()));
        // Where nothing is left out the others need not be read.
        let first = if wanted.is_all() { size.saturating_sub(count as u64) } else { 0 };
        book.each::<Stop>(first, size, |index, bytes| {
            if wanted.is_all() || sieve.takes(&book.entry(index, bytes)?) {
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

/// Which entries are asked for.
fn wanted(Tailing { run, guest, kind, since, .. }: &Tailing) -> Result<Wanted, Stop> {
    let since_ms = since.as_deref().map(|since| when::ms("--since", since, host::now_ms())).transpose()?;
    Ok(Wanted { run: run.clone(), guest: *guest, kind: kind.as_deref().map(Into::into), since_ms })
}

/// The state directory that is read.
fn shelf(source: &LedgerSource) -> Result<LedgerLocation, Stop> {
    match &source.from.db {
        Some(directory) => Ok(LedgerLocation::from_directory(directory)),
        None => Ok(LedgerLocation::from_config(source.config.as_deref())?),
    }
}

/// One entry as it is kept.
fn one(source: &LedgerSource, index: u64) -> Result<Vec<u8>, Stop> {
    let Some(path) = &source.from.from else { return Ok(shelf(source)?.read(|book| book.one(index))?) };
    let (size, found) = exported(path, source, |own, _| own == index)?;
    found.into_iter().next().map(|(_, bytes)| bytes).ok_or_else(|| beyond(index, size).into())
}

/// How many entries an export has, which was checked whole, and those of them that are meant.
fn exported(path: &Path, source: &LedgerSource, mut is_meant: impl FnMut(u64, &Entry) -> bool) -> Result<(u64, Kept), Stop> {
    let (mut size, mut meant, mut unwritten) = (0, Vec::new(), None);
    let export = Export::open(path, source.from.key.as_deref(), |index, entry| {
        size = index + 1;
        if is_meant(index, &entry) {
            match write_entry(&entry) {
                Ok(bytes) => meant.push((index, bytes)),
                Err(error) => unwritten = Some(error),
            }
        }
    })?;
    export.tell_note();
    match unwritten {
        Some(error) => Err(Stop::failed(format!("an entry cannot be written: {error}"))),
        None => Ok((size, meant)),
    }
}

/// An entry as it is kept, with its place.
pub(super) fn numbered(index: u64, entry: &[u8]) -> Result<Json, Stop> {
    let entry: Json = serde_json::from_slice(entry).map_err(|error| broken(format!("entry {index} is no JSON: {error}")))?;
    Ok(json!({ "index": index, "entry": entry }))
}

fn show(showing: &ShowingEntry) -> Result<End, Stop> {
    let bytes = one(&showing.source, showing.index)?;
    let (json, line) = (numbered(showing.index, &bytes)?, line(showing.index, &parse_entry_at(showing.index, &bytes)?));
    let written = if showing.json {
        output::json(|out| writeln!(out, "{json}"))
    } else {
        writeln!(anstream::stdout(), "{line}{}", plain_json(&json["entry"]))
    };
    shown(written, End::Done)
}

/// JSON over several lines in which no character acts on a terminal or is overlooked; it still is the same JSON.
fn plain_json(json: &Json) -> String {
    let escaped = |character: char| {
        let is_plain = character == '\n' || !is_hidden(character);
        if is_plain {
            character.to_string()
        } else {
            character.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}")).collect()
        }
    };
    format!("{json:#}").chars().map(escaped).collect()
}

fn location(shelf: &LedgerLocation) -> StateLocation {
    StateLocation { directory: shelf.directory.clone(), witness: shelf.witness.clone() }
}

/// Opens the state directory of a ledger for writing.
pub(super) async fn open_state(shelf: &LedgerLocation) -> Result<StateDirectory, Stop> {
    Ok(StateDirectory::open(&location(shelf), fatal::end_process()).await?)
}

/// A ledger as far as it is signed now.
struct Signed {
    shelf: LedgerLocation,
    signer: Signer,
    checkpoint: Checkpoint,
    /// The checkpoint as it is given to everybody.
    text: String,
}

/// Signs what is durable and nothing else: nothing that a checkpoint says can be lost. How much that is the open store tells; a file that is
/// only looked at may have more than the disk has.
async fn sign(config: Option<&Path>) -> Result<Signed, Stop> {
    let shelf = LedgerLocation::from_config(config)?;
    // Where there is no ledger none is made, and where the witness has seen another one nothing is written.
    shelf.must_be_there()?;
    let state = open_state(&shelf).await?;
    let signer = {
        let state = state.clone();
        run_blocking(move || ledger_key::signer(&state)).await?
    };
    // The key may have been named just now, and whoever keeps an eye on the ledger is to know.
    state.attest_ledger().await?;
    let head = state.store().heads().await.map_err(|error| damaged(&error))?.durable;
    // What is said to be the root is believed once the entries lead to it: a signature is for ever.
    shelf.read(|book| book.leads_to(head))?;
    let checkpoint = Checkpoint { origin: signer.verifier().name().to_owned(), size: head.size, root: head.root };
    let text = checkpoint.sign(&signer);
    Ok(Signed { shelf, signer, checkpoint, text })
}

async fn checkpoint(place: &LedgerPlace) -> Result<End, Stop> {
    let signed = sign(place.config.as_deref()).await?;
    shown(write!(io::stdout(), "{}", signed.text), End::Done)
}

async fn print_key(place: &LedgerPlace) -> Result<End, Stop> {
    let signed = sign(place.config.as_deref()).await?;
    shown(writeln!(io::stdout(), "{}", signed.signer.verifier()), End::Done)
}

async fn export(exporting: &Exporting) -> Result<End, Stop> {
    let signed = sign(exporting.place.config.as_deref()).await?;
    let exported = match signed.shelf.read(|book| export::export(book, &signed, &exporting.directory, exporting.overwrite.overwrite))? {
        Some(exported) => exported,
        // Something was let go after it was signed, and the entry that says so is not among those that are: once more, with it.
        None => {
            let signed = sign(exporting.place.config.as_deref()).await?;
            let lost =
                || Stop::broken(Code::EvidenceMissing, "something that entries name is not kept, and no entry says that it was let go");
            signed
                .shelf
                .read(|book| export::export(book, &signed, &exporting.directory, exporting.overwrite.overwrite))?
                .ok_or_else(lost)?
        }
    };
    let directory = files::shown(&exporting.directory);
    let text = format!(
        "{} entries and {} other files are in {directory}; `converger verify {directory}` checks them anywhere\n",
        exported.entries, exported.kept
    );
    shown(write!(anstream::stdout(), "{text}"), End::Done)
}

async fn resync(resyncing: &Resyncing) -> Result<End, Stop> {
    let reason = people::remark(&resyncing.reason, "why")?;
    let shelf = LedgerLocation::from_config(resyncing.place.config.as_deref())?;
    let witness = shelf.witness.as_deref().ok_or_else(|| {
        Stop::input("no witness is named, so that nothing keeps the state directory from being used")
            .help("`witness = \"/other/storage/converger.checkpoint\"` in `[ledger]` of converger.toml names one")
    })?;
    witness::is_apart(&shelf.directory, witness)?;
    shelf.must_be_there()?;
    let size = {
        let (state, witness) = (StateDirectory::open_unwitnessed(&location(&shelf), fatal::end_process())?, witness.to_owned());
        run_blocking(move || witness::resync(&state, &witness, &reason)).await?
    };
    let directory = files::shown(&shelf.directory);
    let text = format!("{directory} is in service again; what the witness had seen of its {size} entries and is not here stays lost\n");
    shown(write!(anstream::stdout(), "{text}"), End::Done)
}

async fn prove(proving: &Proving) -> Result<End, Stop> {
    let replaces = Replaces::own(OwnFile::Receipt, proving.overwrite.overwrite);
    if let Some(path) = &proving.out {
        super::not_kept(path, proving.place.config.as_deref())?;
        super::may_replace(path, replaces)?;
    }
    let signed = sign(proving.place.config.as_deref()).await?;
    let (what, receipt) = signed.shelf.read(|book| prove::prove(book, &signed, &proving.what))?;
    match &proving.out {
        None => shown(write!(io::stdout(), "{receipt}"), End::Done),
        Some(path) => {
            files::replace(path, replaces, |file| file.write_all(receipt.as_bytes())).map_err(|error| super::unwritten(path, &error))?;
            let text = format!("{what} is proven by {0}; `converger verify {0} --key ...` checks it alone\n", files::shown(path));
            shown(write!(anstream::stdout(), "{text}"), End::Done)
        }
    }
}
