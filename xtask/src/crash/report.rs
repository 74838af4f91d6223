//! The results of all crashes: a short text, and JSON with every violation and the point that
//! reproduces it.
//!
//! What a violation is, is in `evidence`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::time::Duration;

use serde_json::{Value, json};

use super::evidence::CrashEvidence;
use super::points::{CrashPoint, ReachablePoints};
use crate::shell::{TaskError, TaskResult};

const FILE: &str = "target/crash.json";
/// The ends of call titles that wake another thread or draw on a terminal.
const TRANSIENT_TITLES: [&str; 2] = [" wake", " screen"];
/// At most one in this many writing calls may have no point.
const UNREACHED_ONE_IN: usize = 50;

/// A point and its evidence; `None` if the victim never reached the point.
pub(crate) struct CrashRow {
    pub(crate) point: CrashPoint,
    pub(crate) evidence: Option<CrashEvidence>,
}

/// The writing calls of all runs without faults, and those that no point reaches.
#[derive(Default)]
pub(crate) struct CallCoverage {
    all: usize,
    unreachable: BTreeMap<String, usize>,
}

impl CallCoverage {
    pub(crate) fn add(&mut self, reached: &ReachablePoints) {
        self.all += reached.calls;
        for (title, count) in &reached.unreachable {
            *self.unreachable.entry(title.clone()).or_default() += count;
        }
    }

    /// Whether almost all calls have a point, except those that only wake a thread or draw: their effects do not persist.
    fn is_sufficient(&self) -> bool {
        let lasts = |title: &str| !TRANSIENT_TITLES.iter().any(|end| title.ends_with(end));
        let left_out: usize = self.unreachable.iter().filter(|(title, _)| lasts(title)).map(|(_, count)| count).sum();
        left_out * UNREACHED_ONE_IN <= self.all
    }

    /// strace counts per thread and hits the first thread that reaches a number, so some calls have no point.
    fn render_coverage(&self) -> String {
        let behind: usize = self.unreachable.values().sum();
        let each: Vec<String> = self.unreachable.iter().map(|(title, count)| format!("{count} {title}")).collect();
        let which = if each.is_empty() { String::new() } else { format!(" ({})", each.join(", ")) };
        format!("{} of {} writing calls have a point; {behind} are always behind another thread{which}\n", self.all - behind, self.all)
    }
}

/// The results of all points.
pub(crate) struct CrashReport {
    seed: u64,
    calls: CallCoverage,
    /// How many slow points were replayed alone.
    replayed: usize,
    points_known: usize,
    points_missed: usize,
    points_hit: Vec<(CrashPoint, CrashEvidence)>,
    violations: Vec<(CrashPoint, String)>,
}

impl CrashReport {
    pub(crate) fn new(seed: u64, known: usize, rows: Vec<CrashRow>) -> Self {
        let untouched = rows.iter().filter(|row| row.evidence.is_none()).count();
        let mut crashed: Vec<(CrashPoint, CrashEvidence)> = rows.into_iter().filter_map(|row| Some((row.point, row.evidence?))).collect();
        crashed.sort_by_key(|(point, _)| *point);
        let violations =
            crashed.iter().flat_map(|(point, evidence)| evidence.violations().into_iter().map(|sentence| (*point, sentence))).collect();
        Self {
            seed,
            calls: CallCoverage::default(),
            replayed: 0,
            points_known: known,
            points_missed: untouched,
            points_hit: crashed,
            violations,
        }
    }

    pub(crate) fn with_calls(self, calls: CallCoverage) -> Self {
        Self { calls, ..self }
    }

    pub(crate) fn with_replayed(self, replayed: usize) -> Self {
        Self { replayed, ..self }
    }

    fn count_by(&self, key: impl Fn(&CrashPoint, &CrashEvidence) -> String) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        for (point, evidence) in &self.points_hit {
            *counts.entry(key(point, evidence)).or_default() += 1;
        }
        counts
    }

    fn count_by_fault(&self) -> BTreeMap<String, usize> {
        self.count_by(|point, _| point.last_fault().to_string())
    }

    /// How many points had a fault in the recovery too.
    fn count_recoveries(&self) -> usize {
        self.points_hit.iter().filter(|(_, evidence)| evidence.second.is_some()).count()
    }

    /// How many points are in runs that make a guest from a template and configure it.
    fn count_provisioning(&self) -> usize {
        self.points_hit.iter().filter(|(point, _)| point.site.actor.provisions()).count()
    }

    /// The median and the slowest restart.
    fn restart_times(&self) -> (Duration, Duration) {
        let mut all: Vec<Duration> = self.points_hit.iter().filter_map(|(_, evidence)| evidence.ready).collect();
        all.sort();
        (all.get(all.len() / 2).copied().unwrap_or_default(), all.last().copied().unwrap_or_default())
    }

    fn to_json(&self) -> Value {
        let (middle, slowest) = self.restart_times();
        let violations: Vec<Value> =
            self.violations.iter().map(|(point, sentence)| json!({ "point": point.to_string(), "violation": sentence })).collect();
        json!({
            "schema": "converger.crash/1", "seed": self.seed, "known": self.points_known, "points": self.points_hit.len(), "untouched": self.points_missed,
            "by_fault": self.count_by_fault(), "by_call": self.count_by(|point, _| point.site.call.to_owned()),
            "sent_before_the_crash": self.count_by(|_, evidence| evidence.sent_then.len().to_string()),
            "told_before_the_crash": self.count_by(|_, evidence| evidence.reported.len().to_string()),
            "calls": self.calls.all, "calls_behind_another_thread": self.calls.unreachable,
            "by_actor": self.count_by(|point, _| point.site.actor.name().to_owned()),
            "met_in_the_recovery": self.count_recoveries(), "slow_and_replayed_alone": self.replayed,
            "killed_while_waiting": self.points_hit.iter().filter(|(_, evidence)| evidence.was_killed).count(),
            "ready_ms": { "middle": middle.as_millis(), "slowest": slowest.as_millis() },
            "violations": violations,
        })
    }

    pub(crate) fn write_file(&self) -> TaskResult {
        fs::write(FILE, format!("{:#}\n", self.to_json())).map_err(|error| TaskError::new(format!("cannot write `{FILE}`: {error}")))
    }

    /// The report as text.
    pub(crate) fn render_text(&self) -> String {
        let (middle, slowest) = self.restart_times();
        let mut text = String::new();
        for (point, sentence) in &self.violations {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{point}\n  {sentence}");
        }
        if let Some((point, evidence)) = self.points_hit.iter().find(|(_, evidence)| !evidence.violations().is_empty()) {
            let _ = writeln!(text, "output of the applies after {point}:");
            for (round, output) in evidence.output.iter().enumerate() {
                let lines = output.lines().map(|line| format!("  {round}: {line}\n"));
                text.extend(lines);
            }
        }
        let faults: Vec<String> = self.count_by_fault().iter().map(|(fault, count)| format!("{count} {fault}")).collect();
        let _ = writeln!(
            text,
            "{}{} points of {} (seed {}: {}; {} of them also in the recovery, {} while a guest is provisioned; {} not reached), {} violations; ready after {} ms (median), {} ms (slowest), {} slow ones replayed alone; {FILE}",
            self.calls.render_coverage(),
            self.points_hit.len(),
            self.points_known,
            self.seed,
            faults.join(", "),
            self.count_recoveries(),
            self.count_provisioning(),
            self.points_missed,
            self.violations.len(),
            middle.as_millis(),
            slowest.as_millis(),
            self.replayed,
        );
        text
    }

    /// Fails on a violation, on too few points, or on too many calls without a point.
    pub(crate) fn check(&self, least: usize) -> TaskResult {
        match (self.violations.first(), self.points_hit.len()) {
            (Some((point, _)), _) => {
                Err(TaskError::new(format!("a crash left a wrong state; `cargo xtask crash --point {point}` reproduces it")))
            }
            (None, points) if points < least => Err(TaskError::new(format!("only {points} points were hit; {least} are required"))),
            (None, _) if !self.calls.is_sufficient() => Err(TaskError::new("too many writing calls have no point, see above")),
            (None, _) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::evidence::CrashStep;
    use super::*;

    fn test_row(nth: usize, sent: usize) -> CrashRow {
        let step = CrashStep { vmid: 101, change: "start".into() };
        let point = CrashPoint { nth, .."script/kept/log/fsync/1/kill".parse().unwrap() };
        let done = super::super::evidence::StepEnd { step: step.clone(), end: Some("done".into()) };
        let evidence = CrashEvidence {
            planned: vec![step.clone()],
            made: None,
            reported: Vec::new(),
            has_ended_well: false,
            continued_after_failed_sync: false,
            was_killed: false,
            journal_then: Ok(vec![done.clone()]),
            verified_then: Ok(()),
            sent_then: vec![step.clone()],
            second: None,
            ready: Some(Duration::from_millis(30)),
            sent: vec![step; sent],
            guests_last: Vec::new(),
            sent_last: Vec::new(),
            last_code: Some(0),
            journal_last: Ok(vec![done]),
            verified_last: Ok(()),
            output: vec!["103 guests in scope\n".into(), "nothing to do".into()],
        };
        CrashRow { point, evidence: Some(evidence) }
    }

    #[test]
    fn a_violation_is_counted_shown_with_its_point_and_fails() {
        let report = CrashReport::new(7, 9, vec![test_row(1, 1), test_row(2, 2), CrashRow { evidence: None, ..test_row(3, 1) }]);
        let text = report.render_text();
        assert!(
            text.starts_with("script/kept/log/fsync/2/kill\n  twice: start of 101 was sent 2 times\noutput of the applies after"),
            "{text}"
        );
        assert!(text.contains("kill:\n  0: 103 guests in scope\n  1: nothing to do\n0 of 0 writing calls"), "{text}");
        assert!(text.contains("\n2 points of 9 "), "{text}");
        assert!(report.check(1).unwrap_err().to_string().contains("--point script/kept/log/fsync/2/kill"));
        assert_eq!(report.to_json()["violations"].as_array().map(Vec::len), Some(1));
    }

    /// The number of points is not the number of calls.
    #[test]
    fn unreached_calls_and_replays_are_reported() {
        let mut calls = CallCoverage::default();
        for _ in 0..2 {
            calls.add(&ReachablePoints {
                calls: 5,
                unreachable: BTreeMap::from([("writer write wake".into(), 2)]),
                ..ReachablePoints::default()
            });
        }
        let report = CrashReport::new(7, 9, vec![test_row(1, 1)]).with_calls(calls).with_replayed(3);
        let text = report.render_text();
        assert!(
            text.starts_with("6 of 10 writing calls have a point; 4 are always behind another thread (4 writer write wake)\n"),
            "{text}"
        );
        assert!(text.contains("3 slow ones replayed alone"), "{text}");
        assert_eq!((&report.to_json()["calls"], &report.to_json()["slow_and_replayed_alone"]), (&json!(10), &json!(3)));
    }

    #[test]
    fn enough_points_without_violations_pass() {
        let report = CrashReport::new(7, 9, vec![test_row(1, 1), test_row(2, 1)]);
        assert_eq!(report.check(2), Ok(()));
        assert!(report.check(3).is_err());
    }

    #[test]
    fn too_many_unreached_calls_fail() {
        let verdict = |title: &str, behind| {
            let mut calls = CallCoverage::default();
            calls.add(&ReachablePoints {
                calls: 100,
                unreachable: BTreeMap::from([(title.to_owned(), behind)]),
                ..ReachablePoints::default()
            });
            CrashReport::new(7, 9, vec![test_row(1, 1)]).with_calls(calls).check(1).is_ok()
        };
        assert!(verdict("converger fsync other", 2) && verdict("store-writer write wake", 40) && verdict("converger write screen", 40));
        assert!(!verdict("converger fsync other", 3));
    }
}
