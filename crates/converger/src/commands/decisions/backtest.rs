//! `converger backtest`: re-evaluates recorded decisions under other protection rules and limits.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;

use converger_core::guest::Vmid;
use converger_core::refusal::Refusal;
use converger_core::safety::{Judged, JudgedVerdict};
use converger_core::timestamp;
use converger_runtime::{ConfigSource, RuntimeError};
use serde_json::{Value as Json, json};

use super::super::{CommandError, finish_output, inputs};
use super::{DecisionIndex, DecisionLocation, DecisionSource, RunDecision};
use crate::cli::BacktestArgs;
use crate::exit_status::ExitStatus;
use crate::output;
use crate::render::{self, apply_style};

/// A run that would have been decided differently.
struct ChangedDecision {
    made: RunDecision,
    /// The judgement of the whole run, then and under the candidate.
    run: Option<(String, String)>,
    guests: BTreeMap<Vmid, (String, String)>,
}

/// All recorded decisions, evaluated.
#[derive(Default)]
struct BacktestResult {
    count: u64,
    /// Runs that cannot be evaluated, and why.
    unreadable: Vec<(String, String)>,
    changed: Vec<ChangedDecision>,
    /// The error of the first run whose evidence is broken.
    broken: Option<CommandError>,
}

fn evaluate_decisions(
    source: &DecisionSource<'_>,
    index: &DecisionIndex,
    candidate: &ConfigSource,
) -> Result<BacktestResult, CommandError> {
    let mut result = BacktestResult::default();
    for run_decision in &index.decisions {
        let reproduced = match index.reproduce_decision(source, run_decision) {
            Ok(reproduced) => reproduced,
            // Pruned inputs or another planner: reported, and never counted as unchanged.
            Err(error) => {
                result.unreadable.push((run_decision.run.id.as_str().to_owned(), error.message_text()));
                if error.is_broken() && result.broken.is_none() {
                    result.broken = Some(error);
                }
                continue;
            }
        };
        result.count += 1;
        let candidate = inputs::environment_config(candidate, &run_decision.run.environment)?;
        let (then, now) = (reproduced.decide(), reproduced.with_rules_and_limits(&candidate.rules, candidate.limits).decide());
        result.changed.extend(compare_judgements(run_decision.clone(), &then, &now));
    }
    Ok(result)
}

pub(in super::super) fn run_backtest(arguments: &BacktestArgs) -> Result<ExitStatus, CommandError> {
    // An unusable candidate is an error even if there is no decision to evaluate.
    let candidate = ConfigSource::read(Some(&arguments.config));
    candidate.environments().map_err(RuntimeError::from)?;
    let BacktestResult { count, unreadable: unread, changed, broken } =
        DecisionLocation::from_copy(&arguments.copy, arguments.state.as_deref())
            .read(|source, index| evaluate_decisions(source, index, &candidate))?;
    let written = if arguments.json {
        output::print_json(|out| writeln!(out, "{}", backtest_json(count, &changed, &unread)))
    } else {
        write!(anstream::stdout(), "{}", render_backtest(count, &changed, &unread))
    };
    finish_output(written, ExitStatus::Done)?;
    broken.map_or_else(|| Ok(backtest_status(changed.is_empty(), unread.is_empty())), Err)
}

/// A run that cannot be evaluated outweighs changed ones. Broken evidence, which outweighs both, ends with its own error.
fn backtest_status(is_unchanged: bool, is_all_read: bool) -> ExitStatus {
    match (is_all_read, is_unchanged) {
        (false, _) => ExitStatus::Failed,
        (true, false) => ExitStatus::ChangesPending,
        (true, true) => ExitStatus::Done,
    }
}

fn compare_judgements(run_decision: RunDecision, then: &Judged, now: &Judged) -> Option<ChangedDecision> {
    let (one, other) = (describe_run_judgement(then), describe_run_judgement(now));
    let run = (one != other).then_some((one, other));
    let pairs = then.guests().zip(now.guests());
    let guests: BTreeMap<Vmid, (String, String)> = pairs
        .map(|((guest, then), (_, now))| (guest.vmid, (describe_verdict(then), describe_verdict(now))))
        .filter(|(_, (then, now))| then != now)
        .collect();
    (run.is_some() || !guests.is_empty()).then_some(ChangedDecision { made: run_decision, run, guests })
}

/// The refusals of the whole run.
fn describe_run_judgement(judged: &Judged) -> String {
    let causes = judged.plan().refusals().iter().chain(judged.judgement().refusals());
    describe_codes(causes).unwrap_or_else(|| "may be applied".into())
}

fn describe_verdict(verdict: JudgedVerdict<'_>) -> String {
    match verdict {
        JudgedVerdict::Converged { .. } => "converged".into(),
        JudgedVerdict::Steps(steps) => steps.iter().map(|step| step.change.word()).collect::<Vec<_>>().join(", "),
        JudgedVerdict::Refused(causes) => describe_codes(causes.iter()).unwrap_or_default(),
    }
}

fn describe_codes<'r>(causes: impl Iterator<Item = &'r Refusal>) -> Option<String> {
    let mut codes: Vec<&str> = causes.map(|cause| cause.code().entry().word).collect();
    codes.dedup();
    (!codes.is_empty()).then(|| format!("refused ({})", codes.join(", ")))
}

fn render_backtest(count: u64, changed: &[ChangedDecision], unread: &[(String, String)]) -> String {
    let mut text = String::new();
    for ChangedDecision { made: run_decision, run, guests } in changed {
        let head = format!(
            "{} in {} at {}",
            run_decision.run.id.as_str(),
            run_decision.run.environment,
            timestamp::format_timestamp(run_decision.run.at_ms / 1000)
        );
        let _ = writeln!(text, "{}", apply_style(render::BOLD, head));
        let rows =
            run.iter().map(|change| ("run".to_owned(), change)).chain(guests.iter().map(|(vmid, change)| (vmid.to_string(), change)));
        for (subject, (then, now)) in rows {
            let _ = writeln!(text, "  {subject:<6} then {then}, now {now}");
        }
    }
    for (run, why) in unread {
        let _ = writeln!(text, "{} cannot be evaluated: {why}", apply_style(render::BOLD, run));
    }
    let counts = [(changed.len() as u64, "would have been decided differently"), (unread.len() as u64, "cannot be evaluated")];
    let counts = render::join_counts(&counts).map_or_else(String::new, |counts| format!(", {counts}"));
    let _ = writeln!(text, "{} evaluated{counts}", render::count_with_noun(count, "run"));
    text
}

fn backtest_json(count: u64, changed: &[ChangedDecision], unread: &[(String, String)]) -> Json {
    let pair = |(then, now): &(String, String)| json!({ "then": then, "now": now });
    let rows: Vec<Json> = changed
        .iter()
        .map(|ChangedDecision { made: run_decision, run, guests }| {
            let guests: BTreeMap<String, Json> = guests.iter().map(|(vmid, change)| (vmid.to_string(), pair(change))).collect();
            json!({ "run": run_decision.run.id.as_str(), "plan": run_decision.decision.plan, "whole": run.as_ref().map(pair), "guests": guests })
        })
        .collect();
    let unread: Vec<Json> = unread.iter().map(|(run, why)| json!({ "run": run, "why": why })).collect();
    json!({ "schema": "converger.backtest/1", "weighed": count, "changed": rows, "unread": unread })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_of_a_backtest_has_no_zeroes() {
        assert_eq!(render_backtest(3, &[], &[]), "3 runs evaluated\n");
        let unread = [("6afb4282-98434845".to_owned(), "pruned".to_owned())];
        assert!(render_backtest(1, &[], &unread).ends_with("\n1 run evaluated, 1 cannot be evaluated\n"));
    }

    #[test]
    fn unreadable_decision_outweighs_changed_ones() {
        assert_eq!([backtest_status(false, false), backtest_status(true, false)], [ExitStatus::Failed, ExitStatus::Failed]);
        assert_eq!([backtest_status(false, true), backtest_status(true, true)], [ExitStatus::ChangesPending, ExitStatus::Done]);
    }
}
