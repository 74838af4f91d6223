//! Every error that a user can meet has a code that `explain` knows and a remedy, including everything that prevents complete output or
//! files.
//!
//! The situations behind the codes are tested in `scenarios/`.

use std::fs;
use std::process::{Command, Output, Stdio};

use converger_core::{failure, refusal};
use tempfile::TempDir;

const DESIRED: &str = "version: 1\nenvironment: lab\nguests:\n  - { vmid: 100, kind: lxc, name: dns, state: running }\n";

const CURRENT: &str = r#"{"schema":"converger.observation/1","environment":"lab","complete":true,"quorate":true,
    "nodes":[{"name":"pve1","online":true}],
    "guests":[{"vmid":100,"kind":"lxc","name":"dns","node":"pve1","status":"stopped","lock":null,"ha":null,
    "template":false,"protection":false,"tags":[],"pending":[]}]}"#;

fn work_directory() -> TempDir {
    let directory = tempfile::tempdir().expect("a directory");
    for (name, text) in [
        ("desired.yaml", DESIRED),
        ("current.json", CURRENT),
        ("broken.yaml", "version: 1\nenvironment: lab\nguests: [{ vmid: 5 }]\n"),
        ("other.json", &CURRENT.replace("\"lab\"", "\"barn\"")),
        ("secret.yaml", "PVE_SECRET=hunter2\n"),
        ("wrong.toml", "[limits]\nguest = 1\n"),
        ("elsewhere.toml", "[environments.barn]\nurl = \"https://127.0.0.1\"\ntoken = \"a@pve!me\"\nsecret = { env = \"S\" }\n"),
        ("world.yaml", "nodes: { pve1: {} }\nguests: [{ vmid: 100, kind: qemu, node: pve7 }]\n"),
    ] {
        fs::write(directory.path().join(name), text).expect("written");
    }
    directory
}

fn program(directory: &TempDir, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_converger"));
    command.args(arguments).current_dir(directory.path()).env_clear().stdin(Stdio::null());
    command
}

/// Runs the program under a shell that executes `before` first.
fn run_after(directory: &TempDir, before: &str, arguments: &[&str]) -> Output {
    let mut command = Command::new("/bin/sh");
    command.args(["-c", &format!("{before}; exec \"$0\" \"$@\""), env!("CARGO_BIN_EXE_converger")]).args(arguments);
    command.current_dir(directory.path()).env_clear().stdin(Stdio::null()).output().expect("a shell runs")
}

/// Checks the exit code, the failure code, which must be in the table, and the remedy.
fn check_coded_error(output: &Output, exit_code: i32, code: &str, arguments: &[&str]) -> String {
    let stderr = String::from_utf8(output.stderr.clone()).expect("UTF-8");
    assert_eq!(output.status.code(), Some(exit_code), "{arguments:?}: {stderr}");
    assert!(stderr.contains(&format!("error[{code}]: ")) && !stderr.contains("error: "), "{arguments:?}: {stderr}");
    assert!(failure::FailureCode::from_word(code).is_some() || refusal::RefusalCode::from_word(code).is_some(), "{code}");
    stderr
}

#[test]
fn every_read_error_has_a_code_and_a_remedy() {
    let directory = work_directory();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port().to_string();
    let cases: [(&str, i32, &[&str]); 27] = [
        ("file-unreadable", 2, &["audit", "none.yaml"]),
        ("file-unreadable", 2, &["audit", "."]),
        ("file-unreadable", 2, &["plan", "desired.yaml", "--replay", "none.json"]),
        ("file-unreadable", 2, &["observe", "desired.yaml", "--config", "none.toml", "--json"]),
        ("file-unreadable", 2, &["lab", "none.yaml"]),
        ("input-invalid", 2, &["audit", "broken.yaml"]),
        ("input-invalid", 2, &["audit", "secret.yaml"]),
        ("input-invalid", 2, &["plan", "desired.yaml", "--replay", "desired.yaml"]),
        ("recording-other", 2, &["audit", "desired.yaml", "--replay", "other.json"]),
        ("config-invalid", 2, &["audit", "desired.yaml", "--config", "wrong.toml"]),
        ("config-invalid", 2, &["doctor", "--config", "wrong.toml"]),
        ("environment-unconfigured", 2, &["doctor"]),
        ("environment-unconfigured", 2, &["audit", "desired.yaml"]),
        ("environment-unconfigured", 2, &["plan", "desired.yaml", "--config", "elsewhere.toml"]),
        ("usage-wrong", 2, &["audit"]),
        ("usage-wrong", 2, &["audit", "desired.yaml", "--nothing"]),
        ("usage-wrong", 2, &["init", "--vmid", "100", "--environment", "Lab!"]),
        ("usage-wrong", 2, &["init", "--vmid", "100", "--environment", "lab", "--out", "new.json"]),
        ("usage-wrong", 2, &["pin", "desired.yaml", "--vmid", "101"]),
        ("usage-wrong", 2, &["explain", "nothing"]),
        ("usage-wrong", 2, &["lab", "--port", "65535", "--nodes", "3"]),
        ("file-taken", 2, &["init", "--vmid", "100", "--environment", "lab", "--replay", "current.json"]),
        ("file-taken", 2, &["observe", "desired.yaml", "--replay", "current.json"]),
        ("file-taken", 2, &["plan", "desired.yaml", "--replay", "current.json", "--out", "desired.yaml"]),
        ("file-unwritable", 1, &["plan", "desired.yaml", "--replay", "current.json", "--out", "none/plan.json"]),
        ("world-invalid", 2, &["lab", "world.yaml"]),
        ("lab-unserved", 1, &["lab", "--port", &port, "--nodes", "1"]),
    ];
    for (code, exit_code, arguments) in cases {
        let output = program(&directory, arguments).output().expect("the program runs");
        let stderr = check_coded_error(&output, exit_code, code, arguments);
        // A fault in a text is shown at its position, and a fault in arguments with a hint to `--help`.
        assert!(stderr.contains("help: ") || code == "input-invalid" || stderr.contains("--help"), "{arguments:?}: {stderr}");
        assert!(output.stdout.is_empty() && !stderr.contains("hunter2"), "{arguments:?}: {stderr}");
    }
}

#[test]
fn undelivered_help_and_json_are_failures() {
    let directory = work_directory();
    for arguments in [
        &["--help"][..],
        &["help"],
        &["--version"],
        &["audit", "--help"],
        &["plan", "desired.yaml", "--replay", "current.json", "--json"],
        &["completions", "bash"],
    ] {
        let full = fs::File::options().write(true).open("/dev/full").expect("Linux has it");
        let output =
            program(&directory, arguments).stdout(full).stderr(Stdio::piped()).spawn().expect("the program runs").wait_with_output();
        let stderr = check_coded_error(&output.expect("it ends"), 1, "output-unwritable", arguments);
        assert!(stderr.contains("No space left") && stderr.contains("help: "), "{stderr}");
        let second_output = program(&directory, arguments).output().expect("the program runs");
        assert!(!second_output.stdout.is_empty() && second_output.stderr.is_empty(), "{arguments:?}");
    }
}

#[test]
fn file_size_limit_is_reported_and_leaves_nothing() {
    let directory = work_directory();
    let names = || fs::read_dir(directory.path()).expect("listed").count();
    let before = names();
    for arguments in [
        &["plan", "desired.yaml", "--replay", "current.json"][..],
        &["observe", "desired.yaml", "--replay", "current.json", "--out", "new.json"],
    ] {
        let stderr = check_coded_error(&run_after(&directory, "ulimit -f 0", arguments), 1, "file-unwritable", arguments);
        assert!(stderr.contains("File too large") && stderr.contains("ulimit -f"), "{stderr}");
        assert_eq!(names(), before, "{arguments:?} leaves something behind");
    }
    let output = run_after(&directory, "ulimit -f 0; exec > out.json", &["audit", "desired.yaml", "--replay", "current.json", "--json"]);
    check_coded_error(&output, 1, "output-unwritable", &["audit --json > out.json"]);
}

#[test]
fn no_color_wins_over_every_other_setting() {
    let directory = work_directory();
    let has_escape = |arguments: &[&str], variables: &[(&str, &str)]| {
        let output = program(&directory, arguments).envs(variables.iter().copied()).output().expect("the program runs");
        output.stdout.contains(&0x1b) || output.stderr.contains(&0x1b)
    };
    for arguments in [&["audit", "desired.yaml", "--replay", "current.json"][..], &["audit", "broken.yaml"], &["--help"], &["audit"]] {
        assert!(has_escape(arguments, &[("CLICOLOR_FORCE", "1")]), "{arguments:?}");
        assert!(!has_escape(arguments, &[("CLICOLOR_FORCE", "1"), ("NO_COLOR", "1")]), "{arguments:?}");
    }
}
