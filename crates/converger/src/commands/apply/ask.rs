//! The question before anything is done: a person's word at a terminal, or a script's digest.

use std::io::{self, BufRead as _, IsTerminal as _, Write as _};

use converger_core::action::Impact;
use converger_core::approve::Confirmation;
use converger_core::artifact::Digest;
use converger_core::plan::Verdict;
use converger_core::safety::SafePlan;

use super::super::Stop;
use crate::cli::Apply;
use crate::render::{self, styled, theirs};
use crate::state;

/// What was said. Where nobody can be asked and no digest was given, nothing was.
pub(super) fn confirmation(arguments: &Apply, safe: &SafePlan) -> Result<Confirmation, Stop> {
    let by = state::actor().into();
    if let Some(text) = &arguments.confirm {
        let digest = Digest::parse(text).ok_or_else(|| {
            Stop::input("--confirm needs the full digest of the plan: `sha256:` and 64 digits").help("`converger plan` prints it")
        })?;
        return Ok(Confirmation::FullDigest { by, digest });
    }
    let has_steps = safe.plan().verdicts().iter().any(|verdict| matches!(verdict, Verdict::Steps(_)));
    if !has_steps || !io::stdin().is_terminal() || !io::stderr().is_terminal() {
        return Ok(Confirmation::None);
    }
    if line(&format!("{} [yes/no] ", styled(render::BOLD, "Carry this out?")))? != "yes" {
        return Ok(Confirmation::None);
    }
    let mut names = Vec::new();
    for name in goes_down(safe) {
        let question = format!("{} goes down by this. Type its name: ", styled(render::BOLD, theirs(&name)));
        names.push(line(&question)?.into());
    }
    Ok(Confirmation::Typed { by, names })
}

/// The names of guests that are stopped, or worse.
fn goes_down(safe: &SafePlan) -> Vec<String> {
    let plan = safe.plan();
    let down = plan
        .guests()
        .filter(|(_, verdict)| matches!(verdict, Verdict::Steps(steps) if steps.iter().any(|step| step.impact() >= Impact::Stop)));
    down.filter_map(|(guest, _)| plan.name_of(guest).map(str::to_owned)).collect()
}

fn line(question: &str) -> Result<String, Stop> {
    let failed = |error: io::Error| Stop::failed(format!("the terminal cannot be read: {error}"));
    let mut out = anstream::stderr();
    write!(out, "{question}").and_then(|()| out.flush()).map_err(failed)?;
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer).map_err(failed)?;
    Ok(answer.trim_end_matches(['\r', '\n']).to_owned())
}
