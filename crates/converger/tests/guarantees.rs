//! Guarantees that only the whole program can show: what a command leaves behind, and what it never does.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn example_path(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/lab").join(file)
}

/// Runs the program in a new directory, which is also its home; returns its output and the files that it left.
fn run(command: &str, arguments: &[&str]) -> (Output, Vec<String>) {
    let directory = tempfile::tempdir().expect("a directory");
    let output = Command::new(env!("CARGO_BIN_EXE_converger"))
        .arg(command)
        .arg(example_path("desired.yaml"))
        .arg("--replay")
        .arg(example_path("current.json"))
        .args(arguments)
        .current_dir(directory.path())
        .env_clear()
        .env("HOME", directory.path())
        .env("TMPDIR", directory.path())
        .output()
        .expect("the program runs");
    let mut left: Vec<String> = fs::read_dir(directory.path())
        .expect("listed")
        .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
        .collect();
    left.sort();
    (output, left)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("UTF-8")
}

#[test]
fn g5_audit_writes_nothing_at_all() {
    for arguments in [&[][..], &["--json"][..], &["--all"][..]] {
        let (output, left) = run("audit", arguments);
        assert_eq!(output.status.code(), Some(3), "{}", text(&output.stderr));
        assert_eq!(left, Vec::<String>::new());
    }
}

#[test]
fn g5_plan_and_observe_write_only_the_named_file() {
    assert_eq!(run("plan", &[]).1, ["plan.json"]);
    assert_eq!(run("plan", &["--out", "a.json"]).1, ["a.json"]);
    assert_eq!(run("plan", &["--json"]).1, Vec::<String>::new());
    assert_eq!(run("observe", &[]).1, ["current.json"]);
    assert_eq!(run("observe", &["--json"]).1, Vec::<String>::new());
}

#[test]
fn g7_a_recording_is_never_applied() {
    let (output, left) = run("apply", &[]);
    assert_eq!(output.status.code(), Some(3));
    assert!(text(&output.stdout).contains("replay-not-appliable"), "{}", text(&output.stdout));
    let (as_json, _) = run("apply", &["--json"]);
    assert!(text(&as_json.stdout).contains(r#""code":"replay-not-appliable""#), "{}", text(&as_json.stdout));
    assert_eq!(left, Vec::<String>::new());
}

#[test]
fn g10_every_refusal_is_reported_with_code_and_remedy() {
    let (output, _) = run("audit", &[]);
    let report = text(&output.stdout);
    for code in ["protected-guest", "guest-unknown"] {
        assert!(report.contains(code), "{report}");
    }
    assert_eq!(report.matches("remedy:").count(), 2, "{report}");
}
