//! One refusal that was recorded: whose it was, what it rested on, and what to do about it.
//!
//! What never enters: the other decisions of its run.

use std::fmt::Write as _;

use converger_core::apply::{Evidence, Run, Word};
use converger_core::artifact::Digest;
use converger_core::evidence::{Entry, write_entry};
use converger_core::guest::Vmid;
use converger_core::moment;
use serde_json::Value as Json;

use super::super::Stop;
use super::super::ledger::{broken, numbered};
use super::Decided;
use crate::render::{self, styled, theirs};

/// An entry by which something was decided against.
pub(super) struct Refusal {
    index: u64,
    guest: Option<Vmid>,
    stage: Word,
    code: Word,
    evidence: Evidence,
    /// The run that it was decided in, with its plan.
    of: Option<(Run, Digest)>,
    /// The entry as programs are shown any.
    pub(super) as_json: Json,
}

impl Refusal {
    pub(super) fn of(index: u64, entry: &Entry, decided: &Decided) -> Result<Self, Stop> {
        let Entry::Refused { run, guest, stage, code, evidence, .. } = entry else {
            return Err(Stop::input(format!("the entry {index} is no refusal but `{}`", entry.kind()))
                .help(format!("`converger ledger show {index}` shows it; `converger ledger tail --kind refusal` lists refusals")));
        };
        let bytes = write_entry(entry).map_err(|error| broken(format!("the entry {index} cannot be written: {error}")))?;
        let as_json = numbered(index, &bytes)?;
        let of = decided.find(run.as_str()).map(|made| (made.run.clone(), made.decision.plan));
        let (stage, code, evidence) = (stage.clone(), code.clone(), evidence.clone());
        Ok(Self { index, guest: *guest, stage, code, evidence, of, as_json })
    }

    pub(super) fn text(&self) -> String {
        let mut text = render::caused(self.code.as_str(), &self.evidence, &Evidence::default());
        let mut row = |name: &str, value: String| {
            let _ = writeln!(text, "  {} {value}", styled(render::CYAN, format!("{name:<8}")));
        };
        row("refused", self.guest.map_or_else(|| "the whole run".to_owned(), |guest| format!("guest {guest}")));
        row("stage", self.stage.as_str().to_owned());
        if let Some((run, plan)) = &self.of {
            row(
                "run",
                format!("{} in {} at {} by {}", run.id.as_str(), run.environment, moment::written(run.at_ms / 1000), theirs(&run.by)),
            );
            row("plan", plan.to_string());
        }
        row("entry", self.index.to_string());
        row("more", format!("converger explain {}", self.code.as_str()));
        text
    }
}
