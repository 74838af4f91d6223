//! Requested actions as workloads of the crash sweep. Each is one row: its name in points, its command, and the steps that it takes.
//!
//! After a crash the same request is made again with the same key, which must have no second effect, and then with other keys, as a person
//! does who reads that it was not carried out.

use super::evidence::CrashStep;

/// A requested action.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct RequestWorkload {
    /// Its name in points.
    pub(crate) name: &'static str,
    /// The action, its target and its parameters.
    pub(crate) command: &'static [&'static str],
    /// The steps of its plan, by the guest that each belongs to.
    pub(crate) steps: &'static [(u64, &'static str)],
}

/// All workloads. Each clone has a source of its own, by which a request to the lab is told from those of others.
pub(crate) static WORKLOADS: [RequestWorkload; 3] = [
    RequestWorkload { name: "clone", command: &["vm.clone", "vm/106", "newid=120", "name=web-120"], steps: &[(120, "clone")] },
    RequestWorkload {
        name: "linked",
        command: &["vm.clone", "vm/900", "newid=121", "name=web-121", "disks=linked"],
        steps: &[(121, "clone")],
    },
    RequestWorkload { name: "snapshot", command: &["vm.snapshot.create", "vm/101", "name=before"], steps: &[(101, "snapshot.create")] },
];

impl RequestWorkload {
    /// The command that shows its plan.
    pub(crate) fn plan_arguments(&self) -> Vec<&'static str> {
        ["action"].iter().chain(self.command).chain(&["--plan", "--json"]).copied().collect()
    }

    /// The command that executes it, confirmed with this digest.
    pub(crate) fn arguments<'d>(&self, digest: &'d str, key: &'d str) -> Vec<&'d str> {
        ["action"].into_iter().chain(self.command.iter().copied()).chain(["--confirm", digest, "--key", key]).collect()
    }

    /// The steps of its plan.
    pub(crate) fn planned_steps(&self) -> Vec<CrashStep> {
        self.steps.iter().map(|(vmid, change)| CrashStep { vmid: *vmid, change: (*change).to_owned() }).collect()
    }
}

/// The guest that a clone of this source makes.
pub(crate) fn new_guest_of(source: u64) -> Option<u64> {
    let target = format!("vm/{source}");
    let workload = WORKLOADS.iter().find(|workload| workload.command.starts_with(&["vm.clone", &target]))?;
    workload.steps.first().map(|(vmid, _)| *vmid)
}

/// The change that a request to the API makes, by the last part of its path; the guest is in the part before it.
pub(crate) fn change_of_verb(verb: &str) -> Option<&'static str> {
    Some(match verb {
        "config" => "config.set",
        "clone" => "clone",
        "snapshot" => "snapshot.create",
        "resize" => "disk.grow",
        "migrate" => "migrate",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_have_the_request_and_its_confirmation() {
        let [clone, ..] = &WORKLOADS;
        assert_eq!(clone.plan_arguments(), ["action", "vm.clone", "vm/106", "newid=120", "name=web-120", "--plan", "--json"]);
        let arguments = clone.arguments("ab", "key-0");
        assert_eq!(arguments[5..], ["--confirm", "ab", "--key", "key-0"]);
    }

    #[test]
    fn names_are_unique() {
        let mut names = WORKLOADS.iter().map(|workload| workload.name).collect::<Vec<_>>();
        names.sort_unstable();
        names.dedup();
        assert_eq!((new_guest_of(106), new_guest_of(900), new_guest_of(101)), (Some(120), Some(121), None));
        assert_eq!(names.len(), WORKLOADS.len());
    }
}
