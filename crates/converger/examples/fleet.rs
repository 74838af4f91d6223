//! What `cargo xtask bench` measures of the engine: one line of JSON about a fleet that is started.
//!
//! `fleet schedule GUESTS NODES START_MS`: how long it takes in virtual time, against the ideal for the limits, and how many
//! commits and requests each operation needs.
//!
//! `fleet journal GUESTS NODES DIRECTORY`: the same over SQLite in a new directory, for the transactions that commits share. Run
//! it under `strace -c` to count what is synced.

#[path = "../tests/fleet/fleet.rs"]
mod fleet;

use std::path::Path;

use converger_engine::schedule::ConcurrencyLimits;
use converger_store::{MemoryStore, SqliteStore, StoreSettings};
use fleet::{Fleet, FleetResult};
use serde_json::{Value, json};

fn main() -> Result<(), String> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let result = match arguments.as_slice() {
        ["schedule", guests, nodes, start_ms] => {
            measure_schedule(parse_count(guests)?, parse_count(nodes)?, u64::from(parse_count(start_ms)?))
        }
        ["journal", guests, nodes, directory] => measure_journal(parse_count(guests)?, parse_count(nodes)?, Path::new(directory)),
        _ => Err("usage: fleet schedule GUESTS NODES START_MS, or fleet journal GUESTS NODES DIRECTORY".to_owned()),
    };
    println!("{}", result?);
    Ok(())
}

fn parse_count(text: &str) -> Result<u32, String> {
    text.parse().ok().filter(|number| *number > 0).ok_or_else(|| format!("`{text}` is no number above zero"))
}

fn measure_schedule(guests: u32, nodes: u32, start_ms: u64) -> Result<Value, String> {
    let fleet = Fleet { guests, nodes, start_ms, limits: ConcurrencyLimits::default() };
    let store = MemoryStore::new();
    let run = require_done(&fleet, fleet.start(&store))?;
    Ok(json!({ "guests": guests, "nodes": nodes, "start_ms": start_ms, "per_node": fleet.limits.per_node, "overall": fleet.limits.overall,
        "took_ms": run.took_ms, "ideal_ms": fleet.ideal_ms(), "requests": run.requests, "commits": store.transactions() }))
}

fn measure_journal(guests: u32, nodes: u32, directory: &Path) -> Result<Value, String> {
    let fleet = Fleet { guests, nodes, start_ms: 10_000, limits: ConcurrencyLimits::default() };
    let store = SqliteStore::open(directory, StoreSettings::new(|cause| panic!("{cause}"))).map_err(|error| error.to_string())?;
    let run = require_done(&fleet, fleet.start_on_threads(store.clone()))?;
    Ok(json!({ "guests": guests, "requests": run.requests, "transactions": store.transactions() }))
}

/// What was not carried out cannot be measured.
fn require_done(fleet: &Fleet, run: FleetResult) -> Result<FleetResult, String> {
    let done = run.done_count();
    if done == fleet.guests as usize { Ok(run) } else { Err(format!("{done} of {} guests were started", fleet.guests)) }
}
