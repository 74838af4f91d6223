//! The same question to the same lab, asked by Ansible and by us: do these hundred guests run, as declared?
//!
//! Both find nothing to do. What each costs is CPU time, its children's included, and requests, which the lab counts. What never
//! enters here: the start of Ansible's tools, which is none of its work.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use serde_json::json;

use super::build::Programs;
use super::child::{self, Cost};
use super::report::Bound::AtMost;
use super::report::{Report, Target};
use crate::lab::{self, Lab, Time};
use crate::shell::{self, Failure, Outcome};
use crate::{ansible, python};

const ROOM: &str = "target/bench-ansible/lab";
/// How often each is run. Ansible takes most of a minute for one.
const TURNS: u32 = 3;
const GUESTS: usize = 100;
/// Every fourth is a container.
const CONTAINERS: usize = 4;
const FIRST: usize = 1_000;

pub(super) fn noop(programs: &Programs, report: &mut Report) -> Outcome {
    python::ready()?;
    let room = Path::new(ROOM);
    write(room)?;
    let world = format!("{ROOM}/world.yaml");
    let lab = Lab::start(shell::command(&programs.converger, &[]), &[&world], room, Time::Asked)?;
    // In turns and equally often: of each the least CPU time counts, and the requests of all its turns.
    let (mut theirs, mut ours) = ((Cost::NONE, 0.0), (Cost::NONE, 0.0));
    for _ in 0..TURNS {
        theirs = sum(theirs, counted(&lab, || by_ansible(room))?);
        ours = sum(ours, counted(&lab, || by_us(programs))?);
    }
    lab::all_understood(&lab.requests()?)?;
    let each = |(cost, requests): (Cost, f64)| (cost, requests / f64::from(TURNS));
    let ((theirs, their_requests), (ours, our_requests)) = (each(theirs), each(ours));
    let (cpu, requests) = (theirs.cpu_ms / ours.cpu_ms, their_requests / our_requests);
    report.measured(
        "ansible-noop",
        json!({
            "guests": GUESTS, "ansible": { "cost": theirs.json(), "requests": their_requests },
            "converger": { "cost": ours.json(), "requests": our_requests }, "ratio": { "cpu": cpu, "requests": requests }
        }),
    );
    report.target(Target {
        name: "ansible-cpu",
        value: 100.0 / cpu,
        bound: AtMost(1.0),
        unit: "% of Ansible's CPU time, a no-op over 100 guests",
    });
    report.target(Target {
        name: "ansible-requests",
        value: 100.0 / requests,
        bound: AtMost(2.0),
        unit: "% of Ansible's requests, a no-op over 100 guests",
    });
    Ok(())
}

fn sum(all: (Cost, f64), turn: (Cost, f64)) -> (Cost, f64) {
    (all.0.and(turn.0), all.1 + turn.1)
}

/// What a work costs, and how many requests the lab saw meanwhile.
fn counted(lab: &Lab, work: impl FnOnce() -> Result<Cost, Failure>) -> Result<(Cost, f64), Failure> {
    let before = lab.requests()?.len();
    let cost = work()?;
    Ok((cost, (lab.requests()?.len() - before) as f64))
}

fn by_ansible(room: &Path) -> Result<Cost, Failure> {
    let of = |kind: &str| (0..GUESTS).filter(|index| self::kind(*index) == kind).map(|index| FIRST + index).collect::<Vec<_>>();
    let command = ansible::playbook("noop.yml", &[room], &json!({ "qemu": of("qemu"), "lxc": of("lxc") }))?;
    child::cost_of(command, &[0])
}

fn by_us(programs: &Programs) -> Result<Cost, Failure> {
    child::cost(&programs.converger, &["audit", "desired.yaml", "--config", "converger.toml"], ROOM, &[0])
}

fn kind(index: usize) -> &'static str {
    if index.is_multiple_of(CONTAINERS) { "lxc" } else { "qemu" }
}

/// The world and what is declared about it: the same guests, all of them running.
fn write(room: &Path) -> Outcome {
    let mut world =
        "cluster: bench\nnodes: { pve1: {}, pve2: {} }\ntokens: { 'root@pam!bench': { secret: bench, full: true } }\nguests:\n".to_owned();
    let mut desired = "version: 1\nenvironment: lab\nguests:\n".to_owned();
    for index in 0..GUESTS {
        let (vmid, kind, node) = (FIRST + index, kind(index), 1 + index % 2);
        // Writing to a string cannot fail.
        let _ = writeln!(world, "  - {{ vmid: {vmid}, kind: {kind}, node: pve{node}, name: guest-{vmid}, state: running }}");
        let _ = writeln!(desired, "  - {{ vmid: {vmid}, kind: {kind}, name: guest-{vmid}, state: running }}");
    }
    let written = fs::create_dir_all(room)
        .and_then(|()| fs::write(room.join("world.yaml"), world))
        .and_then(|()| fs::write(room.join("desired.yaml"), desired));
    written.map_err(|error| Failure::new(format!("cannot write to `{}`: {error}", room.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_are_asked_about_the_same_guests_of_both_kinds() {
        let room = std::env::temp_dir().join(format!("xtask-noop-{}", std::process::id()));
        write(&room).unwrap();
        let [world, desired] = ["world.yaml", "desired.yaml"].map(|name| fs::read_to_string(room.join(name)).unwrap());
        fs::remove_dir_all(&room).unwrap();
        let of = |text: &str, kind: &str| text.lines().filter(|line| line.contains(&format!("kind: {kind},"))).count();
        assert_eq!((of(&world, "qemu"), of(&world, "lxc")), (75, 25));
        assert_eq!((of(&desired, "qemu"), of(&desired, "lxc")), (75, 25));
        assert_eq!(world.matches("state: running").count(), GUESTS);
    }
}
