//! Runs a program under strace, which counts calls or fails one of them.
//!
//! Must not know which calls matter or what their failure means.

use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::process::Command;

use super::points::{CREATE_CALL, CallScope, CrashPoint, InjectedFault, WRITE_CALLS};
use crate::shell::TaskError;

/// How the name of the WAL ends in a line.
const STORE_LOG_SUFFIX: &str = "/converger.db-wal>";

/// A call of a thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TracedCall {
    pub(crate) thread: u32,
    /// The name of the thread.
    pub(crate) thread_name: String,
    pub(crate) name: String,
    /// The files that it concerns, as strace selects them by name.
    pub(crate) files: Vec<String>,
    /// Whether it changes anything; opening does if it creates the file.
    pub(crate) writes: bool,
}

/// What strace does.
#[derive(Clone, Copy, Debug)]
pub(crate) enum TraceMode {
    /// Counts all calls.
    Count,
    /// Fails one call.
    Fail(CrashPoint),
}

impl TraceMode {
    fn scope(self) -> CallScope {
        match self {
            Self::Count => CallScope::Any,
            Self::Fail(point) => point.site.scope,
        }
    }
}

/// The arguments of strace before those of the program: everything goes to `log`, with names of files and threads.
pub(crate) fn strace_arguments(trace_mode: TraceMode, directory: &Path, log: &Path) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = ["-f", "-y", "-Y", "-qq", "-s", "0", "-o"].map(OsString::from).into();
    arguments.push(log.into());
    let calls = match trace_mode {
        TraceMode::Count => WRITE_CALLS.join(","),
        TraceMode::Fail(point) => point.site.call.to_owned(),
    };
    arguments.extend(["-e".into(), format!("trace={calls}").into()]);
    if let TraceMode::Fail(CrashPoint { site, nth, fault, .. }) = trace_mode {
        let inject = format!("inject={}:{}:when={nth}", site.call, fault.strace_injection());
        arguments.extend(["-e".into(), inject.into()]);
    }
    let files = trace_mode.scope().files(directory).unwrap_or_default();
    arguments.extend(files.into_iter().flat_map(|file| ["-P".into(), file.into()]));
    arguments
}

/// strace with a program and its arguments.
pub(crate) fn strace_command(trace_mode: TraceMode, directory: &Path, log: &Path, program: &Command) -> Command {
    let mut strace = Command::new("strace");
    strace.args(strace_arguments(trace_mode, directory, log)).arg(program.get_program()).args(program.get_args());
    strace
}

/// The calls in a log. An interrupted call is printed twice and counts once.
pub(crate) fn read_calls(log: &Path) -> Result<Vec<TracedCall>, TaskError> {
    let text = read_log(log)?;
    Ok(text.lines().filter_map(parse_call).collect())
}

fn parse_call(line: &str) -> Option<TracedCall> {
    let digits = line.find(|letter: char| !letter.is_ascii_digit())?;
    let (thread, rest) = line.split_at(digits);
    let (of, rest) = rest.strip_prefix('<').and_then(|rest| rest.split_once("> ")).unwrap_or(("", rest));
    let (name, arguments) = rest.trim_start().split_once('(')?;
    let is_name = !name.is_empty() && name.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '_');
    if !is_name {
        return None;
    }
    let writes = name != CREATE_CALL || arguments.contains("O_CREAT");
    Some(TracedCall {
        thread: thread.parse().ok()?,
        thread_name: of.to_owned(),
        name: name.to_owned(),
        files: parse_files(arguments),
        writes,
    })
}

/// The files behind file descriptors and in quotes. The directory that a path is relative to does not count.
fn parse_files(arguments: &str) -> Vec<String> {
    let quoted = arguments.split('"').skip(1).step_by(2).map(str::to_owned);
    let numbered = arguments.match_indices('<').filter_map(|(at, _)| {
        let is_number = arguments[..at].ends_with(|letter: char| letter.is_ascii_digit());
        arguments[at + 1..].split_once('>').filter(|_| is_number).map(|(file, _)| file.to_owned())
    });
    quoted.chain(numbered).filter(|file| !file.is_empty()).collect()
}

/// Whether the fault was injected.
pub(crate) fn was_fault_injected(log: &Path, fault: InjectedFault) -> Result<bool, TaskError> {
    let text = read_log(log)?;
    Ok(match fault {
        InjectedFault::Kill => text.contains("+++ killed by SIGKILL +++"),
        InjectedFault::Broken | InjectedFault::Full => text.contains("(INJECTED)"),
    })
}

/// Whether the failed call was one on the WAL of the store, and other calls on the WAL followed.
pub(crate) fn continued_after_failure(log: &Path) -> Result<bool, TaskError> {
    read_log(log).map(|text| log_used_after_failure(&text))
}

fn log_used_after_failure(text: &str) -> bool {
    let mut own = text.lines().filter(|line| line.contains(STORE_LOG_SUFFIX));
    let has_failed = own.by_ref().any(|line| line.ends_with("(INJECTED)"));
    has_failed && own.any(|line| !line.ends_with("(INJECTED)") && parse_call(line).is_some())
}

fn read_log(log: &Path) -> Result<String, TaskError> {
    let bytes = fs::read(log).map_err(|error| TaskError::new(format!("cannot read `{}`: {error}", log.display())))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_after_the_failed_one_are_found() {
        let own = |rest: &str| format!("7 fsync(4</s/converger.db-wal>){rest}\n");
        let failed = own(" = 0") + &own(" = -1 EIO (Input/output error) (INJECTED)");
        assert!(log_used_after_failure(&format!("{failed}{}", own(" = 0"))));
        assert!(log_used_after_failure(&format!("{failed}8 fsync(5</s/result.json>) = 0\n{}", own(" <unfinished ...>"))));
        assert!(!log_used_after_failure(&format!("{failed}8 fsync(5</s/result.json>) = 0\n")), "another file");
        assert!(!log_used_after_failure(&format!("{failed}7 --- SIGABRT {{si_signo=SIGABRT}} ---\n7 +++ killed by SIGABRT +++\n")));
        assert!(!log_used_after_failure(&own(" = 0")));
        let other = "7 fsync(4</s/converger.db>) = -1 EIO (Input/output error) (INJECTED)\n";
        assert!(!log_used_after_failure(&format!("{other}{}", own(" = 0"))), "another file failed");
    }

    #[test]
    fn log_lines_are_parsed_as_calls() {
        let read = |line| parse_call(line).map(|call| (call.thread, call.thread_name, call.name, call.files, call.writes));
        let is = |thread, of: &str, name: &str, file: &str, writes| Some((thread, of.into(), name.into(), vec![file.into()], writes));
        assert_eq!(read("7<writer> pwrite64(4</a/b>, \"\"..., 32, 0) = 32"), is(7, "writer", "pwrite64", "/a/b", true));
        assert_eq!(read("7     fsync(4</a/b> <unfinished ...>"), is(7, "", "fsync", "/a/b", true));
        assert_eq!(read("7<x y> openat(AT_FDCWD</a>, \"/a/c\", O_RDONLY) = 3</a/c>").map(|read| read.4), Some(false));
        let created = "7<x> openat(AT_FDCWD</a>, \"/a/c\", O_RDWR|O_CREAT|O_CLOEXEC, 0600 <unfinished ...>";
        assert_eq!(read(created), is(7, "x", "openat", "/a/c", true));
        for line in ["7 <... fsync resumed>) = 0", "7 +++ exited with 0 +++", "7 --- SIGABRT {si_signo=SIGABRT} ---", ""] {
            assert_eq!(read(line), None, "{line}");
        }
    }
}
