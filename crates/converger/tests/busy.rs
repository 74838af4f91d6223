//! One process at a time drives an environment. A second one is refused with the holder's name, before it reads or asks anything.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use converger_core::guest::EnvironmentName;
use converger_store::{EnvironmentLock, SqliteStore, StoreSettings};
use tempfile::TempDir;

const DESIRED: &str = "version: 1\nenvironment: lab\nguests:\n  - { vmid: 100, kind: lxc, name: dns, state: running }\n";

/// An environment at an address without a listener: a command that gets as far as reading fails instead of being refused.
fn work_directory() -> TempDir {
    let directory = tempfile::tempdir().expect("a directory");
    let state = directory.path().join("state");
    fs::create_dir(&state).expect("made");
    fs::set_permissions(&state, fs::Permissions::from_mode(0o700)).expect("set");
    let config = format!(
        "[store]\ndirectory = \"{}\"\n\n[environments.lab]\nurl = \"https://127.0.0.1:9\"\ntoken = \"root@pam!bot\"\n\
         secret = {{ env = \"SECRET\" }}\nmode = \"solo\"\n",
        state.display()
    );
    fs::write(directory.path().join("converger.toml"), config).expect("written");
    fs::write(directory.path().join("desired.yaml"), DESIRED).expect("written");
    // A process that drives an environment has opened the store. A lock without a store would look like a lost store.
    drop(SqliteStore::open(&state, StoreSettings::new(|_| {})).expect("opened"));
    directory
}

fn run_apply(directory: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_converger"));
    command.args(["apply", "desired.yaml"]).current_dir(directory).env_clear().env("SECRET", "s3cret").stdin(Stdio::null());
    command.output().expect("the program runs")
}

#[test]
fn locked_environment_is_refused_with_the_holder() {
    let directory = work_directory();
    let lab = EnvironmentName::new("lab").expect("a name");
    let lock = EnvironmentLock::acquire(&directory.path().join("state"), &lab, "ann@desk", 1).expect("free");
    let output = run_apply(directory.path());
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!((output.status.code(), output.stdout.len()), (Some(3), 0), "{stderr}");
    for part in ["environment-busy", "ann@desk", &std::process::id().to_string()] {
        assert!(stderr.contains(part), "`{part}` is not in:\n{stderr}");
    }
    drop(lock);
    let output = run_apply(directory.path());
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "it is free, and nobody listens at the address: {stderr}");
    assert!(!stderr.contains("environment-busy"), "{stderr}");
}

#[test]
fn other_environment_of_the_same_state_is_not_locked() {
    let directory = work_directory();
    let other = EnvironmentName::new("other").expect("a name");
    let _lock = EnvironmentLock::acquire(&directory.path().join("state"), &other, "ann@desk", 1).expect("free");
    let output = run_apply(directory.path());
    assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stderr));
}
