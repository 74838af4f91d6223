//! Refusals: one code per cause, with evidence and a remedy.
//!
//! A refusal is a decision and not an error: it is data, is not propagated with `?`, and is recorded like any other
//! decision. Each code has one entry in [`TABLE`]; `converger explain` and the reference are generated from the table.
//! The checks themselves are in `plan` and `safety`.

mod action;
mod table;

use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};

use crate::apply::NameConflict;
use crate::guest::{EnvironmentName, GuestKind, Vmid};

pub use table::{RefusalEntry, TABLE};

/// The cause of a refusal. Stable: scripts and records depend on the words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum RefusalCode {
    NotQuorate,
    ObservationIncomplete,
    GuestUnknown,
    GuestMissing,
    KindMismatch,
    NameMismatch,
    IdentityMismatch,
    NodeOffline,
    ConfigUnreadable,
    GuardUnread,
    GuestLocked,
    GuestTemplate,
    HaOwned,
    GuestHeld,
    ConfigPending,
    UnsupportedChange,
    ProtectedGuest,
    OwnGuestUntold,
    ProtectionChange,
    DependencyRefused,
    DependencyNotRunning,
    DependentRunning,
    LimitGuests,
    LimitPercent,
    LimitStops,
    Frozen,
    GuaranteeBroken,
    ReplayNotAppliable,
    PlanStale,
    ObservationStale,
    ApprovalMissing,
    EnvironmentBusy,
    NotFrozen,
    NotHeld,
    EnvironmentAlias,
    EnvironmentRenamed,
    ClusterMismatch,
    ClusterUnidentified,
    NameInUse,
    EnvironmentUnrecorded,
    OperationsUnsettled,
    StoreUnreadable,
    SnapshotExists,
    SnapshotMissing,
    SnapshotUnfinished,
    SnapshotHardware,
    RamStateUnavailable,
    RunStateUnsuitable,
    DiskMissing,
    DiskShrink,
    LocalResources,
    GuestReplicated,
    NodeMemory,
    StorageUnsuitable,
    StorageFull,
    IdTaken,
    NotTemplate,
    ProtectionCopied,
    KeyReused,
    ProvisioningUnfinished,
    TemplateUnpinned,
    TemplateMismatch,
    TemplateUnusable,
    CloudInitMissing,
}

/// The stage that refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum RefusalStage {
    /// The planner: the cause is in the observation, the declared state or the protection rules.
    Plan,
    /// The safety check: the cause is a limit or a temporary circumstance.
    Safety,
    /// The apply.
    Apply,
}

impl RefusalStage {
    /// Its word.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Plan => "plan",
            Self::Safety => "safety",
            Self::Apply => "apply",
        }
    }
}

/// What a refusal concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalReach {
    /// One guest: others are not affected.
    Guest,
    /// The whole run.
    Run,
}

impl RefusalCode {
    /// Its entry in the table.
    #[must_use]
    pub fn entry(self) -> &'static RefusalEntry {
        // INVARIANT: the table has the order of the enum; `the_table_is_in_the_order_of_the_codes` checks it.
        TABLE.get(self as usize).unwrap_or(&table::MISSING_ENTRY)
    }

    /// Its word.
    #[must_use]
    pub fn word(self) -> &'static str {
        self.entry().word
    }

    /// What happened. `has` says whether a key is in the evidence: a reader who is told that somebody holds a guest looks for a person.
    #[must_use]
    pub fn title(self, has: impl Fn(&str) -> bool) -> &'static str {
        match self {
            Self::GuestHeld if has("operation") => "an operation of this program on the guest is in flight, or its outcome is unknown",
            Self::GuestLocked if has("lock_file") => "another process holds the guest's lock file, and Proxmox timed out waiting for it",
            Self::ConfigUnreadable if has("option") => {
                "the datacenter option that decides whether tags keep upper-case letters was not read"
            }
            Self::ConfigUnreadable if has("not_understood") => "the guest's config has a value that this program does not understand",
            Self::LocalResources if has("source") => "the source of the clone uses what only its node has",
            Self::NodeOffline if has("nodes") => "the cluster has no such node",
            Self::GuestMissing if has("source") => "the source of the clone does not exist",
            Self::GuestUnknown if has("source") => "the state of the source of the clone is unknown",
            Self::KindMismatch if has("source") => "the source of the clone is of the other kind",
            Self::GuestLocked if has("source") => "Proxmox has locked the source of the clone",
            Self::GuestHeld if has("source") => "the source of the clone is tagged as held",
            Self::PlanStale if has("epoch") => "the plan was made before the state directory was restored or resynced, and is void",
            code => code.entry().title,
        }
    }

    /// What to do about it. `has` says whether a key is in the evidence: one code has several causes.
    #[must_use]
    pub fn remedy(self, has: impl Fn(&str) -> bool) -> &'static str {
        match self {
            Self::GuestHeld if has("by") => {
                "Where a person holds the guest, ask the person that the evidence names; `converger release` ends the hold."
            }
            Self::GuestHeld if has("operation") => {
                "Where an operation holds the guest, look at it with `converger ops show`: the next apply reads it again, or settle it with `converger ops resolve`."
            }
            Self::GuestLocked if has("lock_file") => {
                "Where a lock file is held, nothing was changed: wait until the process that holds it ends, or find it on the node with `fuser -v` and the path in the evidence; then apply again. `qm unlock` and `pct unlock` do not help, as there is no lock in the config."
            }
            Self::ConfigUnreadable if has("option") => {
                "Where tags have upper-case letters, observe the environment itself, with `Sys.Audit` on `/` for the token, or declare the tags in lower case."
            }
            Self::ConfigUnreadable if has("not_understood") => {
                "Where a value is not understood, set the key in the evidence to a value that Proxmox documents, or remove the fields in the evidence from the declared state."
            }
            Self::NodeOffline if has("nodes") => "Check the name: the evidence lists the nodes of the cluster.",
            Self::GuestMissing if has("source") => "Check the id of the source.",
            Self::LocalResources if has("source") => {
                "Remove devices and directories of the node from the source. If only disks are in the evidence, clone to the node of the source, or move them to shared storage first."
            }
            Self::KindMismatch if has("source") => "Name the source by its kind: `vm/ID` or `ct/ID`.",
            Self::ApprovalMissing if has("signatures") => {
                "Steps that need a signed approval can be planned and not applied: this version accepts no signatures yet. Do it in Proxmox."
            }
            Self::GuestMissing if has("environment") => {
                "Check the id and the environment: only a guest that exists can be held, also one that cannot be read."
            }
            code => code.entry().remedy,
        }
    }

    /// All remedies, one for each cause.
    #[must_use]
    pub fn remedies(self) -> Vec<&'static str> {
        let mut all = vec![self.entry().remedy];
        let keys = ["by", "operation", "environment", "lock_file", "option", "not_understood", "nodes", "source", "signatures"];
        for remedy in keys.map(|key| self.remedy(|own| own == key)) {
            if !all.contains(&remedy) {
                all.push(remedy);
            }
        }
        all
    }

    /// The code of a word.
    #[must_use]
    pub fn from_word(word: &str) -> Option<Self> {
        TABLE.iter().find(|entry| entry.word == word).map(|entry| entry.code)
    }
}

/// A decision not to do something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    code: RefusalCode,
    evidence: RefusalEvidence,
}

/// The facts that a refusal rests on, by key. Texts from outside are data here and are escaped where they are shown.
pub type RefusalEvidence = Vec<(&'static str, Datum)>;

/// One piece of evidence.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
#[allow(missing_docs)]
pub enum Datum {
    Number(u64),
    Text(String),
    Ids(Vec<Vmid>),
    Words(Vec<String>),
}

/// The longest text that is kept as evidence, in characters, including the note about how much was cut.
pub const EVIDENCE_CHARS_MAX: usize = 500;

/// The longest list that is kept as evidence, including the note about how many entries were cut.
pub const EVIDENCE_WORDS_MAX: usize = 100;

/// A text of at most [`EVIDENCE_CHARS_MAX`] characters. A shorter one stays as it is.
pub(crate) fn shorten(text: String) -> String {
    const KEPT: usize = EVIDENCE_CHARS_MAX - 50;
    if text.len() <= EVIDENCE_CHARS_MAX || text.chars().count() <= EVIDENCE_CHARS_MAX {
        return text;
    }
    let left = text.chars().count() - KEPT;
    text.chars().take(KEPT).chain(format!("… and {left} more characters").chars()).collect()
}

/// A list of at most [`EVIDENCE_WORDS_MAX`] shortened entries.
pub(crate) fn shorten_list<T>(items: Vec<T>, brief: impl Fn(T) -> T, from_text: impl Fn(String) -> T) -> Vec<T> {
    let count = items.len();
    if count <= EVIDENCE_WORDS_MAX {
        return items.into_iter().map(brief).collect();
    }
    let left = count - (EVIDENCE_WORDS_MAX - 1);
    items.into_iter().take(EVIDENCE_WORDS_MAX - 1).map(brief).chain([from_text(format!("… and {left} more"))]).collect()
}

impl From<&str> for Datum {
    fn from(text: &str) -> Self {
        Self::Text(text.into())
    }
}

impl Refusal {
    /// Its code.
    #[must_use]
    pub fn code(&self) -> RefusalCode {
        self.code
    }

    /// The facts that it rests on, in the order of their keys.
    #[must_use]
    pub fn evidence(&self) -> &[(&'static str, Datum)] {
        &self.evidence
    }

    /// What happened.
    #[must_use]
    pub fn title(&self) -> &'static str {
        self.code.title(|key| self.has_evidence(key))
    }

    /// What to do about it.
    #[must_use]
    pub fn remedy(&self) -> &'static str {
        self.code.remedy(|key| self.has_evidence(key))
    }

    fn has_evidence(&self, key: &str) -> bool {
        self.evidence.iter().any(|(own, _)| *own == key)
    }

    fn new(code: RefusalCode) -> Self {
        Self { code, evidence: Vec::new() }
    }

    fn with(mut self, key: &'static str, datum: impl Into<Datum>) -> Self {
        let datum = match datum.into() {
            Datum::Text(text) => Datum::Text(shorten(text)),
            Datum::Words(words) => Datum::Words(shorten_list(words, shorten, |left| left)),
            datum => datum,
        };
        self.evidence.push((key, datum));
        self.evidence.sort_by_key(|(key, _)| *key);
        self
    }

    pub(crate) fn not_quorate() -> Self {
        Self::new(RefusalCode::NotQuorate)
    }

    pub(crate) fn observation_incomplete() -> Self {
        Self::new(RefusalCode::ObservationIncomplete)
    }

    pub(crate) fn guest_unknown(cause: &str) -> Self {
        Self::new(RefusalCode::GuestUnknown).with("cause", cause)
    }

    pub(crate) fn guest_missing() -> Self {
        Self::new(RefusalCode::GuestMissing)
    }

    pub(crate) fn kind_mismatch(desired: GuestKind, observed: GuestKind) -> Self {
        Self::new(RefusalCode::KindMismatch).with("desired", desired.word()).with("observed", observed.word())
    }

    pub(crate) fn name_mismatch(desired: &str, observed: &str) -> Self {
        Self::new(RefusalCode::NameMismatch).with("desired", desired).with("observed", observed)
    }

    pub(crate) fn identity_mismatch(marks: Vec<String>) -> Self {
        Self::new(RefusalCode::IdentityMismatch).with("marks", Datum::Words(marks))
    }

    pub(crate) fn node_offline(node: &str) -> Self {
        Self::new(RefusalCode::NodeOffline).with("node", node)
    }

    /// There is no such node; these exist.
    pub(crate) fn node_unknown(node: &str, nodes: Vec<String>) -> Self {
        Self::new(RefusalCode::NodeOffline).with("node", node).with("nodes", Datum::Words(nodes))
    }

    pub(crate) fn config_unreadable(fields: Vec<String>) -> Self {
        Self::new(RefusalCode::ConfigUnreadable).with("fields", Datum::Words(fields))
    }

    /// These declared fields cannot be compared, because these keys have values that this program does not understand.
    pub(crate) fn config_not_understood(fields: Vec<String>, values: Vec<String>) -> Self {
        Self::config_unreadable(fields).with("not_understood", Datum::Words(values))
    }

    /// Tags are declared with upper-case letters, and the datacenter's option for them was not read.
    pub(crate) fn tag_case_unread() -> Self {
        Self::config_unreadable(vec!["tags".into()]).with("option", "tag-style")
    }

    pub(crate) fn guard_unread(fields: Vec<String>) -> Self {
        Self::new(RefusalCode::GuardUnread).with("fields", Datum::Words(fields))
    }

    pub(crate) fn guest_locked(lock: &str) -> Self {
        Self::new(RefusalCode::GuestLocked).with("lock", lock)
    }

    /// Another process held a lock file longer than Proxmox waits; the text of Proxmox names the file.
    pub(crate) fn lock_file_held(text: &str) -> Self {
        Self::new(RefusalCode::GuestLocked).with("lock_file", text)
    }

    pub(crate) fn guest_template() -> Self {
        Self::new(RefusalCode::GuestTemplate)
    }

    pub(crate) fn ha_owned(state: &str) -> Self {
        Self::new(RefusalCode::HaOwned).with("state", state)
    }

    pub(crate) fn guest_held(tag: &str) -> Self {
        Self::new(RefusalCode::GuestHeld).with("tag", tag)
    }

    /// A person holds the guest with `converger hold`.
    #[must_use]
    pub fn guest_held_by_person(by: &str, reason: &str) -> Self {
        Self::new(RefusalCode::GuestHeld).with("by", by).with("reason", reason)
    }

    /// Another operation on the guest is in flight, or its outcome is unknown (G12).
    #[must_use]
    pub fn guest_held_by_operation(operation: &str) -> Self {
        Self::new(RefusalCode::GuestHeld).with("operation", operation)
    }

    pub(crate) fn config_pending(keys: Vec<String>) -> Self {
        Self::new(RefusalCode::ConfigPending).with("keys", Datum::Words(keys))
    }

    pub(crate) fn unsupported_change(field: &str, why: &str) -> Self {
        Self::new(RefusalCode::UnsupportedChange).with("field", field).with("why", why)
    }

    pub(crate) fn protected_guest(by: Vec<String>, changes: Vec<String>) -> Self {
        Self::new(RefusalCode::ProtectedGuest).with("by", Datum::Words(by)).with("changes", Datum::Words(changes))
    }

    pub(crate) fn own_guest_untold(unread: Vec<String>, changes: Vec<String>) -> Self {
        Self::new(RefusalCode::OwnGuestUntold).with("changes", Datum::Words(changes)).with("unread", Datum::Words(unread))
    }

    pub(crate) fn protection_change(tags: Vec<String>) -> Self {
        Self::new(RefusalCode::ProtectionChange).with("tags", Datum::Words(tags))
    }

    pub(crate) fn dependency_refused(on: Vec<Vmid>) -> Self {
        Self::new(RefusalCode::DependencyRefused).with("on", Datum::Ids(on))
    }

    pub(crate) fn dependency_not_running(on: Vec<Vmid>) -> Self {
        Self::new(RefusalCode::DependencyNotRunning).with("on", Datum::Ids(on))
    }

    pub(crate) fn dependent_running(guests: Vec<Vmid>) -> Self {
        Self::new(RefusalCode::DependentRunning).with("guests", Datum::Ids(guests))
    }

    pub(crate) fn limit_guests(count: u32, max: u32) -> Self {
        Self::new(RefusalCode::LimitGuests).with("count", Datum::Number(count.into())).with("max", Datum::Number(max.into()))
    }

    pub(crate) fn limit_percent(count: u32, max: u32, percent: u32, scope: u32) -> Self {
        Self::new(RefusalCode::LimitPercent)
            .with("count", Datum::Number(count.into()))
            .with("max", Datum::Number(max.into()))
            .with("percent", Datum::Number(percent.into()))
            .with("scope", Datum::Number(scope.into()))
    }

    pub(crate) fn limit_stops(count: u32, max: u32) -> Self {
        Self::new(RefusalCode::LimitStops).with("count", Datum::Number(count.into())).with("max", Datum::Number(max.into()))
    }

    /// Changes are frozen, for this reason.
    #[must_use]
    pub fn changes_frozen(reason: &str) -> Self {
        Self::new(RefusalCode::Frozen).with("reason", reason)
    }

    pub(crate) fn guarantee_broken(guarantee: &'static str, guests: Vec<Vmid>) -> Self {
        Self::new(RefusalCode::GuaranteeBroken).with("guarantee", guarantee).with("guests", Datum::Ids(guests))
    }

    /// A plan made from a recorded observation is never applied (G7).
    #[must_use]
    pub fn replay_not_appliable() -> Self {
        Self::new(RefusalCode::ReplayNotAppliable)
    }

    /// The current plan, or the guest as read right before a step is sent, differs from the approved plan.
    #[must_use]
    pub fn plan_stale(differences: Vec<String>) -> Self {
        Self::new(RefusalCode::PlanStale).with("differences", Datum::Words(differences))
    }

    /// The plan is of another epoch of the state directory.
    pub(crate) fn plan_of_other_epoch(then: u64, now: u64) -> Self {
        Self::new(RefusalCode::PlanStale).with("epoch", Datum::Number(now)).with("epoch_of_plan", Datum::Number(then))
    }

    pub(crate) fn observation_stale(age_secs: u32, max_secs: u32) -> Self {
        Self::new(RefusalCode::ObservationStale)
            .with("age_secs", Datum::Number(age_secs.into()))
            .with("max_secs", Datum::Number(max_secs.into()))
    }

    pub(crate) fn observation_undated() -> Self {
        Self::new(RefusalCode::ObservationStale).with("age_secs", "not known")
    }

    pub(crate) fn approval_missing(required: &'static str, guests: Vec<Vmid>) -> Self {
        Self::new(RefusalCode::ApprovalMissing).with("guests", Datum::Ids(guests)).with("needs", required)
    }

    /// Some steps need signed approvals, which a confirmation does not replace.
    pub(crate) fn signature_missing(guests: Vec<Vmid>) -> Self {
        Self::approval_missing("a signed approval", guests).with("signatures", Datum::Number(1))
    }

    /// Another process applies changes to the environment: its user, its id and when it started.
    #[must_use]
    pub fn environment_busy(by: &str, process: u32, since: &str) -> Self {
        Self::new(RefusalCode::EnvironmentBusy).with("by", by).with("process", Datum::Number(process.into())).with("since", since)
    }

    /// Another process applies changes to the environment, and has not recorded its user yet.
    #[must_use]
    pub fn environment_busy_starting() -> Self {
        Self::new(RefusalCode::EnvironmentBusy).with("by", "a process that has just begun")
    }

    /// There is no freeze to end.
    #[must_use]
    pub fn not_frozen(environment: &str) -> Self {
        Self::new(RefusalCode::NotFrozen).with("environment", environment)
    }

    /// There is no hold of this guest to end.
    #[must_use]
    pub fn guest_not_held(vmid: Vmid) -> Self {
        Self::new(RefusalCode::NotHeld).with("guest", Datum::Ids(vec![vmid]))
    }

    /// The operation was to be resolved, and its outcome is known.
    #[must_use]
    pub fn operation_not_held(operation: &str, stands: &str) -> Self {
        Self::new(RefusalCode::NotHeld).with("operation", operation).with("stands", stands)
    }

    /// A fresh observation proves that an environment has no guest of this id.
    #[must_use]
    pub fn guest_missing_in(environment: &EnvironmentName, vmid: Vmid) -> Self {
        Self::new(RefusalCode::GuestMissing).with("environment", environment.as_str()).with("guest", Datum::Ids(vec![vmid]))
    }

    /// The environment name conflicts with the cluster that responds.
    #[must_use]
    pub fn name_conflict(conflict: &NameConflict) -> Self {
        match conflict {
            NameConflict::SecondName { environment, bound_as } => {
                Self::new(RefusalCode::EnvironmentAlias).with("environment", environment.as_str()).with("recorded_as", bound_as.as_str())
            }
            NameConflict::OtherCluster { recorded, found } => Self::new(RefusalCode::ClusterMismatch)
                .with("environment", recorded.environment.as_str())
                .with("found", found.as_str())
                .with("recorded", recorded.cluster.as_str()),
            NameConflict::Renamed { environment, now } => {
                Self::new(RefusalCode::EnvironmentRenamed).with("environment", environment.as_str()).with("now", now.as_str())
            }
        }
    }

    /// The identity of the cluster cannot be read. Nothing is sent to an unidentified cluster.
    #[must_use]
    pub fn cluster_unidentified(environment: &EnvironmentName, cause: &str) -> Self {
        Self::new(RefusalCode::ClusterUnidentified).with("cause", cause).with("environment", environment.as_str())
    }

    /// Another environment has the new name.
    #[must_use]
    pub fn name_in_use(name: &EnvironmentName) -> Self {
        Self::new(RefusalCode::NameInUse).with("name", name.as_str())
    }

    /// Nothing is recorded under the environment name that was to be changed.
    #[must_use]
    pub fn environment_unrecorded(environment: &EnvironmentName) -> Self {
        Self::new(RefusalCode::EnvironmentUnrecorded).with("environment", environment.as_str())
    }

    /// The store that would be replaced has operations in flight or held.
    #[must_use]
    pub fn operations_unsettled(in_flight: Vec<String>, held: Vec<String>) -> Self {
        let lists = [("in_flight", in_flight), ("held", held)].into_iter().filter(|(_, ids)| !ids.is_empty());
        lists.fold(Self::new(RefusalCode::OperationsUnsettled), |refusal, (key, ids)| refusal.with(key, Datum::Words(ids)))
    }

    /// The store that would be replaced cannot be read.
    #[must_use]
    pub fn store_unreadable(cause: &str) -> Self {
        Self::new(RefusalCode::StoreUnreadable).with("cause", cause)
    }
}

impl Serialize for Refusal {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let entry = self.code.entry();
        let mut refusal = serializer.serialize_struct("Refusal", 4)?;
        refusal.serialize_field("code", entry.word)?;
        refusal.serialize_field("evidence", &EvidenceMap(&self.evidence))?;
        refusal.serialize_field("remedy", self.remedy())?;
        refusal.serialize_field("stage", &entry.stage)?;
        refusal.end()
    }
}

struct EvidenceMap<'r>(&'r [(&'static str, Datum)]);

impl Serialize for EvidenceMap<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(key, datum)| (key, datum)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_in_the_order_of_the_codes() {
        for (index, entry) in TABLE.iter().enumerate() {
            assert_eq!(entry.code as usize, index, "{}", entry.word);
            assert_eq!(RefusalCode::from_word(entry.word), Some(entry.code));
        }
        assert_eq!(RefusalCode::CloudInitMissing as usize + 1, TABLE.len(), "the last code is in the table");
    }

    #[test]
    fn codes_are_kebab_case_and_every_entry_says_what_to_do() {
        for entry in &TABLE {
            assert!(entry.word.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-'), "{}", entry.word);
            for text in [entry.title, entry.meaning, entry.remedy] {
                assert!(text.len() > 10 && !text.contains('\n'), "{}: {text:?}", entry.word);
            }
            assert!(entry.meaning.ends_with('.') && entry.remedy.ends_with('.'), "{}", entry.word);
        }
    }

    #[test]
    fn each_kind_of_hold_has_its_own_remedy() {
        let refusals =
            [Refusal::guest_held("converger-hold"), Refusal::guest_held_by_person("ann", "why"), Refusal::guest_held_by_operation("7-0")];
        assert_eq!(refusals.each_ref().map(Refusal::remedy).to_vec(), RefusalCode::GuestHeld.remedies());
        let [by_tag, by_person, by_operation] = refusals.map(|refusal| refusal.title());
        assert!(by_tag == by_person && by_person.contains("somebody") && !by_operation.contains("somebody"));
        assert_eq!(RefusalCode::Frozen.remedies(), [RefusalCode::Frozen.entry().remedy]);
    }

    #[test]
    fn a_lock_file_is_not_called_a_lock_of_the_config() {
        let (config, file) = (Refusal::guest_locked("backup"), Refusal::lock_file_held("can't lock file '/var/lock/x' - got timeout"));
        assert_eq!(config.code(), file.code());
        assert!(config.remedy().contains("remove the lock with `qm unlock` or `pct unlock`"), "{}", config.remedy());
        assert!(file.title().contains("lock file") && file.remedy().contains("there is no lock in the config"), "{}", file.remedy());
        assert_eq!(RefusalCode::GuestLocked.remedies(), [config.remedy(), file.remedy()]);
    }

    #[test]
    fn evidence_is_ordered_by_key() {
        let refusal = Refusal::limit_percent(1, 2, 3, 4);
        let keys: Vec<&str> = refusal.evidence().iter().map(|(key, _)| *key).collect();
        assert_eq!(keys, ["count", "max", "percent", "scope"]);
    }
}
