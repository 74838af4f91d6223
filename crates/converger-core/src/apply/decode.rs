//! Stored operations and outcomes, read back strictly: what is not exactly as this program writes it is refused.
//!
//! After a crash another version may meet what this one stored. It must read it whole or say that it cannot: a part
//! that is silently dropped could be the very thing that was sent.

use std::fmt;

use super::id::{IdempotencyKey, OperationId, RunId, Word};
use super::operation::{Guards, Operation, Source, Target};
use super::outcome::{End, Evidence, Fact, Findings, Outcome, Release};
use super::write::REASON_WORDS;
use super::{OPERATION_SCHEMA, OUTCOME_SCHEMA};
use crate::action::{CATALOGUE, Change, Class, FieldChange, Impact, Risk};
use crate::artifact::{Digest, INTEGER_MAX};
use crate::document::{Decode, Diagnostic, Diagnostics, Next, Notation, Reader, Source as Events, Span, Stop, decode, quoted};
use crate::guest::{EnvironmentName, Kind, NodeName, RunState, Vmid};
use crate::marks;
use crate::normalize::{Effect, Field, Value, Words};
use crate::observe::{or_null, read_ha, read_text, read_value, read_words};
use crate::plan::{Awaited, Reason, Step};

/// Why a stored text cannot be read back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// It is of another schema: another version wrote it.
    OtherSchema {
        /// The schema that it names.
        found: String,
        /// The schema that this program reads.
        known: &'static str,
    },
    /// It is damaged: all faults, with their places.
    Faults(Diagnostics),
    /// It says something that is well-formed, in another form than the one that this program writes.
    OtherForm,
}

impl fmt::Display for Malformed {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OtherSchema { found, known } => {
                write!(formatter, "it is of the schema {}, and this program reads `{known}`", quoted(found))
            }
            Self::Faults(faults) => {
                let first = faults.list().first();
                let (at, message) = first.map_or((0, "it is not whole"), |fault| (fault.span.start, fault.message.as_str()));
                write!(formatter, "at byte {at}: {message}")
            }
            Self::OtherForm => formatter.write_str("it is not in the one form that this program writes, or has a key of another kind"),
        }
    }
}

impl std::error::Error for Malformed {}

/// Reads a stored operation.
///
/// # Errors
/// Anything that is not exactly one operation of [`OPERATION_SCHEMA`].
pub fn parse_operation(bytes: &[u8]) -> Result<Operation, Malformed> {
    parse(bytes, OPERATION_SCHEMA, OperationFile)
}

/// Reads a stored outcome.
///
/// # Errors
/// Anything that is not exactly one outcome of [`OUTCOME_SCHEMA`].
pub fn parse_outcome(bytes: &[u8]) -> Result<Outcome, Malformed> {
    parse(bytes, OUTCOME_SCHEMA, OutcomeFile)
}

/// Another schema is said as such, whatever else was found: faults of a format that is not known say nothing.
pub(crate) fn parse<T>(bytes: &[u8], known: &'static str, file: impl Decode<Option<T>>) -> Result<T, Malformed> {
    match decode(bytes, Notation::Json, file) {
        Ok(Some(value)) => Ok(value),
        // A decoder that has nothing to give has reported why.
        Ok(None) => Err(Malformed::Faults(Diagnostics::default())),
        Err(faults) => match decode(bytes, Notation::Json, SchemaOnly) {
            Ok(Some(found)) if found != known => Err(Malformed::OtherSchema { found, known }),
            _ => Err(Malformed::Faults(faults)),
        },
    }
}

struct SchemaOnly;

impl Decode<Option<String>> for SchemaOnly {
    fn decode<'t, S: Events<'t>>(self, reader: &mut Reader<'t, S>) -> Result<Option<String>, Stop> {
        let mut found = None;
        reader.entries("the record", |reader, key, _| match key {
            "schema" => reader.text("`schema`").map(|text| found = text.map(|(text, _)| text.into_owned())),
            _ => reader.skip_value(),
        })?;
        Ok(found)
    }
}

pub(crate) fn schema<'t, S: Events<'t>>(reader: &mut Reader<'t, S>, known: &str) -> Result<(), Stop> {
    match reader.text("`schema`")? {
        Some((found, span)) if found != known => reader.report(Diagnostic::new(span, format!("the schema must be `{known}`"))),
        _ => Ok(()),
    }
}

pub(crate) struct OperationFile;

const KEYS: [&str; 9] = ["environment", "guest", "id", "plan", "position", "run", "schema", "source", "step"];

impl Decode<Option<Operation>> for OperationFile {
    fn decode<'t, S: Events<'t>>(self, reader: &mut Reader<'t, S>) -> Result<Option<Operation>, Stop> {
        let mut draft = Draft::default();
        let seen = reader.fields("the operation", &KEYS, |reader, key, _| {
            match key {
                0 => draft.environment = checked(reader, "`environment`", EnvironmentName::new)?,
                1 => draft.guest = target(reader)?,
                2 => draft.id = checked(reader, "`id`", OperationId::new)?,
                3 => draft.plan = checked(reader, "`plan`", Digest::parse)?,
                4 => draft.position = number(reader, "`position`")?,
                5 => draft.run = checked(reader, "`run`", RunId::new)?,
                6 => schema(reader, OPERATION_SCHEMA)?,
                7 => draft.source = source(reader)?,
                _ => draft.step = step(reader)?,
            }
            Ok(())
        })?;
        let Some(seen) = seen else { return Ok(None) };
        reader.required(&seen, "the operation", &KEYS, &[0, 1, 2, 3, 4, 5, 6, 7, 8])?;
        Ok(draft.finish())
    }
}

#[derive(Default)]
struct Draft {
    environment: Option<EnvironmentName>,
    guest: Option<Target>,
    id: Option<OperationId>,
    plan: Option<Digest>,
    position: Option<u32>,
    run: Option<RunId>,
    source: Option<Source>,
    step: Option<(Step, Weight)>,
}

impl Draft {
    fn finish(self) -> Option<Operation> {
        let (step, Weight { impact, risk, class }) = self.step?;
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

/// Text that a checked type accepts.
pub(crate) fn checked<'t, S: Events<'t>, T>(reader: &mut Reader<'t, S>, what: &str, new: fn(&str) -> Option<T>) -> Result<Option<T>, Stop> {
    let Some((text, span)) = reader.text(what)? else { return Ok(None) };
    match new(&text) {
        Some(value) => Ok(Some(value)),
        None => reader.refuse(Diagnostic::new(span, format!("{} is not a well-formed {what}", quoted(&text)))),
    }
}

pub(crate) fn number<'t, S: Events<'t>>(reader: &mut Reader<'t, S>, what: &str) -> Result<Option<u32>, Stop> {
    Ok(reader.integer(what, 0, u64::from(u32::MAX))?.and_then(|(number, _)| u32::try_from(number).ok()))
}

pub(crate) fn vmid<'t, S: Events<'t>>(reader: &mut Reader<'t, S>, what: &str) -> Result<Option<Vmid>, Stop> {
    Ok(reader.integer(what, u64::from(Vmid::MIN), u64::from(Vmid::MAX))?.and_then(|(number, _)| Vmid::new(number)))
}

/// One of a closed set, by its word.
pub(crate) fn one_of<'t, S: Events<'t>, T: Copy>(
    reader: &mut Reader<'t, S>,
    what: &str,
    words: &[&str],
    all: &[T],
) -> Result<Option<T>, Stop> {
    Ok(reader.word(what, words)?.and_then(|(index, _)| all.get(index).copied()))
}

const TARGET_KEYS: [&str; 6] = ["guards", "identity", "kind", "name", "node", "vmid"];

fn target<'t, S: Events<'t>>(reader: &mut Reader<'t, S>) -> Result<Option<Target>, Stop> {
    let (mut own_guards, mut own_marks, mut kind, mut name, mut node, mut id) = (None, None, None, None, None, None);
    let seen = reader.fields("`guest`", &TARGET_KEYS, |reader, key, _| {
        match key {
            0 => own_guards = guards(reader)?,
            1 => own_marks = marks::read(reader)?,
            2 => kind = one_of(reader, "`kind`", &Kind::WORDS, &Kind::ALL)?,
            3 => name = read_text(reader, "`name`")?,
            4 => node = checked(reader, "`node`", NodeName::new)?,
            _ => id = vmid(reader, "`vmid`")?,
        }
        Ok(())
    })?;
    let Some(seen) = seen else { return Ok(None) };
    reader.required(&seen, "`guest`", &TARGET_KEYS, &[0, 2, 3, 4, 5])?;
    let (Some(guards), Some(kind), Some(name), Some(node), Some(vmid)) = (own_guards, kind, name, node, id) else { return Ok(None) };
    let identity = own_marks.map(|marks| marks.of(kind, reader)).transpose()?;
    Ok(Some(Target { vmid, kind, name, node, identity, guards }))
}

const GUARD_KEYS: [&str; 5] = ["ha", "lock", "protection", "tags", "template"];

fn guards<'t, S: Events<'t>>(reader: &mut Reader<'t, S>) -> Result<Option<Guards>, Stop> {
    let (mut ha, mut lock, mut protection, mut tags, mut template) = (None, None, None, None, None);
    let seen = reader.fields("`guards`", &GUARD_KEYS, |reader, key, _| {
        match key {
            0 => ha = read_ha(reader)?,
            1 => lock = or_null(reader, |reader| read_text(reader, "`lock`"))?,
            2 => protection = reader.flag("`protection`")?,
            3 => tags = read_words(reader, "`tags`")?.map(Words::new),
            _ => template = reader.flag("`template`")?,
        }
        Ok(())
    })?;
    let Some(seen) = seen else { return Ok(None) };
    reader.required(&seen, "`guards`", &GUARD_KEYS, &[0, 1, 2, 3, 4])?;
    let (Some(ha), Some(lock), Some(protection), Some(tags), Some(template)) = (ha, lock, protection, tags, template) else {
        return Ok(None);
    };
    Ok(Some(Guards { ha, lock, protection, tags, template }))
}

const SOURCE_KEYS: [&str; 3] = ["key", "kind", "request"];

fn source<'t, S: Events<'t>>(reader: &mut Reader<'t, S>) -> Result<Option<Source>, Stop> {
    let (mut own_key, mut kind, mut request) = (None, None, None);
    let seen = reader.fields("`source`", &SOURCE_KEYS, |reader, key, _| {
        match key {
            0 => own_key = checked(reader, "`key`", IdempotencyKey::new)?,
            1 => kind = reader.word("`kind`", &["convergent", "one-shot"])?.map(|(index, _)| index),
            _ => request = checked(reader, "`request`", Digest::parse)?,
        }
        Ok(())
    })?;
    let Some(seen) = seen else { return Ok(None) };
    match (kind, own_key, request) {
        (Some(0), None, None) => Ok(Some(Source::Convergent)),
        (Some(1), Some(key), Some(request)) => Ok(Some(Source::OneShot { key, request })),
        _ => reader.refuse(Diagnostic::new(seen.span, "`source` is convergent, or one-shot with `key` and `request`")),
    }
}

/// What a step amounted to when it was judged.
struct Weight {
    impact: Impact,
    risk: Risk,
    class: Class,
}

const STEP_KEYS: [&str; 11] =
    ["change", "class", "fields", "from", "impact", "reason", "restart_for", "restart_to", "risk", "timeout_secs", "wait"];
const IMPACTS: [Impact; 5] = [Impact::None, Impact::Reload, Impact::Reboot, Impact::Stop, Impact::DataLoss];
const IMPACT_WORDS: [&str; 5] = ["none", "reload", "reboot", "stop", "data-loss"];
const RISKS: [Risk; 3] = [Risk::Low, Risk::Medium, Risk::High];
const RISK_WORDS: [&str; 3] = ["low", "medium", "high"];
const CLASSES: [Class; 3] = [Class::Benign, Class::Disruptive, Class::Destructive];
const CLASS_WORDS: [&str; 3] = ["benign", "disruptive", "destructive"];

#[derive(Default)]
struct StepDraft {
    change: Option<usize>,
    class: Option<Class>,
    fields: Option<Vec<FieldChange>>,
    from: Option<RunState>,
    impact: Option<Impact>,
    reason: Option<usize>,
    restart_for: Option<Vec<Field>>,
    restart_to: Option<Vec<Awaited>>,
    risk: Option<Risk>,
    timeout_secs: Option<u32>,
    wait: Option<Vec<Vmid>>,
}

fn step<'t, S: Events<'t>>(reader: &mut Reader<'t, S>) -> Result<Option<(Step, Weight)>, Stop> {
    let mut draft = StepDraft::default();
    let changes = CATALOGUE.map(|action| action.change);
    let seen = reader.fields("`step`", &STEP_KEYS, |reader, key, _| {
        match key {
            0 => draft.change = reader.word("`change`", &changes)?.map(|(index, _)| index),
            1 => draft.class = one_of(reader, "`class`", &CLASS_WORDS, &CLASSES)?,
            2 => draft.fields = fields(reader)?,
            3 => draft.from = one_of(reader, "`from`", &["running", "stopped"], &[RunState::Running, RunState::Stopped])?,
            4 => draft.impact = one_of(reader, "`impact`", &IMPACT_WORDS, &IMPACTS)?,
            5 => draft.reason = reader.word("`reason`", &REASON_WORDS)?.map(|(index, _)| index),
            6 => draft.restart_for = list(reader, "`restart_for`", |reader| one_of(reader, "a field", &Field::WORDS, &Field::ALL))?,
            7 => draft.restart_to = awaits(reader)?,
            8 => draft.risk = one_of(reader, "`risk`", &RISK_WORDS, &RISKS)?,
            9 => draft.timeout_secs = number(reader, "`timeout_secs`")?,
            _ => draft.wait = list(reader, "`wait`", |reader| vmid(reader, "a guest"))?,
        }
        Ok(())
    })?;
    let Some(seen) = seen else { return Ok(None) };
    reader.required(&seen, "`step`", &STEP_KEYS, &[0, 1, 3, 4, 5, 8, 10])?;
    match draft.finish() {
        Some(step) => Ok(Some(step)),
        None => reader.refuse(Diagnostic::new(seen.span, "`step` lacks a key that its change or reason needs, or has one of another")),
    }
}

pub(crate) fn list<'t, S: Events<'t>, T>(
    reader: &mut Reader<'t, S>,
    what: &str,
    read: fn(&mut Reader<'t, S>) -> Result<Option<T>, Stop>,
) -> Result<Option<Vec<T>>, Stop> {
    let mut list = Vec::new();
    let seen = reader.items(what, |reader| {
        list.extend(read(reader)?);
        Ok(())
    })?;
    Ok(seen.map(|_| list))
}

impl StepDraft {
    fn finish(self) -> Option<(Step, Weight)> {
        // In the order of the catalogue.
        let change = match (self.change?, self.fields, self.timeout_secs) {
            (0, Some(fields), None) => Change::ConfigSet(fields.into()),
            (1, None, Some(timeout_secs)) => Change::Reboot { timeout_secs },
            (2, None, Some(timeout_secs)) => Change::Shutdown { timeout_secs },
            (3, None, None) => Change::Start,
            (4, None, None) => Change::Stop,
            _ => return None,
        };
        let reason = match (self.reason?, self.restart_for, self.restart_to) {
            (0, None, None) => Reason::ConfigDiffers,
            (1, None, None) => Reason::StateDiffers,
            (2, Some(fields), None) => Reason::RestartForConfig(fields.into_iter().map(without_value).collect()),
            (2, Some(fields), Some(awaited)) if awaited.iter().map(|awaited| &awaited.field).eq(&fields) => {
                Reason::RestartForConfig(awaited.into())
            }
            _ => return None,
        };
        let step = Step { change, reason, from: self.from?, wait: self.wait?.into() };
        Some((step, Weight { impact: self.impact?, risk: self.risk?, class: self.class? }))
    }
}

/// What a restart was for, in a record of before its values were kept.
fn without_value(field: Field) -> Awaited {
    Awaited { field, value: None }
}

fn awaits<'t, S: Events<'t>>(reader: &mut Reader<'t, S>) -> Result<Option<Vec<Awaited>>, Stop> {
    let mut awaited = Vec::new();
    let seen = reader.fields("`restart_to`", &Field::WORDS, |reader, index, span| {
        let Some(field) = Field::ALL.get(index).copied() else { return Ok(()) };
        awaited.extend(value(reader, field, span)?.map(|value| Awaited { field, value: Some(value) }));
        Ok(())
    })?;
    awaited.sort_by_key(|awaited: &Awaited| awaited.field);
    Ok(seen.map(|_| awaited))
}

fn fields<'t, S: Events<'t>>(reader: &mut Reader<'t, S>) -> Result<Option<Vec<FieldChange>>, Stop> {
    let mut changes = Vec::new();
    let seen = reader.fields("`fields`", &Field::WORDS, |reader, index, span| {
        let Some(field) = Field::ALL.get(index).copied() else { return Ok(()) };
        changes.extend(field_change(reader, field, span)?);
        Ok(())
    })?;
    changes.sort_by_key(|change: &FieldChange| change.field);
    Ok(seen.map(|_| changes))
}

const FIELD_KEYS: [&str; 4] = ["after", "before", "effect", "pending"];

fn field_change<'t, S: Events<'t>>(reader: &mut Reader<'t, S>, field: Field, span: Span) -> Result<Option<FieldChange>, Stop> {
    const EFFECTS: [Effect; 3] = [Effect::Recorded, Effect::Live, Effect::AtRestart];
    let (mut after, mut before, mut effect, mut pending) = (None, None, None, None);
    let seen = reader.fields(field.quoted(), &FIELD_KEYS, |reader, key, _| {
        match key {
            0 => after = value(reader, field, span)?,
            1 => before = value(reader, field, span)?,
            2 => effect = one_of(reader, "`effect`", &EFFECTS.map(Effect::word), &EFFECTS)?,
            _ => pending = value(reader, field, span)?,
        }
        Ok(())
    })?;
    let Some(seen) = seen else { return Ok(None) };
    reader.required(&seen, field.quoted(), &FIELD_KEYS, &[0, 1, 2])?;
    let (Some(after), Some(before), Some(effect)) = (after, before, effect) else { return Ok(None) };
    Ok(Some(FieldChange { field, before, after, pending, effect }))
}

/// A value of a field; `Some(None)` is `null`: the key is absent.
fn value<'t, S: Events<'t>>(reader: &mut Reader<'t, S>, field: Field, span: Span) -> Result<Option<Option<Value>>, Stop> {
    or_null(reader, |reader| {
        let Some(loose) = read_value(reader)? else { return Ok(None) };
        match loose.shaped(field.shape()) {
            Some(value) => Ok(Some(value)),
            None => reader.refuse(Diagnostic::new(span, format!("a value of {} is of another type", field.quoted()))),
        }
    })
}

pub(crate) struct OutcomeFile;

const OUTCOME_KEYS: [&str; 6] = ["code", "end", "evidence", "observed", "release", "schema"];

impl Decode<Option<Outcome>> for OutcomeFile {
    fn decode<'t, S: Events<'t>>(self, reader: &mut Reader<'t, S>) -> Result<Option<Outcome>, Stop> {
        let (mut code, mut end, mut own_evidence, mut observed, mut release) = (None, None, None, None, None);
        let seen = reader.fields("the outcome", &OUTCOME_KEYS, |reader, key, _| {
            match key {
                0 => code = checked(reader, "`code`", Word::new)?,
                1 => end = one_of(reader, "`end`", &End::WORDS, &End::ALL)?,
                2 => own_evidence = evidence(reader)?,
                3 => observed = evidence(reader)?,
                4 => release = one_of(reader, "`release`", &Release::WORDS, &Release::ALL)?,
                _ => schema(reader, OUTCOME_SCHEMA)?,
            }
            Ok(())
        })?;
        let Some(seen) = seen else { return Ok(None) };
        reader.required(&seen, "the outcome", &OUTCOME_KEYS, &[1, 2, 3, 5])?;
        let (Some(end), Some(evidence), Some(observed)) = (end, own_evidence, observed) else { return Ok(None) };
        match outcome(end, code, release, Findings { evidence, observed }) {
            Some(outcome) => Ok(Some(outcome)),
            None => {
                reader.refuse(Diagnostic::new(seen.span, "the outcome lacks `code` or `release`, or has one that its end does not have"))
            }
        }
    }
}

fn outcome(end: End, code: Option<Word>, release: Option<Release>, findings: Findings) -> Option<Outcome> {
    Some(match (end, code, release) {
        (End::Done, None, None) => Outcome::Done(findings),
        (End::Failed, Some(code), None) => Outcome::Failed { code, findings },
        (End::Refused, Some(code), None) => Outcome::Refused { code, findings },
        (End::Held, Some(code), Some(release)) => Outcome::Held { code, release, findings },
        (End::NotRun, Some(code), None) => Outcome::NotRun { code, findings },
        _ => return None,
    })
}

pub(crate) fn evidence<'t, S: Events<'t>>(reader: &mut Reader<'t, S>) -> Result<Option<Evidence>, Stop> {
    let mut evidence = Evidence::default();
    let seen = reader.entries("the evidence", |reader, key, span| {
        let (word, fact) = (Word::new(key), fact(reader)?);
        let Some(word) = word else {
            return reader.report(Diagnostic::new(span, format!("{} is not a key of evidence", quoted(key))));
        };
        let Some(fact) = fact else { return Ok(()) };
        if evidence.insert(word, fact).is_some() {
            reader.report(Diagnostic::new(span, format!("{} is given twice", quoted(key))))?;
        }
        Ok(())
    })?;
    Ok(seen.map(|_| evidence))
}

fn fact<'t, S: Events<'t>>(reader: &mut Reader<'t, S>) -> Result<Option<Fact>, Stop> {
    Ok(match reader.peek_kind()? {
        Next::Text => read_text(reader, "a fact")?.map(Fact::Text),
        Next::List => read_words(reader, "a fact")?.map(|words| Fact::Words(words.into())),
        Next::Map | Next::Flag | Next::Other => reader.integer("a fact", 0, INTEGER_MAX)?.map(|(number, _)| Fact::Number(number)),
    })
}
