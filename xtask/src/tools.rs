//! What a bare Debian machine with Rust and a network lacks, and how it comes to have it.
//!
//! What never enters here: the checks that use these tools, and the name of any registry host: apt,
//! cargo and pip know theirs, and whoever runs a mirror has told them.

use crate::python;
use crate::shell::{self, Failure, Outcome};

/// Pinned, because a later one may ask for a later Rust than ours.
const NEXTEST: &str = "cargo-nextest@0.9.143";

/// Install what is missing; touch nothing that is there.
pub(crate) fn ready() -> Outcome {
    system_ready()?;
    nextest_ready()?;
    python::ready()
}

/// A program of the system: how to see that it works, and the Debian packages that bring it.
struct Need {
    probe: &'static [&'static str],
    packages: &'static [&'static str],
}

/// Debian's `python3` alone cannot make a venv: `ensurepip` comes with `python3-venv`.
const SYSTEM: &[Need] = &[
    Need { probe: &["cc", "--version"], packages: &["build-essential"] },
    Need { probe: &["git", "--version"], packages: &["git"] },
    Need { probe: &["strace", "-V"], packages: &["strace"] },
    Need { probe: &["script", "-V"], packages: &["bsdutils"] },
    Need { probe: &["python3", "-c", "import ensurepip, venv"], packages: &["python3", "python3-venv"] },
];

fn system_ready() -> Outcome {
    let missing = packages(SYSTEM, works);
    if missing.is_empty() { Ok(()) } else { apt_install(&missing) }
}

/// Merges what an instrumented program has counted. That of the compiler's own release is no part of a toolchain; this one reads what it writes.
pub(crate) const PROFDATA: &str = "llvm-profdata-19";

/// For whoever builds with counts.
pub(crate) fn profdata_ready() -> Outcome {
    if works(&[PROFDATA, "--version"]) { Ok(()) } else { apt_install(&["llvm-19"]) }
}

fn works(probe: &[&str]) -> bool {
    probe.split_first().is_some_and(|(program, arguments)| shell::succeeds(&mut shell::command(*program, arguments)))
}

fn packages(needs: &[Need], works: impl Fn(&[&str]) -> bool) -> Vec<&'static str> {
    needs.iter().filter(|need| !works(need.probe)).flat_map(|need| need.packages).copied().collect()
}

fn apt_install(packages: &[&str]) -> Outcome {
    apt_get(&["update"]).and_then(|()| apt_get(&[&["install", "-y", "--no-install-recommends"], packages].concat())).map_err(|failure| {
        let packages = packages.join(" ");
        Failure::new(format!("{failure}; run as root, or have this machine's keeper install: {packages}"))
    })
}

fn apt_get(arguments: &[&str]) -> Outcome {
    shell::run(shell::command("apt-get", arguments).env("DEBIAN_FRONTEND", "noninteractive"))
}

/// A debug build, because it is ready after two minutes on two cores, and what takes time later is
/// the tests and not their runner.
fn nextest_ready() -> Outcome {
    if shell::succeeds(&mut shell::cargo(&["nextest", "--version"])) {
        return Ok(());
    }
    shell::run(&mut shell::cargo(&["install", "--locked", "--debug", "--no-default-features", NEXTEST]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bare_machine_needs_every_package() {
        let all = ["build-essential", "git", "strace", "bsdutils", "python3", "python3-venv"];
        assert_eq!(packages(SYSTEM, |_| false), all);
    }

    #[test]
    fn only_what_does_not_work_is_installed() {
        assert_eq!(packages(SYSTEM, |probe| probe != ["cc", "--version"]), ["build-essential"]);
        assert!(packages(SYSTEM, |_| true).is_empty());
    }
}
