//! The JSON Schemas of the evidence: entries of the ledger, and the reports of commands that verify and reproduce.
//!
//! CI validates entries and reports of a lab with them.

use converger_core::apply::{OperationEnd, Resolution};
use converger_core::artifact::DifferenceKind;
use converger_core::evidence::ENTRY_SCHEMA;
use converger_core::failure::FailureCode;
use serde_json::{Value as Json, json};

use super::reports::{count, evidence, flag, history_object, operation, outcome, timestamp};
use super::{add_header, digest, enumeration, list, object, or_null, plan_object, text, vmid};

/// The members of an entry of each kind.
fn entry_kinds() -> Vec<(&'static str, Json)> {
    let ended_schema = json!({ "end": enumeration(&OperationEnd::ALL.map(OperationEnd::word)), "run": text() });
    let run = json!({
        "boot": text(), "by": text(), "catalogue": digest(), "config": digest(), "environment": text(), "intent": digest(),
        "observation": digest(), "plan": digest(), "planner": count(), "program": text(), "rules": digest(), "run": text(),
    });
    let resolved =
        json!({ "by": text(), "id": text(), "reason": text(), "resolution": enumeration(&Resolution::ALL.map(Resolution::word)) });
    vec![
        ("key", json!({ "verifier": text() })),
        ("run-started", run),
        ("plan", json!({ "judgement": digest(), "plan": digest(), "proposal": digest(), "run": text() })),
        ("refusal", json!({ "code": text(), "evidence": evidence(), "guest": vmid(), "run": text(), "stage": text() })),
        ("approval", json!({ "by": text(), "how": text(), "names": list(text()), "proposal": digest(), "run": text() })),
        ("admission", json!({ "answer": text(), "bundle": digest(), "plan": digest(), "run": text() })),
        ("recovery", json!({ "environment": text(), "operations": list(text()) })),
        ("intent", json!({ "operation": operation() })),
        ("sending", json!({ "id": text(), "up_ms": count() })),
        ("task", json!({ "id": text(), "task": text() })),
        ("outcome", json!({ "id": text(), "outcome": outcome() })),
        ("resolution", resolved),
        ("run-ended", ended_schema),
        ("hold", json!({ "by": text(), "environment": text(), "guest": vmid(), "reason": text() })),
        ("release", json!({ "by": text(), "environment": text(), "guest": vmid() })),
        ("freeze", json!({ "by": text(), "environment": text(), "reason": text() })),
        ("thaw", json!({ "by": text(), "environment": text() })),
        ("resync", json!({ "by": text(), "epoch": count(), "reason": text(), "root": text(), "size": count() })),
        ("prune", json!({ "before_ms": count(), "by": text(), "digests": list(digest()) })),
        ("rekey", json!({ "by": text(), "checkpoint": text(), "previous": text(), "reason": text(), "verifier": text() })),
        ("binding", json!({ "by": text(), "cluster": text(), "environment": text() })),
        ("rename", json!({ "by": text(), "environment": text(), "reason": text(), "to": text() })),
        ("restore", json!({ "by": text(), "epoch": count(), "reason": text(), "root": text(), "size": count() })),
    ]
}

/// Optional members of an entry.
const OPTIONAL_MEMBERS: [(&str, &str); 5] =
    [("refusal", "guest"), ("rekey", "checkpoint"), ("resync", "root"), ("restore", "root"), ("run-started", "boot")];

/// An entry of the ledger.
pub(super) fn entry() -> Json {
    let each = entry_kinds().into_iter().map(|(kind, members)| {
        let may_lack = |name: &str| OPTIONAL_MEMBERS.contains(&(kind, name));
        let required: Vec<String> =
            members.as_object().into_iter().flatten().map(|(name, _)| name.clone()).filter(|name| !may_lack(name)).collect();
        let required: Vec<&str> = required.iter().map(String::as_str).collect();
        let what = object(&required, members);
        object(
            &["at_ms", "kind", "schema", "what"],
            json!({ "at_ms": count(), "kind": { "const": kind }, "schema": { "const": ENTRY_SCHEMA }, "what": what }),
        )
    });
    json!({ "oneOf": each.collect::<Vec<_>>() })
}

/// A line of `ledger tail --json`, and `ledger show --json`.
pub(super) fn numbered_entry() -> Json {
    let mut schema = object(&["entry", "index"], json!({ "entry": entry(), "index": count() }));
    add_header(&mut schema, "An entry of the ledger with its place (ledger tail --json, ledger show --json)");
    schema
}

/// `verify --json`.
pub(super) fn verify_report() -> Json {
    let proven = object(
        &["admissions", "by", "entries", "history", "recoveries"],
        json!({
            "admissions": list(admission()), "by": text(), "entries": list(count()), "history": history_object(), "recoveries": list(count()),
        }),
    );
    let whole = object(
        &["entries", "epoch", "gone", "key", "key_verified", "notes", "proven", "root", "schema", "what", "whole"],
        json!({
            "entries": count(), "epoch": or_null(count()), "gone": count(), "key": or_null(text()), "key_verified": { "type": "boolean" }, "notes": list(text()), "proven": or_null(proven),
            "root": or_null(text()),
            "schema": { "const": "converger.verified/1" }, "what": text(), "whole": { "const": true },
        }),
    );
    let broken = object(
        &["code", "index", "schema", "what", "whole"],
        json!({ "code": text(), "index": or_null(count()), "schema": { "const": "converger.verified/1" }, "what": text(), "whole": { "const": false } }),
    );
    let mut schema = json!({ "oneOf": [whole, broken] });
    add_header(&mut schema, "Whether a record is whole (verify --json)");
    schema
}

/// An admission: the decision before a plan is applied.
fn admission() -> Json {
    let approval = object(
        &["by", "how", "names", "proposal"],
        json!({ "by": text(), "how": enumeration(&["digest", "signed", "typed"]), "names": list(text()), "proposal": digest() }),
    );
    object(
        &["answer", "approvals", "bundle", "entry"],
        json!({ "answer": text(), "approvals": list(approval), "bundle": digest(), "entry": count() }),
    )
}

/// `reproduce --json`.
pub(super) fn reproduce_report() -> Json {
    let mut schema = object(
        &["admissions", "also", "by", "entry", "environment", "judgement", "plan", "planner", "program", "run", "same", "schema"],
        json!({
            "admissions": list(admission()), "also": list(text()), "by": text(), "entry": count(), "environment": text(), "judgement": digest(), "plan": digest(), "planner": count(),
            "program": text(), "run": text(), "same": { "const": true }, "schema": { "const": "converger.reproduced/1" },
        }),
    );
    add_header(&mut schema, "A decision that was made again (reproduce --json)");
    schema
}

/// `explain PLAN --json`, `explain RUN --json`.
pub(super) fn explain_report() -> Json {
    let mut schema = object(
        &["admissions", "also", "at_ms", "by", "entry", "environment", "operations", "plan", "run", "schema"],
        json!({
            "admissions": list(admission()), "also": list(text()), "at_ms": count(), "by": text(), "entry": count(), "environment": text(),
            "operations": list(history_object()), "plan": { "oneOf": [plan_object(), stored_plan()] }, "run": text(),
            "schema": { "const": "converger.explained/1" },
        }),
    );
    add_header(&mut schema, "A recorded plan, with who agreed to it and what came of it (explain --json)");
    schema
}

/// A recorded plan that cannot be reproduced.
fn stored_plan() -> Json {
    // Another planner may have written other members.
    let written = || json!({ "type": "object" });
    object(
        &["body", "code", "entry", "held_against", "judgement", "plan", "planner", "program", "run", "schema", "why"],
        json!({
            "body": written(), "code": enumeration(&[FailureCode::EvidencePruned, FailureCode::OtherPlanner].map(FailureCode::word)), "entry": count(),
            "held_against": written(), "judgement": digest(), "plan": digest(), "planner": count(), "program": text(), "run": text(),
            "schema": { "const": "converger.kept/1" }, "why": text(),
        }),
    )
}

/// `backtest --json`.
pub(super) fn backtest_report() -> Json {
    let pair = || object(&["now", "then"], json!({ "now": text(), "then": text() }));
    let changed = object(
        &["guests", "plan", "run", "whole"],
        json!({
            "guests": { "type": "object", "additionalProperties": pair() }, "plan": digest(), "run": text(), "whole": or_null(pair()),
        }),
    );
    let unread = object(&["run", "why"], json!({ "run": text(), "why": text() }));
    let mut schema = object(
        &["changed", "schema", "unread", "weighed"],
        json!({
            "changed": list(changed), "schema": { "const": "converger.backtest/1" }, "unread": list(unread), "weighed": count(),
        }),
    );
    add_header(&mut schema, "What other rules would have made of every recorded decision (backtest --json)");
    schema
}

/// `diff --json`.
pub(super) fn diff_report() -> Json {
    let recorded = object(&["entry", "plan", "run"], json!({ "entry": count(), "plan": digest(), "run": text() }));
    let file = object(&["file", "plan"], json!({ "file": text(), "plan": digest() }));
    let named = || json!({ "anyOf": [recorded.clone(), file.clone()] });
    let kind = || enumeration(&DifferenceKind::WORDS);
    let step = object(&["difference", "text"], json!({ "difference": kind(), "text": text() }));
    let guest = object(
        &["difference", "steps", "text", "vmid"],
        json!({ "difference": kind(), "steps": list(step), "text": text(), "vmid": vmid() }),
    );
    let mut schema = object(
        &["differences", "guests", "one", "other", "same", "schema"],
        json!({
            "differences": list(text()), "guests": list(guest), "one": named(), "other": named(), "same": flag(),
            "schema": { "const": "converger.diff/1" },
        }),
    );
    add_header(&mut schema, "What two plans do differently (diff --json)");
    schema
}

/// `ledger prune --json`.
pub(super) fn prune_report() -> Json {
    let mut schema = object(
        &["before", "bytes", "dry_run", "readings", "schema"],
        json!({
            "before": timestamp(), "bytes": count(), "dry_run": flag(), "readings": list(digest()),
            "schema": { "const": "converger.pruned/1" },
        }),
    );
    add_header(&mut schema, "Pruned observations (ledger prune --json)");
    schema
}

/// `store backup --json`.
pub(super) fn backup_report() -> Json {
    let mut schema = object(
        &["bytes", "entries", "epoch", "file", "held", "open", "root", "schema"],
        json!({
            "bytes": count(), "entries": count(), "epoch": count(), "file": text(), "held": list(text()), "open": list(text()), "root": text(),
            "schema": { "const": "converger.backup/1" },
        }),
    );
    add_header(&mut schema, "A backup of the store (store backup --json)");
    schema
}

/// `store restore --json`.
pub(super) fn restore_report() -> Json {
    let mut schema = object(
        &["entries", "epoch", "has_key", "held", "open", "replaced", "root", "schema"],
        json!({
            "entries": count(), "epoch": count(), "has_key": flag(), "held": list(text()), "open": list(text()), "replaced": or_null(text()),
            "root": text(), "schema": { "const": "converger.restored/1" },
        }),
    );
    add_header(&mut schema, "A restored store (store restore --json)");
    schema
}

#[cfg(test)]
mod tests {
    use super::*;
    use converger_core::evidence::ENTRY_KINDS;

    #[test]
    fn every_entry_kind_has_a_schema() {
        assert_eq!(entry_kinds().into_iter().map(|(kind, _)| kind).collect::<Vec<_>>(), ENTRY_KINDS);
    }
}
