//! A recorded plan that cannot be made again, as far as it is stored: its body and its judgement as they were written.
//!
//! It is shown from the stored bytes alone. Nothing is derived from them: another planner may mean something else by the same words.

use std::fmt::Write as _;

use converger_core::evidence::DecisionPart;
use serde_json::{Value as Json, json};

use super::super::CommandError;
use super::source::DecisionSource;
use super::{DecisionIndex, RunDecision};
use crate::files::escape_hidden;
use crate::render::{self, apply_style, quote_untrusted};
use crate::verbosity;

/// The stored parts of a plan.
pub(super) struct StoredPlan {
    body: Json,
    judgement: Json,
    /// Why it cannot be made again: a code, and a sentence.
    code: Option<&'static str>,
    why: String,
}

impl StoredPlan {
    pub(super) fn load(
        source: &DecisionSource<'_>,
        index: &DecisionIndex,
        run_decision: &RunDecision,
        why: &CommandError,
    ) -> Result<Self, CommandError> {
        let read = |part| index.read_part_json(source, run_decision, part);
        Ok(Self {
            body: read(DecisionPart::Plan)?,
            judgement: read(DecisionPart::Judgement)?,
            code: why.code_word(),
            why: why.message_text(),
        })
    }

    pub(super) fn to_json(&self, run_decision: &RunDecision) -> Json {
        json!({
            "schema": "converger.kept/1", "run": run_decision.run.id.as_str(), "entry": run_decision.index, "program": run_decision.decision.inputs.program,
            "planner": run_decision.decision.inputs.planner, "plan": run_decision.decision.plan, "judgement": run_decision.decision.judgement,
            "body": self.body, "held_against": self.judgement, "code": self.code, "why": self.why,
        })
    }

    pub(super) fn render(&self, origin: &str) -> String {
        let limit = |name: &str| format_value(&self.judgement["limits"][name]);
        let guests = as_rows(&self.body["guests"]);
        let mut text = format!("{} {}\n", apply_style(render::BOLD, format_value(&self.body["environment"])), describe_scope(guests.len()));
        let limits = format!("a run may change {} guests ({} %) and interrupt {}", limit("guests"), limit("percent"), limit("stops"));
        let _ = writeln!(text, "{}", apply_style(render::DIM, format!("{origin}: {limits}")));
        text.extend(guests.iter().map(|row| render_guest(row, self.judgement_of(row))));
        let causes = as_rows(&self.body["refusals"]).iter().chain(as_rows(&self.judgement["refusals"]));
        text.extend(causes.map(|cause| format!("refused as a whole: {}\n", render_refusal(cause))));
        let _ = writeln!(text, "{} shown as it was recorded; it cannot be made again: {}", apply_style(render::CYAN, "note:"), self.why);
        let _ = writeln!(
            text,
            "{} only the observation has its time, pending changes, and guests that are not declared",
            apply_style(render::CYAN, "note:")
        );
        text
    }
}

impl StoredPlan {
    /// The row of the judgement that refuses the steps of a guest, if there is one.
    fn judgement_of(&self, guest: &Json) -> Option<&Json> {
        as_rows(&self.judgement["guests"]).iter().find(|row| row["vmid"] == guest["vmid"])
    }
}

fn describe_scope(guests: usize) -> String {
    apply_style(render::DIM, format!("· {} in scope", render::count_with_noun(guests as u64, "guest")))
}

fn as_rows(value: &Json) -> &[Json] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// A stored value on one line, without characters that act on a terminal.
fn format_value(value: &Json) -> String {
    value.as_str().map_or_else(|| escape_hidden(&value.to_string()), quote_untrusted)
}

fn render_guest(row: &Json, judgement: Option<&Json>) -> String {
    let name = row["name"].as_str().map_or("(no name)".to_owned(), quote_untrusted);
    let title = format!("{} {} {}", format_value(&row["vmid"]), format_value(&row["kind"]), apply_style(render::BOLD, name));
    let refused = |row: &Json| {
        let causes: String = as_rows(&row["refusals"]).iter().map(|cause| format!("    {}\n", render_refusal(cause))).collect();
        format!("{} {title} {}\n{causes}", apply_style(render::RED, "!"), apply_style(render::RED, "refused"))
    };
    match (row["verdict"].as_str(), judgement) {
        (_, Some(judgement)) => refused(judgement),
        (Some("steps"), None) => {
            let steps: String = as_rows(&row["steps"]).iter().map(render_step).collect();
            format!("{} {title}\n{steps}", apply_style(render::YELLOW, "~"))
        }
        (Some("refused"), None) => refused(row),
        _ => format!("{} {title} {}\n", apply_style(render::GREEN, "="), apply_style(render::DIM, format_value(&row["verdict"]))),
    }
}

fn render_step(step: &Json) -> String {
    let value_of = |name: &str| format_value(&step[name]);
    let why = step["reason"].as_str().map(escape_hidden).unwrap_or_default();
    let (impact, risk, class) = (value_of("impact"), value_of("risk"), value_of("class"));
    let annotation = if verbosity::is_verbose() {
        format!(" (impact {impact}, risk {risk}, {class})")
    } else {
        let words = render::notable_words(&impact, &risk, &class);
        if words.is_empty() { String::new() } else { format!(" ({})", words.join(", ")) }
    };
    let mut text = format!("    {}: {why}{annotation}\n", value_of("change"));
    for (name, field) in step["fields"].as_object().into_iter().flatten() {
        let side = |name: &str| if field[name].is_null() { "(absent)".to_owned() } else { format_value(&field[name]) };
        let _ = writeln!(text, "      {}: {} -> {}", escape_hidden(name), side("before"), side("after"));
    }
    text
}

/// A refusal with its evidence.
fn render_refusal(cause: &Json) -> String {
    let facts = cause["evidence"].as_object().into_iter().flatten();
    let facts: Vec<String> = facts.map(|(name, fact)| format!("{}: {}", escape_hidden(name), format_value(fact))).collect();
    let code = format_value(&cause["code"]);
    if facts.is_empty() { code } else { format!("{code} ({})", facts.join(", ")) }
}
