//! Parses entries strictly: bytes that this program would not write exactly so are rejected.

use super::canonical_check::is_canonical_form_of;
use super::{DecisionInputs, ENTRY_KINDS, ENTRY_SCHEMA, LedgerEntry};
use crate::apply::{
    BootId, EnvironmentBinding, EnvironmentRename, Evidence, Freeze, Hold, JournalRecord, Operation, OperationDecoder, OperationEnd,
    OperationId, Outcome, OutcomeDecoder, Resolution, RunId, RunStart, Slug, StoredTextError, TaskId, check_schema, parse_stored,
    read_checked, read_enum, read_evidence, read_list, read_u32, read_vmid,
};
use crate::artifact::{Digest, INTEGER_MAX};
use crate::document::{DecodeAborted, Diagnostic, DocumentDecoder, DocumentReader, EventSource as Events};
use crate::guest::{ClusterIdentity, EnvironmentName, Vmid};
use crate::observe::read_text;

/// Reads an entry.
///
/// # Errors
/// Anything that is not exactly one entry of [`ENTRY_SCHEMA`] in canonical form.
pub fn parse_entry(bytes: &[u8]) -> Result<LedgerEntry, StoredTextError> {
    let entry = parse_stored(bytes, ENTRY_SCHEMA, EntryDecoder)?;
    if is_canonical_form_of(&entry, bytes) { Ok(entry) } else { Err(StoredTextError::NotCanonical) }
}

struct EntryDecoder;

const KEYS: [&str; 4] = ["at_ms", "kind", "schema", "what"];

impl DocumentDecoder<Option<LedgerEntry>> for EntryDecoder {
    fn decode<'t, S: Events<'t>>(self, reader: &mut DocumentReader<'t, S>) -> Result<Option<LedgerEntry>, DecodeAborted> {
        let (mut at_ms, mut kind, mut what) = (None, None, None);
        let seen = reader.read_fields("the entry", &KEYS, |reader, key, _| {
            match key {
                0 => at_ms = reader.read_integer("`at_ms`", 0, INTEGER_MAX)?.map(|(number, _)| number),
                1 => kind = reader.read_keyword("`kind`", &ENTRY_KINDS)?.map(|(index, _)| index),
                2 => check_schema(reader, ENTRY_SCHEMA)?,
                _ => what = read_draft(reader)?,
            }
            Ok(())
        })?;
        let Some(seen) = seen else { return Ok(None) };
        reader.require_keys(&seen, "the entry", &KEYS, &[0, 1, 2, 3])?;
        let kind = kind.and_then(|kind| ENTRY_KINDS.get(kind).copied());
        let (Some(at_ms), Some(kind), Some(draft)) = (at_ms, kind, what) else { return Ok(None) };
        match draft.finish(kind, at_ms) {
            Some(entry) => Ok(Some(entry)),
            None => reader.report_none(Diagnostic::new(seen.span, "`what` lacks a member that an entry of this kind has")),
        }
    }
}

/// All members that an entry of any kind can have. Writing the entry again detects members that do not belong to its kind.
#[derive(Default)]
struct EntryDraft {
    answer: Option<Slug>,
    before_ms: Option<u64>,
    boot: Option<BootId>,
    bundle: Option<Digest>,
    by: Option<Box<str>>,
    catalogue: Option<Digest>,
    checkpoint: Option<Box<str>>,
    cluster: Option<ClusterIdentity>,
    code: Option<Slug>,
    config: Option<Digest>,
    digests: Option<Vec<Digest>>,
    end: Option<OperationEnd>,
    environment: Option<EnvironmentName>,
    epoch: Option<u64>,
    evidence: Option<Evidence>,
    guest: Option<Vmid>,
    how: Option<Slug>,
    id: Option<OperationId>,
    intent: Option<Digest>,
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
    proposal: Option<Digest>,
    reason: Option<Box<str>>,
    resolution: Option<Resolution>,
    root: Option<Box<str>>,
    rules: Option<Digest>,
    run: Option<RunId>,
    size: Option<u64>,
    stage: Option<Slug>,
    task: Option<TaskId>,
    to: Option<EnvironmentName>,
    up_ms: Option<u64>,
    verifier: Option<Box<str>>,
}

const WHAT_KEYS: [&str; 41] = [
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
    "digests",
    "end",
    "environment",
    "epoch",
    "evidence",
    "guest",
    "how",
    "id",
    "intent",
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
    "proposal",
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

fn read_draft<'t, S: Events<'t>>(reader: &mut DocumentReader<'t, S>) -> Result<Option<EntryDraft>, DecodeAborted> {
    let mut draft = EntryDraft::default();
    let seen = reader.read_fields("`what`", &WHAT_KEYS, |reader, key, _| {
        match WHAT_KEYS.get(key).copied().unwrap_or_default() {
            "answer" => draft.answer = read_checked(reader, "`answer`", Slug::new)?,
            "before_ms" => draft.before_ms = reader.read_integer("`before_ms`", 0, INTEGER_MAX)?.map(|(number, _)| number),
            "boot" => draft.boot = read_checked(reader, "`boot`", BootId::new)?,
            "bundle" => draft.bundle = read_digest(reader)?,
            "by" => draft.by = read_text(reader, "`by`")?,
            "catalogue" => draft.catalogue = read_digest(reader)?,
            "checkpoint" => draft.checkpoint = read_text(reader, "`checkpoint`")?,
            "cluster" => draft.cluster = read_checked(reader, "`cluster`", ClusterIdentity::parse)?,
            "code" => draft.code = read_checked(reader, "`code`", Slug::new)?,
            "config" => draft.config = read_digest(reader)?,
            "intent" => draft.intent = read_digest(reader)?,
            "digests" => draft.digests = read_list(reader, "`digests`", read_digest)?,
            "end" => draft.end = read_enum(reader, "`end`", &OperationEnd::WORDS, &OperationEnd::ALL)?,
            "environment" => draft.environment = read_checked(reader, "`environment`", EnvironmentName::new)?,
            "epoch" => draft.epoch = reader.read_integer("`epoch`", 0, INTEGER_MAX)?.map(|(number, _)| number),
            "evidence" => draft.evidence = read_evidence(reader)?,
            "guest" => draft.guest = read_vmid(reader, "`guest`")?,
            "how" => draft.how = read_checked(reader, "`how`", Slug::new)?,
            "id" => draft.id = read_checked(reader, "`id`", OperationId::new)?,
            "judgement" => draft.judgement = read_digest(reader)?,
            "names" => draft.names = read_list(reader, "`names`", |reader| read_text(reader, "a name"))?,
            "observation" => draft.observation = read_digest(reader)?,
            "operation" => draft.operation = OperationDecoder.decode(reader)?,
            "operations" => draft.operations = read_list(reader, "`operations`", |reader| read_checked(reader, "an id", OperationId::new))?,
            "outcome" => draft.outcome = OutcomeDecoder.decode(reader)?,
            "plan" => draft.plan = read_digest(reader)?,
            "planner" => draft.planner = read_u32(reader, "`planner`")?,
            "previous" => draft.previous = read_text(reader, "`previous`")?,
            "program" => draft.program = read_text(reader, "`program`")?,
            "proposal" => draft.proposal = read_digest(reader)?,
            "reason" => draft.reason = read_text(reader, "`reason`")?,
            "resolution" => draft.resolution = read_enum(reader, "`resolution`", &Resolution::WORDS, &Resolution::ALL)?,
            "root" => draft.root = read_text(reader, "`root`")?,
            "rules" => draft.rules = read_digest(reader)?,
            "run" => draft.run = read_checked(reader, "`run`", RunId::new)?,
            "size" => draft.size = reader.read_integer("`size`", 0, INTEGER_MAX)?.map(|(number, _)| number),
            "stage" => draft.stage = read_checked(reader, "`stage`", Slug::new)?,
            "task" => draft.task = read_checked(reader, "`task`", TaskId::new)?,
            "to" => draft.to = read_checked(reader, "`to`", EnvironmentName::new)?,
            "up_ms" => draft.up_ms = reader.read_integer("`up_ms`", 0, INTEGER_MAX)?.map(|(number, _)| number),
            _ => draft.verifier = read_text(reader, "`verifier`")?,
        }
        Ok(())
    })?;
    Ok(seen.map(|_| draft))
}

fn read_digest<'t, S: Events<'t>>(reader: &mut DocumentReader<'t, S>) -> Result<Option<Digest>, DecodeAborted> {
    read_checked(reader, "a digest", Digest::parse)
}

impl EntryDraft {
    fn finish(self, kind: &str, at_ms: u64) -> Option<LedgerEntry> {
        Some(match kind {
            "key" => LedgerEntry::Key { verifier: self.verifier?, at_ms },
            "run-started" => return self.build_run_started(at_ms),
            "plan" => {
                let (plan, proposal, judgement) = (self.plan?, self.proposal?, self.judgement?);
                LedgerEntry::PlanMade { run: self.run?, plan, proposal, judgement, at_ms }
            }
            "refusal" => {
                let (stage, code, evidence) = (self.stage?, self.code?, self.evidence?);
                LedgerEntry::Refused { run: self.run?, guest: self.guest, stage, code, evidence, at_ms }
            }
            "approval" => {
                let names = self.names?.into();
                LedgerEntry::Approved { run: self.run?, proposal: self.proposal?, by: self.by?, how: self.how?, names, at_ms }
            }
            "admission" => LedgerEntry::Admitted { run: self.run?, plan: self.plan?, bundle: self.bundle?, answer: self.answer?, at_ms },
            "recovery" => LedgerEntry::Recovery { environment: self.environment?, operations: self.operations?.into(), at_ms },
            "run-ended" => LedgerEntry::RunEnded { run: self.run?, end: self.end?, at_ms },
            "intent" | "sending" | "task" | "outcome" | "resolution" => LedgerEntry::Record(self.build_record(kind, at_ms)?),
            _ => return self.build_command_entry(kind, at_ms),
        })
    }

    fn build_run_started(self, at_ms: u64) -> Option<LedgerEntry> {
        let run = RunStart { id: self.run?, environment: self.environment?, plan: self.plan?, by: self.by?, at_ms, boot: self.boot };
        let inputs = DecisionInputs {
            program: self.program?,
            planner: self.planner?,
            config: self.config?,
            intent: self.intent?,
            observation: self.observation?,
            rules: self.rules?,
            catalogue: self.catalogue?,
        };
        Some(LedgerEntry::RunStarted { run, inputs })
    }

    fn build_record(self, kind: &str, at_ms: u64) -> Option<JournalRecord> {
        Some(match kind {
            "intent" => JournalRecord::Intent { operation: Box::new(self.operation?), at_ms },
            "sending" => JournalRecord::Sending { id: self.id?, at_ms, up_ms: self.up_ms? },
            "task" => JournalRecord::TaskStarted { id: self.id?, task: self.task?, at_ms },
            "outcome" => JournalRecord::Ended { id: self.id?, outcome: self.outcome?, at_ms },
            _ => JournalRecord::Resolved { id: self.id?, resolution: self.resolution?, by: self.by?, reason: self.reason?, at_ms },
        })
    }

    /// Builds the entries of commands by people.
    fn build_command_entry(self, kind: &str, at_ms: u64) -> Option<LedgerEntry> {
        let by = self.by?;
        Some(match kind {
            "hold" => LedgerEntry::Hold(Hold { environment: self.environment?, vmid: self.guest?, by, reason: self.reason?, at_ms }),
            "release" => LedgerEntry::Release { environment: self.environment?, guest: self.guest?, by, at_ms },
            "freeze" => LedgerEntry::Freeze(Freeze { environment: self.environment?, by, reason: self.reason?, at_ms }),
            "thaw" => LedgerEntry::Thaw { environment: self.environment?, by, at_ms },
            "rekey" => {
                let (verifier, previous) = (self.verifier?, self.previous?);
                LedgerEntry::Rekeyed { verifier, previous, checkpoint: self.checkpoint, by, reason: self.reason?, at_ms }
            }
            "prune" => LedgerEntry::Pruned { by, before_ms: self.before_ms?, digests: self.digests?.into(), at_ms },
            "binding" => LedgerEntry::Binding(EnvironmentBinding { environment: self.environment?, cluster: self.cluster?, by, at_ms }),
            "rename" => LedgerEntry::Rename(EnvironmentRename { from: self.environment?, to: self.to?, by, reason: self.reason?, at_ms }),
            "restore" => LedgerEntry::Restored { by, reason: self.reason?, size: self.size?, root: self.root, epoch: self.epoch?, at_ms },
            _ => LedgerEntry::Resync { by, reason: self.reason?, size: self.size?, root: self.root, epoch: self.epoch?, at_ms },
        })
    }
}
