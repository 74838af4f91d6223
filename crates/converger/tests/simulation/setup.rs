//! A small world and its declared state, from a seed: one to three nodes, one to four guests, and a declared state that differs.
//!
//! The declared state is also kept in the raw texts of Proxmox, so that the oracles need no code that they judge. Faults are in `faults`.

use std::collections::BTreeMap;
use std::sync::Arc;

use converger_core::desired::{self, Desired};
use converger_core::document::Notation;
use converger_core::guest::RunState;
use converger_core::policy::{self, Rules};
use converger_core::testing::Rng;
use converger_engine::operation::Patience;
use converger_engine::schedule::{ConcurrencyLimits, OnFailure};
use converger_lab::{AclSpec, Flavour, GuestSpec, HaSpec, LabGuestKind, NodeSpec, ScalarSpec, TaskDurations, TokenSpec, WorldSpec};
use serde_json::{Map, Value as Json, json};

use super::requests::{self, NEW_ID, RequestJob, SimulatedRequest};
use super::simulation::{DECLARED_ONLY_SEEDS, SCHEDULES_PER_WORLD};

/// Our token.
pub(crate) const TOKEN: &str = "root@pam!bot";
/// The token of another user, who may do everything.
pub(crate) const OTHER_TOKEN: &str = "root@pam!other=s3cret";
/// The secret of all tokens.
const SECRET: &str = "s3cret";

/// The declared state of one guest, in raw texts.
#[derive(Clone, Debug, Default)]
pub(crate) struct WantedGuest {
    /// Its required name.
    pub(crate) name: String,
    pub(crate) state: Option<RunState>,
    /// Keys with their declared texts; `None` means absent.
    pub(crate) config: BTreeMap<&'static str, Option<String>>,
    /// It ignores shutdowns and is declared to be shut down, so the declared state cannot be reached.
    pub(crate) is_hopeless: bool,
    pub(crate) after: Vec<u32>,
    /// It may be restarted for pending config.
    pub(crate) restarts: bool,
}

/// A world before its first moment, with its declared state.
pub(crate) struct SimulationSetup {
    pub(crate) spec: WorldSpec,
    pub(crate) desired: Arc<Desired>,
    pub(crate) rules: Arc<Rules>,
    pub(crate) wanted: BTreeMap<u32, WantedGuest>,
    pub(crate) limits: ConcurrencyLimits,
    /// The limits of one run.
    pub(crate) budget: policy::Limits,
    pub(crate) on_failure: OnFailure,
    pub(crate) patience: Patience,
    /// Every step has an idempotency key and is requested again later.
    pub(crate) is_one_shot: bool,
    /// Our token has privileges that can be revoked.
    pub(crate) is_granted: bool,
    /// Requested actions, and which process is asked for them.
    pub(crate) requests: Vec<SimulatedRequest>,
    pub(crate) jobs: Vec<RequestJob>,
}

impl SimulationSetup {
    /// The ids of all guests that exist, or may come to exist.
    pub(crate) fn guest_ids(&self) -> Vec<u32> {
        let new_id = (!self.requests.is_empty()).then_some(NEW_ID);
        self.spec.guests.iter().map(|guest| guest.vmid).chain(new_id).collect()
    }
}

/// Whether requested actions are drawn beside the declared state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestedWork {
    Drawn,
    None,
}

impl RequestedWork {
    /// What the seeds of a world have.
    pub(crate) fn of_world(world: u64) -> Self {
        if world < DECLARED_ONLY_SEEDS / SCHEDULES_PER_WORLD { Self::Drawn } else { Self::None }
    }
}

/// Draws a setup.
pub(crate) fn draw_setup(rng: &mut Rng, requested: RequestedWork) -> SimulationSetup {
    let nodes = *rng.pick(&[1_u32, 1, 2, 3, 3]).unwrap_or(&1);
    let guests = draw_guest_count(rng);
    let is_granted = rng.one_in(5);
    let mut spec = WorldSpec {
        flavour: *rng.pick(&[Flavour::V7, Flavour::V8, Flavour::V9, Flavour::V9]).unwrap_or(&Flavour::V9),
        seed: rng.next_u64(),
        cluster: (nodes > 1).then(|| "lab".to_owned()),
        nodes: (1..=nodes).map(|number| (format!("pve{number}"), NodeSpec::default())).collect(),
        ..WorldSpec::default()
    };
    set_clocks(&mut spec);
    spec.tokens = tokens(!is_granted);
    spec.acl = vec![full_grant()];
    // Shorter than in reality, so that fewer requests are needed while nothing happens.
    spec.pace = TaskDurations { start_ms: 150, stop_ms: 100, ..TaskDurations::default() };
    let mut wanted = BTreeMap::new();
    let mut wishes = Vec::new();
    for vmid in 100..100 + guests {
        let guest = draw_guest(rng, vmid, nodes, &mut spec);
        let (own, json) = draw_wish(rng, &guest, vmid);
        spec.guests.push(guest);
        wanted.insert(vmid, own);
        wishes.push(json);
    }
    let is_drawn = requested == RequestedWork::Drawn && rng.one_in(2);
    let (requests, jobs) = if is_drawn { requests::draw_requests(rng, &mut spec) } else { Default::default() };
    SimulationSetup {
        spec,
        requests,
        jobs,
        desired: Arc::new(parse_desired(&wishes)),
        rules: Arc::new(Rules::default()),
        wanted,
        limits: ConcurrencyLimits {
            per_node: 1 + u32::try_from(rng.below(2)).unwrap_or(0),
            overall: 1 + u32::try_from(rng.below(4)).unwrap_or(0),
        },
        on_failure: if rng.one_in(6) { OnFailure::Stop } else { OnFailure::Continue },
        patience: draw_patience(rng),
        is_one_shot: rng.one_in(8),
        is_granted,
        budget: draw_budget(rng),
    }
}

/// Mostly one: interactions between two guests need few schedules, and faults of a single guest need many.
fn draw_guest_count(rng: &mut Rng) -> u32 {
    match rng.below(20) {
        0 => 4,
        1 => 3,
        2 | 3 => 2,
        _ => 1,
    }
}

/// Mostly more than there can be to do.
fn draw_budget(rng: &mut Rng) -> policy::Limits {
    if !rng.one_in(12) {
        return policy::Limits::default();
    }
    let mut below = |max: u64| u32::try_from(rng.below(max)).unwrap_or(0);
    policy::Limits { guests: 1 + below(2), percent: 50 * (1 + below(2)), stops: below(2) }
}

/// The opposite declared state for the same guests.
pub(crate) fn inverted_desired(simulation_setup: &SimulationSetup) -> Desired {
    let turned = |state: RunState| if state == RunState::Running { "stopped" } else { "running" };
    let desired_guest = |guest: &GuestSpec| {
        let state = simulation_setup.wanted.get(&guest.vmid).and_then(|wanted| wanted.state).map_or("running", turned);
        let mut json = bare_guest(guest);
        (json["state"], json["stop"]) = (json!(state), json!("hard"));
        json
    };
    parse_desired(&simulation_setup.spec.guests.iter().map(desired_guest).collect::<Vec<Json>>())
}

/// The same guests without any declared state.
pub(crate) fn empty_desired(simulation_setup: &SimulationSetup) -> Desired {
    parse_desired(&simulation_setup.spec.guests.iter().map(bare_guest).collect::<Vec<Json>>())
}

/// A guest without any declared state.
fn bare_guest(guest: &GuestSpec) -> Json {
    json!({ "vmid": guest.vmid, "kind": if guest.kind == LabGuestKind::Qemu { "qemu" } else { "lxc" }, "name": guest.name })
}

/// Every second node has a clock that is up to a minute and a half ahead or behind.
fn set_clocks(spec: &mut WorldSpec) {
    let mut word = spec.seed;
    for node in spec.nodes.values_mut() {
        word = word.rotate_right(11);
        node.clock_off_s = if word.is_multiple_of(2) { 0 } else { i64::try_from((word >> 8) % 181).unwrap_or(0) - 90 };
    }
}

/// A world with one guest that needs one step.
pub(crate) fn single_guest(kind: LabGuestKind, step: &str) -> SimulationSetup {
    let mut guest = GuestSpec::new(100, kind, "pve1");
    guest.name = Some("web-100".to_owned());
    guest.shutdown_ms = Some(300);
    guest.config.insert("cores".to_owned(), ScalarSpec::Text("1".to_owned()));
    guest.config.insert("description".to_owned(), ScalarSpec::Text("old".to_owned()));
    if requests::saga_request(step).map_or(!matches!(step, "start" | "config.set"), |(_, is_running)| is_running) {
        (guest.state, guest.uptime_s) = (Some("running".to_owned()), 5_000);
    }
    let (mut json, mut wanted) = single_guest_wish(kind);
    declare_step(step, &mut json, &mut wanted);
    let mut spec = WorldSpec {
        nodes: BTreeMap::from([("pve1".to_owned(), NodeSpec::default())]),
        tokens: tokens(true),
        pace: TaskDurations { start_ms: 150, stop_ms: 100, ..TaskDurations::default() },
        guests: vec![guest],
        ..WorldSpec::default()
    };
    let (requests, jobs) = requests::request_step(step, &mut spec);
    SimulationSetup {
        spec,
        desired: Arc::new(parse_desired(&[json])),
        rules: Arc::new(Rules::default()),
        wanted: BTreeMap::from([(100, wanted)]),
        limits: ConcurrencyLimits::default(),
        budget: policy::Limits::default(),
        on_failure: OnFailure::Continue,
        patience: short_patience(),
        is_one_shot: false,
        is_granted: false,
        requests,
        jobs,
    }
}

/// The only guest of a world, without any declared state.
fn single_guest_wish(kind: LabGuestKind) -> (Json, WantedGuest) {
    let kind_name = if kind == LabGuestKind::Qemu { "qemu" } else { "lxc" };
    let json = json!({ "vmid": 100, "kind": kind_name, "name": "web-100", "stop_timeout": "3s" });
    (json, WantedGuest { name: "web-100".to_owned(), ..WantedGuest::default() })
}

/// The same guest with the declared state that a plan has published as the inverse of its step; `None` if it cannot be undone.
pub(crate) fn undo_setup(kind: LabGuestKind, step: &str, undo: &Json) -> Option<SimulationSetup> {
    let change = undo.get("change")?.as_str()?;
    if requests::saga_request(step).is_some() {
        return Some(requests::undo_request(single_guest(kind, step), change));
    }
    let (mut json, mut wanted) = single_guest_wish(kind);
    match change {
        "start" => wanted.state = Some(RunState::Running),
        "shutdown" => wanted.state = Some(RunState::Stopped),
        "config.set" => {
            json["config"] = undo["fields"].clone();
            wanted.config = undo["fields"].as_object()?.iter().map(|(key, value)| (saga_key(key), raw_text(value))).collect();
        }
        other => panic!("nobody knows how to ask for `{other}`"),
    }
    if let Some(state) = wanted.state {
        json["state"] = json!(state.word());
    }
    let (desired, wanted) = (Arc::new(parse_desired(&[json])), BTreeMap::from([(100, wanted)]));
    Some(SimulationSetup { desired, wanted, ..single_guest(kind, step) })
}

/// The keys that sagas write.
fn saga_key(key: &str) -> &'static str {
    ["cores", "description"].into_iter().find(|own| *own == key).unwrap_or_else(|| panic!("no saga writes `{key}`"))
}

/// A value as Proxmox stores it.
fn raw_text(value: &Json) -> Option<String> {
    match value {
        Json::Null => None,
        Json::String(text) => Some(text.clone()),
        other => Some(other.to_string()),
    }
}

/// Declares one step in both forms: as JSON and raw.
fn declare_step(step: &str, json: &mut Json, wanted: &mut WantedGuest) {
    let mut config = |key: &'static str, value: Json, raw: Option<&str>| {
        json["config"] = json!({ key: value });
        wanted.config.insert(key, raw.map(str::to_owned));
    };
    match step {
        "config.unset" => config("description", Json::Null, None),
        "config.set" | "reboot" | "restart" => config("cores", json!(2), Some("2")),
        _ => {}
    }
    wanted.state = match step {
        "start" | "restart" => Some(RunState::Running),
        "shutdown" | "stop" => Some(RunState::Stopped),
        _ => None,
    };
    if let Some(state) = wanted.state {
        json["state"] = json!(state.word());
    }
    if matches!(step, "stop" | "restart") {
        json["stop"] = json!("hard");
    }
    if matches!(step, "config.set" | "reboot" | "restart") {
        (json["restart"], wanted.restarts) = (json!("when-needed"), true);
    }
}

fn tokens(full: bool) -> BTreeMap<String, TokenSpec> {
    let token = |full| TokenSpec { secret: SECRET.to_owned(), full, expire_s: 0 };
    BTreeMap::from([(TOKEN.to_owned(), token(full)), (OTHER_TOKEN.replace("=s3cret", ""), token(true))])
}

fn parse_desired(guests: &[Json]) -> Desired {
    let guests = serde_json::to_string(guests).unwrap_or_else(|error| panic!("{error}"));
    let text = format!(r#"{{"version":1,"environment":"lab","guests":{guests}}}"#);
    desired::parse(text.as_bytes(), Notation::Json).unwrap_or_else(|faults| panic!("{text}: {faults:?}"))
}

/// All privileges that our token needs if it does not have those of its owner.
fn full_grant() -> AclSpec {
    let (path, role) = ("/".to_owned(), "Administrator".to_owned());
    AclSpec { path, role, user: None, group: None, token: Some(TOKEN.to_owned()), here_only: false }
}

/// Mostly less than the default: otherwise a hanging task is polled a hundred times, which reveals nothing new. The wait for a lost
/// response keeps its value, because it exceeds any delay of the lab.
fn draw_patience(rng: &mut Rng) -> Patience {
    if rng.one_in(20) {
        return Patience { copy_ms: Patience::default().task_ms, ..Patience::default() };
    }
    short_patience()
}

fn short_patience() -> Patience {
    Patience {
        task_ms: 4_000,
        copy_ms: 6_000,
        slack_ms: 3_000,
        verify_ms: 1_000,
        reboot_ms: 4_000,
        unreadable_ms: 2_000,
        ..Patience::default()
    }
}

fn draw_guest(rng: &mut Rng, vmid: u32, nodes: u32, spec: &mut WorldSpec) -> GuestSpec {
    let kind = if rng.one_in(4) { LabGuestKind::Lxc } else { LabGuestKind::Qemu };
    let node = format!("pve{}", 1 + rng.below(u64::from(nodes)));
    let mut guest = GuestSpec::new(vmid, kind, &node);
    guest.name = Some(if rng.one_in(25) { format!("prod-{vmid}") } else { format!("web-{vmid}") });
    if rng.one_in(2) {
        guest.state = Some("running".to_owned());
        guest.uptime_s = 1000 + rng.below(10_000);
    }
    let text = |text: &str| ScalarSpec::Text(text.to_owned());
    guest.config.insert("cores".to_owned(), text(rng.pick_word(&["1", "2"])));
    guest.config.insert("memory".to_owned(), text(rng.pick_word(&["512", "1024"])));
    if rng.one_in(4) {
        guest.config.insert("tags".to_owned(), text(rng.pick_word(&["edge", "edge;web", "prod", "converger-hold"])));
    }
    if rng.one_in(4) {
        guest.config.insert("description".to_owned(), text("old"));
    }
    if rng.one_in(25) {
        guest.config.insert("protection".to_owned(), text("1"));
    }
    guest.ignores_shutdown = rng.one_in(12);
    guest.shutdown_ms = Some(100 + rng.below(1_500));
    if rng.one_in(20) {
        let service = if kind == LabGuestKind::Qemu { "vm" } else { "ct" };
        let state = rng.pick_word(&["started", "stopped", "ignored"]).to_owned();
        spec.ha.insert(format!("{service}:{vmid}"), HaSpec { state: Some(state), believed: None });
    }
    guest
}

/// Draws the declared state of a guest in both forms: raw and as JSON.
fn draw_wish(rng: &mut Rng, guest: &GuestSpec, vmid: u32) -> (WantedGuest, Json) {
    let mut wanted = WantedGuest { name: guest.name.clone().unwrap_or_default(), ..WantedGuest::default() };
    let mut json = bare_guest(guest);
    let runs = guest.state.is_some();
    // By chance alone, hardly any guest would run, stay running, and need a restart.
    let is_restarted = runs && guest.kind == LabGuestKind::Qemu && rng.one_in(6);
    let wants_to_run = if rng.with_chance(70) && !is_restarted { !runs } else { runs };
    if !rng.one_in(5) {
        wanted.state = Some(if wants_to_run { RunState::Running } else { RunState::Stopped });
        json["state"] = json!(if wants_to_run { "running" } else { "stopped" });
    }
    if rng.one_in(3) {
        json["stop"] = json!("hard");
    } else {
        wanted.is_hopeless = guest.ignores_shutdown && (wanted.state == Some(RunState::Stopped) || wanted.state.is_none());
    }
    if !rng.one_in(40) {
        json["stop_timeout"] = json!(format!("{}s", 2 + rng.below(3)));
    }
    if is_restarted || rng.with_chance(if wanted.state.is_some() { 45 } else { 100 }) {
        json["config"] = draw_config(rng, &mut wanted);
        if is_restarted {
            json["config"]["cores"] = json!(3);
            wanted.config.insert("cores", Some("3".to_owned()));
        }
        if is_restarted || rng.one_in(2) {
            json["restart"] = json!("when-needed");
            wanted.is_hopeless |= guest.ignores_shutdown;
            wanted.restarts = true;
        }
    }
    if vmid > 100 && rng.one_in(3) {
        let before = 100 + u32::try_from(rng.below(u64::from(vmid - 100))).unwrap_or(0);
        wanted.after.push(before);
        json["after"] = json!([before]);
    }
    (wanted, json)
}

fn draw_config(rng: &mut Rng, wanted: &mut WantedGuest) -> Json {
    let mut json = Map::new();
    let mut set = |key: &'static str, value: Json, raw: &str| {
        json.insert(key.to_owned(), value);
        wanted.config.insert(key, Some(raw.to_owned()));
    };
    if rng.one_in(2) {
        let cores = 1 + rng.below(4);
        set("cores", json!(cores), &cores.to_string());
    }
    if rng.one_in(3) {
        let memory = 512 * (1 + rng.below(4));
        set("memory", json!(format!("{memory}MiB")), &memory.to_string());
    }
    if rng.one_in(3) {
        set("onboot", json!(true), "1");
    }
    if rng.one_in(4) {
        set("tags", json!(["edge", "web"]), "edge;web");
    }
    if rng.one_in(5) {
        json.insert("description".to_owned(), Json::Null);
        wanted.config.insert("description", None);
    } else {
        let description = rng.pick_word(&["front end", "back end", "of %41 & = ;"]);
        set("description", json!(description), description);
    }
    Json::Object(json)
}
