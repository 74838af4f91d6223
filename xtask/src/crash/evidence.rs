//! What a crash left behind, and what is wrong with it: what was told and is lost, what ran twice, what was sent without its intent.
//!
//! Three witnesses that share nothing: what the program told before it died, its journal as it was at that moment, and the requests
//! that the lab counted. What never enters here: how they were gathered.

use std::fmt;
use std::time::Duration;

/// A step: a guest, and what is done to it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Step {
    pub(crate) vmid: u64,
    pub(crate) change: String,
}

impl fmt::Display for Step {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} of {}", self.change, self.vmid)
    }
}

/// A step and how it ended, as somebody was told or as the journal has it; `None`: it has not ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ended {
    pub(crate) step: Step,
    pub(crate) end: Option<String>,
}

/// What whoever came back and was killed or met a bad disk too left behind.
#[derive(Clone, Debug)]
pub(crate) struct Death {
    /// What it told before it died.
    pub(crate) told: Vec<Ended>,
    /// The journal as it left it; words, where it cannot be read.
    pub(crate) journal: Result<Vec<Ended>, String>,
    /// Whether the record was whole as it left it; words, where it was not.
    pub(crate) verified: Result<(), String>,
    /// What the lab got by then, from both.
    pub(crate) sent: Vec<Step>,
    /// Whether a sync of the log failed there and it went on to sync it.
    pub(crate) was_unsynced: bool,
}

/// All that is known about one crash and what came after it.
#[derive(Clone, Debug)]
pub(crate) struct Evidence {
    /// What the plan has.
    pub(crate) planned: Vec<Step>,
    /// What the victim told before it died.
    pub(crate) told: Vec<Ended>,
    /// Whether the victim said that all was done.
    pub(crate) has_ended_well: bool,
    /// Whether a sync of the log failed and it went on to sync it: the last one of all closes the store, and nothing hangs on it.
    pub(crate) was_unsynced: bool,
    /// Whether it waited for so long that it was killed for that.
    pub(crate) was_killed: bool,
    /// The journal as the victim left it; words, where it cannot be read.
    pub(crate) journal_then: Result<Vec<Ended>, String>,
    /// Whether the record was whole then; words, where it was not.
    pub(crate) verified_then: Result<(), String>,
    /// What the lab got from the victim.
    pub(crate) sent_then: Vec<Step>,
    /// A second death, in the recovery from the first.
    pub(crate) second: Option<Death>,
    /// How long the next apply took until it was ready to plan; none: it never was, and a later one does not make up for that.
    pub(crate) ready: Option<Duration>,
    /// Everything that the lab got, from first to last.
    pub(crate) sent: Vec<Step>,
    /// What the lab got from the last apply of all, which should find nothing to do.
    pub(crate) sent_last: Vec<Step>,
    /// The code that it ended with.
    pub(crate) last_code: Option<i32>,
    /// The journal at the end.
    pub(crate) journal_last: Result<Vec<Ended>, String>,
    /// Whether the record was whole at the end; words, where it was not.
    pub(crate) verified_last: Result<(), String>,
    /// What those said who came back, one after another.
    pub(crate) said: Vec<String>,
}

/// The change whose effect cannot be read from the guest.
const REBOOT: &str = "reboot";
/// How whoever is to look for a person ends.
const HELD: i32 = 5;

/// The longest that a start may take after a crash.
pub(crate) const READY_MAX: Duration = Duration::from_secs(2);

impl Evidence {
    /// Everything that is wrong.
    pub(crate) fn violations(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        wrong.extend(left_behind(&self.told, &self.sent_then, &self.journal_then));
        wrong.extend(self.lost_at_the_end());
        wrong.extend(broken("after the crash", &self.verified_then));
        if let Some(Death { told, journal, verified, sent, was_unsynced }) = &self.second {
            wrong.extend(was_unsynced.then(|| "in the recovery: unsynced: a sync of the log failed, and the run went on".to_owned()));
            wrong.extend(left_behind(told, sent, journal).into_iter().map(|sentence| format!("in the recovery: {sentence}")));
            wrong.extend(broken("after the crash of the recovery", verified));
        }
        if self.was_unsynced {
            wrong.push("unsynced: a sync of the log failed, and the run went on".into());
        }
        wrong.extend(self.twice_or_never());
        wrong.extend(self.restart());
        wrong.extend(self.last());
        wrong.extend(broken("at the end", &self.verified_last));
        wrong
    }

    /// A run that ended well has all of its steps in the journal.
    fn lost_at_the_end(&self) -> Vec<String> {
        let journal = self.journal_then.as_deref().unwrap_or_default();
        let all = self.planned.iter().filter(|_| self.has_ended_well).map(|step| Ended { step: step.clone(), end: Some("done".into()) });
        let missing = all.filter(|done| !journal.contains(done));
        missing.map(|done| format!("lost: the run ended well without {} in the journal", done.step)).collect()
    }

    fn twice_or_never(&self) -> Vec<String> {
        let planned = self.planned.iter().filter_map(|step| match count(&self.sent, step) {
            0 => Some(format!("never: {step} was not sent")),
            1 => None,
            often => Some(format!("twice: {step} was sent {often} times")),
        });
        let strange = each(&self.sent).into_iter().filter(|step| !self.planned.contains(step));
        planned.chain(strange.map(|step| format!("unplanned: {step} was sent"))).collect()
    }

    /// Whether nothing is wrong but the time that the restart took, which a busy machine may be to blame for. Never to be ready is more.
    pub(crate) fn is_only_slow(&self) -> bool {
        self.ready.is_some() && self.restart().is_some() && self.violations().len() == 1
    }

    fn restart(&self) -> Option<String> {
        match self.ready {
            Some(ready) if ready <= READY_MAX => None,
            Some(ready) => Some(format!("slow: ready only {} ms after the restart", ready.as_millis())),
            None => Some("slow: the restart was never ready".into()),
        }
    }

    fn last(&self) -> Vec<String> {
        let mut wrong: Vec<String> = self.sent_last.iter().map(|step| format!("restless: the last apply sent {step}")).collect();
        let journal = match &self.journal_last {
            Ok(journal) => journal,
            Err(cause) => return [wrong, vec![format!("the journal cannot be read at the end: {cause}")]].concat(),
        };
        // What a reboot did no state shows afterwards. Where its end could not be written down either, a person is asked, and that is an end.
        let is_held_reboot = |entry: &Ended| entry.step.change == REBOOT && entry.end.as_deref() == Some("held");
        let well = if journal.iter().any(is_held_reboot) { HELD } else { 0 };
        if self.last_code != Some(well) {
            wrong.push("restless: the last apply did not end well".into());
        }
        let is_open = |entry: &&Ended| matches!(entry.end.as_deref(), None | Some("held")) && !is_held_reboot(entry);
        wrong.extend(journal.iter().filter(is_open).map(|entry| format!("unsettled: nobody knows what became of {}", entry.step)));
        for step in &self.planned {
            let done = journal.iter().filter(|entry| entry.step == *step && entry.end.as_deref() == Some("done")).count();
            let held = journal.iter().filter(|entry| entry.step == *step && is_held_reboot(entry)).count();
            if done + held != 1 {
                wrong.push(format!("wrong journal: {step} was done {done} times by it"));
            }
        }
        wrong
    }
}

/// A record that is not whole.
fn broken(when: &str, verified: &Result<(), String>) -> Option<String> {
    verified.as_ref().err().map(|cause| format!("the record is not whole {when}: {cause}"))
}

/// What is wrong with what a death left.
fn left_behind(told: &[Ended], sent: &[Step], journal: &Result<Vec<Ended>, String>) -> Vec<String> {
    match journal {
        Ok(journal) => lost(told, journal).into_iter().chain(unintended(sent, journal)).collect(),
        Err(cause) => vec![format!("the journal cannot be read after the crash: {cause}")],
    }
}

/// Told to somebody, and not in the journal.
fn lost(told: &[Ended], journal: &[Ended]) -> Vec<String> {
    let told = told.iter().filter(|told| matches!(told.end.as_deref(), Some("done" | "failed")));
    let lost = told.filter(|told| !journal.contains(told)).map(|told| {
        let end = told.end.as_deref().unwrap_or_default();
        format!("lost: {} was told to be {end}, and the journal does not have it", told.step)
    });
    lost.collect()
}

/// Sent more often than the journal has an intent (G11).
fn unintended(sent: &[Step], journal: &[Ended]) -> Vec<String> {
    let intents = |step: &Step| journal.iter().filter(|entry| entry.step == *step).count();
    let more = |step: &&Step| count(sent, step) > intents(step);
    each(sent).iter().filter(more).map(|step| format!("without intent: {step} was sent, and its intent is not on disk")).collect()
}

fn count(steps: &[Step], step: &Step) -> usize {
    steps.iter().filter(|own| *own == step).count()
}

/// Each step once.
fn each(steps: &[Step]) -> Vec<Step> {
    let mut each = steps.to_vec();
    each.sort();
    each.dedup();
    each
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(vmid: u64) -> Step {
        Step { vmid, change: "start".into() }
    }

    fn ended(vmid: u64, end: &str) -> Ended {
        Ended { step: step(vmid), end: Some(end.into()) }
    }

    /// Two starts; the victim told of one and died while the other was under way.
    fn good() -> Evidence {
        Evidence {
            planned: vec![step(101), step(102)],
            told: vec![ended(101, "done")],
            has_ended_well: false,
            was_unsynced: false,
            was_killed: false,
            journal_then: Ok(vec![ended(101, "done"), Ended { step: step(102), end: None }]),
            verified_then: Ok(()),
            sent_then: vec![step(101), step(102)],
            second: None,
            ready: Some(Duration::from_millis(300)),
            sent: vec![step(101), step(102)],
            sent_last: Vec::new(),
            last_code: Some(0),
            journal_last: Ok(vec![ended(101, "done"), ended(102, "done")]),
            verified_last: Ok(()),
            said: Vec::new(),
        }
    }

    fn check(evidence: &Evidence, expected: &[&str]) {
        assert_eq!(evidence.violations(), expected, "{evidence:?}");
    }

    #[test]
    fn a_crash_without_harm_is_no_violation() {
        check(&good(), &[]);
        let not_sent = Evidence { journal_last: Ok(vec![ended(101, "done"), ended(102, "failed"), ended(102, "done")]), ..good() };
        check(&Evidence { sent_then: vec![step(101)], ..not_sent }, &[]);
    }

    #[test]
    fn what_was_told_and_is_not_in_the_journal_is_lost() {
        let forgotten =
            Evidence { journal_then: Ok(vec![Ended { step: step(101), end: None }, Ended { step: step(102), end: None }]), ..good() };
        check(&forgotten, &["lost: start of 101 was told to be done, and the journal does not have it"]);
        let other = Evidence { journal_then: Ok(vec![ended(101, "failed"), ended(102, "failed")]), ..good() };
        check(&other, &["lost: start of 101 was told to be done, and the journal does not have it"]);
        check(&Evidence { has_ended_well: true, ..good() }, &["lost: the run ended well without start of 102 in the journal"]);
        check(&Evidence { told: vec![ended(102, "held")], ..good() }, &[]);
    }

    #[test]
    fn a_reboot_of_which_nothing_is_known_is_a_persons_and_no_other_change_is() {
        let reboot = Step { vmid: 102, change: REBOOT.into() };
        let with = |step: &Step, end: Option<&str>| {
            let last = vec![ended(101, "done"), Ended { step: step.clone(), end: end.map(str::to_owned) }];
            let last_code = Some(if end == Some("held") { HELD } else { 0 });
            let mut evidence = Evidence { planned: vec![self::step(101), step.clone()], journal_last: Ok(last), last_code, ..good() };
            evidence.sent.retain(|own| own.vmid != 102);
            evidence.sent.push(step.clone());
            evidence.last()
        };
        assert_eq!(with(&reboot, Some("held")), Vec::<String>::new());
        assert!(!with(&reboot, None).is_empty() && !with(&self::step(102), Some("held")).is_empty());
    }

    #[test]
    fn a_death_in_the_recovery_is_judged_as_the_first_one_is() {
        let second = |told: &[Ended], sent: &[Step]| {
            let journal = Ok(vec![ended(101, "done"), ended(102, "failed")]);
            let death = Death { told: told.to_vec(), journal, verified: Ok(()), sent: sent.to_vec(), was_unsynced: false };
            Evidence { second: Some(death), ..good() }
        };
        let unsynced = second(&[], &[]).second.map(|death| Death { was_unsynced: true, ..death });
        check(&Evidence { second: unsynced, ..good() }, &["in the recovery: unsynced: a sync of the log failed, and the run went on"]);
        check(&second(&[ended(102, "failed")], &[step(101), step(102)]), &[]);
        let told = "in the recovery: lost: start of 102 was told to be done, and the journal does not have it";
        check(&second(&[ended(102, "done")], &[step(101)]), &[told]);
        let sent = "in the recovery: without intent: start of 102 was sent, and its intent is not on disk";
        check(&second(&[], &[step(102), step(102)]), &[sent]);
    }

    #[test]
    fn what_was_sent_without_its_intent_is_found() {
        let unintended = Evidence { journal_then: Ok(vec![ended(101, "done")]), ..good() };
        check(&unintended, &["without intent: start of 102 was sent, and its intent is not on disk"]);
        let again = Evidence { sent_then: vec![step(101), step(102), step(102)], ..good() };
        check(&again, &["without intent: start of 102 was sent, and its intent is not on disk"]);
    }

    /// What a failed sync leaves may be in memory only: whoever goes on then has seen nothing (S18).
    #[test]
    fn who_goes_on_after_a_failed_sync_is_found() {
        check(&Evidence { was_unsynced: true, ..good() }, &["unsynced: a sync of the log failed, and the run went on"]);
    }

    #[test]
    fn what_ran_twice_never_or_unplanned_is_found() {
        check(&Evidence { sent: vec![step(101), step(102), step(102)], ..good() }, &["twice: start of 102 was sent 2 times"]);
        check(&Evidence { sent: vec![step(101)], ..good() }, &["never: start of 102 was not sent"]);
        check(&Evidence { sent: vec![step(101), step(102), step(7)], ..good() }, &["unplanned: start of 7 was sent"]);
    }

    #[test]
    fn a_restart_that_takes_long_is_found() {
        check(&Evidence { ready: Some(Duration::from_millis(2_001)), ..good() }, &["slow: ready only 2001 ms after the restart"]);
        check(&Evidence { ready: None, ..good() }, &["slow: the restart was never ready"]);
        assert!(Evidence { ready: Some(Duration::from_millis(2_001)), ..good() }.is_only_slow());
        assert!(!Evidence { ready: None, ..good() }.is_only_slow(), "that is not slow");
        assert!(!Evidence { last_code: Some(1), ..good() }.is_only_slow());
    }

    #[test]
    fn an_end_that_is_none_is_found() {
        check(&Evidence { sent_last: vec![step(102)], ..good() }, &["restless: the last apply sent start of 102"]);
        check(&Evidence { last_code: Some(1), ..good() }, &["restless: the last apply did not end well"]);
        let open = Evidence { journal_last: Ok(vec![ended(101, "done"), ended(102, "held")]), ..good() };
        check(&open, &["unsettled: nobody knows what became of start of 102", "wrong journal: start of 102 was done 0 times by it"]);
        let twice = Evidence { journal_last: Ok(vec![ended(101, "done"), ended(102, "done"), ended(102, "done")]), ..good() };
        check(&twice, &["wrong journal: start of 102 was done 2 times by it"]);
    }

    #[test]
    fn a_journal_that_cannot_be_read_is_found() {
        check(&Evidence { journal_then: Err("malformed".into()), ..good() }, &["the journal cannot be read after the crash: malformed"]);
        check(&Evidence { journal_last: Err("malformed".into()), ..good() }, &["the journal cannot be read at the end: malformed"]);
    }
    #[test]
    fn a_record_that_is_not_whole_is_found_whenever_it_is_looked_at() {
        let cause = || Err("entry 3 is missing".to_owned());
        check(&Evidence { verified_then: cause(), ..good() }, &["the record is not whole after the crash: entry 3 is missing"]);
        check(&Evidence { verified_last: cause(), ..good() }, &["the record is not whole at the end: entry 3 is missing"]);
        let death =
            Death { told: Vec::new(), journal: Ok(vec![ended(101, "done")]), verified: cause(), sent: Vec::new(), was_unsynced: false };
        let again = Evidence { second: Some(death), ..good() };
        check(&again, &["the record is not whole after the crash of the recovery: entry 3 is missing"]);
    }
}
