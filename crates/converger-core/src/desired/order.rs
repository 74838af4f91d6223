//! The order that `after` requires: dependencies first, ties by id. A cycle has no order.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::DesiredGuest;
use crate::document::{Diagnostic, Span};
use crate::guest::Vmid;

/// `guest` names `on` in its `after`.
pub(super) struct DependencyEdge {
    pub(super) guest: Vmid,
    pub(super) on: Vmid,
    pub(super) span: Span,
}

/// The order as indices into `guests`, which are sorted by id; `None` if there are no edges.
///
/// `is_declared` is also true for guests with a fault of their own: they are not ordered, and the file is rejected anyway.
pub(super) fn dependency_order(
    guests: &[DesiredGuest],
    edges: &[DependencyEdge],
    is_declared: impl Fn(Vmid) -> bool,
) -> Result<Option<Box<[u32]>>, Vec<Diagnostic>> {
    if edges.is_empty() {
        return Ok(None);
    }
    let undeclared: Vec<Diagnostic> = edges.iter().filter(|edge| !is_declared(edge.on)).map(undeclared_fault).collect();
    if !undeclared.is_empty() || edges.iter().any(|edge| index_of(guests, edge.on).is_none()) {
        return Err(undeclared);
    }
    let order = topological_sort(guests);
    if order.len() == guests.len() {
        return Ok(Some(order.into()));
    }
    Err(vec![cycle_fault(guests, &order, edges)])
}

fn index_of(guests: &[DesiredGuest], vmid: Vmid) -> Option<usize> {
    guests.binary_search_by_key(&vmid, |guest| guest.vmid).ok()
}

fn undeclared_fault(edge: &DependencyEdge) -> Diagnostic {
    Diagnostic::new(edge.span, format!("guest {} comes after {}, which is not declared", edge.guest, edge.on))
        .with_help("declare that guest too, or remove it from `after`")
}

/// Kahn's algorithm with a heap. The result is shorter than `guests` if there is a cycle.
fn topological_sort(guests: &[DesiredGuest]) -> Vec<u32> {
    let mut waiting: Vec<usize> = guests.iter().map(|guest| guest.after.len()).collect();
    let mut dependents: Vec<Vec<usize>> = vec![Vec::new(); guests.len()];
    for (index, guest) in guests.iter().enumerate() {
        for on in guest.after.iter().filter_map(|on| index_of(guests, *on)) {
            if let Some(list) = dependents.get_mut(on) {
                list.push(index);
            }
        }
    }
    let mut ready: BinaryHeap<Reverse<usize>> =
        waiting.iter().enumerate().filter(|(_, count)| **count == 0).map(|(index, _)| Reverse(index)).collect();
    let mut order = Vec::with_capacity(guests.len());
    while let Some(Reverse(index)) = ready.pop() {
        order.push(u32::try_from(index).unwrap_or(u32::MAX));
        for dependent in dependents.get(index).into_iter().flatten() {
            if let Some(count) = waiting.get_mut(*dependent) {
                *count -= 1;
                if *count == 0 {
                    ready.push(Reverse(*dependent));
                }
            }
        }
    }
    order
}

/// Describes one cycle: starting at a guest that could not be ordered, follows dependencies until a guest repeats.
fn cycle_fault(guests: &[DesiredGuest], order: &[u32], edges: &[DependencyEdge]) -> Diagnostic {
    const SHOWN_MAX: usize = 12;
    let mut ordered = vec![false; guests.len()];
    for index in order {
        if let Some(mark) = usize::try_from(*index).ok().and_then(|index| ordered.get_mut(index)) {
            *mark = true;
        }
    }
    let is_stuck = |index: &usize| ordered.get(*index) == Some(&false);
    let next = |index: usize| guests.get(index)?.after.iter().filter_map(|on| index_of(guests, *on)).find(is_stuck);
    let mut path: Vec<usize> = (0..guests.len()).filter(is_stuck).take(1).collect();
    let mut visited = vec![false; guests.len()];
    let start = loop {
        let Some(step) = path.last().and_then(|last| next(*last)) else { break 0 };
        if visited.get(step) == Some(&true) || path.first() == Some(&step) {
            break path.iter().position(|index| *index == step).unwrap_or(0);
        }
        if let Some(mark) = visited.get_mut(step) {
            *mark = true;
        }
        path.push(step);
    };
    let ring: Vec<Vmid> = path.get(start..).unwrap_or(&[]).iter().filter_map(|index| guests.get(*index)).map(|guest| guest.vmid).collect();
    let first_edge = edges.iter().find(|edge| ring.first() == Some(&edge.guest) && ring.contains(&edge.on));
    let mut names: Vec<String> = ring.iter().take(SHOWN_MAX).map(ToString::to_string).collect();
    if ring.len() > SHOWN_MAX {
        names.push("...".into());
    }
    names.extend(ring.first().map(ToString::to_string));
    Diagnostic::new(first_edge.map_or(Span::at(0), |edge| edge.span), format!("dependency cycle in `after`: {}", names.join(" -> ")))
        .with_help("no guest of a cycle can start first; remove one of these from `after`")
}
