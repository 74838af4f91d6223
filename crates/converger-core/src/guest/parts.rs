//! Names of the parts of a guest: snapshots, disks and the storages that hold them. Each is validated once.
//!
//! Must not depend on what is declared or observed.

use std::fmt;

use serde::{Serialize, Serializer};

use super::GuestKind;

/// The name of a snapshot, as both kinds of guests accept it: a letter, then letters, digits, `_` and `-`, 2 to 40 in total.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct SnapshotName(Box<str>);

impl SnapshotName {
    /// Parses a well-formed name that Proxmox has not reserved.
    #[must_use]
    pub fn new(text: &str) -> Option<Self> {
        let is_reserved = ["current", "pending", "vzdump"].iter().any(|word| text.eq_ignore_ascii_case(word));
        (is_config_id(text) && text.len() <= 40 && !is_reserved).then(|| Self(text.into()))
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The name of a storage: a letter, then letters, digits, `-`, `_` and `.`, ending in a letter or digit.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct StorageName(Box<str>);

impl StorageName {
    /// Parses a well-formed name.
    #[must_use]
    pub fn new(text: &str) -> Option<Self> {
        let starts = text.starts_with(|first: char| first.is_ascii_alphabetic());
        let ends = text.ends_with(|last: char| last.is_ascii_alphanumeric());
        let fits = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'));
        (starts && ends && fits && (2..=100).contains(&text.len())).then(|| Self(text.into()))
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

fn is_config_id(text: &str) -> bool {
    let starts = text.starts_with(|first: char| first.is_ascii_alphabetic());
    starts && text.len() >= 2 && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
}

/// A disk of a guest by its config key, such as `scsi0` or `rootfs`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct DiskKey(Box<str>);

/// The buses of each kind of guest, with their number of disks.
const BUSES: [(GuestKind, &str, u32); 6] = [
    (GuestKind::Qemu, "ide", 4),
    (GuestKind::Qemu, "sata", 6),
    (GuestKind::Qemu, "scsi", 31),
    (GuestKind::Qemu, "virtio", 16),
    (GuestKind::Qemu, "efidisk", 1),
    (GuestKind::Lxc, "mp", 256),
];

impl DiskKey {
    /// Parses the key of a disk that a guest of this kind can have. `tpmstate0` cannot grow and is excluded.
    #[must_use]
    pub fn new(kind: GuestKind, text: &str) -> Option<Self> {
        // Most other keys do not end in a digit, so this check is quick.
        if !text.ends_with(|last: char| last.is_ascii_digit() || last == 's') {
            return None;
        }
        let is_root = kind == GuestKind::Lxc && text == "rootfs";
        let is_on_bus =
            BUSES.iter().any(|(own, bus, count)| *own == kind && text.strip_prefix(bus).is_some_and(|rest| is_index(rest, *count)));
        (is_root || is_on_bus).then(|| Self(text.into()))
    }

    /// The key as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Whether the text is a number below `count`, without leading zeros.
fn is_index(text: &str, count: u32) -> bool {
    text.parse::<u32>().is_ok_and(|number| number < count && number.to_string() == text)
}

/// The size of a disk in whole KiB. Always absolute: a relative size would grow the disk again with every retry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DiskSize {
    kib: u64,
}

impl DiskSize {
    /// A size in KiB; `None` for 0.
    #[must_use]
    pub fn from_kib(kib: u64) -> Option<Self> {
        (kib > 0).then_some(Self { kib })
    }

    /// The size in KiB.
    #[must_use]
    pub fn kib(self) -> u64 {
        self.kib
    }

    /// Parses the size in a config key, such as `32G`, `1536M`, `4M`, `528K` or a number of bytes.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let digits = text.trim_end_matches(['K', 'M', 'G', 'T']);
        let number: u64 = digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok())??;
        let kib = match text.get(digits.len()..)? {
            "" => Some(number / 1024),
            "K" => Some(number),
            "M" => number.checked_mul(1 << 10),
            "G" => number.checked_mul(1 << 20),
            "T" => number.checked_mul(1 << 30),
            _ => None,
        };
        Self::from_kib(kib?)
    }
}

/// Formats the size in the largest exact unit, as Proxmox does.
impl fmt::Display for DiskSize {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [(30, "T"), (20, "G"), (10, "M")];
        let exact = units.iter().find(|(shift, _)| self.kib.is_multiple_of(1 << shift));
        match exact {
            Some((shift, unit)) => write!(formatter, "{}{unit}", self.kib >> shift),
            None => write!(formatter, "{}K", self.kib),
        }
    }
}

/// Serialised in KiB, which every artifact uses.
impl Serialize for DiskSize {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(self.kib)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_snapshot_names() {
        for bad in ["", "a", "1a", "a b", "current", "Pending", "vzdump", "a/b", "ä-x", &"a".repeat(41)] {
            assert!(SnapshotName::new(bad).is_none(), "{bad:?}");
        }
        for good in ["s1", "before_upgrade-2", &"a".repeat(40)] {
            assert!(SnapshotName::new(good).is_some(), "{good:?}");
        }
    }

    #[test]
    fn parses_storage_names() {
        assert!(StorageName::new("local-zfs").is_some() && StorageName::new("dir1").is_some());
        for bad in ["", "1a", "a", "a-", "a:b", "a/b"] {
            assert!(StorageName::new(bad).is_none(), "{bad:?}");
        }
    }

    #[test]
    fn parses_disk_keys() {
        for good in ["ide3", "sata5", "scsi30", "virtio15", "efidisk0"] {
            assert!(DiskKey::new(GuestKind::Qemu, good).is_some(), "{good}");
            assert!(DiskKey::new(GuestKind::Lxc, good).is_none(), "{good}");
        }
        for bad in ["ide4", "scsi31", "scsi", "scsi00", "scsi-1", "unused0", "tpmstate0", "rootfs", "hostpci0", "args"] {
            assert!(DiskKey::new(GuestKind::Qemu, bad).is_none(), "{bad}");
        }
        assert!(DiskKey::new(GuestKind::Lxc, "rootfs").is_some() && DiskKey::new(GuestKind::Lxc, "mp255").is_some());
        assert!(DiskKey::new(GuestKind::Lxc, "mp256").is_none());
    }

    #[test]
    fn sizes_are_absolute_and_read_back_as_written() {
        for text in ["32G", "1536M", "1T", "4M", "528K"] {
            assert_eq!(DiskSize::parse(text).map(|size| size.to_string()).as_deref(), Some(text));
        }
        assert_eq!(DiskSize::parse("1024G"), DiskSize::parse("1T"));
        assert_eq!(DiskSize::parse("1048576"), DiskSize::parse("1M"));
        for bad in ["", "0", "0G", "+1G", "++8G", "+banana", "-1G", "1.5G", "1GG", "G", "1KM", "99999999999999999999T"] {
            assert_eq!(DiskSize::parse(bad), None, "{bad}");
        }
    }
}
