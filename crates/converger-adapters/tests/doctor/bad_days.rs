//! What the doctor says on bad days: endpoints, clocks, releases, clusters, nodes, high availability, locks, and words of others.

use std::collections::BTreeMap;

use converger_adapters::proxmox::doctor::{Finding, Level, Where};
use converger_lab::{Act, Flavour, Part, RequestFault, Setting, Twist};

use crate::bench::{Bench, FLAVOURS, Visit, granted, levels, lines, one, setting, visit};

fn well(flavour: Flavour) -> Bench {
    Bench::new(&granted(flavour, &[("/", "Administrator")]))
}

fn three(flavour: Flavour) -> Setting {
    let mut own = granted(flavour, &[("/", "Administrator")]);
    own.nodes = setting(flavour, "nodes: { pve1: {}, pve2: {}, pve3: {} }").nodes;
    own
}

fn instead(path: &str, status: u16, reason: &str, body: &str) -> RequestFault {
    let (reason, body) = (reason.to_owned(), body.to_owned());
    let twist = Twist::Instead { status, reason, body: body.clone(), html: body.starts_with('<') };
    RequestFault { path: Some(path.to_owned()), twist: Some(twist), ..RequestFault::default() }
}

#[test]
fn of_several_endpoints_each_is_told_apart() {
    let both = Visit { entries: vec!["pve1", "pve2"], ..Visit::default() };
    for flavour in FLAVOURS {
        let found = visit(&Bench::new(&three(flavour)).act(Act::NodeDown("pve1".into())), &both);
        assert_eq!(levels(&found, "endpoint"), [Level::Warn, Level::Ok], "the other one is there");
        assert!(one(&found, "token").found.contains("pve2:8006"), "the rest is asked there");
        assert!(one(&found, "nodes").found.contains("offline: pve1"), "{found:#?}");
        let found = visit(&well(flavour).act(Act::NodeDown("pve1".into())), &Visit::default());
        assert_eq!(levels(&found, "endpoint"), [Level::Fail], "nobody is there");
        assert_eq!(one(&found, "rest").level, Level::Unknown);
    }
}

#[test]
fn one_node_under_two_addresses_is_no_help() {
    let found = visit(&well(Flavour::V9), &Visit { entries: vec!["pve1", "pve2", "pve1"], ..Visit::default() });
    let double = one(&found, "endpoint-node");
    assert!(double.level == Level::Warn && double.found == "it is the node pve1, as is pve1:8006", "{double:?}");
}

#[test]
fn an_endpoint_that_is_not_proxmox_is_told_so() {
    for (status, reason, body) in [
        (200, "OK", "<html>hello</html>"),
        (301, "Moved Permanently", ""),
        (404, "Not Found", "<html>"),
        (200, "OK", "{\"data\":{}}"),
        (500, "RPCEnvironment init request failed: Unable to load access control list: Connection refused", ""),
    ] {
        let found = visit(&well(Flavour::V9).twist(instead("*/version", status, reason, body)), &Visit::default());
        let endpoint = one(&found, "endpoint");
        assert!(endpoint.level == Level::Fail && endpoint.remedy.is_some(), "{status} {reason}: {endpoint:?}");
        assert_eq!(one(&found, "rest").level, Level::Unknown);
    }
}

#[test]
fn clocks_are_compared_to_the_second() {
    for flavour in FLAVOURS {
        for (jump, level) in
            [(0, Level::Ok), (3, Level::Ok), (-3, Level::Ok), (7, Level::Warn), (-30, Level::Warn), (61, Level::Fail), (-900, Level::Fail)]
        {
            let found = visit(&well(flavour).act(Act::ClockJump(jump)), &Visit::default());
            assert_eq!(levels(&found, "clock"), [level], "{flavour:?} {jump}");
            let nodes = if level == Level::Ok { vec![level] } else { vec![level; 2] };
            assert_eq!(levels(&found, "node-clock"), nodes, "{flavour:?} {jump}: {found:#?}");
            let text = &found.iter().find(|own| own.check == "clock").expect("a clock").found;
            assert!(level == Level::Ok || text.contains(if jump > 0 { "ahead of ours" } else { "behind ours" }), "{text}");
        }
    }
}

#[test]
fn releases_that_are_not_known_are_worth_a_word() {
    for flavour in FLAVOURS {
        let found = visit(&well(flavour), &Visit::default());
        assert_eq!(one(&found, "version").level, Level::Ok);
        assert!(one(&found, "version").found.contains(&format!("Proxmox VE {}.", flavour.major())));
        assert!(levels(&found, "node-versions").is_empty());
    }
    for version in ["6.4-15", "10.0.1"] {
        let body = format!("{{\"data\":{{\"version\":\"{version}\",\"release\":\"x\"}},\"success\":1}}");
        let found = visit(&well(Flavour::V9).twist(instead("/api2/extjs/version", 200, "OK", &body)), &Visit::default());
        assert!(one(&found, "version").level == Level::Warn && one(&found, "version").found.contains(version));
        assert_eq!(one(&found, "may-read").level, Level::Ok, "the rest is told all the same");
    }
}

#[test]
fn an_upgrade_that_is_under_way_is_seen() {
    let body = "{\"data\":{\"version\":\"8.4.1\",\"release\":\"8.4\"},\"success\":1}";
    let found = visit(&well(Flavour::V9).twist(instead("*/nodes/pve2/version", 200, "OK", body)), &Visit::default());
    let versions = one(&found, "node-versions");
    assert!(versions.level == Level::Warn && versions.found.contains("pve1 `9.2.11`, pve2 `8.4.1`"), "{versions:?}");
}

#[test]
fn another_cluster_than_the_pinned_one_is_not_asked_further() {
    for flavour in FLAVOURS {
        let bench = well(flavour);
        let found = visit(&bench, &Visit { cluster: Some("home"), ..Visit::default() });
        let cluster = one(&found, "cluster");
        assert!(cluster.level == Level::Fail && cluster.found.contains("`house`") && cluster.found.contains("`home`"), "{cluster:?}");
        assert!(!found.iter().any(|own| own.check.starts_with("may-") || own.check == "guests"), "{found:#?}");
        assert_eq!(bench.requests().len(), 2, "who it is, and where it belongs");
    }
}

#[test]
fn a_name_that_is_not_pinned_is_written_out_to_be_pinned() {
    let found = visit(&well(Flavour::V9), &Visit { cluster: None, ..Visit::default() });
    let cluster = one(&found, "cluster");
    assert_eq!(cluster.level, Level::Warn);
    let line = &cluster.remedy.as_ref().expect("a remedy").lines[0];
    assert_eq!((line.text.as_str(), line.r#where), ("cluster = \"house\"", Where::Config));
    let alone = granted(Flavour::V9, &[("/", "Administrator")]);
    let alone = Setting { cluster: None, nodes: setting(Flavour::V9, "nodes: { pve1: {} }").nodes, ..alone };
    let found = visit(&Bench::new(&alone), &Visit { cluster: None, ..Visit::default() });
    assert_eq!(lines(one(&found, "cluster")), ["cluster = \"pve1\""], "a node without a cluster goes by its own name");
    assert_eq!(one(&found, "quorum").level, Level::Ok);
}

#[test]
fn a_cluster_without_quorum_fails_and_the_rest_is_told() {
    for flavour in FLAVOURS {
        let found = visit(&Bench::new(&three(flavour)).act(Act::Isolate(vec!["pve2".into(), "pve3".into()])), &Visit::default());
        assert_eq!(one(&found, "quorum").level, Level::Fail);
        assert!(one(&found, "nodes").found.contains("offline: pve2, pve3"));
        assert_eq!(one(&found, "may-read").level, Level::Ok);
    }
}

#[test]
fn a_node_that_is_down_and_one_that_does_not_answer_are_told_apart() {
    let mut own = three(Flavour::V9);
    own.guests[1].node = "pve3".into();
    let found = visit(&Bench::new(&own).act(Act::NodeDown("pve3".into())), &Visit::default());
    let nodes = one(&found, "nodes");
    assert!(nodes.level == Level::Warn && nodes.found.contains("offline: pve3"), "{nodes:?}");
    let guests = one(&found, "guests");
    assert!(guests.found.contains("`node-offline`") && guests.found.contains("101"), "{guests:?}");
    let found = visit(&Bench::new(&own).act(Act::ServiceDown("pve3".into(), Part::Proxy)), &Visit::default());
    assert!(one(&found, "nodes").found.contains("not answering: pve3"), "{found:#?}");
}

#[test]
fn locks_are_named_with_their_guests() {
    let bench = well(Flavour::V9).act(Act::Lock(100, "backup".into())).act(Act::Lock(101, "migrate".into()));
    let found = visit(&bench, &Visit::default());
    let locks = one(&found, "locks");
    assert!(locks.level == Level::Warn && locks.found.contains("100 (`backup`)") && locks.found.contains("101 (`migrate`)"), "{locks:?}");
    assert_eq!(lines(locks), ["pvesh get /cluster/tasks", "qm unlock 100"]);
    let found = visit(&bench, &Visit { scope: Some(vec![]), ..Visit::default() });
    assert_eq!(one(&found, "locks").level, Level::Ok, "what is out of scope is nobody's business");
}

#[test]
fn high_availability_is_summed_up() {
    for flavour in FLAVOURS {
        let mut own = granted(flavour, &[("/", "Administrator")]);
        own.ha = Setting::from_yaml("ha: { 'vm:100': { believed: error }, 'ct:101': { believed: fence } }").expect("ha").ha;
        let found = visit(&Bench::new(&own), &Visit::default());
        let ha = one(&found, "ha");
        assert!(ha.level == Level::Warn && ha.found.contains("2 of 2 guests") && ha.found.contains("`fence` 101"), "{ha:?}");
        assert_eq!(lines(one(&found, "ha-error"))[0], "ha-manager set vm:100 --state disabled");
        assert_eq!(levels(&found, "ha-fencing").len(), usize::from(flavour == Flavour::V9), "said since 9");
        own.ha = Setting::from_yaml("ha: { 'vm:100': { believed: started } }").expect("ha").ha;
        let found = visit(&Bench::new(&own), &Visit::default());
        assert!(one(&found, "ha").level == Level::Ok && one(&found, "ha").found.contains("1 of 2 guests"));
    }
}

#[test]
fn what_waits_for_a_start_is_named_by_its_keys() {
    let found = visit(&well(Flavour::V9).act(Act::SetPending(100, "cores".into(), "8".into())), &Visit::default());
    let pending = one(&found, "pending");
    assert!(pending.level == Level::Warn && pending.found.contains("100 (`cores`)"), "{pending:?}");
    assert!(
        levels(&visit(&well(Flavour::V9), &Visit { scope: None, ..Visit::default() }), "pending").is_empty(),
        "without a scope it is not read"
    );
}

#[test]
fn templates_are_counted() {
    let mut own = granted(Flavour::V9, &[("/", "Administrator")]);
    own.guests[0].config.insert("template".into(), converger_lab::Scalar::Number(1));
    let found = visit(&Bench::new(&own), &Visit::default());
    assert!(one(&found, "templates").found.contains("100"), "{found:#?}");
}

#[test]
fn a_guest_that_does_not_exist_is_told_from_one_that_is_not_seen() {
    let ask = Visit { scope: Some(vec![100, 999]), ..Visit::default() };
    let found = visit(&well(Flavour::V9), &ask);
    assert_eq!(one(&found, "guests").found, "1 guest in scope is not there: 999");
    let found = visit(&well(Flavour::V9).act(Act::Unlist(100)), &ask);
    let unseen: Vec<&Finding> = found.iter().filter(|own| own.check == "guests").collect();
    assert!(unseen.iter().any(|own| own.found.contains("not proven to be absent")), "{unseen:#?}");
}

#[test]
fn words_of_others_stay_words() {
    let evil = "\u{1b}[31mhouse\"\n[x]";
    let own = Setting { cluster: Some(evil.into()), ..granted(Flavour::V9, &[("/", "Administrator")]) };
    let found = visit(&Bench::new(&own).act(Act::Lock(100, "\u{202e}kcol".into())), &Visit { cluster: None, ..Visit::default() });
    let cluster = one(&found, "cluster");
    assert!(cluster.found.contains("\\u{1b}[31mhouse") && lines(cluster).is_empty(), "nobody is to copy that: {cluster:?}");
    assert!(one(&found, "locks").found.contains("\\u{202e}kcol"));
}

#[test]
fn each_thing_is_asked_once() {
    for scope in [None, Some(vec![100, 101])] {
        let bench = well(Flavour::V9);
        visit(&bench, &Visit { scope: scope.clone(), ..Visit::default() });
        let mut counts = BTreeMap::<String, usize>::new();
        bench.requests().into_iter().for_each(|request| *counts.entry(request).or_default() += 1);
        let twice: Vec<(&str, usize)> =
            counts.iter().filter(|(_, count)| **count > 1).map(|(path, count)| (path.as_str(), *count)).collect();
        assert_eq!(twice, [("GET /api2/extjs/cluster/status", 2)], "only what a reading begins and ends with, for {scope:?}: {counts:#?}");
    }
}

#[test]
fn an_endpoint_more_is_asked_who_it_is_and_nothing_else() {
    let count = |entries: Vec<&'static str>| {
        let bench = well(Flavour::V9);
        visit(&bench, &Visit { entries, scope: None, ..Visit::default() });
        bench.requests().len()
    };
    assert_eq!(count(vec!["pve1", "pve2"]), count(vec!["pve1"]) + 2, "its release and its cluster");
}

#[test]
fn whatever_fails_the_doctor_goes_on() {
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
            let found = visit(&well(Flavour::V9).twist(instead(path, status, reason, "")), &Visit::default());
            assert_eq!(one(&found, "token").level, Level::Ok, "{path} {status}");
            assert!(found.iter().any(|own| own.check == "may-read"), "{path} {status}");
            let is_told = found.iter().any(|own| own.check == "guests");
            assert!(is_told, "{path} {status}: {found:#?}");
        }
    }
}
