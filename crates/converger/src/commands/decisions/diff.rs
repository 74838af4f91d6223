//! `diff`: what two plans do differently, by guest and step. A plan is a recorded decision or a plan file.
//!
//! The core decides which steps count as the same.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;

use converger_core::artifact::{DifferenceKind, Digest, GuestDifference, GuestOmission, RecordedPlan};
use converger_core::evidence::DecisionPart;
use converger_runtime::expected_plan::SavedPlan;
use serde_json::{Value as Json, json};

use super::super::{CommandError, finish_output, inputs};
use super::{DecisionIndex, DecisionLocation, DecisionSource};
use crate::cli::DiffArgs;
use crate::exit_status::ExitStatus;
use crate::render::{self, apply_style, count_with_noun};
use crate::{files, output};

/// One of the two plans.
struct ComparedPlan {
    plan: RecordedPlan,
    /// Where it is from, for programs.
    origin: Json,
}

/// Compares two plans. The state directory or export is read only if one of them is a recorded decision.
pub(in super::super) fn run_diff(arguments: &DiffArgs) -> Result<ExitStatus, CommandError> {
    let DiffArgs { one, other, source, json } = arguments;
    let (one, other) = if is_path(one) && is_path(other) {
        (read_plan_file(one)?, read_plan_file(other)?)
    } else {
        DecisionLocation::from_source(source).read(|record, decided| {
            let load = |name: &str| if is_path(name) { read_plan_file(name) } else { read_recorded(record, decided, name) };
            Ok((load(one)?, load(other)?))
        })?
    };
    print_differences(&one, &other, *json)
}

/// Neither digests nor ids of runs have a dot or a slash. What a name means does not depend on the files of the directory.
fn is_path(name: &str) -> bool {
    name.contains(['.', '/'])
}

fn read_plan_file(path: &str) -> Result<ComparedPlan, CommandError> {
    let SavedPlan { plan, digest, .. } = inputs::read_plan_file(Path::new(path), SavedPlan::parse)?;
    let origin = json!({ "file": path, "plan": digest });
    Ok(ComparedPlan { plan, origin })
}

fn read_recorded(record: &DecisionSource<'_>, decided: &DecisionIndex, name: &str) -> Result<ComparedPlan, CommandError> {
    let run_decision = decided.require_decision(name).map_err(|stop| {
        let is_file = Digest::parse(name).is_none() && Path::new(name).is_file();
        if is_file { stop.with_help(format!("to compare the file, write its path: ./{}", name.escape_debug())) } else { stop }
    })?;
    let body = decided.read_part_json(record, run_decision, DecisionPart::Plan)?;
    let judgement = decided.read_part_json(record, run_decision, DecisionPart::Judgement)?;
    let origin = json!({ "entry": run_decision.index, "plan": run_decision.decision.plan, "run": run_decision.run.id.as_str() });
    Ok(ComparedPlan { plan: RecordedPlan::from_body(&body).with_judgement(&judgement), origin })
}

fn print_differences(one: &ComparedPlan, other: &ComparedPlan, as_json: bool) -> Result<ExitStatus, CommandError> {
    let general = one.plan.general_differences(&other.plan);
    let guests = one.plan.guest_differences(&other.plan, GuestOmission::Forbidden);
    let is_same = general.is_empty() && guests.is_empty();
    let end = if is_same { ExitStatus::Done } else { ExitStatus::ChangesPending };
    let written = if as_json {
        let row = json!({
            "schema": "converger.diff/1", "one": one.origin, "other": other.origin, "same": is_same,
            "differences": one.plan.differences(&other.plan, GuestOmission::Forbidden),
            "guests": guests.iter().map(guest_json).collect::<Vec<_>>(),
        });
        output::print_json(|out| writeln!(out, "{row}"))
    } else {
        write!(anstream::stdout(), "{}", render_differences(&general, &guests))
    };
    finish_output(written, end)
}

fn guest_json(guest: &GuestDifference) -> Json {
    let steps = guest.steps.iter().map(|step| json!({ "difference": step.kind.word(), "text": step.text }));
    json!({ "difference": guest.kind.word(), "steps": steps.collect::<Vec<_>>(), "text": guest.text, "vmid": guest.vmid })
}

fn render_differences(general: &[String], guests: &[GuestDifference]) -> String {
    if general.is_empty() && guests.is_empty() {
        return "the same steps on the same guests\n".to_owned();
    }
    let mut text: String = general.iter().map(|line| format!("{}\n", files::escape_hidden(line))).collect();
    for guest in guests {
        let _ = writeln!(text, "{} {}: {}", difference_sign(guest.kind), guest.vmid, files::escape_hidden(&guest.text));
        // Of a guest that only one of the plans has, the line above says every step.
        for step in guest.steps.iter().filter(|_| guest.kind == DifferenceKind::Changed) {
            let _ = writeln!(text, "    {} {}", difference_sign(step.kind), files::escape_hidden(&step.text));
        }
    }
    let count = |kind| guests.iter().filter(|guest| guest.kind == kind).count();
    if !guests.is_empty() {
        let [added, removed, changed] = [DifferenceKind::Added, DifferenceKind::Removed, DifferenceKind::Changed].map(count);
        let total = count_with_noun(guests.len() as u64, "guest");
        let _ = writeln!(text, "\ndifferences in {total}: {added} added, {removed} removed, {changed} changed");
    }
    text
}

fn difference_sign(kind: DifferenceKind) -> String {
    match kind {
        DifferenceKind::Added => apply_style(render::GREEN, "+"),
        DifferenceKind::Removed => apply_style(render::RED, "-"),
        DifferenceKind::Changed => apply_style(render::YELLOW, "~"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_with_a_dot_or_a_slash_are_files() {
        assert!(["plan.json", "./plan", "/tmp/plan", "a/b"].into_iter().all(is_path));
        assert!(!["sha256:2f6c", "6afaf0b3-43690ad2", "2f6c", "plan"].into_iter().any(is_path));
    }
}
