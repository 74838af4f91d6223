//! Receipts of one entry, of the plan of a run, or of an operation with the entries that admitted it. Each can be verified on its own.

use converger_core::apply::{JournalRecord, OperationId, RunId};
use converger_core::artifact::Digest;
use converger_core::evidence::{LedgerEntry, OperationProof, belongs_to_proof};
use converger_core::failure::FailureCode;
use converger_ledger::{LogHash, ProvenEntry, Receipt, ReceiptBundle, prove_inclusion};
use converger_runtime::LedgerReader;

use super::super::CommandError;
use super::{SignedLedger, broken};

/// A description of what is proven, and the receipt.
pub(super) fn prove(reader: &LedgerReader, signed: &SignedLedger, what: &str) -> Result<(String, String), CommandError> {
    match what.parse::<u64>() {
        Ok(index) => Ok((format!("entry {index}"), prove_entry(reader, signed, index)?)),
        Err(_) => match find_plan_entry(reader, signed.checkpoint.size, what)? {
            Some(index) => Ok((format!("entry {index}, the plan of run {what}"), prove_entry(reader, signed, index)?)),
            None => prove_operation(reader, signed, what),
        },
    }
}

/// The entry with the plan of a run, if this is the id of one.
fn find_plan_entry(reader: &LedgerReader, size: u64, what: &str) -> Result<Option<u64>, CommandError> {
    let mut found = None;
    reader.for_each_entry::<CommandError>(0, size, |index, bytes| {
        // Entries that do not contain the id are not parsed.
        if found.is_none() && bytes.windows(what.len().max(1)).any(|part| part == what.as_bytes()) {
            let entry = reader.parse_entry(index, bytes)?;
            found = matches!(&entry, LedgerEntry::PlanMade { run, .. } if run.as_str() == what).then_some(index);
        }
        Ok(())
    })?;
    Ok(found)
}

fn prove_entry(reader: &LedgerReader, signed: &SignedLedger, index: u64) -> Result<String, CommandError> {
    let size = signed.checkpoint.size;
    if index >= size {
        return Err(CommandError::input_error(format!("there is no entry {index}: the ledger has {size} durable entries")));
    }
    let receipt =
        Receipt { entry: reader.read_entry(index)?, index, proof: inclusion_proof(reader, size, index)?, checkpoint: signed.text.clone() };
    // The receipt is verified before it is written, as its reader will verify it.
    receipt
        .verify(&signed.signer.verifier())
        .map_err(|error| broken(format!("entry {index} does not match the signed ledger: {error}")))?;
    Ok(receipt.to_text())
}

fn inclusion_proof(reader: &LedgerReader, size: u64, index: u64) -> Result<Vec<LogHash>, CommandError> {
    prove_inclusion(&mut reader.subtree_hashes(size), index, size)?.ok_or_else(|| broken(format!("entry {index} cannot be proven")))
}

fn prove_operation(reader: &LedgerReader, signed: &SignedLedger, what: &str) -> Result<(String, String), CommandError> {
    let unknown = || {
        let stop = CommandError::input_error(format!("the ledger has no operation `{}`", what.escape_debug()));
        stop.with_help("`converger ops list ENVIRONMENT` shows operations, `converger ledger tail` entries")
    };
    let id = OperationId::new(what).ok_or_else(unknown)?;
    // The journal says which run to look for; only the entries count as evidence.
    let run = reader.operation(&id)?.ok_or_else(unknown)?.operation.run.clone();
    let OperationEntries { entries, bundles, is_over } = OperationEntries::collect(reader, signed.checkpoint.size, &id, &run)?;
    if !is_over {
        let stop = CommandError::input_error(format!("the operation {} has not ended, so its outcome cannot be proven", id.as_str()));
        return Err(stop.with_help("wait until it ends, or prove single entries by their index in `converger ledger tail`"));
    }
    let missing_bundle = |digest: &Digest| {
        CommandError::evidence_error(FailureCode::EvidenceMissing, format!("the inputs {digest} of its admission are missing"))
    };
    let attachments = bundles
        .iter()
        .map(|digest| reader.blob(*digest)?.ok_or_else(|| missing_bundle(digest)))
        .collect::<Result<Vec<_>, CommandError>>()?;
    let proven = |(index, entry)| Ok(ProvenEntry { entry, index, proof: inclusion_proof(reader, signed.checkpoint.size, index)? });
    let proven = entries.into_iter().map(proven).collect::<Result<Vec<_>, CommandError>>()?;
    let bundle = ReceiptBundle { attachments, entries: proven, checkpoint: signed.text.clone() };
    // The receipt is verified before it is written, as its reader will verify it.
    bundle.verify(&signed.signer.verifier()).map_err(|error| broken(format!("the receipt does not match the signed ledger: {error}")))?;
    OperationProof::from_entries(bundle.entries.iter().map(|own| (own.index, own.entry.as_slice())), &bundle.attachments)?;
    Ok((format!("the operation {}", id.as_str()), bundle.to_text()))
}

/// The entries about an operation and its admission.
#[derive(Default)]
struct OperationEntries {
    entries: Vec<(u64, Vec<u8>)>,
    /// The inputs of the admissions.
    bundles: Vec<Digest>,
    is_over: bool,
}

impl OperationEntries {
    fn collect(reader: &LedgerReader, size: u64, id: &OperationId, run: &RunId) -> Result<Self, CommandError> {
        let (mut found, mut is_begun) = (Self::default(), false);
        let has = |bytes: &[u8], id: &str| bytes.windows(id.len()).any(|part| part == id.as_bytes());
        reader.for_each_entry::<CommandError>(0, size, |index, bytes| {
            // Entries that do not contain the ids are not parsed.
            if !has(bytes, run.as_str()) && !has(bytes, id.as_str()) {
                return Ok(());
            }
            let entry = reader.parse_entry(index, bytes)?;
            let is_of_run = !matches!(entry, LedgerEntry::Record(_) | LedgerEntry::Recovery { .. });
            // Later decisions of its run do not concern it.
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
