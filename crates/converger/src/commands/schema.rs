//! The JSON Schemas of the file formats. Fields, kinds and codes come from the tables of the core; CI validates every artifact
//! of the scenarios and random plans with them.

mod evidence;
mod reports;

use std::io::{self, Write};
use std::sync::LazyLock;

use converger_core::action::CATALOGUE;
use converger_core::approve::NeededApproval;
use converger_core::guest::{GuestKind, Vmid};
use converger_core::intent::{ACTIONS, REQUEST_SCHEMA};
use converger_core::normalize::{ChangeEffect, Field, FieldRole, HotplugFeatures, TABLE as FIELDS, ValueShape};
use converger_core::observe;
use converger_core::refusal::TABLE as CODES;
use serde_json::{Map, Value as Json, json};

use super::{CommandError, finish_output};
use crate::cli::SchemaFormat;
use crate::exit_status::ExitStatus;

const SCHEMA_DIALECT: &str = "https://json-schema.org/draft/2020-12/schema";

pub(super) fn print_schema(format: SchemaFormat) -> Result<ExitStatus, CommandError> {
    let schema = match format {
        SchemaFormat::Desired => desired(),
        SchemaFormat::Observation => observation(),
        SchemaFormat::Plan => plan(),
        SchemaFormat::Result => reports::result(),
        SchemaFormat::Actions => reports::actions(),
        SchemaFormat::History => reports::history(),
        SchemaFormat::Said => reports::hold_notice(),
        SchemaFormat::Doctor => reports::doctor_report(),
        SchemaFormat::Pin => reports::pin_report(),
        SchemaFormat::Init => reports::init_report(),
        SchemaFormat::Guests => reports::guests_report(),
        SchemaFormat::Entry => evidence::numbered_entry(),
        SchemaFormat::Verified => evidence::verify_report(),
        SchemaFormat::Reproduced => evidence::reproduce_report(),
        SchemaFormat::Explained => evidence::explain_report(),
        SchemaFormat::Backtest => evidence::backtest_report(),
        SchemaFormat::Diff => evidence::diff_report(),
        SchemaFormat::Pruned => evidence::prune_report(),
        SchemaFormat::Backup => evidence::backup_report(),
        SchemaFormat::Restored => evidence::restore_report(),
    };
    // Printing this value cannot fail.
    let text = serde_json::to_string_pretty(&schema).unwrap_or_default();
    finish_output(writeln!(io::stdout(), "{text}"), ExitStatus::Done)
}

/// The words of all changes.
static CHANGES: LazyLock<Vec<&str>> = LazyLock::new(|| CATALOGUE.iter().map(|action| action.change).collect());
const CLASSES: [&str; 3] = ["benign", "disruptive", "destructive"];
const IMPACTS: [&str; 5] = ["none", "reload", "reboot", "stop", "data-loss"];
const RISKS: [&str; 3] = ["low", "medium", "high"];

/// An object with these members and no others.
fn object(required: &[&str], members: Json) -> Json {
    json!({ "type": "object", "additionalProperties": false, "required": required, "properties": members })
}

fn list(items: Json) -> Json {
    json!({ "type": "array", "items": items })
}

fn enumeration(values: &[&str]) -> Json {
    json!({ "enum": values })
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
    let managed = |field: &&Field| FIELDS.iter().any(|rule| rule.field == **field && rule.role == FieldRole::Managed);
    let config: Map<String, Json> =
        Field::ALL.iter().filter(managed).map(|field| (field.word().to_owned(), or_null(desired_value(field.shape())))).collect();
    let guest = object(
        &["vmid", "kind"],
        json!({
            "vmid": vmid(),
            "kind": enumeration(&GuestKind::WORDS),
            "name": { "type": "string", "pattern": "^[a-zA-Z0-9]([a-zA-Z0-9-]*[a-zA-Z0-9])?(\\.[a-zA-Z0-9]([a-zA-Z0-9-]*[a-zA-Z0-9])?)*$", "maxLength": 255 },
            "state": enumeration(&["running", "stopped"]),
            "config": { "type": "object", "additionalProperties": false, "properties": config },
            "restart": enumeration(&["never", "when-needed"]),
            "after": list(vmid()),
            "stop": enumeration(&["shutdown", "hard"]),
            "stop_timeout": { "type": "string", "pattern": "^[1-9][0-9]*[sm]$" },
            "identity": identity(),
            "from": guest_origin(),
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
    add_header(&mut schema, "The declared state of one environment (desired.yaml, desired.json)");
    schema
}

/// How a guest is made: the template, and parameters of `vm.clone`.
fn guest_origin() -> Json {
    let texts = || json!({ "anyOf": [text(), list(text())] });
    object(
        &["template"],
        json!({
            "template": vmid(), "identity": identity(), "disks": enumeration(&["linked", "full"]), "node": text(), "storage": text(),
            "pool": text(), "disk": text(), "disk-size": desired_value(ValueShape::Mib), "cpu": text(), "bridge": text(),
            "vlan": { "type": "integer", "minimum": 1, "maximum": 4094 }, "mac": text(), "addresses": texts(), "gateway": texts(),
            "dns": texts(), "search-domain": text(), "ci-user": text(), "ssh-keys": texts(),
            "password": { "type": "string", "pattern": "^(env|file|credential):" },
        }),
    )
}

fn add_header(schema: &mut Json, title: &str) {
    if let Some(members) = schema.as_object_mut() {
        members.insert("$schema".into(), json!(SCHEMA_DIALECT));
        members.insert("title".into(), json!(title));
    }
}

/// A value as desired.yaml writes it.
fn desired_value(shape: ValueShape) -> Json {
    match shape {
        ValueShape::Mib => json!({ "type": "string", "pattern": "^(0|[1-9][0-9]*)(MiB|GiB|TiB)$" }),
        ValueShape::Thousandths => json!({ "type": "string", "pattern": "^(0|[1-9][0-9]*)(\\.[0-9]{1,3})?$" }),
        ValueShape::Boot => list(text()),
        shape => value(shape),
    }
}

/// A value as artifacts write it.
fn value(shape: ValueShape) -> Json {
    let number = || json!({ "type": "integer", "minimum": 0, "maximum": u32::MAX });
    match shape {
        ValueShape::Flag => json!({ "type": "boolean" }),
        ValueShape::Count | ValueShape::Mib | ValueShape::Thousandths => number(),
        ValueShape::Text => text(),
        ValueShape::Tags => list(text()),
        ValueShape::Startup => object(&[], json!({ "order": number(), "up": number(), "down": number() })),
        ValueShape::Boot => json!({ "anyOf": [list(text()), text()] }),
        ValueShape::Features => list(enumeration(&HotplugFeatures::WORDS)),
    }
}

fn observation() -> Json {
    let config: Map<String, Json> =
        Field::ALL.iter().filter(|field| **field != Field::Tags).map(|field| (field.word().to_owned(), value(field.shape()))).collect();
    let texts: Map<String, Json> = config.keys().map(|key| (key.clone(), text())).collect();
    let guest = object(
        &["vmid", "kind", "node", "status"],
        json!({
            "vmid": vmid(), "kind": enumeration(&GuestKind::WORDS), "node": text(), "name": text(),
            "status": enumeration(&["running", "stopped", "unknown"]), "cause": code_word(),
            "run_state": text(), "cpus": { "type": "integer" }, "maxmem": { "type": "integer" }, "source": text(),
            "lock": or_null(text()), "macs": list(text()), "ha": or_null(object(&[], json!({ "state": or_null(text()) }))),
            "template": { "type": "boolean" }, "protection": { "type": "boolean" }, "tags": list(text()), "identity": identity(),
            "config": { "type": "object", "additionalProperties": false, "properties": config },
            "not_understood": { "type": "object", "additionalProperties": false, "properties": texts },
            "pending": list(object(&["key"], json!({ "key": text(), "value": {}, "delete": { "type": "boolean" } }))),
            "digest": text(), "hardware": guest_hardware(), "replicated": { "type": "boolean" }, "snapshots": guest_snapshots(),
        }),
    );
    let mut schema = object(
        &["schema", "environment", "complete", "quorate", "nodes", "guests"],
        json!({
            "schema": { "const": observe::SCHEMA }, "environment": text(), "source": text(),
            "taken_at": { "type": "string", "pattern": "^\\d{4}-\\d{2}-\\d{2}T\\d{2}:\\d{2}:\\d{2}Z$" },
            "complete": { "type": "boolean" }, "quorate": { "type": "boolean" },
            "nodes": list(observed_node()),
            "guests": list(guest), "unlisted": list(object(&["cause", "vmid"], json!({ "cause": code_word(), "vmid": vmid() }))),
            "unmanaged": { "type": "integer", "minimum": 0 }, "notes": notes(), "tag_case": enumeration(&observe::TagCase::WORDS),
        }),
    );
    add_header(&mut schema, "One observation of an environment (current.json)");
    schema
}

/// The disks of a guest, and what ties it to its node.
fn guest_hardware() -> Json {
    let disk = object(
        &["cdrom", "key", "volume"],
        json!({
            "cdrom": { "type": "boolean" }, "key": text(), "size_kib": { "type": "integer", "minimum": 1 }, "storage": text(),
            "volume": text(),
        }),
    );
    let volume = object(&["key", "volume"], json!({ "key": text(), "storage": text(), "volume": text() }));
    object(
        &["disks", "host_devices", "other_volumes"],
        json!({ "cpu_type": text(), "disks": list(disk), "host_devices": list(text()), "other_volumes": list(volume) }),
    )
}

fn guest_snapshots() -> Json {
    let snapshot = object(
        &["name", "ram"],
        json!({
            "cpu": text(), "made_at": whole_number(), "name": text(), "parent": text(), "ram": { "type": "boolean" }, "state": text(),
        }),
    );
    object(&["list"], json!({ "current": text(), "list": list(snapshot) }))
}

/// A node with what it offers to guests.
fn observed_node() -> Json {
    let capacity = object(
        &["cpus", "memory_available", "memory_total"],
        json!({
            "cpu_model": text(), "cpus": { "type": "integer", "minimum": 0, "maximum": u32::MAX }, "memory_available": whole_number(),
            "memory_total": whole_number(),
        }),
    );
    let storage = object(
        &["active", "content", "kind", "name", "shared"],
        json!({
            "active": { "type": "boolean" }, "available": whole_number(), "content": list(text()), "kind": text(), "name": text(),
            "shared": { "type": "boolean" }, "total": whole_number(),
        }),
    );
    object(&["name", "online"], json!({ "capacity": capacity, "name": text(), "online": { "type": "boolean" }, "storages": list(storage) }))
}

fn whole_number() -> Json {
    json!({ "type": "integer", "minimum": 0 })
}

/// A machine-readable word.
fn code_word() -> Json {
    json!({ "type": "string", "pattern": "^[a-z0-9-]{1,64}$" })
}

/// A note about an observation.
fn notes() -> Json {
    list(object(&["code", "remedy", "text"], json!({ "code": code_word(), "guest": vmid(), "remedy": text(), "text": text() })))
}

fn refusals() -> Json {
    list(refusal())
}

fn refusal() -> Json {
    let codes: Vec<&str> = CODES.iter().map(|entry| entry.word).collect();
    let stages = enumeration(&["plan", "safety", "apply"]);
    object(
        &["code", "evidence", "remedy", "stage"],
        json!({ "code": enumeration(&codes), "evidence": { "type": "object" }, "remedy": text(), "stage": stages }),
    )
}

/// A field that a step changes.
fn changed_field() -> Json {
    let effects = [ChangeEffect::Recorded, ChangeEffect::Live, ChangeEffect::AtRestart].map(ChangeEffect::word);
    object(&["after", "before", "effect"], json!({ "after": {}, "before": {}, "effect": enumeration(&effects), "pending": {} }))
}

fn step() -> Json {
    let fields = json!({ "type": "object", "propertyNames": enumeration(&Field::WORDS), "additionalProperties": changed_field() });
    object(
        &["change", "class", "impact", "precondition", "reason", "risk", "undo"],
        json!({
            "change": enumeration(&CHANGES), "class": enumeration(&CLASSES), "fields": fields, "impact": enumeration(&IMPACTS),
            "precondition": object(&["status"], json!({ "status": enumeration(&["running", "stopped"]) })),
            "params": { "type": "object" }, "reason": text(), "risk": enumeration(&RISKS), "timeout_secs": { "type": "integer", "minimum": 1 },
            "undo": { "type": "object" }, "wait": list(vmid()),
        }),
    )
}

/// What must be unchanged before a step of a guest is sent.
fn precondition() -> Json {
    object(
        &["ha", "lock", "name", "protection", "tags", "template"],
        json!({
            "ha": or_null(object(&[], json!({ "state": text() }))), "identity": identity(), "lock": { "type": "null" }, "name": text(),
            "protection": { "type": "boolean" }, "tags": list(text()), "template": { "const": false },
        }),
    )
}

fn plan() -> Json {
    let mut schema = plan_object();
    add_header(&mut schema, "What would be done and what is refused (plan.json)");
    schema
}

/// What a plan was made for.
fn intent() -> Json {
    let target = object(&["kind", "vmid"], json!({ "kind": enumeration(&GuestKind::WORDS), "vmid": vmid() }));
    let actions: Vec<&str> = ACTIONS.iter().map(|action| action.name).collect();
    let request = object(
        &["action", "environment", "params", "schema", "target"],
        json!({
            "action": enumeration(&actions), "environment": text(), "params": { "type": "object" }, "schema": { "const": REQUEST_SCHEMA },
            "target": target,
        }),
    );
    object(&["digest", "kind"], json!({ "digest": digest(), "kind": enumeration(&["desired", "request"]), "request": request }))
}

/// What must be given before a step is applied.
fn needed_approval() -> Json {
    let approvals = [NeededApproval::Confirmation, NeededApproval::Terminal, NeededApproval::TypedName, NeededApproval::Signed];
    let approvals = approvals.map(NeededApproval::word);
    object(&["approval", "change", "vmid"], json!({ "approval": enumeration(&approvals), "change": enumeration(&CHANGES), "vmid": vmid() }))
}

/// The same as a part of another schema.
fn plan_object() -> Json {
    let guest = object(
        &["kind", "verdict", "vmid"],
        json!({
            "kind": enumeration(&GuestKind::WORDS), "name": text(), "pending_restart": { "const": true }, "precondition": precondition(), "refusals": refusals(),
            "steps": list(step()), "verdict": enumeration(&["converged", "steps", "refused"]), "vmid": vmid(),
        }),
    );
    let body = object(
        &["catalogue_digest", "environment", "guests", "intent", "observation_digest", "planner", "refusals", "rules_digest"],
        json!({
            "catalogue_digest": digest(), "environment": text(), "guests": list(guest), "intent": intent(),
            "observation_digest": digest(), "planner": { "type": "integer" }, "refusals": refusals(), "rules_digest": digest(),
        }),
    );
    let count = || json!({ "type": "integer", "minimum": 0 });
    let limits = object(&["guests", "percent", "stops"], json!({ "guests": count(), "percent": count(), "stops": count() }));
    let person = object(&["by", "reason"], json!({ "by": text(), "reason": text() }));
    let blocked_by =
        json!({ "oneOf": [object(&["person"], json!({ "person": person })), object(&["operation"], json!({ "operation": text() }))] });
    let hold = object(&["by", "vmid"], json!({ "by": blocked_by, "vmid": vmid() }));
    let epoch = json!({ "type": "integer", "minimum": 2 });
    let circumstances = object(&["freeze"], json!({ "cluster": text(), "epoch": epoch, "freeze": or_null(text()), "holds": list(hold) }));
    let judged_guest = object(&["refusals", "vmid"], json!({ "refusals": refusals(), "vmid": vmid() }));
    let judgement = object(
        &["circumstances", "digest", "limits", "refusals"],
        json!({ "circumstances": circumstances, "digest": digest(), "guests": list(judged_guest), "limits": limits, "refusals": refusals() }),
    );
    let summary = object(
        &["converged", "guests", "refused", "steps", "unmanaged"],
        json!({ "converged": count(), "guests": count(), "refused": count(), "steps": count(), "unmanaged": count() }),
    );
    object(
        &["body", "digest", "judgement", "proposal", "provenance", "schema", "summary"],
        json!({
            "body": body, "digest": digest(), "judgement": judgement, "needs": list(needed_approval()),
            "notes": notes(), "proposal": digest(), "provenance": enumeration(&["live", "replay"]),
            "schema": { "const": converger_core::artifact::PLAN_SCHEMA }, "summary": summary,
        }),
    )
}
