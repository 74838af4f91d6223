//! At a terminal: the question, the names that are typed, a wrong answer, the lines that move, and a terminal that is closed half-way.
//!
//! The terminal is lent by `script`, which Debian has everywhere.

use std::io::{Read as _, Write as _};
use std::process::{Child, ChildStdout, Stdio};
use std::sync::{Arc, Mutex, mpsc};

use converger_lab::server::Passed;

use crate::stage::{Applying, STARTS, STOP, Stage};

/// A program at a terminal, and a person in front of it.
struct Terminal {
    child: Child,
    screen: ChildStdout,
    seen: String,
}

impl Terminal {
    fn open(stage: &Stage, line: &str) -> Self {
        Self::begin(stage, &format!("exec {} {line}", env!("CARGO_BIN_EXE_converger")))
    }

    /// The same with room for more than one line: what `script` lends has none until somebody says so.
    fn large(stage: &Stage, line: &str) -> Self {
        Self::begin(stage, &format!("stty rows 40 cols 120; exec {} {line}", env!("CARGO_BIN_EXE_converger")))
    }

    fn begin(stage: &Stage, line: &str) -> Self {
        let mut command = stage.homely("script", &["-q", "-e", "-f", "-c", line, "/dev/null"]);
        let mut child = command.env("TERM", "xterm").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("`script` is installed");
        let screen = child.stdout.take().expect("piped");
        Self { child, screen, seen: String::new() }
    }

    /// Waits until this stands on the screen, after what was waited for before.
    #[track_caller]
    fn until(&mut self, part: &str) {
        let mut chunk = [0; 4096];
        while !self.seen.contains(part) {
            let length = self.screen.read(&mut chunk).expect("a screen");
            assert!(length > 0, "it ended without `{part}`:\n{}", self.seen);
            self.seen.push_str(&String::from_utf8_lossy(&chunk[..length]));
        }
        let at = self.seen.find(part).expect("found") + part.len();
        self.seen.drain(..at);
    }

    fn answer(&mut self, text: &str) {
        let input = self.child.stdin.as_mut().expect("piped");
        input.write_all(format!("{text}\n").as_bytes()).and_then(|()| input.flush()).expect("typed");
    }

    /// The terminal makes a signal of it.
    fn press_ctrl_c(&mut self) {
        let input = self.child.stdin.as_mut().expect("piped");
        input.write_all(&[3]).and_then(|()| input.flush()).expect("pressed");
    }

    /// How it ended, and what stood on the screen since.
    fn end(mut self) -> (Option<i32>, String) {
        let mut rest = Vec::new();
        self.screen.read_to_end(&mut rest).expect("a screen");
        let code = self.child.wait().expect("it ends").code();
        (code, format!("{}{}", self.seen, String::from_utf8_lossy(&rest)))
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const QUESTION: &str = " [yes/no] ";
const NAME: &str = " goes down by this. Type its name: ";

#[test]
fn who_types_yes_and_the_name_is_obeyed_and_sees_it_happen() {
    let mut stage = Stage::set(STOP);
    let mut terminal = Terminal::open(&stage, "apply desired.yaml");
    terminal.until("shutdown");
    terminal.until(QUESTION);
    assert_eq!(stage.sent(), Vec::<String>::new(), "nothing before the answer");
    terminal.answer("yes");
    terminal.until(NAME);
    terminal.answer("old-1");
    // A line that turns, and is drawn anew.
    terminal.until("\u{2801}");
    terminal.until("shutdown: under way");
    terminal.until("\u{1b}[2K");
    stage.let_tasks_end();
    let (code, screen) = terminal.end();
    assert_eq!(code, Some(0), "{screen}");
    assert!(screen.contains("1 step: 1 done"), "{screen}");
    assert_eq!(stage.sent(), ["103 shutdown"]);
}

/// Below what is under way stands how many of all have ended.
#[test]
fn whoever_waits_for_several_steps_sees_how_many_have_ended() {
    let mut stage = Stage::set(STARTS);
    let mut terminal = Terminal::large(&stage, "apply desired.yaml");
    terminal.until(QUESTION);
    terminal.answer("yes");
    terminal.until("101 qemu ");
    terminal.until("start: under way");
    terminal.until("0 of 2 ended");
    stage.let_tasks_end();
    terminal.until("1 of 2 ended");
    terminal.until("start: under way");
    stage.let_tasks_end();
    let (code, screen) = terminal.end();
    assert_eq!(code, Some(0), "{screen}");
    assert!(screen.contains("2 steps: 2 done"), "{screen}");
    assert_eq!(stage.sent(), ["101 start", "102 start"]);
}

#[test]
fn whoever_waits_for_a_reading_sees_what_is_waited_for() {
    let (answer, answers) = mpsc::channel::<()>();
    let answers = Mutex::new(answers);
    // No answer goes out before the other end of the channel is gone.
    let held = Arc::new(move |_: &Passed<'_>| assert!(answers.lock().expect("nobody panicked").recv().is_err(), "nobody sends"));
    let stage = Stage::watched(STARTS, Some(held));
    let mut terminal = Terminal::open(&stage, "audit desired.yaml");
    terminal.until("reading lab");
    drop(answer);
    let (code, screen) = terminal.end();
    assert_eq!(code, Some(4), "{screen}");
    let (_, report) = screen.split_once("2 guests in scope").expect("the report");
    assert!(!report.contains("reading lab"), "what is waited for goes away: {report}");
}

#[test]
fn whoever_waits_for_a_large_recording_sees_what_is_waited_for() {
    let stage = Stage::set(STARTS);
    let row = |vmid: u32| {
        format!(
            r#"{{"vmid":{vmid},"kind":"lxc","name":"g-{vmid}","node":"pve1","status":"stopped","lock":null,"ha":null,"template":false,"protection":false,"tags":[],"pending":[]}}"#
        )
    };
    let rows: Vec<String> = (1_000..9_000).map(row).collect();
    let head =
        r#""schema":"converger.observation/1","environment":"lab","complete":true,"quorate":true,"nodes":[{"name":"pve1","online":true}]"#;
    std::fs::write(stage.path("large.json"), format!("{{{head},\"guests\":[{}]}}", rows.join(","))).expect("written");
    let mut terminal = Terminal::open(&stage, "audit desired.yaml --replay large.json");
    terminal.until("reading large.json");
    let (code, screen) = terminal.end();
    assert_eq!(code, Some(3), "the declared guests are not in it: {screen}");
}

#[test]
fn any_other_answer_carries_nothing_out_and_no_rule_is_blamed_for_a_no() {
    for answers in [&["no"][..], &["y"], &["YES"], &[""], &["yes", "old-2"], &["yes", ""], &["yes", "OLD-1"], &["yes", "103"]] {
        let mut stage = Stage::set(STOP);
        let mut terminal = Terminal::open(&stage, "apply desired.yaml");
        for (answer, question) in answers.iter().zip([QUESTION, NAME]) {
            terminal.until(question);
            terminal.answer(answer);
        }
        let (code, screen) = terminal.end();
        assert_eq!(code, Some(3), "{answers:?}: {screen}");
        let why = if answers.len() == 1 { "the answer was not `yes`" } else { "the name of old-1 was asked for, and `" };
        assert!(screen.contains("not carried out") && screen.contains(why), "{answers:?}: {screen}");
        assert!(!screen.contains("refused[") && !screen.contains("approval-missing"), "{answers:?}: {screen}");
        assert_eq!(stage.sent(), Vec::<String>::new(), "{answers:?}");
    }
}

#[test]
fn who_presses_ctrl_c_instead_of_answering_has_said_no() {
    for answers in [&[][..], &["yes"]] {
        let mut stage = Stage::set(STOP);
        let mut terminal = Terminal::open(&stage, "apply desired.yaml");
        for (answer, question) in answers.iter().zip([QUESTION]) {
            terminal.until(question);
            terminal.answer(answer);
        }
        terminal.until(if answers.is_empty() { QUESTION } else { NAME });
        terminal.press_ctrl_c();
        let (code, screen) = terminal.end();
        assert_eq!(code, Some(3), "{screen}");
        assert!(screen.contains("not carried out") && screen.contains("nobody answered; nothing was sent"), "{screen}");
        assert!(screen.lines().all(|line| !line.contains("^C") || !line.contains("not carried out")), "a line of its own: {screen}");
        assert!(!screen.contains("under way") && !screen.contains("begun"), "nothing is: {screen}");
        assert_eq!(stage.sent(), Vec::<String>::new());
    }
}

#[test]
fn without_a_terminal_nobody_is_asked_and_a_digest_is_not_enough_for_a_shutdown() {
    let mut stage = Stage::set(STOP);
    for arguments in [stage.confirmed(), vec!["apply".into(), "desired.yaml".into()]] {
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let (code, said) = Applying::start(stage.converger(&arguments)).end();
        assert_eq!(code, Some(3), "{said}");
        assert!(said.contains("approval-missing") && !said.contains(QUESTION), "{said}");
    }
    assert_eq!(stage.sent(), Vec::<String>::new());
}

#[test]
fn a_terminal_that_is_closed_begins_nothing_new_and_what_is_under_way_ends_well() {
    let mut stage = Stage::set(STARTS);
    // It is open for as long as the program lives, whoever else is gone.
    let fifo = stage.path("alive");
    assert!(stage.homely("mkfifo", &["alive"]).status().expect("mkfifo").success());
    let mut terminal = Terminal::open(&stage, "apply desired.yaml 3>alive");
    let mut alive = std::fs::File::open(fifo).expect("opened");
    terminal.until(QUESTION);
    terminal.answer("yes");
    terminal.until("start: under way");
    drop(terminal);
    stage.let_tasks_end();
    let mut nothing = Vec::new();
    alive.read_to_end(&mut nothing).expect("it ends");
    assert_eq!(stage.result(), ["101 done", "102 not-run"]);
    assert_eq!(stage.sent(), ["101 start"]);
}
