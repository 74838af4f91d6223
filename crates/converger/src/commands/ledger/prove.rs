//! A receipt: one entry, the proof that it is in the ledger, and the signed checkpoint, in one text that is checked alone.

use converger_core::apply::OperationId;
use converger_core::evidence::Entry;
use converger_ledger::{Receipt, inclusion};

use super::super::Stop;
use super::{Book, Signed, broken};

/// The receipt of an entry, or of the last entry about an operation, and which entry that is.
pub(super) fn prove(book: &Book, signed: &Signed, what: &str) -> Result<(u64, String), Stop> {
    let checkpoint = &signed.checkpoint;
    let index = match what.parse::<u64>() {
        Ok(index) => index,
        Err(_) => last_about(book, what, checkpoint.size)?,
    };
    if index >= checkpoint.size {
        return Err(Stop::input(format!("there is no entry {index}: the ledger has {} that are durable", checkpoint.size)));
    }
    let proof = inclusion(&mut book.hashes(checkpoint.size), index, checkpoint.size)?;
    let proof = proof.ok_or_else(|| broken(format!("entry {index} cannot be proven")))?;
    let receipt = Receipt { entry: book.one(index)?, index, proof, checkpoint: signed.text.clone() };
    // What is handed out was checked as whoever gets it will check it.
    receipt.verify(&signed.signer.verifier()).map_err(|error| broken(format!("entry {index} is not what the ledger signs: {error}")))?;
    Ok((index, receipt.to_text()))
}

fn last_about(book: &Book, id: &str, size: u64) -> Result<u64, Stop> {
    let unknown = || {
        let stop = Stop::input(format!("the ledger has no operation `{}`", id.escape_debug()));
        stop.help("`converger ops list ENVIRONMENT` shows operations, `converger ledger tail` entries")
    };
    let id = OperationId::new(id).ok_or_else(unknown)?;
    let mut last = None;
    book.each(0, size, |index, bytes| {
        // Most entries are about others, and are not read.
        if bytes.windows(id.as_str().len()).any(|part| part == id.as_str().as_bytes())
            && let Entry::Record(record) = book.entry(index, bytes)?
            && *record.id() == id
        {
            last = Some(index);
        }
        Ok(())
    })?;
    last.ok_or_else(unknown)
}
