//! Random requests during random faults: the world always answers, stays consistent, and recovers.

use converger_lab::{
    BadDay, FaultPlan, Flavour, LabGuestKind, LabRequest, LabResponse, ReplicationSpec, TaskFault, TaskFaultEffect, WireDelivery, World,
    WorldSize, WorldSpec, verify_response,
};
use serde_json::Value;

const SPAN_MS: u64 = 1_800_000;
const TOKEN: &str = "root@pam!lab=lab";

/// Its own generator, so that the requests share nothing with the world.
struct WalkRandom(u64);

impl WalkRandom {
    fn number_below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % limit as u64).unwrap_or(0)
    }

    fn pick_item<'a>(&mut self, items: &[&'a str]) -> &'a str {
        items[self.number_below(items.len())]
    }
}

const READ_PATHS: &[&str] = &[
    "/version",
    "/nodes",
    "/cluster/resources",
    "/cluster/resources?type=vm",
    "/cluster/status",
    "/cluster/tasks",
    "/cluster/nextid",
    "/cluster/nextid?vmid=104",
    "/cluster/ha/resources",
    "/access/permissions",
    "/storage",
    "/cluster/replication",
    "/nodes/pve1/replication",
    "/nodes/pve2/storage",
    "/nodes/pve2/storage?content=images&enabled=1",
    "/nodes/pve1/status",
    "/cluster/resources?type=node",
    "/cluster/resources?type=storage",
    "/pools",
    "/nosuch",
    "/%zz?a=b=c&&;=",
];

const GUEST_CALLS: &[(&str, &str, &str)] = &[
    ("GET", "/config", ""),
    ("GET", "/pending", ""),
    ("GET", "/status/current", ""),
    ("GET", "/snapshot", ""),
    ("PUT", "/config", "cores=3&description=x%0Ay"),
    ("PUT", "/config", "delete=net0,description&tags=a"),
    ("PUT", "/config", "net1=virtio,bridge%3Dvmbr0&memory=2048"),
    ("PUT", "/config", "cores=-1&nosuch=1"),
    ("PUT", "/config", "revert=cores"),
    ("POST", "/config", "sockets=2"),
    ("POST", "/status/start", ""),
    ("POST", "/status/stop", ""),
    ("POST", "/status/shutdown", "timeout=5&forceStop=1"),
    ("POST", "/status/reboot", ""),
    ("POST", "/status/reset", ""),
    ("POST", "/status/suspend", ""),
    ("POST", "/status/resume", ""),
    ("POST", "/snapshot", "snapname=s1"),
    ("POST", "/snapshot", "snapname=s2&vmstate=1&description=ram"),
    ("GET", "/config?snapshot=s2", ""),
    ("POST", "/snapshot/s2/rollback", "start=1"),
    ("DELETE", "/snapshot/s2?force=1", ""),
    ("DELETE", "/snapshot/s1", ""),
    ("POST", "/snapshot/s1/rollback", ""),
    ("PUT", "/resize", "disk=scsi0&size=%2B1G"),
    ("POST", "/migrate", "target=pve2&online=1"),
    ("GET", "/migrate", ""),
    ("POST", "/migrate", "target=pve3&online=1&with-local-disks=1&targetstorage=fast"),
    ("POST", "/migrate", "target=pve1&restart=1"),
    ("POST", "/clone", "newid=150&full=1"),
    ("POST", "/clone", "newid=151&name=copy&storage=local&format=qcow2"),
    ("POST", "/clone", "newid=152&full=0"),
    ("POST", "/clone", "newid=153&snapname=s1&target=pve2"),
    ("GET", "/cloudinit", ""),
    ("PUT", "/cloudinit", ""),
    ("PUT", "/config", "ide2=tank:cloudinit&ciuser=ops&cipassword=x&ipconfig0=ip%3Ddhcp"),
    ("POST", "/template", ""),
    ("DELETE", "", ""),
];

fn random_request(random: &mut WalkRandom, world: &World) -> LabRequest {
    let format = random.pick_item(&["json", "json", "json", "extjs", "xml"]);
    let (method, path, form) = if random.number_below(4) == 0 {
        ("GET", random.pick_item(READ_PATHS).to_owned(), "")
    } else {
        let (method, verb, form) = GUEST_CALLS[random.number_below(GUEST_CALLS.len())];
        (method, format!("{}{verb}", random_guest_path(random, world)), form)
    };
    let request = LabRequest::new(method, &format!("/api2/{format}{path}")).with_token(TOKEN);
    if form.is_empty() { request } else { request.with_form(form) }
}

/// Usually the actual path of a guest, sometimes any path.
fn random_guest_path(random: &mut WalkRandom, world: &World) -> String {
    let vmid = 100 + u32::try_from(random.number_below(24)).unwrap_or(0);
    let (node, kind) = (random.pick_item(&["pve1", "pve2", "pve3", "localhost", "pve9"]), random.pick_item(&["qemu", "lxc"]));
    match world.guest_truth(vmid).filter(|_| random.number_below(5) > 0) {
        Some(truth) => format!("/nodes/{}/{}/{vmid}", truth.node, if truth.kind == LabGuestKind::Qemu { "qemu" } else { "lxc" }),
        None => format!("/nodes/{node}/{kind}/{vmid}"),
    }
}

fn seeded_world(seed: u64, flavour: Flavour) -> (World, u64) {
    let mut spec = WorldSpec::from_seed(seed, WorldSize { nodes: 3, guests: 20 }, flavour).with_seeded_assets();
    spec.replication.extend(spec.guests.iter().filter(|guest| guest.node == "pve1").take(1).map(|guest| ReplicationSpec {
        guest: guest.vmid,
        target: "pve2".to_owned(),
        schedule: None,
        disabled: false,
    }));
    spec.faults = FaultPlan::from_seed(seed, &spec, BadDay { span_ms: SPAN_MS, events: 25, per_thousand: 60 });
    (World::new(&spec).unwrap_or_else(|error| panic!("{error}")), spec.start_ms)
}

fn check_well_formed(answer: &LabResponse) -> Result<(), String> {
    let header = |name: &str| answer.headers.iter().find(|(key, _)| key == name).map(|(_, value)| &**value);
    if answer.reason.contains('\n') {
        return Err("the reason has more than one line".to_owned());
    }
    if header("Content-Length").is_some_and(|length| length != answer.body.len().to_string()) {
        return Err("the content length is wrong".to_owned());
    }
    let json = header("Content-Type").is_some_and(|kind| kind.starts_with("application/json"));
    match serde_json::from_slice::<Value>(&answer.body) {
        Err(error) if json => Err(error.to_string()),
        Ok(body) if json && body.get("data").is_none() => Err("there is no `data`".to_owned()),
        _ => Ok(()),
    }
}

/// The tasks of requested actions.
const ACTION_TASKS: &[&str] = &[
    "qmsnapshot",
    "qmdelsnapshot",
    "qmrollback",
    "qmclone",
    "qmigrate",
    "resize",
    "vzsnapshot",
    "vzdelsnapshot",
    "vzrollback",
    "vzclone",
    "vzmigrate",
];

/// What happens to the next task of an action: it ends half way, does nothing, or fails although its work is done.
fn random_task_fault(random: &mut WalkRandom) -> TaskFault {
    let text = "storage 'tank' is not online".to_owned();
    let effect = match random.number_below(5) {
        0 | 1 => TaskFaultEffect::Killed,
        2 => TaskFaultEffect::FailAfter(text),
        3 => TaskFaultEffect::DoNothing,
        _ => TaskFaultEffect::Fail(text),
    };
    TaskFault { kind: Some(random.pick_item(ACTION_TASKS).to_owned()), nth: Some(1), effect: Some(effect), ..TaskFault::default() }
}

/// Runs one sequence of requests; returns all responses as text.
fn run_walk(seed: u64, flavour: Flavour) -> Vec<String> {
    let (mut world, start_ms) = seeded_world(seed, flavour);
    let mut random = WalkRandom(seed.wrapping_mul(2_654_435_761) | 1);
    let mut lines = Vec::new();
    let mut now_ms = start_ms;
    while now_ms < start_ms + SPAN_MS {
        if random.number_below(8) == 0 {
            world.add_task_fault(random_task_fault(&mut random));
        }
        let request = random_request(&mut random, &world);
        let answer = world.answer(now_ms, &request);
        let verified = check_well_formed(&answer).and_then(|()| verify_response(flavour, &request, &answer).map(drop));
        verified.unwrap_or_else(|error| panic!("seed {seed}: {} {}: {error}: {answer:?}", request.method, request.path));
        lines.push(format!("{} {} {:?}", answer.status, answer.reason, String::from_utf8_lossy(&answer.body)));
        now_ms += 500 + random.number_below(9_000) as u64;
    }
    check_lists_match_truth(&mut world, now_ms + 60_000, seed);
    check_volumes_exist(&world, seed);
    lines
}

/// After the bad day, all lists and all guests' own paths match the truth.
fn check_lists_match_truth(world: &mut World, now_ms: u64, seed: u64) {
    let rows = read_until_ok(world, now_ms, "/api2/json/cluster/resources?type=vm");
    for truth in world.guest_truths().collect::<Vec<_>>() {
        let row = rows.as_array().into_iter().flatten().find(|row| row["vmid"] == truth.vmid).cloned().unwrap_or_default();
        assert_eq!(row["node"], truth.node.as_str(), "seed {seed}: guest {}", truth.vmid);
        let kind = if truth.kind == LabGuestKind::Qemu { "qemu" } else { "lxc" };
        let config = read_until_ok(world, now_ms, &format!("/api2/json/nodes/{}/{kind}/{}/config", truth.node, truth.vmid));
        assert_eq!(config["digest"], truth.digest.as_str(), "seed {seed}: guest {}", truth.vmid);
    }
}

/// Every disk and every RAM state that a guest names has a volume, and the parents of its snapshots exist.
fn check_volumes_exist(world: &World, seed: u64) {
    let volumes: Vec<&str> = world.volume_truths().map(|(id, _)| id).collect();
    for truth in world.guest_truths() {
        for disk in world.disk_truths(truth.vmid) {
            assert!(disk.volume_bytes.is_some(), "seed {seed}: guest {}: {disk:?}", truth.vmid);
        }
        for snapshot in world.snapshot_truths(truth.vmid) {
            let has_parent = snapshot.parent.as_ref().is_none_or(|parent| truth.snapshots.contains(parent));
            let has_volume = snapshot.ram_volume.as_ref().is_none_or(|volume| volumes.contains(&volume.as_str()));
            assert!(has_parent && has_volume, "seed {seed}: guest {}: {snapshot:?}", truth.vmid);
        }
    }
}

/// Random faults on requests continue, so one good response among many is enough.
fn read_until_ok(world: &mut World, now_ms: u64, path: &str) -> Value {
    let mut answers = (0..50).map(|_| world.answer(now_ms, &LabRequest::new("GET", path).with_token(TOKEN)));
    let success = answers.find(|answer| answer.status == 200 && answer.delivery == WireDelivery::Deliver);
    let body: Value = success.and_then(|answer| serde_json::from_slice(&answer.body).ok()).unwrap_or_default();
    body["data"].clone()
}

#[test]
fn random_requests_get_valid_responses_and_the_world_recovers() {
    for flavour in [Flavour::V7, Flavour::V8, Flavour::V9] {
        let lines: Vec<String> = (1..=20).flat_map(|seed| run_walk(seed, flavour)).collect();
        let accepted = lines.iter().filter(|line| line.starts_with("200 ")).count();
        // A run that gets only errors would prove nothing.
        assert!(accepted * 4 > lines.len(), "{flavour:?}: {accepted} of {}", lines.len());
    }
}

#[test]
fn the_same_seed_gives_the_same_responses() {
    for seed in [3, 77] {
        assert_eq!(run_walk(seed, Flavour::V9), run_walk(seed, Flavour::V9), "seed {seed}");
    }
}
