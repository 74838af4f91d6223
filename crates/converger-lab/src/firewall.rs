//! Firewalls of the cluster, of nodes and of guests, as their files hold them.
//!
//! What never enters here: packets.

use std::collections::BTreeMap;
use std::fmt::Debug;

use crate::sections::SectionSettings;

/// Whose firewall it is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum FirewallScope {
    Cluster,
    Node(String),
    Guest(u32),
}

/// A name for an address.
#[derive(Clone, Debug, Default)]
pub(crate) struct FirewallAlias {
    /// As it was written; by its small letters it is found.
    pub(crate) name: String,
    pub(crate) cidr: String,
    pub(crate) comment: Option<String>,
}

/// A set of addresses.
#[derive(Clone, Debug, Default)]
pub(crate) struct IpSet {
    pub(crate) comment: Option<String>,
    pub(crate) entries: Vec<IpSetEntry>,
}

/// An address in a set.
#[derive(Clone, Debug, Default)]
pub(crate) struct IpSetEntry {
    pub(crate) cidr: String,
    pub(crate) comment: Option<String>,
    /// It is taken out of what the others of the set cover.
    pub(crate) nomatch: bool,
}

/// Rules under a name, for rules elsewhere to refer to.
#[derive(Clone, Debug, Default)]
pub(crate) struct SecurityGroup {
    pub(crate) comment: Option<String>,
    pub(crate) rules: Vec<SectionSettings>,
}

/// One firewall.
#[derive(Clone, Debug, Default)]
pub(crate) struct Firewall {
    pub(crate) options: SectionSettings,
    pub(crate) rules: Vec<SectionSettings>,
    pub(crate) aliases: BTreeMap<String, FirewallAlias>,
    pub(crate) ipsets: BTreeMap<String, IpSet>,
    /// Only the cluster has these.
    pub(crate) groups: BTreeMap<String, SecurityGroup>,
}

/// The digest of one list or table of a firewall: a pure hash of its content.
pub(crate) fn content_digest(content: &impl Debug) -> String {
    crate::digest::sha1_hex(&format!("{content:?}"))
}

/// Every firewall; most guests have none.
#[derive(Clone, Debug, Default)]
pub(crate) struct Firewalls {
    all: BTreeMap<FirewallScope, Firewall>,
    empty: Firewall,
}

impl Firewalls {
    pub(crate) fn get(&self, scope: &FirewallScope) -> &Firewall {
        self.all.get(scope).unwrap_or(&self.empty)
    }

    pub(crate) fn entry(&mut self, scope: FirewallScope) -> &mut Firewall {
        self.all.entry(scope).or_default()
    }

    pub(crate) fn remove_guest(&mut self, vmid: u32) {
        self.all.remove(&FirewallScope::Guest(vmid));
    }
}
