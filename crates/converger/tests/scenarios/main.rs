//! Runs every story under `scenarios/` and compares what the program says, byte by byte, with what the story expects.
//!
//! A scenario is a directory; `scenarios/README.md` says what is in it. With `UPDATE_SCENARIOS=1` the expected files are
//! written anew instead of compared: whoever does that reads each of them before committing it.
//!
//! What never enters: expectations. They are files, so that somebody who knows no Rust can review them.

mod diff;
mod plan;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use converger_core::artifact::PLAN_SCHEMA;
use converger_core::refusal::{Code, TABLE};
use serde_json::Value;

use diff::diff;

/// Fewer would mean that some were lost.
const SCENARIOS_MIN: usize = 100;

/// Everything that a scenario may hold: a misspelt name must not pass for an absent file.
const FILES: [&str; 9] = [
    "command",
    "converger.toml",
    "current.json",
    "desired.json",
    "desired.yaml",
    "expected.json",
    "expected.txt",
    "same-digest-as",
    "story.md",
];

/// Two machines that differ in whatever must not matter.
const SURROUNDINGS: [[(&str, &str); 4]; 2] = [
    [("TZ", "UTC"), ("LANG", "C"), ("LC_ALL", "C"), ("COLUMNS", "200")],
    [("TZ", "Pacific/Kiritimati"), ("LANG", "tr_TR.UTF-8"), ("LC_ALL", "de_DE.UTF-8"), ("COLUMNS", "20")],
];

#[test]
fn every_scenario_gives_what_it_expects() {
    let faults: Vec<String> = scenarios().iter().filter_map(fault_report).collect();
    assert!(faults.is_empty(), "{} of the scenarios differ\n\n{}", faults.len(), faults.join("\n"));
}

#[test]
fn the_scenarios_are_many_and_show_every_refusal_code() {
    if is_update() {
        return;
    }
    let scenarios = scenarios();
    assert!(scenarios.len() >= SCENARIOS_MIN, "there are only {} scenarios", scenarios.len());
    let shown: BTreeSet<String> = scenarios.iter().flat_map(codes_of).collect();
    // No input produces a broken guarantee; core shows it with a plan that its planner does not make.
    let wanted = TABLE.iter().filter(|entry| entry.code != Code::GuaranteeBroken);
    let lacking: Vec<&str> = wanted.map(|entry| entry.word).filter(|word| !shown.contains(*word)).collect();
    assert!(lacking.is_empty(), "no scenario shows {}", lacking.join(", "));
}

/// What must not change a plan: the notation, the order of rows, foreign guests, when and by whom it was read.
#[test]
fn scenarios_that_say_the_same_have_the_same_digest() {
    if is_update() {
        return;
    }
    let pairs: Vec<(Scenario, Scenario)> = scenarios()
        .into_iter()
        .filter_map(|scenario| {
            let other = scenario.read("same-digest-as")?;
            let other = Scenario::open(scenario.room.with_file_name(other.trim()));
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

/// Whether the expected files are being written: who reads them at the same time would read half of them.
fn is_update() -> bool {
    std::env::var_os("UPDATE_SCENARIOS").is_some_and(|update| update == "1")
}

/// One story.
struct Scenario {
    name: String,
    room: PathBuf,
    arguments: Vec<String>,
}

impl Scenario {
    fn open(room: PathBuf) -> Self {
        let name = room.file_name().expect("a scenario has a name").to_string_lossy().into_owned();
        let mut scenario = Self { name, room, arguments: Vec::new() };
        scenario.arguments = match scenario.read("command") {
            Some(command) => command.lines().map(str::to_owned).collect(),
            None => {
                let desired = if scenario.room.join("desired.yaml").exists() { "desired.yaml" } else { "desired.json" };
                ["audit", desired, "--replay", "current.json"].map(str::to_owned).into()
            }
        };
        scenario
    }

    /// The text of one of its files, if it has that file.
    fn read(&self, file: &str) -> Option<String> {
        fs::read_to_string(self.room.join(file)).ok()
    }

    fn expected_json(&self) -> Value {
        let text = self.read("expected.json").unwrap_or_else(|| panic!("{} has no expected.json", self.name));
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}/expected.json: {error}", self.name))
    }

    /// A command that itself says `--json` is run as it is, and has no text to compare.
    fn is_json_only(&self) -> bool {
        self.arguments.iter().any(|argument| argument == "--json")
    }

    /// `--all` is about the text and says nothing for JSON.
    fn with_json(&self) -> Vec<String> {
        let kept = self.arguments.iter().filter(|argument| !["--all", "--json"].contains(&argument.as_str()));
        kept.cloned().chain(["--json".to_owned()]).collect()
    }

    /// Every file in it, with its bytes.
    fn content(&self) -> BTreeMap<String, Vec<u8>> {
        let entries = fs::read_dir(&self.room).expect("a scenario is a directory").map(|entry| entry.expect("an entry").path());
        let content = entries.map(|path| {
            let name = path.file_name().expect("a file has a name").to_string_lossy().into_owned();
            let bytes = fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            (name, bytes)
        });
        content.collect()
    }
}

fn scenarios() -> Vec<Scenario> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios");
    let entries = fs::read_dir(&root).expect("the scenarios are beside the crates").map(|entry| entry.expect("an entry").path());
    let mut rooms: Vec<PathBuf> = entries.filter(|path| path.is_dir()).collect();
    rooms.sort();
    rooms.into_iter().map(Scenario::open).collect()
}

/// The codes that a scenario is expected to show, in its JSON or at the beginning of a line of its text.
fn codes_of(scenario: &Scenario) -> Vec<String> {
    let text = scenario.read("expected.txt").unwrap_or_default();
    let first_words = text.lines().filter_map(|line| line.split_whitespace().next()).map(|word| word.trim_end_matches(':').to_owned());
    let mut codes: Vec<String> = first_words.filter(|word| Code::find(word).is_some()).collect();
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

/// What the program said and how it ended.
#[derive(PartialEq, Eq)]
struct Ran {
    stdout: String,
    stderr: String,
    exit: i32,
}

/// Runs the program in the scenario's own directory, once in each surroundings, and gives what it said, which must be
/// the same everywhere.
fn run(scenario: &Scenario, arguments: &[String], faults: &mut Vec<String>) -> Ran {
    let [first, second] = SURROUNDINGS.map(|surroundings| run_once(scenario, arguments, &surroundings, faults));
    if first != second {
        let differences = diff(&as_text(&first), &as_text(&second));
        faults.push(format!("it depends on the locale, the time zone or the width of the terminal:\n{differences}"));
    }
    first
}

fn run_once(scenario: &Scenario, arguments: &[String], surroundings: &[(&str, &str)], faults: &mut Vec<String>) -> Ran {
    let mut command = Command::new(env!("CARGO_BIN_EXE_converger"));
    command.args(arguments).current_dir(&scenario.room).env_clear().envs(surroundings.iter().copied()).stdin(Stdio::null());
    let output = command.output().expect("the program can be run");
    let mut text = |bytes: Vec<u8>, stream: &str| {
        let text = String::from_utf8(bytes).unwrap_or_else(|_| panic!("{}: {stream} is not UTF-8", scenario.name));
        if text.contains('\u{1b}') {
            faults.push(format!("{stream} has an escape sequence, and it is not a terminal"));
        }
        if !text.is_empty() && !text.ends_with('\n') {
            faults.push(format!("{stream} does not end with a line break"));
        }
        text
    };
    Ran {
        stdout: text(output.stdout, "standard output"),
        stderr: text(output.stderr, "standard error"),
        exit: output.status.code().unwrap_or_else(|| panic!("{} was ended by a signal", scenario.name)),
    }
}

fn as_text(ran: &Ran) -> String {
    format!("{}--- stderr\n{}--- exit {}\n", ran.stdout, ran.stderr, ran.exit)
}

/// What is wrong with a scenario, under its name; nothing where nothing is.
fn fault_report(scenario: &Scenario) -> Option<String> {
    let mut faults = Vec::new();
    check_files(scenario, &mut faults);
    let before = scenario.content();
    let text = run(scenario, &scenario.arguments, &mut faults);
    let json = run(scenario, &scenario.with_json(), &mut faults);
    if scenario.content() != before {
        faults.push("it changed a file in its directory, or left one there".into());
    }
    if (&text.stderr, text.exit) != (&json.stderr, json.exit) {
        faults.push(format!("with --json it ends in another way:\n{}", diff(&as_text(&text), &as_text(&json))));
    }
    let expected = if scenario.is_json_only() { Ran { stdout: String::new(), ..text } } else { text };
    settle(scenario, "expected.txt", Some(as_text(&expected)), &mut faults);
    settle(scenario, "expected.json", pretty(scenario, &json, &mut faults), &mut faults);
    (!faults.is_empty()).then(|| format!("== scenarios/{}\n{}\n", scenario.name, faults.join("\n")))
}

fn check_files(scenario: &Scenario, faults: &mut Vec<String>) {
    let content = scenario.content();
    faults.extend(content.keys().filter(|file| !FILES.contains(&file.as_str())).map(|file| format!("the file {file} means nothing here")));
    if scenario.read("story.md").is_none_or(|story| story.trim().is_empty()) {
        faults.push("it has no story.md".into());
    }
}

/// The artifact in a form that can be reviewed. On standard output it must be one line of canonical JSON, or nothing
/// where the input was not accepted.
fn pretty(scenario: &Scenario, ran: &Ran, faults: &mut Vec<String>) -> Option<String> {
    if ran.stdout.is_empty() && ran.exit == 2 {
        return None;
    }
    let value: Value = match serde_json::from_str(&ran.stdout) {
        Ok(value) => sorted(value),
        Err(error) => {
            faults.push(format!("standard output with --json is not JSON: {error}"));
            return None;
        }
    };
    if format!("{value}\n") != ran.stdout {
        faults.push("standard output with --json is not one line of canonical JSON".into());
    }
    if value["schema"] == PLAN_SCHEMA {
        faults.extend(plan::contradictions(&value));
        // A recording is never applied, whatever the plan says.
        let ends = if scenario.arguments[0] == "apply" { 3 } else { plan::exit_code(&value) };
        if ran.exit != ends {
            faults.push(format!("it ends with {}, and its plan says {ends}", ran.exit));
        }
    }
    // A character that turns the direction of text round must not fool whoever reviews the file.
    Some(format!("{value:#}\n").replace('\u{202e}', "\\u202e"))
}

/// Members in the order of their names, however this build of serde_json keeps them.
fn sorted(value: Value) -> Value {
    match value {
        Value::Object(members) => {
            let members: BTreeMap<String, Value> = members.into_iter().map(|(name, member)| (name, sorted(member))).collect();
            Value::Object(members.into_iter().collect())
        }
        Value::Array(items) => Value::Array(items.into_iter().map(sorted).collect()),
        value => value,
    }
}

/// Compares an expected file with what came out, or writes it anew where that was asked for.
fn settle(scenario: &Scenario, file: &str, got: Option<String>, faults: &mut Vec<String>) {
    let path = scenario.room.join(file);
    if is_update() {
        match got {
            Some(got) => fs::write(&path, got).unwrap_or_else(|error| panic!("{}: {error}", path.display())),
            None if path.exists() => fs::remove_file(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display())),
            None => {}
        }
        return;
    }
    match (scenario.read(file), got) {
        (Some(expected), Some(got)) if expected != got => faults.push(format!("{file} differs:\n{}", diff(&expected, &got))),
        (None, Some(got)) => faults.push(format!("{file} is not there; it would be:\n{got}")),
        (Some(_), None) => faults.push(format!("{file} is there, and nothing came out that it could be compared with")),
        _ => {}
    }
}
