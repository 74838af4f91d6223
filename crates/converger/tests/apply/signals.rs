//! The first signal begins nothing new and waits; the second leaves at once, and the next apply finds out. Two at once: the second is
//! refused.

use crate::stage::{Applying, STARTS, Stage};

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
