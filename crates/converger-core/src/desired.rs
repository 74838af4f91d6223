//! The desired state: the declared guests of one environment, parsed strictly from desired.yaml or desired.json.
//!
//! Only what is declared is managed: a guest that is not listed is not touched, and a config key that is not listed is not compared. There
//! are no defaults for desired values.
//!
//! Must not depend on observations or plans.

mod config;
mod edit;
mod layout;
mod order;
mod origin;
mod parse;
mod selection;
mod settings;

use std::collections::{BTreeMap, BTreeSet};

use serde::ser::{SerializeMap, SerializeStruct};
use serde::{Serialize, Serializer};

use crate::document::{Diagnostics, Notation};
use crate::guest::{EnvironmentName, GuestIdentity, GuestKind, GuestName, RunState, Vmid};
use crate::normalize::{Field, FieldValue};

pub use origin::GuestOrigin;
use origin::OriginRow;
pub use selection::{GuestSelection, VmidRange};
pub(crate) use settings::{parse_normal_settings, parse_settings};

/// The version of the file format.
pub const VERSION: u64 = 1;

/// The declared state of one environment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Desired {
    environment: EnvironmentName,
    guests: Box<[DesiredGuest]>,
    /// Indices into `guests` such that dependencies (`after`) come first; `None` if no guest has any, in which case the order is that of
    /// the ids.
    order: Option<Box<[u32]>>,
    /// Declared guests that [`Desired::narrow_to`] left out, in the order of their ids: they are managed, though not by this run.
    unselected: Box<[Vmid]>,
}

/// One declared guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DesiredGuest {
    /// Its id.
    pub vmid: Vmid,
    /// Its kind.
    pub kind: GuestKind,
    /// Its name, which must equal the observed one. Optional only if `identity` pins the guest.
    pub name: Option<GuestName>,
    /// The run-state; `None` if it is not managed.
    pub state: Option<RunState>,
    /// The managed config keys, in the order of [`Field`].
    pub config: Box<[DesiredSetting]>,
    /// Whether it may be restarted for config that cannot take effect otherwise.
    pub restart: RestartPolicy,
    /// The guest is started only when all of these run, and stopped before them.
    pub after: Box<[Vmid]>,
    /// How it is stopped.
    pub stop: StopMethod,
    /// Maximal duration of a graceful shutdown in seconds.
    pub stop_timeout_secs: u32,
    /// Its birth marks.
    pub identity: Option<Box<GuestIdentity>>,
    /// How it is made if it was never made.
    pub from: Option<Box<GuestOrigin>>,
}

/// One managed config key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DesiredSetting {
    /// The key.
    pub field: Field,
    /// The value; `None` if the key must be absent (`null` in the file).
    pub wanted: Option<FieldValue>,
}

/// Whether a guest may be restarted for its config.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RestartPolicy {
    /// Never: config that cannot take effect while it runs stays pending.
    Never,
    /// If config is pending that needs a restart.
    WhenNeeded,
}

/// How a guest is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopMethod {
    /// Gracefully; a timeout never leads to a hard stop.
    Shutdown,
    /// At once, as if its power were cut.
    Hard,
}

impl DesiredGuest {
    /// The default for the maximal duration of a graceful shutdown.
    pub const STOP_TIMEOUT_SECS: u32 = 180;
}

/// The ids that a run covers; no other guest becomes part of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scope {
    ids: Box<[Vmid]>,
    /// Declared guests that this run is not about. Neither read nor counted as unmanaged.
    unselected: Box<[Vmid]>,
}

impl Scope {
    /// The scope of these ids.
    #[must_use]
    pub fn new(mut ids: Vec<Vmid>) -> Self {
        ids.sort_unstable();
        ids.dedup();
        Self { ids: ids.into(), unselected: Box::default() }
    }

    /// This scope, with more ids in it.
    #[must_use]
    pub(crate) fn with_ids(&self, more: impl IntoIterator<Item = Vmid>) -> Self {
        Self { unselected: self.unselected.clone(), ..Self::new(self.ids.iter().copied().chain(more).collect()) }
    }

    /// Whether a guest is in scope.
    #[must_use]
    pub fn contains(&self, vmid: Vmid) -> bool {
        self.ids.binary_search(&vmid).is_ok()
    }

    /// Whether a guest is declared, in scope or not.
    #[must_use]
    pub fn is_declared(&self, vmid: Vmid) -> bool {
        self.contains(vmid) || self.unselected.binary_search(&vmid).is_ok()
    }

    /// The ids, in order.
    #[must_use]
    pub fn ids(&self) -> &[Vmid] {
        &self.ids
    }
}

/// Parses a desired state.
///
/// # Errors
/// All faults of the text, each with its position.
pub fn parse(bytes: &[u8], notation: Notation) -> Result<Desired, Diagnostics> {
    parse::parse(bytes, notation, ValueForm::Declared)
}

/// Parses a desired state in the stored and hashed form, in which numbers have the unit of their field.
///
/// # Errors
/// Anything that is not such a state. The text may differ from the bytes that this program writes and still be the same state.
pub fn parse_normal(bytes: &[u8]) -> Result<Desired, Diagnostics> {
    parse::parse(bytes, Notation::Json, ValueForm::Normal)
}

/// How values are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ValueForm {
    /// By people, with units.
    #[default]
    Declared,
    /// By this program, in the unit of each field.
    Normal,
}

/// Pins these guests by these birth marks in the text of a desired state. Every byte that is not a mark stays: comments, whitespace, order,
/// quotes and line breaks. Guests that are not declared are ignored.
///
/// # Guarantees
/// The new text declares what the old one did, plus these marks and nothing else; otherwise it is not returned.
///
/// # Errors
/// Faults of the text, or the guest whose layout is not understood.
pub fn insert_marks(bytes: &[u8], notation: Notation, marks: &BTreeMap<Vmid, GuestIdentity>) -> Result<String, Diagnostics> {
    edit::insert_marks(bytes, notation, marks)
}

/// Formats birth marks as a YAML flow map on one line.
pub(crate) fn format_marks(identity: &GuestIdentity) -> String {
    edit::format_marks(identity)
}

/// Why a desired state cannot be narrowed to a scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NarrowError {
    /// The guest is not declared.
    Undeclared(Vmid),
    /// One guest names another in `after`, and only one of them is selected.
    Splits {
        /// The guest.
        vmid: Vmid,
        /// The guest that it names.
        named: Vmid,
    },
}

impl Desired {
    /// The environment that the guests are in.
    #[must_use]
    pub fn environment(&self) -> &EnvironmentName {
        &self.environment
    }

    /// A state of one guest, for a request.
    pub(crate) fn for_guest(environment: EnvironmentName, guest: DesiredGuest) -> Self {
        Self { environment, guests: Box::new([guest]), order: None, unselected: Box::default() }
    }

    /// The guests, sorted by id.
    #[must_use]
    pub fn guests(&self) -> &[DesiredGuest] {
        &self.guests
    }

    /// The guest with this id, with its index.
    #[must_use]
    pub fn find(&self, vmid: Vmid) -> Option<(usize, &DesiredGuest)> {
        let index = self.guests.binary_search_by_key(&vmid, |guest| guest.vmid).ok()?;
        self.guests.get(index).map(|guest| (index, guest))
    }

    /// The same state with only these guests.
    ///
    /// # Errors
    /// A guest is not declared, or only one of two guests that `after` connects is selected: their order would be lost.
    pub fn narrow_to(&self, only: &Scope) -> Result<Self, NarrowError> {
        if let Some(vmid) = only.ids().iter().find(|vmid| self.find(**vmid).is_none()) {
            return Err(NarrowError::Undeclared(*vmid));
        }
        let chosen: Vec<DesiredGuest> = self.guests.iter().filter(|guest| only.contains(guest.vmid)).cloned().collect();
        // Check both directions: a guest that starts after another also stops before it.
        for guest in &self.guests {
            if let Some(named) = guest.after.iter().find(|named| only.contains(**named) != only.contains(guest.vmid)) {
                return Err(NarrowError::Splits { vmid: guest.vmid, named: *named });
            }
        }
        let kept_indexes: Vec<u32> =
            self.guests.iter().zip(0..).filter(|(guest, _)| only.contains(guest.vmid)).map(|(_, index)| index).collect();
        let new_position = |index: &u32| kept_indexes.binary_search(index).ok().and_then(|position| u32::try_from(position).ok());
        let order = self.order.as_ref().map(|order| order.iter().filter_map(new_position).collect());
        let left_out = self.guests.iter().map(|guest| guest.vmid).filter(|vmid| !only.contains(*vmid));
        let mut unselected: Vec<Vmid> = self.unselected.iter().copied().chain(left_out).collect();
        unselected.sort_unstable();
        Ok(Self { environment: self.environment.clone(), guests: chosen.into(), order, unselected: unselected.into() })
    }

    /// The ids of all declared guests.
    #[must_use]
    pub fn scope(&self) -> Scope {
        Scope { ids: self.guests.iter().map(|guest| guest.vmid).collect(), unselected: self.unselected.clone() }
    }

    /// The templates that guests are declared to be made from, each once.
    pub fn templates(&self) -> impl Iterator<Item = Vmid> {
        let templates: BTreeSet<Vmid> = self.guests.iter().filter_map(|guest| guest.from.as_ref()).map(|from| from.template).collect();
        templates.into_iter()
    }

    /// Whether any guest names others in `after`.
    #[must_use]
    pub fn has_dependencies(&self) -> bool {
        self.order.is_some()
    }

    /// Indices of the guests such that dependencies (`after`) come first, otherwise by id.
    pub fn order(&self) -> impl Iterator<Item = usize> {
        let plain = if self.order.is_none() { self.guests.len() } else { 0 };
        let sorted = self.order.iter().flat_map(|order| order.iter()).filter_map(|index| usize::try_from(*index).ok());
        (0..plain).chain(sorted)
    }
}

/// The normalised content: omitting a key and writing its default give the same result.
impl Serialize for Desired {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut desired = serializer.serialize_struct("Desired", 3)?;
        desired.serialize_field("environment", &self.environment)?;
        desired.serialize_field("guests", &self.guests)?;
        desired.serialize_field("version", &VERSION)?;
        desired.end()
    }
}

impl Serialize for DesiredGuest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        if !self.after.is_empty() {
            map.serialize_entry("after", &self.after)?;
        }
        if !self.config.is_empty() {
            map.serialize_entry("config", &SettingsRow(&self.config))?;
        }
        if let Some(row) = OriginRow::of(self) {
            map.serialize_entry("from", &row)?;
        }
        if let Some(identity) = &self.identity {
            map.serialize_entry("identity", identity)?;
        }
        map.serialize_entry("kind", &self.kind)?;
        if let Some(name) = &self.name {
            map.serialize_entry("name", name)?;
        }
        if self.restart == RestartPolicy::WhenNeeded {
            map.serialize_entry("restart", "when-needed")?;
        }
        if let Some(state) = self.state {
            map.serialize_entry("state", &state)?;
        }
        if self.stop == StopMethod::Hard {
            map.serialize_entry("stop", "hard")?;
        }
        if self.stop_timeout_secs != Self::STOP_TIMEOUT_SECS {
            map.serialize_entry("stop_timeout_secs", &self.stop_timeout_secs)?;
        }
        map.serialize_entry("vmid", &self.vmid)?;
        map.end()
    }
}

/// Managed config keys in canonical form.
pub(crate) struct SettingsRow<'d>(pub(crate) &'d [DesiredSetting]);

impl Serialize for SettingsRow<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|setting| (setting.field.word(), &setting.wanted)))
    }
}
