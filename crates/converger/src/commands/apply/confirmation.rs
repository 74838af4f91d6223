//! The question before anything is done: a person's answer at a terminal, or a script's digest.

use std::io::{self, BufRead as _, IsTerminal as _, Write as _};
use std::pin::pin;
use std::thread;

use converger_core::approve::Confirmation;
use converger_core::artifact::Digest;
use converger_core::guest::Vmid;
use converger_engine::executor::RunSignal;
use converger_runtime::run::GoingDown;
use converger_runtime::{Environment, Question, Run};
use futures_util::future::{Either, select};
use rustix::termios::{QueueSelector, tcflush};
use tokio::sync::{oneshot, watch};

use super::super::{CommandError, inputs};
use super::next_steps;
use crate::cli::ApplyArgs;
use crate::render::{self, apply_style, quote_untrusted};
use crate::{files, host, progress};

/// Whether the digest given on the command line is one.
pub(super) fn check_digest(arguments: &ApplyArgs) -> Result<(), CommandError> {
    parse_digest(arguments).map(drop)
}

/// The digest that was given, if any.
fn parse_digest(arguments: &ApplyArgs) -> Result<Option<Digest>, CommandError> {
    let Some(text) = &arguments.confirm else { return Ok(None) };
    let digest = Digest::parse(text).ok_or_else(|| {
        let plan = next_steps::repeat_command_line("plan", arguments);
        CommandError::input_error("--confirm needs the full digest of the plan: `sha256:` and 64 digits")
            .with_help(format!("`{plan}` prints it"))
    })?;
    Ok(Some(digest))
}

/// What was answered, and how that ends the run where it was no.
pub(super) struct Answer {
    pub(super) confirmation: Confirmation,
    pub(super) declined: Option<CommandError>,
}

impl Answer {
    fn new(confirmation: Confirmation) -> Self {
        Self { confirmation, declined: None }
    }

    fn declined(by: Box<str>, why: String) -> Self {
        Self { confirmation: Confirmation::Declined { by }, declined: Some(CommandError::declined_error(why)) }
    }
}

/// The answer of the person at the terminal, or the digest that a script gave. Where nobody can be asked and no digest was given, there is none.
pub(super) async fn request_confirmation(arguments: &ApplyArgs, run: &Run, environment: &Environment) -> Result<Answer, CommandError> {
    let by: Box<str> = host::actor().into();
    if let Some(digest) = parse_digest(arguments)? {
        return Ok(Answer::new(Confirmation::FullDigest { by, digest }));
    }
    let Question::Confirm { going_down, left_out } = run.question() else { return Ok(Answer::new(Confirmation::None)) };
    if !has_terminal() {
        return Ok(Answer::new(Confirmation::None));
    }
    let person = ConfirmationPrompt { signal: environment.stop_sender().subscribe() };
    match person.ask(&format!("{} [yes/no] ", apply_style(render::BOLD, question_text(&left_out)))).await?.as_deref() {
        Some("yes") => {}
        Some(_) => return Ok(Answer::declined(by, "the answer was not `yes`; nothing was sent".to_owned())),
        None => return Ok(Answer::declined(by, UNANSWERED.to_owned())),
    }
    let mut names = Vec::new();
    for GoingDown { name, .. } in going_down {
        let question = format!("{} goes down by this. Type its name: ", apply_style(render::BOLD, quote_untrusted(&name)));
        match person.ask(&question).await? {
            // Each answer belongs to its own question: two names in each other's place confirm nothing.
            Some(typed) if *typed == *name => names.push(typed.into()),
            Some(typed) => return Ok(Answer::declined(by, mistyped_name_message(&name, &typed))),
            None => return Ok(Answer::declined(by, UNANSWERED.to_owned())),
        }
    }
    Ok(Answer::new(Confirmation::Typed { by, names }))
}

const UNANSWERED: &str = "nobody answered; nothing was sent";

fn mistyped_name_message(name: &str, typed: &str) -> String {
    format!("the name of {} was asked for, and `{}` was typed; nothing was sent", quote_untrusted(name), files::escape_hidden(typed))
}

/// What a yes is said to: what is left out is part of it.
fn question_text(left_out: &[Vmid]) -> String {
    let ids: Vec<String> = left_out.iter().map(ToString::to_string).collect();
    match ids.as_slice() {
        [] => "Carry this out?".to_owned(),
        [one] => format!("Carry this out, and leave out guest {one}, which is refused?"),
        several => format!("Carry this out, and leave out guests {}, which are refused?", several.join(", ")),
    }
}

/// Whether somebody is asked, and has to see what about.
pub(super) fn asks_person(arguments: &ApplyArgs, run: &Run) -> bool {
    arguments.confirm.is_none() && matches!(run.question(), Question::Confirm { .. }) && has_terminal()
}

fn has_terminal() -> bool {
    io::stdin().is_terminal() && io::stderr().is_terminal()
}

/// The person at the terminal, who may leave instead of answering.
struct ConfirmationPrompt {
    signal: watch::Receiver<RunSignal>,
}

impl ConfirmationPrompt {
    /// What is typed after the question; nothing, where the person leaves instead.
    async fn ask(&self, question: &str) -> Result<Option<String>, CommandError> {
        let failed = |error: io::Error| CommandError::failure(format!("the terminal cannot be read: {error}"));
        let mut out = anstream::stderr();
        // Nothing else is shown beside a question.
        let _silent = progress::silence_notices();
        // What was typed before the question is not an answer to it.
        tcflush(io::stdin(), QueueSelector::IFlush).map_err(|error| failed(error.into()))?;
        write!(out, "{question}").and_then(|()| out.flush()).map_err(failed)?;
        let (answer, answered) = oneshot::channel();
        // A thread of its own: reading a terminal cannot be given up, and the program can.
        let read = move || {
            let mut line = String::new();
            let read = io::stdin().lock().read_line(&mut line).map(|_| line);
            let _ = answer.send(read);
        };
        thread::Builder::new().spawn(read).map_err(|error| inputs::no_thread(&error))?;
        let mut signal = self.signal.clone();
        let gone = pin!(async move { signal.wait_for(|signal| *signal != RunSignal::Continue).await.is_ok() });
        let line = match select(answered, gone).await {
            Either::Left((Ok(line), _)) => line.map_err(failed)?,
            Either::Left((Err(_), _)) | Either::Right(_) => String::new(),
        };
        // Not even an empty line: the terminal gave its end (Ctrl-D), or the person left.
        if line.is_empty() {
            let _ = writeln!(out);
            return Ok(None);
        }
        Ok(Some(line.trim_end_matches(['\r', '\n']).to_owned()))
    }
}
