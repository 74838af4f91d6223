//! Runs every scenario under `scenarios/` and compares the output byte by byte with the expected files.
//!
//! A scenario is a directory; `scenarios/README.md` describes its files. With `UPDATE_SCENARIOS=1` the expected files are written instead
//! of compared: review each of them before you commit it.
//!
//! The expectations are files, so that they can be reviewed without knowing Rust.

mod clock;
mod diff;
mod disk;
mod lab;
mod line;
mod live;
mod plan;
mod replay;
mod request_hook;
mod request_kills;
mod run;
mod scenario;
mod stage;
mod terminal;
mod volatile;

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::thread;

use converger_adapters::proxmox::observe::UnknownReason;
use converger_core::failure;
use converger_core::refusal::{RefusalCode, TABLE};
use serde_json::Value;

use scenario::{Scenario, all_scenarios, is_update};

/// Fewer scenarios would mean that some were lost.
const REPLAYS_MIN: usize = 100;
const LIVE_MIN: usize = 200;

/// Failures that no command can cause yet: one-shot requests, a second plan beside a first one, an overlong queue.
const UNREACHABLE_CODES: [failure::FailureCode; 3] =
    [failure::FailureCode::Superseded, failure::FailureCode::RequestRepeated, failure::FailureCode::QueueFull];

#[test]
fn every_scenario_matches_its_expected_files() {
    let named = std::env::var("SCENARIOS").unwrap_or_default();
    let mut chosen = all_scenarios();
    chosen.retain(|scenario| scenario.name.contains(&named));
    let waiting = Mutex::new(chosen.into_iter());
    let faults = Mutex::new(Vec::new());
    // Scenarios wait for the program, and some for time to pass, so more of them run than there are cores.
    let workers = 2 * thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                let next = || waiting.lock().expect("no thread panicked").next();
                while let Some(scenario) = next() {
                    faults.lock().expect("no thread panicked").extend(fault_report(&scenario));
                }
            });
        }
    });
    let mut faults = faults.into_inner().expect("no thread panicked");
    faults.sort();
    assert!(faults.is_empty(), "{} of the scenarios differ\n\n{}", faults.len(), faults.join("\n"));
}

/// The faults of a scenario, under its name; `None` if there are none.
fn fault_report(scenario: &Scenario) -> Option<String> {
    let mut faults = Vec::new();
    scenario.check_files(&mut faults);
    if scenario.is_live() {
        live::check(scenario, &mut faults);
    } else {
        replay::check(scenario, &mut faults);
    }
    (!faults.is_empty()).then(|| format!("== scenarios/{}\n{}\n", scenario.name, faults.join("\n")))
}

/// Failures that need another output, or a lab as the command itself; `codes` covers them.
const CODES_TESTED_ELSEWHERE: [failure::FailureCode; 4] = [
    failure::FailureCode::OutputUnwritable,
    failure::FailureCode::WorldInvalid,
    failure::FailureCode::LabUnserved,
    failure::FailureCode::ProcessLimited,
];

#[test]
fn scenarios_cover_every_refusal_code() {
    if is_update() {
        return;
    }
    let scenarios = all_scenarios();
    let live = scenarios.iter().filter(|scenario| scenario.is_live()).count();
    assert!(scenarios.len() - live >= REPLAYS_MIN, "there are only {} scenarios on recordings", scenarios.len() - live);
    assert!(live >= LIVE_MIN, "there are only {live} live scenarios");
    let shown_codes: BTreeSet<String> = scenarios.iter().flat_map(scenario_codes).collect();
    // No input produces a broken guarantee; the core tests it with a plan that its planner would not make.
    let wanted = TABLE.iter().filter(|entry| entry.code != RefusalCode::GuaranteeBroken);
    // Unreadable birth marks of this machine need another machine; the core tests their consequences, and `host` tests their detection.
    let wanted = wanted.filter(|entry| entry.code != RefusalCode::OwnGuestUntold);
    let missing: Vec<&str> = wanted.map(|entry| entry.word).filter(|code| !shown_codes.contains(*code)).collect();
    assert!(missing.is_empty(), "no scenario shows {}", missing.join(", "));
}

/// Causes that only an intent can meet. No command reads for one yet; the tests of the adapters cover them (`intent_needs`).
const CAUSES_OF_INTENTS: [UnknownReason; 4] =
    [UnknownReason::SnapshotsUnread, UnknownReason::ReplicationUnread, UnknownReason::CapacityUnread, UnknownReason::StoragesUnread];

/// For each of these codes there is a scenario that shows it.
#[test]
fn live_scenarios_cover_every_failure_and_cause() {
    if is_update() {
        return;
    }
    let live: Vec<Scenario> = all_scenarios().into_iter().filter(Scenario::is_live).collect();
    let transcripts: String = live.iter().filter_map(|scenario| scenario.read("expected.txt")).collect();
    // A failed observation has one code; a step has its code at the beginning of a line.
    let (of_reading, of_steps): (Vec<&failure::FailureEntry>, Vec<&failure::FailureEntry>) = failure::TABLE
        .iter()
        // The codes from there on are about the record, which `verify` reports.
        .filter(|entry| entry.code >= failure::FailureCode::ClientSetup && entry.code < failure::FailureCode::IntegrityViolation)
        .filter(|entry| !UNREACHABLE_CODES.contains(&entry.code))
        .partition(|entry| entry.code <= failure::FailureCode::EnvironmentUnreadable);
    let failures = of_reading.iter().map(|entry| format!("error[{}]:", entry.word));
    let failures = failures.chain(of_steps.iter().map(|entry| format!("{}: {}", entry.word, entry.title)));
    let of_store = ["error[journal-unwritable]:", "error[journal-unreadable]:"].map(str::to_owned);
    let failures = failures.filter(|text| !text.starts_with("journal-un")).chain(of_store);
    let show = |reason: &UnknownReason| format!("({})", reason.word());
    let (of_intents, causes): (Vec<_>, Vec<_>) = UnknownReason::ALL.iter().partition(|reason| CAUSES_OF_INTENTS.contains(reason));
    assert!(
        !of_intents.into_iter().any(|reason| transcripts.contains(&show(reason))),
        "a command reads for intents: show all their causes"
    );
    let causes = causes.into_iter().map(show);
    let missing: Vec<String> = failures.chain(causes).filter(|text| !transcripts.contains(text)).collect();
    assert!(missing.is_empty(), "no live scenario shows {}", missing.join(", "));
}

#[test]
fn scenarios_cover_every_input_error() {
    if is_update() {
        return;
    }
    let transcripts: String = all_scenarios().iter().filter_map(|scenario| scenario.read("expected.txt")).collect();
    let own = failure::TABLE
        .iter()
        .filter(|entry| entry.code < failure::FailureCode::ClientSetup && !CODES_TESTED_ELSEWHERE.contains(&entry.code));
    let missing: Vec<&str> = own.map(|entry| entry.word).filter(|code| !transcripts.contains(&format!("error[{code}]:"))).collect();
    assert!(missing.is_empty(), "no scenario shows {}", missing.join(", "));
}

/// These must not change a plan: the notation, the order of rows, unmanaged guests, the time and the author of the observation.
#[test]
fn equivalent_scenarios_have_the_same_digest() {
    if is_update() {
        return;
    }
    let pairs: Vec<(Scenario, Scenario)> = all_scenarios()
        .into_iter()
        .filter_map(|scenario| {
            let other = scenario.read("same-digest-as")?;
            let other = Scenario::open(scenario.directory.with_file_name(other.trim()));
            Some((scenario, other))
        })
        .collect();
    assert!(pairs.len() >= 3, "only {} pairs", pairs.len());
    for (one, other) in pairs {
        let (left, right) = (one.expected_json(), other.expected_json());
        assert!(left["digest"].is_string(), "{} has no digest", one.name);
        assert_eq!(left["digest"], right["digest"], "{} and {} must be one plan", one.name, other.name);
        assert_eq!(left["body"], right["body"], "{} and {} must be one plan", one.name, other.name);
    }
}

/// The codes that a scenario shows, in its JSON or at the beginning of a line of its text.
fn scenario_codes(scenario: &Scenario) -> Vec<String> {
    let text = scenario.read("expected.txt").unwrap_or_default();
    let strip_markers = |word: &str| word.trim_start_matches("refused[").trim_end_matches(':').trim_end_matches(']').to_owned();
    let first_words = text.lines().filter_map(|line| line.split_whitespace().next()).map(strip_markers);
    let mut codes: Vec<String> = first_words.filter(|word| RefusalCode::from_word(word).is_some()).collect();
    if let Some(json) = scenario.read("expected.json") {
        let json: Value = serde_json::from_str(&json).unwrap_or_else(|error| panic!("{}/expected.json: {error}", scenario.name));
        collect_codes(&json, &mut codes);
    }
    codes
}

fn collect_codes(value: &Value, codes: &mut Vec<String>) {
    match value {
        Value::Object(members) => {
            codes.extend(members.get("code").and_then(Value::as_str).map(str::to_owned));
            members.values().for_each(|member| collect_codes(member, codes));
        }
        Value::Array(items) => items.iter().for_each(|item| collect_codes(item, codes)),
        _ => {}
    }
}
