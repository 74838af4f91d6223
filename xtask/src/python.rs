//! A second opinion in another language: Python packages that share no code with us check our
//! formats and our lab.
//!
//! The packages are in a venv under `target/`, at the versions that `xtask/python/requirements.txt`
//! pins, together with Ansible's collection. What the scripts check is up to them.

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
/// A copy of the pins, written last: a venv whose creation was interrupted has none and is created again.
const STAMP_FILE: &str = "target/ci-venv/requirements.txt";
pub(crate) const PYTHON: &str = "target/ci-venv/bin/python";

/// Creates the venv, unless it exists and contains exactly what is pinned.
pub(crate) fn ensure_venv() -> TaskResult {
    let read = |path: &str| fs::read_to_string(path).map_err(|error| file_error("read", path, &error));
    let pins = read(PINS_FILE)? + &read(BUNDLE_FILE)?;
    if !is_venv_current(&pins) {
        make_venv(&pins)?;
    }
    run_script("pinned.py", &[PINS_FILE])
}

/// Runs `xtask/python/<script>` with the venv's Python; the stage `tools` must have passed before.
pub(crate) fn run_script(script: &str, arguments: &[&str]) -> TaskResult {
    let path = format!("{SCRIPTS}/{script}");
    shell::run_visibly(&mut python_command(&[&[path.as_str()], arguments].concat()))
}

/// Neither PYTHONPATH (`-E`) nor the user's own packages (`-s`) may replace the pinned ones. `-B`: a script that imports another one leaves no
/// compiled copy beside it.
pub(crate) fn python_command(arguments: &[&str]) -> Command {
    shell::new_command(PYTHON, &[&["-B", "-E", "-s"], arguments].concat())
}

/// Also runs the interpreter: after an upgrade of the system's Python, the venv may be broken.
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

/// The bundle is large and mostly not needed: download it, extract one collection, and delete it.
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
