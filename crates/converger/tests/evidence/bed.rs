//! A lab, the program beside it, and a past: applies that were refused and one that was carried out, holds, releases, freezes.
//!
//! What never enters: what is done to the record afterwards.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Output;

use converger_lab::server::Clock;

use crate::stage::Stage;

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

const HEAD: &str = "version: 1\nenvironment: lab\nguests:\n  - { vmid: 101, kind: qemu, name: web-1, state: running }\n";

/// What can be carried out.
const STARTS: &str = "  - { vmid: 102, kind: qemu, name: web-2, state: running, after: [101] }\n";

/// Guests that are not there: each is refused, for two causes.
const MISSING: u32 = 130;

/// So many entries have two tiles that are full, and one that is not.
pub(crate) const ENTRIES_MIN: u64 = 513;
pub(crate) const ENTRIES_MAX: u64 = 766;

/// What a command said, and how it ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Said {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl From<Output> for Said {
    fn from(output: Output) -> Self {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Self { code: output.status.code(), out: text(&output.stdout), err: text(&output.stderr) }
    }
}

/// A stage on which things happened.
pub(crate) struct Bed {
    pub(crate) stage: Stage,
}

impl Bed {
    /// Nothing happened yet.
    pub(crate) fn new() -> Self {
        let stage = Stage::of(WORLD, &format!("{HEAD}{STARTS}"), Clock::Virtual { step_ms: 100 }, None);
        let missing: String =
            (0..MISSING).map(|own| format!("  - {{ vmid: {}, kind: qemu, name: gone-{own}, state: running }}\n", 1000 + own)).collect();
        stage.put("missing.yaml", &format!("{HEAD}{missing}"));
        Self { stage }
    }

    /// A few decisions of every sort that people can bring about, and one apply that is carried out.
    pub(crate) fn short() -> Self {
        let bed = Self::new();
        bed.told(&["hold", "lab", "103", "--reason", "a disk"], 0);
        bed.told(&["freeze", "lab", "--reason", "a move"], 0);
        bed.told(&["apply", "desired.yaml"], 3);
        bed.told(&["thaw", "lab"], 0);
        bed.told(&["release", "lab", "103"], 0);
        bed.told(&["hold", "lab", "103", "--reason", "another disk"], 0);
        bed.carried_out();
        bed
    }

    /// The same with so many refusals that tiles are full.
    pub(crate) fn long() -> Self {
        let bed = Self::short();
        bed.told(&["apply", "missing.yaml"], 3);
        bed.told(&["apply", "missing.yaml"], 3);
        bed
    }

    /// What is declared is carried out.
    pub(crate) fn carried_out(&self) {
        let arguments = self.stage.confirmed();
        self.told(&arguments.iter().map(String::as_str).collect::<Vec<_>>(), 0);
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Said {
        self.stage.converger(arguments).output().expect("it starts").into()
    }

    /// A command that must end so; what it printed.
    #[track_caller]
    pub(crate) fn told(&self, arguments: &[&str], code: i32) -> String {
        let said = self.run(arguments);
        assert_eq!(said.code, Some(code), "{arguments:?}: {said:?}");
        said.out
    }

    /// A command that finds the record broken, and says so with these words.
    #[track_caller]
    pub(crate) fn check_broken(&self, arguments: &[&str], words: &str) {
        self.check_ended(arguments, 6, words);
    }

    /// A command that does not end well, and says so with these words.
    #[track_caller]
    pub(crate) fn check_ended(&self, arguments: &[&str], code: i32, words: &str) {
        let said = self.run(arguments);
        assert_eq!(said.code, Some(code), "{arguments:?}: {said:?}");
        assert!(said.err.contains(words), "{arguments:?} must say `{words}`: {said:?}");
        assert_eq!(said.out, "", "{arguments:?}: nothing is told as if it were true");
    }

    /// The export of what there is now, in a directory of this name.
    pub(crate) fn export(&self, name: &str) -> PathBuf {
        self.told(&["ledger", "export", name], 0);
        self.stage.path(name)
    }

    /// The key that strangers check with.
    pub(crate) fn key(&self) -> String {
        self.told(&["ledger", "key"], 0).trim_end().to_owned()
    }

    /// How many entries there are.
    pub(crate) fn size(&self) -> u64 {
        let told = self.told(&["verify", "--json"], 0);
        serde_json::from_str::<serde_json::Value>(&told).expect("JSON")["entries"].as_u64().expect("a number")
    }

    pub(crate) fn state(&self) -> PathBuf {
        self.stage.path("state")
    }

    /// A copy of the state as it is now.
    pub(crate) fn keep_state(&self, name: &str) -> PathBuf {
        let copy = self.stage.path(name);
        copy_state(&self.state(), &copy);
        copy
    }

    /// The state is that of a copy again.
    pub(crate) fn put_state_back(&self, copy: &Path) {
        fs::remove_dir_all(self.state()).expect("removed");
        copy_state(copy, &self.state());
    }
}

/// Copies the files of a state directory that nobody has open.
pub(crate) fn copy_state(from: &Path, to: &Path) {
    fs::create_dir(to).expect("made");
    fs::set_permissions(to, fs::Permissions::from_mode(0o700)).expect("set");
    for file in fs::read_dir(from).expect("a directory").map(|file| file.expect("a file")) {
        fs::copy(file.path(), to.join(file.file_name())).expect("copied");
    }
}
