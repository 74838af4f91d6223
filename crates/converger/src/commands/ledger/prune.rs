//! `converger ledger prune`: old readings are let go, with an entry that says who did it and what is gone. Entries stay.
//!
//! What is needed is found by walking through the ledger, and the store lets go only while the ledger is as long as it was then: a decision
//! that is made meanwhile may rest on the same reading.

use std::io::Write as _;
use std::path::Path;

use converger_core::artifact::Digest;
use converger_core::evidence::{PRUNED_MAX, Replay};
use converger_core::failure::Code;
use converger_core::moment;
use converger_runtime::state_dir::store_error;
use converger_runtime::{LedgerLocation, LedgerReader, StateDirectory};
use converger_store::{Batch, Refused, Store as _, StoreError, Write};
use serde_json::json;

use super::super::{Stop, shown};
use super::{broken, when};
use crate::cli::Pruning;
use crate::exit::End;
use crate::render::{self, counted, styled};
use crate::{files, host, output};

/// What may be let go.
struct Old {
    /// Each with its length.
    readings: Vec<(Digest, u64)>,
    /// How long the ledger was.
    seen: u64,
}

/// How often the ledger is walked through again where it grows meanwhile.
const WALKS_MAX: usize = 4;

pub(super) async fn prune(pruning: &Pruning) -> Result<End, Stop> {
    let before_ms = when::ms("--before", &pruning.before, host::now_ms())?;
    let shelf = LedgerLocation::from_config(pruning.place.config.as_deref())?;
    let readings = if pruning.dry_run {
        shelf.read(|book| old(book, before_ms))?.readings
    } else {
        shelf.must_be_there()?;
        let state = super::open_state(&shelf).await?;
        let gone = let_go(&shelf, &state, before_ms).await?;
        state.attest_ledger().await?;
        gone
    };
    let written = if pruning.json {
        let digests: Vec<Digest> = readings.iter().map(|(digest, _)| *digest).collect();
        let row = json!({
            "schema": "converger.pruned/1", "before": moment::written(before_ms / 1000), "dry_run": pruning.dry_run,
            "readings": digests, "bytes": bytes(&readings),
        });
        output::json(|out| writeln!(out, "{row}"))
    } else {
        write!(anstream::stdout(), "{}", text(&readings, pruning.dry_run, before_ms, &shelf.directory))
    };
    shown(written, End::Done)
}

fn bytes(readings: &[(Digest, u64)]) -> u64 {
    readings.iter().map(|(_, bytes)| bytes).sum()
}

fn text(readings: &[(Digest, u64)], is_dry: bool, before_ms: u64, directory: &Path) -> String {
    let before = moment::written(before_ms / 1000);
    if readings.is_empty() {
        return format!("nothing to let go: every reading in {} is needed, or not of before {before}\n", files::shown(directory));
    }
    let (count, kib) = (counted(readings.len() as u64, "reading"), bytes(readings).div_ceil(1024));
    let word = if is_dry { "would be let go" } else { "let go" };
    let rest = if is_dry { "" } else { "; the ledger says so" };
    format!("{} of decisions before {before} {word}, {kib} KiB{rest}\n", styled(render::BOLD, count))
}

fn old(book: &LedgerReader, before_ms: u64) -> Result<Old, Stop> {
    let (mut readings, seen) = (Replay::default(), book.heads()?.all.size);
    book.each::<Stop>(0, seen, |index, bytes| {
        let taken = readings.take(book.entry(index, bytes)?);
        taken.map_err(|misplaced| broken(format!("entry {index} cannot stand where it does: {misplaced}")))
    })?;
    let mut old = Old { readings: Vec::new(), seen };
    for digest in readings.unneeded(before_ms) {
        // What was let go before is not let go again.
        if let Some(bytes) = book.blob(digest)? {
            old.readings.push((digest, bytes.len() as u64));
        }
    }
    Ok(old)
}

async fn let_go(shelf: &LedgerLocation, state: &StateDirectory, before_ms: u64) -> Result<Vec<(Digest, u64)>, Stop> {
    let mut gone = Vec::new();
    for _ in 0..WALKS_MAX {
        let old = shelf.read(|book| old(book, before_ms))?;
        let (mut seen, mut is_grown) = (old.seen, false);
        for some in old.readings.chunks(PRUNED_MAX) {
            let digests = some.iter().map(|(digest, _)| *digest).collect();
            let write = Write::Prune { digests, seen, by: host::actor().into(), before_ms, at_ms: host::now_ms() };
            match state.store().commit(Batch::from(write)).await {
                Ok(_) => gone.extend_from_slice(some),
                Err(StoreError::Refused(Refused::LedgerGrown { .. })) => {
                    is_grown = true;
                    break;
                }
                Err(error) => return Err(Stop::from(store_error(&error))),
            }
            seen += 1;
        }
        if !is_grown {
            return Ok(gone);
        }
    }
    let text = "decisions are made all the time, so that it cannot be told what they need";
    Err(Stop::failed(text).code(Code::JournalUnwritable).help("wait until the apply ends, and prune again"))
}
