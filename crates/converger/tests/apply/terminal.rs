//! At a terminal: the question, typed names, a wrong answer, progress lines, and a terminal that is closed midway.
//!
//! `script` provides the terminal; every Debian has it.

use std::io::{Read as _, Write as _};
use std::process::{Child, ChildStdout, Stdio};
use std::sync::{Arc, Mutex, mpsc};

use converger_lab::server::ServedExchange;

use crate::stage::{ApplyFixture, ApplyProcess, STARTS, STOP};

/// A program at a terminal.
struct ScriptTerminal {
    child: Child,
    screen: ChildStdout,
    seen: String,
}

impl ScriptTerminal {
    fn open(fixture: &ApplyFixture, line: &str) -> Self {
        Self::start(fixture, &format!("exec {} {line}", env!("CARGO_BIN_EXE_converger")))
    }

    /// Like [`Self::open`], with a size of several lines. By default, the terminal of `script` has no size.
    fn open_large(fixture: &ApplyFixture, line: &str) -> Self {
        Self::start(fixture, &format!("stty rows 40 cols 120; exec {} {line}", env!("CARGO_BIN_EXE_converger")))
    }

    fn start(fixture: &ApplyFixture, line: &str) -> Self {
        let mut command = fixture.command("script", &["-q", "-e", "-f", "-c", line, "/dev/null"]);
        let mut child = command.env("TERM", "xterm").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("`script` is installed");
        let screen = child.stdout.take().expect("piped");
        Self { child, screen, seen: String::new() }
    }

    /// Waits until this appears on the screen, after everything that was awaited before.
    #[track_caller]
    fn wait_for(&mut self, part: &str) {
        let mut chunk = [0; 4096];
        while !self.seen.contains(part) {
            let length = self.screen.read(&mut chunk).expect("a screen");
            assert!(length > 0, "it ended without `{part}`:\n{}", self.seen);
            self.seen.push_str(&String::from_utf8_lossy(&chunk[..length]));
        }
        let at = self.seen.find(part).expect("found") + part.len();
        self.seen.drain(..at);
    }

    fn type_line(&mut self, text: &str) {
        let input = self.child.stdin.as_mut().expect("piped");
        input.write_all(format!("{text}\n").as_bytes()).and_then(|()| input.flush()).expect("typed");
    }

    /// Presses Ctrl-C, which the terminal turns into a signal.
    fn press_ctrl_c(&mut self) {
        let input = self.child.stdin.as_mut().expect("piped");
        input.write_all(&[3]).and_then(|()| input.flush()).expect("pressed");
    }

    /// Its exit code and the rest of the screen.
    fn wait_for_end(mut self) -> (Option<i32>, String) {
        let mut rest = Vec::new();
        self.screen.read_to_end(&mut rest).expect("a screen");
        let code = self.child.wait().expect("it ends").code();
        (code, format!("{}{}", self.seen, String::from_utf8_lossy(&rest)))
    }
}

impl Drop for ScriptTerminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const QUESTION: &str = " [yes/no] ";
const NAME_QUESTION: &str = ". Type its name: ";

#[test]
fn yes_and_typed_name_apply_the_plan_with_progress() {
    let mut fixture = ApplyFixture::new(STOP);
    let mut terminal = ScriptTerminal::open(&fixture, "apply desired.yaml");
    terminal.wait_for("shutdown");
    terminal.wait_for(QUESTION);
    assert_eq!(fixture.take_sent(), Vec::<String>::new(), "nothing before the answer");
    terminal.type_line("yes");
    terminal.wait_for(NAME_QUESTION);
    terminal.type_line("old-1");
    // A spinner line that is redrawn.
    terminal.wait_for("\u{2801}");
    terminal.wait_for("shutdown: in flight");
    terminal.wait_for("\u{1b}[2K");
    fixture.finish_tasks();
    let (code, screen) = terminal.wait_for_end();
    assert_eq!(code, Some(0), "{screen}");
    assert!(screen.contains("1 step: 1 done"), "{screen}");
    assert_eq!(fixture.take_sent(), ["103 shutdown"]);
}

/// Below the operations in flight, the number of ended steps is shown.
#[test]
fn shows_how_many_steps_ended() {
    let mut fixture = ApplyFixture::new(STARTS);
    let mut terminal = ScriptTerminal::open_large(&fixture, "apply desired.yaml");
    terminal.wait_for(QUESTION);
    terminal.type_line("yes");
    terminal.wait_for("101 qemu ");
    terminal.wait_for("start: in flight");
    terminal.wait_for("0 of 2 ended");
    fixture.finish_tasks();
    terminal.wait_for("1 of 2 ended");
    terminal.wait_for("start: in flight");
    fixture.finish_tasks();
    let (code, screen) = terminal.wait_for_end();
    assert_eq!(code, Some(0), "{screen}");
    assert!(screen.contains("2 steps: 2 done"), "{screen}");
    assert_eq!(fixture.take_sent(), ["101 start", "102 start"]);
}

#[test]
fn shows_what_a_slow_reading_waits_for() {
    let (answer, answers) = mpsc::channel::<()>();
    let answers = Mutex::new(answers);
    // No response is sent until the other end of the channel is dropped.
    let held = Arc::new(move |_: &ServedExchange<'_>| assert!(answers.lock().expect("nobody panicked").recv().is_err(), "nobody sends"));
    let fixture = ApplyFixture::with_watcher(STARTS, Some(held));
    let mut terminal = ScriptTerminal::open(&fixture, "audit desired.yaml");
    terminal.wait_for("reading lab");
    drop(answer);
    let (code, screen) = terminal.wait_for_end();
    assert_eq!(code, Some(4), "{screen}");
    let (_, report) = screen.split_once("2 guests in scope").expect("the report");
    assert!(!report.contains("reading lab"), "what is waited for goes away: {report}");
}

#[test]
fn shows_how_many_guests_were_read() {
    let (answer, answers) = mpsc::channel::<()>();
    let answers = Mutex::new(answers);
    // Lists are answered; what is read of each guest waits until the other end of the channel is gone.
    let held = Arc::new(move |passed: &ServedExchange<'_>| {
        if ["/101/", "/102/"].iter().any(|guest| passed.record.path.contains(guest)) {
            assert!(answers.lock().expect("nobody panicked").recv().is_err(), "nobody sends");
        }
    });
    let fixture = ApplyFixture::with_watcher(STARTS, Some(held));
    let mut terminal = ScriptTerminal::open_large(&fixture, "audit desired.yaml");
    terminal.wait_for("reading 0 of 2 guests");
    drop(answer);
    let (code, screen) = terminal.wait_for_end();
    assert_eq!(code, Some(4), "{screen}");
}

#[test]
fn shows_progress_while_reading_a_large_recording() {
    let fixture = ApplyFixture::new(STARTS);
    let row = |vmid: u32| {
        format!(
            r#"{{"vmid":{vmid},"kind":"lxc","name":"g-{vmid}","node":"pve1","status":"stopped","lock":null,"ha":null,"template":false,"protection":false,"tags":[],"pending":[]}}"#
        )
    };
    let rows: Vec<String> = (1_000..9_000).map(row).collect();
    let head =
        r#""schema":"converger.observation/1","environment":"lab","complete":true,"quorate":true,"nodes":[{"name":"pve1","online":true}]"#;
    std::fs::write(fixture.path("large.json"), format!("{{{head},\"guests\":[{}]}}", rows.join(","))).expect("written");
    let mut terminal = ScriptTerminal::open(&fixture, "audit desired.yaml --replay large.json");
    terminal.wait_for("reading large.json");
    let (code, screen) = terminal.wait_for_end();
    assert_eq!(code, Some(3), "the declared guests are not in it: {screen}");
}

#[test]
fn any_other_answer_applies_nothing_and_blames_no_rule() {
    for answers in [&["no"][..], &["y"], &["YES"], &[""], &["yes", "old-2"], &["yes", ""], &["yes", "OLD-1"], &["yes", "103"]] {
        let mut fixture = ApplyFixture::new(STOP);
        let mut terminal = ScriptTerminal::open(&fixture, "apply desired.yaml");
        for (answer, question) in answers.iter().zip([QUESTION, NAME_QUESTION]) {
            terminal.wait_for(question);
            terminal.type_line(answer);
        }
        let (code, screen) = terminal.wait_for_end();
        assert_eq!(code, Some(3), "{answers:?}: {screen}");
        let why = if answers.len() == 1 { "the answer was not `yes`" } else { "` is not the name of old-1; nothing was sent" };
        assert!(screen.contains("not carried out") && screen.contains(why), "{answers:?}: {screen}");
        assert!(!screen.contains("refused[") && !screen.contains("approval-missing"), "{answers:?}: {screen}");
        assert_eq!(fixture.take_sent(), Vec::<String>::new(), "{answers:?}");
    }
}

#[test]
fn a_person_who_is_asked_sees_the_whole_plan_with_quiet_too() {
    let mut fixture = ApplyFixture::new(STARTS);
    let mut terminal = ScriptTerminal::open_large(&fixture, "apply desired.yaml --quiet");
    terminal.wait_for(": declared running, observed stopped");
    terminal.wait_for(QUESTION);
    terminal.type_line("no");
    let (code, screen) = terminal.wait_for_end();
    assert_eq!(code, Some(3), "{screen}");
    assert!(!screen.contains("wrote"), "{screen}");
    assert_eq!(fixture.take_sent(), Vec::<String>::new());
}

#[test]
fn ctrl_c_at_the_question_means_no() {
    for answers in [&[][..], &["yes"]] {
        let mut fixture = ApplyFixture::new(STOP);
        let mut terminal = ScriptTerminal::open(&fixture, "apply desired.yaml");
        for (answer, question) in answers.iter().zip([QUESTION]) {
            terminal.wait_for(question);
            terminal.type_line(answer);
        }
        terminal.wait_for(if answers.is_empty() { QUESTION } else { NAME_QUESTION });
        terminal.press_ctrl_c();
        let (code, screen) = terminal.wait_for_end();
        assert_eq!(code, Some(3), "{screen}");
        assert!(screen.contains("not carried out") && screen.contains("there was no answer; nothing was sent"), "{screen}");
        assert!(screen.lines().all(|line| !line.contains("^C") || !line.contains("not carried out")), "a line of its own: {screen}");
        assert!(!screen.contains("in flight") && !screen.contains("starting"), "nothing is: {screen}");
        assert_eq!(fixture.take_sent(), Vec::<String>::new());
    }
}

#[test]
fn without_a_terminal_asks_nothing_and_a_digest_does_not_cover_a_shutdown() {
    let mut fixture = ApplyFixture::new(STOP);
    for arguments in [fixture.confirm_arguments(), vec!["apply".into(), "desired.yaml".into()]] {
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let (code, output) = ApplyProcess::start(fixture.converger(&arguments)).wait_for_end();
        assert_eq!(code, Some(3), "{output}");
        assert!(output.contains("approval-missing") && !output.contains(QUESTION), "{output}");
    }
    assert_eq!(fixture.take_sent(), Vec::<String>::new());
}

#[test]
fn closed_terminal_starts_nothing_new_and_operations_in_flight_end() {
    let mut fixture = ApplyFixture::new(STARTS);
    // The fifo stays open for as long as the program lives, even if all other processes are gone.
    let fifo = fixture.path("alive");
    assert!(fixture.command("mkfifo", &["alive"]).status().expect("mkfifo").success());
    let mut terminal = ScriptTerminal::open(&fixture, "apply desired.yaml 3>alive");
    let mut alive = std::fs::File::open(fifo).expect("opened");
    terminal.wait_for(QUESTION);
    terminal.type_line("yes");
    terminal.wait_for("start: in flight");
    drop(terminal);
    fixture.finish_tasks();
    let mut nothing = Vec::new();
    alive.read_to_end(&mut nothing).expect("it ends");
    assert_eq!(fixture.result_steps(), ["101 done", "102 not-run"]);
    assert_eq!(fixture.take_sent(), ["101 start"]);
}
