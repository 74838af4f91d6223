//! Users, groups, roles and tokens: made, changed, gone, and who may.

use converger_lab::{Answer, Request};
use serde_json::json;

use crate::lab::{Lab, SMALL, data};

fn lab(flavour: u8) -> Lab {
    let people = "users: { ops@pve: { password: old-secret }, root@pam: { password: roots } }\ngroups: { team: [ops@pve] }\n";
    Lab::new(&format!("{SMALL}flavour: {flavour}\n{people}"))
}

/// The same lab, asked by a person who has logged in.
fn in_person(lab: &mut Lab, user: &str, method: &str, path: &str, form: &str) -> Answer {
    let (ticket, companion) = lab.world.ticket(user);
    let request = Request::new(method, &format!("/api2/json{path}"))
        .header("Cookie", &format!("PVEAuthCookie={ticket}"))
        .header("CSRFPreventionToken", &companion);
    lab.world.answer(lab.now_ms, &if form.is_empty() { request } else { request.form(form) })
}

#[test]
fn a_user_is_in_groups_and_keeps_what_is_not_named() {
    let mut lab = lab(9);
    lab.done("POST", "/access/groups", "groupid=night&comment=shift");
    lab.done("POST", "/access/users", "userid=ada@pve&groups=team&email=ada%40lab.example&password=secret77");
    assert_eq!(lab.error("POST", "/access/users", "userid=ada@pve"), "500 create user failed: user 'ada@pve' already exists");
    assert_eq!(lab.error("PUT", "/access/users/ada@pve", "groups=nosuch"), "500 update user failed: no such group 'nosuch'");
    assert_eq!(lab.error("PUT", "/access/users/eve@pve", "enable=0"), "500 update user failed: no such user ('eve@pve')");
    lab.done("PUT", "/access/users/ada@pve", "groups=night&append=1&firstname=Ada");
    let user = lab.get("/access/users/ada@pve");
    let expected = json!({ "enable": 1, "expire": 0, "email": "ada@lab.example", "firstname": "Ada", "groups": ["night", "team"] });
    assert_eq!(user, expected);
    lab.done("PUT", "/access/users/ada@pve", "groups=night&enable=0");
    let user = lab.get("/access/users/ada@pve");
    assert_eq!((&user["groups"], &user["enable"], &user["firstname"]), (&json!(["night"]), &json!(0), &json!("Ada")));
    assert_eq!(lab.get("/access/users?enabled=0").as_array().map(Vec::len), Some(1));
    assert_eq!(lab.get("/access/groups/night"), json!({ "members": ["ada@pve"], "comment": "shift" }));
    lab.done("DELETE", "/access/users/ada@pve", "");
    assert_eq!(lab.get("/access/groups/night")["members"], json!([]));
}

#[test]
fn what_a_group_was_given_goes_with_it() {
    let mut lab = lab(9);
    lab.done("PUT", "/access/acl", "path=/vms/100&roles=PVEVMUser&groups=team");
    assert_eq!(lab.get("/access/acl").as_array().map(Vec::len), Some(1));
    assert_eq!(lab.error("POST", "/access/groups", "groupid=team"), "500 create group failed: group 'team' already exists");
    lab.done("DELETE", "/access/groups/team", "");
    assert_eq!(lab.get("/access/acl"), json!([]));
    assert_eq!(lab.error("DELETE", "/access/groups/team", ""), "500 delete group failed: group 'team' does not exist");
    assert_eq!(lab.error("GET", "/access/groups/team", ""), "500 group 'team' does not exist");
}

#[test]
fn nothing_is_given_to_nobody() {
    let mut lab = lab(9);
    let mut error = |form: &str| lab.error("PUT", "/access/acl", form);
    assert_eq!(error("path=/&roles=PVEAuditor&users=eve@pve"), "500 ACL update failed: user 'eve@pve' does not exist");
    assert_eq!(error("path=/&roles=PVEAuditor&groups=nosuch"), "500 ACL update failed: group 'nosuch' does not exist");
    assert_eq!(error("path=/&roles=PVEAuditor&tokens=ops@pve!x"), "500 ACL update failed: no such token 'x' for user 'ops@pve'");
    assert_eq!(error("path=/&roles=Nosuch&users=ops@pve"), "500 ACL update failed: role 'Nosuch' does not exist");
    assert_eq!(error("path=/&roles=PVEAuditor"), "400 Parameter verification failed.");
}

#[test]
fn roles_are_made_of_privileges_that_the_release_knows() {
    let mut lab = lab(9);
    lab.done("POST", "/access/roles", "roleid=Watcher&privs=VM.Audit,Sys.Audit");
    let error = lab.error("PUT", "/access/roles/Watcher", "privs=VM.Monitor");
    assert_eq!(error, "500 update role failed: invalid privilege 'VM.Monitor'", "it went with 9");
    lab.done("PUT", "/access/roles/Watcher", "privs=VM.Console&append=1");
    assert_eq!(lab.get("/access/roles/Watcher"), json!({ "Sys.Audit": 1, "VM.Audit": 1, "VM.Console": 1 }));
    lab.done("PUT", "/access/roles/Watcher", "privs=VM.Audit");
    assert_eq!(lab.get("/access/roles/Watcher"), json!({ "VM.Audit": 1 }));
    assert_eq!(lab.error("PUT", "/access/roles/PVEAdmin", "privs=VM.Audit"), "500 auto-generated role 'PVEAdmin' cannot be modified");
    assert_eq!(lab.error("DELETE", "/access/roles/NoAccess", ""), "500 auto-generated role 'NoAccess' cannot be deleted");
    assert_eq!(lab.error("POST", "/access/roles", "roleid=pveMine"), "400 Parameter verification failed.");
    lab.done("DELETE", "/access/roles/Watcher", "");
    assert_eq!(lab.error("GET", "/access/roles/Watcher", ""), "500 role 'Watcher' does not exist");
    for flavour in [7, 8] {
        self::lab(flavour).done("POST", "/access/roles", "roleid=Mine&privs=VM.Monitor");
    }
    self::lab(7).done("POST", "/access/roles", "roleid=PVEMine&privs=VM.Monitor");
}

#[test]
fn the_secret_of_a_token_is_shown_once_and_since_nine_can_be_made_anew() {
    let mut lab = lab(9);
    let made = lab.done("POST", "/access/users/ops@pve/token/ci", "comment=robot");
    let secret = made["value"].as_str().unwrap_or_default().to_owned();
    assert_eq!((made["full-tokenid"].as_str(), secret.len()), (Some("ops@pve!ci"), 36));
    assert_eq!(lab.get("/access/users/ops@pve/token/ci"), json!({ "comment": "robot", "expire": 0, "privsep": 1 }));
    assert_eq!(lab.error("POST", "/access/users/ops@pve/token/ci", ""), "400 Parameter verification failed.");
    let changed = lab.done("PUT", "/access/users/ops@pve/token/ci", "privsep=0");
    assert_eq!((changed["privsep"].clone(), changed.get("value")), (json!(0), None));
    let renewed = lab.done("PUT", "/access/users/ops@pve/token/ci", "regenerate=1");
    assert!(renewed["value"].as_str().is_some_and(|new| new != secret), "{renewed}");
    lab.done("DELETE", "/access/users/ops@pve/token/ci", "");
    assert_eq!(lab.error("DELETE", "/access/users/ops@pve/token/ci", ""), "500 no such token 'ci' for user 'ops@pve'");
    assert_eq!(lab.error("GET", "/access/users/eve@pve/token/ci", ""), "500 no such user ('eve@pve')");
}

#[test]
fn a_password_is_changed_in_person_and_the_old_one_lets_nobody_in() {
    let mut lab = lab(9);
    let path = "/access/password";
    assert_eq!(lab.ask("PUT", path, "userid=ops@pve&password=new-secret").status, 403, "a token may not");
    let mut change = |form: &str| in_person(&mut lab, "ops@pve", "PUT", path, form);
    assert_eq!(change("userid=ops@pve&password=new-secret").status, 400, "the own password is missing");
    let wrong = change("userid=ops@pve&password=new-secret&confirmation-password=guessed");
    assert_eq!((wrong.status, wrong.reason.as_str()), (500, "invalid credentials"));
    assert_eq!(change("userid=root@pam&password=new-secret&confirmation-password=old-secret").status, 403);
    assert_eq!(change("userid=ops@pve&password=new-secret&confirmation-password=old-secret").status, 200);
    let mut login = |password: &str| {
        let request = Request::new("POST", "/api2/json/access/ticket").form(&format!("username=ops@pve&password={password}"));
        lab.world.answer(lab.now_ms, &request)
    };
    assert_eq!((login("old-secret").status, login("new-secret").status), (401, 200));
    let ticket = data(&login("new-secret"))["ticket"].as_str().unwrap_or_default().to_owned();
    assert!(ticket.starts_with("PVE:ops@pve:"), "{ticket}");
    assert_eq!(in_person(&mut lab, "root@pam", "PUT", path, "userid=ops@pve&password=by-root77").status, 200);
}
