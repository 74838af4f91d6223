//! Continuous integration, which every commit passes: stages in order, each timed; the first
//! failure stops it.
//!
//! A stage is only a command line here; tools, tidiness and generated pages have modules of their
//! own. Every cargo command uses `--workspace --all-features` and the profile `ci`, because another
//! set of features would build the dependencies again.

use std::env;
use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::shell::{self, TaskError, TaskResult};
use crate::{clients, crash, docs, format_check, readme, simulate, tidy, tools};

/// A stage: its name in the table, and its function.
type CiStage = (&'static str, fn() -> TaskResult);

const STAGES: &[CiStage] = &[
    ("tools", tools::ensure_tools),
    ("fmt", check_format),
    ("clippy", run_clippy),
    ("tidy", tidy::check_tidy),
    ("build", build_tests),
    ("test", run_tests),
    ("doctests", run_doctests),
    ("readme", readme::check_readme),
    ("docs", docs::check_docs),
    ("opinion", format_check::check_formats),
    ("clients", clients::check_clients),
    ("simulate", simulate::run_ci_stage),
    ("crash", crash::run_ci_sample),
];

/// The stage with this name.
pub(crate) fn find_stage(name: &str) -> Option<&'static str> {
    STAGES.iter().map(|(known, _)| *known).find(|known| *known == name)
}

/// Runs one stage on its own; it may need what earlier stages built.
pub(crate) fn run_stage(name: &str) -> TaskResult {
    print_and_check(run_stages(&STAGES.iter().copied().filter(|(known, _)| *known == name).collect::<Vec<_>>()))
}

/// Runs the stages until one fails; always prints the times.
pub(crate) fn run_all_stages() -> TaskResult {
    print_and_check(run_stages(STAGES))
}

fn print_and_check(rows: Vec<StageRow>) -> TaskResult {
    eprint!("\n{}", render_table(&rows));
    first_failure(rows)
}

fn check_format() -> TaskResult {
    shell::run_visibly(&mut shell::cargo_command(&["fmt", "--all", "--check"]))
}

fn run_clippy() -> TaskResult {
    run_cargo_on_workspace(&["clippy", "--all-targets", "--profile", "ci"], &["--", "-D", "warnings"])
}

/// Separate from `test` only to be timed separately: it builds what `test` runs.
fn build_tests() -> TaskResult {
    run_cargo_on_workspace(&["nextest", "run", "--no-run", "--cargo-profile", "ci"], &[])
}

fn run_tests() -> TaskResult {
    run_cargo_on_workspace(&["nextest", "run", "--cargo-profile", "ci"], &[])
}

fn run_cargo_on_workspace(before: &[&str], after: &[&str]) -> TaskResult {
    let everything = ["--workspace", "--all-features"];
    shell::run_visibly(&mut shell::cargo_command(&[before, &everything, after].concat()))
}

/// Rustdoc compares the error code of a `compile_fail,E0451` block only if it believes that it is a nightly. Otherwise such a block passes
/// on any mistake, even a typo, and proves nothing about a guarantee.
fn run_doctests() -> TaskResult {
    let rustdoc = env::current_dir()
        .and_then(|root| write_strict_rustdoc(&root.join("target")))
        .map_err(|error| TaskError::new(format!("cannot write `target/{STRICT_RUSTDOC}`: {error}")))?;
    let arguments = ["test", "--doc", "--workspace", "--all-features", "--profile", "ci"];
    shell::run_visibly(shell::cargo_command(&arguments).env("RUSTDOC", rustdoc))
}

const STRICT_RUSTDOC: &str = "strict-rustdoc";

/// A wrapper script instead of a variable for the whole command: for cargo and rustc, RUSTC_BOOTSTRAP means another compiler. Everything
/// would be built again, with unstable features available to our own code.
fn write_strict_rustdoc(directory: &Path) -> std::io::Result<PathBuf> {
    let path = directory.join(STRICT_RUSTDOC);
    fs::create_dir_all(directory)?;
    fs::write(&path, "#!/bin/sh\nRUSTC_BOOTSTRAP=1 exec rustdoc \"$@\"\n")?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
    Ok(path)
}

/// How a stage ended.
enum StageEnd {
    Passed(Duration),
    Failed(Duration, TaskError),
    NotRun,
}

type StageRow = (&'static str, StageEnd);

fn run_stages(stages: &[CiStage]) -> Vec<StageRow> {
    let mut rows: Vec<StageRow> = Vec::new();
    for &(name, stage) in stages {
        let stopped = rows.last().is_some_and(|(_, end)| !matches!(end, StageEnd::Passed(_)));
        rows.push((name, if stopped { StageEnd::NotRun } else { run_timed(name, stage) }));
    }
    rows
}

fn run_timed(name: &str, stage: fn() -> TaskResult) -> StageEnd {
    eprintln!("\n== {name}");
    let started = Instant::now();
    match stage() {
        Ok(()) => StageEnd::Passed(started.elapsed()),
        Err(failure) => StageEnd::Failed(started.elapsed(), failure),
    }
}

fn render_table(rows: &[StageRow]) -> String {
    let mut table = String::new();
    let mut total = Duration::ZERO;
    for (name, end) in rows {
        let (time, outcome) = match end {
            StageEnd::Passed(time) => (*time, "passed"),
            StageEnd::Failed(time, _) => (*time, "FAILED"),
            StageEnd::NotRun => (Duration::ZERO, "not run"),
        };
        total += time;
        // Writing to a string cannot fail.
        let _ = writeln!(table, "{name:<10} {:>6}  {outcome}", format_minutes(time));
    }
    let _ = writeln!(table, "{:<10} {:>6}", "total", format_minutes(total));
    table
}

fn format_minutes(time: Duration) -> String {
    let seconds = time.as_secs();
    format!("{}:{:02}", seconds / 60, seconds % 60)
}

fn first_failure(rows: Vec<StageRow>) -> TaskResult {
    rows.into_iter().try_for_each(|(name, end)| match end {
        StageEnd::Failed(_, failure) => Err(TaskError::new(format!("stage `{name}`: {failure}"))),
        StageEnd::Passed(_) | StageEnd::NotRun => Ok(()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passing_stage() -> TaskResult {
        Ok(())
    }

    fn failing_stage() -> TaskResult {
        Err(TaskError::new("the roof leaks"))
    }

    #[test]
    fn the_first_failure_stops_ci_and_is_reported() {
        let rows = run_stages(&[("walls", passing_stage), ("roof", failing_stage), ("paint", failing_stage)]);
        assert!(matches!(rows[0].1, StageEnd::Passed(_)));
        assert!(matches!(rows[1].1, StageEnd::Failed(..)));
        assert!(matches!(rows[2].1, StageEnd::NotRun));
        assert_eq!(first_failure(rows), Err(TaskError::new("stage `roof`: the roof leaks")));
    }

    #[test]
    fn ci_without_failures_passes() {
        assert_eq!(first_failure(run_stages(&[("walls", passing_stage), ("roof", passing_stage)])), Ok(()));
    }

    #[test]
    fn the_table_shows_minutes_seconds_and_a_total() {
        let rows = [
            ("build", StageEnd::Passed(Duration::from_secs(125))),
            ("test", StageEnd::Failed(Duration::from_secs(4), TaskError::new("one failed"))),
            ("doctests", StageEnd::NotRun),
        ];
        let expected = "\
build        2:05  passed
test         0:04  FAILED
doctests     0:00  not run
total        2:09
";
        assert_eq!(render_table(&rows), expected);
    }

    /// Whether a block that expects `code` passes, if its mistake is an E0308 (mismatched types).
    fn block_passes(directory: &Path, code: &str) -> bool {
        let source = directory.join(format!("{code}.rs"));
        let block = format!("//! ```compile_fail,{code}\n//! let number: u32 = \"one\";\n//! ```\n");
        fs::write(&source, block).unwrap();
        let rustdoc = write_strict_rustdoc(directory).unwrap();
        shell::succeeds(shell::new_command(rustdoc, &["--test"]).arg(source))
    }

    #[test]
    fn compile_fail_blocks_pass_only_with_their_error_code() {
        let directory = env::temp_dir().join(format!("xtask-rustdoc-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let [wrong, right] = ["E0451", "E0308"].map(|code| block_passes(&directory, code));
        fs::remove_dir_all(&directory).unwrap();
        assert!(!wrong, "the block names E0451 and fails with E0308");
        assert!(right, "the block names E0308 and fails with it");
    }
}
