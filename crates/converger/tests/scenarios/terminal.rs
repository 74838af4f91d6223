//! A terminal for one run of the program: types answers and reads the output.
//!
//! It is line-based (`TERM=dumb`) without echo; the transcript inserts each typed line after its question.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::process::Command;

use rustix::fs::{Mode, OFlags};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcsetattr};

/// Our side of a terminal.
pub(crate) struct ScenarioTerminal {
    ours: File,
    typed: Vec<String>,
}

/// Ends the input.
const END_OF_INPUT: u8 = 4;

/// Opens both sides.
pub(crate) fn open(typed: &[String]) -> (ScenarioTerminal, OwnedFd) {
    let controller = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a terminal");
    grantpt(&controller).expect("granted");
    unlockpt(&controller).expect("unlocked");
    let name = ptsname(&controller, Vec::new()).expect("a name");
    let user_side = rustix::fs::open(name, OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).expect("its other side");
    let mut modes = tcgetattr(&user_side).expect("a terminal");
    modes.local_modes.remove(LocalModes::ECHO);
    tcsetattr(&user_side, OptionalActions::Now, &modes).expect("set");
    (ScenarioTerminal { ours: controller.into(), typed: typed.to_vec() }, user_side)
}

impl ScenarioTerminal {
    /// Attaches the program, so that it asks its questions at this terminal.
    pub(crate) fn attach(command: &mut Command, user_side: OwnedFd) {
        let input = user_side.try_clone().expect("a second one");
        command.env("TERM", "dumb").stdin(input).stderr(user_side);
    }

    /// Attaches another terminal to the program's standard output, without input.
    pub(crate) fn attach_stdout(command: &mut Command) -> Self {
        let (scenario_terminal, user_side) = open(&[]);
        command.stdout(user_side);
        scenario_terminal
    }

    /// Types ahead of any question, which does not count as an answer.
    pub(crate) fn type_ahead(&mut self, line: &str) {
        self.ours.write_all(format!("{line}\n").as_bytes()).expect("typed");
    }

    /// Types the next line for each unanswered question, or ends the input if there are no more lines.
    fn answer_questions(&mut self, output: &[u8], answers: &mut usize) {
        let text = String::from_utf8_lossy(output);
        while *answers < QUESTIONS.iter().map(|question| text.matches(question).count()).sum() {
            let line = self.typed.get(*answers).map_or(vec![END_OF_INPUT], |line| format!("{line}\n").into_bytes());
            // The program may already have exited.
            let _ = self.ours.write_all(&line);
            *answers += 1;
        }
    }

    /// The output until the program ended, with the typed lines after their questions.
    pub(crate) fn read_to_end(mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut chunk = [0; 4096];
        let mut answers = 0;
        // Linux reports a closed other side as an error.
        while let Ok(count @ 1..) = self.ours.read(&mut chunk) {
            bytes.extend_from_slice(&chunk[..count]);
            self.answer_questions(&bytes, &mut answers);
        }
        let text = String::from_utf8_lossy(&bytes).replace("\r\n", "\n");
        insert_answers(&text, &self.typed).into_bytes()
    }
}

/// The ends of all questions.
const QUESTIONS: [&str; 2] = ["[yes/no] ", "Type its name: "];

fn insert_answers(text: &str, typed: &[String]) -> String {
    let (mut result, mut rest, mut typed) = (String::new(), text, typed.iter());
    while let Some(at) = QUESTIONS.iter().filter_map(|question| Some(rest.find(question)? + question.len())).min() {
        result.push_str(&rest[..at]);
        result.push_str(typed.next().map_or("", String::as_str));
        result.push('\n');
        rest = &rest[at..];
    }
    result + rest
}

#[test]
fn typed_text_follows_its_question() {
    let typed = ["yes".to_owned(), "web".to_owned()];
    let text = "Apply this plan? [yes/no] This stops web. Type its name: sent\n";
    assert_eq!(insert_answers(text, &typed), "Apply this plan? [yes/no] yes\nThis stops web. Type its name: web\nsent\n");
    assert_eq!(insert_answers("Apply this plan? [yes/no] ", &[]), "Apply this plan? [yes/no] \n");
}
