//! Entries, read back strictly: what is not byte for byte as this program writes it is none.

use super::same::is_written_as;
use super::{ENTRY_SCHEMA, Entry, Inputs, KINDS};
use crate::apply::{
    BootId, End, EnvironmentBinding, EnvironmentRename, Evidence, Freeze, Hold, Malformed, Operation, OperationFile, OperationId, Outcome,
    OutcomeFile, Record, Resolution, Run, RunId, TaskId, Word, checked, evidence, list, number, one_of, parse, schema, vmid,
};
use crate::artifact::{Digest, INTEGER_MAX};
use crate::document::{Decode, Diagnostic, Reader, Source as Events, Stop};
use crate::guest::{ClusterIdentity, EnvironmentName, Vmid};
use crate::observe::read_text;

/// Reads an entry.
///
/// # Errors
/// Anything that is not exactly one entry of [`ENTRY_SCHEMA`], in the only form that it has.
pub fn parse_entry(bytes: &[u8]) -> Result<Entry, Malformed> {
    let entry = parse(bytes, ENTRY_SCHEMA, EntryFile)?;
    if is_written_as(&entry, bytes) { Ok(entry) } else { Err(Malformed::OtherForm) }
}

struct EntryFile;

const KEYS: [&str; 4] = ["at_ms", "kind", "schema", "what"];

impl Decode<Option<Entry>> for EntryFile {
    fn decode<'t, S: Events<'t>>(self, reader: &mut Reader<'t, S>) -> Result<Option<Entry>, Stop> {
        let (mut at_ms, mut kind, mut what) = (None, None, None);
        let seen = reader.fields("the entry", &KEYS, |reader, key, _| {
            match key {
                0 => at_ms = reader.integer("`at_ms`", 0, INTEGER_MAX)?.map(|(number, _)| number),
                1 => kind = reader.word("`kind`", &KINDS)?.map(|(index, _)| index),
                2 => schema(reader, ENTRY_SCHEMA)?,
                _ => what = draft(reader)?,
            }
            Ok(())
        })?;
        let Some(seen) = seen else { return Ok(None) };
        reader.required(&seen, "the entry", &KEYS, &[0, 1, 2, 3])?;
        let kind = kind.and_then(|kind| KINDS.get(kind).copied());
        let (Some(at_ms), Some(kind), Some(draft)) = (at_ms, kind, what) else { return Ok(None) };
        match draft.finish(kind, at_ms) {
            Some(entry) => Ok(Some(entry)),
            None => reader.refuse(Diagnostic::new(seen.span, "`what` lacks something that an entry of its kind has")),
        }
    }
}

/// Everything that an entry of any kind can say. That it says nothing else is seen by writing it again.
#[derive(Default)]
struct Draft {
    answer: Option<Word>,
    before_ms: Option<u64>,
    boot: Option<BootId>,
    bundle: Option<Digest>,
    by: Option<Box<str>>,
    catalogue: Option<Digest>,
    checkpoint: Option<Box<str>>,
    cluster: Option<ClusterIdentity>,
    code: Option<Word>,
    config: Option<Digest>,
    desired: Option<Digest>,
    digests: Option<Vec<Digest>>,
    end: Option<End>,
    environment: Option<EnvironmentName>,
    evidence: Option<Evidence>,
    guest: Option<Vmid>,
    how: Option<Word>,
    id: Option<OperationId>,
    judgement: Option<Digest>,
    names: Option<Vec<Box<str>>>,
    observation: Option<Digest>,
    operation: Option<Operation>,
    operations: Option<Vec<OperationId>>,
    outcome: Option<Outcome>,
    plan: Option<Digest>,
    planner: Option<u32>,
    previous: Option<Box<str>>,
    program: Option<Box<str>>,
    reason: Option<Box<str>>,
    resolution: Option<Resolution>,
    root: Option<Box<str>>,
    rules: Option<Digest>,
    run: Option<RunId>,
    size: Option<u64>,
    stage: Option<Word>,
    task: Option<TaskId>,
    to: Option<EnvironmentName>,
    up_ms: Option<u64>,
    verifier: Option<Box<str>>,
}

const WHAT_KEYS: [&str; 39] = [
    "answer",
    "before_ms",
    "boot",
    "bundle",
    "by",
    "catalogue",
    "checkpoint",
    "cluster",
    "code",
    "config",
    "desired",
    "digests",
    "end",
    "environment",
    "evidence",
    "guest",
    "how",
    "id",
    "judgement",
    "names",
    "observation",
    "operation",
    "operations",
    "outcome",
    "plan",
    "planner",
    "previous",
    "program",
    "reason",
    "resolution",
    "root",
    "rules",
    "run",
    "size",
    "stage",
    "task",
    "to",
    "up_ms",
    "verifier",
];

fn draft<'t, S: Events<'t>>(reader: &mut Reader<'t, S>) -> Result<Option<Draft>, Stop> {
    let mut draft = Draft::default();
    let seen = reader.fields("`what`", &WHAT_KEYS, |reader, key, _| {
        match WHAT_KEYS.get(key).copied().unwrap_or_default() {
            "answer" => draft.answer = checked(reader, "`answer`", Word::new)?,
            "before_ms" => draft.before_ms = reader.integer("`before_ms`", 0, INTEGER_MAX)?.map(|(number, _)| number),
            "boot" => draft.boot = checked(reader, "`boot`", BootId::new)?,
            "bundle" => draft.bundle = digest(reader)?,
            "by" => draft.by = read_text(reader, "`by`")?,
            "catalogue" => draft.catalogue = digest(reader)?,
            "checkpoint" => draft.checkpoint = read_text(reader, "`checkpoint`")?,
            "cluster" => draft.cluster = checked(reader, "`cluster`", ClusterIdentity::parse)?,
            "code" => draft.code = checked(reader, "`code`", Word::new)?,
            "config" => draft.config = digest(reader)?,
            "desired" => draft.desired = digest(reader)?,
            "digests" => draft.digests = list(reader, "`digests`", digest)?,
            "end" => draft.end = one_of(reader, "`end`", &End::WORDS, &End::ALL)?,
            "environment" => draft.environment = checked(reader, "`environment`", EnvironmentName::new)?,
            "evidence" => draft.evidence = evidence(reader)?,
            "guest" => draft.guest = vmid(reader, "`guest`")?,
            "how" => draft.how = checked(reader, "`how`", Word::new)?,
            "id" => draft.id = checked(reader, "`id`", OperationId::new)?,
            "judgement" => draft.judgement = digest(reader)?,
            "names" => draft.names = list(reader, "`names`", |reader| read_text(reader, "a name"))?,
            "observation" => draft.observation = digest(reader)?,
            "operation" => draft.operation = OperationFile.decode(reader)?,
            "operations" => draft.operations = list(reader, "`operations`", |reader| checked(reader, "an id", OperationId::new))?,
            "outcome" => draft.outcome = OutcomeFile.decode(reader)?,
            "plan" => draft.plan = digest(reader)?,
            "planner" => draft.planner = number(reader, "`planner`")?,
            "previous" => draft.previous = read_text(reader, "`previous`")?,
            "program" => draft.program = read_text(reader, "`program`")?,
            "reason" => draft.reason = read_text(reader, "`reason`")?,
            "resolution" => draft.resolution = one_of(reader, "`resolution`", &Resolution::WORDS, &Resolution::ALL)?,
            "root" => draft.root = read_text(reader, "`root`")?,
            "rules" => draft.rules = digest(reader)?,
            "run" => draft.run = checked(reader, "`run`", RunId::new)?,
            "size" => draft.size = reader.integer("`size`", 0, INTEGER_MAX)?.map(|(number, _)| number),
            "stage" => draft.stage = checked(reader, "`stage`", Word::new)?,
            "task" => draft.task = checked(reader, "`task`", TaskId::new)?,
            "to" => draft.to = checked(reader, "`to`", EnvironmentName::new)?,
            "up_ms" => draft.up_ms = reader.integer("`up_ms`", 0, INTEGER_MAX)?.map(|(number, _)| number),
            _ => draft.verifier = read_text(reader, "`verifier`")?,
        }
        Ok(())
    })?;
    Ok(seen.map(|_| draft))
}

fn digest<'t, S: Events<'t>>(reader: &mut Reader<'t, S>) -> Result<Option<Digest>, Stop> {
    checked(reader, "a digest", Digest::parse)
}

impl Draft {
    fn finish(self, kind: &str, at_ms: u64) -> Option<Entry> {
        Some(match kind {
            "key" => Entry::Key { verifier: self.verifier?, at_ms },
            "run-started" => return self.run_started(at_ms),
            "plan" => Entry::PlanMade { run: self.run?, plan: self.plan?, judgement: self.judgement?, at_ms },
            "refusal" => {
                let (stage, code, evidence) = (self.stage?, self.code?, self.evidence?);
                Entry::Refused { run: self.run?, guest: self.guest, stage, code, evidence, at_ms }
            }
            "approval" => {
                let names = self.names?.into();
                Entry::Approved { run: self.run?, plan: self.plan?, by: self.by?, how: self.how?, names, at_ms }
            }
            "admission" => Entry::Admitted { run: self.run?, plan: self.plan?, bundle: self.bundle?, answer: self.answer?, at_ms },
            "recovery" => Entry::Recovery { environment: self.environment?, operations: self.operations?.into(), at_ms },
            "run-ended" => Entry::RunEnded { run: self.run?, end: self.end?, at_ms },
            "intent" | "sending" | "task" | "outcome" | "resolution" => Entry::Record(self.record(kind, at_ms)?),
            _ => return self.people(kind, at_ms),
        })
    }

    fn run_started(self, at_ms: u64) -> Option<Entry> {
        let run = Run { id: self.run?, environment: self.environment?, plan: self.plan?, by: self.by?, at_ms, boot: self.boot };
        let inputs = Inputs {
            program: self.program?,
            planner: self.planner?,
            config: self.config?,
            desired: self.desired?,
            observation: self.observation?,
            rules: self.rules?,
            catalogue: self.catalogue?,
        };
        Some(Entry::RunStarted { run, inputs })
    }

    fn record(self, kind: &str, at_ms: u64) -> Option<Record> {
        Some(match kind {
            "intent" => Record::Intent { operation: Box::new(self.operation?), at_ms },
            "sending" => Record::Sending { id: self.id?, at_ms, up_ms: self.up_ms? },
            "task" => Record::Tasked { id: self.id?, task: self.task?, at_ms },
            "outcome" => Record::Ended { id: self.id?, outcome: self.outcome?, at_ms },
            _ => Record::Resolved { id: self.id?, resolution: self.resolution?, by: self.by?, reason: self.reason?, at_ms },
        })
    }

    /// What people said.
    fn people(self, kind: &str, at_ms: u64) -> Option<Entry> {
        let by = self.by?;
        Some(match kind {
            "hold" => Entry::Hold(Hold { environment: self.environment?, vmid: self.guest?, by, reason: self.reason?, at_ms }),
            "release" => Entry::Release { environment: self.environment?, guest: self.guest?, by, at_ms },
            "freeze" => Entry::Freeze(Freeze { environment: self.environment?, by, reason: self.reason?, at_ms }),
            "thaw" => Entry::Thaw { environment: self.environment?, by, at_ms },
            "rekey" => {
                let (verifier, previous) = (self.verifier?, self.previous?);
                Entry::Rekeyed { verifier, previous, checkpoint: self.checkpoint, by, reason: self.reason?, at_ms }
            }
            "prune" => Entry::Pruned { by, before_ms: self.before_ms?, digests: self.digests?.into(), at_ms },
            "binding" => Entry::Binding(EnvironmentBinding { environment: self.environment?, cluster: self.cluster?, by, at_ms }),
            "rename" => Entry::Rename(EnvironmentRename { from: self.environment?, to: self.to?, by, reason: self.reason?, at_ms }),
            _ => Entry::Resync { by, reason: self.reason?, size: self.size?, root: self.root, at_ms },
        })
    }
}
