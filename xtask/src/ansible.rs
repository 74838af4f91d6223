//! Builds the command that runs an Ansible playbook on labs. Each lab is a host, named after its
//! directory.
//!
//! What a playbook does is in `xtask/ansible`.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::python;
use crate::shell::TaskError;

const PLAYBOOKS: &str = "xtask/ansible";

/// Runs `xtask/ansible/<book>` on the labs in these sibling directories; `more` holds further variables.
pub(crate) fn playbook_command(playbook: &str, directories: &[&Path], more: &Value) -> Result<Command, TaskError> {
    let root = env::current_dir().map_err(|error| TaskError::new(format!("cannot get the current directory: {error}")))?;
    let hosts: Vec<&str> = directories.iter().filter_map(|directory| directory.file_name()?.to_str()).collect();
    let parent = directories.first().and_then(|directory| directory.parent()).map(|parent| root.join(parent)).unwrap_or_default();
    // Absolute paths, because Ansible resolves relative ones against the directory of the playbook.
    let path_variables = json!({ "rooms": parent, "ansible_python_interpreter": root.join(python::PYTHON) }).to_string();
    let more = more.to_string();
    let (inventory, path) = (format!("{},", hosts.join(",")), format!("{PLAYBOOKS}/{playbook}"));
    let labs = format!("@{PLAYBOOKS}/labs.yml");
    let mut command =
        python::python_command(&["-m", "ansible", "playbook", "-i", &inventory, "-e", &labs, "-e", &path_variables, "-e", &more, &path]);
    isolate_environment(&mut command, &root, &parent);
    Ok(command)
}

/// Ignores the user's own Ansible settings, and writes nothing to the user's home.
fn isolate_environment(command: &mut Command, root: &Path, parent: &Path) {
    let inherited: Vec<(String, String)> =
        env::vars().filter(|(name, _)| name.starts_with("ANSIBLE_") || name.starts_with("PROXMOX_")).collect();
    for (name, _) in inherited {
        command.env_remove(name);
    }
    let paths: [(&str, PathBuf); 3] = [
        ("ANSIBLE_CONFIG", root.join(PLAYBOOKS).join("ansible.cfg")),
        ("ANSIBLE_HOME", parent.join("ansible")),
        ("ANSIBLE_COLLECTIONS_PATH", root.join(python::COLLECTIONS)),
    ];
    command.envs(paths).env("LC_ALL", "C.UTF-8");
}
