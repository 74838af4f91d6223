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
fn check_rest(fixture: &mut ApplyFixture, recovered: &str) {
    let mut apply = fixture.start_apply();
    apply.wait_for("102 qemu web-2 start: sent");
    fixture.finish_tasks();
    let (code, output) = apply.wait_for_end();
    assert_eq!(code, Some(0), "{output}");
    assert!(output.contains(recovered), "{output}");
    assert_eq!(fixture.take_sent(), ["102 start"], "{output}");
    assert_eq!(fixture.result_steps(), ["102 done"], "{output}");
    let (code, output) = ApplyProcess::start(fixture.converger(&["apply", "desired.yaml"])).wait_for_end();
    assert!(code == Some(0) && output.contains("Nothing to do"), "{output}");
    assert_eq!(fixture.take_sent(), Vec::<String>::new());
}

#[test]
fn first_signal_starts_nothing_new_and_waits_for_operations_in_flight() {
    for name in ["INT", "TERM", "HUP"] {
        let mut fixture = ApplyFixture::new(STARTS);
        let mut apply = fixture.start_apply();
        apply.wait_for("101 qemu web-1 start: sent");
        apply.signal(name);
        apply.wait_for(DRAIN_NOTICE);
        fixture.finish_tasks();
        let (code, output) = apply.wait_for_end();
        assert_eq!(code, Some(1), "{name}: {output}");
        assert!(output.contains("102 qemu web-2 start: not-run (run-stopped)"), "{name}: {output}");
        assert_eq!(fixture.result_steps(), ["101 done", "102 not-run"], "{name}");
        assert_eq!(fixture.take_sent(), ["101 start"], "{name}");
        check_rest(&mut fixture, "1 step: 1 done");
    }
}

#[test]
fn second_signal_exits_at_once_and_next_apply_recovers() {
    for (first, second) in [("INT", "INT"), ("TERM", "TERM"), ("HUP", "TERM")] {
        let mut fixture = ApplyFixture::new(STARTS);
        let mut apply = fixture.start_apply();
        apply.wait_for("101 qemu web-1 start: sent");
        apply.signal(first);
        apply.wait_for(DRAIN_NOTICE);
        apply.signal(second);
        let (code, output) = apply.wait_for_end();
        assert_eq!(code, Some(5), "{first} {second}: {output}");
        assert!(output.contains("101 qemu web-1 start: in flight (run-left)"), "{first} {second}: {output}");
        assert_eq!(fixture.result_steps(), ["101 held", "102 not-run"], "{first} {second}");
        assert_eq!(fixture.take_sent(), ["101 start"], "{first} {second}");
        fixture.finish_tasks();
        check_rest(&mut fixture, "recovering 1 operation left in flight by an earlier run");
    }
}

/// After `--timeout` nothing new is started, so the first signal already counts as the second one.
#[test]
fn one_signal_exits_after_the_timeout() {
    let mut fixture = ApplyFixture::new(STARTS);
    let mut arguments = fixture.confirm_arguments();
    arguments.extend(["--timeout", "1"].map(str::to_owned));
    let mut apply = ApplyProcess::start(fixture.converger(&arguments.iter().map(String::as_str).collect::<Vec<_>>()));
    apply.wait_for("101 qemu web-1 start: sent");
    apply.wait_for("timeout reached: starting nothing new, waiting for operations in flight (Ctrl-C exits at once)");
    apply.signal("INT");
    let (code, output) = apply.wait_for_end();
    assert_eq!(code, Some(5), "{output}");
    assert_eq!(fixture.result_steps(), ["101 held", "102 not-run"], "{output}");
    assert_eq!(fixture.take_sent(), ["101 start"]);
    fixture.finish_tasks();
    check_rest(&mut fixture, "recovering 1 operation left in flight by an earlier run");
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
    let mut fixture = ApplyFixture::with_watcher(STARTS, Some(Arc::new(watcher)));
    let arguments = fixture.confirm_arguments();
    let mut command = fixture.converger(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
    let mut apply = command.stdout(Stdio::null()).stderr(screen).spawn().expect("it starts");
    is_sent.recv().expect("something is sent");
    // Two signals of the same kind could be merged into one.
    ["INT", "TERM"].iter().for_each(|name| send_signal(name, apply.id()));
    assert_eq!(apply.wait().expect("it ends").code(), Some(5));
    assert_eq!(fixture.take_sent(), ["101 start"]);
    fixture.finish_tasks();
    check_rest(&mut fixture, "recovering 1 operation left in flight by an earlier run");
}

#[test]
fn apply_under_nohup_survives_a_closed_terminal() {
    let mut fixture = ApplyFixture::new(STARTS);
    let arguments = fixture.confirm_arguments().join(" ");
    let line = format!("trap '' HUP; exec {} {arguments}", env!("CARGO_BIN_EXE_converger"));
    let mut apply = ApplyProcess::start(fixture.command("sh", &["-c", &line]));
    apply.wait_for("101 qemu web-1 start: sent");
    apply.signal("HUP");
    fixture.finish_tasks();
    apply.wait_for("102 qemu web-2 start: sent");
    fixture.finish_tasks();
    let (code, output) = apply.wait_for_end();
    assert_eq!(code, Some(0), "{output}");
    assert!(!output.contains(DRAIN_NOTICE), "{output}");
    assert_eq!(fixture.take_sent(), ["101 start", "102 start"]);
}

#[test]
fn second_apply_is_refused_with_the_lock_holder() {
    let mut fixture = ApplyFixture::new(STARTS);
    let mut first = fixture.start_apply();
    first.wait_for("101 qemu web-1 start: sent");
    let (code, output) = ApplyProcess::start(fixture.converger(&["apply", "desired.yaml"])).wait_for_end();
    assert_eq!(code, Some(3), "{output}");
    let refused = "refused[environment-busy]: another process is applying changes to this environment (by: ";
    assert!(
        output.contains(refused) && output.contains("ann") && output.contains(&format!("process: {}; since: ", first.id())),
        "{output}"
    );
    assert!(output.contains("help: Wait until the process in the evidence has ended"), "{output}");
    fixture.finish_tasks();
    first.wait_for("102 qemu web-2 start: sent");
    fixture.finish_tasks();
    assert_eq!(first.wait_for_end().0, Some(0));
    assert_eq!(fixture.take_sent(), ["101 start", "102 start"], "the second one sent nothing");
}
