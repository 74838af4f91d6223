//! What passes over the wire, and what each kind of answer says about whether a call was carried out.

use converger_lab::{Act, Part, Request};

use crate::lab::{CLUSTER, Lab, SMALL, in_every_release};

const CONFIG: &str = "/nodes/pve1/qemu/100/config";

#[test]
fn a_raw_form_loses_what_an_encoded_one_keeps() {
    in_every_release(|| {
        let mut lab = Lab::new(SMALL);
        for (form, kept) in [
            ("description=a=b=c", "a"),
            ("description=a;b", "a"),
            ("description=a%3Db%3Bc%26d%2Be%25f", "a=b;c&d+e%f"),
            ("description=%C3%BC%20%0A%F0%9F%98%80", "ü \n😀"),
        ] {
            lab.done("PUT", CONFIG, form);
            assert_eq!(lab.get(CONFIG)["description"], kept, "{form}");
        }
    });
}

#[test]
fn parameters_of_a_removal_stand_in_the_query_and_a_body_is_refused() {
    in_every_release(|| {
        let mut lab = Lab::new(SMALL);
        let answer = lab.ask("DELETE", "/nodes/pve1/lxc/200", "force=1");
        assert_eq!((answer.status, answer.reason.as_str()), (501, "Unexpected content for method 'DELETE'"));
        lab.done("DELETE", "/nodes/pve1/lxc/200?destroy-unreferenced-disks=0", "");
    });
}

#[test]
fn a_flag_is_a_digit_and_an_unknown_parameter_is_refused() {
    in_every_release(|| {
        let mut lab = Lab::new(SMALL);
        lab.done("PUT", CONFIG, "onboot=1");
        assert_eq!(lab.error("PUT", CONFIG, "onboot=true"), "400 Parameter verification failed.");
        assert_eq!(lab.error("PUT", CONFIG, "nosuch=1"), "400 Parameter verification failed.");
        assert_eq!(lab.error("PUT", CONFIG, "cores=x"), "400 Parameter verification failed.");
    });
}

#[test]
fn a_failure_in_extjs_is_a_200_with_its_code_as_text_or_number() {
    in_every_release(|| {
        let mut lab = Lab::new(SMALL);
        let (answer, body) = lab.ask_extjs("PUT", CONFIG, "cores=x");
        assert_eq!((answer.status, &body["success"], &body["status"]), (200, &0.into(), &"400".into()));
        assert!(body["errors"]["cores"].is_string() && body["message"].is_string(), "{body}");
        let (answer, body) = lab.ask_extjs("PUT", CONFIG, "");
        assert_eq!((answer.status, &body["status"], &body["message"]), (200, &500.into(), &"no options specified\n".into()));
        let (answer, body) = lab.ask_extjs("GET", "/version", "");
        assert_eq!((answer.status, &body["success"], body.get("status")), (200, &1.into(), None));
    });
}

#[test]
fn a_wrong_token_is_answered_after_three_seconds_without_a_body_in_both_shapes() {
    in_every_release(|| {
        let mut lab = Lab::new(SMALL);
        for shape in ["json", "extjs"] {
            let request = Request::new("GET", &format!("/api2/{shape}/version")).token("root@pam!t=wrong");
            let answer = lab.world.answer(lab.now_ms, &request);
            assert_eq!((answer.status, answer.reason.as_str(), answer.delay_ms), (401, "Authentication failed!", 3_000), "{shape}");
            assert!(answer.body.is_empty(), "{shape}");
        }
    });
}

#[test]
fn without_the_cluster_file_system_everything_is_a_bare_500_in_both_shapes() {
    in_every_release(|| {
        let mut lab = Lab::new(SMALL);
        lab.act(Act::ServiceDown("pve1".to_owned(), Part::Files));
        let first = lab.ask("GET", "/version", "");
        assert_eq!((first.status, first.body.len(), first.delay_ms), (500, 0, 10_000));
        let (answer, _) = lab.ask_extjs("PUT", CONFIG, "cores=7");
        assert_eq!((answer.status, answer.body.len(), answer.delay_ms), (500, 0, 3_000));
        assert!(answer.reason.starts_with("RPCEnvironment init request failed"), "{}", answer.reason);
        lab.act(Act::ServiceUp("pve1".to_owned(), Part::Files));
        assert_eq!(lab.get(CONFIG)["cores"], 2, "nothing was carried out");
    });
}

#[test]
fn a_node_that_is_off_is_a_bare_595_in_both_shapes() {
    in_every_release(|| {
        let mut lab = Lab::new(CLUSTER);
        lab.act(Act::NodeDown("b".to_owned()));
        let answer = lab.ask("PUT", "/nodes/b/qemu/102/config", "cores=7");
        let (extjs, _) = lab.ask_extjs("PUT", "/nodes/b/qemu/102/config", "cores=7");
        for answer in [answer, extjs] {
            assert_eq!((answer.status, answer.reason.as_str(), answer.body.len()), (595, "No route to host", 0));
        }
        lab.act(Act::NodeUp("b".to_owned()));
        assert!(lab.get("/nodes/b/qemu/102/config").get("cores").is_none(), "it was not delivered");
    });
}

#[test]
fn an_unknown_node_and_an_unknown_path_say_so() {
    in_every_release(|| {
        let mut lab = Lab::new(SMALL);
        let error = lab.error("GET", "/nodes/pve9/qemu/100/config", "");
        assert!(error.starts_with("500 hostname lookup 'pve9' failed"), "{error}");
        assert_eq!(lab.error("GET", "/nosuch", ""), "501 Method 'GET /nosuch' not implemented");
    });
}

#[test]
fn the_id_of_a_task_is_encoded_in_the_path_and_asked_for_at_its_own_node() {
    in_every_release(|| {
        let mut lab = Lab::new(CLUSTER);
        let upid = lab.done("POST", "/nodes/b/qemu/102/status/stop", "");
        let upid = upid.as_str().unwrap_or_default().to_owned();
        let parts: Vec<&str> = upid.split(':').collect();
        assert_eq!((parts.len(), parts[0], parts[1], parts[5], parts[6]), (9, "UPID", "b", "qmstop", "102"), "{upid}");
        assert_eq!((parts[2].len(), parts[4].len(), parts[7], parts[8]), (8, 8, "root@pam!t", ""), "{upid}");
        let encoded = upid.replace(':', "%3A").replace('@', "%40").replace('!', "%21");
        assert_eq!(lab.get(&format!("/nodes/b/tasks/{encoded}/status"))["exitstatus"], "OK");
    });
}

#[test]
fn the_id_of_a_token_is_unescaped_so_that_an_odd_one_has_to_be_escaped() {
    in_every_release(|| {
        let odd = SMALL.replace("tokens: { root@pam!t:", "users: { 'a%41b@pve': {} }\ntokens: { 'a%41b@pve!t':");
        let mut lab = Lab::new(&odd).by("a%2541b@pve!t=s");
        lab.get("/version");
        let mut lab = lab.by("a%41b@pve!t=s");
        assert_eq!(lab.error("GET", "/version", ""), "401 Authentication failed!", "as it is it means somebody else");
    });
}
