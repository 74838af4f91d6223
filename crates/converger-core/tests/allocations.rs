//! Planning allocates for steps, not for converged guests.

#[path = "../benches/fleet/mod.rs"]
mod fleet;

use std::sync::Arc;

use converger_core::desired;
use converger_core::document::Notation;
use converger_core::observe;
use converger_core::plan::{Plan, Verdict, plan};

use fleet::{BenchFleet, GuestShare};

/// The number of allocations that planning a fleet makes, and the plan.
fn count_allocations(fleet: BenchFleet) -> (u64, Plan) {
    let desired = desired::parse(fleet.desired_json().as_bytes(), Notation::Json).expect("the fleet is well-formed");
    let observation = observe::parse(fleet.current_json().as_bytes()).expect("the fleet is well-formed");
    let (scoped, desired, rules) = (Arc::new(observation.into_scoped(&desired.scope())), Arc::new(desired), Arc::default());
    let mut planned = None;
    let counted = allocation_counter::measure(|| planned = Some(plan(desired, scoped, rules)));
    (counted.count_total, planned.expect("it was planned"))
}

fn count_converged(plan: &Plan) -> usize {
    plan.verdicts().iter().filter(|verdict| matches!(verdict, Verdict::Converged { .. })).count()
}

#[test]
fn converged_guests_cost_no_allocations() {
    for ordered in [GuestShare::None, GuestShare::OneIn(3)] {
        let fleet = |guests| BenchFleet { guests, drifted_share: GuestShare::None, ordered_share: ordered };
        let ((few, small), (many, large)) = (count_allocations(fleet(100)), count_allocations(fleet(5_000)));
        assert_eq!((count_converged(&small), count_converged(&large)), (100, 5_000));
        assert_eq!(few, many, "allocations grow with the number of converged guests, ordered {ordered:?}");
    }
}

/// Ensures that the first test does not pass because the planner looks at nothing.
#[test]
fn drifted_guests_cost_few_allocations() {
    let (count, plan) =
        count_allocations(BenchFleet { guests: 5_000, drifted_share: GuestShare::OneIn(4), ordered_share: GuestShare::None });
    let drifted = u64::try_from(5_000 - count_converged(&plan)).expect("a count");
    assert!(drifted > 1_000 && (drifted..=drifted * 8).contains(&count), "{count} allocations for {drifted} drifted guests");
}
