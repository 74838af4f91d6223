//! The stored firewalls of the cluster, of nodes and of guests.
//!
//! No packets are filtered.

use std::collections::BTreeMap;
use std::fmt::Debug;

use crate::sections::SectionSettings;

/// What a firewall belongs to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum FirewallScope {
    Cluster,
    Node(String),
    Guest(u32),
}

/// A named address.
#[derive(Clone, Debug, Default)]
pub(crate) struct FirewallAlias {
    /// The name as written; lookup uses lower case.
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
    /// Excludes this address from what the other entries cover.
    pub(crate) nomatch: bool,
}

/// A named list of rules that other rules can refer to.
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
    /// Only the cluster has security groups.
    pub(crate) groups: BTreeMap<String, SecurityGroup>,
}

/// The digest of a list or table of a firewall, which depends on its content only.
pub(crate) fn content_digest(content: &impl Debug) -> String {
    crate::digest::sha1_hex(&format!("{content:?}"))
}

/// All firewalls; most guests have none.
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
