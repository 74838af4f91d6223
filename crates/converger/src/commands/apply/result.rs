//! result.json: what became of every step, in canonical JSON, and the same in a few lines for people.

use std::fmt::Write as _;
use std::io::{self, Write};

use converger_core::apply::{End as Fate, RunId, write_outcome};
use converger_core::artifact::Digest;
use converger_core::guest::EnvironmentName;
use converger_core::moment;
use converger_engine::driver::{Report, Reported};
use serde_json::{Value as Json, json};

use super::super::{Stop, unwritten};
use super::board;
use crate::cli::Apply;
use crate::files;
use crate::render::{self, counted, styled};

const SCHEMA: &str = "converger.result/1";

/// Writes the result where it is wanted, and says what became of the run.
pub(super) fn write(
    arguments: &Apply,
    environment: &EnvironmentName,
    plan: Digest,
    run: &RunId,
    recovered: &Report,
    report: &Report,
) -> Result<(), Stop> {
    let document = json!({
        "schema": SCHEMA, "environment": environment, "plan": plan.to_string(), "run": run.as_str(),
        "recovered": recovered.operations().iter().map(row).collect::<Vec<_>>(),
        "steps": report.operations().iter().map(row).collect::<Vec<_>>(),
        "end": report.end().word(),
    });
    let out = arguments.out.clone().or_else(|| (!arguments.json).then(|| "result.json".into()));
    if let Some(path) = &out {
        // In one piece: written word by word it would be a thousand calls, and as many places to be interrupted at.
        let text = format!("{document}\n");
        files::replace(path, |file| file.write_all(text.as_bytes())).map_err(|error| unwritten(path, &error))?;
        let _ = writeln!(anstream::stderr(), "{}", render::wrote(path, None));
    }
    if arguments.json {
        let written = writeln!(io::stdout(), "{document}");
        return super::super::shown(written, crate::exit::End::Done).map(drop);
    }
    super::told(&text(recovered, report))
}

fn row(reported: &Reported) -> Json {
    let operation = &reported.operation;
    let time = |at_ms: Option<u64>| at_ms.map(|at_ms| moment::written(at_ms / 1000));
    let outcome = write_outcome(&reported.outcome).ok().and_then(|bytes| serde_json::from_slice::<Json>(&bytes).ok());
    json!({
        "operation": operation.id.as_str(), "vmid": operation.guest.vmid, "kind": operation.guest.kind, "name": operation.guest.name,
        "change": operation.step.change.word(), "outcome": outcome, "task": reported.task.as_ref().map(|task| task.as_str()),
        "began": time(reported.began_ms), "ended": time(reported.ended_ms), "recorded": reported.is_recorded,
    })
}

fn text(recovered: &Report, report: &Report) -> String {
    let mut text = String::new();
    for reported in recovered.operations().iter().chain(report.operations()) {
        let _ = writeln!(text, "{}: {}", board::title(&reported.operation), board::ended(&reported.outcome));
    }
    let count = |fate: Fate| report.operations().iter().filter(|reported| reported.outcome.end() == fate).count();
    let parts: Vec<String> = Fate::ALL
        .into_iter()
        .map(|fate| (fate, count(fate)))
        .filter(|(_, count)| *count > 0)
        .map(|(fate, count)| format!("{count} {}", fate.word()))
        .collect();
    let steps = u64::try_from(report.operations().len()).unwrap_or(u64::MAX);
    let summary = if steps == 0 { "Nothing to do".to_owned() } else { format!("{}: {}", counted(steps, "step"), parts.join(", ")) };
    let style = if report.end() == Fate::Done { render::GREEN } else { render::RED };
    let _ = writeln!(text, "\n{}", styled(style.bold(), summary));
    text
}
