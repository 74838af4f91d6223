//! The commands: each reads what it needs, calls the spine once, and shows or writes what came out.
//!
//! Artifacts and reports go to standard output, everything else to standard error.

mod apply;
mod decisions;
mod demo;
mod display;
mod doctor;
mod explain;
mod identity;
mod init;
mod inputs;
mod lab;
mod ledger;
mod ops;
mod people;
mod pin;
mod schema;
mod signals;
mod verify;

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use clap::CommandFactory;
use clap::error::ErrorKind;
use converger_core::artifact;
use converger_core::audit;
use converger_core::evidence::Wrong;
use converger_core::failure::Code;
use converger_core::observe::Scoped;
use converger_core::refusal::Refusal;
use converger_core::safety::Judged;
use converger_core::status;
use converger_runtime::{Planned, state_dir, witness};
use tokio::runtime::{Builder, Runtime};

use crate::cli::{Cli, Command, Reading, Source};
use crate::exit::End;
use crate::files::{OwnFile, Replaces};
use crate::{config, files, output, render, screen};

/// Runs a command to its end.
pub(crate) fn run(command: Command) -> End {
    let ended = timely(SystemTime::now()).and_then(|()| runtime()).and_then(|runtime| runtime.block_on(carried_out(command)));
    ended.unwrap_or_else(|stop| stop.report())
}

/// Files that a runtime opens, with its signals and a first connection.
const RUNTIME_FILES: usize = 8;

/// The one async runtime of the process. Only the watchdog for signals has another.
///
/// Whether its files can be opened is tried beforehand: tokio panics where the last of them cannot.
fn runtime() -> Result<Runtime, Stop> {
    let limited = |error: io::Error| {
        let message =
            format!("input and output cannot be set up ({error}); look at the limits of this process, such as that of open files");
        inputs::limited(files::plain(&message), Code::ProcessLimited.entry().remedy.trim_end_matches('.'))
    };
    let tried = (0..RUNTIME_FILES).map(|_| File::open("/dev/null")).collect::<io::Result<Vec<File>>>().map_err(limited)?;
    drop(tried);
    Builder::new_current_thread().enable_all().build().map_err(limited)
}

/// Certificates, readings and the journal are told by a clock that counts from 1970; one that stands before it would end in a panic.
fn timely(now: SystemTime) -> Result<(), Stop> {
    now.duration_since(SystemTime::UNIX_EPOCH).map(drop).map_err(|_| {
        Stop::failed("the clock of this machine stands before 1970, so that neither certificates nor ages can be told")
            .help("set the clock (`timedatectl`), then try again")
    })
}

async fn carried_out(command: Command) -> Result<End, Stop> {
    match command {
        Command::Audit(reading) => audit_command(&reading).await,
        Command::Plan { reading, out, overwrite } => plan_command(&reading, out, overwrite.overwrite).await,
        Command::Observe { source, out, overwrite, json } => observe_command(&source, out, overwrite.overwrite, json).await,
        Command::Apply(arguments) => apply::apply(&arguments).await,
        Command::Ops(which) => ops::ops(&which).await,
        Command::Environment(command) => identity::environment(&command).await,
        Command::Freeze(freezing) => people::freeze(&freezing).await,
        Command::Thaw(place) => people::thaw(&place).await,
        Command::Hold(holding) => people::hold(&holding).await,
        Command::Release(holding) => people::release(&holding).await,
        Command::Demo(arguments) => demo::demo(&arguments).await,
        Command::Lab(lab) => lab::lab(&lab).await,
        Command::Doctor(visit) => doctor::visit(&visit).await,
        Command::Init(adoption) => init::init(&adoption).await,
        Command::Pin(pinning) => pin::pin(&pinning).await,
        Command::Ledger(which) => ledger::ledger(&which).await,
        Command::Verify(arguments) => verify::verify(&arguments),
        Command::Reproduce(arguments) => decisions::reproduce_command(&arguments),
        Command::Diff(arguments) => decisions::diff(&arguments),
        Command::Backtest(arguments) => decisions::backtest(&arguments),
        Command::Explain { topic, source, json } => explain::explain(topic.as_deref(), &decisions::Place::of(&source), json),
        Command::Contract { json, verbose } => explain::contract(json, verbose),
        Command::Schema { format } => schema::schema(format),
        Command::Completions { shell } => completions(shell),
    }
}

/// What is said where no command runs: help and version to whoever asked for them, and what is wrong with the arguments.
pub(crate) fn unparsed(error: &clap::Error) -> End {
    let text = error.render().ansi().to_string();
    if !error.use_stderr() {
        return shown(write!(anstream::stdout(), "{text}"), End::Done).unwrap_or_else(Stop::report);
    }
    // The same form as every other error, so that the code can be looked up.
    let coded = format!("error[{}]:", Code::UsageWrong.word());
    let text = if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand { text } else { text.replacen("error:", &coded, 1) };
    let _ = write!(anstream::stderr(), "{text}");
    End::Input
}

/// Why a command ends before its work is done: the sentence for people, and how the program ends.
pub(crate) struct Stop {
    end: End,
    message: Message,
    help: Option<String>,
    /// The word of a failure or a refusal, under which `explain` has more.
    code: Option<&'static str>,
    /// What it is called, where it is neither an error nor a refusal.
    word: Option<&'static str>,
    /// The entry of the ledger that it was found at.
    index: Option<u64>,
}

/// What is said when a command stops.
pub(crate) enum Message {
    /// One sentence.
    Sentence(String),
    /// Text that was laid out already, such as faults with their lines.
    Laid(String),
}

impl Stop {
    /// What was asked for cannot be meant, unless a code says more.
    pub(crate) fn input(message: impl Into<String>) -> Self {
        Self::new(End::Input, Message::Sentence(message.into())).code(Code::UsageWrong)
    }

    /// A decision that no plan has: with its evidence and what to do.
    pub(crate) fn refused(refusal: &Refusal) -> Self {
        let entry = refusal.code().entry();
        Self { code: Some(entry.word), ..Self::new(End::Refused, Message::Sentence(render::evident(refusal))) }.help(refusal.remedy())
    }

    /// A decision of something that has no codes; the sentence says what and why.
    pub(crate) fn decided(message: impl Into<String>) -> Self {
        Self::new(End::Refused, Message::Sentence(message.into()))
    }

    /// A person was asked and did not say yes. No rule refused anything; for scripts it ends as what was not approved.
    pub(crate) fn declined(message: impl Into<String>) -> Self {
        Self { word: Some("not carried out"), ..Self::decided(message) }
    }

    pub(crate) fn faults(laid: String) -> Self {
        Self::new(End::Input, Message::Laid(laid)).code(Code::InputInvalid)
    }

    pub(crate) fn failed(message: impl Into<String>) -> Self {
        Self::new(End::Failed, Message::Sentence(message.into()))
    }

    /// The evidence is broken: exit status 6, whatever else is wrong.
    pub(crate) fn broken(code: Code, message: impl Into<String>) -> Self {
        Self::evidence_broken(message).help(code.entry().remedy).code(code)
    }

    /// The same without a code.
    fn evidence_broken(message: impl Into<String>) -> Self {
        Self::new(End::Broken, Message::Sentence(message.into()))
    }

    fn new(end: End, message: Message) -> Self {
        Self { end, message, help: None, code: None, word: None, index: None }
    }

    /// The same with the code of the failure, under which `explain` has more. How that ends one table says, whatever was meant here.
    pub(crate) fn code(mut self, code: impl Into<Option<Code>>) -> Self {
        if let Some(code) = code.into() {
            self.end = End::of_exit(status::of_failure(code).exit);
            self.code = Some(code.word());
        }
        self
    }

    pub(crate) fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }

    /// The same where something else is held, which outweighs a refusal.
    pub(crate) fn beside(mut self, other: End) -> Self {
        if self.end == End::Refused && other == End::Held {
            self.end = End::Held;
        }
        self
    }

    /// The same where something else stopped it before, which is told now: the worse of both ends decides.
    pub(crate) fn after(mut self, first: Self) -> Self {
        self.end = self.end.or_worse(first.report());
        self
    }

    /// The same, found at this entry of the ledger.
    pub(crate) fn at(mut self, index: impl Into<Option<u64>>) -> Self {
        self.index = index.into();
        self
    }

    /// The entry of the ledger that it was found at.
    pub(crate) fn index(&self) -> Option<u64> {
        self.index
    }

    /// Whether evidence is broken.
    pub(crate) fn is_broken(&self) -> bool {
        self.end == End::Broken
    }

    /// The word of its code.
    pub(crate) fn code_word(&self) -> Option<&'static str> {
        self.code
    }

    /// What to do about it.
    pub(crate) fn remedy(&self) -> Option<&str> {
        self.help.as_deref()
    }

    /// What is said, without what to do about it.
    pub(crate) fn sentence(&self) -> String {
        match &self.message {
            Message::Sentence(text) | Message::Laid(text) => text.clone(),
        }
    }

    fn report(self) -> End {
        // Standard error may be gone too; there is nobody left to tell then.
        let word = self.word.unwrap_or(if matches!(self.end, End::Refused | End::Held) { "refused" } else { "error" });
        let said = render::stop(word, &self.message, self.code, self.help.as_deref());
        let _ = write!(anstream::stderr(), "{}", screen::err(&said));
        self.end
    }
}

impl From<Wrong> for Stop {
    fn from(Wrong { code, index, what }: Wrong) -> Self {
        Self::broken(code, what).at(index)
    }
}

/// A reader that went away (`| head`) is not a failure of ours: the end stays what the work came to.
fn shown(written: io::Result<()>, end: End) -> Result<End, Stop> {
    match written.and_then(|()| io::stdout().flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(unshown(&error)),
        _ => Ok(end),
    }
}

/// What was to be said did not arrive.
fn unshown(error: &io::Error) -> Stop {
    Stop::failed(format!("cannot write to standard output: {error}"))
        .code(Code::OutputUnwritable)
        .help("whoever reads it has only a part, or nothing; look at where the output goes, and at the room there")
}

async fn audit_command(reading: &Reading) -> Result<End, Stop> {
    let outcome = inputs::plan(&reading.source, &reading.choice).await?;
    show(&outcome, reading)
}

async fn plan_command(reading: &Reading, out: Option<PathBuf>, overwrite: bool) -> Result<End, Stop> {
    let replaces = Replaces::own(OwnFile::PLAN, overwrite);
    let out = out.or_else(|| (!reading.json).then(|| "plan.json".into()));
    if let Some(path) = &out {
        not_an_input(path, &reading.source, None)?;
        may_replace(path, replaces)?;
    }
    let outcome = inputs::plan(&reading.source, &reading.choice).await?;
    if let Some(path) = &out {
        let digest = files::replace(path, replaces, |file| artifact::write_plan(file, &outcome.judged, outcome.provenance))
            .map_err(|error| unwritten(path, &error))?;
        let _ = writeln!(anstream::stderr(), "{}", render::wrote(path, Some(&digest.to_string())));
    }
    show(&outcome, reading)
}

async fn observe_command(source: &Source, out: Option<PathBuf>, overwrite: bool, json: bool) -> Result<End, Stop> {
    let replaces = Replaces::own(OwnFile::OBSERVATION, overwrite);
    let out = match out {
        None if json => None,
        None if overwrite => Some("current.json".into()),
        None => Some(new_file("current.json")?),
        named => named,
    };
    if let Some(path) = &out {
        not_an_input(path, source, None)?;
        may_replace(path, replaces)?;
    }
    let desired = inputs::read_desired(&source.desired)?;
    let config = inputs::load_config(source.look.config.as_deref(), desired.environment())?;
    let observation = inputs::observe(&source.look, config, desired.environment(), &desired.scope()).await?.observation;
    if let Some(path) = &out {
        files::replace(path, replaces, |file| artifact::write_observation(file, &observation)).map_err(|error| unwritten(path, &error))?;
        let _ = writeln!(anstream::stderr(), "{}", render::wrote(path, None));
    }
    let written = if json { observation_json(&observation) } else { observation_text(&observation, desired.guests().len()) };
    shown(written, End::Done)
}

fn observation_json(observation: &Scoped) -> io::Result<()> {
    output::json(|out| artifact::write_observation(out, observation))
}

fn observation_text(observation: &Scoped, scope: usize) -> io::Result<()> {
    write!(anstream::stdout(), "{}", render::observation(observation, scope))
}

fn show(outcome: &Planned, reading: &Reading) -> Result<End, Stop> {
    show_outcome(outcome, reading.json, reading.all)
}

fn show_outcome(outcome: &Planned, json: bool, all: bool) -> Result<End, Stop> {
    let end = audit::conclude(&outcome.judged).into();
    let written = if json {
        output::json(|out| artifact::write_plan(out, &outcome.judged, outcome.provenance).map(|_| ()))
    } else {
        report(&outcome.judged, &outcome.origin, all)
    };
    shown(written, end)
}

fn report(judged: &Judged, origin: &str, all: bool) -> io::Result<()> {
    let mut out = io::BufWriter::new(anstream::stdout().lock());
    out.write_all(screen::out(&render::report_text(judged, origin, all)?).as_bytes())?;
    out.flush()
}

/// A recording is evidence: one that is there is replaced only by whoever names it.
fn new_file(name: &str) -> Result<PathBuf, Stop> {
    let path = PathBuf::from(name);
    if path.symlink_metadata().is_ok() {
        let stop = Stop::input(format!("{name} is there already")).code(Code::FileTaken);
        return Err(stop.help(format!("name another file with --out, or `--out {name}` to replace a recording")));
    }
    Ok(path)
}

/// Writing over what is read would destroy it, and so would writing over what is kept.
fn not_an_input(out: &Path, source: &Source, saved: Option<&PathBuf>) -> Result<(), Stop> {
    let inputs = [Some(&source.desired), source.look.replay.as_ref(), saved];
    match inputs.into_iter().flatten().find(|input| files::are_one(out, input)) {
        Some(input) => Err(taken(input, "it is read")),
        None => not_kept(out, source.look.config.as_deref()),
    }
}

/// Neither the state nor the configuration is written over.
fn not_kept(out: &Path, config: Option<&Path>) -> Result<(), Stop> {
    let leads_to = config::leads_to(config);
    if let Some(input) = config::path(config).iter().chain(&leads_to.files).find(|input| files::are_one(out, input)) {
        return Err(taken(input, "the configuration is there, or leads there"));
    }
    if let Some(witness) = leads_to.witness.filter(|witness| witness::keeps(witness, out)) {
        return Err(taken(&witness, "the witness of the ledger is kept there"));
    }
    match state_dir::locate_directory(leads_to.state.as_deref()) {
        Ok(directory) if converger_store::keeps(&directory, out) => Err(taken(out, "the state is kept there")),
        _ => Ok(()),
    }
}

fn taken(path: &Path, why: &str) -> Stop {
    let stop = Stop::input(format!("{} would be written over, but {why}", files::shown(path))).code(Code::FileTaken);
    stop.help("name another file with --out")
}

/// A file of another kind in the place of an output is refused before any work is done.
fn may_replace(path: &Path, replaces: Replaces<'_>) -> Result<(), Stop> {
    match files::is_replaceable(path, replaces) {
        Err(error) if files::is_taken(&error) => Err(unwritten(path, &error)),
        // Whatever else is wrong is told when the file is written.
        _ => Ok(()),
    }
}

fn unwritten(path: &Path, error: &io::Error) -> Stop {
    if files::is_taken(error) {
        return Stop::input(format!("{} is not replaced: {error}", files::shown(path)))
            .code(Code::FileTaken)
            .help("name another file, or add `--overwrite` to replace this one");
    }
    Stop::failed(format!("cannot write {}: {error}", files::shown(path)))
        .code(Code::FileUnwritable)
        .help(format!("{}an older file there is still whole", limit(error)))
}

/// What keeps files from growing may be a limit of the process, which `ls` and `df` do not show.
fn limit(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::FileTooLarge => "look at the limit of this process (`ulimit -f`); nothing was changed, and ",
        _ => "nothing was changed; ",
    }
}

fn completions(shell: clap_complete::Shell) -> Result<End, Stop> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "converger", &mut script);
    shown(io::stdout().write_all(&script), End::Done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_before_1970_is_told_and_nothing_is_begun() {
        let before = SystemTime::UNIX_EPOCH - std::time::Duration::from_secs(1);
        assert_eq!(timely(before).map_err(|stop| stop.end), Err(End::Failed));
        assert!(timely(SystemTime::UNIX_EPOCH).is_ok());
    }
}
