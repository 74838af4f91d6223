//! Makes a recorded decision again: the same inputs, planner and rules must give the same bytes, or a specific error says why not.
//!
//! Must not depend on where the bytes are stored. The program that made the decision is identified, never executed.

use std::fmt;
use std::io;
use std::sync::Arc;

use serde::Deserialize;

use super::DecisionInputs;
use super::config::ParseConfig;
use crate::action::BirthMarksRow;
use crate::approve::ApprovalMode;
use crate::artifact::{DecisionTables, Digest, OWN_TABLES, UsedRows, has_rows, write_body_with, write_judgement, write_observation};
use crate::guest::{ClusterIdentity, Vmid};
use crate::intent::Intent;
use crate::normalize::Field;
use crate::observe::{self, Scoped};
use crate::plan::{PLANNER_VERSION, plan};
use crate::policy::{Birth, BlockedBy, Circumstances, GuestBlock, Limits, MachineIdentity, MachineMark, OwnWrite, Rules};
use crate::safety::{Judged, judge};

/// An input of a decision, or a part of its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DecisionPart {
    /// The configuration.
    Config,
    /// The intent: a desired state or a request.
    Intent,
    /// The observation.
    Observation,
    /// The protection rules, the rows of the table of fields that the decision uses, and the machine.
    Rules,
    /// The rows of the catalogue of actions that the decision uses.
    Catalogue,
    /// The body of the plan.
    Plan,
    /// The judgement of the plan.
    Judgement,
}

impl DecisionPart {
    /// All of them.
    pub const ALL: [Self; 7] = [Self::Config, Self::Intent, Self::Observation, Self::Rules, Self::Catalogue, Self::Plan, Self::Judgement];

    /// The word for it.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Config => "configuration",
            Self::Intent => "intent",
            Self::Observation => "observation",
            Self::Rules => "rules",
            Self::Catalogue => "catalogue",
            Self::Plan => "plan",
            Self::Judgement => "judgement",
        }
    }
}

impl fmt::Display for DecisionPart {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.word())
    }
}

/// A decision as recorded in the ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Its inputs.
    pub inputs: DecisionInputs,
    /// The body of the plan.
    pub plan: Digest,
    /// The judgement of the plan.
    pub judgement: Digest,
}

impl Decision {
    /// The digest under which a part is stored.
    #[must_use]
    pub fn digest(&self, part: DecisionPart) -> Digest {
        match part {
            DecisionPart::Config => self.inputs.config,
            DecisionPart::Intent => self.inputs.intent,
            DecisionPart::Observation => self.inputs.observation,
            DecisionPart::Rules => self.inputs.rules,
            DecisionPart::Catalogue => self.inputs.catalogue,
            DecisionPart::Plan => self.plan,
            DecisionPart::Judgement => self.judgement,
        }
    }
}

/// Why a decision cannot be made again, or differs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReproduceError {
    /// A part is not stored, or no longer.
    Missing {
        /// The part.
        part: DecisionPart,
        /// The recorded digest.
        digest: Digest,
    },
    /// The stored bytes do not have the recorded digest.
    Changed {
        /// The part.
        part: DecisionPart,
        /// The recorded digest.
        named: Digest,
        /// The digest of the stored bytes.
        found: Digest,
    },
    /// The bytes have the recorded digest, but this program cannot parse them.
    Unreadable {
        /// The part.
        part: DecisionPart,
        /// Why.
        why: String,
    },
    /// Another version of the planner made the decision.
    OtherPlanner {
        /// The version of that planner.
        then: u32,
        /// The version of the planner in this program.
        now: u32,
    },
    /// A row of the table of fields or of the catalogue that the decision uses is missing or different here.
    OtherTables {
        /// Which of the two.
        part: DecisionPart,
    },
    /// The admission recorded a gate that this program does not have.
    UnknownGate {
        /// The id of the gate.
        gate: String,
    },
    /// The admission depended on a policy, and this program evaluates none.
    UnknownPolicy {
        /// The digest of the policy.
        digest: String,
    },
    /// The same inputs give another result. This must never happen.
    Breach {
        /// The part that differs.
        part: DecisionPart,
        /// The recorded digest.
        then: Digest,
        /// The digest of the new result.
        now: Digest,
        /// The first byte at which they differ.
        at: usize,
    },
}

/// The inputs of a decision, ready to be decided again.
#[derive(Clone, Debug)]
pub struct ReplayableDecision {
    intent: Intent,
    observation: Arc<Scoped>,
    rules: Arc<Rules>,
    limits: Limits,
    circumstances: Circumstances,
    mode: Option<ApprovalMode>,
    recorded_fields: Vec<serde_json::Value>,
}

/// Recomputes a decision and compares it byte by byte. `load_blob` returns the stored bytes of a digest; `understood` parses the
/// configuration.
///
/// # Errors
/// The first obstacle or difference.
pub fn reproduce(
    decision: &Decision,
    load_blob: impl Fn(Digest) -> Option<Vec<u8>>,
    understood: ParseConfig,
) -> Result<ReplayableDecision, ReproduceError> {
    reproduce_with(decision, load_blob, understood, OWN_TABLES)
}

/// Recomputes a decision under these tables.
pub(super) fn reproduce_with(
    decision: &Decision,
    load_blob: impl Fn(Digest) -> Option<Vec<u8>>,
    understood: ParseConfig,
    tables: DecisionTables<'_>,
) -> Result<ReplayableDecision, ReproduceError> {
    if decision.inputs.planner != PLANNER_VERSION {
        return Err(ReproduceError::OtherPlanner { then: decision.inputs.planner, now: PLANNER_VERSION });
    }
    let whole = |part| load_part(decision, part, &load_blob);
    let reproduced = load_decision(whole, understood, tables)?;
    let judged = reproduced.decide();
    check_used_rows(decision, &reproduced, &UsedRows::of_plan(judged.plan(), tables))?;
    let written = |write: &dyn Fn(&mut Vec<u8>) -> io::Result<Digest>, part| {
        let mut bytes = Vec::new();
        write(&mut bytes).map(|_| bytes).map_err(|error| ReproduceError::Unreadable { part, why: error.to_string() })
    };
    let body = written(&|out| write_body_with(out, judged.plan(), tables), DecisionPart::Plan)?;
    check_same_bytes(DecisionPart::Plan, &whole(DecisionPart::Plan)?, &body)?;
    let judgement = written(&|out| write_judgement(out, judged.judgement()), DecisionPart::Judgement)?;
    check_same_bytes(DecisionPart::Judgement, &whole(DecisionPart::Judgement)?, &judgement)?;
    Ok(reproduced)
}

/// Checks that exactly the rows that the decision uses are stored with it.
fn check_used_rows(decision: &Decision, reproduced: &ReplayableDecision, used: &UsedRows<'_>) -> Result<(), ReproduceError> {
    let differing = |part| Err(unreadable_error(part, "its rows are not those that the decision uses".into()));
    if Digest::of_value(&used.catalogue).ok() != Some(decision.inputs.catalogue) {
        return differing(DecisionPart::Catalogue);
    }
    if serde_json::to_value(&used.fields).ok().as_ref().and_then(serde_json::Value::as_array) != Some(&reproduced.recorded_fields) {
        return differing(DecisionPart::Rules);
    }
    Ok(())
}

fn check_same_bytes(part: DecisionPart, then: &[u8], now: &[u8]) -> Result<(), ReproduceError> {
    if then == now {
        return Ok(());
    }
    let at = then.iter().zip(now).take_while(|(one, other)| one == other).count();
    Err(ReproduceError::Breach { part, then: Digest::of_bytes(then), now: Digest::of_bytes(now), at })
}

/// The bytes of a part, after checking their digest: the storage is not trusted.
fn load_part(decision: &Decision, part: DecisionPart, load_blob: impl Fn(Digest) -> Option<Vec<u8>>) -> Result<Vec<u8>, ReproduceError> {
    let named = decision.digest(part);
    let bytes = load_blob(named).ok_or(ReproduceError::Missing { part, digest: named })?;
    match Digest::of_bytes(&bytes) {
        found if found == named => Ok(bytes),
        found => Err(ReproduceError::Changed { part, named, found }),
    }
}

/// The first fault as a sentence.
fn first_message(faults: &crate::document::Diagnostics) -> String {
    faults.list().first().map(|fault| fault.message.to_string()).unwrap_or_default()
}

/// Parses the inputs of a decision.
fn load_decision(
    whole: impl Fn(DecisionPart) -> Result<Vec<u8>, ReproduceError>,
    understood: ParseConfig,
    tables: DecisionTables<'_>,
) -> Result<ReplayableDecision, ReproduceError> {
    let catalogue: Vec<serde_json::Value> = parse_json(DecisionPart::Catalogue, &whole(DecisionPart::Catalogue)?)?;
    if !has_rows(tables.catalogue, &catalogue) {
        return Err(ReproduceError::OtherTables { part: DecisionPart::Catalogue });
    }
    let (rules, recorded_fields) = parse_rules(&whole(DecisionPart::Rules)?, tables)?;
    let intent = Intent::parse_normal(&whole(DecisionPart::Intent)?).map_err(|why| unreadable_error(DecisionPart::Intent, why))?;
    let bytes = whole(DecisionPart::Observation)?;
    let reading = observe::parse(&bytes).map_err(|faults| unreadable_error(DecisionPart::Observation, first_message(&faults)))?;
    let scoped = reading.into_scoped(&intent.scope());
    let mut again = Vec::new();
    let is_same = write_observation(&mut again, &scoped).is_ok() && again == bytes;
    if !is_same {
        return Err(unreadable_error(
            DecisionPart::Observation,
            "it contains more than the decision used, or is not in canonical form".into(),
        ));
    }
    let (limits, circumstances) = parse_judgement_inputs(&whole(DecisionPart::Judgement)?)?;
    let in_force = understood(&whole(DecisionPart::Config)?).map_err(|why| unreadable_error(DecisionPart::Config, why))?;
    in_force
        .check_agreement(intent.environment(), &rules, limits, &circumstances)
        .map_err(|why| unreadable_error(DecisionPart::Config, why.into()))?;
    let (observation, rules) = (Arc::new(scoped), Arc::new(rules));
    Ok(ReplayableDecision { intent, observation, rules, limits, circumstances, mode: in_force.mode, recorded_fields })
}

fn unreadable_error(part: DecisionPart, why: String) -> ReproduceError {
    ReproduceError::Unreadable { part, why }
}

fn parse_json<T: for<'b> Deserialize<'b>>(part: DecisionPart, bytes: &[u8]) -> Result<T, ReproduceError> {
    serde_json::from_slice(bytes).map_err(|error| unreadable_error(part, error.to_string()))
}

impl ReplayableDecision {
    /// What was asked for.
    #[must_use]
    pub fn intent(&self) -> &Intent {
        &self.intent
    }

    /// The rules that were in effect.
    #[must_use]
    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// The limits that were in effect.
    #[must_use]
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// The approval mode of the environment, if the configuration has one.
    #[must_use]
    pub fn mode(&self) -> Option<ApprovalMode> {
        self.mode
    }

    /// The same decision under other limits and protection rules. Holds and the machine that the program ran on stay the same.
    #[must_use]
    pub fn with_rules_and_limits(&self, rules: &Rules, limits: Limits) -> Self {
        let host = self.rules.machine().cloned().unwrap_or_default();
        let rules =
            rules.clone().with_machine(host).with_own_writes(self.rules.own_writes().to_vec()).with_births(self.rules.births().to_vec());
        Self { rules: Arc::new(rules), limits, ..self.clone() }
    }

    /// Plans and judges, as a run does.
    pub fn decide(&self) -> Judged {
        let plan = plan(self.intent.clone(), Arc::clone(&self.observation), Arc::clone(&self.rules));
        judge(plan, self.limits, self.circumstances.clone())
    }
}

/// The stored inputs of a judgement. Its refusals are derived again, not read.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct JudgementInputsRow {
    circumstances: CircumstancesRow,
    #[serde(rename = "guests", default)]
    _guests: serde::de::IgnoredAny,
    limits: RecordedLimitsRow,
    #[serde(rename = "refusals")]
    _refusals: serde::de::IgnoredAny,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CircumstancesRow {
    #[serde(default)]
    cluster: Option<String>,
    #[serde(default)]
    epoch: Option<u64>,
    freeze: Option<String>,
    #[serde(default)]
    holds: Vec<GuestBlockRow>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RecordedLimitsRow {
    guests: u32,
    percent: u32,
    stops: u32,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RecordedRulesRow {
    fields: Vec<serde_json::Value>,
    #[serde(default)]
    host: Option<MachineIdentityRow>,
    protect: RecordedProtectRow,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RecordedProtectRow {
    #[serde(default)]
    births: Vec<BirthRow>,
    ids: Vec<u32>,
    names: Vec<String>,
    tags: Vec<String>,
    #[serde(default)]
    own_writes: Vec<OwnWriteRow>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct BirthRow {
    grown: Option<bool>,
    identity: Option<BirthMarksRow>,
    provisioned: bool,
    request: Option<String>,
    #[serde(default)]
    started: bool,
    vmid: u32,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OwnWriteRow {
    field: String,
    value: Option<String>,
    vmid: u32,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GuestBlockRow {
    vmid: u32,
    by: BlockedByRow,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
enum BlockedByRow {
    Person { by: String, reason: String },
    Operation(String),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MachineIdentityRow {
    has_device: bool,
    macs: Vec<String>,
    unread: Vec<MachineMarkRow>,
    uuids: Vec<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
enum MachineMarkRow {
    FirmwareUuid,
    HardwareAddresses,
}

/// Parses what a plan was judged against.
fn parse_judgement_inputs(bytes: &[u8]) -> Result<(Limits, Circumstances), ReproduceError> {
    let row: JudgementInputsRow = parse_json(DecisionPart::Judgement, bytes)?;
    let JudgementInputsRow { limits: RecordedLimitsRow { guests, percent, stops }, circumstances, .. } = row;
    let to_block = |block: GuestBlockRow| {
        let by = match block.by {
            BlockedByRow::Person { by, reason } => BlockedBy::Person { by, reason },
            BlockedByRow::Operation(id) => BlockedBy::Operation(id),
        };
        parse_vmid(DecisionPart::Judgement, block.vmid).map(|vmid| GuestBlock { by, vmid })
    };
    let holds = circumstances.holds.into_iter().map(to_block).collect::<Result<Vec<_>, _>>()?;
    let cluster = match circumstances.cluster {
        None => None,
        Some(text) => {
            let parsed = ClusterIdentity::parse(&text).filter(|cluster| cluster.as_str() == text);
            Some(parsed.ok_or_else(|| unreadable_error(DecisionPart::Judgement, "its cluster is not a fingerprint".into()))?)
        }
    };
    Ok((Limits { guests, percent, stops }, Circumstances { cluster, epoch: circumstances.epoch, freeze: circumstances.freeze, holds }))
}

fn parse_vmid(part: DecisionPart, number: u32) -> Result<Vmid, ReproduceError> {
    Vmid::new(u64::from(number)).ok_or_else(|| unreadable_error(part, "it contains an invalid guest id".into()))
}

/// Parses the rules, with the rows of fields that were stored; an error if one of those is not in the table.
fn parse_rules(bytes: &[u8], tables: DecisionTables<'_>) -> Result<(Rules, Vec<serde_json::Value>), ReproduceError> {
    let row: RecordedRulesRow = parse_json(DecisionPart::Rules, bytes)?;
    if !has_rows(tables.fields, &row.fields) {
        return Err(ReproduceError::OtherTables { part: DecisionPart::Rules });
    }
    let vmid = |number: u32| parse_vmid(DecisionPart::Rules, number);
    let ids = row.protect.ids.into_iter().map(vmid).collect::<Result<Vec<_>, _>>()?;
    let no_field = || unreadable_error(DecisionPart::Rules, "it contains an unknown field".into());
    let own_write = |own: OwnWriteRow| {
        let field = Field::from_word(&own.field).ok_or_else(no_field)?;
        vmid(own.vmid).map(|vmid| OwnWrite { field, value: own.value, vmid })
    };
    let own_writes = row.protect.own_writes.into_iter().map(own_write).collect::<Result<Vec<_>, _>>()?;
    let birth = |birth: BirthRow| {
        let invalid = || unreadable_error(DecisionPart::Rules, "it contains an invalid birth".into());
        let identity = birth.identity.map(|marks| marks.into_known_identity().ok_or_else(invalid)).transpose()?;
        let request = birth.request.map(|text| Digest::parse(&text).ok_or_else(invalid)).transpose()?;
        let (grown, provisioned) = (birth.grown.unwrap_or(true), birth.provisioned);
        vmid(birth.vmid).map(|vmid| Birth { grown, identity, provisioned, request, started: birth.started, vmid })
    };
    let births = row.protect.births.into_iter().map(birth).collect::<Result<Vec<_>, _>>()?;
    let rules = Rules::new(ids, row.protect.names, row.protect.tags).with_own_writes(own_writes).with_births(births);
    let rules = match row.host {
        Some(host) => rules.with_machine(build_machine(host)),
        None => rules,
    };
    Ok((rules, row.fields))
}

fn build_machine(row: MachineIdentityRow) -> MachineIdentity {
    let unread = row.unread.into_iter().map(|mark| match mark {
        MachineMarkRow::FirmwareUuid => MachineMark::FirmwareUuid,
        MachineMarkRow::HardwareAddresses => MachineMark::HardwareAddresses,
    });
    let host = MachineIdentity::new(row.macs, row.uuids).with_unreadable(unread);
    if row.has_device { host.with_device() } else { host }
}

#[cfg(test)]
mod tests;
