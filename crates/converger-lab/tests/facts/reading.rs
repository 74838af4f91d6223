//! What lists, states and configs report about guests, as far as a client relies on it.

use converger_lab::WorldEvent;
use serde_json::{Value, json};

use crate::lab::{CLUSTER, FactsLab, SMALL, in_every_release, response_data};

const CONFIG: &str = "/nodes/pve1/qemu/100/config";

fn find_item<'v>(list: &'v Value, key: &str, value: &str) -> &'v Value {
    list.as_array().into_iter().flatten().find(|item| item[key] == value).unwrap_or(&Value::Null)
}

#[test]
fn lock_tags_and_node_are_listed_immediately() {
    in_every_release(|| {
        let mut lab = FactsLab::new(CLUSTER);
        lab.apply_event(WorldEvent::Lock(101, "backup".to_owned()));
        lab.apply_event(WorldEvent::Set(101, "tags".to_owned(), "edge".to_owned()));
        lab.apply_event(WorldEvent::Set(101, "name".to_owned(), "renamed".to_owned()));
        lab.apply_event(WorldEvent::Move(101, "b".to_owned()));
        let row = lab.resource_row(101);
        assert_eq!((&row["lock"], &row["tags"], &row["node"]), (&"backup".into(), &"edge".into(), &"b".into()));
        assert_eq!(row["name"], "one", "the name comes from the last broadcast of its node");
        lab.advance_ms(10_000);
        assert_eq!(lab.resource_row(101)["name"], "renamed");
    });
}

#[test]
fn lists_show_the_qemu_state_where_status_current_shows_running() {
    in_every_release(|| {
        for state in ["paused", "io-error", "prelaunch", "suspended"] {
            let mut lab = FactsLab::new(&SMALL.replace("name: web,", &format!("name: web, state: {state},")));
            assert_eq!(lab.resource_row(100)["status"], state);
            let status = lab.get("/nodes/pve1/qemu/100/status/current");
            assert_eq!((&status["status"], &status["qmpstatus"]), (&"running".into(), &state.into()));
        }
        let mut lab = FactsLab::new(&SMALL.replace("name: dns,", "name: dns, state: running,"));
        assert_eq!(lab.resource_row(200)["status"], "running");
        assert!(lab.get("/nodes/pve1/lxc/200/status/current").get("qmpstatus").is_none(), "a container has no QEMU state");
    });
}

#[test]
fn new_guests_are_unknown_and_unnamed_until_the_next_broadcast() {
    in_every_release(|| {
        let mut lab = FactsLab::new(SMALL);
        lab.run_ok("POST", "/nodes/pve1/qemu", "vmid=300&name=new");
        let row = lab.resource_row(300);
        assert_eq!((&row["status"], row.get("name"), row.get("template")), (&"unknown".into(), None, None));
        assert_eq!(lab.get("/nodes/pve1/qemu/300/status/current")["status"], "stopped");
        lab.advance_ms(10_000);
        assert_eq!((&lab.resource_row(300)["status"], &lab.resource_row(300)["name"]), (&"stopped".into(), &"new".into()));
    });
}

#[test]
fn a_guest_without_a_name_is_shown_by_its_id() {
    in_every_release(|| {
        let yaml = SMALL.replace("name: web,", "bare: true,").replace("name: dns,", "bare: true,");
        let mut lab = FactsLab::new(&yaml);
        assert_eq!((&lab.resource_row(100)["name"], &lab.resource_row(200)["name"]), (&"VM 100".into(), &"CT200".into()));
        assert!(lab.get(CONFIG).get("name").is_none());
    });
}

/// A lab whose token may see one guest only.
fn limited_lab() -> FactsLab {
    let yaml = SMALL.replace("full: true", "full: false");
    FactsLab::new(&format!("{yaml}acl: [{{ path: /vms/100, role: PVEAuditor, token: 'root@pam!t' }}]\n"))
}

#[test]
fn nextid_is_the_same_for_every_caller() {
    in_every_release(|| {
        let mut lab = limited_lab();
        assert_eq!(lab.get("/cluster/nextid?vmid=300"), "300");
        for vmid in [100, 200] {
            let answer = lab.request("GET", &format!("/cluster/nextid?vmid={vmid}"), "");
            let body: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
            assert_eq!((answer.status, &body["errors"]["vmid"]), (400, &format!("VM {vmid} already exists").into()));
        }
    });
}

#[test]
fn tokens_can_read_their_own_permissions() {
    in_every_release(|| {
        let mut lab = limited_lab();
        let seen = lab.get("/access/permissions?path=/vms/100");
        assert!(seen["/vms/100"].get("VM.Audit").is_some(), "{seen}");
        assert_eq!(lab.get("/access/permissions?path=/vms/200"), json!({ "/vms/200": {} }));
        assert_eq!(lab.request_error("GET", "/nodes/pve1/lxc/200/pending", ""), "403 Permission check failed (/vms/200, VM.Audit)");
    });
}

#[test]
fn cluster_status_needs_audit_and_a_single_node_has_no_cluster_row() {
    in_every_release(|| {
        assert_eq!(limited_lab().request_error("GET", "/cluster/status", ""), "403 Permission check failed (/, Sys.Audit)");
        let alone = FactsLab::new(SMALL).get("/cluster/status");
        assert_eq!((alone.as_array().map(Vec::len), &alone[0]["type"], &alone[0]["online"]), (Some(1), &"node".into(), &1.into()));
        let many = FactsLab::new(CLUSTER).get("/cluster/status");
        let whole = find_item(&many, "type", "cluster");
        assert_eq!((&whole["name"], &whole["quorate"], &whole["nodes"]), (&"lab".into(), &1.into(), &3.into()));
        assert_eq!((&find_item(&many, "name", "a")["local"], &find_item(&many, "name", "b")["local"]), (&1.into(), &0.into()));
    });
}

#[test]
fn newly_managed_guests_have_no_ha_state_on_their_node_and_the_requested_one_in_lists() {
    in_every_release(|| {
        let mut lab = FactsLab::new(CLUSTER);
        assert_eq!(lab.get("/nodes/a/qemu/101/status/current")["ha"], json!({ "managed": 0 }));
        lab.run_ok("POST", "/cluster/ha/resources", "sid=vm%3A101");
        assert_eq!(lab.get("/nodes/a/qemu/101/status/current")["ha"], json!({ "managed": 1, "state": null }));
        assert_eq!(lab.resource_row(101)["hastate"], "started");
        lab.advance_ms(20_000);
        assert_eq!(lab.get("/nodes/a/qemu/101/status/current")["ha"]["state"], "started");
    });
}

#[test]
fn pending_shows_current_values_pending_values_and_the_digest() {
    in_every_release(|| {
        let mut lab = FactsLab::new(&SMALL.replace("name: web,", "name: web, state: running,"));
        let in_sync = lab.get("/nodes/pve1/qemu/100/pending");
        let count_pending = |items: &Value| {
            let waiting = |item: &&Value| item.get("pending").is_some() || item.get("delete").is_some();
            items.as_array().into_iter().flatten().filter(waiting).count()
        };
        assert_eq!(count_pending(&in_sync), 0);
        lab.run_ok("PUT", CONFIG, "cores=4&delete=net0,boot&sockets=2&description=now");
        let items = lab.get("/nodes/pve1/qemu/100/pending");
        let cores = find_item(&items, "key", "cores");
        assert_eq!((&cores["value"], &cores["pending"]), (&2.into(), &4.into()));
        assert_eq!(find_item(&items, "key", "sockets").get("value"), None);
        assert_eq!(find_item(&items, "key", "boot")["delete"], 1);
        assert_eq!(find_item(&items, "key", "description")["value"], "now");
        assert_eq!(find_item(&items, "key", "digest")["value"], lab.get(CONFIG)["digest"]);
    });
}

#[test]
fn flags_and_counts_are_numbers_and_decimals_are_text() {
    in_every_release(|| {
        let mut lab = FactsLab::new(SMALL);
        for guest in ["qemu/100", "lxc/200"] {
            let path = format!("/nodes/pve1/{guest}/config");
            lab.run_ok("PUT", &path, "cores=2&onboot=1&cpulimit=1.5&cpuunits=200");
            let config = lab.get(&path);
            assert_eq!((&config["cores"], &config["onboot"], &config["cpuunits"]), (&2.into(), &1.into(), &200.into()), "{guest}");
            assert_eq!(config["cpulimit"], "1.5", "{guest}");
        }
    });
}

#[test]
fn some_values_read_back_differently_than_written() {
    in_every_release(|| {
        let mut lab = FactsLab::new(SMALL);
        let container = "/nodes/pve1/lxc/200/config";
        lab.run_ok("PUT", CONFIG, "description=abc%20%0A%0A&tags=B,a;b&cpuunits=20000&boot=order%3Dnet0%3Bscsi0&startup=1&agent=1");
        let config = lab.get(CONFIG);
        assert_eq!((&config["description"], &config["tags"], &config["cpuunits"]), (&"abc".into(), &"a;b".into(), &10_000.into()));
        assert_eq!((&config["boot"], &config["startup"], &config["agent"]), (&"order=net0;scsi0".into(), &"1".into(), &"1".into()));
        lab.run_ok("PUT", container, "description=abc");
        assert_eq!(lab.get(container)["description"], "abc\n", "a container's description ends with a line end");
        lab.run_ok("PUT", CONFIG, "tags=");
        assert_eq!(lab.get(CONFIG)["tags"], " ", "an empty tag list reads back as one blank");
        lab.run_ok("PUT", CONFIG, "delete=tags,description");
        assert!(lab.get(CONFIG).get("tags").is_none() && lab.get(CONFIG).get("description").is_none());
    });
}

#[test]
fn deleting_absent_keys_is_allowed_and_required_keys_refused() {
    in_every_release(|| {
        let mut lab = FactsLab::new(SMALL);
        lab.run_ok("PUT", CONFIG, "delete=balloon");
        assert_eq!(lab.request_error("PUT", CONFIG, "delete="), "500 no options specified");
        let container = "/nodes/pve1/lxc/200/config";
        assert_eq!(lab.request_error("PUT", container, "delete=memory"), "500 unable to delete required option 'memory'");
    });
}

#[test]
fn snapshot_lists_include_the_current_state_and_mark_unfinished_snapshots() {
    in_every_release(|| {
        let mut lab = FactsLab::new(SMALL);
        lab.run_ok("POST", "/nodes/pve1/qemu/100/snapshot", "snapname=whole");
        lab.apply_event(WorldEvent::PrepareSnapshot(100, "half".to_owned()));
        let list = lab.get("/nodes/pve1/qemu/100/snapshot");
        assert_eq!(find_item(&list, "name", "current")["parent"], "whole");
        assert_eq!(
            (find_item(&list, "name", "whole").get("snapstate"), &find_item(&list, "name", "half")["snapstate"]),
            (None, &"prepare".into())
        );
        assert!(find_item(&list, "name", "whole")["snaptime"].is_u64());
    });
}

#[test]
fn guests_exist_only_under_their_own_kind_and_node() {
    in_every_release(|| {
        let mut lab = FactsLab::new(CLUSTER);
        for (path, file) in [("b/qemu/101", "b/qemu-server/101"), ("a/lxc/101", "a/lxc/101")] {
            let answer = lab.request("GET", &format!("/nodes/{path}/status/current"), "");
            assert_eq!(answer.reason, format!("Configuration file 'nodes/{file}.conf' does not exist"));
            assert!(response_data(&answer).is_null());
        }
    });
}

#[test]
fn running_guests_have_a_deterministic_load() {
    in_every_release(|| {
        let mut lab = FactsLab::new(SMALL);
        let used = |row: &Value| (row["cpu"].as_f64().unwrap_or(-1.0), row["mem"].as_u64().unwrap_or(u64::MAX), row["maxmem"].as_u64());
        let path = "/nodes/pve1/qemu/100/status/current";
        assert_eq!(used(&lab.get(path)), (0.0, 0, Some(1 << 30)));
        lab.run_ok("POST", "/nodes/pve1/qemu/100/status/start", "");
        lab.advance_ms(20_000);
        let live = used(&lab.get(path));
        assert!(live.0 > 0.0 && live.0 < 1.0 && live.1 > 0 && Some(live.1) < live.2, "{live:?}");
        assert_eq!(used(&lab.resource_row(100)), live, "the list shows the same load");
    });
}

#[test]
fn available_memory_is_reported_since_release_9() {
    in_every_release(|| {
        let mut lab = FactsLab::new(SMALL);
        let memory = lab.get("/nodes/pve1/status")["memory"].clone();
        let number = |key: &str| memory[key].as_u64();
        assert_eq!(number("total"), number("used").zip(number("free")).map(|(used, free)| used + free));
        assert_eq!(number("available").is_some(), crate::lab::current_release() == 9);
    });
}
