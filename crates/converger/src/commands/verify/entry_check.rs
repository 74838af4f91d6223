//! What entries say, and whether they have grown out of what was seen before.

use converger_core::evidence::{LedgerCheck, LedgerEntry};
use converger_core::timestamp;
use converger_ledger::{Checkpoint, LogHash, MerkleTree, NoteVerifier};
use converger_runtime::ledger_key::NamedKeys;
use converger_runtime::witness;
use converger_store::LedgerIndex;

use super::super::CommandError;
use super::super::ledger::broken;
use super::EarlierCheckpoint;
use crate::files;

/// A walk through the entries, with the log up to where it was seen before.
pub(super) struct EntryCheck<'s> {
    pub(super) ledger_check: LedgerCheck,
    pub(super) index: LedgerIndex,
    earlier: Option<(&'s EarlierCheckpoint, MerkleTree)>,
    /// Whoever gave up what was seen before, in words.
    given_up: Option<String>,
    /// The keys that entries name, each with its entry.
    keys: Vec<(u64, String)>,
    rekeys: Vec<Rekey>,
}

/// A key that was replaced.
struct Rekey {
    index: u64,
    previous: String,
    verifier: String,
    checkpoint: Option<String>,
    /// Who replaced it, when and why.
    said: String,
}

impl<'s> EntryCheck<'s> {
    pub(super) fn new(since: Option<&'s EarlierCheckpoint>) -> Self {
        Self {
            ledger_check: LedgerCheck::default(),
            index: LedgerIndex::default(),
            earlier: since.map(|since| (since, MerkleTree::default())),
            given_up: None,
            keys: Vec::new(),
            rekeys: Vec::new(),
        }
    }

    /// The next entry, which is told on.
    pub(super) fn check_entry(&mut self, bytes: &[u8], told: impl FnOnce(&LedgerEntry)) -> Result<(), CommandError> {
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
            told(entry);
        })?)
    }

    /// Whether what was seen before is signed with the key of that time. `key` is the one that signs, where entries name none.
    pub(super) fn since_is_signed(&self, key: Option<&NoteVerifier>) -> Result<(), CommandError> {
        let Some((since, _)) = &self.earlier else { return Ok(()) };
        let named = NamedKeys::of(self.keys.clone()).and_then(|keys| NoteVerifier::parse(keys.at(since.checkpoint.size)).ok());
        let key = named.as_ref().or(key);
        since.check_signature(key.ok_or_else(|| broken("nothing of this ledger was ever signed, and a checkpoint of it was given"))?)
    }

    /// Which part of the record which key attests, where the key was replaced. `root` gives the root that the first entries lead to.
    pub(super) fn attested(&self, mut root: impl FnMut(u64) -> Result<LogHash, CommandError>) -> Result<Vec<String>, CommandError> {
        self.rekeys.iter().map(|rekey| rekey.note(&mut root)).collect()
    }

    /// Whether it has grown out of what was seen before.
    pub(super) fn check_extends(&self) -> Result<(), CommandError> {
        let Some((EarlierCheckpoint { name, checkpoint, .. }, tree)) = &self.earlier else { return Ok(()) };
        let (size, now, given_up) = (checkpoint.size, self.ledger_check.entries(), self.given_up.as_deref().unwrap_or_default());
        if tree.size() < size {
            let text = format!("{name} has seen {size} entries, and there are {now}: it was cut, or put back from an older copy{given_up}");
            Err(broken(text).at_entry(now))
        } else if tree.root() != checkpoint.root {
            Err(broken(format!("{name} has seen another record: they differ in the first {size} entries{given_up}")))
        } else {
            Ok(())
        }
    }
}

impl Rekey {
    fn of(index: u64, entry: &LedgerEntry) -> Option<Self> {
        let LedgerEntry::Rekeyed { verifier, previous, checkpoint, by, reason, at_ms } = entry else { return None };
        let said = format!(
            "{} replaced the key at {}: {}",
            files::escape_hidden(by),
            timestamp::format_timestamp(at_ms / 1000),
            files::escape_hidden(reason)
        );
        let (previous, verifier) = (previous.to_string(), verifier.to_string());
        Some(Self { index, previous, verifier, checkpoint: checkpoint.as_ref().map(ToString::to_string), said })
    }

    /// What each of the two keys attests. The checkpoint that the entry keeps must be one of the old key, and of these entries.
    fn note(&self, root: &mut impl FnMut(u64) -> Result<LogHash, CommandError>) -> Result<String, CommandError> {
        let Self { index, previous, verifier, checkpoint, said } = self;
        let (old, new) = (files::escape_hidden(previous), files::escape_hidden(verifier));
        let wrong = |what: String| broken(format!("entry {index}: the checkpoint of the old key that it keeps {what}")).at_entry(*index);
        let Some(text) = checkpoint else {
            return Ok(format!(
                "entry {index}: {said}; no checkpoint of the old key {old} is kept, so that the key {new} alone attests the entries before it"
            ));
        };
        let key = NoteVerifier::parse(previous).map_err(|error| wrong(format!("cannot be checked: {error}")))?;
        let seen = Checkpoint::verify(text.as_bytes(), &key).map_err(|error| wrong(format!("is none: {error}")))?;
        if seen.size > *index || root(seen.size)? != seen.root {
            return Err(wrong(format!("is not one of the first {} entries", seen.size)));
        }
        let size = seen.size;
        let between =
            if size < *index { format!(", the entries from {size} to {} by the new key alone", index - 1) } else { String::new() };
        Ok(format!(
            "entry {index}: {said}; the first {size} entries are attested by the old key {old} too{between}, and from entry {index} on {new} signs"
        ))
    }
}

#[cfg(test)]
mod tests {
    use converger_ledger::NoteSigner;

    use super::*;

    /// What the old key did not sign, or signed of other entries, is no evidence, even where the new key signs the entry that has it.
    #[test]
    fn a_rekey_that_keeps_a_false_checkpoint_is_a_fault() {
        let [old, other] = [1, 2].map(|byte| NoteSigner::new("log", &[byte; 32]).expect("a key"));
        let root = LogHash::of_leaf(b"a");
        let note = |signer: &NoteSigner, size: u64, signed: LogHash| {
            let checkpoint = Checkpoint { origin: "log".into(), size, root: signed }.sign(signer);
            let (previous, verifier) = (old.verifier().to_string(), other.verifier().to_string());
            let rekey = Rekey { index: 3, previous, verifier, checkpoint: Some(checkpoint), said: "ann".into() };
            rekey.note(&mut |_| Ok(root)).map_err(|stop| (stop.entry_index(), stop.message_text()))
        };
        let false_one = |what: &str| Err((Some(3), format!("entry 3: the checkpoint of the old key that it keeps {what}")));
        assert!(note(&old, 2, root).is_ok_and(|note| note.contains("the entries from 2 to 2 by the new key alone")));
        assert!(note(&old, 3, root).is_ok_and(|note| !note.contains("alone")));
        assert_eq!(note(&old, 4, root), false_one("is not one of the first 4 entries"), "it had no more entries then");
        assert_eq!(note(&old, 2, LogHash::of_leaf(b"b")), false_one("is not one of the first 2 entries"));
        assert_eq!(note(&other, 2, root), false_one("is none: the note is not signed with this key"));
    }
}
