//! The replay adapter passes what any observer must pass, and says what is wrong with what it cannot read.

use std::fs;
use std::path::PathBuf;

use converger_adapters::conformance::{Stage, check};
use converger_adapters::replay::Replay;
use converger_adapters::{ObserveError, Observer};
use converger_core::artifact;
use converger_core::desired::Scope;
use converger_core::guest::EnvironmentName;
use converger_core::observe::{self, Observation};
use futures_util::FutureExt as _;

/// Worlds as files. What an observer changes shows in the bytes.
struct Files {
    room: tempfile::TempDir,
    written: Vec<u8>,
}

impl Files {
    fn new() -> Self {
        Self { room: tempfile::tempdir().expect("a directory"), written: Vec::new() }
    }

    fn path(&self) -> PathBuf {
        self.room.path().join("current.json")
    }
}

impl Stage for Files {
    type Observer = Replay;

    fn set_up(&mut self, truth: &Observation) -> Replay {
        self.written.clear();
        artifact::write_observation(&mut self.written, truth).expect("written");
        fs::write(self.path(), &self.written).expect("written");
        Replay::File(self.path())
    }

    fn changes(&self) -> u64 {
        let entries = fs::read_dir(self.room.path()).expect("listed").count() as u64;
        u64::from(fs::read(self.path()).expect("read") != self.written) + entries - 1
    }
}

#[test]
fn g4_replay_changes_nothing_and_reads_the_same_twice() {
    assert_eq!(check(&mut Files::new()).now_or_never().expect("a file is read at once"), []);
}

#[test]
fn what_was_written_is_read_back_as_it_was() {
    for world in converger_adapters::conformance::worlds() {
        let mut bytes = Vec::new();
        artifact::write_observation(&mut bytes, &world.truth).expect("written");
        assert_eq!(observe::parse(&bytes).expect("parsed"), world.truth, "{}", world.name);
    }
}

fn observe_file(path: PathBuf, environment: &EnvironmentName) -> ObserveError {
    let replay = Replay::File(path);
    let read = replay.observe(environment, &Scope::new(vec![])).now_or_never();
    read.expect("a file is read at once").expect_err("refused")
}

fn observe_text(text: &str) -> ObserveError {
    let room = tempfile::tempdir().expect("a directory");
    let path = room.path().join("current.json");
    fs::write(&path, text).expect("written");
    let environment = EnvironmentName::new("lab").expect("a name");
    observe_file(path, &environment)
}

#[test]
fn a_file_that_is_not_there_is_named() {
    let environment = EnvironmentName::new("lab").expect("a name");
    let error = observe_file("no/such/file.json".into(), &environment);
    assert!(matches!(&error, ObserveError::Unreadable { .. }) && error.to_string().contains("no/such/file.json"), "{error}");
}

#[test]
fn a_malformed_file_carries_its_faults_and_its_text() {
    let ObserveError::Malformed { bytes, diagnostics, .. } = observe_text("{\"schema\": 5") else { panic!("malformed") };
    assert_eq!(bytes, b"{\"schema\": 5");
    assert!(!diagnostics.list().is_empty());
}

#[test]
fn a_reading_of_another_environment_is_refused() {
    let text = r#"{"schema":"converger.observation/1","environment":"other","complete":true,"quorate":true,"nodes":[],"guests":[]}"#;
    let error = observe_text(text);
    assert!(matches!(&error, ObserveError::OtherEnvironment { .. }), "{error}");
    assert!(error.to_string().contains("`other`") && error.to_string().contains("`lab`"), "{error}");
}
