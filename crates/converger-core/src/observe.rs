//! What was seen: one reading of an environment, in which every guest is present, missing or unknown.
//!
//! Unknown is a value and absence is a claim: a guest that is not listed is missing only if the list is complete, and
//! a field that is not there was not read ([`Reading::Unread`]), which is not the same as read and empty.
//!
//! What never enters: how a reading is taken (adapters), and what follows from it (`plan`).

mod note;
mod parse;
mod read_set;
mod unlisted;
mod write;

use crate::desired::Scope;
use crate::document::{Diagnostics, Notation};
use crate::guest::{EnvironmentName, GuestIdentity, GuestKind, NodeName, RunState, Vmid};
use crate::normalize::{EffectContext, Field, FieldValue, HotplugFeatures, WordSet};

pub use note::Note;
pub(crate) use parse::{read_ha, read_or_null, read_text, read_untyped_value as read_value, read_words};
pub use read_set::{GuestNeed, ReadDetail, ReadSet};
pub use unlisted::UnlistedGuest;
pub use write::PlanView;

/// The schema id of current.json.
pub const SCHEMA: &str = "converger.observation/1";

/// The cause of an unknown guest where the reading gives none.
pub const CAUSE_NOT_GIVEN: &str = "cause-not-given";

/// The cause of an unknown guest that an incomplete reading does not list.
pub const CAUSE_NOT_LISTED: &str = "not-listed";

/// The cause of an unknown guest that an observer lists twice.
pub const CAUSE_LISTED_TWICE: &str = "listed-twice";

/// The cause of an unknown guest whose run-state is neither running nor stopped, such as one that is paused.
pub const CAUSE_RUN_STATE_UNCLEAR: &str = "run-state-unclear";

/// The cause of an unknown guest whose run-state nobody has told, or not yet.
pub const CAUSE_NOT_REPORTED: &str = "status-not-reported";

/// One reading of an environment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observation {
    /// The environment that was read.
    pub environment: EnvironmentName,
    /// Which observer read it, for people.
    pub source: Option<Box<str>>,
    /// When, for people; it is outside of every digest.
    pub taken_at: Option<Box<str>>,
    /// Whether the list of guests is whole: only then is a guest that it lacks missing.
    pub complete: bool,
    /// Whether the cluster had quorum.
    pub quorate: bool,
    /// What the datacenter does with the case of letters in tags; `None` where nobody asked or nobody answered.
    pub tag_case: Option<TagCase>,
    /// The nodes.
    pub nodes: Box<[ObservedNode]>,
    /// The guests, in the order of their ids.
    pub guests: Box<[ObservedGuest]>,
    /// Guests of the scope that an incomplete list lacks, where it is known why; in the order of their ids.
    pub unlisted: Box<[UnlistedGuest]>,
    /// How many guests were seen and dropped that are not declared.
    pub unmanaged: u64,
    /// What people should know about it; outside of every digest.
    pub notes: Box<[Note]>,
}

/// A reading that holds nothing outside of a scope (G8). Made by [`Observation::into_scoped`] only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scoped(Observation);

impl std::ops::Deref for Scoped {
    type Target = Observation;

    fn deref(&self) -> &Observation {
        &self.0
    }
}

impl Scoped {
    /// Gives the reading out to be changed, after which it must be scoped again.
    #[must_use]
    pub fn into_observation(self) -> Observation {
        self.0
    }
}

/// What a datacenter does with the case of letters in tags (`tag-style` in its options).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TagCase {
    /// Tags are stored as they are written: `Web` and `web` are two tags.
    Kept,
    /// Tags are stored in lower case: `Web` and `web` are one tag.
    Lowered,
}

impl TagCase {
    /// Both rules.
    pub const ALL: [Self; 2] = [Self::Kept, Self::Lowered];

    /// Their words, in the order of [`TagCase::ALL`].
    pub const WORDS: [&'static str; 2] = ["kept", "lowered"];

    /// The word for it in artifacts.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Kept => "kept",
            Self::Lowered => "lowered",
        }
    }
}

/// A node of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedNode {
    /// Its name.
    pub name: NodeName,
    /// Whether it is a member that answers.
    pub online: bool,
}

/// A field that may not have been read. `Unread` is neither empty nor default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading<T> {
    /// Nobody looked, or nobody could.
    Unread,
    /// It was read, and this is what it was.
    Read(T),
}

impl<T> Reading<T> {
    /// What was read, by reference.
    pub fn as_ref(&self) -> Reading<&T> {
        match self {
            Self::Unread => Reading::Unread,
            Self::Read(value) => Reading::Read(value),
        }
    }

    /// Whether it was read.
    pub fn is_read(&self) -> bool {
        matches!(self, Self::Read(_))
    }

    /// What was read, if it was.
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
    /// Whether it runs, where that is known.
    pub status: ObservedStatus,
    /// Its name as it is shown; words of others, never trusted.
    pub name: Option<Box<str>>,
    /// The raw word of the platform for its run-state.
    pub run_state: Option<Box<str>>,
    /// CPUs as the platform counts them.
    pub cpus: Option<u32>,
    /// Memory in bytes as the platform counts it.
    pub maxmem: Option<u64>,
    /// Whether the row was read from the guest's own node or from a cache.
    pub source: Option<Box<str>>,
    /// The lock that is held, if one is.
    pub lock: Reading<Option<Box<str>>>,
    /// The high-availability manager's hold on it, if it has one.
    pub ha: Reading<Option<HaState>>,
    /// Whether it is a template.
    pub template: Reading<bool>,
    /// Whether the platform's own protection is on.
    pub protection: Reading<bool>,
    /// Its tags.
    pub tags: Reading<WordSet>,
    /// Its birth marks.
    pub identity: Reading<Box<GuestIdentity>>,
    /// The hardware addresses of all its network devices, in upper case. They are read with the birth marks, and count only where those do:
    /// devices come and go, so that an address tells whose machine this is, and not whether it is the same guest.
    pub macs: WordSet,
    /// The values in effect; read whole or not at all, so that a key that it lacks has its default.
    pub config: Reading<EffectiveValues>,
    /// What waits for the next start.
    pub pending: Reading<Box<[PendingChange]>>,
    /// The platform's digest of the config.
    pub digest: Option<Box<str>>,
}

impl ObservedGuest {
    /// The tags that it has, and those that it gets at its next start.
    pub fn current_and_pending_tags(&self) -> impl Iterator<Item = &str> {
        let now = self.tags.as_ref().into_option();
        let next = self.pending.as_ref().into_option().into_iter().flatten().find_map(|entry| match entry {
            PendingChange::Known(Field::Tags, Some(FieldValue::Tags(tags))) => Some(tags),
            _ => None,
        });
        now.into_iter().chain(next).flat_map(WordSet::iter)
    }

    /// A raw word that is not the status itself (`paused`, `io-error`) says that the status is not what it seems.
    fn settle_status(&mut self) {
        let ObservedStatus::Known(state) = self.status else { return };
        if let Some(word) = self.run_state.as_deref().filter(|word| *word != state.word()) {
            self.status = match ObservedStatus::from_word(word) {
                ObservedStatus::Known(_) => ObservedStatus::Unknown(Some(CAUSE_RUN_STATE_UNCLEAR.into())),
                unknown => unknown,
            };
        }
    }
}

/// Whether a listed guest runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ObservedStatus {
    /// It is known to run or to be stopped.
    Known(RunState),
    /// It is not known, for this cause.
    Unknown(Option<Box<str>>),
}

impl ObservedStatus {
    /// What a platform's own word for a run-state amounts to; the one place where that is decided.
    ///
    /// A guest that is paused or in trouble has its process and its memory and does nothing: it neither runs nor is it stopped.
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

/// The high-availability manager's hold on a guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HaState {
    /// Its word for the guest's state; right after adding it has none.
    pub state: Option<Box<str>>,
}

impl HaState {
    /// Whether the manager owns the guest's run-state.
    #[must_use]
    pub fn owns_run_state(&self) -> bool {
        self.state.as_deref() != Some("ignored")
    }

    /// Whether the guest rests as the manager wants it: otherwise the manager is about to move or change it.
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

/// The values in effect of the keys that the table of fields knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EffectiveValues {
    values: Box<[(Field, FieldValue)]>,
    not_understood: Box<[(Field, Box<str>)]>,
}

impl EffectiveValues {
    /// The memory of a virtual machine whose config has none.
    pub const MEMORY_DEFAULT_MIB: u32 = 512;

    /// The longest text that is kept of a value that is not understood, in characters.
    pub const RAW_CHARS_MAX: usize = 200;

    /// A config of these values.
    #[must_use]
    pub fn new(mut values: Vec<(Field, FieldValue)>) -> Self {
        values.sort_unstable_by_key(|(field, _)| *field);
        Self { values: values.into(), not_understood: Box::new([]) }
    }

    /// The same config with keys that have a text which this program does not understand. Each text is cut to [`EffectiveValues::RAW_CHARS_MAX`].
    #[must_use]
    pub fn with_not_understood(self, mut raw: Vec<(Field, Box<str>)>) -> Self {
        raw.sort_unstable_by_key(|(field, _)| *field);
        let cut = |text: &str| text.chars().take(Self::RAW_CHARS_MAX).collect::<String>().into_boxed_str();
        Self { not_understood: raw.iter().map(|(field, text)| (*field, cut(text))).collect(), ..self }
    }

    /// The value of a key, if the key is there and its value is understood. `None` means the default only where
    /// [`EffectiveValues::not_understood`] has no text for the key.
    #[must_use]
    pub fn get(&self, field: Field) -> Option<&FieldValue> {
        self.values.iter().find(|(own, _)| *own == field).map(|(_, value)| value)
    }

    /// The values, in the order of the fields.
    #[must_use]
    pub fn values(&self) -> &[(Field, FieldValue)] {
        &self.values
    }

    /// The text of a key whose value this program does not understand.
    #[must_use]
    pub fn not_understood(&self, field: Field) -> Option<&str> {
        self.not_understood.iter().find(|(own, _)| *own == field).map(|(_, text)| &**text)
    }

    /// All keys whose values are not understood, with their texts, in the order of the fields.
    #[must_use]
    pub fn all_not_understood(&self) -> &[(Field, Box<str>)] {
        &self.not_understood
    }

    /// What of it decides how other fields take effect.
    #[must_use]
    pub fn effect_context(&self) -> EffectContext {
        let hotplug = match self.get(Field::Hotplug) {
            Some(FieldValue::Features(features)) => *features,
            _ => HotplugFeatures::DEFAULT,
        };
        EffectContext { memory_hotplug: hotplug.has("memory") && self.get(Field::Numa) == Some(&FieldValue::Flag(true)) }
    }
}

/// A change that waits for the next start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PendingChange {
    /// A field of the table gets this value, or (`None`) is removed.
    Known(Field, Option<FieldValue>),
    /// Something else changes; its value is nobody's business here.
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

/// What a reading says about one guest.
#[derive(Clone, Copy, Debug)]
pub enum Seen<'o> {
    /// It is there, and runs or is stopped.
    Present(&'o ObservedGuest, RunState),
    /// The whole list was read, and it is not in it.
    Missing,
    /// It cannot be said, for this cause.
    Unknown(&'o str),
}

/// Parses current.json.
///
/// # Errors
/// All faults of the text, each with its place: malformed, cut off, of another schema, or contradicting itself.
pub fn parse(bytes: &[u8]) -> Result<Observation, Diagnostics> {
    parse::parse(bytes, Notation::Json)
}

impl Observation {
    /// Drops what is outside of the scope: the only way to something that can be planned on. What is dropped counts as unmanaged, unless it is
    /// declared and only this run is not about it (`--only`).
    ///
    /// Whatever an observer made, the rows come out sorted and each id once: an id that is listed twice is unknown.
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
            let twice = second.vmid == first.vmid;
            if twice {
                first.status = ObservedStatus::Unknown(Some(CAUSE_LISTED_TWICE.into()));
            }
            twice
        });
        for guest in &mut guests {
            guest.settle_status();
        }
        self.guests = guests.into();
        let mut unlisted = self.unlisted.into_vec();
        unlisted.retain(|own| scope.contains(own.vmid) && self.guests.binary_search_by_key(&own.vmid, |row| row.vmid).is_err());
        unlisted.sort_by_key(|own| own.vmid);
        unlisted.dedup_by_key(|own| own.vmid);
        // A list that lacks a guest which may be there is not whole, whatever its observer says.
        self.complete &= unlisted.is_empty();
        self.unlisted = unlisted.into();
        self.notes = self.notes.into_iter().filter(|note| note.guest.is_none_or(|vmid| scope.contains(vmid))).collect();
        Scoped(self)
    }

    /// What this reading says of the guest with this id, which `listed` found or did not find.
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
