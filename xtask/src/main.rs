//! The entry point of `cargo xtask`: parses the arguments, runs one task, returns an exit code.
//!
//! Must not contain the tasks themselves. Code that builds, checks or generates something belongs
//! in the module named after that task.

mod actions;
mod ansible;
mod bench;
mod ci;
mod clients;
mod crash;
mod docs;
mod evidence;
mod format_check;
mod lab;
mod python;
mod readme;
mod shell;
mod simulate;
mod tidy;
mod tools;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use shell::{TaskError, TaskResult};

const USAGE: &str = "\
usage: cargo xtask <task>

  ci                 run everything that must pass before a commit; install missing tools first
  ci <stage>         run one stage, on what the earlier stages have built
  tidy               check the repository's rules: dependencies, words, lengths, tests of guarantees
  tidy --report      print the figures on names and wording, their limits and the worst offenders
  tidy --tighten     lower the limits in xtask/ratchets.toml to today's figures
  gen-docs           write the generated pages
  gen-docs --check   only compare them with the committed ones
  bench              measure the performance targets; write the report to target/bench.json
                     (--json prints it, --callgrind also counts instructions, --evidence measures the ledger only,
                     --simulator measures the simulation only, which is built twice for that)
  crash              kill, or fail with EIO or ENOSPC, every writing call of an apply; write target/crash.json
                     (--sample N plays N points, --seed S selects others, --point P plays one; --ci, --debug)
  evidence           run the evidence tests at full size: over 100,000 flips, every write killed, 10,000 decisions
  simulate           run 100,000 seeded schedules of faults and check the invariants
                     (--schedules N or --million, --from N; --seed S prints one of them; --bugs, --sagas)";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match parse_command(&arguments) {
        Some(task) => exit_code(enter_repository_root().and_then(|()| run_command(task))),
        None => {
            eprintln!("{USAGE}");
            ExitCode::from(2)
        }
    }
}

/// The requested task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum XtaskCommand {
    Usage,
    Ci,
    Stage(&'static str),
    Tidy,
    ReportFigures,
    TightenLimits,
    WriteDocs,
    CheckDocs,
    Bench(bench::BenchOptions),
    Crash(crash::CrashOptions),
    Evidence,
    Simulate(simulate::SimulateOptions),
}

fn parse_command(arguments: &[&str]) -> Option<XtaskCommand> {
    match arguments {
        ["help" | "--help" | "-h"] => Some(XtaskCommand::Usage),
        ["ci"] => Some(XtaskCommand::Ci),
        ["ci", name] => ci::find_stage(name).map(XtaskCommand::Stage),
        ["tidy"] => Some(XtaskCommand::Tidy),
        ["tidy", "--report"] => Some(XtaskCommand::ReportFigures),
        ["tidy", "--tighten"] => Some(XtaskCommand::TightenLimits),
        ["gen-docs"] => Some(XtaskCommand::WriteDocs),
        ["gen-docs", "--check"] => Some(XtaskCommand::CheckDocs),
        ["bench", wishes @ ..] => parse_bench_options(wishes).map(XtaskCommand::Bench),
        ["crash", wishes @ ..] => crash::CrashOptions::parse(wishes).map(XtaskCommand::Crash),
        ["evidence"] => Some(XtaskCommand::Evidence),
        ["simulate", wishes @ ..] => simulate::SimulateOptions::parse(wishes).map(XtaskCommand::Simulate),
        _ => None,
    }
}

fn parse_bench_options(arguments: &[&str]) -> Option<bench::BenchOptions> {
    let known = arguments.iter().all(|argument| ["--json", "--callgrind", "--evidence", "--simulator"].contains(argument));
    let has = |flag| arguments.contains(&flag);
    let only = match (has("--evidence"), has("--simulator")) {
        (true, true) => return None,
        (true, false) => Some(bench::BenchPart::Evidence),
        (false, true) => Some(bench::BenchPart::Simulator),
        (false, false) => None,
    };
    known.then(|| bench::BenchOptions { json: has("--json"), callgrind: has("--callgrind"), only_part: only })
}

fn run_command(task: XtaskCommand) -> TaskResult {
    match task {
        XtaskCommand::Usage => {
            println!("{USAGE}");
            Ok(())
        }
        XtaskCommand::Ci => ci::run_all_stages(),
        XtaskCommand::Stage(name) => ci::run_stage(name),
        XtaskCommand::Tidy => tidy::check_tidy(),
        XtaskCommand::ReportFigures => tidy::report_figures(),
        XtaskCommand::TightenLimits => tidy::tighten_limits(),
        XtaskCommand::WriteDocs => docs::write_pages(),
        XtaskCommand::CheckDocs => docs::check_docs(),
        XtaskCommand::Bench(options) => bench::run_bench(options),
        XtaskCommand::Crash(options) => crash::run_crashes(options),
        XtaskCommand::Evidence => evidence::run_evidence_tests(),
        XtaskCommand::Simulate(options) => simulate::run_simulation(options),
    }
}

fn exit_code(outcome: TaskResult) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("xtask: {failure}");
            ExitCode::FAILURE
        }
    }
}

/// All paths in this program are relative to the root of the repository, whatever the current directory of the caller is.
fn enter_repository_root() -> TaskResult {
    let root = repository_root()?;
    std::env::set_current_dir(&root).map_err(|error| TaskError::new(format!("cannot enter `{}`: {error}", root.display())))
}

/// Read at run time and not with `env!`: a binary that was built in one clone must not check another one.
fn repository_root() -> Result<PathBuf, TaskError> {
    let manifest = std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
    let root = manifest.as_deref().and_then(Path::parent).map(Path::to_path_buf);
    root.ok_or_else(|| TaskError::new("CARGO_MANIFEST_DIR is not set; call this program as `cargo xtask`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_arguments_are_no_command() {
        for arguments in [&[][..], &["cii"], &["ci", "fast"], &["gen-docs", "--chek"], &["bench", "--fast"]] {
            assert_eq!(parse_command(arguments), None, "{arguments:?}");
        }
    }

    #[test]
    fn each_command_is_parsed_from_its_name() {
        assert_eq!(parse_command(&["ci"]), Some(XtaskCommand::Ci));
        assert_eq!(parse_command(&["ci", "tidy"]), Some(XtaskCommand::Stage("tidy")));
        assert_eq!(parse_command(&["tidy"]), Some(XtaskCommand::Tidy));
        assert_eq!(parse_command(&["tidy", "--report"]), Some(XtaskCommand::ReportFigures));
        assert_eq!(parse_command(&["tidy", "--tighten"]), Some(XtaskCommand::TightenLimits));
        assert_eq!(parse_command(&["gen-docs"]), Some(XtaskCommand::WriteDocs));
        assert_eq!(parse_command(&["gen-docs", "--check"]), Some(XtaskCommand::CheckDocs));
        let all = bench::BenchOptions { json: false, callgrind: false, only_part: None };
        assert_eq!(parse_command(&["bench"]), Some(XtaskCommand::Bench(all)));
        assert_eq!(parse_command(&["bench", "--json"]), Some(XtaskCommand::Bench(bench::BenchOptions { json: true, ..all })));
        assert_eq!(
            parse_command(&["bench", "--evidence"]),
            Some(XtaskCommand::Bench(bench::BenchOptions { only_part: Some(bench::BenchPart::Evidence), ..all }))
        );
        assert_eq!(
            parse_command(&["bench", "--simulator"]),
            Some(XtaskCommand::Bench(bench::BenchOptions { only_part: Some(bench::BenchPart::Simulator), ..all }))
        );
        assert_eq!(parse_command(&["bench", "--simulator", "--evidence"]), None);
        assert_eq!(parse_command(&["--help"]), Some(XtaskCommand::Usage));
    }
}
