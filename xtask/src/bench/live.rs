//! The cost of observing a live environment: requests, counted by the lab, and CPU time compared
//! with a bare fetch and parse of the same responses; and what the requests cost the lab.

use std::path::Path;

use serde_json::{Value, json};

use super::build::BenchPrograms;
use super::child::ProcessCost;
use super::report::TargetBound::AtMost;
use super::report::{BenchReport, BenchTarget};
use super::{TURNS, child};
use crate::lab::{LabChild, LabTime};
use crate::shell::{self, TaskError, TaskResult};

/// Audits of two sizes without drift and without managed config.
pub(super) fn measure_audits(programs: &BenchPrograms, report: &mut BenchReport) -> TaskResult {
    for guests in [1_000_u32, 10_000] {
        measure_audit(programs, report, guests)?;
    }
    Ok(())
}

/// How many lists are fetched per measurement: long enough for the resolution of the clock, and more than one connection serves.
const LIST_REQUESTS: u32 = 250;

/// What it costs the lab to list 10,000 guests over HTTPS on persistent connections. The lowest of a few turns counts.
pub(super) fn measure_lists(programs: &BenchPrograms, report: &mut BenchReport) -> TaskResult {
    let lab_path = Path::new("target/bench-live/lists");
    let lab = LabChild::start(
        shell::new_command(&programs.converger, &[]),
        &["--guests", "10000", "--nodes", "10"],
        lab_path,
        LabTime::PerRequest,
    )?;
    let directory = lab_path.display().to_string();
    let mut least_ms = f64::INFINITY;
    let mut listed = Value::Null;
    for _ in 0..TURNS {
        let before_ms = lab.cpu_ms()?;
        listed = child::run_for_json(&programs.fetch, &[&directory, "lists", &LIST_REQUESTS.to_string()])?;
        least_ms = least_ms.min((lab.cpu_ms()? - before_ms) / f64::from(LIST_REQUESTS));
    }
    report.add_measurement("lab-lists", json!({ "cpu_ms": least_ms, "per_second": 1_000.0 / least_ms, "list": listed }));
    report.add_target(BenchTarget {
        name: "lab-lists",
        value: least_ms,
        bound: AtMost(20.0),
        unit: "ms of CPU for a list of 10,000 guests, which allows 50 per second",
    });
    Ok(())
}

fn measure_audit(programs: &BenchPrograms, report: &mut BenchReport, guests: u32) -> TaskResult {
    let lab_path = Path::new("target/bench-live").join(guests.to_string());
    let world = ["--guests", &guests.to_string(), "--nodes", "10"];
    let lab = LabChild::start(shell::new_command(&programs.converger, &[]), &world, &lab_path, LabTime::PerRequest)?;
    let directory = lab_path.display().to_string();
    let desired = shell::capture_stdout(&mut shell::new_command(&programs.fetch, &[&directory, "desired"]))?;
    std::fs::write(lab_path.join("desired.json"), desired)
        .map_err(|error| TaskError::new(format!("cannot write to `{directory}`: {error}")))?;
    let before = lab.requests()?.len();
    let (mut fetch, mut audit) = (ProcessCost::NONE, ProcessCost::NONE);
    for _ in 0..TURNS {
        fetch = fetch.best_of(child::measure_program(&programs.fetch, &[&directory], ".", &[0])?);
        audit = audit.best_of(child::measure_program(&programs.converger, &["audit", "desired.json"], &directory, &[0])?);
    }
    // Each turn fetches three responses itself; the rest are requests of the program.
    let requests = (lab.requests()?.len() - before) as f64 / f64::from(TURNS) - 3.0;
    let ratio = audit.cpu_ms / fetch.cpu_ms;
    report.add_measurement(&format!("audit-{guests}"), json!({ "fetch": fetch.to_json(), "audit": audit.to_json(), "requests": requests }));
    let (count, cost) = if guests == 1_000 { ("requests-1000", "audit-1000") } else { ("requests-10000", "audit-10000") };
    report.add_target(BenchTarget { name: count, value: requests, bound: AtMost(4.0), unit: "requests of an audit without drift" });
    report.add_target(BenchTarget { name: cost, value: ratio, bound: AtMost(2.0), unit: "x fetching and parsing the same bytes" });
    Ok(())
}
