//! Worlds from files and from seeds: strict, the same each time, large if asked.

use converger_lab::{Flavour, Request, Scale, Setting, World};

use crate::lab::{Lab, SMALL};

fn refused(yaml: &str) -> String {
    match Setting::from_yaml(yaml).and_then(|setting| World::new(&setting).map(|_| ())) {
        Err(error) => error,
        Ok(()) => panic!("must be refused: {yaml}"),
    }
}

#[test]
fn more_guests_than_a_lab_has_room_for_are_refused_and_not_left_out() {
    let of = |guests| World::new(&Setting::seeded(1, Scale { nodes: 1, guests }, Flavour::V9)).map(|world| world.truths().count());
    assert_eq!(of(10_000), Ok(10_000));
    assert_eq!(of(10_001), Err("there are 10001 guests, and a lab has room for 10000".to_owned()));
}

#[test]
fn what_cannot_be_is_refused_with_its_name() {
    assert!(refused("nodes: { a: {} }\nguest: []\n").contains("guest"));
    assert!(refused("nodes: { a: { cpu: 2 } }\n").contains("cpu"));
    assert_eq!(refused("nodes: {}\n"), "a world needs a node");
    assert_eq!(refused("nodes: { a: {}, b: {} }\n"), "2 nodes need a `cluster` name");
    assert_eq!(refused(&SMALL.replace("node: pve1", "node: pve9")), "guest 100 is on node `pve9`, which does not exist");
    assert_eq!(refused(&SMALL.replace("vmid: 200", "vmid: 100")), "there are two guests 100");
    assert_eq!(refused(&SMALL.replace("root@pam!t", "nobody@pam!t")), "token `nobody@pam!t` has no owner among the users");
    assert_eq!(refused("nodes: { a: {} }\nacl: [{ path: /, role: King, user: root@pam }]\n"), "there is no role `King`");
    assert!(refused("flavour: 6\nnodes: { a: {} }\n").contains("there is no flavour `6`"));
}

#[test]
fn a_node_has_the_name_of_a_host() {
    let long = "x".repeat(64);
    for name in ["../x", "", " ", "a/b", "a.b", "-a", "a-", "é", "a b", "a:b", "a\\n", &long] {
        let error = refused(&format!("nodes: {{ \"{name}\": {{}} }}\n"));
        assert!(error.contains("is not the name of a node"), "{name:?}: {error}");
    }
    for name in ["pve1", "PVE-1", "3com", &long[1..]] {
        let setting = Setting::from_yaml(&format!("nodes: {{ \"{name}\": {{}} }}\n")).expect("a setting");
        assert!(World::new(&setting).is_ok(), "{name}");
    }
}

#[test]
fn a_world_begins_at_a_time_that_can_be_written() {
    let at = |start_ms: u64| format!("start_ms: {start_ms}\n{SMALL}");
    for start_ms in [u64::MAX, u64::MAX - 1, 253_402_300_800_000] {
        let error = refused(&at(start_ms));
        assert!(error.contains(&start_ms.to_string()) && error.contains("milliseconds since 1970"), "{error}");
    }
    for start_ms in [0, 253_402_300_799_999] {
        let mut lab = Lab::new(&at(start_ms));
        lab.pass(3_600_000);
        assert_eq!(lab.row(100)["name"], "web", "{start_ms}");
    }
}

#[test]
fn a_guest_in_a_file_needs_little() {
    let mut lab = Lab::new(
        "nodes: { pve1: {} }\ntokens: { root@pam!t: { secret: s, full: true } }\nguests: [{ vmid: 100, kind: qemu, node: pve1 }]\n",
    );
    let config = lab.get("/nodes/pve1/qemu/100/config");
    assert!(config["smbios1"].as_str().is_some_and(|text| text.starts_with("uuid=")), "{config}");
    assert!(config["meta"].as_str().is_some_and(|text| text.contains("ctime=")), "{config}");
    assert_eq!(lab.row(100)["name"], "VM 100");
}

fn seeded(seed: u64) -> Lab {
    Lab::of(&Setting::seeded(seed, Scale { nodes: 3, guests: 200 }, Flavour::V9))
}

/// Whoever ends a lab and begins it again an hour later finds the guests that were declared and pinned.
#[test]
fn a_world_that_is_begun_anew_later_has_the_same_guests() {
    let setting = Setting::seeded(1, Scale { nodes: 2, guests: 4 }, Flavour::V9);
    let later = Setting { start_ms: setting.start_ms + 3_600_000, ..setting.clone() };
    let marks = |setting: &Setting| {
        let guests = &setting.guests;
        let of = |vmid: u32| {
            Lab::of(setting).world.truth(vmid).map(|truth| (truth.config.get("meta").cloned(), truth.config.get("smbios1").cloned()))
        };
        guests.iter().map(|guest| of(guest.vmid)).collect::<Vec<_>>()
    };
    assert_eq!(marks(&setting), marks(&later));
}

#[test]
fn the_same_seed_is_the_same_world() {
    let body = |seed: u64| seeded(seed).ask("GET", "/cluster/resources", "").body;
    assert_eq!(body(7), body(7));
    assert_ne!(body(7), body(8));
}

#[test]
fn the_same_requests_get_the_same_answers() {
    let play = || {
        let mut lab = seeded(3);
        let mut bodies = Vec::new();
        for vmid in 100..150 {
            for (method, verb, form) in [("POST", "status/start", ""), ("PUT", "config", "net1=virtio"), ("GET", "config", "")] {
                bodies.push(lab.ask(method, &format!("/nodes/pve1/qemu/{vmid}/{verb}"), form).body);
                lab.pass(37);
            }
        }
        bodies
    };
    assert_eq!(play(), play());
}

#[test]
fn ten_thousand_guests_are_listed() {
    let mut lab = Lab::of(&Setting::seeded(1, Scale { nodes: 16, guests: 10_000 }, Flavour::V8));
    let rows = lab.get("/cluster/resources?type=vm");
    assert_eq!(rows.as_array().map(Vec::len), Some(10_000), "there is a limit");
    let unknown = rows.as_array().into_iter().flatten().filter(|row| row["status"] == "unknown").count();
    assert_eq!(unknown, 0, "every node has told");
}

#[test]
fn every_request_is_recorded() {
    let mut lab = Lab::new(SMALL);
    lab.get("/version");
    lab.error("PUT", "/nodes/pve1/qemu/100/config", "");
    lab.world.answer(lab.now_ms, &Request::new("GET", "/api2/json/version"));
    let seen: Vec<(String, String, String, u16)> =
        lab.world.records().map(|record| (record.method.clone(), record.path.clone(), record.user.clone(), record.status)).collect();
    let own = |method: &str, path: &str, user: &str, status| (method.to_owned(), format!("/api2/json{path}"), user.to_owned(), status);
    assert_eq!(
        seen,
        [
            own("GET", "/version", "root@pam!t", 200),
            own("PUT", "/nodes/pve1/qemu/100/config", "root@pam!t", 500),
            own("GET", "/version", "", 401)
        ]
    );
    assert_eq!(lab.world.requests(), 3);
    lab.world.clear_records();
    assert_eq!((lab.world.requests(), lab.world.records().count()), (0, 0));
}

#[test]
fn whoever_drives_the_clock_knows_when_something_happens_next() {
    let mut lab = Lab::new(SMALL);
    assert_eq!(lab.world.next_event_ms(), None);
    lab.ask("POST", "/nodes/pve1/qemu/100/status/start", "");
    assert_eq!(lab.world.next_event_ms(), Some(lab.now_ms + 600));
    lab.world.advance_to(lab.now_ms + 600);
    let process = lab.world.truth(100).and_then(|truth| truth.process);
    assert_eq!((process.as_deref(), lab.world.next_event_ms()), (Some("running"), None));
}

#[test]
fn time_never_goes_back() {
    let mut lab = Lab::new(SMALL);
    let path = "/nodes/pve1/time";
    let before = lab.get(path)["time"].clone();
    lab.now_ms -= 10_000;
    assert_eq!(lab.get(path)["time"], before);
}

#[test]
fn the_truth_is_told_to_tests_alone() {
    let mut lab = Lab::new(SMALL);
    lab.done("POST", "/nodes/pve1/qemu/100/status/start", "");
    lab.done("PUT", "/nodes/pve1/qemu/100/config", "cores=4");
    let truth = lab.world.truth(100).unwrap_or_else(|| panic!("guest 100 is there"));
    assert_eq!((truth.process.as_deref(), truth.name.as_deref()), (Some("running"), Some("web")));
    assert_eq!((truth.config["cores"].as_str(), truth.pending["cores"].as_str()), ("2", "4"));
    assert_eq!(lab.world.truths().count(), 2);
}
