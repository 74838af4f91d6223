//! What entries say, and whether they have grown out of what was seen before.

use converger_core::evidence::{Deep, Entry};
use converger_core::moment;
use converger_ledger::{Checkpoint, Hash, Tree, Verifier};
use converger_runtime::ledger_key::NamedKeys;
use converger_runtime::witness;
use converger_store::Told;

use super::super::Stop;
use super::super::ledger::broken;
use super::Since;
use crate::files;

/// A walk through the entries, with the log up to where it was seen before.
pub(super) struct Heard<'s> {
    pub(super) deep: Deep,
    pub(super) told: Told,
    since: Option<(&'s Since, Tree)>,
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

impl<'s> Heard<'s> {
    pub(super) fn new(since: Option<&'s Since>) -> Self {
        Self {
            deep: Deep::default(),
            told: Told::default(),
            since: since.map(|since| (since, Tree::default())),
            given_up: None,
            keys: Vec::new(),
            rekeys: Vec::new(),
        }
    }

    /// The next entry, which is told on.
    pub(super) fn take(&mut self, bytes: &[u8], told: impl FnOnce(&Entry)) -> Result<(), Stop> {
        if let Some((since, tree)) = &mut self.since
            && tree.size() < since.checkpoint.size
        {
            tree.append(Hash::of_leaf(bytes), |_, _, _| {});
        }
        let (own, index, given_up) = (&mut self.told, self.deep.entries(), &mut self.given_up);
        let (keys, rekeys) = (&mut self.keys, &mut self.rekeys);
        let since = self.since.as_ref().map(|(since, _)| *since);
        Ok(self.deep.take_telling(bytes, |entry| {
            own.take(index, entry);
            if let Entry::Key { verifier, .. } | Entry::Rekeyed { verifier, .. } = entry {
                keys.push((index, verifier.to_string()));
            }
            rekeys.extend(Rekey::of(index, entry));
            *given_up = given_up.take().or_else(|| witness::given_up(index, entry, &since?.checkpoint));
            told(entry);
        })?)
    }

    /// Whether what was seen before is signed with the key of that time. `key` is the one that signs, where entries name none.
    pub(super) fn since_is_signed(&self, key: Option<&Verifier>) -> Result<(), Stop> {
        let Some((since, _)) = &self.since else { return Ok(()) };
        let named = NamedKeys::of(self.keys.clone()).and_then(|keys| Verifier::parse(keys.at(since.checkpoint.size)).ok());
        let key = named.as_ref().or(key);
        since.is_signed_by(key.ok_or_else(|| broken("nothing of this ledger was ever signed, and a checkpoint of it was given"))?)
    }

    /// Which part of the record which key attests, where the key was replaced. `root` gives the root that the first entries lead to.
    pub(super) fn attested(&self, mut root: impl FnMut(u64) -> Result<Hash, Stop>) -> Result<Vec<String>, Stop> {
        self.rekeys.iter().map(|rekey| rekey.note(&mut root)).collect()
    }

    /// Whether it has grown out of what was seen before.
    pub(super) fn extends(&self) -> Result<(), Stop> {
        let Some((Since { name, checkpoint, .. }, tree)) = &self.since else { return Ok(()) };
        let (size, now, given_up) = (checkpoint.size, self.deep.entries(), self.given_up.as_deref().unwrap_or_default());
        if tree.size() < size {
            let text = format!("{name} has seen {size} entries, and there are {now}: it was cut, or put back from an older copy{given_up}");
            Err(broken(text).at(now))
        } else if tree.root() != checkpoint.root {
            Err(broken(format!("{name} has seen another record: they differ in the first {size} entries{given_up}")))
        } else {
            Ok(())
        }
    }
}

impl Rekey {
    fn of(index: u64, entry: &Entry) -> Option<Self> {
        let Entry::Rekeyed { verifier, previous, checkpoint, by, reason, at_ms } = entry else { return None };
        let said = format!("{} replaced the key at {}: {}", files::plain(by), moment::written(at_ms / 1000), files::plain(reason));
        let (previous, verifier) = (previous.to_string(), verifier.to_string());
        Some(Self { index, previous, verifier, checkpoint: checkpoint.as_ref().map(ToString::to_string), said })
    }

    /// What each of the two keys attests. The checkpoint that the entry keeps must be one of the old key, and of these entries.
    fn note(&self, root: &mut impl FnMut(u64) -> Result<Hash, Stop>) -> Result<String, Stop> {
        let Self { index, previous, verifier, checkpoint, said } = self;
        let (old, new) = (files::plain(previous), files::plain(verifier));
        let wrong = |what: String| broken(format!("entry {index}: the checkpoint of the old key that it keeps {what}")).at(*index);
        let Some(text) = checkpoint else {
            return Ok(format!(
                "entry {index}: {said}; no checkpoint of the old key {old} is kept, so that the key {new} alone attests the entries before it"
            ));
        };
        let key = Verifier::parse(previous).map_err(|error| wrong(format!("cannot be checked: {error}")))?;
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
    use converger_ledger::Signer;

    use super::*;

    /// What the old key did not sign, or signed of other entries, is no evidence, even where the new key signs the entry that has it.
    #[test]
    fn a_rekey_that_keeps_a_false_checkpoint_is_a_fault() {
        let [old, other] = [1, 2].map(|byte| Signer::new("log", &[byte; 32]).expect("a key"));
        let root = Hash::of_leaf(b"a");
        let note = |signer: &Signer, size: u64, signed: Hash| {
            let checkpoint = Checkpoint { origin: "log".into(), size, root: signed }.sign(signer);
            let (previous, verifier) = (old.verifier().to_string(), other.verifier().to_string());
            let rekey = Rekey { index: 3, previous, verifier, checkpoint: Some(checkpoint), said: "ann".into() };
            rekey.note(&mut |_| Ok(root)).map_err(|stop| (stop.index(), stop.sentence()))
        };
        let false_one = |what: &str| Err((Some(3), format!("entry 3: the checkpoint of the old key that it keeps {what}")));
        assert!(note(&old, 2, root).is_ok_and(|note| note.contains("the entries from 2 to 2 by the new key alone")));
        assert!(note(&old, 3, root).is_ok_and(|note| !note.contains("alone")));
        assert_eq!(note(&old, 4, root), false_one("is not one of the first 4 entries"), "it had no more entries then");
        assert_eq!(note(&old, 2, Hash::of_leaf(b"b")), false_one("is not one of the first 2 entries"));
        assert_eq!(note(&other, 2, root), false_one("is none: the note is not signed with this key"));
    }
}
