//! Notes for people about guests that are unknown, one per node and reason.
//!
//! Must not change what the observation claims; it only reads the rows.

use std::collections::BTreeMap;

use converger_core::guest::Vmid;
use converger_core::observe::{ObservedGuest, ObservedNode};

use super::rows::unknown_status;
use super::unknown_reason::{ReadingNote, UnknownReason};
use crate::proxmox::codec::EscapedText;

/// Maximum number of ids in a note; the rest is counted.
const IDS_MAX: usize = 10;

/// Notes about rows that are unknown because of their node or because of an unclear run-state. `failure_texts` contains the failures
/// by node and reason.
pub(super) fn notes_of_rows<'r>(
    rows: impl Iterator<Item = &'r ObservedGuest>,
    nodes: &[ObservedNode],
    failure_texts: &BTreeMap<(usize, UnknownReason), String>,
) -> Vec<ReadingNote> {
    let mut notes = Vec::new();
    let mut of_nodes: BTreeMap<(usize, UnknownReason), Vec<Vmid>> = BTreeMap::new();
    for row in rows {
        let is = |reason: &UnknownReason| row.status == unknown_status(*reason);
        let of_node = [
            UnknownReason::NodeOffline,
            UnknownReason::NodeSilent,
            UnknownReason::NoAnswer,
            UnknownReason::NotReported,
            UnknownReason::NodeListUnread,
        ];
        if let Some(reason) = of_node.into_iter().find(is) {
            of_nodes.entry((row.node, reason)).or_default().push(row.vmid);
        }
        notes.extend(unclear_state_note(row));
    }
    notes.extend(of_nodes.into_iter().filter_map(|((index, reason), ids)| {
        let node = nodes.get(index)?.name.as_str();
        let text = match (reason, failure_texts.get(&(index, reason))) {
            (UnknownReason::NodeSilent, Some(failure_text)) => {
                format!("node {node} does not respond ({failure_text}); unknown on it: {}", list_guests(&ids))
            }
            (UnknownReason::NoAnswer, Some(failure_text)) => {
                format!("node {node} responds, but not for {} ({failure_text})", list_guests(&ids))
            }
            (UnknownReason::NodeListUnread, Some(failure_text)) => {
                format!("node {node} does not list its guests ({failure_text}); unknown on it: {}", list_guests(&ids))
            }
            (UnknownReason::NotReported, _) => format!("node {node} does not report the run-state of {}", list_guests(&ids)),
            _ => format!("node {node} is offline; unknown on it: {}", list_guests(&ids)),
        };
        Some(ReadingNote::for_reading(reason, text))
    }));
    notes
}

/// A note about a guest whose state in Proxmox is neither running nor stopped.
fn unclear_state_note(row: &ObservedGuest) -> Option<ReadingNote> {
    let run_state = row.run_state.as_deref()?;
    let text = || format!("guest {}: its state in Proxmox is `{}`", row.vmid, EscapedText(run_state));
    (row.status == unknown_status(UnknownReason::RunStateUnclear))
        .then(|| ReadingNote::for_guest(row.vmid, UnknownReason::RunStateUnclear, text()))
}

/// Formats ids as "guest 101", "guests 101 and 102" or "guests 101, 102 and 14 more".
fn list_guests(ids: &[Vmid]) -> String {
    let noun = if ids.len() == 1 { "guest" } else { "guests" };
    let mut id_texts: Vec<String> = ids.iter().take(IDS_MAX).map(ToString::to_string).collect();
    let last = match ids.len().checked_sub(IDS_MAX) {
        Some(more) if more > 0 => format!("{more} more"),
        _ => id_texts.pop().unwrap_or_default(),
    };
    if id_texts.is_empty() { format!("{noun} {last}") } else { format!("{noun} {} and {last}", id_texts.join(", ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_ten_ids_and_counts_the_rest() {
        let ids: Vec<Vmid> = (101..=114).filter_map(Vmid::new).collect();
        assert_eq!(list_guests(&ids[..1]), "guest 101");
        assert_eq!(list_guests(&ids[..3]), "guests 101, 102 and 103");
        assert_eq!(list_guests(&ids[..10]), "guests 101, 102, 103, 104, 105, 106, 107, 108, 109 and 110");
        assert_eq!(list_guests(&ids), "guests 101, 102, 103, 104, 105, 106, 107, 108, 109, 110 and 4 more");
    }
}
