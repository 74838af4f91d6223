//! Which pending changes of a guest this program wrote itself, according to its journal.
//!
//! A written value stays pending until the guest restarts, even if its key is no longer declared. It is then still a change of this
//! program, not a foreign change.
//!
//! Must not read the journal itself.

use super::history::OperationHistory;
use super::outcome::Outcome;
use crate::action::{Change, FieldChange};
use crate::guest::GuestIdentity;
use crate::normalize::{self, Field, FieldValue};
use crate::observe::{Observation, ObservedGuest, PendingChange, Reading};
use crate::policy::OwnWrite;

/// The pending changes in an observation that this program wrote, given the histories of the guests, newest first.
#[must_use]
pub fn own_writes(newest_first: &[OperationHistory], observation: &Observation) -> Vec<OwnWrite> {
    let of_row = |row: &ObservedGuest| -> Vec<OwnWrite> {
        let (Reading::Read(pending), Reading::Read(identity)) = (&row.pending, &row.identity) else { return Vec::new() };
        let known = pending.iter().filter_map(|entry| match entry {
            PendingChange::Known(field, value) => Some((*field, value.as_ref())),
            PendingChange::Other(_) => None,
        });
        let own = known.filter(|(field, value)| is_own(newest_first, row, identity, *field, *value));
        own.map(|(field, value)| OwnWrite::new(row.vmid, field, value)).collect()
    };
    observation.guests.iter().flat_map(of_row).collect()
}

/// Whether the last completed write of this field to this guest wrote this value. Birth marks distinguish the guest from others with its
/// id.
fn is_own(
    newest_first: &[OperationHistory],
    row: &ObservedGuest,
    identity: &GuestIdentity,
    field: Field,
    value: Option<&FieldValue>,
) -> bool {
    let has_marks = identity.marks().iter().any(|(_, mark)| mark.is_some());
    let is_of_guest = |history: &&OperationHistory| {
        let target = &history.operation.guest;
        target.vmid == row.vmid && target.kind == row.kind && target.identity.as_ref() == Some(identity)
    };
    let written = newest_first.iter().filter(is_of_guest).filter(|history| is_done(history)).find_map(|history| write_of(history, field));
    let rule = normalize::rule_of(row.kind, field);
    has_marks && rule.zip(written).is_some_and(|(rule, change)| normalize::is_met(rule, change.after.as_ref(), value))
}

fn is_done(history: &OperationHistory) -> bool {
    matches!(&history.ended, Some((Outcome::Done(_), _)))
}

fn write_of(history: &OperationHistory, field: Field) -> Option<&FieldChange> {
    match &history.operation.step.change {
        Change::ConfigSet(fields) => fields.iter().find(|change| change.field == field),
        _ => None,
    }
}
