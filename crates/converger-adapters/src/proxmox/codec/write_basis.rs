//! The basis of a config write: the digest of the config that it was checked against, the `agent` property, whose other options a write
//! keeps, and the pending changes of that config.
//!
//! A write makes Proxmox retry all pending changes (`docs/decisions/0003-pending-changes.md`). So nothing is written while a change is
//! pending that cannot be declared, such as one of a key that reaches the host, or while a written key has another pending change than
//! planned. Proxmox's digest covers pending changes too, so neither can appear between the read and the write.
//!
//! Must not decide whether pending changes of other managed keys are ours. The core knows what is declared.

use std::fmt::Write;

use converger_core::action::FieldChange;
use converger_core::normalize::{FieldValue, reaches_host};
use converger_core::observe::PendingChange;
use sha2::{Digest as _, Sha256};

use super::config::GuestConfig;
use super::field::UnwritableChange;
use super::identifiers::ConfigDigest;

/// The config that a write is bound to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WriteBasis {
    digest: ConfigDigest,
    agent: Option<Box<str>>,
    /// The first network device, whose other options a write keeps.
    net0: Option<Box<str>>,
    pending: Box<[PendingKey]>,
}

/// A key with a pending change.
#[derive(Clone, Debug, PartialEq, Eq)]
struct PendingKey {
    key: Box<str>,
    mark: PendingMark,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum PendingMark {
    /// The key will be removed.
    Removal,
    /// The beginning of the hash of the pending value.
    Value(Box<str>),
    /// A key or a value that this program does not manage.
    Foreign,
}

impl WriteBasis {
    /// The basis from a config; `None` if it has no digest.
    #[must_use]
    pub fn from_config(config: &GuestConfig) -> Option<Self> {
        let waiting = config.pending.iter().map(|entry| match entry {
            PendingChange::Known(field, None) => PendingKey { key: field.word().into(), mark: PendingMark::Removal },
            PendingChange::Known(field, Some(value)) => {
                PendingKey { key: field.word().into(), mark: PendingMark::Value(value_hash(value)) }
            }
            PendingChange::Other(key) => PendingKey { key: key.clone(), mark: PendingMark::Foreign },
        });
        let (agent, net0) = (config.agent.clone(), config.net0.clone());
        Some(Self { digest: config.digest.clone()?, agent, net0, pending: waiting.collect() })
    }

    /// Parses a basis from its text.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut lines = text.split('\n');
        let digest = ConfigDigest::new(lines.next()?)?;
        let (mut agent, mut net0, mut waiting) = (None, None, Vec::new());
        for line in lines {
            match line.split_once(' ')? {
                ("agent", property) if agent.is_none() => agent = Some(property.into()),
                ("net0", property) if net0.is_none() => net0 = Some(property.into()),
                ("waits", rest) => {
                    let (mark, key) = rest.split_once(' ')?;
                    waiting.push(PendingKey { key: key.into(), mark: PendingMark::parse(mark) });
                }
                _ => return None,
            }
        }
        Some(Self { digest, agent, net0, pending: waiting.into() })
    }

    /// Formats a text for [`WriteBasis::parse`]; `None` if a foreign text would break the format.
    #[must_use]
    pub fn to_text(&self) -> Option<String> {
        let mut text = self.digest.as_str().to_owned();
        let parts = self.agent.as_deref().into_iter().chain(self.net0.as_deref()).chain(self.pending.iter().map(|own| &*own.key));
        if parts.into_iter().any(|part| part.contains('\n')) {
            return None;
        }
        // Writing to a string cannot fail.
        let _ = self.agent.iter().try_for_each(|agent| write!(text, "\nagent {agent}"));
        let _ = self.net0.iter().try_for_each(|net0| write!(text, "\nnet0 {net0}"));
        let _ = self.pending.iter().try_for_each(|own| write!(text, "\nwaits {} {}", own.mark.word(), own.key));
        Some(text)
    }

    pub(in crate::proxmox) fn digest(&self) -> &ConfigDigest {
        &self.digest
    }

    pub(super) fn agent(&self) -> Option<&str> {
        self.agent.as_deref()
    }

    pub(super) fn net0(&self) -> Option<&str> {
        self.net0.as_deref()
    }

    /// The first key with a pending change.
    pub(super) fn first_pending(&self) -> Option<&str> {
        self.pending.first().map(|own| &*own.key)
    }

    /// Why the changes must not be written with these pending changes.
    pub(super) fn unwritable_reason(&self, changes: &[FieldChange]) -> Option<UnwritableChange> {
        let foreign = self.pending.iter().find(|own| own.mark == PendingMark::Foreign);
        if let Some(own) = foreign {
            let key = own.key.clone();
            return Some(if reaches_host(&key) { UnwritableChange::ReachesHost(key) } else { UnwritableChange::ForeignPending(key) });
        }
        let is_as_planned = |change: &&FieldChange| {
            let found = self.pending.iter().find(|own| &*own.key == change.field.word()).map(|own| &own.mark);
            let planned = change
                .pending
                .as_ref()
                .map(|value| value.as_ref().map_or(PendingMark::Removal, |value| PendingMark::Value(value_hash(value))));
            found == planned.as_ref()
        };
        changes.iter().find(|change| !is_as_planned(change)).map(|change| UnwritableChange::PendingDiffers(change.field))
    }
}

impl PendingMark {
    fn word(&self) -> &str {
        match self {
            Self::Removal => "removal",
            Self::Foreign => "foreign",
            Self::Value(hash) => hash,
        }
    }

    fn parse(text: &str) -> Self {
        match text {
            "removal" => Self::Removal,
            "foreign" => Self::Foreign,
            hash => Self::Value(hash.into()),
        }
    }
}

/// Sixteen digits are enough: nobody gains from two values with equal hashes, and the plan shows both values.
fn value_hash(value: &FieldValue) -> Box<str> {
    let mut text = String::new();
    for byte in Sha256::digest(value.to_string()).iter().take(8) {
        let _ = write!(text, "{byte:02x}");
    }
    text.into()
}

#[cfg(test)]
mod tests {
    use converger_core::normalize::{ChangeEffect, Field};

    use super::*;

    fn test_basis(waiting: &[(&str, PendingMark)]) -> WriteBasis {
        let waiting = waiting.iter().map(|(key, mark)| PendingKey { key: (*key).into(), mark: mark.clone() }).collect();
        let (agent, net0) = (Some("1,fstrim_cloned_disks=1".into()), Some("virtio=BC:24:11:AA:00:01,bridge=vmbr0".into()));
        WriteBasis { digest: ConfigDigest::new("0fe8").expect("a digest"), agent, net0, pending: waiting }
    }

    fn cores_change(pending: Option<Option<FieldValue>>) -> [FieldChange; 1] {
        [FieldChange { field: Field::Cores, before: None, after: Some(FieldValue::Count(4)), pending, effect: ChangeEffect::AtRestart }]
    }

    #[test]
    fn basis_round_trips_as_text() {
        let own = test_basis(&[
            ("cores", PendingMark::Value(value_hash(&FieldValue::Count(2)))),
            ("balloon", PendingMark::Removal),
            ("hostpci0", PendingMark::Foreign),
        ]);
        assert_eq!(WriteBasis::parse(&own.to_text().expect("plain")), Some(own));
        let plain = WriteBasis::parse("0fe8").expect("a digest alone");
        assert_eq!((plain.to_text().as_deref(), plain.agent()), (Some("0fe8"), None));
        for bad in ["", "not a digest", "0fe8\n", "0fe8\nagent", "0fe8\nwaits cores", "0fe8\nagent a\nagent b", "0fe8\nother x"] {
            assert_eq!(WriteBasis::parse(bad), None, "{bad:?}");
        }
        assert_eq!(test_basis(&[("a\nwaits foreign b", PendingMark::Foreign)]).to_text(), None);
    }

    #[test]
    fn pending_values_must_match_the_plan() {
        let two = || PendingMark::Value(value_hash(&FieldValue::Count(2)));
        let otherwise = Some(UnwritableChange::PendingDiffers(Field::Cores));
        for (waiting, planned, refusal) in [
            (None, None, None),
            (Some(two()), Some(Some(FieldValue::Count(2))), None),
            (Some(PendingMark::Removal), Some(None), None),
            (Some(two()), None, otherwise.clone()),
            (None, Some(Some(FieldValue::Count(2))), otherwise.clone()),
            (Some(two()), Some(Some(FieldValue::Count(3))), otherwise.clone()),
            (Some(PendingMark::Removal), Some(Some(FieldValue::Count(2))), otherwise.clone()),
            (Some(two()), Some(None), otherwise),
        ] {
            let waiting: Vec<_> = waiting.into_iter().map(|mark| ("cores", mark)).collect();
            assert_eq!(test_basis(&waiting).unwritable_reason(&cores_change(planned.clone())), refusal, "{waiting:?} {planned:?}");
        }
        // The pending change of another managed key may be ours; the core has judged it.
        assert_eq!(test_basis(&[("memory", two())]).unwritable_reason(&cores_change(None)), None);
    }

    #[test]
    fn refuses_writes_while_an_undeclarable_key_is_pending() {
        let refusal = |key: &str| test_basis(&[(key, PendingMark::Foreign)]).unwritable_reason(&cores_change(None));
        assert_eq!(refusal("net0"), Some(UnwritableChange::ForeignPending("net0".into())));
        assert_eq!(refusal("cores"), Some(UnwritableChange::ForeignPending("cores".into())), "a value that is not understood");
        for key in ["args", "hostpci0", "lxc.mount.entry", "mp255"] {
            assert_eq!(refusal(key), Some(UnwritableChange::ReachesHost(key.into())));
        }
    }
}
