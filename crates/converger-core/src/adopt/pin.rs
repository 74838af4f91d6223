//! Which birth marks are written into a declared state, and which are not.
//!
//! A pin that does not hold says that the id was recycled, or that the guest was restored: it is replaced only for a guest that
//! somebody names. Marks that a guest never had are absent, and said to be.

use std::collections::BTreeMap;

use super::{has_marks, without_blanks};
use crate::desired::{self, Desired, DesiredGuest, Scope};
use crate::document::{Diagnostics, Notation};
use crate::guest::{Identity, Kind, Vmid};
use crate::observe::{ObservedGuest, Reading, Scoped, Seen};
use crate::plan;
use crate::refusal::Refusal;

/// What somebody wants to be pinned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wish {
    /// The guests to look at.
    pub chosen: Chosen,
    /// The guests whose pin may be replaced where it does not hold.
    pub again: Scope,
}

/// Which of the declared guests are looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Chosen {
    /// All of them.
    All,
    /// Those of them that are named here.
    Only(Scope),
}

/// A declared state with birth marks, and what was done for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pinned {
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
    pub kind: Kind,
    /// Its declared name or, where only its marks are declared, the observed one.
    pub name: Option<Box<str>>,
    /// What was done.
    pub outcome: Outcome,
    /// The marks that guests of this kind can have and that this one never had, as far as it was looked at.
    pub absent: Vec<&'static str>,
}

/// What was done about the marks of one guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It had no pin and has one now.
    Pinned(Identity),
    /// Its pin holds and lacked some marks, which it has now.
    Completed(Identity),
    /// Its pin did not hold for these reasons, and was replaced as asked for.
    Replaced(Identity, Vec<String>),
    /// Its pin holds and is whole.
    Unchanged,
    /// It has no birth marks: there is nothing to pin it by.
    Unmarked,
    /// Nothing was written for it, for all of these causes.
    Refused(Vec<Refusal>),
}

impl Outcome {
    /// The marks that are written, where some are.
    #[must_use]
    pub fn written(&self) -> Option<&Identity> {
        match self {
            Self::Pinned(marks) | Self::Completed(marks) | Self::Replaced(marks, _) => Some(marks),
            Self::Unchanged | Self::Unmarked | Self::Refused(_) => None,
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
pub fn pin(bytes: &[u8], notation: Notation, observation: &Scoped, wish: &Wish) -> Result<Pinned, Diagnostics> {
    let desired = desired::parse(bytes, notation)?;
    let refusals = plan::of_the_reading(observation);
    let guests: Vec<GuestPin> = chosen(&desired, &wish.chosen).map(|guest| guest_pin(guest, observation, &refusals, wish)).collect();
    let marks: BTreeMap<Vmid, Identity> = guests.iter().filter_map(|guest| Some((guest.vmid, guest.outcome.written()?.clone()))).collect();
    let text = desired::with_marks(bytes, notation, &marks)?;
    Ok(Pinned { text, refusals, guests })
}

fn chosen<'d>(desired: &'d Desired, chosen: &Chosen) -> impl Iterator<Item = &'d DesiredGuest> {
    desired.guests().iter().filter(move |guest| match chosen {
        Chosen::All => true,
        Chosen::Only(scope) => scope.has(guest.vmid),
    })
}

fn guest_pin(guest: &DesiredGuest, observation: &Scoped, refusals: &[Refusal], wish: &Wish) -> GuestPin {
    let listed = observation.find(guest.vmid);
    let declared = guest.name.as_ref().map(|name| name.as_str());
    let name = declared.or_else(|| listed.and_then(|row| row.name.as_deref())).map(Into::into);
    let (outcome, absent) = match marks_of(guest, listed, observation) {
        Err(own) => (Outcome::Refused(refusals.iter().cloned().chain(own).collect()), Vec::new()),
        Ok(_) if !refusals.is_empty() => (Outcome::Refused(refusals.to_vec()), Vec::new()),
        Ok(seen) => {
            let absent = seen.marks().into_iter().filter(|(_, mark)| mark.is_none()).map(|(name, _)| name).collect();
            (outcome(guest, seen, wish), absent)
        }
    };
    GuestPin { vmid: guest.vmid, kind: guest.kind, name, outcome, absent }
}

/// The marks that were read of a guest, if it is the declared one as far as that can be said without them.
fn marks_of(guest: &DesiredGuest, listed: Option<&ObservedGuest>, observation: &Scoped) -> Result<Identity, Vec<Refusal>> {
    let row = match observation.seen(guest.vmid, listed) {
        Seen::Missing => return Err(vec![Refusal::guest_missing()]),
        Seen::Unknown(cause) => return Err(vec![Refusal::guest_unknown(cause)]),
        Seen::Present(row, _) => row,
    };
    // Neither pin nor config is looked at: the one may be replaced, the other is not touched.
    let bare = DesiredGuest { identity: None, config: Box::new([]), ..guest.clone() };
    if let Some(refusals) = plan::unfit(&bare, row, observation) {
        return Err(refusals);
    }
    match &row.identity {
        Reading::Unread => Err(vec![Refusal::guard_unread(vec!["identity".into()])]),
        Reading::Read(marks) => Ok(without_blanks(marks)),
    }
}

fn outcome(guest: &DesiredGuest, seen: Identity, wish: &Wish) -> Outcome {
    match guest.identity.as_deref() {
        None if has_marks(&seen) => Outcome::Pinned(seen),
        None => Outcome::Unmarked,
        Some(pinned) if *pinned == seen => Outcome::Unchanged,
        Some(pinned) if pinned.holds_for(&seen) => Outcome::Completed(seen),
        Some(pinned) if has_marks(&seen) && wish.again.has(guest.vmid) => {
            let differences = pinned.differences(&seen);
            Outcome::Replaced(seen, differences)
        }
        Some(pinned) => Outcome::Refused(vec![Refusal::identity_mismatch(pinned.differences(&seen))]),
    }
}
