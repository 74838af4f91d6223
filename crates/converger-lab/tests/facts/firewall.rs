//! Firewalls of the cluster, of nodes and of guests: rules, aliases, IP sets, security groups.

use serde_json::{Value, json};

use crate::lab::{FactsLab, SMALL};

const CLUSTER: &str = "/cluster/firewall";
const NODE: &str = "/nodes/pve1/firewall";
const GUEST: &str = "/nodes/pve1/qemu/100/firewall";
const CONTAINER: &str = "/nodes/pve1/lxc/200/firewall";

fn rule_comments(rules: &Value) -> Vec<String> {
    let text = |rule: &Value| rule["comment"].as_str().unwrap_or_default().to_owned();
    rules.as_array().into_iter().flatten().map(text).collect()
}

#[test]
fn new_rules_are_first_and_disabled_and_move_before_the_given_position() {
    for base in [CLUSTER, NODE, GUEST, CONTAINER] {
        let mut lab = FactsLab::new(SMALL);
        let rules = format!("{base}/rules");
        for name in ["one", "two", "three"] {
            lab.run_ok("POST", &rules, &format!("type=in&action=ACCEPT&pos=7&comment={name}"));
        }
        let list = lab.get(&rules);
        assert_eq!(rule_comments(&list), ["three", "two", "one"], "{base}: the requested position is ignored");
        assert_eq!((&list[0]["enable"], &list[0]["pos"]), (&json!(0), &json!(0)));
        lab.run_ok("PUT", &format!("{rules}/0"), "moveto=2&comment=ignored");
        assert_eq!(rule_comments(&lab.get(&rules)), ["two", "three", "one"], "{base}");
        lab.run_ok("PUT", &format!("{rules}/2"), "moveto=0");
        assert_eq!(rule_comments(&lab.get(&rules)), ["one", "two", "three"], "{base}");
        lab.run_ok("DELETE", &format!("{rules}/1"), "");
        assert_eq!(lab.request_error("GET", &format!("{rules}/2"), ""), "500 no rule at position 2");
    }
}

#[test]
fn invalid_rules_and_stale_digests_are_refused() {
    let mut lab = FactsLab::new(SMALL);
    let rules = format!("{GUEST}/rules");
    let mut errors = |form: &str| {
        let answer = lab.request("POST", &rules, form);
        assert_eq!(answer.status, 400, "{form}");
        serde_json::from_slice::<Value>(&answer.body).unwrap_or_default()["errors"].clone()
    };
    assert_eq!(errors("type=in&action=ALLOW"), json!({ "action": "unknown action 'ALLOW'" }));
    assert_eq!(errors("type=in&action=DROP&dport=22"), json!({ "proto": "missing property - 'dport' requires this property" }));
    assert_eq!(errors("type=in&action=DROP&macro=Nosuch"), json!({ "macro": "unknown macro 'Nosuch'" }));
    lab.run_ok("POST", &rules, "type=in&action=DROP&macro=SSH&source=10.0.0.1");
    let rule = lab.get(&format!("{rules}/0"));
    assert_eq!(rule["ipversion"], 4);
    let stale = lab.request_error("PUT", &format!("{rules}/0"), "enable=1&digest=0000");
    assert!(stale.starts_with("500 detected modified configuration"), "{stale}");
    lab.run_ok("PUT", &format!("{rules}/0"), &format!("enable=1&digest={}", rule["digest"].as_str().unwrap_or_default()));
    lab.run_ok("PUT", &format!("{rules}/0"), "delete=source");
    let rule = lab.get(&format!("{rules}/0"));
    assert_eq!((&rule["enable"], rule.get("source")), (&json!(1), None));
}

#[test]
fn aliases_are_case_insensitive_and_can_be_renamed() {
    for base in [CLUSTER, GUEST, CONTAINER] {
        let mut lab = FactsLab::new(SMALL);
        let aliases = format!("{base}/aliases");
        lab.run_ok("POST", &aliases, "name=Web&cidr=10.0.0.0/24&comment=front");
        assert_eq!(lab.request_error("POST", &aliases, "name=WEB&cidr=10.0.0.1"), "400 Parameter verification failed.");
        assert_eq!(lab.request_error("POST", &aliases, "name=db&cidr=10.0.0.999"), "400 Parameter verification failed.");
        let expected = json!({ "name": "Web", "cidr": "10.0.0.0/24", "comment": "front", "ipversion": 4 });
        assert_eq!(lab.get(&format!("{aliases}/web")), expected);
        lab.run_ok("PUT", &format!("{aliases}/web"), "cidr=fd00::/8&rename=Edge");
        assert_eq!(lab.get(&format!("{aliases}/EDGE")), json!({ "name": "Edge", "cidr": "fd00::/8", "ipversion": 6 }));
        assert_eq!(lab.request_error("GET", &format!("{aliases}/web"), ""), "400 Parameter verification failed.");
        lab.run_ok("DELETE", &format!("{aliases}/edge"), "");
        assert_eq!(lab.get(&aliases), json!([]));
    }
}

#[test]
fn ipsets_hold_each_network_once_and_are_deleted_only_when_empty() {
    for base in [CLUSTER, GUEST, CONTAINER] {
        let mut lab = FactsLab::new(SMALL);
        let sets = format!("{base}/ipset");
        lab.run_ok("POST", &sets, "name=lan&comment=inside");
        assert_eq!(lab.request_error("POST", &sets, "name=lan"), "400 Parameter verification failed.");
        lab.run_ok("POST", &format!("{sets}/lan"), "cidr=10.0.0.0/24");
        lab.run_ok("POST", &format!("{sets}/lan"), "cidr=10.0.0.7&nomatch=1");
        assert_eq!(lab.request_error("POST", &format!("{sets}/lan"), "cidr=10.0.0.7"), "400 Parameter verification failed.");
        let order: Vec<Value> = lab.get(&format!("{sets}/lan")).as_array().into_iter().flatten().map(|row| row["cidr"].clone()).collect();
        assert_eq!(order, [json!("10.0.0.7"), json!("10.0.0.0/24")]);
        lab.run_ok("PUT", &format!("{sets}/lan/10.0.0.0/24"), "comment=all");
        assert_eq!(lab.get(&format!("{sets}/lan/10.0.0.0%2F24")), json!({ "cidr": "10.0.0.0/24", "comment": "all" }));
        assert_eq!(lab.get(&format!("{sets}/lan/10.0.0.7")), json!({ "cidr": "10.0.0.7", "nomatch": 1 }));
        assert_eq!(lab.request_error("DELETE", &format!("{sets}/lan"), ""), "500 IPSet 'lan' is not empty");
        lab.run_ok("DELETE", &format!("{sets}/lan/10.0.0.0/24"), "");
        assert_eq!(lab.request_error("DELETE", &format!("{sets}/lan/10.0.0.0/24"), ""), "400 Parameter verification failed.");
        lab.run_ok("DELETE", &format!("{sets}/lan?force=1"), "");
        assert_eq!(lab.request_error("GET", &format!("{sets}/lan"), ""), "500 no such IPSet 'lan'");
    }
}

#[test]
fn security_groups_are_deleted_only_when_empty() {
    let mut lab = FactsLab::new(SMALL);
    let groups = format!("{CLUSTER}/groups");
    lab.run_ok("POST", &groups, "group=web&comment=front");
    assert_eq!(lab.request_error("POST", &groups, "group=web"), "400 Parameter verification failed.");
    lab.run_ok("POST", &format!("{groups}/web"), "type=in&action=ACCEPT&macro=HTTPS&enable=1");
    assert_eq!(lab.request_error("POST", &format!("{groups}/web"), "type=group&action=other"), "400 Parameter verification failed.");
    assert_eq!(lab.request_error("DELETE", &format!("{groups}/web"), ""), "500 Security group 'web' is not empty");
    lab.run_ok("POST", &format!("{GUEST}/rules"), "type=group&action=web&enable=1");
    lab.run_ok("POST", &groups, "group=edge&rename=web");
    assert_eq!(lab.request_error("GET", &format!("{groups}/web"), ""), "500 no such security group 'web'");
    assert_eq!(lab.get(&format!("{groups}/edge"))[0]["macro"], "HTTPS");
    lab.run_ok("DELETE", &format!("{groups}/edge/0"), "");
    lab.run_ok("DELETE", &format!("{groups}/edge"), "");
    assert_eq!(lab.get(&groups), json!([]));
}

#[test]
fn guest_rules_can_refer_to_aliases_of_the_guest_and_the_cluster() {
    let mut lab = FactsLab::new(SMALL);
    lab.run_ok("POST", &format!("{CLUSTER}/ipset"), "name=lan");
    lab.run_ok("POST", &format!("{GUEST}/aliases"), "name=me&cidr=10.0.0.9");
    let refs = |list: Value| list.as_array().into_iter().flatten().map(|row| row["ref"].clone()).collect::<Vec<_>>();
    assert_eq!(refs(lab.get(&format!("{GUEST}/refs"))), [json!("guest/me"), json!("+dc/lan")]);
    assert_eq!(refs(lab.get(&format!("{CLUSTER}/refs"))), [json!("+dc/lan")]);
    assert_eq!(refs(lab.get(&format!("{CONTAINER}/refs"))), [json!("+dc/lan")]);
}

#[test]
fn options_are_per_firewall_and_cluster_options_need_privileges() {
    let mut lab = FactsLab::new(SMALL);
    lab.run_ok("PUT", &format!("{CLUSTER}/options"), "enable=1&policy_in=DROP");
    lab.run_ok("PUT", &format!("{NODE}/options"), "nosmurfs=0");
    let options = lab.get(&format!("{CLUSTER}/options"));
    assert_eq!((&options["enable"], &options["policy_in"]), (&json!(1), &json!("DROP")));
    assert_eq!(lab.request_error("PUT", &format!("{CLUSTER}/options"), "delete=nosmurfs"), "400 Parameter verification failed.");
    lab.run_ok("PUT", &format!("{CLUSTER}/options"), "delete=policy_in");
    assert_eq!(lab.get(&format!("{CLUSTER}/options")).get("policy_in"), None);
    assert_eq!(lab.get(&format!("{GUEST}/options")).get("enable"), None, "a guest has its own options");
    let limited = "users: { ops@pve: {} }\nacl: [{ path: /vms, role: PVEVMAdmin, user: ops@pve }]\n";
    let yaml = format!("{SMALL}{limited}").replace("tokens: {", "tokens: { ops@pve!t: { secret: s, full: true },");
    let mut lab = FactsLab::new(&yaml).with_token("ops@pve!t=s");
    lab.run_ok("POST", &format!("{GUEST}/rules"), "type=in&action=ACCEPT");
    assert_eq!(lab.request_error("GET", &format!("{CLUSTER}/rules"), ""), "403 Permission check failed (/, Sys.Audit)");
    assert_eq!(
        lab.request_error("POST", &format!("{NODE}/rules"), "type=in&action=ACCEPT"),
        "403 Permission check failed (/nodes/pve1, Sys.Modify)"
    );
}
