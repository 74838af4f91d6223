//! `converger demo`: the whole story on a lab of its own, in a minute and with nothing left behind.
//!
//! Every act is this very program, run as a user would run it, with the command line shown. What is claimed at the end is counted from
//! the lab's own record. What never enters: a second way to do anything.

mod proof;
mod sandbox;

use std::io::Write as _;

use super::CommandError;
use crate::cli::DemoArgs;
use crate::exit_status::ExitStatus;
use crate::render::{self, apply_style};
use sandbox::{ChildEnd, DemoSandbox};

/// The declared state as somebody wrote it: with a line that would shut a protected guest down.
const DESIRED_WITH_MISTAKE: &str = include_str!("demo/mistaken.yaml");
/// The same without that line.
const DESIRED: &str = include_str!("demo/desired.yaml");

pub(super) async fn run_demo(_: &DemoArgs) -> Result<ExitStatus, CommandError> {
    let stage = DemoSandbox::start().await?;
    // The acts wait for child processes, so they run on a thread of their own while the runtime serves the lab.
    let played = tokio::task::spawn_blocking(move || play(stage)).await;
    played.unwrap_or_else(|panicked| std::panic::resume_unwind(panicked.into_panic()))
}

fn play(mut stage: DemoSandbox) -> Result<ExitStatus, CommandError> {
    print_line("A lab was started: a Proxmox VE cluster of three nodes that exists on this machine only, for as long as this takes.")?;
    show_refusal(&mut stage)?;
    let (digest, steps) = show_kill(&mut stage)?;
    show_recovery(&mut stage)?;
    show_evidence(&mut stage, &digest)?;
    let proven = proof::check_changes(&stage.changes(), steps);
    print_title("What the lab saw", "Its own record of everything that it was asked to change, from the first command to the last:")?;
    let text = proven.as_ref().map_or_else(Clone::clone, Clone::clone);
    print_line(text.trim_end())?;
    match proven {
        Ok(_) => print_line(&apply_style(
            render::GREEN.bold(),
            format!("Nothing ran twice, and nothing was lost ({} requests in all).", stage.requests()),
        ))
        .map(|()| ExitStatus::Done),
        Err(_) => Err(CommandError::failure("the record of the lab does not show that everything ran exactly once")
            .with_help("this is a defect: please report it with the output above")),
    }
}

/// What is refused, and why.
fn show_refusal(stage: &mut DemoSandbox) -> Result<(), CommandError> {
    print_title("Look first", "desired.yaml says what four guests should be. An audit compares it with the cluster and changes nothing:")?;
    stage.write_file("desired.yaml", DESIRED_WITH_MISTAKE)?;
    stage.run(&["audit", "desired.yaml"])?.expect_code(3)?;
    print_title("A refusal, explained", "prod-mail is declared stopped, and its name protects it. No option lifts that:")?;
    stage.run(&["explain", "protected-guest"])?.expect_code(0)
}

/// So many changes of the plan wait for nothing. When the lab has all of them, whatever is under way has arrived there: what was only about to be sent would be
/// held for a minute, because nobody could say that it does not arrive any more (decision 0016).
const CHANGES_AT_ONCE: usize = 3;

/// A plan that is carried out, and the program that is killed in the middle of it. Gives its digest and the number of its steps.
fn show_kill(stage: &mut DemoSandbox) -> Result<(String, u64), CommandError> {
    print_title(
        "A plan",
        "The line was a mistake and is taken out. What would be done now is written down, with a digest over all of it:",
    )?;
    stage.write_file("desired.yaml", DESIRED)?;
    stage.run(&["plan", "desired.yaml"])?.expect_code(4)?;
    let (digest, steps) = stage.read_plan()?;
    print_title(
        "Carried out, and killed",
        "The digest is the confirmation. As its third change goes out the program is killed, for real (SIGKILL):",
    )?;
    match stage.run_until_changes(&["apply", "desired.yaml", "--confirm", &digest], CHANGES_AT_ONCE)? {
        ChildEnd::Killed => print_line(&apply_style(render::RED.bold(), "killed")).map(|()| (digest, steps)),
        ChildEnd::With(code) => Err(CommandError::failure(format!("the apply ended by itself, with {code}, before it could be killed"))),
    }
}

/// What was under way is found out, and the rest is carried out.
fn show_recovery(stage: &mut DemoSandbox) -> Result<(), CommandError> {
    print_title("What it left", "Every change was written down before it was sent, so that the journal knows what was in flight:")?;
    stage.run(&["ops", "list", "lab"])?.expect_code(0)?;
    print_title(
        "Recovery",
        "The next apply first recovers each operation, by reading. Then it plans the rest, and starts nothing unconfirmed:",
    )?;
    stage.run(&["apply", "desired.yaml"])?.expect_code(3)?;
    print_title("Convergence", "So the rest is confirmed like the first plan:")?;
    stage.run(&["plan", "desired.yaml"])?.expect_code(4)?;
    let (digest, _) = stage.read_plan()?;
    stage.run(&["apply", "desired.yaml", "--confirm", &digest])?.expect_code(0)?;
    stage.run(&["audit", "desired.yaml"])?.expect_code(0)
}

/// Whoever doubts can check: all of it as plain files, and the decision that was cut off, made again.
fn show_evidence(stage: &mut DemoSandbox, digest: &str) -> Result<(), CommandError> {
    print_title(
        "Evidence",
        "Every decision of an apply, refusals too, is an entry of a signed ledger. Exported, any stranger can check it, without this machine:",
    )?;
    stage.run(&["ledger", "export", "evidence"])?.expect_code(0)?;
    stage.run(&["verify", "evidence"])?.expect_code(0)?;
    print_title("Made again", "What the killed run decided, from what was recorded for it: the same inputs give the same bytes:")?;
    stage.run(&["reproduce", digest])?.expect_code(0)
}

fn print_title(title: &str, words: &str) -> Result<(), CommandError> {
    print_line(&format!("\n{}\n{words}", apply_style(render::BOLD.underline(), title)))
}

/// A reader that went away ends the demo: there is nobody left to show anything to.
fn print_line(text: &str) -> Result<(), CommandError> {
    let mut out = anstream::stdout();
    let said = writeln!(out, "{text}").and_then(|()| out.flush());
    said.map_err(|error| CommandError::failure(format!("cannot write to standard output: {error}")))
}
