//! `converger demo`: refusal, plan, kill, recovery and evidence on a lab of its own, in a minute.
//!
//! Every step runs this program as a user would, and shows the command line. The claim at the end is counted from the lab's own record of
//! requests. The demo removes its files.

mod proof;
mod sandbox;

use std::io::Write as _;

use super::CommandError;
use crate::cli::DemoArgs;
use crate::exit_status::ExitStatus;
use crate::render::{self, apply_style};
use sandbox::{ChildEnd, DemoSandbox};

/// The declared state with a mistake: a line that would shut down a protected guest.
const DESIRED_WITH_MISTAKE: &str = include_str!("demo/mistaken.yaml");
/// The same without that line.
const DESIRED: &str = include_str!("demo/desired.yaml");

pub(super) async fn run_demo(_: &DemoArgs) -> Result<ExitStatus, CommandError> {
    let sandbox = DemoSandbox::start().await?;
    // The steps wait for child processes, so they run on a thread of their own while the runtime serves the lab.
    let ended = tokio::task::spawn_blocking(move || run_steps(sandbox)).await;
    ended.unwrap_or_else(|panicked| std::panic::resume_unwind(panicked.into_panic()))
}

fn run_steps(mut sandbox: DemoSandbox) -> Result<ExitStatus, CommandError> {
    print_line("A lab was started: a simulated Proxmox VE cluster of three nodes, on this machine and for the time of this demo.")?;
    show_refusal(&mut sandbox)?;
    let (digest, steps) = show_kill(&mut sandbox)?;
    show_recovery(&mut sandbox)?;
    show_evidence(&mut sandbox, &digest)?;
    let proven = proof::check_changes(&sandbox.changes(), steps);
    print_title("What the lab saw", "The lab recorded every change request, from the first command to the last:")?;
    let text = proven.as_ref().map_or_else(Clone::clone, Clone::clone);
    print_line(text.trim_end())?;
    match proven {
        Ok(_) => print_line(&apply_style(
            render::GREEN.bold(),
            format!("Nothing ran twice, and nothing was lost ({} requests in all).", sandbox.requests()),
        ))
        .map(|()| ExitStatus::Done),
        Err(_) => Err(CommandError::failure("the lab did not record every change exactly once")
            .with_help("this is a defect: please report it with the output above")),
    }
}

/// Shows a refusal and its explanation.
fn show_refusal(sandbox: &mut DemoSandbox) -> Result<(), CommandError> {
    print_title("Audit", "desired.yaml declares four guests. An audit compares it with the cluster and changes nothing:")?;
    sandbox.write_file("desired.yaml", DESIRED_WITH_MISTAKE)?;
    sandbox.run(&["audit", "desired.yaml"])?.expect_code(3)?;
    print_title("A refusal, explained", "prod-mail is declared stopped, and its name protects it. No option overrides that:")?;
    sandbox.run(&["explain", "protected-guest"])?.expect_code(0)
}

/// This many changes of the plan depend on nothing. When the lab has all of them, every change in flight has arrived: a change that was only about to
/// be sent would be held for a minute, because it could still arrive (decision 0016).
const CHANGES_AT_ONCE: usize = 3;

/// Applies a plan and kills the program half-way. Gives the digest of the plan and the number of its steps.
fn show_kill(sandbox: &mut DemoSandbox) -> Result<(String, u64), CommandError> {
    print_title("A plan", "The line was a mistake and is removed. The plan is written to a file, with a digest over all of it:")?;
    sandbox.write_file("desired.yaml", DESIRED)?;
    sandbox.run(&["plan", "desired.yaml"])?.expect_code(4)?;
    let (digest, steps) = sandbox.read_plan()?;
    print_title("Apply, and kill -9", "The digest confirms the plan. When the third change is sent, the program is killed with SIGKILL:")?;
    match sandbox.run_until_changes(&["apply", "desired.yaml", "--confirm", &digest], CHANGES_AT_ONCE)? {
        ChildEnd::Killed => print_line(&apply_style(render::RED.bold(), "killed")).map(|()| (digest, steps)),
        ChildEnd::With(code) => Err(CommandError::failure(format!("the apply ended with exit code {code} before it was killed"))),
    }
}

/// Recovers the operations in flight and applies the rest.
fn show_recovery(sandbox: &mut DemoSandbox) -> Result<(), CommandError> {
    print_title("Operations in flight", "Every change was recorded before it was sent, so the journal lists the operations in flight:")?;
    sandbox.run(&["ops", "list"])?.expect_code(0)?;
    print_title(
        "Recovery",
        "The next apply first recovers each of them by reading the guests. Then it plans the rest, and starts nothing without confirmation:",
    )?;
    sandbox.run(&["apply", "desired.yaml"])?.expect_code(3)?;
    print_title("Convergence", "The rest is confirmed like the first plan:")?;
    sandbox.run(&["plan", "desired.yaml"])?.expect_code(4)?;
    let (digest, _) = sandbox.read_plan()?;
    sandbox.run(&["apply", "desired.yaml", "--confirm", &digest])?.expect_code(0)?;
    sandbox.run(&["audit", "desired.yaml"])?.expect_code(0)
}

/// Exports and verifies the ledger, and reproduces the decision of the killed run.
fn show_evidence(sandbox: &mut DemoSandbox, digest: &str) -> Result<(), CommandError> {
    print_title(
        "Evidence",
        "Every decision of an apply, including refusals, is an entry of a signed ledger. Anyone can verify an export on any machine:",
    )?;
    sandbox.run(&["ledger", "export", "evidence"])?.expect_code(0)?;
    sandbox.run(&["verify", "evidence"])?.expect_code(0)?;
    print_title("Reproduce", "The decision of the killed run is reproduced from its recorded inputs, byte for byte:")?;
    sandbox.run(&["reproduce", digest])?.expect_code(0)
}

fn print_title(title: &str, text: &str) -> Result<(), CommandError> {
    print_line(&format!("\n{}\n{text}", apply_style(render::BOLD.underline(), title)))
}

/// Prints a line. A closed output ends the demo.
fn print_line(text: &str) -> Result<(), CommandError> {
    let mut out = anstream::stdout();
    let written = writeln!(out, "{text}").and_then(|()| out.flush());
    written.map_err(|error| CommandError::failure(format!("cannot write to standard output: {error}")))
}
