//! `converger ledger`: what was decided, entry by entry, and what strangers need to check it.
//!
//! What never enters: writing entries. They come with what they evidence.

mod book;
mod export;
mod key;
mod lines;
mod prove;

use std::io::{self, Write as _};

use converger_core::apply::is_remark;
use converger_core::failure::Code;
use converger_ledger::Checkpoint;
use serde_json::{Value as Json, json};

use super::{Stop, shown, spine, witness};
use crate::cli::{Exporting, Ledger, LedgerPlace, Proving, Resyncing, ShowingEntry, Tailing};
use crate::exit::End;
use crate::{config, files, output};

pub(super) use book::{Book, broken};
pub(super) use export::{blob_path, digests, root_at};
pub(super) use key::{key_in, known, signer};
pub(super) use lines::line;

pub(super) fn ledger(ledger: &Ledger) -> Result<End, Stop> {
    match ledger {
        Ledger::Tail(tailing) => tail(tailing),
        Ledger::Show(showing) => show(showing),
        Ledger::Checkpoint(place) => checkpoint(place),
        Ledger::Key(place) => print_key(place),
        Ledger::Export(exporting) => export(exporting),
        Ledger::Prove(proving) => prove(proving),
        Ledger::Resync(resyncing) => resync(resyncing),
    }
}

fn tail(tailing: &Tailing) -> Result<End, Stop> {
    let book = Book::open(tailing.place.config.as_deref())?;
    let size = book.heads()?.all.size;
    let mut out = String::new();
    book.each(size.saturating_sub(tailing.count.into()), size, |index, entry| {
        let text = if tailing.json { format!("{}\n", numbered(index, entry)?) } else { line(index, &book.entry(index, entry)?) };
        out.push_str(&text);
        Ok(())
    })?;
    if out.is_empty() && !tailing.json {
        "no entries\n".clone_into(&mut out);
    }
    let written = if tailing.json { output::json(|to| write!(to, "{out}")) } else { write!(anstream::stdout(), "{out}") };
    shown(written, End::Done)
}

/// An entry as it is kept, with its place.
fn numbered(index: u64, entry: &[u8]) -> Result<Json, Stop> {
    let entry: Json = serde_json::from_slice(entry).map_err(|error| broken(format!("entry {index} is no JSON: {error}")))?;
    Ok(json!({ "index": index, "entry": entry }))
}

fn show(showing: &ShowingEntry) -> Result<End, Stop> {
    let book = Book::open(showing.place.config.as_deref())?;
    let bytes = book.one(showing.index)?;
    let entry = book.entry(showing.index, &bytes)?;
    let json = numbered(showing.index, &bytes)?;
    let written = if showing.json {
        output::json(|out| writeln!(out, "{json}"))
    } else {
        writeln!(anstream::stdout(), "{}{:#}", line(showing.index, &entry), json["entry"])
    };
    shown(written, End::Done)
}

/// Signs only what is durable: nothing that a checkpoint says can be lost.
pub(super) fn signed(book: &Book) -> Result<(Checkpoint, String), Stop> {
    let signer = signer(book.memory())?;
    let head = book.heads()?.durable;
    let checkpoint = Checkpoint { origin: signer.verifier().name().to_owned(), size: head.size, root: head.root };
    let text = checkpoint.sign(&signer);
    Ok((checkpoint, text))
}

fn checkpoint(place: &LedgerPlace) -> Result<End, Stop> {
    let book = Book::open(place.config.as_deref())?;
    let (_, text) = signed(&book)?;
    shown(write!(io::stdout(), "{text}"), End::Done)
}

fn print_key(place: &LedgerPlace) -> Result<End, Stop> {
    let book = Book::open(place.config.as_deref())?;
    shown(writeln!(io::stdout(), "{}", signer(book.memory())?.verifier()), End::Done)
}

fn export(exporting: &Exporting) -> Result<End, Stop> {
    let book = Book::open(exporting.place.config.as_deref())?;
    let exported = export::export(&book, &exporting.directory)?;
    let directory = files::shown(&exporting.directory);
    let text = format!(
        "{} entries and {} other files are in {directory}; `converger verify {directory}` checks them anywhere\n",
        exported.entries, exported.kept
    );
    shown(write!(anstream::stdout(), "{text}"), End::Done)
}

fn resync(resyncing: &Resyncing) -> Result<End, Stop> {
    if !is_remark(&resyncing.reason) {
        return Err(Stop::input("a reason is missing, or longer than 4096 bytes").code(Code::UsageWrong).help("say why with --reason"));
    }
    let survey = config::survey(resyncing.place.config.as_deref()).map_err(spine::misconfigured)?;
    let witness = survey.witness.ok_or_else(|| {
        Stop::input("no witness is named, so that nothing keeps the state directory from being used")
            .code(Code::UsageWrong)
            .help("`witness = \"/other/storage/converger.checkpoint\"` in `[ledger]` of converger.toml names one")
    })?;
    let book = Book::open(resyncing.place.config.as_deref())?;
    let size = witness::resync(book.memory(), &witness, &resyncing.reason)?;
    let directory = files::shown(book.directory());
    let text = format!("{directory} is in service again; what the witness had seen of its {size} entries and is not here stays lost\n");
    shown(write!(anstream::stdout(), "{text}"), End::Done)
}

fn prove(proving: &Proving) -> Result<End, Stop> {
    let book = Book::open(proving.place.config.as_deref())?;
    let (index, receipt) = prove::prove(&book, &proving.what)?;
    match &proving.out {
        None => shown(write!(io::stdout(), "{receipt}"), End::Done),
        Some(path) => {
            files::replace(path, |file| file.write_all(receipt.as_bytes())).map_err(|error| super::unwritten(path, &error))?;
            let text = format!("entry {index} is proven by {0}; `converger verify {0} --key ...` checks it alone\n", files::shown(path));
            shown(write!(anstream::stdout(), "{text}"), End::Done)
        }
    }
}
