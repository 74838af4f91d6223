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

#[test]
fn seeded_assets_add_templates_snapshots_and_storages_and_keep_the_guests() {
    for flavour in [Flavour::V7, Flavour::V8, Flavour::V9] {
        let plain = WorldSpec::from_seed(3, WorldSize { nodes: 3, guests: 60 }, flavour);
        let spec = plain.clone().with_seeded_assets();
        let names =
            |spec: &WorldSpec| spec.guests.iter().map(|guest| (guest.vmid, guest.name.clone(), guest.state.clone())).collect::<Vec<_>>();
        assert_eq!(names(&spec)[..60], names(&plain)[..]);
        let mut lab = FactsLab::from_spec(&spec);
        let templates = lab.world.guest_summaries().filter(|guest| guest.template).count();
        let snapshots = (100..160).map(|vmid| lab.world.snapshot_truths(vmid).count()).sum::<usize>();
        let with_ram = (100..160).flat_map(|vmid| lab.world.snapshot_truths(vmid)).filter(|snapshot| snapshot.ram_volume.is_some()).count();
        assert!(templates >= 1 && snapshots > 10 && with_ram > 0, "{templates} {snapshots} {with_ram}");
        let storages: Vec<String> =
            lab.get("/storage").as_array().into_iter().flatten().filter_map(|row| row["storage"].as_str().map(str::to_owned)).collect();
        assert_eq!(storages, ["edge", "fast", "local", "tank", "vault"]);
        let template = lab.world.guest_summaries().find(|guest| guest.template).map_or(0, |guest| guest.vmid);
        let node = lab.world.guest_truth(template).map(|truth| truth.node).unwrap_or_default();
        lab.run_ok("POST", &format!("/nodes/{node}/qemu/{template}/clone"), "newid=900");
    }
}

#[test]
fn world_files_describe_nodes_storages_templates_and_snapshots() {
    let mut lab = FactsLab::new(
        "nodes: { pve1: { cpus: 16, cpu_model: AMD EPYC 9354, memory: 1000000, memory_used: 250000 } }
storages:
  tank: { type: zfspool, total: 1000, used: 100 }
  off: { type: dir, disabled: true }
tokens: { root@pam!t: { secret: s, full: true } }
guests:
  - { vmid: 100, kind: qemu, node: pve1, name: golden, template: true, config: { scsi0: 'tank:vm-100-disk-0,size=1G' } }
  - { vmid: 101, kind: qemu, node: pve1, config: { scsi0: 'tank:base-100-disk-0/vm-101-disk-0,size=1G' } }
  - { vmid: 102, kind: qemu, node: pve1, state: running, config: { memory: 1024, scsi0: 'tank:vm-102-disk-0,size=1G' },
      taken: [{ name: s1, age_s: 7200, description: first }, { name: s2, age_s: 60, ram: true }] }
",
    );
    let status = lab.get("/nodes/pve1/status");
    assert_eq!((&status["cpuinfo"]["cpus"], &status["cpuinfo"]["model"]), (&16.into(), &"AMD EPYC 9354".into()));
    assert_eq!((&status["memory"]["used"], &status["memory"]["available"]), (&250_000.into(), &750_000.into()));
    let template = lab.get("/nodes/pve1/qemu/100/config");
    assert_eq!((&template["template"], &template["scsi0"]), (&1.into(), &"tank:base-100-disk-0,size=1G".into()));
    assert_eq!(lab.run_task("DELETE", "/nodes/pve1/qemu/100", ""), "base volume 'tank:base-100-disk-0' is still in use by linked cloned");
    let (one, two) = (lab.get("/nodes/pve1/qemu/102/config?snapshot=s1"), lab.get("/nodes/pve1/qemu/102/config?snapshot=s2"));
    assert_eq!((&one["description"], one.get("parent"), one.get("vmstate")), (&"first".into(), None, None));
    assert_eq!((&two["parent"], &two["vmstate"]), (&"s1".into(), &"tank:vm-102-state-s2".into()));
    assert_eq!(two["snaptime"].as_u64().zip(one["snaptime"].as_u64()).map(|(two, one)| two - one), Some(7_140));
    assert_eq!(lab.get("/nodes/pve1/qemu/102/config")["parent"], "s2");
}

#[test]
fn world_files_with_impossible_snapshots_or_jobs_are_refused() {
    let build = |extra: &str| {
        let yaml = format!("cluster: c\nnodes: {{ a: {{}}, b: {{}} }}\n{extra}");
        WorldSpec::from_yaml(&yaml).and_then(|spec| World::new(&spec).map(drop)).err().unwrap_or_default()
    };
    let twice = build("guests: [{ vmid: 100, kind: qemu, node: a, taken: [{ name: s1 }, { name: s1 }] }]");
    assert_eq!(twice, "guest 100: a snapshot cannot be named `s1`; its name must start with a letter and be used once");
    let lost = build(
        "storages: { tank: { type: rbd } }\nguests: [{ vmid: 100, kind: qemu, node: a, state: running, taken: [{ name: s1, ram: true }] }]",
    );
    assert_eq!(lost, "guest 100: snapshot `s1`: storage 'local' does not exist");
    assert_eq!(build("replication: [{ guest: 100, target: b }]"), "a replication job names guest 100, which does not exist");
    let same = build("guests: [{ vmid: 100, kind: qemu, node: a }]\nreplication: [{ guest: 100, target: a }]");
    assert_eq!(same, "the replication job of guest 100 has target `a`; it must be another node of the cluster");
}
