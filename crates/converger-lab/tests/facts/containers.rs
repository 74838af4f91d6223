//! Running containers, which the recordings do not cover.

use crate::lab::{FactsLab, SMALL, in_every_release};

const START: &str = "/nodes/pve1/lxc/200/status/start";

#[test]
fn a_running_container_refuses_a_start_at_once() {
    in_every_release(|| {
        let mut lab = FactsLab::new(SMALL);
        assert_eq!(lab.run_task("POST", START, ""), "OK");
        assert_eq!(lab.request_error("POST", START, ""), "500 CT 200 already running");
        assert_eq!(lab.get("/nodes/pve1/lxc/200/status/current")["status"], "running");
    });
}

#[test]
fn containers_that_ignore_shutdown_are_stopped_only_by_force() {
    in_every_release(|| {
        let mut lab = FactsLab::new(&SMALL.replace("name: dns,", "name: dns, deaf: true, state: running,"));
        let shutdown = "/nodes/pve1/lxc/200/status/shutdown";
        assert_eq!(lab.run_task("POST", shutdown, "timeout=3"), "container did not stop");
        assert_eq!(lab.run_task("POST", shutdown, "timeout=3&forceStop=1"), "OK");
        assert_eq!(lab.get("/nodes/pve1/lxc/200/status/current")["status"], "stopped");
    });
}

#[test]
fn running_containers_apply_memory_and_cores_and_keep_the_rest_pending() {
    in_every_release(|| {
        let mut lab = FactsLab::new(SMALL);
        lab.run_ok("POST", START, "");
        let config = "/nodes/pve1/lxc/200/config";
        lab.run_ok("PUT", config, "memory=1024&cores=2&hostname=dns2&nameserver=1.1.1.1&features=nesting%3D1");
        let now = lab.get(&format!("{config}?current=1"));
        assert_eq!((&now["memory"], &now["cores"], &now["hostname"]), (&1024.into(), &2.into(), &"dns2".into()));
        assert!(now.get("nameserver").is_none() && now.get("features").is_none(), "{now}");
        let keys: Vec<String> = pending_keys(&mut lab);
        assert_eq!(keys, ["features", "nameserver"]);
        lab.run_ok("POST", "/nodes/pve1/lxc/200/status/stop", "");
        assert!(pending_keys(&mut lab).is_empty());
        assert_eq!(lab.get(config)["nameserver"], "1.1.1.1");
    });
}

fn pending_keys(lab: &mut FactsLab) -> Vec<String> {
    let items = lab.get("/nodes/pve1/lxc/200/pending");
    let pending = items.as_array().into_iter().flatten().filter(|item| item.get("pending").is_some() || item.get("delete").is_some());
    pending.filter_map(|item| item["key"].as_str().map(str::to_owned)).collect()
}

#[test]
fn containers_with_a_missing_bridge_are_written_although_the_call_fails() {
    in_every_release(|| {
        let mut lab = FactsLab::new(SMALL);
        let config = "/nodes/pve1/lxc/200/config";
        let error = lab.request_error("PUT", config, "net0=name%3Deth0%2Cbridge%3Dvmbr9&memory=300");
        assert_eq!(error, "500 bridge 'vmbr9' does not exist");
        assert_eq!(lab.get(config)["memory"], 300);
        assert_eq!(lab.request_error("PUT", config, "memory=301"), "500 bridge 'vmbr9' does not exist");
        assert_eq!(lab.get(config)["memory"], 301, "every later write fails and is stored as well");
    });
}

#[test]
fn a_running_container_is_not_destroyed_unless_forced() {
    in_every_release(|| {
        let mut lab = FactsLab::new(SMALL);
        lab.run_ok("POST", START, "");
        let path = "/nodes/pve1/lxc/200";
        assert_eq!(lab.request_error("DELETE", path, ""), "500 unable to destroy CT 200 - container is running");
        lab.run_ok("DELETE", &format!("{path}?force=1"), "");
        assert_eq!(
            lab.request_error("GET", &format!("{path}/config"), ""),
            "500 Configuration file 'nodes/pve1/lxc/200.conf' does not exist"
        );
    });
}

#[test]
fn a_locked_container_refuses_config_resize_and_destroy_at_once_and_a_start_in_its_task() {
    in_every_release(|| {
        let mut lab = FactsLab::new(&SMALL.replace("cores: 1,", "cores: 1, lock: backup,"));
        for (method, path, form) in [
            ("PUT", "/nodes/pve1/lxc/200/config", "memory=600"),
            ("PUT", "/nodes/pve1/lxc/200/resize", "disk=rootfs&size=8G"),
            ("DELETE", "/nodes/pve1/lxc/200", ""),
        ] {
            assert_eq!(lab.request_error(method, path, form), "500 CT is locked (backup)");
        }
        assert_eq!(lab.run_task("POST", START, ""), "CT is locked (backup)");
    });
}

#[test]
fn containers_have_a_hostname_and_numeric_memory_and_swap() {
    in_every_release(|| {
        let mut lab = FactsLab::new(SMALL);
        let config = lab.get("/nodes/pve1/lxc/200/config");
        assert_eq!((&config["hostname"], &config["memory"], &config["swap"]), (&"dns".into(), &512.into(), &512.into()));
        assert!(config.get("name").is_none());
        assert_eq!(config["unprivileged"], 1);
    });
}

#[test]
fn creating_a_container_writes_its_defaults() {
    in_every_release(|| {
        let mut lab = FactsLab::new(SMALL);
        lab.run_ok("POST", "/nodes/pve1/lxc", "vmid=201&ostemplate=local%3Avztmpl%2Fx.tar.zst&storage=tank&start=1");
        let config = lab.get("/nodes/pve1/lxc/201/config");
        assert_eq!((&config["hostname"], &config["unprivileged"], &config["swap"]), (&"CT201".into(), &1.into(), &512.into()));
        assert_eq!(config["rootfs"], "tank:vm-201-disk-0,size=4G");
        lab.advance_ms(2_000);
        assert_eq!(lab.get("/nodes/pve1/lxc/201/status/current")["status"], "running");
    });
}
