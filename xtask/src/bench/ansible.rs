//! Compares converger with Ansible on the same lab and the same question: are these hundred guests
//! running, as declared?
//!
//! Neither has anything to change. The cost is CPU time, including that of child processes, and the
//! number of requests, which the lab counts. The start of Ansible's tools is not counted.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use serde_json::json;

use super::build::BenchPrograms;
use super::child::{self, ProcessCost};
use super::report::TargetBound::AtMost;
use super::report::{BenchReport, BenchTarget};
use crate::lab::{self, LabChild, LabTime};
use crate::shell::{self, TaskError, TaskResult};
use crate::{ansible, python};

const WORK_DIRECTORY: &str = "target/bench-ansible/lab";
/// How often each runs. One run of Ansible takes most of a minute.
const TURNS: u32 = 3;
const GUESTS: usize = 100;
/// Every fourth guest is a container.
const CONTAINER_EVERY: usize = 4;
const FIRST_VMID: usize = 1_000;

pub(super) fn measure_noop(programs: &BenchPrograms, report: &mut BenchReport) -> TaskResult {
    python::ensure_venv()?;
    let directory = Path::new(WORK_DIRECTORY);
    write_world(directory)?;
    let world = format!("{WORK_DIRECTORY}/world.yaml");
    let lab = LabChild::start(shell::new_command(&programs.converger, &[]), &[&world], directory, LabTime::PerRequest)?;
    // Alternating and equally often: the lowest CPU time of each counts, and the requests of all turns.
    let (mut ansible_cost, mut converger_cost) = ((ProcessCost::NONE, 0.0), (ProcessCost::NONE, 0.0));
    for _ in 0..TURNS {
        ansible_cost = add_turn(ansible_cost, measure_with_requests(&lab, || run_ansible(directory))?);
        converger_cost = add_turn(converger_cost, measure_with_requests(&lab, || run_converger(programs))?);
    }
    lab::check_all_handled(&lab.requests()?)?;
    let each = |(cost, requests): (ProcessCost, f64)| (cost, requests / f64::from(TURNS));
    let ((ansible_cost, their_requests), (converger_cost, our_requests)) = (each(ansible_cost), each(converger_cost));
    let (cpu, requests) = (ansible_cost.cpu_ms / converger_cost.cpu_ms, their_requests / our_requests);
    report.add_measurement(
        "ansible-noop",
        json!({
            "guests": GUESTS, "ansible": { "cost": ansible_cost.to_json(), "requests": their_requests },
            "converger": { "cost": converger_cost.to_json(), "requests": our_requests }, "ratio": { "cpu": cpu, "requests": requests }
        }),
    );
    report.add_target(BenchTarget {
        name: "ansible-cpu",
        value: 100.0 / cpu,
        bound: AtMost(1.0),
        unit: "% of Ansible's CPU time, a no-op over 100 guests",
    });
    report.add_target(BenchTarget {
        name: "ansible-requests",
        value: 100.0 / requests,
        bound: AtMost(2.0),
        unit: "% of Ansible's requests, a no-op over 100 guests",
    });
    Ok(())
}

fn add_turn(all: (ProcessCost, f64), round_cost: (ProcessCost, f64)) -> (ProcessCost, f64) {
    (all.0.best_of(round_cost.0), all.1 + round_cost.1)
}

/// The cost of a run, and how many requests the lab received during it.
fn measure_with_requests(lab: &LabChild, work: impl FnOnce() -> Result<ProcessCost, TaskError>) -> Result<(ProcessCost, f64), TaskError> {
    let before = lab.requests()?.len();
    let cost = work()?;
    Ok((cost, (lab.requests()?.len() - before) as f64))
}

fn run_ansible(directory: &Path) -> Result<ProcessCost, TaskError> {
    let of = |kind: &str| (0..GUESTS).filter(|index| self::guest_kind(*index) == kind).map(|index| FIRST_VMID + index).collect::<Vec<_>>();
    let command = ansible::playbook_command("noop.yml", &[directory], &json!({ "qemu": of("qemu"), "lxc": of("lxc") }))?;
    child::measure_command(command, &[0])
}

fn run_converger(programs: &BenchPrograms) -> Result<ProcessCost, TaskError> {
    child::measure_program(&programs.converger, &["audit", "desired.yaml", "--config", "converger.toml"], WORK_DIRECTORY, &[0])
}

fn guest_kind(index: usize) -> &'static str {
    if index.is_multiple_of(CONTAINER_EVERY) { "lxc" } else { "qemu" }
}

/// Writes the world and the desired state: the same guests, all running.
fn write_world(directory: &Path) -> TaskResult {
    let mut world =
        "cluster: bench\nnodes: { pve1: {}, pve2: {} }\ntokens: { 'root@pam!bench': { secret: bench, full: true } }\nguests:\n".to_owned();
    let mut desired = "version: 1\nenvironment: lab\nguests:\n".to_owned();
    for index in 0..GUESTS {
        let (vmid, kind, node) = (FIRST_VMID + index, guest_kind(index), 1 + index % 2);
        // Writing to a string cannot fail.
        let _ = writeln!(world, "  - {{ vmid: {vmid}, kind: {kind}, node: pve{node}, name: guest-{vmid}, state: running }}");
        let _ = writeln!(desired, "  - {{ vmid: {vmid}, kind: {kind}, name: guest-{vmid}, state: running }}");
    }
    let written = fs::create_dir_all(directory)
        .and_then(|()| fs::write(directory.join("world.yaml"), world))
        .and_then(|()| fs::write(directory.join("desired.yaml"), desired));
    written.map_err(|error| TaskError::new(format!("cannot write to `{}`: {error}", directory.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ansible_and_converger_check_the_same_guests() {
        let directory = std::env::temp_dir().join(format!("xtask-noop-{}", std::process::id()));
        write_world(&directory).unwrap();
        let [world, desired] = ["world.yaml", "desired.yaml"].map(|name| fs::read_to_string(directory.join(name)).unwrap());
        fs::remove_dir_all(&directory).unwrap();
        let of = |text: &str, kind: &str| text.lines().filter(|line| line.contains(&format!("kind: {kind},"))).count();
        assert_eq!((of(&world, "qemu"), of(&world, "lxc")), (75, 25));
        assert_eq!((of(&desired, "qemu"), of(&desired, "lxc")), (75, 25));
        assert_eq!(world.matches("state: running").count(), GUESTS);
    }
}
