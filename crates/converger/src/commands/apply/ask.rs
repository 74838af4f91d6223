//! The question before anything is done: a person's word at a terminal, or a script's digest.

use std::io::{self, BufRead as _, IsTerminal as _, Write as _};
use std::pin::pin;
use std::thread;

use converger_core::approve::{Confirmation, Mode, Refused, going_down};
use converger_core::artifact::Digest;
use converger_core::plan::Verdict;
use converger_core::safety::SafePlan;
use converger_engine::driver::Signal;
use futures_util::future::{Either, select};
use rustix::termios::{QueueSelector, tcflush};
use tokio::sync::{oneshot, watch};

use super::super::memory::Memory;
use super::super::{Stop, spine};
use super::way;
use crate::cli::Apply;
use crate::render::{self, styled, theirs};
use crate::{files, progress, state};

/// Whether what was said on the command line can be meant.
pub(super) fn is_sound(arguments: &Apply) -> Result<(), Stop> {
    digest(arguments).map(drop)
}

/// The digest that was given, if any.
fn digest(arguments: &Apply) -> Result<Option<Digest>, Stop> {
    let Some(text) = &arguments.confirm else { return Ok(None) };
    let digest = Digest::parse(text).ok_or_else(|| {
        let plan = way::again("plan", arguments);
        Stop::input("--confirm needs the full digest of the plan: `sha256:` and 64 digits").help(format!("`{plan}` prints it"))
    })?;
    Ok(Some(digest))
}

/// Nothing is carried out while a guest is refused, unless it is to be left out. Its cause stands in the plan.
pub(super) fn nothing_is_refused(safe: &SafePlan, refused: Refused) -> Result<(), Stop> {
    let ids = self::refused(safe);
    if ids.is_empty() || refused == Refused::IsLeftOut {
        return Ok(());
    }
    let guests = if ids.len() == 1 { "guest" } else { "guests" };
    Err(Stop::decided(format!("nothing is carried out, because of {guests} {}", ids.join(", ")))
        .help("the plan says why; resolve that, leave out what is refused with --partial, or name the others with --only"))
}

/// What was said, and how that ends the run where it was no.
pub(super) struct Said {
    pub(super) confirmation: Confirmation,
    pub(super) declined: Option<Stop>,
}

/// What was said. Where nobody can be asked and no digest was given, nothing was; where one person does not decide alone, nobody is.
pub(super) fn confirmation(arguments: &Apply, safe: &SafePlan, mode: Mode, person: &Person<'_>) -> Result<Said, Stop> {
    let by: Box<str> = state::actor().into();
    let said = |confirmation| Ok(Said { confirmation, declined: None });
    let declined = |by, why| Ok(Said { confirmation: Confirmation::Declined { by }, declined: Some(Stop::declined(why)) });
    if let Some(digest) = digest(arguments)? {
        return said(Confirmation::FullDigest { by, digest });
    }
    if !is_asked(arguments, safe, mode) {
        return said(Confirmation::None);
    }
    match person.answers(&format!("{} [yes/no] ", styled(render::BOLD, question(safe))))?.as_deref() {
        Some("yes") => {}
        Some(_) => return declined(by, "the answer was not `yes`; nothing was sent".to_owned()),
        None => return declined(by, UNANSWERED.to_owned()),
    }
    let mut names = Vec::new();
    for name in going_down(safe.plan()).filter_map(|guest| safe.plan().name_of(guest)) {
        let question = format!("{} goes down by this. Type its name: ", styled(render::BOLD, theirs(name)));
        match person.answers(&question)? {
            // The answer to this question, and not to another one: each guest is looked at by itself.
            Some(typed) if typed == name => names.push(typed.into()),
            Some(typed) => return declined(by, mistyped(name, &typed)),
            None => return declined(by, UNANSWERED.to_owned()),
        }
    }
    said(Confirmation::Typed { by, names })
}

const UNANSWERED: &str = "nobody answered; nothing was sent";

fn mistyped(name: &str, typed: &str) -> String {
    format!("the name of {} was asked for, and `{}` was typed; nothing was sent", theirs(name), files::plain(typed))
}

/// What a yes is said to: what is left out is part of it.
fn question(safe: &SafePlan) -> String {
    match refused(safe).as_slice() {
        [] => "Carry this out?".to_owned(),
        [one] => format!("Carry this out, and leave out guest {one}, which is refused?"),
        several => format!("Carry this out, and leave out guests {}, which are refused?", several.join(", ")),
    }
}

/// The guests that are refused.
fn refused(safe: &SafePlan) -> Vec<String> {
    let refused = safe.plan().guests().filter(|(_, verdict)| matches!(verdict, Verdict::Refused(_)));
    refused.map(|(guest, _)| guest.vmid.to_string()).collect()
}

/// Whether somebody is asked, and has to see what about.
pub(super) fn is_asked(arguments: &Apply, safe: &SafePlan, mode: Mode) -> bool {
    let has_steps = safe.plan().verdicts().iter().any(|verdict| matches!(verdict, Verdict::Steps(_)));
    arguments.confirm.is_none() && has_steps && mode == Mode::Solo && io::stdin().is_terminal() && io::stderr().is_terminal()
}

/// Whoever sits at the terminal, and may go away instead of answering.
pub(super) struct Person<'r> {
    pub(super) memory: &'r Memory,
    pub(super) signal: watch::Receiver<Signal>,
}

impl Person<'_> {
    /// What is typed after the question; nothing, where whoever was asked leaves instead.
    fn answers(&self, question: &str) -> Result<Option<String>, Stop> {
        let failed = |error: io::Error| Stop::failed(format!("the terminal cannot be read: {error}"));
        let mut out = anstream::stderr();
        // Whoever does not answer is told so by the end of it, and by nothing before.
        let _silent = progress::hush();
        // What was typed before the question was not typed as an answer to it.
        tcflush(io::stdin(), QueueSelector::IFlush).map_err(|error| failed(error.into()))?;
        write!(out, "{question}").and_then(|()| out.flush()).map_err(failed)?;
        let (answer, answered) = oneshot::channel();
        // A thread of its own: reading a terminal cannot be given up, and the program can.
        let read = move || {
            let mut line = String::new();
            let read = io::stdin().lock().read_line(&mut line).map(|_| line);
            let _ = answer.send(read);
        };
        thread::Builder::new().spawn(read).map_err(|error| spine::no_thread(&error))?;
        let mut signal = self.signal.clone();
        let gone = pin!(async move { signal.wait_for(|signal| *signal != Signal::GoOn).await.is_ok() });
        let line = match self.memory.wait(select(answered, gone)) {
            Either::Left((Ok(line), _)) => line.map_err(failed)?,
            Either::Left((Err(_), _)) | Either::Right(_) => String::new(),
        };
        // Not even an empty line: the terminal gave its end (Ctrl-D), or somebody left.
        if line.is_empty() {
            // What comes next has a line of its own.
            let _ = writeln!(out);
            return Ok(None);
        }
        Ok(Some(line.trim_end_matches(['\r', '\n']).to_owned()))
    }
}
