//! One recorded refusal: what it refused, on what evidence, and what to do.

use std::fmt::Write as _;

use converger_core::apply::{Evidence, RunStart, Slug};
use converger_core::artifact::Digest;
use converger_core::evidence::{LedgerEntry, write_entry};
use converger_core::guest::Vmid;
use serde_json::Value as Json;

use super::super::CommandError;
use super::super::ledger::{broken, entry_json};
use super::DecisionIndex;
use crate::render::{self, apply_style};

/// A recorded refusal.
pub(super) struct RecordedRefusal {
    index: u64,
    guest: Option<Vmid>,
    stage: Slug,
    code: Slug,
    evidence: Evidence,
    /// Its run, with the plan.
    run: Option<(RunStart, Digest)>,
    /// The entry as `ledger show --json` prints it.
    pub(super) json: Json,
}

impl RecordedRefusal {
    pub(super) fn from_entry(index: u64, entry: &LedgerEntry, decisions: &DecisionIndex) -> Result<Self, CommandError> {
        let LedgerEntry::Refused { run, guest, stage, code, evidence, .. } = entry else {
            return Err(CommandError::input_error(format!("entry {index} is not a refusal but `{}`", entry.kind()))
                .with_help(format!("`converger ledger show {index}` shows it; `converger ledger tail --kind refusal` lists refusals")));
        };
        let bytes = write_entry(entry).map_err(|error| broken(format!("cannot write entry {index}: {error}")))?;
        let as_json = entry_json(index, &bytes)?;
        let run = decisions.find_run(run).map(|run_decision| (run_decision.run.clone(), run_decision.decision.plan));
        let (stage, code, evidence) = (stage.clone(), code.clone(), evidence.clone());
        Ok(Self { index, guest: *guest, stage, code, evidence, run, json: as_json })
    }

    pub(super) fn render(&self) -> String {
        let mut text = render::describe_cause(self.code.as_str(), &self.evidence, &Evidence::default());
        let mut row = |name: &str, value: String| {
            let _ = writeln!(text, "  {} {value}", apply_style(render::CYAN, format!("{name:<8}")));
        };
        row("refused", self.guest.map_or_else(|| "the whole run".to_owned(), |guest| format!("guest {guest}")));
        row("stage", self.stage.as_str().to_owned());
        if let Some((run, plan)) = &self.run {
            row("run", super::describe_run(run));
            row("plan", render::short_digest(*plan));
        }
        row("entry", self.index.to_string());
        row("more", format!("converger explain {}", self.code.as_str()));
        text
    }
}
