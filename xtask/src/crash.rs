//! Kills the program with `kill -9`, or fails a system call with EIO or ENOSPC, at every system
//! call that writes, during an apply on a lab.
//!
//! After each crash a person applies again. For some crashes, that recovery is killed or fails in
//! the same ways, followed by another apply. Then three witnesses are compared: the output of the
//! program, its journal, and the requests that the lab received. Nothing that was reported may be
//! lost, nothing may run twice, nothing may be sent without its intent, and the restart must be
//! ready soon. How a fault is injected is in `trace`, how a crash is played in `sandbox`, and how
//! it is judged in `evidence`.

mod evidence;
mod points;
mod process_run;
mod report;
mod requests;
mod sandbox;
mod trace;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use crate::shell::{self, TaskError, TaskResult};
use evidence::CrashEvidence;
use points::{CrashPoint, CrashRun, InjectedFault, StateBefore};
use report::{CallCoverage, CrashReport, CrashRow};
use sandbox::{CrashSandbox, PointOutcome};

/// The options of `crash`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CrashOptions {
    pub(crate) binary: CrashBinary,
    pub(crate) extent: PointSelection,
    /// The seed for the order of a sample.
    pub(crate) seed: u64,
}

/// Which build of the program is killed. It is built first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CrashBinary {
    /// The release build that users get.
    Release,
    /// The build of CI, which has no time for another one.
    Ci,
    /// The debug build, for work on the program.
    Debug,
}

/// How many points are played.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PointSelection {
    /// All points.
    All,
    /// At least this many.
    Sample(usize),
    /// One point, to investigate a violation.
    One(CrashPoint),
}

impl CrashOptions {
    pub(crate) const DEFAULT_SEED: u64 = 20_261_116;

    /// Parses the arguments after `crash`.
    pub(crate) fn parse(arguments: &[&str]) -> Option<Self> {
        let mut options = Self { binary: CrashBinary::Release, extent: PointSelection::All, seed: Self::DEFAULT_SEED };
        let mut arguments = arguments.iter();
        while let Some(argument) = arguments.next() {
            match *argument {
                "--ci" => options.binary = CrashBinary::Ci,
                "--debug" => options.binary = CrashBinary::Debug,
                "--sample" => options.extent = PointSelection::Sample(arguments.next()?.parse().ok().filter(|count| *count > 0)?),
                "--point" => options.extent = PointSelection::One(arguments.next()?.parse().ok()?),
                "--seed" => options.seed = arguments.next()?.parse().ok()?,
                _ => return None,
            }
        }
        Some(options)
    }
}

const WORK_DIRECTORY: &str = "target/crash";
/// Several workers share a core, because a crash mostly waits.
const WORKERS_PER_CORE: usize = 6;
/// Injects the faults, provides a terminal, and reads the guests of the lab.
const TOOLS: [&str; 3] = ["strace", "script", "curl"];
/// The sample size in CI.
const CI_SAMPLE: usize = 300;

/// The stage of CI.
pub(crate) fn run_ci_sample() -> TaskResult {
    run_crashes(CrashOptions { binary: CrashBinary::Ci, extent: PointSelection::Sample(CI_SAMPLE), seed: CrashOptions::DEFAULT_SEED })
}

/// Plays the crashes, prints the result and writes the report; a violation is an error.
pub(crate) fn run_crashes(options: CrashOptions) -> TaskResult {
    let converger = build_program(options.binary)?;
    let workers = thread::available_parallelism().map_or(2, usize::from) * WORKERS_PER_CORE;
    let sandboxes: Vec<CrashSandbox> = (0..workers)
        .map(|number| CrashSandbox::new(&converger, &Path::new(WORK_DIRECTORY).join(number.to_string())))
        .collect::<Result<_, _>>()?;
    let mut calls = CallCoverage::default();
    let (points, twice) = match options.extent {
        PointSelection::One(point) => (vec![point], Vec::new()),
        PointSelection::All | PointSelection::Sample(_) => {
            let points = points::shuffle_points(find_all_points(&sandboxes, &mut calls)?, options.seed);
            let twice = points::shuffle_points(find_recovery_points(&sandboxes, &points)?, options.seed);
            (points, twice)
        }
    };
    eprintln!("{} points, {} of recoveries; seed {}", points.len(), twice.len(), options.seed);
    let enough = if let PointSelection::Sample(count) = options.extent { count } else { usize::MAX };
    let mut rows = play_points(&sandboxes, &points, SampleSize { points: enough, provisioning: enough / PROVISIONING_SHARE })?;
    rows.extend(play_points(&sandboxes, &twice, SampleSize { points: enough / RECOVERY_SHARE, provisioning: 0 })?);
    let (rows, replayed) = replay_slow(&sandboxes, rows)?;
    let known = points.len() + twice.len();
    let report = CrashReport::new(options.seed, known, rows).with_calls(calls).with_replayed(replayed);
    report.write_file()?;
    print!("{}", report.render_text());
    report.check(match options.extent {
        PointSelection::Sample(count) => count,
        PointSelection::One(_) => 1,
        // The calls of a run vary a little from run to run, but a sweep that hits far fewer points than it knows proves nothing.
        PointSelection::All => known * 9 / 10,
    })
}

fn build_program(binary: CrashBinary) -> Result<PathBuf, TaskError> {
    if let Some(tool) = TOOLS.into_iter().find(|tool| !shell::succeeds(&mut shell::new_command(*tool, &["-V"]))) {
        return Err(TaskError::new(format!("`{tool}` is not installed; `cargo xtask ci tools` installs it")));
    }
    let (profile, directory) = match binary {
        CrashBinary::Ci => (&["--workspace", "--all-features", "--profile", "ci"][..], "ci"),
        CrashBinary::Release => (&["--release"][..], "release"),
        CrashBinary::Debug => (&["--workspace", "--all-features"][..], "debug"),
    };
    shell::run_visibly(&mut shell::cargo_command(&[&["build", "--bin", "converger"], profile].concat()))?;
    copy_program(&shell::built_program(directory, "converger"))
}

/// A copy, so that a concurrent build does not replace the program under test.
fn copy_program(program: &Path) -> Result<PathBuf, TaskError> {
    let copy = Path::new(WORK_DIRECTORY).join("converger");
    let copied = fs::create_dir_all(WORK_DIRECTORY).and_then(|()| fs::copy(program, &copy));
    copied.map(|_| copy).map_err(|error| TaskError::new(format!("cannot copy `{}`: {error}", program.display())))
}

/// All points, counted by runs without faults, and how many of the calls they cover.
fn find_all_points(sandboxes: &[CrashSandbox], calls: &mut CallCoverage) -> Result<Vec<CrashPoint>, TaskError> {
    let counted = run_in_parallel(sandboxes, &CrashRun::all(), |sandbox, run| sandbox.count_points(*run), |_| false)?;
    let mut points = Vec::new();
    for reached in counted {
        points.extend(&reached.points);
        calls.add(&reached);
    }
    points.sort();
    Ok(points)
}

/// For this many crashes, faults are injected at every call of the recovery: more than a thousand points each.
const RECOVERY_CRASHES: usize = 3;
/// One in this many points of a sample is in a recovery.
const RECOVERY_SHARE: usize = 5;

/// All points in the recovery from some of these crashes: the first ones that leave something to recover.
fn find_recovery_points(sandboxes: &[CrashSandbox], points: &[CrashPoint]) -> Result<Vec<CrashPoint>, TaskError> {
    let kills = points.iter().copied().filter(|point| point.fault == InjectedFault::Kill && point.site.memory == StateBefore::Kept);
    let kills: Vec<(usize, CrashPoint)> = kills.enumerate().collect();
    let deaths = |sandbox: &CrashSandbox, (at, point): &(usize, CrashPoint)| Ok((*at, sandbox.count_recovery_points(*point)?));
    let is_enough = |found: &[(usize, Vec<CrashPoint>)]| found.iter().filter(|(_, deaths)| !deaths.is_empty()).count() >= RECOVERY_CRASHES;
    let mut found = run_in_parallel(sandboxes, &kills, deaths, is_enough)?;
    // Workers finish the crashes that they have started, in any order.
    found.retain(|(_, deaths)| !deaths.is_empty());
    found.sort_by_key(|(at, _)| *at);
    let mut all: Vec<CrashPoint> = found.into_iter().take(RECOVERY_CRASHES).flat_map(|(_, deaths)| deaths).collect();
    all.sort();
    Ok(all)
}

/// At least one in this many points of a sample is in a run that makes a guest from a template and configures it.
const PROVISIONING_SHARE: usize = 6;

/// How many points are enough.
#[derive(Clone, Copy)]
struct SampleSize {
    points: usize,
    /// At least this many of them are in runs that make and configure a guest.
    provisioning: usize,
}

impl SampleSize {
    fn is_reached(self, rows: &[CrashRow]) -> bool {
        let count =
            |is_meant: &dyn Fn(&CrashPoint) -> bool| rows.iter().filter(|row| row.evidence.is_some() && is_meant(&row.point)).count();
        let has_fault = |fault: InjectedFault| count(&|point| point.last_fault() == fault) >= self.points / InjectedFault::ALL.len();
        let has_provisioning = count(&|point| point.site.actor.provisions()) >= self.provisioning;
        count(&|_| true) >= self.points && has_provisioning && InjectedFault::ALL.into_iter().all(has_fault)
    }
}

/// Plays points in order until enough were hit, with a minimum for each fault.
fn play_points(sandboxes: &[CrashSandbox], points: &[CrashPoint], enough: SampleSize) -> Result<Vec<CrashRow>, TaskError> {
    let play = |sandbox: &CrashSandbox, point: &CrashPoint| {
        Ok(match sandbox.play_point(*point)? {
            PointOutcome::NotReached => CrashRow { point: *point, evidence: None },
            PointOutcome::Hit(evidence) => CrashRow { point: *point, evidence: Some(*evidence) },
        })
    };
    run_in_parallel(sandboxes, points, play, |rows: &[CrashRow]| {
        if rows.len().is_multiple_of(50) {
            eprintln!("  {} points", rows.len());
        }
        enough.is_reached(rows)
    })
}

/// How often a slow restart is timed again.
const REPLAYS_MAX: usize = 3;

/// Plays points again, alone, whose only violation was a slow restart: other load can only add to its time, so the lowest counts. Returns
/// how many there were.
fn replay_slow(sandboxes: &[CrashSandbox], mut rows: Vec<CrashRow>) -> Result<(Vec<CrashRow>, usize), TaskError> {
    let is_slow = |row: &CrashRow| row.evidence.as_ref().is_some_and(CrashEvidence::is_only_slow);
    let slow = rows.iter().filter(|row| is_slow(row)).count();
    let Some(sandbox) = sandboxes.first() else { return Ok((rows, 0)) };
    for row in rows.iter_mut().filter(|row| is_slow(row)) {
        for _ in 0..REPLAYS_MAX {
            if let PointOutcome::Hit(evidence) = sandbox.play_point(row.point)? {
                row.evidence = Some(*evidence);
            }
            if !is_slow(row) {
                break;
            }
        }
    }
    Ok((rows, slow))
}

/// Distributes the work over the sandboxes until all is done, it is enough, or something fails.
fn run_in_parallel<T: Sync, R: Send>(
    sandboxes: &[CrashSandbox],
    works: &[T],
    work: impl Fn(&CrashSandbox, &T) -> Result<R, TaskError> + Sync,
    is_enough: impl Fn(&[R]) -> bool + Sync,
) -> Result<Vec<R>, TaskError> {
    let next = AtomicUsize::new(0);
    let done: Mutex<Result<Vec<R>, TaskError>> = Mutex::new(Ok(Vec::new()));
    let keep = |result: Result<R, TaskError>| {
        let mut done = done.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        match (&mut *done, result) {
            (Ok(rows), Ok(row)) => rows.push(row),
            (done @ Ok(_), Err(failure)) => *done = Err(failure),
            (Err(_), _) => {}
        }
        done.as_ref().map_or(true, |rows| is_enough(rows))
    };
    thread::scope(|scope| {
        for sandbox in sandboxes {
            scope.spawn(|| {
                while let Some(own) = works.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if keep(work(sandbox, own)) {
                        next.store(works.len(), Ordering::Relaxed);
                    }
                }
            });
        }
    });
    done.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_parsed_or_refused() {
        let plain = CrashOptions { binary: CrashBinary::Release, extent: PointSelection::All, seed: CrashOptions::DEFAULT_SEED };
        assert_eq!(CrashOptions::parse(&[]), Some(plain));
        assert_eq!(
            CrashOptions::parse(&["--ci", "--sample", "9", "--seed", "3"]),
            Some(CrashOptions { binary: CrashBinary::Ci, extent: PointSelection::Sample(9), seed: 3 })
        );
        let point = "script/kept/log/fsync/2/eio";
        assert_eq!(
            CrashOptions::parse(&["--point", point]),
            point.parse().ok().map(|point| CrashOptions { extent: PointSelection::One(point), ..plain })
        );
        for wrong in [&["--sample"][..], &["--sample", "0"], &["--point", "here"], &["--fast"], &["--seed", "x"]] {
            assert_eq!(CrashOptions::parse(wrong), None, "{wrong:?}");
        }
    }
}
