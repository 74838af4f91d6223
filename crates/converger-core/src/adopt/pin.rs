//! Decides which birth marks to write into a desired state.
//!
//! A pin that does not match means that the id was reused or the guest was restored. It is replaced only for guests that the request names.
//! Marks that a guest does not have are reported as absent.

use std::collections::BTreeMap;

use super::{drop_blank_marks, has_marks};
use crate::desired::{self, Desired, DesiredGuest, Scope};
use crate::document::{Diagnostics, Notation};
use crate::guest::{GuestIdentity, GuestKind, Vmid};
use crate::observe::{ObservedGuest, Reading, Scoped, Seen};
use crate::plan;
use crate::refusal::Refusal;

/// What to pin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PinRequest {
    /// The guests to pin.
    pub selection: PinSelection,
    /// The guests whose pin may be replaced if it does not match.
    pub repin: Scope,
}

/// Which declared guests to pin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PinSelection {
    /// All of them.
    All,
    /// Only these.
    Only(Scope),
}

/// A desired state with birth marks, and what was done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PinResult {
    /// The new text; byte for byte the old one if there was nothing to write.
    pub text: String,
    /// Refusals that concern the whole observation; each guest's refusals repeat them.
    pub refusals: Vec<Refusal>,
    /// The selected guests, sorted by id.
    pub guests: Vec<GuestPin>,
}

/// The result for one guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestPin {
    /// Its id.
    pub vmid: Vmid,
    /// Its declared kind.
    pub kind: GuestKind,
    /// Its declared name, or the observed one if only its marks are declared.
    pub name: Option<Box<str>>,
    /// What was done.
    pub outcome: PinOutcome,
    /// The marks that its kind can have and that it does not have, as far as they were read.
    pub absent: Vec<&'static str>,
}

/// What was done about the marks of one guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PinOutcome {
    /// It had no pin and was pinned.
    Pinned(GuestIdentity),
    /// Its pin matches; missing marks were added.
    Completed(GuestIdentity),
    /// Its pin did not match for these reasons, and was replaced as requested.
    Replaced(GuestIdentity, Vec<String>),
    /// Its pin matches and is complete.
    Unchanged,
    /// It has no birth marks to pin.
    NoMarks,
    /// It does not exist: `from` makes it, and it has no birth marks before.
    NotMade,
    /// Nothing was written for it, for all of these reasons.
    Refused(Vec<Refusal>),
}

impl PinOutcome {
    /// The marks that are written, if any.
    #[must_use]
    pub fn written_marks(&self) -> Option<&GuestIdentity> {
        match self {
            Self::Pinned(marks) | Self::Completed(marks) | Self::Replaced(marks, _) => Some(marks),
            Self::Unchanged | Self::NoMarks | Self::NotMade | Self::Refused(_) => None,
        }
    }
}

/// Pins declared guests by their observed birth marks. All other text stays as it is. Ids in the request that are not declared are ignored.
///
/// # Refuses
/// Per guest: if it is missing or unknown, has another kind or name, is on an offline node, or its marks were not read; and if its pin does
/// not match and the request does not name it. All guests: if the observation has no quorum or is incomplete.
///
/// # Errors
/// All faults of the text, or a position into which marks cannot be written.
pub fn pin(bytes: &[u8], notation: Notation, observation: &Scoped, request: &PinRequest) -> Result<PinResult, Diagnostics> {
    let desired = desired::parse(bytes, notation)?;
    let refusals = plan::observation_refusals(observation);
    let guests: Vec<GuestPin> =
        select_guests(&desired, &request.selection).map(|guest| pin_guest(guest, observation, &refusals, request)).collect();
    let marks: BTreeMap<Vmid, GuestIdentity> =
        guests.iter().filter_map(|guest| Some((guest.vmid, guest.outcome.written_marks()?.clone()))).collect();
    let text = desired::insert_marks(bytes, notation, &marks)?;
    Ok(PinResult { text, refusals, guests })
}

fn select_guests<'d>(desired: &'d Desired, chosen: &PinSelection) -> impl Iterator<Item = &'d DesiredGuest> {
    desired.guests().iter().filter(move |guest| match chosen {
        PinSelection::All => true,
        PinSelection::Only(scope) => scope.contains(guest.vmid),
    })
}

fn pin_guest(guest: &DesiredGuest, observation: &Scoped, refusals: &[Refusal], request: &PinRequest) -> GuestPin {
    let listed = observation.find(guest.vmid);
    let declared = guest.name.as_ref().map(|name| name.as_str());
    let name = declared.or_else(|| listed.and_then(|row| row.name.as_deref())).map(Into::into);
    let is_unmade = guest.from.is_some() && guest.identity.is_none() && matches!(observation.presence(guest.vmid, listed), Seen::Missing);
    let (outcome, absent) = match read_marks(guest, listed, observation) {
        Err(_) if is_unmade && refusals.is_empty() => (PinOutcome::NotMade, Vec::new()),
        Err(own) => (PinOutcome::Refused(refusals.iter().cloned().chain(own).collect()), Vec::new()),
        Ok(_) if !refusals.is_empty() => (PinOutcome::Refused(refusals.to_vec()), Vec::new()),
        Ok(seen) => {
            let absent = seen.marks().into_iter().filter(|(_, mark)| mark.is_none()).map(|(name, _)| name).collect();
            (decide_outcome(guest, seen, request), absent)
        }
    };
    GuestPin { vmid: guest.vmid, kind: guest.kind, name, outcome, absent }
}

/// The observed marks of a guest, if everything else identifies it as the declared one.
fn read_marks(guest: &DesiredGuest, listed: Option<&ObservedGuest>, observation: &Scoped) -> Result<GuestIdentity, Vec<Refusal>> {
    let row = match observation.presence(guest.vmid, listed) {
        Seen::Missing => return Err(vec![Refusal::guest_missing()]),
        Seen::Unknown(cause) => return Err(vec![Refusal::guest_unknown(cause)]),
        Seen::Present(row, _) => row,
    };
    // Ignore pin and config: the pin may be replaced, and the config does not matter here.
    let unpinned = DesiredGuest { identity: None, config: Box::new([]), ..guest.clone() };
    if let Some(refusals) = plan::check_guest(&unpinned, row, observation) {
        return Err(refusals);
    }
    match &row.identity {
        Reading::Unread => Err(vec![Refusal::guard_unread(vec!["identity".into()])]),
        Reading::Read(marks) => Ok(drop_blank_marks(marks)),
    }
}

fn decide_outcome(guest: &DesiredGuest, seen: GuestIdentity, request: &PinRequest) -> PinOutcome {
    match guest.identity.as_deref() {
        None if has_marks(&seen) => PinOutcome::Pinned(seen),
        None => PinOutcome::NoMarks,
        Some(pinned) if *pinned == seen => PinOutcome::Unchanged,
        Some(pinned) if pinned.holds_for(&seen) => PinOutcome::Completed(seen),
        Some(pinned) if has_marks(&seen) && request.repin.contains(guest.vmid) => {
            let differences = pinned.differences(&seen);
            PinOutcome::Replaced(seen, differences)
        }
        Some(pinned) => PinOutcome::Refused(vec![Refusal::identity_mismatch(pinned.differences(&seen))]),
    }
}
