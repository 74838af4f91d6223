//! What a crash left behind, and what is wrong with it: reported results that are lost, steps that
//! ran twice, requests without an intent.
//!
//! Three independent witnesses: what the program reported before it died, its journal at that time,
//! and the requests that the lab received. How they are gathered is in `sandbox`.

use std::fmt;
use std::time::Duration;

/// A step: a guest and a change.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct CrashStep {
    pub(crate) vmid: u64,
    pub(crate) change: String,
}

impl fmt::Display for CrashStep {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} of {}", self.change, self.vmid)
    }
}

/// A step and its end, as reported or as in the journal; `None` if it has not ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StepEnd {
    pub(crate) step: CrashStep,
    pub(crate) end: Option<String>,
}

/// What a recovery left behind that was killed or failed as well.
#[derive(Clone, Debug)]
pub(crate) struct RecoveryCrash {
    /// What it reported before it died.
    pub(crate) reported: Vec<StepEnd>,
    /// The journal that it left; an error text if it cannot be read.
    pub(crate) journal: Result<Vec<StepEnd>, String>,
    /// Whether the ledger that it left verifies; otherwise the error text.
    pub(crate) verified: Result<(), String>,
    /// The steps that the lab received so far, from both runs.
    pub(crate) sent: Vec<CrashStep>,
    /// Whether a sync of the WAL failed and the run synced it again.
    pub(crate) continued_after_failed_sync: bool,
}

/// Everything that is known about one crash and its recovery.
#[derive(Clone, Debug)]
pub(crate) struct CrashEvidence {
    /// The steps of the plan.
    pub(crate) planned: Vec<CrashStep>,
    /// The guest that the plan makes, as it must be at the end.
    pub(crate) made: Option<&'static str>,
    /// What the victim reported before it died.
    pub(crate) reported: Vec<StepEnd>,
    /// Whether the victim ended with exit code 0.
    pub(crate) has_ended_well: bool,
    /// Whether a sync of the WAL failed and the victim synced it again. The very last sync closes the store, and nothing depends on it.
    pub(crate) continued_after_failed_sync: bool,
    /// Whether it had to be killed because it waited too long.
    pub(crate) was_killed: bool,
    /// The journal that the victim left; an error text if it cannot be read.
    pub(crate) journal_then: Result<Vec<StepEnd>, String>,
    /// Whether the ledger verified then; otherwise the error text.
    pub(crate) verified_then: Result<(), String>,
    /// The steps that the lab received from the victim.
    pub(crate) sent_then: Vec<CrashStep>,
    /// A second crash, during the recovery from the first.
    pub(crate) second: Option<RecoveryCrash>,
    /// How long the next apply took until it was ready to plan; `None` if it never was, even if a later one was.
    pub(crate) ready: Option<Duration>,
    /// All steps that the lab received.
    pub(crate) sent: Vec<CrashStep>,
    /// The guests at the end that the world did not have at first.
    pub(crate) guests_last: Vec<String>,
    /// The steps that the lab received from the very last apply, which should have nothing to do.
    pub(crate) sent_last: Vec<CrashStep>,
    /// The exit code of the last apply.
    pub(crate) last_code: Option<i32>,
    /// The journal at the end.
    pub(crate) journal_last: Result<Vec<StepEnd>, String>,
    /// Whether the ledger verified at the end; otherwise the error text.
    pub(crate) verified_last: Result<(), String>,
    /// The output of each apply after the crash.
    pub(crate) output: Vec<String>,
}

/// The maximum time until a restart is ready.
pub(crate) const READY_MAX: Duration = Duration::from_secs(2);

impl CrashEvidence {
    /// All violations.
    pub(crate) fn violations(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        wrong.extend(faults_after_crash(&self.reported, &self.sent_then, &self.journal_then));
        wrong.extend(self.missing_after_success());
        wrong.extend(broken_ledger("after the crash", &self.verified_then));
        if let Some(RecoveryCrash { reported, journal, verified, sent, continued_after_failed_sync: was_unsynced }) = &self.second {
            wrong.extend(was_unsynced.then(|| "in the recovery: unsynced: a sync of the WAL failed, and the run continued".to_owned()));
            wrong.extend(faults_after_crash(reported, sent, journal).into_iter().map(|sentence| format!("in the recovery: {sentence}")));
            wrong.extend(broken_ledger("after the crash of the recovery", verified));
        }
        if self.continued_after_failed_sync {
            wrong.push("unsynced: a sync of the WAL failed, and the run continued".into());
        }
        wrong.extend(self.sent_wrong_number_of_times());
        wrong.extend(self.slow_restart());
        wrong.extend(self.wrong_final_state());
        wrong.extend(self.wrong_guests());
        wrong.extend(broken_ledger("at the end", &self.verified_last));
        wrong
    }

    /// A run that succeeded has all its steps in the journal.
    fn missing_after_success(&self) -> Vec<String> {
        let journal = self.journal_then.as_deref().unwrap_or_default();
        let all = self.planned.iter().filter(|_| self.has_ended_well).map(|step| StepEnd { step: step.clone(), end: Some("done".into()) });
        let missing = all.filter(|done| !journal.contains(done));
        missing.map(|done| format!("lost: the run succeeded without {} in the journal", done.step)).collect()
    }

    fn sent_wrong_number_of_times(&self) -> Vec<String> {
        let planned = self.planned.iter().filter_map(|step| match count_step(&self.sent, step) {
            0 => Some(format!("never: {step} was not sent")),
            1 => None,
            often => Some(format!("twice: {step} was sent {often} times")),
        });
        let unplanned = unique_steps(&self.sent).into_iter().filter(|step| !self.planned.contains(step));
        planned.chain(unplanned.map(|step| format!("unplanned: {step} was sent"))).collect()
    }

    /// Whether the only violation is a slow restart, which load on the machine can cause. A restart that is never ready is more than slow.
    pub(crate) fn is_only_slow(&self) -> bool {
        self.ready.is_some() && self.slow_restart().is_some() && self.violations().len() == 1
    }

    fn slow_restart(&self) -> Option<String> {
        match self.ready {
            Some(ready) if ready <= READY_MAX => None,
            Some(ready) => Some(format!("slow: ready only {} ms after the restart", ready.as_millis())),
            None => Some("slow: the restart was never ready".into()),
        }
    }

    /// Of the guests that the world did not have at first, exactly the one that the plan makes is there, with all of its config.
    fn wrong_guests(&self) -> Vec<String> {
        let missing = self.made.filter(|made| !self.guests_last.iter().any(|guest| guest == made));
        let other = self.guests_last.iter().filter(|guest| Some(guest.as_str()) != self.made);
        let other = other.map(|guest| format!("another guest: {guest}"));
        let twice = (self.guests_last.len() > 1).then(|| format!("two guests: {} were made", self.guests_last.len()));
        missing.map(|made| format!("missing guest: {made}")).into_iter().chain(other).chain(twice).collect()
    }

    fn wrong_final_state(&self) -> Vec<String> {
        let mut wrong: Vec<String> = self.sent_last.iter().map(|step| format!("not settled: the last apply sent {step}")).collect();
        let journal = match &self.journal_last {
            Ok(journal) => journal,
            Err(cause) => return [wrong, vec![format!("the journal cannot be read at the end: {cause}")]].concat(),
        };
        if self.last_code != Some(0) {
            wrong.push("not settled: the last apply did not succeed".into());
        }
        let is_open = |entry: &&StepEnd| matches!(entry.end.as_deref(), None | Some("held"));
        wrong.extend(journal.iter().filter(is_open).map(|entry| format!("unresolved: the outcome of {} is unknown", entry.step)));
        for step in &self.planned {
            let done = journal.iter().filter(|entry| entry.step == *step && entry.end.as_deref() == Some("done")).count();
            if done != 1 {
                wrong.push(format!("wrong journal: it contains {step} as done {done} times"));
            }
        }
        wrong
    }
}

/// The violation if a ledger does not verify.
fn broken_ledger(when: &str, verified: &Result<(), String>) -> Option<String> {
    verified.as_ref().err().map(|cause| format!("the ledger does not verify {when}: {cause}"))
}

/// The violations in what a crash left.
fn faults_after_crash(reported: &[StepEnd], sent: &[CrashStep], journal: &Result<Vec<StepEnd>, String>) -> Vec<String> {
    match journal {
        Ok(journal) => lost_ends(reported, journal).into_iter().chain(sent_without_intent(sent, journal)).collect(),
        Err(cause) => vec![format!("the journal cannot be read after the crash: {cause}")],
    }
}

/// Reported, but not in the journal.
fn lost_ends(reported: &[StepEnd], journal: &[StepEnd]) -> Vec<String> {
    let finished = reported.iter().filter(|step_end| matches!(step_end.end.as_deref(), Some("done" | "failed")));
    let lost = finished.filter(|step_end| !journal.contains(step_end)).map(|step_end| {
        let end = step_end.end.as_deref().unwrap_or_default();
        format!("lost: {} was reported as {end}, and the journal does not contain it", step_end.step)
    });
    lost.collect()
}

/// Sent more often than the journal has an intent (G11).
fn sent_without_intent(sent: &[CrashStep], journal: &[StepEnd]) -> Vec<String> {
    let intents = |step: &CrashStep| journal.iter().filter(|entry| entry.step == *step).count();
    let more = |step: &&CrashStep| count_step(sent, step) > intents(step);
    unique_steps(sent).iter().filter(more).map(|step| format!("without intent: {step} was sent, and its intent is not on disk")).collect()
}

fn count_step(steps: &[CrashStep], step: &CrashStep) -> usize {
    steps.iter().filter(|own| *own == step).count()
}

/// Each step once.
fn unique_steps(steps: &[CrashStep]) -> Vec<CrashStep> {
    let mut each = steps.to_vec();
    each.sort();
    each.dedup();
    each
}

#[cfg(test)]
mod tests {
    use super::*;

    fn test_step(vmid: u64) -> CrashStep {
        CrashStep { vmid, change: "start".into() }
    }

    fn test_step_end(vmid: u64, end: &str) -> StepEnd {
        StepEnd { step: test_step(vmid), end: Some(end.into()) }
    }

    /// Two starts; the victim reported one and died while the other was in flight.
    fn valid_evidence() -> CrashEvidence {
        CrashEvidence {
            planned: vec![test_step(101), test_step(102)],
            made: None,
            reported: vec![test_step_end(101, "done")],
            has_ended_well: false,
            continued_after_failed_sync: false,
            was_killed: false,
            journal_then: Ok(vec![test_step_end(101, "done"), StepEnd { step: test_step(102), end: None }]),
            verified_then: Ok(()),
            sent_then: vec![test_step(101), test_step(102)],
            second: None,
            ready: Some(Duration::from_millis(300)),
            sent: vec![test_step(101), test_step(102)],
            guests_last: Vec::new(),
            sent_last: Vec::new(),
            last_code: Some(0),
            journal_last: Ok(vec![test_step_end(101, "done"), test_step_end(102, "done")]),
            verified_last: Ok(()),
            output: Vec::new(),
        }
    }

    fn check_violations(evidence: &CrashEvidence, expected: &[&str]) {
        assert_eq!(evidence.violations(), expected, "{evidence:?}");
    }

    #[test]
    fn clean_crashes_have_no_violations() {
        check_violations(&valid_evidence(), &[]);
        let not_sent = CrashEvidence {
            journal_last: Ok(vec![test_step_end(101, "done"), test_step_end(102, "failed"), test_step_end(102, "done")]),
            ..valid_evidence()
        };
        check_violations(&CrashEvidence { sent_then: vec![test_step(101)], ..not_sent }, &[]);
    }

    #[test]
    fn reported_ends_missing_from_the_journal_are_lost() {
        let forgotten = CrashEvidence {
            journal_then: Ok(vec![StepEnd { step: test_step(101), end: None }, StepEnd { step: test_step(102), end: None }]),
            ..valid_evidence()
        };
        check_violations(&forgotten, &["lost: start of 101 was reported as done, and the journal does not contain it"]);
        let other =
            CrashEvidence { journal_then: Ok(vec![test_step_end(101, "failed"), test_step_end(102, "failed")]), ..valid_evidence() };
        check_violations(&other, &["lost: start of 101 was reported as done, and the journal does not contain it"]);
        check_violations(
            &CrashEvidence { has_ended_well: true, ..valid_evidence() },
            &["lost: the run succeeded without start of 102 in the journal"],
        );
        check_violations(&CrashEvidence { reported: vec![test_step_end(102, "held")], ..valid_evidence() }, &[]);
    }

    #[test]
    fn held_operations_are_no_end() {
        let last = vec![test_step_end(101, "done"), test_step_end(102, "held")];
        check_violations(
            &CrashEvidence { journal_last: Ok(last), last_code: Some(5), ..valid_evidence() },
            &[
                "not settled: the last apply did not succeed",
                "unresolved: the outcome of start of 102 is unknown",
                "wrong journal: it contains start of 102 as done 0 times",
            ],
        );
    }

    #[test]
    fn wrong_new_guests_are_found() {
        let with = |guests: &[&str]| {
            let guests_last = guests.iter().map(|guest| (*guest).to_owned()).collect();
            CrashEvidence { made: Some("7 a running"), guests_last, ..valid_evidence() }
        };
        check_violations(&with(&["7 a running"]), &[]);
        check_violations(&with(&[]), &["missing guest: 7 a running"]);
        check_violations(&with(&["7 a stopped"]), &["missing guest: 7 a running", "another guest: 7 a stopped"]);
        check_violations(&with(&["7 a running", "8 a running"]), &["another guest: 8 a running", "two guests: 2 were made"]);
        let unplanned = CrashEvidence { guests_last: vec!["7 a running".into()], ..valid_evidence() };
        check_violations(&unplanned, &["another guest: 7 a running"]);
    }

    #[test]
    fn crashes_during_recovery_are_judged_like_the_first() {
        let second = |reported: &[StepEnd], sent: &[CrashStep]| {
            let journal = Ok(vec![test_step_end(101, "done"), test_step_end(102, "failed")]);
            let crash = RecoveryCrash {
                reported: reported.to_vec(),
                journal,
                verified: Ok(()),
                sent: sent.to_vec(),
                continued_after_failed_sync: false,
            };
            CrashEvidence { second: Some(crash), ..valid_evidence() }
        };
        let unsynced = second(&[], &[]).second.map(|crash| RecoveryCrash { continued_after_failed_sync: true, ..crash });
        check_violations(
            &CrashEvidence { second: unsynced, ..valid_evidence() },
            &["in the recovery: unsynced: a sync of the WAL failed, and the run continued"],
        );
        check_violations(&second(&[test_step_end(102, "failed")], &[test_step(101), test_step(102)]), &[]);
        let lost_end = "in the recovery: lost: start of 102 was reported as done, and the journal does not contain it";
        check_violations(&second(&[test_step_end(102, "done")], &[test_step(101)]), &[lost_end]);
        let sent = "in the recovery: without intent: start of 102 was sent, and its intent is not on disk";
        check_violations(&second(&[], &[test_step(102), test_step(102)]), &[sent]);
    }

    #[test]
    fn sends_without_intent_are_found() {
        let unintended = CrashEvidence { journal_then: Ok(vec![test_step_end(101, "done")]), ..valid_evidence() };
        check_violations(&unintended, &["without intent: start of 102 was sent, and its intent is not on disk"]);
        let again = CrashEvidence { sent_then: vec![test_step(101), test_step(102), test_step(102)], ..valid_evidence() };
        check_violations(&again, &["without intent: start of 102 was sent, and its intent is not on disk"]);
    }

    /// After a failed sync the data may be in memory only, so continuing would rely on data that is not durable (S18).
    #[test]
    fn continuing_after_a_failed_sync_is_found() {
        check_violations(
            &CrashEvidence { continued_after_failed_sync: true, ..valid_evidence() },
            &["unsynced: a sync of the WAL failed, and the run continued"],
        );
    }

    #[test]
    fn steps_sent_twice_never_or_unplanned_are_found() {
        check_violations(
            &CrashEvidence { sent: vec![test_step(101), test_step(102), test_step(102)], ..valid_evidence() },
            &["twice: start of 102 was sent 2 times"],
        );
        check_violations(&CrashEvidence { sent: vec![test_step(101)], ..valid_evidence() }, &["never: start of 102 was not sent"]);
        check_violations(
            &CrashEvidence { sent: vec![test_step(101), test_step(102), test_step(7)], ..valid_evidence() },
            &["unplanned: start of 7 was sent"],
        );
    }

    #[test]
    fn slow_restarts_are_found() {
        check_violations(
            &CrashEvidence { ready: Some(Duration::from_millis(2_001)), ..valid_evidence() },
            &["slow: ready only 2001 ms after the restart"],
        );
        check_violations(&CrashEvidence { ready: None, ..valid_evidence() }, &["slow: the restart was never ready"]);
        assert!(CrashEvidence { ready: Some(Duration::from_millis(2_001)), ..valid_evidence() }.is_only_slow());
        assert!(!CrashEvidence { ready: None, ..valid_evidence() }.is_only_slow(), "a restart that is never ready is not only slow");
        assert!(!CrashEvidence { last_code: Some(1), ..valid_evidence() }.is_only_slow());
    }

    #[test]
    fn wrong_final_states_are_found() {
        check_violations(
            &CrashEvidence { sent_last: vec![test_step(102)], ..valid_evidence() },
            &["not settled: the last apply sent start of 102"],
        );
        check_violations(&CrashEvidence { last_code: Some(1), ..valid_evidence() }, &["not settled: the last apply did not succeed"]);
        let open = CrashEvidence { journal_last: Ok(vec![test_step_end(101, "done"), test_step_end(102, "held")]), ..valid_evidence() };
        check_violations(
            &open,
            &["unresolved: the outcome of start of 102 is unknown", "wrong journal: it contains start of 102 as done 0 times"],
        );
        let twice = CrashEvidence {
            journal_last: Ok(vec![test_step_end(101, "done"), test_step_end(102, "done"), test_step_end(102, "done")]),
            ..valid_evidence()
        };
        check_violations(&twice, &["wrong journal: it contains start of 102 as done 2 times"]);
    }

    #[test]
    fn unreadable_journals_are_found() {
        check_violations(
            &CrashEvidence { journal_then: Err("malformed".into()), ..valid_evidence() },
            &["the journal cannot be read after the crash: malformed"],
        );
        check_violations(
            &CrashEvidence { journal_last: Err("malformed".into()), ..valid_evidence() },
            &["the journal cannot be read at the end: malformed"],
        );
    }
    #[test]
    fn broken_ledgers_are_found_at_every_check() {
        let cause = || Err("entry 3 is missing".to_owned());
        check_violations(
            &CrashEvidence { verified_then: cause(), ..valid_evidence() },
            &["the ledger does not verify after the crash: entry 3 is missing"],
        );
        check_violations(
            &CrashEvidence { verified_last: cause(), ..valid_evidence() },
            &["the ledger does not verify at the end: entry 3 is missing"],
        );
        let crash = RecoveryCrash {
            reported: Vec::new(),
            journal: Ok(vec![test_step_end(101, "done")]),
            verified: cause(),
            sent: Vec::new(),
            continued_after_failed_sync: false,
        };
        let again = CrashEvidence { second: Some(crash), ..valid_evidence() };
        check_violations(&again, &["the ledger does not verify after the crash of the recovery: entry 3 is missing"]);
    }
}
