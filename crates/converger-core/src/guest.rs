//! Basic types for a guest: ids, names, kinds and birth marks, each parsed once into a type that is always valid.
//!
//! Must not depend on what is declared (`desired`) or observed (`observe`).

mod day_one;
mod parts;

use std::fmt;
use std::sync::Arc;

use serde::{Serialize, Serializer};

pub use day_one::{
    AddressSetting, Addresses, BridgeName, CloudInitUser, CpuType, DayOne, DomainName, IpList, MacAddress, SecretReference, SshPublicKey,
    VlanTag, parse_ssh_keys,
};
pub use parts::{DiskKey, DiskSize, SnapshotName, StorageName};

/// The id of a guest, unique in its environment over both kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct Vmid(u32);

impl Vmid {
    /// The smallest id that Proxmox assigns.
    pub const MIN: u32 = 100;
    /// The largest.
    pub const MAX: u32 = 999_999_999;

    /// Checks that the id is within the bounds of Proxmox.
    #[must_use]
    pub fn new(number: u64) -> Option<Self> {
        let number = u32::try_from(number).ok()?;
        (Self::MIN..=Self::MAX).contains(&number).then_some(Self(number))
    }

    /// The number.
    #[must_use]
    pub fn get(self) -> u32 {
        self.0
    }
}

impl fmt::Display for Vmid {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

/// The kind of a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum GuestKind {
    /// A virtual machine.
    Qemu,
    /// A container.
    Lxc,
}

impl GuestKind {
    /// Both kinds.
    pub const ALL: [Self; 2] = [Self::Qemu, Self::Lxc];
    /// Their words, in the order of [`GuestKind::ALL`].
    pub const WORDS: [&'static str; 2] = ["qemu", "lxc"];

    /// The word for it.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Qemu => "qemu",
            Self::Lxc => "lxc",
        }
    }
}

impl fmt::Display for GuestKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.word())
    }
}

/// A definite run-state, declared or observed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum RunState {
    /// Its process or container runs.
    Running,
    /// Its process or container does not run.
    Stopped,
}

impl RunState {
    /// The word for it.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Stopped => "stopped",
        }
    }
}

/// The name of a guest as Proxmox accepts it: DNS labels joined by dots, at most 255 characters.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct GuestName(Box<str>);

impl GuestName {
    /// Checks that Proxmox accepts the name.
    #[must_use]
    pub fn new(text: &str) -> Option<Self> {
        (text.len() <= 255 && text.split('.').all(is_label)).then(|| Self(text.into()))
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Serialises a name that many rows share without copying it.
fn serialize_shared<S: Serializer>(text: &Arc<str>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(text)
}

/// The name of an environment: lower-case letters, digits, `-` and `_`, at most 64.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct EnvironmentName(#[serde(serialize_with = "serialize_shared")] Arc<str>);

impl EnvironmentName {
    /// Checks that the name is well-formed.
    #[must_use]
    pub fn new(text: &str) -> Option<Self> {
        let starts = text.starts_with(|first: char| first.is_ascii_lowercase() || first.is_ascii_digit());
        let fits = text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'_'));
        (starts && fits && text.len() <= 64).then(|| Self(text.into()))
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for EnvironmentName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// The identity of a cluster: the SHA-256 fingerprint of its root CA, which does not depend on the cluster's name or address.
///
/// Stored as displayed by Proxmox and `openssl x509 -fingerprint -sha256`: 32 upper-case hexadecimal pairs with colons.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct ClusterIdentity(Box<str>);

impl ClusterIdentity {
    /// Parses a fingerprint, in upper or lower case.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let is_pair = |pair: &str| pair.len() == 2 && pair.bytes().all(|byte| byte.is_ascii_hexdigit());
        let fits = text.len() == 95 && text.split(':').count() == 32 && text.split(':').all(is_pair);
        fits.then(|| Self(text.to_ascii_uppercase().into()))
    }

    /// The fingerprint.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ClusterIdentity {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// The name of a node: one DNS label.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct NodeName(#[serde(serialize_with = "serialize_shared")] Arc<str>);

impl NodeName {
    /// Checks that the name is well-formed.
    #[must_use]
    pub fn new(text: &str) -> Option<Self> {
        (text.len() <= 63 && is_label(text)).then(|| Self(text.into()))
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

fn is_label(text: &str) -> bool {
    let fits = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    !text.is_empty() && fits && !text.starts_with('-') && !text.ends_with('-')
}

/// Whether a tag can be declared. Proxmox stores it in lower case unless the datacenter preserves letter case.
#[must_use]
pub fn is_tag(text: &str) -> bool {
    is_observed_tag(text) && text.len() <= 124
}

/// Whether Proxmox may have such a tag: any letter case and any length. Any other text may only look like a tag, or be several tags that
/// were not split, and hide one that protects.
#[must_use]
pub fn is_observed_tag(text: &str) -> bool {
    let starts = text.starts_with(|first: char| first.is_ascii_alphanumeric() || first == '_');
    starts && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'+' | b'.'))
}

/// The birth marks of a guest; after an id is reused, they differ. A mark that the guest does not have is `None`.
///
/// `vmgenid` is not a birth mark: it changes on rollback.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GuestIdentity {
    /// The marks of a virtual machine.
    Qemu {
        /// `smbios1.uuid`, in lower case.
        uuid: Option<Box<str>>,
        /// `meta.ctime`, seconds since 1970.
        ctime: Option<u64>,
    },
    /// The marks of a container.
    Lxc {
        /// The volume of its root file system.
        rootfs: Option<Box<str>>,
        /// The first MAC address, in upper case.
        mac: Option<Box<str>>,
    },
}

impl GuestIdentity {
    /// Whether `other` has every mark of `self`. Marks that `self` lacks are not compared: a pin covers only the marks that it contains.
    ///
    /// Nearly all pins match, and this check does not allocate; [`GuestIdentity::differences`] describes what differs.
    #[must_use]
    pub fn holds_for(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Qemu { uuid, ctime }, Self::Qemu { uuid: their_uuid, ctime: their_ctime }) => {
                (uuid.is_none() || uuid == their_uuid) && (ctime.is_none() || ctime == their_ctime)
            }
            (Self::Lxc { rootfs, mac }, Self::Lxc { rootfs: their_rootfs, mac: their_mac }) => {
                (rootfs.is_none() || rootfs == their_rootfs) && (mac.is_none() || mac == their_mac)
            }
            (Self::Qemu { .. }, Self::Lxc { .. }) | (Self::Lxc { .. }, Self::Qemu { .. }) => false,
        }
    }

    /// Describes the marks of `self` that `other` lacks or has with another value.
    #[must_use]
    pub fn differences(&self, other: &Self) -> Vec<String> {
        let other_marks = other.marks();
        let own_marks = self.marks().into_iter().filter_map(|(name, mark)| Some((name, mark?)));
        own_marks
            .filter_map(|(name, mark)| {
                let their = other_marks.iter().find(|(other, _)| *other == name).and_then(|(_, mark)| mark.clone());
                (their.as_deref() != Some(&*mark))
                    .then(|| format!("{name}: pinned {mark}, observed {}", their.as_deref().unwrap_or("absent")))
            })
            .collect()
    }

    /// Each mark with its name, sorted by name.
    #[must_use]
    pub fn marks(&self) -> [(&'static str, Option<String>); 2] {
        match self {
            Self::Qemu { uuid, ctime } => [("ctime", ctime.map(|ctime| ctime.to_string())), ("uuid", uuid.as_deref().map(Into::into))],
            Self::Lxc { rootfs, mac } => [("mac", mac.as_deref().map(Into::into)), ("rootfs", rootfs.as_deref().map(Into::into))],
        }
    }
}

impl Serialize for GuestIdentity {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeMap;
        let mut map = serializer.serialize_map(None)?;
        match self {
            Self::Qemu { uuid, ctime } => {
                if let Some(ctime) = ctime {
                    map.serialize_entry("ctime", ctime)?;
                }
                if let Some(uuid) = uuid {
                    map.serialize_entry("uuid", uuid)?;
                }
            }
            Self::Lxc { rootfs, mac } => {
                if let Some(mac) = mac {
                    map.serialize_entry("mac", mac)?;
                }
                if let Some(rootfs) = rootfs {
                    map.serialize_entry("rootfs", rootfs)?;
                }
            }
        }
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejects_ids_out_of_bounds() {
        assert!(Vmid::new(99).is_none());
        assert!(Vmid::new(1_000_000_000).is_none());
        assert!(Vmid::new(u64::MAX).is_none());
        assert_eq!(Vmid::new(100).map(Vmid::get), Some(100));
        assert_eq!(Vmid::new(999_999_999).map(Vmid::get), Some(999_999_999));
    }

    #[test]
    fn names_are_dns_labels() {
        for bad in ["", "-a", "a-", "a..b", "a_b", "a b", "é", "../x", "a\n", "%2e"] {
            assert!(GuestName::new(bad).is_none(), "{bad:?}");
        }
        for good in ["a", "web-1", "PROD-db", "a.b.example", "3com"] {
            assert!(GuestName::new(good).is_some(), "{good:?}");
        }
        assert!(GuestName::new(&"a".repeat(256)).is_none());
        assert!(NodeName::new("pve.1").is_none());
        assert!(EnvironmentName::new("Lab").is_none());
    }

    #[test]
    fn rejects_a_cluster_identity_that_is_not_a_sha256_fingerprint() {
        let good = ["0A"; 32].join(":");
        assert_eq!(ClusterIdentity::parse(&good.to_lowercase()).as_ref().map(ClusterIdentity::as_str), Some(good.as_str()));
        let short = ["0A"; 31].join(":");
        for bad in
            ["", "0A", &short, &good.replace(':', ""), &good.replace("0A:", "0AA:"), &good.replacen('A', "G", 1), &format!("{good}:0A")]
        {
            assert_eq!(ClusterIdentity::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn tags_are_words_in_any_case() {
        for bad in ["", "a;b", "a b", "-a", "é"] {
            assert!(!is_tag(bad), "{bad:?}");
        }
        for good in ["prod", "Prod", "_x", "web-1", "c++", "v1.2"] {
            assert!(is_tag(good), "{good:?}");
        }
    }

    #[test]
    fn observed_tags_may_be_longer_and_upper_case() {
        for bad in ["", " ", "#1", "é", "-a", "a;b", "a,b", "a b", "a\0b", "prod\u{200b}"] {
            assert!(!is_observed_tag(bad), "{bad:?}");
        }
        for good in ["prod", "Prod", "_x", &"x".repeat(300)] {
            assert!(is_observed_tag(good), "{good:?}");
        }
        assert!(!is_tag(&"x".repeat(125)) && is_tag(&"x".repeat(124)));
    }

    #[test]
    fn pin_compares_only_the_marks_that_it_contains() {
        let seen = GuestIdentity::Qemu { uuid: Some("a".into()), ctime: None };
        let pin = |uuid: Option<&str>, ctime| GuestIdentity::Qemu { uuid: uuid.map(Into::into), ctime };
        assert!(pin(Some("a"), None).holds_for(&seen) && pin(Some("a"), None).differences(&seen).is_empty());
        assert_eq!(pin(Some("b"), Some(5)).differences(&seen), ["ctime: pinned 5, observed absent", "uuid: pinned b, observed a"]);
        assert!(!pin(Some("b"), None).holds_for(&seen) && !pin(None, Some(5)).holds_for(&seen));
    }

    #[test]
    fn pin_matches_exactly_if_there_are_no_differences() {
        let values = [None, Some("a"), Some("b")].map(|value| value.map(Box::from));
        let ctime = |value: &Option<Box<str>>| value.as_ref().map(|value| u64::from(&**value == "a"));
        let pairs = values.iter().flat_map(|left| values.iter().map(move |right| (left.clone(), right.clone())));
        let identities: Vec<GuestIdentity> = pairs
            .flat_map(|(left, right)| {
                let ctime = ctime(&right);
                [GuestIdentity::Qemu { uuid: left.clone(), ctime }, GuestIdentity::Lxc { rootfs: left, mac: right }]
            })
            .collect();
        let is_same_kind = |left: &GuestIdentity, right: &GuestIdentity| std::mem::discriminant(left) == std::mem::discriminant(right);
        for (pinned, seen) in identities.iter().flat_map(|pinned| identities.iter().map(move |seen| (pinned, seen))) {
            // A pin of the other kind does not occur in a plan, because kinds are compared first.
            let expected = is_same_kind(pinned, seen) && pinned.differences(seen).is_empty();
            assert_eq!(pinned.holds_for(seen), expected, "{pinned:?} {seen:?}");
        }
    }
}
