//! Containers that run: the recordings have none.

use crate::lab::{Lab, SMALL, in_every_release};

const START: &str = "/nodes/pve1/lxc/200/status/start";

#[test]
fn a_running_container_refuses_a_start_at_once() {
    in_every_release(|| {
        let mut lab = Lab::new(SMALL);
        assert_eq!(lab.task("POST", START, ""), "OK");
        assert_eq!(lab.error("POST", START, ""), "500 CT 200 already running");
        assert_eq!(lab.get("/nodes/pve1/lxc/200/status/current")["status"], "running");
    });
}

#[test]
fn a_container_that_does_not_listen_is_not_stopped_unless_forced() {
    in_every_release(|| {
        let mut lab = Lab::new(&SMALL.replace("name: dns,", "name: dns, deaf: true, state: running,"));
        let shutdown = "/nodes/pve1/lxc/200/status/shutdown";
        assert_eq!(lab.task("POST", shutdown, "timeout=3"), "container did not stop");
        assert_eq!(lab.task("POST", shutdown, "timeout=3&forceStop=1"), "OK");
        assert_eq!(lab.get("/nodes/pve1/lxc/200/status/current")["status"], "stopped");
    });
}

#[test]
fn a_running_container_takes_memory_and_cores_over_and_keeps_the_rest_pending() {
    in_every_release(|| {
        let mut lab = Lab::new(SMALL);
        lab.done("POST", START, "");
        let config = "/nodes/pve1/lxc/200/config";
        lab.done("PUT", config, "memory=1024&cores=2&hostname=dns2&nameserver=1.1.1.1&features=nesting%3D1");
        let now = lab.get(&format!("{config}?current=1"));
        assert_eq!((&now["memory"], &now["cores"], &now["hostname"]), (&1024.into(), &2.into(), &"dns2".into()));
        assert!(now.get("nameserver").is_none() && now.get("features").is_none(), "{now}");
        let waits: Vec<String> = pending(&mut lab);
        assert_eq!(waits, ["features", "nameserver"]);
        lab.done("POST", "/nodes/pve1/lxc/200/status/stop", "");
        assert!(pending(&mut lab).is_empty());
        assert_eq!(lab.get(config)["nameserver"], "1.1.1.1");
    });
}

fn pending(lab: &mut Lab) -> Vec<String> {
    let items = lab.get("/nodes/pve1/lxc/200/pending");
    let waits = items.as_array().into_iter().flatten().filter(|item| item.get("pending").is_some() || item.get("delete").is_some());
    waits.filter_map(|item| item["key"].as_str().map(str::to_owned)).collect()
}

#[test]
fn a_container_on_a_bridge_that_is_not_there_fails_to_be_written_and_is_written() {
    in_every_release(|| {
        let mut lab = Lab::new(SMALL);
        let config = "/nodes/pve1/lxc/200/config";
        let error = lab.error("PUT", config, "net0=name%3Deth0%2Cbridge%3Dvmbr9&memory=300");
        assert_eq!(error, "500 bridge 'vmbr9' does not exist");
        assert_eq!(lab.get(config)["memory"], 300);
        assert_eq!(lab.error("PUT", config, "memory=301"), "500 bridge 'vmbr9' does not exist");
        assert_eq!(lab.get(config)["memory"], 301, "so it is with every later write");
    });
}

#[test]
fn a_running_container_is_not_destroyed_unless_forced() {
    in_every_release(|| {
        let mut lab = Lab::new(SMALL);
        lab.done("POST", START, "");
        let path = "/nodes/pve1/lxc/200";
        assert_eq!(lab.error("DELETE", path, ""), "500 unable to destroy CT 200 - container is running");
        lab.done("DELETE", &format!("{path}?force=1"), "");
        assert_eq!(lab.error("GET", &format!("{path}/config"), ""), "500 Configuration file 'nodes/pve1/lxc/200.conf' does not exist");
    });
}

#[test]
fn a_locked_container_refuses_config_resize_and_destroy_at_once_and_a_start_in_its_task() {
    in_every_release(|| {
        let mut lab = Lab::new(&SMALL.replace("cores: 1,", "cores: 1, lock: backup,"));
        for (method, path, form) in [
            ("PUT", "/nodes/pve1/lxc/200/config", "memory=600"),
            ("PUT", "/nodes/pve1/lxc/200/resize", "disk=rootfs&size=8G"),
            ("DELETE", "/nodes/pve1/lxc/200", ""),
        ] {
            assert_eq!(lab.error(method, path, form), "500 CT is locked (backup)");
        }
        assert_eq!(lab.task("POST", START, ""), "CT is locked (backup)");
    });
}

#[test]
fn a_container_says_hostname_and_numbers_for_memory_and_swap() {
    in_every_release(|| {
        let mut lab = Lab::new(SMALL);
        let config = lab.get("/nodes/pve1/lxc/200/config");
        assert_eq!((&config["hostname"], &config["memory"], &config["swap"]), (&"dns".into(), &512.into(), &512.into()));
        assert!(config.get("name").is_none());
        assert_eq!(config["unprivileged"], 1);
    });
}

#[test]
fn creating_a_container_writes_its_defaults() {
    in_every_release(|| {
        let mut lab = Lab::new(SMALL);
        lab.done("POST", "/nodes/pve1/lxc", "vmid=201&ostemplate=local%3Avztmpl%2Fx.tar.zst&storage=tank&start=1");
        let config = lab.get("/nodes/pve1/lxc/201/config");
        assert_eq!((&config["hostname"], &config["unprivileged"], &config["swap"]), (&"CT201".into(), &1.into(), &512.into()));
        assert_eq!(config["rootfs"], "tank:vm-201-disk-0,size=4G");
        lab.pass(2_000);
        assert_eq!(lab.get("/nodes/pve1/lxc/201/status/current")["status"], "running");
    });
}
