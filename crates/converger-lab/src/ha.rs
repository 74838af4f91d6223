//! High availability: what is wanted of a guest, what the manager believes, and what it does about
//! it every ten seconds.
//!
//! What never enters here: watchdogs. A node that lost its power is fenced once its lock has run out, one that is only cut off runs
//! on; and where a guest may be (groups, rules) is kept and not heeded.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::access::{ApiCaller, ROOT};
use crate::digest::sha1_hex;
use crate::events::{NewTask, ScheduledEvent};
use crate::guest::{LabGuest, LabGuestKind};
use crate::sections::{SectionFile, SectionSettings};
use crate::task_work::{GuestMigration, PreMoveShutdown, ShutdownWork, TaskWork};
use crate::world::World;

/// The manager and the nodes' agents look around so often.
const MANAGER_INTERVAL_MS: u64 = 10_000;

/// A node's lock runs out after so long; before, nobody may take its guests over.
const FENCE_DELAY_MS: u64 = 120_000;

/// So long a guest has for going down before it is moved, and is then ended by force.
const SHUTDOWN_TIMEOUT_MS: u64 = 60_000;

/// A guest under management.
#[derive(Clone, Debug, Default)]
pub(crate) struct HaResource {
    /// What is wanted: `started`, `stopped`, `disabled`, `ignored`.
    pub(crate) state: String,
    /// What the manager believes; nothing until it looked.
    pub(crate) believed: Option<String>,
    /// Set by hand: the manager leaves it alone.
    pub(crate) is_fixed: bool,
    /// Comment, group, how often to try, and what else is only kept.
    pub(crate) settings: SectionSettings,
    /// A request that the manager has not seen yet.
    pub(crate) request: Option<String>,
    /// Since when its node is known to be gone.
    pub(crate) lost_ms: Option<u64>,
    /// A task of the manager moves it.
    pub(crate) is_moving: bool,
}

impl HaResource {
    fn is_wanted_up(&self) -> bool {
        matches!(self.state.as_str(), "started" | "enabled")
    }

    /// What the manager believes after it has looked.
    fn next_belief(&self, running: bool) -> &'static str {
        match (self.state.as_str(), self.is_wanted_up(), running) {
            ("ignored", ..) => "ignored",
            (_, true, _) => "started",
            (_, false, true) => "request_stop",
            (_, false, false) => "stopped",
        }
    }

    /// Whether it has to be started, or stopped; nothing where it is as wanted, or left alone.
    fn missing_change(&self, running: bool) -> Option<bool> {
        let wanted = self.is_wanted_up();
        (wanted != running && self.state != "ignored").then_some(wanted)
    }

    /// A look would change nothing, on a node that is there.
    fn is_settled(&self, running: bool) -> bool {
        let is_known = self.believed.as_deref() == Some(self.next_belief(running));
        is_known && self.missing_change(running).is_none() && self.request.is_none() && self.lost_ms.is_none() && !self.is_moving
    }
}

/// The number of the guest in an id (`vm:100`).
fn vmid_of_service(sid: &str) -> u32 {
    sid.split(':').nth(1).and_then(|id| id.parse().ok()).unwrap_or(0)
}

/// Every guest under management, by its id (`vm:100`), and where they may be.
#[derive(Clone, Debug, Default)]
pub(crate) struct HaResources {
    all: BTreeMap<String, HaResource>,
    /// Until 8.
    pub(crate) groups: SectionFile,
    /// Since 9.
    pub(crate) rules: SectionFile,
}

impl HaResources {
    pub(crate) fn get(&self, sid: &str) -> Option<&HaResource> {
        self.all.get(sid)
    }

    /// What is managed of a guest. Most worlds manage none, and every answer about a guest asks.
    pub(crate) fn find_for_guest(&self, guest: &LabGuest) -> Option<&HaResource> {
        if self.all.is_empty() { None } else { self.all.get(&guest.ha_service_id()) }
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
    pub(crate) fn displayed_state(&self, guest: &LabGuest) -> Option<&str> {
        let resource = self.find_for_guest(guest)?;
        Some(resource.believed.as_deref().unwrap_or(&resource.state))
    }

    /// What `status/current` shows.
    pub(crate) fn status_json(&self, guest: &LabGuest) -> Value {
        match self.find_for_guest(guest).filter(|resource| resource.state != "ignored") {
            Some(resource) => json!({ "managed": 1, "state": resource.believed }),
            None => json!({ "managed": 0 }),
        }
    }

    /// State what is wanted. A start counts at once, anything else once the manager looks.
    pub(crate) fn request_state(&mut self, sid: &str, state: &str) {
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
        sha1_hex(&text)
    }
}

impl World {
    /// Put a guest under management.
    pub(crate) fn add_ha(&mut self, sid: &str, resource: HaResource) {
        if self.ha.all.is_empty() {
            self.schedule(self.now_ms.saturating_add(MANAGER_INTERVAL_MS), ScheduledEvent::RunHaManager);
        }
        self.ha.all.insert(sid.to_owned(), resource);
    }

    /// One look around: take requests over, and start or stop what is not as wanted.
    pub(crate) fn run_ha_manager(&mut self) {
        let ids: Vec<String> = self.ha.all.keys().cloned().collect();
        self.schedule_ha_manager();
        for sid in ids {
            self.manage_resource(&sid);
        }
    }

    /// The next look, as long as there is something to look at.
    pub(crate) fn schedule_ha_manager(&mut self) {
        if !self.ha.all.is_empty() {
            self.schedule(self.now_ms.saturating_add(MANAGER_INTERVAL_MS), ScheduledEvent::RunHaManager);
        }
    }

    /// Whether a look around would leave everything as it is.
    pub(crate) fn is_ha_settled(&self) -> bool {
        self.ha.all.iter().all(|(sid, resource)| {
            let Some(guest) = self.guests.get(&vmid_of_service(sid)) else { return true };
            let is_there = self.nodes.get(&guest.node).is_some_and(|node| node.online);
            is_there && (resource.is_fixed || !self.is_quorate(&guest.node) || resource.is_settled(guest.is_running()))
        })
    }

    fn manage_resource(&mut self, sid: &str) {
        let vmid = vmid_of_service(sid);
        let Some(guest) = self.guests.get(&vmid) else { return };
        let (node, kind, running) = (guest.node.clone(), guest.kind, guest.is_running());
        if !self.nodes.get(&node).is_some_and(|node| node.online) {
            return self.recover_guest(sid, vmid);
        }
        if !self.is_quorate(&node) {
            return;
        }
        let is_held = self.tasks.holders.contains_key(&vmid);
        let Some(resource) = self.ha.all.get_mut(sid).filter(|resource| !resource.is_fixed) else { return };
        resource.lost_ms = None;
        resource.is_moving &= is_held;
        if resource.is_moving {
            return;
        }
        if let Some(request) = resource.request.take() {
            match request.split_once(' ') {
                Some((verb, target)) => return self.move_ha_guest(sid, vmid, verb, target),
                None => resource.state = request,
            }
        }
        resource.believed = Some(resource.next_belief(running).to_owned());
        if let Some(wanted) = resource.missing_change(running).filter(|_| !is_held) {
            self.start_or_stop_guest(&node, kind, vmid, wanted);
        }
    }

    /// The node of a guest lost its power: the guest is fenced until the node's lock has run out, and one look later it is on another
    /// node, where the next look starts it.
    fn recover_guest(&mut self, sid: &str, vmid: u32) {
        let (now_ms, refuge) = (self.now_ms, self.pick_recovery_node());
        let Some(refuge) = refuge else { return };
        let is_wanted = |resource: &&mut HaResource| !resource.is_fixed && resource.is_wanted_up();
        let Some(resource) = self.ha.all.get_mut(sid).filter(is_wanted) else { return };
        resource.is_moving = false;
        let lost_ms = *resource.lost_ms.get_or_insert(now_ms);
        if resource.believed.as_deref() != Some("recovery") {
            let is_fenced = now_ms.saturating_sub(lost_ms) >= FENCE_DELAY_MS;
            resource.believed = Some(if is_fenced { "recovery" } else { "fence" }.to_owned());
            return;
        }
        resource.believed = Some("started".to_owned());
        resource.lost_ms = None;
        self.views.freeze_guest(vmid);
        if let Some(guest) = self.guests.change_guest(vmid) {
            guest.node = refuge;
        }
    }

    /// The node that takes a guest over: one that is there and has quorum, with the fewest guests under management.
    fn pick_recovery_node(&self) -> Option<String> {
        let managed =
            |node: &str| self.guests.values().filter(|guest| guest.node == node && self.ha.find_for_guest(guest).is_some()).count();
        let there = self.nodes.values().filter(|node| node.online && self.is_quorate(&node.name));
        there.min_by_key(|node| managed(&node.name)).map(|node| node.name.clone())
    }

    /// `migrate` takes a running machine along; `relocate` stops it first, as it always is with a container, and the next look around
    /// starts it again. A node that is not there takes nothing over.
    fn move_ha_guest(&mut self, sid: &str, vmid: u32, verb: &str, target: &str) {
        let Some(guest) = self.guests.get(&vmid) else { return };
        let (node, kind, running) = (guest.node.clone(), guest.kind, guest.is_running());
        if node == target || !self.is_reachable(&node, target) {
            return;
        }
        let online = running && verb == "migrate" && kind == LabGuestKind::Qemu;
        let down = (running && !online).then_some(PreMoveShutdown { timeout_ms: SHUTDOWN_TIMEOUT_MS, force: true });
        if let Some(resource) = self.ha.all.get_mut(sid) {
            (resource.believed, resource.is_moving) = (Some(verb.to_owned()), true);
        }
        let target = target.to_owned();
        let work =
            TaskWork::Migrate(GuestMigration { vmid, kind, target, online, shutdown_first: down, restarts: false, local_disks: false });
        let name = if kind == LabGuestKind::Qemu { "qmigrate" } else { "vzmigrate" };
        self.start_agent_task(&node, name, vmid, work);
    }

    /// The agent on the node starts tasks of its own, as root.
    fn start_or_stop_guest(&mut self, node: &str, kind: LabGuestKind, vmid: u32, start: bool) {
        let stop = ShutdownWork { kind, vmid, timeout_ms: SHUTDOWN_TIMEOUT_MS, force: true, reboot: false };
        let (verb, work) = if start { ("start", TaskWork::Start { kind, vmid }) } else { ("shutdown", TaskWork::Shutdown(stop)) };
        self.start_agent_task(node, &format!("{}{verb}", kind.task_prefix()), vmid, work);
    }

    fn start_agent_task(&mut self, node: &str, name: &str, vmid: u32, work: TaskWork) {
        let upid = self.start_task(NewTask::holding_guest(node, &ApiCaller::for_user(ROOT), name, vmid, work));
        if let Some((id, _)) = self.tasks.find_by_upid(&upid) {
            self.tasks.log_line(id, "task started by HA resource agent");
        }
    }
}
