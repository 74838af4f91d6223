//! `converger ledger prune`: removes old observations and records who did so. Entries are never removed.
//!
//! The observations that are still needed are found by reading the ledger. The store removes observations only if the ledger
//! has not grown since: a decision that was made meanwhile may need the same observation.

use std::io::Write as _;
use std::path::Path;

use converger_core::artifact::Digest;
use converger_core::evidence::{LedgerReplay, PRUNED_DIGESTS_MAX};
use converger_core::failure::FailureCode;
use converger_core::timestamp;
use converger_runtime::state_dir::store_error;
use converger_runtime::{LedgerLocation, LedgerReader, StateDirectory};
use converger_store::{Batch, Store as _, StoreError, StoreRefusal, StoreWrite};
use serde_json::json;

use super::super::{CommandError, finish_output};
use super::{broken, time_argument};
use crate::cli::PruneArgs;
use crate::exit_status::ExitStatus;
use crate::render::{self, apply_style, count_with_noun};
use crate::{files, host, output};

/// The observations that can be removed.
struct PrunableReadings {
    /// Each with its length.
    readings: Vec<(Digest, u64)>,
    /// The number of entries of the ledger.
    ledger_size: u64,
}

/// How often the ledger is read again if it has grown.
const ATTEMPTS_MAX: usize = 4;

pub(super) async fn run_prune(pruning: &PruneArgs) -> Result<ExitStatus, CommandError> {
    let before_ms = time_argument::parse_time_ms("--before", &pruning.before, host::now_ms())?;
    let location = LedgerLocation::from_config(pruning.ledger.config.as_deref())?;
    let readings = if pruning.dry_run {
        location.read(|reader| find_prunable(reader, before_ms))?.readings
    } else {
        location.check_exists()?;
        let state = super::open_state(&location).await?;
        let pruned = prune_readings(&location, &state, before_ms).await?;
        state.attest_ledger().await?;
        pruned
    };
    let written = if pruning.json {
        let digests: Vec<Digest> = readings.iter().map(|(digest, _)| *digest).collect();
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

fn total_bytes(readings: &[(Digest, u64)]) -> u64 {
    readings.iter().map(|(_, bytes)| bytes).sum()
}

fn render_pruned(readings: &[(Digest, u64)], is_dry: bool, before_ms: u64, directory: &Path) -> String {
    let before = timestamp::format_timestamp(before_ms / 1000);
    if readings.is_empty() {
        return format!("nothing to prune: every observation in {} is needed, or newer than {before}\n", files::display_path(directory));
    }
    let (count, kib) = (count_with_noun(readings.len() as u64, "observation"), total_bytes(readings).div_ceil(1024));
    let verb = if is_dry { "would be removed" } else { "removed" };
    let rest = if is_dry { "" } else { "; the ledger records it" };
    format!("{} of decisions before {before} {verb}, {kib} KiB{rest}\n", apply_style(render::BOLD, count))
}

fn find_prunable(reader: &LedgerReader, before_ms: u64) -> Result<PrunableReadings, CommandError> {
    let (mut readings, seen) = (LedgerReplay::default(), reader.heads()?.all.size);
    reader.for_each_entry::<CommandError>(0, seen, |index, bytes| {
        let applied = readings.apply_entry(reader.parse_entry(index, bytes)?);
        applied.map_err(|misplaced| broken(format!("entry {index} is misplaced: {misplaced}")))
    })?;
    let mut old = PrunableReadings { readings: Vec::new(), ledger_size: seen };
    for digest in readings.unneeded_observations(before_ms) {
        // Observations that were pruned before are skipped.
        if let Some(bytes) = reader.blob(digest)? {
            old.readings.push((digest, bytes.len() as u64));
        }
    }
    Ok(old)
}

async fn prune_readings(location: &LedgerLocation, state: &StateDirectory, before_ms: u64) -> Result<Vec<(Digest, u64)>, CommandError> {
    let mut pruned = Vec::new();
    for _ in 0..ATTEMPTS_MAX {
        let old = location.read(|reader| find_prunable(reader, before_ms))?;
        let (mut seen, mut is_grown) = (old.ledger_size, false);
        for some in old.readings.chunks(PRUNED_DIGESTS_MAX) {
            let digests = some.iter().map(|(digest, _)| *digest).collect();
            let write = StoreWrite::Prune { digests, seen, by: host::actor().into(), before_ms, at_ms: host::now_ms() };
            match state.store().commit(Batch::from(write)).await {
                Ok(_) => pruned.extend_from_slice(some),
                Err(StoreError::Refused(StoreRefusal::LedgerGrown { .. })) => {
                    is_grown = true;
                    break;
                }
                Err(error) => return Err(CommandError::from(store_error(&error))),
            }
            seen += 1;
        }
        if !is_grown {
            return Ok(pruned);
        }
    }
    let text = "the ledger keeps growing, so the observations in use cannot be determined";
    Err(CommandError::failure(text).with_code(FailureCode::JournalUnwritable).with_help("wait until the apply ends, then prune again"))
}
