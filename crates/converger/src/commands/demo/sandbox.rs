//! The sandbox of the demo: a temporary directory, a lab in this process, and this program as a child process.
//!
//! Ctrl-C ends the child, and the directory is removed however the demo ends.

use std::fs::{self, DirBuilder};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::{io, io::Write as _};

use converger_lab::server::{
    ClockMode, LabCertificates, LabServer, RequestWatcher, ServedExchange, ServedNode, ServerOptions, SharedWorld,
};
use converger_lab::{RequestRecord, WorldSpec};
use rustix::process::{Pid, Signal, kill_process};
use tokio::sync::oneshot;

use super::super::CommandError;
use super::super::signals::StopSignals;
use crate::progress;
use crate::render::{self, apply_style};

const WORLD: &str = include_str!("world.yaml");
const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
/// Each request advances the clock of the lab by this much, so that nothing waits for real time.
const STEP_MS: u64 = 100;

/// How a command ended.
pub(super) enum ChildEnd {
    /// By SIGKILL.
    Killed,
    /// With this exit code.
    With(i32),
}

impl ChildEnd {
    /// Fails unless the command ended with this exit code.
    pub(super) fn expect_code(self, expected: i32) -> Result<(), CommandError> {
        match self {
            Self::With(code) if code == expected => Ok(()),
            Self::With(code) => Err(CommandError::failure(format!("the command above ended with exit code {code} instead of {expected}"))),
            Self::Killed => Err(CommandError::failure("the command above was killed by another program")),
        }
    }
}

/// The state that the threads share.
#[derive(Default)]
struct DemoState {
    child: Option<u32>,
    /// The number of changes after which the child is killed.
    kill_after_changes: Option<usize>,
    /// The demo was interrupted.
    is_stopped: bool,
}

impl DemoState {
    fn kill_child(&self) {
        let pid = self.child.and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
        // Killing a child that has just ended fails, which is fine.
        let _ = pid.map(|pid| kill_process(pid, Signal::KILL));
    }
}

/// The sandbox; dropping it ends the lab and removes the directory.
pub(super) struct DemoSandbox {
    directory: PathBuf,
    state: Arc<Mutex<DemoState>>,
    world: SharedWorld,
    /// Dropped to end the lab.
    end: Option<oneshot::Sender<()>>,
}

fn lock_state(shared_state: &Mutex<DemoState>) -> MutexGuard<'_, DemoState> {
    shared_state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl DemoSandbox {
    pub(super) async fn start() -> Result<Self, CommandError> {
        let spec = WorldSpec::from_yaml(WORLD).map_err(CommandError::failure)?;
        let identity = LabCertificates::new(spec.nodes.keys().map(String::as_str), LOOPBACK)
            .map_err(|error| CommandError::failure(error.to_string()))?;
        let fingerprint = identity.fingerprint();
        let shared_state = Arc::new(Mutex::new(DemoState::default()));
        let watching = Arc::clone(&shared_state);
        let watcher: RequestWatcher =
            Arc::new(move |passed: &ServedExchange<'_>| kill_on_change(&mut lock_state(&watching), passed.record));
        let clock = ClockMode::Virtual { step_ms: STEP_MS };
        let options = ServerOptions { listen: SocketAddr::new(LOOPBACK, 0), clock, identity, watcher: Some(watcher) };
        let server =
            LabServer::bind(&spec, options).await.map_err(|error| CommandError::failure(format!("cannot serve the lab: {error}")))?;
        let (served_nodes, world) = (server.served_nodes().cloned().collect::<Vec<ServedNode>>(), server.world());
        tokio::spawn(end_on_signal(StopSignals::listen()?, Arc::clone(&shared_state)));
        let (end, end_receiver) = oneshot::channel::<()>();
        tokio::spawn(server.run(async { drop(end_receiver.await) }));
        let sandbox = Self { directory: create_directory()?, state: shared_state, world, end: Some(end) };
        sandbox.write_config(&served_nodes, &fingerprint)?;
        Ok(sandbox)
    }

    /// Writes converger.toml for the lab, as `converger lab --into` does.
    fn write_config(&self, served_nodes: &[ServedNode], fingerprint: &str) -> Result<(), CommandError> {
        let endpoints = served_nodes
            .iter()
            .map(|served_node| format!("  {{ url = \"https://{}\", fingerprints = [\"{fingerprint}\"] }},\n", served_node.address));
        let endpoints: String = endpoints.collect();
        let environment =
            "[environments.lab]\nmode = \"solo\"\nclock = \"requests\"\ntoken = \"root@pam!demo\"\nsecret = { file = \"secret\" }\n";
        self.write_file("converger.toml", &format!("{environment}endpoints = [\n{endpoints}]\n\n[store]\ndirectory = \"state\"\n"))?;
        self.write_file("secret", "demo\n")
    }

    /// Writes a file that only this user may read.
    pub(super) fn write_file(&self, name: &str, text: &str) -> Result<(), CommandError> {
        let path = self.directory.join(name);
        let opened = fs::File::options().write(true).create(true).truncate(true).mode(0o600).open(&path);
        opened.and_then(|mut file| file.write_all(text.as_bytes())).map_err(|error| write_error(&path, &error))
    }

    /// Runs this program as a user would, and shows the command line.
    pub(super) fn run(&mut self, arguments: &[&str]) -> Result<ChildEnd, CommandError> {
        self.run_child(arguments, None)
    }

    /// The same; the child is killed as soon as the lab has received this many changes.
    pub(super) fn run_until_changes(&mut self, arguments: &[&str], changes: usize) -> Result<ChildEnd, CommandError> {
        self.run_child(arguments, Some(changes))
    }

    fn run_child(&mut self, arguments: &[&str], fuse: Option<usize>) -> Result<ChildEnd, CommandError> {
        super::print_line(&format!("\n{}", apply_style(render::CYAN, format!("$ converger {}", arguments.join(" ")))))?;
        let program = std::env::current_exe()
            .map_err(|error| CommandError::failure(format!("cannot find the executable of this program: {error}")))?;
        let mut command = Command::new(program);
        command.args(arguments).current_dir(&self.directory).stdin(Stdio::null());
        let status = self.spawn_and_wait(command, fuse)?;
        match (status.signal(), status.code()) {
            _ if lock_state(&self.state).is_stopped => Err(CommandError::failure("the demo was interrupted; its files are removed")),
            (Some(_), _) => {
                end_unfinished_line();
                Ok(ChildEnd::Killed)
            }
            (None, code) => Ok(ChildEnd::With(code.unwrap_or_default())),
        }
    }

    fn spawn_and_wait(&self, mut command: Command, fuse: Option<usize>) -> Result<ExitStatus, CommandError> {
        let failed = |error: io::Error| CommandError::failure(format!("cannot run this program as a child process: {error}"));
        // Locked until the child is recorded, so that a signal handler that ends it waits for that.
        let mut state = lock_state(&self.state);
        if state.is_stopped {
            return Err(CommandError::failure("the demo was interrupted; its files are removed"));
        }
        let mut child = command.spawn().map_err(failed)?;
        (state.child, state.kill_after_changes) = (Some(child.id()), fuse);
        drop(state);
        let status = child.wait().map_err(failed)?;
        lock_state(&self.state).child = None;
        Ok(status)
    }

    /// The digest of the last plan, and the number of its steps.
    pub(super) fn read_plan(&self) -> Result<(String, u64), CommandError> {
        let path = self.directory.join("plan.json");
        let plan = fs::read(&path).map_err(|error| CommandError::failure(format!("cannot read plan.json: {error}")))?;
        let plan: serde_json::Value =
            serde_json::from_slice(&plan).map_err(|error| CommandError::failure(format!("plan.json is not JSON: {error}")))?;
        let guests = plan["body"]["guests"].as_array().into_iter().flatten();
        let steps: usize = guests.map(|guest| guest["steps"].as_array().map_or(0, Vec::len)).sum();
        Ok((plan["proposal"].as_str().unwrap_or_default().to_owned(), u64::try_from(steps).unwrap_or(u64::MAX)))
    }

    /// Every change request that the lab received.
    pub(super) fn changes(&self) -> Vec<RequestRecord> {
        self.world.lock().records().filter(|record| record.method != "GET").cloned().collect()
    }

    /// The number of requests that the lab received.
    pub(super) fn requests(&self) -> u64 {
        self.world.lock().requests()
    }
}

impl Drop for DemoSandbox {
    fn drop(&mut self) {
        lock_state(&self.state).kill_child();
        drop(self.end.take());
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// A killed child leaves its progress bar without a line break, so the next line would be printed behind it.
fn end_unfinished_line() {
    if progress::stderr_is_screen() {
        let _ = writeln!(io::stderr());
    }
}

/// Called for each request that was executed, before its response is sent.
fn kill_on_change(state: &mut DemoState, record: &RequestRecord) {
    let Some(left) = state.kill_after_changes.filter(|_| record.method != "GET") else { return };
    state.kill_after_changes = left.checked_sub(1).filter(|left| *left > 0);
    if state.kill_after_changes.is_none() {
        state.kill_child();
    }
}

/// Kills the child, and thereby ends the demo, on the first signal.
async fn end_on_signal(mut endings: StopSignals, shared_state: Arc<Mutex<DemoState>>) {
    endings.next().await;
    let mut state = lock_state(&shared_state);
    state.is_stopped = true;
    state.kill_child();
}

/// A temporary directory that only this user may enter.
fn create_directory() -> Result<PathBuf, CommandError> {
    let random = converger_runtime::host::random().map_err(CommandError::failure)?;
    let directory = std::env::temp_dir().join(format!("converger-demo-{random:016x}"));
    DirBuilder::new().mode(0o700).create(&directory).map_err(|error| write_error(&directory, &error))?;
    Ok(directory)
}

fn write_error(path: &Path, error: &io::Error) -> CommandError {
    CommandError::failure(format!("cannot write {}: {error}", crate::files::display_path(path)))
        .with_help("the demo needs a directory for temporary files (TMPDIR)")
}
