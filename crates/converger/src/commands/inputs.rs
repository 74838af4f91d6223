//! The inputs of commands: files with their diagnostics, names of environments, and the configuration.

use std::io::{self, Write as _};
use std::path::Path;
use std::sync::Arc;

use converger_adapters::ObserveError;
use converger_adapters::proxmox::ProxmoxError;
use converger_adapters::proxmox::observe::ReadSet;
use converger_adapters::replay::RecordingObserver;
use converger_core::artifact::PLAN_SCHEMA;
use converger_core::desired::{self, Desired, GuestSelection, NarrowError, Scope};
use converger_core::document::TEXT_BYTES_MAX;
use converger_core::failure::FailureCode;
use converger_core::guest::EnvironmentName;
use converger_core::intent::Intent;
use converger_core::observe::SCHEMA as OBSERVATION_SCHEMA;
use converger_runtime::expected_plan::ExpectedPlanError;
use converger_runtime::reader::{configuration_example, unconfigured_error};
use converger_runtime::{
    Config, ConfigSource, EnvironmentReader, Host, ObservationSource, Observed, Planned, RuntimeError, StateDirectory, StateLocation,
    state_dir,
};

use super::display::Display;
use super::{CommandError, lab};
use crate::cli::{DesiredArgs, EnvironmentArgs, GuestFilterArgs, ObservationArgs, select_guests};
use crate::files::InputText;
use crate::{diagnostics, fatal, files, output, progress};

/// The declared state and the configuration of a run.
pub(super) struct RunInputs {
    pub(super) desired: Desired,
    pub(super) config: Config,
}

impl RunInputs {
    /// Reads both, and narrows the declared state to `--only`.
    pub(super) fn read(source: &DesiredArgs, choice: &GuestFilterArgs, config: &ConfigSource) -> Result<Self, CommandError> {
        let desired = read_desired(&source.desired)?;
        let config = environment_config(config, desired.environment())?;
        let desired = if choice.only.is_empty() { desired } else { narrow(&desired, &select_guests(&choice.only))? };
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
    EnvironmentReader::new(environment, Arc::new(config), Host::system(), Arc::clone(display) as _)
}

fn narrow(desired: &Desired, only: &GuestSelection) -> Result<Desired, CommandError> {
    let scope = resolve_declared(desired, only, "--only")?;
    desired.narrow_to(&scope).map_err(|error| match error {
        NarrowError::Undeclared(vmid) => {
            CommandError::input_error(format!("guest {vmid} is not declared")).with_help("declare it, or correct --only")
        }
        NarrowError::Splits { vmid, named } => {
            CommandError::input_error(format!("guest {vmid} comes after {named}, and --only names only one of them"))
                .with_help("name both, or neither")
        }
    })
}

/// The selected ones of the declared guests. Ids that are named by themselves are in it whether they are declared or not.
pub(super) fn resolve_declared(desired: &Desired, selection: &GuestSelection, option: &str) -> Result<Scope, CommandError> {
    let declared = || desired.guests().iter().map(|guest| guest.vmid);
    if let Some(range) = selection.ranges().iter().find(|range| !declared().any(|vmid| range.contains(vmid))) {
        return Err(CommandError::input_error(format!("no guest with an id in {range} is declared"))
            .with_help(format!("declare some of these guests, or correct {option}")));
    }
    Ok(selection.resolve(declared()))
}

/// Observes and plans as `audit`, `plan` and `apply --replay` do.
pub(super) async fn plan(source: &DesiredArgs, choice: &GuestFilterArgs, config: &ConfigSource) -> Result<Planned, CommandError> {
    plan_with_reader(source, choice, config).await.map(|(_, planned)| planned)
}

/// The same, with the reader of the environment.
pub(super) async fn plan_with_reader(
    source: &DesiredArgs,
    choice: &GuestFilterArgs,
    config: &ConfigSource,
) -> Result<(EnvironmentReader, Planned), CommandError> {
    let (desired, reader) = RunInputs::read(source, choice, config)?.into_reader(&Display::new());
    let planned = plan_intent(desired.into(), &reader, &source.observation).await?;
    Ok((reader, planned))
}

/// Observes and plans without recording anything.
pub(super) async fn plan_intent(
    intent: Intent,
    reader: &EnvironmentReader,
    observation_arguments: &ObservationArgs,
) -> Result<Planned, CommandError> {
    let from = observation_source(observation_arguments)?;
    let config = observation_arguments.config.as_deref();
    require_source(reader, &from, config)?;
    let waiting = replay_spinner(observation_arguments);
    let planned = reader.plan(intent, &from).await;
    drop(waiting);
    let planned = planned.map_err(|error| observe_error(error, config))?;
    if let (ObservationSource::Live, Some(fault)) = (&from, find_state_fault(reader.config())) {
        output::print_warning(&format!("an apply would be refused: {fault}"));
    }
    Ok(planned)
}

/// Why the state directory cannot be opened for writing, although it can be read.
fn find_state_fault(config: &Config) -> Option<String> {
    let directory = state_dir::locate_directory(config.state.as_deref()).ok()?;
    converger_store::check_state_directory(&directory).err().map(|error| files::escape_hidden(&error.to_string()))
}

/// An observation that failed. The endpoints of a lab are closed while the lab does not run.
pub(super) fn observe_error(error: RuntimeError, config: Option<&Path>) -> CommandError {
    let stop = CommandError::from(error);
    match lab_hint(config) {
        Some(hint) if stop.code_word() == Some(FailureCode::EndpointUnreachable.word()) => stop.with_help(hint),
        _ => stop,
    }
}

/// What to do if nothing answers and the configuration was written by a lab.
pub(super) fn lab_hint(config: Option<&Path>) -> Option<String> {
    let path = converger_runtime::config::find_config_path(config).filter(|path| lab::is_lab_config(path))?;
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    Some(format!("is the lab running? `converger lab --into {}` starts it", files::shell_argument(directory)))
}

/// Observes these guests in a recording, if one is named, or else in the environment.
pub(super) async fn observe(
    observation_arguments: &ObservationArgs,
    config: Config,
    environment: &EnvironmentName,
    selection: &GuestSelection,
) -> Result<Observed, CommandError> {
    let reader = open_reader(environment.clone(), config, &Display::new());
    let from = observation_source(observation_arguments)?;
    let config = observation_arguments.config.as_deref();
    require_source(&reader, &from, config)?;
    let waiting = replay_spinner(observation_arguments);
    let observed = reader.observe(selection, ReadSet::Everything, &from).await;
    drop(waiting);
    observed.map_err(|error| observe_error(error, config))
}

/// Commands that only read can use a recording instead, which the help mentions.
fn require_source(reader: &EnvironmentReader, source: &ObservationSource, config: Option<&Path>) -> Result<(), CommandError> {
    if *source == ObservationSource::Live && reader.config().connection.is_none() {
        let help = format!("{}\nor name a recorded observation with --replay", example_in_config(config, reader.name().as_str()));
        return Err(CommandError::from(unconfigured_error(reader.name())).with_help(help));
    }
    Ok(())
}

/// No spinner while reading standard input: a person may be typing.
fn replay_spinner(observation_arguments: &ObservationArgs) -> Option<progress::Spinner> {
    let recording = observation_arguments.replay.as_ref().filter(|recording| recording.as_path() != Path::new("-"))?;
    Some(progress::start_spinner(&format!("reading {}", files::display_path(recording))))
}

fn observation_source(observation_arguments: &ObservationArgs) -> Result<ObservationSource, CommandError> {
    let Some(recording) = &observation_arguments.replay else { return Ok(ObservationSource::Live) };
    if recording == Path::new("-") {
        return Ok(ObservationSource::Recording(RecordingObserver::Stdin));
    }
    // Opening a pipe would block without a message, and a device has no end.
    files::check_readable(recording).map_err(|error| unreadable(&files::display_path(recording), &error))?;
    Ok(ObservationSource::Recording(RecordingObserver::File(recording.clone())))
}

/// How to configure an environment, in the file that `--config` names.
pub(super) fn example_in_config(config: Option<&Path>, environment: &str) -> String {
    let example = configuration_example(environment);
    config.map_or(example.clone(), |path| example.replace("converger.toml", &files::display_path(path)))
}

/// The configuration of an environment, out of the file that the command has read.
pub(super) fn environment_config(source: &ConfigSource, environment: &EnvironmentName) -> Result<Config, CommandError> {
    source.config(environment).map_err(|error| match error.code {
        FailureCode::EnvironmentUnconfigured => {
            let help = format!("correct the name of the environment, or {}", example_in_config(source.path(), environment.as_str()));
            CommandError::input_error(error.text).with_code(error.code).with_help(help)
        }
        _ => RuntimeError::from(error).into(),
    })
}

/// Opens the state directory that the configuration names, for writing.
pub(super) async fn open_state(config: &Config) -> Result<StateDirectory, CommandError> {
    Ok(StateDirectory::open(&StateLocation::from_config(config)?, fatal::end_process()).await?)
}

pub(super) fn read_desired(path: &Path) -> Result<Desired, CommandError> {
    read_declared(path).map(|(_, desired)| desired)
}

/// The declared state together with its text.
pub(super) fn read_declared(path: &Path) -> Result<(InputText, Desired), CommandError> {
    let text = files::read(path).map_err(|error| unreadable(&files::display_path(path), &error))?;
    if text.bytes.len() > TEXT_BYTES_MAX {
        let stop = CommandError::input_error(format!("{} is larger than 1 GiB", text.name)).with_code(FailureCode::InputInvalid);
        return Err(stop.with_help("declare the guests in several files"));
    }
    let desired = desired::parse(&text.bytes, files::detect_notation(path)).map_err(|faults| {
        other_document_error(&text.name, &text.bytes, "the declared state (desired.yaml) is needed here")
            .unwrap_or_else(|| CommandError::diagnostics_error(diagnostics::render_diagnostics(&text.name, &text.bytes, &faults)))
    })?;
    Ok((text, desired))
}

/// The one fault of a file that is another artifact of this program: every other fault would follow from that.
fn other_document_error(name: &str, bytes: &[u8], needed: &str) -> Option<CommandError> {
    #[derive(serde::Deserialize)]
    struct ArtifactHead {
        schema: String,
    }
    let ArtifactHead { schema } = serde_json::from_slice(bytes).ok()?;
    let kind = match schema.as_str() {
        PLAN_SCHEMA => "a plan",
        // A faulty observation is not another document.
        OBSERVATION_SCHEMA if !needed.contains("observation") => "an observation",
        _ => return None,
    };
    let stop = CommandError::input_error(format!("{name} is {kind} ({schema}); {needed}")).with_code(FailureCode::InputInvalid);
    Some(stop.with_help("name the other file; nothing was read from the environment"))
}

/// Reads a plan file as `plan` wrote it.
pub(super) fn read_plan_file<T>(path: &Path, parse: impl Fn(&[u8]) -> Result<T, ExpectedPlanError>) -> Result<T, CommandError> {
    let name = files::display_path(path);
    let text = files::read(path).map_err(|error| unreadable(&name, &error))?;
    parse(&text.bytes).map_err(|error| match error {
        ExpectedPlanError::Invalid { why, help } => CommandError::input_error(format!("{name} is not a plan: {why}")).with_help(help),
        ExpectedPlanError::RepeatedKeys(faults) => {
            CommandError::diagnostics_error(diagnostics::render_diagnostics(&name, &text.bytes, &faults))
                .with_help("save it again with `converger plan --out FILE`, and review that")
        }
        ExpectedPlanError::Recorded(refusal) => CommandError::refusal_error(&refusal),
    })
}

/// An environment and its configuration, which is read once per command.
pub(super) struct TargetEnvironment {
    pub(super) name: EnvironmentName,
    pub(super) config: Config,
}

impl TargetEnvironment {
    fn new(name: EnvironmentName, source: &ConfigSource) -> Result<Self, CommandError> {
        let config = environment_config(source, &name)?;
        Ok(Self { name, config })
    }
}

/// The environment of `--environment`, or the only one that is configured, which is printed.
///
/// A recording needs no converger.toml, but then the environment must be named.
pub(super) fn select_environment(named: Option<&str>, source: &ConfigSource, is_recorded: bool) -> Result<TargetEnvironment, CommandError> {
    if let Some(name) = named {
        return TargetEnvironment::new(parse_environment(name)?, source);
    }
    if is_recorded && source.path().is_none() {
        return Err(CommandError::input_error("no environment is named").with_help("name that of the recording with `--environment NAME`"));
    }
    let only = only_environment(source, "name the environment with `--environment NAME`")?;
    let _ = writeln!(anstream::stderr(), "environment: {only} (the only one that is configured)");
    TargetEnvironment::new(only, source)
}

/// The named environment, or the only one that is configured.
pub(super) fn resolve_environment(target: &EnvironmentArgs) -> Result<TargetEnvironment, CommandError> {
    let source = ConfigSource::read(target.config.as_deref());
    let name = match &target.environment {
        Some(name) => parse_environment(name)?,
        None => only_environment(
            &source,
            "name it as the first argument, such as `converger hold NAME 100`, `converger freeze NAME` or `converger ops list NAME`",
        )?,
    };
    TargetEnvironment::new(name, &source)
}

/// The only environment of converger.toml. With several, the error lists them; `help` says how to name one.
fn only_environment(source: &ConfigSource, help: &str) -> Result<EnvironmentName, CommandError> {
    let Some(path) = source.path() else {
        let stop = CommandError::input_error("there is no converger.toml in this directory, and --config names no other file");
        return Err(stop
            .with_code(FailureCode::EnvironmentUnconfigured)
            .with_help(format!("{}\nor name another file with `--config FILE`", configuration_example("lab"))));
    };
    let file = files::display_path(path);
    match source.environment_names().map_err(RuntimeError::from)?.as_slice() {
        [only] => Ok((*only).clone()),
        [] => {
            let stop = CommandError::input_error(format!("{file} has no environment")).with_code(FailureCode::EnvironmentUnconfigured);
            Err(stop.with_help(example_in_config(Some(path), "lab")))
        }
        several => {
            let all: Vec<&str> = several.iter().map(|name| name.as_str()).collect();
            Err(CommandError::input_error(format!("no environment is named, and {file} has {}: {}", all.len(), all.join(", ")))
                .with_help(help))
        }
    }
}

/// Parses the name of an environment.
pub(super) fn parse_environment(name: &str) -> Result<EnvironmentName, CommandError> {
    EnvironmentName::new(name).ok_or_else(|| {
        let stop = CommandError::input_error(format!("`{}` is not the name of an environment", name.escape_debug()));
        stop.with_help("use lower-case letters, digits, `-` and `_`, at most 64 characters")
    })
}

pub(super) fn unreadable(path: &str, error: &io::Error) -> CommandError {
    let stop = CommandError::input_error(format!("cannot read {path}: {error}")).with_code(FailureCode::FileUnreadable);
    match error.kind() {
        io::ErrorKind::NotFound => stop.with_help("check the path; it is relative to the current directory"),
        io::ErrorKind::PermissionDenied => stop.with_help("check who may read the file with `ls -l`"),
        _ => stop.with_help("name a regular file that this user may read"),
    }
}

/// A thread could not be started.
pub(super) fn no_thread(error: &io::Error) -> CommandError {
    limited(format!("cannot start a thread: {error}"), "check the limits of this process and of its user (`ulimit -u`)")
}

/// A limit of the operating system was reached.
pub(super) fn limited(message: String, remedy: &str) -> CommandError {
    CommandError::failure(message).with_code(FailureCode::ProcessLimited).with_help(more(remedy, FailureCode::ProcessLimited))
}

/// What to do, and where to read more.
fn more(remedy: &str, code: FailureCode) -> String {
    format!("{remedy} (see `converger explain {}`)", code.word())
}

impl From<RuntimeError> for CommandError {
    fn from(error: RuntimeError) -> Self {
        let (stop, fault) = match error {
            RuntimeError::Observe(error) => return unobserved(&error),
            RuntimeError::Config { file, .. } => return Self::config_error(&file),
            RuntimeError::Input(fault) => (Self::input_error(fault.message()), fault),
            RuntimeError::Failed(fault) | RuntimeError::NotAccepting { fault, .. } => (Self::failure(fault.message()), fault),
            RuntimeError::Broken { fault, entry } => (Self::evidence_broken(fault.message()).at_entry(entry), fault),
        };
        let stop = fault.help().map(str::to_owned).into_iter().fold(stop, Self::with_help);
        stop.with_code(fault.code())
    }
}

fn unobserved(error: &ObserveError) -> CommandError {
    match error {
        ObserveError::Unreadable { endpoint: path, source } => unreadable(&files::display_path(Path::new(path)), source),
        ObserveError::Malformed { endpoint: path, bytes, diagnostics } => {
            let name = files::display_path(Path::new(path));
            other_document_error(&name, bytes, "--replay needs an observation (current.json)")
                .unwrap_or_else(|| CommandError::diagnostics_error(diagnostics::render_diagnostics(&name, bytes, diagnostics)))
        }
        ObserveError::OtherEnvironment { .. } => {
            let stop = CommandError::input_error(error.to_string()).with_code(FailureCode::RecordingOther);
            stop.with_help("name a recording of the environment that the declared state names")
        }
        ObserveError::TooLarge { .. } => CommandError::input_error(error.to_string())
            .with_code(FailureCode::InputInvalid)
            .with_help("declare the guests in several files, and observe each"),
        ObserveError::Proxmox(error) => unread(error),
    }
}

fn unread(error: &ProxmoxError) -> CommandError {
    let stop = match error {
        // The configuration cannot be used; nothing was requested yet.
        ProxmoxError::NoEndpoint => CommandError::input_error(error.to_string()),
        ProxmoxError::Client(client) if client.is_configuration_fault() => {
            CommandError::input_error(files::escape_hidden(&error.to_string()))
        }
        ProxmoxError::Client(_) => CommandError::failure(files::escape_hidden(&error.to_string())),
        _ => CommandError::failure(error.to_string()),
    };
    let stop = stop.with_code(error.code());
    match (error.code(), error.remedy()) {
        (Some(code), Some(remedy)) => stop.with_help(more(remedy, code)),
        _ => stop,
    }
}
