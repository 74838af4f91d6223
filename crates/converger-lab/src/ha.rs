//! High availability: what is wanted of a guest, what the manager believes, and what it does about
//! it every ten seconds.
//!
//! What never enters here: fencing and recovery by themselves. Such states can be set, and then they
//! stay.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::access::{ROOT, Who};
use crate::digest::sha1;
use crate::engine::{Event, Fork};
use crate::guest::{Guest, Kind};
use crate::sections::{Sections, Settings};
use crate::work::{Shutdown, Work};
use crate::world::World;

/// The manager and the nodes' agents look around so often.
const ROUND_MS: u64 = 10_000;

/// A guest under management.
#[derive(Clone, Debug, Default)]
pub(crate) struct HaResource {
    /// What is wanted: `started`, `stopped`, `disabled`, `ignored`.
    pub(crate) state: String,
    /// What the manager believes; nothing until it looked.
    pub(crate) believed: Option<String>,
    /// Set by hand: the manager leaves it alone.
    pub(crate) fixed: bool,
    /// Comment, group, how often to try, and what else is only kept.
    pub(crate) settings: Settings,
    /// A request that the manager has not seen yet.
    pub(crate) request: Option<String>,
}

/// Every guest under management, by its id (`vm:100`), and where they may be.
#[derive(Clone, Debug, Default)]
pub(crate) struct HaResources {
    all: BTreeMap<String, HaResource>,
    /// Until 8.
    pub(crate) groups: Sections,
    /// Since 9.
    pub(crate) rules: Sections,
}

impl HaResources {
    pub(crate) fn get(&self, sid: &str) -> Option<&HaResource> {
        self.all.get(sid)
    }

    /// What is managed of a guest. Most worlds manage none, and every answer about a guest asks.
    pub(crate) fn of(&self, guest: &Guest) -> Option<&HaResource> {
        if self.all.is_empty() { None } else { self.all.get(&guest.service()) }
    }

    pub(crate) fn get_mut(&mut self, sid: &str) -> Option<&mut HaResource> {
        self.all.get_mut(sid)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&String, &HaResource)> {
        self.all.iter()
    }

    pub(crate) fn remove(&mut self, sid: &str) -> bool {
        self.all.remove(sid).is_some()
    }

    /// Managed, and not to be ignored.
    pub(crate) fn is_managed(&self, sid: &str) -> bool {
        self.all.get(sid).is_some_and(|resource| resource.state != "ignored")
    }

    /// What lists show: the manager's belief, or what is wanted while there is none.
    pub(crate) fn shown_state(&self, guest: &Guest) -> Option<&str> {
        let resource = self.of(guest)?;
        Some(resource.believed.as_deref().unwrap_or(&resource.state))
    }

    /// What `status/current` shows.
    pub(crate) fn status(&self, guest: &Guest) -> Value {
        match self.of(guest).filter(|resource| resource.state != "ignored") {
            Some(resource) => json!({ "managed": 1, "state": resource.believed }),
            None => json!({ "managed": 0 }),
        }
    }

    /// State what is wanted. A start counts at once, anything else once the manager looks.
    pub(crate) fn request(&mut self, sid: &str, state: &str) {
        let Some(resource) = self.all.get_mut(sid) else { return };
        match state {
            "started" => state.clone_into(&mut resource.state),
            other => resource.request = Some(other.to_owned()),
        }
    }

    /// The digest of the shared file.
    pub(crate) fn digest(&self) -> String {
        let line = |(sid, resource): (&String, &HaResource)| format!("{sid} {} {:?}\n", resource.state, resource.settings);
        let text: String = self.all.iter().map(line).collect();
        sha1(&text)
    }
}

impl World {
    /// Put a guest under management.
    pub(crate) fn add_ha(&mut self, sid: &str, resource: HaResource) {
        if self.ha.all.is_empty() {
            self.schedule(self.now_ms.saturating_add(ROUND_MS), Event::Manage);
        }
        self.ha.all.insert(sid.to_owned(), resource);
    }

    /// One look around: take requests over, and start or stop what is not as wanted.
    pub(crate) fn manage(&mut self) {
        let ids: Vec<String> = self.ha.all.keys().cloned().collect();
        if ids.is_empty() {
            return;
        }
        self.schedule(self.now_ms.saturating_add(ROUND_MS), Event::Manage);
        for sid in ids {
            self.manage_one(&sid);
        }
    }

    fn manage_one(&mut self, sid: &str) {
        let vmid = sid.split(':').nth(1).and_then(|id| id.parse::<u32>().ok()).unwrap_or(0);
        let Some(guest) = self.guests.get(&vmid) else { return };
        let (node, kind, running) = (guest.node.clone(), guest.kind, guest.is_running());
        if !self.is_quorate(&node) {
            return;
        }
        let Some(resource) = self.ha.all.get_mut(sid).filter(|resource| !resource.fixed) else { return };
        if let Some(request) = resource.request.take() {
            match request.split_once(' ') {
                Some((verb, target)) => return self.move_guest(vmid, verb, target),
                None => resource.state = request,
            }
        }
        let wanted = matches!(resource.state.as_str(), "started" | "enabled");
        let believed = match (wanted, running) {
            (true, _) => "started",
            (false, true) => "request_stop",
            (false, false) => "stopped",
        };
        let ignored = resource.state == "ignored";
        resource.believed = Some(if ignored { "ignored" } else { believed }.to_owned());
        if wanted != running && !ignored && !self.tasks.holders.contains_key(&vmid) {
            self.act_for(&node, kind, vmid, wanted);
        }
    }

    /// `migrate` takes a running guest along; `relocate` stops it first, and the next look around starts it again.
    fn move_guest(&mut self, vmid: u32, verb: &str, target: &str) {
        let known = self.nodes.contains_key(target);
        self.views.freeze(vmid);
        if let Some(guest) = self.guests.change(vmid).filter(|_| known) {
            target.clone_into(&mut guest.node);
            guest.process = guest.process.take().filter(|_| verb == "migrate");
        }
    }

    /// The agent on the node starts tasks of its own, as root.
    fn act_for(&mut self, node: &str, kind: Kind, vmid: u32, start: bool) {
        let root = Who::user(ROOT);
        let stop = Shutdown { kind, vmid, timeout_ms: 60_000, force: true, reboot: false };
        let (verb, work) = if start { ("start", Work::Start { kind, vmid }) } else { ("shutdown", Work::Shutdown(stop)) };
        let upid = self.fork(Fork::holding(node, &root, &format!("{}{verb}", kind.prefix()), vmid, work));
        if let Some((id, _)) = self.tasks.find(&upid) {
            self.tasks.log(id, "task started by HA resource agent");
        }
    }
}
