//! The doctor's findings on bad days: endpoints, clocks, releases, clusters, nodes, high availability, locks, and foreign text.

use std::collections::BTreeMap;

use converger_adapters::proxmox::doctor::{DoctorFinding, FindingLevel, RemedyTarget};
use converger_lab::{Flavour, NodeService, RequestFault, ResponseFault, WorldEvent, WorldSpec};

use crate::doctor_lab::{
    DoctorLab, DoctorVisit, FLAVOURS, lab_setting, levels_of, only_finding, remedy_lines, setting_with_roles, visit_findings,
};

fn healthy_lab(flavour: Flavour) -> DoctorLab {
    DoctorLab::new(&setting_with_roles(flavour, &[("/", "Administrator")]))
}

fn three_node_setting(flavour: Flavour) -> WorldSpec {
    let mut own = setting_with_roles(flavour, &[("/", "Administrator")]);
    own.nodes = lab_setting(flavour, "nodes: { pve1: {}, pve2: {}, pve3: {} }").nodes;
    own
}

fn replace_response(path: &str, status: u16, reason: &str, body: &str) -> RequestFault {
    let (reason, body) = (reason.to_owned(), body.to_owned());
    let fault = ResponseFault::Instead { status, reason, body: body.clone(), html: body.starts_with('<') };
    RequestFault { path: Some(path.to_owned()), fault: Some(fault), ..RequestFault::default() }
}

#[test]
fn reports_each_of_several_endpoints() {
    let both = DoctorVisit { entries: vec!["pve1", "pve2"], ..DoctorVisit::default() };
    for flavour in FLAVOURS {
        let found = visit_findings(&DoctorLab::new(&three_node_setting(flavour)).apply_event(WorldEvent::NodeDown("pve1".into())), &both);
        assert_eq!(levels_of(&found, "endpoint"), [FindingLevel::Warn, FindingLevel::Ok], "the other endpoint responds");
        assert!(only_finding(&found, "token").found.contains("pve2:8006"), "the rest is read there");
        assert!(only_finding(&found, "nodes").found.contains("offline: pve1"), "{found:#?}");
        let found = visit_findings(&healthy_lab(flavour).apply_event(WorldEvent::NodeDown("pve1".into())), &DoctorVisit::default());
        assert_eq!(levels_of(&found, "endpoint"), [FindingLevel::Fail], "no endpoint responds");
        let rest = only_finding(&found, "rest");
        assert!(rest.level == FindingLevel::Unknown && rest.found.ends_with("because no endpoint responds"), "{rest:?}");
    }
}

#[test]
fn warns_of_one_node_under_two_addresses() {
    let found = visit_findings(&healthy_lab(Flavour::V9), &DoctorVisit { entries: vec!["pve1", "pve2", "pve1"], ..DoctorVisit::default() });
    let double = only_finding(&found, "endpoint-node");
    assert!(double.level == FindingLevel::Warn && double.found == "it is the same node as pve1:8006: pve1", "{double:?}");
}

#[test]
fn reports_an_endpoint_that_is_not_proxmox() {
    for (status, reason, body) in [
        (200, "OK", "<html>hello</html>"),
        (301, "Moved Permanently", ""),
        (404, "Not Found", "<html>"),
        (200, "OK", "{\"data\":{}}"),
        (500, "RPCEnvironment init request failed: Unable to load access control list: Connection refused", ""),
    ] {
        let found = visit_findings(
            &healthy_lab(Flavour::V9).add_fault(replace_response("*/version", status, reason, body)),
            &DoctorVisit::default(),
        );
        let endpoint = only_finding(&found, "endpoint");
        assert!(endpoint.level == FindingLevel::Fail && endpoint.remedy.is_some(), "{status} {reason}: {endpoint:?}");
        let rest = only_finding(&found, "rest");
        assert!(rest.level == FindingLevel::Unknown && rest.found.ends_with("because no endpoint can be used"), "{rest:?}");
    }
}

#[test]
fn reports_clock_differences() {
    for flavour in FLAVOURS {
        for (jump, level) in [
            (0, FindingLevel::Ok),
            (3, FindingLevel::Ok),
            (-3, FindingLevel::Ok),
            (7, FindingLevel::Warn),
            (-30, FindingLevel::Warn),
            (61, FindingLevel::Fail),
            (-900, FindingLevel::Fail),
        ] {
            let found = visit_findings(&healthy_lab(flavour).apply_event(WorldEvent::ClockJump(jump)), &DoctorVisit::default());
            assert_eq!(levels_of(&found, "clock"), [level], "{flavour:?} {jump}");
            let nodes = if level == FindingLevel::Ok { vec![level] } else { vec![level; 2] };
            assert_eq!(levels_of(&found, "node-clock"), nodes, "{flavour:?} {jump}: {found:#?}");
            let text = &found.iter().find(|own| own.check == "clock").expect("a clock").found;
            assert!(level == FindingLevel::Ok || text.contains(if jump > 0 { "ahead of ours" } else { "behind ours" }), "{text}");
        }
    }
}

#[test]
fn warns_of_unknown_releases() {
    for flavour in FLAVOURS {
        let found = visit_findings(&healthy_lab(flavour), &DoctorVisit::default());
        assert_eq!(only_finding(&found, "version").level, FindingLevel::Ok);
        assert!(only_finding(&found, "version").found.contains(&format!("Proxmox VE {}.", flavour.major())));
        assert!(levels_of(&found, "node-versions").is_empty());
    }
    for version in ["6.4-15", "10.0.1"] {
        let body = format!("{{\"data\":{{\"version\":\"{version}\",\"release\":\"x\"}},\"success\":1}}");
        let found = visit_findings(
            &healthy_lab(Flavour::V9).add_fault(replace_response("/api2/extjs/version", 200, "OK", &body)),
            &DoctorVisit::default(),
        );
        assert!(only_finding(&found, "version").level == FindingLevel::Warn && only_finding(&found, "version").found.contains(version));
        assert_eq!(only_finding(&found, "may-read").level, FindingLevel::Ok, "the other checks still run");
    }
}

#[test]
fn warns_of_mixed_releases() {
    let body = "{\"data\":{\"version\":\"8.4.1\",\"release\":\"8.4\"},\"success\":1}";
    let found = visit_findings(
        &healthy_lab(Flavour::V9).add_fault(replace_response("*/nodes/pve2/version", 200, "OK", body)),
        &DoctorVisit::default(),
    );
    let versions = only_finding(&found, "node-versions");
    assert!(versions.level == FindingLevel::Warn && versions.found.contains("pve1 `9.2.11`, pve2 `8.4.1`"), "{versions:?}");
}

#[test]
fn does_not_query_another_cluster() {
    for flavour in FLAVOURS {
        let bench = healthy_lab(flavour);
        let found = visit_findings(&bench, &DoctorVisit { cluster: Some("home"), ..DoctorVisit::default() });
        let cluster = only_finding(&found, "cluster");
        assert!(
            cluster.level == FindingLevel::Fail && cluster.found.contains("`house`") && cluster.found.contains("`home`"),
            "{cluster:?}"
        );
        assert!(!found.iter().any(|own| own.check.starts_with("may-") || own.check == "guests"), "{found:#?}");
        assert_eq!(bench.requests().len(), 2, "its release and its cluster");
    }
}

#[test]
fn shows_the_line_that_pins_the_cluster_name() {
    let found = visit_findings(&healthy_lab(Flavour::V9), &DoctorVisit { cluster: None, ..DoctorVisit::default() });
    let cluster = only_finding(&found, "cluster");
    assert_eq!(cluster.level, FindingLevel::Warn);
    let line = &cluster.remedy.as_ref().expect("a remedy").lines[0];
    assert_eq!((line.text.as_str(), line.r#where), ("cluster = \"house\"", RemedyTarget::Config));
    let alone = setting_with_roles(Flavour::V9, &[("/", "Administrator")]);
    let alone = WorldSpec { cluster: None, nodes: lab_setting(Flavour::V9, "nodes: { pve1: {} }").nodes, ..alone };
    let found = visit_findings(&DoctorLab::new(&alone), &DoctorVisit { cluster: None, ..DoctorVisit::default() });
    assert_eq!(remedy_lines(only_finding(&found, "cluster")), ["cluster = \"pve1\""], "a node without a cluster has its own name");
    assert_eq!(only_finding(&found, "quorum").level, FindingLevel::Ok);
}

#[test]
fn reports_missing_quorum_and_continues() {
    for flavour in FLAVOURS {
        let found = visit_findings(
            &DoctorLab::new(&three_node_setting(flavour)).apply_event(WorldEvent::Isolate(vec!["pve2".into(), "pve3".into()])),
            &DoctorVisit::default(),
        );
        assert_eq!(only_finding(&found, "quorum").level, FindingLevel::Fail);
        assert!(only_finding(&found, "nodes").found.contains("offline: pve2, pve3"));
        assert_eq!(only_finding(&found, "may-read").level, FindingLevel::Ok);
    }
}

#[test]
fn distinguishes_offline_from_silent_nodes() {
    let mut own = three_node_setting(Flavour::V9);
    own.guests[1].node = "pve3".into();
    let found = visit_findings(&DoctorLab::new(&own).apply_event(WorldEvent::NodeDown("pve3".into())), &DoctorVisit::default());
    let nodes = only_finding(&found, "nodes");
    assert!(nodes.level == FindingLevel::Warn && nodes.found.contains("offline: pve3"), "{nodes:?}");
    let guests = only_finding(&found, "guests");
    assert!(guests.found.contains("`node-offline`") && guests.found.contains("101"), "{guests:?}");
    let found = visit_findings(
        &DoctorLab::new(&own).apply_event(WorldEvent::ServiceDown("pve3".into(), NodeService::Proxy)),
        &DoctorVisit::default(),
    );
    assert!(only_finding(&found, "nodes").found.contains("not responding: pve3"), "{found:#?}");
}

#[test]
fn lists_locks_with_their_guests() {
    let bench =
        healthy_lab(Flavour::V9).apply_event(WorldEvent::Lock(100, "backup".into())).apply_event(WorldEvent::Lock(101, "migrate".into()));
    let found = visit_findings(&bench, &DoctorVisit::default());
    let locks = only_finding(&found, "locks");
    assert!(
        locks.level == FindingLevel::Warn && locks.found.contains("100 (`backup`)") && locks.found.contains("101 (`migrate`)"),
        "{locks:?}"
    );
    assert_eq!(remedy_lines(locks), ["pvesh get /cluster/tasks", "qm unlock 100"]);
    let found = visit_findings(&bench, &DoctorVisit { scope: Some(vec![]), ..DoctorVisit::default() });
    assert!(levels_of(&found, "locks").is_empty(), "guests out of scope are not reported");
}

#[test]
fn summarises_high_availability() {
    for flavour in FLAVOURS {
        let mut own = setting_with_roles(flavour, &[("/", "Administrator")]);
        own.ha = WorldSpec::from_yaml("ha: { 'vm:100': { believed: error }, 'ct:101': { believed: fence } }").expect("ha").ha;
        let found = visit_findings(&DoctorLab::new(&own), &DoctorVisit::default());
        let ha = only_finding(&found, "ha");
        assert!(ha.level == FindingLevel::Warn && ha.found.contains("2 of 2 guests") && ha.found.contains("`fence` 101"), "{ha:?}");
        assert_eq!(remedy_lines(only_finding(&found, "ha-error"))[0], "ha-manager set vm:100 --state disabled");
        assert_eq!(levels_of(&found, "ha-fencing").len(), usize::from(flavour == Flavour::V9), "reported since 9");
        own.ha = WorldSpec::from_yaml("ha: { 'vm:100': { believed: started } }").expect("ha").ha;
        let found = visit_findings(&DoctorLab::new(&own), &DoctorVisit::default());
        assert!(only_finding(&found, "ha").level == FindingLevel::Ok && only_finding(&found, "ha").found.contains("1 of 2 guests"));
    }
}

#[test]
fn lists_pending_config_keys() {
    let found = visit_findings(
        &healthy_lab(Flavour::V9).apply_event(WorldEvent::SetPending(100, "cores".into(), "8".into())),
        &DoctorVisit::default(),
    );
    let pending = only_finding(&found, "pending");
    assert!(pending.level == FindingLevel::Warn && pending.found.contains("100 (`cores`)"), "{pending:?}");
    assert!(
        levels_of(&visit_findings(&healthy_lab(Flavour::V9), &DoctorVisit { scope: None, ..DoctorVisit::default() }), "pending").is_empty(),
        "without a scope it is not read"
    );
}

#[test]
fn counts_templates() {
    let mut own = setting_with_roles(Flavour::V9, &[("/", "Administrator")]);
    own.guests[0].config.insert("template".into(), converger_lab::ScalarSpec::Number(1));
    let found = visit_findings(&DoctorLab::new(&own), &DoctorVisit::default());
    assert!(only_finding(&found, "templates").found.contains("100"), "{found:#?}");
}

#[test]
fn distinguishes_missing_from_unseen_guests() {
    let visit = DoctorVisit { scope: Some(vec![100, 999]), ..DoctorVisit::default() };
    let found = visit_findings(&healthy_lab(Flavour::V9), &visit);
    assert_eq!(only_finding(&found, "guests").found, "1 of 2 guests in scope does not exist: 999");
    let found = visit_findings(&healthy_lab(Flavour::V9).apply_event(WorldEvent::Unlist(100)), &visit);
    let unseen: Vec<&DoctorFinding> = found.iter().filter(|own| own.check == "guests").collect();
    assert!(unseen.iter().any(|own| own.found.contains("2 of 2 guests in scope cannot be read, and may exist: 100, 999")), "{unseen:#?}");
}

#[test]
fn says_nothing_about_guests_that_the_token_may_not_read() {
    for flavour in FLAVOURS {
        // It reads the cluster and one of two guests.
        let mut own = setting_with_roles(flavour, &[("/", "Viewer"), ("/vms/100", "PVEAuditor")]);
        own.roles.extend(WorldSpec::from_yaml("roles: { Viewer: [Sys.Audit] }").expect("a role").roles);
        let found = visit_findings(&DoctorLab::new(&own), &DoctorVisit { scope: None, ..DoctorVisit::default() });
        assert_eq!(only_finding(&found, "guests").found, "1 guest visible to the token, all readable");
        let found = visit_findings(&DoctorLab::new(&own), &DoctorVisit { scope: Some(vec![100, 101]), ..DoctorVisit::default() });
        let guests = only_finding(&found, "guests");
        assert!(guests.found.starts_with("1 of 2 guests in scope cannot be read, and may exist: 101"), "{guests:?}");
        assert_eq!(only_finding(&found, "locks").found, "none of 1 readable guest is locked");
        assert_eq!(only_finding(&found, "ha").found, "none of 1 readable guest is managed by high availability");
        // It reads the cluster and no guest.
        own.acl.retain(|entry| entry.path == "/");
        let found = visit_findings(&DoctorLab::new(&own), &DoctorVisit { scope: None, ..DoctorVisit::default() });
        assert!(levels_of(&found, "may-read").contains(&FindingLevel::Fail), "{found:#?}");
        let guests = only_finding(&found, "guests");
        assert_eq!((guests.level, guests.found.as_str()), (FindingLevel::Warn, "the token sees no guest"));
        assert!(levels_of(&found, "locks").is_empty() && levels_of(&found, "ha").is_empty(), "{found:#?}");
    }
}

#[test]
fn escapes_foreign_text() {
    let evil = "\u{1b}[31mhouse\"\n[x]";
    let own = WorldSpec { cluster: Some(evil.into()), ..setting_with_roles(Flavour::V9, &[("/", "Administrator")]) };
    let found = visit_findings(
        &DoctorLab::new(&own).apply_event(WorldEvent::Lock(100, "\u{202e}kcol".into())),
        &DoctorVisit { cluster: None, ..DoctorVisit::default() },
    );
    let cluster = only_finding(&found, "cluster");
    assert!(cluster.found.contains("\\u{1b}[31mhouse") && remedy_lines(cluster).is_empty(), "nobody is to copy that: {cluster:?}");
    assert!(only_finding(&found, "locks").found.contains("\\u{202e}kcol"));
}

#[test]
fn asks_everything_once() {
    for scope in [None, Some(vec![100, 101])] {
        let bench = healthy_lab(Flavour::V9);
        visit_findings(&bench, &DoctorVisit { scope: scope.clone(), ..DoctorVisit::default() });
        let mut counts = BTreeMap::<String, usize>::new();
        bench.requests().into_iter().for_each(|request| *counts.entry(request).or_default() += 1);
        let twice: Vec<(&str, usize)> =
            counts.iter().filter(|(_, count)| **count > 1).map(|(path, count)| (path.as_str(), *count)).collect();
        assert_eq!(twice, [("GET /api2/extjs/cluster/status", 2)], "only what a reading begins and ends with, for {scope:?}: {counts:#?}");
    }
}

#[test]
fn asks_extra_endpoints_only_for_identity() {
    let count = |entries: Vec<&'static str>| {
        let bench = healthy_lab(Flavour::V9);
        visit_findings(&bench, &DoctorVisit { entries, scope: None, ..DoctorVisit::default() });
        bench.requests().len()
    };
    assert_eq!(count(vec!["pve1", "pve2"]), count(vec!["pve1"]) + 2, "its release and its cluster");
}

#[test]
fn continues_after_any_failure() {
    let paths = [
        "*/access/permissions",
        "*/access/roles",
        "*/access/users/*",
        "*/cluster/status",
        "*/cluster/resources",
        "*/ha/*",
        "*/time",
        "*/pending",
    ];
    for path in paths {
        for (status, reason) in [(500, "boom"), (596, "Connection timed out"), (403, "Permission check failed (/, Sys.Audit)"), (200, "OK")]
        {
            let found =
                visit_findings(&healthy_lab(Flavour::V9).add_fault(replace_response(path, status, reason, "")), &DoctorVisit::default());
            assert_eq!(only_finding(&found, "token").level, FindingLevel::Ok, "{path} {status}");
            assert!(found.iter().any(|own| own.check == "may-read"), "{path} {status}");
            let is_told = found.iter().any(|own| own.check == "guests");
            assert!(is_told, "{path} {status}: {found:#?}");
        }
    }
}
