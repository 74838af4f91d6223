//! Runs one process from start to end: its output, when it is ready, and a person's answers to
//! prompts on a terminal.
//!
//! Must not know which program it is or what its output means for the journal.

use std::fs;
use std::io::{Read as _, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use crate::shell::{self, TaskError};

/// The result of a process.
#[derive(Debug)]
pub(crate) struct ProcessRun {
    /// The exit code; `None` if a signal ended it.
    pub(crate) code: Option<i32>,
    /// All output, without terminal escapes.
    pub(crate) output: String,
    /// How long it took to print the expected text, without the time in which it waited for a processor.
    pub(crate) ready: Option<Duration>,
    /// It took too long and was killed.
    pub(crate) is_killed: bool,
}

/// Runs a program with both outputs combined, answers its prompts, and kills it with all its children after the timeout. With `error_file`,
/// standard error goes to that file, so that calls on it can be distinguished.
///
/// Measures the time until one of `ready_texts` is printed. The time in which the process `friend`, which serves it, waits for a processor does not
/// count.
pub(crate) fn run_process(
    mut command: Command,
    error_file: Option<&Path>,
    ready_texts: &[&str],
    friend: u32,
    patience: Duration,
) -> Result<ProcessRun, TaskError> {
    let line = shell::command_line(&command);
    let failed = |error: std::io::Error| TaskError::new(format!("`{line}`: {error}"));
    let (mut reader, writer) = std::io::pipe().map_err(failed)?;
    command.stdin(Stdio::piped()).stdout(writer.try_clone().map_err(failed)?);
    match error_file {
        None => command.stderr(writer),
        Some(file) => {
            drop(writer);
            command.stderr(fs::File::create(file).map_err(failed)?)
        }
    };
    let (started, friend_waited) = (Instant::now(), run_queue_time(friend));
    let mut child = command.spawn().map_err(failed)?;
    // The command holds the other end of the pipe.
    drop(command);
    let (sender, chunks) = mpsc::channel();
    let listener = thread::spawn(move || {
        let mut chunk = [0; 4096];
        while let Ok(length @ 1..) = reader.read(&mut chunk) {
            if sender.send(chunk[..length].to_vec()).is_err() {
                break;
            }
        }
    });
    let mut talk = TerminalDialog { input: child.stdin.take(), output: Vec::new(), answered: 0 };
    let mut ready = None;
    let elapsed = |child: &Child| {
        let family = descendants(child.id()).into_iter().map(run_queue_time).sum::<Duration>();
        started.elapsed().saturating_sub(family).saturating_sub(run_queue_time(friend).saturating_sub(friend_waited))
    };
    let is_killed = loop {
        match chunks.recv_timeout(patience.saturating_sub(started.elapsed())) {
            Ok(chunk) => {
                talk.take_output(&chunk);
                if ready.is_none() && is_ready(&talk.output, error_file, ready_texts) {
                    ready = Some(elapsed(&child));
                }
            }
            Err(RecvTimeoutError::Disconnected) => break false,
            Err(RecvTimeoutError::Timeout) => {
                kill_with_descendants(&child);
                break true;
            }
        }
    };
    drop(talk.input.take());
    let code = child.wait().map_err(failed)?.code();
    let _ = listener.join();
    chunks.try_iter().for_each(|chunk| talk.take_output(&chunk));
    talk.output.extend(error_file.map(fs::read).transpose().map_err(failed)?.unwrap_or_default());
    Ok(ProcessRun { code, output: strip_escapes(&talk.output), ready, is_killed })
}

struct TerminalDialog {
    input: Option<ChildStdin>,
    output: Vec<u8>,
    /// How much of the output is already answered.
    answered: usize,
}

impl TerminalDialog {
    fn take_output(&mut self, chunk: &[u8]) {
        self.output.extend_from_slice(chunk);
        let open = strip_escapes(&self.output[self.answered..]);
        if let (Some(answer), Some(input)) = (answer_prompt(&open), &mut self.input) {
            // The process may already be dead.
            let _ = input.write_all(format!("{answer}\n").as_bytes()).and_then(|()| input.flush());
            self.answered = self.output.len();
        }
    }
}

/// A person's answer, if the end of the output is a prompt.
fn answer_prompt(output: &str) -> Option<&str> {
    let question = output.rsplit(['\n', '\r']).next()?;
    if question.ends_with("[yes/no] ") {
        return Some("yes");
    }
    let named = question.strip_suffix(". Type its name: ")?;
    let made = || named.strip_prefix("This makes ")?.strip_suffix(", which must never have existed");
    named.strip_prefix("This stops ").or_else(made)
}

/// The text without escapes that move the cursor or set a colour.
pub(crate) fn strip_escapes(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let mut plain = String::with_capacity(text.len());
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        if letter != '\u{1b}' {
            plain.push(letter);
            continue;
        }
        if letters.next() == Some('[') {
            let _ = letters.find(|letter| letter.is_ascii_alphabetic());
        }
    }
    plain
}

/// How long a process waited for a processor according to Linux, which is what other load cost it.
fn run_queue_time(process: u32) -> Duration {
    let text = fs::read_to_string(format!("/proc/{process}/schedstat")).unwrap_or_default();
    Duration::from_nanos(text.split(' ').nth(1).and_then(|waited| waited.parse().ok()).unwrap_or(0))
}

/// A process and all its descendants.
fn descendants(process: u32) -> Vec<u32> {
    let mut all = vec![process];
    let mut at = 0;
    while let Some(parent) = all.get(at) {
        let children = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).unwrap_or_default();
        all.extend(children.split_whitespace().filter_map(|child| child.parse::<u32>().ok()));
        at += 1;
    }
    all
}

/// Kills a process with all its descendants, because strace and script leave their children running when they are killed.
fn kill_with_descendants(child: &Child) {
    // Parents first, so that none can react to the death of a child.
    let doomed: Vec<String> = descendants(child.id()).iter().map(u32::to_string).collect();
    let arguments: Vec<&str> = std::iter::once("-KILL").chain(doomed.iter().map(String::as_str)).collect();
    let _ = shell::succeeds(&mut shell::new_command("kill", &arguments));
}

/// Whether one of the texts was printed, wrapped in any way. They end with a blank, so that a line that is still being printed does not count.
fn is_ready(output: &[u8], error_file: Option<&Path>, ready_texts: &[&str]) -> bool {
    // Both outputs: what standard error has was printed before the output that has just arrived.
    let printed = [output, &error_file.and_then(|file| fs::read(file).ok()).unwrap_or_default()].map(strip_escapes);
    let unwrapped = printed.map(|text| format!("{} ", text.split_whitespace().collect::<Vec<_>>().join(" ")));
    ready_texts.iter().any(|part| unwrapped.iter().any(|text| text.contains(part)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_are_answered() {
        assert_eq!(answer_prompt("a plan\r\nApply this plan? [yes/no] "), Some("yes"));
        assert_eq!(answer_prompt("yes\r\nThis stops old-1. Type its name: "), Some("old-1"));
        assert_eq!(answer_prompt("yes\r\nThis makes web-1, which must never have existed. Type its name: "), Some("web-1"));
        assert_eq!(answer_prompt("This stops old-1. Type its name: \n"), None);
        assert_eq!(answer_prompt("101 qemu web-1 start: done"), None);
    }

    #[test]
    fn terminal_escapes_are_stripped() {
        assert_eq!(strip_escapes(b"\x1b[36mx\x1b[0m y\x1b[2K\x1b[1Az"), "x yz");
    }

    #[test]
    fn prompts_are_answered_and_overdue_processes_killed() {
        let script = "printf 'This stops web. Type its name: '; read name; echo \"it\nis $name\"; exit 7";
        let played = run_process(shell::new_command("sh", &["-c", script]), None, &["it is "], 0, Duration::from_secs(60)).unwrap();
        assert_eq!((played.code, played.is_killed), (Some(7), false));
        assert!(played.output.ends_with("it\nis web\n") && played.ready.is_some(), "{played:?}");
        let error_file = std::env::temp_dir().join(format!("player-{}", std::process::id()));
        let both = shell::new_command("sh", &["-c", "echo one; echo two >&2"]);
        let played = run_process(both, Some(&error_file), &["one "], 0, Duration::from_secs(60)).unwrap();
        assert_eq!((played.output.as_str(), fs::read_to_string(&error_file).unwrap().as_str()), ("one\ntwo\n", "two\n"));
        fs::remove_file(error_file).unwrap();
        let played = run_process(shell::new_command("sh", &["-c", "cat"]), None, &["never"], 0, Duration::ZERO).unwrap();
        assert_eq!((played.code, played.is_killed, played.ready), (None, true, None));
    }
}
