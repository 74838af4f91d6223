//! The replay adapter passes the conformance checks, and its errors say what is wrong with an unreadable source.

use std::fs;
use std::path::PathBuf;

use converger_adapters::conformance::{ObserverFixture, check_observer};
use converger_adapters::replay::RecordingObserver;
use converger_adapters::{ObserveError, Observer};
use converger_core::artifact;
use converger_core::desired::Scope;
use converger_core::guest::EnvironmentName;
use converger_core::observe::{self, Observation};
use futures_util::FutureExt as _;

/// Worlds as files. A change by the observer shows in the bytes.
struct ReplayFixture {
    directory: tempfile::TempDir,
    written: Vec<u8>,
}

impl ReplayFixture {
    fn new() -> Self {
        Self { directory: tempfile::tempdir().expect("a directory"), written: Vec::new() }
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("current.json")
    }
}

impl ObserverFixture for ReplayFixture {
    type Observer = RecordingObserver;

    fn set_up_world(&mut self, truth: &Observation) -> RecordingObserver {
        self.written.clear();
        artifact::write_observation(&mut self.written, truth).expect("written");
        fs::write(self.path(), &self.written).expect("written");
        RecordingObserver::File(self.path())
    }

    fn change_count(&self) -> u64 {
        let entries = fs::read_dir(self.directory.path()).expect("listed").count() as u64;
        u64::from(fs::read(self.path()).expect("read") != self.written) + entries - 1
    }
}

#[test]
fn g4_replay_changes_nothing_and_reads_the_same_twice() {
    assert_eq!(check_observer(&mut ReplayFixture::new()).now_or_never().expect("a file is read at once"), []);
}

#[test]
fn recorded_worlds_round_trip() {
    for world in converger_adapters::conformance::known_worlds() {
        let mut bytes = Vec::new();
        artifact::write_observation(&mut bytes, &world.observation).expect("written");
        assert_eq!(observe::parse(&bytes).expect("parsed"), world.observation, "{}", world.name);
    }
}

fn observe_file(path: PathBuf, environment: &EnvironmentName) -> ObserveError {
    let replay = RecordingObserver::File(path);
    let read = replay.observe(environment, &Scope::new(vec![])).now_or_never();
    read.expect("a file is read at once").expect_err("refused")
}

fn observe_text_error(text: &str) -> ObserveError {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("current.json");
    fs::write(&path, text).expect("written");
    let environment = EnvironmentName::new("lab").expect("a name");
    observe_file(path, &environment)
}

#[test]
fn missing_file_is_named() {
    let environment = EnvironmentName::new("lab").expect("a name");
    let error = observe_file("no/such/file.json".into(), &environment);
    assert!(matches!(&error, ObserveError::Unreadable { .. }) && error.to_string().contains("no/such/file.json"), "{error}");
}

#[test]
fn malformed_file_error_has_diagnostics_and_text() {
    let ObserveError::Malformed { bytes, diagnostics, .. } = observe_text_error("{\"schema\": 5") else { panic!("malformed") };
    assert_eq!(bytes, b"{\"schema\": 5");
    assert!(!diagnostics.list().is_empty());
}

#[test]
fn refuses_an_observation_of_another_environment() {
    let text = r#"{"schema":"converger.observation/1","environment":"other","complete":true,"quorate":true,"nodes":[],"guests":[]}"#;
    let error = observe_text_error(text);
    assert!(matches!(&error, ObserveError::OtherEnvironment { .. }), "{error}");
    assert!(error.to_string().contains("`other`") && error.to_string().contains("`lab`"), "{error}");
}
