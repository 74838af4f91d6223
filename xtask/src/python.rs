//! A second opinion in another language: our formats and our lab, checked by Python packages that
//! share no code with us.
//!
//! The packages live in a venv of their own under `target/`, at the versions that
//! `xtask/python/requirements.txt` pins, and Ansible's collection beside them. What never enters
//! here: what the scripts check; each says that itself.

use std::fs;
use std::io::ErrorKind;
use std::process::Command;

use crate::shell::{self, Failure, Outcome};

const SCRIPTS: &str = "xtask/python";
const PINS: &str = "xtask/python/requirements.txt";
const BUNDLE: &str = "xtask/python/bundle.txt";
const WHEELS: &str = "target/ci-wheels";
const VENV: &str = "target/ci-venv";
/// Where Ansible looks for collections.
pub(crate) const COLLECTIONS: &str = "target/ci-venv/collections";
/// A copy of the pins, written last: a venv that was interrupted half-way has none and is made
/// again.
const STAMP: &str = "target/ci-venv/requirements.txt";
pub(crate) const PYTHON: &str = "target/ci-venv/bin/python";

/// Make the venv, unless it is there and holds exactly what is pinned.
pub(crate) fn ready() -> Outcome {
    let read = |path: &str| fs::read_to_string(path).map_err(|error| failed("read", path, &error));
    let pins = read(PINS)? + &read(BUNDLE)?;
    if !stands(&pins) {
        make(&pins)?;
    }
    run("pinned.py", &[PINS])
}

/// Run `xtask/python/<script>` with the venv's Python; `tools` must have passed before.
pub(crate) fn run(script: &str, arguments: &[&str]) -> Outcome {
    let path = format!("{SCRIPTS}/{script}");
    shell::run(&mut python(&[&[path.as_str()], arguments].concat()))
}

/// Neither PYTHONPATH (`-E`) nor the user's own packages (`-s`) may stand in for the pinned ones.
pub(crate) fn python(arguments: &[&str]) -> Command {
    shell::command(PYTHON, &[&["-E", "-s"], arguments].concat())
}

/// The interpreter is asked too: after an upgrade of the system's Python the venv may point
/// nowhere.
fn stands(pins: &str) -> bool {
    fs::read_to_string(STAMP).is_ok_and(|stamp| stamp == pins) && shell::succeeds(&mut python(&["--version"]))
}

fn make(pins: &str) -> Outcome {
    remove(VENV)?;
    shell::run(&mut shell::command("python3", &["-m", "venv", VENV]))?;
    shell::run(&mut python(&["-m", "pip", "install", "--quiet", "--no-input", "--requirement", PINS]))?;
    collection()?;
    fs::write(STAMP, pins).map_err(|error| failed("write", STAMP, &error))
}

/// The bundle is large and most of it is of no use here: it is fetched, one collection taken out, and thrown away.
fn collection() -> Outcome {
    remove(WHEELS)?;
    let fetch = ["-m", "pip", "download", "--quiet", "--no-input", "--no-deps", "--require-hashes"];
    shell::run(&mut python(&[&fetch[..], &["--dest", WHEELS, "--requirement", BUNDLE]].concat()))?;
    run("collection.py", &[WHEELS, COLLECTIONS])?;
    remove(WHEELS)
}

fn remove(directory: &str) -> Outcome {
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(failed("remove", directory, &error)),
        _ => Ok(()),
    }
}

fn failed(verb: &str, path: &str, error: &std::io::Error) -> Failure {
    Failure::new(format!("cannot {verb} `{path}`: {error}"))
}
