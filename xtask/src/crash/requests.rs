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
    /// Who confirms it.
    pub(crate) confirmation: RequestConfirmation,
    /// The steps of its plan, by the guest that each belongs to.
    pub(crate) steps: &'static [(u64, &'static str)],
    /// The guest that it makes, as the lab describes it at the end.
    pub(crate) made_guest: Option<&'static str>,
}

/// Who confirms a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestConfirmation {
    /// A script, with the digest of its proposal.
    Digest,
    /// A person at a terminal, because the plan has a disruptive step.
    Person,
}

/// All workloads.
pub(crate) static WORKLOADS: [RequestWorkload; 4] = [
    RequestWorkload {
        name: "clone",
        command: &["vm.clone", "vm/106", "newid=120", "name=web-120"],
        confirmation: RequestConfirmation::Digest,
        steps: &[(120, "clone")],
        made_guest: Some("120 web-120 stopped: memory 1024"),
    },
    RequestWorkload {
        name: "linked",
        command: &["vm.clone", "vm/900", "newid=121", "name=web-121", "disks=linked"],
        confirmation: RequestConfirmation::Digest,
        steps: &[(121, "clone")],
        made_guest: Some("121 web-121 stopped: memory 512, net0 vmbr9, scsi0 1G"),
    },
    RequestWorkload {
        name: "snapshot",
        command: &["vm.snapshot.create", "vm/101", "name=before"],
        confirmation: RequestConfirmation::Digest,
        steps: &[(101, "snapshot.create")],
        made_guest: None,
    },
    RequestWorkload {
        name: "provision",
        command: &["vm.clone", "vm/900", "newid=122", "name=web-122", "memory=2GiB", "bridge=vmbr0", "disk-size=2GiB", "start=true"],
        confirmation: RequestConfirmation::Person,
        steps: &[(122, "clone"), (122, "provision"), (122, "disk.grow"), (122, "start")],
        made_guest: Some("122 web-122 running: memory 2048, net0 vmbr0, scsi0 2G"),
    },
];

impl RequestWorkload {
    /// The command that shows its plan.
    pub(crate) fn plan_arguments(&self) -> Vec<&'static str> {
        ["action"].iter().chain(self.command).chain(&["--plan", "--json"]).copied().collect()
    }

    /// The command that executes it, confirmed with this digest unless a person confirms it.
    pub(crate) fn arguments<'d>(&self, digest: &'d str, key: &'d str) -> Vec<&'d str> {
        let confirmed = ["--confirm", digest].into_iter().filter(|_| self.confirmation == RequestConfirmation::Digest);
        ["action"].into_iter().chain(self.command.iter().copied()).chain(confirmed).chain(["--key", key]).collect()
    }
}

/// The step that a request to the API is, by the id and the last part of its path, in a run with these steps. The request for a clone is sent
/// to its source and is a step of its new guest. The first config of a guest is written like every other.
pub(crate) fn step_of_request(vmid: u64, verb: &str, planned: &[CrashStep]) -> CrashStep {
    let change = change_of_verb(verb).unwrap_or(verb);
    let step = |vmid: u64, change: &str| CrashStep { vmid, change: change.to_owned() };
    let made = planned.iter().find(|own| own.change == "clone").map(|own| own.vmid);
    match (change, made) {
        ("clone", Some(made)) => step(made, "clone"),
        ("config.set", Some(made)) if made == vmid => step(made, "provision"),
        _ => step(vmid, change),
    }
}

/// The change that a request to the API makes, by the last part of its path; the guest is in the part before it.
fn change_of_verb(verb: &str) -> Option<&'static str> {
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
    use super::super::points::CrashActor;
    use super::*;

    #[test]
    fn commands_have_the_request_and_its_confirmation() {
        let [clone, .., provision] = &WORKLOADS;
        assert_eq!(clone.plan_arguments(), ["action", "vm.clone", "vm/106", "newid=120", "name=web-120", "--plan", "--json"]);
        let arguments = clone.arguments("ab", "key-0");
        assert_eq!(arguments[5..], ["--confirm", "ab", "--key", "key-0"]);
        assert_eq!(provision.arguments("ab", "key-0")[8..], ["start=true", "--key", "key-0"], "a person is asked");
    }

    #[test]
    fn requests_for_a_new_guest_are_its_steps() {
        let planned = |workload: usize| CrashActor::Requester(workload).planned_steps();
        let step = |vmid, verb, planned: &[CrashStep]| step_of_request(vmid, verb, planned).to_string();
        assert_eq!(step(900, "clone", &planned(1)), "clone of 121");
        assert_eq!([step(900, "clone", &planned(3)), step(122, "config", &planned(3))], ["clone of 122", "provision of 122"]);
        // A change of another guest is not hidden, and a second config of a guest that is only cloned neither.
        assert_eq!([step(900, "config", &planned(3)), step(101, "start", &planned(3))], ["config.set of 900", "start of 101"]);
        assert_eq!(step(106, "config", &CrashActor::Script.planned_steps()), "config.set of 106");
    }

    #[test]
    fn names_are_unique() {
        let mut names = WORKLOADS.iter().map(|workload| workload.name).collect::<Vec<_>>();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), WORKLOADS.len());
    }
}
