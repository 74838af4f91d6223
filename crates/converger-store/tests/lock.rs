//! One process drives an environment; whoever comes second is told who, and a dead holder holds nothing.

use std::env;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use converger_core::guest::EnvironmentName;
use converger_store::{EnvironmentLock, Holder, LockError};

const DIRECTORY: &str = "CONVERGER_TEST_LOCK_IN";

fn lab() -> EnvironmentName {
    EnvironmentName::new("lab").expect("a name")
}

fn busy_with(directory: &Path) -> Option<Holder> {
    match EnvironmentLock::take(directory, &lab(), "second", 2) {
        Err(LockError::Busy { holder, environment }) if environment == lab() => holder,
        other => panic!("{other:?}"),
    }
}

/// It is emptied and signed: what somebody else laid there would be lost.
#[test]
fn a_link_or_a_pipe_is_no_lock_and_is_not_written_to() {
    let directory = tempfile::tempdir().expect("a directory");
    let (victim, place) = (directory.path().join("precious"), directory.path().join("lab.lock"));
    std::fs::write(&victim, "precious").expect("written");
    std::os::unix::fs::symlink(&victim, &place).expect("linked");
    let taken = EnvironmentLock::take(directory.path(), &lab(), "ann", 1);
    assert!(matches!(taken, Err(LockError::Unusable { .. })), "{taken:?}");
    assert_eq!(std::fs::read_to_string(&victim).expect("there"), "precious");
    std::fs::remove_file(&place).expect("removed");
    rustix::fs::mknodat(rustix::fs::CWD, &place, rustix::fs::FileType::Fifo, 0o600.into(), 0).expect("a pipe");
    let taken = EnvironmentLock::take(directory.path(), &lab(), "ann", 1);
    assert!(matches!(taken, Err(LockError::Unusable { .. })), "{taken:?}");
}

#[test]
fn the_second_is_told_who_has_it_and_others_are_free() {
    let directory = tempfile::tempdir().expect("a directory");
    let lock = EnvironmentLock::take(directory.path(), &lab(), "ann at pts/1", 1700).expect("free");
    let expected = Holder { name: "ann at pts/1".into(), pid: std::process::id(), since_ms: 1700 };
    assert_eq!(busy_with(directory.path()), Some(expected));
    let message = EnvironmentLock::take(directory.path(), &lab(), "second", 2).expect_err("busy").to_string();
    assert!(message.contains("`lab`") && message.contains("ann at pts/1") && message.contains("wait for it"), "{message}");
    let other = EnvironmentName::new("lab2").expect("a name");
    let _other = EnvironmentLock::take(directory.path(), &other, "bob", 1).expect("another environment is free");
    drop(lock);
    let _again = EnvironmentLock::take(directory.path(), &lab(), "bob", 1).expect("given back");
    let mode = directory.path().join("lab.lock").metadata().expect("there").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn a_file_that_nobody_holds_is_taken_over_whatever_is_in_it() {
    let directory = tempfile::tempdir().expect("a directory");
    for left in ["", "4242\n1\nann\n", "not a signature", "\u{1b}[31m"] {
        std::fs::write(directory.path().join("lab.lock"), left).expect("written");
        let _lock = EnvironmentLock::take(directory.path(), &lab(), "bob", 3).expect("nobody holds it");
        assert_eq!(busy_with(directory.path()).map(|holder| holder.name), Some("bob".into()), "{left:?}");
    }
}

#[test]
fn a_holder_that_has_not_signed_is_nobody_by_name() {
    let directory = tempfile::tempdir().expect("a directory");
    for unsigned in ["", "12\n", "12\n1\n", "x\n1\nann\n", "12\n1\nann", "12\n1\nann\nmore\n"] {
        let _lock = EnvironmentLock::take(directory.path(), &lab(), "bob", 3).expect("free");
        std::fs::write(directory.path().join("lab.lock"), unsigned).expect("written");
        assert_eq!(busy_with(directory.path()), None, "{unsigned:?}");
    }
}

#[test]
fn names_that_would_forge_a_signature_are_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    for name in ["", "  ", "a\nb", "a\u{1b}[2J", &"x".repeat(5000)] {
        assert!(matches!(EnvironmentLock::take(directory.path(), &lab(), name, 1), Err(LockError::NameUnfit)), "{name:?}");
    }
    let missing = directory.path().join("missing");
    let error = EnvironmentLock::take(&missing, &lab(), "bob", 1).expect_err("no directory");
    assert!(matches!(&error, LockError::Unusable { .. }) && error.to_string().contains("state directory"), "{error}");
}

/// The holder is this test again, in a process of its own, which says that it has the lock and then waits for its end.
#[test]
fn a_killed_holder_holds_nothing() {
    if let Some(directory) = env::var_os(DIRECTORY) {
        let _lock = EnvironmentLock::take(Path::new(&directory), &lab(), "the victim", 7).expect("free");
        println!("\nheld");
        let mut line = String::new();
        std::io::stdin().read_line(&mut line).expect("a line");
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let mut child = Command::new(env::current_exe().expect("this test"))
        .args(["--exact", "a_killed_holder_holds_nothing", "--nocapture"])
        .env(DIRECTORY, directory.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("starts");
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    assert!(lines.any(|line| line.expect("text") == "held"), "the child did not get the lock");
    let expected = Holder { name: "the victim".into(), pid: child.id(), since_ms: 7 };
    assert_eq!(busy_with(directory.path()), Some(expected));
    child.kill().expect("killed");
    child.wait().expect("ended");
    let _lock = EnvironmentLock::take(directory.path(), &lab(), "the heir", 8).expect("the lock went with the process");
}
