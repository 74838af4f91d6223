//! What a look at a live environment costs: requests counted by the lab, and CPU against a bare fetch and parse of the same answers;
//! and what it costs the lab to be looked at.

use std::path::Path;

use serde_json::{Value, json};

use super::build::Programs;
use super::child::Cost;
use super::report::Bound::AtMost;
use super::report::{Report, Target};
use super::{TURNS, child};
use crate::lab::{Lab, Time};
use crate::shell::{self, Failure, Outcome};

/// Audits of two sizes in which nothing differs and no config is managed.
pub(super) fn audits(programs: &Programs, report: &mut Report) -> Outcome {
    for guests in [1_000_u32, 10_000] {
        audit(programs, report, guests)?;
    }
    Ok(())
}

/// So many lists are fetched at once: long against the clock that counts, and more than one connection is kept for.
const LISTS: u32 = 250;

/// What it costs the lab to list 10,000 guests over HTTPS on connections that are kept. The least of a few turns counts.
pub(super) fn lists(programs: &Programs, report: &mut Report) -> Outcome {
    let room = Path::new("target/bench-live/lists");
    let lab = Lab::start(shell::command(&programs.converger, &[]), &["--guests", "10000", "--nodes", "10"], room, Time::Asked)?;
    let directory = room.display().to_string();
    let mut least_ms = f64::INFINITY;
    let mut listed = Value::Null;
    for _ in 0..TURNS {
        let before_ms = lab.cpu_ms()?;
        listed = child::output(&programs.fetch, &[&directory, "lists", &LISTS.to_string()])?;
        least_ms = least_ms.min((lab.cpu_ms()? - before_ms) / f64::from(LISTS));
    }
    report.measured("lab-lists", json!({ "cpu_ms": least_ms, "per_second": 1_000.0 / least_ms, "list": listed }));
    report.target(Target {
        name: "lab-lists",
        value: least_ms,
        bound: AtMost(20.0),
        unit: "ms of CPU for a list of 10,000 guests: 50 a second",
    });
    Ok(())
}

fn audit(programs: &Programs, report: &mut Report, guests: u32) -> Outcome {
    let room = Path::new("target/bench-live").join(guests.to_string());
    let world = ["--guests", &guests.to_string(), "--nodes", "10"];
    let lab = Lab::start(shell::command(&programs.converger, &[]), &world, &room, Time::Asked)?;
    let directory = room.display().to_string();
    let desired = shell::capture(&mut shell::command(&programs.fetch, &[&directory, "desired"]))?;
    std::fs::write(room.join("desired.json"), desired).map_err(|error| Failure::new(format!("cannot write to `{directory}`: {error}")))?;
    let before = lab.requests()?.len();
    let (mut fetch, mut audit) = (Cost::NONE, Cost::NONE);
    for _ in 0..TURNS {
        fetch = fetch.and(child::cost(&programs.fetch, &[&directory], ".", &[0])?);
        audit = audit.and(child::cost(&programs.converger, &["audit", "desired.json"], &directory, &[0])?);
    }
    // Each turn fetches three answers itself; what remains is the program's.
    let requests = (lab.requests()?.len() - before) as f64 / f64::from(TURNS) - 3.0;
    let ratio = audit.cpu_ms / fetch.cpu_ms;
    report.measured(&format!("audit-{guests}"), json!({ "fetch": fetch.json(), "audit": audit.json(), "requests": requests }));
    let (count, cost) = if guests == 1_000 { ("requests-1000", "audit-1000") } else { ("requests-10000", "audit-10000") };
    report.target(Target { name: count, value: requests, bound: AtMost(4.0), unit: "requests of an audit without drift" });
    report.target(Target { name: cost, value: ratio, bound: AtMost(2.0), unit: "x fetching and parsing the same bytes" });
    Ok(())
}
