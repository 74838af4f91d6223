//! The JSON Schemas of the file formats. Fields, kinds and codes come from the tables of the core; CI holds every artifact
//! of the scenarios and random plans against them.

mod evidence;
mod reports;

use std::io::{self, Write};

use converger_core::guest::{Kind, Vmid};
use converger_core::normalize::{Effect, Features, Field, Role, Shape, TABLE as FIELDS};
use converger_core::observe;
use converger_core::refusal::TABLE as CODES;
use serde_json::{Map, Value as Json, json};

use super::{Stop, shown};
use crate::cli::Format;
use crate::exit::End;

const DRAFT: &str = "https://json-schema.org/draft/2020-12/schema";

pub(super) fn schema(format: Format) -> Result<End, Stop> {
    let schema = match format {
        Format::Desired => desired(),
        Format::Observation => observation(),
        Format::Plan => plan(),
        Format::Result => reports::result(),
        Format::History => reports::history(),
        Format::Said => reports::said(),
        Format::Doctor => reports::doctor(),
        Format::Pin => reports::pin(),
        Format::Init => reports::init(),
        Format::Entry => evidence::numbered(),
        Format::Verified => evidence::verified(),
        Format::Reproduced => evidence::reproduced(),
        Format::Explained => evidence::explained(),
        Format::Backtest => evidence::backtest(),
        Format::Diff => evidence::diff(),
        Format::Pruned => evidence::pruned(),
    };
    // Pretty-printing a value made here cannot fail; if it did, an empty line would be an honest answer.
    let text = serde_json::to_string_pretty(&schema).unwrap_or_default();
    shown(writeln!(io::stdout(), "{text}"), End::Done)
}

const CHANGES: [&str; 5] = ["config.set", "reboot", "shutdown", "start", "stop"];
const CLASSES: [&str; 3] = ["benign", "disruptive", "destructive"];
const IMPACTS: [&str; 5] = ["none", "reload", "reboot", "stop", "data-loss"];
const RISKS: [&str; 3] = ["low", "medium", "high"];

/// An object that knows these members and no others.
fn object(required: &[&str], members: Json) -> Json {
    json!({ "type": "object", "additionalProperties": false, "required": required, "properties": members })
}

fn list(items: Json) -> Json {
    json!({ "type": "array", "items": items })
}

fn words(words: &[&str]) -> Json {
    json!({ "enum": words })
}

fn vmid() -> Json {
    json!({ "type": "integer", "minimum": Vmid::MIN, "maximum": Vmid::MAX })
}

fn text() -> Json {
    json!({ "type": "string" })
}

fn digest() -> Json {
    json!({ "type": "string", "pattern": "^sha256:[0-9a-f]{64}$" })
}

fn identity() -> Json {
    object(&[], json!({ "uuid": text(), "ctime": { "type": "integer", "minimum": 0 }, "rootfs": text(), "mac": text() }))
}

fn or_null(schema: Json) -> Json {
    json!({ "anyOf": [schema, { "type": "null" }] })
}

fn desired() -> Json {
    let managed = |field: &&Field| FIELDS.iter().any(|rule| rule.field == **field && rule.role == Role::Managed);
    let config: Map<String, Json> =
        Field::ALL.iter().filter(managed).map(|field| (field.word().to_owned(), or_null(desired_value(field.shape())))).collect();
    let guest = object(
        &["vmid", "kind"],
        json!({
            "vmid": vmid(),
            "kind": words(&Kind::WORDS),
            "name": { "type": "string", "pattern": "^[a-zA-Z0-9]([a-zA-Z0-9-]*[a-zA-Z0-9])?(\\.[a-zA-Z0-9]([a-zA-Z0-9-]*[a-zA-Z0-9])?)*$", "maxLength": 255 },
            "state": words(&["running", "stopped"]),
            "config": { "type": "object", "additionalProperties": false, "properties": config },
            "restart": words(&["never", "when-needed"]),
            "after": list(vmid()),
            "stop": words(&["shutdown", "hard"]),
            "stop_timeout": { "type": "string", "pattern": "^[1-9][0-9]*[sm]$" },
            "identity": identity(),
        }),
    );
    let mut schema = object(
        &["version", "environment", "guests"],
        json!({
            "version": { "const": 1 },
            "environment": { "type": "string", "pattern": "^[a-z0-9][a-z0-9_-]{0,63}$" },
            "guests": list(guest),
        }),
    );
    head(&mut schema, "The declared state of one environment (desired.yaml, desired.json)");
    schema
}

fn head(schema: &mut Json, title: &str) {
    if let Some(members) = schema.as_object_mut() {
        members.insert("$schema".into(), json!(DRAFT));
        members.insert("title".into(), json!(title));
    }
}

/// A value as desired.yaml writes it.
fn desired_value(shape: Shape) -> Json {
    match shape {
        Shape::Mib => json!({ "type": "string", "pattern": "^(0|[1-9][0-9]*)(MiB|GiB|TiB)$" }),
        Shape::Thousandths => json!({ "type": "string", "pattern": "^(0|[1-9][0-9]*)(\\.[0-9]{1,3})?$" }),
        Shape::Boot => list(text()),
        shape => value(shape),
    }
}

/// A value as artifacts write it.
fn value(shape: Shape) -> Json {
    let number = || json!({ "type": "integer", "minimum": 0, "maximum": u32::MAX });
    match shape {
        Shape::Flag => json!({ "type": "boolean" }),
        Shape::Count | Shape::Mib | Shape::Thousandths => number(),
        Shape::Text => text(),
        Shape::Tags => list(text()),
        Shape::Startup => object(&[], json!({ "order": number(), "up": number(), "down": number() })),
        Shape::Boot => json!({ "anyOf": [list(text()), text()] }),
        Shape::Features => list(words(&Features::WORDS)),
    }
}

fn observation() -> Json {
    let config: Map<String, Json> =
        Field::ALL.iter().filter(|field| **field != Field::Tags).map(|field| (field.word().to_owned(), value(field.shape()))).collect();
    let texts: Map<String, Json> = config.keys().map(|key| (key.clone(), text())).collect();
    let guest = object(
        &["vmid", "kind", "node", "status"],
        json!({
            "vmid": vmid(), "kind": words(&Kind::WORDS), "node": text(), "name": text(),
            "status": words(&["running", "stopped", "unknown"]), "cause": cause(),
            "run_state": text(), "cpus": { "type": "integer" }, "maxmem": { "type": "integer" }, "source": text(),
            "lock": or_null(text()), "macs": list(text()), "ha": or_null(object(&[], json!({ "state": or_null(text()) }))),
            "template": { "type": "boolean" }, "protection": { "type": "boolean" }, "tags": list(text()), "identity": identity(),
            "config": { "type": "object", "additionalProperties": false, "properties": config },
            "not_understood": { "type": "object", "additionalProperties": false, "properties": texts },
            "pending": list(object(&["key"], json!({ "key": text(), "value": {}, "delete": { "type": "boolean" } }))),
            "digest": text(),
        }),
    );
    let mut schema = object(
        &["schema", "environment", "complete", "quorate", "nodes", "guests"],
        json!({
            "schema": { "const": observe::SCHEMA }, "environment": text(), "source": text(),
            "taken_at": { "type": "string", "pattern": "^\\d{4}-\\d{2}-\\d{2}T\\d{2}:\\d{2}:\\d{2}Z$" },
            "complete": { "type": "boolean" }, "quorate": { "type": "boolean" },
            "nodes": list(object(&["name", "online"], json!({ "name": text(), "online": { "type": "boolean" } }))),
            "guests": list(guest), "unlisted": list(object(&["cause", "vmid"], json!({ "cause": cause(), "vmid": vmid() }))),
            "unmanaged": { "type": "integer", "minimum": 0 }, "notes": notes(), "tag_case": words(&observe::TagCase::WORDS),
        }),
    );
    head(&mut schema, "One reading of an environment (current.json)");
    schema
}

/// A word for machines as much as for people.
fn cause() -> Json {
    json!({ "type": "string", "pattern": "^[a-z0-9-]{1,64}$" })
}

/// What people should know about a reading.
fn notes() -> Json {
    list(object(&["code", "remedy", "text"], json!({ "code": cause(), "guest": vmid(), "remedy": text(), "text": text() })))
}

fn refusals() -> Json {
    list(refusal())
}

fn refusal() -> Json {
    let codes: Vec<&str> = CODES.iter().map(|entry| entry.word).collect();
    let stages = words(&["plan", "safety", "apply"]);
    object(
        &["code", "evidence", "remedy", "stage"],
        json!({ "code": words(&codes), "evidence": { "type": "object" }, "remedy": text(), "stage": stages }),
    )
}

/// A field that a step changes.
fn changed_field() -> Json {
    let effects = [Effect::Recorded, Effect::Live, Effect::AtRestart].map(Effect::word);
    object(&["after", "before", "effect"], json!({ "after": {}, "before": {}, "effect": words(&effects), "pending": {} }))
}

fn step() -> Json {
    let fields = json!({ "type": "object", "propertyNames": words(&Field::WORDS), "additionalProperties": changed_field() });
    object(
        &["change", "class", "impact", "precondition", "reason", "risk", "undo"],
        json!({
            "change": words(&CHANGES), "class": words(&CLASSES), "fields": fields, "impact": words(&IMPACTS),
            "precondition": object(&["status"], json!({ "status": words(&["running", "stopped"]) })),
            "reason": text(), "risk": words(&RISKS), "timeout_secs": { "type": "integer", "minimum": 1 },
            "undo": { "type": "object" }, "wait": list(vmid()),
        }),
    )
}

/// What must be found again before any step of a guest.
fn found() -> Json {
    object(
        &["ha", "lock", "name", "protection", "tags", "template"],
        json!({
            "ha": or_null(object(&[], json!({ "state": text() }))), "identity": identity(), "lock": { "type": "null" }, "name": text(),
            "protection": { "type": "boolean" }, "tags": list(text()), "template": { "const": false },
        }),
    )
}

fn plan() -> Json {
    let mut schema = plan_row();
    head(&mut schema, "What would be done and what is refused (plan.json)");
    schema
}

/// The same as a part of something else.
fn plan_row() -> Json {
    let guest = object(
        &["kind", "verdict", "vmid"],
        json!({
            "kind": words(&Kind::WORDS), "name": text(), "pending_restart": { "const": true }, "precondition": found(), "refusals": refusals(),
            "steps": list(step()), "verdict": words(&["converged", "steps", "refused"]), "vmid": vmid(),
        }),
    );
    let body = object(
        &["catalogue_digest", "desired_digest", "environment", "guests", "observation_digest", "planner", "refusals", "rules_digest"],
        json!({
            "catalogue_digest": digest(), "desired_digest": digest(), "environment": text(), "guests": list(guest),
            "observation_digest": digest(), "planner": { "type": "integer" }, "refusals": refusals(), "rules_digest": digest(),
        }),
    );
    let count = || json!({ "type": "integer", "minimum": 0 });
    let limits = object(&["guests", "percent", "stops"], json!({ "guests": count(), "percent": count(), "stops": count() }));
    let circumstances = object(&["freeze"], json!({ "freeze": or_null(text()) }));
    let judgement = object(
        &["circumstances", "digest", "limits", "refusals"],
        json!({ "circumstances": circumstances, "digest": digest(), "limits": limits, "refusals": refusals() }),
    );
    let summary = object(
        &["converged", "guests", "refused", "steps", "unmanaged"],
        json!({ "converged": count(), "guests": count(), "refused": count(), "steps": count(), "unmanaged": count() }),
    );
    object(
        &["body", "digest", "judgement", "provenance", "schema", "summary"],
        json!({
            "body": body, "digest": digest(), "judgement": judgement, "notes": notes(), "provenance": words(&["live", "replay"]),
            "schema": { "const": converger_core::artifact::PLAN_SCHEMA }, "summary": summary,
        }),
    )
}
