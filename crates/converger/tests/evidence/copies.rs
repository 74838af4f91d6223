//! Two copies of a state directory are written to concurrently, with one witness: the later one is refused. Also, what happens to the
//! abandoned copy.

use std::fs;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use converger_store::{StoreReader as _, StoreView, wait_for};

use crate::fixture::{CommandOutput, EvidenceFixture};

/// Longer than any step takes; a hanging test fails.
const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// A fixture with a witness, and a second configuration that points to a copy of its state.
fn fixture_with_witness() -> EvidenceFixture {
    add_witness(EvidenceFixture::with_short_history())
}

fn add_witness(bed: EvidenceFixture) -> EvidenceFixture {
    bed.key();
    let plain = fs::read_to_string(bed.stage.path("converger.toml")).expect("there");
    fs::create_dir(bed.stage.path("elsewhere")).expect("made");
    let with = |directory: &str| format!("{plain}[store]\ndirectory = \"{directory}\"\n[ledger]\nwitness = \"elsewhere/witness\"\n");
    bed.stage.write_private("one.toml", &with("state"));
    bed.stage.write_private("two.toml", &with("fork"));
    bed.run_expecting(&["ledger", "resync", "--reason", "a new witness", "--config", "one.toml"], 0);
    bed.copy_state_to("fork");
    bed
}

fn spawn_hold(bed: &EvidenceFixture, config: &str, vmid: &str) -> Child {
    let arguments = ["hold", "lab", vmid, "--reason", "at once", "--config", config];
    bed.stage.converger(&arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts")
}

/// Checks that one process succeeds and the witness stops the other one; returns the output of both.
#[track_caller]
fn check_one_refused(children: [Child; 2]) -> Vec<CommandOutput> {
    let said: Vec<CommandOutput> = children.into_iter().map(|child| child.wait_with_output().expect("it ends").into()).collect();
    let mut codes: Vec<Option<i32>> = said.iter().map(|said| said.code).collect();
    codes.sort();
    assert_eq!(codes, [Some(0), Some(6)], "{said:?}");
    said
}

fn ledger_size(state: &Path) -> u64 {
    wait_for(StoreView::open(state).expect("opens").expect("there").heads()).expect("read").all.size
}

/// Neither process knows of the other: both have checked the witness and written before either of them updates it.
#[test]
fn one_of_two_concurrently_written_copies_is_refused() {
    let bed = fixture_with_witness();
    let before = ledger_size(&bed.state_directory());
    let turn = fs::File::options().write(true).open(bed.stage.path("elsewhere/witness.lock")).expect("there since the witness was told");
    turn.lock().expect("nobody has it");
    let children = [spawn_hold(&bed, "one.toml", "101"), spawn_hold(&bed, "two.toml", "102")];
    let begun = Instant::now();
    while [bed.state_directory(), bed.stage.path("fork")].iter().any(|state| ledger_size(state) == before) {
        assert!(begun.elapsed() < TEST_TIMEOUT, "both write before they tell the witness");
        std::thread::yield_now();
    }
    turn.unlock().expect("given back");
    let said = check_one_refused(children);
    let words = format!("is not the one that the witness has seen: they differ in the first {} entries", before + 1);
    assert!(said.iter().any(|said| said.code == Some(6) && said.err.contains(&words)), "{said:?}");
    // From now on the copy that lost is read-only, and the other one continues.
    let (won, lost) = if said[0].code == Some(0) { ("one.toml", "two.toml") } else { ("two.toml", "one.toml") };
    bed.check_broken(&["hold", "lab", "103", "--reason", "later", "--config", lost], &words);
    bed.check_broken(&["apply", "desired.yaml", "--config", lost], &words);
    bed.run_expecting(&["freeze", "lab", "--reason", "it goes on", "--config", won], 0);
    bed.run_expecting(&["verify", "--config", won], 0);
}

/// A change is sent only once the witness knows the admission of its run. So of two copies that apply concurrently, only one sends.
#[test]
fn one_of_two_concurrent_applies_on_copies_is_refused_before_it_sends() {
    let bed = EvidenceFixture::new();
    bed.run_expecting(&["hold", "lab", "103", "--reason", "so that there is a ledger"], 0);
    let mut bed = add_witness(bed);
    let before = ledger_size(&bed.state_directory());
    let confirmed = bed.stage.confirm_arguments();
    drop(bed.stage.take_sent());
    let turn = fs::File::options().write(true).open(bed.stage.path("elsewhere/witness.lock")).expect("there since the witness was told");
    turn.lock().expect("nobody has it");
    let applying = |config: &str| {
        let arguments: Vec<&str> = confirmed.iter().map(String::as_str).chain(["--config", config, "--json"]).collect();
        bed.stage.converger(&arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts")
    };
    let children = ["one.toml", "two.toml"].map(applying);
    let begun = Instant::now();
    let is_admitted = |state: &Path| ledger_size(state) >= before + 4;
    while !is_admitted(&bed.state_directory()) || !is_admitted(&bed.stage.path("fork")) {
        assert!(begun.elapsed() < TEST_TIMEOUT, "both are admitted before they tell the witness");
        std::thread::yield_now();
    }
    turn.unlock().expect("given back");
    let said = check_one_refused(children);
    let mut sent = bed.stage.take_sent();
    sent.sort();
    assert_eq!(sent, ["101 start", "102 start"], "each once: {said:?}");
}

/// A process killed while it creates the witness leaves a witness that has seen nothing, and not one whose storage seems lost.
#[test]
fn kill_while_creating_the_witness_blocks_nothing() {
    for nth in 1..=2 {
        let bed = EvidenceFixture::new();
        let plain = fs::read_to_string(bed.stage.path("converger.toml")).expect("there");
        fs::create_dir(bed.stage.path("elsewhere")).expect("made");
        bed.stage.write_private("converger.toml", &format!("{plain}[ledger]\nwitness = \"elsewhere/witness\"\n"));
        let (inject, program) = (format!("inject=linkat:signal=KILL:when={nth}"), env!("CARGO_BIN_EXE_converger"));
        let hold = [program, "hold", "lab", "103", "--reason", "first"];
        let arguments = [&["-f", "-qq", "-o", "strace", "-e", "trace=linkat", "-e", &inject][..], &hold].concat();
        let ended: CommandOutput =
            bed.stage.command("strace", &arguments).output().expect("strace is installed (`cargo xtask ci tools`)").into();
        assert_eq!(ended.code, None, "killed at linkat {nth}: {ended:?}");
        bed.run_expecting(&["hold", "lab", "102", "--reason", "second"], 0);
        assert!(fs::read_to_string(bed.stage.path("elsewhere/witness")).expect("told").contains("\n4\n"), "a binding, two holds and a key");
        bed.run_expecting(&["verify"], 0);
    }
}

/// The file of the witness and its lock file must not be overwritten.
#[test]
fn witness_is_never_overwritten() {
    let bed = fixture_with_witness();
    let plain = fs::read_to_string(bed.stage.path("one.toml")).expect("there");
    bed.stage.write_private("converger.toml", &plain);
    let before = fs::read(bed.stage.path("elsewhere/witness")).expect("told");
    for out in ["elsewhere/witness", "elsewhere/../elsewhere/witness", "elsewhere/witness.lock"] {
        for arguments in
            [&["plan", "desired.yaml"][..], &["observe", "desired.yaml"], &["apply", "desired.yaml"], &["ledger", "prove", "0"]]
        {
            bed.check_fails(&[arguments, &["--out", out]].concat(), 2, "it is the witness of the ledger");
        }
    }
    assert_eq!(fs::read(bed.stage.path("elsewhere/witness")).expect("there"), before);
}

/// A configured witness file that is not a witness is reported as such, and not as a lost ledger.
#[test]
fn file_that_is_no_witness_is_reported_as_such() {
    let bed = EvidenceFixture::new();
    let plain = fs::read_to_string(bed.stage.path("converger.toml")).expect("there");
    let named = |witness: &str| bed.stage.write_private("converger.toml", &format!("{plain}[ledger]\nwitness = \"{witness}\"\n"));
    named("");
    bed.check_fails(&["hold", "lab", "103", "--reason", "x"], 2, "`witness` in `[ledger]` is empty");
    named("desired.yaml");
    bed.check_broken(&["hold", "lab", "103", "--reason", "x"], "the file named as `witness` is not a checkpoint");
    bed.stage.write_private("converger.toml", &plain);
    let said: CommandOutput = bed.stage.converger(&["ledger", "tail"]).env("STATE_DIRECTORY", "/a:/b").output().expect("it starts").into();
    assert!(said.code == Some(2) && said.err.contains("STATE_DIRECTORY names several directories"), "{said:?}");
}

/// The same holds for any order, over and over.
#[test]
fn exactly_one_of_two_copies_continues_in_any_order() {
    let bed = fixture_with_witness();
    for _ in 0..12 {
        let children = [spawn_hold(&bed, "one.toml", "101"), spawn_hold(&bed, "two.toml", "102")];
        let said = check_one_refused(children);
        // Resets the copy that lost to the state of the other one, as a person would who replaces it with a copy.
        let (from, to) = if said[0].code == Some(0) { ("state", "fork") } else { ("fork", "state") };
        let (won, vmid) = if from == "state" { ("one.toml", "101") } else { ("two.toml", "102") };
        bed.run_expecting(&["release", "lab", vmid, "--config", won], 0);
        fs::remove_dir_all(bed.stage.path(to)).expect("removed");
        crate::fixture::copy_state(&bed.stage.path(from), &bed.stage.path(to));
    }
}

/// The same key signs the abandoned log and its replacement. A holder of a checkpoint of the abandoned log learns who replaced it, when and
/// why.
#[test]
fn checkpoint_given_up_by_resync_names_who_and_why() {
    let bed = fixture_with_witness();
    let older = bed.copy_state_to("older");
    bed.run_expecting(&["hold", "lab", "101", "--reason", "it will be lost", "--config", "one.toml"], 0);
    let seen = bed.run_expecting(&["ledger", "checkpoint", "--config", "one.toml"], 0);
    bed.stage.write_private("seen", &seen);
    bed.run_expecting(&["ledger", "export", "given", "--config", "one.toml"], 0);
    bed.restore_state(&older);
    bed.run_expecting(&["ledger", "resync", "--reason", "the disk was lost", "--config", "one.toml"], 0);
    let index = ledger_size(&bed.state_directory()) - 1;
    let words = format!("; entry {index} says that ");
    let why = " took an older copy into service in its place at ";
    for arguments in [&["verify", "--since", "seen", "--config", "one.toml"][..], &["ledger", "export", "given", "--config", "one.toml"]] {
        bed.check_broken(arguments, &words);
        bed.check_broken(arguments, why);
        bed.check_broken(arguments, ": the disk was lost");
    }
    bed.run_expecting(&["ledger", "export", "other", "--config", "one.toml"], 0);
    bed.check_broken(&["verify", "other", "--since", "seen"], ": the disk was lost");
    bed.run_expecting(&["verify", "other"], 0);
}

/// A store of many gigabytes is not read a second time while it is open, so the witness is updated whatever its size.
#[test]
fn attests_a_store_larger_than_memory() {
    let bed = fixture_with_witness();
    let before = ledger_size(&bed.state_directory());
    // A hole after its last page, which SQLite ignores.
    let file = fs::File::options().write(true).open(bed.state_directory().join("converger.db")).expect("there");
    file.set_len(3 << 30).expect("a hole");
    drop(file);
    bed.run_expecting(&["hold", "lab", "101", "--reason", "so large", "--config", "one.toml"], 0);
    let told = fs::read(bed.stage.path("elsewhere/witness")).expect("there");
    let told = converger_ledger::Checkpoint::parse_unverified(&told).expect("a checkpoint");
    assert_eq!((ledger_size(&bed.state_directory()), told.size), (before + 1, before + 1));
}
