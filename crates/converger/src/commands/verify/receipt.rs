//! Verifies a receipt with nothing but the key.

use std::fmt::Write as _;
use std::path::Path;

use converger_core::apply::OperationId;
use converger_core::evidence::{LedgerEntry, OperationProof, RecordedAdmission, parse_entry};
use converger_core::failure::FailureCode;
use converger_ledger::{Checkpoint, NoteVerifier, Receipt, ReceiptBundle, is_receipt_head};
use serde_json::{Value as Json, json};

use super::super::decisions::admission_json;
use super::super::ledger::{broken, render_entry};
use super::super::{CommandError, ops};
use super::VerifyReport;
use crate::files;
use crate::render::{self, apply_style, quote_untrusted};

/// The limit of every receipt.
const INCOMPLETE_NOTE: &str = "a receipt proves its own entries: only an export shows whether the ledger has more about this operation (that it was sent, a \
     task, a recovery, a resolution)";

/// Verifies a receipt, which must be about `operation` if one is given.
pub(super) fn verify(path: &Path, key: Option<NoteVerifier>, operation: Option<&OperationId>) -> Result<VerifyReport, CommandError> {
    let name = files::display_path(path);
    let read = files::read(path)
        .map_err(|error| CommandError::input_error(format!("cannot read {name}: {error}")).with_code(FailureCode::FileUnreadable))?;
    if !has_receipt_header(&read.bytes) {
        return Err(CommandError::input_error(format!("{name} is not a receipt, an export or a state directory")).with_help(
            "name a receipt as `converger ledger prove` writes it, the directory of an export, or a state directory with --db; a receipt that lost its \
             first line cannot be verified: get it again from its source",
        ));
    }
    let text = String::from_utf8(read.bytes).map_err(|_| broken(format!("{name} is damaged: it is not text")))?;
    if text.contains('\r') {
        return Err(broken(format!("{name}: its line endings were changed from LF to CR LF, which breaks the signature")).with_help(
            format!(
                "get it again as a binary file, or restore its line endings (`tr -d '\\r' < {name}`) and verify the result",
                name = files::shell_argument(path)
            ),
        ));
    }
    if ReceiptBundle::has_header(&text) {
        verify_operation(&name, &text, key, operation)
    } else {
        verify_entry(&name, &text, key, operation)
    }
}

/// Whether the first line is that of a receipt. Any other file was named by mistake, which must not look like tampering.
fn has_receipt_header(bytes: &[u8]) -> bool {
    let first = bytes.split(|byte| *byte == b'\n').next().unwrap_or_default();
    std::str::from_utf8(first).is_ok_and(|line| is_receipt_head(line.trim_end_matches('\r')))
}

fn require_key(key: Option<NoteVerifier>) -> Result<NoteVerifier, CommandError> {
    key.ok_or_else(|| {
        CommandError::input_error("verifying a receipt needs the key of its ledger")
            .with_help("pass --key KEY, as `converger ledger key` prints it on the machine of the ledger")
    })
}

/// A valid receipt of another operation is no evidence of this one: exit status 6, so that a script does not accept it.
fn other_operation(name: &str, found: &str, operation: &OperationId) -> CommandError {
    CommandError::evidence_error(
        FailureCode::EvidenceMissing,
        format!("{name} does not prove the operation {}: it is about {found}", operation.as_str()),
    )
    .with_help("ask its source for the receipt of that operation: `converger ledger prove OPERATION` writes it")
}

fn verify_entry(name: &str, text: &str, key: Option<NoteVerifier>, operation: Option<&OperationId>) -> Result<VerifyReport, CommandError> {
    let receipt = Receipt::parse(text).map_err(|error| broken(format!("{name}: {error}")))?;
    let key = require_key(key)?;
    let checkpoint = receipt.verify(&key).map_err(|error| broken(format!("{name} proves nothing: {error}")))?;
    let entry =
        parse_entry(&receipt.entry).map_err(|error| broken(format!("{name}: its entry is not valid: {error}")).at_entry(receipt.index))?;
    if let Some(operation) = operation
        && !matches!(&entry, LedgerEntry::Record(record) if record.id() == operation)
    {
        return Err(
            other_operation(name, &format!("entry {}, which is not of that operation", receipt.index), operation).at_entry(receipt.index)
        );
    }
    let what =
        format!("{name} proves entry {} of {}\n{}", receipt.index, checkpoint.origin, render_entry(receipt.index, &entry).trim_end());
    Ok(build_report(what, &checkpoint, key, None))
}

fn verify_operation(
    name: &str,
    text: &str,
    key: Option<NoteVerifier>,
    operation: Option<&OperationId>,
) -> Result<VerifyReport, CommandError> {
    let bundle = ReceiptBundle::parse(text).map_err(|error| broken(format!("{name}: {error}")))?;
    let key = require_key(key)?;
    let checkpoint = bundle.verify(&key).map_err(|error| broken(format!("{name} proves nothing: {error}")))?;
    let proof = OperationProof::from_entries(bundle.entries.iter().map(|own| (own.index, own.entry.as_slice())), &bundle.attachments)
        .map_err(|wrong| {
            let index = wrong.index;
            CommandError::evidence_error(wrong.code, format!("{name} proves no operation: {}", wrong.what)).at_entry(index)
        })?;
    if let Some(operation) = operation.filter(|operation| *operation != proof.history.id()) {
        return Err(other_operation(name, &format!("the operation {}", proof.history.id().as_str()), operation));
    }
    let indices: Vec<u64> = bundle.entries.iter().map(|own| own.index).collect();
    let count = indices.len();
    let what = format!("{name} proves one operation with {count} entries of {}\n{}", checkpoint.origin, describe_proof(&proof).trim_end());
    Ok(build_report(what, &checkpoint, key, Some(proof_json(&proof, &indices))).with_note(INCOMPLETE_NOTE))
}

fn build_report(what: String, checkpoint: &Checkpoint, key: NoteVerifier, proven: Option<Json>) -> VerifyReport {
    let (entries, root) = (checkpoint.size, Some(checkpoint.root.to_string()));
    VerifyReport { what, entries, root, epoch: None, verifier: Some(key), pruned: 0, notes: Vec::new(), proven, is_key_unverified: false }
}

/// The operation and its admission.
fn describe_proof(proof: &OperationProof) -> String {
    let OperationProof { history, run, admissions, recoveries } = proof;
    let mut text = ops::render_with_reason(history, Some(&format!("requested in `{}` by {}", run.environment, quote_untrusted(&run.by))));
    let mut row = |name: &str, value: String| {
        let _ = writeln!(text, "  {} {value}", apply_style(render::CYAN, format!("{name:<10}")));
    };
    admissions.iter().for_each(|RecordedAdmission { index, answer, approvals, .. }| {
        row("admission", format!("{} in entry {index}", answer.as_str()));
        approvals.iter().for_each(|approval| row("approved", format!("by {} ({})", quote_untrusted(&approval.by), approval.how)));
    });
    recoveries.iter().for_each(|index| row("recovery", format!("a later run found it open: entry {index}")));
    text
}

fn proof_json(proof: &OperationProof, indices: &[u64]) -> Json {
    let OperationProof { history, run, admissions, recoveries } = proof;
    let admissions: Vec<Json> = admissions.iter().map(admission_json).collect();
    json!({
        "admissions": admissions, "by": run.by, "entries": indices, "history": ops::history_json(history), "recoveries": recoveries,
    })
}
