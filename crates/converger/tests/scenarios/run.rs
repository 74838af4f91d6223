//! One run of the program: its output, its exit code, and the invariants of both.

use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::Mutex;

use converger_core::artifact::PLAN_SCHEMA;
use serde_json::Value;

use crate::plan;
use crate::terminal::{self, ScenarioTerminal};

/// The variables of the program.
pub(crate) type ProgramVariables = [(&'static str, &'static str); 4];

/// Two environments that differ in everything that must not matter.
pub(crate) const PROGRAM_VARIABLES: [ProgramVariables; 2] = [
    [("TZ", "UTC"), ("LANG", "C"), ("LC_ALL", "C"), ("COLUMNS", "200")],
    [("TZ", "Pacific/Kiritimati"), ("LANG", "tr_TR.UTF-8"), ("LC_ALL", "de_DE.UTF-8"), ("COLUMNS", "20")],
];

/// The signal that cannot be handled.
const SIGKILL: i32 = 9;

/// The output and the end of the program.
#[derive(PartialEq, Eq)]
pub(crate) struct ProgramRun {
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    /// The exit code; if negative, the signal that killed it.
    pub(crate) exit: i32,
}

impl ProgramRun {
    /// The transcript for expected.txt.
    pub(crate) fn transcript(&self) -> String {
        let end = if self.exit < 0 { format!("ended by signal {}", -self.exit) } else { format!("exit {}", self.exit) };
        format!("{}--- stderr\n{}--- {end}\n", self.stdout, self.stable_stderr())
    }

    /// A separate thread prints the progress of steps, so it is a race whether the last line appears before a kill. Lines before other
    /// output always appear.
    fn stable_stderr(&self) -> &str {
        let mut stderr = self.stderr.as_str();
        while self.exit == -SIGKILL && stderr.ends_with(": sent\n") {
            stderr = stderr.trim_end_matches('\n').rfind('\n').map_or("", |end| &stderr[..=end]);
        }
        stderr
    }
}

/// The program in a directory, without the variables of this process.
pub(crate) fn program(directory: &Path, surroundings: &ProgramVariables) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_converger"));
    command.current_dir(directory).env_clear().envs(surroundings.iter().copied()).stdin(Stdio::null());
    command
}

/// Like [`program`], with a limit on file sizes; writes beyond it fail.
pub(crate) fn file_limited_program(directory: &Path, surroundings: &ProgramVariables, kibibytes: u32) -> Command {
    let mut command = Command::new("/bin/sh");
    let script = format!("trap '' XFSZ; ulimit -f {}; exec \"$0\" \"$@\"", kibibytes * 2);
    command.args(["-c", &script, env!("CARGO_BIN_EXE_converger")]);
    command.current_dir(directory).env_clear().envs(surroundings.iter().copied()).stdin(Stdio::null());
    command
}

/// The running process, for signals.
pub(crate) type RunningProcess = Mutex<Option<u32>>;

/// Runs the program once and checks the invariants of all output.
pub(crate) fn run_program(command: Command, arguments: &[String], faults: &mut Vec<String>) -> ProgramRun {
    run_program_at(command, arguments, None, &RunningProcess::default(), faults)
}

/// Like [`run_program`], optionally at a terminal, and with the process id in `running`.
pub(crate) fn run_program_at(
    mut command: Command,
    arguments: &[String],
    typed: Option<&[String]>,
    running: &RunningProcess,
    faults: &mut Vec<String>,
) -> ProgramRun {
    command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
    let terminal = typed.map(|typed| {
        // `>` redirects standard output; `<yes` types ahead of the question.
        let (signs, typed): (Vec<String>, Vec<String>) = typed.iter().cloned().partition(|line| line.starts_with(['<', '>']));
        let (mut scenario_terminal, user_side) = terminal::open(&typed);
        signs.iter().filter_map(|sign| sign.strip_prefix('<')).for_each(|line| scenario_terminal.type_ahead(line));
        ScenarioTerminal::attach(&mut command, user_side);
        (scenario_terminal, (!signs.contains(&">".to_owned())).then(|| ScenarioTerminal::attach_stdout(&mut command)))
    });
    let output = collect_output(command, terminal, running);
    let mut text = |bytes: Vec<u8>, stream: &str| {
        let text = String::from_utf8(bytes).unwrap_or_else(|_| panic!("{stream} of {arguments:?} is not UTF-8"));
        if text.contains('\u{1b}') {
            faults.push(format!("{stream} has an escape sequence, and it is not a terminal that draws"));
        }
        if !text.is_empty() && !text.ends_with('\n') {
            faults.push(format!("{stream} does not end with a line break"));
        }
        text
    };
    ProgramRun {
        stdout: text(output.stdout, "standard output"),
        stderr: text(output.stderr, "standard error"),
        exit: output.status.code().unwrap_or_else(|| -output.status.signal().unwrap_or_default()),
    }
}

fn collect_output(
    mut command: Command,
    terminal: Option<(ScenarioTerminal, Option<ScenarioTerminal>)>,
    running: &RunningProcess,
) -> Output {
    // Held until the process id is known, so that a signal waits for it.
    let mut known = running.lock().expect("nobody panicked");
    let child = command.spawn().expect("the program can be run");
    // Closes our copy of the other side of the terminal.
    drop(command);
    *known = Some(child.id());
    drop(known);
    let read = |terminal: ScenarioTerminal| std::thread::spawn(|| terminal.read_to_end());
    let readers = terminal.map(|(seat, screen)| (read(seat), screen.map(read)));
    let output = child.wait_with_output().expect("it ends");
    *running.lock().expect("nobody panicked") = None;
    match readers {
        None => output,
        Some((stderr_reader, None)) => Output { stderr: stderr_reader.join().expect("read"), ..output },
        Some((stderr_reader, Some(stdout_reader))) => {
            Output { stderr: stderr_reader.join().expect("read"), stdout: stdout_reader.join().expect("read"), ..output }
        }
    }
}

/// Formats an artifact for review. It must be one line of canonical JSON, and a plan must not contradict itself or the exit code.
pub(crate) fn pretty_json(text: &str, verb: &str, exit: i32, faults: &mut Vec<String>) -> Option<String> {
    let value: Value = match serde_json::from_str(text) {
        Ok(value) => sort_members(value),
        Err(error) => {
            faults.push(format!("what should be JSON is not: {error}"));
            return None;
        }
    };
    if format!("{value}\n") != text {
        faults.push("the JSON is not one line in canonical form".into());
    }
    if value["schema"] == PLAN_SCHEMA {
        faults.extend(plan::find_contradictions(&value));
        // A recording is never applied, whatever the plan contains.
        let ends = if verb == "apply" { 3 } else { plan::exit_code(&value) };
        if exit != ends && verb != "show" {
            faults.push(format!("it ends with {exit}, and its plan says {ends}"));
        }
    }
    // A direction override must not mislead a reviewer of the file.
    Some(format!("{value:#}\n").replace('\u{202e}', "\\u202e"))
}

/// Sorts members by name, independently of the features of serde_json.
fn sort_members(value: Value) -> Value {
    match value {
        Value::Object(members) => {
            let members: BTreeMap<String, Value> = members.into_iter().map(|(name, member)| (name, sort_members(member))).collect();
            Value::Object(members.into_iter().collect())
        }
        Value::Array(items) => Value::Array(items.into_iter().map(sort_members).collect()),
        value => value,
    }
}
