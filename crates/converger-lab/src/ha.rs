//! High availability: what is wanted of a guest, what the manager believes, and what it does about
//! it every ten seconds.
//!
//! What never enters here: watchdogs. A node that lost its power is fenced once its lock has run out, one that is only cut off runs
//! on; and where a guest may be (groups, rules) is kept and not heeded.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::access::{ROOT, Who};
use crate::digest::sha1;
use crate::engine::{Event, Fork};
use crate::guest::{Guest, Kind};
use crate::sections::{Sections, Settings};
use crate::work::{Down, Migration, Shutdown, Work};
use crate::world::World;

/// The manager and the nodes' agents look around so often.
const ROUND_MS: u64 = 10_000;

/// A node's lock runs out after so long; before, nobody may take its guests over.
const FENCE_MS: u64 = 120_000;

/// So long a guest has for going down before it is moved, and is then ended by force.
const DOWN_MS: u64 = 60_000;

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
    /// Since when its node is known to be gone.
    pub(crate) lost_ms: Option<u64>,
    /// A task of the manager moves it.
    pub(crate) moves: bool,
}

impl HaResource {
    fn is_wanted_up(&self) -> bool {
        matches!(self.state.as_str(), "started" | "enabled")
    }

    /// What the manager believes after it has looked.
    fn belief(&self, running: bool) -> &'static str {
        match (self.state.as_str(), self.is_wanted_up(), running) {
            ("ignored", ..) => "ignored",
            (_, true, _) => "started",
            (_, false, true) => "request_stop",
            (_, false, false) => "stopped",
        }
    }

    /// Whether it has to be started, or stopped; nothing where it is as wanted, or left alone.
    fn lacks(&self, running: bool) -> Option<bool> {
        let wanted = self.is_wanted_up();
        (wanted != running && self.state != "ignored").then_some(wanted)
    }

    /// A look would change nothing, on a node that is there.
    fn is_at_rest(&self, running: bool) -> bool {
        let is_known = self.believed.as_deref() == Some(self.belief(running));
        is_known && self.lacks(running).is_none() && self.request.is_none() && self.lost_ms.is_none() && !self.moves
    }
}

/// The number of the guest in an id (`vm:100`).
fn number_of(sid: &str) -> u32 {
    sid.split(':').nth(1).and_then(|id| id.parse().ok()).unwrap_or(0)
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
        self.look_again();
        for sid in ids {
            self.manage_one(&sid);
        }
    }

    /// The next look, as long as there is something to look at.
    pub(crate) fn look_again(&mut self) {
        if !self.ha.all.is_empty() {
            self.schedule(self.now_ms.saturating_add(ROUND_MS), Event::Manage);
        }
    }

    /// Whether a look around would leave everything as it is.
    pub(crate) fn is_managed(&self) -> bool {
        self.ha.all.iter().all(|(sid, resource)| {
            let Some(guest) = self.guests.get(&number_of(sid)) else { return true };
            let is_there = self.nodes.get(&guest.node).is_some_and(|node| node.online);
            is_there && (resource.fixed || !self.is_quorate(&guest.node) || resource.is_at_rest(guest.is_running()))
        })
    }

    fn manage_one(&mut self, sid: &str) {
        let vmid = number_of(sid);
        let Some(guest) = self.guests.get(&vmid) else { return };
        let (node, kind, running) = (guest.node.clone(), guest.kind, guest.is_running());
        if !self.nodes.get(&node).is_some_and(|node| node.online) {
            return self.recover(sid, vmid);
        }
        if !self.is_quorate(&node) {
            return;
        }
        let is_held = self.tasks.holders.contains_key(&vmid);
        let Some(resource) = self.ha.all.get_mut(sid).filter(|resource| !resource.fixed) else { return };
        resource.lost_ms = None;
        resource.moves &= is_held;
        if resource.moves {
            return;
        }
        if let Some(request) = resource.request.take() {
            match request.split_once(' ') {
                Some((verb, target)) => return self.move_guest(sid, vmid, verb, target),
                None => resource.state = request,
            }
        }
        resource.believed = Some(resource.belief(running).to_owned());
        if let Some(wanted) = resource.lacks(running).filter(|_| !is_held) {
            self.act_for(&node, kind, vmid, wanted);
        }
    }

    /// The node of a guest lost its power: the guest is fenced until the node's lock has run out, and one look later it is on another
    /// node, where the next look starts it.
    fn recover(&mut self, sid: &str, vmid: u32) {
        let (now_ms, refuge) = (self.now_ms, self.refuge());
        let Some(refuge) = refuge else { return };
        let is_wanted = |resource: &&mut HaResource| !resource.fixed && resource.is_wanted_up();
        let Some(resource) = self.ha.all.get_mut(sid).filter(is_wanted) else { return };
        resource.moves = false;
        let lost_ms = *resource.lost_ms.get_or_insert(now_ms);
        if resource.believed.as_deref() != Some("recovery") {
            let is_fenced = now_ms.saturating_sub(lost_ms) >= FENCE_MS;
            resource.believed = Some(if is_fenced { "recovery" } else { "fence" }.to_owned());
            return;
        }
        resource.believed = Some("started".to_owned());
        resource.lost_ms = None;
        self.views.freeze(vmid);
        if let Some(guest) = self.guests.change(vmid) {
            guest.node = refuge;
        }
    }

    /// The node that takes a guest over: one that is there and has quorum, with the fewest guests under management.
    fn refuge(&self) -> Option<String> {
        let managed = |node: &str| self.guests.values().filter(|guest| guest.node == node && self.ha.of(guest).is_some()).count();
        let there = self.nodes.values().filter(|node| node.online && self.is_quorate(&node.name));
        there.min_by_key(|node| managed(&node.name)).map(|node| node.name.clone())
    }

    /// `migrate` takes a running machine along; `relocate` stops it first, as it always is with a container, and the next look around
    /// starts it again. A node that is not there takes nothing over.
    fn move_guest(&mut self, sid: &str, vmid: u32, verb: &str, target: &str) {
        let Some(guest) = self.guests.get(&vmid) else { return };
        let (node, kind, running) = (guest.node.clone(), guest.kind, guest.is_running());
        if node == target || !self.reaches(&node, target) {
            return;
        }
        let online = running && verb == "migrate" && kind == Kind::Qemu;
        let down = (running && !online).then_some(Down { timeout_ms: DOWN_MS, force: true });
        if let Some(resource) = self.ha.all.get_mut(sid) {
            (resource.believed, resource.moves) = (Some(verb.to_owned()), true);
        }
        let target = target.to_owned();
        let work = Work::Migrate(Migration { vmid, kind, target, online, down, comes_up: false, local_disks: false });
        let name = if kind == Kind::Qemu { "qmigrate" } else { "vzmigrate" };
        self.fork_as_agent(&node, name, vmid, work);
    }

    /// The agent on the node starts tasks of its own, as root.
    fn act_for(&mut self, node: &str, kind: Kind, vmid: u32, start: bool) {
        let stop = Shutdown { kind, vmid, timeout_ms: DOWN_MS, force: true, reboot: false };
        let (verb, work) = if start { ("start", Work::Start { kind, vmid }) } else { ("shutdown", Work::Shutdown(stop)) };
        self.fork_as_agent(node, &format!("{}{verb}", kind.prefix()), vmid, work);
    }

    fn fork_as_agent(&mut self, node: &str, name: &str, vmid: u32, work: Work) {
        let upid = self.fork(Fork::holding(node, &Who::user(ROOT), name, vmid, work));
        if let Some((id, _)) = self.tasks.find(&upid) {
            self.tasks.log(id, "task started by HA resource agent");
        }
    }
}
