//! Receipts: of one entry, or of an operation with all that it was admitted by. Each is one text that is checked alone.

use converger_core::apply::{OperationId, Record, RunId};
use converger_core::artifact::Digest;
use converger_core::evidence::{Entry, Proof, is_proof_of};
use converger_core::failure::Code;
use converger_ledger::{Hash, Proven, Receipt, Sheaf, inclusion};
use converger_runtime::LedgerReader;

use super::super::Stop;
use super::{Signed, broken};

/// What is proven, in a few words, and the receipt of it.
pub(super) fn prove(book: &LedgerReader, signed: &Signed, what: &str) -> Result<(String, String), Stop> {
    match what.parse::<u64>() {
        Ok(index) => Ok((format!("entry {index}"), of_entry(book, signed, index)?)),
        Err(_) => of_operation(book, signed, what),
    }
}

fn of_entry(book: &LedgerReader, signed: &Signed, index: u64) -> Result<String, Stop> {
    let size = signed.checkpoint.size;
    if index >= size {
        return Err(Stop::input(format!("there is no entry {index}: the ledger has {size} that are durable")));
    }
    let receipt = Receipt { entry: book.one(index)?, index, proof: proof(book, size, index)?, checkpoint: signed.text.clone() };
    // What is handed out was checked as whoever gets it will check it.
    receipt.verify(&signed.signer.verifier()).map_err(|error| broken(format!("entry {index} is not what the ledger signs: {error}")))?;
    Ok(receipt.to_text())
}

fn proof(book: &LedgerReader, size: u64, index: u64) -> Result<Vec<Hash>, Stop> {
    inclusion(&mut book.hashes(size), index, size)?.ok_or_else(|| broken(format!("entry {index} cannot be proven")))
}

fn of_operation(book: &LedgerReader, signed: &Signed, what: &str) -> Result<(String, String), Stop> {
    let unknown = || {
        let stop = Stop::input(format!("the ledger has no operation `{}`", what.escape_debug()));
        stop.help("`converger ops list ENVIRONMENT` shows operations, `converger ledger tail` entries")
    };
    let id = OperationId::new(what).ok_or_else(unknown)?;
    // Where it is looked for the journal says; what is true of it the entries do.
    let run = book.operation(&id)?.ok_or_else(unknown)?.operation.run.clone();
    let Found { entries, bundles, is_over } = Found::of(book, signed.checkpoint.size, &id, &run)?;
    if !is_over {
        let stop = Stop::input(format!("the operation {} has not ended, so that nothing can be proven of what came of it", id.as_str()));
        return Err(stop.help("wait until it ends; its entries are proven one by one, by their places in `converger ledger tail`"));
    }
    let lost = |digest: &Digest| Stop::broken(Code::EvidenceMissing, format!("the bundle {digest} that it was admitted on is not kept"));
    let kept = bundles.iter().map(|digest| book.blob(*digest)?.ok_or_else(|| lost(digest))).collect::<Result<Vec<_>, Stop>>()?;
    let proven = |(index, entry)| Ok(Proven { entry, index, proof: proof(book, signed.checkpoint.size, index)? });
    let proven = entries.into_iter().map(proven).collect::<Result<Vec<_>, Stop>>()?;
    let sheaf = Sheaf { kept, proven, checkpoint: signed.text.clone() };
    // What is handed out was checked as whoever gets it will check it.
    sheaf.verify(&signed.signer.verifier()).map_err(|error| broken(format!("it is not what the ledger signs: {error}")))?;
    Proof::read(sheaf.proven.iter().map(|own| (own.index, own.entry.as_slice())), &sheaf.kept)?;
    Ok((format!("the operation {}", id.as_str()), sheaf.to_text()))
}

/// What the ledger has of an operation and of what admitted it.
#[derive(Default)]
struct Found {
    entries: Vec<(u64, Vec<u8>)>,
    /// What admissions were weighed on.
    bundles: Vec<Digest>,
    is_over: bool,
}

impl Found {
    fn of(book: &LedgerReader, size: u64, id: &OperationId, run: &RunId) -> Result<Self, Stop> {
        let (mut found, mut is_begun) = (Self::default(), false);
        let has = |bytes: &[u8], id: &str| bytes.windows(id.len()).any(|part| part == id.as_bytes());
        book.each::<Stop>(0, size, |index, bytes| {
            // Most entries are about others, and are not read.
            if !has(bytes, run.as_str()) && !has(bytes, id.as_str()) {
                return Ok(());
            }
            let entry = book.entry(index, bytes)?;
            let is_of_run = !matches!(entry, Entry::Record(_) | Entry::Recovery { .. });
            // What its run decided later had no part in it.
            if !is_proof_of(&entry, id, run) || (is_of_run && is_begun) {
                return Ok(());
            }
            match &entry {
                Entry::Record(Record::Intent { .. }) => is_begun = true,
                Entry::Record(Record::Ended { .. }) => found.is_over = true,
                Entry::Admitted { bundle, .. } if !found.bundles.contains(bundle) => found.bundles.push(*bundle),
                _ => {}
            }
            found.entries.push((index, bytes.to_vec()));
            Ok(())
        })?;
        Ok(found)
    }
}
