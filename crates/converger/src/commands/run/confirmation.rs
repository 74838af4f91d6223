//! Confirmation before anything is sent: the answer of a person at a terminal, or the digest that a script passes.

use std::io::{self, BufRead as _, IsTerminal as _, Write as _};
use std::pin::pin;
use std::thread;

use converger_core::approve::Confirmation;
use converger_core::artifact::Digest;
use converger_core::guest::{RunState, Vmid};
use converger_core::plan::Step;
use converger_core::safety::JudgedVerdict;
use converger_engine::executor::RunSignal;
use converger_runtime::run::NamedGuest;
use converger_runtime::{Environment, Question, Run};
use futures_util::future::{Either, select};
use rustix::termios::{QueueSelector, tcflush};
use tokio::sync::{oneshot, watch};

use super::super::decisions::DigestPrefix;
use super::super::{CommandError, inputs};
use super::RunArguments;
use crate::render::{self, apply_style, quote_untrusted};
use crate::{files, progress};

/// The digest of `--confirm`, if it was given.
pub(super) fn parse_digest(arguments: &RunArguments) -> Result<Option<Digest>, CommandError> {
    let Some(text) = &arguments.confirm else { return Ok(None) };
    let digest = Digest::parse(text).ok_or_else(|| {
        let plan = &arguments.plan_command;
        let what = match DigestPrefix::parse(text) {
            Some(prefix) if prefix.is_partial() => "only the start of one",
            Some(_) => "one without `sha256:`",
            None => "not a digest",
        };
        CommandError::input_error(format!(
            "--confirm needs the full digest of the plan, `sha256:` and 64 hexadecimal digits; `{}` is {what}",
            text.escape_debug()
        ))
        .with_help(format!("`{plan}` prints the full digest"))
    })?;
    Ok(Some(digest))
}

/// The answer, and the error that ends the run if it was not yes.
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

/// The confirmation by `--confirm`, or by the person at the terminal. There is none without a digest and without a terminal.
pub(super) async fn request_confirmation(arguments: &RunArguments, run: &Run, environment: &Environment) -> Result<Answer, CommandError> {
    let by: Box<str> = run.requested_by().into();
    if let Some(digest) = parse_digest(arguments)? {
        return Ok(Answer::new(Confirmation::FullDigest { by, digest }));
    }
    let Question::Confirm { to_name, left_out } = run.question() else { return Ok(Answer::new(Confirmation::None)) };
    if !has_terminal() {
        return Ok(Answer::new(Confirmation::None));
    }
    let person = ConfirmationPrompt { signal: environment.stop_handle().subscribe() };
    match person.ask(&format!("{} [yes/no] ", apply_style(render::BOLD, question_text(&left_out)))).await?.as_deref() {
        Some("yes") => {}
        Some(_) => return Ok(Answer::declined(by, "the answer was not `yes`; nothing was sent".to_owned())),
        None => return Ok(Answer::declined(by, UNANSWERED.to_owned())),
    }
    let mut names = Vec::new();
    for NamedGuest { vmid, name } in to_name {
        let shown = apply_style(render::BOLD, quote_untrusted(&name));
        let question = name_question(run, vmid, &shown.to_string());
        match person.ask(&question).await? {
            // Each name is compared with its own question: two swapped names confirm nothing.
            Some(typed) if *typed == *name => names.push(typed.into()),
            Some(typed) => return Ok(Answer::declined(by, mistyped_name_message(&name, &typed))),
            None => return Ok(Answer::declined(by, UNANSWERED.to_owned())),
        }
    }
    Ok(Answer::new(Confirmation::Typed { by, names }))
}

/// The question for the name of a guest: what happens to it.
fn name_question(run: &Run, vmid: Vmid, shown: &str) -> String {
    let has_step = |is_meant: fn(&Step) -> bool| {
        let mut guests = run.planned().judged.guests();
        guests.any(|(guest, verdict)| matches!(verdict, JudgedVerdict::Steps(steps) if guest.vmid == vmid && steps.iter().any(is_meant)))
    };
    if has_step(Step::makes_declared_guest) {
        return format!("This makes {shown}, which must never have existed. Type its name: ");
    }
    if has_step(|step| step.change.resulting_state() == Some(RunState::Stopped)) {
        return format!("This stops {shown}. Type its name: ");
    }
    // A guest that is moved offline does not run; it cannot be started meanwhile.
    format!("{shown} cannot run meanwhile. Type its name: ")
}

const UNANSWERED: &str = "there was no answer; nothing was sent";

fn mistyped_name_message(name: &str, typed: &str) -> String {
    format!("`{}` is not the name of {}; nothing was sent", files::escape_hidden(typed), quote_untrusted(name))
}

/// The question, with the guests that are left out: a yes covers that too.
fn question_text(left_out: &[Vmid]) -> String {
    match left_out {
        [] => "Apply this plan?".to_owned(),
        [one] => format!("Apply this plan without guest {one}, which is refused?"),
        several => format!("Apply this plan without guests {}, which are refused?", render::join_ids(several)),
    }
}

/// Whether a person is asked, who then must see the plan first.
pub(super) fn asks_person(arguments: &RunArguments, run: &Run) -> bool {
    arguments.confirm.is_none() && matches!(run.question(), Question::Confirm { .. }) && has_terminal()
}

fn has_terminal() -> bool {
    io::stdin().is_terminal() && io::stderr().is_terminal()
}

/// Asks the person at the terminal, who may end the program instead of answering.
struct ConfirmationPrompt {
    signal: watch::Receiver<RunSignal>,
}

impl ConfirmationPrompt {
    /// The line that is typed after the question; none if the terminal is closed or a signal arrives first.
    async fn ask(&self, question: &str) -> Result<Option<String>, CommandError> {
        let failed = |error: io::Error| CommandError::failure(format!("cannot read the terminal: {error}"));
        let mut out = anstream::stderr();
        // Nothing is written next to a question.
        let _silent = progress::silence_notices();
        // Text that was typed before the question does not answer it.
        tcflush(io::stdin(), QueueSelector::IFlush).map_err(|error| failed(error.into()))?;
        write!(out, "{question}").and_then(|()| out.flush()).map_err(failed)?;
        let (answer, answered) = oneshot::channel();
        // A separate thread: a read of a terminal cannot be cancelled, and must not keep the process from ending.
        let read = move || {
            let mut line = String::new();
            let read = io::stdin().lock().read_line(&mut line).map(|_| line);
            let _ = answer.send(read);
        };
        thread::Builder::new().spawn(read).map_err(|error| inputs::no_thread(&error))?;
        let mut signal = self.signal.clone();
        let stop_requested = pin!(async move { signal.wait_for(|signal| *signal != RunSignal::Continue).await.is_ok() });
        let line = match select(answered, stop_requested).await {
            Either::Left((Ok(line), _)) => line.map_err(failed)?,
            Either::Left((Err(_), _)) | Either::Right(_) => String::new(),
        };
        // Without a line break the terminal was closed (Ctrl-D), or a signal arrived.
        if line.is_empty() {
            let _ = writeln!(out);
            return Ok(None);
        }
        Ok(Some(line.trim_end_matches(['\r', '\n']).to_owned()))
    }
}
