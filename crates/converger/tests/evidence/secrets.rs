//! The secret of a token stands where a person put it and nowhere else (C9): not in what is said, not in a file that is written, not in a byte
//! of the state directory, whatever is done and whatever goes wrong.

use std::fs;
use std::process::Command;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use converger_lab::server::Clock;
use serde_json::Value;

use crate::bed::Said;
use crate::canary::Canary;
use crate::stage::{STARTS, Stage};

const SECRET: &str = "canary~7e57.5ec2e7-0000-4000-8000-00c0ffee";
/// One that the lab does not know.
const WRONG: &str = "kanarek~7e57.5ec2e7-0000-4000-8000-00decaf";

/// Where people put secrets; everything else is looked through.
const THEIRS: [&str; 3] = ["secret", "wrong", "lab-credential"];

/// A lab with the secret, and all that is said to whoever uses it.
struct Watched {
    stage: Stage,
    canaries: [Canary; 2],
    said: usize,
    /// All of it, for a secret that is made on the way.
    all: Vec<u8>,
}

impl Watched {
    fn new(faults: &str) -> Self {
        let world = format!(
            "flavour: 9\ncluster: lab\nnodes: {{ pve1: {{}}, pve2: {{}} }}\ntokens: {{ 'root@pam!lab': {{ secret: {SECRET}, full: true }} }}\n\
             guests:\n  - {{ vmid: 101, kind: qemu, node: pve1, name: web-1 }}\n  - {{ vmid: 102, kind: qemu, node: pve2, name: web-2 }}\n{faults}"
        );
        let stage = Stage::of(&world, STARTS, Clock::Virtual { step_ms: 100 }, None);
        stage.put("wrong", &format!("{WRONG}\n"));
        fs::create_dir(stage.path("credentials")).expect("made");
        stage.put("credentials/lab-credential", &format!("{SECRET}\n"));
        let config = fs::read_to_string(stage.path("converger.toml")).expect("there");
        let sources = [
            ("env", "env = \"PVE_SECRET\""),
            ("file", "file = \"secret\""),
            ("credential", "credential = \"lab-credential\""),
            ("wrong", "file = \"wrong\""),
        ];
        for (name, source) in sources {
            stage.put(&format!("{name}.toml"), &config.replace("file = \"secret\"", source));
        }
        Self { stage, canaries: [SECRET, WRONG].map(Canary::new), said: 0, all: Vec::new() }
    }

    fn program(&self, arguments: &[&str]) -> Command {
        let mut program = self.stage.converger(arguments);
        program.env("PVE_SECRET", SECRET).env("CREDENTIALS_DIRECTORY", self.stage.path("credentials"));
        program
    }

    /// A command that may end as it likes; what it said has no secret.
    #[track_caller]
    fn run(&mut self, arguments: &[&str]) -> Said {
        let said: Said = self.program(arguments).output().expect("it starts").into();
        self.check_said(arguments, &said);
        said
    }

    #[track_caller]
    fn check_said(&mut self, arguments: &[&str], said: &Said) {
        self.said += 1;
        self.all.extend([said.out.as_bytes(), said.err.as_bytes()].concat());
        for canary in &self.canaries {
            for text in [&said.out, &said.err] {
                assert_eq!(canary.found(text.as_bytes()), Vec::<&str>::new(), "{arguments:?}: {said:?}");
            }
        }
        assert!(!said.err.contains("panicked"), "{arguments:?}: {said:?}");
    }

    /// A command that must end so.
    #[track_caller]
    fn told(&mut self, code: i32, arguments: &[&str]) -> String {
        let said = self.run(arguments);
        assert_eq!(said.code, Some(code), "{arguments:?}: {said:?}");
        said.out
    }

    /// Every byte of every file that a person did not write.
    #[track_caller]
    fn check_files(&self, without: &[&str]) {
        let without = [&THEIRS[..], without].concat();
        let found: Vec<String> = self.canaries.iter().flat_map(|canary| canary.in_files(self.stage.room.path(), &without)).collect();
        assert_eq!(found, Vec::<String>::new());
    }
}

/// The key that signs, as it is kept and as it is: in its own file and nowhere else.
fn check_key(watched: &Watched) {
    let text = fs::read_to_string(watched.stage.path("state/ledger.key")).expect("a key");
    let written = text.trim_end().splitn(5, '+').last().expect("a key").to_owned();
    let bytes = STANDARD.decode(&written).expect("base64");
    // What kind of key it is stands before it.
    let own = bytes.get(1..).expect("a key").to_vec();
    assert_eq!(own.len(), 32, "an Ed25519 key");
    for canary in [Canary::new(written), Canary::new(own)] {
        assert!(!canary.found(text.as_bytes()).is_empty(), "it is found where it is");
        assert_eq!(canary.found(&watched.all), Vec::<&str>::new(), "what was said");
        assert_eq!(canary.in_files(watched.stage.room.path(), &["ledger.key"]), Vec::<String>::new());
    }
}

/// All that reads an environment, with the secret from one source.
fn read_all(watched: &mut Watched, config: &str) {
    let out = format!("{config}.init.yaml");
    watched.told(4, &["audit", "desired.yaml", "--config", config]);
    watched.told(4, &["plan", "desired.yaml", "--config", config]);
    watched.told(4, &["plan", "desired.yaml", "--json", "--config", config]);
    watched.told(0, &["observe", "desired.yaml", "--out", "current.json", "--config", config]);
    watched.told(0, &["observe", "desired.yaml", "--json", "--config", config]);
    // The clock of the lab is not that of this machine, which a doctor finds.
    watched.told(1, &["doctor", "--config", config]);
    watched.told(1, &["doctor", "desired.yaml", "--json", "--config", config]);
    watched.told(0, &["init", "--vmid", "101,102", "--environment", "lab", "--config", config, "--out", &out]);
    watched.told(4, &["pin", "desired.yaml", "--check", "--config", config]);
}

/// All that is written and read of decisions.
fn decide_all(watched: &mut Watched, config: &str) {
    let with = |arguments: &[&'static str]| -> Vec<String> {
        arguments.iter().map(|own| (*own).to_owned()).chain(["--config".into(), config.to_owned()]).collect()
    };
    let mut told = |code, arguments: &[&'static str]| {
        let arguments = with(arguments);
        watched.told(code, &arguments.iter().map(String::as_str).collect::<Vec<_>>())
    };
    told(0, &["hold", "lab", "101", "--reason", "a look"]);
    told(3, &["apply", "desired.yaml"]);
    told(0, &["release", "lab", "101"]);
    told(0, &["freeze", "lab", "--reason", "a move"]);
    told(3, &["apply", "desired.yaml"]);
    told(0, &["thaw", "lab"]);
    let plan: Value = serde_json::from_str(&told(4, &["plan", "desired.yaml", "--json"])).expect("JSON");
    let digest = plan["digest"].as_str().expect("a digest").to_owned();
    watched.told(0, &["apply", "desired.yaml", "--config", config, "--confirm", &digest]);
    let list = watched.told(0, &["ops", "list", "lab", "--json", "--config", config]);
    let operation: Value = serde_json::from_str(list.lines().next().expect("an operation")).expect("JSON");
    let (id, run) = (operation["operation"]["id"].as_str().expect("an id"), operation["operation"]["run"].as_str().expect("a run"));
    watched.told(0, &["ops", "show", "lab", id, "--config", config]);
    watched.told(0, &["ledger", "tail", "-n", "1000", "--config", config]);
    watched.told(0, &["ledger", "tail", "--json", "--config", config]);
    watched.told(0, &["ledger", "show", "0", "--config", config]);
    watched.told(0, &["ledger", "key", "--config", config]);
    watched.told(0, &["ledger", "checkpoint", "--config", config]);
    watched.told(0, &["ledger", "prove", id, "--out", "receipt.txt", "--config", config]);
    watched.told(0, &["ledger", "export", "export", "--config", config]);
    watched.told(0, &["verify", "--config", config]);
    watched.told(0, &["verify", "export"]);
    watched.told(0, &["reproduce", run, "--out", "reproduced.json", "--config", config]);
    watched.told(0, &["explain", run, "--config", config]);
    watched.told(0, &["diff", run, run, "--config", config]);
    watched.run(&["backtest", "--config", config]);
}

#[test]
fn c9_no_secret_is_in_anything_that_is_said_or_written() {
    let mut watched = Watched::new("");
    for config in ["env.toml", "file.toml", "credential.toml"] {
        read_all(&mut watched, config);
    }
    decide_all(&mut watched, "file.toml");
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
        assert!(watched.stage.path(name).exists(), "{name} was looked through");
    }
    assert!(watched.said >= 50, "{}", watched.said);
}

/// While an apply is under way, and after it was killed: then what was written last is in the log, and not in the file yet.
#[test]
fn c9_no_secret_is_in_the_log_of_an_apply_that_was_killed() {
    let world = format!(
        "flavour: 9\ncluster: lab\nnodes: {{ pve1: {{}} }}\ntokens: {{ 'root@pam!lab': {{ secret: {SECRET}, full: true }} }}\npace: {{ start_ms: 100000 }}\n\
         guests:\n  - {{ vmid: 101, kind: qemu, node: pve1, name: web-1 }}\n  - {{ vmid: 102, kind: qemu, node: pve1, name: web-2 }}\n"
    );
    let stage = Stage::of(&world, STARTS, Clock::Virtual { step_ms: 0 }, None);
    let mut apply = stage.applying();
    apply.until("101 qemu web-1 start: sent");
    apply.signal("KILL");
    let (code, said) = apply.end();
    assert_eq!(code, None, "{said}");
    let log = fs::metadata(stage.path("state/converger.db-wal")).expect("a log is left");
    assert!(log.len() > 0);
    let canary = Canary::new(SECRET);
    assert_eq!(canary.found(said.as_bytes()), Vec::<&str>::new());
    assert_eq!(canary.in_files(stage.room.path(), &THEIRS), Vec::<String>::new());
}

/// A token that is refused, with and without a server that repeats what it was sent, in each part of an answer.
#[test]
fn c9_a_server_that_repeats_the_secret_does_not_bring_it_out() {
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
            let mut watched = Watched::new(&format!("faults:\n  requests: [{{ path: {path}, twist: {{ instead: {{ {answer} }} }} }}]\n"));
            let plan = watched.run(&["plan", "desired.yaml", "--json"]);
            let digest = serde_json::from_str::<Value>(&plan.out).ok().and_then(|plan| plan["digest"].as_str().map(str::to_owned));
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
fn c9_a_wrong_secret_is_told_without_it() {
    let mut watched = Watched::new("");
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
        let said = watched.run(&arguments);
        assert!(matches!(said.code, Some(1 | 3)), "{arguments:?}: {said:?}");
    }
    watched.check_files(&[]);
}

/// A person who pastes the secret where it does not belong is told so, without it.
#[test]
fn c9_a_secret_in_the_wrong_place_is_not_repeated() {
    let mut watched = Watched::new("");
    let config = fs::read_to_string(watched.stage.path("converger.toml")).expect("there");
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
        watched.stage.put("mistaken.toml", &text);
        for arguments in [
            &["audit", "desired.yaml"][..],
            &["apply", "desired.yaml"],
            &["doctor"],
            &["ledger", "tail"],
            &["hold", "lab", "101", "--reason", "x"],
        ] {
            let arguments = [arguments, &["--config", "mistaken.toml"]].concat();
            let said = watched.run(&arguments);
            assert!(matches!(said.code, Some(1 | 2)), "{arguments:?}: {said:?}\n{text}");
        }
    }
    watched.stage.put("secret", &format!("PVEAPIToken=root@pam!lab={SECRET}\n"));
    watched.told(2, &["audit", "desired.yaml"]);
    watched.stage.put("secret", &format!("{SECRET} {SECRET}\n"));
    watched.told(2, &["audit", "desired.yaml"]);
    watched.check_files(&["mistaken.toml"]);
}
