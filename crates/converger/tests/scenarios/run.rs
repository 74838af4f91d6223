//! One run of the program: what it said, how it ended, and what must hold of both whatever the story.

use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::Mutex;

use converger_core::artifact::PLAN_SCHEMA;
use serde_json::Value;

use crate::plan;
use crate::terminal::{self, ScenarioTerminal};

/// What the program finds around itself.
pub(crate) type ProgramVariables = [(&'static str, &'static str); 4];

/// Two machines that differ in whatever must not matter.
pub(crate) const PROGRAM_VARIABLES: [ProgramVariables; 2] = [
    [("TZ", "UTC"), ("LANG", "C"), ("LC_ALL", "C"), ("COLUMNS", "200")],
    [("TZ", "Pacific/Kiritimati"), ("LANG", "tr_TR.UTF-8"), ("LC_ALL", "de_DE.UTF-8"), ("COLUMNS", "20")],
];

/// The signal that nobody can do anything about.
const SIGKILL: i32 = 9;

/// What the program said and how it ended.
#[derive(PartialEq, Eq)]
pub(crate) struct ProgramRun {
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    /// Below zero: the signal that ended it.
    pub(crate) exit: i32,
}

impl ProgramRun {
    /// All of it, as expected.txt has it.
    pub(crate) fn transcript(&self) -> String {
        let end = if self.exit < 0 { format!("ended by signal {}", -self.exit) } else { format!("exit {}", self.exit) };
        format!("{}--- stderr\n{}--- {end}\n", self.stdout, self.stable_stderr())
    }

    /// How far each step is, is shown by a thread of its own: whether the last of it came before the program was killed, a moment
    /// decides. What stands before anything else is shown in any case.
    fn stable_stderr(&self) -> &str {
        let mut said = self.stderr.as_str();
        while self.exit == -SIGKILL && said.ends_with(": sent\n") {
            said = said.trim_end_matches('\n').rfind('\n').map_or("", |end| &said[..=end]);
        }
        said
    }
}

/// The program in a directory, with nothing of this process around it.
pub(crate) fn program(room: &Path, surroundings: &ProgramVariables) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_converger"));
    command.current_dir(room).env_clear().envs(surroundings.iter().copied()).stdin(Stdio::null());
    command
}

/// The same with files that cannot grow beyond so many kibibytes: what is written beyond that is not.
pub(crate) fn file_limited_program(room: &Path, surroundings: &ProgramVariables, kibibytes: u32) -> Command {
    let mut command = Command::new("/bin/sh");
    let script = format!("trap '' XFSZ; ulimit -f {}; exec \"$0\" \"$@\"", kibibytes * 2);
    command.args(["-c", &script, env!("CARGO_BIN_EXE_converger")]);
    command.current_dir(room).env_clear().envs(surroundings.iter().copied()).stdin(Stdio::null());
    command
}

/// The process that runs at the moment, for whoever wants to end it.
pub(crate) type RunningProcess = Mutex<Option<u32>>;

/// Runs it once, and holds its output to what all output is held to.
pub(crate) fn run_program(command: Command, arguments: &[String], faults: &mut Vec<String>) -> ProgramRun {
    run_program_at(command, arguments, None, &RunningProcess::default(), faults)
}

/// The same, perhaps at a terminal, while somebody knows that it runs.
pub(crate) fn run_program_at(
    mut command: Command,
    arguments: &[String],
    typed: Option<&[String]>,
    running: &RunningProcess,
    faults: &mut Vec<String>,
) -> ProgramRun {
    command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
    let terminal = typed.map(|typed| {
        // `>`: standard output leads elsewhere; `<yes`: typed before anything is asked.
        let (signs, typed): (Vec<String>, Vec<String>) = typed.iter().cloned().partition(|line| line.starts_with(['<', '>']));
        let (mut ours, theirs) = terminal::open(&typed);
        signs.iter().filter_map(|sign| sign.strip_prefix('<')).for_each(|line| ours.type_ahead(line));
        ScenarioTerminal::attach(&mut command, theirs);
        (ours, (!signs.contains(&">".to_owned())).then(|| ScenarioTerminal::attach_stdout(&mut command)))
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
    // Held until the process is known: whoever wants to end it waits for that.
    let mut known = running.lock().expect("nobody panicked");
    let child = command.spawn().expect("the program can be run");
    // What is left of the other side of a terminal goes with it.
    drop(command);
    *known = Some(child.id());
    drop(known);
    let read = |terminal: ScenarioTerminal| std::thread::spawn(|| terminal.read_to_end());
    let said = terminal.map(|(seat, screen)| (read(seat), screen.map(read)));
    let output = child.wait_with_output().expect("it ends");
    *running.lock().expect("nobody panicked") = None;
    match said {
        None => output,
        Some((said, None)) => Output { stderr: said.join().expect("read"), ..output },
        Some((said, Some(shown))) => Output { stderr: said.join().expect("read"), stdout: shown.join().expect("read"), ..output },
    }
}

/// An artifact in a form that can be reviewed. It must be one line of canonical JSON, and a plan must not contradict itself or
/// the end of the command that shows it.
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
        // A recording is never applied, whatever the plan says.
        let ends = if verb == "apply" { 3 } else { plan::exit_code(&value) };
        if exit != ends && verb != "show" {
            faults.push(format!("it ends with {exit}, and its plan says {ends}"));
        }
    }
    // A character that turns the direction of text round must not fool whoever reviews the file.
    Some(format!("{value:#}\n").replace('\u{202e}', "\\u202e"))
}

/// Members in the order of their names, however this build of serde_json keeps them.
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
