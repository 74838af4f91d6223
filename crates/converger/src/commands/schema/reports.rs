//! The JSON Schemas of reports: the result of an apply, operations of the journal, findings, pins, adopted guests.
//!
//! CI validates the output of the commands on a lab and in the scenarios with them.

use converger_core::apply::{OPERATION_SCHEMA, OUTCOME_SCHEMA, OperationEnd, ReleaseCondition, Resolution};
use converger_core::failure::TABLE as FAILURES;
use converger_core::guest::GuestKind;
use converger_core::normalize::Field;
use converger_core::refusal::TABLE as CODES;
use converger_core::status::RunEnd;
use serde_json::{Map, Value as Json, json};

use super::{
    CHANGES, CLASSES, IMPACTS, RISKS, add_header, changed_field, code_word, digest, enumeration, identity, list, notes, object, or_null,
    refusal, refusals, text, vmid,
};
use crate::commands::action::catalogue::SCHEMA as ACTION_LIST_SCHEMA;

pub(super) fn timestamp() -> Json {
    json!({ "type": "string", "pattern": "^\\d{4}-\\d{2}-\\d{2}T\\d{2}:\\d{2}:\\d{2}Z$" })
}

pub(super) fn count() -> Json {
    json!({ "type": "integer", "minimum": 0 })
}

pub(super) fn flag() -> Json {
    json!({ "type": "boolean" })
}

fn kind() -> Json {
    enumeration(&GuestKind::WORDS)
}

/// Evidence by key.
pub(super) fn evidence() -> Json {
    let fact = json!({ "anyOf": [count(), text(), list(json!({ "anyOf": [count(), text()] }))] });
    json!({ "type": "object", "additionalProperties": fact })
}

pub(super) fn outcome() -> Json {
    let codes: Vec<&str> = CODES.iter().map(|entry| entry.word).chain(FAILURES.iter().map(|entry| entry.word)).collect();
    object(
        &["end", "evidence", "observed", "schema"],
        json!({
            "code": enumeration(&codes), "end": enumeration(&OperationEnd::ALL.map(OperationEnd::word)), "evidence": evidence(), "observed": evidence(),
            "release": enumeration(&ReleaseCondition::ALL.map(ReleaseCondition::word)), "schema": { "const": OUTCOME_SCHEMA },
        }),
    )
}

/// result.json, and `apply --json`.
pub(super) fn result() -> Json {
    let step = object(
        &["began", "change", "ended", "kind", "name", "operation", "outcome", "recorded", "task", "vmid"],
        json!({
            "began": or_null(timestamp()), "change": enumeration(&CHANGES), "ended": or_null(timestamp()), "kind": kind(), "name": text(),
            "operation": text(), "outcome": outcome(), "recorded": flag(), "task": or_null(text()), "vmid": vmid(),
        }),
    );
    let mut schema = object(
        &["at_once", "end", "environment", "left_out", "plan", "recovered", "refused", "run", "schema", "steps"],
        json!({
            "at_once": object(&["overall", "per_node"], json!({ "overall": count(), "per_node": count() })),
            "end": enumeration(&RunEnd::ALL.map(RunEnd::word)), "environment": text(), "left_out": count(), "plan": digest(), "recovered": list(step.clone()), "repeated": { "const": true },
            "refused": list(object(&["guest", "refusal"], json!({ "guest": or_null(vmid()), "refusal": refusal() }))), "run": text(),
            "schema": { "const": "converger.result/1" }, "steps": list(step),
        }),
    );
    add_header(&mut schema, "The outcome of every step of an apply (result.json)");
    schema
}

/// `action list --json`.
pub(super) fn actions() -> Json {
    let parameter = object(
        &["choices", "help", "name", "required", "value"],
        json!({ "choices": list(text()), "help": text(), "name": text(), "required": flag(), "value": text() }),
    );
    let fields: Map<String, Json> = GuestKind::WORDS.iter().map(|kind| ((*kind).to_owned(), list(enumeration(&Field::WORDS)))).collect();
    let action = object(
        &["action", "approvals", "class", "help", "impact", "parameters", "risk", "undo"],
        json!({
            "action": text(), "approvals": enumeration(&["none", "one", "one-signed"]), "class": enumeration(&CLASSES),
            "fields": { "type": "object", "additionalProperties": false, "properties": fields }, "help": text(), "impact": enumeration(&IMPACTS),
            "needs": text(), "parameters": list(parameter), "risk": enumeration(&RISKS), "undo": or_null(enumeration(&CHANGES)),
        }),
    );
    let mut schema = object(&["actions", "schema"], json!({ "actions": list(action), "schema": { "const": ACTION_LIST_SCHEMA } }));
    add_header(&mut schema, "The actions that can be requested (action list --json)");
    schema
}

pub(super) fn operation() -> Json {
    let ha = object(&[], json!({ "state": or_null(text()) }));
    let guards = object(
        &["ha", "lock", "protection", "tags", "template"],
        json!({ "ha": or_null(ha), "lock": or_null(text()), "protection": flag(), "tags": list(text()), "template": flag() }),
    );
    let guest = object(
        &["guards", "kind", "name", "node", "vmid"],
        json!({ "guards": guards, "identity": identity(), "kind": kind(), "name": text(), "node": text(), "vmid": vmid() }),
    );
    let source = object(&["kind"], json!({ "key": text(), "kind": enumeration(&["convergent", "one-shot"]), "request": digest() }));
    let fields = json!({ "type": "object", "propertyNames": enumeration(&Field::WORDS), "additionalProperties": changed_field() });
    let restart_to = json!({ "type": "object", "propertyNames": enumeration(&Field::WORDS) });
    let step = object(
        &["change", "class", "from", "impact", "reason", "risk", "wait"],
        json!({
            "change": enumeration(&CHANGES), "class": enumeration(&CLASSES), "fields": fields, "from": enumeration(&["running", "stopped"]),
            "impact": enumeration(&IMPACTS), "reason": enumeration(&["config-differs", "state-differs", "restart-for-config"]),
            "restart_for": list(text()), "restart_to": restart_to, "risk": enumeration(&RISKS), "timeout_secs": { "type": "integer", "minimum": 1 }, "wait": list(vmid()),
        }),
    );
    object(
        &["environment", "guest", "id", "plan", "position", "run", "schema", "source", "step"],
        json!({
            "environment": text(), "guest": guest, "id": text(), "plan": digest(), "position": count(), "run": text(),
            "schema": { "const": OPERATION_SCHEMA }, "source": source, "step": step,
        }),
    )
}

/// A line of `ops list --json`, and `ops show --json`.
pub(super) fn history() -> Json {
    let mut schema = history_object();
    add_header(&mut schema, "An operation of the journal and its outcome (ops --json)");
    schema
}

/// The same as a part of another schema.
pub(super) fn history_object() -> Json {
    let task = object(&["at_ms", "id"], json!({ "at_ms": count(), "id": text() }));
    let ended_schema = object(&["at_ms", "outcome"], json!({ "at_ms": count(), "outcome": outcome() }));
    let resolved = object(
        &["at_ms", "by", "reason", "resolution"],
        json!({ "at_ms": count(), "by": text(), "reason": text(), "resolution": enumeration(&Resolution::ALL.map(Resolution::word)) }),
    );
    object(
        &["at_ms", "ended", "operation", "resolved", "schema", "sending", "task"],
        json!({
            "at_ms": count(), "ended": or_null(ended_schema), "operation": operation(), "resolved": or_null(resolved),
            "schema": { "const": "converger.history/1" },
            "sending": or_null(object(&["at_ms"], json!({ "at_ms": count() }))), "task": or_null(task),
        }),
    )
}

/// A line of `ops list --json` before those of operations.
pub(super) fn hold_notice() -> Json {
    let by = object(&["at_ms", "who"], json!({ "at_ms": count(), "who": text() }));
    let mut schema = object(
        &["by", "guest", "reason", "said", "schema"],
        json!({
            "by": or_null(by), "guest": or_null(vmid()), "reason": text(), "said": enumeration(&["freeze", "hold"]),
            "schema": { "const": "converger.said/1" },
        }),
    );
    add_header(&mut schema, "A freeze, or a hold of a guest, as long as it lasts (ops list --json)");
    schema
}

/// A line of `doctor --json`.
pub(super) fn doctor_report() -> Json {
    let line = object(&["text", "where"], json!({ "text": text(), "where": enumeration(&["node", "config", "here"]) }));
    let remedy = object(&["lines", "text"], json!({ "lines": list(line), "text": text() }));
    let finding = object(
        &["check", "found", "level"],
        json!({
            "about": text(), "check": { "type": "string", "pattern": "^[a-z0-9-]+$" },
            "code": enumeration(&FAILURES.each_ref().map(|entry| entry.word)), "found": text(),
            "level": enumeration(&["ok", "warn", "fail", "unknown", "unneeded"]), "part": enumeration(&["apply", "request"]), "remedy": remedy.clone(),
        }),
    );
    let summary = object(
        &["fail", "ok", "unknown", "unneeded", "warn"],
        json!({ "fail": count(), "ok": count(), "unknown": count(), "unneeded": count(), "warn": count() }),
    );
    let members = json!({
        "environment": text(), "findings": list(finding), "grant": remedy, "schema": { "const": "converger.doctor/1" }, "summary": summary,
    });
    let mut schema = object(&["environment", "findings", "schema", "summary"], members);
    add_header(&mut schema, "What works in an environment and what does not (doctor --json)");
    schema
}

/// `pin --json`.
pub(super) fn pin_report() -> Json {
    let outcomes = ["pinned", "completed", "replaced", "unchanged", "unmarked", "not-made", "refused"];
    let guest = object(
        &["absent", "kind", "name", "outcome", "vmid"],
        json!({
            "absent": list(text()), "differences": list(text()), "identity": identity(), "kind": kind(), "name": or_null(text()),
            "outcome": enumeration(&outcomes), "refusals": refusals(), "vmid": vmid(),
        }),
    );
    let mut schema = object(
        &["environment", "guests", "refusals", "schema", "written"],
        json!({
            "environment": text(), "guests": list(guest), "refusals": refusals(), "schema": { "const": "converger.pin/1" }, "written": flag(),
        }),
    );
    add_header(&mut schema, "Which guests are pinned by their birth marks (pin --json)");
    schema
}

/// `init --json`.
pub(super) fn init_report() -> Json {
    let left_out = object(&["key", "why"], json!({ "key": text(), "why": text() }));
    let adopted = object(
        &["absent", "kind", "left_out", "name", "vmid"],
        json!({ "absent": list(text()), "kind": kind(), "left_out": list(left_out), "name": text(), "vmid": vmid() }),
    );
    let refused = object(&["refusals", "vmid"], json!({ "refusals": refusals(), "vmid": vmid() }));
    let guests = list(json!({ "anyOf": [adopted, refused] }));
    let mut schema = object(
        &["environment", "guests", "refusals", "schema", "text"],
        json!({
            "environment": text(), "guests": guests, "refusals": refusals(), "schema": { "const": "converger.init/1" }, "text": or_null(text()),
        }),
    );
    add_header(&mut schema, "Guests that are declared as they are (init --json)");
    schema
}

/// `guests --json`.
pub(super) fn guests_report() -> Json {
    let guest = object(
        &["cause", "kind", "name", "node", "run_state", "status", "tags", "template", "vmid"],
        json!({
            "cause": or_null(code_word()), "kind": kind(), "name": or_null(text()), "node": text(), "run_state": or_null(text()),
            "status": enumeration(&["running", "stopped", "unknown"]), "tags": or_null(list(text())), "template": or_null(flag()), "vmid": vmid(),
        }),
    );
    let without_row = object(&["cause", "vmid"], json!({ "cause": code_word(), "vmid": vmid() }));
    let mut schema = object(
        &["environment", "guests", "nodes", "notes", "quorate", "schema", "taken_at", "undecided", "unlisted"],
        json!({
            "environment": text(), "guests": list(guest), "nodes": list(object(&["name", "online"], json!({ "name": text(), "online": flag() }))),
            "notes": notes(), "quorate": flag(), "schema": { "const": "converger.guests/1" }, "taken_at": or_null(timestamp()),
            "undecided": list(vmid()), "unlisted": list(without_row),
        }),
    );
    add_header(&mut schema, "Guests that the token can see (guests --json)");
    schema
}
