//! The walk: declared state, reading, plan, judgement. Every command that plans takes this one way.

use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;

use converger_adapters::proxmox::observe::Needs;
use converger_adapters::proxmox::{self, Proxmox, ProxmoxError, Report};
use converger_adapters::replay::Replay;
use converger_adapters::{ObserveError, Observer};
use converger_core::apply::{History, own_writes};
use converger_core::artifact::Provenance;
use converger_core::desired::{self, Desired, DesiredGuest, NotNarrowed, Scope};
use converger_core::document::TEXT_BYTES_MAX;
use converger_core::failure::Code;
use converger_core::guest::{EnvironmentName, Vmid};
use converger_core::observe::Scoped;
use converger_core::plan;
use converger_core::policy::{Grip, GripBy};
use converger_core::safety::{self, Judged};
use converger_store::Remembered;
use tokio::runtime::Runtime;

use super::{Stop, memory};
use crate::cli::{Choice, Look, Source};
use crate::config::{Config, Connection, Unusable};
use crate::files::Text;
use crate::{config, diagnose, files, host, progress, render, screen};

/// A judged plan, and where the rules that it was held to come from.
pub(super) struct Outcome {
    pub(super) judged: Judged,
    pub(super) origin: String,
    pub(super) provenance: Provenance,
}

/// What is declared, and what a run is held to.
pub(super) struct Ground {
    pub(super) desired: Desired,
    pub(super) config: Config,
}

pub(super) fn ground(source: &Source, choice: &Choice) -> Result<Ground, Stop> {
    let desired = desired(&source.desired)?;
    let config = config(&source.look, desired.environment())?;
    let desired = if choice.only.is_empty() { desired } else { narrowed(&desired, &choice.only)? };
    Ok(Ground { desired, config })
}

fn narrowed(desired: &Desired, only: &[Vmid]) -> Result<Desired, Stop> {
    desired.narrowed(&Scope::new(only.to_vec())).map_err(|error| match error {
        NotNarrowed::Undeclared(vmid) => Stop::input(format!("guest {vmid} is not declared")).help("declare it, or correct --only"),
        NotNarrowed::Splits { vmid, named } => {
            Stop::input(format!("guest {vmid} comes after {named}, and --only names one of them")).help("name both, or neither")
        }
    })
}

pub(super) fn judge(source: &Source, choice: &Choice) -> Result<Outcome, Stop> {
    let ground = ground(source, choice)?;
    let desired = &ground.desired;
    // A recording is planned alike on every machine, whatever this one remembers.
    let mut remembered = match source.look.replay {
        None => memory::glance(&ground.config, desired.environment())?,
        Some(_) => Remembered::default(),
    };
    // What is open an apply finds out before it plans: the plan here is the one that it would make then, and not one without these guests.
    let open: Vec<History> = remembered.unsettled.extract_if(.., |history| history.progress().is_open()).collect();
    let told: String = open.iter().map(render::unsettled).collect();
    let _ = write!(anstream::stderr(), "{}", screen::err(&told));
    let needs = Needs::of(desired).afresh(&remembered.changed);
    let seen = read(&source.look, &ground.config, desired.environment(), &desired.scope(), needs)?;
    let undeclared = undeclared_pending(desired, &seen.observation);
    if seen.provenance == Provenance::Live && !undeclared.is_empty() {
        remembered.writes = memory::glance_writes(&ground.config, desired.environment(), &undeclared)?;
    }
    Ok(judged(ground, seen, remembered))
}

/// Plans on a reading, and judges the plan. What is remembered of the environment counts as the rules do.
pub(super) fn judged(ground: Ground, seen: Seen, remembered: Remembered) -> Outcome {
    let Ground { desired, mut config } = ground;
    if let Some(freeze) = &remembered.freeze {
        config.circumstances.freeze = Some(format!("{} (by {})", freeze.reason, freeze.by));
    }
    let rules = match seen.provenance {
        Provenance::Live => {
            let own_writes = own_writes(&remembered.writes, &seen.observation);
            config.rules.with_host(host::own()).with_grips(grips(&remembered)).with_own_writes(own_writes)
        }
        // A recording is planned alike on every machine.
        Provenance::Replay => config.rules,
    };
    let plan = plan::plan(Arc::new(desired), Arc::new(seen.observation), Arc::new(rules));
    let judged = safety::judge(plan, config.limits, config.circumstances);
    Outcome { judged, origin: config.origin, provenance: seen.provenance }
}

/// Guests on which changes wait for the next start that are not declared: whether this program wrote them is asked of the journal.
pub(super) fn undeclared_pending(desired: &Desired, observation: &Scoped) -> Vec<Vmid> {
    let has_undeclared = |guest: &&DesiredGuest| {
        let pending = observation.find(guest.vmid).and_then(|row| row.pending.as_ref().read());
        let is_declared = |key: &str| guest.config.iter().any(|setting| setting.field.word() == key);
        pending.is_some_and(|pending| pending.iter().any(|entry| !is_declared(entry.key())))
    };
    desired.guests().iter().filter(has_undeclared).map(|guest| guest.vmid).collect()
}

/// Guests that are left alone: people hold them, or an operation on them is under way, or it is not known what became of one.
fn grips(remembered: &Remembered) -> Vec<Grip> {
    let held = remembered.holds.iter().map(|hold| {
        let by = GripBy::Person { by: hold.by.to_string(), reason: hold.reason.to_string() };
        Grip { vmid: hold.vmid, by }
    });
    let unsettled = remembered.unsettled.iter().map(|history| {
        let operation = &history.operation;
        Grip { vmid: operation.guest.vmid, by: GripBy::Operation(operation.id.as_str().to_owned()) }
    });
    held.chain(unsettled).collect()
}

pub(super) fn config(look: &Look, environment: &EnvironmentName) -> Result<Config, Stop> {
    load(look.config.as_deref(), environment)
}

pub(super) fn load(named: Option<&Path>, environment: &EnvironmentName) -> Result<Config, Stop> {
    config::load(named, environment).map_err(|unusable| match unusable.code {
        Code::EnvironmentUnconfigured => {
            let help = format!("correct the name of the environment, or {}", configure(environment));
            Stop::input(unusable.text).code(unusable.code).help(help)
        }
        _ => misconfigured(unusable),
    })
}

/// What is wrong with converger.toml.
pub(super) fn misconfigured(unusable: Unusable) -> Stop {
    let help = match unusable.code {
        Code::FileUnreadable => "check the path, or who may read it with `ls -l`".to_owned(),
        _ => "mend it there; nothing was read and nothing was done".to_owned(),
    };
    Stop::input(unusable.text).code(unusable.code).help(help)
}

pub(super) fn desired(path: &Path) -> Result<Desired, Stop> {
    declared(path).map(|(_, desired)| desired)
}

/// The declared state together with its text.
pub(super) fn declared(path: &Path) -> Result<(Text, Desired), Stop> {
    let text = files::read(path).map_err(|error| unreadable(&files::shown(path), &error))?;
    if text.bytes.len() > TEXT_BYTES_MAX {
        let stop = Stop::input(format!("{} is larger than 1 GiB", text.name)).code(Code::InputInvalid);
        return Err(stop.help("declare the guests in several files"));
    }
    let desired = desired::parse(&text.bytes, files::notation(path))
        .map_err(|faults| Stop::faults(diagnose::render(&text.name, &text.bytes, &faults)))?;
    Ok((text, desired))
}

/// A reading, and where it is from.
pub(super) struct Seen {
    pub(super) observation: Scoped,
    pub(super) provenance: Provenance,
}

/// Takes one reading: of a recording where one is named, otherwise of the environment itself.
///
/// A recording holds what it holds, whatever is needed.
pub(super) fn read(look: &Look, config: &Config, environment: &EnvironmentName, scope: &Scope, needs: Needs) -> Result<Seen, Stop> {
    let Some(recording) = &look.replay else {
        let observation = live(environment, scope, config, needs)?;
        return Ok(Seen { observation, provenance: Provenance::Live });
    };
    let replay = if recording == Path::new("-") {
        Replay::Stdin
    } else {
        // A pipe would be waited for without a word, and a device has no end.
        files::answers(recording).map_err(|error| unreadable(&files::shown(recording), &error))?;
        Replay::File(recording.clone())
    };
    // Nobody is to draw over what somebody types.
    let waiting = (recording != Path::new("-")).then(|| progress::spinner(&format!("reading {}", files::shown(recording))));
    let observation = replay.observe(environment, scope);
    drop(waiting);
    let observation = observation.map_err(|error| unobserved(&error))?;
    Ok(Seen { observation, provenance: Provenance::Replay })
}

fn live(environment: &EnvironmentName, scope: &Scope, config: &Config, needs: Needs) -> Result<Scoped, Stop> {
    if config.connection.is_none() {
        // Whoever only looks can do so on a recording.
        return Err(unconfigured(environment).help(format!("{}\nor name a recorded observation with --replay", configure(environment))));
    }
    let proxmox = connect(environment, config)?;
    take(proxmox.with_needs(needs), environment, scope).map(|(_, report)| report.reading)
}

/// The environment itself, which is not asked anything yet.
pub(super) fn connect(environment: &EnvironmentName, config: &Config) -> Result<Proxmox, Stop> {
    let connection = config.connection.as_ref().ok_or_else(|| unconfigured(environment))?;
    let opened = connection.open(environment).map_err(|fault| unready(Stop::input(fault), Connection::REMEDY))?;
    Proxmox::new(opened).map_err(|error| unread(&error))
}

/// A configuration that something is held against, whatever it leads to.
pub(super) fn candidate(path: &Path) -> Result<(), Stop> {
    config::survey(Some(path)).map(drop).map_err(misconfigured)
}

/// What waits for sockets, signals and time.
pub(super) fn runtime() -> Result<Runtime, Stop> {
    proxmox::runtime().map_err(|error| unread(&ProxmoxError::Runtime(error)))
}

/// The system gives this process no more threads.
pub(super) fn no_thread(error: &io::Error) -> Stop {
    limited(format!("cannot begin a thread: {error}"), "look at the limits of this process and of its user (`ulimit -u`)")
}

/// The system does not give this process what it needs.
pub(super) fn limited(message: String, remedy: &str) -> Stop {
    Stop::failed(message).code(Code::ProcessLimited).help(more(remedy, Code::ProcessLimited))
}

/// This side of a connection cannot be made ready.
fn unready(stop: Stop, remedy: &str) -> Stop {
    stop.code(Some(Code::ClientSetup)).help(more(remedy, Code::ClientSetup))
}

/// What to do, and where more is said.
fn more(remedy: &str, code: Code) -> String {
    format!("{remedy} (`converger explain {}` says more)", code.word())
}

/// Takes a reading of the environment, and tells what people should know about it.
pub(super) fn take(proxmox: Proxmox, environment: &EnvironmentName, scope: &Scope) -> Result<(Proxmox, Report), Stop> {
    let waited_for = format!(": answers of {} are waited for", proxmox.places().join(", "));
    let waiting = progress::patient_spinner(&format!("reading {environment}"), waited_for);
    let report = proxmox.report(scope).map_err(|error| unread(&error));
    waiting.end();
    let report = report?;
    tell(&report);
    Ok((proxmox, report))
}

fn unread(error: &ProxmoxError) -> Stop {
    let stop = match error {
        // What converger.toml names cannot be used: nobody was asked yet.
        ProxmoxError::NoEndpoint => Stop::input(error.to_string()),
        ProxmoxError::Client(client) if client.is_of_the_configuration() => Stop::input(files::plain(&error.to_string())),
        ProxmoxError::Client(_) | ProxmoxError::Runtime(_) => Stop::failed(files::plain(&error.to_string())),
        _ => Stop::failed(error.to_string()),
    };
    let stop = stop.code(error.code());
    match (error.code(), error.remedy()) {
        (Some(code), Some(remedy)) => stop.help(more(remedy, code)),
        _ => stop,
    }
}

/// How an environment is written.
pub(super) const HOW_TO_CONFIGURE: &str = "put it into converger.toml:\n  [environments.lab]\n  url = \"https://pve1.example:8006\"\n  \
    token = \"converger@pve!main\"\n  secret = { env = \"PVE_SECRET\" }";

pub(super) fn unconfigured(environment: &EnvironmentName) -> Stop {
    Stop::input(format!("nothing says how the environment `{environment}` is reached"))
        .code(Code::EnvironmentUnconfigured)
        .help(configure(environment))
}

fn configure(environment: &EnvironmentName) -> String {
    HOW_TO_CONFIGURE.replace("environments.lab", &format!("environments.{environment}"))
}

/// The environment of that name.
pub(super) fn environment(name: &str) -> Result<EnvironmentName, Stop> {
    EnvironmentName::new(name).ok_or_else(|| {
        let stop = Stop::input(format!("`{}` is not the name of an environment", name.escape_debug()));
        stop.help("use lower-case letters, digits, `-` and `_`, at most 64")
    })
}

/// What people should know about a reading, beside what the plan says.
fn tell(report: &Report) {
    let _ = write!(anstream::stderr(), "{}", screen::err(&render::reading(report)));
}

fn unobserved(error: &ObserveError) -> Stop {
    match error {
        ObserveError::Unreadable { place, source } => unreadable(&files::shown(Path::new(place)), source),
        ObserveError::Malformed { place, bytes, diagnostics } => {
            Stop::faults(diagnose::render(&files::shown(Path::new(place)), bytes, diagnostics))
        }
        ObserveError::OtherEnvironment { .. } => {
            let stop = Stop::input(error.to_string()).code(Code::RecordingOther);
            stop.help("name a reading of the same environment as the declared state")
        }
        ObserveError::TooLarge { .. } => {
            Stop::input(error.to_string()).code(Code::InputInvalid).help("declare the guests in several files, and observe each")
        }
        ObserveError::Proxmox(error) => unread(error),
    }
}

pub(super) fn unreadable(place: &str, error: &io::Error) -> Stop {
    let stop = Stop::input(format!("cannot read {place}: {error}")).code(Code::FileUnreadable);
    match error.kind() {
        io::ErrorKind::NotFound => stop.help("check the path; it is relative to the directory that you are in"),
        io::ErrorKind::PermissionDenied => stop.help("check who may read it with `ls -l`"),
        _ => stop.help("name a regular file that this user may read"),
    }
}
