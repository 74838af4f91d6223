//! Decoding a fleet from files, compared with what any program would need to read them.
//!
//! - `decode write <directory> <guests>` writes desired.json, desired.yaml and current.json;
//! - `decode serde <directory>` parses the two JSON files into typed, owned structs with serde_json and exits; the caller measures the
//!   process, as it measures `converger plan`;
//! - `decode yaml <directory> <repetitions>` prints the least CPU time, in nanoseconds, of a bare pass over the parser's events, and of
//!   parsing and dropping all of desired.yaml.
#![expect(clippy::disallowed_methods, reason = "a bench reads files, takes arguments and reads the CPU clock; core does none")]

mod cpu;
mod fleet;

use std::fs;
use std::hint::black_box;
use std::path::Path;

use converger_core::desired;
use converger_core::document::Notation;
use granit_parser::{Options, Parser};
use serde::Deserialize;

use fleet::{BenchFleet, GuestShare};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["write", directory, guests] => write_fleet_files(Path::new(directory), guests.parse().expect("a number of guests")),
        ["serde", directory] => parse_with_serde(Path::new(directory)),
        ["yaml", directory, repetitions] => time_yaml(Path::new(directory), repetitions.parse().expect("a number of repetitions")),
        _ => eprintln!("decode write <directory> <guests> | serde <directory> | yaml <directory> <repetitions>"),
    }
}

fn write_fleet_files(directory: &Path, guests: u32) {
    let fleet = BenchFleet { guests, drifted_share: GuestShare::OneIn(4), ordered_share: GuestShare::OneIn(10) };
    let write = |name: &str, text: String| fs::write(directory.join(name), text).expect("a file");
    fs::create_dir_all(directory).expect("a directory");
    write("desired.json", fleet.desired_json());
    write("desired.yaml", fleet.desired_yaml());
    write("current.json", fleet.current_json());
}

fn time_yaml(directory: &Path, repetitions: u32) {
    let text = fs::read_to_string(directory.join("desired.yaml")).expect("written before");
    let [events, desired] = cpu::measure_least(repetitions, text.as_str(), [parse_events, parse_desired]);
    println!(r#"{{"events_ns":{events},"desired_ns":{desired}}}"#);
}

#[inline(never)]
fn parse_events(text: &str) {
    let mut options = Options::default();
    // Use the options of the program, so that both passes do the same checks.
    options.flow_nesting_limit = 32;
    options.block_nesting_limit = 32;
    options.disallow_directives = true;
    options.strict_indentation = true;
    options.emit_anchor_events = true;
    let mut parser = Parser::new_from_str_with_options(text, options);
    while let Some(event) = parser.next_event() {
        black_box(event.expect("the fleet is well-formed"));
    }
}

#[inline(never)]
fn parse_desired(text: &str) {
    drop(black_box(desired::parse(text.as_bytes(), Notation::Yaml).expect("the fleet is well-formed")));
}

fn parse_with_serde(directory: &Path) {
    let desired: BenchDesired = load_json(&directory.join("desired.json"));
    let current: BenchObservation = load_json(&directory.join("current.json"));
    black_box((&desired, &current));
}

fn load_json<T: for<'de> Deserialize<'de>>(path: &Path) -> T {
    serde_json::from_slice(&fs::read(path).expect("written before")).expect("the fleet is well-formed")
}

#[derive(Deserialize)]
#[expect(dead_code, reason = "what is parsed is not looked at")]
struct BenchDesired {
    version: u32,
    environment: String,
    guests: Vec<BenchDesiredGuest>,
}

#[derive(Deserialize)]
#[expect(dead_code, reason = "what is parsed is not looked at")]
struct BenchDesiredGuest {
    vmid: u32,
    kind: String,
    name: Option<String>,
    state: Option<String>,
    config: Option<BenchDesiredConfig>,
    after: Option<Vec<u32>>,
    identity: Option<BenchIdentity>,
}

#[derive(Deserialize)]
#[expect(dead_code, reason = "what is parsed is not looked at")]
struct BenchDesiredConfig {
    cores: Option<u32>,
    memory: Option<String>,
    description: Option<String>,
    tags: Option<Vec<String>>,
    onboot: Option<bool>,
}

#[derive(Deserialize)]
#[expect(dead_code, reason = "what is parsed is not looked at")]
struct BenchIdentity {
    uuid: Option<String>,
    ctime: Option<u64>,
    rootfs: Option<String>,
    mac: Option<String>,
}

#[derive(Deserialize)]
#[expect(dead_code, reason = "what is parsed is not looked at")]
struct BenchObservation {
    schema: String,
    environment: String,
    source: Option<String>,
    taken_at: Option<String>,
    complete: bool,
    quorate: bool,
    nodes: Vec<BenchNode>,
    guests: Vec<BenchObservedGuest>,
}

#[derive(Deserialize)]
#[expect(dead_code, reason = "what is parsed is not looked at")]
struct BenchNode {
    name: String,
    online: bool,
}

#[derive(Deserialize)]
#[expect(dead_code, reason = "what is parsed is not looked at")]
struct BenchObservedGuest {
    vmid: u32,
    kind: String,
    name: Option<String>,
    node: String,
    status: String,
    cause: Option<String>,
    cpus: Option<u32>,
    maxmem: Option<u64>,
    lock: Option<String>,
    ha: Option<BenchHa>,
    template: Option<bool>,
    protection: Option<bool>,
    tags: Option<Vec<String>>,
    identity: Option<BenchIdentity>,
    config: Option<BenchObservedConfig>,
    pending: Option<Vec<BenchPending>>,
    digest: Option<String>,
}

#[derive(Deserialize)]
#[expect(dead_code, reason = "what is parsed is not looked at")]
struct BenchHa {
    state: Option<String>,
}

#[derive(Deserialize)]
#[expect(dead_code, reason = "what is parsed is not looked at")]
struct BenchObservedConfig {
    cores: Option<u32>,
    memory: Option<u32>,
    description: Option<String>,
    onboot: Option<bool>,
}

#[derive(Deserialize)]
#[expect(dead_code, reason = "what is parsed is not looked at")]
struct BenchPending {
    key: String,
}
