//! What commands take from people: files with their diagnostics, names of environments, and the configuration that applies.

use std::io;
use std::path::Path;
use std::sync::Arc;

use converger_adapters::ObserveError;
use converger_adapters::proxmox::ProxmoxError;
use converger_adapters::proxmox::observe::Needs;
use converger_adapters::replay::Replay;
use converger_core::desired::{self, Desired, NotNarrowed, Scope};
use converger_core::document::TEXT_BYTES_MAX;
use converger_core::failure::Code;
use converger_core::guest::{EnvironmentName, Vmid};
use converger_runtime::reader::{configuration_example, unconfigured_error};
use converger_runtime::{Config, EnvironmentReader, ObservationSource, Observed, Planned, RuntimeError, StateDirectory, StateLocation};

use super::Stop;
use super::display::Display;
use crate::cli::{Choice, Look, Source};
use crate::files::Text;
use crate::{config, diagnose, fatal, files, progress};

/// What is declared, and the configuration that a run is held to.
pub(super) struct RunInputs {
    pub(super) desired: Desired,
    pub(super) config: Config,
}

impl RunInputs {
    /// Reads both, and narrows the declared state to `--only`.
    pub(super) fn read(source: &Source, choice: &Choice) -> Result<Self, Stop> {
        let desired = read_desired(&source.desired)?;
        let config = load_config(source.look.config.as_deref(), desired.environment())?;
        let desired = if choice.only.is_empty() { desired } else { narrow(&desired, &choice.only)? };
        Ok(Self { desired, config })
    }

    /// The declared state, and a reader of its environment.
    pub(super) fn into_reader(self, display: &Arc<Display>) -> (Desired, EnvironmentReader) {
        let Self { desired, config } = self;
        let reader = open_reader(desired.environment().clone(), config, display);
        (desired, reader)
    }
}

pub(super) fn open_reader(environment: EnvironmentName, config: Config, display: &Arc<Display>) -> EnvironmentReader {
    EnvironmentReader::new(environment, Arc::new(config), Arc::clone(display) as _)
}

fn narrow(desired: &Desired, only: &[Vmid]) -> Result<Desired, Stop> {
    desired.narrowed(&Scope::new(only.to_vec())).map_err(|error| match error {
        NotNarrowed::Undeclared(vmid) => Stop::input(format!("guest {vmid} is not declared")).help("declare it, or correct --only"),
        NotNarrowed::Splits { vmid, named } => {
            Stop::input(format!("guest {vmid} comes after {named}, and --only names one of them")).help("name both, or neither")
        }
    })
}

/// Observes and plans as `audit`, `plan` and `apply --replay` do.
pub(super) async fn plan(source: &Source, choice: &Choice) -> Result<Planned, Stop> {
    let (desired, reader) = RunInputs::read(source, choice)?.into_reader(&Display::new());
    let from = observation_source(&source.look)?;
    require_source(&reader, &from)?;
    let waiting = replay_spinner(&source.look);
    let planned = reader.plan(desired, &from).await;
    drop(waiting);
    Ok(planned?)
}

/// Observes these guests: in a recording where one is named, otherwise in the environment itself.
pub(super) async fn observe(look: &Look, config: Config, environment: &EnvironmentName, scope: &Scope) -> Result<Observed, Stop> {
    let reader = open_reader(environment.clone(), config, &Display::new());
    let from = observation_source(look)?;
    require_source(&reader, &from)?;
    let waiting = replay_spinner(look);
    let observed = reader.observe(scope, Needs::Everything, &from).await;
    drop(waiting);
    Ok(observed?)
}

/// A command that only reads can use a recording instead, so the help says that too.
fn require_source(reader: &EnvironmentReader, source: &ObservationSource) -> Result<(), Stop> {
    if *source == ObservationSource::Live && reader.config().connection.is_none() {
        let help = format!("{}\nor name a recorded observation with --replay", configuration_example(reader.name().as_str()));
        return Err(Stop::from(unconfigured_error(reader.name())).help(help));
    }
    Ok(())
}

/// Standard input may be a person typing: nothing is drawn over that.
fn replay_spinner(look: &Look) -> Option<progress::Spinner> {
    let recording = look.replay.as_ref().filter(|recording| recording.as_path() != Path::new("-"))?;
    Some(progress::spinner(&format!("reading {}", files::shown(recording))))
}

fn observation_source(look: &Look) -> Result<ObservationSource, Stop> {
    let Some(recording) = &look.replay else { return Ok(ObservationSource::Live) };
    if recording == Path::new("-") {
        return Ok(ObservationSource::Recording(Replay::Stdin));
    }
    // A pipe would be waited for without a word, and a device has no end.
    files::answers(recording).map_err(|error| unreadable(&files::shown(recording), &error))?;
    Ok(ObservationSource::Recording(Replay::File(recording.clone())))
}

pub(super) fn load_config(named: Option<&Path>, environment: &EnvironmentName) -> Result<Config, Stop> {
    config::load(named, environment).map_err(|unusable| match unusable.code {
        Code::EnvironmentUnconfigured => {
            let help = format!("correct the name of the environment, or {}", configuration_example(environment.as_str()));
            Stop::input(unusable.text).code(unusable.code).help(help)
        }
        _ => RuntimeError::from(unusable).into(),
    })
}

/// Opens the state directory that converger.toml names, for writing.
pub(super) async fn open_state(config: Option<&Path>, environment: &EnvironmentName) -> Result<StateDirectory, Stop> {
    open_state_of(&load_config(config, environment)?).await
}

pub(super) async fn open_state_of(config: &Config) -> Result<StateDirectory, Stop> {
    Ok(StateDirectory::open(&StateLocation::from_config(config)?, fatal::end_process()).await?)
}

pub(super) fn read_desired(path: &Path) -> Result<Desired, Stop> {
    read_declared(path).map(|(_, desired)| desired)
}

/// The declared state together with its text.
pub(super) fn read_declared(path: &Path) -> Result<(Text, Desired), Stop> {
    let text = files::read(path).map_err(|error| unreadable(&files::shown(path), &error))?;
    if text.bytes.len() > TEXT_BYTES_MAX {
        let stop = Stop::input(format!("{} is larger than 1 GiB", text.name)).code(Code::InputInvalid);
        return Err(stop.help("declare the guests in several files"));
    }
    let desired = desired::parse(&text.bytes, files::notation(path))
        .map_err(|faults| Stop::faults(diagnose::render(&text.name, &text.bytes, &faults)))?;
    Ok((text, desired))
}

/// The environment of that name.
pub(super) fn parse_environment(name: &str) -> Result<EnvironmentName, Stop> {
    EnvironmentName::new(name).ok_or_else(|| {
        let stop = Stop::input(format!("`{}` is not the name of an environment", name.escape_debug()));
        stop.help("use lower-case letters, digits, `-` and `_`, at most 64")
    })
}

pub(super) fn unreadable(place: &str, error: &io::Error) -> Stop {
    let stop = Stop::input(format!("cannot read {place}: {error}")).code(Code::FileUnreadable);
    match error.kind() {
        io::ErrorKind::NotFound => stop.help("check the path; it is relative to the directory that you are in"),
        io::ErrorKind::PermissionDenied => stop.help("check who may read it with `ls -l`"),
        _ => stop.help("name a regular file that this user may read"),
    }
}

/// The system gives this process no more threads.
pub(super) fn no_thread(error: &io::Error) -> Stop {
    limited(format!("cannot begin a thread: {error}"), "look at the limits of this process and of its user (`ulimit -u`)")
}

/// The system does not give this process what it needs.
pub(super) fn limited(message: String, remedy: &str) -> Stop {
    Stop::failed(message).code(Code::ProcessLimited).help(more(remedy, Code::ProcessLimited))
}

/// What to do, and where more is said.
fn more(remedy: &str, code: Code) -> String {
    format!("{remedy} (`converger explain {}` says more)", code.word())
}

impl From<RuntimeError> for Stop {
    fn from(error: RuntimeError) -> Self {
        let (stop, fault) = match error {
            RuntimeError::Observe(error) => return unobserved(&error),
            RuntimeError::Input(fault) => (Self::input(fault.message()), fault),
            RuntimeError::Failed(fault) | RuntimeError::NotAccepting { fault, .. } => (Self::failed(fault.message()), fault),
            RuntimeError::Broken { fault, entry } => (Self::evidence_broken(fault.message()).at(entry), fault),
        };
        let stop = fault.help().map(str::to_owned).into_iter().fold(stop, Self::help);
        stop.code(fault.code())
    }
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

fn unread(error: &ProxmoxError) -> Stop {
    let stop = match error {
        // What converger.toml names cannot be used: nobody was asked yet.
        ProxmoxError::NoEndpoint => Stop::input(error.to_string()),
        ProxmoxError::Client(client) if client.is_of_the_configuration() => Stop::input(files::plain(&error.to_string())),
        ProxmoxError::Client(_) => Stop::failed(files::plain(&error.to_string())),
        _ => Stop::failed(error.to_string()),
    };
    let stop = stop.code(error.code());
    match (error.code(), error.remedy()) {
        (Some(code), Some(remedy)) => stop.help(more(remedy, code)),
        _ => stop,
    }
}
