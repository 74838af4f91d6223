//! What came of all crashes: a few lines for people, and JSON with every violation and the point at which it can be seen again.
//!
//! What never enters here: what a violation is.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::time::Duration;

use serde_json::{Value, json};

use super::evidence::Evidence;
use super::points::{Point, Reached};
use crate::shell::{Failure, Outcome};

const FILE: &str = "target/crash.json";
/// How the titles of calls end that wake another thread, or draw on a terminal.
const PASSING: [&str; 2] = [" wake", " screen"];
/// Of so many calls that write, one at most may have no point.
const LEFT_OUT_ONE_IN: usize = 50;

/// A point, and what was found; nothing, where the victim never came to it.
pub(crate) struct Row {
    pub(crate) point: Point,
    pub(crate) evidence: Option<Evidence>,
}

/// The calls that write, of all runs in which nothing happened, and those of them that no point is at.
#[derive(Default)]
pub(crate) struct Calls {
    all: usize,
    behind: BTreeMap<String, usize>,
}

impl Calls {
    pub(crate) fn add(&mut self, reached: &Reached) {
        self.all += reached.calls;
        for (title, count) in &reached.behind {
            *self.behind.entry(title.clone()).or_default() += count;
        }
    }

    /// Whether hardly any is left out, but for what only wakes another thread or is drawn: nothing of that lasts.
    fn is_whole(&self) -> bool {
        let lasts = |title: &str| !PASSING.iter().any(|end| title.ends_with(end));
        let left_out: usize = self.behind.iter().filter(|(title, _)| lasts(title)).map(|(_, count)| count).sum();
        left_out * LEFT_OUT_ONE_IN <= self.all
    }

    /// strace counts for each thread, and strikes the first that comes to a number.
    fn text(&self) -> String {
        let behind: usize = self.behind.values().sum();
        let each: Vec<String> = self.behind.iter().map(|(title, count)| format!("{count} {title}")).collect();
        let which = if each.is_empty() { String::new() } else { format!(" ({})", each.join(", ")) };
        format!("{} of {} calls that write have a point; {behind} are behind another thread's{which}\n", self.all - behind, self.all)
    }
}

/// What came of all.
pub(crate) struct Report {
    seed: u64,
    calls: Calls,
    /// How many were played again by themselves because they were slow among others.
    replayed: usize,
    known: usize,
    untouched: usize,
    struck: Vec<(Point, Evidence)>,
    violations: Vec<(Point, String)>,
}

impl Report {
    pub(crate) fn new(seed: u64, known: usize, rows: Vec<Row>) -> Self {
        let untouched = rows.iter().filter(|row| row.evidence.is_none()).count();
        let mut struck: Vec<(Point, Evidence)> = rows.into_iter().filter_map(|row| Some((row.point, row.evidence?))).collect();
        struck.sort_by_key(|(point, _)| *point);
        let violations =
            struck.iter().flat_map(|(point, evidence)| evidence.violations().into_iter().map(|sentence| (*point, sentence))).collect();
        Self { seed, calls: Calls::default(), replayed: 0, known, untouched, struck, violations }
    }

    pub(crate) fn with_calls(self, calls: Calls) -> Self {
        Self { calls, ..self }
    }

    pub(crate) fn with_replayed(self, replayed: usize) -> Self {
        Self { replayed, ..self }
    }

    fn counts(&self, key: impl Fn(&Point, &Evidence) -> String) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        for (point, evidence) in &self.struck {
            *counts.entry(key(point, evidence)).or_default() += 1;
        }
        counts
    }

    fn by_fault(&self) -> BTreeMap<String, usize> {
        self.counts(|point, _| point.last_fault().to_string())
    }

    /// How many were met in the recovery too.
    fn twice(&self) -> usize {
        self.struck.iter().filter(|(_, evidence)| evidence.second.is_some()).count()
    }

    /// The slowest restart, and the one in the middle.
    fn ready(&self) -> (Duration, Duration) {
        let mut all: Vec<Duration> = self.struck.iter().filter_map(|(_, evidence)| evidence.ready).collect();
        all.sort();
        (all.get(all.len() / 2).copied().unwrap_or_default(), all.last().copied().unwrap_or_default())
    }

    fn json(&self) -> Value {
        let (middle, slowest) = self.ready();
        let violations: Vec<Value> =
            self.violations.iter().map(|(point, sentence)| json!({ "point": point.to_string(), "violation": sentence })).collect();
        json!({
            "schema": "converger.crash/1", "seed": self.seed, "known": self.known, "points": self.struck.len(), "untouched": self.untouched,
            "by_fault": self.by_fault(), "by_call": self.counts(|point, _| point.place.call.to_owned()),
            "sent_before_the_crash": self.counts(|_, evidence| evidence.sent_then.len().to_string()),
            "told_before_the_crash": self.counts(|_, evidence| evidence.told.len().to_string()),
            "calls": self.calls.all, "calls_behind_another_thread": self.calls.behind,
            "met_in_the_recovery": self.twice(), "slow_and_replayed_alone": self.replayed,
            "killed_while_waiting": self.struck.iter().filter(|(_, evidence)| evidence.was_killed).count(),
            "ready_ms": { "middle": middle.as_millis(), "slowest": slowest.as_millis() },
            "violations": violations,
        })
    }

    pub(crate) fn write(&self) -> Outcome {
        fs::write(FILE, format!("{:#}\n", self.json())).map_err(|error| Failure::new(format!("cannot write `{FILE}`: {error}")))
    }

    /// For people.
    pub(crate) fn text(&self) -> String {
        let (middle, slowest) = self.ready();
        let mut text = String::new();
        for (point, sentence) in &self.violations {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{point}\n  {sentence}");
        }
        if let Some((point, evidence)) = self.struck.iter().find(|(_, evidence)| !evidence.violations().is_empty()) {
            let _ = writeln!(text, "who came back after {point} said:");
            for (round, said) in evidence.said.iter().enumerate() {
                let lines = said.lines().map(|line| format!("  {round}: {line}\n"));
                text.extend(lines);
            }
        }
        let faults: Vec<String> = self.by_fault().iter().map(|(fault, count)| format!("{count} {fault}")).collect();
        let _ = writeln!(
            text,
            "{}{} points of {} (seed {}: {}; {} of them in the recovery too; {} were not come to), {} violations; ready after {} ms, at most {} ms, {} slow ones replayed alone; {FILE}",
            self.calls.text(),
            self.struck.len(),
            self.known,
            self.seed,
            faults.join(", "),
            self.twice(),
            self.untouched,
            self.violations.len(),
            middle.as_millis(),
            slowest.as_millis(),
            self.replayed,
        );
        text
    }

    /// No violation, and enough points to say so, at nearly every call.
    pub(crate) fn verdict(&self, least: usize) -> Outcome {
        match (self.violations.first(), self.struck.len()) {
            (Some((point, _)), _) => {
                Err(Failure::new(format!("what a crash leaves is wrong; `cargo xtask crash --point {point}` shows one")))
            }
            (None, points) if points < least => Err(Failure::new(format!("{points} points are too few; there should be {least}"))),
            (None, _) if !self.calls.is_whole() => Err(Failure::new("too many calls that write have no point; which, stands above")),
            (None, _) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::evidence::Step;
    use super::*;

    fn row(nth: usize, sent: usize) -> Row {
        let step = Step { vmid: 101, change: "start".into() };
        let point = Point { nth, .."script/kept/log/fsync/1/kill".parse().unwrap() };
        let done = super::super::evidence::Ended { step: step.clone(), end: Some("done".into()) };
        let evidence = Evidence {
            planned: vec![step.clone()],
            told: Vec::new(),
            has_ended_well: false,
            was_unsynced: false,
            was_killed: false,
            journal_then: Ok(vec![done.clone()]),
            verified_then: Ok(()),
            sent_then: vec![step.clone()],
            second: None,
            ready: Some(Duration::from_millis(30)),
            sent: vec![step; sent],
            sent_last: Vec::new(),
            last_code: Some(0),
            journal_last: Ok(vec![done]),
            verified_last: Ok(()),
            said: vec!["103 guests in scope\n".into(), "nothing to do".into()],
        };
        Row { point, evidence: Some(evidence) }
    }

    #[test]
    fn a_violation_is_counted_shown_with_its_point_and_fails() {
        let report = Report::new(7, 9, vec![row(1, 1), row(2, 2), Row { evidence: None, ..row(3, 1) }]);
        let text = report.text();
        assert!(text.starts_with("script/kept/log/fsync/2/kill\n  twice: start of 101 was sent 2 times\nwho came back after"), "{text}");
        assert!(text.contains("said:\n  0: 103 guests in scope\n  1: nothing to do\n0 of 0 calls"), "{text}");
        assert!(text.contains("\n2 points of 9 "), "{text}");
        assert!(report.verdict(1).unwrap_err().to_string().contains("--point script/kept/log/fsync/2/kill"));
        assert_eq!(report.json()["violations"].as_array().map(Vec::len), Some(1));
    }

    /// How many points there are is not how many calls there are.
    #[test]
    fn what_is_not_reached_is_told_with_what_was_replayed() {
        let mut calls = Calls::default();
        for _ in 0..2 {
            calls.add(&Reached { calls: 5, behind: BTreeMap::from([("writer write wake".into(), 2)]), ..Reached::default() });
        }
        let report = Report::new(7, 9, vec![row(1, 1)]).with_calls(calls).with_replayed(3);
        let text = report.text();
        assert!(text.starts_with("6 of 10 calls that write have a point; 4 are behind another thread's (4 writer write wake)\n"), "{text}");
        assert!(text.contains("3 slow ones replayed alone"), "{text}");
        assert_eq!((&report.json()["calls"], &report.json()["slow_and_replayed_alone"]), (&json!(10), &json!(3)));
    }

    #[test]
    fn points_without_violation_pass_if_there_are_enough() {
        let report = Report::new(7, 9, vec![row(1, 1), row(2, 1)]);
        assert_eq!(report.verdict(2), Ok(()));
        assert!(report.verdict(3).is_err());
    }

    #[test]
    fn hardly_any_call_may_be_without_a_point() {
        let verdict = |title: &str, behind| {
            let mut calls = Calls::default();
            calls.add(&Reached { calls: 100, behind: BTreeMap::from([(title.to_owned(), behind)]), ..Reached::default() });
            Report::new(7, 9, vec![row(1, 1)]).with_calls(calls).verdict(1).is_ok()
        };
        assert!(verdict("converger fsync other", 2) && verdict("store-writer write wake", 40) && verdict("converger write screen", 40));
        assert!(!verdict("converger fsync other", 3));
    }
}
