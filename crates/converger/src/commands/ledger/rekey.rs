//! `converger ledger rekey`: replaces a lost or compromised signing key.
//!
//! The ledger continues. An entry records who replaced the key and why, with the last checkpoint of the old key as evidence. The ledger cannot
//! establish trust in the new key: people who verify it must get the key from its operator.

use std::io::Write as _;
use std::path::Path;

use converger_core::evidence::LedgerEntry;
use converger_core::failure::FailureCode;
use converger_ledger::{Checkpoint, NoteSigner, NoteVerifier, root_of_size};
use converger_store::{Batch, KEY_FILE, StoreReader as _, StoreWrite, wait_for};

use converger_runtime::ledger_key::{self, load_signer, recorded_key_in_store};
use converger_runtime::state_dir::run_blocking;
use converger_runtime::{LedgerLocation, StateDirectory};

use super::super::{CommandError, finish_output, holds};
use super::{broken, damaged};
use crate::cli::Rekeying;
use crate::exit_status::ExitStatus;
use crate::{files, host};

pub(super) async fn rekey(rekeying: &Rekeying) -> Result<ExitStatus, CommandError> {
    let reason = holds::check_reason(&rekeying.reason, "why")?;
    let location = LedgerLocation::from_config(rekeying.place.config.as_deref())?;
    location.check_exists()?;
    let state = super::open_state(&location).await?;
    let (own, replace, checkpoint_path) = (state.clone(), rekeying.replace_key, rekeying.checkpoint.clone());
    let (new, size) = run_blocking(move || replace_key(&location, &own, reason, replace, checkpoint_path.as_deref())).await?;
    state.attest_ledger().await?;
    let checkpoint_note = match size {
        Some(size) => format!("the last checkpoint of the old key is recorded, and covers the first {size} entries"),
        None => "no checkpoint of the old key was found or recorded".to_owned(),
    };
    let text = format!(
        "{new}\nsigns this ledger from now on; {checkpoint_note}\nsend this key and a new export to everyone who verifies the ledger\n"
    );
    finish_output(write!(anstream::stdout(), "{text}"), ExitStatus::Done)
}

/// Records the new key and installs it. Gives the key, and how many entries the last checkpoint of the old key covers.
fn replace_key(
    location: &LedgerLocation,
    state: &StateDirectory,
    reason: Box<str>,
    replace: bool,
    checkpoint_path: Option<&Path>,
) -> Result<(String, Option<u64>), CommandError> {
    let previous = recorded_key_in_store(state)?
        .ok_or_else(|| CommandError::input_error("this ledger has no key yet").with_help("`converger ledger key` creates one"))?;
    let previous = previous.current().to_owned();
    // If an earlier rekey was killed after its entry was written, it is completed first.
    ledger_key::finish_rekey(state.path(), &previous)?;
    let old = NoteVerifier::parse(&previous).map_err(|error| broken(format!("the recorded key is invalid: {error}")))?;
    let signer = signer_of(state, &old, replace)?;
    let last = last_checkpoint(location, state, &old, signer.as_ref(), checkpoint_path)?;
    let new = ledger_key::make_next(state.path(), old.name())?.verifier().to_string();
    let (size, checkpoint) = last.map_or((None, None), |(size, text)| (Some(size), Some(text.into())));
    let (verifier, at_ms) = (new.as_str().into(), host::now_ms());
    let entry = LedgerEntry::Rekeyed { verifier, previous: previous.into(), checkpoint, by: host::actor().into(), reason, at_ms };
    wait_for(state.commit(Batch::from(StoreWrite::decision(entry))))?;
    ledger_key::finish_rekey(state.path(), &new)?;
    Ok((new, size))
}

/// The old key, if it still exists and is replaced on purpose.
fn signer_of(state: &StateDirectory, old: &NoteVerifier, replace: bool) -> Result<Option<NoteSigner>, CommandError> {
    let path = state.path().join(KEY_FILE);
    if path.symlink_metadata().is_err() {
        return Ok(None);
    }
    if !replace {
        let text = format!("the key of this ledger is not lost: {} exists", files::display_path(&path));
        return Err(CommandError::input_error(text)
            .with_code(FailureCode::FileTaken)
            .with_help("add `--replace-key` to replace it anyway, for example because it leaked"));
    }
    // A file that is no key, or another key, is not used for signing.
    Ok(load_signer(state.path()).ok().flatten().filter(|signer| signer.verifier() == *old))
}

/// The longest known checkpoint of the old key, and how many entries it covers.
fn last_checkpoint(
    location: &LedgerLocation,
    state: &StateDirectory,
    old: &NoteVerifier,
    signer: Option<&NoteSigner>,
    checkpoint_path: Option<&Path>,
) -> Result<Option<(u64, String)>, CommandError> {
    let mut all = Vec::new();
    if let Some(path) = checkpoint_path {
        all.push(read(location, old, path)?);
    }
    // Opening the state directory checked that this ledger extends the witness.
    let witness = location.witness.as_deref().and_then(|path| files::read_at_most(path, CHECKPOINT_BYTES_MAX).ok());
    let witness = witness.and_then(|text| Some((Checkpoint::verify(&text.bytes, old).ok()?.size, String::from_utf8(text.bytes).ok()?)));
    all.extend(witness);
    if let Some(signer) = signer {
        let head = wait_for(state.store().heads()).map_err(|error| damaged(&error))?.durable;
        location.read(|reader| reader.check_root(head))?;
        all.push((head.size, Checkpoint { origin: old.name().to_owned(), size: head.size, root: head.root }.sign(signer)));
    }
    Ok(all.into_iter().max_by_key(|(size, _)| *size))
}

/// The largest checkpoint, which is a few lines.
const CHECKPOINT_BYTES_MAX: usize = 64 << 10;

/// Reads a checkpoint, which must be one of this ledger.
fn read(location: &LedgerLocation, old: &NoteVerifier, path: &Path) -> Result<(u64, String), CommandError> {
    let name = files::display_path(path);
    let read = files::read_at_most(path, CHECKPOINT_BYTES_MAX);
    let bytes = read
        .map_err(|error| CommandError::input_error(format!("cannot read {name}: {error}")).with_code(FailureCode::FileUnreadable))?
        .bytes;
    let seen = Checkpoint::verify(&bytes, old).map_err(|error| {
        broken(format!("{name}: {error}"))
            .with_help("--checkpoint takes a checkpoint that the recorded key has signed; leave it out if there is none")
    })?;
    let other = || broken(format!("{name} is not a checkpoint of the first {} entries of this ledger", seen.size));
    let root = location.read(|reader| {
        let size = reader.heads()?.all.size;
        if size < seen.size { Ok(None) } else { root_of_size(&mut reader.subtree_hashes(size), seen.size).map(Some) }
    })?;
    if root != Some(seen.root) {
        return Err(other());
    }
    String::from_utf8(bytes).map(|text| (seen.size, text)).map_err(|_| other())
}
