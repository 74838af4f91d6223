//! The front door of `cargo xtask`: arguments in, one task out, an exit code at the end.
//!
//! What never enters here: the tasks themselves. A line that knows how something is built, checked
//! or generated belongs in the module named after that task.

mod ansible;
mod bench;
mod ci;
mod clients;
mod crash;
mod docs;
mod evidence;
mod lab;
mod opinion;
mod python;
mod readme;
mod shell;
mod simulate;
mod tidy;
mod tools;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use shell::{Failure, Outcome};

const USAGE: &str = "\
usage: cargo xtask <task>

  ci                 all that has to pass before a commit, missing tools installed first
  ci <stage>         one stage of it, on what the stages before it have built
  tidy               the rules of the house: who may use whom, words, lengths, tests of guarantees
  tidy --report      print the figures on names and wording, their limits and the worst offenders
  tidy --tighten     lower the limits in xtask/ratchets.toml to today's figures
  gen-docs           write the pages that are generated from the code
  gen-docs --check   only compare them with what is committed
  bench              the targets of speed, measured; the report is target/bench.json
                     (--json prints it, --callgrind counts instructions too, --evidence takes those of the ledger alone,
                     --simulator the rate of the simulation, which is built twice for that)
  crash              kill -9, EIO and ENOSPC at every call that writes, during an apply; target/crash.json
                     (--sample N takes N of the points, --seed S others, --point P one; --ci, --debug)
  evidence           the proofs of the record at full size: over 100,000 flips, every write killed, 10,000 decisions
  simulate           100,000 seeded schedules of faults, judged by the invariants
                     (--schedules N or --million, --from N; --seed S tells one of them; --bugs, --sagas)";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match task(&arguments) {
        Some(task) => exit_code(enter_root().and_then(|()| perform(task))),
        None => {
            eprintln!("{USAGE}");
            ExitCode::from(2)
        }
    }
}

/// What the arguments asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Task {
    Usage,
    Ci,
    Stage(&'static str),
    Tidy,
    ReportFigures,
    TightenLimits,
    WriteDocs,
    CheckDocs,
    Bench(bench::Wish),
    Crash(crash::Wish),
    Evidence,
    Simulate(simulate::Wish),
}

fn task(arguments: &[&str]) -> Option<Task> {
    match arguments {
        ["help" | "--help" | "-h"] => Some(Task::Usage),
        ["ci"] => Some(Task::Ci),
        ["ci", name] => ci::stage(name).map(Task::Stage),
        ["tidy"] => Some(Task::Tidy),
        ["tidy", "--report"] => Some(Task::ReportFigures),
        ["tidy", "--tighten"] => Some(Task::TightenLimits),
        ["gen-docs"] => Some(Task::WriteDocs),
        ["gen-docs", "--check"] => Some(Task::CheckDocs),
        ["bench", wishes @ ..] => bench_wish(wishes).map(Task::Bench),
        ["crash", wishes @ ..] => crash::Wish::read(wishes).map(Task::Crash),
        ["evidence"] => Some(Task::Evidence),
        ["simulate", wishes @ ..] => simulate::Wish::read(wishes).map(Task::Simulate),
        _ => None,
    }
}

fn bench_wish(arguments: &[&str]) -> Option<bench::Wish> {
    let known = arguments.iter().all(|argument| ["--json", "--callgrind", "--evidence", "--simulator"].contains(argument));
    let has = |wish| arguments.contains(&wish);
    let only = match (has("--evidence"), has("--simulator")) {
        (true, true) => return None,
        (true, false) => Some(bench::Part::Evidence),
        (false, true) => Some(bench::Part::Simulator),
        (false, false) => None,
    };
    known.then(|| bench::Wish { json: has("--json"), callgrind: has("--callgrind"), only })
}

fn perform(task: Task) -> Outcome {
    match task {
        Task::Usage => {
            println!("{USAGE}");
            Ok(())
        }
        Task::Ci => ci::run(),
        Task::Stage(name) => ci::run_only(name),
        Task::Tidy => tidy::check(),
        Task::ReportFigures => tidy::report_figures(),
        Task::TightenLimits => tidy::tighten_limits(),
        Task::WriteDocs => docs::write(),
        Task::CheckDocs => docs::check(),
        Task::Bench(wish) => bench::run(wish),
        Task::Crash(wish) => crash::run(wish),
        Task::Evidence => evidence::run(),
        Task::Simulate(wish) => simulate::run(wish),
    }
}

fn exit_code(outcome: Outcome) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("xtask: {failure}");
            ExitCode::FAILURE
        }
    }
}

/// Every path in this program is relative to the root of the repository, wherever it was called
/// from.
fn enter_root() -> Outcome {
    let root = root()?;
    std::env::set_current_dir(&root).map_err(|error| Failure::new(format!("cannot enter `{}`: {error}", root.display())))
}

/// Asked at run time, not with `env!`: a binary built in one clone must not check another one.
fn root() -> Result<PathBuf, Failure> {
    let manifest = std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
    let root = manifest.as_deref().and_then(Path::parent).map(Path::to_path_buf);
    root.ok_or_else(|| Failure::new("CARGO_MANIFEST_DIR is not set; call this program as `cargo xtask`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_words_are_no_task() {
        for arguments in [&[][..], &["cii"], &["ci", "fast"], &["gen-docs", "--chek"], &["bench", "--fast"]] {
            assert_eq!(task(arguments), None, "{arguments:?}");
        }
    }

    #[test]
    fn each_task_is_reached_by_its_name() {
        assert_eq!(task(&["ci"]), Some(Task::Ci));
        assert_eq!(task(&["ci", "tidy"]), Some(Task::Stage("tidy")));
        assert_eq!(task(&["tidy"]), Some(Task::Tidy));
        assert_eq!(task(&["tidy", "--report"]), Some(Task::ReportFigures));
        assert_eq!(task(&["tidy", "--tighten"]), Some(Task::TightenLimits));
        assert_eq!(task(&["gen-docs"]), Some(Task::WriteDocs));
        assert_eq!(task(&["gen-docs", "--check"]), Some(Task::CheckDocs));
        let all = bench::Wish { json: false, callgrind: false, only: None };
        assert_eq!(task(&["bench"]), Some(Task::Bench(all)));
        assert_eq!(task(&["bench", "--json"]), Some(Task::Bench(bench::Wish { json: true, ..all })));
        assert_eq!(task(&["bench", "--evidence"]), Some(Task::Bench(bench::Wish { only: Some(bench::Part::Evidence), ..all })));
        assert_eq!(task(&["bench", "--simulator"]), Some(Task::Bench(bench::Wish { only: Some(bench::Part::Simulator), ..all })));
        assert_eq!(task(&["bench", "--simulator", "--evidence"]), None);
        assert_eq!(task(&["--help"]), Some(Task::Usage));
    }
}
