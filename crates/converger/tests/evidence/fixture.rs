//! A lab, the program, and a history: refused applies, one that was carried out, holds, releases, freezes.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Output;

use converger_lab::server::ClockMode;

use crate::stage::ApplyFixture;

const WORLD: &str = "\
flavour: 9
cluster: lab
nodes: { pve1: {}, pve2: {} }
tokens: { 'root@pam!lab': { secret: 0c4ca4a2-5ec2-4e70-8000-00000000c0de, full: true } }
guests:
  - { vmid: 101, kind: qemu, node: pve1, name: web-1 }
  - { vmid: 102, kind: qemu, node: pve2, name: web-2 }
  - { vmid: 103, kind: qemu, node: pve2, name: old-1, state: running, uptime_s: 900 }
";

const DESIRED_HEAD: &str = "version: 1\nenvironment: lab\nguests:\n  - { vmid: 101, kind: qemu, name: web-1, state: running }\n";

/// A guest that can be started.
const DESIRED_STARTS: &str = "  - { vmid: 102, kind: qemu, name: web-2, state: running, after: [101] }\n";

/// Guests that do not exist: each is refused for two causes.
const MISSING_GUESTS: u32 = 130;

/// With this many entries, two tiles are full and one is partial.
pub(crate) const ENTRIES_MIN: u64 = 513;
pub(crate) const ENTRIES_MAX: u64 = 766;

/// The output and exit code of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CommandOutput {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl From<Output> for CommandOutput {
    fn from(output: Output) -> Self {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Self { code: output.status.code(), out: text(&output.stdout), err: text(&output.stderr) }
    }
}

/// A lab with a history.
pub(crate) struct EvidenceFixture {
    pub(crate) apply_fixture: ApplyFixture,
}

impl EvidenceFixture {
    /// Without any history.
    pub(crate) fn new() -> Self {
        let apply_fixture =
            ApplyFixture::with_world(WORLD, &format!("{DESIRED_HEAD}{DESIRED_STARTS}"), ClockMode::Virtual { step_ms: 100 }, None);
        let missing: String = (0..MISSING_GUESTS)
            .map(|own| format!("  - {{ vmid: {}, kind: qemu, name: gone-{own}, state: running }}\n", 1000 + own))
            .collect();
        apply_fixture.write_private("missing.yaml", &format!("{DESIRED_HEAD}{missing}"));
        Self { apply_fixture }
    }

    /// A few decisions of every sort that people can cause, and one apply that is carried out.
    pub(crate) fn with_short_history() -> Self {
        let fixture = Self::new();
        fixture.run_expecting(&["hold", "lab", "103", "--reason", "a disk"], 0);
        fixture.run_expecting(&["freeze", "lab", "--reason", "a move"], 0);
        fixture.run_expecting(&["apply", "desired.yaml"], 3);
        fixture.run_expecting(&["thaw", "lab"], 0);
        fixture.run_expecting(&["release", "lab", "103"], 0);
        fixture.run_expecting(&["hold", "lab", "103", "--reason", "another disk"], 0);
        fixture.apply_desired();
        fixture
    }

    /// Like [`Self::with_short_history`], with enough refusals to fill tiles.
    pub(crate) fn with_long_history() -> Self {
        let fixture = Self::with_short_history();
        fixture.run_expecting(&["apply", "missing.yaml"], 3);
        fixture.run_expecting(&["apply", "missing.yaml"], 3);
        fixture
    }

    /// Applies the declared state.
    pub(crate) fn apply_desired(&self) {
        let arguments = self.apply_fixture.confirm_arguments();
        self.run_expecting(&arguments.iter().map(String::as_str).collect::<Vec<_>>(), 0);
    }

    /// Requests an action, confirms its plan and applies it; returns the run. `--key`, if it is given, comes last.
    pub(crate) fn apply_action(&self, request: &[&str]) -> String {
        let json = |arguments: &[&str], code| -> serde_json::Value {
            serde_json::from_str(&self.run_expecting(&[&["action"], arguments, &["--json"]].concat(), code)).expect("JSON")
        };
        let without_key = request.iter().position(|word| *word == "--key").unwrap_or(request.len());
        let plan = json(&[&request[..without_key], &["--plan"]].concat(), 4);
        let proposal = plan["proposal"].as_str().expect("a digest");
        let result = json(&[request, &["--confirm", proposal]].concat(), 0);
        result["run"].as_str().expect("a run").to_owned()
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> CommandOutput {
        self.apply_fixture.converger(arguments).output().expect("it starts").into()
    }

    /// Runs a command that must end with this code; returns its output.
    #[track_caller]
    pub(crate) fn run_expecting(&self, arguments: &[&str], code: i32) -> String {
        let output = self.run(arguments);
        assert_eq!(output.code, Some(code), "{arguments:?}: {output:?}");
        output.out
    }

    /// Runs a command that must report a broken record with these words.
    #[track_caller]
    pub(crate) fn check_broken(&self, arguments: &[&str], expected: &str) {
        self.check_fails(arguments, 6, expected);
    }

    /// Runs a command that must fail with this code and these words.
    #[track_caller]
    pub(crate) fn check_fails(&self, arguments: &[&str], code: i32, expected: &str) {
        let output = self.run(arguments);
        assert_eq!(output.code, Some(code), "{arguments:?}: {output:?}");
        assert!(output.err.contains(expected), "{arguments:?} must say `{expected}`: {output:?}");
        assert_eq!(output.out, "", "{arguments:?}: nothing is told as if it were true");
    }

    /// Exports the current record to a directory of this name.
    pub(crate) fn export_to(&self, name: &str) -> PathBuf {
        self.run_expecting(&["ledger", "export", name], 0);
        self.apply_fixture.path(name)
    }

    /// The public key of the ledger.
    pub(crate) fn key(&self) -> String {
        self.run_expecting(&["ledger", "key"], 0).trim_end().to_owned()
    }

    /// The number of entries.
    pub(crate) fn entry_count(&self) -> u64 {
        let output = self.run_expecting(&["verify", "--json"], 0);
        serde_json::from_str::<serde_json::Value>(&output).expect("JSON")["entries"].as_u64().expect("a number")
    }

    pub(crate) fn state_directory(&self) -> PathBuf {
        self.apply_fixture.path("state")
    }

    /// Copies the current state.
    pub(crate) fn copy_state_to(&self, name: &str) -> PathBuf {
        let copy = self.apply_fixture.path(name);
        copy_state(&self.state_directory(), &copy);
        copy
    }

    /// Replaces the state with a copy.
    pub(crate) fn restore_state(&self, copy: &Path) {
        fs::remove_dir_all(self.state_directory()).expect("removed");
        copy_state(copy, &self.state_directory());
    }
}

/// Copies the files of a state directory that is not in use.
pub(crate) fn copy_state(from: &Path, to: &Path) {
    fs::create_dir(to).expect("made");
    fs::set_permissions(to, fs::Permissions::from_mode(0o700)).expect("set");
    for file in fs::read_dir(from).expect("a directory").map(|file| file.expect("a file")) {
        fs::copy(file.path(), to.join(file.file_name())).expect("copied");
    }
}
