//! Checks the lab with independent clients, `proxmoxer` and Ansible's `community.proxmox`, for each
//! release of Proxmox VE; then checks with `proxmoxer` what our own actions did.
//!
//! What they do and what they expect is in `xtask/python` and `xtask/ansible`.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::json;

use crate::actions;
use crate::ansible;
use crate::lab::{self, LabChild, LabTime};
use crate::python;
use crate::shell::{self, TaskError, TaskResult};

const WORK_DIRECTORY: &str = "target/clients";
const WORLD: &str = "xtask/ansible/world.yaml";
const RELEASES: [&str; 3] = ["7", "8", "9"];

/// Runs both clients on a lab of each release. Fails if a request remains that a lab could not handle.
pub(crate) fn check_clients() -> TaskResult {
    let labs: Vec<LabChild> = RELEASES.iter().map(|flavour| start_lab(flavour)).collect::<Result<_, _>>()?;
    for lab in &labs {
        python::run_script("proxmoxer_on_lab.py", &[&lab.directory().display().to_string()])?;
    }
    run_playbook_twice(&labs)?;
    labs.iter().try_for_each(|lab| {
        let requests = lab.requests()?;
        lab::check_all_handled(&requests)?;
        lab::check_all_documented(&requests)
    })?;
    actions::check_actions()
}

/// The first run of the playbook changes everything, the second one nothing.
fn run_playbook_twice(labs: &[LabChild]) -> TaskResult {
    let directories: Vec<&Path> = labs.iter().map(LabChild::directory).collect();
    shell::run_quietly(&mut ansible::playbook_command("declared.yml", &directories, &json!({ "again": false }))?)?;
    shell::run_quietly(&mut ansible::playbook_command("declared.yml", &directories, &json!({ "again": true }))?)?;
    shell::run_quietly(&mut ansible::playbook_command("verbs.yml", &directories, &json!({}))?)
}

fn start_lab(flavour: &str) -> Result<LabChild, TaskError> {
    let directory = make_lab_directory(flavour)?;
    LabChild::start(shell::built_command("converger", &[]), &[WORLD, "--flavour", flavour], &directory, LabTime::PerRequest)
}

/// An empty directory, because leftovers of an earlier run could mislead the clients.
fn make_lab_directory(flavour: &str) -> Result<PathBuf, TaskError> {
    let directory = Path::new(WORK_DIRECTORY).join(format!("pve{flavour}"));
    let emptied = if directory.exists() { fs::remove_dir_all(&directory) } else { Ok(()) };
    emptied.map(|()| directory.clone()).map_err(|error| TaskError::new(format!("cannot empty `{}`: {error}", directory.display())))
}
