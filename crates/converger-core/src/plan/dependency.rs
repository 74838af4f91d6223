//! Applies `after` to the verdicts. A guest gets no step if a dependency is refused; it is started only if all its dependencies run, and
//! stopped only after all its dependents.
//!
//! Refusing one guest may remove what another one depends on, so refusals propagate until nothing changes. They only ever grow, so this
//! terminates, and the result does not depend on the processing order.

use super::{Step, Verdict, guest, join_rows};
use crate::action::Change;
use crate::desired::Desired;
use crate::guest::{RunState, Vmid};
use crate::observe::Scoped;
use crate::refusal::Refusal;

pub(super) fn settle_dependencies(desired: &Desired, observation: &Scoped, verdicts: &mut [Verdict]) {
    if !desired.has_dependencies() {
        return;
    }
    let mut net = DependencyGraph::new(desired, observation, verdicts);
    net.propagate_refusals();
    let refused: Vec<(usize, Vec<Refusal>)> = net.newly_refused().map(|index| (index, net.refusals(index))).collect();
    let wait_lists: Vec<(usize, Box<[Vmid]>)> =
        (0..net.guests.len()).map(|index| (index, net.wait_list(index))).filter(|(_, ids)| !ids.is_empty()).collect();
    for (index, refusals) in refused {
        if let Some(verdict) = verdicts.get_mut(index) {
            *verdict = Verdict::Refused(refusals);
        }
    }
    for (index, ids) in wait_lists {
        if let Some(Verdict::Steps(steps)) = verdicts.get_mut(index) {
            // Only the first power step waits; the following steps of the guest come after it anyway.
            if let Some(step) = steps.iter_mut().find(|step| step.change.resulting_state().is_some()) {
                step.wait = ids;
            }
        }
    }
}

/// All guests by index, with the edges of `after`. A converged guest allocates nothing of its own.
struct DependencyGraph {
    guests: Vec<GraphGuest>,
    /// Edges from a guest to its dependencies, sorted.
    after: Vec<IndexEdge>,
    /// The reversed edges, from a guest to its dependents, sorted.
    before: Vec<IndexEdge>,
}

/// An edge between two guest indices.
type IndexEdge = (usize, usize);

struct GraphGuest {
    index: usize,
    vmid: Vmid,
    /// The run-state, if it is reliable.
    observed: Option<RunState>,
    /// Whether the guest is declared to run, even if it does not get there.
    is_to_run: bool,
    /// Whether the guest looks converged although its pending changes were not read. Reading them might lead to a refusal.
    is_uncertain: bool,
    /// A summary of its own verdict.
    planned: PlannedPower,
    /// Refused so far, by its own verdict or because of a dependency.
    refused: bool,
}

#[derive(Clone, Copy, Default)]
struct PlannedPower {
    refused: bool,
    steps: bool,
    /// It is started or rebooted.
    starts: bool,
    /// It ends up stopped.
    stops: bool,
}

impl DependencyGraph {
    fn new(desired: &Desired, observation: &Scoped, verdicts: &[Verdict]) -> Self {
        let guests = join_rows(desired, observation).zip(verdicts).enumerate().map(|(index, ((guest, row), verdict))| {
            let planned = summarize_verdict(verdict);
            GraphGuest {
                index,
                vmid: guest.vmid,
                observed: guest::reliable_state(guest, row, observation),
                is_to_run: guest.state == Some(RunState::Running),
                is_uncertain: !planned.steps && !guest.config.is_empty() && row.is_some_and(|row| !row.pending.is_read()),
                planned,
                refused: planned.refused,
            }
        });
        let edges = desired.guests().iter().map(|guest| guest.after.len()).sum();
        let mut after: Vec<IndexEdge> = Vec::with_capacity(edges);
        for (index, guest) in desired.guests().iter().enumerate() {
            after.extend(guest.after.iter().filter_map(|vmid| desired.find(*vmid)).map(|(on, _)| (index, on)));
        }
        let mut before: Vec<IndexEdge> = after.iter().map(|(index, on)| (*on, *index)).collect();
        before.sort_unstable();
        Self { guests: guests.collect(), after, before }
    }

    fn propagate_refusals(&mut self) {
        let mut work: Vec<usize> = (0..self.guests.len()).collect();
        while let Some(index) = work.pop() {
            if !self.must_refuse(index) {
                continue;
            }
            let Some(guest) = self.guests.get_mut(index) else { continue };
            guest.refused = true;
            // Dependents relied on this guest. Its dependencies relied on it only if it was to be stopped before them.
            let stops = guest.planned.stops;
            work.extend(edges_from(&self.before, index));
            work.extend(edges_from(&self.after, index).filter(|_| stops));
        }
    }

    /// Whether a guest with steps has lost something that it depends on.
    fn must_refuse(&self, index: usize) -> bool {
        let Some(guest) = self.guests.get(index) else { return false };
        guest.planned.steps
            && !guest.refused
            && (self.refused_dependencies(guest).next().is_some()
                || self.stopped_dependencies(guest).next().is_some()
                || self.running_dependents(guest).next().is_some())
    }

    fn newly_refused(&self) -> impl Iterator<Item = usize> {
        self.guests.iter().enumerate().filter(|(_, guest)| guest.refused && !guest.planned.refused).map(|(index, _)| index)
    }

    fn refusals(&self, index: usize) -> Vec<Refusal> {
        let Some(guest) = self.guests.get(index) else { return Vec::new() };
        let refused: Vec<Vmid> = self.refused_dependencies(guest).collect();
        let down: Vec<Vmid> = self.stopped_dependencies(guest).collect();
        let running: Vec<Vmid> = self.running_dependents(guest).collect();
        let of = |ids: Vec<Vmid>, make: fn(Vec<Vmid>) -> Refusal| (!ids.is_empty()).then(|| make(ids));
        let refusals =
            [of(refused, Refusal::dependency_refused), of(down, Refusal::dependency_not_running), of(running, Refusal::dependent_running)];
        refusals.into_iter().flatten().collect()
    }

    /// Dependencies that are refused, or might be refused if more of them had been read (G17).
    fn refused_dependencies<'n>(&'n self, guest: &'n GraphGuest) -> impl Iterator<Item = Vmid> + 'n {
        self.dependencies(guest).filter(|on| on.refused || on.is_uncertain).map(|on| on.vmid)
    }

    /// Dependencies that must run before this guest starts and will not. Refused ones are counted by `refused_dependencies`.
    fn stopped_dependencies<'n>(&'n self, guest: &'n GraphGuest) -> impl Iterator<Item = Vmid> + 'n {
        let starts = guest.planned.starts;
        self.dependencies(guest).filter(move |on| starts && !on.refused && !on.will_run()).map(|on| on.vmid)
    }

    /// Dependents that must be stopped before this guest, and are neither known to be stopped nor going to be.
    fn running_dependents<'n>(&'n self, guest: &'n GraphGuest) -> impl Iterator<Item = Vmid> + 'n {
        let stops = guest.planned.stops;
        self.dependents(guest).filter(move |dependent| stops && !dependent.will_be_stopped()).map(|dependent| dependent.vmid)
    }

    /// Guests whose power step must come before that of this guest.
    fn wait_list(&self, index: usize) -> Box<[Vmid]> {
        let Some(guest) = self.guests.get(index).filter(|guest| guest.planned.steps && !guest.refused) else { return Box::new([]) };
        if guest.planned.starts {
            return self.dependencies(guest).filter(|on| on.planned.starts).map(|on| on.vmid).collect();
        }
        if guest.planned.stops {
            return self.dependents(guest).filter(|dependent| dependent.planned.stops).map(|dependent| dependent.vmid).collect();
        }
        Box::new([])
    }

    /// The guests that this guest comes after.
    fn dependencies(&self, guest: &GraphGuest) -> impl Iterator<Item = &GraphGuest> {
        edges_from(&self.after, guest.index).filter_map(|index| self.guests.get(index))
    }

    /// The guests that come after this guest.
    fn dependents(&self, guest: &GraphGuest) -> impl Iterator<Item = &GraphGuest> {
        edges_from(&self.before, guest.index).filter_map(|index| self.guests.get(index))
    }
}

/// The targets of the edges from this index, in order.
fn edges_from(sorted: &[IndexEdge], index: usize) -> impl Iterator<Item = usize> {
    let start = sorted.partition_point(|(from, _)| *from < index);
    sorted.iter().skip(start).take_while(move |(from, _)| *from == index).map(|(_, to)| *to)
}

impl GraphGuest {
    fn will_run(&self) -> bool {
        self.planned.starts || (self.observed == Some(RunState::Running) && !self.planned.stops)
    }

    fn will_be_stopped(&self) -> bool {
        // A guest that stays stopped because its start is refused does not count: a refusal would then give another guest a step (G17), and
        // the result would depend on the processing order.
        let stopped_by_plan = self.planned.stops && !self.refused;
        let stays_stopped = self.observed == Some(RunState::Stopped) && !self.is_to_run;
        stopped_by_plan || stays_stopped
    }
}

fn summarize_verdict(verdict: &Verdict) -> PlannedPower {
    match verdict {
        Verdict::Converged { .. } => PlannedPower::default(),
        Verdict::Refused(_) => PlannedPower { refused: true, ..PlannedPower::default() },
        Verdict::Steps(steps) => {
            let last = steps.iter().rev().find_map(|step: &Step| step.change.resulting_state());
            let starts = steps.iter().any(|step| matches!(step.change, Change::Start | Change::Reboot { .. }));
            PlannedPower { refused: false, steps: true, starts, stops: last == Some(RunState::Stopped) }
        }
    }
}
