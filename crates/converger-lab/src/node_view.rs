//! Each node's view of the guests on other nodes: up to ten seconds old, expired after five
//! minutes.
//!
//! Nodes broadcast their guests at an interval, and `cluster/resources` is answered from what was
//! received. Must not contain configuration, which all nodes share immediately.

use std::cell::LazyCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::flavour::Flavour;
use crate::guest::{LabGuest, LabGuestKind, size};
use crate::json_text::JsonObject;
use crate::node::{LabNode, ServiceState};
use crate::world::World;

/// A broadcast expires after this time.
const STATUS_EXPIRY_MS: u64 = 300_000;

/// What a node broadcast about one guest.
#[derive(Clone, Debug)]
pub(crate) struct GuestBroadcast {
    /// Shared between the views of all receiving nodes.
    pub(crate) node: Arc<str>,
    pub(crate) status: Arc<str>,
    /// All other JSON fields, each with a leading comma.
    pub(crate) text: Arc<[u8]>,
    pub(crate) since_ms: Option<u64>,
    /// The time of the last broadcast, once the guest's node no longer broadcasts the guest.
    frozen_ms: Option<u64>,
}

/// What one node received.
#[derive(Clone, Debug, Default)]
pub(crate) struct NodeView {
    rows: BTreeMap<u32, GuestBroadcast>,
    heard_ms: BTreeMap<String, u64>,
}

impl NodeView {
    /// Records a broadcast. Returns whether the receiver missed none before. A receiver that did (new, restarted, or partitioned for long)
    /// gets every guest; the others get what changed.
    fn note_broadcast(&mut self, sender: &LabNode, at_ms: u64) -> bool {
        let before = self.heard_ms.get_mut(&sender.name).map(|heard_ms| std::mem::replace(heard_ms, at_ms));
        if before.is_none() {
            self.heard_ms.insert(sender.name.clone(), at_ms);
        }
        before.is_some() && before == sender.broadcast_ms
    }

    /// The last broadcast about a guest and its time, unless it has expired.
    pub(crate) fn guest_row(&self, vmid: u32, now_ms: u64) -> Option<(&GuestBroadcast, u64)> {
        let row = self.rows.get(&vmid)?;
        let heard_ms = row.frozen_ms.or_else(|| self.heard_ms.get(&*row.node).copied())?;
        (now_ms.saturating_sub(heard_ms) < STATUS_EXPIRY_MS).then_some((row, heard_ms))
    }
}

/// The views of all nodes.
#[derive(Clone, Debug, Default)]
pub(crate) struct NodeViews(BTreeMap<String, NodeView>);

impl NodeViews {
    /// The view of one node.
    pub(crate) fn view_of(&self, entry: &str) -> Option<&NodeView> {
        self.0.get(entry)
    }

    /// When `entry` last received a broadcast from a node, unless that has expired.
    pub(crate) fn last_heard_ms(&self, entry: &str, node: &str, now_ms: u64) -> Option<u64> {
        let heard_ms = *self.0.get(entry)?.heard_ms.get(node)?;
        (now_ms.saturating_sub(heard_ms) < STATUS_EXPIRY_MS).then_some(heard_ms)
    }

    /// Clears a node's view, as a restart of its cluster file system does.
    pub(crate) fn forget_node(&mut self, entry: &str) {
        self.0.remove(entry);
    }

    /// A guest left its node: the last broadcast stays visible until it expires or another node broadcasts the guest.
    pub(crate) fn freeze_guest(&mut self, vmid: u32) {
        for view in self.0.values_mut() {
            let Some(row) = view.rows.get_mut(&vmid) else { continue };
            row.frozen_ms = row.frozen_ms.or_else(|| view.heard_ms.get(&*row.node).copied());
        }
    }
}

impl World {
    /// Every node whose broadcast is due sends it to all nodes that it reaches.
    pub(crate) fn broadcast_guests(&mut self) {
        // Most of the time no broadcast is due.
        if self.now_ms < self.no_broadcast_until_ms {
            return;
        }
        let due = self.nodes.values().filter_map(|node| self.due_broadcast_ms(node).map(|at_ms| (node.name.clone(), at_ms)));
        let due: Vec<(String, u64)> = due.collect();
        for (node, at_ms) in due {
            self.broadcast_from(&node, at_ms);
        }
        let next =
            |node: &LabNode| node.last_broadcast_ms(self.now_ms).map_or(node.cycle_offset_ms, |at_ms| at_ms.saturating_add(node.cycle_ms));
        self.no_broadcast_until_ms = self.nodes.values().map(next).min().unwrap_or(0);
    }

    fn due_broadcast_ms(&self, node: &LabNode) -> Option<u64> {
        let is_able = node.online && node.cluster_files == ServiceState::Up && node.statd == ServiceState::Up;
        let at_ms = node.last_broadcast_ms(self.now_ms).filter(|_| is_able)?;
        (node.broadcast_ms.is_none_or(|broadcast_ms| broadcast_ms < at_ms)).then_some(at_ms)
    }

    fn broadcast_from(&mut self, name: &str, at_ms: u64) {
        let changed = self.guests.changed_on(name);
        let Some(sender) = self.nodes.get(name) else { return };
        // Broadcasts that were skipped because no request arrived count as well.
        let skipped =
            sender.broadcast_ms.map_or(0, |broadcast_ms| (at_ms.saturating_sub(broadcast_ms) / sender.cycle_ms).saturating_sub(1));
        let old_rounds = sender.old_format_rounds.saturating_sub(u32::try_from(skipped).unwrap_or(u32::MAX));
        let flavour = if old_rounds > 0 { self.flavour.min(Flavour::V8) } else { self.flavour };
        let row = |guest: &LabGuest| (guest.vmid, broadcast_row(guest, sender.cpus, flavour));
        let guests = &self.guests;
        let of_changed = LazyCell::new(|| changed.iter().filter_map(|vmid| guests.get(vmid)).map(row).collect::<Vec<_>>());
        let of_all = LazyCell::new(|| guests.values().filter(|guest| guest.node == name).map(row).collect::<Vec<_>>());
        for listener in self.nodes.values().filter(|node| can_hear(node, sender)) {
            if !self.views.0.contains_key(&listener.name) {
                self.views.0.insert(listener.name.clone(), NodeView::default());
            }
            if let Some(view) = self.views.0.get_mut(&listener.name) {
                let rows = if view.note_broadcast(sender, at_ms) { &*of_changed } else { &*of_all };
                view.rows.extend(rows.iter().cloned());
            }
        }
        self.guests.mark_broadcast(&changed);
        let Some(node) = self.nodes.get_mut(name) else { return };
        node.broadcast_ms = Some(at_ms);
        node.old_format_rounds = old_rounds.saturating_sub(1);
        if old_rounds > 0 {
            // The next broadcast sends everything again, in the format of that time.
            self.guests.mark_node_changed(name);
        }
    }
}

/// Like [`World::is_reachable`], for nodes that are already looked up.
fn can_hear(listener: &LabNode, sender: &LabNode) -> bool {
    let is_near = listener.name == sender.name || (sender.online && sender.network_partition == listener.network_partition);
    listener.online && is_near && listener.cluster_files == ServiceState::Up
}

fn broadcast_row(guest: &LabGuest, host_cpus: u64, flavour: Flavour) -> GuestBroadcast {
    let state = guest.process.as_ref().map_or("stopped", |process| process.qemu_state.as_str());
    GuestBroadcast {
        node: guest.node.as_str().into(),
        status: state.into(),
        text: broadcast_fields(guest, host_cpus, flavour).into(),
        since_ms: guest.process.as_ref().map(|process| process.since_ms),
        frozen_ms: None,
    }
}

fn broadcast_fields(guest: &LabGuest, host_cpus: u64, flavour: Flavour) -> Vec<u8> {
    let mut out = Vec::with_capacity(ROW_BYTES);
    let mut fields = JsonObject::continuing(&mut out);
    fields.put("name", guest.display_name()).put("template", u8::from(guest.is_template()));
    fields.put("maxcpu", guest.cpu_count(host_cpus)).put("maxmem", guest.memory_bytes()).put("maxdisk", guest.disk_bytes());
    let load = guest.current_load();
    fields.put("cpu", load.cpu_fraction()).put("mem", load.memory);
    for name in ["disk", "netin", "netout", "diskread", "diskwrite"] {
        fields.put(name, 0);
    }
    fields.put_some("memhost", (flavour >= Flavour::V9).then_some(load.memory_of_host));
    out
}

/// The resources that a guest uses.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct GuestLoad {
    cpu_thousandths: u16,
    /// In bytes.
    pub(crate) memory: u64,
    /// Host memory that its process uses.
    pub(crate) memory_of_host: u64,
}

impl GuestLoad {
    /// The fraction of its processors that it uses, as the API returns it.
    pub(crate) fn cpu_fraction(self) -> f64 {
        f64::from(self.cpu_thousandths) / 1_000.0
    }
}

/// Typical size of a row.
const ROW_BYTES: usize = 200;

impl LabGuest {
    /// The number of processors that it can use; never more than the host has.
    pub(crate) fn cpu_count(&self, host_cpus: u64) -> u64 {
        let number = |key: &str| self.number(key);
        match self.kind {
            LabGuestKind::Lxc => number("cores").or_else(|| number("cpulimit")).filter(|cpus| *cpus > 0).unwrap_or(host_cpus),
            LabGuestKind::Qemu => {
                let all = number("sockets").unwrap_or(1).saturating_mul(number("cores").unwrap_or(1));
                number("vcpus").unwrap_or(all.min(host_cpus))
            }
        }
    }

    /// The current load: zero while the guest is stopped, otherwise derived from its VMID, so that the same world always returns the same
    /// values.
    pub(crate) fn current_load(&self) -> GuestLoad {
        if self.process.is_none() {
            return GuestLoad::default();
        }
        let own = u64::from(self.vmid).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let memory = self.memory_bytes() / 100 * (25 + own % 50);
        // The process uses more than its guest; a container has no process of its own.
        let memory_of_host = if self.kind == LabGuestKind::Qemu { memory + memory / 16 } else { 0 };
        GuestLoad { cpu_thousandths: u16::try_from(5 + own % 300).unwrap_or(5), memory, memory_of_host }
    }

    /// The maximum memory.
    pub(crate) fn memory_bytes(&self) -> u64 {
        let text = self.get("memory").unwrap_or("512");
        let mebibytes = text.strip_prefix("current=").unwrap_or(text);
        size::parse_mebibytes(mebibytes).unwrap_or(0)
    }
}
