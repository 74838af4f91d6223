//! `converger demo` as a newcomer runs it: it succeeds, proves what it claims, and leaves nothing behind, however it ends.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

fn demo_command(temporary: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_converger"));
    // No home and no configuration: a machine with nothing but the program.
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
    let stdout = String::from_utf8(output.stdout).expect("text");
    assert_eq!(output.status.code(), Some(0), "{stdout}\n{}", String::from_utf8_lossy(&output.stderr));
    let expected_texts = ["refused", "protected-guest", "killed", "in flight", "Recovered from an earlier run", "Converged: 4 converged"];
    let evidence = ["intact under an unverified key: evidence", "reproduced: the same inputs give the same decision, byte for byte"];
    for expected in expected_texts
        .into_iter()
        .chain(evidence)
        .chain(["The first plan had 4 steps, and the lab was asked for 4 changes.", "Nothing ran twice"])
    {
        assert!(stdout.contains(expected), "{expected}:\n{stdout}");
    }
    assert!(!stdout.contains('\u{1b}'), "an escape sequence, and it is not a terminal");
    assert!(is_empty(temporary.path()), "something is left behind");
}

/// The terminal is lent by `script`, which Debian has everywhere.
#[test]
fn killed_starts_on_its_own_line_at_a_terminal() {
    let temporary = tempfile::tempdir().expect("a directory");
    let line = format!("stty rows 40 cols 120; exec {} demo", env!("CARGO_BIN_EXE_converger"));
    let mut command = Command::new("script");
    command.args(["-q", "-e", "-f", "-c", &line, "/dev/null"]).env("TMPDIR", temporary.path()).env("TERM", "xterm");
    let output = command.env("NO_COLOR", "1").stdin(Stdio::null()).output().expect("`script` is installed");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(0), "{said}");
    // Moving the cursor and clearing what is right of it does not begin a line.
    let plain = anstream::adapter::strip_str(&said).to_string();
    assert!(plain.lines().any(|line| line == "killed"), "{plain}");
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
