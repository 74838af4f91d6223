//! Receipts: of one entry, or of an operation with all that it was admitted by. Each is one text that is checked alone.

use converger_core::apply::{JournalRecord, OperationId, RunId};
use converger_core::artifact::Digest;
use converger_core::evidence::{LedgerEntry, OperationProof, belongs_to_proof};
use converger_core::failure::FailureCode;
use converger_ledger::{LogHash, ProvenEntry, Receipt, ReceiptBundle, prove_inclusion};
use converger_runtime::LedgerReader;

use super::super::CommandError;
use super::{SignedLedger, broken};

/// What is proven, in a few words, and the receipt of it.
pub(super) fn prove(book: &LedgerReader, signed: &SignedLedger, what: &str) -> Result<(String, String), CommandError> {
    match what.parse::<u64>() {
        Ok(index) => Ok((format!("entry {index}"), prove_entry(book, signed, index)?)),
        Err(_) => prove_operation(book, signed, what),
    }
}

fn prove_entry(book: &LedgerReader, signed: &SignedLedger, index: u64) -> Result<String, CommandError> {
    let size = signed.checkpoint.size;
    if index >= size {
        return Err(CommandError::input_error(format!("there is no entry {index}: the ledger has {size} that are durable")));
    }
    let receipt =
        Receipt { entry: book.read_entry(index)?, index, proof: inclusion_proof(book, size, index)?, checkpoint: signed.text.clone() };
    // What is handed out was checked as whoever gets it will check it.
    receipt.verify(&signed.signer.verifier()).map_err(|error| broken(format!("entry {index} is not what the ledger signs: {error}")))?;
    Ok(receipt.to_text())
}

fn inclusion_proof(book: &LedgerReader, size: u64, index: u64) -> Result<Vec<LogHash>, CommandError> {
    prove_inclusion(&mut book.subtree_hashes(size), index, size)?.ok_or_else(|| broken(format!("entry {index} cannot be proven")))
}

fn prove_operation(book: &LedgerReader, signed: &SignedLedger, what: &str) -> Result<(String, String), CommandError> {
    let unknown = || {
        let stop = CommandError::input_error(format!("the ledger has no operation `{}`", what.escape_debug()));
        stop.with_help("`converger ops list ENVIRONMENT` shows operations, `converger ledger tail` entries")
    };
    let id = OperationId::new(what).ok_or_else(unknown)?;
    // Where it is looked for the journal says; what is true of it the entries do.
    let run = book.operation(&id)?.ok_or_else(unknown)?.operation.run.clone();
    let OperationEntries { entries, bundles, is_over } = OperationEntries::collect(book, signed.checkpoint.size, &id, &run)?;
    if !is_over {
        let stop = CommandError::input_error(format!(
            "the operation {} has not ended, so that nothing can be proven of what came of it",
            id.as_str()
        ));
        return Err(stop.with_help("wait until it ends; its entries are proven one by one, by their places in `converger ledger tail`"));
    }
    let lost = |digest: &Digest| {
        CommandError::evidence_error(FailureCode::EvidenceMissing, format!("the bundle {digest} that it was admitted on is not kept"))
    };
    let kept = bundles.iter().map(|digest| book.blob(*digest)?.ok_or_else(|| lost(digest))).collect::<Result<Vec<_>, CommandError>>()?;
    let proven = |(index, entry)| Ok(ProvenEntry { entry, index, proof: inclusion_proof(book, signed.checkpoint.size, index)? });
    let proven = entries.into_iter().map(proven).collect::<Result<Vec<_>, CommandError>>()?;
    let sheaf = ReceiptBundle { attachments: kept, entries: proven, checkpoint: signed.text.clone() };
    // What is handed out was checked as whoever gets it will check it.
    sheaf.verify(&signed.signer.verifier()).map_err(|error| broken(format!("it is not what the ledger signs: {error}")))?;
    OperationProof::from_entries(sheaf.entries.iter().map(|own| (own.index, own.entry.as_slice())), &sheaf.attachments)?;
    Ok((format!("the operation {}", id.as_str()), sheaf.to_text()))
}

/// What the ledger has of an operation and of what admitted it.
#[derive(Default)]
struct OperationEntries {
    entries: Vec<(u64, Vec<u8>)>,
    /// What admissions were weighed on.
    bundles: Vec<Digest>,
    is_over: bool,
}

impl OperationEntries {
    fn collect(book: &LedgerReader, size: u64, id: &OperationId, run: &RunId) -> Result<Self, CommandError> {
        let (mut found, mut is_begun) = (Self::default(), false);
        let has = |bytes: &[u8], id: &str| bytes.windows(id.len()).any(|part| part == id.as_bytes());
        book.for_each_entry::<CommandError>(0, size, |index, bytes| {
            // Most entries are about others, and are not read.
            if !has(bytes, run.as_str()) && !has(bytes, id.as_str()) {
                return Ok(());
            }
            let entry = book.parse_entry(index, bytes)?;
            let is_of_run = !matches!(entry, LedgerEntry::Record(_) | LedgerEntry::Recovery { .. });
            // What its run decided later had no part in it.
            if !belongs_to_proof(&entry, id, run) || (is_of_run && is_begun) {
                return Ok(());
            }
            match &entry {
                LedgerEntry::Record(JournalRecord::Intent { .. }) => is_begun = true,
                LedgerEntry::Record(JournalRecord::Ended { .. }) => found.is_over = true,
                LedgerEntry::Admitted { bundle, .. } if !found.bundles.contains(bundle) => found.bundles.push(*bundle),
                _ => {}
            }
            found.entries.push((index, bytes.to_vec()));
            Ok(())
        })?;
        Ok(found)
    }
}
