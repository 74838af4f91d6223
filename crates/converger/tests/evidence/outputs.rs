//! A command replaces only files of its own kind: any other file is refused, also behind a link, unless the user says `--overwrite`. A
//! killed write leaves no temporary file.

use std::fs;
use std::os::unix::fs::symlink;

use crate::fixture::{CommandOutput, EvidenceFixture};

const NOTES: &str = "notes of somebody\n";

/// Every command that writes a file of its own kind, with the name of that file as the last argument.
fn writers(fixture: &EvidenceFixture) -> Vec<(Vec<String>, i32)> {
    let run = fixture.run_expecting(&["ledger", "tail", "--kind", "run-ended", "--json"], 0);
    let last = run.lines().last().expect("a run ended");
    let last: serde_json::Value = serde_json::from_str(last).expect("JSON");
    let run = last["entry"]["what"]["run"].as_str().expect("an id").to_owned();
    let to_arguments = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    vec![
        (to_arguments(&["plan", "desired.yaml", "--out"]), 0),
        (to_arguments(&["observe", "desired.yaml", "--out"]), 0),
        (to_arguments(&["apply", "desired.yaml", "--out"]), 0),
        (to_arguments(&["reproduce", &run, "--out"]), 0),
        (to_arguments(&["ledger", "prove", "0", "--out"]), 0),
        (to_arguments(&["init", "--vmid", "101", "--out"]), 0),
    ]
}

fn run(fixture: &EvidenceFixture, command: &[String], more: &[&str]) -> CommandOutput {
    fixture.run(&command.iter().map(String::as_str).chain(more.iter().copied()).collect::<Vec<_>>())
}

#[test]
fn refuses_to_replace_a_file_of_another_kind_unless_told_to() {
    let fixture = EvidenceFixture::with_short_history();
    for (command, code) in writers(&fixture) {
        let output_path = "out.yaml";
        fixture.apply_fixture.write_private(output_path, NOTES);
        let output = run(&fixture, &command, &[output_path]);
        assert_eq!(output.code, Some(2), "{command:?}: {output:?}");
        assert!(output.err.contains("error[file-taken]") && output.err.contains("`--overwrite`"), "{command:?}: {output:?}");
        assert_eq!(fs::read_to_string(fixture.apply_fixture.path(output_path)).expect("there"), NOTES, "{command:?}");
        let output = run(&fixture, &command, &[output_path, "--overwrite"]);
        assert_eq!(output.code, Some(code), "{command:?}: {output:?}");
        assert_ne!(fs::read_to_string(fixture.apply_fixture.path(output_path)).expect("there"), NOTES, "{command:?}");
        if command[0] != "init" {
            let output = run(&fixture, &command, &[output_path]);
            assert_eq!(output.code, Some(code), "what it wrote itself is replaced: {command:?}: {output:?}");
        }
    }
}

#[test]
fn refuses_to_replace_a_file_of_another_kind_behind_a_link() {
    let fixture = EvidenceFixture::with_short_history();
    for (command, code) in writers(&fixture) {
        for name in ["theirs", "link.yaml"] {
            let _ = fs::remove_file(fixture.apply_fixture.path(name));
        }
        fixture.apply_fixture.write_private("theirs", NOTES);
        symlink("theirs", fixture.apply_fixture.path("link.yaml")).expect("linked");
        let output = run(&fixture, &command, &["link.yaml"]);
        assert_eq!(output.code, Some(2), "{command:?}: {output:?}");
        assert!(output.err.contains("error[file-taken]"), "{command:?}: {output:?}");
        assert_eq!(fs::read_to_string(fixture.apply_fixture.path("theirs")).expect("there"), NOTES, "{command:?}");
        // The file behind the link is replaced; the link stays.
        let output = run(&fixture, &command, &["link.yaml", "--overwrite"]);
        assert_eq!(output.code, Some(code), "{command:?}: {output:?}");
        assert!(
            fixture.apply_fixture.path("link.yaml").is_symlink()
                && fs::read_to_string(fixture.apply_fixture.path("theirs")).expect("there") != NOTES
        );
    }
}

/// Nothing is sent, because the path of the result is checked first.
#[test]
fn apply_sends_nothing_if_its_result_cannot_be_written() {
    let mut fixture = EvidenceFixture::new();
    fixture.apply_fixture.write_private("result.json", r#"{"schema":"somebody/1"}"#);
    let arguments = fixture.apply_fixture.confirm_arguments();
    fixture.check_fails(&arguments.iter().map(String::as_str).collect::<Vec<_>>(), 2, "error[file-taken]: result.json is not replaced");
    assert_eq!(fixture.apply_fixture.take_sent(), Vec::<String>::new());
}

#[test]
fn export_replaces_only_files_of_its_own_ledger() {
    let fixture = EvidenceFixture::with_short_history();
    let export = fixture.export_to("web");
    for name in ["log.vkey", "tile/0/000.p"] {
        let part = export.join(name);
        let part = if part.is_dir() { fs::read_dir(&part).expect("read").next().expect("a part").expect("read").path() } else { part };
        let own = fs::read(&part).expect("there");
        fs::write(&part, NOTES).expect("written");
        fixture.check_fails(&["ledger", "export", "web"], 2, "error[file-taken]");
        assert_eq!(fs::read(&part).expect("there"), NOTES.as_bytes());
        fixture.run_expecting(&["ledger", "export", "web", "--overwrite"], 0);
        assert_eq!(fs::read(&part).expect("there"), own);
    }
}

/// Kills a command at each system call that creates or removes a file name.
#[test]
fn killed_write_leaves_no_temporary_file() {
    let fixture = EvidenceFixture::new();
    let killed = |call: &str, nth: u32, arguments: &[&str]| {
        let (trace, inject) = (format!("trace={call}"), format!("inject={call}:signal=KILL:when={nth}"));
        let strace = ["-f", "-qq", "-o", "/dev/null", "-e", &trace, "-e", &inject, env!("CARGO_BIN_EXE_converger")];
        let output: CommandOutput =
            fixture.apply_fixture.command("strace", &[&strace, arguments].concat()).output().expect("strace is installed").into();
        output.code.is_none()
    };
    let left = || {
        let names = fs::read_dir(fixture.apply_fixture.directory.path()).expect("read").map(|file| file.expect("read").file_name());
        names.filter(|name| name.as_encoded_bytes().ends_with(b".tmp")).count()
    };
    let plan = ["plan", "desired.yaml"];
    for call in ["write", "fsync", "linkat", "/^rename"] {
        let mut points = 0;
        for nth in 1.. {
            let _ = fs::remove_file(fixture.apply_fixture.path("plan.json"));
            if !killed(call, nth, &plan) {
                break;
            }
            points += 1;
            assert_eq!(left(), 0, "a new file has no name before it is whole ({call} {nth})");
        }
        assert!(points > 0 || call == "/^rename", "{call}");
    }
    // While a file is replaced, the new one has a second name between two calls. The next write removes the leftover.
    fixture.run_expecting(&plan, 4);
    assert!(killed("/^rename", 1, &plan));
    assert_eq!(left(), 1, "killed between its name and its place");
    fixture.run_expecting(&plan, 4);
    assert_eq!(left(), 0);
}
