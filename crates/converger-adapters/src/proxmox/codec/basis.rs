//! What a config write rests on: the digest of the reading that it was checked on, the guest agent's property, whose other options a write
//! keeps, and what waited for the next start in that reading.
//!
//! A write tries again everything that waits (`docs/decisions/0003-pending-changes.md`). So none is made where something waits that cannot be declared, such as a
//! key that reaches the host, or where under a written key something else waits than was planned. Proxmox's digest covers what waits too, so that
//! neither can appear between the reading and the write.
//!
//! What never enters: whether what waits under another managed key is ours. The core knows what is declared.

use std::fmt::Write;

use converger_core::action::FieldChange;
use converger_core::normalize::{Value, reaches_host};
use converger_core::observe::Pending;
use sha2::{Digest as _, Sha256};

use super::config::GuestConfig;
use super::field::Unwritable;
use super::words::Digest;

/// The reading that a config write is bound to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Basis {
    digest: Digest,
    agent: Option<Box<str>>,
    waiting: Box<[Waiting]>,
}

/// One key that waits for the next start, with what stands for its value.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Waiting {
    key: Box<str>,
    mark: Mark,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Mark {
    /// The key is to go.
    Removal,
    /// The beginning of the hash of a value.
    Value(Box<str>),
    /// A key or a value that this program does not manage.
    Foreign,
}

impl Basis {
    /// The basis that a reading gives; none where it has no digest.
    #[must_use]
    pub fn of(config: &GuestConfig) -> Option<Self> {
        let waiting = config.pending.iter().map(|entry| match entry {
            Pending::Known(field, None) => Waiting { key: field.word().into(), mark: Mark::Removal },
            Pending::Known(field, Some(value)) => Waiting { key: field.word().into(), mark: Mark::Value(hash(value)) },
            Pending::Other(key) => Waiting { key: key.clone(), mark: Mark::Foreign },
        });
        Some(Self { digest: config.digest.clone()?, agent: config.agent.clone(), waiting: waiting.collect() })
    }

    /// The basis that this text is of.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut lines = text.split('\n');
        let digest = Digest::new(lines.next()?)?;
        let (mut agent, mut waiting) = (None, Vec::new());
        for line in lines {
            match line.split_once(' ')? {
                ("agent", property) if agent.is_none() => agent = Some(property.into()),
                ("waits", rest) => {
                    let (mark, key) = rest.split_once(' ')?;
                    waiting.push(Waiting { key: key.into(), mark: Mark::parse(mark) });
                }
                _ => return None,
            }
        }
        Some(Self { digest, agent, waiting: waiting.into() })
    }

    /// A text that [`Basis::parse`] reads as this one; none where a word of others would break it.
    #[must_use]
    pub fn text(&self) -> Option<String> {
        let mut text = self.digest.as_str().to_owned();
        let parts = self.agent.as_deref().into_iter().chain(self.waiting.iter().map(|own| &*own.key));
        if parts.into_iter().any(|part| part.contains('\n')) {
            return None;
        }
        // Writing to a string cannot fail.
        let _ = self.agent.iter().try_for_each(|agent| write!(text, "\nagent {agent}"));
        let _ = self.waiting.iter().try_for_each(|own| write!(text, "\nwaits {} {}", own.mark.word(), own.key));
        Some(text)
    }

    pub(super) fn digest(&self) -> &Digest {
        &self.digest
    }

    pub(super) fn agent(&self) -> Option<&str> {
        self.agent.as_deref()
    }

    /// Why nothing may be written while this waits.
    pub(super) fn refusal(&self, changes: &[FieldChange]) -> Option<Unwritable> {
        let foreign = self.waiting.iter().find(|own| own.mark == Mark::Foreign);
        if let Some(own) = foreign {
            let key = own.key.clone();
            return Some(if reaches_host(&key) { Unwritable::ReachesHost(key) } else { Unwritable::Waits(key) });
        }
        let is_as_planned = |change: &&FieldChange| {
            let found = self.waiting.iter().find(|own| &*own.key == change.field.word()).map(|own| &own.mark);
            let planned = change.pending.as_ref().map(|value| value.as_ref().map_or(Mark::Removal, |value| Mark::Value(hash(value))));
            found == planned.as_ref()
        };
        changes.iter().find(|change| !is_as_planned(change)).map(|change| Unwritable::WaitsOtherwise(change.field))
    }
}

impl Mark {
    fn word(&self) -> &str {
        match self {
            Self::Removal => "removal",
            Self::Foreign => "foreign",
            Self::Value(hash) => hash,
        }
    }

    fn parse(word: &str) -> Self {
        match word {
            "removal" => Self::Removal,
            "foreign" => Self::Foreign,
            hash => Self::Value(hash.into()),
        }
    }
}

/// Sixteen digits are enough: nobody profits from two values that share them, and both are shown in the plan.
fn hash(value: &Value) -> Box<str> {
    let mut text = String::new();
    for byte in Sha256::digest(value.to_string()).iter().take(8) {
        let _ = write!(text, "{byte:02x}");
    }
    text.into()
}

#[cfg(test)]
mod tests {
    use converger_core::normalize::{Effect, Field};

    use super::*;

    fn basis(waiting: &[(&str, Mark)]) -> Basis {
        let waiting = waiting.iter().map(|(key, mark)| Waiting { key: (*key).into(), mark: mark.clone() }).collect();
        Basis { digest: Digest::new("0fe8").expect("a digest"), agent: Some("1,fstrim_cloned_disks=1".into()), waiting }
    }

    fn cores(pending: Option<Option<Value>>) -> [FieldChange; 1] {
        [FieldChange { field: Field::Cores, before: None, after: Some(Value::Count(4)), pending, effect: Effect::AtRestart }]
    }

    #[test]
    fn a_basis_is_read_back_as_it_was() {
        let own = basis(&[("cores", Mark::Value(hash(&Value::Count(2)))), ("balloon", Mark::Removal), ("hostpci0", Mark::Foreign)]);
        assert_eq!(Basis::parse(&own.text().expect("plain")), Some(own));
        let plain = Basis::parse("0fe8").expect("a digest alone");
        assert_eq!((plain.text().as_deref(), plain.agent()), (Some("0fe8"), None));
        for bad in ["", "not a digest", "0fe8\n", "0fe8\nagent", "0fe8\nwaits cores", "0fe8\nagent a\nagent b", "0fe8\nother x"] {
            assert_eq!(Basis::parse(bad), None, "{bad:?}");
        }
        assert_eq!(basis(&[("a\nwaits foreign b", Mark::Foreign)]).text(), None);
    }

    #[test]
    fn what_waits_must_be_what_was_planned() {
        let two = || Mark::Value(hash(&Value::Count(2)));
        let otherwise = Some(Unwritable::WaitsOtherwise(Field::Cores));
        for (waiting, planned, refusal) in [
            (None, None, None),
            (Some(two()), Some(Some(Value::Count(2))), None),
            (Some(Mark::Removal), Some(None), None),
            (Some(two()), None, otherwise.clone()),
            (None, Some(Some(Value::Count(2))), otherwise.clone()),
            (Some(two()), Some(Some(Value::Count(3))), otherwise.clone()),
            (Some(Mark::Removal), Some(Some(Value::Count(2))), otherwise.clone()),
            (Some(two()), Some(None), otherwise),
        ] {
            let waiting: Vec<_> = waiting.into_iter().map(|mark| ("cores", mark)).collect();
            assert_eq!(basis(&waiting).refusal(&cores(planned.clone())), refusal, "{waiting:?} {planned:?}");
        }
        // What waits under another managed key may be ours: the core has judged it.
        assert_eq!(basis(&[("memory", two())]).refusal(&cores(None)), None);
    }

    #[test]
    fn nothing_is_written_while_something_waits_that_cannot_be_declared() {
        let refusal = |key: &str| basis(&[(key, Mark::Foreign)]).refusal(&cores(None));
        assert_eq!(refusal("net0"), Some(Unwritable::Waits("net0".into())));
        assert_eq!(refusal("cores"), Some(Unwritable::Waits("cores".into())), "a value that is not understood");
        for key in ["args", "hostpci0", "lxc.mount.entry", "mp255"] {
            assert_eq!(refusal(key), Some(Unwritable::ReachesHost(key.into())));
        }
    }
}
