//! What requested actions and provisioning cost: requests per action, and planning 10,000 guests that are made from a template compared with
//! a bare merge. Both are reported and not judged; `cargo xtask ci clients` pins the requests.

use serde_json::json;

use super::build::BenchPrograms;
use super::report::BenchReport;
use super::{PlanCost, TURNS, child, read_number};
use crate::actions::{self, ActionRequests};
use crate::shell::TaskResult;

const PROVISIONED_GUESTS: &str = "10000";

pub(super) fn measure_actions(programs: &BenchPrograms, report: &mut BenchReport) -> TaskResult {
    let counts = actions::measure_requests(&programs.converger)?;
    for ActionRequests { action, plan, run } in actions::list_requests(&counts)? {
        report.add_remark(format!("{action}: {plan} requests to plan, {run} to run (not judged)"));
    }
    report.add_measurement("action-requests", counts);
    Ok(())
}

/// The lowest time of a few turns counts, as for the sizes that are judged.
pub(super) fn measure_provisioning(programs: &BenchPrograms, report: &mut BenchReport) -> TaskResult {
    let measured = child::run_for_json(&programs.plan, &[PROVISIONED_GUESTS, &TURNS.to_string(), "1"])?;
    let cost = PlanCost { plan_ns: read_number(&measured, "plan_ns")?, merge_ns: read_number(&measured, "merge_ns")? };
    report.add_remark(format!(
        "plan of {PROVISIONED_GUESTS} guests made from a template: {:.2} times a bare merge (not judged)",
        cost.ratio()
    ));
    report.add_measurement("plan-entries", json!({ PROVISIONED_GUESTS: cost.to_json() }));
    Ok(())
}
