//! Users, groups, roles and tokens: creating, changing, deleting, and permissions.

use converger_lab::{LabRequest, LabResponse};
use serde_json::json;

use crate::lab::{FactsLab, SMALL, response_data};

fn lab_with_users(flavour: u8) -> FactsLab {
    let users_yaml = "users: { ops@pve: { password: old-secret }, root@pam: { password: roots } }\ngroups: { team: [ops@pve] }\n";
    FactsLab::new(&format!("{SMALL}flavour: {flavour}\n{users_yaml}"))
}

/// Sends a request with the ticket of a user who has logged in.
fn request_with_ticket(lab: &mut FactsLab, user: &str, method: &str, path: &str, form: &str) -> LabResponse {
    let (ticket, companion) = lab.world.ticket(user);
    let request = LabRequest::new(method, &format!("/api2/json{path}"))
        .with_header("Cookie", &format!("PVEAuthCookie={ticket}"))
        .with_header("CSRFPreventionToken", &companion);
    lab.world.answer(lab.now_ms, &if form.is_empty() { request } else { request.with_form(form) })
}

#[test]
fn user_updates_keep_fields_that_are_not_given() {
    let mut lab = lab_with_users(9);
    lab.run_ok("POST", "/access/groups", "groupid=night&comment=shift");
    lab.run_ok("POST", "/access/users", "userid=ada@pve&groups=team&email=ada%40lab.example&password=secret77");
    assert_eq!(lab.request_error("POST", "/access/users", "userid=ada@pve"), "500 create user failed: user 'ada@pve' already exists");
    assert_eq!(lab.request_error("PUT", "/access/users/ada@pve", "groups=nosuch"), "500 update user failed: no such group 'nosuch'");
    assert_eq!(lab.request_error("PUT", "/access/users/eve@pve", "enable=0"), "500 update user failed: no such user ('eve@pve')");
    lab.run_ok("PUT", "/access/users/ada@pve", "groups=night&append=1&firstname=Ada");
    let user = lab.get("/access/users/ada@pve");
    let expected = json!({ "enable": 1, "expire": 0, "email": "ada@lab.example", "firstname": "Ada", "groups": ["night", "team"] });
    assert_eq!(user, expected);
    lab.run_ok("PUT", "/access/users/ada@pve", "groups=night&enable=0");
    let user = lab.get("/access/users/ada@pve");
    assert_eq!((&user["groups"], &user["enable"], &user["firstname"]), (&json!(["night"]), &json!(0), &json!("Ada")));
    assert_eq!(lab.get("/access/users?enabled=0").as_array().map(Vec::len), Some(1));
    assert_eq!(lab.get("/access/groups/night"), json!({ "members": ["ada@pve"], "comment": "shift" }));
    lab.run_ok("DELETE", "/access/users/ada@pve", "");
    assert_eq!(lab.get("/access/groups/night")["members"], json!([]));
}

#[test]
fn deleting_a_group_removes_its_acl_entries() {
    let mut lab = lab_with_users(9);
    lab.run_ok("PUT", "/access/acl", "path=/vms/100&roles=PVEVMUser&groups=team");
    assert_eq!(lab.get("/access/acl").as_array().map(Vec::len), Some(1));
    assert_eq!(lab.request_error("POST", "/access/groups", "groupid=team"), "500 create group failed: group 'team' already exists");
    lab.run_ok("DELETE", "/access/groups/team", "");
    assert_eq!(lab.get("/access/acl"), json!([]));
    assert_eq!(lab.request_error("DELETE", "/access/groups/team", ""), "500 delete group failed: group 'team' does not exist");
    assert_eq!(lab.request_error("GET", "/access/groups/team", ""), "500 group 'team' does not exist");
}

#[test]
fn acl_entries_for_unknown_grantees_are_refused() {
    let mut lab = lab_with_users(9);
    let mut error = |form: &str| lab.request_error("PUT", "/access/acl", form);
    assert_eq!(error("path=/&roles=PVEAuditor&users=eve@pve"), "500 ACL update failed: user 'eve@pve' does not exist");
    assert_eq!(error("path=/&roles=PVEAuditor&groups=nosuch"), "500 ACL update failed: group 'nosuch' does not exist");
    assert_eq!(error("path=/&roles=PVEAuditor&tokens=ops@pve!x"), "500 ACL update failed: no such token 'x' for user 'ops@pve'");
    assert_eq!(error("path=/&roles=Nosuch&users=ops@pve"), "500 ACL update failed: role 'Nosuch' does not exist");
    assert_eq!(error("path=/&roles=PVEAuditor"), "400 Parameter verification failed.");
}

#[test]
fn roles_accept_only_privileges_of_the_release() {
    let mut lab = lab_with_users(9);
    lab.run_ok("POST", "/access/roles", "roleid=Watcher&privs=VM.Audit,Sys.Audit");
    let error = lab.request_error("PUT", "/access/roles/Watcher", "privs=VM.Monitor");
    assert_eq!(error, "500 update role failed: invalid privilege 'VM.Monitor'", "release 9 removed it");
    lab.run_ok("PUT", "/access/roles/Watcher", "privs=VM.Console&append=1");
    assert_eq!(lab.get("/access/roles/Watcher"), json!({ "Sys.Audit": 1, "VM.Audit": 1, "VM.Console": 1 }));
    lab.run_ok("PUT", "/access/roles/Watcher", "privs=VM.Audit");
    assert_eq!(lab.get("/access/roles/Watcher"), json!({ "VM.Audit": 1 }));
    assert_eq!(
        lab.request_error("PUT", "/access/roles/PVEAdmin", "privs=VM.Audit"),
        "500 auto-generated role 'PVEAdmin' cannot be modified"
    );
    assert_eq!(lab.request_error("DELETE", "/access/roles/NoAccess", ""), "500 auto-generated role 'NoAccess' cannot be deleted");
    assert_eq!(lab.request_error("POST", "/access/roles", "roleid=pveMine"), "400 Parameter verification failed.");
    lab.run_ok("DELETE", "/access/roles/Watcher", "");
    assert_eq!(lab.request_error("GET", "/access/roles/Watcher", ""), "500 role 'Watcher' does not exist");
    for flavour in [7, 8] {
        self::lab_with_users(flavour).run_ok("POST", "/access/roles", "roleid=Mine&privs=VM.Monitor");
    }
    self::lab_with_users(7).run_ok("POST", "/access/roles", "roleid=PVEMine&privs=VM.Monitor");
}

#[test]
fn token_secrets_are_shown_once_and_can_be_regenerated_since_release_9() {
    let mut lab = lab_with_users(9);
    let created = lab.run_ok("POST", "/access/users/ops@pve/token/ci", "comment=robot");
    let secret = created["value"].as_str().unwrap_or_default().to_owned();
    assert_eq!((created["full-tokenid"].as_str(), secret.len()), (Some("ops@pve!ci"), 36));
    assert_eq!(lab.get("/access/users/ops@pve/token/ci"), json!({ "comment": "robot", "expire": 0, "privsep": 1 }));
    assert_eq!(lab.request_error("POST", "/access/users/ops@pve/token/ci", ""), "400 Parameter verification failed.");
    let changed = lab.run_ok("PUT", "/access/users/ops@pve/token/ci", "privsep=0");
    assert_eq!((changed["privsep"].clone(), changed.get("value")), (json!(0), None));
    let renewed = lab.run_ok("PUT", "/access/users/ops@pve/token/ci", "regenerate=1");
    assert!(renewed["value"].as_str().is_some_and(|new| new != secret), "{renewed}");
    lab.run_ok("DELETE", "/access/users/ops@pve/token/ci", "");
    assert_eq!(lab.request_error("DELETE", "/access/users/ops@pve/token/ci", ""), "500 no such token 'ci' for user 'ops@pve'");
    assert_eq!(lab.request_error("GET", "/access/users/eve@pve/token/ci", ""), "500 no such user ('eve@pve')");
}

#[test]
fn users_change_their_password_with_a_ticket_and_the_old_password() {
    let mut lab = lab_with_users(9);
    let path = "/access/password";
    assert_eq!(lab.request("PUT", path, "userid=ops@pve&password=new-secret").status, 403, "a token must not change passwords");
    let mut change = |form: &str| request_with_ticket(&mut lab, "ops@pve", "PUT", path, form);
    assert_eq!(change("userid=ops@pve&password=new-secret").status, 400, "the caller's own password is required");
    let wrong = change("userid=ops@pve&password=new-secret&confirmation-password=guessed");
    assert_eq!((wrong.status, wrong.reason.as_str()), (500, "invalid credentials"));
    assert_eq!(change("userid=root@pam&password=new-secret&confirmation-password=old-secret").status, 403);
    assert_eq!(change("userid=ops@pve&password=new-secret&confirmation-password=old-secret").status, 200);
    let mut login = |password: &str| {
        let request = LabRequest::new("POST", "/api2/json/access/ticket").with_form(&format!("username=ops@pve&password={password}"));
        lab.world.answer(lab.now_ms, &request)
    };
    assert_eq!((login("old-secret").status, login("new-secret").status), (401, 200));
    let ticket = response_data(&login("new-secret"))["ticket"].as_str().unwrap_or_default().to_owned();
    assert!(ticket.starts_with("PVE:ops@pve:"), "{ticket}");
    assert_eq!(request_with_ticket(&mut lab, "root@pam", "PUT", path, "userid=ops@pve&password=by-root77").status, 200);
}
