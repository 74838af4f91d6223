//! Firewalls of guests: options and rules as they are stored.
//!
//! What never enters here: packets.

use std::collections::BTreeMap;

/// The firewall of one guest.
#[derive(Clone, Debug, Default)]
pub(crate) struct Firewall {
    pub(crate) options: BTreeMap<String, String>,
    pub(crate) rules: Vec<BTreeMap<String, String>>,
}

impl Firewall {
    /// The digest of the shared file.
    pub(crate) fn digest(&self) -> String {
        let text = format!("{:?}\n{:?}\n", self.options, self.rules);
        crate::digest::sha1(&text)
    }
}

/// Firewalls by guest; most have none.
#[derive(Clone, Debug, Default)]
pub(crate) struct Firewalls(BTreeMap<u32, Firewall>);

impl Firewalls {
    pub(crate) fn get(&self, vmid: u32) -> Firewall {
        self.0.get(&vmid).cloned().unwrap_or_default()
    }

    pub(crate) fn entry(&mut self, vmid: u32) -> &mut Firewall {
        self.0.entry(vmid).or_default()
    }

    pub(crate) fn forget(&mut self, vmid: u32) {
        self.0.remove(&vmid);
    }
}
