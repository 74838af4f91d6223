//! Runs commands: prints the command line, runs it, and reports the result in one sentence.
//!
//! Must not know which commands exist or in which order they run; `ci` and `tools` do.

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Output, Stdio};
use std::time::Instant;

/// What went wrong, where, and what to do about it, as a sentence for a person.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TaskError(String);

/// The result of a task: success, or a sentence.
pub(crate) type TaskResult = Result<(), TaskError>;

impl TaskError {
    pub(crate) fn new(sentence: impl Into<String>) -> Self {
        Self(sentence.into())
    }
}

impl fmt::Display for TaskError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// The cargo that started this program, so that all commands use the same toolchain.
pub(crate) fn cargo_command(arguments: &[&str]) -> Command {
    new_command(std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo")), arguments)
}

/// A program that cargo has built in the profile `ci`.
pub(crate) fn built_command(program: &str, arguments: &[&str]) -> Command {
    new_command(built_program("ci", program), arguments)
}

/// The path of a program in a profile; the environment may have moved the target directory.
pub(crate) fn built_program(profile: &str, program: &str) -> PathBuf {
    let directory = std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| OsString::from("target"));
    Path::new(&directory).join(profile).join(program)
}

/// A command without standard input: nothing here may wait for input.
pub(crate) fn new_command(program: impl Into<OsString>, arguments: &[&str]) -> Command {
    let mut command = Command::new(program.into());
    command.args(arguments).stdin(Stdio::null());
    command
}

/// Runs it visibly: prints the command line before it, and the time it took after it.
pub(crate) fn run_visibly(command: &mut Command) -> TaskResult {
    let line = command_line(command);
    eprintln!("$ {line}");
    let started = Instant::now();
    let status = command.status().map_err(|error| start_error(&line, &error))?;
    eprintln!("  {:.1} s", started.elapsed().as_secs_f32());
    check_status(&line, status)
}

/// Like `run_visibly`, but shows its output only if it fails.
pub(crate) fn run_quietly(command: &mut Command) -> TaskResult {
    let line = command_line(command);
    eprintln!("$ {line}");
    let started = Instant::now();
    let output = command.output().map_err(|error| start_error(&line, &error))?;
    eprintln!("  {:.1} s", started.elapsed().as_secs_f32());
    if !output.status.success() {
        eprint!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    }
    check_status(&line, output.status)
}

/// Runs it quietly and returns its output; shows standard error only if it fails.
pub(crate) fn capture_stdout(command: &mut Command) -> Result<String, TaskError> {
    let line = command_line(command);
    let output = command.output().map_err(|error| start_error(&line, &error))?;
    if !output.status.success() {
        eprint!("{}", String::from_utf8_lossy(&output.stderr));
    }
    check_status(&line, output.status)?;
    stdout_text(&line, output)
}

/// Whether it can be started and succeeds; its output is discarded.
pub(crate) fn succeeds(command: &mut Command) -> bool {
    let quiet = command.stdout(Stdio::null()).stderr(Stdio::null());
    quiet.status().is_ok_and(|status| status.success())
}

fn stdout_text(line: &str, output: Output) -> Result<String, TaskError> {
    String::from_utf8(output.stdout).map_err(|_| TaskError::new(format!("the output of `{line}` is not UTF-8")))
}

fn check_status(line: &str, status: ExitStatus) -> TaskResult {
    if status.success() {
        return Ok(());
    }
    Err(TaskError::new(format!("`{line}` failed ({status}); see its output above")))
}

fn start_error(line: &str, error: &std::io::Error) -> TaskError {
    TaskError::new(format!("`{line}` cannot be started: {error}"))
}

/// The command as a person would type it; the toolchain's own path to cargo is noise.
pub(crate) fn command_line(command: &Command) -> String {
    let program = command.get_program().to_string_lossy();
    let program = program.strip_suffix("/bin/cargo").map_or(program.as_ref(), |_| "cargo");
    let arguments = command.get_args().map(|argument| argument.to_string_lossy());
    arguments.fold(program.to_owned(), |line, argument| line + " " + &argument)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failing_command_is_named_with_its_status() {
        let failure = run_visibly(&mut new_command("sh", &["-c", "exit 7"])).unwrap_err();
        assert_eq!(failure.to_string(), "`sh -c exit 7` failed (exit status: 7); see its output above");
        assert_eq!(run_quietly(&mut new_command("sh", &["-c", "exit 7"])).unwrap_err(), failure);
        assert_eq!(run_quietly(&mut new_command("sh", &["-c", "echo unheard"])), Ok(()));
    }

    #[test]
    fn a_missing_program_is_named() {
        let failure = capture_stdout(&mut new_command("converger-no-such-program", &[])).unwrap_err();
        assert!(failure.to_string().starts_with("`converger-no-such-program` cannot be started: "), "{failure}");
        assert!(!succeeds(&mut new_command("converger-no-such-program", &[])));
    }

    #[test]
    fn output_is_captured_and_stdin_is_empty() {
        assert_eq!(capture_stdout(&mut new_command("sh", &["-c", "cat; echo said"])), Ok("said\n".to_owned()));
        assert!(succeeds(&mut new_command("sh", &["-c", "exit 0"])));
    }
}
