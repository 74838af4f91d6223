//! Who may do what.

use crate::lab::{Lab, SMALL, in_every_release, release};

fn limited(acl: &str) -> Lab {
    let people = "users: { ops@pve: { password: pw } }\ngroups: { team: [ops@pve] }\n";
    let tokens = "tokens: { ops@pve!own: { secret: s }, ops@pve!full: { secret: s, full: true } }\n";
    let base = SMALL.replace("tokens: { root@pam!t: { secret: s, full: true } }\n", "");
    Lab::new(&format!("{base}{people}{tokens}acl: [{acl}]\n"))
}

#[test]
fn lists_leave_out_what_may_not_be_seen_and_say_nothing() {
    in_every_release(|| {
        let mut lab = limited("{ path: /vms/100, role: PVEVMUser, user: ops@pve }").by("ops@pve!full=s");
        let rows = lab.get("/cluster/resources?type=vm");
        assert_eq!(rows.as_array().map(Vec::len), Some(1));
        assert_eq!(lab.get("/nodes/pve1/lxc"), serde_json::json!([]));
        assert_eq!(lab.error("GET", "/nodes/pve1/lxc/200/config", ""), "403 Permission check failed (/vms/200, VM.Audit)");
        assert_eq!(lab.error("GET", "/cluster/nextid?vmid=200", ""), "400 Parameter verification failed.", "it exists all the same");
    });
}

#[test]
fn a_token_has_its_own_privileges_within_its_owners() {
    in_every_release(|| {
        let acl = "{ path: /vms, role: PVEVMAdmin, group: team }, { path: /vms/100, role: PVEAuditor, token: 'ops@pve!own' }";
        let mut lab = limited(acl).by("ops@pve!own=s");
        let held = lab.get("/access/permissions?path=/vms/100");
        let held: Vec<&String> = held["/vms/100"].as_object().into_iter().flat_map(|map| map.keys()).collect();
        let since_nine = if release() == 9 { Some("VM.GuestAgent.Audit") } else { None };
        assert_eq!(held, ["VM.Audit"].into_iter().chain(since_nine).collect::<Vec<_>>());
        assert_eq!(lab.get("/access/permissions?path=/vms/200"), serde_json::json!({ "/vms/200": {} }));
        let error = lab.error("POST", "/nodes/pve1/qemu/100/status/start", "");
        assert_eq!(error, "403 Permission check failed (/vms/100, VM.PowerMgmt)");
    });
}

#[test]
fn a_token_sees_its_own_tasks_without_an_auditor_and_nobody_elses() {
    in_every_release(|| {
        let acl = "{ path: /vms, role: PVEVMUser, user: ops@pve }, { path: /vms, role: PVEVMUser, token: 'ops@pve!own' }";
        let mut lab = limited(acl).by("ops@pve!own=s");
        assert!(lab.get("/access/permissions?path=/nodes/pve1")["/nodes/pve1"].as_object().is_some_and(serde_json::Map::is_empty));
        lab.done("POST", "/nodes/pve1/qemu/100/status/start", "");
        let count = |lab: &mut Lab| lab.get("/nodes/pve1/tasks?source=all&vmid=100").as_array().map(Vec::len);
        assert_eq!(count(&mut lab), Some(1));
        let mut lab = lab.by("ops@pve!full=s");
        assert_eq!(count(&mut lab), Some(0), "another token of the same user");
    });
}

#[test]
fn a_guest_that_leaves_its_pool_vanishes_for_those_who_saw_it_through_the_pool() {
    in_every_release(|| {
        let base = limited("{ path: /pool/p, role: PVEVMUser, user: ops@pve }");
        let mut lab = base.by("ops@pve!full=s");
        assert_eq!(lab.get("/cluster/resources?type=vm"), serde_json::json!([]));
        let mut lab = {
            let yaml = SMALL.replace("tokens: { root@pam!t: { secret: s, full: true } }\n", "");
            let rest = "users: { ops@pve: {} }\ntokens: { ops@pve!full: { secret: s, full: true } }\npools: { p: { guests: [100] } }\n";
            Lab::new(&format!("{yaml}{rest}acl: [{{ path: /pool/p, role: PVEVMUser, user: ops@pve }}]\n"))
        };
        assert_eq!(lab.get("/cluster/resources?type=vm").as_array().map(Vec::len), Some(1));
        assert_eq!(lab.get("/nodes/pve1/qemu/100/config")["name"], "web");
    });
}

#[test]
fn root_in_person_may_what_roots_token_may_not() {
    in_every_release(|| {
        let mut lab = Lab::new(SMALL);
        let error = lab.error("PUT", "/nodes/pve1/qemu/100/config", "args=-x");
        assert_eq!(error, "500 only root can set 'args' config");
        let (ticket, companion) = lab.world.ticket("root@pam");
        let request = converger_lab::Request::new("PUT", "/api2/json/nodes/pve1/qemu/100/config")
            .header("Cookie", &format!("PVEAuthCookie={ticket}"))
            .header("CSRFPreventionToken", &companion)
            .form("args=-x");
        assert_eq!(lab.world.answer(lab.now_ms, &request).status, 200);
        assert_eq!(lab.get("/nodes/pve1/qemu/100/config")["args"], "-x");
    });
}

#[test]
fn a_login_gives_a_ticket_that_works() {
    in_every_release(|| {
        let mut lab = limited("{ path: /, role: PVEAuditor, user: ops@pve }");
        let login = converger_lab::Request::new("POST", "/api2/json/access/ticket").form("username=ops%40pve&password=pw");
        let answer = lab.world.answer(lab.now_ms, &login);
        let data = crate::lab::data(&answer);
        let ticket = data["ticket"].as_str().unwrap_or_default().to_owned();
        let request = converger_lab::Request::new("GET", "/api2/json/cluster/status").header("Cookie", &format!("PVEAuthCookie={ticket}"));
        assert_eq!(lab.world.answer(lab.now_ms, &request).status, 200);
        let later = lab.world.answer(lab.now_ms + 2 * 3_600_000, &request);
        assert_eq!((later.status, later.reason.as_str()), (401, "Authentication failed!"));
    });
}

#[test]
fn a_new_token_sees_nothing_until_it_is_given_something() {
    in_every_release(|| {
        let mut lab = Lab::new(SMALL);
        let made = lab.done("POST", "/access/users/root@pam/token/new", "");
        assert_eq!((&made["full-tokenid"], &made["info"]["privsep"]), (&"root@pam!new".into(), &1.into()));
        let token = format!("root@pam!new={}", made["value"].as_str().unwrap_or_default());
        let mut lab = lab.by(&token);
        assert_eq!(lab.get("/cluster/resources?type=vm"), serde_json::json!([]));
        assert_eq!(lab.get("/access/permissions"), serde_json::json!({}));
    });
}

/// Asked by a token of somebody who has just these privileges everywhere.
fn with_role(privileges: &str) -> Lab {
    let base = SMALL.replace("tokens: { root@pam!t: { secret: s, full: true } }\n", "");
    let rest = "users: { ops@pve: {} }\ntokens: { ops@pve!full: { secret: s, full: true } }\n";
    Lab::new(&format!("{base}{rest}roles: {{ own: [{privileges}] }}\nacl: [{{ path: /, role: own, user: ops@pve }}]\n"))
        .by("ops@pve!full=s")
}

#[test]
fn growing_a_disk_takes_space_on_its_storage() {
    in_every_release(|| {
        let (qemu, form) = ("/nodes/pve1/qemu/100/resize", "disk=scsi0&size=16G");
        let denied = "Permission check failed (/storage/tank, Datastore.AllocateSpace)";
        let mut lab = with_role("VM.Config.Disk, VM.Audit");
        // It acts before it answers in 7, and in its task since.
        let refused = if release() == 7 { lab.error("PUT", qemu, form) } else { format!("403 {}", lab.task("PUT", qemu, form)) };
        assert_eq!(refused, format!("403 {denied}"));
        assert_eq!(lab.error("PUT", "/nodes/pve1/lxc/200/resize", "disk=rootfs&size=16G"), format!("403 {denied}"));
        with_role("VM.Config.Disk, VM.Audit, Datastore.AllocateSpace").done("PUT", qemu, form);
    });
}

#[test]
fn a_clone_takes_space_on_every_storage_and_the_use_of_every_bridge() {
    in_every_release(|| {
        let clone = ("/nodes/pve1/qemu/100/clone", "newid=300&full=1");
        let mut lab = with_role("VM.Clone, VM.Allocate, VM.Audit");
        assert_eq!(lab.error("POST", clone.0, clone.1), "403 Permission check failed (/storage/tank, Datastore.AllocateSpace)");
        let mut lab = with_role("VM.Clone, VM.Allocate, VM.Audit, Datastore.AllocateSpace");
        if release() == 7 {
            // Bridges are nobody's yet.
            return assert_eq!(lab.task("POST", clone.0, clone.1), "OK");
        }
        assert_eq!(lab.error("POST", clone.0, clone.1), "403 Permission check failed (/sdn/zones/localnetwork/vmbr0, SDN.Use)");
        let mut lab = with_role("VM.Clone, VM.Allocate, VM.Audit, Datastore.AllocateSpace, SDN.Use");
        assert_eq!(lab.task("POST", clone.0, clone.1), "OK");
    });
}

#[test]
fn a_dump_of_permissions_names_members_of_pools() {
    in_every_release(|| {
        let base = SMALL.replace("tokens: { root@pam!t: { secret: s, full: true } }\n", "");
        let rest = "users: { ops@pve: {} }\ntokens: { ops@pve!full: { secret: s, full: true } }\npools: { p: { guests: [100], storages: [tank] } }\n";
        let acl = "acl: [{ path: /pool/p, role: PVEVMUser, user: ops@pve }]\n";
        let dump = Lab::new(&format!("{base}{rest}{acl}")).by("ops@pve!full=s").get("/access/permissions");
        let paths: Vec<&String> = dump.as_object().into_iter().flat_map(|map| map.keys()).collect();
        assert_eq!(paths, ["/pool/p", "/storage/tank", "/vms/100"]);
    });
}
