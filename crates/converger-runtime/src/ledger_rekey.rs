//! Replaces a lost or compromised signing key.
//!
//! The ledger continues. An entry records who replaced the key and why, with the last checkpoint of the old key as evidence. The ledger cannot
//! establish trust in the new key: people who verify it must get the key from its operator.

use converger_core::evidence::LedgerEntry;
use converger_core::failure::FailureCode;
use converger_ledger::{Checkpoint, NoteSigner, NoteVerifier, root_of_size};
use converger_store::{Batch, KEY_FILE, StoreReader as _, StoreWrite, wait_for};

use crate::author::{Author, Reason};
use crate::error::RuntimeError;
use crate::files;
use crate::ledger_key::{self, load_signer, recorded_key_in_store};
use crate::ledger_reader::{LedgerLocation, integrity_error, ledger_store_error};
use crate::state_dir::{StateDirectory, run_blocking};

/// The most bytes of a checkpoint, which is a few lines.
pub const CHECKPOINT_BYTES_MAX: usize = 64 << 10;

/// What happens to a key file that still exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExistingKey {
    /// It stays, and the key is not replaced.
    Keep,
    /// It is replaced, for example because it leaked.
    Replace,
}

/// A checkpoint that a person hands over.
#[derive(Clone, Debug)]
pub struct NamedCheckpoint {
    /// Where it comes from, for messages.
    pub name: String,
    /// Its signed text.
    pub bytes: Vec<u8>,
}

/// A new key that a person asks for.
#[derive(Clone, Debug)]
pub struct RekeyRequest {
    /// What happens to a key that still exists.
    pub existing: ExistingKey,
    /// A checkpoint that the old key has signed.
    pub checkpoint: Option<NamedCheckpoint>,
    /// Why.
    pub reason: Reason,
    /// Who asks.
    pub author: Author,
}

/// The new key of a ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplacedKey {
    /// The new public key.
    pub verifier: String,
    /// How many entries the last known checkpoint of the old key covers, if there is one.
    pub covered_entries: Option<u64>,
}

impl StateDirectory {
    /// Records a new signing key in the ledger and installs it.
    ///
    /// # Errors
    /// The ledger has no key yet, the key is not lost and was to be kept, the checkpoint is not one of this ledger, or the files or the witness cannot be
    /// read or written.
    pub async fn replace_key(&self, request: RekeyRequest) -> Result<ReplacedKey, RuntimeError> {
        let state = self.clone();
        let replaced = run_blocking(move || record_new_key(&state, request)).await?;
        self.attest_ledger().await?;
        Ok(replaced)
    }
}

fn record_new_key(state: &StateDirectory, request: RekeyRequest) -> Result<ReplacedKey, RuntimeError> {
    let RekeyRequest { existing, checkpoint, reason, author: Author { by, at_ms } } = request;
    let previous = recorded_key_in_store(state)?
        .ok_or_else(|| RuntimeError::input("this ledger has no key yet").with_help("`converger ledger key` creates one"))?;
    let previous = previous.current().to_owned();
    // If an earlier rekey was killed after its entry was written, it is completed first.
    ledger_key::finish_rekey(state.path(), &previous)?;
    let old = NoteVerifier::parse(&previous).map_err(|error| integrity_error(format!("the recorded key is invalid: {error}")))?;
    let signer = load_replaced_signer(state, &old, existing)?;
    let last = find_last_checkpoint(state, &old, signer.as_ref(), checkpoint)?;
    let verifier = ledger_key::make_next(state.path(), old.name())?.verifier().to_string();
    let (covered_entries, checkpoint) = last.map_or((None, None), |(size, text)| (Some(size), Some(text.into())));
    let reason = reason.into_text();
    let entry = LedgerEntry::Rekeyed { verifier: verifier.as_str().into(), previous: previous.into(), checkpoint, by, reason, at_ms };
    wait_for(state.commit(Batch::from(StoreWrite::decision(entry))))?;
    ledger_key::finish_rekey(state.path(), &verifier)?;
    Ok(ReplacedKey { verifier, covered_entries })
}

/// The old key, if it still exists and is replaced on purpose.
fn load_replaced_signer(state: &StateDirectory, old: &NoteVerifier, existing: ExistingKey) -> Result<Option<NoteSigner>, RuntimeError> {
    let path = state.path().join(KEY_FILE);
    if path.symlink_metadata().is_err() {
        return Ok(None);
    }
    if existing == ExistingKey::Keep {
        let text = format!("the key of this ledger is not lost: {} exists", files::display_path(&path));
        return Err(RuntimeError::input(text)
            .with_code(FailureCode::FileTaken)
            .with_help("add `--replace-key` to replace it anyway, for example because it leaked"));
    }
    // A file that is no key, or another key, is not used for signing.
    Ok(load_signer(state.path()).ok().flatten().filter(|signer| signer.verifier() == *old))
}

/// The longest known checkpoint of the old key, and how many entries it covers.
fn find_last_checkpoint(
    state: &StateDirectory,
    old: &NoteVerifier,
    signer: Option<&NoteSigner>,
    named: Option<NamedCheckpoint>,
) -> Result<Option<(u64, String)>, RuntimeError> {
    let location = LedgerLocation::from_directory(state.path());
    let mut all = Vec::new();
    if let Some(named) = named {
        all.push(check_checkpoint(&location, old, named)?);
    }
    // Opening the state directory checked that this ledger extends the witness.
    let witness = state.witness().and_then(|path| files::read_at_most(path, CHECKPOINT_BYTES_MAX).ok());
    let witness = witness.and_then(|text| Some((Checkpoint::verify(&text.bytes, old).ok()?.size, String::from_utf8(text.bytes).ok()?)));
    all.extend(witness);
    if let Some(signer) = signer {
        let head = wait_for(state.store().heads()).map_err(|error| ledger_store_error(&error))?.durable;
        location.read(|reader| reader.check_root(head))?;
        all.push((head.size, Checkpoint { origin: old.name().to_owned(), size: head.size, root: head.root }.sign(signer)));
    }
    Ok(all.into_iter().max_by_key(|(size, _)| *size))
}

/// Checks that a checkpoint is one of this ledger. Gives its size and text.
fn check_checkpoint(location: &LedgerLocation, old: &NoteVerifier, named: NamedCheckpoint) -> Result<(u64, String), RuntimeError> {
    let NamedCheckpoint { name, bytes } = named;
    let seen = Checkpoint::verify(&bytes, old).map_err(|error| {
        integrity_error(format!("{name}: {error}"))
            .with_help("--checkpoint takes a checkpoint that the recorded key has signed; leave it out if there is none")
    })?;
    let other = || integrity_error(format!("{name} is not a checkpoint of the first {} entries of this ledger", seen.size));
    let root = location.read::<_, RuntimeError>(|reader| {
        let size = reader.heads()?.all.size;
        if size < seen.size { Ok(None) } else { root_of_size(&mut reader.subtree_hashes(size), seen.size).map(Some) }
    })?;
    if root != Some(seen.root) {
        return Err(other());
    }
    String::from_utf8(bytes).map(|text| (seen.size, text)).map_err(|_| other())
}
