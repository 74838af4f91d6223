//! Checks the contents of entries, and that they extend an earlier checkpoint.

use converger_core::evidence::{LedgerCheck, LedgerEntry};
use converger_core::timestamp;
use converger_ledger::{Checkpoint, CheckpointError, LogHash, MerkleTree, NoteVerifier};
use converger_store::LedgerIndex;

use crate::error::RuntimeError;
use crate::ledger_key::NamedKeys;
use crate::ledger_reader::integrity_error;
use crate::{files, witness};

/// A checkpoint that was seen earlier.
#[derive(Clone, Debug)]
pub struct EarlierCheckpoint {
    /// The name of its file.
    name: String,
    /// Its contents, whose signature is checked later.
    checkpoint: Checkpoint,
    bytes: Vec<u8>,
}

impl EarlierCheckpoint {
    /// Parses a checkpoint; its signature is checked once the key of its time is known.
    ///
    /// # Errors
    /// The bytes are not a checkpoint.
    pub fn parse(name: String, bytes: Vec<u8>) -> Result<Self, RuntimeError> {
        let checkpoint = Checkpoint::parse_unverified(&bytes).map_err(|error| checkpoint_error(&name, &error))?;
        Ok(Self { name, checkpoint, bytes })
    }

    fn check_signature(&self, key: &NoteVerifier) -> Result<(), RuntimeError> {
        Checkpoint::verify(&self.bytes, key).map(drop).map_err(|error| checkpoint_error(&self.name, &error))
    }
}

fn checkpoint_error(name: &str, error: &CheckpointError) -> RuntimeError {
    integrity_error(format!("{name}: {error}")).with_help(
        "--since takes a checkpoint of this ledger that somebody kept, as `converger ledger checkpoint` prints it and as an export has it: \
         compare the file and the key with their source",
    )
}

/// A pass over the entries, with the log up to the earlier checkpoint.
#[derive(Debug)]
pub struct EntryCheck<'s> {
    /// The check of the entries so far.
    pub ledger_check: LedgerCheck,
    /// What their order shows.
    pub index: LedgerIndex,
    earlier: Option<(&'s EarlierCheckpoint, MerkleTree)>,
    /// The resync that discarded entries of the earlier checkpoint, in words.
    given_up: Option<String>,
    /// The recorded keys, with the indices of their entries.
    keys: Vec<(u64, String)>,
    rekeys: Vec<Rekey>,
}

/// A replaced key.
#[derive(Debug)]
struct Rekey {
    index: u64,
    previous: String,
    verifier: String,
    checkpoint: Option<String>,
    /// Who replaced it, when and why.
    said: String,
}

impl<'s> EntryCheck<'s> {
    /// Starts a check of a ledger that must extend this checkpoint, if there is one.
    #[must_use]
    pub fn new(since: Option<&'s EarlierCheckpoint>) -> Self {
        Self {
            ledger_check: LedgerCheck::default(),
            index: LedgerIndex::default(),
            earlier: since.map(|since| (since, MerkleTree::default())),
            given_up: None,
            keys: Vec::new(),
            rekeys: Vec::new(),
        }
    }

    /// Checks the next entry and passes it on.
    ///
    /// # Errors
    /// The entry is invalid, or cannot follow the ones before it.
    pub fn check_entry(&mut self, bytes: &[u8], visit_entry: impl FnOnce(&LedgerEntry)) -> Result<(), RuntimeError> {
        if let Some((since, tree)) = &mut self.earlier
            && tree.size() < since.checkpoint.size
        {
            tree.append(LogHash::of_leaf(bytes), |_, _, _| {});
        }
        let (own, index, given_up) = (&mut self.index, self.ledger_check.entries(), &mut self.given_up);
        let (keys, rekeys) = (&mut self.keys, &mut self.rekeys);
        let since = self.earlier.as_ref().map(|(since, _)| *since);
        Ok(self.ledger_check.add_entry_and_visit(bytes, |entry| {
            own.add_entry(index, entry);
            if let LedgerEntry::Key { verifier, .. } | LedgerEntry::Rekeyed { verifier, .. } = entry {
                keys.push((index, verifier.to_string()));
            }
            rekeys.extend(Rekey::of(index, entry));
            *given_up = given_up.take().or_else(|| witness::describe_resync(index, entry, &since?.checkpoint));
            visit_entry(entry);
        })?)
    }

    /// Checks that the earlier checkpoint is signed with the key of its time. `key` is used if no entry records one.
    ///
    /// # Errors
    /// It is not signed with that key, or there is none.
    pub fn since_is_signed(&self, key: Option<&NoteVerifier>) -> Result<(), RuntimeError> {
        let Some((since, _)) = &self.earlier else { return Ok(()) };
        let named = NamedKeys::of(self.keys.clone()).and_then(|keys| NoteVerifier::parse(keys.at(since.checkpoint.size)).ok());
        let key = named.as_ref().or(key);
        since.check_signature(key.ok_or_else(|| integrity_error("this ledger was never signed, but --since names a checkpoint of it"))?)
    }

    /// Which key attests which entries, for each replaced key. `root` gives the root of the first entries.
    ///
    /// # Errors
    /// A recorded checkpoint is not one of the old key and of these entries, or a root cannot be computed.
    pub fn attested<E: From<RuntimeError>>(&self, mut root: impl FnMut(u64) -> Result<LogHash, E>) -> Result<Vec<String>, E> {
        self.rekeys.iter().map(|rekey| rekey.note(&mut root)).collect()
    }

    /// Checks that the ledger extends the earlier checkpoint.
    ///
    /// # Errors
    /// It is shorter, or differs.
    pub fn check_extends(&self) -> Result<(), RuntimeError> {
        let Some((EarlierCheckpoint { name, checkpoint, .. }, tree)) = &self.earlier else { return Ok(()) };
        let (size, now, given_up) = (checkpoint.size, self.ledger_check.entries(), self.given_up.as_deref().unwrap_or_default());
        if tree.size() < size {
            let text =
                format!("{name} covers {size} entries, and there are {now}: the ledger was cut, or restored from an older copy{given_up}");
            Err(integrity_error(text).at_entry(now))
        } else if tree.root() != checkpoint.root {
            Err(integrity_error(format!("{name} belongs to a different ledger: they differ in the first {size} entries{given_up}")))
        } else {
            Ok(())
        }
    }
}

impl Rekey {
    fn of(index: u64, entry: &LedgerEntry) -> Option<Self> {
        let LedgerEntry::Rekeyed { verifier, previous, checkpoint, by, reason, at_ms } = entry else { return None };
        let description = format!(
            "{} replaced the key at {}: {}",
            files::escape_hidden(by),
            timestamp::format_timestamp(at_ms / 1000),
            files::escape_hidden(reason)
        );
        let (previous, verifier) = (previous.to_string(), verifier.to_string());
        Some(Self { index, previous, verifier, checkpoint: checkpoint.as_ref().map(ToString::to_string), said: description })
    }

    /// Which entries each of the two keys attests. The recorded checkpoint must be one of the old key and of these entries.
    fn note<E: From<RuntimeError>>(&self, root: &mut impl FnMut(u64) -> Result<LogHash, E>) -> Result<String, E> {
        let Self { index, previous, verifier, checkpoint, said: description } = self;
        let (old, new) = (files::escape_hidden(previous), files::escape_hidden(verifier));
        let wrong =
            |what: String| integrity_error(format!("entry {index}: the recorded checkpoint of the old key {what}")).at_entry(*index);
        let Some(text) = checkpoint else {
            return Ok(format!(
                "entry {index}: {description}; no checkpoint of the old key {old} is recorded, so only the key {new} attests the entries before it"
            ));
        };
        let key = NoteVerifier::parse(previous).map_err(|error| wrong(format!("cannot be checked: {error}")))?;
        let seen = Checkpoint::verify(text.as_bytes(), &key).map_err(|error| wrong(format!("is invalid: {error}")))?;
        if seen.size > *index || root(seen.size)? != seen.root {
            return Err(wrong(format!("is not one of the first {} entries", seen.size)).into());
        }
        let size = seen.size;
        let between =
            if size < *index { format!(", the entries from {size} to {} by the new key alone", index - 1) } else { String::new() };
        Ok(format!(
            "entry {index}: {description}; the first {size} entries are attested by the old key {old} too{between}, and from entry {index} on {new} signs"
        ))
    }
}

#[cfg(test)]
mod tests {
    use converger_ledger::NoteSigner;

    use super::*;

    /// A checkpoint that the old key did not sign, or signed for other entries, is no evidence.
    #[test]
    fn a_rekey_that_keeps_a_false_checkpoint_is_a_fault() {
        let [old, other] = [1, 2].map(|byte| NoteSigner::new("log", &[byte; 32]).expect("a key"));
        let root = LogHash::of_leaf(b"a");
        let note = |signer: &NoteSigner, size: u64, signed: LogHash| {
            let checkpoint = Checkpoint { origin: "log".into(), size, root: signed }.sign(signer);
            let (previous, verifier) = (old.verifier().to_string(), other.verifier().to_string());
            let rekey = Rekey { index: 3, previous, verifier, checkpoint: Some(checkpoint), said: "ann".into() };
            rekey.note(&mut |_| Ok::<_, RuntimeError>(root)).map_err(|error| (error.entry_index(), error.to_string()))
        };
        let false_one = |what: &str| Err((Some(3), format!("entry 3: the recorded checkpoint of the old key {what}")));
        assert!(note(&old, 2, root).is_ok_and(|note| note.contains("the entries from 2 to 2 by the new key alone")));
        assert!(note(&old, 3, root).is_ok_and(|note| !note.contains("alone")));
        assert_eq!(note(&old, 4, root), false_one("is not one of the first 4 entries"), "the ledger had fewer entries then");
        assert_eq!(note(&old, 2, LogHash::of_leaf(b"b")), false_one("is not one of the first 2 entries"));
        assert_eq!(note(&other, 2, root), false_one("is invalid: the note is not signed with this key"));
    }
}
