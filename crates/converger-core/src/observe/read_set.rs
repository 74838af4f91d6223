//! What must be read of which guest. Lists show run-state drift for any number of guests; only guests with managed config, pinned guests,
//! and guests that are about to change are read individually.
//!
//! Must not depend on how anything is read (adapters).

use std::collections::BTreeMap;

use super::{ObservedGuest, ObservedStatus};
use crate::desired::Desired;
use crate::guest::{GuestKind, RunState, Vmid};
use crate::normalize::Field;

/// The purpose of an observation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ReadSet {
    /// Inspection: all guests in scope are fully read.
    #[default]
    Everything,
    /// For an inventory: what the lists of the cluster and of its nodes show. No guest is read by itself, however many there are.
    Lists,
    /// Planning towards a desired state.
    Declared(BTreeMap<Vmid, GuestNeed>),
}

/// What is declared of a guest, as far as it determines what to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuestNeed {
    /// The declared kind.
    pub kind: GuestKind,
    /// The declared run-state.
    pub state: Option<RunState>,
    /// Whether config or birth marks are declared, which need the guest's own config.
    pub config: bool,
    /// Whether tags are declared, which need the datacenter's rule for letter case.
    pub tags: bool,
}

/// What is read of a guest beyond the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadDetail {
    /// Nothing.
    None,
    /// Its config with pending changes.
    Config,
    /// Its config and its run-state from its own node.
    ConfigAndStatus,
}

impl ReadSet {
    /// What planning towards this state needs.
    #[must_use]
    pub fn for_desired(desired: &Desired) -> Self {
        let guests = desired.guests().iter();
        Self::Declared(
            guests
                .map(|guest| {
                    let config = !guest.config.is_empty() || guest.identity.is_some();
                    let tags = guest.config.iter().any(|setting| setting.field == Field::Tags);
                    (guest.vmid, GuestNeed { kind: guest.kind, state: guest.state, config, tags })
                })
                .collect(),
        )
    }

    /// Whether the datacenter's rule for letter case in tags is needed: if tags are declared, or if everything is read and a guest has
    /// tags.
    #[must_use]
    pub fn tag_case<'r>(&self, mut in_scope: impl Iterator<Item = &'r ObservedGuest>) -> bool {
        match self {
            Self::Declared(needs) => needs.values().any(|need| need.tags),
            Self::Lists => false,
            Self::Everything => in_scope.any(|row| row.tags.as_ref().into_option().is_some_and(|tags| !tags.is_empty())),
        }
    }

    /// What to read of a guest in scope, given its row in the list.
    #[must_use]
    pub fn detail(&self, row: &ObservedGuest) -> ReadDetail {
        let needs = match self {
            Self::Everything => return ReadDetail::ConfigAndStatus,
            Self::Lists => return ReadDetail::None,
            Self::Declared(needs) => needs,
        };
        let Some(need) = needs.get(&row.vmid) else { return ReadDetail::None };
        // A guest of another kind is another guest, and nothing of it is compared.
        if need.kind != row.kind {
            return ReadDetail::None;
        }
        let is_as_declared = match (&row.status, need.state) {
            (ObservedStatus::Known(state), Some(wanted)) => *state == wanted,
            (ObservedStatus::Known(_), None) => true,
            // An unknown status is read only if the guest is read anyway.
            (ObservedStatus::Unknown(_), _) if need.config => false,
            (ObservedStatus::Unknown(_), _) => return ReadDetail::None,
        };
        match (is_as_declared, need.config) {
            (true, false) => ReadDetail::None,
            (true, true) => ReadDetail::Config,
            (false, _) => ReadDetail::ConfigAndStatus,
        }
    }
}
