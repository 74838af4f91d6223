//! The first signal starts nothing new and waits. The second one exits at once, and the next apply recovers. A second concurrent apply is
//! refused.

use std::fs::File;
use std::io::{ErrorKind, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::process::Stdio;
use std::sync::{Arc, Mutex, mpsc};

use converger_lab::server::ServedExchange;

use crate::stage::{ApplyFixture, ApplyProcess, STARTS, send_signal};

const DRAIN_NOTICE: &str = "stopping: starting nothing new, waiting for operations in flight (Ctrl-C again exits at once)";

/// A later apply carries out the rest, and nothing twice.
#[track_caller]
fn check_rest(stage: &mut ApplyFixture, recovered: &str) {
    let mut apply = stage.start_apply();
    apply.wait_for("102 qemu web-2 start: sent");
    stage.finish_tasks();
    let (code, said) = apply.wait_for_end();
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains(recovered), "{said}");
    assert_eq!(stage.take_sent(), ["102 start"], "{said}");
    assert_eq!(stage.result_steps(), ["102 done"], "{said}");
    let (code, said) = ApplyProcess::start(stage.converger(&["apply", "desired.yaml"])).wait_for_end();
    assert!(code == Some(0) && said.contains("Nothing to do"), "{said}");
    assert_eq!(stage.take_sent(), Vec::<String>::new());
}

#[test]
fn first_signal_starts_nothing_new_and_waits_for_operations_in_flight() {
    for name in ["INT", "TERM", "HUP"] {
        let mut stage = ApplyFixture::new(STARTS);
        let mut apply = stage.start_apply();
        apply.wait_for("101 qemu web-1 start: sent");
        apply.signal(name);
        apply.wait_for(DRAIN_NOTICE);
        stage.finish_tasks();
        let (code, said) = apply.wait_for_end();
        assert_eq!(code, Some(1), "{name}: {said}");
        assert!(said.contains("102 qemu web-2 start: not-run (run-stopped)"), "{name}: {said}");
        assert_eq!(stage.result_steps(), ["101 done", "102 not-run"], "{name}");
        assert_eq!(stage.take_sent(), ["101 start"], "{name}");
        check_rest(&mut stage, "1 step: 1 done");
    }
}

#[test]
fn second_signal_exits_at_once_and_next_apply_recovers() {
    for (first, second) in [("INT", "INT"), ("TERM", "TERM"), ("HUP", "TERM")] {
        let mut stage = ApplyFixture::new(STARTS);
        let mut apply = stage.start_apply();
        apply.wait_for("101 qemu web-1 start: sent");
        apply.signal(first);
        apply.wait_for(DRAIN_NOTICE);
        apply.signal(second);
        let (code, said) = apply.wait_for_end();
        assert_eq!(code, Some(5), "{first} {second}: {said}");
        assert!(said.contains("101 qemu web-1 start: in flight (run-left)"), "{first} {second}: {said}");
        assert_eq!(stage.result_steps(), ["101 held", "102 not-run"], "{first} {second}");
        assert_eq!(stage.take_sent(), ["101 start"], "{first} {second}");
        stage.finish_tasks();
        check_rest(&mut stage, "recovering 1 operation left in flight by an earlier run");
    }
}

/// After `--timeout` nothing new is started, so the first signal already counts as the second one.
#[test]
fn one_signal_exits_after_the_timeout() {
    let mut stage = ApplyFixture::new(STARTS);
    let mut arguments = stage.confirm_arguments();
    arguments.extend(["--timeout", "1"].map(str::to_owned));
    let mut apply = ApplyProcess::start(stage.converger(&arguments.iter().map(String::as_str).collect::<Vec<_>>()));
    apply.wait_for("101 qemu web-1 start: sent");
    apply.wait_for("timeout reached: starting nothing new, waiting for operations in flight (Ctrl-C exits at once)");
    apply.signal("INT");
    let (code, said) = apply.wait_for_end();
    assert_eq!(code, Some(5), "{said}");
    assert_eq!(stage.result_steps(), ["101 held", "102 not-run"], "{said}");
    assert_eq!(stage.take_sent(), ["101 start"]);
    stage.finish_tasks();
    check_rest(&mut stage, "recovering 1 operation left in flight by an earlier run");
}

/// Writes until the pipe is full.
fn fill_pipe(mut pipe: &File) {
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

/// The reader of stderr has stopped reading. The program exits nevertheless, and the journal contains the operations in flight.
#[test]
fn second_signal_exits_even_if_stderr_is_blocked() {
    let (_reader, screen) = std::io::pipe().expect("a pipe");
    // Opened a second time, so that only this end does not block.
    let flags = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).expect("a flag");
    let filler = File::options().write(true).custom_flags(flags).open(format!("/proc/self/fd/{}", screen.as_raw_fd())).expect("a pipe");
    let (sent, is_sent) = mpsc::channel();
    let sent = Mutex::new(sent);
    // As soon as something is sent, the pipe of stderr is full.
    let watcher = move |passed: &ServedExchange<'_>| {
        if passed.record.method == "POST" {
            fill_pipe(&filler);
            sent.lock().expect("nobody panicked").send(()).expect("somebody waits");
        }
    };
    let mut stage = ApplyFixture::with_watcher(STARTS, Some(Arc::new(watcher)));
    let arguments = stage.confirm_arguments();
    let mut command = stage.converger(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
    let mut apply = command.stdout(Stdio::null()).stderr(screen).spawn().expect("it starts");
    is_sent.recv().expect("something is sent");
    // Two signals of the same kind could be merged into one.
    ["INT", "TERM"].iter().for_each(|name| send_signal(name, apply.id()));
    assert_eq!(apply.wait().expect("it ends").code(), Some(5));
    assert_eq!(stage.take_sent(), ["101 start"]);
    stage.finish_tasks();
    check_rest(&mut stage, "recovering 1 operation left in flight by an earlier run");
}

#[test]
fn apply_under_nohup_survives_a_closed_terminal() {
    let mut stage = ApplyFixture::new(STARTS);
    let arguments = stage.confirm_arguments().join(" ");
    let line = format!("trap '' HUP; exec {} {arguments}", env!("CARGO_BIN_EXE_converger"));
    let mut apply = ApplyProcess::start(stage.command("sh", &["-c", &line]));
    apply.wait_for("101 qemu web-1 start: sent");
    apply.signal("HUP");
    stage.finish_tasks();
    apply.wait_for("102 qemu web-2 start: sent");
    stage.finish_tasks();
    let (code, said) = apply.wait_for_end();
    assert_eq!(code, Some(0), "{said}");
    assert!(!said.contains(DRAIN_NOTICE), "{said}");
    assert_eq!(stage.take_sent(), ["101 start", "102 start"]);
}

#[test]
fn second_apply_is_refused_with_the_lock_holder() {
    let mut stage = ApplyFixture::new(STARTS);
    let mut first = stage.start_apply();
    first.wait_for("101 qemu web-1 start: sent");
    let (code, said) = ApplyProcess::start(stage.converger(&["apply", "desired.yaml"])).wait_for_end();
    assert_eq!(code, Some(3), "{said}");
    let refused = "refused[environment-busy]: another process is applying changes to this environment (by: ";
    assert!(said.contains(refused) && said.contains("ann") && said.contains(&format!("process: {}; since: ", first.id())), "{said}");
    assert!(said.contains("help: Wait until the process in the evidence has ended"), "{said}");
    stage.finish_tasks();
    first.wait_for("102 qemu web-2 start: sent");
    stage.finish_tasks();
    assert_eq!(first.wait_for_end().0, Some(0));
    assert_eq!(stage.take_sent(), ["101 start", "102 start"], "the second one sent nothing");
}
