//! Backups, restores, and other content of storages.

use serde_json::{Value, json};

use crate::lab::{CLUSTER, FactsLab, SMALL};

fn lab_with_backup_storage() -> FactsLab {
    FactsLab::new(
        &SMALL.replace("{ path: /var/lib/vz }", "{ path: /var/lib/vz, content: [backup, iso, vztmpl, images], files: [iso/a.iso] }"),
    )
}

fn list_backups(lab: &mut FactsLab) -> Vec<Value> {
    lab.get("/nodes/pve1/storage/local/content?content=backup").as_array().cloned().unwrap_or_default()
}

#[test]
fn a_backup_locks_its_guest_and_is_then_on_its_storage() {
    let mut lab = lab_with_backup_storage();
    let answer = lab.request("POST", "/nodes/pve1/vzdump", "vmid=100&storage=local&compress=zstd&notes-template={{guestname}}&protected=1");
    let upid = crate::lab::response_data(&answer).as_str().unwrap_or_default().to_owned();
    assert!(upid.contains(":vzdump:100:"), "{upid}");
    assert_eq!(lab.get("/nodes/pve1/qemu/100/config")["lock"], "backup");
    assert_eq!(lab.request_error("PUT", "/nodes/pve1/qemu/100/config", "cores=3"), "500 VM is locked (backup)");
    assert_eq!(lab.wait_for_task(&upid), "OK");
    assert_eq!(lab.get("/nodes/pve1/qemu/100/config").get("lock"), None);
    let [backup] = list_backups(&mut lab).try_into().unwrap_or_else(|other| panic!("{other:?}"));
    let id = backup["volid"].as_str().unwrap_or_default();
    assert!(id.starts_with("local:backup/vzdump-qemu-100-2026_11_15-") && id.ends_with(".vma.zst"), "{id}");
    assert_eq!((&backup["vmid"], &backup["notes"], &backup["protected"]), (&json!(100), &json!("web"), &json!(1)));
    let delete = format!("/nodes/pve1/storage/local/content/{id}");
    assert!(lab.run_task("DELETE", &delete, "").starts_with("cannot remove protected volume 'backup/vzdump-qemu-100-"));
    lab.run_ok("PUT", &delete, "protected=0&notes=two%0Alines");
    assert_eq!(lab.get(&delete)["notes"], "two\nlines");
    assert_eq!(list_backups(&mut lab)[0]["notes"], "two", "a list shows the first line only");
    assert_eq!(lab.run_task("DELETE", &delete, ""), "OK");
    assert_eq!(list_backups(&mut lab), Vec::<Value>::new());
}

#[test]
fn each_node_backs_up_its_own_guests_and_one_failure_fails_only_the_task() {
    let mut lab = FactsLab::new(&CLUSTER.replace("storages: {", "storages: { nas: { type: nfs, content: [backup] },"));
    let none = lab.run_ok("POST", "/nodes/b/vzdump", "vmid=101&storage=nas");
    assert_eq!(none, "OK", "without guests on this node there is no task");
    assert_eq!(lab.run_task("POST", "/nodes/a/vzdump", "all=1&storage=nas"), "OK");
    assert_eq!(lab.run_task("POST", "/nodes/a/vzdump", "vmid=101,999&storage=nas"), "job errors");
    let list = lab.get("/nodes/a/storage/nas/content?content=backup");
    assert_eq!(list.as_array().map(Vec::len), Some(2), "{list}");
    let wrong = lab.run_task("POST", "/nodes/a/vzdump", "vmid=101&storage=tank");
    assert_eq!(wrong, "could not get storage information for 'tank': can't use storage 'tank' for backups - wrong content type");
    assert_eq!(lab.request_error("POST", "/nodes/a/vzdump", "storage=nas"), "400 Parameter verification failed.");
}

#[test]
fn backups_restore_to_a_new_guest_or_over_the_original() {
    for (kind, vmid, archive, disk) in [("qemu", 100, "archive", "scsi0"), ("lxc", 200, "restore=1&ostemplate", "rootfs")] {
        let mut lab = lab_with_backup_storage();
        let guest = format!("/nodes/pve1/{kind}/{vmid}");
        let before = lab.get(&format!("{guest}/config"));
        lab.run_ok("POST", "/nodes/pve1/vzdump", &format!("vmid={vmid}&storage=local"));
        let id = list_backups(&mut lab)[0]["volid"].as_str().unwrap_or_default().to_owned();
        lab.run_ok("PUT", &format!("{guest}/config"), "cores=7");
        let create = format!("/nodes/pve1/{kind}");
        let answer = lab.run_ok("POST", &create, &format!("vmid=300&{archive}={id}&unique=1"));
        assert!(answer.as_str().is_some_and(|upid| upid.contains("restore:300:")), "{answer}");
        let copy = lab.get(&format!("/nodes/pve1/{kind}/300/config"));
        assert_eq!(copy["cores"], before["cores"]);
        assert!(copy[disk].as_str().is_some_and(|value| value.starts_with("tank:vm-300-disk-0,")), "{copy}");
        assert!(kind == "lxc" || copy["net0"] != before["net0"], "a copy has its own MAC addresses");
        let error = lab.request_error("POST", &create, &format!("vmid={vmid}&{archive}={id}"));
        assert!(error.starts_with("500 unable to restore ") && error.contains("already exists on node 'pve1'"), "{error}");
        lab.run_ok("POST", &create, &format!("vmid={vmid}&{archive}={id}&force=1"));
        assert_eq!(lab.get(&format!("{guest}/config"))["cores"], before["cores"], "{kind}");
        lab.run_ok("POST", &format!("{guest}/status/start"), "");
        let running = lab.request_error("POST", &create, &format!("vmid={vmid}&{archive}={id}&force=1"));
        assert!(running.ends_with("vm is running"), "{running}");
    }
}

#[test]
fn files_are_fetched_once_and_disks_can_be_made_without_a_guest() {
    let mut lab = lab_with_backup_storage();
    let fetch = "/nodes/pve1/storage/local/download-url";
    let form = "url=https://images.example/b.iso&content=iso&filename=b.iso";
    assert_eq!(lab.run_task("POST", fetch, form), "OK");
    assert!(lab.run_task("POST", fetch, form).starts_with("refusing to override existing file '/var/lib/vz/template/iso/b.iso'"));
    let isos = lab.get("/nodes/pve1/storage/local/content?content=iso");
    let ids: Vec<&Value> = isos.as_array().into_iter().flatten().map(|file| &file["volid"]).collect();
    assert_eq!(ids, ["local:iso/a.iso", "local:iso/b.iso"]);
    lab.run_ok("POST", "/nodes/pve1/aplinfo", "storage=local&template=debian-12-standard_12.12-1_amd64.tar.zst");
    assert_eq!(lab.request_error("POST", "/nodes/pve1/aplinfo", "storage=local&template=nosuch.tar"), "400 Parameter verification failed.");
    let created = lab.run_ok("POST", "/nodes/pve1/storage/tank/content", "vmid=100&filename=vm-100-data&size=2G");
    assert_eq!(created, "tank:vm-100-data");
    assert_eq!(lab.get("/nodes/pve1/storage/tank/content/vm-100-data")["size"], 2_u64 << 30);
    let twice = lab.request_error("POST", "/nodes/pve1/storage/tank/content", "vmid=100&filename=vm-100-data&size=2G");
    assert!(twice.ends_with("already exists"), "{twice}");
    assert_eq!(
        lab.request_error("POST", "/nodes/pve1/storage/tank/content", "vmid=100&filename=data&size=2G"),
        "400 Parameter verification failed."
    );
    assert_eq!(
        lab.request_error("PUT", "/nodes/pve1/storage/local/content/iso/a.iso", "notes=x"),
        "500 only backups support attribute 'notes'"
    );
    assert_eq!(lab.run_task("DELETE", "/nodes/pve1/storage/local/content/local:iso/a.iso", ""), "OK");
    assert_eq!(lab.request_error("GET", "/nodes/pve1/storage/local/content/iso/a.iso", ""), "500 volume 'local:iso/a.iso' does not exist");
}

#[test]
fn backups_need_privileges_on_guest_and_storage() {
    let users_yaml = "users: { ops@pve: {} }\nacl: [{ path: /vms/100, role: PVEVMUser, user: ops@pve }]\n";
    let yaml = format!("{SMALL}{users_yaml}").replace("tokens: {", "tokens: { ops@pve!t: { secret: s, full: true },");
    let mut lab = FactsLab::new(&yaml).with_token("ops@pve!t=s");
    let mut error = |form: &str| lab.request_error("POST", "/nodes/pve1/vzdump", form);
    assert_eq!(error("vmid=200&storage=local"), "403 Permission check failed (/vms/200, VM.Backup)");
    assert_eq!(error("vmid=100&storage=local"), "403 Permission check failed (/storage/local, Datastore.AllocateSpace)");
}

#[test]
fn backup_jobs_keep_their_settings() {
    let mut lab = lab_with_backup_storage();
    lab.run_ok("POST", "/cluster/backup", "id=nightly&vmid=100&schedule=21:00&storage=local&enabled=0");
    assert_eq!(lab.request_error("POST", "/cluster/backup", "id=nightly&all=1"), "500 Job 'nightly' already exists");
    assert_eq!(lab.request_error("POST", "/cluster/backup", "schedule=21:00"), "400 Parameter verification failed.");
    lab.run_ok("PUT", "/cluster/backup/nightly", "vmid=100,200&delete=enabled");
    let expected = json!({ "id": "nightly", "type": "vzdump", "vmid": "100,200", "schedule": "21:00", "storage": "local",
        "next-run": 1_794_700_800 + 21 * 3_600 });
    assert_eq!(lab.get("/cluster/backup/nightly"), expected);
    lab.run_ok("POST", "/cluster/backup", "all=1&mode=stop");
    let list = lab.get("/cluster/backup");
    assert!(list[1]["id"].as_str().is_some_and(|id| id.starts_with("backup-")), "{list}");
    assert_eq!((&list[1]["all"], &list[1]["enabled"]), (&json!(1), &json!(1)));
    lab.run_ok("DELETE", "/cluster/backup/nightly", "");
    assert_eq!(lab.request_error("GET", "/cluster/backup/nightly", ""), "400 Parameter verification failed.");
}

#[test]
fn storages_check_required_options_keep_others_and_hide_secrets() {
    let mut lab = lab_with_backup_storage();
    assert_eq!(
        lab.request_error("POST", "/storage", "storage=nas&type=nfs&server=192.0.2.7"),
        "500 missing value for required option 'export'"
    );
    lab.run_ok("POST", "/storage", "storage=nas&type=nfs&server=192.0.2.7&export=/srv&content=images&content=backup&nodes=pve1");
    let nas = lab.get("/storage/nas");
    assert_eq!((&nas["content"], &nas["server"], &nas["path"]), (&json!("backup,images"), &json!("192.0.2.7"), &json!("/mnt/pve/nas")));
    lab.run_ok("PUT", "/storage/nas", "delete=nodes&options=vers%3D4.2");
    let nas = lab.get("/storage/nas");
    assert_eq!((nas.get("nodes"), &nas["options"]), (None, &json!("vers=4.2")));
    lab.run_ok("POST", "/storage", "storage=pbs&type=pbs&server=192.0.2.8&datastore=a&username=b@pbs&password=hush&content=backup");
    assert!(!lab.get("/storage/pbs").to_string().contains("hush"));
}
