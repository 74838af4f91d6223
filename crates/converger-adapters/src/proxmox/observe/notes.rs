//! What people are told about guests that a reading does not know: once for each node, however many guests it has.
//!
//! What never enters: what the reading claims. Rows are only looked at here.

use std::collections::BTreeMap;

use converger_core::guest::Vmid;
use converger_core::observe::{Node, ObservedGuest};

use super::causes::{Note, Reason};
use super::rows::unknown;
use crate::proxmox::codec::Shown;

/// So many ids stand in a sentence; the rest is counted.
const IDS_MAX: usize = 10;

/// What is to be said about rows that are unknown because of their node, or because of what they do.
/// `came` holds, for a node and a reason, what came instead of an answer.
pub(super) fn of_rows<'r>(
    rows: impl Iterator<Item = &'r ObservedGuest>,
    nodes: &[Node],
    came: &BTreeMap<(usize, Reason), String>,
) -> Vec<Note> {
    let mut notes = Vec::new();
    let mut of_nodes: BTreeMap<(usize, Reason), Vec<Vmid>> = BTreeMap::new();
    for row in rows {
        let is = |reason: &Reason| row.status == unknown(*reason);
        let of_node = [Reason::NodeOffline, Reason::NodeSilent, Reason::NoAnswer, Reason::NotReported, Reason::NodeListUnread];
        if let Some(reason) = of_node.into_iter().find(is) {
            of_nodes.entry((row.node, reason)).or_default().push(row.vmid);
        }
        notes.extend(unclear(row));
    }
    notes.extend(of_nodes.into_iter().filter_map(|((index, reason), ids)| {
        let node = nodes.get(index)?.name.as_str();
        let text = match (reason, came.get(&(index, reason))) {
            (Reason::NodeSilent, Some(said)) => format!("node {node} does not answer ({said}); unknown on it: {}", listed(&ids)),
            (Reason::NoAnswer, Some(said)) => format!("node {node} answers, but not about {} ({said})", listed(&ids)),
            (Reason::NodeListUnread, Some(said)) => {
                format!("node {node} does not list its guests ({said}); unknown on it: {}", listed(&ids))
            }
            (Reason::NotReported, _) => format!("node {node} does not say whether they run: {}", listed(&ids)),
            _ => format!("node {node} is offline; unknown on it: {}", listed(&ids)),
        };
        Some(Note::of_all(reason, text))
    }));
    notes
}

/// A guest of which the platform has a word that is neither running nor stopped.
fn unclear(row: &ObservedGuest) -> Option<Note> {
    let word = row.run_state.as_deref()?;
    let text = || format!("guest {}: Proxmox calls its state `{}`", row.vmid, Shown(word));
    (row.status == unknown(Reason::RunStateUnclear)).then(|| Note::of_guest(row.vmid, Reason::RunStateUnclear, text()))
}

/// "guests 101 and 102", "guest 101", "guests 101, 102 and 14 more".
fn listed(ids: &[Vmid]) -> String {
    let noun = if ids.len() == 1 { "guest" } else { "guests" };
    let mut words: Vec<String> = ids.iter().take(IDS_MAX).map(ToString::to_string).collect();
    let last = match ids.len().checked_sub(IDS_MAX) {
        Some(more) if more > 0 => format!("{more} more"),
        _ => words.pop().unwrap_or_default(),
    };
    if words.is_empty() { format!("{noun} {last}") } else { format!("{noun} {} and {last}", words.join(", ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_listed_in_words_and_counted_beyond_ten() {
        let ids: Vec<Vmid> = (101..=114).filter_map(Vmid::new).collect();
        assert_eq!(listed(&ids[..1]), "guest 101");
        assert_eq!(listed(&ids[..3]), "guests 101, 102 and 103");
        assert_eq!(listed(&ids[..10]), "guests 101, 102, 103, 104, 105, 106, 107, 108, 109 and 110");
        assert_eq!(listed(&ids), "guests 101, 102, 103, 104, 105, 106, 107, 108, 109, 110 and 4 more");
    }
}
