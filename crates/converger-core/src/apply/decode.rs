//! Strict decoder for stored operations and outcomes: text that this program would not have written exactly so is rejected.
//!
//! After a crash another version may read what this one stored. It must read all of it or report that it cannot: a silently dropped part
//! could be exactly what was sent.

use std::fmt;

use super::id::{IdempotencyKey, OperationId, RunId, Slug};
use super::operation::{GuestGuards, Operation, OperationSource, OperationTarget};
use super::outcome::{Evidence, Fact, Findings, OperationEnd, Outcome, ReleaseCondition};
use super::write::REASON_WORDS;
use super::{OPERATION_SCHEMA, OUTCOME_SCHEMA};
use crate::action::{CATALOGUE, Change, ChangeClass, FieldChange, Impact, Risk};
use crate::artifact::{Digest, INTEGER_MAX};
use crate::birth_marks;
use crate::document::{
    DecodeAborted, Diagnostic, Diagnostics, DocumentDecoder, DocumentReader, EventSource as Events, Notation, Span, ValueKind, decode,
    quote,
};
use crate::guest::{EnvironmentName, GuestKind, NodeName, RunState, Vmid};
use crate::normalize::{ChangeEffect, Field, FieldValue, WordSet};
use crate::observe::{read_ha, read_or_null, read_text, read_value, read_words};
use crate::plan::{RestartField, Step, StepReason};

/// Why a stored text cannot be read back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoredTextError {
    /// The text has another schema: another version wrote it.
    OtherSchema {
        /// The schema that it names.
        found: String,
        /// The schema that this program reads.
        known: &'static str,
    },
    /// The text is damaged. Contains all faults with their positions.
    Invalid(Diagnostics),
    /// The text is well-formed, but not in the form that this program writes.
    NotCanonical,
}

impl fmt::Display for StoredTextError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OtherSchema { found, known } => {
                write!(formatter, "its schema is {}; this program reads `{known}`", quote(found))
            }
            Self::Invalid(faults) => {
                let first = faults.list().first();
                let (at, message) = first.map_or((0, "it is incomplete"), |fault| (fault.span.start, fault.message.as_str()));
                write!(formatter, "at byte {at}: {message}")
            }
            Self::NotCanonical => formatter.write_str("it is not in canonical form, or has a key that does not belong"),
        }
    }
}

impl std::error::Error for StoredTextError {}

/// Reads a stored operation.
///
/// # Errors
/// Anything that is not exactly one operation of [`OPERATION_SCHEMA`].
pub fn parse_operation(bytes: &[u8]) -> Result<Operation, StoredTextError> {
    parse_stored(bytes, OPERATION_SCHEMA, OperationDecoder)
}

/// Reads a stored outcome.
///
/// # Errors
/// Anything that is not exactly one outcome of [`OUTCOME_SCHEMA`].
pub fn parse_outcome(bytes: &[u8]) -> Result<Outcome, StoredTextError> {
    parse_stored(bytes, OUTCOME_SCHEMA, OutcomeDecoder)
}

/// Reports another schema before any other fault: faults in an unknown format mean nothing.
pub(crate) fn parse_stored<T>(bytes: &[u8], known: &'static str, file: impl DocumentDecoder<Option<T>>) -> Result<T, StoredTextError> {
    match decode(bytes, Notation::Json, file) {
        Ok(Some(value)) => Ok(value),
        // A decoder that returns `None` has reported why.
        Ok(None) => Err(StoredTextError::Invalid(Diagnostics::default())),
        Err(faults) => match decode(bytes, Notation::Json, SchemaIdDecoder) {
            Ok(Some(found)) if found != known => Err(StoredTextError::OtherSchema { found, known }),
            _ => Err(StoredTextError::Invalid(faults)),
        },
    }
}

struct SchemaIdDecoder;

impl DocumentDecoder<Option<String>> for SchemaIdDecoder {
    fn decode<'t, S: Events<'t>>(self, reader: &mut DocumentReader<'t, S>) -> Result<Option<String>, DecodeAborted> {
        let mut found = None;
        reader.read_entries("the record", |reader, key, _| match key {
            "schema" => reader.read_text("`schema`").map(|text| found = text.map(|(text, _)| text.into_owned())),
            _ => reader.skip_value(),
        })?;
        Ok(found)
    }
}

pub(crate) fn check_schema<'t, S: Events<'t>>(reader: &mut DocumentReader<'t, S>, known: &str) -> Result<(), DecodeAborted> {
    match reader.read_text("`schema`")? {
        Some((found, span)) if found != known => reader.report(Diagnostic::new(span, format!("the schema must be `{known}`"))),
        _ => Ok(()),
    }
}

pub(crate) struct OperationDecoder;

const KEYS: [&str; 9] = ["environment", "guest", "id", "plan", "position", "run", "schema", "source", "step"];

impl DocumentDecoder<Option<Operation>> for OperationDecoder {
    fn decode<'t, S: Events<'t>>(self, reader: &mut DocumentReader<'t, S>) -> Result<Option<Operation>, DecodeAborted> {
        let mut draft = OperationDraft::default();
        let seen = reader.read_fields("the operation", &KEYS, |reader, key, _| {
            match key {
                0 => draft.environment = read_checked(reader, "`environment`", EnvironmentName::new)?,
                1 => draft.guest = read_target(reader)?,
                2 => draft.id = read_checked(reader, "`id`", OperationId::new)?,
                3 => draft.plan = read_checked(reader, "`plan`", Digest::parse)?,
                4 => draft.position = read_u32(reader, "`position`")?,
                5 => draft.run = read_checked(reader, "`run`", RunId::new)?,
                6 => check_schema(reader, OPERATION_SCHEMA)?,
                7 => draft.source = read_source(reader)?,
                _ => draft.step = read_step(reader)?,
            }
            Ok(())
        })?;
        let Some(seen) = seen else { return Ok(None) };
        reader.require_keys(&seen, "the operation", &KEYS, &[0, 1, 2, 3, 4, 5, 6, 7, 8])?;
        Ok(draft.finish())
    }
}

#[derive(Default)]
struct OperationDraft {
    environment: Option<EnvironmentName>,
    guest: Option<OperationTarget>,
    id: Option<OperationId>,
    plan: Option<Digest>,
    position: Option<u32>,
    run: Option<RunId>,
    source: Option<OperationSource>,
    step: Option<(Step, StepClassification)>,
}

impl OperationDraft {
    fn finish(self) -> Option<Operation> {
        let (step, StepClassification { impact, risk, class }) = self.step?;
        Some(Operation {
            id: self.id?,
            run: self.run?,
            environment: self.environment?,
            guest: self.guest?,
            step,
            impact,
            risk,
            class,
            position: self.position?,
            plan: self.plan?,
            source: self.source?,
        })
    }
}

/// Reads text that a checked type accepts.
pub(crate) fn read_checked<'t, S: Events<'t>, T>(
    reader: &mut DocumentReader<'t, S>,
    what: &str,
    new: fn(&str) -> Option<T>,
) -> Result<Option<T>, DecodeAborted> {
    let Some((text, span)) = reader.read_text(what)? else { return Ok(None) };
    match new(&text) {
        Some(value) => Ok(Some(value)),
        None => reader.report_none(Diagnostic::new(span, format!("{} is not a well-formed {what}", quote(&text)))),
    }
}

pub(crate) fn read_u32<'t, S: Events<'t>>(reader: &mut DocumentReader<'t, S>, what: &str) -> Result<Option<u32>, DecodeAborted> {
    Ok(reader.read_integer(what, 0, u64::from(u32::MAX))?.and_then(|(number, _)| u32::try_from(number).ok()))
}

pub(crate) fn read_vmid<'t, S: Events<'t>>(reader: &mut DocumentReader<'t, S>, what: &str) -> Result<Option<Vmid>, DecodeAborted> {
    Ok(reader.read_integer(what, u64::from(Vmid::MIN), u64::from(Vmid::MAX))?.and_then(|(number, _)| Vmid::new(number)))
}

/// Reads one value of a closed set, by its word.
pub(crate) fn read_enum<'t, S: Events<'t>, T: Copy>(
    reader: &mut DocumentReader<'t, S>,
    what: &str,
    words: &[&str],
    all: &[T],
) -> Result<Option<T>, DecodeAborted> {
    Ok(reader.read_keyword(what, words)?.and_then(|(index, _)| all.get(index).copied()))
}

const TARGET_KEYS: [&str; 6] = ["guards", "identity", "kind", "name", "node", "vmid"];

fn read_target<'t, S: Events<'t>>(reader: &mut DocumentReader<'t, S>) -> Result<Option<OperationTarget>, DecodeAborted> {
    let (mut own_guards, mut own_marks, mut kind, mut name, mut node, mut id) = (None, None, None, None, None, None);
    let seen = reader.read_fields("`guest`", &TARGET_KEYS, |reader, key, _| {
        match key {
            0 => own_guards = read_guards(reader)?,
            1 => own_marks = birth_marks::read_marks(reader)?,
            2 => kind = read_enum(reader, "`kind`", &GuestKind::WORDS, &GuestKind::ALL)?,
            3 => name = read_text(reader, "`name`")?,
            4 => node = read_checked(reader, "`node`", NodeName::new)?,
            _ => id = read_vmid(reader, "`vmid`")?,
        }
        Ok(())
    })?;
    let Some(seen) = seen else { return Ok(None) };
    reader.require_keys(&seen, "`guest`", &TARGET_KEYS, &[0, 2, 3, 4, 5])?;
    let (Some(guards), Some(kind), Some(name), Some(node), Some(vmid)) = (own_guards, kind, name, node, id) else { return Ok(None) };
    let identity = own_marks.map(|marks| marks.into_identity(kind, reader)).transpose()?;
    Ok(Some(OperationTarget { vmid, kind, name, node, identity, guards }))
}

const GUARD_KEYS: [&str; 5] = ["ha", "lock", "protection", "tags", "template"];

fn read_guards<'t, S: Events<'t>>(reader: &mut DocumentReader<'t, S>) -> Result<Option<GuestGuards>, DecodeAborted> {
    let (mut ha, mut lock, mut protection, mut tags, mut template) = (None, None, None, None, None);
    let seen = reader.read_fields("`guards`", &GUARD_KEYS, |reader, key, _| {
        match key {
            0 => ha = read_ha(reader)?,
            1 => lock = read_or_null(reader, |reader| read_text(reader, "`lock`"))?,
            2 => protection = reader.read_flag("`protection`")?,
            3 => tags = read_words(reader, "`tags`")?.map(WordSet::new),
            _ => template = reader.read_flag("`template`")?,
        }
        Ok(())
    })?;
    let Some(seen) = seen else { return Ok(None) };
    reader.require_keys(&seen, "`guards`", &GUARD_KEYS, &[0, 1, 2, 3, 4])?;
    let (Some(ha), Some(lock), Some(protection), Some(tags), Some(template)) = (ha, lock, protection, tags, template) else {
        return Ok(None);
    };
    Ok(Some(GuestGuards { ha, lock, protection, tags, template }))
}

const SOURCE_KEYS: [&str; 3] = ["key", "kind", "request"];

fn read_source<'t, S: Events<'t>>(reader: &mut DocumentReader<'t, S>) -> Result<Option<OperationSource>, DecodeAborted> {
    let (mut own_key, mut kind, mut request) = (None, None, None);
    let seen = reader.read_fields("`source`", &SOURCE_KEYS, |reader, key, _| {
        match key {
            0 => own_key = read_checked(reader, "`key`", IdempotencyKey::new)?,
            1 => kind = reader.read_keyword("`kind`", &["convergent", "one-shot"])?.map(|(index, _)| index),
            _ => request = read_checked(reader, "`request`", Digest::parse)?,
        }
        Ok(())
    })?;
    let Some(seen) = seen else { return Ok(None) };
    match (kind, own_key, request) {
        (Some(0), None, None) => Ok(Some(OperationSource::Convergent)),
        (Some(1), Some(key), Some(request)) => Ok(Some(OperationSource::OneShot { key, request })),
        _ => reader.report_none(Diagnostic::new(seen.span, "`source` is convergent, or one-shot with `key` and `request`")),
    }
}

/// How a step was classified when it was judged.
struct StepClassification {
    impact: Impact,
    risk: Risk,
    class: ChangeClass,
}

const STEP_KEYS: [&str; 12] =
    ["change", "class", "fields", "from", "impact", "params", "reason", "restart_for", "restart_to", "risk", "timeout_secs", "wait"];
const IMPACTS: [Impact; 5] = [Impact::None, Impact::Reload, Impact::Reboot, Impact::Stop, Impact::DataLoss];
const IMPACT_WORDS: [&str; 5] = ["none", "reload", "reboot", "stop", "data-loss"];
const RISKS: [Risk; 3] = [Risk::Low, Risk::Medium, Risk::High];
const RISK_WORDS: [&str; 3] = ["low", "medium", "high"];
const CLASSES: [ChangeClass; 3] = [ChangeClass::Benign, ChangeClass::Disruptive, ChangeClass::Destructive];
const CLASS_WORDS: [&str; 3] = ["benign", "disruptive", "destructive"];

#[derive(Default)]
struct StepDraft {
    change: Option<&'static str>,
    class: Option<ChangeClass>,
    fields: Option<Vec<FieldChange>>,
    from: Option<RunState>,
    impact: Option<Impact>,
    params: Option<serde_json::Value>,
    reason: Option<usize>,
    restart_for: Option<Vec<Field>>,
    restart_to: Option<Vec<RestartField>>,
    risk: Option<Risk>,
    timeout_secs: Option<u32>,
    wait: Option<Vec<Vmid>>,
}

fn read_step<'t, S: Events<'t>>(reader: &mut DocumentReader<'t, S>) -> Result<Option<(Step, StepClassification)>, DecodeAborted> {
    let mut draft = StepDraft::default();
    let changes = CATALOGUE.map(|action| action.change);
    let seen = reader.read_fields("`step`", &STEP_KEYS, |reader, key, _| {
        match key {
            0 => draft.change = reader.read_keyword("`change`", &changes)?.and_then(|(index, _)| changes.get(index).copied()),
            1 => draft.class = read_enum(reader, "`class`", &CLASS_WORDS, &CLASSES)?,
            2 => draft.fields = read_field_changes(reader)?,
            3 => draft.from = read_enum(reader, "`from`", &["running", "stopped"], &[RunState::Running, RunState::Stopped])?,
            4 => draft.impact = read_enum(reader, "`impact`", &IMPACT_WORDS, &IMPACTS)?,
            5 => draft.params = read_tree(reader)?,
            6 => draft.reason = reader.read_keyword("`reason`", &REASON_WORDS)?.map(|(index, _)| index),
            7 => draft.restart_for = read_list(reader, "`restart_for`", |reader| read_enum(reader, "a field", &Field::WORDS, &Field::ALL))?,
            8 => draft.restart_to = read_restart_values(reader)?,
            9 => draft.risk = read_enum(reader, "`risk`", &RISK_WORDS, &RISKS)?,
            10 => draft.timeout_secs = read_u32(reader, "`timeout_secs`")?,
            _ => draft.wait = read_list(reader, "`wait`", |reader| read_vmid(reader, "a guest"))?,
        }
        Ok(())
    })?;
    let Some(seen) = seen else { return Ok(None) };
    reader.require_keys(&seen, "`step`", &STEP_KEYS, &[0, 1, 3, 4, 6, 9, 11])?;
    match draft.finish() {
        Some(step) => Ok(Some(step)),
        None => reader
            .report_none(Diagnostic::new(seen.span, "`step` lacks a key that its change or reason needs, or has a key of another one")),
    }
}

pub(crate) fn read_list<'t, S: Events<'t>, T>(
    reader: &mut DocumentReader<'t, S>,
    what: &str,
    read: fn(&mut DocumentReader<'t, S>) -> Result<Option<T>, DecodeAborted>,
) -> Result<Option<Vec<T>>, DecodeAborted> {
    let mut list = Vec::new();
    let seen = reader.read_items(what, |reader| {
        list.extend(read(reader)?);
        Ok(())
    })?;
    Ok(seen.map(|_| list))
}

impl StepDraft {
    fn finish(self) -> Option<(Step, StepClassification)> {
        let change = match (self.change?, self.fields, self.timeout_secs, self.params) {
            ("config.set", Some(fields), None, None) => Change::ConfigSet(fields.into()),
            ("reboot", None, Some(timeout_secs), None) => Change::Reboot { timeout_secs },
            ("shutdown", None, Some(timeout_secs), None) => Change::Shutdown { timeout_secs },
            ("start", None, None, None) => Change::Start,
            ("stop", None, None, None) => Change::Stop,
            (word, None, None, Some(params)) => Change::from_params(word, params)?,
            _ => return None,
        };
        let reason = match (self.reason?, self.restart_for, self.restart_to) {
            (0, None, None) => StepReason::ConfigDiffers,
            (1, None, None) => StepReason::StateDiffers,
            (2, Some(fields), None) => StepReason::RestartForConfig(fields.into_iter().map(without_value).collect()),
            (2, Some(fields), Some(restart_fields)) if restart_fields.iter().map(|restart_field| &restart_field.field).eq(&fields) => {
                StepReason::RestartForConfig(restart_fields.into())
            }
            (3, None, None) => StepReason::Requested,
            (4, None, None) => StepReason::MadeFromTemplate,
            _ => return None,
        };
        let step = Step { change, reason, from: self.from?, wait: self.wait?.into() };
        Some((step, StepClassification { impact: self.impact?, risk: self.risk?, class: self.class? }))
    }
}

/// Reads any JSON value; numbers are whole and not negative, as in every artifact.
fn read_tree<'t, S: Events<'t>>(reader: &mut DocumentReader<'t, S>) -> Result<Option<serde_json::Value>, DecodeAborted> {
    use serde_json::Value;
    if reader.skip_null()? {
        return Ok(Some(Value::Null));
    }
    Ok(match reader.peek_kind()? {
        ValueKind::Text => reader.read_text("a value")?.map(|(text, _)| Value::from(text.into_owned())),
        ValueKind::Flag => reader.read_flag("a value")?.map(Value::from),
        ValueKind::Other => reader.read_integer("a value", 0, INTEGER_MAX)?.map(|(number, _)| Value::from(number)),
        ValueKind::List => read_list(reader, "a list", read_tree)?.map(Value::from),
        ValueKind::Map => {
            let mut members = serde_json::Map::new();
            let seen = reader.read_entries("a map", |reader, key, _| {
                let value = read_tree(reader)?;
                members.extend(value.map(|value| (key.to_owned(), value)));
                Ok(())
            })?;
            seen.map(|_| Value::Object(members))
        }
    })
}

/// A restart reason from a record that predates stored values.
fn without_value(field: Field) -> RestartField {
    RestartField { field, value: None }
}

fn read_restart_values<'t, S: Events<'t>>(reader: &mut DocumentReader<'t, S>) -> Result<Option<Vec<RestartField>>, DecodeAborted> {
    let mut restart_fields = Vec::new();
    let seen = reader.read_fields("`restart_to`", &Field::WORDS, |reader, index, span| {
        let Some(field) = Field::ALL.get(index).copied() else { return Ok(()) };
        restart_fields.extend(read_field_value(reader, field, span)?.map(|value| RestartField { field, value: Some(value) }));
        Ok(())
    })?;
    restart_fields.sort_by_key(|restart_field: &RestartField| restart_field.field);
    Ok(seen.map(|_| restart_fields))
}

fn read_field_changes<'t, S: Events<'t>>(reader: &mut DocumentReader<'t, S>) -> Result<Option<Vec<FieldChange>>, DecodeAborted> {
    let mut changes = Vec::new();
    let seen = reader.read_fields("`fields`", &Field::WORDS, |reader, index, span| {
        let Some(field) = Field::ALL.get(index).copied() else { return Ok(()) };
        changes.extend(read_field_change(reader, field, span)?);
        Ok(())
    })?;
    changes.sort_by_key(|change: &FieldChange| change.field);
    Ok(seen.map(|_| changes))
}

const FIELD_KEYS: [&str; 4] = ["after", "before", "effect", "pending"];

fn read_field_change<'t, S: Events<'t>>(
    reader: &mut DocumentReader<'t, S>,
    field: Field,
    span: Span,
) -> Result<Option<FieldChange>, DecodeAborted> {
    const EFFECTS: [ChangeEffect; 3] = [ChangeEffect::Recorded, ChangeEffect::Live, ChangeEffect::AtRestart];
    let (mut after, mut before, mut effect, mut pending) = (None, None, None, None);
    let seen = reader.read_fields(field.quoted_name(), &FIELD_KEYS, |reader, key, _| {
        match key {
            0 => after = read_field_value(reader, field, span)?,
            1 => before = read_field_value(reader, field, span)?,
            2 => effect = read_enum(reader, "`effect`", &EFFECTS.map(ChangeEffect::word), &EFFECTS)?,
            _ => pending = read_field_value(reader, field, span)?,
        }
        Ok(())
    })?;
    let Some(seen) = seen else { return Ok(None) };
    reader.require_keys(&seen, field.quoted_name(), &FIELD_KEYS, &[0, 1, 2])?;
    let (Some(after), Some(before), Some(effect)) = (after, before, effect) else { return Ok(None) };
    Ok(Some(FieldChange { field, before, after, pending, effect }))
}

/// Reads a value of a field; `Some(None)` is `null`: the key is absent.
fn read_field_value<'t, S: Events<'t>>(
    reader: &mut DocumentReader<'t, S>,
    field: Field,
    span: Span,
) -> Result<Option<Option<FieldValue>>, DecodeAborted> {
    read_or_null(reader, |reader| {
        let Some(loose) = read_value(reader)? else { return Ok(None) };
        match loose.into_value(field.shape()) {
            Some(value) => Ok(Some(value)),
            None => reader.report_none(Diagnostic::new(span, format!("a value of {} has the wrong type", field.quoted_name()))),
        }
    })
}

pub(crate) struct OutcomeDecoder;

const OUTCOME_KEYS: [&str; 6] = ["code", "end", "evidence", "observed", "release", "schema"];

impl DocumentDecoder<Option<Outcome>> for OutcomeDecoder {
    fn decode<'t, S: Events<'t>>(self, reader: &mut DocumentReader<'t, S>) -> Result<Option<Outcome>, DecodeAborted> {
        let (mut code, mut end, mut own_evidence, mut observed, mut release) = (None, None, None, None, None);
        let seen = reader.read_fields("the outcome", &OUTCOME_KEYS, |reader, key, _| {
            match key {
                0 => code = read_checked(reader, "`code`", Slug::new)?,
                1 => end = read_enum(reader, "`end`", &OperationEnd::WORDS, &OperationEnd::ALL)?,
                2 => own_evidence = read_evidence(reader)?,
                3 => observed = read_evidence(reader)?,
                4 => release = read_enum(reader, "`release`", &ReleaseCondition::WORDS, &ReleaseCondition::ALL)?,
                _ => check_schema(reader, OUTCOME_SCHEMA)?,
            }
            Ok(())
        })?;
        let Some(seen) = seen else { return Ok(None) };
        reader.require_keys(&seen, "the outcome", &OUTCOME_KEYS, &[1, 2, 3, 5])?;
        let (Some(end), Some(evidence), Some(observed)) = (end, own_evidence, observed) else { return Ok(None) };
        match build_outcome(end, code, release, Findings { evidence, observed }) {
            Some(outcome) => Ok(Some(outcome)),
            None => reader
                .report_none(Diagnostic::new(seen.span, "the outcome lacks `code` or `release`, or has one that contradicts its `end`")),
        }
    }
}

fn build_outcome(end: OperationEnd, code: Option<Slug>, release: Option<ReleaseCondition>, findings: Findings) -> Option<Outcome> {
    Some(match (end, code, release) {
        (OperationEnd::Done, None, None) => Outcome::Done(findings),
        (OperationEnd::Failed, Some(code), None) => Outcome::Failed { code, findings },
        (OperationEnd::Refused, Some(code), None) => Outcome::Refused { code, findings },
        (OperationEnd::Held, Some(code), Some(release)) => Outcome::Held { code, release, findings },
        (OperationEnd::NotRun, Some(code), None) => Outcome::NotRun { code, findings },
        _ => return None,
    })
}

pub(crate) fn read_evidence<'t, S: Events<'t>>(reader: &mut DocumentReader<'t, S>) -> Result<Option<Evidence>, DecodeAborted> {
    let mut evidence = Evidence::default();
    let seen = reader.read_entries("the evidence", |reader, key, span| {
        let (slug, fact) = (Slug::new(key), read_fact(reader)?);
        let Some(slug) = slug else {
            return reader.report(Diagnostic::new(span, format!("{} is not a valid evidence key", quote(key))));
        };
        let Some(fact) = fact else { return Ok(()) };
        if evidence.insert(slug, fact).is_some() {
            reader.report(Diagnostic::new(span, format!("{} is given twice", quote(key))))?;
        }
        Ok(())
    })?;
    Ok(seen.map(|_| evidence))
}

fn read_fact<'t, S: Events<'t>>(reader: &mut DocumentReader<'t, S>) -> Result<Option<Fact>, DecodeAborted> {
    Ok(match reader.peek_kind()? {
        ValueKind::Text => read_text(reader, "a fact")?.map(Fact::Text),
        ValueKind::List => read_words(reader, "a fact")?.map(|words| Fact::Words(words.into())),
        ValueKind::Map | ValueKind::Flag | ValueKind::Other => {
            reader.read_integer("a fact", 0, INTEGER_MAX)?.map(|(number, _)| Fact::Number(number))
        }
    })
}
