//! `converger backtest`: what other protection rules and limits would have made of everything that was decided.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;

use converger_core::guest::Vmid;
use converger_core::plan::Verdict;
use converger_core::refusal::Refusal;
use converger_core::safety::Judged;
use converger_core::timestamp;
use converger_runtime::RuntimeError;
use serde_json::{Value as Json, json};

use super::super::{CommandError, finish_output, inputs};
use super::{DecisionIndex, DecisionLocation, DecisionSource, RunDecision};
use crate::cli::BacktestArgs;
use crate::exit_status::ExitStatus;
use crate::render::{self, apply_style};
use crate::{config, output};

/// A run that would have been decided in another way.
struct ChangedDecision {
    made: RunDecision,
    /// What concerns the whole run, then and under the candidate.
    run: Option<(String, String)>,
    guests: BTreeMap<Vmid, (String, String)>,
}

/// Every decision, weighed.
#[derive(Default)]
struct BacktestResult {
    count: u64,
    /// Runs that cannot be weighed, and why.
    unreadable: Vec<(String, String)>,
    changed: Vec<ChangedDecision>,
    /// The first of those whose evidence is broken.
    broken: Option<CommandError>,
}

fn evaluate_decisions(record: &DecisionSource<'_>, decided: &DecisionIndex, candidate: &Path) -> Result<BacktestResult, CommandError> {
    let mut weighed = BacktestResult::default();
    for made in &decided.decisions {
        let recalled = match decided.reproduce_decision(record, made) {
            Ok(recalled) => recalled,
            // What was pruned or made by another planner cannot be weighed; that is said, and never counted as unchanged.
            Err(stop) => {
                weighed.unreadable.push((made.run.id.as_str().to_owned(), stop.message_text()));
                if stop.is_broken() && weighed.broken.is_none() {
                    weighed.broken = Some(stop);
                }
                continue;
            }
        };
        weighed.count += 1;
        let candidate = inputs::load_config(Some(candidate), &made.run.environment)?;
        let (then, now) = (recalled.decide(), recalled.with_rules_and_limits(&candidate.rules, candidate.limits).decide());
        weighed.changed.extend(compare_judgements(made.clone(), &then, &now));
    }
    Ok(weighed)
}

pub(in super::super) fn run_backtest(arguments: &BacktestArgs) -> Result<ExitStatus, CommandError> {
    // The candidate is read first: one that cannot be read is noticed where nothing is weighed, too.
    // A configuration that cannot be used is an error even if nothing was decided yet.
    config::load_environments(Some(&arguments.config)).map_err(RuntimeError::from)?;
    let BacktestResult { count, unreadable: unread, changed, broken } =
        DecisionLocation::from_copy(&arguments.copy, arguments.state.as_deref())
            .read(|record, decided| evaluate_decisions(record, decided, &arguments.config))?;
    let written = if arguments.json {
        output::print_json(|out| writeln!(out, "{}", backtest_json(count, &changed, &unread)))
    } else {
        write!(anstream::stdout(), "{}", render_backtest(count, &changed, &unread))
    };
    finish_output(written, ExitStatus::Done)?;
    broken.map_or_else(|| Ok(backtest_status(changed.is_empty(), unread.is_empty())), Err)
}

/// What cannot be weighed is not unchanged, and what was found besides does not make up for it. Evidence that is broken is told by its code, before
/// either.
fn backtest_status(is_unchanged: bool, is_all_read: bool) -> ExitStatus {
    match (is_all_read, is_unchanged) {
        (false, _) => ExitStatus::Failed,
        (true, false) => ExitStatus::ChangesPending,
        (true, true) => ExitStatus::Done,
    }
}

fn compare_judgements(made: RunDecision, then: &Judged, now: &Judged) -> Option<ChangedDecision> {
    let (one, other) = (describe_run_judgement(then), describe_run_judgement(now));
    let run = (one != other).then_some((one, other));
    let pairs = then.plan().guests().zip(now.plan().guests());
    let guests: BTreeMap<Vmid, (String, String)> = pairs
        .map(|((guest, then), (_, now))| (guest.vmid, (describe_verdict(then), describe_verdict(now))))
        .filter(|(_, (then, now))| then != now)
        .collect();
    (run.is_some() || !guests.is_empty()).then_some(ChangedDecision { made, run, guests })
}

/// What stands against the whole run.
fn describe_run_judgement(judged: &Judged) -> String {
    let causes = judged.plan().refusals().iter().chain(judged.judgement().refusals());
    describe_codes(causes).unwrap_or_else(|| "may be carried out".into())
}

fn describe_verdict(verdict: &Verdict) -> String {
    match verdict {
        Verdict::Converged { .. } => "converged".into(),
        Verdict::Steps(steps) => steps.iter().map(|step| step.change.word()).collect::<Vec<_>>().join(", "),
        Verdict::Refused(causes) => describe_codes(causes.iter()).unwrap_or_default(),
    }
}

fn describe_codes<'r>(causes: impl Iterator<Item = &'r Refusal>) -> Option<String> {
    let mut words: Vec<&str> = causes.map(|cause| cause.code().entry().word).collect();
    words.dedup();
    (!words.is_empty()).then(|| format!("refused ({})", words.join(", ")))
}

fn render_backtest(count: u64, changed: &[ChangedDecision], unread: &[(String, String)]) -> String {
    let mut text = String::new();
    for ChangedDecision { made, run, guests } in changed {
        let head =
            format!("{} in {} at {}", made.run.id.as_str(), made.run.environment, timestamp::format_timestamp(made.run.at_ms / 1000));
        let _ = writeln!(text, "{}", apply_style(render::BOLD, head));
        let rows =
            run.iter().map(|change| ("run".to_owned(), change)).chain(guests.iter().map(|(vmid, change)| (vmid.to_string(), change)));
        for (who, (then, now)) in rows {
            let _ = writeln!(text, "  {who:<6} then {then}, now {now}");
        }
    }
    for (run, why) in unread {
        let _ = writeln!(text, "{} cannot be weighed: {why}", apply_style(render::BOLD, run));
    }
    let runs = render::count_with_noun(count, "run");
    let _ = writeln!(text, "{runs} weighed, {} would have been decided in another way, {} cannot be weighed", changed.len(), unread.len());
    text
}

fn backtest_json(count: u64, changed: &[ChangedDecision], unread: &[(String, String)]) -> Json {
    let pair = |(then, now): &(String, String)| json!({ "then": then, "now": now });
    let rows: Vec<Json> = changed
        .iter()
        .map(|ChangedDecision { made, run, guests }| {
            let guests: BTreeMap<String, Json> = guests.iter().map(|(vmid, change)| (vmid.to_string(), pair(change))).collect();
            json!({ "run": made.run.id.as_str(), "plan": made.decision.plan, "whole": run.as_ref().map(pair), "guests": guests })
        })
        .collect();
    let unread: Vec<Json> = unread.iter().map(|(run, why)| json!({ "run": run, "why": why })).collect();
    json!({ "schema": "converger.backtest/1", "weighed": count, "changed": rows, "unread": unread })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Failed comes before changes that are pending, as everywhere.
    #[test]
    fn unreadable_decision_outweighs_changed_ones() {
        assert_eq!([backtest_status(false, false), backtest_status(true, false)], [ExitStatus::Failed, ExitStatus::Failed]);
        assert_eq!([backtest_status(false, true), backtest_status(true, true)], [ExitStatus::ChangesPending, ExitStatus::Done]);
    }
}
