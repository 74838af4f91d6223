//! Snapshots, clones, templates, sizes.

use converger_lab::WorldEvent;

use crate::lab::{FactsLab, SMALL, current_release, in_every_release, response_data};

const GUEST: &str = "/nodes/pve1/qemu/100";

#[test]
fn rollback_restores_the_config_but_not_the_description() {
    in_every_release(|| {
        let mut lab = FactsLab::new(SMALL);
        lab.run_ok("POST", &format!("{GUEST}/snapshot"), "snapname=s1&description=first");
        let genid = lab.get(&format!("{GUEST}/config"))["vmgenid"].clone();
        lab.run_ok("PUT", &format!("{GUEST}/config"), "cores=8&description=today");
        lab.run_ok("POST", &format!("{GUEST}/snapshot/s1/rollback"), "");
        let config = lab.get(&format!("{GUEST}/config"));
        assert_eq!((&config["cores"], &config["description"], &config["parent"]), (&2.into(), &"today".into(), &"s1".into()));
        assert_ne!(config["vmgenid"], genid, "a rollback gives a new generation id");
    });
}

#[test]
fn deleting_a_snapshot_relinks_the_chain() {
    in_every_release(|| {
        let mut lab = FactsLab::new(SMALL);
        for name in ["s1", "s2", "s3"] {
            lab.run_ok("POST", &format!("{GUEST}/snapshot"), &format!("snapname={name}"));
        }
        lab.run_ok("DELETE", &format!("{GUEST}/snapshot/s2"), "");
        let list = lab.get(&format!("{GUEST}/snapshot"));
        let parent =
            |name: &str| list.as_array().into_iter().flatten().find(|entry| entry["name"] == name).map(|entry| entry["parent"].clone());
        assert_eq!((parent("s3"), parent("current")), (Some("s1".into()), Some("s3".into())));
    });
}

#[test]
fn snapshots_on_unsupported_storage_fail_in_the_task() {
    in_every_release(|| {
        let mut lab = FactsLab::new(SMALL);
        lab.run_ok("PUT", &format!("{GUEST}/config"), "scsi1=local%3A1");
        assert_eq!(lab.run_task("POST", &format!("{GUEST}/snapshot"), "snapname=s1"), "snapshot feature is not available");
    });
}

#[test]
fn disks_grow_to_a_size_or_by_an_amount_and_never_shrink() {
    in_every_release(|| {
        let mut lab = FactsLab::new(SMALL);
        let resize = format!("{GUEST}/resize");
        lab.run_ok("PUT", &resize, "disk=scsi0&size=16G");
        // Resizing to the current size is not a change.
        lab.run_ok("PUT", &resize, "disk=scsi0&size=16G");
        lab.run_ok("PUT", &resize, "disk=scsi0&size=%2B512M");
        assert_eq!(lab.get(&format!("{GUEST}/config"))["scsi0"], "tank:vm-100-disk-0,size=16896M");
        let shrunk = match current_release() {
            7 => lab.request_error("PUT", &resize, "disk=scsi0&size=1G"),
            _ => lab.run_task("PUT", &resize, "disk=scsi0&size=1G"),
        };
        assert!(shrunk.ends_with("shrinking disks is not supported"), "{shrunk}");
        assert_eq!(lab.request_error("PUT", &resize, "disk=scsi0&size=%2Bbanana"), "400 Parameter verification failed.");
        let container = "/nodes/pve1/lxc/200/resize";
        assert_eq!(lab.request_error("PUT", container, "disk=rootfs&size=4G"), "500 disk is already at specified size");
        assert_eq!(lab.request_error("PUT", container, "disk=rootfs&size=1G"), "500 unable to shrink disk size");
        assert_eq!(lab.run_task("PUT", container, "disk=rootfs&size=5G"), "OK");
    });
}

#[test]
fn disks_do_not_grow_with_a_stale_digest() {
    for flavour in [7, 8, 9] {
        for (guest, disk, text) in [("qemu/100", "scsi0", "checksum mis"), ("lxc/200", "rootfs", "detected modified configuration")] {
            let mut lab = FactsLab::new(&format!("flavour: {flavour}\n{SMALL}"));
            let path = format!("/nodes/pve1/{guest}");
            let digest = lab.get(&format!("{path}/config"))["digest"].as_str().unwrap_or_default().to_owned();
            lab.run_ok("PUT", &format!("{path}/config"), "onboot=1");
            let answer = lab.request("PUT", &format!("{path}/resize"), &format!("disk={disk}&size=20G&digest={digest}"));
            let upid = response_data(&answer).as_str().map(str::to_owned);
            let error = upid.map_or(answer.reason, |upid| lab.wait_for_task(&upid));
            assert!(error.contains(&text.replace("mis", if flavour == 7 { "miss" } else { "mis" })), "{flavour} {guest}: {error}");
            let size = lab.get(&format!("{path}/config"))[disk].clone();
            assert!(!size.as_str().unwrap_or_default().contains("20G"), "{flavour} {guest}: {size}");
        }
    }
}

#[test]
fn clones_have_their_own_birth_marks_and_inherit_the_rest() {
    in_every_release(|| {
        let mut lab =
            FactsLab::new(&SMALL.replace("cores: 2,", "cores: 2, tags: 'prod;web', onboot: 1, protection: 1, description: notes,"));
        let answer = lab.run_ok("POST", &format!("{GUEST}/clone"), "newid=300&name=copy");
        assert!(answer.as_str().is_some_and(|upid| upid.contains(":qmclone:100:")), "the task is about the source");
        let (old, new) = (lab.get(&format!("{GUEST}/config")), lab.get("/nodes/pve1/qemu/300/config"));
        for key in ["smbios1", "vmgenid", "net0", "scsi0", "name"] {
            assert_ne!(old[key], new[key], "{key}");
        }
        for key in ["tags", "onboot", "protection", "description", "meta", "cores"] {
            assert_eq!(old[key], new[key], "{key}");
        }
    });
}

#[test]
fn clones_are_locked_while_they_are_created() {
    in_every_release(|| {
        let mut lab = FactsLab::new(SMALL);
        lab.request("POST", &format!("{GUEST}/clone"), "newid=300");
        let row = lab.resource_row(300);
        assert_eq!((&row["lock"], &row["status"]), (&"clone".into(), &"unknown".into()));
        lab.advance_ms(20_000);
        let row = lab.resource_row(300);
        assert_eq!((row.get("lock"), &row["status"], &row["name"]), (None, &"stopped".into(), &"Copy-of-VM-web".into()));
    });
}

#[test]
fn a_template_cannot_be_started_and_is_the_base_of_linked_clones() {
    in_every_release(|| {
        let mut lab = FactsLab::new(SMALL);
        lab.run_ok("POST", &format!("{GUEST}/template"), "");
        assert_eq!(lab.run_task("POST", &format!("{GUEST}/status/start"), ""), "you can't start a vm if it's a template");
        lab.run_ok("POST", &format!("{GUEST}/clone"), "newid=300");
        let error = lab.run_task("DELETE", GUEST, "");
        assert_eq!(error, "base volume 'tank:base-100-disk-0' is still in use by linked cloned");
        lab.run_ok("DELETE", "/nodes/pve1/qemu/300", "");
        lab.run_ok("DELETE", GUEST, "");
    });
}

#[test]
fn linked_clones_need_a_template_and_stay_on_its_storage() {
    in_every_release(|| {
        let mut lab = FactsLab::new(SMALL);
        let clone = format!("{GUEST}/clone");
        assert_eq!(
            lab.request_error("POST", &clone, "newid=300&full=0"),
            "500 Linked clone feature is not supported for 'tank:vm-100-disk-0' (scsi0)"
        );
        lab.run_ok("POST", &format!("{GUEST}/template"), "");
        assert_eq!(
            lab.request_error("POST", &clone, "newid=300&full=0&storage=local"),
            "500 parameter 'storage' not allowed for linked clones"
        );
        lab.run_ok("POST", &clone, "newid=300&full=0");
        lab.run_ok("POST", &clone, "newid=301&full=1&storage=local");
        let disk = |lab: &mut FactsLab, vmid: u32| lab.get(&format!("/nodes/pve1/qemu/{vmid}/config"))["scsi0"].as_str().map(str::to_owned);
        assert!(disk(&mut lab, 300).is_some_and(|disk| disk.starts_with("tank:")));
        assert!(disk(&mut lab, 301).is_some_and(|disk| disk.starts_with("local:")));
    });
}

#[test]
fn clones_to_another_node_need_shared_disks() {
    in_every_release(|| {
        let mut lab = FactsLab::new(&SMALL.replace("nodes: { pve1: {} }", "cluster: lab\nnodes: { pve1: {}, pve2: {} }"));
        let clone = format!("{GUEST}/clone");
        let error = lab.request_error("POST", &clone, "newid=300&target=pve2&full=1&storage=local");
        assert_eq!(error, "500 can't clone to non-shared storage 'local'");
        lab.run_ok("POST", &clone, "newid=300&target=pve2&full=1");
        assert_eq!(lab.resource_row(300)["node"], "pve2");
        lab.run_ok("POST", &clone, "newid=301&full=1&storage=local");
        let error = lab.request_error("POST", "/nodes/pve1/qemu/301/clone", "newid=302&target=pve2");
        assert_eq!(error, "500 can't clone VM to node 'pve2' (VM uses local storage)");
        let error = lab.request_error("POST", &clone, "newid=303&target=pve9");
        assert_eq!(error, "500 no such cluster node 'pve9'");
    });
}

/// The request is checked before the guest, and the guest's lock before its disks.
#[test]
fn clones_are_refused_for_the_first_error() {
    in_every_release(|| {
        let mut lab = FactsLab::new(&SMALL.replace("nodes: { pve1: {} }", "cluster: lab\nnodes: { pve1: {}, pve2: {} }"));
        lab.apply_event(WorldEvent::Lock(100, "backup".to_owned()));
        lab.apply_event(WorldEvent::Lock(200, "backup".to_owned()));
        for (path, kind_word) in [(GUEST, "VM"), ("/nodes/pve1/lxc/200", "CT")] {
            let mut refused = |form: &str| lab.request_error("POST", &format!("{path}/clone"), form);
            assert_eq!(refused("newid=300&target=pve9&storage=nosuch"), "500 no such cluster node 'pve9'");
            assert_eq!(refused("newid=300&storage=nosuch"), "500 storage 'nosuch' does not exist");
            assert_eq!(refused("newid=300&target=pve2&storage=local"), "500 can't clone to non-shared storage 'local'");
            assert_eq!(refused("newid=300&full=0&storage=tank"), format!("500 {kind_word} is locked (backup)"));
        }
    });
}

#[test]
fn storages_list_content_by_type() {
    in_every_release(|| {
        let mut lab =
            FactsLab::new(&SMALL.replace("path: /var/lib/vz", "path: /var/lib/vz, files: [vztmpl/debian.tar.zst, iso/debian.iso]"));
        let volumes = |lab: &mut FactsLab, query: &str| {
            let list = lab.get(&format!("/nodes/pve1/storage/{query}"));
            list.as_array().into_iter().flatten().filter_map(|entry| entry["volid"].as_str().map(str::to_owned)).collect::<Vec<_>>()
        };
        assert_eq!(volumes(&mut lab, "local/content?content=vztmpl"), ["local:vztmpl/debian.tar.zst"]);
        assert_eq!(volumes(&mut lab, "tank/content?vmid=100"), ["tank:vm-100-disk-0"]);
        assert_eq!(volumes(&mut lab, "tank/content?content=rootdir"), ["tank:vm-200-disk-0"]);
    });
}

#[test]
fn destroying_a_guest_removes_its_permissions_pool_membership_and_firewall() {
    in_every_release(|| {
        let mut lab = FactsLab::new(&format!("{SMALL}pools: {{ p: {{ guests: [100] }} }}\n"));
        lab.run_ok("PUT", &format!("{GUEST}/firewall/options"), "enable=1");
        lab.run_ok("PUT", "/access/acl", "path=%2Fvms%2F100&users=root%40pam&roles=PVEVMUser");
        lab.run_ok("DELETE", GUEST, "");
        assert_eq!(lab.get("/pools/p")["members"], serde_json::json!([]));
        assert_eq!(lab.get("/access/acl"), serde_json::json!([]));
        lab.run_ok("POST", "/nodes/pve1/qemu", "vmid=100&name=other");
        assert!(lab.get(&format!("{GUEST}/firewall/options")).get("enable").is_none());
    });
}

#[test]
fn cloud_init_images_are_created_once_copied_to_clones_and_destroyed_with_their_guest() {
    let mut lab = FactsLab::new(SMALL);
    let volumes = |lab: &mut FactsLab| -> Vec<String> {
        let content = lab.get("/nodes/pve1/storage/tank/content");
        let ids = content.as_array().into_iter().flatten().filter_map(|volume| volume["volid"].as_str().map(str::to_owned));
        ids.filter(|id| id.ends_with("cloudinit")).collect()
    };
    lab.run_ok("PUT", &format!("{GUEST}/config"), "ide2=tank%3Acloudinit");
    assert_eq!(lab.get(&format!("{GUEST}/config"))["ide2"], "tank:vm-100-cloudinit,media=cdrom");
    let second = lab.request_error("PUT", &format!("{GUEST}/config"), "ide0=tank%3Acloudinit");
    assert!(second.starts_with("500 disk image '") && second.ends_with("vm-100-cloudinit' already exists"), "{second}");
    lab.run_ok("POST", &format!("{GUEST}/clone"), "newid=300");
    assert_eq!(lab.get("/nodes/pve1/qemu/300/config")["ide2"], "tank:vm-300-cloudinit,media=cdrom,size=4M");
    assert_eq!(volumes(&mut lab), ["tank:vm-100-cloudinit", "tank:vm-300-cloudinit"]);
    lab.run_ok("PUT", &format!("{GUEST}/config"), "delete=ide2");
    lab.run_ok("DELETE", "/nodes/pve1/qemu/300", "");
    assert_eq!(volumes(&mut lab), Vec::<String>::new(), "deleting the drive or the guest destroys the image");
    assert_eq!(lab.get(&format!("{GUEST}/config")).get("unused0"), None, "it never becomes an unused disk");
}

#[test]
fn unlinked_disks_become_unused_and_forced_unlinking_destroys_them() {
    let mut lab = FactsLab::new(SMALL);
    let unlink = format!("{GUEST}/unlink");
    lab.run_ok("PUT", &unlink, "idlist=scsi0");
    let config = lab.get(&format!("{GUEST}/config"));
    assert_eq!((config.get("scsi0"), &config["unused0"]), (None, &"tank:vm-100-disk-0".into()));
    lab.run_ok("PUT", &unlink, "idlist=unused0&force=1");
    assert_eq!(lab.get(&format!("{GUEST}/config")).get("unused0"), None);
    assert_eq!(lab.request_error("PUT", &unlink, "idlist=banana7"), "400 Parameter verification failed.");
    assert_eq!(
        lab.request_error("PUT", "/nodes/pve1/qemu/999/unlink", "idlist=scsi0"),
        "500 Configuration file 'nodes/pve1/qemu-server/999.conf' does not exist"
    );
}
