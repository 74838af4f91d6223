//! Round trips of observations: whatever a server responds, the recording is read back as the same observation and never rejected.

use converger_adapters::proxmox::observe::ReadSet;
use converger_core::artifact::write_observation;
use converger_core::guest::Vmid;
use converger_core::normalize::Field;
use converger_core::observe::{self, ObservedStatus, Scoped};
use converger_core::testing::{HOSTILE_TEXTS, Rng};
use serde_json::{Value, json};

use crate::scripted_proxmox::{STANDALONE_NODE, ScriptedGuest, ScriptedProxmox, scope_of, stopped_guest, take_reading};

const SEED: u64 = 0x0dd;
const CASES: usize = 1_500;

/// Texts that Proxmox would not store, but that a hand-edited file, an older release or an intermediary may contain.
const ODD_TEXTS: [&str; 30] = [
    "",
    " ",
    "#",
    "é",
    "a#b",
    "Prod;é",
    "a;b",
    "a,b c",
    "uuid= ",
    "uuid=",
    "uuid=é",
    "UUID=x",
    "ctime=9007199254740993",
    "ctime=-1",
    "ctime=x",
    "volume=",
    "volume=,size=1G",
    "name=eth0,hwaddr=",
    "hwaddr= ",
    "order=",
    "order=;;",
    "xyz",
    "legacy=",
    "legacy=q",
    "paused",
    "suspended",
    "prelaunch",
    "Running",
    "unknown",
    "1.5",
];

const NUMBERS: [&str; 12] =
    ["0", "1", "2", "-1", "1.5", "4294967296", "9007199254740991", "9007199254740992", "18446744073709551615", "1e300", "\"7\"", "\"0x7\""];

/// Keys that are not fields: marks, guards, and unmanaged keys.
const OTHER_KEYS: [&str; 13] =
    ["", "smbios1", "meta", "rootfs", "net0", "net1", "lock", "template", "protection", "digest", "scsi0", "args", "é"];

fn random_value(rng: &mut Rng) -> Value {
    match rng.index(6) {
        0 => serde_json::from_str(NUMBERS[rng.index(NUMBERS.len())]).expect("JSON"),
        1 => json!(rng.pick_word(HOSTILE_TEXTS).repeat(40)),
        2 => json!(rng.pick_word(HOSTILE_TEXTS)),
        3 => rng.pick(&[json!(null), json!([]), json!({"a": 1}), json!(true), json!("a".repeat(300))]).expect("one").clone(),
        _ => json!(ODD_TEXTS[rng.index(ODD_TEXTS.len())]),
    }
}

/// Adds some of these members, with values of any type.
fn with_random_members(rng: &mut Rng, keys: &[&str], mut row: Value) -> Value {
    for key in keys {
        if rng.index(3) == 0 {
            row[*key] = random_value(rng);
        }
    }
    row
}

fn random_key(rng: &mut Rng) -> &'static str {
    let at = rng.index(Field::WORDS.len() + OTHER_KEYS.len());
    Field::WORDS.iter().chain(&OTHER_KEYS).nth(at).copied().expect("within both")
}

fn odd_guest(rng: &mut Rng, kind: &'static str) -> ScriptedGuest {
    let name = if rng.index(4) == 0 { random_value(rng) } else { json!("g100") };
    let listed = json!({"vmid": 100, "type": kind, "node": "n1", "status": "stopped", "name": name, "template": 0});
    let listed = with_random_members(rng, &["status", "tags", "lock", "hastate", "template", "maxcpu", "maxmem"], listed);
    let current = with_random_members(rng, &["qmpstatus", "lock"], json!({"status": "stopped", "name": name, "ha": {"managed": 0}}));
    let mut items = vec![json!({"key": if kind == "qemu" { "name" } else { "hostname" }, "value": name})];
    for _ in 0..rng.index(4) {
        let item = json!({"key": random_key(rng)});
        items.push(with_random_members(rng, &["value", "value", "pending", "delete"], item));
    }
    items.push(json!({"key": "digest", "value": "0fe8"}));
    let (listed, current, pending) = (Some(listed.to_string()), current.to_string(), Value::Array(items).to_string());
    ScriptedGuest { kind, node: "n1".into(), listed, own: None, current, pending }
}

fn write_reading(reading: &Scoped) -> Vec<u8> {
    let mut bytes = Vec::new();
    write_observation(&mut bytes, reading).expect("memory takes it");
    bytes
}

/// Takes an observation, writes it and reads it back.
fn check_round_trip(proxmox: &ScriptedProxmox, needs: &ReadSet, case: &str) -> Scoped {
    let proxmox_reading = take_reading(proxmox, &[100], needs, None).unwrap_or_else(|unread| panic!("{case}: {unread}"));
    let reading = proxmox_reading.observation.into_scoped(&scope_of(&[100]));
    let bytes = write_reading(&reading);
    let shown = || String::from_utf8_lossy(&bytes).into_owned();
    let again = observe::parse(&bytes).unwrap_or_else(|faults| panic!("{case}\n{faults:#?}\n{}", shown()));
    let again = again.into_scoped(&scope_of(&[100]));
    assert_eq!(again, reading, "{case}\n{}", shown());
    assert_eq!(write_reading(&again), bytes, "{case}");
    again
}

#[test]
fn any_observation_round_trips() {
    let mut rng = Rng::new(SEED);
    let mut known = 0;
    for case in 0..CASES {
        let kind = ["qemu", "lxc"][rng.index(2)];
        let guest = odd_guest(&mut rng, kind);
        let needs = if rng.index(4) == 0 { ReadSet::Declared([].into()) } else { ReadSet::Everything };
        let context = format!("seed {SEED} case {case}: {guest:?}");
        let reading = check_round_trip(&ScriptedProxmox::with_guests(STANDALONE_NODE, [(100, guest)]), &needs, &context);
        known += usize::from(matches!(reading.guests[0].status, ObservedStatus::Known(_)));
    }
    assert!((CASES / 10..CASES * 9 / 10).contains(&known), "{known} of {CASES} are known: the random cases are one-sided");
}

/// Reads back the only guest, with this item in its config: its status or cause, its tags, and its pending keys.
fn read_back_with_item(item: &str) -> (String, Vec<String>, Vec<String>) {
    let pending = format!(r#"[{{"key":"name","value":"g100"}},{{"key":"digest","value":"0fe8"}},{item}]"#);
    let reading = check_round_trip(
        &ScriptedProxmox::with_guests(STANDALONE_NODE, [(100, ScriptedGuest { pending, ..stopped_guest(100, "n1") })]),
        &ReadSet::Everything,
        item,
    );
    let row = reading.find(Vmid::new(100).expect("an id")).expect("listed");
    let status = match &row.status {
        ObservedStatus::Known(state) => state.word().to_owned(),
        ObservedStatus::Unknown(cause) => cause.as_deref().unwrap_or("none").to_owned(),
    };
    let tags = row.tags.as_ref().into_option().map(|tags| tags.iter().map(str::to_owned).collect()).unwrap_or_default();
    let pending_keys =
        row.pending.as_ref().into_option().map(|list| list.iter().map(|entry| entry.key().to_owned()).collect()).unwrap_or_default();
    (status, tags, pending_keys)
}

#[test]
fn long_tags_are_kept_as_they_are() {
    let long = "x".repeat(300);
    let (status, tags, _) = read_back_with_item(&format!(r#"{{"key":"tags","value":"Prod;{long}"}}"#));
    assert_eq!((status.as_str(), tags), ("stopped", vec!["Prod".to_owned(), long]));
}

#[test]
fn g3_invalid_tag_leaves_the_guest_unknown() {
    for tags in ["é", "prod;#1", "pr\u{200b}od", "ＰＲＯＤ"] {
        let (status, ..) = read_back_with_item(&format!(r#"{{"key":"tags","value":"{tags}"}}"#));
        assert_eq!(status, "config-not-understood", "{tags}");
        let listed = stopped_guest(100, "n1").listed.map(|row| row.replace("\"template\":0", &format!("\"tags\":\"{tags}\"")));
        let proxmox = ScriptedProxmox::with_guests(STANDALONE_NODE, [(100, ScriptedGuest { listed, ..stopped_guest(100, "n1") })]);
        let reading = check_round_trip(&proxmox, &ReadSet::Declared([].into()), tags);
        assert_eq!(reading.guests[0].status, ObservedStatus::Unknown(Some("answer-malformed".into())), "{tags}");
    }
}

#[test]
fn invalid_birth_marks_make_a_guest_unknown() {
    for (key, value) in
        [("smbios1", "uuid= "), ("smbios1", "uuid=,manufacturer=x"), ("meta", "ctime=9007199254740992"), ("meta", "ctime=soon")]
    {
        let (status, ..) = read_back_with_item(&format!(r#"{{"key":"{key}","value":"{value}"}}"#));
        assert_eq!(status, "config-not-understood", "{key}: {value}");
    }
}

#[test]
fn unknown_value_round_trips_unchanged() {
    for text in ["xyz", "legacy=", " "] {
        let pending = format!(r#"[{{"key":"name","value":"g100"}},{{"key":"boot","value":"{text}"}},{{"key":"digest","value":"0fe8"}}]"#);
        let reading = check_round_trip(
            &ScriptedProxmox::with_guests(STANDALONE_NODE, [(100, ScriptedGuest { pending, ..stopped_guest(100, "n1") })]),
            &ReadSet::Everything,
            text,
        );
        let config = reading.guests[0].config.as_ref().into_option().expect("read");
        assert_eq!((config.not_understood(Field::Boot), config.get(Field::Boot)), (Some(text), None));
        assert!(matches!(reading.guests[0].status, ObservedStatus::Known(_)), "{text}");
    }
}

#[test]
fn g12_unreadable_pending_change_survives_a_round_trip() {
    let (status, _, pending_keys) = read_back_with_item(r#"{"key":"cores","value":1,"pending":"many"}"#);
    assert_eq!((status.as_str(), pending_keys), ("stopped", vec!["cores".to_owned()]));
}

#[test]
fn g1_null_guard_in_the_list_is_not_off() {
    for key in ["lock", "tags", "hastate", "template"] {
        let listed = stopped_guest(100, "n1").listed.map(|row| row.replace("\"template\":0", &format!("\"{key}\":null")));
        let proxmox = ScriptedProxmox::with_guests(STANDALONE_NODE, [(100, ScriptedGuest { listed, ..stopped_guest(100, "n1") })]);
        let reading = check_round_trip(&proxmox, &ReadSet::Declared([].into()), key);
        assert_eq!(reading.guests[0].status, ObservedStatus::Unknown(Some("answer-malformed".into())), "{key}");
    }
    let current = stopped_guest(100, "n1").current.replace("\"ha\"", "\"lock\":null,\"ha\"");
    let reading = check_round_trip(
        &ScriptedProxmox::with_guests(STANDALONE_NODE, [(100, ScriptedGuest { current, ..stopped_guest(100, "n1") })]),
        &ReadSet::Everything,
        "lock",
    );
    assert_eq!(reading.guests[0].status, ObservedStatus::Unknown(Some("answer-malformed".into())));
}

#[test]
fn unrepresentable_number_makes_a_guest_unknown() {
    let listed = stopped_guest(100, "n1").listed.map(|row| row.replace("536870912", "9007199254740992"));
    let proxmox = ScriptedProxmox::with_guests(STANDALONE_NODE, [(100, ScriptedGuest { listed, ..stopped_guest(100, "n1") })]);
    let reading = check_round_trip(&proxmox, &ReadSet::Everything, "maxmem");
    assert_eq!(reading.guests[0].status, ObservedStatus::Unknown(Some("answer-malformed".into())));
}

#[test]
fn g2_cause_of_an_unlisted_guest_survives_recording() {
    let mut proxmox = ScriptedProxmox::with_guests(STANDALONE_NODE, [(100, stopped_guest(100, "n1")), (101, stopped_guest(101, "n1"))]);
    proxmox.forbidden = [101, 102].into();
    let ids = scope_of(&[100, 101, 102, 103]);
    let reading =
        take_reading(&proxmox, &[100, 101, 102, 103], &ReadSet::Everything, None).expect("a reading").observation.into_scoped(&ids);
    let cause = |reading: &Scoped, vmid: u64| {
        let vmid = Vmid::new(vmid).expect("an id");
        match reading.presence(vmid, reading.find(vmid)) {
            observe::Seen::Unknown(cause) => cause.to_owned(),
            other => panic!("{other:?}"),
        }
    };
    let again = observe::parse(&write_reading(&reading)).expect("a recording").into_scoped(&ids);
    assert_eq!(again, reading);
    for reading in [&reading, &again] {
        let causes = [101, 102, 103].map(|vmid| cause(reading, vmid));
        // The last guest itself is not in doubt, but a hidden guest makes the whole list doubtful.
        assert_eq!(causes, ["hidden", "not-permitted", "not-listed"]);
    }
}
