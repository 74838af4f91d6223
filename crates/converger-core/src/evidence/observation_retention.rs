//! Which observations are still needed: by a decision that is not old enough, by an active run, or by an open or held operation.
//!
//! Must not remove anything, and does not cover plans, rules or desired states. Those are small and stay stored for every decision.

use std::collections::BTreeSet;

use super::{LedgerEntry, LedgerReplay};
use crate::apply::RunId;
use crate::artifact::Digest;

/// The users of one observation, updated with each entry, so that pruning does not have to scan all runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ObservationUsage {
    /// When the last run that uses it started.
    last_ms: u64,
    /// The number of active runs that use it.
    active_runs: u64,
    /// The number of open or held operations of those runs.
    open_operations: u64,
}

impl ObservationUsage {
    /// Whether only decisions from before this time use it, and none of them has an active run or an open operation.
    fn is_unneeded(&self, before_ms: u64) -> bool {
        self.last_ms < before_ms && self.active_runs == 0 && self.open_operations == 0
    }
}

impl LedgerReplay {
    /// The observations that only decisions from before this time use, and none of them with an active run or an open operation.
    #[must_use]
    pub fn unneeded_observations(&self, before_ms: u64) -> BTreeSet<Digest> {
        self.usage.iter().filter(|(_, usage)| usage.is_unneeded(before_ms)).map(|(digest, _)| *digest).collect()
    }

    /// Whether this observation is no longer needed.
    pub(super) fn is_unneeded(&self, digest: &Digest, before_ms: u64) -> bool {
        self.usage.get(digest).is_some_and(|usage| usage.is_unneeded(before_ms))
    }

    /// Records a run that uses an observation.
    pub(super) fn record_usage(&mut self, run: RunId, at_ms: u64, reading: Digest) {
        let usage = self.usage.entry(reading).or_default();
        usage.last_ms = usage.last_ms.max(at_ms);
        usage.active_runs += 1;
        self.observations.insert(run, reading);
    }

    /// Whether a run is active. The runs of one environment follow each other, so any but the last has ended, even if it was killed.
    pub(super) fn is_run_active(&self, id: &RunId) -> bool {
        self.runs
            .get(id)
            .is_some_and(|(run, ended)| ended.is_none() && self.last_runs.get(self.names.current(&run.environment)) == Some(id))
    }

    /// Records that an active run ended.
    pub(super) fn end_run(&mut self, run: &RunId) {
        self.update_usage(run, |usage| usage.active_runs = usage.active_runs.saturating_sub(1));
    }

    /// Records one more open operation of a run.
    pub(super) fn count_open_operation(&mut self, run: &RunId) {
        self.update_usage(run, |usage| usage.open_operations += 1);
    }

    /// Records that an operation of a run is no longer open or held.
    pub(super) fn count_settled_operation(&mut self, run: &RunId) {
        self.update_usage(run, |usage| usage.open_operations = usage.open_operations.saturating_sub(1));
    }

    fn update_usage(&mut self, run: &RunId, change: impl FnOnce(&mut ObservationUsage)) {
        if let Some(usage) = self.observations.get(run).and_then(|reading| self.usage.get_mut(reading)) {
            change(usage);
        }
    }
}

/// The digests that a person pruned, according to the entries so far. All code that finds bytes missing must ask it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PrunedSet(BTreeSet<Digest>);

impl PrunedSet {
    /// Adds an entry.
    pub fn apply_entry(&mut self, entry: &LedgerEntry) {
        match entry {
            LedgerEntry::Pruned { digests, .. } => self.0.extend(digests),
            // An observation that is referenced again must be stored again.
            LedgerEntry::RunStarted { inputs, .. } => drop(self.0.remove(&inputs.observation)),
            _ => {}
        }
    }

    /// Whether the bytes of this digest may be missing.
    #[must_use]
    pub fn contains(&self, digest: &Digest) -> bool {
        self.0.contains(digest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apply::{Findings, JournalRecord, Operation, OperationEnd, Outcome, Resolution, RunStart};
    use crate::evidence::{DecisionInputs, MisplacedEntry};
    use crate::guest::EnvironmentName;
    use crate::testing::{Rng, some_inputs, some_operations};

    fn observation_digest(number: u64) -> Digest {
        Digest::of_bytes(&number.to_be_bytes())
    }

    fn run_started(name: &str, at_ms: u64, observation: Digest, operation: Option<&Operation>) -> LedgerEntry {
        let environment = operation.map_or_else(|| EnvironmentName::new("lab").expect("a name"), |own| own.environment.clone());
        let plan = operation.map_or_else(|| observation_digest(0), |own| own.plan);
        let run = RunStart { id: RunId::new(name).expect("an id"), environment, plan, by: "ann".into(), at_ms, boot: None };
        LedgerEntry::RunStarted { run, inputs: DecisionInputs { observation, ..some_inputs() } }
    }

    fn run_ended(name: &str) -> LedgerEntry {
        LedgerEntry::RunEnded { run: RunId::new(name).expect("an id"), end: OperationEnd::Done, at_ms: 90 }
    }

    fn replay_of(entries: &[LedgerEntry]) -> LedgerReplay {
        let mut readings = LedgerReplay::default();
        entries.iter().for_each(|entry| readings.apply_entry(entry.clone()).expect("a valid position"));
        readings
    }

    #[test]
    fn prunes_only_observations_of_old_ended_runs() {
        let readings = replay_of(&[
            run_started("old", 10, observation_digest(1), None),
            run_ended("old"),
            run_started("new", 20, observation_digest(2), None),
            run_ended("new"),
        ]);
        assert_eq!(readings.unneeded_observations(20), BTreeSet::from([observation_digest(1)]));
        assert_eq!(readings.unneeded_observations(10), BTreeSet::new());
        assert_eq!(readings.unneeded_observations(21), BTreeSet::from([observation_digest(1), observation_digest(2)]));
    }

    /// A prune entry cannot hide the removal of other bytes.
    #[test]
    fn refuses_pruning_needed_or_unknown_digests() {
        let pruned = |before_ms, digest| LedgerEntry::Pruned { by: "ann".into(), before_ms, digests: [digest].into(), at_ms: 95 };
        let mut replay = replay_of(&[
            run_started("old", 10, observation_digest(1), None),
            run_ended("old"),
            run_started("new", 20, observation_digest(2), None),
        ]);
        for (before_ms, digest) in
            [(99, observation_digest(2)), (10, observation_digest(1)), (99, observation_digest(0)), (99, some_inputs().intent)]
        {
            assert_eq!(replay.apply_entry(pruned(before_ms, digest)), Err(MisplacedEntry::Pruned(digest)));
        }
        assert_eq!(replay.apply_entry(pruned(11, observation_digest(1))), Ok(()));
    }

    #[test]
    fn keeps_an_observation_that_a_later_run_uses() {
        let readings = replay_of(&[
            run_started("old", 10, observation_digest(1), None),
            run_ended("old"),
            run_started("new", 20, observation_digest(1), None),
            run_ended("new"),
        ]);
        assert_eq!(readings.unneeded_observations(20), BTreeSet::new());
    }

    #[test]
    fn active_run_keeps_its_observation() {
        let readings = replay_of(&[run_started("old", 10, observation_digest(1), None)]);
        assert_eq!(readings.unneeded_observations(99), BTreeSet::new());
        let killed = replay_of(&[run_started("old", 10, observation_digest(1), None), run_started("new", 20, observation_digest(2), None)]);
        assert_eq!(killed.unneeded_observations(99), BTreeSet::from([observation_digest(1)]), "a later run has started");
    }

    #[test]
    fn held_operation_keeps_its_observation_until_resolved() {
        let mut seeds = (0..).map(|seed| some_operations(&mut Rng::new(seed), "old"));
        let operation = seeds.find_map(|mut operations| operations.pop()).expect("one of many plans has a step");
        let id = operation.id.clone();
        let intent = LedgerEntry::Record(JournalRecord::Intent { operation: Box::new(operation.clone()), at_ms: 11 });
        let held = Outcome::new_held(crate::failure::FailureCode::TaskLost, crate::apply::ReleaseCondition::Person, Findings::default());
        let mut entries = vec![run_started("old", 10, observation_digest(1), Some(&operation)), intent, run_ended("old")];
        assert_eq!(replay_of(&entries).unneeded_observations(99), BTreeSet::new(), "it is open");
        entries.push(LedgerEntry::Record(JournalRecord::Ended { id: id.clone(), outcome: held, at_ms: 12 }));
        assert_eq!(replay_of(&entries).unneeded_observations(99), BTreeSet::new(), "it is held");
        entries.push(LedgerEntry::Record(JournalRecord::Resolved {
            id,
            resolution: Resolution::Done,
            by: "ann".into(),
            reason: "it runs".into(),
            at_ms: 13,
        }));
        assert_eq!(replay_of(&entries).unneeded_observations(99), BTreeSet::from([observation_digest(1)]));
    }

    /// The expected result, by scanning all runs: slow, but without incremental state.
    fn unneeded_by_full_scan(replay: &LedgerReplay, before_ms: u64) -> BTreeSet<Digest> {
        let held = replay.operations().values().filter(|history| history.progress().occupies_guest());
        let unsettled: BTreeSet<&RunId> = held.map(|history| &history.operation.run).collect();
        let is_needed = |id: &RunId| {
            let (run, ended) = &replay.runs()[id];
            run.at_ms >= before_ms || ended.is_none() && replay.last_runs.get(&run.environment) == Some(id) || unsettled.contains(id)
        };
        let needed: BTreeSet<Digest> = replay.observations.iter().filter(|(id, _)| is_needed(id)).map(|(_, digest)| *digest).collect();
        replay.observations.values().copied().filter(|digest| !needed.contains(digest)).collect()
    }

    #[test]
    fn incremental_usage_matches_a_full_scan() {
        let mut accepted = 0;
        for seed in 0..300 {
            let (rng, mut replay) = (&mut Rng::new(seed), LedgerReplay::default());
            let operations: Vec<Operation> =
                (0..4).flat_map(|run| some_operations(&mut Rng::new(seed + run), &format!("run-{run}"))).collect();
            for step in 0..60 {
                let entry = some_entry(rng, &operations, step);
                accepted += u64::from(replay.apply_entry(entry).is_ok());
                for before_ms in [0, step / 2, step, step + 1] {
                    assert_eq!(
                        replay.unneeded_observations(before_ms),
                        unneeded_by_full_scan(&replay, before_ms),
                        "seed {seed}, step {step}, before {before_ms}"
                    );
                }
            }
        }
        assert!(accepted > 3_000, "{accepted}");
    }

    /// Random entries: runs that start and end, operations, and pruned observations; most of them in a valid position.
    fn some_entry(rng: &mut Rng, operations: &[Operation], at_ms: u64) -> LedgerEntry {
        let name = format!("run-{}", rng.below(6));
        let operation = (!operations.is_empty()).then(|| operations[rng.index(operations.len())].clone());
        match (rng.below(8), operation) {
            (0, _) => run_ended(&name),
            (1, _) => LedgerEntry::Pruned { by: "ann".into(), before_ms: at_ms, digests: [observation_digest(rng.below(4))].into(), at_ms },
            (2..=4, Some(operation)) => LedgerEntry::Record(JournalRecord::Intent { operation: Box::new(operation), at_ms }),
            (5, Some(operation)) => {
                let held =
                    Outcome::new_held(crate::failure::FailureCode::TaskLost, crate::apply::ReleaseCondition::Person, Findings::default());
                let outcome = if rng.one_in(2) { held } else { Outcome::Done(Findings::default()) };
                LedgerEntry::Record(JournalRecord::Ended { id: operation.id, outcome, at_ms })
            }
            (6, Some(operation)) => {
                let (by, reason) = ("ann".into(), "it runs".into());
                LedgerEntry::Record(JournalRecord::Resolved { id: operation.id, resolution: Resolution::Done, by, reason, at_ms })
            }
            (_, operation) => {
                let own = operation.filter(|_| !rng.one_in(4));
                let name = own.as_ref().map_or(name, |own| own.run.as_str().to_owned());
                run_started(&name, at_ms, observation_digest(rng.below(4)), own.as_ref())
            }
        }
    }

    /// With as many prune entries as runs, checking each must not scan all runs.
    #[test]
    fn pruning_does_not_scan_all_runs() {
        let mut replay = LedgerReplay::default();
        for number in 0..40_000 {
            let name = format!("run-{number}");
            let pruned =
                LedgerEntry::Pruned { by: "ann".into(), before_ms: u64::MAX, digests: [observation_digest(number)].into(), at_ms: number };
            for entry in [run_started(&name, number, observation_digest(number), None), run_ended(&name), pruned] {
                replay.apply_entry(entry).expect("a valid position");
            }
        }
        assert_eq!(replay.unneeded_observations(u64::MAX).len(), 40_000);
    }

    #[test]
    fn pruned_digest_named_again_must_be_kept_again() {
        let pruned = LedgerEntry::Pruned {
            by: "ann".into(),
            before_ms: 99,
            digests: [observation_digest(1), observation_digest(2)].into(),
            at_ms: 95,
        };
        let mut let_go = PrunedSet::default();
        [run_started("old", 10, observation_digest(1), None), pruned].iter().for_each(|entry| let_go.apply_entry(entry));
        assert_eq!([1, 2, 3].map(|number| let_go.contains(&observation_digest(number))), [true, true, false]);
        let_go.apply_entry(&run_started("new", 100, observation_digest(1), None));
        assert_eq!([1, 2, 3].map(|number| let_go.contains(&observation_digest(number))), [false, true, false]);
    }
}
