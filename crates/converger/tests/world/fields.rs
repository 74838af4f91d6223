//! Every managed field, in every release, for both kinds, running and stopped: a value is declared, planned, written by the client, kept by the
//! lab as Proxmox keeps it, read again, and nothing is left to do.

use converger_adapters::proxmox::codec::{Accepted, Basis, Cause, Command, ConfigSet, Delivery, Event, Read, Write};
use converger_adapters::proxmox::observe::Needs;
use converger_core::action::{Change, FieldChange};
use converger_core::apply::Fact;
use converger_core::apply::promise::Kept;
use converger_core::desired::Desired;
use converger_core::guest::Kind;
use converger_core::normalize::{Effect, Field, Role, Rule, Shape, TABLE};
use converger_core::plan::Verdict;
use converger_core::testing::{HOSTILE, Rng, declared as in_yaml, wanted_values};
use converger_lab::{Act, Flavour, GuestSetting, Scalar, Scale, Setting};
use serde_json::{Value, json};

use crate::claims::Tally;
use crate::forms::{Meaning, forms};
use crate::spine::{Pledge, ask, call, declared, path, read, verdict};
use crate::way::Way;

/// Random values for each field, kind, release and run-state.
const VALUES: u64 = 24;

const FLAVOURS: [Flavour; 3] = [Flavour::V7, Flavour::V8, Flavour::V9];

/// What is written to what.
struct Case {
    flavour: Flavour,
    rule: &'static Rule,
    running: bool,
    /// What the config holds before, besides what every guest has.
    before: Vec<(&'static str, String)>,
    value: Value,
}

impl Case {
    fn shown(&self) -> String {
        let state = if self.running { "running" } else { "stopped" };
        let Self { flavour, rule, before, value, .. } = self;
        format!("{flavour:?} {} {state} {}: {value} from {before:?}", rule.kind, rule.field.word())
    }

    fn way(&self) -> Way<()> {
        let mut setting = Setting::seeded(7, Scale { nodes: 1, guests: 0 }, self.flavour);
        let kind = if self.rule.kind == Kind::Qemu { converger_lab::Kind::Qemu } else { converger_lab::Kind::Lxc };
        let mut guest = GuestSetting::new(100, kind, "pve1");
        guest.name = Some("web".to_owned());
        guest.state = self.running.then(|| "running".to_owned());
        let own = usual(self.rule.kind).iter().map(|(key, text)| (*key, (*text).to_owned()));
        guest.config = own.chain(self.before.clone()).map(|(key, text)| (key.to_owned(), Scalar::Text(text))).collect();
        setting.guests.push(guest);
        let way = Way::new(&setting, "pve1", ());
        way.lab().pass(20_000);
        way
    }

    fn desired(&self, rng: &mut Rng) -> Desired {
        let value = in_yaml(self.rule.field, &self.value, rng);
        let guest = json!({"vmid": 100, "kind": self.rule.kind.word(), "name": "web", "config": {self.rule.field.word(): value}});
        declared(&json!({"version": 1, "environment": "lab", "guests": [guest]}).to_string())
    }
}

/// Enough memory for every balloon, and devices to boot from.
fn usual(kind: Kind) -> &'static [(&'static str, &'static str)] {
    match kind {
        Kind::Qemu => &[
            ("memory", "8192"),
            ("scsi0", "tank:vm-100-disk-0,size=1G"),
            ("virtio1", "tank:vm-100-disk-1,size=1G"),
            ("net0", "virtio=BC:24:11:00:00:01,bridge=vmbr0"),
        ],
        Kind::Lxc => &[("memory", "8192"), ("rootfs", "tank:vm-100-disk-0,size=1G")],
    }
}

/// Plan, write what is planned, plan again: nothing, or what waits for a restart; and after a restart nothing.
fn check(case: &Case, way: &Way<()>, desired: &Desired, tally: &mut Tally) {
    let first = verdict(way, desired);
    let waits = match &first {
        Verdict::Converged { pending_restart: false } => {
            tally.count(("planned", "nothing: it is so already"));
            false
        }
        Verdict::Steps(steps) => {
            let [Change::ConfigSet(changes)] = [&steps[0].change] else { panic!("{}: {first:?}", case.shown()) };
            write(case, way, changes, tally)
        }
        _ => panic!("{}: {first:?}", case.shown()),
    };
    converged(case, way, desired, waits);
    if waits {
        way.lab().act(Act::Stop(100));
        way.lab().act(Act::Start(100));
        way.lab().pass(20_000);
        converged(case, way, desired, false);
    }
}

fn converged(case: &Case, way: &Way<()>, desired: &Desired, pending_restart: bool) {
    let found = verdict(way, desired);
    assert_eq!(found, Verdict::Converged { pending_restart }, "{}: {:?}", case.shown(), way.lab().world.truth(100));
}

/// The write for these changes, on a fresh reading.
fn set(case: &Case, way: &Way<()>, changes: &[FieldChange]) -> Write {
    let guest = path("pve1", case.rule.kind, 100);
    let Ok(Event::Config(before)) = ask(way, Read::GuestPending(guest.clone())) else { panic!("{}: no config", case.shown()) };
    let basis = Basis::of(&before).unwrap_or_else(|| panic!("{}: no digest", case.shown()));
    let set = ConfigSet::new(guest, changes, &basis);
    Write::ConfigSet(set.unwrap_or_else(|fault| panic!("{}: {fault:?}", case.shown())))
}

/// Whether the value now waits for a restart, as was foreseen.
fn write(case: &Case, way: &Way<()>, changes: &[FieldChange], tally: &mut Tally) -> bool {
    let write = set(case, way, changes);
    let pledge = Pledge::of(way, &write);
    assert!(matches!(pledge.kept_before(), Kept::No(_)), "{}: kept before it is written", case.shown());
    assert_eq!(call(way, Command::Write(write.clone())), Ok(Event::Accepted(Accepted::Done)), "{}", case.shown());
    let waits = case.running && changes[0].effect == Effect::AtRestart;
    let waiting = waits.then(|| Fact::Words([case.rule.field.word().into()].into()));
    let kept = pledge.kept(way, &write);
    let is_as_foreseen = matches!(&kept, Kept::Yes(seen) if seen.get("pending_restart") == waiting.as_ref());
    assert!(is_as_foreseen, "{}: {kept:?} {:?}", case.shown(), way.lab().world.truth(100));
    tally.count(match (case.value.is_null(), waits) {
        (false, false) => ("written", "in effect"),
        (false, true) => ("written", "at the next start"),
        (true, false) => ("removed", "in effect"),
        (true, true) => ("removed", "at the next start"),
    });
    waits
}

/// Values that nobody thought of, within the bounds of the table.
fn drawn(rng: &mut Rng, rule: &Rule) -> Value {
    if rule.can_unset && rng.one_in(5) {
        return Value::Null;
    }
    let (min, max) = (u64::from(rule.min), u64::from(rule.max));
    // Small numbers are frequent, large ones happen.
    let number = |rng: &mut Rng, max: u64| {
        let bound = (max - min) >> rng.below(24);
        min + rng.below(bound + 1)
    };
    match rule.field.shape() {
        Shape::Flag => json!(rng.one_in(2)),
        Shape::Mib if rule.field == Field::Balloon => json!(number(rng, 8192)),
        Shape::Count | Shape::Mib | Shape::Thousandths => json!(number(rng, max)),
        Shape::Text => json!(nasty(rng)),
        Shape::Tags => tags(rng),
        Shape::Startup => startup(rng),
        Shape::Boot => boot(rng),
        Shape::Features => panic!("{} is not managed", rule.field.word()),
    }
}

/// Text that has to be encoded on its way, and that ends in something visible.
fn nasty(rng: &mut Rng) -> String {
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
    let hostile: Vec<&str> = HOSTILE.iter().filter(harmless).copied().collect();
    let length = if rng.one_in(30) { 4_000 } else { rng.below(16) };
    let body: String = (0..length).map(|_| if rng.one_in(8) { rng.word(&hostile) } else { rng.word(&parts) }).collect();
    let body: String = body.chars().take(8_000).collect();
    format!("{body}.")
}

fn tags(rng: &mut Rng) -> Value {
    let mut words: Vec<String> = (0..rng.below(6)).map(|_| tag(rng)).collect();
    words.sort();
    words.dedup();
    json!(words)
}

fn tag(rng: &mut Rng) -> String {
    let first = rng.word(&["a", "z", "0", "_"]).to_owned();
    (0..rng.below(8)).fold(first, |word, _| word + rng.word(&["b", "9", "-", "+", ".", "_"]))
}

fn startup(rng: &mut Rng) -> Value {
    let mut parts = serde_json::Map::new();
    for key in ["order", "up", "down"] {
        if rng.one_in(2) {
            parts.insert(key.to_owned(), json!(rng.below(1_000_000)));
        }
    }
    if parts.is_empty() { json!({"order": rng.below(10)}) } else { Value::Object(parts) }
}

fn boot(rng: &mut Rng) -> Value {
    let mut devices = vec!["scsi0", "virtio1", "net0"];
    rng.shuffle(&mut devices);
    devices.truncate(1 + rng.index(devices.len()));
    json!(devices)
}

/// What the key is before: absent, or one of its forms that somebody may have written.
fn before(rng: &mut Rng, flavour: Flavour, rule: &Rule) -> Vec<(&'static str, String)> {
    let mut config = Vec::new();
    let is_possible = |(form, meaning): &(&str, Meaning)| {
        let is_newer = flavour == Flavour::V7 && form.starts_with("current=");
        // No step of ours takes a protecting tag away (G3), so there is nothing to write there.
        *meaning != Meaning::Odd && !is_newer && !form.contains("PROD")
    };
    let possible: Vec<_> = forms(rule.kind, rule.field).into_iter().filter(is_possible).collect();
    if !rng.one_in(4)
        && let Some((form, _)) = rng.pick(&possible)
    {
        config.push((rule.field.word(), (*form).to_owned()));
    }
    if rule.kind == Kind::Qemu && rng.one_in(3) {
        config.push(("hotplug", "network,disk,memory".to_owned()));
        config.push(("numa", rng.word(&["0", "1"]).to_owned()));
    }
    config
}

fn managed() -> impl Iterator<Item = &'static Rule> {
    TABLE.iter().filter(|rule| rule.role == Role::Managed)
}

#[test]
fn what_is_written_is_read_back_and_nothing_is_left_to_do() {
    let seed = 0x5eed;
    let mut rng = Rng::new(seed);
    let mut tally = Tally::default();
    for flavour in FLAVOURS {
        for (rule, running) in managed().flat_map(|rule| [(rule, false), (rule, true)]) {
            let pool = wanted_values(rule.kind, rule.field);
            for value in pool.into_iter().chain((0..VALUES).map(|_| drawn(&mut rng, rule)).collect::<Vec<_>>()) {
                let case = Case { flavour, rule, running, before: before(&mut rng, flavour, rule), value };
                check(&case, &case.way(), &case.desired(&mut rng), &mut tally);
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

/// A declared state with all managed fields of a kind, and a guest that has none of them.
fn everything(rng: &mut Rng, kind: Kind) -> Value {
    let fields = managed().filter(|rule| rule.kind == kind);
    let config: serde_json::Map<String, Value> = fields
        .map(|rule| {
            let value = if rule.field == Field::Memory { json!(16_384) } else { drawn(rng, rule) };
            (rule.field.word().to_owned(), in_yaml(rule.field, &value, rng))
        })
        .collect();
    json!({"version": 1, "environment": "lab", "guests": [{"vmid": 100, "kind": kind.word(), "name": "web", "config": config}]})
}

#[test]
fn all_fields_at_once_are_one_write_and_nothing_is_left_to_do() {
    let mut rng = Rng::new(0xa11);
    for (flavour, kind) in FLAVOURS.into_iter().flat_map(|flavour| Kind::ALL.map(|kind| (flavour, kind))) {
        for running in [false, true] {
            let rule = managed().find(|rule| rule.kind == kind).unwrap_or_else(|| panic!("a field"));
            let case = Case { flavour, rule, running, before: Vec::new(), value: Value::Null };
            let way = case.way();
            let desired = declared(&everything(&mut rng, kind).to_string());
            let Verdict::Steps(steps) = verdict(&way, &desired) else { panic!("{} must be changed", case.shown()) };
            let Change::ConfigSet(changes) = &steps[0].change else { panic!("{steps:?}") };
            assert_eq!(call(&way, Command::Write(set(&case, &way, changes))), Ok(Event::Accepted(Accepted::Done)));
            let waits = running && changes.iter().any(|change| change.effect == Effect::AtRestart);
            converged(&case, &way, &desired, waits);
        }
    }
}

fn small(flavour: Flavour, kind: Kind, running: bool) -> Case {
    let rule = managed().find(|rule| rule.kind == kind && rule.field == Field::Description).unwrap_or_else(|| panic!("a field"));
    Case { flavour, rule, running, before: Vec::new(), value: json!("ours") }
}

#[test]
fn what_somebody_else_changed_back_is_planned_again() {
    for (flavour, kind) in FLAVOURS.into_iter().flat_map(|flavour| Kind::ALL.map(|kind| (flavour, kind))) {
        let case = small(flavour, kind, true);
        let (way, desired) = (case.way(), case.desired(&mut Rng::new(1)));
        check(&case, &way, &desired, &mut Tally::default());
        way.lab().act(Act::Set(100, "description".to_owned(), "theirs".to_owned()));
        assert!(matches!(verdict(&way, &desired), Verdict::Steps(_)), "{}", case.shown());
    }
}

#[test]
fn a_write_on_an_older_reading_is_refused_and_changes_nothing() {
    for (flavour, kind) in FLAVOURS.into_iter().flat_map(|flavour| Kind::ALL.map(|kind| (flavour, kind))) {
        let case = small(flavour, kind, false);
        let (way, desired) = (case.way(), case.desired(&mut Rng::new(1)));
        let Verdict::Steps(steps) = verdict(&way, &desired) else { panic!("{}", case.shown()) };
        let Change::ConfigSet(changes) = &steps[0].change else { panic!("{steps:?}") };
        let write = set(&case, &way, changes);
        way.lab().act(Act::Set(100, "onboot".to_owned(), "1".to_owned()));
        let before = way.lab().world.truth(100);
        let failure = call(&way, Command::Write(write.clone())).expect_err("refused");
        assert_eq!((failure.cause, failure.delivery), (Cause::Changed, Delivery::No), "{}: {failure}", case.shown());
        assert_eq!(way.lab().world.truth(100), before);
        assert!(matches!(Pledge::of(&way, &write).kept_before(), Kept::No(_)));
    }
}

/// Otherwise the plan that a script read a moment ago is another one once the list comes after, and its digest no approval.
#[test]
fn a_guest_that_was_changed_a_moment_ago_reads_the_same_once_the_list_comes_after() {
    for (flavour, kind) in FLAVOURS.into_iter().flat_map(|flavour| Kind::ALL.map(|kind| (flavour, kind))) {
        let case = small(flavour, kind, true);
        let (way, desired) = (case.way(), case.desired(&mut Rng::new(1)));
        for (key, value) in [("cores", "3"), ("memory", "9216")] {
            way.lab().act(Act::Set(100, key.to_owned(), value.to_owned()));
        }
        way.lab().act(Act::Stop(100));
        let needs = Needs::of(&desired);
        let rows = || read(&way, &desired.scope(), &needs, None).unwrap_or_else(|unread| panic!("{unread}")).observation.guests;
        let before = rows();
        way.lab().pass(20_000);
        assert_eq!(before, rows(), "{}", case.shown());
    }
}
