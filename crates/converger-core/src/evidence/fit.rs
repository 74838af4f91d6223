//! Entries within their bound: what is too long for one is named by its digest, as plans and readings are.

use std::io;

use super::{ENTRY_BYTES_MAX, Entry, write_entry};
use crate::apply::{Evidence, Findings, Outcome, Record, write_outcome};
use crate::artifact::Digest;

/// Under which word the digest of evidence stands that was too long for its entry.
const TOO_LONG: &str = "too_long";

/// The stored form of an entry that is short enough. Evidence that is not is named by its digest: how something ended is always kept,
/// whatever others said about it. Nothing, where even that is too long.
///
/// # Errors
/// A value that cannot be written as JSON; none of ours is one.
pub fn write_fitting(entry: &Entry) -> io::Result<Option<Vec<u8>>> {
    let bytes = write_entry(entry)?;
    if bytes.len() <= ENTRY_BYTES_MAX {
        return Ok(Some(bytes));
    }
    let Some(shorter) = shortened(entry)? else { return Ok(None) };
    let bytes = write_entry(&shorter)?;
    Ok((bytes.len() <= ENTRY_BYTES_MAX).then_some(bytes))
}

/// The same entry with the digest of its evidence in the place of it; none for one that has no evidence of others.
fn shortened(entry: &Entry) -> io::Result<Option<Entry>> {
    Ok(match entry {
        Entry::Record(Record::Ended { id, outcome, at_ms }) => {
            let findings = Findings { evidence: named(Digest::of_bytes(&write_outcome(outcome)?)), observed: Evidence::default() };
            Some(Entry::Record(Record::Ended { id: id.clone(), outcome: with(outcome, findings), at_ms: *at_ms }))
        }
        Entry::Refused { run, guest, stage, code, evidence, at_ms } => {
            let (run, stage, code) = (run.clone(), stage.clone(), code.clone());
            let evidence = named(Digest::of_bytes(&serde_json::to_vec(evidence)?));
            Some(Entry::Refused { run, guest: *guest, stage, code, evidence, at_ms: *at_ms })
        }
        _ => None,
    })
}

fn named(digest: Digest) -> Evidence {
    Evidence::default().with(TOO_LONG, digest.to_string().as_str())
}

fn with(outcome: &Outcome, findings: Findings) -> Outcome {
    match outcome.clone() {
        Outcome::Done(_) => Outcome::Done(findings),
        Outcome::Failed { code, .. } => Outcome::Failed { code, findings },
        Outcome::Refused { code, .. } => Outcome::Refused { code, findings },
        Outcome::Held { code, release, .. } => Outcome::Held { code, release, findings },
        Outcome::NotRun { code, .. } => Outcome::NotRun { code, findings },
    }
}
