//! High availability: the requested state of guests, the state that the HA manager reports, and
//! what the manager does every ten seconds.
//!
//! There is no watchdog: a node without power is fenced once its lock has expired, and a node that
//! is only cut off keeps running. Placement restrictions (groups, rules) are stored but not
//! applied.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::access::{ApiCaller, ROOT};
use crate::digest::sha1_hex;
use crate::events::{NewTask, ScheduledEvent};
use crate::guest::{LabGuest, LabGuestKind};
use crate::sections::{SectionFile, SectionSettings};
use crate::task_work::{GuestMigration, PreMoveShutdown, ShutdownWork, StorageMap, TaskWork};
use crate::world::World;

/// The interval of the HA manager and of the nodes' agents.
const MANAGER_INTERVAL_MS: u64 = 10_000;

/// How long the lock of a lost node is valid; its guests are not recovered earlier.
const FENCE_DELAY_MS: u64 = 120_000;

/// How long a guest has to shut down before it is moved; then it is stopped by force.
const SHUTDOWN_TIMEOUT_MS: u64 = 60_000;

/// A guest that is managed by HA.
#[derive(Clone, Debug, Default)]
pub(crate) struct HaResource {
    /// The requested state: `started`, `stopped`, `disabled`, `ignored`.
    pub(crate) state: String,
    /// The state that the manager reports; `None` before its first cycle.
    pub(crate) believed: Option<String>,
    /// The reported state was set by the world spec, and the manager never changes it.
    pub(crate) is_fixed: bool,
    /// Comment, group, retry limits and other settings that are only stored.
    pub(crate) settings: SectionSettings,
    /// A request that the manager has not processed yet.
    pub(crate) request: Option<String>,
    /// Since when its node has been lost.
    pub(crate) lost_ms: Option<u64>,
    /// A task of the manager is moving the guest.
    pub(crate) is_moving: bool,
}

impl HaResource {
    fn is_wanted_up(&self) -> bool {
        matches!(self.state.as_str(), "started" | "enabled")
    }

    /// The state that the manager reports after its next cycle.
    fn next_belief(&self, running: bool) -> &'static str {
        match (self.state.as_str(), self.is_wanted_up(), running) {
            ("ignored", ..) => "ignored",
            (_, true, _) => "started",
            (_, false, true) => "request_stop",
            (_, false, false) => "stopped",
        }
    }

    /// Whether the guest must be started (`true`) or stopped (`false`); `None` if it is in the requested state or ignored.
    fn missing_change(&self, running: bool) -> Option<bool> {
        let wanted = self.is_wanted_up();
        (wanted != running && self.state != "ignored").then_some(wanted)
    }

    /// Whether a cycle would change nothing, given that the node is online.
    fn is_settled(&self, running: bool) -> bool {
        let is_known = self.believed.as_deref() == Some(self.next_belief(running));
        is_known && self.missing_change(running).is_none() && self.request.is_none() && self.lost_ms.is_none() && !self.is_moving
    }
}

/// The VMID in a service id (`vm:100`).
fn vmid_of_service(sid: &str) -> u32 {
    sid.split(':').nth(1).and_then(|id| id.parse().ok()).unwrap_or(0)
}

/// All managed guests by service id (`vm:100`), and the placement restrictions.
#[derive(Clone, Debug, Default)]
pub(crate) struct HaResources {
    all: BTreeMap<String, HaResource>,
    /// Until release 8.
    pub(crate) groups: SectionFile,
    /// Since release 9.
    pub(crate) rules: SectionFile,
}

impl HaResources {
    pub(crate) fn get(&self, sid: &str) -> Option<&HaResource> {
        self.all.get(sid)
    }

    /// The HA resource of a guest. Every response about a guest calls this, so the common case without HA is checked first.
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

    /// Whether the guest is managed and not ignored.
    pub(crate) fn is_managed(&self, sid: &str) -> bool {
        self.all.get(sid).is_some_and(|resource| resource.state != "ignored")
    }

    /// The state that lists show: that of the manager, or the requested one before its first cycle.
    pub(crate) fn displayed_state(&self, guest: &LabGuest) -> Option<&str> {
        let resource = self.find_for_guest(guest)?;
        Some(resource.believed.as_deref().unwrap_or(&resource.state))
    }

    /// The `ha` member of `status/current`.
    pub(crate) fn status_json(&self, guest: &LabGuest) -> Value {
        match self.find_for_guest(guest).filter(|resource| resource.state != "ignored") {
            Some(resource) => json!({ "managed": 1, "state": resource.believed }),
            None => json!({ "managed": 0 }),
        }
    }

    /// Sets the requested state. A start applies at once, anything else in the manager's next cycle.
    pub(crate) fn request_state(&mut self, sid: &str, state: &str) {
        let Some(resource) = self.all.get_mut(sid) else { return };
        match state {
            "started" => state.clone_into(&mut resource.state),
            other => resource.request = Some(other.to_owned()),
        }
    }

    /// The digest of the stored resources.
    pub(crate) fn digest(&self) -> String {
        let line = |(sid, resource): (&String, &HaResource)| format!("{sid} {} {:?}\n", resource.state, resource.settings);
        let text: String = self.all.iter().map(line).collect();
        sha1_hex(&text)
    }
}

impl World {
    /// Makes a guest managed by HA.
    pub(crate) fn add_ha(&mut self, sid: &str, resource: HaResource) {
        if self.ha.all.is_empty() {
            self.schedule(self.now_ms.saturating_add(MANAGER_INTERVAL_MS), ScheduledEvent::RunHaManager);
        }
        self.ha.all.insert(sid.to_owned(), resource);
    }

    /// One cycle of the HA manager: processes requests, and starts or stops guests that are not in their requested state.
    pub(crate) fn run_ha_manager(&mut self) {
        let ids: Vec<String> = self.ha.all.keys().cloned().collect();
        self.schedule_ha_manager();
        for sid in ids {
            self.manage_resource(&sid);
        }
    }

    /// Schedules the next cycle, if any guest is managed.
    pub(crate) fn schedule_ha_manager(&mut self) {
        if !self.ha.all.is_empty() {
            self.schedule(self.now_ms.saturating_add(MANAGER_INTERVAL_MS), ScheduledEvent::RunHaManager);
        }
    }

    /// Whether a cycle would change nothing.
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

    /// Recovers a guest whose node lost power: it is fenced until the node's lock has expired, moves to another node one cycle later, and
    /// starts there in the cycle after that.
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

    /// The node that recovers a guest: online and quorate, with the fewest managed guests.
    fn pick_recovery_node(&self) -> Option<String> {
        let managed =
            |node: &str| self.guests.values().filter(|guest| guest.node == node && self.ha.find_for_guest(guest).is_some()).count();
        let candidates = self.nodes.values().filter(|node| node.online && self.is_quorate(&node.name));
        candidates.min_by_key(|node| managed(&node.name)).map(|node| node.name.clone())
    }

    /// `migrate` moves a running virtual machine live. `relocate`, and every move of a container, stops the guest first, and the next cycle
    /// starts it. A node that is not reachable gets no guests.
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
        let work = TaskWork::Migrate(GuestMigration {
            vmid,
            kind,
            target,
            online,
            shutdown_first: down,
            restarts: false,
            local_disks: false,
            force: false,
            storage_map: StorageMap::default(),
        });
        let name = if kind == LabGuestKind::Qemu { "qmigrate" } else { "vzmigrate" };
        self.start_agent_task(&node, name, vmid, work);
    }

    /// The agent on the node starts tasks as root.
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
