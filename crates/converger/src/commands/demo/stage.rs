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

use converger_lab::server::{Clock, Identity, Options, Passed, Place, Server, Shared, Watcher};
use converger_lab::{Record, Setting};
use rustix::process::{Pid, Signal, kill_process};
use tokio::sync::oneshot;

use super::super::Stop;
use super::super::signals::Endings;
use crate::render::{self, styled};

const WORLD: &str = include_str!("world.yaml");
const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
/// Each request moves the lab's time by so much, so that nobody waits.
const STEP_MS: u64 = 100;

/// How a command ended.
pub(super) enum Ended {
    /// By SIGKILL.
    Killed,
    /// With this exit code.
    With(i32),
}

impl Ended {
    /// Whatever else it ended with is not the story that is told.
    pub(super) fn with(self, expected: i32) -> Result<(), Stop> {
        match self {
            Self::With(code) if code == expected => Ok(()),
            Self::With(code) => Err(Stop::failed(format!("the command above should have ended with {expected}, and ended with {code}"))),
            Self::Killed => Err(Stop::failed("the command above was killed, and not by this program")),
        }
    }
}

/// What the threads know of each other.
#[derive(Default)]
struct Cast {
    child: Option<u32>,
    /// The child is killed with the change that has this number, counted down.
    fuse: Option<usize>,
    /// Somebody asked for an end.
    is_over: bool,
}

impl Cast {
    fn kill(&self) {
        let pid = self.child.and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
        // A child that has just ended cannot be killed any more, which is what was wanted.
        let _ = pid.map(|pid| kill_process(pid, Signal::KILL));
    }
}

/// Where the demo plays, until it is dropped.
pub(super) struct Stage {
    room: PathBuf,
    cast: Arc<Mutex<Cast>>,
    world: Shared,
    /// Dropped to end the lab.
    end: Option<oneshot::Sender<()>>,
}

fn locked(cast: &Mutex<Cast>) -> MutexGuard<'_, Cast> {
    cast.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Stage {
    pub(super) async fn set() -> Result<Self, Stop> {
        let setting = Setting::from_yaml(WORLD).map_err(Stop::failed)?;
        let identity =
            Identity::new(setting.nodes.keys().map(String::as_str), LOOPBACK).map_err(|error| Stop::failed(error.to_string()))?;
        let fingerprint = identity.fingerprint();
        let cast = Arc::new(Mutex::new(Cast::default()));
        let watching = Arc::clone(&cast);
        let watcher: Watcher = Arc::new(move |passed: &Passed<'_>| watch(&mut locked(&watching), passed.record));
        let clock = Clock::Virtual { step_ms: STEP_MS };
        let options = Options { listen: SocketAddr::new(LOOPBACK, 0), clock, identity, watcher: Some(watcher) };
        let server = Server::bind(&setting, options).await.map_err(|error| Stop::failed(format!("the lab cannot be served: {error}")))?;
        let (places, world) = (server.places().cloned().collect::<Vec<Place>>(), server.world());
        tokio::spawn(end_on_signal(Endings::listen()?, Arc::clone(&cast)));
        let (end, ended) = oneshot::channel::<()>();
        tokio::spawn(server.run(async { drop(ended.await) }));
        let stage = Self { room: room()?, cast, world, end: Some(end) };
        stage.furnish(&places, &fingerprint)?;
        Ok(stage)
    }

    /// What leads to the lab, as `converger lab --into` leaves it.
    fn furnish(&self, places: &[Place], fingerprint: &str) -> Result<(), Stop> {
        let endpoints =
            places.iter().map(|place| format!("  {{ url = \"https://{}\", fingerprints = [\"{fingerprint}\"] }},\n", place.address));
        let endpoints: String = endpoints.collect();
        let environment =
            "[environments.lab]\nmode = \"solo\"\nclock = \"requests\"\ntoken = \"root@pam!demo\"\nsecret = { file = \"secret\" }\n";
        self.write("converger.toml", &format!("{environment}endpoints = [\n{endpoints}]\n\n[store]\ndirectory = \"state\"\n"))?;
        self.write("secret", "demo\n")
    }

    /// Writes a file that only this user reads.
    pub(super) fn write(&self, name: &str, text: &str) -> Result<(), Stop> {
        let path = self.room.join(name);
        let opened = fs::File::options().write(true).create(true).truncate(true).mode(0o600).open(&path);
        opened.and_then(|mut file| file.write_all(text.as_bytes())).map_err(|error| unwritten(&path, &error))
    }

    /// Runs this program as a user would, and shows how.
    pub(super) fn run(&mut self, arguments: &[&str]) -> Result<Ended, Stop> {
        self.go(arguments, None)
    }

    /// The same, killed at the moment at which the lab has carried out so many changes.
    pub(super) fn run_until_changes(&mut self, arguments: &[&str], changes: usize) -> Result<Ended, Stop> {
        self.go(arguments, Some(changes))
    }

    fn go(&mut self, arguments: &[&str], fuse: Option<usize>) -> Result<Ended, Stop> {
        super::say(&format!("\n{}", styled(render::CYAN, format!("$ converger {}", arguments.join(" ")))))?;
        let program = std::env::current_exe().map_err(|error| Stop::failed(format!("this program cannot find itself: {error}")))?;
        let mut command = Command::new(program);
        command.args(arguments).current_dir(&self.room).stdin(Stdio::null());
        let status = self.carry_out(command, fuse)?;
        match (status.signal(), status.code()) {
            _ if locked(&self.cast).is_over => Err(Stop::failed("the demo was ended; nothing is left of it")),
            (Some(_), _) => Ok(Ended::Killed),
            (None, code) => Ok(Ended::With(code.unwrap_or_default())),
        }
    }

    fn carry_out(&self, mut command: Command, fuse: Option<usize>) -> Result<ExitStatus, Stop> {
        let failed = |error: io::Error| Stop::failed(format!("this program cannot be run as a child: {error}"));
        // Held until the child is known: whoever ends it waits for that.
        let mut cast = locked(&self.cast);
        if cast.is_over {
            return Err(Stop::failed("the demo was ended; nothing is left of it"));
        }
        let mut child = command.spawn().map_err(failed)?;
        (cast.child, cast.fuse) = (Some(child.id()), fuse);
        drop(cast);
        let status = child.wait().map_err(failed)?;
        locked(&self.cast).child = None;
        Ok(status)
    }

    /// The digest of the plan that was written last, and how many steps it has.
    pub(super) fn planned(&self) -> Result<(String, u64), Stop> {
        let path = self.room.join("plan.json");
        let plan = fs::read(&path).map_err(|error| Stop::failed(format!("the plan cannot be read: {error}")))?;
        let plan: serde_json::Value = serde_json::from_slice(&plan).map_err(|error| Stop::failed(format!("the plan is none: {error}")))?;
        let guests = plan["body"]["guests"].as_array().into_iter().flatten();
        let steps: usize = guests.map(|guest| guest["steps"].as_array().map_or(0, Vec::len)).sum();
        Ok((plan["digest"].as_str().unwrap_or_default().to_owned(), u64::try_from(steps).unwrap_or(u64::MAX)))
    }

    /// Everything that the lab was ever asked to change.
    pub(super) fn changes(&self) -> Vec<Record> {
        self.world.lock().records().filter(|record| record.method != "GET").cloned().collect()
    }

    /// How often the lab was asked for anything.
    pub(super) fn requests(&self) -> u64 {
        self.world.lock().requests()
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        locked(&self.cast).kill();
        drop(self.end.take());
        let _ = fs::remove_dir_all(&self.room);
    }
}

/// Looks at a request that was carried out and whose answer has not gone out.
fn watch(cast: &mut Cast, record: &Record) {
    let Some(left) = cast.fuse.filter(|_| record.method != "GET") else { return };
    cast.fuse = left.checked_sub(1).filter(|left| *left > 0);
    if cast.fuse.is_none() {
        cast.kill();
    }
}

/// Ends the child, and with it the demo, on the first signal.
async fn end_on_signal(mut endings: Endings, cast: Arc<Mutex<Cast>>) {
    endings.next().await;
    let mut cast = locked(&cast);
    cast.is_over = true;
    cast.kill();
}

/// A directory of its own that nobody else may enter.
fn room() -> Result<PathBuf, Stop> {
    let random = converger_runtime::host::random().map_err(Stop::failed)?;
    let room = std::env::temp_dir().join(format!("converger-demo-{random:016x}"));
    DirBuilder::new().mode(0o700).create(&room).map_err(|error| unwritten(&room, &error))?;
    Ok(room)
}

fn unwritten(path: &Path, error: &io::Error) -> Stop {
    Stop::failed(format!("cannot write {}: {error}", crate::files::shown(path)))
        .help("the demo needs a directory for temporary files (TMPDIR)")
}
