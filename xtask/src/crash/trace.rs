//! strace around a program: it counts calls, or lets one of them fail.
//!
//! What never enters here: which calls, and what follows from their failing.

use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::process::Command;

use super::points::{CALLS, Fault, Point, Scope};
use crate::shell::Failure;

/// The end of the log's name in a line.
const LOG: &str = "/converger.db-wal>";

/// A call that a thread made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Call {
    pub(crate) thread: u32,
    pub(crate) name: String,
}

/// What is traced.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Wish {
    /// All calls of a scope are counted.
    Count(Scope),
    /// One of them fails.
    Fail(Point),
}

impl Wish {
    fn scope(self) -> Scope {
        match self {
            Self::Count(scope) => scope,
            Self::Fail(point) => point.place.scope,
        }
    }
}

/// The arguments of strace before those of the program: everything into `log`, with the names of files.
pub(crate) fn arguments(wish: Wish, state: &Path, log: &Path) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = ["-f", "-y", "-qq", "-s", "0", "-o"].map(OsString::from).into();
    arguments.push(log.into());
    let calls = match wish {
        Wish::Count(_) => CALLS.join(","),
        Wish::Fail(point) => point.place.call.to_owned(),
    };
    arguments.extend(["-e".into(), format!("trace={calls}").into()]);
    if let Wish::Fail(Point { place, nth, fault, .. }) = wish {
        let inject = format!("inject={}:{}:when={nth}", place.call, fault.injected());
        arguments.extend(["-e".into(), inject.into()]);
    }
    let file = |name: &str| [OsString::from("-P"), state.join(name).into()];
    match wish.scope() {
        Scope::Any => {}
        Scope::Log => arguments.extend(file("converger.db-wal")),
        Scope::File => {
            arguments.extend(["converger.db", "converger.db-shm", "converger.db-journal", "lab.lock"].into_iter().flat_map(file));
            arguments.extend([OsString::from("-P"), state.into()]);
        }
    }
    arguments
}

/// strace itself, with a program and its arguments.
pub(crate) fn traced(wish: Wish, state: &Path, log: &Path, program: &Command) -> Command {
    let mut strace = Command::new("strace");
    strace.args(arguments(wish, state, log)).arg(program.get_program()).args(program.get_args());
    strace
}

/// The calls in a log. What was interrupted in print stands there twice, and counts once.
pub(crate) fn calls(log: &Path) -> Result<Vec<Call>, Failure> {
    let text = read(log)?;
    Ok(text.lines().filter_map(call).collect())
}

fn call(line: &str) -> Option<Call> {
    let (thread, rest) = line.split_once(' ')?;
    let (name, _) = rest.trim_start().split_once('(')?;
    let is_name = !name.is_empty() && name.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '_');
    is_name.then(|| Some(Call { thread: thread.parse().ok()?, name: name.to_owned() }))?
}

/// Whether the call was made to fail, or was the last one.
pub(crate) fn has_struck(log: &Path, fault: Fault) -> Result<bool, Failure> {
    let text = read(log)?;
    Ok(match fault {
        Fault::Kill => text.contains("+++ killed by SIGKILL +++"),
        Fault::Broken | Fault::Full => text.contains("(INJECTED)"),
    })
}

/// Whether the call that failed was one on the log of the store, and others on the log came after it.
pub(crate) fn has_gone_on(log: &Path) -> Result<bool, Failure> {
    read(log).map(|text| goes_on(&text))
}

fn goes_on(text: &str) -> bool {
    let mut own = text.lines().filter(|line| line.contains(LOG));
    let has_failed = own.by_ref().any(|line| line.ends_with("(INJECTED)"));
    has_failed && own.any(|line| !line.ends_with("(INJECTED)") && call(line).is_some())
}

fn read(log: &Path) -> Result<String, Failure> {
    let bytes = fs::read(log).map_err(|error| Failure::new(format!("cannot read `{}`: {error}", log.display())))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_after_the_one_that_failed_are_seen() {
        let own = |rest: &str| format!("7 fsync(4</s/converger.db-wal>){rest}\n");
        let failed = own(" = 0") + &own(" = -1 EIO (Input/output error) (INJECTED)");
        assert!(goes_on(&format!("{failed}{}", own(" = 0"))));
        assert!(goes_on(&format!("{failed}8 fsync(5</s/result.json>) = 0\n{}", own(" <unfinished ...>"))));
        assert!(!goes_on(&format!("{failed}8 fsync(5</s/result.json>) = 0\n")), "another file");
        assert!(!goes_on(&format!("{failed}7 --- SIGABRT {{si_signo=SIGABRT}} ---\n7 +++ killed by SIGABRT +++\n")));
        assert!(!goes_on(&own(" = 0")));
        let other = "7 fsync(4</s/converger.db>) = -1 EIO (Input/output error) (INJECTED)\n";
        assert!(!goes_on(&format!("{other}{}", own(" = 0"))), "another file failed");
    }

    #[test]
    fn a_line_of_the_log_is_a_call_or_nothing() {
        let read = |line| call(line).map(|call| (call.thread, call.name));
        assert_eq!(read("7 pwrite64(4</a/b>, \"\"..., 32, 0) = 32"), Some((7, "pwrite64".into())));
        assert_eq!(read("7     fsync(4</a/b> <unfinished ...>"), Some((7, "fsync".into())));
        for line in ["7 <... fsync resumed>) = 0", "7 +++ exited with 0 +++", "7 --- SIGABRT {si_signo=SIGABRT} ---", ""] {
            assert_eq!(read(line), None, "{line}");
        }
    }
}
