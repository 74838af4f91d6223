//! Encoding of requests, and which responses show whether a call was executed.

use converger_lab::{LabRequest, NodeService, WorldEvent};

use crate::lab::{CLUSTER, FactsLab, SMALL, in_every_release};

const CONFIG: &str = "/nodes/pve1/qemu/100/config";

#[test]
fn unencoded_forms_lose_text_that_encoded_forms_keep() {
    in_every_release(|| {
        let mut lab = FactsLab::new(SMALL);
        for (form, expected) in [
            ("description=a=b=c", "a"),
            ("description=a;b", "a"),
            ("description=a%3Db%3Bc%26d%2Be%25f", "a=b;c&d+e%f"),
            ("description=%C3%BC%20%0A%F0%9F%98%80", "ü \n😀"),
        ] {
            lab.run_ok("PUT", CONFIG, form);
            assert_eq!(lab.get(CONFIG)["description"], expected, "{form}");
        }
    });
}

#[test]
fn delete_parameters_are_in_the_query_and_bodies_are_refused() {
    in_every_release(|| {
        let mut lab = FactsLab::new(SMALL);
        let answer = lab.request("DELETE", "/nodes/pve1/lxc/200", "force=1");
        assert_eq!((answer.status, answer.reason.as_str()), (501, "Unexpected content for method 'DELETE'"));
        lab.run_ok("DELETE", "/nodes/pve1/lxc/200?destroy-unreferenced-disks=0", "");
    });
}

#[test]
fn flags_are_digits_and_unknown_parameters_are_refused() {
    in_every_release(|| {
        let mut lab = FactsLab::new(SMALL);
        lab.run_ok("PUT", CONFIG, "onboot=1");
        assert_eq!(lab.request_error("PUT", CONFIG, "onboot=true"), "400 Parameter verification failed.");
        assert_eq!(lab.request_error("PUT", CONFIG, "nosuch=1"), "400 Parameter verification failed.");
        assert_eq!(lab.request_error("PUT", CONFIG, "cores=x"), "400 Parameter verification failed.");
    });
}

#[test]
fn extjs_failures_have_status_200_and_their_code_in_the_body() {
    in_every_release(|| {
        let mut lab = FactsLab::new(SMALL);
        let (answer, body) = lab.request_extjs("PUT", CONFIG, "cores=x");
        assert_eq!((answer.status, &body["success"], &body["status"]), (200, &0.into(), &"400".into()));
        assert!(body["errors"]["cores"].is_string() && body["message"].is_string(), "{body}");
        let (answer, body) = lab.request_extjs("PUT", CONFIG, "");
        assert_eq!((answer.status, &body["status"], &body["message"]), (200, &500.into(), &"no options specified\n".into()));
        let (answer, body) = lab.request_extjs("GET", "/version", "");
        assert_eq!((answer.status, &body["success"], body.get("status")), (200, &1.into(), None));
    });
}

#[test]
fn wrong_tokens_get_an_empty_response_after_three_seconds_in_both_formats() {
    in_every_release(|| {
        let mut lab = FactsLab::new(SMALL);
        for shape in ["json", "extjs"] {
            let request = LabRequest::new("GET", &format!("/api2/{shape}/version")).with_token("root@pam!t=wrong");
            let answer = lab.world.answer(lab.now_ms, &request);
            assert_eq!((answer.status, answer.reason.as_str(), answer.delay_ms), (401, "Authentication failed!", 3_000), "{shape}");
            assert!(answer.body.is_empty(), "{shape}");
        }
    });
}

#[test]
fn without_the_cluster_file_system_every_call_is_a_bare_500_in_both_formats() {
    in_every_release(|| {
        let mut lab = FactsLab::new(SMALL);
        lab.apply_event(WorldEvent::ServiceDown("pve1".to_owned(), NodeService::Files));
        let first = lab.request("GET", "/version", "");
        assert_eq!((first.status, first.body.len(), first.delay_ms), (500, 0, 10_000));
        let (answer, _) = lab.request_extjs("PUT", CONFIG, "cores=7");
        assert_eq!((answer.status, answer.body.len(), answer.delay_ms), (500, 0, 3_000));
        assert!(answer.reason.starts_with("RPCEnvironment init request failed"), "{}", answer.reason);
        lab.apply_event(WorldEvent::ServiceUp("pve1".to_owned(), NodeService::Files));
        assert_eq!(lab.get(CONFIG)["cores"], 2, "the call was not executed");
    });
}

#[test]
fn calls_to_an_offline_node_are_a_bare_595_in_both_formats() {
    in_every_release(|| {
        let mut lab = FactsLab::new(CLUSTER);
        lab.apply_event(WorldEvent::NodeDown("b".to_owned()));
        let answer = lab.request("PUT", "/nodes/b/qemu/102/config", "cores=7");
        let (extjs, _) = lab.request_extjs("PUT", "/nodes/b/qemu/102/config", "cores=7");
        for answer in [answer, extjs] {
            assert_eq!((answer.status, answer.reason.as_str(), answer.body.len()), (595, "No route to host", 0));
        }
        lab.apply_event(WorldEvent::NodeUp("b".to_owned()));
        assert!(lab.get("/nodes/b/qemu/102/config").get("cores").is_none(), "it was not delivered");
    });
}

#[test]
fn unknown_nodes_and_paths_are_named() {
    in_every_release(|| {
        let mut lab = FactsLab::new(SMALL);
        let error = lab.request_error("GET", "/nodes/pve9/qemu/100/config", "");
        assert!(error.starts_with("500 hostname lookup 'pve9' failed"), "{error}");
        assert_eq!(lab.request_error("GET", "/nosuch", ""), "501 Method 'GET /nosuch' not implemented");
    });
}

#[test]
fn task_ids_are_encoded_in_the_path_and_read_at_their_node() {
    in_every_release(|| {
        let mut lab = FactsLab::new(CLUSTER);
        let upid = lab.run_ok("POST", "/nodes/b/qemu/102/status/stop", "");
        let upid = upid.as_str().unwrap_or_default().to_owned();
        let parts: Vec<&str> = upid.split(':').collect();
        assert_eq!((parts.len(), parts[0], parts[1], parts[5], parts[6]), (9, "UPID", "b", "qmstop", "102"), "{upid}");
        assert_eq!((parts[2].len(), parts[4].len(), parts[7], parts[8]), (8, 8, "root@pam!t", ""), "{upid}");
        let encoded = upid.replace(':', "%3A").replace('@', "%40").replace('!', "%21");
        assert_eq!(lab.get(&format!("/nodes/b/tasks/{encoded}/status"))["exitstatus"], "OK");
    });
}

#[test]
fn token_ids_are_percent_decoded() {
    in_every_release(|| {
        let odd = SMALL.replace("tokens: { root@pam!t:", "users: { 'a%41b@pve': {} }\ntokens: { 'a%41b@pve!t':");
        let mut lab = FactsLab::new(&odd).with_token("a%2541b@pve!t=s");
        lab.get("/version");
        let mut lab = lab.with_token("a%41b@pve!t=s");
        assert_eq!(
            lab.request_error("GET", "/version", ""),
            "401 Authentication failed!",
            "the same token without encoding is another one"
        );
    });
}
