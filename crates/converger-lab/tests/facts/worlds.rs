//! Worlds from files and seeds: strict, deterministic, and large on request.

use converger_lab::{Flavour, LabRequest, World, WorldSize, WorldSpec};

use crate::lab::{FactsLab, SMALL};

fn spec_error(yaml: &str) -> String {
    match WorldSpec::from_yaml(yaml).and_then(|spec| World::new(&spec).map(|_| ())) {
        Err(error) => error,
        Ok(()) => panic!("must be refused: {yaml}"),
    }
}

#[test]
fn too_many_guests_are_refused() {
    let of = |guests| {
        World::new(&WorldSpec::from_seed(1, WorldSize { nodes: 1, guests }, Flavour::V9)).map(|world| world.guest_truths().count())
    };
    assert_eq!(of(10_000), Ok(10_000));
    assert_eq!(of(10_001), Err("there are 10001 guests, and a lab supports at most 10000".to_owned()));
}

#[test]
fn invalid_specs_are_refused_and_name_the_fault() {
    assert!(spec_error("nodes: { a: {} }\nguest: []\n").contains("guest"));
    assert!(spec_error("nodes: { a: { cpu: 2 } }\n").contains("cpu"));
    assert_eq!(spec_error("nodes: {}\n"), "a world needs at least one node");
    assert_eq!(spec_error("nodes: { a: {}, b: {} }\n"), "2 nodes need a `cluster` name");
    assert_eq!(spec_error(&SMALL.replace("node: pve1", "node: pve9")), "guest 100 is on node `pve9`, which does not exist");
    assert_eq!(spec_error(&SMALL.replace("vmid: 200", "vmid: 100")), "VMID 100 is used by two guests");
    assert_eq!(spec_error(&SMALL.replace("root@pam!t", "nobody@pam!t")), "the owner of token `nobody@pam!t` is not among the users");
    assert_eq!(spec_error("nodes: { a: {} }\nacl: [{ path: /, role: King, user: root@pam }]\n"), "there is no role `King`");
    assert!(spec_error("flavour: 6\nnodes: { a: {} }\n").contains("there is no flavour `6`"));
}

#[test]
fn node_names_must_be_host_names() {
    let long = "x".repeat(64);
    for name in ["../x", "", " ", "a/b", "a.b", "-a", "a-", "é", "a b", "a:b", "a\\n", &long] {
        let error = spec_error(&format!("nodes: {{ \"{name}\": {{}} }}\n"));
        assert!(error.contains("is not a valid node name"), "{name:?}: {error}");
    }
    for name in ["pve1", "PVE-1", "3com", &long[1..]] {
        let spec = WorldSpec::from_yaml(&format!("nodes: {{ \"{name}\": {{}} }}\n")).expect("a setting");
        assert!(World::new(&spec).is_ok(), "{name}");
    }
}

#[test]
fn start_times_beyond_the_year_9999_are_refused() {
    let at = |start_ms: u64| format!("start_ms: {start_ms}\n{SMALL}");
    for start_ms in [u64::MAX, u64::MAX - 1, 253_402_300_800_000] {
        let error = spec_error(&at(start_ms));
        assert!(error.contains(&start_ms.to_string()) && error.contains("milliseconds since 1970"), "{error}");
    }
    for start_ms in [0, 253_402_300_799_999] {
        let mut lab = FactsLab::new(&at(start_ms));
        lab.advance_ms(3_600_000);
        assert_eq!(lab.resource_row(100)["name"], "web", "{start_ms}");
    }
}

#[test]
fn guests_in_a_file_get_defaults() {
    let mut lab = FactsLab::new(
        "nodes: { pve1: {} }\ntokens: { root@pam!t: { secret: s, full: true } }\nguests: [{ vmid: 100, kind: qemu, node: pve1 }]\n",
    );
    let config = lab.get("/nodes/pve1/qemu/100/config");
    assert!(config["smbios1"].as_str().is_some_and(|text| text.starts_with("uuid=")), "{config}");
    assert!(config["meta"].as_str().is_some_and(|text| text.contains("ctime=")), "{config}");
    assert_eq!(lab.resource_row(100)["name"], "VM 100");
}

fn seeded_lab(seed: u64) -> FactsLab {
    FactsLab::from_spec(&WorldSpec::from_seed(seed, WorldSize { nodes: 3, guests: 200 }, Flavour::V9))
}

/// A lab that is restarted an hour later must have the same guests, because they may be declared and pinned.
#[test]
fn restarted_worlds_have_the_same_guests() {
    let spec = WorldSpec::from_seed(1, WorldSize { nodes: 2, guests: 4 }, Flavour::V9);
    let later = WorldSpec { start_ms: spec.start_ms + 3_600_000, ..spec.clone() };
    let marks = |spec: &WorldSpec| {
        let guests = &spec.guests;
        let of = |vmid: u32| {
            FactsLab::from_spec(spec)
                .world
                .guest_truth(vmid)
                .map(|truth| (truth.config.get("meta").cloned(), truth.config.get("smbios1").cloned()))
        };
        guests.iter().map(|guest| of(guest.vmid)).collect::<Vec<_>>()
    };
    assert_eq!(marks(&spec), marks(&later));
}

#[test]
fn the_same_seed_gives_the_same_world() {
    let body = |seed: u64| seeded_lab(seed).request("GET", "/cluster/resources", "").body;
    assert_eq!(body(7), body(7));
    assert_ne!(body(7), body(8));
}

#[test]
fn the_same_requests_get_the_same_responses() {
    let play = || {
        let mut lab = seeded_lab(3);
        let mut bodies = Vec::new();
        for vmid in 100..150 {
            for (method, verb, form) in [("POST", "status/start", ""), ("PUT", "config", "net1=virtio"), ("GET", "config", "")] {
                bodies.push(lab.request(method, &format!("/nodes/pve1/qemu/{vmid}/{verb}"), form).body);
                lab.advance_ms(37);
            }
        }
        bodies
    };
    assert_eq!(play(), play());
}

#[test]
fn ten_thousand_guests_are_listed() {
    let mut lab = FactsLab::from_spec(&WorldSpec::from_seed(1, WorldSize { nodes: 16, guests: 10_000 }, Flavour::V8));
    let rows = lab.get("/cluster/resources?type=vm");
    assert_eq!(rows.as_array().map(Vec::len), Some(10_000), "up to the limit");
    let unknown = rows.as_array().into_iter().flatten().filter(|row| row["status"] == "unknown").count();
    assert_eq!(unknown, 0, "every node has broadcast");
}

#[test]
fn every_request_is_recorded() {
    let mut lab = FactsLab::new(SMALL);
    lab.get("/version");
    lab.request_error("PUT", "/nodes/pve1/qemu/100/config", "");
    lab.world.answer(lab.now_ms, &LabRequest::new("GET", "/api2/json/version"));
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
fn the_next_event_time_is_known() {
    let mut lab = FactsLab::new(SMALL);
    assert_eq!(lab.world.next_event_ms(), None);
    lab.request("POST", "/nodes/pve1/qemu/100/status/start", "");
    assert_eq!(lab.world.next_event_ms(), Some(lab.now_ms + 600));
    lab.world.advance_to(lab.now_ms + 600);
    let process = lab.world.guest_truth(100).and_then(|truth| truth.process);
    assert_eq!((process.as_deref(), lab.world.next_event_ms()), (Some("running"), None));
}

#[test]
fn time_never_goes_back() {
    let mut lab = FactsLab::new(SMALL);
    let path = "/nodes/pve1/time";
    let before = lab.get(path)["time"].clone();
    lab.now_ms -= 10_000;
    assert_eq!(lab.get(path)["time"], before);
}

#[test]
fn guest_truth_shows_process_config_and_pending_values() {
    let mut lab = FactsLab::new(SMALL);
    lab.run_ok("POST", "/nodes/pve1/qemu/100/status/start", "");
    lab.run_ok("PUT", "/nodes/pve1/qemu/100/config", "cores=4");
    let truth = lab.world.guest_truth(100).unwrap_or_else(|| panic!("guest 100 is there"));
    assert_eq!((truth.process.as_deref(), truth.name.as_deref()), (Some("running"), Some("web")));
    assert_eq!((truth.config["cores"].as_str(), truth.pending["cores"].as_str()), ("2", "4"));
    assert_eq!(lab.world.guest_truths().count(), 2);
}
