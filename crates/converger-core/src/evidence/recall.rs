//! Decisions, made again of what was recorded: the same inputs, the same planner and the same rules give the same bytes, or something is wrong
//! that has a name.
//!
//! What never enters: where the bytes are kept, and the program that made them. That is named, never run.

use std::fmt;
use std::io;
use std::sync::Arc;

use serde::Deserialize;

use super::Inputs;
use super::config::Understand;
use crate::approve::Mode;
use crate::artifact::{Digest, catalogue_digest, write_body, write_judgement, write_observation};
use crate::desired::{self, Desired};
use crate::guest::Vmid;
use crate::normalize::{Field, TABLE};
use crate::observe::{self, Scoped};
use crate::plan::{PLANNER, plan};
use crate::policy::{Circumstances, Grip, GripBy, Host, Limits, Mark, OwnWrite, Rules};
use crate::safety::{Judged, judge};

/// A part of what a decision rests on, or of what it came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Piece {
    /// The configuration.
    Config,
    /// The declared state.
    Desired,
    /// The reading.
    Observation,
    /// The rules of protection, the table of fields, and the machine.
    Rules,
    /// The catalogue of actions.
    Catalogue,
    /// The body of the plan.
    Plan,
    /// What the plan was held against, and what was found.
    Judgement,
}

impl Piece {
    /// All of them.
    pub const ALL: [Self; 7] = [Self::Config, Self::Desired, Self::Observation, Self::Rules, Self::Catalogue, Self::Plan, Self::Judgement];

    /// The word for it.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Config => "configuration",
            Self::Desired => "declared state",
            Self::Observation => "reading",
            Self::Rules => "rules",
            Self::Catalogue => "catalogue",
            Self::Plan => "plan",
            Self::Judgement => "judgement",
        }
    }
}

impl fmt::Display for Piece {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.word())
    }
}

/// A decision as the ledger names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// What it rests on.
    pub inputs: Inputs,
    /// The body of the plan.
    pub plan: Digest,
    /// What it was held against, and what was found.
    pub judgement: Digest,
}

impl Decision {
    /// Under which digest a piece is kept.
    #[must_use]
    pub fn digest(&self, piece: Piece) -> Digest {
        match piece {
            Piece::Config => self.inputs.config,
            Piece::Desired => self.inputs.desired,
            Piece::Observation => self.inputs.observation,
            Piece::Rules => self.inputs.rules,
            Piece::Catalogue => self.inputs.catalogue,
            Piece::Plan => self.plan,
            Piece::Judgement => self.judgement,
        }
    }
}

/// Why a decision cannot be made again, or is another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Irreproducible {
    /// What it rests on is not kept, or no longer.
    Missing {
        /// Which piece.
        piece: Piece,
        /// Under which digest it was named.
        digest: Digest,
    },
    /// The bytes that are kept are not those that were named.
    Changed {
        /// Which piece.
        piece: Piece,
        /// Under which digest it was named.
        named: Digest,
        /// What is kept has this one.
        found: Digest,
    },
    /// The bytes are those that were named, and this program does not read them.
    Unread {
        /// Which piece.
        piece: Piece,
        /// Why.
        why: String,
    },
    /// Another planner made it. This one could only pretend.
    OtherPlanner {
        /// The planner that made it.
        then: u32,
        /// The planner of this program.
        now: u32,
    },
    /// Another table of fields or another catalogue of actions was in force.
    OtherTables {
        /// Which of the two.
        piece: Piece,
    },
    /// The same inputs give another result: this is what must never be.
    Breach {
        /// What is another one.
        piece: Piece,
        /// What was recorded.
        then: Digest,
        /// What came of it now.
        now: Digest,
        /// The first byte at which they differ.
        at: usize,
    },
}

/// What a decision was made of, ready to be decided again.
#[derive(Clone, Debug)]
pub struct Recalled {
    desired: Arc<Desired>,
    observation: Arc<Scoped>,
    rules: Arc<Rules>,
    limits: Limits,
    circumstances: Circumstances,
    mode: Option<Mode>,
}

/// Makes a decision again and compares it byte for byte. `kept` gives the bytes under a digest, where they are kept; `understood` says what its
/// configuration put in force.
///
/// # Errors
/// The first thing that stands in the way, or that is wrong.
pub fn reproduce(
    decision: &Decision,
    kept: impl Fn(Digest) -> Option<Vec<u8>>,
    understood: Understand,
) -> Result<Recalled, Irreproducible> {
    if decision.inputs.planner != PLANNER {
        return Err(Irreproducible::OtherPlanner { then: decision.inputs.planner, now: PLANNER });
    }
    let whole = |piece| whole(decision, piece, &kept);
    let recalled = recall(decision, whole, understood)?;
    let judged = recalled.decide();
    let written = |write: &dyn Fn(&mut Vec<u8>) -> io::Result<Digest>, piece| {
        let mut bytes = Vec::new();
        write(&mut bytes).map(|_| bytes).map_err(|error| Irreproducible::Unread { piece, why: error.to_string() })
    };
    let body = written(&|out| write_body(out, judged.plan()), Piece::Plan)?;
    same(Piece::Plan, &whole(Piece::Plan)?, &body)?;
    let judgement = written(&|out| write_judgement(out, judged.judgement()), Piece::Judgement)?;
    same(Piece::Judgement, &whole(Piece::Judgement)?, &judgement)?;
    Ok(recalled)
}

fn same(piece: Piece, then: &[u8], now: &[u8]) -> Result<(), Irreproducible> {
    if then == now {
        return Ok(());
    }
    let at = then.iter().zip(now).take_while(|(one, other)| one == other).count();
    Err(Irreproducible::Breach { piece, then: Digest::of_bytes(then), now: Digest::of_bytes(now), at })
}

/// The bytes of a piece, hashed once more: whoever keeps them is not believed.
fn whole(decision: &Decision, piece: Piece, kept: impl Fn(Digest) -> Option<Vec<u8>>) -> Result<Vec<u8>, Irreproducible> {
    let named = decision.digest(piece);
    let bytes = kept(named).ok_or(Irreproducible::Missing { piece, digest: named })?;
    match Digest::of_bytes(&bytes) {
        found if found == named => Ok(bytes),
        found => Err(Irreproducible::Changed { piece, named, found }),
    }
}

/// Reads what a decision rests on.
fn recall(
    decision: &Decision,
    whole: impl Fn(Piece) -> Result<Vec<u8>, Irreproducible>,
    understood: Understand,
) -> Result<Recalled, Irreproducible> {
    whole(Piece::Catalogue)?;
    if catalogue_digest().ok() != Some(decision.inputs.catalogue) {
        return Err(Irreproducible::OtherTables { piece: Piece::Catalogue });
    }
    let rules = rules(&whole(Piece::Rules)?)?;
    let bytes = whole(Piece::Desired)?;
    let desired = desired::parse_normal(&bytes).map_err(|faults| unread(Piece::Desired, format!("{faults:?}")))?;
    let bytes = whole(Piece::Observation)?;
    let reading = observe::parse(&bytes).map_err(|faults| unread(Piece::Observation, format!("{faults:?}")))?;
    let scoped = reading.within(&desired.scope());
    let mut again = Vec::new();
    let is_same = write_observation(&mut again, &scoped).is_ok() && again == bytes;
    if !is_same {
        return Err(unread(Piece::Observation, "it holds more than the decision rests on, or is written in another form".into()));
    }
    let held: HeldAgainst = read(Piece::Judgement, &whole(Piece::Judgement)?)?;
    let HeldAgainst { limits: LimitsRow { guests, percent, stops }, circumstances, .. } = held;
    let (limits, circumstances) = (Limits { guests, percent, stops }, Circumstances { freeze: circumstances.freeze });
    let in_force = understood(&whole(Piece::Config)?).map_err(|why| unread(Piece::Config, why))?;
    in_force.agrees(desired.environment(), &rules, limits, &circumstances).map_err(|why| unread(Piece::Config, why.into()))?;
    let (desired, observation, rules) = (Arc::new(desired), Arc::new(scoped), Arc::new(rules));
    Ok(Recalled { desired, observation, rules, limits, circumstances, mode: in_force.mode })
}

fn unread(piece: Piece, why: String) -> Irreproducible {
    Irreproducible::Unread { piece, why }
}

fn read<T: for<'b> Deserialize<'b>>(piece: Piece, bytes: &[u8]) -> Result<T, Irreproducible> {
    serde_json::from_slice(bytes).map_err(|error| unread(piece, error.to_string()))
}

impl Recalled {
    /// The declared state.
    #[must_use]
    pub fn desired(&self) -> &Desired {
        &self.desired
    }

    /// The rules that were in force.
    #[must_use]
    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// The limits that were in force.
    #[must_use]
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Who decided in the environment, where its configuration says that.
    #[must_use]
    pub fn mode(&self) -> Option<Mode> {
        self.mode
    }

    /// The same under other limits and protection. Who held which guest, and on which machine the program ran, stays as it was.
    #[must_use]
    pub fn under(&self, rules: &Rules, limits: Limits) -> Self {
        let host = self.rules.host().cloned().unwrap_or_default();
        let rules = rules.clone().with_host(host).with_grips(self.rules.grips().to_vec()).with_own_writes(self.rules.own_writes().to_vec());
        Self { rules: Arc::new(rules), limits, ..self.clone() }
    }

    /// Decides, as a run does.
    pub fn decide(&self) -> Judged {
        let plan = plan(Arc::clone(&self.desired), Arc::clone(&self.observation), Arc::clone(&self.rules));
        judge(plan, self.limits, self.circumstances.clone())
    }
}

/// What a plan was held against. What was found is made again, not read.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct HeldAgainst {
    circumstances: CircumstancesRow,
    limits: LimitsRow,
    #[serde(rename = "refusals")]
    _refusals: serde::de::IgnoredAny,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CircumstancesRow {
    freeze: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LimitsRow {
    guests: u32,
    percent: u32,
    stops: u32,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RulesRow {
    fields: serde_json::Value,
    #[serde(default)]
    host: Option<HostRow>,
    protect: ProtectRow,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ProtectRow {
    ids: Vec<u32>,
    names: Vec<String>,
    tags: Vec<String>,
    #[serde(default)]
    grips: Vec<GripRow>,
    #[serde(default)]
    own_writes: Vec<OwnWriteRow>,
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
struct GripRow {
    vmid: u32,
    by: GripByRow,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
enum GripByRow {
    Person { by: String, reason: String },
    Operation(String),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct HostRow {
    has_device: bool,
    macs: Vec<String>,
    unread: Vec<MarkRow>,
    uuids: Vec<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
enum MarkRow {
    FirmwareUuid,
    HardwareAddresses,
}

/// The rules, where they are over the table of fields of this program.
fn rules(bytes: &[u8]) -> Result<Rules, Irreproducible> {
    let row: RulesRow = read(Piece::Rules, bytes)?;
    if serde_json::to_value(TABLE.as_slice()).ok() != Some(row.fields) {
        return Err(Irreproducible::OtherTables { piece: Piece::Rules });
    }
    let no_id = || unread(Piece::Rules, "it names a guest by what is no id".into());
    let vmid = |number: u32| Vmid::new(u64::from(number)).ok_or_else(no_id);
    let ids = row.protect.ids.into_iter().map(vmid).collect::<Result<Vec<_>, _>>()?;
    let grip = |grip: GripRow| {
        let by = match grip.by {
            GripByRow::Person { by, reason } => GripBy::Person { by, reason },
            GripByRow::Operation(id) => GripBy::Operation(id),
        };
        vmid(grip.vmid).map(|vmid| Grip { vmid, by })
    };
    let grips = row.protect.grips.into_iter().map(grip).collect::<Result<Vec<_>, _>>()?;
    let no_field = || unread(Piece::Rules, "it names a field that there is not".into());
    let own_write = |own: OwnWriteRow| {
        let field = Field::of_word(&own.field).ok_or_else(no_field)?;
        vmid(own.vmid).map(|vmid| OwnWrite { field, value: own.value, vmid })
    };
    let own_writes = row.protect.own_writes.into_iter().map(own_write).collect::<Result<Vec<_>, _>>()?;
    let rules = Rules::new(ids, row.protect.names, row.protect.tags).with_grips(grips).with_own_writes(own_writes);
    Ok(row.host.map_or_else(|| rules.clone(), |row| rules.clone().with_host(host(row))))
}

fn host(row: HostRow) -> Host {
    let unread = row.unread.into_iter().map(|mark| match mark {
        MarkRow::FirmwareUuid => Mark::FirmwareUuid,
        MarkRow::HardwareAddresses => Mark::HardwareAddresses,
    });
    let host = Host::new(row.macs, row.uuids).without(unread);
    if row.has_device { host.with_device() } else { host }
}
