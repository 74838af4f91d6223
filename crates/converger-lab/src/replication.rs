//! Replication jobs: which guests are copied to which nodes. They restrict migration and deletion.
//!
//! Nothing is copied.

use std::collections::BTreeMap;

use serde_json::{Value, json};

/// One job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ReplicationJob {
    pub(crate) guest: u32,
    pub(crate) source: String,
    pub(crate) target: String,
    pub(crate) schedule: Option<String>,
    pub(crate) disabled: bool,
}

/// All jobs by id: `100-0`.
#[derive(Clone, Debug, Default)]
pub(crate) struct ReplicationJobs {
    all: BTreeMap<String, ReplicationJob>,
}

impl ReplicationJobs {
    /// Adds a job under the first free number of its guest.
    pub(crate) fn add(&mut self, job: ReplicationJob) {
        let free = (0..).map(|number| format!("{}-{number}", job.guest)).find(|id| !self.all.contains_key(id));
        self.all.extend(free.map(|id| (id, job)));
    }

    pub(crate) fn get(&self, id: &str) -> Option<&ReplicationJob> {
        self.all.get(id)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&String, &ReplicationJob)> {
        self.all.iter()
    }

    pub(crate) fn jobs_of_guest(&self, vmid: u32) -> impl Iterator<Item = (&String, &ReplicationJob)> {
        self.all.iter().filter(move |(_, job)| job.guest == vmid)
    }

    pub(crate) fn remove_guest(&mut self, vmid: u32) {
        self.all.retain(|_, job| job.guest != vmid);
    }

    /// A job of the guest copies it to this node.
    pub(crate) fn has_target(&self, vmid: u32, node: &str) -> bool {
        self.jobs_of_guest(vmid).any(|(_, job)| job.target == node)
    }

    /// After a migration to the target of a job, that job copies in the opposite direction, and all jobs of the guest have a new source. A
    /// migration to any other node leaves the jobs as they are.
    pub(crate) fn follow_guest(&mut self, vmid: u32, from: &str, to: &str) {
        if !self.has_target(vmid, to) {
            return;
        }
        for job in self.all.values_mut().filter(|job| job.guest == vmid) {
            if job.target == to {
                from.clone_into(&mut job.target);
            }
            to.clone_into(&mut job.source);
        }
    }

    /// A job as the API shows it.
    pub(crate) fn job_json(id: &str, job: &ReplicationJob) -> Value {
        let number = id.rsplit('-').next().unwrap_or_default();
        let mut fields =
            json!({ "id": id, "guest": job.guest, "jobnum": number, "type": "local", "source": job.source, "target": job.target });
        if let Some(schedule) = &job.schedule {
            fields["schedule"] = json!(schedule);
        }
        if job.disabled {
            fields["disable"] = json!(1);
        }
        fields
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_turns_around_when_its_guest_migrates_to_its_target() {
        let mut jobs = ReplicationJobs::default();
        let job = |target: &str| ReplicationJob {
            guest: 100,
            source: "a".to_owned(),
            target: target.to_owned(),
            schedule: None,
            disabled: false,
        };
        jobs.add(job("b"));
        jobs.add(job("c"));
        jobs.follow_guest(100, "a", "b");
        let ends: Vec<_> = jobs.iter().map(|(id, job)| (id.as_str(), job.source.as_str(), job.target.as_str())).collect();
        assert_eq!(ends, [("100-0", "b", "a"), ("100-1", "b", "c")]);
        jobs.follow_guest(100, "b", "d");
        assert!(jobs.iter().all(|(_, job)| job.source == "b"), "{jobs:?}");
    }
}
