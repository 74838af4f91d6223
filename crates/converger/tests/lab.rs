//! `converger lab` as a process: the files that it writes lead to it, what it never overwrites, its request record, and its end.
//!
//! The responses of the lab are tested in `converger-lab`.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Output, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;

const WORLD: &str = "\
flavour: 9
nodes: { pve1: {} }
tokens: { 'root@pam!probe': { secret: s3cret-of-the-probe, full: true } }
guests: [{ vmid: 100, kind: qemu, node: pve1, name: web, state: running }]
";

const DESIRED: &str = "version: 1\nenvironment: lab\nguests:\n  - { vmid: 100, kind: qemu, name: web, state: running }\n";

fn converger(directory: &TempDir, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_converger"));
    command.current_dir(directory.path()).args(arguments).stdin(Stdio::null());
    command
}

fn run(directory: &TempDir, arguments: &[&str]) -> Output {
    converger(directory, arguments).output().expect("it starts")
}

/// A running lab with its output; it is killed with the test.
struct LabProcess(Child, Vec<String>);

impl LabProcess {
    fn start(directory: &TempDir, arguments: &[&str]) -> Self {
        fs::write(directory.path().join("world.yaml"), WORLD).expect("written");
        Self::serve(directory, &[&["world.yaml"], arguments].concat())
    }

    fn serve(directory: &TempDir, arguments: &[&str]) -> Self {
        let mut child = converger(directory, &[&["lab", "--port", "0", "--clock", "1000", "--quiet"], arguments].concat())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let output_lines = BufReader::new(child.stdout.take().expect("piped")).lines().map(|line| line.expect("text"));
        let lines: Vec<String> = output_lines.take_while(|line| line != "Ctrl-C ends it.").collect();
        assert!(lines.first().is_some_and(|line| line.starts_with("lab: Proxmox VE")), "{lines:?}");
        Self(child, lines)
    }

    /// Ends it as a terminal or a service manager does.
    fn stop(mut self, signal: &str) -> ExitStatus {
        let sent = Command::new("sh").args(["-c", &format!("kill -{signal} {}", self.0.id())]).status().expect("a shell");
        assert!(sent.success());
        self.0.wait().expect("it ends")
    }
}

impl Drop for LabProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn read_json(path: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(path).expect("left behind")).expect("JSON")
}

fn read_requests(directory: &TempDir) -> Vec<Value> {
    let records = fs::read_to_string(directory.path().join("requests.jsonl")).expect("written");
    records.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

/// Three nodes with both kinds of guests: two lists of each node, and four requests for the cluster.
#[test]
fn lists_a_thousand_guests_in_ten_requests_and_writes_nothing() {
    let work_directory = TempDir::new().expect("a directory");
    let _lab = LabProcess::serve(&work_directory, &["--guests", "1000", "--nodes", "3", "--into", "here", "--record", "requests.jsonl"]);
    let config = ["--config", "here/converger.toml"];
    let files = || fs::read_dir(work_directory.path()).expect("listed").count();
    let before = files();
    let list = |arguments: &[&str]| {
        let output = converger(&work_directory, &[&["guests"], arguments, &config].concat())
            .env("STATE_DIRECTORY", work_directory.path().join("state"))
            .output();
        let output = output.expect("it starts");
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("UTF-8")
    };
    let report: Value = serde_json::from_str(&list(&["--json"])).expect("JSON");
    assert_eq!((&report["schema"], report["guests"].as_array().map(Vec::len)), (&json!("converger.guests/1"), Some(1000)));
    let requests = read_requests(&work_directory);
    assert_eq!(requests.len(), 10, "{requests:?}");
    assert!(requests.iter().all(|request| request["method"] == json!("GET")), "{requests:?}");
    let text = list(&["--environment", "lab"]);
    assert!(text.starts_with("lab · 1000 guests visible to root@pam!lab") && text.contains("\n1000 guests: "), "{text}");
    assert_eq!(files(), before, "neither a file nor a state directory");
}

#[test]
fn a_cluster_that_cannot_be_reached_has_no_list_of_guests() {
    let work_directory = TempDir::new().expect("a directory");
    let port = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a free port").port();
    let endpoint = format!("url = \"https://127.0.0.1:{port}\"\ntoken = \"a@pve!me\"\nsecret = {{ env = \"PVE_SECRET\" }}\n");
    fs::write(work_directory.path().join("converger.toml"), format!("[environments.lab]\n{endpoint}")).expect("written");
    let guests = |arguments: &[&str]| {
        let output = converger(&work_directory, &[&["guests"], arguments].concat())
            .env("PVE_SECRET", "a-secret-of-the-test")
            .output()
            .expect("it starts");
        (output.status.code(), String::from_utf8(output.stdout).expect("UTF-8"), String::from_utf8(output.stderr).expect("UTF-8"))
    };
    for arguments in [&[][..], &["--json"]] {
        let (code, stdout, stderr) = guests(arguments);
        assert_eq!((code, stdout.as_str()), (Some(1), ""), "{stderr}");
        assert!(stderr.contains("error[endpoint-unreachable]") && stderr.contains("help:"), "{stderr}");
    }
    let two = format!("[environments.barn]\n{endpoint}[environments.lab]\n{endpoint}");
    fs::write(work_directory.path().join("converger.toml"), two).expect("written");
    let (code, _, stderr) = guests(&[]);
    assert!(code == Some(2) && stderr.contains("no environment is named, and converger.toml has 2: barn, lab"), "{stderr}");
}

#[test]
fn written_config_reaches_the_lab_and_every_request_is_recorded() {
    let work_directory = TempDir::new().expect("a directory");
    let _lab = LabProcess::start(&work_directory, &["--into", "here", "--record", "requests.jsonl"]);
    fs::write(work_directory.path().join("desired.yaml"), DESIRED).expect("written");
    let audit = run(&work_directory, &["audit", "desired.yaml", "--config", "here/converger.toml"]);
    assert_eq!(audit.status.code(), Some(0), "{}", String::from_utf8_lossy(&audit.stderr));
    let records = read_requests(&work_directory);
    // The state of the cluster, the list of its guests, the list of the one node and kind that has guests in scope, the state of the cluster
    // again, the release, and the cluster's own identity, which proposals are bound to. The guest is as declared, so nothing is read of it by itself.
    assert_eq!(records.len(), 6, "{records:?}");
    for record in &records {
        assert_eq!((&record["user"], &record["status"], &record["method"]), (&json!("root@pam!probe"), &json!(200), &json!("GET")));
    }
}

#[test]
fn card_names_the_release_and_no_secret() {
    let work_directory = TempDir::new().expect("a directory");
    let _lab = LabProcess::start(&work_directory, &["--into", "here", "--flavour", "7"]);
    let connection_info = read_json(&work_directory.path().join("here/lab.json"));
    assert_eq!(connection_info["flavour"], 7, "the command line wins over the file");
    assert_eq!(connection_info["nodes"][0]["node"], "pve1");
    assert!(connection_info["nodes"][0]["port"].as_u64().is_some_and(|port| port > 0), "{connection_info}");
    assert_eq!(connection_info["token"], json!({ "id": "root@pam!probe", "secret": { "file": "secret" } }));
    assert!(!connection_info.to_string().contains("s3cret"), "{connection_info}");
    let authority = fs::read_to_string(work_directory.path().join("here/ca.pem")).expect("left behind");
    assert!(authority.starts_with("-----BEGIN CERTIFICATE-----") && !authority.contains("PRIVATE KEY"), "{authority}");
}

/// Checks that it ends with this code before it serves anything, with these parts in its message.
fn check_error(directory: &TempDir, arguments: &[&str], code: i32, parts: &[&str]) {
    let output = run(directory, &[&["lab"], arguments].concat());
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{stderr}");
    for part in parts {
        assert!(stderr.contains(part), "`{part}` is not in:\n{stderr}");
    }
    assert!(output.stdout.is_empty());
}

/// The exit code and output of the program with a limit of open files.
fn run_with_file_limit(directory: &TempDir, files: u32, arguments: &[&str]) -> (Option<i32>, String) {
    let line = format!("ulimit -n {files}; exec \"$@\"");
    let mut shell = Command::new("sh");
    shell.args(["-c", &line, "sh", env!("CARGO_BIN_EXE_converger")]).args(arguments).current_dir(directory.path()).stdin(Stdio::null());
    let output = shell.output().expect("a shell");
    let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    (output.status.code(), text)
}

/// A process that may not open more files cannot listen, connect or wait. Each command reports that with a code and a remedy.
#[test]
fn file_descriptor_limit_is_reported_with_a_code() {
    let work_directory = TempDir::new().expect("a directory");
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port().to_string();
    fs::write(work_directory.path().join("world.yaml"), WORLD).expect("written");
    let toml = "[environments.lab]\nurl = \"https://127.0.0.1:1\"\ntoken = \"root@pam!probe\"\nsecret = { file = \"secret\" }\n\n[store]\n\
                directory = \"state\"\n";
    fs::write(work_directory.path().join("converger.toml"), toml).expect("written");
    fs::write(work_directory.path().join("secret"), "s3cret-of-the-probe\n").expect("written");
    for arguments in [&["lab", "world.yaml", "--quiet", "--port", &port][..], &["doctor"], &["freeze", "lab", "--reason", "x"]] {
        let results: Vec<(Option<i32>, String)> = (5..20).map(|files| run_with_file_limit(&work_directory, files, arguments)).collect();
        let panicked = results.iter().find(|(_, text)| text.contains("panicked"));
        assert_eq!(panicked, None, "{arguments:?}");
        let is_told = |text: &str| {
            text.contains("process-limited") && text.contains("open files") && text.to_lowercase().contains("check the limits")
        };
        let reported = results.iter().find(|(code, text)| *code == Some(1) && is_told(text));
        assert!(reported.is_some(), "{arguments:?}: {results:#?}");
    }
}

#[test]
fn signal_ends_the_lab_and_removes_its_card() {
    let work_directory = TempDir::new().expect("a directory");
    for signal in ["INT", "TERM"] {
        let lab = LabProcess::start(&work_directory, &["--into", "here"]);
        assert!(lab.1.iter().any(|line| line == "  token        root@pam!probe=s3cret-of-the-probe"), "{:?}", lab.1);
        assert!(work_directory.path().join("here/lab.json").exists());
        assert_eq!(lab.stop(signal).code(), Some(0), "{signal}");
        assert!(!work_directory.path().join("here/lab.json").exists(), "nobody is to look for it");
    }
}

#[test]
fn written_authority_verifies_host_names() {
    let work_directory = TempDir::new().expect("a directory");
    let _lab = LabProcess::start(&work_directory, &["--into", "here"]);
    fs::write(work_directory.path().join("desired.yaml"), DESIRED).expect("written");
    let port = read_json(&work_directory.path().join("here/lab.json"))["nodes"][0]["port"].clone();
    for host in ["localhost", "127.0.0.1"] {
        let environment =
            format!("url = \"https://{host}:{port}\"\nca = \"ca.pem\"\ntoken = \"root@pam!probe\"\nsecret.file = \"secret\"\n");
        fs::write(work_directory.path().join("here/by-name.toml"), format!("[environments.lab]\n{environment}")).expect("written");
        let audit = run(&work_directory, &["audit", "desired.yaml", "--config", "here/by-name.toml"]);
        assert_eq!(audit.status.code(), Some(0), "{host}: {}", String::from_utf8_lossy(&audit.stderr));
    }
}

#[test]
fn second_start_keeps_the_certificate_and_edited_files() {
    let work_directory = TempDir::new().expect("a directory");
    let config = work_directory.path().join("here/converger.toml");
    let read = || fs::read_to_string(&config).expect("left behind");
    let start = || {
        let lab = LabProcess::start(&work_directory, &["--into", "here"]);
        let connection_info = read_json(&work_directory.path().join("here/lab.json"));
        assert!(read().contains(&format!("https://127.0.0.1:{}", connection_info["nodes"][0]["port"])), "it leads to the new port");
        drop(lab);
        connection_info["fingerprint"].clone()
    };
    assert_eq!(start(), start());
    let edited = format!("{}\n[limits]\nstops = 0\n", read());
    fs::write(&config, &edited).expect("written");
    let lab = LabProcess::start(&work_directory, &["--into", "here"]);
    let hash_mismatch = "  kept         here/converger.toml, because it was edited; remove it to create a new one";
    assert!(lab.1.iter().any(|line| line == hash_mismatch), "{:?}", lab.1);
    assert_eq!(read(), edited);
}

#[test]
fn foreign_files_are_never_overwritten() {
    let work_directory = TempDir::new().expect("a directory");
    for name in ["converger.toml", "secret", "ca.pem", "lab.json"] {
        let into = format!("with-{name}");
        let directory = work_directory.path().join(&into);
        fs::create_dir(&directory).expect("made");
        fs::write(directory.join(name), "mine").expect("written");
        check_error(
            &work_directory,
            &["--port", "0", "--into", &into],
            2,
            &[&format!("{into}/{name} exists and was not written by a lab"), "help:"],
        );
        assert_eq!(fs::read_to_string(directory.join(name)).expect("there"), "mine");
        assert_eq!(fs::read_dir(&directory).expect("listed").count(), 1, "nothing beside it");
    }
    drop(LabProcess::start(&work_directory, &["--into", "here"]));
    fs::write(work_directory.path().join("here/converger.toml"), "# mine\n[limits]\n").expect("written");
    check_error(&work_directory, &["--port", "0", "--into", "here"], 2, &["here/converger.toml exists and was not written by a lab"]);
    fs::remove_file(work_directory.path().join("here/converger.toml")).expect("removed");
    fs::write(work_directory.path().join("here/lab.pem"), "mine").expect("written");
    check_error(&work_directory, &["--port", "0", "--into", "here"], 2, &["here/lab.pem: there must be two certificates", "remove it"]);
    assert_eq!(fs::read_to_string(work_directory.path().join("here/lab.pem")).expect("there"), "mine");
}

#[test]
fn one_directory_serves_one_lab_at_a_time() {
    let work_directory = TempDir::new().expect("a directory");
    let _lab = LabProcess::start(&work_directory, &["--into", "here"]);
    check_error(&work_directory, &["--port", "0", "--into", "here"], 1, &["another lab runs from here", "help:"]);
    assert!(work_directory.path().join("here/lab.json").exists(), "that of the first is still there");
}

#[test]
fn invalid_world_is_reported_with_its_line() {
    let work_directory = TempDir::new().expect("a directory");
    let check = |world: &str, part: &str| {
        fs::write(work_directory.path().join("wrong.yaml"), world).expect("written");
        check_error(
            &work_directory,
            &["wrong.yaml", "--port", "0"],
            2,
            &["wrong.yaml does not describe a valid lab: ", part, "docs/lab.md"],
        );
    };
    check("nodes: { a: {} }\ngests: []\n", "line 2, column 1: unknown field `gests`, expected one of flavour, ");
    check("nodes: { a: {} }\nnodes: { b: {} }\n", "line 2, column 1: duplicate mapping key: nodes\n");
    check("nodes: { a: {}\n", "line 1, column 8: ");
    check("nodes: { a: {} }\nguests: [{ vmid: 100, kind: qemu, node: b }]\n", "guest 100 is on node `b`, which does not exist");
    check("nodes: { a: {} }\nfaults: { moments: [{ at_ms: 1, act: { node-down: b } }] }\n", "entry 1 of `faults.moments` names node `b`");
    check("\"\\e[31m\": 1\n", "unknown field `\\u{1b}[31m`");
    check_error(&work_directory, &["nowhere.yaml"], 2, &["cannot read nowhere.yaml", "help:"]);
}

#[test]
fn unavailable_port_is_named_with_a_remedy() {
    let work_directory = TempDir::new().expect("a directory");
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let parts = [&format!("cannot listen on {address}"), "`--port 0` takes any free ports"];
    check_error(&work_directory, &["--nodes", "1", "--port", &address.port().to_string()], 1, &parts);
    check_error(&work_directory, &["--nodes", "2", "--port", "65535"], 2, &["2 nodes need one each", "--port 0"]);
}

#[test]
fn unwritable_record_is_reported_before_serving() {
    let work_directory = TempDir::new().expect("a directory");
    check_error(&work_directory, &["--port", "0", "--record", "no/such/place.jsonl"], 1, &["cannot write no/such/place.jsonl"]);
}
