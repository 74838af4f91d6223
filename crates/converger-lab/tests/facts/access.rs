//! Permissions.

use crate::lab::{FactsLab, SMALL, current_release, in_every_release};

fn lab_with_acl(acl: &str) -> FactsLab {
    let users_yaml = "users: { ops@pve: { password: pw } }\ngroups: { team: [ops@pve] }\n";
    let tokens = "tokens: { ops@pve!own: { secret: s }, ops@pve!full: { secret: s, full: true } }\n";
    let base = SMALL.replace("tokens: { root@pam!t: { secret: s, full: true } }\n", "");
    FactsLab::new(&format!("{base}{users_yaml}{tokens}acl: [{acl}]\n"))
}

#[test]
fn lists_silently_omit_guests_without_permission() {
    in_every_release(|| {
        let mut lab = lab_with_acl("{ path: /vms/100, role: PVEVMUser, user: ops@pve }").with_token("ops@pve!full=s");
        let rows = lab.get("/cluster/resources?type=vm");
        assert_eq!(rows.as_array().map(Vec::len), Some(1));
        assert_eq!(lab.get("/nodes/pve1/lxc"), serde_json::json!([]));
        assert_eq!(lab.request_error("GET", "/nodes/pve1/lxc/200/config", ""), "403 Permission check failed (/vms/200, VM.Audit)");
        assert_eq!(
            lab.request_error("GET", "/cluster/nextid?vmid=200", ""),
            "400 Parameter verification failed.",
            "the guest exists nevertheless"
        );
    });
}

#[test]
fn a_token_has_its_own_privileges_within_its_owners() {
    in_every_release(|| {
        let acl = "{ path: /vms, role: PVEVMAdmin, group: team }, { path: /vms/100, role: PVEAuditor, token: 'ops@pve!own' }";
        let mut lab = lab_with_acl(acl).with_token("ops@pve!own=s");
        let held = lab.get("/access/permissions?path=/vms/100");
        let held: Vec<&String> = held["/vms/100"].as_object().into_iter().flat_map(|map| map.keys()).collect();
        let since_nine = if current_release() == 9 { Some("VM.GuestAgent.Audit") } else { None };
        assert_eq!(held, ["VM.Audit"].into_iter().chain(since_nine).collect::<Vec<_>>());
        assert_eq!(lab.get("/access/permissions?path=/vms/200"), serde_json::json!({ "/vms/200": {} }));
        let error = lab.request_error("POST", "/nodes/pve1/qemu/100/status/start", "");
        assert_eq!(error, "403 Permission check failed (/vms/100, VM.PowerMgmt)");
    });
}

#[test]
fn tokens_see_their_own_tasks_only() {
    in_every_release(|| {
        let acl = "{ path: /vms, role: PVEVMUser, user: ops@pve }, { path: /vms, role: PVEVMUser, token: 'ops@pve!own' }";
        let mut lab = lab_with_acl(acl).with_token("ops@pve!own=s");
        assert!(lab.get("/access/permissions?path=/nodes/pve1")["/nodes/pve1"].as_object().is_some_and(serde_json::Map::is_empty));
        lab.run_ok("POST", "/nodes/pve1/qemu/100/status/start", "");
        let count = |lab: &mut FactsLab| lab.get("/nodes/pve1/tasks?source=all&vmid=100").as_array().map(Vec::len);
        assert_eq!(count(&mut lab), Some(1));
        let mut lab = lab.with_token("ops@pve!full=s");
        assert_eq!(count(&mut lab), Some(0), "another token of the same user");
    });
}

#[test]
fn pool_roles_give_access_to_pool_members_only() {
    in_every_release(|| {
        let base = lab_with_acl("{ path: /pool/p, role: PVEVMUser, user: ops@pve }");
        let mut lab = base.with_token("ops@pve!full=s");
        assert_eq!(lab.get("/cluster/resources?type=vm"), serde_json::json!([]));
        let mut lab = {
            let yaml = SMALL.replace("tokens: { root@pam!t: { secret: s, full: true } }\n", "");
            let rest = "users: { ops@pve: {} }\ntokens: { ops@pve!full: { secret: s, full: true } }\npools: { p: { guests: [100] } }\n";
            FactsLab::new(&format!("{yaml}{rest}acl: [{{ path: /pool/p, role: PVEVMUser, user: ops@pve }}]\n"))
        };
        assert_eq!(lab.get("/cluster/resources?type=vm").as_array().map(Vec::len), Some(1));
        assert_eq!(lab.get("/nodes/pve1/qemu/100/config")["name"], "web");
    });
}

#[test]
fn some_options_are_for_root_and_not_for_its_tokens() {
    in_every_release(|| {
        let mut lab = FactsLab::new(SMALL);
        let error = lab.request_error("PUT", "/nodes/pve1/qemu/100/config", "args=-x");
        assert_eq!(error, "500 only root can set 'args' config");
        let (ticket, companion) = lab.world.ticket("root@pam");
        let request = converger_lab::LabRequest::new("PUT", "/api2/json/nodes/pve1/qemu/100/config")
            .with_header("Cookie", &format!("PVEAuthCookie={ticket}"))
            .with_header("CSRFPreventionToken", &companion)
            .with_form("args=-x");
        assert_eq!(lab.world.answer(lab.now_ms, &request).status, 200);
        assert_eq!(lab.get("/nodes/pve1/qemu/100/config")["args"], "-x");
    });
}

#[test]
fn login_returns_a_working_ticket() {
    in_every_release(|| {
        let mut lab = lab_with_acl("{ path: /, role: PVEAuditor, user: ops@pve }");
        let login = converger_lab::LabRequest::new("POST", "/api2/json/access/ticket").with_form("username=ops%40pve&password=pw");
        let answer = lab.world.answer(lab.now_ms, &login);
        let data = crate::lab::response_data(&answer);
        let ticket = data["ticket"].as_str().unwrap_or_default().to_owned();
        let request =
            converger_lab::LabRequest::new("GET", "/api2/json/cluster/status").with_header("Cookie", &format!("PVEAuthCookie={ticket}"));
        assert_eq!(lab.world.answer(lab.now_ms, &request).status, 200);
        let later = lab.world.answer(lab.now_ms + 2 * 3_600_000, &request);
        assert_eq!((later.status, later.reason.as_str()), (401, "Authentication failed!"));
    });
}

#[test]
fn new_tokens_have_no_privileges() {
    in_every_release(|| {
        let mut lab = FactsLab::new(SMALL);
        let created = lab.run_ok("POST", "/access/users/root@pam/token/new", "");
        assert_eq!((&created["full-tokenid"], &created["info"]["privsep"]), (&"root@pam!new".into(), &1.into()));
        let token = format!("root@pam!new={}", created["value"].as_str().unwrap_or_default());
        let mut lab = lab.with_token(&token);
        assert_eq!(lab.get("/cluster/resources?type=vm"), serde_json::json!([]));
        assert_eq!(lab.get("/access/permissions"), serde_json::json!({}));
    });
}

/// A lab whose token belongs to a user with exactly these privileges on every path.
fn lab_with_role(privileges: &str) -> FactsLab {
    let base = SMALL.replace("tokens: { root@pam!t: { secret: s, full: true } }\n", "");
    let rest = "users: { ops@pve: {} }\ntokens: { ops@pve!full: { secret: s, full: true } }\n";
    FactsLab::new(&format!("{base}{rest}roles: {{ own: [{privileges}] }}\nacl: [{{ path: /, role: own, user: ops@pve }}]\n"))
        .with_token("ops@pve!full=s")
}

#[test]
fn growing_a_disk_needs_allocate_space_on_its_storage() {
    in_every_release(|| {
        let (qemu, form) = ("/nodes/pve1/qemu/100/resize", "disk=scsi0&size=16G");
        let denied = "Permission check failed (/storage/tank, Datastore.AllocateSpace)";
        let mut lab = lab_with_role("VM.Config.Disk, VM.Audit");
        // Release 7 resizes in the call itself, later releases in a task.
        let refused =
            if current_release() == 7 { lab.request_error("PUT", qemu, form) } else { format!("403 {}", lab.run_task("PUT", qemu, form)) };
        assert_eq!(refused, format!("403 {denied}"));
        assert_eq!(lab.request_error("PUT", "/nodes/pve1/lxc/200/resize", "disk=rootfs&size=16G"), format!("403 {denied}"));
        lab_with_role("VM.Config.Disk, VM.Audit, Datastore.AllocateSpace").run_ok("PUT", qemu, form);
    });
}

#[test]
fn clones_need_allocate_space_on_storages_and_use_of_bridges() {
    in_every_release(|| {
        let clone = ("/nodes/pve1/qemu/100/clone", "newid=300&full=1");
        let mut lab = lab_with_role("VM.Clone, VM.Allocate, VM.Audit");
        assert_eq!(lab.request_error("POST", clone.0, clone.1), "403 Permission check failed (/storage/tank, Datastore.AllocateSpace)");
        let mut lab = lab_with_role("VM.Clone, VM.Allocate, VM.Audit, Datastore.AllocateSpace");
        if current_release() == 7 {
            // Release 7 has no permissions on bridges.
            return assert_eq!(lab.run_task("POST", clone.0, clone.1), "OK");
        }
        assert_eq!(lab.request_error("POST", clone.0, clone.1), "403 Permission check failed (/sdn/zones/localnetwork/vmbr0, SDN.Use)");
        let mut lab = lab_with_role("VM.Clone, VM.Allocate, VM.Audit, Datastore.AllocateSpace, SDN.Use");
        assert_eq!(lab.run_task("POST", clone.0, clone.1), "OK");
    });
}

#[test]
fn permission_dumps_include_pool_members() {
    in_every_release(|| {
        let base = SMALL.replace("tokens: { root@pam!t: { secret: s, full: true } }\n", "");
        let rest = "users: { ops@pve: {} }\ntokens: { ops@pve!full: { secret: s, full: true } }\npools: { p: { guests: [100], storages: [tank] } }\n";
        let acl = "acl: [{ path: /pool/p, role: PVEVMUser, user: ops@pve }]\n";
        let dump = FactsLab::new(&format!("{base}{rest}{acl}")).with_token("ops@pve!full=s").get("/access/permissions");
        let paths: Vec<&String> = dump.as_object().into_iter().flat_map(|map| map.keys()).collect();
        assert_eq!(paths, ["/pool/p", "/storage/tank", "/vms/100"]);
    });
}
