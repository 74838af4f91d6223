//! The walk that every commit passes: stages in order, each timed, the first failure ends it.
//!
//! What never enters here: what a stage knows beyond its command line. Tools, tidiness and
//! generated pages have modules of their own. Every cargo command below says `--workspace
//! --all-features` and the profile `ci`, because another set of features would build the
//! dependencies once more.

use std::env;
use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::shell::{self, Failure, Outcome};
use crate::{clients, crash, docs, opinion, readme, simulate, tidy, tools};

/// A stage: its name in the table, and what it does.
type Stage = (&'static str, fn() -> Outcome);

const STAGES: &[Stage] = &[
    ("tools", tools::ready),
    ("fmt", fmt),
    ("clippy", clippy),
    ("tidy", tidy::check),
    ("build", build),
    ("test", test),
    ("doctests", doctests),
    ("readme", readme::check),
    ("docs", docs::check),
    ("opinion", opinion::ask),
    ("clients", clients::ask),
    ("simulate", simulate::stage),
    ("crash", crash::sample),
];

/// The stage of that name.
pub(crate) fn stage(name: &str) -> Option<&'static str> {
    STAGES.iter().map(|(known, _)| *known).find(|known| *known == name)
}

/// Run one stage by itself; what it needs of those before it must be there.
pub(crate) fn run_only(name: &str) -> Outcome {
    finish(walk(&STAGES.iter().copied().filter(|(known, _)| *known == name).collect::<Vec<_>>()))
}

/// Run every stage up to the first that fails, and show the times in any case.
pub(crate) fn run() -> Outcome {
    finish(walk(STAGES))
}

fn finish(rows: Vec<Row>) -> Outcome {
    eprint!("\n{}", table(&rows));
    verdict(rows)
}

fn fmt() -> Outcome {
    shell::run(&mut shell::cargo(&["fmt", "--all", "--check"]))
}

fn clippy() -> Outcome {
    cargo_on_everything(&["clippy", "--all-targets", "--profile", "ci"], &["--", "-D", "warnings"])
}

/// Apart from `test` only to be timed apart: what it builds is what `test` runs.
fn build() -> Outcome {
    cargo_on_everything(&["nextest", "run", "--no-run", "--cargo-profile", "ci"], &[])
}

fn test() -> Outcome {
    cargo_on_everything(&["nextest", "run", "--cargo-profile", "ci"], &[])
}

fn cargo_on_everything(before: &[&str], after: &[&str]) -> Outcome {
    let everything = ["--workspace", "--all-features"];
    shell::run(&mut shell::cargo(&[before, &everything, after].concat()))
}

/// Rustdoc compares the error code of a `compile_fail,E0451` block only if it takes itself for a
/// nightly. Without that, such a block passes on any mistake, even a typing error, and proves
/// nothing about a guarantee.
fn doctests() -> Outcome {
    let rustdoc = env::current_dir()
        .and_then(|root| strict_rustdoc(&root.join("target")))
        .map_err(|error| Failure::new(format!("cannot write `target/{STRICT_RUSTDOC}`: {error}")))?;
    let arguments = ["test", "--doc", "--workspace", "--all-features", "--profile", "ci"];
    shell::run(shell::cargo(&arguments).env("RUSTDOC", rustdoc))
}

const STRICT_RUSTDOC: &str = "strict-rustdoc";

/// A script and not a variable on the whole command: to cargo and rustc, RUSTC_BOOTSTRAP makes
/// another compiler, and everything would be built once more, with unstable features open to our
/// own code.
fn strict_rustdoc(directory: &Path) -> std::io::Result<PathBuf> {
    let path = directory.join(STRICT_RUSTDOC);
    fs::create_dir_all(directory)?;
    fs::write(&path, "#!/bin/sh\nRUSTC_BOOTSTRAP=1 exec rustdoc \"$@\"\n")?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
    Ok(path)
}

/// What became of a stage.
enum End {
    Passed(Duration),
    Failed(Duration, Failure),
    NotRun,
}

type Row = (&'static str, End);

fn walk(stages: &[Stage]) -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    for &(name, stage) in stages {
        let stopped = rows.last().is_some_and(|(_, end)| !matches!(end, End::Passed(_)));
        rows.push((name, if stopped { End::NotRun } else { timed(name, stage) }));
    }
    rows
}

fn timed(name: &str, stage: fn() -> Outcome) -> End {
    eprintln!("\n== {name}");
    let started = Instant::now();
    match stage() {
        Ok(()) => End::Passed(started.elapsed()),
        Err(failure) => End::Failed(started.elapsed(), failure),
    }
}

fn table(rows: &[Row]) -> String {
    let mut table = String::new();
    let mut total = Duration::ZERO;
    for (name, end) in rows {
        let (time, word) = match end {
            End::Passed(time) => (*time, "passed"),
            End::Failed(time, _) => (*time, "FAILED"),
            End::NotRun => (Duration::ZERO, "not run"),
        };
        total += time;
        // Writing to a string cannot fail.
        let _ = writeln!(table, "{name:<10} {:>6}  {word}", minutes(time));
    }
    let _ = writeln!(table, "{:<10} {:>6}", "total", minutes(total));
    table
}

fn minutes(time: Duration) -> String {
    let seconds = time.as_secs();
    format!("{}:{:02}", seconds / 60, seconds % 60)
}

fn verdict(rows: Vec<Row>) -> Outcome {
    rows.into_iter().try_for_each(|(name, end)| match end {
        End::Failed(_, failure) => Err(Failure::new(format!("stage `{name}`: {failure}"))),
        End::Passed(_) | End::NotRun => Ok(()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passes() -> Outcome {
        Ok(())
    }

    fn fails() -> Outcome {
        Err(Failure::new("the roof leaks"))
    }

    #[test]
    fn the_first_failure_ends_the_walk_and_is_the_verdict() {
        let rows = walk(&[("walls", passes), ("roof", fails), ("paint", fails)]);
        assert!(matches!(rows[0].1, End::Passed(_)));
        assert!(matches!(rows[1].1, End::Failed(..)));
        assert!(matches!(rows[2].1, End::NotRun));
        assert_eq!(verdict(rows), Err(Failure::new("stage `roof`: the roof leaks")));
    }

    #[test]
    fn a_walk_without_failure_passes() {
        assert_eq!(verdict(walk(&[("walls", passes), ("roof", passes)])), Ok(()));
    }

    #[test]
    fn the_table_shows_minutes_seconds_and_a_total() {
        let rows = [
            ("build", End::Passed(Duration::from_secs(125))),
            ("test", End::Failed(Duration::from_secs(4), Failure::new("one failed"))),
            ("doctests", End::NotRun),
        ];
        let expected = "\
build        2:05  passed
test         0:04  FAILED
doctests     0:00  not run
total        2:09
";
        assert_eq!(table(&rows), expected);
    }

    /// Whether a block that expects `code` passes, where the mistake is an E0308 (mismatched
    /// types).
    fn block_passes(directory: &Path, code: &str) -> bool {
        let source = directory.join(format!("{code}.rs"));
        let block = format!("//! ```compile_fail,{code}\n//! let number: u32 = \"one\";\n//! ```\n");
        fs::write(&source, block).unwrap();
        let rustdoc = strict_rustdoc(directory).unwrap();
        shell::succeeds(shell::command(rustdoc, &["--test"]).arg(source))
    }

    #[test]
    fn a_compile_fail_block_passes_only_with_its_own_error_code() {
        let directory = env::temp_dir().join(format!("xtask-rustdoc-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let [wrong, right] = ["E0451", "E0308"].map(|code| block_passes(&directory, code));
        fs::remove_dir_all(&directory).unwrap();
        assert!(!wrong, "the block names E0451 and fails with E0308");
        assert!(right, "the block names E0308 and fails with it");
    }
}
