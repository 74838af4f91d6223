//! `converger backtest`: what other protection rules and limits would have made of everything that was decided.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;

use converger_core::guest::Vmid;
use converger_core::moment;
use converger_core::plan::Verdict;
use converger_core::refusal::Refusal;
use converger_core::safety::Judged;
use converger_runtime::RuntimeError;
use serde_json::{Value as Json, json};

use super::super::{Stop, inputs, shown};
use super::{Decided, Made, Place, Record};
use crate::cli::Backtesting;
use crate::exit::End;
use crate::render::{self, styled};
use crate::{config, output};

/// A run that would have been decided in another way.
struct Changed {
    made: Made,
    /// What concerns the whole run, then and under the candidate.
    run: Option<(String, String)>,
    guests: BTreeMap<Vmid, (String, String)>,
}

/// Every decision, weighed.
#[derive(Default)]
struct Weighed {
    count: u64,
    /// Runs that cannot be weighed, and why.
    unread: Vec<(String, String)>,
    changed: Vec<Changed>,
    /// The first of those whose evidence is broken.
    broken: Option<Stop>,
}

fn weighed(record: &Record<'_>, decided: &Decided, candidate: &Path) -> Result<Weighed, Stop> {
    let mut weighed = Weighed::default();
    for made in &decided.made {
        let recalled = match decided.again(record, made) {
            Ok(recalled) => recalled,
            // What was pruned or made by another planner cannot be weighed; that is said, and never counted as unchanged.
            Err(stop) => {
                weighed.unread.push((made.run.id.as_str().to_owned(), stop.sentence()));
                if stop.is_broken() && weighed.broken.is_none() {
                    weighed.broken = Some(stop);
                }
                continue;
            }
        };
        weighed.count += 1;
        let candidate = inputs::load_config(Some(candidate), &made.run.environment)?;
        let (then, now) = (recalled.decide(), recalled.under(&candidate.rules, candidate.limits).decide());
        weighed.changed.extend(compared(made.clone(), &then, &now));
    }
    Ok(weighed)
}

pub(in super::super) fn backtest(arguments: &Backtesting) -> Result<End, Stop> {
    // The candidate is read first: one that cannot be read is noticed where nothing is weighed, too.
    // A configuration that cannot be used is an error even if nothing was decided yet.
    config::survey(Some(&arguments.config)).map_err(RuntimeError::from)?;
    let Weighed { count, unread, changed, broken } =
        Place::from(&arguments.from, arguments.state.as_deref()).read(|record, decided| weighed(record, decided, &arguments.config))?;
    let written = if arguments.json {
        output::json(|out| writeln!(out, "{}", as_json(count, &changed, &unread)))
    } else {
        write!(anstream::stdout(), "{}", text(count, &changed, &unread))
    };
    shown(written, End::Done)?;
    broken.map_or_else(|| Ok(end(changed.is_empty(), unread.is_empty())), Err)
}

/// What cannot be weighed is not unchanged, and what was found besides does not make up for it. Evidence that is broken is told by its code, before
/// either.
fn end(is_unchanged: bool, is_all_read: bool) -> End {
    match (is_all_read, is_unchanged) {
        (false, _) => End::Failed,
        (true, false) => End::ChangesPending,
        (true, true) => End::Done,
    }
}

fn compared(made: Made, then: &Judged, now: &Judged) -> Option<Changed> {
    let (one, other) = (whole(then), whole(now));
    let run = (one != other).then_some((one, other));
    let pairs = then.plan().guests().zip(now.plan().guests());
    let guests: BTreeMap<Vmid, (String, String)> =
        pairs.map(|((guest, then), (_, now))| (guest.vmid, (verdict(then), verdict(now)))).filter(|(_, (then, now))| then != now).collect();
    (run.is_some() || !guests.is_empty()).then_some(Changed { made, run, guests })
}

/// What stands against the whole run.
fn whole(judged: &Judged) -> String {
    let causes = judged.plan().refusals().iter().chain(judged.judgement().refusals());
    codes(causes).unwrap_or_else(|| "may be carried out".into())
}

fn verdict(verdict: &Verdict) -> String {
    match verdict {
        Verdict::Converged { .. } => "converged".into(),
        Verdict::Steps(steps) => steps.iter().map(|step| step.change.word()).collect::<Vec<_>>().join(", "),
        Verdict::Refused(causes) => codes(causes.iter()).unwrap_or_default(),
    }
}

fn codes<'r>(causes: impl Iterator<Item = &'r Refusal>) -> Option<String> {
    let mut words: Vec<&str> = causes.map(|cause| cause.code().entry().word).collect();
    words.dedup();
    (!words.is_empty()).then(|| format!("refused ({})", words.join(", ")))
}

fn text(count: u64, changed: &[Changed], unread: &[(String, String)]) -> String {
    let mut text = String::new();
    for Changed { made, run, guests } in changed {
        let head = format!("{} in {} at {}", made.run.id.as_str(), made.run.environment, moment::written(made.run.at_ms / 1000));
        let _ = writeln!(text, "{}", styled(render::BOLD, head));
        let rows =
            run.iter().map(|change| ("run".to_owned(), change)).chain(guests.iter().map(|(vmid, change)| (vmid.to_string(), change)));
        for (who, (then, now)) in rows {
            let _ = writeln!(text, "  {who:<6} then {then}, now {now}");
        }
    }
    for (run, why) in unread {
        let _ = writeln!(text, "{} cannot be weighed: {why}", styled(render::BOLD, run));
    }
    let runs = render::counted(count, "run");
    let _ = writeln!(text, "{runs} weighed, {} would have been decided in another way, {} cannot be weighed", changed.len(), unread.len());
    text
}

fn as_json(count: u64, changed: &[Changed], unread: &[(String, String)]) -> Json {
    let pair = |(then, now): &(String, String)| json!({ "then": then, "now": now });
    let rows: Vec<Json> = changed
        .iter()
        .map(|Changed { made, run, guests }| {
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
    fn what_cannot_be_weighed_is_told_before_what_changed() {
        assert_eq!([end(false, false), end(true, false)], [End::Failed, End::Failed]);
        assert_eq!([end(false, true), end(true, true)], [End::ChangesPending, End::Done]);
    }
}
