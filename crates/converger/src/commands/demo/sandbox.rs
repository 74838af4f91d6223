//! Where the demo plays: a directory that goes with it, a lab in this process, and this program as a child.
//!
//! Ctrl-C ends the child, and the directory is removed on every way out. What never enters: what is shown.

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
use crate::render::{self, apply_style};

const WORLD: &str = include_str!("world.yaml");
const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
/// Each request moves the lab's time by so much, so that nobody waits.
const STEP_MS: u64 = 100;

/// How a command ended.
pub(super) enum ChildEnd {
    /// By SIGKILL.
    Killed,
    /// With this exit code.
    With(i32),
}

impl ChildEnd {
    /// Whatever else it ended with is not the story that is told.
    pub(super) fn expect_code(self, expected: i32) -> Result<(), CommandError> {
        match self {
            Self::With(code) if code == expected => Ok(()),
            Self::With(code) => {
                Err(CommandError::failure(format!("the command above should have ended with {expected}, and ended with {code}")))
            }
            Self::Killed => Err(CommandError::failure("the command above was killed, and not by this program")),
        }
    }
}

/// What the threads know of each other.
#[derive(Default)]
struct DemoState {
    child: Option<u32>,
    /// The child is killed with the change that has this number, counted down.
    kill_after_changes: Option<usize>,
    /// Somebody asked for an end.
    is_stopped: bool,
}

impl DemoState {
    fn kill_child(&self) {
        let pid = self.child.and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
        // A child that has just ended cannot be killed any more, which is what was wanted.
        let _ = pid.map(|pid| kill_process(pid, Signal::KILL));
    }
}

/// Where the demo plays, until it is dropped.
pub(super) struct DemoSandbox {
    directory: PathBuf,
    state: Arc<Mutex<DemoState>>,
    world: SharedWorld,
    /// Dropped to end the lab.
    end: Option<oneshot::Sender<()>>,
}

fn lock_state(cast: &Mutex<DemoState>) -> MutexGuard<'_, DemoState> {
    cast.lock().unwrap_or_else(PoisonError::into_inner)
}

impl DemoSandbox {
    pub(super) async fn start() -> Result<Self, CommandError> {
        let setting = WorldSpec::from_yaml(WORLD).map_err(CommandError::failure)?;
        let identity = LabCertificates::new(setting.nodes.keys().map(String::as_str), LOOPBACK)
            .map_err(|error| CommandError::failure(error.to_string()))?;
        let fingerprint = identity.fingerprint();
        let cast = Arc::new(Mutex::new(DemoState::default()));
        let watching = Arc::clone(&cast);
        let watcher: RequestWatcher =
            Arc::new(move |passed: &ServedExchange<'_>| kill_on_change(&mut lock_state(&watching), passed.record));
        let clock = ClockMode::Virtual { step_ms: STEP_MS };
        let options = ServerOptions { listen: SocketAddr::new(LOOPBACK, 0), clock, identity, watcher: Some(watcher) };
        let server = LabServer::bind(&setting, options)
            .await
            .map_err(|error| CommandError::failure(format!("the lab cannot be served: {error}")))?;
        let (places, world) = (server.served_nodes().cloned().collect::<Vec<ServedNode>>(), server.world());
        tokio::spawn(end_on_signal(StopSignals::listen()?, Arc::clone(&cast)));
        let (end, ended) = oneshot::channel::<()>();
        tokio::spawn(server.run(async { drop(ended.await) }));
        let stage = Self { directory: create_directory()?, state: cast, world, end: Some(end) };
        stage.write_config(&places, &fingerprint)?;
        Ok(stage)
    }

    /// What leads to the lab, as `converger lab --into` leaves it.
    fn write_config(&self, places: &[ServedNode], fingerprint: &str) -> Result<(), CommandError> {
        let endpoints =
            places.iter().map(|place| format!("  {{ url = \"https://{}\", fingerprints = [\"{fingerprint}\"] }},\n", place.address));
        let endpoints: String = endpoints.collect();
        let environment =
            "[environments.lab]\nmode = \"solo\"\nclock = \"requests\"\ntoken = \"root@pam!demo\"\nsecret = { file = \"secret\" }\n";
        self.write_file("converger.toml", &format!("{environment}endpoints = [\n{endpoints}]\n\n[store]\ndirectory = \"state\"\n"))?;
        self.write_file("secret", "demo\n")
    }

    /// Writes a file that only this user reads.
    pub(super) fn write_file(&self, name: &str, text: &str) -> Result<(), CommandError> {
        let path = self.directory.join(name);
        let opened = fs::File::options().write(true).create(true).truncate(true).mode(0o600).open(&path);
        opened.and_then(|mut file| file.write_all(text.as_bytes())).map_err(|error| write_error(&path, &error))
    }

    /// Runs this program as a user would, and shows how.
    pub(super) fn run(&mut self, arguments: &[&str]) -> Result<ChildEnd, CommandError> {
        self.run_child(arguments, None)
    }

    /// The same, killed at the moment at which the lab has carried out so many changes.
    pub(super) fn run_until_changes(&mut self, arguments: &[&str], changes: usize) -> Result<ChildEnd, CommandError> {
        self.run_child(arguments, Some(changes))
    }

    fn run_child(&mut self, arguments: &[&str], fuse: Option<usize>) -> Result<ChildEnd, CommandError> {
        super::print_line(&format!("\n{}", apply_style(render::CYAN, format!("$ converger {}", arguments.join(" ")))))?;
        let program =
            std::env::current_exe().map_err(|error| CommandError::failure(format!("this program cannot find itself: {error}")))?;
        let mut command = Command::new(program);
        command.args(arguments).current_dir(&self.directory).stdin(Stdio::null());
        let status = self.spawn_and_wait(command, fuse)?;
        match (status.signal(), status.code()) {
            _ if lock_state(&self.state).is_stopped => Err(CommandError::failure("the demo was ended; nothing is left of it")),
            (Some(_), _) => Ok(ChildEnd::Killed),
            (None, code) => Ok(ChildEnd::With(code.unwrap_or_default())),
        }
    }

    fn spawn_and_wait(&self, mut command: Command, fuse: Option<usize>) -> Result<ExitStatus, CommandError> {
        let failed = |error: io::Error| CommandError::failure(format!("this program cannot be run as a child: {error}"));
        // Held until the child is known: whoever ends it waits for that.
        let mut cast = lock_state(&self.state);
        if cast.is_stopped {
            return Err(CommandError::failure("the demo was ended; nothing is left of it"));
        }
        let mut child = command.spawn().map_err(failed)?;
        (cast.child, cast.kill_after_changes) = (Some(child.id()), fuse);
        drop(cast);
        let status = child.wait().map_err(failed)?;
        lock_state(&self.state).child = None;
        Ok(status)
    }

    /// The digest of the plan that was written last, and how many steps it has.
    pub(super) fn read_plan(&self) -> Result<(String, u64), CommandError> {
        let path = self.directory.join("plan.json");
        let plan = fs::read(&path).map_err(|error| CommandError::failure(format!("the plan cannot be read: {error}")))?;
        let plan: serde_json::Value =
            serde_json::from_slice(&plan).map_err(|error| CommandError::failure(format!("the plan is none: {error}")))?;
        let guests = plan["body"]["guests"].as_array().into_iter().flatten();
        let steps: usize = guests.map(|guest| guest["steps"].as_array().map_or(0, Vec::len)).sum();
        Ok((plan["digest"].as_str().unwrap_or_default().to_owned(), u64::try_from(steps).unwrap_or(u64::MAX)))
    }

    /// Everything that the lab was ever asked to change.
    pub(super) fn changes(&self) -> Vec<RequestRecord> {
        self.world.lock().records().filter(|record| record.method != "GET").cloned().collect()
    }

    /// How often the lab was asked for anything.
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

/// Looks at a request that was carried out and whose answer has not gone out.
fn kill_on_change(cast: &mut DemoState, record: &RequestRecord) {
    let Some(left) = cast.kill_after_changes.filter(|_| record.method != "GET") else { return };
    cast.kill_after_changes = left.checked_sub(1).filter(|left| *left > 0);
    if cast.kill_after_changes.is_none() {
        cast.kill_child();
    }
}

/// Ends the child, and with it the demo, on the first signal.
async fn end_on_signal(mut endings: StopSignals, cast: Arc<Mutex<DemoState>>) {
    endings.next().await;
    let mut cast = lock_state(&cast);
    cast.is_stopped = true;
    cast.kill_child();
}

/// A directory of its own that nobody else may enter.
fn create_directory() -> Result<PathBuf, CommandError> {
    let random = converger_runtime::host::random().map_err(CommandError::failure)?;
    let room = std::env::temp_dir().join(format!("converger-demo-{random:016x}"));
    DirBuilder::new().mode(0o700).create(&room).map_err(|error| write_error(&room, &error))?;
    Ok(room)
}

fn write_error(path: &Path, error: &io::Error) -> CommandError {
    CommandError::failure(format!("cannot write {}: {error}", crate::files::display_path(path)))
        .with_help("the demo needs a directory for temporary files (TMPDIR)")
}
