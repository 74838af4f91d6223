//! The secret of a token occurs only where a person put it (C9): not in output, not in written files, not in any byte of the state
//! directory, whatever the commands and failures.

use std::fs;
use std::process::Command;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use converger_lab::server::ClockMode;
use serde_json::Value;

use crate::canary::SecretCanary;
use crate::fixture::CommandOutput;
use crate::stage::{ApplyFixture, STARTS};

const SECRET: &str = "canary~7e57.5ec2e7-0000-4000-8000-00c0ffee";
/// A secret that the lab does not accept.
const WRONG_SECRET: &str = "kanarek~7e57.5ec2e7-0000-4000-8000-00decaf";

/// Files in which people put secrets; everything else is searched.
const SECRET_FILES: [&str; 3] = ["secret", "wrong", "lab-credential"];

/// A lab with the secret, and all output of the commands.
struct SecretFixture {
    apply_fixture: ApplyFixture,
    canaries: [SecretCanary; 2],
    command_count: usize,
    /// All output, for a secret that is created on the way.
    output: Vec<u8>,
}

impl SecretFixture {
    fn new(faults: &str) -> Self {
        let world = format!(
            "flavour: 9\ncluster: lab\nnodes: {{ pve1: {{}}, pve2: {{}} }}\ntokens: {{ 'root@pam!lab': {{ secret: {SECRET}, full: true }} }}\n\
             guests:\n  - {{ vmid: 101, kind: qemu, node: pve1, name: web-1 }}\n  - {{ vmid: 102, kind: qemu, node: pve2, name: web-2 }}\n{faults}"
        );
        let fixture = ApplyFixture::with_world(&world, STARTS, ClockMode::Virtual { step_ms: 100 }, None);
        fixture.write_private("wrong", &format!("{WRONG_SECRET}\n"));
        fs::create_dir(fixture.path("credentials")).expect("made");
        fixture.write_private("credentials/lab-credential", &format!("{SECRET}\n"));
        let config = fs::read_to_string(fixture.path("converger.toml")).expect("there");
        let sources = [
            ("env", "env = \"PVE_SECRET\""),
            ("file", "file = \"secret\""),
            ("credential", "credential = \"lab-credential\""),
            ("wrong", "file = \"wrong\""),
        ];
        for (name, source) in sources {
            fixture.write_private(&format!("{name}.toml"), &config.replace("file = \"secret\"", source));
        }
        Self { apply_fixture: fixture, canaries: [SECRET, WRONG_SECRET].map(SecretCanary::new), command_count: 0, output: Vec::new() }
    }

    fn program(&self, arguments: &[&str]) -> Command {
        let mut program = self.apply_fixture.converger(arguments);
        program.env("PVE_SECRET", SECRET).env("CREDENTIALS_DIRECTORY", self.apply_fixture.path("credentials"));
        program
    }

    /// Runs a command with any result; checks that its output has no secret.
    #[track_caller]
    fn run(&mut self, arguments: &[&str]) -> CommandOutput {
        let output: CommandOutput = self.program(arguments).output().expect("it starts").into();
        self.check_output(arguments, &output);
        output
    }

    #[track_caller]
    fn check_output(&mut self, arguments: &[&str], output: &CommandOutput) {
        self.command_count += 1;
        self.output.extend([output.out.as_bytes(), output.err.as_bytes()].concat());
        for canary in &self.canaries {
            for text in [&output.out, &output.err] {
                assert_eq!(canary.find_forms(text.as_bytes()), Vec::<&str>::new(), "{arguments:?}: {output:?}");
            }
        }
        assert!(!output.err.contains("panicked"), "{arguments:?}: {output:?}");
    }

    /// Runs a command that must end with this code.
    #[track_caller]
    fn run_expecting(&mut self, code: i32, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert_eq!(output.code, Some(code), "{arguments:?}: {output:?}");
        output.out
    }

    /// Checks every byte of every file that a person did not write.
    #[track_caller]
    fn check_files(&self, without: &[&str]) {
        let without = [&SECRET_FILES[..], without].concat();
        let found: Vec<String> =
            self.canaries.iter().flat_map(|canary| canary.find_in_files(self.apply_fixture.directory.path(), &without)).collect();
        assert_eq!(found, Vec::<String>::new());
    }
}

/// Checks that the signing key, in both encodings, occurs in its own file and nowhere else.
fn check_key(watched: &SecretFixture) {
    let text = fs::read_to_string(watched.apply_fixture.path("state/ledger.key")).expect("a key");
    let written = text.trim_end().splitn(5, '+').last().expect("a key").to_owned();
    let bytes = STANDARD.decode(&written).expect("base64");
    // The first byte is the type of the key.
    let own = bytes.get(1..).expect("a key").to_vec();
    assert_eq!(own.len(), 32, "an Ed25519 key");
    for canary in [SecretCanary::new(written), SecretCanary::new(own)] {
        assert!(!canary.find_forms(text.as_bytes()).is_empty(), "it is found where it is");
        assert_eq!(canary.find_forms(&watched.output), Vec::<&str>::new(), "what was said");
        assert_eq!(canary.find_in_files(watched.apply_fixture.directory.path(), &["ledger.key"]), Vec::<String>::new());
    }
}

/// Runs all commands that read an environment, with the secret from one source.
fn run_reading_commands(watched: &mut SecretFixture, config: &str) {
    let out = format!("{config}.init.yaml");
    watched.run_expecting(4, &["audit", "desired.yaml", "--config", config]);
    watched.run_expecting(4, &["plan", "desired.yaml", "--config", config]);
    watched.run_expecting(4, &["plan", "desired.yaml", "--json", "--config", config]);
    watched.run_expecting(0, &["observe", "desired.yaml", "--out", "current.json", "--config", config]);
    watched.run_expecting(0, &["observe", "desired.yaml", "--json", "--config", config]);
    // The doctor reports that the clock of the lab differs from that of this machine.
    watched.run_expecting(1, &["doctor", "--config", config]);
    watched.run_expecting(1, &["doctor", "desired.yaml", "--json", "--config", config]);
    watched.run_expecting(0, &["init", "--vmid", "101,102", "--environment", "lab", "--config", config, "--out", &out]);
    watched.run_expecting(4, &["pin", "desired.yaml", "--check", "--config", config]);
}

/// Runs all commands that write or read decisions.
fn run_deciding_commands(watched: &mut SecretFixture, config: &str) {
    let with = |arguments: &[&'static str]| -> Vec<String> {
        arguments.iter().map(|own| (*own).to_owned()).chain(["--config".into(), config.to_owned()]).collect()
    };
    let mut run_checked = |code, arguments: &[&'static str]| {
        let arguments = with(arguments);
        watched.run_expecting(code, &arguments.iter().map(String::as_str).collect::<Vec<_>>())
    };
    run_checked(0, &["hold", "lab", "101", "--reason", "a look"]);
    run_checked(3, &["apply", "desired.yaml"]);
    run_checked(0, &["release", "lab", "101"]);
    run_checked(0, &["freeze", "lab", "--reason", "a move"]);
    run_checked(3, &["apply", "desired.yaml"]);
    run_checked(0, &["thaw", "lab"]);
    let plan: Value = serde_json::from_str(&run_checked(4, &["plan", "desired.yaml", "--json"])).expect("JSON");
    let digest = plan["proposal"].as_str().expect("a digest").to_owned();
    watched.run_expecting(0, &["apply", "desired.yaml", "--config", config, "--confirm", &digest]);
    let list = watched.run_expecting(0, &["ops", "list", "lab", "--json", "--config", config]);
    let operation: Value = serde_json::from_str(list.lines().next().expect("an operation")).expect("JSON");
    let (id, run) = (operation["operation"]["id"].as_str().expect("an id"), operation["operation"]["run"].as_str().expect("a run"));
    watched.run_expecting(0, &["ops", "show", "lab", id, "--config", config]);
    watched.run_expecting(0, &["ledger", "tail", "-n", "1000", "--config", config]);
    watched.run_expecting(0, &["ledger", "tail", "--json", "--config", config]);
    watched.run_expecting(0, &["ledger", "show", "0", "--config", config]);
    watched.run_expecting(0, &["ledger", "key", "--config", config]);
    watched.run_expecting(0, &["ledger", "checkpoint", "--config", config]);
    watched.run_expecting(0, &["ledger", "prove", id, "--out", "receipt.txt", "--config", config]);
    watched.run_expecting(0, &["ledger", "export", "export", "--config", config]);
    watched.run_expecting(0, &["verify", "--config", config]);
    watched.run_expecting(0, &["verify", "export"]);
    watched.run_expecting(0, &["reproduce", run, "--out", "reproduced.json", "--config", config]);
    watched.run_expecting(0, &["explain", run, "--config", config]);
    watched.run_expecting(0, &["diff", run, run, "--config", config]);
    watched.run(&["backtest", "--config", config]);
}

#[test]
fn c9_no_secret_is_printed_or_written() {
    let mut watched = SecretFixture::new("");
    for config in ["env.toml", "file.toml", "credential.toml"] {
        run_reading_commands(&mut watched, config);
    }
    run_deciding_commands(&mut watched, "file.toml");
    watched.check_files(&[]);
    check_key(&watched);
    for name in [
        "plan.json",
        "current.json",
        "result.json",
        "reproduced.json",
        "receipt.txt",
        "export/checkpoint",
        "state/converger.db",
        "state/ledger.key",
    ] {
        assert!(watched.apply_fixture.path(name).exists(), "{name} was looked through");
    }
    assert!(watched.command_count >= 50, "{}", watched.command_count);
}

/// During an apply, and after it was killed: the last writes are then in the WAL and not in the database file yet.
#[test]
fn c9_no_secret_is_in_the_wal_of_a_killed_apply() {
    let world = format!(
        "flavour: 9\ncluster: lab\nnodes: {{ pve1: {{}} }}\ntokens: {{ 'root@pam!lab': {{ secret: {SECRET}, full: true }} }}\npace: {{ start_ms: 100000 }}\n\
         guests:\n  - {{ vmid: 101, kind: qemu, node: pve1, name: web-1 }}\n  - {{ vmid: 102, kind: qemu, node: pve1, name: web-2 }}\n"
    );
    let fixture = ApplyFixture::with_world(&world, STARTS, ClockMode::Virtual { step_ms: 0 }, None);
    let mut apply = fixture.start_apply();
    apply.wait_for("101 qemu web-1 start: sent");
    apply.signal("KILL");
    let (code, output) = apply.wait_for_end();
    assert_eq!(code, None, "{output}");
    let log = fs::metadata(fixture.path("state/converger.db-wal")).expect("a log is left");
    assert!(log.len() > 0);
    let canary = SecretCanary::new(SECRET);
    assert_eq!(canary.find_forms(output.as_bytes()), Vec::<&str>::new());
    assert_eq!(canary.find_in_files(fixture.directory.path(), &SECRET_FILES), Vec::<String>::new());
}

/// A rejected token, with and without a server that echoes the request in each part of a response.
#[test]
fn c9_secret_echoed_by_a_server_is_redacted() {
    let json = SECRET.bytes().map(|byte| format!("\\\\u{byte:04x}")).collect::<String>();
    let address = SECRET.bytes().map(|byte| format!("%{byte:02X}")).collect::<String>();
    let answers = [
        format!("status: 401, reason: \"no such token PVEAPIToken=root@pam!lab={SECRET}\", body: \"\""),
        format!("status: 401, reason: No, body: \"{{\\\"data\\\":null,\\\"message\\\":\\\"{SECRET}\\\"}}\""),
        format!("status: 403, reason: No, body: \"{{\\\"message\\\":\\\"{json}\\\"}}\""),
        format!("status: 500, reason: \"{SECRET}\", body: \"{{\\\"errors\\\":{{\\\"{SECRET}\\\":\\\"{address}\\\"}}}}\""),
        format!("status: 502, reason: Bad Gateway, body: \"<html>{SECRET}</html>\", html: true"),
        format!("status: 200, reason: OK, body: \"{{\\\"success\\\":0,\\\"status\\\":500,\\\"message\\\":\\\"{SECRET}\\\"}}\""),
    ];
    for path in ["\"*/version\"", "\"*/cluster/resources\"", "\"*/cluster/status\"", "\"*/status/start\"", "\"*/config\""] {
        for answer in &answers {
            let mut watched =
                SecretFixture::new(&format!("faults:\n  requests: [{{ path: {path}, twist: {{ instead: {{ {answer} }} }} }}]\n"));
            let plan = watched.run(&["plan", "desired.yaml", "--json"]);
            let digest = serde_json::from_str::<Value>(&plan.out).ok().and_then(|plan| plan["proposal"].as_str().map(str::to_owned));
            let confirm = digest.unwrap_or_else(|| format!("sha256:{}", "0".repeat(64)));
            watched.run(&["apply", "desired.yaml", "--confirm", &confirm]);
            watched.run(&["doctor", "--json"]);
            watched.run(&["init", "--vmid", "101", "--environment", "lab", "--out", "init.yaml"]);
            watched.run(&["ops", "list", "lab", "--json"]);
            watched.run(&["ledger", "tail", "--json"]);
            watched.check_files(&[]);
        }
    }
}

#[test]
fn c9_wrong_secret_is_reported_without_it() {
    let mut watched = SecretFixture::new("");
    for arguments in [
        &["audit", "desired.yaml"][..],
        &["plan", "desired.yaml"],
        &["observe", "desired.yaml"],
        &["apply", "desired.yaml"],
        &["init", "--vmid", "101", "--environment", "lab", "--out", "init.yaml"],
        &["pin", "desired.yaml"],
        &["doctor"],
    ] {
        let arguments = [arguments, &["--config", "wrong.toml"]].concat();
        let output = watched.run(&arguments);
        assert!(matches!(output.code, Some(1 | 3)), "{arguments:?}: {output:?}");
    }
    watched.check_files(&[]);
}

/// A user who pastes the secret in a wrong place gets an error that does not repeat it.
#[test]
fn c9_secret_in_the_wrong_place_is_not_repeated() {
    let mut watched = SecretFixture::new("");
    let config = fs::read_to_string(watched.apply_fixture.path("converger.toml")).expect("there");
    let secret = "secret = { file = \"secret\" }";
    let mistakes = [
        config.replace(secret, &format!("secret = \"{SECRET}\"")),
        config.replace(secret, &format!("secret = {SECRET}")),
        config.replace(secret, &format!("secret = {{ {SECRET} = 1 }}")),
        config.replace(secret, &format!("{secret}\n\"{SECRET}\" = 1")),
        config.replace("token = \"root@pam!lab\"", &format!("token = \"root@pam!lab={SECRET}\"")),
        config.replace("token = \"root@pam!lab\"", &format!("token = \"PVEAPIToken=root@pam!lab={SECRET}\"")),
        config.replace("mode = \"solo\"", &format!("mode = \"{SECRET}\"")),
        config.replace("[environments.lab]", &format!("[environments.lab.{SECRET:?}]")),
    ];
    for text in mistakes {
        assert_ne!(text, config);
        watched.apply_fixture.write_private("mistaken.toml", &text);
        for arguments in [
            &["audit", "desired.yaml"][..],
            &["apply", "desired.yaml"],
            &["doctor"],
            &["ledger", "tail"],
            &["hold", "lab", "101", "--reason", "x"],
        ] {
            let arguments = [arguments, &["--config", "mistaken.toml"]].concat();
            let output = watched.run(&arguments);
            assert!(matches!(output.code, Some(1 | 2)), "{arguments:?}: {output:?}\n{text}");
        }
    }
    watched.apply_fixture.write_private("secret", &format!("PVEAPIToken=root@pam!lab={SECRET}\n"));
    watched.run_expecting(2, &["audit", "desired.yaml"]);
    watched.apply_fixture.write_private("secret", &format!("{SECRET} {SECRET}\n"));
    watched.run_expecting(2, &["audit", "desired.yaml"]);
    watched.check_files(&["mistaken.toml"]);
}
