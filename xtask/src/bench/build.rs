//! The programs that are measured, built in release, and the simulation in its own profile. The program is built apart from the benches,
//! so that the feature that those need is not in it.

use std::path::PathBuf;

use serde_json::Value;

use crate::shell::{self, Failure};

/// Where each program is.
pub(super) struct Programs {
    pub(super) converger: PathBuf,
    pub(super) plan: PathBuf,
    pub(super) allocations: PathBuf,
    pub(super) decode: PathBuf,
    pub(super) fetch: PathBuf,
    pub(super) fleet: PathBuf,
    pub(super) simulate: PathBuf,
    pub(super) commits: PathBuf,
}

/// Those of the store.
pub(super) struct OfStore {
    commits: PathBuf,
    pub(super) evidence: PathBuf,
}

pub(super) fn programs() -> Result<Programs, Failure> {
    let program = built(&["build", "--release", "--package", "converger"])?;
    // Named one by one: `--benches` would build the unit tests of core too.
    let core = ["bench", "--no-run", "--package", "converger-core", "--features", "testing"];
    let benches = built(&[&core[..], &["--bench", "plan", "--bench", "allocations", "--bench", "decode"]].concat())?;
    let fetch = built(&["build", "--release", "--package", "converger-adapters", "--example", "fetch"])?;
    let fleet = built(&["build", "--release", "--package", "converger", "--example", "fleet"])?;
    let simulate = built(&["build", "--profile", "sim", "--package", "converger", "--example", "simulate"])?;
    Ok(Programs {
        converger: executable(&program, "converger")?,
        plan: executable(&benches, "plan")?,
        allocations: executable(&benches, "allocations")?,
        decode: executable(&benches, "decode")?,
        fetch: executable(&fetch, "fetch")?,
        fleet: executable(&fleet, "fleet")?,
        simulate: executable(&simulate, "simulate")?,
        commits: of_store()?.commits,
    })
}

/// Built apart, and the same whenever it is asked for.
pub(super) fn of_store() -> Result<OfStore, Failure> {
    let store = ["build", "--release", "--package", "converger-store", "--features", "conformance"];
    let built = built(&[&store[..], &["--example", "commits", "--example", "evidence"]].concat())?;
    Ok(OfStore { commits: executable(&built, "commits")?, evidence: executable(&built, "evidence")? })
}

/// What cargo says about what it built, one JSON object on each line.
fn built(arguments: &[&str]) -> Result<String, Failure> {
    eprintln!("$ cargo {}", arguments.join(" "));
    shell::capture(&mut shell::cargo(&[arguments, &["--message-format", "json-render-diagnostics"]].concat()))
}

fn executable(messages: &str, name: &str) -> Result<PathBuf, Failure> {
    let messages = messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut paths = messages.filter(|message| message["target"]["name"] == name).filter_map(|message| path(&message));
    paths.next().ok_or_else(|| Failure::new(format!("cargo built no program `{name}`")))
}

fn path(message: &Value) -> Option<PathBuf> {
    message["executable"].as_str().map(PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_of_a_name_is_found_among_what_cargo_says() {
        let messages = r#"{"reason":"compiler-artifact","target":{"name":"plan"},"executable":null}
not json
{"reason":"compiler-artifact","target":{"name":"plan"},"executable":"target/release/deps/plan-1"}
{"reason":"build-finished","success":true}"#;
        assert_eq!(executable(messages, "plan"), Ok(PathBuf::from("target/release/deps/plan-1")));
        assert!(executable(messages, "decode").is_err());
    }
}
