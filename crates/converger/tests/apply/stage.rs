//! A lab with a stopped clock, a directory for the program, and the program as a process whose output is read.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Child, ChildStderr, Command, Stdio};

use converger_lab::server::{ClockMode, RequestWatcher};
use serde_json::Value;
use tempfile::TempDir;

use crate::lab::ScenarioLab;

/// A start and a shutdown take longer than any test, unless the test advances the clock.
const WORLD: &str = "\
flavour: 9
cluster: lab
nodes: { pve1: {}, pve2: {} }
tokens: { 'root@pam!lab': { secret: s3cret, full: true } }
pace: { start_ms: 100000, signal_ms: 100000 }
guests:
  - { vmid: 101, kind: qemu, node: pve1, name: web-1 }
  - { vmid: 102, kind: qemu, node: pve2, name: web-2 }
  - { vmid: 103, kind: qemu, node: pve2, name: old-1, state: running, uptime_s: 900, shutdown_ms: 5 }
";

/// The second guest depends on the first one, so it is not started while that one is in flight.
pub(crate) const STARTS: &str = "\
version: 1
environment: lab
guests:
  - { vmid: 101, kind: qemu, name: web-1, state: running }
  - { vmid: 102, kind: qemu, name: web-2, state: running, after: [101] }
";

/// A guest is shut down, which requires typing its name.
pub(crate) const STOP: &str = "\
version: 1
environment: lab
guests:
  - { vmid: 103, kind: qemu, name: old-1, state: stopped }
";

/// A lab and the working directory of the program.
pub(crate) struct ApplyFixture {
    pub(crate) directory: TempDir,
    lab: ScenarioLab,
}

impl ApplyFixture {
    pub(crate) fn new(desired: &str) -> Self {
        Self::with_watcher(desired, None)
    }

    /// Like [`Self::new`], with a watcher that sees every request before its response is sent.
    pub(crate) fn with_watcher(desired: &str, watcher: Option<RequestWatcher>) -> Self {
        Self::with_world(WORLD, desired, ClockMode::Virtual { step_ms: 0 }, watcher)
    }

    /// Any world with a token `root@pam!lab`, on any clock.
    pub(crate) fn with_world(world: &str, desired: &str, clock: ClockMode, watcher: Option<RequestWatcher>) -> Self {
        let lab = ScenarioLab::start("", world, clock, watcher).expect("a lab");
        let directory = TempDir::new().expect("a directory");
        let keys = lab.placeholders();
        let (url, pin) = (&keys["{url}"], &keys["{fingerprint}"]);
        // If each request advances the clock, the program must poll without waiting.
        let clock_setting = if matches!(clock, ClockMode::Virtual { step_ms: 1.. }) { "clock = \"requests\"\n" } else { "" };
        let config = format!(
            "[environments.lab]\nmode = \"solo\"\nurl = \"{url}\"\nfingerprints = [\"{pin}\"]\ntoken = \"root@pam!lab\"\nsecret = {{ file = \"secret\" }}\n{clock_setting}"
        );
        let secret = format!("{}\n", lab.secrets()[0]);
        let fixture = Self { directory, lab };
        for (name, text) in [("converger.toml", config.as_str()), ("secret", secret.as_str()), ("desired.yaml", desired)] {
            fixture.write_private(name, text);
        }
        fixture
    }

    /// Writes a file that only its owner may read.
    pub(crate) fn write_private(&self, name: &str, text: &str) {
        let path = self.path(name);
        fs::write(&path, text).expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("set");
    }

    /// The program in the working directory, without the variables of this process except `PATH`.
    pub(crate) fn converger(&self, arguments: &[&str]) -> Command {
        self.command(env!("CARGO_BIN_EXE_converger"), arguments)
    }

    /// Any program in the working directory.
    pub(crate) fn command(&self, program: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(program);
        let path = std::env::var_os("PATH").unwrap_or_default();
        command.current_dir(self.directory.path()).env_clear().env("PATH", path).env("USER", "ann").args(arguments);
        command.env("STATE_DIRECTORY", self.directory.path().join("state")).stdin(Stdio::null());
        command
    }

    /// The arguments of an apply that confirms the current plan, as a script would.
    pub(crate) fn confirm_arguments(&self) -> Vec<String> {
        let plan = self.converger(&["plan", "desired.yaml", "--json"]).output().expect("it starts");
        let plan: Value = serde_json::from_slice(&plan.stdout).unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&plan.stderr)));
        ["apply", "desired.yaml", "--confirm", plan["proposal"].as_str().expect("a digest")].map(str::to_owned).into()
    }

    /// Starts a confirmed apply.
    pub(crate) fn start_apply(&self) -> ApplyProcess {
        let arguments = self.confirm_arguments();
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        ApplyProcess::start(self.converger(&arguments))
    }

    /// Lets all tasks in the lab end.
    pub(crate) fn finish_tasks(&mut self) {
        self.lab.advance_time(1_000_000);
    }

    /// The changes since the last call, such as `101 start`.
    pub(crate) fn take_sent(&mut self) -> Vec<String> {
        let changes = self.lab.requests().into_iter().filter(|record| record.method != "GET");
        changes
            .map(|record| {
                let mut parts = record.path.rsplit('/');
                let (verb, _, vmid) = (parts.next().expect("a verb"), parts.next(), parts.next().expect("a guest"));
                format!("{vmid} {verb}")
            })
            .collect()
    }

    /// The steps in result.json, such as `101 done` or `102 not-run`.
    pub(crate) fn result_steps(&self) -> Vec<String> {
        let text = fs::read_to_string(self.directory.path().join("result.json")).expect("written");
        let result: Value = serde_json::from_str(&text).expect("JSON");
        let steps = result["steps"].as_array().expect("steps");
        steps.iter().map(|step| format!("{} {}", step["vmid"], step["outcome"]["end"].as_str().expect("an end"))).collect()
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }
}

/// A running apply. It is killed with the test.
pub(crate) struct ApplyProcess {
    child: Child,
    errors: BufReader<ChildStderr>,
    output: String,
}

impl ApplyProcess {
    pub(crate) fn start(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
        let errors = BufReader::new(child.stderr.take().expect("piped"));
        Self { child, errors, output: String::new() }
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits until it has printed this.
    #[track_caller]
    pub(crate) fn wait_for(&mut self, part: &str) {
        loop {
            let mut line = String::new();
            let length = self.errors.read_line(&mut line).expect("text");
            self.output.push_str(&line);
            if line.contains(part) {
                return;
            }
            assert!(length > 0, "it ended without `{part}`:\n{}", self.output);
        }
    }

    pub(crate) fn signal(&self, name: &str) {
        send_signal(name, self.id());
    }

    /// Its exit code and all its output.
    pub(crate) fn wait_for_end(mut self) -> (Option<i32>, String) {
        let mut output = std::mem::take(&mut self.output);
        self.errors.read_to_string(&mut output).expect("text");
        self.child.stdout.take().expect("piped").read_to_string(&mut output).expect("text");
        (self.child.wait().expect("it ends").code(), output)
    }
}

impl Drop for ApplyProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends a signal as a terminal or a service manager does.
pub(crate) fn send_signal(name: &str, process: u32) {
    let sent = Command::new("sh").args(["-c", &format!("kill -{name} {process}")]).status().expect("a shell");
    assert!(sent.success(), "{name} to {process}");
}
