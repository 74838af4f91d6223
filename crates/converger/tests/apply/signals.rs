//! The first signal begins nothing new and waits; the second leaves at once, and the next apply finds out. Two at once: the second is
//! refused.

use std::fs::File;
use std::io::{ErrorKind, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::process::Stdio;
use std::sync::{Arc, Mutex, mpsc};

use converger_lab::server::Passed;

use crate::stage::{Applying, STARTS, Stage, signal};

const DRAINED: &str = "nothing new is begun; what is under way goes on (Ctrl-C again leaves at once)";

/// The rest is done by a later apply, and nothing a second time.
#[track_caller]
fn check_rest(stage: &mut Stage, recovered: &str) {
    let mut apply = stage.applying();
    apply.until("102 qemu web-2 start: sent");
    stage.let_tasks_end();
    let (code, said) = apply.end();
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains(recovered), "{said}");
    assert_eq!(stage.sent(), ["102 start"], "{said}");
    assert_eq!(stage.result(), ["102 done"], "{said}");
    let (code, said) = Applying::start(stage.converger(&["apply", "desired.yaml"])).end();
    assert!(code == Some(0) && said.contains("Nothing to do"), "{said}");
    assert_eq!(stage.sent(), Vec::<String>::new());
}

#[test]
fn the_first_signal_begins_nothing_new_and_waits_for_what_is_under_way() {
    for name in ["INT", "TERM", "HUP"] {
        let mut stage = Stage::set(STARTS);
        let mut apply = stage.applying();
        apply.until("101 qemu web-1 start: sent");
        apply.signal(name);
        apply.until(DRAINED);
        stage.let_tasks_end();
        let (code, said) = apply.end();
        assert_eq!(code, Some(1), "{name}: {said}");
        assert!(said.contains("102 qemu web-2 start: not-run (run-stopped)"), "{name}: {said}");
        assert_eq!(stage.result(), ["101 done", "102 not-run"], "{name}");
        assert_eq!(stage.sent(), ["101 start"], "{name}");
        check_rest(&mut stage, "1 step: 1 done");
    }
}

#[test]
fn the_second_signal_leaves_at_once_and_the_next_apply_finds_out() {
    for (first, second) in [("INT", "INT"), ("TERM", "TERM"), ("HUP", "TERM")] {
        let mut stage = Stage::set(STARTS);
        let mut apply = stage.applying();
        apply.until("101 qemu web-1 start: sent");
        apply.signal(first);
        apply.until(DRAINED);
        apply.signal(second);
        let (code, said) = apply.end();
        assert_eq!(code, Some(5), "{first} {second}: {said}");
        assert!(said.contains("101 qemu web-1 start: under way (run-left)"), "{first} {second}: {said}");
        assert_eq!(stage.result(), ["101 held", "102 not-run"], "{first} {second}");
        assert_eq!(stage.sent(), ["101 start"], "{first} {second}");
        stage.let_tasks_end();
        check_rest(&mut stage, "finding out what became of 1 operation of an earlier run");
    }
}

/// After `--timeout` nothing new is begun, so that the first signal is the second word.
#[test]
fn one_signal_leaves_after_the_time_is_over() {
    let mut stage = Stage::set(STARTS);
    let mut arguments = stage.confirmed();
    arguments.extend(["--timeout", "1"].map(str::to_owned));
    let mut apply = Applying::start(stage.converger(&arguments.iter().map(String::as_str).collect::<Vec<_>>()));
    apply.until("101 qemu web-1 start: sent");
    apply.until("the time of `--timeout` is over: nothing new is begun; what is under way goes on (Ctrl-C leaves at once)");
    apply.signal("INT");
    let (code, said) = apply.end();
    assert_eq!(code, Some(5), "{said}");
    assert_eq!(stage.result(), ["101 held", "102 not-run"], "{said}");
    assert_eq!(stage.sent(), ["101 start"]);
    stage.let_tasks_end();
    check_rest(&mut stage, "finding out what became of 1 operation of an earlier run");
}

/// Until it takes nothing more.
fn fill(mut pipe: &File) {
    for size in [4096, 1] {
        loop {
            match pipe.write(&vec![b' '; size]) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => panic!("{error}"),
            }
        }
    }
}

/// Whoever shows what it says takes nothing any more: it leaves all the same, and the journal has what was under way.
#[test]
fn the_second_signal_leaves_also_where_nobody_takes_a_line() {
    let (_reader, screen) = std::io::pipe().expect("a pipe");
    // Opened once more, so that only this end does not wait.
    let flags = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).expect("a flag");
    let filler = File::options().write(true).custom_flags(flags).open(format!("/proc/self/fd/{}", screen.as_raw_fd())).expect("a pipe");
    let (sent, is_sent) = mpsc::channel();
    let sent = Mutex::new(sent);
    // As soon as something is sent, the screen takes nothing any more.
    let watcher = move |passed: &Passed<'_>| {
        if passed.record.method == "POST" {
            fill(&filler);
            sent.lock().expect("nobody panicked").send(()).expect("somebody waits");
        }
    };
    let mut stage = Stage::watched(STARTS, Some(Arc::new(watcher)));
    let arguments = stage.confirmed();
    let mut command = stage.converger(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
    let mut apply = command.stdout(Stdio::null()).stderr(screen).spawn().expect("it starts");
    is_sent.recv().expect("something is sent");
    // Two of one kind could be taken for one.
    ["INT", "TERM"].iter().for_each(|name| signal(name, apply.id()));
    assert_eq!(apply.wait().expect("it ends").code(), Some(5));
    assert_eq!(stage.sent(), ["101 start"]);
    stage.let_tasks_end();
    check_rest(&mut stage, "finding out what became of 1 operation of an earlier run");
}

#[test]
fn what_was_started_with_nohup_goes_on_when_the_terminal_is_closed() {
    let mut stage = Stage::set(STARTS);
    let arguments = stage.confirmed().join(" ");
    let line = format!("trap '' HUP; exec {} {arguments}", env!("CARGO_BIN_EXE_converger"));
    let mut apply = Applying::start(stage.homely("sh", &["-c", &line]));
    apply.until("101 qemu web-1 start: sent");
    apply.signal("HUP");
    stage.let_tasks_end();
    apply.until("102 qemu web-2 start: sent");
    stage.let_tasks_end();
    let (code, said) = apply.end();
    assert_eq!(code, Some(0), "{said}");
    assert!(!said.contains(DRAINED), "{said}");
    assert_eq!(stage.sent(), ["101 start", "102 start"]);
}

#[test]
fn the_second_apply_is_refused_and_told_who_drives() {
    let mut stage = Stage::set(STARTS);
    let mut first = stage.applying();
    first.until("101 qemu web-1 start: sent");
    let (code, said) = Applying::start(stage.converger(&["apply", "desired.yaml"])).end();
    assert_eq!(code, Some(3), "{said}");
    let refused = "refused[environment-busy]: another process drives this environment (by: ";
    assert!(said.contains(refused) && said.contains("ann") && said.contains(&format!("process: {}; since: ", first.id())), "{said}");
    assert!(said.contains("help: Wait until the process in the evidence has ended"), "{said}");
    stage.let_tasks_end();
    first.until("102 qemu web-2 start: sent");
    stage.let_tasks_end();
    assert_eq!(first.end().0, Some(0));
    assert_eq!(stage.sent(), ["101 start", "102 start"], "the second one sent nothing");
}
