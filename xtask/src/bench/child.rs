//! The output and the cost of a child process: CPU time and peak memory, as the kernel accounts for
//! them at its end.

use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use wait4::Wait4 as _;

use crate::shell::{self, TaskError};

/// The cost of a process.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct ProcessCost {
    /// User and system time.
    pub(super) cpu_ms: f64,
    /// Peak memory.
    pub(super) peak_bytes: f64,
}

impl ProcessCost {
    /// Nothing measured yet.
    pub(super) const NONE: Self = Self { cpu_ms: f64::INFINITY, peak_bytes: 0.0 };

    /// Of two runs, the lower time, because other load can only add to it, and the higher peak.
    pub(super) fn best_of(self, other: Self) -> Self {
        Self { cpu_ms: self.cpu_ms.min(other.cpu_ms), peak_bytes: self.peak_bytes.max(other.peak_bytes) }
    }

    pub(super) fn to_json(self) -> Value {
        json!({ "cpu_ms": self.cpu_ms, "peak_bytes": self.peak_bytes })
    }
}

/// Runs a bench that prints one JSON object or nothing.
pub(super) fn run_for_json(program: &Path, arguments: &[&str]) -> Result<Value, TaskError> {
    let text = shell::capture_stdout(&mut shell::new_command(program, arguments))?;
    if text.trim().is_empty() {
        return Ok(Value::Null);
    }
    serde_json::from_str(&text).map_err(|error| TaskError::new(format!("`{}` did not print JSON: {error}", program.display())))
}

/// Runs a program in a directory, discards its output and measures its cost. It must end with one of these exit codes, so that the cost of
/// a failure is never mistaken for that of the work.
pub(super) fn measure_program(program: &Path, arguments: &[&str], directory: &str, codes: &[i32]) -> Result<ProcessCost, TaskError> {
    let mut command = shell::new_command(program, arguments);
    command.current_dir(directory);
    measure_command(command, codes)
}

/// Like [`measure_program`] for any command; includes the cost of the child processes that it waited for.
pub(super) fn measure_command(mut command: Command, codes: &[i32]) -> Result<ProcessCost, TaskError> {
    let line = shell::command_line(&command);
    let failed = |sentence: String| TaskError::new(format!("`{line}` {sentence}"));
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let child = command.spawn().map_err(|error| failed(format!("cannot be started: {error}")))?;
    let used = child.wait4().map_err(|error| failed(format!("cannot be waited for: {error}")))?;
    if !used.status.code().is_some_and(|code| codes.contains(&code)) {
        return Err(failed(format!("ended with {}, expected {codes:?}", used.status)));
    }
    let cpu = used.rusage.utime + used.rusage.stime;
    Ok(ProcessCost { cpu_ms: cpu.as_secs_f64() * 1000.0, peak_bytes: used.rusage.maxrss as f64 })
}

/// The instructions of a whole run, counted by callgrind.
pub(super) fn count_instructions(program: &Path, arguments: &[&str], directory: &str) -> Result<u64, TaskError> {
    run_callgrind(&[], program, arguments, directory)
}

/// The instructions of a function and its callees, over all its calls.
pub(super) fn count_instructions_in(program: &Path, arguments: &[&str], directory: &str, function: &str) -> Result<u64, TaskError> {
    run_callgrind(&[&format!("--toggle-collect=*{function}*")], program, arguments, directory)
}

fn run_callgrind(options: &[&str], program: &Path, arguments: &[&str], directory: &str) -> Result<u64, TaskError> {
    let program = program.display().to_string();
    let line = [&["--tool=callgrind", "--callgrind-out-file=/dev/null"], options, &[&program], arguments].concat();
    let mut command = shell::new_command("valgrind", &line);
    let output = command
        .current_dir(directory)
        .output()
        .map_err(|error| TaskError::new(format!("cannot run `valgrind`, which counts the instructions; install it: {error}")))?;
    let text = String::from_utf8_lossy(&output.stderr);
    parse_collected(&text).ok_or_else(|| TaskError::new(format!("valgrind counted nothing in `{program}`: {text}")))
}

/// The number in valgrind's line `==12== Collected : 345`.
fn parse_collected(text: &str) -> Option<u64> {
    text.lines().find_map(|line| line.split_once("Collected : ")).and_then(|(_, count)| count.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cost_of_a_process_is_measured_and_its_exit_code_checked() {
        let sh = Path::new("sh");
        let cost_of = |script: &str, codes: &[i32]| measure_program(sh, &["-c", script], ".", codes);
        let used = cost_of("exit 3", &[3]).unwrap();
        assert!(used.cpu_ms > 0.0 && used.peak_bytes > 100_000.0, "{used:?}");
        let failure = cost_of("exit 3", &[0, 4]).unwrap_err();
        assert_eq!(failure.to_string(), "`sh -c exit 3` ended with exit status: 3, expected [0, 4]");
    }

    #[test]
    fn the_best_of_two_runs_has_the_lower_time_and_the_higher_peak() {
        let left = ProcessCost { cpu_ms: 1.0, peak_bytes: 4.0 };
        let right = ProcessCost { cpu_ms: 2.0, peak_bytes: 5.0 };
        assert_eq!(left.best_of(right), ProcessCost { cpu_ms: 1.0, peak_bytes: 5.0 });
        assert_eq!(ProcessCost::NONE.best_of(left), left);
    }

    #[test]
    fn the_instruction_count_of_valgrind_is_parsed() {
        assert_eq!(parse_collected("==7== Events    : Ir\n==7== Collected : 12345\n"), Some(12345));
        assert_eq!(parse_collected("==7== nothing"), None);
    }
}
