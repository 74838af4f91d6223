//! Typed identifiers in paths and parameters of Proxmox. Each is validated once, so that a command cannot contain an invalid one.
//!
//! Names of guests, nodes, snapshots, storages and disks are core types and are not defined here.

pub use converger_core::guest::{DiskKey, DiskSize, SnapshotName, StorageName};
use converger_core::guest::{GuestKind, NodeName, Vmid};

/// The node, kind and id of a guest, which every call about it needs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct GuestPath {
    /// Its current node.
    pub node: NodeName,
    /// Its kind, which is part of the path.
    pub kind: GuestKind,
    /// Its id.
    pub vmid: Vmid,
}

/// The id of a user: `name@realm`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct UserId(Box<str>);

impl UserId {
    /// Parses a well-formed id. A token id, which has a `!` after the realm, is not a user id.
    #[must_use]
    pub fn new(text: &str) -> Option<Self> {
        let (name, realm) = text.rsplit_once('@')?;
        let is_name = !name.is_empty() && !name.contains(|own: char| own.is_whitespace() || own.is_control() || matches!(own, ':' | '/'));
        let is_realm = realm.len() >= 2 && realm.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_'));
        (is_name && is_realm && text.len() <= 256).then(|| Self(text.into()))
    }

    /// The id as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The digest of a config: hexadecimal, at most 40 digits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigDigest(Box<str>);

impl ConfigDigest {
    /// Parses a well-formed digest.
    #[must_use]
    pub fn new(text: &str) -> Option<Self> {
        let fits = (1..=40).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        fits.then(|| Self(text.into()))
    }

    /// The digest as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_user_ids() {
        for good in ["root@pam", "a@b@pve", "svc-x@my.realm"] {
            assert!(UserId::new(good).is_some(), "{good}");
        }
        for bad in ["", "root", "@pam", "root@pam!x", "ro ot@pam", "a/b@pam", "root@"] {
            assert!(UserId::new(bad).is_none(), "{bad}");
        }
    }

    #[test]
    fn digest_is_hexadecimal() {
        assert!(ConfigDigest::new("90c9867238def2fe4d646be13e412474af227aee").is_some());
        assert!(ConfigDigest::new("").is_none() && ConfigDigest::new("xyz").is_none() && ConfigDigest::new(&"a".repeat(41)).is_none());
    }
}
