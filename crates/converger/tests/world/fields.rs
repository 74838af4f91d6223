//! Every managed field, in every release, for both kinds, running and stopped: a value is declared, planned, written by the client, stored
//! by the lab as Proxmox does, and read again, and nothing is left to do.

use converger_adapters::proxmox::codec::{AcceptedChange, Delivery, FailureCause, ProxmoxEvent};
use converger_adapters::proxmox::observe::ReadSet;
use converger_core::action::{Change, FieldChange};
use converger_core::apply::Fact;
use converger_core::apply::promise::PromiseCheck;
use converger_core::desired::Desired;
use converger_core::guest::GuestKind;
use converger_core::normalize::{ChangeEffect, Field, FieldRole, FieldRule, TABLE, ValueShape};
use converger_core::plan::Verdict;
use converger_core::testing::{HOSTILE_TEXTS, Rng, to_declared_form as in_yaml, wanted_values};
use converger_lab::{Flavour, GuestSpec, ScalarSpec, WorldEvent, WorldSize, WorldSpec};
use serde_json::{Value, json};

use crate::changes::address;
use crate::claims::ClaimTally;
use crate::client::{SentPromise, call_command, parse_desired, plan_verdict, take_reading};
use crate::config_forms::{ConfigMeaning, known_forms};
use crate::lab_transport::LabTransport;

/// Number of random values for each field, kind, release and run-state.
const VALUES: u64 = 24;

const FLAVOURS: [Flavour; 3] = [Flavour::V7, Flavour::V8, Flavour::V9];

/// A value and the guest that it is written to.
struct FieldCase {
    flavour: Flavour,
    rule: &'static FieldRule,
    running: bool,
    /// The config before, besides what every guest has.
    before: Vec<(&'static str, String)>,
    value: Value,
}

impl FieldCase {
    fn describe(&self) -> String {
        let state = if self.running { "running" } else { "stopped" };
        let Self { flavour, rule, before, value, .. } = self;
        format!("{flavour:?} {} {state} {}: {value} from {before:?}", rule.kind, rule.field.word())
    }

    fn start_lab(&self) -> LabTransport<()> {
        let mut spec = WorldSpec::from_seed(7, WorldSize { nodes: 1, guests: 0 }, self.flavour);
        let kind = if self.rule.kind == GuestKind::Qemu { converger_lab::LabGuestKind::Qemu } else { converger_lab::LabGuestKind::Lxc };
        let mut guest = GuestSpec::new(100, kind, "pve1");
        guest.name = Some("web".to_owned());
        guest.state = self.running.then(|| "running".to_owned());
        let own = usual_config(self.rule.kind).iter().map(|(key, text)| (*key, (*text).to_owned()));
        guest.config = own.chain(self.before.clone()).map(|(key, text)| (key.to_owned(), ScalarSpec::Text(text))).collect();
        spec.guests.push(guest);
        let transport = LabTransport::new(&spec, "pve1", ());
        transport.lock_lab().advance(20_000);
        transport
    }

    fn desired(&self, rng: &mut Rng) -> Desired {
        let value = in_yaml(self.rule.field, &self.value, rng);
        let guest = json!({"vmid": 100, "kind": self.rule.kind.word(), "name": "web", "config": {self.rule.field.word(): value}});
        parse_desired(&json!({"version": 1, "environment": "lab", "guests": [guest]}).to_string())
    }
}

/// Enough memory for every balloon, and devices to boot from.
fn usual_config(kind: GuestKind) -> &'static [(&'static str, &'static str)] {
    match kind {
        GuestKind::Qemu => &[
            ("memory", "8192"),
            ("scsi0", "tank:vm-100-disk-0,size=1G"),
            ("virtio1", "tank:vm-100-disk-1,size=1G"),
            ("net0", "virtio=BC:24:11:00:00:01,bridge=vmbr0"),
        ],
        GuestKind::Lxc => &[("memory", "8192"), ("rootfs", "tank:vm-100-disk-0,size=1G")],
    }
}

/// Plans, writes the planned changes, and plans again: nothing is left, or a restart is pending, after which nothing is left.
fn check_case(case: &FieldCase, transport: &LabTransport<()>, desired: &Desired, tally: &mut ClaimTally) {
    let first = plan_verdict(transport, desired);
    let needs_restart = match &first {
        Verdict::Converged { pending_restart: false } => {
            tally.count(("planned", "nothing: it is so already"));
            false
        }
        Verdict::Steps(steps) => {
            let [Change::ConfigSet(changes)] = [&steps[0].change] else { panic!("{}: {first:?}", case.describe()) };
            write_and_check(case, transport, changes, tally)
        }
        _ => panic!("{}: {first:?}", case.describe()),
    };
    check_converged(case, transport, desired, needs_restart);
    if needs_restart {
        transport.lock_lab().inject_event(WorldEvent::Stop(100));
        transport.lock_lab().inject_event(WorldEvent::Start(100));
        transport.lock_lab().advance(20_000);
        check_converged(case, transport, desired, false);
    }
}

fn check_converged(case: &FieldCase, transport: &LabTransport<()>, desired: &Desired, pending_restart: bool) {
    let found = plan_verdict(transport, desired);
    assert_eq!(found, Verdict::Converged { pending_restart }, "{}: {:?}", case.describe(), transport.lock_lab().world.guest_truth(100));
}

/// The write of these changes, with its promise.
fn prepare_write(transport: &LabTransport<()>, kind: GuestKind, changes: &[FieldChange]) -> SentPromise {
    SentPromise::before_send(transport, &address(kind), Change::ConfigSet(changes.into()))
}

/// Writes the changes; returns whether the value is pending until a restart, as planned.
fn write_and_check(case: &FieldCase, transport: &LabTransport<()>, changes: &[FieldChange], tally: &mut ClaimTally) -> bool {
    let promise = prepare_write(transport, case.rule.kind, changes);
    assert!(matches!(promise.check_kept_before(), PromiseCheck::NotKept(_)), "{}: kept before it is written", case.describe());
    let answer = call_command(transport, promise.command(transport));
    assert_eq!(answer, Ok(ProxmoxEvent::Accepted(AcceptedChange::Done)), "{}", case.describe());
    let needs_restart = case.running && changes[0].effect == ChangeEffect::AtRestart;
    let waiting = needs_restart.then(|| Fact::Words([case.rule.field.word().into()].into()));
    let promise_check = promise.check_kept(transport, None);
    let is_as_foreseen = matches!(&promise_check, PromiseCheck::Kept(seen) if seen.get("pending_restart") == waiting.as_ref());
    assert!(is_as_foreseen, "{}: {promise_check:?} {:?}", case.describe(), transport.lock_lab().world.guest_truth(100));
    tally.count(match (case.value.is_null(), needs_restart) {
        (false, false) => ("written", "in effect"),
        (false, true) => ("written", "at the next start"),
        (true, false) => ("removed", "in effect"),
        (true, true) => ("removed", "at the next start"),
    });
    needs_restart
}

/// Random values within the bounds of the table.
fn draw_value(rng: &mut Rng, rule: &FieldRule) -> Value {
    if rule.can_unset && rng.one_in(5) {
        return Value::Null;
    }
    let (min, max) = (u64::from(rule.min), u64::from(rule.max));
    // Small numbers are frequent, large ones rare.
    let number = |rng: &mut Rng, max: u64| {
        let bound = (max - min) >> rng.below(24);
        min + rng.below(bound + 1)
    };
    match rule.field.shape() {
        ValueShape::Flag => json!(rng.one_in(2)),
        ValueShape::Mib if rule.field == Field::Balloon => json!(number(rng, 8192)),
        ValueShape::Count | ValueShape::Mib | ValueShape::Thousandths => json!(number(rng, max)),
        ValueShape::Text => json!(draw_nasty_text(rng)),
        ValueShape::Tags => draw_tags(rng),
        ValueShape::Startup => draw_startup(rng),
        ValueShape::Boot => draw_boot(rng),
        ValueShape::Features => panic!("{} is not managed", rule.field.word()),
    }
}

/// Text that needs encoding and ends in a visible character.
fn draw_nasty_text(rng: &mut Rng) -> String {
    let parts = [
        "=",
        ";",
        "&",
        "+",
        "%",
        "%3B",
        "%zz",
        "\n",
        "\n\n",
        " ",
        "\t",
        "ä",
        "😀",
        "\u{202e}",
        "a",
        "#",
        ":",
        "\"",
        "\\",
        ",",
        "[PENDING]",
    ];
    let harmless = |text: &&&str| !text.contains(|own: char| own.is_control() && own != '\n');
    let hostile: Vec<&str> = HOSTILE_TEXTS.iter().filter(harmless).copied().collect();
    let length = if rng.one_in(30) { 4_000 } else { rng.below(16) };
    let body: String = (0..length).map(|_| if rng.one_in(8) { rng.pick_word(&hostile) } else { rng.pick_word(&parts) }).collect();
    let body: String = body.chars().take(8_000).collect();
    format!("{body}.")
}

fn draw_tags(rng: &mut Rng) -> Value {
    let mut tags: Vec<String> = (0..rng.below(6)).map(|_| draw_tag(rng)).collect();
    tags.sort();
    tags.dedup();
    json!(tags)
}

fn draw_tag(rng: &mut Rng) -> String {
    let first = rng.pick_word(&["a", "z", "0", "_"]).to_owned();
    (0..rng.below(8)).fold(first, |tag, _| tag + rng.pick_word(&["b", "9", "-", "+", ".", "_"]))
}

fn draw_startup(rng: &mut Rng) -> Value {
    let mut parts = serde_json::Map::new();
    for key in ["order", "up", "down"] {
        if rng.one_in(2) {
            parts.insert(key.to_owned(), json!(rng.below(1_000_000)));
        }
    }
    if parts.is_empty() { json!({"order": rng.below(10)}) } else { Value::Object(parts) }
}

fn draw_boot(rng: &mut Rng) -> Value {
    let mut devices = vec!["scsi0", "virtio1", "net0"];
    rng.shuffle(&mut devices);
    devices.truncate(1 + rng.index(devices.len()));
    json!(devices)
}

/// The key before: absent, or in one of its possible forms.
fn draw_before(rng: &mut Rng, flavour: Flavour, rule: &FieldRule) -> Vec<(&'static str, String)> {
    let mut config = Vec::new();
    let is_possible = |(form, meaning): &(&str, ConfigMeaning)| {
        let is_newer = flavour == Flavour::V7 && form.starts_with("current=");
        // No step of ours removes a protecting tag (G3), so there would be nothing to write.
        *meaning != ConfigMeaning::Odd && !is_newer && !form.contains("PROD")
    };
    let possible: Vec<_> = known_forms(rule.kind, rule.field).into_iter().filter(is_possible).collect();
    if !rng.one_in(4)
        && let Some((form, _)) = rng.pick(&possible)
    {
        config.push((rule.field.word(), (*form).to_owned()));
    }
    if rule.kind == GuestKind::Qemu && rng.one_in(3) {
        config.push(("hotplug", "network,disk,memory".to_owned()));
        config.push(("numa", rng.pick_word(&["0", "1"]).to_owned()));
    }
    config
}

fn managed_rules() -> impl Iterator<Item = &'static FieldRule> {
    TABLE.iter().filter(|rule| rule.role == FieldRole::Managed)
}

#[test]
fn written_values_read_back_and_plan_nothing() {
    let seed = 0x5eed;
    let mut rng = Rng::new(seed);
    let mut tally = ClaimTally::default();
    for flavour in FLAVOURS {
        for (rule, running) in managed_rules().flat_map(|rule| [(rule, false), (rule, true)]) {
            let pool = wanted_values(rule.kind, rule.field);
            for value in pool.into_iter().chain((0..VALUES).map(|_| draw_value(&mut rng, rule)).collect::<Vec<_>>()) {
                let case = FieldCase { flavour, rule, running, before: draw_before(&mut rng, flavour, rule), value };
                check_case(&case, &case.start_lab(), &case.desired(&mut rng), &mut tally);
            }
        }
    }
    println!("seed {seed}");
    for ((about, which), count) in &tally.0 {
        println!("{count:>9} {about}: {which}");
    }
    let total: u64 = tally.0.values().sum();
    assert!(total > 2_000 && tally.0.len() == 5, "{total} cases: {tally:?}");
}

/// A declared state with all managed fields of a kind, for a guest that has none of them.
fn desired_with_all_fields(rng: &mut Rng, kind: GuestKind) -> Value {
    let fields = managed_rules().filter(|rule| rule.kind == kind);
    let config: serde_json::Map<String, Value> = fields
        .map(|rule| {
            let value = if rule.field == Field::Memory { json!(16_384) } else { draw_value(rng, rule) };
            (rule.field.word().to_owned(), in_yaml(rule.field, &value, rng))
        })
        .collect();
    json!({"version": 1, "environment": "lab", "guests": [{"vmid": 100, "kind": kind.word(), "name": "web", "config": config}]})
}

#[test]
fn all_fields_are_one_write_and_then_plan_nothing() {
    let mut rng = Rng::new(0xa11);
    for (flavour, kind) in FLAVOURS.into_iter().flat_map(|flavour| GuestKind::ALL.map(|kind| (flavour, kind))) {
        for running in [false, true] {
            let rule = managed_rules().find(|rule| rule.kind == kind).unwrap_or_else(|| panic!("a field"));
            let case = FieldCase { flavour, rule, running, before: Vec::new(), value: Value::Null };
            let transport = case.start_lab();
            let desired = parse_desired(&desired_with_all_fields(&mut rng, kind).to_string());
            let Verdict::Steps(steps) = plan_verdict(&transport, &desired) else { panic!("{} must be changed", case.describe()) };
            let Change::ConfigSet(changes) = &steps[0].change else { panic!("{steps:?}") };
            let promise = prepare_write(&transport, kind, changes);
            assert_eq!(
                call_command(&transport, promise.command(&transport)),
                Ok(ProxmoxEvent::Accepted(AcceptedChange::Done)),
                "{}",
                case.describe()
            );
            let needs_restart = running && changes.iter().any(|change| change.effect == ChangeEffect::AtRestart);
            check_converged(&case, &transport, &desired, needs_restart);
        }
    }
}

fn description_case(flavour: Flavour, kind: GuestKind, running: bool) -> FieldCase {
    let rule = managed_rules().find(|rule| rule.kind == kind && rule.field == Field::Description).unwrap_or_else(|| panic!("a field"));
    FieldCase { flavour, rule, running, before: Vec::new(), value: json!("ours") }
}

#[test]
fn foreign_revert_is_planned_again() {
    for (flavour, kind) in FLAVOURS.into_iter().flat_map(|flavour| GuestKind::ALL.map(|kind| (flavour, kind))) {
        let case = description_case(flavour, kind, true);
        let (transport, desired) = (case.start_lab(), case.desired(&mut Rng::new(1)));
        check_case(&case, &transport, &desired, &mut ClaimTally::default());
        transport.lock_lab().inject_event(WorldEvent::Set(100, "description".to_owned(), "theirs".to_owned()));
        assert!(matches!(plan_verdict(&transport, &desired), Verdict::Steps(_)), "{}", case.describe());
    }
}

#[test]
fn write_on_a_stale_config_is_rejected_and_changes_nothing() {
    for (flavour, kind) in FLAVOURS.into_iter().flat_map(|flavour| GuestKind::ALL.map(|kind| (flavour, kind))) {
        let case = description_case(flavour, kind, false);
        let (transport, desired) = (case.start_lab(), case.desired(&mut Rng::new(1)));
        let Verdict::Steps(steps) = plan_verdict(&transport, &desired) else { panic!("{}", case.describe()) };
        let Change::ConfigSet(changes) = &steps[0].change else { panic!("{steps:?}") };
        let promise = prepare_write(&transport, kind, changes);
        let command = promise.command(&transport);
        transport.lock_lab().inject_event(WorldEvent::Set(100, "onboot".to_owned(), "1".to_owned()));
        let before = transport.lock_lab().world.guest_truth(100);
        let failure = call_command(&transport, command).expect_err("refused");
        assert_eq!((failure.cause, failure.delivery), (FailureCause::Changed, Delivery::Rejected), "{}: {failure}", case.describe());
        assert_eq!(transport.lock_lab().world.guest_truth(100), before);
        assert!(matches!(promise.check_kept(&transport, None), PromiseCheck::NotKept(_)));
    }
}

/// Otherwise the plan that a script has read would change once the list catches up, and its digest would be no approval.
#[test]
fn recently_changed_guest_reads_the_same_after_the_list_catches_up() {
    for (flavour, kind) in FLAVOURS.into_iter().flat_map(|flavour| GuestKind::ALL.map(|kind| (flavour, kind))) {
        let case = description_case(flavour, kind, true);
        let (transport, desired) = (case.start_lab(), case.desired(&mut Rng::new(1)));
        for (key, value) in [("cores", "3"), ("memory", "9216")] {
            transport.lock_lab().inject_event(WorldEvent::Set(100, key.to_owned(), value.to_owned()));
        }
        transport.lock_lab().inject_event(WorldEvent::Stop(100));
        let read_set = ReadSet::for_desired(&desired);
        let rows =
            || take_reading(&transport, &desired.scope(), &read_set, None).unwrap_or_else(|unread| panic!("{unread}")).observation.guests;
        let before = rows();
        transport.lock_lab().advance(20_000);
        assert_eq!(before, rows(), "{}", case.describe());
    }
}
