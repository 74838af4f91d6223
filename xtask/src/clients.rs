//! The lab, judged by clients that nobody here wrote: `proxmoxer` and Ansible's `community.proxmox`, per release of Proxmox VE.
//!
//! What never enters here: what they do and what must come of it; `xtask/python` and `xtask/ansible` say that.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::json;

use crate::ansible;
use crate::lab::{self, Lab, Time};
use crate::python;
use crate::shell::{self, Failure, Outcome};

const ROOMS: &str = "target/clients";
const WORLD: &str = "xtask/ansible/world.yaml";
const FLAVOURS: [&str; 3] = ["7", "8", "9"];

/// Both clients on a lab of each release; then no request may be left that a lab could not handle.
pub(crate) fn ask() -> Outcome {
    let labs: Vec<Lab> = FLAVOURS.iter().map(|flavour| start(flavour)).collect::<Result<_, _>>()?;
    for lab in &labs {
        python::run("proxmoxer_on_lab.py", &[&lab.room().display().to_string()])?;
    }
    play(&labs)?;
    labs.iter().try_for_each(|lab| {
        let requests = lab.requests()?;
        lab::all_understood(&requests)?;
        lab::all_documented(&requests)
    })
}

/// What is declared changes everything once and nothing the second time.
fn play(labs: &[Lab]) -> Outcome {
    let rooms: Vec<&Path> = labs.iter().map(Lab::room).collect();
    shell::hush(&mut ansible::playbook("declared.yml", &rooms, &json!({ "again": false }))?)?;
    shell::hush(&mut ansible::playbook("declared.yml", &rooms, &json!({ "again": true }))?)?;
    shell::hush(&mut ansible::playbook("verbs.yml", &rooms, &json!({}))?)
}

fn start(flavour: &str) -> Result<Lab, Failure> {
    let room = room(flavour)?;
    Lab::start(shell::built("converger", &[]), &[WORLD, "--flavour", flavour], &room, Time::Asked)
}

/// An empty directory: what an earlier run left must lead nobody astray.
fn room(flavour: &str) -> Result<PathBuf, Failure> {
    let room = Path::new(ROOMS).join(format!("pve{flavour}"));
    let emptied = if room.exists() { fs::remove_dir_all(&room) } else { Ok(()) };
    emptied.map(|()| room.clone()).map_err(|error| Failure::new(format!("cannot empty `{}`: {error}", room.display())))
}
