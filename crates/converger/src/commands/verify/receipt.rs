//! A receipt is checked alone: with the key, and with nothing else.

use std::fmt::Write as _;
use std::path::Path;

use converger_core::apply::OperationId;
use converger_core::evidence::{Entry, Proof, Weighed, parse_entry};
use converger_core::failure::Code;
use converger_ledger::{Checkpoint, Receipt, Sheaf, Verifier};
use serde_json::{Value as Json, json};

use super::super::decisions::admission_json;
use super::super::ledger::{broken, line};
use super::super::{Stop, ops};
use super::Whole;
use crate::files;
use crate::render::{self, styled, theirs};

/// What no receipt can say, however whole it is.
const INCOMPLETE: &str = "a receipt proves what is in it: whether the ledger has more about this operation (that it was sent, a task, a recovery, \
     a person's word on it) only an export of it shows";

/// `operation`: what the receipt has to be about.
pub(super) fn verify(path: &Path, key: Option<Verifier>, operation: Option<&OperationId>) -> Result<Whole, Stop> {
    let name = files::shown(path);
    let read = files::read(path).map_err(|error| Stop::input(format!("cannot read {name}: {error}")).code(Code::FileUnreadable))?;
    let text = String::from_utf8(read.bytes).map_err(|_| broken(format!("{name} is no receipt: it is not text")))?;
    if text.contains('\r') {
        return Err(broken(format!(
            "{name}: its line endings were changed, and what is signed are bytes: a receipt ends its lines with LF, and this one has CR"
        ))
        .help(format!(
            "get it again as a binary file, or turn its line endings back (`tr -d '\\r' < {name}`) and verify that",
            name = files::argument(path)
        )));
    }
    if Sheaf::is_meant(&text) { of_operation(&name, &text, key, operation) } else { of_entry(&name, &text, key, operation) }
}

fn given(key: Option<Verifier>) -> Result<Verifier, Stop> {
    key.ok_or_else(|| {
        Stop::input("a receipt is checked with the key of its ledger")
            .help("--key KEY, as `converger ledger key` prints it where the ledger is")
    })
}

/// A receipt that is whole and about another operation is no evidence of this one: exit status 6, because whoever asks must not take it for that.
/// Nothing was decided against (3), and nothing is wrong with the question (2).
fn other_operation(name: &str, found: &str, operation: &OperationId) -> Stop {
    Stop::broken(Code::EvidenceMissing, format!("{name} does not prove the operation {}: it is about {found}", operation.as_str()))
        .help("ask its source for the receipt of that operation: `converger ledger prove OPERATION` writes it")
}

fn of_entry(name: &str, text: &str, key: Option<Verifier>, operation: Option<&OperationId>) -> Result<Whole, Stop> {
    let receipt = Receipt::parse(text).map_err(|error| broken(format!("{name}: {error}")))?;
    let key = given(key)?;
    let checkpoint = receipt.verify(&key).map_err(|error| broken(format!("{name} proves nothing: {error}")))?;
    let entry = parse_entry(&receipt.entry)
        .map_err(|error| broken(format!("{name}: its entry is none that this program writes: {error}")).at(receipt.index))?;
    if let Some(operation) = operation
        && !matches!(&entry, Entry::Record(record) if record.id() == operation)
    {
        return Err(other_operation(name, &format!("entry {}, which is not of that operation", receipt.index), operation).at(receipt.index));
    }
    let what = format!("{name} proves entry {} of {}\n{}", receipt.index, checkpoint.origin, line(receipt.index, &entry).trim_end());
    Ok(whole(what, &checkpoint, key, None))
}

fn of_operation(name: &str, text: &str, key: Option<Verifier>, operation: Option<&OperationId>) -> Result<Whole, Stop> {
    let sheaf = Sheaf::parse(text).map_err(|error| broken(format!("{name}: {error}")))?;
    let key = given(key)?;
    let checkpoint = sheaf.verify(&key).map_err(|error| broken(format!("{name} proves nothing: {error}")))?;
    let proof = Proof::read(sheaf.proven.iter().map(|own| (own.index, own.entry.as_slice())), &sheaf.kept).map_err(|wrong| {
        let index = wrong.index;
        Stop::broken(wrong.code, format!("{name} proves no operation: {}", wrong.what)).at(index)
    })?;
    if let Some(operation) = operation.filter(|operation| *operation != proof.history.id()) {
        return Err(other_operation(name, &format!("the operation {}", proof.history.id().as_str()), operation));
    }
    let indices: Vec<u64> = sheaf.proven.iter().map(|own| own.index).collect();
    let count = indices.len();
    let what = format!("{name} proves an operation by {count} entries of {}\n{}", checkpoint.origin, told(&proof).trim_end());
    Ok(whole(what, &checkpoint, key, Some(as_json(&proof, &indices))).noting(INCOMPLETE))
}

fn whole(what: String, checkpoint: &Checkpoint, key: Verifier, proven: Option<Json>) -> Whole {
    let (entries, root) = (checkpoint.size, Some(checkpoint.root.to_string()));
    Whole { what, entries, root, verifier: Some(key), gone: 0, notes: Vec::new(), proven, is_key_unverified: false }
}

/// The operation, and by what right it was carried out.
fn told(proof: &Proof) -> String {
    let Proof { history, run, admissions, recoveries } = proof;
    let mut text = ops::explained(history, Some(&format!("asked for in `{}` by {}", run.environment, theirs(&run.by))));
    let mut row = |name: &str, value: String| {
        let _ = writeln!(text, "  {} {value}", styled(render::CYAN, format!("{name:<10}")));
    };
    admissions.iter().for_each(|Weighed { index, answer, approvals, .. }| {
        row("admission", format!("{} in entry {index}", answer.as_str()));
        approvals.iter().for_each(|approval| row("agreed", format!("by {} ({})", theirs(&approval.by), approval.how)));
    });
    recoveries.iter().for_each(|index| row("recovery", format!("a later run found it without an end: entry {index}")));
    text
}

fn as_json(proof: &Proof, indices: &[u64]) -> Json {
    let Proof { history, run, admissions, recoveries } = proof;
    let admissions: Vec<Json> = admissions.iter().map(admission_json).collect();
    json!({
        "admissions": admissions, "by": run.by, "entries": indices, "history": ops::as_json(history), "recoveries": recoveries,
    })
}
