//! The commands: each reads its inputs, calls the run library once, and shows or writes the result.
//!
//! Artifacts and reports go to standard output, everything else to standard error.

mod action;
mod apply;
mod decisions;
mod demo;
mod display;
mod doctor;
mod environment;
mod explain;
mod guests;
mod holds;
mod init;
mod inputs;
mod lab;
mod ledger;
mod ops;
mod pin;
mod run;
mod schema;
mod signals;
mod store;
mod verify;

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use clap::CommandFactory;
use clap::error::ErrorKind;
use converger_core::artifact::{self, Digest};
use converger_core::audit;
use converger_core::evidence::LedgerFault;
use converger_core::failure::FailureCode;
use converger_core::observe::Scoped;
use converger_core::refusal::Refusal;
use converger_core::safety::Judged;
use converger_core::status::{self, RunEnd};
use converger_runtime::config::ConfigFaults;
use converger_runtime::{ConfigSource, EnvironmentReader, Planned, state_dir, witness};
use tokio::runtime::{Builder, Runtime};

use crate::cli::{Cli, CliCommand, DesiredArgs, PlanArgs};
use crate::exit_status::ExitStatus;
use crate::files::{OwnFile, Replaces};
use crate::render::ReportOptions;
use crate::{diagnostics, files, host, line_wrap, output, render, verbosity};

/// Runs a command to its end.
pub(crate) fn run(command: CliCommand) -> ExitStatus {
    let result =
        check_system_clock(SystemTime::now()).and_then(|()| runtime()).and_then(|runtime| runtime.block_on(dispatch_command(command)));
    result.unwrap_or_else(|stop| stop.report())
}

/// The number of files that a runtime opens, including its signals and a first connection.
const RUNTIME_FILES: usize = 8;

/// The one async runtime of the process. Only the watchdog for signals has another.
///
/// Opening files is tried first, because tokio panics if it cannot open its last one.
fn runtime() -> Result<Runtime, CommandError> {
    let limited = |error: io::Error| {
        let message = format!("cannot set up input and output: {error}");
        inputs::limited(files::escape_hidden(&message), FailureCode::ProcessLimited.entry().remedy.trim_end_matches('.'))
    };
    let tried = (0..RUNTIME_FILES).map(|_| File::open("/dev/null")).collect::<io::Result<Vec<File>>>().map_err(limited)?;
    drop(tried);
    Builder::new_current_thread().enable_all().build().map_err(limited)
}

/// The last second of the year 9999, which is the last one that artifacts can state.
const LAST_SECOND: u64 = 253_402_300_799;

/// Certificates, observations and the journal use times since 1970 with years of four digits; another clock would end in a panic, or in records
/// that cannot be read again.
fn check_system_clock(now: SystemTime) -> Result<(), CommandError> {
    let since_epoch = now.duration_since(SystemTime::UNIX_EPOCH).ok();
    since_epoch.filter(|since| since.as_secs() <= LAST_SECOND).map(drop).ok_or_else(|| {
        let side = if since_epoch.is_none() { "before 1970" } else { "after the year 9999" };
        CommandError::failure(format!("the clock of this machine is set {side}, so neither certificates nor ages can be checked"))
            .with_help("set the clock (`timedatectl`), then run the command again")
    })
}

async fn dispatch_command(command: CliCommand) -> Result<ExitStatus, CommandError> {
    match command {
        CliCommand::Audit(reading) => run_audit(&reading).await,
        CliCommand::Plan { arguments: reading, out, record, overwrite } => {
            run_plan(&reading, out, record.record, overwrite.overwrite).await
        }
        CliCommand::Observe { source, out, overwrite, json } => run_observe(&source, out, overwrite.overwrite, json).await,
        CliCommand::Apply(arguments) => apply::apply(&arguments).await,
        CliCommand::Action(arguments) => action::run_action(&arguments).await,
        CliCommand::Ops(which) => ops::run_ops(&which).await,
        CliCommand::Environment(command) => environment::run_environment(&command).await,
        CliCommand::Freeze(freeze_arguments) => holds::freeze(&freeze_arguments).await,
        CliCommand::Thaw(target) => holds::thaw(&target).await,
        CliCommand::Hold(hold_arguments) => holds::hold(&hold_arguments).await,
        CliCommand::Release(release_arguments) => holds::release(&release_arguments).await,
        CliCommand::Demo(arguments) => demo::run_demo(&arguments).await,
        CliCommand::Lab(lab) => lab::run_lab(&lab).await,
        CliCommand::Doctor(doctor_arguments) => doctor::run_doctor(&doctor_arguments).await,
        CliCommand::Guests(arguments) => guests::list_guests(&arguments).await,
        CliCommand::Init(init_arguments) => init::init(&init_arguments).await,
        CliCommand::Pin(pin_arguments) => pin::pin(&pin_arguments).await,
        CliCommand::Ledger(which) => ledger::run_ledger(&which).await,
        CliCommand::Store(command) => store::run_store(&command).await,
        CliCommand::Verify(arguments) => verify::verify(&arguments),
        CliCommand::Reproduce(arguments) => decisions::run_reproduce(&arguments),
        CliCommand::Diff(arguments) => decisions::run_diff(&arguments),
        CliCommand::Backtest(arguments) => decisions::run_backtest(&arguments),
        CliCommand::Explain { topic, source, json } => {
            explain::explain(topic.as_deref(), &decisions::DecisionLocation::from_source(&source), json)
        }
        CliCommand::Contract { json } => explain::check_contract(json, verbosity::is_verbose()),
        CliCommand::Schema { format } => schema::print_schema(format),
        CliCommand::Completions { shell } => print_completions(shell),
    }
}

/// Prints help, the version, or what is wrong with the arguments.
pub(crate) fn report_usage_error(error: &clap::Error) -> ExitStatus {
    let text = error.render().ansi().to_string();
    if !error.use_stderr() {
        return finish_output(write!(anstream::stdout(), "{text}"), ExitStatus::Done).unwrap_or_else(CommandError::report);
    }
    // The same form as every other error, so that the code can be looked up.
    let coded = format!("error[{}]:", FailureCode::UsageWrong.word());
    let text = if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand { text } else { text.replacen("error:", &coded, 1) };
    let _ = write!(anstream::stderr(), "{text}");
    ExitStatus::Input
}

/// Why a command ends early: the message and the exit status.
pub(crate) struct CommandError {
    status: ExitStatus,
    message: ErrorMessage,
    help: Option<String>,
    /// The word of a failure or refusal code, which `explain` describes.
    code: Option<&'static str>,
    /// The label, if it is neither an error nor a refusal.
    label: Option<&'static str>,
    /// The index of the ledger entry at which it was found.
    entry_index: Option<u64>,
}

/// The message of an error.
pub(crate) enum ErrorMessage {
    /// One sentence.
    Sentence(String),
    /// Text that is rendered already, such as faults with their lines.
    Preformatted(String),
}

impl CommandError {
    /// An argument or an input is wrong; `usage-wrong` unless another code is given.
    pub(crate) fn input_error(message: impl Into<String>) -> Self {
        Self::new(ExitStatus::Input, ErrorMessage::Sentence(message.into())).with_code(FailureCode::UsageWrong)
    }

    /// A refusal outside a plan, with its evidence and remedy.
    pub(crate) fn refusal_error(refusal: &Refusal) -> Self {
        let entry = refusal.code().entry();
        Self { code: Some(entry.word), ..Self::new(ExitStatus::Refused, ErrorMessage::Sentence(render::describe_refusal(refusal))) }
            .with_help(refusal.remedy())
    }

    /// A refusal without a code.
    pub(crate) fn uncoded_refusal_error(message: impl Into<String>) -> Self {
        Self::new(ExitStatus::Refused, ErrorMessage::Sentence(message.into()))
    }

    /// A person was asked for confirmation and declined. The exit status is that of a missing approval.
    pub(crate) fn declined_error(message: impl Into<String>) -> Self {
        Self { label: Some("not carried out"), ..Self::uncoded_refusal_error(message) }
    }

    /// A file has faults, which are rendered already.
    pub(crate) fn diagnostics_error(rendered: String) -> Self {
        Self::new(ExitStatus::Input, ErrorMessage::Preformatted(rendered)).with_code(FailureCode::InputInvalid)
    }

    /// converger.toml has faults.
    pub(crate) fn config_error(faults: &ConfigFaults) -> Self {
        Self::diagnostics_error(diagnostics::render_config_faults(faults)).with_code(FailureCode::ConfigInvalid)
    }

    pub(crate) fn failure(message: impl Into<String>) -> Self {
        Self::new(ExitStatus::Failed, ErrorMessage::Sentence(message.into()))
    }

    /// The evidence is broken: exit status 6.
    pub(crate) fn evidence_error(code: FailureCode, message: impl Into<String>) -> Self {
        Self::evidence_broken(message).with_help(code.entry().remedy).with_code(code)
    }

    /// The same without a code.
    fn evidence_broken(message: impl Into<String>) -> Self {
        Self::new(ExitStatus::Broken, ErrorMessage::Sentence(message.into()))
    }

    fn new(end: ExitStatus, message: ErrorMessage) -> Self {
        Self { status: end, message, help: None, code: None, label: None, entry_index: None }
    }

    /// The same with a failure code. The exit status follows from the code.
    pub(crate) fn with_code(mut self, code: impl Into<Option<FailureCode>>) -> Self {
        if let Some(code) = code.into() {
            self.status = ExitStatus::from_exit_number(status::failure_status(code).exit);
            self.code = Some(code.word());
            // A failure stays an error where an operation is held because of it.
            self.label = self.label.or(Some("error"));
        }
        self
    }

    pub(crate) fn with_help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }

    /// The same as the reason why a run ended, which decides the exit status.
    pub(crate) fn with_end(mut self, end: RunEnd) -> Self {
        self.status = end.into();
        self
    }

    /// The same after an earlier error, which is reported now; the worse exit status of both counts.
    pub(crate) fn report_earlier(mut self, first: Self) -> Self {
        self.status = self.status.worse_of(first.report());
        self
    }

    /// The same, found at this entry of the ledger.
    pub(crate) fn at_entry(mut self, index: impl Into<Option<u64>>) -> Self {
        self.entry_index = index.into();
        self
    }

    /// The index of the ledger entry at which it was found.
    pub(crate) fn entry_index(&self) -> Option<u64> {
        self.entry_index
    }

    /// Whether evidence is broken.
    pub(crate) fn is_broken(&self) -> bool {
        self.status == ExitStatus::Broken
    }

    /// The word of its code.
    pub(crate) fn code_word(&self) -> Option<&'static str> {
        self.code
    }

    /// What to do about it.
    pub(crate) fn remedy(&self) -> Option<&str> {
        self.help.as_deref()
    }

    /// The message without the help.
    pub(crate) fn message_text(&self) -> String {
        match &self.message {
            ErrorMessage::Sentence(text) | ErrorMessage::Preformatted(text) => text.clone(),
        }
    }

    fn report(self) -> ExitStatus {
        // If standard error is closed too, nothing can be reported.
        let label = self.label.unwrap_or(if matches!(self.status, ExitStatus::Refused | ExitStatus::Held) { "refused" } else { "error" });
        let text = render::render_error(label, &self.message, self.code, self.help.as_deref());
        // Wrapping would move the carets of a diagnostic away from what they point at.
        let text = if matches!(self.message, ErrorMessage::Preformatted(_)) { text } else { line_wrap::wrap_for_stderr(&text) };
        let _ = write!(anstream::stderr(), "{text}");
        self.status
    }
}

impl From<LedgerFault> for CommandError {
    fn from(LedgerFault { code, index, what }: LedgerFault) -> Self {
        Self::evidence_error(code, what).at_entry(index)
    }
}

/// A reader that closes the pipe early (`| head`) is not a failure: the exit status is that of the work.
fn finish_output(written: io::Result<()>, end: ExitStatus) -> Result<ExitStatus, CommandError> {
    match written.and_then(|()| io::stdout().flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(output_error(&error)),
        _ => Ok(end),
    }
}

/// Standard output could not be written.
fn output_error(error: &io::Error) -> CommandError {
    CommandError::failure(format!("cannot write to standard output: {error}"))
        .with_code(FailureCode::OutputUnwritable)
        .with_help("the reader has only a part of the output or nothing; check where the output goes, and the free space there")
}

async fn run_audit(reading: &PlanArgs) -> Result<ExitStatus, CommandError> {
    let config = ConfigSource::read(reading.source.observation.config.as_deref());
    let outcome = inputs::plan(&reading.source, &reading.filter, &config).await?;
    show_plan(&outcome, reading)
}

async fn run_plan(reading: &PlanArgs, out: Option<PathBuf>, is_recorded: bool, overwrite: bool) -> Result<ExitStatus, CommandError> {
    let replaces = Replaces::own(OwnFile::PLAN, overwrite);
    let out = out.or_else(|| (!reading.json).then(|| "plan.json".into()));
    let config = ConfigSource::read(reading.source.observation.config.as_deref());
    if let Some(path) = &out {
        check_output_is_no_input(path, &reading.source.files(), &config)?;
        check_output_replaceable(path, replaces)?;
    }
    let (reader, outcome) = inputs::plan_with_reader(&reading.source, &reading.filter, &config).await?;
    if let Some(path) = &out {
        write_plan_file(path, replaces, &outcome)?;
    }
    if is_recorded {
        record_plan(&reader, &outcome).await?;
    }
    show_plan(&outcome, reading)
}

/// Writes a plan to its file, and prints the digest that confirms it.
fn write_plan_file(path: &Path, replaces: Replaces<'_>, planned: &Planned) -> Result<(), CommandError> {
    files::replace(path, replaces, |file| artifact::write_plan(file, &planned.judged, planned.provenance))
        .map_err(|error| write_error(path, &error))?;
    output::print_notice(&render::render_written_file(path, Some(&proposal_of(&planned.judged)?.to_string())));
    Ok(())
}

/// Keeps a plan in the ledger. Nothing else is written (G5).
async fn record_plan(reader: &EnvironmentReader, planned: &Planned) -> Result<(), CommandError> {
    let state = inputs::open_state(reader.config()).await?;
    let run = converger_runtime::record::record_plan(&state, reader, planned, &host::actor()).await?;
    output::print_notice(&render::apply_style(render::DIM, format!("recorded the plan as run {}", run.as_str())));
    Ok(())
}

/// The digest that `--confirm` needs.
fn proposal_of(judged: &Judged) -> Result<Digest, CommandError> {
    artifact::proposal_digest(judged.plan(), judged.judgement()).map_err(|error| unwritable_plan(&error))
}

/// A plan that cannot be encoded.
fn unwritable_plan(error: &io::Error) -> CommandError {
    CommandError::failure(format!("cannot write the plan: {error}"))
}

async fn run_observe(source: &DesiredArgs, out: Option<PathBuf>, overwrite: bool, json: bool) -> Result<ExitStatus, CommandError> {
    let replaces = Replaces::own(OwnFile::OBSERVATION, overwrite);
    let out = match out {
        None if json => None,
        None if overwrite => Some("current.json".into()),
        None => Some(new_output_path("current.json")?),
        named => named,
    };
    let config = ConfigSource::read(source.observation.config.as_deref());
    if let Some(path) = &out {
        check_output_is_no_input(path, &source.files(), &config)?;
        check_output_replaceable(path, replaces)?;
    }
    let desired = inputs::read_desired(&source.desired)?;
    let config = inputs::environment_config(&config, desired.environment())?;
    let observation = inputs::observe(&source.observation, config, desired.environment(), &desired.scope().into()).await?.observation;
    if let Some(path) = &out {
        files::replace(path, replaces, |file| artifact::write_observation(file, &observation))
            .map_err(|error| write_error(path, &error))?;
        output::print_notice(&render::render_written_file(path, None));
    }
    let written = if json { print_observation_json(&observation) } else { print_observation_text(&observation, desired.guests().len()) };
    finish_output(written, ExitStatus::Done)
}

fn print_observation_json(observation: &Scoped) -> io::Result<()> {
    output::print_json(|out| artifact::write_observation(out, observation))
}

fn print_observation_text(observation: &Scoped, scope: usize) -> io::Result<()> {
    write!(anstream::stdout(), "{}", render::render_observation(observation, scope))
}

fn show_plan(outcome: &Planned, reading: &PlanArgs) -> Result<ExitStatus, CommandError> {
    show_plan_outcome(outcome, reading.json, ReportOptions::new(verbosity::current()).with_converged(reading.all))
}

fn show_plan_outcome(outcome: &Planned, json: bool, options: ReportOptions) -> Result<ExitStatus, CommandError> {
    let end = audit::conclude_audit(&outcome.judged).into();
    let written = if json {
        output::print_json(|out| artifact::write_plan(out, &outcome.judged, outcome.provenance).map(|_| ()))
    } else {
        print_report(&outcome.judged, &outcome.origin, options)
    };
    finish_output(written, end)
}

fn print_report(judged: &Judged, origin: &str, options: ReportOptions) -> io::Result<()> {
    let mut out = io::BufWriter::new(anstream::stdout().lock());
    out.write_all(line_wrap::wrap_for_stdout(&render::render_report(judged, origin, options)).as_bytes())?;
    out.flush()
}

/// A recording is evidence: an existing one is replaced only if it is named with --out.
fn new_output_path(name: &str) -> Result<PathBuf, CommandError> {
    let path = PathBuf::from(name);
    if path.symlink_metadata().is_ok() {
        let stop = CommandError::input_error(format!("{name} exists already")).with_code(FailureCode::FileTaken);
        return Err(stop.with_help(format!("name another file with --out, or `--out {name}` to replace a recording")));
    }
    Ok(path)
}

/// The output must be neither an input nor a part of the state.
fn check_output_is_no_input(out: &Path, inputs: &[Option<&PathBuf>], config: &ConfigSource) -> Result<(), CommandError> {
    match inputs.iter().copied().flatten().find(|input| files::are_same_file(out, input)) {
        Some(input) => Err(output_taken_error(input, "the command reads it")),
        None => check_output_is_no_state(out, config),
    }
}

/// The output must be neither a part of the state nor of the configuration.
fn check_output_is_no_state(out: &Path, config: &ConfigSource) -> Result<(), CommandError> {
    let leads_to = config.referenced_paths();
    let named = leads_to.files.iter().map(PathBuf::as_path);
    if let Some(input) = config.path().into_iter().chain(named).find(|input| files::are_same_file(out, input)) {
        return Err(output_taken_error(input, "it is the configuration, or a file that the configuration names"));
    }
    if let Some(witness) = leads_to.witness.filter(|witness| witness::is_witness_file(witness, out)) {
        return Err(output_taken_error(&witness, "it is the witness of the ledger"));
    }
    match state_dir::locate_directory(leads_to.state.as_deref()) {
        Ok(directory) if converger_store::is_state_file(&directory, out) => {
            Err(output_taken_error(out, "it belongs to the state directory"))
        }
        _ => Ok(()),
    }
}

fn output_taken_error(path: &Path, why: &str) -> CommandError {
    let stop = CommandError::input_error(format!("cannot write {}: {why}", files::display_path(path))).with_code(FailureCode::FileTaken);
    stop.with_help("name another file with --out")
}

/// Refuses to replace a file of another kind before any work is done.
fn check_output_replaceable(path: &Path, replaces: Replaces<'_>) -> Result<(), CommandError> {
    match files::check_replaceable(path, replaces) {
        Err(error) if files::is_taken(&error) => Err(write_error(path, &error)),
        // Other errors are reported when the file is written.
        _ => Ok(()),
    }
}

fn write_error(path: &Path, error: &io::Error) -> CommandError {
    if files::is_taken(error) {
        return CommandError::input_error(format!("{} is not replaced: {error}", files::display_path(path)))
            .with_code(FailureCode::FileTaken)
            .with_help("name another file, or add `--overwrite` to replace this one");
    }
    CommandError::failure(format!("cannot write {}: {error}", files::display_path(path)))
        .with_code(FailureCode::FileUnwritable)
        .with_help(format!("{}an older file there is unchanged", file_limit_hint(error)))
}

/// The size of files may be limited for the process, which `ls` and `df` do not show.
fn file_limit_hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::FileTooLarge => "check the limit of this process (`ulimit -f`); nothing was changed, and ",
        _ => "nothing was changed; ",
    }
}

fn print_completions(shell: clap_complete::Shell) -> Result<ExitStatus, CommandError> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut action::completion::add_actions(Cli::command()), "converger", &mut script);
    if shell == clap_complete::Shell::Bash {
        script.extend(action::completion::BASH_PARAMETERS.as_bytes());
    }
    finish_output(io::stdout().write_all(&script), ExitStatus::Done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_a_clock_before_1970_and_runs_nothing() {
        let before = SystemTime::UNIX_EPOCH - std::time::Duration::from_secs(1);
        assert_eq!(check_system_clock(before).map_err(|stop| stop.status), Err(ExitStatus::Failed));
        assert!(check_system_clock(SystemTime::UNIX_EPOCH).is_ok());
    }
}
