//! `/cluster/replication` and `/nodes/{node}/replication`: reading replication jobs.
//!
//! Jobs come from the world spec; they cannot be changed through the API.

use serde_json::{Value, json};

use super::{ApiCall, ApiRoute};
use crate::replication::{ReplicationJob, ReplicationJobs};
use crate::response::{ApiData, ApiError};
use crate::world::World;

pub(super) const ROUTES: &[ApiRoute] = &[
    ("GET", "/cluster/replication", list),
    ("GET", "/cluster/replication/{id}", read),
    ("GET", "/nodes/{node}/replication", list_on_node),
];

fn may_audit(world: &World, call: &ApiCall, job: &ReplicationJob) -> bool {
    world.access.has_privilege(&call.caller, &format!("/vms/{}", job.guest), "VM.Audit")
}

fn list(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    let seen = world.replication.iter().filter(|(_, job)| may_audit(world, call, job));
    Ok(json!(seen.map(|(id, job)| ReplicationJobs::job_json(id, job)).collect::<Vec<Value>>()).into())
}

fn read(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    let id = call.param("id").unwrap_or_default();
    let Some(job) = world.replication.get(id) else {
        return Err(ApiError::internal_error(format!("no such replication job '{id}'")));
    };
    if !may_audit(world, call, job) {
        return Err(ApiError::Denied(String::new()));
    }
    Ok(ReplicationJobs::job_json(id, job).into())
}

/// The jobs whose guests are on the node, with their last run.
fn list_on_node(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    let is_here = |job: &ReplicationJob| world.guests.get(&job.guest).is_some_and(|guest| guest.node == call.node);
    let is_asked_for = |job: &ReplicationJob| call.number_param("guest").is_none_or(|vmid| vmid == u64::from(job.guest));
    let jobs = world.replication.iter().filter(|(_, job)| is_here(job) && is_asked_for(job) && may_audit(world, call, job));
    let last_s = world.node_clock_s(&call.node) / REPLICATION_INTERVAL_S * REPLICATION_INTERVAL_S;
    let row = |(id, job): (&String, &ReplicationJob)| {
        let mut fields = ReplicationJobs::job_json(id, job);
        fields["last_sync"] = json!(last_s);
        fields["last_try"] = json!(last_s);
        fields["next_sync"] = json!(last_s + REPLICATION_INTERVAL_S);
        fields["fail_count"] = json!(0);
        fields["duration"] = json!(2.5);
        fields["vmtype"] = json!(world.guests.get(&job.guest).map_or("qemu", |guest| guest.kind.name()));
        fields
    };
    Ok(json!(jobs.map(row).collect::<Vec<Value>>()).into())
}

/// The default schedule: every 15 minutes.
const REPLICATION_INTERVAL_S: u64 = 900;
