//! Installs what a bare Debian machine with Rust and a network lacks.
//!
//! Must not name registry hosts: apt, cargo and pip know theirs, and may be configured to use a
//! mirror.

use crate::python;
use crate::shell::{self, TaskError, TaskResult};

/// Pinned, because a later version may need a newer Rust than ours.
const NEXTEST_VERSION: &str = "cargo-nextest@0.9.143";

/// Installs what is missing; changes nothing that exists.
pub(crate) fn ensure_tools() -> TaskResult {
    ensure_system_tools()?;
    ensure_nextest()?;
    python::ensure_venv()
}

/// A system program: how to check that it works, and the Debian packages that provide it.
struct SystemTool {
    probe: &'static [&'static str],
    packages: &'static [&'static str],
}

/// Debian's `python3` alone cannot create a venv: `ensurepip` comes with `python3-venv`.
const SYSTEM_TOOLS: &[SystemTool] = &[
    SystemTool { probe: &["cc", "--version"], packages: &["build-essential"] },
    SystemTool { probe: &["git", "--version"], packages: &["git"] },
    SystemTool { probe: &["strace", "-V"], packages: &["strace"] },
    SystemTool { probe: &["script", "-V"], packages: &["bsdutils"] },
    SystemTool { probe: &["curl", "-V"], packages: &["curl"] },
    SystemTool { probe: &["python3", "-c", "import ensurepip, venv"], packages: &["python3", "python3-venv"] },
];

fn ensure_system_tools() -> TaskResult {
    let missing = missing_packages(SYSTEM_TOOLS, is_working);
    if missing.is_empty() { Ok(()) } else { apt_install(&missing) }
}

/// Merges the counts of an instrumented program. The toolchain does not include its own version; this one can read its format.
pub(crate) const PROFDATA: &str = "llvm-profdata-19";

/// Needed for builds with profile counts only.
pub(crate) fn ensure_profdata() -> TaskResult {
    if is_working(&[PROFDATA, "--version"]) { Ok(()) } else { apt_install(&["llvm-19"]) }
}

fn is_working(probe: &[&str]) -> bool {
    probe.split_first().is_some_and(|(program, arguments)| shell::succeeds(&mut shell::new_command(*program, arguments)))
}

fn missing_packages(needs: &[SystemTool], works: impl Fn(&[&str]) -> bool) -> Vec<&'static str> {
    needs.iter().filter(|need| !works(need.probe)).flat_map(|need| need.packages).copied().collect()
}

fn apt_install(packages: &[&str]) -> TaskResult {
    apt_get(&["update"]).and_then(|()| apt_get(&[&["install", "-y", "--no-install-recommends"], packages].concat())).map_err(|failure| {
        let packages = packages.join(" ");
        TaskError::new(format!("{failure}; run as root, or ask the administrator to install: {packages}"))
    })
}

fn apt_get(arguments: &[&str]) -> TaskResult {
    shell::run_visibly(shell::new_command("apt-get", arguments).env("DEBIAN_FRONTEND", "noninteractive"))
}

/// A debug build, because it is ready after two minutes on two cores, and later the tests take the time, not their runner.
fn ensure_nextest() -> TaskResult {
    if shell::succeeds(&mut shell::cargo_command(&["nextest", "--version"])) {
        return Ok(());
    }
    shell::run_visibly(&mut shell::cargo_command(&["install", "--locked", "--debug", "--no-default-features", NEXTEST_VERSION]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bare_machines_need_every_package() {
        let all = ["build-essential", "git", "strace", "bsdutils", "curl", "python3", "python3-venv"];
        assert_eq!(missing_packages(SYSTEM_TOOLS, |_| false), all);
    }

    #[test]
    fn only_missing_tools_are_installed() {
        assert_eq!(missing_packages(SYSTEM_TOOLS, |probe| probe != ["cc", "--version"]), ["build-essential"]);
        assert!(missing_packages(SYSTEM_TOOLS, |_| true).is_empty());
    }
}
