//! A plan that can no longer be made again, as far as it is kept: its body and what it was held against, as they were written then.
//!
//! It is shown from the bytes under their digests, and by nothing that this program would decide: another planner may mean other things by the
//! same words. What never enters: judging it.

use std::fmt::Write as _;

use converger_core::evidence::Piece;
use serde_json::{Value as Json, json};

use super::super::Stop;
use super::record::Record;
use super::{Decided, Made};
use crate::files::plain;
use crate::render::{self, styled, theirs};

/// What is kept of a plan.
pub(super) struct Kept {
    body: Json,
    judgement: Json,
    /// Why it is not made again: a code, and the sentence.
    code: Option<&'static str>,
    why: String,
}

impl Kept {
    pub(super) fn of(record: &Record<'_>, decided: &Decided, made: &Made, why: &Stop) -> Result<Self, Stop> {
        let read = |piece| decided.written(record, made, piece);
        Ok(Self { body: read(Piece::Plan)?, judgement: read(Piece::Judgement)?, code: why.code_word(), why: why.sentence() })
    }

    pub(super) fn as_json(&self, made: &Made) -> Json {
        json!({
            "schema": "converger.kept/1", "run": made.run.id.as_str(), "entry": made.index, "program": made.decision.inputs.program,
            "planner": made.decision.inputs.planner, "plan": made.decision.plan, "judgement": made.decision.judgement,
            "body": self.body, "held_against": self.judgement, "code": self.code, "why": self.why,
        })
    }

    pub(super) fn text(&self, origin: &str) -> String {
        let limit = |name: &str| shown(&self.judgement["limits"][name]);
        let guests = rows(&self.body["guests"]);
        let mut text = format!("{} {}\n", styled(render::BOLD, shown(&self.body["environment"])), in_scope(guests.len()));
        let limits = format!("a run may change {} guests ({} %) and interrupt {}", limit("guests"), limit("percent"), limit("stops"));
        let _ = writeln!(text, "{}", styled(render::DIM, format!("{origin}: {limits}")));
        text.extend(guests.iter().map(guest));
        let causes = rows(&self.body["refusals"]).iter().chain(rows(&self.judgement["refusals"]));
        text.extend(causes.map(|cause| format!("refused as a whole: {}\n", refusal(cause))));
        let _ =
            writeln!(text, "{} it is shown as it was written then, and was not made again: {}", styled(render::CYAN, "note:"), self.why);
        let _ = writeln!(
            text,
            "{} when it was read, what waits for a restart, and what is not declared stands in the reading alone",
            styled(render::CYAN, "note:")
        );
        text
    }
}

fn in_scope(guests: usize) -> String {
    styled(render::DIM, format!("· {} in scope", render::counted(guests as u64, "guest")))
}

fn rows(value: &Json) -> &[Json] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// A value of the record in one line that acts on no terminal.
fn shown(value: &Json) -> String {
    value.as_str().map_or_else(|| plain(&value.to_string()), theirs)
}

fn guest(row: &Json) -> String {
    let name = row["name"].as_str().map_or("(no name)".to_owned(), theirs);
    let title = format!("{} {} {}", shown(&row["vmid"]), shown(&row["kind"]), styled(render::BOLD, name));
    match row["verdict"].as_str() {
        Some("steps") => {
            let steps: String = rows(&row["steps"]).iter().map(step).collect();
            format!("{} {title}\n{steps}", styled(render::YELLOW, "~"))
        }
        Some("refused") => {
            let causes: String = rows(&row["refusals"]).iter().map(|cause| format!("    {}\n", refusal(cause))).collect();
            format!("{} {title} {}\n{causes}", styled(render::RED, "!"), styled(render::RED, "refused"))
        }
        _ => format!("{} {title} {}\n", styled(render::GREEN, "="), styled(render::DIM, shown(&row["verdict"]))),
    }
}

fn step(step: &Json) -> String {
    let word = |name: &str| shown(&step[name]);
    let why = step["reason"].as_str().map(plain).unwrap_or_default();
    let mut text = format!("    {}: {why} (impact {}, risk {}, {})\n", word("change"), word("impact"), word("risk"), word("class"));
    for (name, field) in step["fields"].as_object().into_iter().flatten() {
        let _ = writeln!(text, "      {}: {} to {}", plain(name), shown(&field["before"]), shown(&field["after"]));
    }
    text
}

/// A cause with its evidence.
fn refusal(cause: &Json) -> String {
    let facts = cause["evidence"].as_object().into_iter().flatten();
    let facts: Vec<String> = facts.map(|(name, fact)| format!("{}: {}", plain(name), shown(fact))).collect();
    let code = shown(&cause["code"]);
    if facts.is_empty() { code } else { format!("{code} ({})", facts.join(", ")) }
}
