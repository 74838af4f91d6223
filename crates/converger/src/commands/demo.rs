//! `converger demo`: the whole story on a lab of its own, in a minute and with nothing left behind.
//!
//! Every act is this very program, run as a user would run it, with the command line shown. What is claimed at the end is counted from
//! the lab's own record. What never enters: a second way to do anything.

mod proof;
mod stage;

use std::io::Write as _;

use super::Stop;
use crate::cli::Demo;
use crate::exit::End;
use crate::render::{self, styled};
use stage::{Ended, Stage};

/// The declared state as somebody wrote it: with a line that would shut a protected guest down.
const MISTAKEN: &str = include_str!("demo/mistaken.yaml");
/// The same without that line.
const DESIRED: &str = include_str!("demo/desired.yaml");

pub(super) async fn demo(_: &Demo) -> Result<End, Stop> {
    let stage = Stage::set().await?;
    // The acts wait for child processes, so they run on a thread of their own while the runtime serves the lab.
    let played = tokio::task::spawn_blocking(move || play(stage)).await;
    played.unwrap_or_else(|panicked| std::panic::resume_unwind(panicked.into_panic()))
}

fn play(mut stage: Stage) -> Result<End, Stop> {
    say("A lab was started: a Proxmox VE cluster of three nodes that exists on this machine only, for as long as this takes.")?;
    refusal(&mut stage)?;
    let (digest, steps) = killed(&mut stage)?;
    recovery(&mut stage)?;
    evidence(&mut stage, &digest)?;
    let proven = proof::of(&stage.changes(), steps);
    title("What the lab saw", "Its own record of everything that it was asked to change, from the first command to the last:")?;
    let text = proven.as_ref().map_or_else(Clone::clone, Clone::clone);
    say(text.trim_end())?;
    match proven {
        Ok(_) => {
            say(&styled(render::GREEN.bold(), format!("Nothing ran twice, and nothing was lost ({} requests in all).", stage.requests())))
                .map(|()| End::Done)
        }
        Err(_) => Err(Stop::failed("the record of the lab does not show that everything ran exactly once")
            .help("this is a defect: please report it with the output above")),
    }
}

/// What is refused, and why.
fn refusal(stage: &mut Stage) -> Result<(), Stop> {
    title("Look first", "desired.yaml says what four guests should be. An audit compares it with the cluster and changes nothing:")?;
    stage.write("desired.yaml", MISTAKEN)?;
    stage.run(&["audit", "desired.yaml"])?.with(3)?;
    title("A refusal, explained", "prod-mail is declared stopped, and its name protects it. No option lifts that:")?;
    stage.run(&["explain", "protected-guest"])?.with(0)
}

/// So many changes of the plan wait for nothing. When the lab has all of them, whatever is under way has arrived there: what was only about to be sent would be
/// held for a minute, because nobody could say that it does not arrive any more (decision 0016).
const CHANGES_AT_ONCE: usize = 3;

/// A plan that is carried out, and the program that is killed in the middle of it. Gives its digest and the number of its steps.
fn killed(stage: &mut Stage) -> Result<(String, u64), Stop> {
    title("A plan", "The line was a mistake and is taken out. What would be done now is written down, with a digest over all of it:")?;
    stage.write("desired.yaml", DESIRED)?;
    stage.run(&["plan", "desired.yaml"])?.with(4)?;
    let (digest, steps) = stage.planned()?;
    title(
        "Carried out, and killed",
        "The digest is the confirmation. As its third change goes out the program is killed, for real (SIGKILL):",
    )?;
    match stage.run_until_changes(&["apply", "desired.yaml", "--confirm", &digest], CHANGES_AT_ONCE)? {
        Ended::Killed => say(&styled(render::RED.bold(), "killed")).map(|()| (digest, steps)),
        Ended::With(code) => Err(Stop::failed(format!("the apply ended by itself, with {code}, before it could be killed"))),
    }
}

/// What was under way is found out, and the rest is carried out.
fn recovery(stage: &mut Stage) -> Result<(), Stop> {
    title("What it left", "Every change was written down before it was sent, so that the journal knows what was under way:")?;
    stage.run(&["ops", "list", "lab"])?.with(0)?;
    title(
        "Recovery",
        "The next apply first finds out what became of each, by reading. Then it plans the rest, and begins nothing unconfirmed:",
    )?;
    stage.run(&["apply", "desired.yaml"])?.with(3)?;
    title("Convergence", "So the rest is confirmed like the first plan:")?;
    stage.run(&["plan", "desired.yaml"])?.with(4)?;
    let (digest, _) = stage.planned()?;
    stage.run(&["apply", "desired.yaml", "--confirm", &digest])?.with(0)?;
    stage.run(&["audit", "desired.yaml"])?.with(0)
}

/// Whoever doubts can check: all of it as plain files, and the decision that was cut off, made again.
fn evidence(stage: &mut Stage, digest: &str) -> Result<(), Stop> {
    title(
        "Evidence",
        "Every decision of an apply, refusals too, is an entry of a signed ledger. Exported, any stranger can check it, without this machine:",
    )?;
    stage.run(&["ledger", "export", "evidence"])?.with(0)?;
    stage.run(&["verify", "evidence"])?.with(0)?;
    title("Made again", "What the killed run decided, from what was recorded for it: the same inputs give the same bytes:")?;
    stage.run(&["reproduce", digest])?.with(0)
}

fn title(title: &str, words: &str) -> Result<(), Stop> {
    say(&format!("\n{}\n{words}", styled(render::BOLD.underline(), title)))
}

/// A reader that went away ends the demo: there is nobody left to show anything to.
fn say(text: &str) -> Result<(), Stop> {
    let mut out = anstream::stdout();
    let said = writeln!(out, "{text}").and_then(|()| out.flush());
    said.map_err(|error| Stop::failed(format!("cannot write to standard output: {error}")))
}
