//! Which birth marks are written into a declared state, and which are not.
//!
//! A pin that does not hold says that the id was recycled, or that the guest was restored: it is replaced only for a guest that
//! somebody names. Marks that a guest never had are absent, and said to be.

use std::collections::BTreeMap;

use super::{drop_blank_marks, has_marks};
use crate::desired::{self, Desired, DesiredGuest, Scope};
use crate::document::{Diagnostics, Notation};
use crate::guest::{GuestIdentity, GuestKind, Vmid};
use crate::observe::{ObservedGuest, Reading, Scoped, Seen};
use crate::plan;
use crate::refusal::Refusal;

/// What somebody wants to be pinned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PinRequest {
    /// The guests to look at.
    pub selection: PinSelection,
    /// The guests whose pin may be replaced where it does not hold.
    pub repin: Scope,
}

/// Which of the declared guests are looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PinSelection {
    /// All of them.
    All,
    /// Those of them that are named here.
    Only(Scope),
}

/// A declared state with birth marks, and what was done for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PinResult {
    /// The new text; the old one, byte for byte, where there was nothing to write.
    pub text: String,
    /// Causes that concern the whole reading; each guest's refusals repeat them.
    pub refusals: Vec<Refusal>,
    /// The guests that were looked at, in the order of their ids.
    pub guests: Vec<GuestPin>,
}

/// What was done about one guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestPin {
    /// Its id.
    pub vmid: Vmid,
    /// Its declared kind.
    pub kind: GuestKind,
    /// Its declared name or, where only its marks are declared, the observed one.
    pub name: Option<Box<str>>,
    /// What was done.
    pub outcome: PinOutcome,
    /// The marks that guests of this kind can have and that this one never had, as far as it was looked at.
    pub absent: Vec<&'static str>,
}

/// What was done about the marks of one guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PinOutcome {
    /// It had no pin and has one now.
    Pinned(GuestIdentity),
    /// Its pin holds and lacked some marks, which it has now.
    Completed(GuestIdentity),
    /// Its pin did not hold for these reasons, and was replaced as asked for.
    Replaced(GuestIdentity, Vec<String>),
    /// Its pin holds and is whole.
    Unchanged,
    /// It has no birth marks: there is nothing to pin it by.
    NoMarks,
    /// Nothing was written for it, for all of these causes.
    Refused(Vec<Refusal>),
}

impl PinOutcome {
    /// The marks that are written, where some are.
    #[must_use]
    pub fn written_marks(&self) -> Option<&GuestIdentity> {
        match self {
            Self::Pinned(marks) | Self::Completed(marks) | Self::Replaced(marks, _) => Some(marks),
            Self::Unchanged | Self::NoMarks | Self::Refused(_) => None,
        }
    }
}

/// Pins declared guests by the birth marks that were read of them. Everything else in the text stays as it is.
///
/// Ids in the wish that are not declared mean nothing here.
///
/// # Refuses
/// Guest by guest: what is missing, unknown, of another kind or name, on a silent node, or without marks that were read; and a pin that
/// does not hold and was not named. All guests where the reading had no quorum or was not whole.
///
/// # Errors
/// All faults of the text, or a place in it into which marks cannot be written.
pub fn pin(bytes: &[u8], notation: Notation, observation: &Scoped, wish: &PinRequest) -> Result<PinResult, Diagnostics> {
    let desired = desired::parse(bytes, notation)?;
    let refusals = plan::observation_refusals(observation);
    let guests: Vec<GuestPin> =
        select_guests(&desired, &wish.selection).map(|guest| pin_guest(guest, observation, &refusals, wish)).collect();
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

fn pin_guest(guest: &DesiredGuest, observation: &Scoped, refusals: &[Refusal], wish: &PinRequest) -> GuestPin {
    let listed = observation.find(guest.vmid);
    let declared = guest.name.as_ref().map(|name| name.as_str());
    let name = declared.or_else(|| listed.and_then(|row| row.name.as_deref())).map(Into::into);
    let (outcome, absent) = match read_marks(guest, listed, observation) {
        Err(own) => (PinOutcome::Refused(refusals.iter().cloned().chain(own).collect()), Vec::new()),
        Ok(_) if !refusals.is_empty() => (PinOutcome::Refused(refusals.to_vec()), Vec::new()),
        Ok(seen) => {
            let absent = seen.marks().into_iter().filter(|(_, mark)| mark.is_none()).map(|(name, _)| name).collect();
            (decide_outcome(guest, seen, wish), absent)
        }
    };
    GuestPin { vmid: guest.vmid, kind: guest.kind, name, outcome, absent }
}

/// The marks that were read of a guest, if it is the declared one as far as that can be said without them.
fn read_marks(guest: &DesiredGuest, listed: Option<&ObservedGuest>, observation: &Scoped) -> Result<GuestIdentity, Vec<Refusal>> {
    let row = match observation.presence(guest.vmid, listed) {
        Seen::Missing => return Err(vec![Refusal::guest_missing()]),
        Seen::Unknown(cause) => return Err(vec![Refusal::guest_unknown(cause)]),
        Seen::Present(row, _) => row,
    };
    // Neither pin nor config is looked at: the one may be replaced, the other is not touched.
    let bare = DesiredGuest { identity: None, config: Box::new([]), ..guest.clone() };
    if let Some(refusals) = plan::check_guest(&bare, row, observation) {
        return Err(refusals);
    }
    match &row.identity {
        Reading::Unread => Err(vec![Refusal::guard_unread(vec!["identity".into()])]),
        Reading::Read(marks) => Ok(drop_blank_marks(marks)),
    }
}

fn decide_outcome(guest: &DesiredGuest, seen: GuestIdentity, wish: &PinRequest) -> PinOutcome {
    match guest.identity.as_deref() {
        None if has_marks(&seen) => PinOutcome::Pinned(seen),
        None => PinOutcome::NoMarks,
        Some(pinned) if *pinned == seen => PinOutcome::Unchanged,
        Some(pinned) if pinned.holds_for(&seen) => PinOutcome::Completed(seen),
        Some(pinned) if has_marks(&seen) && wish.repin.contains(guest.vmid) => {
            let differences = pinned.differences(&seen);
            PinOutcome::Replaced(seen, differences)
        }
        Some(pinned) => PinOutcome::Refused(vec![Refusal::identity_mismatch(pinned.differences(&seen))]),
    }
}
