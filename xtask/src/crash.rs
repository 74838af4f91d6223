//! `kill -9` at every system call that writes, and a broken or a full disk at each, during an apply on a lab.
//!
//! After each crash a person applies again, for some crashes is killed or meets such a disk at that too, and applies once more; and three witnesses are heard: what was told, the journal, the lab. Nothing told may be
//! lost, nothing may run twice, nothing may be sent without its intent, and the restart must be ready soon. What never enters here:
//! how a crash is made (`trace`), told (`story`) and judged (`evidence`).

mod evidence;
mod player;
mod points;
mod report;
mod story;
mod trace;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use crate::shell::{self, Failure, Outcome};
use evidence::Evidence;
use points::{Fault, Memory, Point, Run};
use report::{Calls, Report, Row};
use story::{Stage, Told};

/// What was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wish {
    pub(crate) binary: Binary,
    pub(crate) extent: Extent,
    /// Where the order of a sample comes from.
    pub(crate) seed: u64,
}

/// Which program is killed. It is built first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Binary {
    /// The one that people get.
    Release,
    /// That of CI, which has no time to build another.
    Ci,
    /// The one that is there while something is mended.
    Debug,
}

/// How much of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extent {
    /// Every point.
    All,
    /// At least so many.
    Sample(usize),
    /// This one, for whoever looks into a violation.
    One(Point),
}

impl Wish {
    pub(crate) const SEED: u64 = 20_261_116;

    /// Read from the arguments after `crash`.
    pub(crate) fn read(arguments: &[&str]) -> Option<Self> {
        let mut wish = Self { binary: Binary::Release, extent: Extent::All, seed: Self::SEED };
        let mut arguments = arguments.iter();
        while let Some(argument) = arguments.next() {
            match *argument {
                "--ci" => wish.binary = Binary::Ci,
                "--debug" => wish.binary = Binary::Debug,
                "--sample" => wish.extent = Extent::Sample(arguments.next()?.parse().ok().filter(|count| *count > 0)?),
                "--point" => wish.extent = Extent::One(arguments.next()?.parse().ok()?),
                "--seed" => wish.seed = arguments.next()?.parse().ok()?,
                _ => return None,
            }
        }
        Some(wish)
    }
}

const ROOMS: &str = "target/crash";
/// Most of a crash is waiting, so that several share a core.
const PER_CORE: usize = 6;
/// What CI asks for.
const SAMPLE: usize = 300;

/// The stage of CI.
pub(crate) fn sample() -> Outcome {
    run(Wish { binary: Binary::Ci, extent: Extent::Sample(SAMPLE), seed: Wish::SEED })
}

/// Play the crashes, print what came of them, write the report; a violation is a failure.
pub(crate) fn run(wish: Wish) -> Outcome {
    let converger = program(wish.binary)?;
    let workers = thread::available_parallelism().map_or(2, usize::from) * PER_CORE;
    let stages: Vec<Stage> =
        (0..workers).map(|number| Stage::new(&converger, &Path::new(ROOMS).join(number.to_string()))).collect::<Result<_, _>>()?;
    let mut calls = Calls::default();
    let (points, twice) = match wish.extent {
        Extent::One(point) => (vec![point], Vec::new()),
        Extent::All | Extent::Sample(_) => {
            let points = points::shuffled(all(&stages, &mut calls)?, wish.seed);
            let twice = points::shuffled(twice(&stages, &points)?, wish.seed);
            (points, twice)
        }
    };
    eprintln!("{} points, and {} in a recovery; seed {}", points.len(), twice.len(), wish.seed);
    let enough = if let Extent::Sample(count) = wish.extent { count } else { usize::MAX };
    let mut rows = play(&stages, &points, &Fault::ALL, enough)?;
    rows.extend(play(&stages, &twice, &Fault::ALL, enough / TWICE_SHARE)?);
    let (rows, replayed) = again(&stages, rows)?;
    let known = points.len() + twice.len();
    let report = Report::new(wish.seed, known, rows).with_calls(calls).with_replayed(replayed);
    report.write()?;
    print!("{}", report.text());
    report.verdict(match wish.extent {
        Extent::Sample(count) => count,
        Extent::One(_) => 1,
        // Which calls a run makes differs a little from run to run; a sweep that strikes much less than it knows has struck nothing.
        Extent::All => known * 9 / 10,
    })
}

fn program(binary: Binary) -> Result<PathBuf, Failure> {
    let strace = shell::succeeds(&mut shell::command("strace", &["-V"]));
    let script = shell::succeeds(&mut shell::command("script", &["-V"]));
    if !strace || !script {
        return Err(Failure::new("`strace` or `script` is not installed; `cargo xtask ci tools` installs them"));
    }
    let (profile, directory) = match binary {
        Binary::Ci => (&["--workspace", "--all-features", "--profile", "ci"][..], "ci"),
        Binary::Release => (&["--release"][..], "release"),
        Binary::Debug => (&["--workspace", "--all-features"][..], "debug"),
    };
    shell::run(&mut shell::cargo(&[&["build", "--bin", "converger"], profile].concat()))?;
    copied(&shell::built_as(directory, "converger"))
}

/// Whoever builds meanwhile does not change what is killed.
fn copied(program: &Path) -> Result<PathBuf, Failure> {
    let copy = Path::new(ROOMS).join("converger");
    let copied = fs::create_dir_all(ROOMS).and_then(|()| fs::copy(program, &copy));
    copied.map(|_| copy).map_err(|error| Failure::new(format!("cannot copy `{}`: {error}", program.display())))
}

/// Every point, by runs in which nothing happens, and what they say about the calls.
fn all(stages: &[Stage], calls: &mut Calls) -> Result<Vec<Point>, Failure> {
    let counted = in_parallel(stages, &Run::ALL, |stage, run| stage.count(*run), |_| false)?;
    let mut points = Vec::new();
    for reached in counted {
        points.extend(&reached.points);
        calls.add(&reached);
    }
    points.sort();
    Ok(points)
}

/// After so many crashes something befalls whoever comes back at each of their calls: more than a thousand points for each.
const FIRSTS: usize = 3;
/// One of so many points of a sample is in a recovery.
const TWICE_SHARE: usize = 5;

/// All that can befall whoever comes back after some of these crashes: the first that leave something to be found out.
fn twice(stages: &[Stage], points: &[Point]) -> Result<Vec<Point>, Failure> {
    let kills = points.iter().copied().filter(|point| point.fault == Fault::Kill && point.place.memory == Memory::Kept);
    let kills: Vec<(usize, Point)> = kills.enumerate().collect();
    let deaths = |stage: &Stage, (at, point): &(usize, Point)| Ok((*at, stage.count_again(*point)?));
    let is_enough = |found: &[(usize, Vec<Point>)]| found.iter().filter(|(_, deaths)| !deaths.is_empty()).count() >= FIRSTS;
    let mut found = in_parallel(stages, &kills, deaths, is_enough)?;
    // Those beside the last that was needed are finished too, in any order.
    found.retain(|(_, deaths)| !deaths.is_empty());
    found.sort_by_key(|(at, _)| *at);
    let mut all: Vec<Point> = found.into_iter().take(FIRSTS).flat_map(|(_, deaths)| deaths).collect();
    all.sort();
    Ok(all)
}

/// Plays them in their order, until there are enough, of each fault its share.
fn play(stages: &[Stage], points: &[Point], faults: &[Fault], enough: usize) -> Result<Vec<Row>, Failure> {
    let play = |stage: &Stage, point: &Point| {
        Ok(match stage.play(*point)? {
            Told::Untouched => Row { point: *point, evidence: None },
            Told::Struck(evidence) => Row { point: *point, evidence: Some(*evidence) },
        })
    };
    in_parallel(stages, points, play, |rows: &[Row]| {
        let struck = rows.iter().filter(|row| row.evidence.is_some());
        let of = |fault: Fault| rows.iter().filter(|row| row.evidence.is_some() && row.point.last_fault() == fault).count();
        if rows.len().is_multiple_of(50) {
            eprintln!("  {} points", rows.len());
        }
        struck.count() >= enough && faults.iter().all(|fault| of(*fault) >= enough / faults.len())
    })
}

/// So often is a restart timed that was slow among others.
const TIMED_AGAIN: usize = 3;

/// What was only slow is played again by itself: the neighbours of a restart only ever add to its time, so that the least counts. How
/// many those were is told.
fn again(stages: &[Stage], mut rows: Vec<Row>) -> Result<(Vec<Row>, usize), Failure> {
    let is_slow = |row: &Row| row.evidence.as_ref().is_some_and(Evidence::is_only_slow);
    let slow = rows.iter().filter(|row| is_slow(row)).count();
    let Some(stage) = stages.first() else { return Ok((rows, 0)) };
    for row in rows.iter_mut().filter(|row| is_slow(row)) {
        for _ in 0..TIMED_AGAIN {
            if let Told::Struck(evidence) = stage.play(row.point)? {
                row.evidence = Some(*evidence);
            }
            if !is_slow(row) {
                break;
            }
        }
    }
    Ok((rows, slow))
}

/// Each stage takes the next of what is to be done, until all is done, it is enough, or something fails.
fn in_parallel<T: Sync, R: Send>(
    stages: &[Stage],
    works: &[T],
    work: impl Fn(&Stage, &T) -> Result<R, Failure> + Sync,
    is_enough: impl Fn(&[R]) -> bool + Sync,
) -> Result<Vec<R>, Failure> {
    let next = AtomicUsize::new(0);
    let done: Mutex<Result<Vec<R>, Failure>> = Mutex::new(Ok(Vec::new()));
    let keep = |result: Result<R, Failure>| {
        let mut done = done.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        match (&mut *done, result) {
            (Ok(rows), Ok(row)) => rows.push(row),
            (done @ Ok(_), Err(failure)) => *done = Err(failure),
            (Err(_), _) => {}
        }
        done.as_ref().map_or(true, |rows| is_enough(rows))
    };
    thread::scope(|scope| {
        for stage in stages {
            scope.spawn(|| {
                while let Some(own) = works.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if keep(work(stage, own)) {
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
    fn wishes_are_read_or_refused() {
        let plain = Wish { binary: Binary::Release, extent: Extent::All, seed: Wish::SEED };
        assert_eq!(Wish::read(&[]), Some(plain));
        assert_eq!(
            Wish::read(&["--ci", "--sample", "9", "--seed", "3"]),
            Some(Wish { binary: Binary::Ci, extent: Extent::Sample(9), seed: 3 })
        );
        let point = "script/kept/log/fsync/2/eio";
        assert_eq!(Wish::read(&["--point", point]), point.parse().ok().map(|point| Wish { extent: Extent::One(point), ..plain }));
        for wrong in [&["--sample"][..], &["--sample", "0"], &["--point", "here"], &["--fast"], &["--seed", "x"]] {
            assert_eq!(Wish::read(wrong), None, "{wrong:?}");
        }
    }
}
