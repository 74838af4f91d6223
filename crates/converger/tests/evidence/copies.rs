//! Two copies of a state directory that are written to at once, with one witness: one of them is refused, whichever came later. And what becomes
//! of the one that was given up.

use std::fs;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use converger_store::Looked;

use crate::bed::{Bed, Said};

/// Longer than any of it takes; a test that hangs says so.
const PATIENCE: Duration = Duration::from_secs(60);

/// A bed with a witness, and a second configuration that leads to a copy of its state.
fn bed() -> Bed {
    with_witness(Bed::short())
}

fn with_witness(bed: Bed) -> Bed {
    bed.key();
    let plain = fs::read_to_string(bed.stage.path("converger.toml")).expect("there");
    fs::create_dir(bed.stage.path("elsewhere")).expect("made");
    let with = |directory: &str| format!("{plain}[store]\ndirectory = \"{directory}\"\n[ledger]\nwitness = \"elsewhere/witness\"\n");
    bed.stage.put("one.toml", &with("state"));
    bed.stage.put("two.toml", &with("fork"));
    bed.told(&["ledger", "resync", "--reason", "a new witness", "--config", "one.toml"], 0);
    bed.keep_state("fork");
    bed
}

fn holding(bed: &Bed, config: &str, vmid: &str) -> Child {
    let arguments = ["hold", "lab", vmid, "--reason", "at once", "--config", config];
    bed.stage.converger(&arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts")
}

/// One of both ends well, and the other by what the witness has seen; what each of them said.
#[track_caller]
fn one_is_refused(children: [Child; 2]) -> Vec<Said> {
    let said: Vec<Said> = children.into_iter().map(|child| child.wait_with_output().expect("it ends").into()).collect();
    let mut codes: Vec<Option<i32>> = said.iter().map(|said| said.code).collect();
    codes.sort();
    assert_eq!(codes, [Some(0), Some(6)], "{said:?}");
    said
}

fn size(state: &Path) -> u64 {
    Looked::open(state).expect("opens").expect("there").heads().expect("read").all.size
}

/// Neither is told that the other is there: both have looked at the witness and have written before either of them tells it.
#[test]
fn of_two_copies_that_write_at_once_one_is_refused() {
    let bed = bed();
    let before = size(&bed.state());
    let turn = fs::File::options().write(true).open(bed.stage.path("elsewhere/witness.lock")).expect("there since the witness was told");
    turn.lock().expect("nobody has it");
    let children = [holding(&bed, "one.toml", "101"), holding(&bed, "two.toml", "102")];
    let begun = Instant::now();
    while [bed.state(), bed.stage.path("fork")].iter().any(|state| size(state) == before) {
        assert!(begun.elapsed() < PATIENCE, "both write before they tell the witness");
        std::thread::yield_now();
    }
    turn.unlock().expect("given back");
    let said = one_is_refused(children);
    let words = format!("is not the one that the witness has seen: they differ in the first {} entries", before + 1);
    assert!(said.iter().any(|said| said.code == Some(6) && said.err.contains(&words)), "{said:?}");
    // From now on the one that lost is only looked at, and the other goes on.
    let (won, lost) = if said[0].code == Some(0) { ("one.toml", "two.toml") } else { ("two.toml", "one.toml") };
    bed.check_broken(&["hold", "lab", "103", "--reason", "later", "--config", lost], &words);
    bed.check_broken(&["apply", "desired.yaml", "--config", lost], &words);
    bed.told(&["freeze", "lab", "--reason", "it goes on", "--config", won], 0);
    bed.told(&["verify", "--config", won], 0);
}

/// A change is sent only once the witness knows that its run was admitted: of two copies that apply at once, one sends.
#[test]
fn of_two_copies_that_apply_at_once_one_is_refused_before_it_sends() {
    let bed = Bed::new();
    bed.told(&["hold", "lab", "103", "--reason", "so that there is a ledger"], 0);
    let mut bed = with_witness(bed);
    let before = size(&bed.state());
    let confirmed = bed.stage.confirmed();
    drop(bed.stage.sent());
    let turn = fs::File::options().write(true).open(bed.stage.path("elsewhere/witness.lock")).expect("there since the witness was told");
    turn.lock().expect("nobody has it");
    let applying = |config: &str| {
        let arguments: Vec<&str> = confirmed.iter().map(String::as_str).chain(["--config", config, "--json"]).collect();
        bed.stage.converger(&arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts")
    };
    let children = ["one.toml", "two.toml"].map(applying);
    let begun = Instant::now();
    let is_admitted = |state: &Path| size(state) >= before + 4;
    while !is_admitted(&bed.state()) || !is_admitted(&bed.stage.path("fork")) {
        assert!(begun.elapsed() < PATIENCE, "both are admitted before they tell the witness");
        std::thread::yield_now();
    }
    turn.unlock().expect("given back");
    let said = one_is_refused(children);
    let mut sent = bed.stage.sent();
    sent.sort();
    assert_eq!(sent, ["101 start", "102 start"], "each once: {said:?}");
}

/// Whoever dies while a witness is told for the first time leaves one that has seen nothing yet, and not one whose storage seems to be gone.
#[test]
fn who_dies_while_the_witness_is_begun_takes_nothing_out_of_service() {
    for nth in 1..=2 {
        let bed = Bed::new();
        let plain = fs::read_to_string(bed.stage.path("converger.toml")).expect("there");
        fs::create_dir(bed.stage.path("elsewhere")).expect("made");
        bed.stage.put("converger.toml", &format!("{plain}[ledger]\nwitness = \"elsewhere/witness\"\n"));
        let (inject, program) = (format!("inject=linkat:signal=KILL:when={nth}"), env!("CARGO_BIN_EXE_converger"));
        let hold = [program, "hold", "lab", "103", "--reason", "first"];
        let arguments = [&["-f", "-qq", "-o", "strace", "-e", "trace=linkat", "-e", &inject][..], &hold].concat();
        let ended: Said = bed.stage.homely("strace", &arguments).output().expect("strace is installed (`cargo xtask ci tools`)").into();
        assert_eq!(ended.code, None, "killed at linkat {nth}: {ended:?}");
        bed.told(&["hold", "lab", "102", "--reason", "second"], 0);
        assert!(fs::read_to_string(bed.stage.path("elsewhere/witness")).expect("told").contains("\n4\n"), "a binding, two holds and a key");
        bed.told(&["verify"], 0);
    }
}

/// What the rollback guard remembers is not written over, nor what those who tell it take turns by.
#[test]
fn the_witness_is_not_written_over() {
    let bed = bed();
    let plain = fs::read_to_string(bed.stage.path("one.toml")).expect("there");
    bed.stage.put("converger.toml", &plain);
    let before = fs::read(bed.stage.path("elsewhere/witness")).expect("told");
    for out in ["elsewhere/witness", "elsewhere/../elsewhere/witness", "elsewhere/witness.lock"] {
        for arguments in
            [&["plan", "desired.yaml"][..], &["observe", "desired.yaml"], &["apply", "desired.yaml"], &["ledger", "prove", "0"]]
        {
            bed.check_ended(&[arguments, &["--out", out]].concat(), 2, "the witness of the ledger is kept there");
        }
    }
    assert_eq!(fs::read(bed.stage.path("elsewhere/witness")).expect("there"), before);
}

/// What is named as a witness and is none is told as that, and not as a ledger that was lost.
#[test]
fn what_is_no_witness_is_told_as_none() {
    let bed = Bed::new();
    let plain = fs::read_to_string(bed.stage.path("converger.toml")).expect("there");
    let named = |witness: &str| bed.stage.put("converger.toml", &format!("{plain}[ledger]\nwitness = \"{witness}\"\n"));
    named("");
    bed.check_ended(&["hold", "lab", "103", "--reason", "x"], 2, "`ledger.witness` is empty");
    named("desired.yaml");
    bed.check_broken(&["hold", "lab", "103", "--reason", "x"], "the file that is named as `witness` is no checkpoint");
    bed.stage.put("converger.toml", &plain);
    let said: Said = bed.stage.converger(&["ledger", "tail"]).env("STATE_DIRECTORY", "/a:/b").output().expect("it starts").into();
    assert!(said.code == Some(2) && said.err.contains("STATE_DIRECTORY names several directories"), "{said:?}");
}

/// And whatever the order is in which they come, over and over.
#[test]
fn however_two_copies_meet_exactly_one_goes_on() {
    let bed = bed();
    for _ in 0..12 {
        let children = [holding(&bed, "one.toml", "101"), holding(&bed, "two.toml", "102")];
        let said = one_is_refused(children);
        // The one that won is taken back to where both were, as a person would who puts a copy of the other in its place.
        let (from, to) = if said[0].code == Some(0) { ("state", "fork") } else { ("fork", "state") };
        let (won, vmid) = if from == "state" { ("one.toml", "101") } else { ("two.toml", "102") };
        bed.told(&["release", "lab", vmid, "--config", won], 0);
        fs::remove_dir_all(bed.stage.path(to)).expect("removed");
        crate::bed::copy_state(&bed.stage.path(from), &bed.stage.path(to));
    }
}

/// The same key signs what was given up and what came in its place: whoever holds the first is told who did that, when and why.
#[test]
fn whoever_holds_what_was_given_up_is_told_by_whom_and_why() {
    let bed = bed();
    let older = bed.keep_state("older");
    bed.told(&["hold", "lab", "101", "--reason", "it will be lost", "--config", "one.toml"], 0);
    let seen = bed.told(&["ledger", "checkpoint", "--config", "one.toml"], 0);
    bed.stage.put("seen", &seen);
    bed.told(&["ledger", "export", "given", "--config", "one.toml"], 0);
    bed.put_state_back(&older);
    bed.told(&["ledger", "resync", "--reason", "the disk was lost", "--config", "one.toml"], 0);
    let index = size(&bed.state()) - 1;
    let words = format!("; entry {index} says that ");
    let why = " took an older copy into service in its place at ";
    for arguments in [&["verify", "--since", "seen", "--config", "one.toml"][..], &["ledger", "export", "given", "--config", "one.toml"]] {
        bed.check_broken(arguments, &words);
        bed.check_broken(arguments, why);
        bed.check_broken(arguments, ": the disk was lost");
    }
    bed.told(&["ledger", "export", "other", "--config", "one.toml"], 0);
    bed.check_broken(&["verify", "other", "--since", "seen"], ": the disk was lost");
    bed.told(&["verify", "other"], 0);
}

/// A store of many gigabytes is not looked at a second time while it is open: the witness is told however large it is.
#[test]
fn the_witness_is_told_of_a_store_that_is_too_large_for_memory() {
    let bed = bed();
    let before = size(&bed.state());
    // A hole behind its last page, which SQLite does not look at.
    let file = fs::File::options().write(true).open(bed.state().join("converger.db")).expect("there");
    file.set_len(3 << 30).expect("a hole");
    drop(file);
    bed.told(&["hold", "lab", "101", "--reason", "so large", "--config", "one.toml"], 0);
    let told = fs::read(bed.stage.path("elsewhere/witness")).expect("there");
    let told = converger_ledger::Checkpoint::unverified(&told).expect("a checkpoint");
    assert_eq!((size(&bed.state()), told.size), (before + 1, before + 1));
}
