//! `converger demo` as a newcomer runs it: it ends well, proves what it claims, and leaves nothing behind, however it ends.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

fn demo_command(temporary: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_converger"));
    // No home, no configuration: a machine with nothing but the program.
    command.arg("demo").env_clear().env("TMPDIR", temporary).current_dir(temporary).stdin(Stdio::null());
    command
}

fn is_empty(directory: &Path) -> bool {
    fs::read_dir(directory).expect("a directory").next().is_none()
}

#[test]
fn demo_proves_that_nothing_ran_twice_and_cleans_up() {
    let temporary = tempfile::tempdir().expect("a directory");
    let output = demo_command(temporary.path()).output().expect("it runs");
    let said = String::from_utf8(output.stdout).expect("text");
    assert_eq!(output.status.code(), Some(0), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
    let acts = ["refused", "protected-guest", "killed", "in flight", "Recovered from an earlier run", "Converged: 4 converged"];
    let evidence = ["whole under an unverified key: evidence", "reproduced: the same inputs give the same decision, byte for byte"];
    for act in
        acts.into_iter().chain(evidence).chain(["The first plan had 4 steps, and the lab was asked for 4 changes.", "Nothing ran twice"])
    {
        assert!(said.contains(act), "{act}:\n{said}");
    }
    assert!(!said.contains('\u{1b}'), "an escape sequence, and it is not a terminal");
    assert!(is_empty(temporary.path()), "something is left behind");
}

#[test]
fn ctrl_c_ends_the_demo_and_cleans_up() {
    let temporary = tempfile::tempdir().expect("a directory");
    let mut child = demo_command(temporary.path()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it runs");
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let first = lines.next().expect("a line").expect("text");
    assert!(first.starts_with("A lab was started") && !is_empty(temporary.path()), "{first}");
    let pid = Pid::from_raw(i32::try_from(child.id()).expect("an id")).expect("an id");
    kill_process(pid, Signal::INT).expect("sent");
    let rest: Vec<String> = lines.map(|line| line.expect("text")).collect();
    let status = child.wait().expect("it ends");
    assert_eq!(status.code(), Some(1), "{rest:?}");
    assert!(is_empty(temporary.path()), "something is left behind");
}
