//! A second opinion in another language: our formats and our lab, checked by Python packages that
//! share no code with us.
//!
//! The packages live in a venv of their own under `target/`, at the versions that
//! `xtask/python/requirements.txt` pins, and Ansible's collection beside them. What never enters
//! here: what the scripts check; each says that itself.

use std::fs;
use std::io::ErrorKind;
use std::process::Command;

use crate::shell::{self, TaskError, TaskResult};

const SCRIPTS: &str = "xtask/python";
const PINS_FILE: &str = "xtask/python/requirements.txt";
const BUNDLE_FILE: &str = "xtask/python/bundle.txt";
const WHEELS_DIRECTORY: &str = "target/ci-wheels";
const VENV_DIRECTORY: &str = "target/ci-venv";
/// Where Ansible looks for collections.
pub(crate) const COLLECTIONS: &str = "target/ci-venv/collections";
/// A copy of the pins, written last: a venv that was interrupted half-way has none and is made
/// again.
const STAMP_FILE: &str = "target/ci-venv/requirements.txt";
pub(crate) const PYTHON: &str = "target/ci-venv/bin/python";

/// Make the venv, unless it is there and holds exactly what is pinned.
pub(crate) fn ensure_venv() -> TaskResult {
    let read = |path: &str| fs::read_to_string(path).map_err(|error| file_error("read", path, &error));
    let pins = read(PINS_FILE)? + &read(BUNDLE_FILE)?;
    if !is_venv_current(&pins) {
        make_venv(&pins)?;
    }
    run_script("pinned.py", &[PINS_FILE])
}

/// Run `xtask/python/<script>` with the venv's Python; `tools` must have passed before.
pub(crate) fn run_script(script: &str, arguments: &[&str]) -> TaskResult {
    let path = format!("{SCRIPTS}/{script}");
    shell::run_visibly(&mut python_command(&[&[path.as_str()], arguments].concat()))
}

/// Neither PYTHONPATH (`-E`) nor the user's own packages (`-s`) may stand in for the pinned ones.
pub(crate) fn python_command(arguments: &[&str]) -> Command {
    shell::new_command(PYTHON, &[&["-E", "-s"], arguments].concat())
}

/// The interpreter is asked too: after an upgrade of the system's Python the venv may point
/// nowhere.
fn is_venv_current(pins: &str) -> bool {
    fs::read_to_string(STAMP_FILE).is_ok_and(|stamp| stamp == pins) && shell::succeeds(&mut python_command(&["--version"]))
}

fn make_venv(pins: &str) -> TaskResult {
    remove_directory(VENV_DIRECTORY)?;
    shell::run_visibly(&mut shell::new_command("python3", &["-m", "venv", VENV_DIRECTORY]))?;
    shell::run_visibly(&mut python_command(&["-m", "pip", "install", "--quiet", "--no-input", "--requirement", PINS_FILE]))?;
    install_collection()?;
    fs::write(STAMP_FILE, pins).map_err(|error| file_error("write", STAMP_FILE, &error))
}

/// The bundle is large and most of it is of no use here: it is fetched, one collection taken out, and thrown away.
fn install_collection() -> TaskResult {
    remove_directory(WHEELS_DIRECTORY)?;
    let fetch = ["-m", "pip", "download", "--quiet", "--no-input", "--no-deps", "--require-hashes"];
    shell::run_visibly(&mut python_command(&[&fetch[..], &["--dest", WHEELS_DIRECTORY, "--requirement", BUNDLE_FILE]].concat()))?;
    run_script("collection.py", &[WHEELS_DIRECTORY, COLLECTIONS])?;
    remove_directory(WHEELS_DIRECTORY)
}

fn remove_directory(directory: &str) -> TaskResult {
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(file_error("remove", directory, &error)),
        _ => Ok(()),
    }
}

fn file_error(verb: &str, path: &str, error: &std::io::Error) -> TaskError {
    TaskError::new(format!("cannot {verb} `{path}`: {error}"))
}
