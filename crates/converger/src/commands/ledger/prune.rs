//! `converger ledger prune`: removes old observations and records who did so. Entries are never removed.

use std::io::Write as _;
use std::path::Path;

use converger_core::artifact::Digest;
use converger_core::timestamp;
use converger_runtime::ledger_prune::{PrunableReading, find_prunable};
use converger_runtime::{Author, LedgerLocation};
use serde_json::json;

use super::super::{CommandError, finish_output};
use super::time_argument;
use crate::cli::PruneArgs;
use crate::exit_status::ExitStatus;
use crate::render::{self, apply_style, count_with_noun};
use crate::{files, output};

pub(super) async fn run_prune(pruning: &PruneArgs) -> Result<ExitStatus, CommandError> {
    let author = Author::of_process();
    let before_ms = time_argument::parse_time_ms("--before", &pruning.before, author.at_ms())?;
    let location = LedgerLocation::from_config(pruning.ledger.config.as_deref())?;
    let readings = if pruning.dry_run {
        location.read(|reader| find_prunable(reader, before_ms))?.readings
    } else {
        location.check_exists()?;
        let state = super::open_state(&location).await?;
        state.prune_readings(before_ms, &author).await?
    };
    let written = if pruning.json {
        let digests: Vec<Digest> = readings.iter().map(|reading| reading.digest).collect();
        let row = json!({
            "schema": "converger.pruned/1", "before": timestamp::format_timestamp(before_ms / 1000), "dry_run": pruning.dry_run,
            "readings": digests, "bytes": total_bytes(&readings),
        });
        output::print_json(|out| writeln!(out, "{row}"))
    } else {
        write!(anstream::stdout(), "{}", render_pruned(&readings, pruning.dry_run, before_ms, &location.directory))
    };
    finish_output(written, ExitStatus::Done)
}

fn total_bytes(readings: &[PrunableReading]) -> u64 {
    readings.iter().map(|reading| reading.bytes).sum()
}

fn render_pruned(readings: &[PrunableReading], is_dry: bool, before_ms: u64, directory: &Path) -> String {
    let before = timestamp::format_timestamp(before_ms / 1000);
    if readings.is_empty() {
        return format!("nothing to prune: every observation in {} is needed, or newer than {before}\n", files::display_path(directory));
    }
    let (count, kib) = (count_with_noun(readings.len() as u64, "observation"), total_bytes(readings).div_ceil(1024));
    let verb = if is_dry { "would be removed" } else { "removed" };
    let rest = if is_dry { "" } else { "; the ledger records it" };
    format!("{} of decisions before {before} {verb}, {kib} KiB{rest}\n", apply_style(render::BOLD, count))
}
