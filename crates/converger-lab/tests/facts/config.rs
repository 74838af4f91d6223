//! Config updates of virtual machines, running and stopped.

use serde_json::Value;

use crate::lab::{FactsLab, SMALL, in_every_release};

const CONFIG: &str = "/nodes/pve1/qemu/100/config";

fn running_lab() -> FactsLab {
    FactsLab::new(&SMALL.replace("name: web,", "name: web, state: running,"))
}

fn pending_keys(lab: &mut FactsLab) -> Vec<String> {
    let items = lab.get("/nodes/pve1/qemu/100/pending");
    let pending = items.as_array().into_iter().flatten().filter(|item| item.get("pending").is_some() || item.get("delete").is_some());
    pending.filter_map(|item| item["key"].as_str().map(str::to_owned)).collect()
}

#[test]
fn a_guest_without_disk_and_card_has_a_blank_boot_order() {
    in_every_release(|| {
        let mut lab = FactsLab::new(SMALL);
        lab.run_ok("POST", "/nodes/pve1/qemu", "vmid=150&name=bare");
        assert_eq!(lab.get("/nodes/pve1/qemu/150/config")["boot"], " ");
        lab.run_ok("POST", "/nodes/pve1/qemu", "vmid=151&name=wired&net0=virtio%2Cbridge%3Dvmbr0");
        assert_eq!(lab.get("/nodes/pve1/qemu/151/config")["boot"], "order=net0");
    });
}

const TEAM: &str = "
nodes: { pve1: {} }
users: { ops@pve: {} }
tokens: { 'ops@pve!t': { secret: s, full: true }, root@pam!t: { secret: s, full: true } }
acl: [{ path: /, role: PVEAuditor, user: ops@pve }, { path: /, role: PVEVMAdmin, user: ops@pve }]
guests: [{ vmid: 100, kind: qemu, node: pve1, name: web, config: { tags: prod } }]
";

#[test]
fn tags_keep_their_case_if_the_datacenter_says_so() {
    in_every_release(|| {
        let mut lab = FactsLab::new(SMALL);
        lab.run_ok("PUT", CONFIG, "tags=Foo%3BBar");
        assert_eq!(lab.get(CONFIG)["tags"], "bar;foo");
        lab.run_ok("PUT", "/cluster/options", "tag-style=case-sensitive%3D1");
        assert_eq!(lab.get("/cluster/options")["tag-style"]["case-sensitive"], 1);
        lab.run_ok("PUT", CONFIG, "tags=Foo%3BBar");
        assert_eq!(lab.get(CONFIG)["tags"], "Bar;Foo");
        lab.run_ok("PUT", "/cluster/options", "delete=tag-style");
        assert!(lab.get("/cluster/options").get("tag-style").is_none());
    });
}

#[test]
fn restricted_tags_need_sys_modify() {
    in_every_release(|| {
        for (access, tags, denied) in [
            ("free", "web", None),
            ("none", "prod%3Bweb", Some("web")),
            ("none", "prod", None),
            ("list%2Cuser-allow-list%3Dweb%3Bdb", "prod%3Bweb", None),
            ("list%2Cuser-allow-list%3Ddb", "prod%3Bweb", Some("web")),
            ("existing", "prod", None),
            ("existing", "prod%3Bnew", Some("new")),
            ("list", "", Some("prod")),
        ] {
            let mut lab = FactsLab::new(TEAM).with_token("root@pam!t=s");
            lab.run_ok("PUT", "/cluster/options", &format!("user-tag-access=user-allow%3D{access}"));
            let mut lab = lab.with_token("ops@pve!t=s");
            let answer = lab.request("PUT", CONFIG, &format!("tags={tags}"));
            let expected = denied
                .map_or((200, "OK".to_owned()), |tag| (403, format!("Permission check failed (/, Sys.Modify for modifying tag '{tag}')")));
            assert_eq!((answer.status, answer.reason), expected, "{access} {tags}");
            assert_eq!(
                lab.with_token("root@pam!t=s").request("PUT", CONFIG, &format!("tags={tags}")).status,
                200,
                "root may set every tag"
            );
        }
    });
}

#[test]
fn the_smallest_share_of_a_processor_is_one() {
    in_every_release(|| {
        let mut lab = FactsLab::new(SMALL);
        lab.run_ok("PUT", CONFIG, "cpuunits=1");
        assert_eq!(lab.get(CONFIG)["cpuunits"], 1);
    });
}

#[test]
fn keys_without_hotplug_become_pending_and_the_call_succeeds() {
    in_every_release(|| {
        let mut lab = running_lab();
        lab.run_ok("PUT", CONFIG, "cores=4&sockets=2&memory=2048&bios=ovmf&machine=q35");
        assert_eq!(pending_keys(&mut lab), ["bios", "cores", "machine", "memory", "sockets"]);
        assert_eq!(lab.get(CONFIG)["cores"], 4, "the default view has pending values applied");
        assert_eq!(lab.get(&format!("{CONFIG}?current=1"))["cores"], 2);
    });
}

#[test]
fn keys_unknown_to_qemu_take_effect_immediately() {
    in_every_release(|| {
        let mut lab = running_lab();
        lab.run_ok("PUT", CONFIG, "name=web2&description=x&onboot=1&tags=b%3Ba&protection=1&startup=order%3D1&ciuser=bob");
        assert!(pending_keys(&mut lab).is_empty());
        let now = lab.get(&format!("{CONFIG}?current=1"));
        assert_eq!((&now["name"], &now["tags"], &now["onboot"]), (&"web2".into(), &"a;b".into(), &1.into()));
    });
}

#[test]
fn memory_hotplug_needs_numa_and_the_hotplug_feature() {
    in_every_release(|| {
        let mut lab = running_lab();
        lab.run_ok("PUT", CONFIG, "hotplug=memory%2Cnetwork&numa=1");
        lab.run_ok("PUT", CONFIG, "memory=2048");
        assert!(pending_keys(&mut lab).contains(&"memory".to_owned()), "the features themselves are still pending");
        lab.run_ok("POST", "/nodes/pve1/qemu/100/status/stop", "");
        lab.run_ok("POST", "/nodes/pve1/qemu/100/status/start", "");
        lab.run_ok("PUT", CONFIG, "memory=4096");
        assert!(pending_keys(&mut lab).is_empty());
    });
}

#[test]
fn stop_shutdown_and_reboot_apply_pending_changes() {
    in_every_release(|| {
        for verb in ["stop", "shutdown", "reboot"] {
            let mut lab = running_lab();
            lab.run_ok("PUT", CONFIG, "cores=4&delete=net0");
            lab.run_ok("POST", &format!("/nodes/pve1/qemu/100/status/{verb}"), "");
            assert!(pending_keys(&mut lab).is_empty(), "{verb}");
            assert_eq!(lab.get(&format!("{CONFIG}?current=1"))["cores"], 4, "{verb}");
        }
    });
}

#[test]
fn rebooted_guests_run_again_after_the_task_ends() {
    in_every_release(|| {
        let mut lab = running_lab();
        lab.run_ok("POST", "/nodes/pve1/qemu/100/status/reboot", "");
        lab.advance_ms(5_000);
        let status = lab.get("/nodes/pve1/qemu/100/status/current");
        assert_eq!(status["status"], "running");
        assert!(status["uptime"].as_u64().is_some_and(|uptime| uptime <= 5), "{status}");
    });
}

#[test]
fn disks_given_as_storage_and_size_are_created_on_each_write() {
    in_every_release(|| {
        let mut lab = FactsLab::new(SMALL);
        lab.run_ok("PUT", CONFIG, "scsi1=tank%3A4");
        lab.run_ok("PUT", CONFIG, "scsi1=tank%3A4");
        let config = lab.get(CONFIG);
        assert_eq!((&config["scsi1"], &config["unused0"]), (&"tank:vm-100-disk-2,size=4G".into(), &"tank:vm-100-disk-1".into()));
        lab.run_ok("PUT", CONFIG, "scsi1=tank%3Avm-100-disk-2");
        assert_eq!(lab.get(CONFIG)["scsi1"], "tank:vm-100-disk-2,size=4G", "writing the same volume again changes nothing");
        assert_eq!(lab.request_error("PUT", CONFIG, "scsi3=tank%3Avm-9-disk-0"), "500 volume 'tank:vm-9-disk-0' does not exist");
    });
}

#[test]
fn a_new_cd_drive_joins_the_boot_order() {
    in_every_release(|| {
        let mut lab = FactsLab::new(SMALL);
        lab.run_ok("PUT", CONFIG, "cdrom=none%2Cmedia%3Dcdrom");
        let config = lab.get(CONFIG);
        assert_eq!((&config["ide2"], &config["boot"]), (&"none,media=cdrom".into(), &"order=scsi0;net0;ide2".into()));
    });
}

#[test]
fn any_change_changes_the_digest() {
    in_every_release(|| {
        let mut lab = running_lab();
        let digest = |lab: &mut FactsLab| lab.get(CONFIG)["digest"].clone();
        let mut seen: Vec<Value> = vec![digest(&mut lab)];
        for form in ["description=a", "cores=3", "revert=cores", "tags=x"] {
            lab.run_ok("PUT", CONFIG, form);
            seen.push(digest(&mut lab));
        }
        lab.run_ok("POST", "/nodes/pve1/qemu/100/snapshot", "snapname=s1");
        seen.push(digest(&mut lab));
        assert_eq!(seen[3], seen[1], "reverting restores the file");
        seen.remove(3);
        let count = seen.len();
        seen.sort_by_key(ToString::to_string);
        seen.dedup();
        assert_eq!(seen.len(), count);
    });
}

#[test]
fn a_balloon_larger_than_the_memory_is_refused() {
    in_every_release(|| {
        let mut lab = FactsLab::new(SMALL);
        let before = lab.get(CONFIG);
        let text = "500 balloon value too large (must be smaller than assigned memory)";
        assert_eq!(lab.request_error("PUT", CONFIG, "balloon=2048"), text);
        assert_eq!(lab.get(CONFIG), before);
    });
}

#[test]
fn cards_that_the_guest_does_not_release_fail_and_stay_pending() {
    in_every_release(|| {
        let mut lab = FactsLab::new(&SMALL.replace("name: web,", "name: web, state: running, holds_cards: true,"));
        let answer = lab.request("PUT", CONFIG, "delete=net0&description=written");
        let body: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
        let text = "hotplug problem - error on hot-unplugging device 'net0' - still busy in guest?\n";
        assert_eq!((answer.status, &body["errors"]["net0"]), (400, &text.into()));
        assert_eq!(pending_keys(&mut lab), ["boot", "net0"]);
        assert_eq!(lab.get(CONFIG)["description"], "written", "the other keys were written");
    });
}

#[test]
fn config_updates_wait_for_a_task_that_ends_soon() {
    in_every_release(|| {
        let mut lab = FactsLab::new(SMALL);
        let start = lab.request("POST", "/nodes/pve1/qemu/100/status/start", "");
        assert_eq!(start.status, 200);
        let answer = lab.request("PUT", CONFIG, "cores=4");
        assert_eq!((answer.status, answer.delay_ms), (200, 600));
        assert_eq!(lab.get(&format!("{CONFIG}?current=1"))["cores"], 2, "the guest runs by then, so the change is pending");
    });
}

#[test]
fn guests_suspended_to_disk_are_stopped_and_locked_and_resume() {
    in_every_release(|| {
        let mut lab = running_lab();
        lab.run_ok("POST", "/nodes/pve1/qemu/100/status/suspend", "todisk=1");
        let status = lab.get("/nodes/pve1/qemu/100/status/current");
        assert_eq!((&status["status"], &status["lock"]), (&"stopped".into(), &"suspended".into()));
        lab.run_ok("POST", "/nodes/pve1/qemu/100/status/start", "");
        let status = lab.get("/nodes/pve1/qemu/100/status/current");
        assert_eq!((&status["status"], status.get("lock")), (&"running".into(), None));
    });
}

#[test]
fn cloud_init_settings_read_back_and_the_image_shows_what_changed_since_the_start() {
    in_every_release(|| {
        let mut lab = FactsLab::new(SMALL);
        let config = "/nodes/pve1/qemu/100/config";
        let form = "ide2=tank%3Acloudinit&ciuser=ops&cipassword=secret&ipconfig0=ip%3D10.0.0.5%2F24%2Cgw%3D10.0.0.1&nameserver=9.9.9.9&searchdomain=lan\
            &cicustom=user%3Dlocal%3Asnippets%2Fuser.yaml&cpu=host&sockets=2&net0=virtio%3DBC%3A24%3A11%3A00%3A00%3A01%2Cbridge%3Dvmbr0%2Ctag%3D7";
        lab.run_ok("POST", config, form);
        let now = lab.get(config);
        assert_eq!((&now["ide2"], &now["cipassword"]), (&"tank:vm-100-cloudinit,media=cdrom".into(), &"**********".into()));
        assert_eq!((&now["ipconfig0"], &now["cicustom"]), (&"ip=10.0.0.5/24,gw=10.0.0.1".into(), &"user=local:snippets/user.yaml".into()));
        assert_eq!(
            (&now["cpu"], &now["sockets"], &now["net0"]),
            (&"host".into(), &2.into(), &"virtio=BC:24:11:00:00:01,bridge=vmbr0,tag=7".into())
        );
        let stored = lab.world.guest_truth(100).and_then(|truth| truth.config.get("cipassword").cloned()).unwrap_or_default();
        assert!(stored.starts_with("$5$") && !stored.contains("secret"), "{stored}");
        lab.run_ok("PUT", config, "cipassword=%245%24salt%24hash");
        let stored = lab.world.guest_truth(100).and_then(|truth| truth.config.get("cipassword").cloned());
        assert_eq!(stored.as_deref(), Some("$5$salt$hash"), "a hash is stored as it is");
        lab.run_ok("POST", "/nodes/pve1/qemu/100/status/start", "");
        lab.run_ok("PUT", config, "ciuser=root&sshkeys=ssh-ed25519%2520AAAAC3NzaC1lZDI1NTE5AAAAIAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA%2520me&delete=searchdomain");
        let rows = |lab: &mut FactsLab| lab.get("/nodes/pve1/qemu/100/cloudinit").as_array().cloned().unwrap_or_default();
        let row = |rows: &[serde_json::Value], key: &str| rows.iter().find(|row| row["key"] == key).cloned().unwrap_or_default();
        let changed = rows(&mut lab);
        let (old, new) = if crate::lab::current_release() == 7 { ("old", "new") } else { ("value", "pending") };
        assert_eq!(row(&changed, "ciuser"), serde_json::json!({ "key": "ciuser", old: "ops", new: "root" }));
        assert_eq!(row(&changed, "nameserver"), serde_json::json!({ "key": "nameserver", old: "9.9.9.9" }));
        assert_eq!(row(&changed, "searchdomain"), serde_json::json!({ "key": "searchdomain", "delete": 1 }));
        assert!(row(&changed, "sshkeys").get(old).is_none() && row(&changed, "sshkeys").get(new).is_some());
        lab.run_ok("PUT", "/nodes/pve1/qemu/100/cloudinit", "");
        assert!(rows(&mut lab).iter().all(|row| row.get(new).is_none() && row.get("delete").is_none()));
    });
}
