//! `converger lab` as a process: what it leaves for others leads to it, and it writes down who asked for what.
//!
//! What never enters here: what the lab answers (see the tests of converger-lab).

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;

const WORLD: &str = "\
flavour: 9
nodes: { pve1: {} }
tokens: { 'root@pam!probe': { secret: s3cret, full: true } }
guests: [{ vmid: 100, kind: qemu, node: pve1, name: web, state: running }]
";

const DESIRED: &str = "version: 1\nenvironment: lab\nguests:\n  - { vmid: 100, kind: qemu, name: web, state: running }\n";

fn converger(room: &TempDir, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_converger"));
    command.current_dir(room.path()).args(arguments).stdin(Stdio::null());
    command
}

fn run(room: &TempDir, arguments: &[&str]) -> Output {
    converger(room, arguments).output().expect("it starts")
}

/// A lab that answers; it ends with the test.
struct Lab(Child);

impl Lab {
    fn start(room: &TempDir, arguments: &[&str]) -> Self {
        fs::write(room.path().join("world.yaml"), WORLD).expect("written");
        let mut child = converger(room, &[&["lab", "world.yaml", "--port", "0", "--clock", "1000", "--quiet"], arguments].concat())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let said = BufReader::new(child.stdout.take().expect("piped")).lines().map(|line| line.expect("text"));
        let lines: Vec<String> = said.take_while(|line| line != "Ctrl-C ends it.").collect();
        assert!(lines.first().is_some_and(|line| line.starts_with("lab: Proxmox VE")), "{lines:?}");
        Self(child)
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn read_json(path: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(path).expect("left behind")).expect("JSON")
}

#[test]
fn what_is_left_behind_leads_here_and_every_request_is_written_down() {
    let room = TempDir::new().expect("a directory");
    let _lab = Lab::start(&room, &["--into", "here", "--record", "requests.jsonl"]);
    fs::write(room.path().join("desired.yaml"), DESIRED).expect("written");
    let audit = run(&room, &["audit", "desired.yaml", "--config", "here/converger.toml"]);
    assert_eq!(audit.status.code(), Some(0), "{}", String::from_utf8_lossy(&audit.stderr));
    let records = fs::read_to_string(room.path().join("requests.jsonl")).expect("written");
    let records: Vec<Value> = records.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert!((1..=4).contains(&records.len()), "{records:?}");
    for record in &records {
        assert_eq!((&record["user"], &record["status"], &record["method"]), (&json!("root@pam!probe"), &json!(200), &json!("GET")));
    }
}

#[test]
fn the_card_names_the_release_that_was_asked_for_and_tells_no_secret() {
    let room = TempDir::new().expect("a directory");
    let _lab = Lab::start(&room, &["--into", "here", "--flavour", "7"]);
    let card = read_json(&room.path().join("here/lab.json"));
    assert_eq!(card["flavour"], 7, "the command line wins over the file");
    assert_eq!(card["nodes"][0]["node"], "pve1");
    assert!(card["nodes"][0]["port"].as_u64().is_some_and(|port| port > 0), "{card}");
    assert_eq!(card["token"], json!({ "id": "root@pam!probe", "secret": { "file": "secret" } }));
    assert!(!card.to_string().contains("s3cret"), "{card}");
    let authority = fs::read_to_string(room.path().join("here/ca.pem")).expect("left behind");
    assert!(authority.starts_with("-----BEGIN CERTIFICATE-----") && !authority.contains("PRIVATE KEY"), "{authority}");
}

#[test]
fn a_record_that_cannot_be_written_is_said_before_anything_is_served() {
    let room = TempDir::new().expect("a directory");
    let output = run(&room, &["lab", "--port", "0", "--record", "no/such/place.jsonl"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(output.stdout.is_empty());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("cannot write no/such/place.jsonl"), "{said}");
}
