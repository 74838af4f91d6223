//! Which readings are still needed: by a decision that is not old enough, whose run goes on, or of which something is open or held.
//!
//! What never enters: removing anything, and plans, rules or declared states. Those are small, and every decision keeps them.

use std::collections::BTreeSet;

use super::{Entry, Replay};
use crate::apply::RunId;
use crate::artifact::Digest;

/// What rests on one reading. It is kept up to date entry by entry, so that what may be let go is known without walking through all runs again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Resting {
    /// When the last run began that rests on it.
    last_ms: u64,
    /// How many of these runs go on.
    going_on: u64,
    /// How many of their operations are open or held.
    unsettled: u64,
}

impl Resting {
    /// Only decisions of before this time rest on it, none of which is open.
    fn is_unneeded(&self, before_ms: u64) -> bool {
        self.last_ms < before_ms && self.going_on == 0 && self.unsettled == 0
    }
}

impl Replay {
    /// The readings that only decisions of before this time rest on, none of which is open.
    #[must_use]
    pub fn unneeded(&self, before_ms: u64) -> BTreeSet<Digest> {
        self.resting.iter().filter(|(_, resting)| resting.is_unneeded(before_ms)).map(|(digest, _)| *digest).collect()
    }

    /// Whether this is such a reading.
    pub(super) fn is_unneeded(&self, digest: &Digest, before_ms: u64) -> bool {
        self.resting.get(digest).is_some_and(|resting| resting.is_unneeded(before_ms))
    }

    /// A run begins that rests on a reading.
    pub(super) fn rest(&mut self, run: RunId, at_ms: u64, reading: Digest) {
        let resting = self.resting.entry(reading).or_default();
        resting.last_ms = resting.last_ms.max(at_ms);
        resting.going_on += 1;
        self.readings.insert(run, reading);
    }

    /// Whether a run goes on. Runs of one environment follow each other: whichever is not the last is over, also where it was killed.
    pub(super) fn goes_on(&self, id: &RunId) -> bool {
        self.runs.get(id).is_some_and(|(run, ended)| ended.is_none() && self.last.get(self.names.current(&run.environment)) == Some(id))
    }

    /// A run that went on is over.
    pub(super) fn is_over(&mut self, run: &RunId) {
        self.resting_on(run, |resting| resting.going_on = resting.going_on.saturating_sub(1));
    }

    /// One more operation of a run is open.
    pub(super) fn is_begun(&mut self, run: &RunId) {
        self.resting_on(run, |resting| resting.unsettled += 1);
    }

    /// One operation of a run that was open or held is so no longer.
    pub(super) fn is_settled(&mut self, run: &RunId) {
        self.resting_on(run, |resting| resting.unsettled = resting.unsettled.saturating_sub(1));
    }

    fn resting_on(&mut self, run: &RunId, change: impl FnOnce(&mut Resting)) {
        if let Some(resting) = self.readings.get(run).and_then(|reading| self.resting.get_mut(reading)) {
            change(resting);
        }
    }
}

/// What a person let go, by the entries that were heard: the one rule for whoever misses something.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LetGo(BTreeSet<Digest>);

impl LetGo {
    /// The next entry.
    pub fn hear(&mut self, entry: &Entry) {
        match entry {
            Entry::Pruned { digests, .. } => self.0.extend(digests),
            // What is named again is kept again.
            Entry::RunStarted { inputs, .. } => drop(self.0.remove(&inputs.observation)),
            _ => {}
        }
    }

    /// Whether this need not be kept any longer.
    #[must_use]
    pub fn contains(&self, digest: &Digest) -> bool {
        self.0.contains(digest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apply::{End, Findings, Operation, Outcome, Record, Resolution, Run};
    use crate::evidence::{Inputs, Misplaced};
    use crate::guest::EnvironmentName;
    use crate::testing::{Rng, some_inputs, some_operations};

    fn reading(number: u64) -> Digest {
        Digest::of_bytes(&number.to_be_bytes())
    }

    fn run(name: &str, at_ms: u64, observation: Digest, operation: Option<&Operation>) -> Entry {
        let environment = operation.map_or_else(|| EnvironmentName::new("lab").expect("a name"), |own| own.environment.clone());
        let plan = operation.map_or_else(|| reading(0), |own| own.plan);
        let run = Run { id: RunId::new(name).expect("an id"), environment, plan, by: "ann".into(), at_ms, boot: None };
        Entry::RunStarted { run, inputs: Inputs { observation, ..some_inputs() } }
    }

    fn ended(name: &str) -> Entry {
        Entry::RunEnded { run: RunId::new(name).expect("an id"), end: End::Done, at_ms: 90 }
    }

    fn of(entries: &[Entry]) -> Replay {
        let mut readings = Replay::default();
        entries.iter().for_each(|entry| readings.take(entry.clone()).expect("it may stand there"));
        readings
    }

    #[test]
    fn only_what_old_runs_that_are_over_rest_on_is_let_go() {
        let readings = of(&[run("old", 10, reading(1), None), ended("old"), run("new", 20, reading(2), None), ended("new")]);
        assert_eq!(readings.unneeded(20), BTreeSet::from([reading(1)]));
        assert_eq!(readings.unneeded(10), BTreeSet::new());
        assert_eq!(readings.unneeded(21), BTreeSet::from([reading(1), reading(2)]));
    }

    /// Nobody hides what was removed behind an entry that says so.
    #[test]
    fn an_entry_that_lets_go_of_what_is_needed_or_no_reading_cannot_stand() {
        let pruned = |before_ms, digest| Entry::Pruned { by: "ann".into(), before_ms, digests: [digest].into(), at_ms: 95 };
        let mut replay = of(&[run("old", 10, reading(1), None), ended("old"), run("new", 20, reading(2), None)]);
        for (before_ms, digest) in [(99, reading(2)), (10, reading(1)), (99, reading(0)), (99, some_inputs().desired)] {
            assert_eq!(replay.take(pruned(before_ms, digest)), Err(Misplaced::Pruned(digest)));
        }
        assert_eq!(replay.take(pruned(11, reading(1))), Ok(()));
    }

    #[test]
    fn a_reading_that_a_later_decision_rests_on_too_stays() {
        let readings = of(&[run("old", 10, reading(1), None), ended("old"), run("new", 20, reading(1), None), ended("new")]);
        assert_eq!(readings.unneeded(20), BTreeSet::new());
    }

    #[test]
    fn a_run_that_goes_on_keeps_its_reading() {
        let readings = of(&[run("old", 10, reading(1), None)]);
        assert_eq!(readings.unneeded(99), BTreeSet::new());
        let killed = of(&[run("old", 10, reading(1), None), run("new", 20, reading(2), None)]);
        assert_eq!(killed.unneeded(99), BTreeSet::from([reading(1)]), "another one has begun since");
    }

    #[test]
    fn a_run_with_an_operation_that_is_held_keeps_its_reading_until_a_person_resolved_it() {
        let mut seeds = (0..).map(|seed| some_operations(&mut Rng::new(seed), "old"));
        let operation = seeds.find_map(|mut operations| operations.pop()).expect("one of many plans has a step");
        let id = operation.id.clone();
        let intent = Entry::Record(Record::Intent { operation: Box::new(operation.clone()), at_ms: 11 });
        let held = Outcome::held(crate::failure::Code::TaskLost, crate::apply::Release::Person, Findings::default());
        let mut entries = vec![run("old", 10, reading(1), Some(&operation)), intent, ended("old")];
        assert_eq!(of(&entries).unneeded(99), BTreeSet::new(), "it is open");
        entries.push(Entry::Record(Record::Ended { id: id.clone(), outcome: held, at_ms: 12 }));
        assert_eq!(of(&entries).unneeded(99), BTreeSet::new(), "it is held");
        entries.push(Entry::Record(Record::Resolved {
            id,
            resolution: Resolution::Done,
            by: "ann".into(),
            reason: "it runs".into(),
            at_ms: 13,
        }));
        assert_eq!(of(&entries).unneeded(99), BTreeSet::from([reading(1)]));
    }

    /// The same by walking through all runs, as it is said: slow, and nothing to keep up to date.
    fn walked(replay: &Replay, before_ms: u64) -> BTreeSet<Digest> {
        let held = replay.operations().values().filter(|history| history.progress().occupies_guest());
        let unsettled: BTreeSet<&RunId> = held.map(|history| &history.operation.run).collect();
        let is_needed = |id: &RunId| {
            let (run, ended) = &replay.runs()[id];
            run.at_ms >= before_ms || ended.is_none() && replay.last.get(&run.environment) == Some(id) || unsettled.contains(id)
        };
        let needed: BTreeSet<Digest> = replay.readings.iter().filter(|(id, _)| is_needed(id)).map(|(_, digest)| *digest).collect();
        replay.readings.values().copied().filter(|digest| !needed.contains(digest)).collect()
    }

    #[test]
    fn what_is_kept_up_to_date_is_what_a_walk_through_all_runs_finds() {
        let mut taken = 0;
        for seed in 0..300 {
            let (rng, mut replay) = (&mut Rng::new(seed), Replay::default());
            let operations: Vec<Operation> =
                (0..4).flat_map(|run| some_operations(&mut Rng::new(seed + run), &format!("run-{run}"))).collect();
            for step in 0..60 {
                let entry = some_entry(rng, &operations, step);
                taken += u64::from(replay.take(entry).is_ok());
                for before_ms in [0, step / 2, step, step + 1] {
                    assert_eq!(replay.unneeded(before_ms), walked(&replay, before_ms), "seed {seed}, step {step}, before {before_ms}");
                }
            }
        }
        assert!(taken > 3_000, "{taken}");
    }

    /// Runs that begin and end, operations on their way, and readings that are let go; most of it where it may stand.
    fn some_entry(rng: &mut Rng, operations: &[Operation], at_ms: u64) -> Entry {
        let name = format!("run-{}", rng.below(6));
        let operation = (!operations.is_empty()).then(|| operations[rng.index(operations.len())].clone());
        match (rng.below(8), operation) {
            (0, _) => ended(&name),
            (1, _) => Entry::Pruned { by: "ann".into(), before_ms: at_ms, digests: [reading(rng.below(4))].into(), at_ms },
            (2..=4, Some(operation)) => Entry::Record(Record::Intent { operation: Box::new(operation), at_ms }),
            (5, Some(operation)) => {
                let held = Outcome::held(crate::failure::Code::TaskLost, crate::apply::Release::Person, Findings::default());
                let outcome = if rng.one_in(2) { held } else { Outcome::Done(Findings::default()) };
                Entry::Record(Record::Ended { id: operation.id, outcome, at_ms })
            }
            (6, Some(operation)) => {
                let (by, reason) = ("ann".into(), "it runs".into());
                Entry::Record(Record::Resolved { id: operation.id, resolution: Resolution::Done, by, reason, at_ms })
            }
            (_, operation) => {
                let own = operation.filter(|_| !rng.one_in(4));
                let name = own.as_ref().map_or(name, |own| own.run.as_str().to_owned());
                run(&name, at_ms, reading(rng.below(4)), own.as_ref())
            }
        }
    }

    /// As many entries that let go as there are runs: each is a look at what it names, and not at all runs there ever were.
    #[test]
    fn letting_go_again_and_again_is_not_a_walk_through_all_runs_each_time() {
        let mut replay = Replay::default();
        for number in 0..40_000 {
            let name = format!("run-{number}");
            let pruned = Entry::Pruned { by: "ann".into(), before_ms: u64::MAX, digests: [reading(number)].into(), at_ms: number };
            for entry in [run(&name, number, reading(number), None), ended(&name), pruned] {
                replay.take(entry).expect("it may stand there");
            }
        }
        assert_eq!(replay.unneeded(u64::MAX).len(), 40_000);
    }

    #[test]
    fn what_is_named_again_after_it_was_let_go_is_to_be_kept_again() {
        let pruned = Entry::Pruned { by: "ann".into(), before_ms: 99, digests: [reading(1), reading(2)].into(), at_ms: 95 };
        let mut let_go = LetGo::default();
        [run("old", 10, reading(1), None), pruned].iter().for_each(|entry| let_go.hear(entry));
        assert_eq!([1, 2, 3].map(|number| let_go.contains(&reading(number))), [true, true, false]);
        let_go.hear(&run("new", 100, reading(1), None));
        assert_eq!([1, 2, 3].map(|number| let_go.contains(&reading(number))), [false, true, false]);
    }
}
