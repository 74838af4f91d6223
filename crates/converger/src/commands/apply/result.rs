//! result.json: what became of every step, in canonical JSON, and the same in a few lines for people.

use std::fmt::Write as _;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use converger_core::apply::{End as Fate, write_outcome};
use converger_core::guest::{EnvironmentName, Vmid};
use converger_core::moment;
use converger_core::refusal::Refusal;
use converger_engine::driver::{Report, Reported};
use converger_engine::schedule::Limits;
use converger_store::Remembered;
use serde_json::{Value as Json, json};

use super::super::Stop;
use super::board;
use super::record::Recorded;
use crate::cli::Apply;
use crate::files::{self, OwnFile, Replaces};
use crate::render::{self, counted, styled};

const SCHEMA: &str = "converger.result/1";

/// What there is to tell of a run.
pub(super) struct Told<'r> {
    pub(super) environment: &'r EnvironmentName,
    /// The run, with its plan and all that was refused in it.
    pub(super) run: &'r Recorded<'r>,
    /// How much was under way at once, at most.
    pub(super) at_once: Limits,
    /// What was left of earlier runs.
    pub(super) recovered: &'r Report,
    /// Which operations are held, of those that this run did not begin.
    pub(super) holds: Holds,
}

/// Where operations of earlier runs are held.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Holds {
    Nowhere,
    /// On guests outside of the scope: reported, and of no consequence for how the run ends.
    Elsewhere,
    InScope,
}

impl Holds {
    pub(super) fn of(is_in_scope: bool, remembered: &Remembered) -> Self {
        match is_in_scope {
            true => Self::InScope,
            false if remembered.unsettled.is_empty() => Self::Nowhere,
            false => Self::Elsewhere,
        }
    }

    pub(super) fn are_in_scope(self) -> bool {
        self == Self::InScope
    }
}

impl Told<'_> {
    /// Writes the result where it is wanted, and says what became of the steps.
    pub(super) fn carried_out(&self, arguments: &Apply, report: &Report, left_out: u64) -> Result<(), Stop> {
        let document = self.document(report.end(), report, left_out);
        let kept = self.keep(arguments, &document).map_err(|(path, error)| lost(self.environment, &path, &error));
        // A file that could not be written takes nothing from what is said: somebody waits for it.
        if arguments.json {
            super::super::shown(writeln!(io::stdout(), "{document}"), crate::exit::End::Done)?;
        } else {
            super::told(&self.text(report, left_out))?;
        }
        kept
    }

    /// The same where nothing was sent: why, and what was found out of earlier runs. Nobody is to take the result of another run for that of this one.
    pub(super) fn not_carried_out(&self, arguments: &Apply, end: Fate) -> Result<(), Stop> {
        let document = self.document(end, &Report::default(), 0);
        let kept = self.keep(arguments, &document).map_err(|(path, error)| super::super::unwritten(&path, &error));
        if arguments.json {
            super::super::shown(writeln!(io::stdout(), "{document}"), crate::exit::End::Done)?;
        }
        kept
    }

    fn keep(&self, arguments: &Apply, document: &Json) -> Result<(), (PathBuf, io::Error)> {
        let Some(path) = place(arguments) else { return Ok(()) };
        // In one piece: written word by word it would be a thousand calls, and as many places to be interrupted at.
        let text = format!("{document}\n");
        match files::replace(&path, replaces(arguments), |file| file.write_all(text.as_bytes())) {
            Ok(()) => {
                let _ = writeln!(anstream::stderr(), "{}", render::wrote(&path, None));
                Ok(())
            }
            Err(error) => Err((path, error)),
        }
    }

    fn text(&self, report: &Report, left_out: u64) -> String {
        let mut text = String::new();
        // What is done was said while it was; what is not needs more words.
        let open = report.operations().iter().filter(|reported| reported.outcome.end() != Fate::Done);
        let open: String = open.map(|reported| line(self.environment, reported)).collect();
        if !open.is_empty() {
            let _ = write!(text, "\n{open}");
        }
        let is_well = report.end() == Fate::Done && left_out == 0 && !self.holds.are_in_scope();
        let style = if is_well { render::GREEN } else { render::RED };
        let _ = writeln!(text, "\n{}", styled(style.bold(), summary(report, left_out, self.holds, self.environment)));
        text
    }

    fn document(&self, end: Fate, report: &Report, left_out: u64) -> Json {
        let refusal = |(guest, refusal): &(Option<Vmid>, Refusal)| json!({ "guest": guest, "refusal": refusal });
        json!({
            "schema": SCHEMA, "environment": self.environment, "plan": self.run.plan().to_string(), "run": self.run.run().as_str(),
            "recovered": self.recovered.operations().iter().map(row).collect::<Vec<_>>(),
            "refused": self.run.refusals().iter().map(refusal).collect::<Vec<_>>(),
            "steps": report.operations().iter().map(row).collect::<Vec<_>>(),
            "end": end.word(), "left_out": left_out,
            "at_once": { "overall": self.at_once.overall, "per_node": self.at_once.per_node },
        })
    }
}

fn summary(report: &Report, left_out: u64, holds: Holds, environment: &EnvironmentName) -> String {
    let steps = u64::try_from(report.operations().len()).unwrap_or(u64::MAX);
    let mut text = if steps == 0 { "Nothing to do".to_owned() } else { format!("{}: {}", counted(steps, "step"), counts(report)) };
    if left_out > 0 {
        let _ = write!(text, "; {} refused and left out", counted(left_out, "guest"));
    }
    let _ = match holds {
        Holds::Nowhere => Ok(()),
        Holds::Elsewhere => write!(text, "; operations on guests outside of the scope are held: `converger ops list {environment} --held`"),
        Holds::InScope => write!(text, "; what was held before still is: `converger ops list {environment} --held`"),
    };
    text
}

/// Says what became of what was left of earlier runs, before anything new is asked.
pub(super) fn tell_recovered(environment: &EnvironmentName, recovered: &Report) -> Result<(), Stop> {
    if recovered.operations().is_empty() {
        return Ok(());
    }
    let lines: String = recovered.operations().iter().map(|reported| line(environment, reported)).collect();
    super::told(&format!("{}\n{lines}\n", styled(render::BOLD, "What was left of an earlier run")))
}

/// Where the result goes, if to a file.
pub(super) fn place(arguments: &Apply) -> Option<PathBuf> {
    arguments.out.clone().or_else(|| (!arguments.json).then(|| "result.json".into()))
}

/// Whether a result can be written there: found out before there is one.
pub(super) fn has_place(path: &Path, arguments: &Apply) -> Result<(), Stop> {
    let room = path.parent().filter(|room| !room.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if path.file_name().is_some() && !room.is_dir() {
        return Err(Stop::input(format!("{} cannot be written: there is no directory {}", files::shown(path), files::shown(room)))
            .help("make it, or name another file with --out"));
    }
    files::is_replaceable(path, replaces(arguments)).map_err(|error| match files::is_taken(&error) {
        true => super::super::unwritten(path, &error),
        false => Stop::input(format!("{} cannot be written: {error}", files::shown(path))).help("name another file with --out"),
    })
}

/// The result of an earlier run is replaced, and nothing else.
fn replaces(arguments: &Apply) -> Replaces<'static> {
    Replaces::own(OwnFile::Json(SCHEMA), arguments.overwrite.overwrite)
}

/// What was done is done, and the journal has it.
fn lost(environment: &EnvironmentName, path: &Path, error: &io::Error) -> Stop {
    Stop::failed(format!("cannot write {}: {error}", files::shown(path)))
        .help(format!("what was carried out stays so, and the journal has it: `converger ops list {environment}`"))
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

/// How one operation ended, and where that is not well, why, what to do, and where there is more.
fn line(environment: &EnvironmentName, reported: &Reported) -> String {
    let mut text = format!("{}: {}\n", board::title(&reported.operation), board::ended(&reported.outcome));
    if reported.outcome.end() == Fate::Done {
        return text;
    }
    for line in render::ending(&reported.outcome).lines() {
        let _ = writeln!(text, "    {line}");
    }
    // What never began, or was refused before its intent was taken, is not in the journal.
    if reported.is_recorded || reported.outcome.end() == Fate::Held {
        let more = format!("converger ops show {environment} {}", reported.operation.id.as_str());
        let _ = writeln!(text, "      {} {more}", styled(render::CYAN, "more:"));
    }
    text
}

/// How many ended in which way.
fn counts(report: &Report) -> String {
    let count = |word: &str| report.operations().iter().filter(|reported| board::word(&reported.outcome) == word).count();
    let words = Fate::ALL.into_iter().map(Fate::word).chain([board::UNDER_WAY]);
    let counts = words.map(|word| (word, count(word))).filter(|(_, count)| *count > 0);
    counts.map(|(word, count)| format!("{count} {word}")).collect::<Vec<_>>().join(", ")
}
