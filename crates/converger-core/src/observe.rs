//! An observation: one reading of an environment, in which every guest is present, missing or unknown.
//!
//! Unknown is a value, and absence must be proven: a guest that is not listed is missing only if the list is complete, and a field that is
//! not there was not read ([`Reading::Unread`]), which is not the same as read and empty.
//!
//! Must not depend on how an observation is taken (adapters) or what follows from it (`plan`).

mod extras;
mod hardware;
mod node;
mod note;
mod parse;
mod read_set;
mod snapshots;
mod unlisted;
mod write;

use crate::desired::Scope;
use crate::document::{Diagnostics, Notation};
use crate::guest::{EnvironmentName, GuestIdentity, GuestKind, RunState, Vmid};
use crate::normalize::{EffectContext, Field, FieldValue, HotplugFeatures, WordSet};

pub use extras::GuestExtras;
pub use hardware::{GuestDisk, GuestHardware, GuestVolume};
pub use node::{NodeCapacity, ObservedNode, ObservedStorage};
pub use note::Note;
pub(crate) use parse::{read_ha, read_or_null, read_text, read_untyped_value as read_value, read_words};
pub use read_set::{BirthNeed, BirthNeeds, CapacityOf, ExtraReads, GuestNeed, IntentNeeds, NodeReads, ReadDetail, ReadSet};
pub use snapshots::{GuestSnapshot, SnapshotTree};
pub use unlisted::UnlistedGuest;
pub use write::PlanView;

/// Schema id of current.json.
pub const SCHEMA: &str = "converger.observation/1";

/// The cause of an unknown guest if the observation gives none.
pub const CAUSE_NOT_GIVEN: &str = "cause-not-given";

/// The cause of an unknown guest that an incomplete observation does not list.
pub const CAUSE_NOT_LISTED: &str = "not-listed";

/// The cause of an unknown guest that an observer lists twice.
pub const CAUSE_LISTED_TWICE: &str = "listed-twice";

/// The cause of an unknown guest whose run-state is neither running nor stopped, such as one that is paused.
pub const CAUSE_RUN_STATE_UNCLEAR: &str = "run-state-unclear";

/// The cause of an unknown guest whose run-state was not reported, or not yet.
pub const CAUSE_NOT_REPORTED: &str = "status-not-reported";

/// One observation of an environment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observation {
    /// The environment that was read.
    pub environment: EnvironmentName,
    /// The observer that took it, for people.
    pub source: Option<Box<str>>,
    /// When it was taken. Not part of any digest.
    pub taken_at: Option<Box<str>>,
    /// Whether the list of guests is complete; only then is an unlisted guest missing.
    pub complete: bool,
    /// Whether the cluster had quorum.
    pub quorate: bool,
    /// What the datacenter does with letter case in tags; `None` if it was not read.
    pub tag_case: Option<TagCase>,
    /// The nodes.
    pub nodes: Box<[ObservedNode]>,
    /// The guests, sorted by id.
    pub guests: Box<[ObservedGuest]>,
    /// Guests in scope that an incomplete list lacks, with the cause if it is known; sorted by id.
    pub unlisted: Box<[UnlistedGuest]>,
    /// The number of observed guests that are not declared, which were dropped.
    pub unmanaged: u64,
    /// Notes for people. Not part of any digest.
    pub notes: Box<[Note]>,
}

/// An observation without anything outside a scope (G8). Made by [`Observation::into_scoped`] only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scoped(Observation);

impl std::ops::Deref for Scoped {
    type Target = Observation;

    fn deref(&self) -> &Observation {
        &self.0
    }
}

impl Scoped {
    /// Returns the observation for changes; it must be scoped again afterwards.
    #[must_use]
    pub fn into_observation(self) -> Observation {
        self.0
    }
}

/// What a datacenter does with letter case in tags (`tag-style` in its options).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TagCase {
    /// Tags are stored as written: `Web` and `web` are different tags.
    Kept,
    /// Tags are stored in lower case: `Web` and `web` are the same tag.
    Lowered,
}

impl TagCase {
    /// Both rules.
    pub const ALL: [Self; 2] = [Self::Kept, Self::Lowered];

    /// Their words, in the order of [`TagCase::ALL`].
    pub const WORDS: [&'static str; 2] = ["kept", "lowered"];

    /// Its name in artifacts.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Kept => "kept",
            Self::Lowered => "lowered",
        }
    }
}

/// A value that may not have been read. `Unread` means neither empty nor default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading<T> {
    /// It was not read.
    Unread,
    /// It was read, with this value.
    Read(T),
}

impl<T> Reading<T> {
    /// The value by reference.
    pub fn as_ref(&self) -> Reading<&T> {
        match self {
            Self::Unread => Reading::Unread,
            Self::Read(value) => Reading::Read(value),
        }
    }

    /// The value after a function, if it was read.
    pub fn map<U>(self, function: impl FnOnce(T) -> U) -> Reading<U> {
        match self {
            Self::Unread => Reading::Unread,
            Self::Read(value) => Reading::Read(function(value)),
        }
    }

    /// Whether it was read.
    pub fn is_read(&self) -> bool {
        matches!(self, Self::Read(_))
    }

    /// The value, if it was read.
    #[must_use]
    pub fn into_option(self) -> Option<T> {
        match self {
            Self::Unread => None,
            Self::Read(value) => Some(value),
        }
    }
}

/// A listed guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedGuest {
    /// Its id.
    pub vmid: Vmid,
    /// Its kind.
    pub kind: GuestKind,
    /// The index of its node in [`Observation::nodes`].
    pub node: usize,
    /// Its run-state, if known.
    pub status: ObservedStatus,
    /// Its displayed name. Untrusted text.
    pub name: Option<Box<str>>,
    /// What the platform calls its run-state.
    pub run_state: Option<Box<str>>,
    /// CPUs as counted by the platform.
    pub cpus: Option<u32>,
    /// Memory in bytes as counted by the platform.
    pub maxmem: Option<u64>,
    /// Whether the row was read from the guest's own node or from a cache.
    pub source: Option<Box<str>>,
    /// Its lock, if there is one.
    pub lock: Reading<Option<Box<str>>>,
    /// Its high-availability state, if it is an HA resource.
    pub ha: Reading<Option<HaState>>,
    /// Whether it is a template.
    pub template: Reading<bool>,
    /// Whether the platform's protection flag is set.
    pub protection: Reading<bool>,
    /// Its tags.
    pub tags: Reading<WordSet>,
    /// Its birth marks.
    pub identity: Reading<Box<GuestIdentity>>,
    /// The MAC addresses of all its network devices, in upper case. They are read with the birth marks and count only if those do. Devices
    /// come and go: a MAC address shows whether the guest is this machine, not whether it is the same guest as before.
    pub macs: WordSet,
    /// The effective values. Read completely or not at all, so that an absent key has its default.
    pub config: Reading<EffectiveValues>,
    /// The changes that are pending until the next start.
    pub pending: Reading<Box<[PendingChange]>>,
    /// The platform's digest of the config.
    pub digest: Option<Box<str>>,
    /// What only some intents need; `None` if nothing of it was read.
    pub extras: Option<Box<GuestExtras>>,
}

impl ObservedGuest {
    /// The tags that it has now and those that it gets at its next start.
    pub fn current_and_pending_tags(&self) -> impl Iterator<Item = &str> {
        let now = self.tags.as_ref().into_option();
        let next = self.pending.as_ref().into_option().into_iter().flatten().find_map(|entry| match entry {
            PendingChange::Known(Field::Tags, Some(FieldValue::Tags(tags))) => Some(tags),
            _ => None,
        });
        now.into_iter().chain(next).flat_map(WordSet::iter)
    }

    /// Makes the status unknown if the platform's word contradicts it (`paused`, `io-error`).
    fn settle_status(&mut self) {
        let ObservedStatus::Known(state) = self.status else { return };
        if let Some(run_state) = self.run_state.as_deref().filter(|run_state| *run_state != state.word()) {
            self.status = match ObservedStatus::from_word(run_state) {
                ObservedStatus::Known(_) => ObservedStatus::Unknown(Some(CAUSE_RUN_STATE_UNCLEAR.into())),
                unknown => unknown,
            };
        }
    }
}

/// The run-state of a listed guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ObservedStatus {
    /// It is known.
    Known(RunState),
    /// It is unknown, for this cause.
    Unknown(Option<Box<str>>),
}

impl ObservedStatus {
    /// Interprets the platform's word for a run-state. No other code does.
    ///
    /// A paused or failed guest has a process and memory but does nothing: it is neither running nor stopped.
    #[must_use]
    pub fn from_word(word: &str) -> Self {
        match word {
            "running" => Self::Known(RunState::Running),
            "stopped" => Self::Known(RunState::Stopped),
            "unknown" | "" => Self::Unknown(Some(CAUSE_NOT_REPORTED.into())),
            _ => Self::Unknown(Some(CAUSE_RUN_STATE_UNCLEAR.into())),
        }
    }
}

/// The state of a guest as an HA resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HaState {
    /// The HA manager's word for the state; it has none right after the resource was added.
    pub state: Option<Box<str>>,
}

impl HaState {
    /// Whether the manager owns the guest's run-state.
    #[must_use]
    pub fn owns_run_state(&self) -> bool {
        self.state.as_deref() != Some("ignored")
    }

    /// Whether the guest is in the state that the manager wants; otherwise the manager is about to move or change it.
    #[must_use]
    pub fn is_settled(&self, state: RunState) -> bool {
        match self.state.as_deref() {
            Some("started" | "enabled") => state == RunState::Running,
            Some("stopped" | "disabled") => state == RunState::Stopped,
            Some("ignored") => true,
            _ => false,
        }
    }
}

/// The effective values of the keys in the table of fields.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EffectiveValues {
    values: Box<[(Field, FieldValue)]>,
    not_understood: Box<[(Field, Box<str>)]>,
}

impl EffectiveValues {
    /// The memory of a virtual machine whose config has none.
    pub const MEMORY_DEFAULT_MIB: u32 = 512;

    /// The longest stored text of a value that is not understood, in characters.
    pub const RAW_CHARS_MAX: usize = 200;

    /// A config of these values.
    #[must_use]
    pub fn new(mut values: Vec<(Field, FieldValue)>) -> Self {
        values.sort_unstable_by_key(|(field, _)| *field);
        Self { values: values.into(), not_understood: Box::new([]) }
    }

    /// Adds keys whose values are not understood. Each text is cut to [`EffectiveValues::RAW_CHARS_MAX`].
    #[must_use]
    pub fn with_not_understood(self, mut raw: Vec<(Field, Box<str>)>) -> Self {
        raw.sort_unstable_by_key(|(field, _)| *field);
        let cut = |text: &str| text.chars().take(Self::RAW_CHARS_MAX).collect::<String>().into_boxed_str();
        Self { not_understood: raw.iter().map(|(field, text)| (*field, cut(text))).collect(), ..self }
    }

    /// The value of a key, if it is present and understood. `None` means the default only if [`EffectiveValues::not_understood`] has no
    /// text for the key.
    #[must_use]
    pub fn get(&self, field: Field) -> Option<&FieldValue> {
        self.values.iter().find(|(own, _)| *own == field).map(|(_, value)| value)
    }

    /// The values, sorted by field.
    #[must_use]
    pub fn values(&self) -> &[(Field, FieldValue)] {
        &self.values
    }

    /// The text of a key whose value is not understood.
    #[must_use]
    pub fn not_understood(&self, field: Field) -> Option<&str> {
        self.not_understood.iter().find(|(own, _)| *own == field).map(|(_, text)| &**text)
    }

    /// All keys whose values are not understood, with their texts, sorted by field.
    #[must_use]
    pub fn all_not_understood(&self) -> &[(Field, Box<str>)] {
        &self.not_understood
    }

    /// The part that affects how other fields take effect.
    #[must_use]
    pub fn effect_context(&self) -> EffectContext {
        let hotplug = match self.get(Field::Hotplug) {
            Some(FieldValue::Features(features)) => *features,
            _ => HotplugFeatures::DEFAULT,
        };
        EffectContext { memory_hotplug: hotplug.has("memory") && self.get(Field::Numa) == Some(&FieldValue::Flag(true)) }
    }
}

/// A change that is pending until the next start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PendingChange {
    /// A field of the table gets this value, or is removed (`None`).
    Known(Field, Option<FieldValue>),
    /// Another key changes; its value is not needed.
    Other(Box<str>),
}

impl PendingChange {
    /// The key.
    #[must_use]
    pub fn key(&self) -> &str {
        match self {
            Self::Known(field, _) => field.word(),
            Self::Other(key) => key,
        }
    }
}

/// What an observation says about one guest.
#[derive(Clone, Copy, Debug)]
pub enum Seen<'o> {
    /// It exists, with this run-state.
    Present(&'o ObservedGuest, RunState),
    /// The list is complete and does not contain it.
    Missing,
    /// Unknown, for this cause.
    Unknown(&'o str),
}

/// Parses current.json.
///
/// # Errors
/// All faults of the text, each with its position: malformed, cut off, another schema, or contradictory.
pub fn parse(bytes: &[u8]) -> Result<Observation, Diagnostics> {
    parse::parse(bytes, Notation::Json)
}

impl Observation {
    /// The ids of the listed guests, and of those that may exist although the list lacks them or makes no sense of them.
    pub fn candidate_ids(&self) -> impl Iterator<Item = Vmid> {
        self.guests.iter().map(|guest| guest.vmid).chain(self.unlisted.iter().map(|guest| guest.vmid))
    }

    /// Drops everything outside the scope. Dropped guests count as unmanaged, unless they are declared and not selected (`--only`).
    /// Only a scoped observation can be planned on.
    ///
    /// Whatever the observer returned, the rows are then sorted and unique: an id that is listed twice is unknown.
    #[must_use]
    pub fn into_scoped(mut self, scope: &Scope) -> Scoped {
        let mut guests = self.guests.into_vec();
        guests.sort_by_key(|guest| guest.vmid);
        let mut ids = scope.ids().iter().peekable();
        let mut undeclared: u64 = 0;
        guests.retain(|guest| {
            while ids.next_if(|id| **id < guest.vmid).is_some() {}
            let is_in_scope = ids.peek() == Some(&&guest.vmid);
            undeclared += u64::from(!is_in_scope && !scope.is_declared(guest.vmid));
            is_in_scope
        });
        self.unmanaged = self.unmanaged.saturating_add(undeclared).min(crate::artifact::INTEGER_MAX);
        guests.dedup_by(|second, first| {
            let is_duplicate = second.vmid == first.vmid;
            if is_duplicate {
                first.status = ObservedStatus::Unknown(Some(CAUSE_LISTED_TWICE.into()));
            }
            is_duplicate
        });
        for guest in &mut guests {
            guest.settle_status();
        }
        self.guests = guests.into();
        let mut unlisted = self.unlisted.into_vec();
        unlisted.retain(|own| scope.contains(own.vmid) && self.guests.binary_search_by_key(&own.vmid, |row| row.vmid).is_err());
        unlisted.sort_by_key(|own| own.vmid);
        unlisted.dedup_by_key(|own| own.vmid);
        // A list is incomplete if it lacks a guest that may exist, whatever its observer says.
        self.complete &= unlisted.is_empty();
        self.unlisted = unlisted.into();
        self.notes = self.notes.into_iter().filter(|note| note.guest.is_none_or(|vmid| scope.contains(vmid))).collect();
        Scoped(self)
    }

    /// What this observation says about the guest with this id; `listed` is its row, if there is one.
    #[must_use]
    pub fn presence<'o>(&'o self, vmid: Vmid, listed: Option<&'o ObservedGuest>) -> Seen<'o> {
        match listed {
            None if self.complete => Seen::Missing,
            None => Seen::Unknown(self.unlisted.iter().find(|own| own.vmid == vmid).map_or(CAUSE_NOT_LISTED, |own| &own.cause)),
            Some(guest) => match &guest.status {
                ObservedStatus::Known(state) => Seen::Present(guest, *state),
                ObservedStatus::Unknown(cause) => Seen::Unknown(cause.as_deref().unwrap_or(CAUSE_NOT_GIVEN)),
            },
        }
    }

    /// The listed guest with this id.
    #[must_use]
    pub fn find(&self, vmid: Vmid) -> Option<&ObservedGuest> {
        let index = self.guests.binary_search_by_key(&vmid, |guest| guest.vmid).ok()?;
        self.guests.get(index)
    }

    /// The node of a listed guest.
    #[must_use]
    pub fn node_of(&self, guest: &ObservedGuest) -> Option<&ObservedNode> {
        self.nodes.get(guest.node)
    }
}
