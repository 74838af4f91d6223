//! Measures the cost of evidence against a baseline that cannot be avoided. Each command prints one line of JSON; `cargo xtask bench`
//! judges it.
//!
//! - `evidence walk <entries> <turns>`: verify the ledger by its hashes and signature, against one SHA-256 over the same files;
//! - `evidence deep <entries> <turns>`: parse every entry strictly and replay it, against a typed parse with serde_json;
//! - `evidence reproduce <guests> <turns>`: reproduce a decision, against hashing and a typed parse of its inputs;
//! - `evidence growth <entries> <turns>`: append to a log in memory, early and late;
//! - `evidence append <entries> <directory>`: the same through the store, early and late;
//! - `evidence batches <kind> <count> <directory>`: commit batches one after the other, to count the syncs;
//! - `evidence inserts`: commit entries, against plain inserts of their bytes in groups of the same size.
//!
//! Must not contain expectations about the numbers.

mod append;
mod cpu;
#[path = "../../../converger-core/benches/fleet/mod.rs"]
mod fleet;
mod inserts;
mod reproduce;
mod runs;
mod typed;
mod verify;

use std::error::Error;
use std::path::Path;

use serde_json::Value;

type BenchOutput = Result<Value, Box<dyn Error>>;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let output = match arguments[..] {
        ["walk", entries, repetitions] => verify::bench_verify_log(entries.parse()?, repetitions.parse()?),
        ["deep", entries, repetitions] => verify::bench_ledger_check(entries.parse()?, repetitions.parse()?),
        ["reproduce", guests, repetitions] => reproduce::bench_reproduce(guests.parse()?, repetitions.parse()?),
        ["growth", entries, repetitions] => append::bench_log_append(entries.parse()?, repetitions.parse()?),
        ["append", entries, directory] => append::bench_store_append(entries.parse()?, Path::new(directory)),
        ["batches", kind, count, directory] => inserts::commit_batches(kind, count.parse()?, Path::new(directory)),
        ["inserts"] => inserts::bench_insert_ratio(),
        _ => Err("see the usage at the top of examples/evidence/main.rs".into()),
    };
    println!("{}", output?);
    Ok(())
}
