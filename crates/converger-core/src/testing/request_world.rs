//! A small fixed environment in which every action can be requested, for tests that change one detail of it.
//!
//! Three nodes with shared and local storage; guest 100 is a running virtual machine, 101 a stopped one, 102 a running container, and 900 a
//! template. Guest 100 has the snapshots `old` (without memory) and `warm` (with memory).

use std::sync::Arc;

use serde_json::{Value, json};

use crate::desired;
use crate::document::Notation;
use crate::guest::{EnvironmentName, GuestKind, Vmid};
use crate::intent::{ActionRequest, ActionTarget, Intent};
use crate::observe;
use crate::plan::{Plan, plan};
use crate::policy::Rules;

/// The environment as the tree of current.json.
#[derive(Clone, Debug)]
pub struct RequestWorld {
    /// The tree of current.json.
    pub observation: Value,
    /// The protection rules.
    pub rules: Rules,
}

const GIB: u64 = 1 << 30;

fn storage(name: &str, shared: bool) -> Value {
    json!({ "active": true, "available": 500 * GIB, "content": ["images", "rootdir"], "kind": "dir", "name": name, "shared": shared,
        "total": 1000 * GIB })
}

fn node(name: &str) -> Value {
    json!({ "name": name, "online": true, "storages": [storage("local", false), storage("shared", true)],
        "capacity": { "cpu_model": "EPYC 1", "cpus": 16, "memory_available": 32 * GIB, "memory_total": 64 * GIB } })
}

fn disk(key: &str, storage: &str, vmid: u32) -> Value {
    json!({ "cdrom": false, "key": key, "size_kib": 32 << 20, "storage": storage, "volume": format!("{storage}:vm-{vmid}-disk-0") })
}

fn guest(vmid: u32, kind: &str, name: &str, status: &str, disk_key: &str) -> Value {
    let identity = match kind {
        "qemu" => json!({ "ctime": 1_700_000_000 + u64::from(vmid), "uuid": format!("0000000{vmid}-0000-4000-8000-000000000000") }),
        _ => json!({ "mac": format!("BC:24:11:00:00:{:02X}", vmid % 256), "rootfs": format!("shared:vm-{vmid}-disk-0") }),
    };
    json!({ "vmid": vmid, "kind": kind, "name": name, "node": "pve1", "status": status, "lock": null, "ha": null, "template": false,
        "protection": false, "tags": [], "pending": [], "config": { "cores": 2, "memory": 2048 }, "identity": identity, "maxmem": 2 * GIB,
        "digest": "90c9867238def2fe4d646be13e412474af227aee", "replicated": false, "snapshots": { "list": [] },
        "hardware": { "disks": [disk(disk_key, "shared", vmid)], "host_devices": [], "other_volumes": [] } })
}

/// The row with this member.
fn with_member(mut row: Value, name: &str, value: Value) -> Value {
    if let Some(members) = row.as_object_mut() {
        members.insert(name.to_owned(), value);
    }
    row
}

impl Default for RequestWorld {
    fn default() -> Self {
        let snapshots = json!({ "current": "warm", "list": [
            { "made_at": 1_763_000_000, "name": "old", "ram": false },
            { "cpu": "kvm64", "made_at": 1_763_000_100, "name": "warm", "parent": "old", "ram": true },
        ] });
        let web = with_member(guest(100, "qemu", "web", "running", "scsi0"), "snapshots", snapshots);
        let mut template = with_member(guest(900, "qemu", "debian-template", "stopped", "scsi0"), "template", json!(true));
        if let Some(disks) = template.pointer_mut("/hardware/disks").and_then(Value::as_array_mut) {
            disks.insert(0, json!({ "cdrom": true, "key": "ide2", "storage": "shared", "volume": "shared:vm-900-cloudinit" }));
        }
        let guests = [web, guest(101, "qemu", "db", "stopped", "scsi0"), guest(102, "lxc", "dns", "running", "rootfs"), template];
        let observation = json!({ "schema": "converger.observation/1", "environment": "lab", "complete": true, "quorate": true,
            "taken_at": "2026-11-15T12:00:00Z", "nodes": [node("pve1"), node("pve2"), node("pve3")], "guests": guests });
        Self { observation, rules: Rules::default() }
    }
}

impl RequestWorld {
    /// The row of a guest.
    ///
    /// # Panics
    /// There is no such guest.
    #[allow(clippy::panic, reason = "a test that names a guest that does not exist is wrong")]
    pub fn guest_mut(&mut self, vmid: u32) -> &mut Value {
        let rows = self.observation.get_mut("guests").and_then(Value::as_array_mut).into_iter().flatten();
        rows.into_iter().find(|row| row.get("vmid") == Some(&json!(vmid))).unwrap_or_else(|| panic!("no guest {vmid}"))
    }

    /// The plan of an action, requested as a person types it.
    ///
    /// # Panics
    /// The request or the observation is not valid.
    #[allow(clippy::panic, reason = "a test with an invalid fixture is wrong")]
    #[must_use]
    pub fn plan_action(&self, action: &str, kind: GuestKind, vmid: u64, parameters: &[(&str, &str)]) -> Plan {
        let (Some(environment), Some(vmid)) = (EnvironmentName::new("lab"), Vmid::new(vmid)) else { panic!("a name and an id") };
        let target = ActionTarget { kind, vmid };
        let request = ActionRequest::parse(environment, action, target, parameters.iter().copied());
        self.plan_intent(&Intent::from(request.unwrap_or_else(|faults| panic!("{faults:?}"))))
    }

    /// The plan of a declared state.
    ///
    /// # Panics
    /// The declared state or the observation is not valid.
    #[allow(clippy::panic, reason = "a test with an invalid fixture is wrong")]
    #[must_use]
    pub fn plan_desired(&self, yaml: &str) -> Plan {
        let desired = desired::parse(yaml.as_bytes(), Notation::Yaml).unwrap_or_else(|faults| panic!("{faults:?}"));
        self.plan_intent(&Intent::from(desired))
    }

    #[allow(clippy::panic, reason = "a test with an invalid fixture is wrong")]
    fn plan_intent(&self, intent: &Intent) -> Plan {
        let observation = observe::parse(self.observation.to_string().as_bytes()).unwrap_or_else(|faults| panic!("{faults:?}"));
        plan(intent.clone(), Arc::new(observation.into_scoped(&intent.scope())), Arc::new(self.rules.clone()))
    }
}
