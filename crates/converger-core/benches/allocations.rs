//! How often planning allocates.
//!
//! `allocations <guests>` prints one JSON object: the number of allocations when planning this many guests, none of them drifted. It is a
//! separate bench because counting would slow down the others.
#![expect(clippy::disallowed_methods, reason = "a bench takes arguments; core is handed what it needs")]

mod fleet;

use std::sync::Arc;

use converger_core::desired;
use converger_core::document::Notation;
use converger_core::observe;
use converger_core::plan::plan;

use fleet::{BenchFleet, GuestShare};

fn main() {
    let Some(guests) = std::env::args().find_map(|argument| argument.parse().ok()) else {
        eprintln!("allocations <guests>");
        return;
    };
    let fleet = BenchFleet { guests, drifted_share: GuestShare::None, ordered_share: GuestShare::None };
    let desired = desired::parse(fleet.desired_json().as_bytes(), Notation::Json).expect("the fleet is well-formed");
    let observation = observe::parse(fleet.current_json().as_bytes()).expect("the fleet is well-formed");
    let (scoped, desired, rules) = (Arc::new(observation.into_scoped(&desired.scope())), Arc::new(desired), Arc::default());
    let counted = allocation_counter::measure(|| drop(plan(desired, scoped, rules)));
    println!(r#"{{"guests":{guests},"allocations":{}}}"#, counted.count_total);
}
