//! Which readings are still needed: by a decision that is not old enough, whose run goes on, or of which something is open or held.
//!
//! What never enters: removing anything, and plans, rules or declared states. Those are small, and every decision keeps them.

use std::collections::BTreeSet;

use super::Replay;
use crate::apply::RunId;
use crate::artifact::Digest;

impl Replay {
    /// The readings that only decisions of before this time rest on, none of which is open.
    #[must_use]
    pub fn unneeded(&self, before_ms: u64) -> BTreeSet<Digest> {
        let histories = self.operations.values();
        let unsettled: BTreeSet<&RunId> =
            histories.filter(|history| history.progress().occupies_guest()).map(|history| &history.operation.run).collect();
        let is_needed = |id: &RunId| {
            let goes_on = |environment| self.last.get(environment) == Some(id);
            let past = self.runs.get(id);
            let is_needed = past.is_none_or(|(run, ended)| run.at_ms >= before_ms || ended.is_none() && goes_on(&run.environment));
            is_needed || unsettled.contains(id)
        };
        let (needed, old): (Vec<_>, Vec<_>) = self.readings.iter().partition(|(id, _)| is_needed(id));
        let needed: BTreeSet<&Digest> = needed.into_iter().map(|(_, digest)| digest).collect();
        old.into_iter().map(|(_, digest)| *digest).filter(|digest| !needed.contains(digest)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apply::{End, Findings, Operation, Outcome, Record, Resolution, Run};
    use crate::evidence::{Entry, Inputs, Misplaced};
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
}
