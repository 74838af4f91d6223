//! Only one process changes an environment. A second one learns the name of the holder, and a dead process holds no lock.

use std::env;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use converger_core::guest::EnvironmentName;
use converger_store::{EnvironmentLock, LockError, LockHolder};

const DIRECTORY: &str = "CONVERGER_TEST_LOCK_IN";

fn lab_environment() -> EnvironmentName {
    EnvironmentName::new("lab").expect("a name")
}

fn current_holder(directory: &Path) -> Option<LockHolder> {
    match EnvironmentLock::acquire(directory, &lab_environment(), "second", 2) {
        Err(LockError::Busy { holder, environment }) if environment == lab_environment() => holder,
        other => panic!("{other:?}"),
    }
}

/// Taking the lock truncates and writes the file, so the target of a link would be lost.
#[test]
fn refuses_a_link_or_pipe_as_lock_without_writing() {
    let directory = tempfile::tempdir().expect("a directory");
    let (victim, path) = (directory.path().join("precious"), directory.path().join("lab.lock"));
    std::fs::write(&victim, "precious").expect("written");
    std::os::unix::fs::symlink(&victim, &path).expect("linked");
    let result = EnvironmentLock::acquire(directory.path(), &lab_environment(), "ann", 1);
    assert!(matches!(result, Err(LockError::Unusable { .. })), "{result:?}");
    assert_eq!(std::fs::read_to_string(&victim).expect("there"), "precious");
    std::fs::remove_file(&path).expect("removed");
    rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, 0o600.into(), 0).expect("a pipe");
    let result = EnvironmentLock::acquire(directory.path(), &lab_environment(), "ann", 1);
    assert!(matches!(result, Err(LockError::Unusable { .. })), "{result:?}");
}

#[test]
fn names_the_holder_and_leaves_other_environments_free() {
    let directory = tempfile::tempdir().expect("a directory");
    let lock = EnvironmentLock::acquire(directory.path(), &lab_environment(), "ann at pts/1", 1700).expect("free");
    let expected = LockHolder { name: "ann at pts/1".into(), pid: std::process::id(), since_ms: 1700 };
    assert_eq!(current_holder(directory.path()), Some(expected));
    let message = EnvironmentLock::acquire(directory.path(), &lab_environment(), "second", 2).expect_err("busy").to_string();
    assert!(message.contains("`lab`") && message.contains("ann at pts/1") && message.contains("wait until"), "{message}");
    let other = EnvironmentName::new("lab2").expect("a name");
    let _other = EnvironmentLock::acquire(directory.path(), &other, "bob", 1).expect("another environment is free");
    drop(lock);
    let _again = EnvironmentLock::acquire(directory.path(), &lab_environment(), "bob", 1).expect("given back");
    let mode = directory.path().join("lab.lock").metadata().expect("there").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn takes_over_an_unlocked_file_with_any_content() {
    let directory = tempfile::tempdir().expect("a directory");
    for left in ["", "4242\n1\nann\n", "not a signature", "\u{1b}[31m"] {
        std::fs::write(directory.path().join("lab.lock"), left).expect("written");
        let _lock = EnvironmentLock::acquire(directory.path(), &lab_environment(), "bob", 3).expect("free");
        assert_eq!(current_holder(directory.path()).map(|holder| holder.name), Some("bob".into()), "{left:?}");
    }
}

#[test]
fn reports_no_holder_for_an_invalid_lock_file() {
    let directory = tempfile::tempdir().expect("a directory");
    for unsigned in ["", "12\n", "12\n1\n", "x\n1\nann\n", "12\n1\nann", "12\n1\nann\nmore\n"] {
        let _lock = EnvironmentLock::acquire(directory.path(), &lab_environment(), "bob", 3).expect("free");
        std::fs::write(directory.path().join("lab.lock"), unsigned).expect("written");
        assert_eq!(current_holder(directory.path()), None, "{unsigned:?}");
    }
}

#[test]
fn refuses_names_with_line_breaks_or_control_characters() {
    let directory = tempfile::tempdir().expect("a directory");
    for name in ["", "  ", "a\nb", "a\u{1b}[2J", &"x".repeat(5000)] {
        assert!(matches!(EnvironmentLock::acquire(directory.path(), &lab_environment(), name, 1), Err(LockError::InvalidName)), "{name:?}");
    }
    let missing = directory.path().join("missing");
    let error = EnvironmentLock::acquire(&missing, &lab_environment(), "bob", 1).expect_err("no directory");
    assert!(matches!(&error, LockError::Unusable { .. }) && error.to_string().contains("state directory"), "{error}");
}

/// The holder is this test again in another process, which reports that it has the lock and then waits to be killed.
#[test]
fn killed_holder_releases_the_lock() {
    if let Some(directory) = env::var_os(DIRECTORY) {
        let _lock = EnvironmentLock::acquire(Path::new(&directory), &lab_environment(), "the victim", 7).expect("free");
        println!("\nheld");
        let mut line = String::new();
        std::io::stdin().read_line(&mut line).expect("a line");
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let mut child = Command::new(env::current_exe().expect("this test"))
        .args(["--exact", "killed_holder_releases_the_lock", "--nocapture"])
        .env(DIRECTORY, directory.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("starts");
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    assert!(lines.any(|line| line.expect("text") == "held"), "the child did not get the lock");
    let expected = LockHolder { name: "the victim".into(), pid: child.id(), since_ms: 7 };
    assert_eq!(current_holder(directory.path()), Some(expected));
    child.kill().expect("killed");
    child.wait().expect("ended");
    let _lock = EnvironmentLock::acquire(directory.path(), &lab_environment(), "the heir", 8).expect("the lock went with the process");
}
