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

fn add_witness(fixture: EvidenceFixture) -> EvidenceFixture {
    fixture.key();
    let plain = fs::read_to_string(fixture.apply_fixture.path("converger.toml")).expect("there");
    fs::create_dir(fixture.apply_fixture.path("elsewhere")).expect("made");
    let with = |directory: &str| format!("{plain}[store]\ndirectory = \"{directory}\"\n[ledger]\nwitness = \"elsewhere/witness\"\n");
    fixture.apply_fixture.write_private("one.toml", &with("state"));
    fixture.apply_fixture.write_private("two.toml", &with("fork"));
    fixture.run_expecting(&["ledger", "resync", "--reason", "a new witness", "--config", "one.toml"], 0);
    fixture.copy_state_to("fork");
    fixture
}

fn spawn_hold(fixture: &EvidenceFixture, config: &str, vmid: &str) -> Child {
    let arguments = ["hold", "lab", vmid, "--reason", "at once", "--config", config];
    fixture.apply_fixture.converger(&arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts")
}

/// Checks that one process succeeds and the witness stops the other one; returns the output of both.
#[track_caller]
fn check_one_refused(children: [Child; 2]) -> Vec<CommandOutput> {
    let outputs: Vec<CommandOutput> = children.into_iter().map(|child| child.wait_with_output().expect("it ends").into()).collect();
    let mut codes: Vec<Option<i32>> = outputs.iter().map(|output| output.code).collect();
    codes.sort();
    assert_eq!(codes, [Some(0), Some(6)], "{outputs:?}");
    outputs
}

fn ledger_size(state: &Path) -> u64 {
    wait_for(StoreView::open(state).expect("opens").expect("there").heads()).expect("read").all.size
}

/// Neither process knows of the other: both have checked the witness and written before either of them updates it.
#[test]
fn one_of_two_concurrently_written_copies_is_refused() {
    let evidence_fixture = fixture_with_witness();
    let before = ledger_size(&evidence_fixture.state_directory());
    let lock_file = fs::File::options()
        .write(true)
        .open(evidence_fixture.apply_fixture.path("elsewhere/witness.lock"))
        .expect("there since the witness was told");
    lock_file.lock().expect("nobody has it");
    let children = [spawn_hold(&evidence_fixture, "one.toml", "101"), spawn_hold(&evidence_fixture, "two.toml", "102")];
    let started = Instant::now();
    while [evidence_fixture.state_directory(), evidence_fixture.apply_fixture.path("fork")].iter().any(|state| ledger_size(state) == before)
    {
        assert!(started.elapsed() < TEST_TIMEOUT, "both write before they tell the witness");
        std::thread::yield_now();
    }
    lock_file.unlock().expect("given back");
    let outputs = check_one_refused(children);
    let expected = format!("is not the one that the witness has seen: they differ in the first {} entries", before + 1);
    assert!(outputs.iter().any(|output| output.code == Some(6) && output.err.contains(&expected)), "{outputs:?}");
    // From now on the copy that lost is read-only, and the other one continues.
    let (won, loser) = if outputs[0].code == Some(0) { ("one.toml", "two.toml") } else { ("two.toml", "one.toml") };
    evidence_fixture.check_broken(&["hold", "lab", "103", "--reason", "later", "--config", loser], &expected);
    evidence_fixture.check_broken(&["apply", "desired.yaml", "--config", loser], &expected);
    evidence_fixture.run_expecting(&["freeze", "lab", "--reason", "it goes on", "--config", won], 0);
    evidence_fixture.run_expecting(&["verify", "--config", won], 0);
}

/// A change is sent only once the witness knows the admission of its run. So of two copies that apply concurrently, only one sends.
#[test]
fn one_of_two_concurrent_applies_on_copies_is_refused_before_it_sends() {
    let fixture = EvidenceFixture::new();
    fixture.run_expecting(&["hold", "lab", "103", "--reason", "so that there is a ledger"], 0);
    let mut fixture = add_witness(fixture);
    let before = ledger_size(&fixture.state_directory());
    let confirmed = fixture.apply_fixture.confirm_arguments();
    drop(fixture.apply_fixture.take_sent());
    let lock_file = fs::File::options()
        .write(true)
        .open(fixture.apply_fixture.path("elsewhere/witness.lock"))
        .expect("there since the witness was told");
    lock_file.lock().expect("nobody has it");
    let applying = |config: &str| {
        let arguments: Vec<&str> = confirmed.iter().map(String::as_str).chain(["--config", config, "--json"]).collect();
        fixture.apply_fixture.converger(&arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts")
    };
    let children = ["one.toml", "two.toml"].map(applying);
    let started = Instant::now();
    let is_admitted = |state: &Path| ledger_size(state) >= before + 4;
    while !is_admitted(&fixture.state_directory()) || !is_admitted(&fixture.apply_fixture.path("fork")) {
        assert!(started.elapsed() < TEST_TIMEOUT, "both are admitted before they tell the witness");
        std::thread::yield_now();
    }
    lock_file.unlock().expect("given back");
    let outputs = check_one_refused(children);
    let mut sent = fixture.apply_fixture.take_sent();
    sent.sort();
    assert_eq!(sent, ["101 start", "102 start"], "each once: {outputs:?}");
}

/// A process killed while it creates the witness leaves a witness that has seen nothing, and not one whose storage seems lost.
#[test]
fn kill_while_creating_the_witness_blocks_nothing() {
    for nth in 1..=2 {
        let fixture = EvidenceFixture::new();
        let plain = fs::read_to_string(fixture.apply_fixture.path("converger.toml")).expect("there");
        fs::create_dir(fixture.apply_fixture.path("elsewhere")).expect("made");
        fixture.apply_fixture.write_private("converger.toml", &format!("{plain}[ledger]\nwitness = \"elsewhere/witness\"\n"));
        let (inject, program) = (format!("inject=linkat:signal=KILL:when={nth}"), env!("CARGO_BIN_EXE_converger"));
        let hold = [program, "hold", "lab", "103", "--reason", "first"];
        let arguments = [&["-f", "-qq", "-o", "strace", "-e", "trace=linkat", "-e", &inject][..], &hold].concat();
        let output: CommandOutput =
            fixture.apply_fixture.command("strace", &arguments).output().expect("strace is installed (`cargo xtask ci tools`)").into();
        assert_eq!(output.code, None, "killed at linkat {nth}: {output:?}");
        fixture.run_expecting(&["hold", "lab", "102", "--reason", "second"], 0);
        assert!(
            fs::read_to_string(fixture.apply_fixture.path("elsewhere/witness")).expect("told").contains("\n4\n"),
            "a binding, two holds and a key"
        );
        fixture.run_expecting(&["verify"], 0);
    }
}

/// The file of the witness and its lock file must not be overwritten.
#[test]
fn witness_is_never_overwritten() {
    let evidence_fixture = fixture_with_witness();
    let plain = fs::read_to_string(evidence_fixture.apply_fixture.path("one.toml")).expect("there");
    evidence_fixture.apply_fixture.write_private("converger.toml", &plain);
    let before = fs::read(evidence_fixture.apply_fixture.path("elsewhere/witness")).expect("told");
    for out in ["elsewhere/witness", "elsewhere/../elsewhere/witness", "elsewhere/witness.lock"] {
        for arguments in
            [&["plan", "desired.yaml"][..], &["observe", "desired.yaml"], &["apply", "desired.yaml"], &["ledger", "prove", "0"]]
        {
            evidence_fixture.check_fails(&[arguments, &["--out", out]].concat(), 2, "it is the witness of the ledger");
        }
    }
    assert_eq!(fs::read(evidence_fixture.apply_fixture.path("elsewhere/witness")).expect("there"), before);
}

/// A configured witness file that is not a witness is reported as such, and not as a lost ledger.
#[test]
fn file_that_is_no_witness_is_reported_as_such() {
    let fixture = EvidenceFixture::new();
    let plain = fs::read_to_string(fixture.apply_fixture.path("converger.toml")).expect("there");
    let named =
        |witness: &str| fixture.apply_fixture.write_private("converger.toml", &format!("{plain}[ledger]\nwitness = \"{witness}\"\n"));
    named("");
    fixture.check_fails(&["hold", "lab", "103", "--reason", "x"], 2, "`witness` in `[ledger]` is empty");
    named("desired.yaml");
    fixture.check_broken(&["hold", "lab", "103", "--reason", "x"], "the file named as `witness` is not a checkpoint");
    fixture.apply_fixture.write_private("converger.toml", &plain);
    let output: CommandOutput =
        fixture.apply_fixture.converger(&["ledger", "tail"]).env("STATE_DIRECTORY", "/a:/b").output().expect("it starts").into();
    assert!(output.code == Some(2) && output.err.contains("STATE_DIRECTORY names several directories"), "{output:?}");
}

/// The same holds for any order, over and over.
#[test]
fn exactly_one_of_two_copies_continues_in_any_order() {
    let evidence_fixture = fixture_with_witness();
    for _ in 0..12 {
        let children = [spawn_hold(&evidence_fixture, "one.toml", "101"), spawn_hold(&evidence_fixture, "two.toml", "102")];
        let outputs = check_one_refused(children);
        // Resets the copy that lost to the state of the other one, as a person would who replaces it with a copy.
        let (from, to) = if outputs[0].code == Some(0) { ("state", "fork") } else { ("fork", "state") };
        let (won, vmid) = if from == "state" { ("one.toml", "101") } else { ("two.toml", "102") };
        evidence_fixture.run_expecting(&["release", "lab", vmid, "--config", won], 0);
        fs::remove_dir_all(evidence_fixture.apply_fixture.path(to)).expect("removed");
        crate::fixture::copy_state(&evidence_fixture.apply_fixture.path(from), &evidence_fixture.apply_fixture.path(to));
    }
}

/// The same key signs the abandoned log and its replacement. A holder of a checkpoint of the abandoned log learns who replaced it, when and
/// why.
#[test]
fn checkpoint_given_up_by_resync_names_who_and_why() {
    let evidence_fixture = fixture_with_witness();
    let older = evidence_fixture.copy_state_to("older");
    evidence_fixture.run_expecting(&["hold", "lab", "101", "--reason", "it will be lost", "--config", "one.toml"], 0);
    let seen = evidence_fixture.run_expecting(&["ledger", "checkpoint", "--config", "one.toml"], 0);
    evidence_fixture.apply_fixture.write_private("seen", &seen);
    evidence_fixture.run_expecting(&["ledger", "export", "given", "--config", "one.toml"], 0);
    evidence_fixture.restore_state(&older);
    evidence_fixture.run_expecting(&["ledger", "resync", "--reason", "the disk was lost", "--config", "one.toml"], 0);
    let index = ledger_size(&evidence_fixture.state_directory()) - 1;
    let expected = format!("; entry {index} says that ");
    let why = " took an older copy into service in its place at ";
    for arguments in [&["verify", "--since", "seen", "--config", "one.toml"][..], &["ledger", "export", "given", "--config", "one.toml"]] {
        evidence_fixture.check_broken(arguments, &expected);
        evidence_fixture.check_broken(arguments, why);
        evidence_fixture.check_broken(arguments, ": the disk was lost");
    }
    evidence_fixture.run_expecting(&["ledger", "export", "other", "--config", "one.toml"], 0);
    evidence_fixture.check_broken(&["verify", "other", "--since", "seen"], ": the disk was lost");
    evidence_fixture.run_expecting(&["verify", "other"], 0);
}

/// A store of many gigabytes is not read a second time while it is open, so the witness is updated whatever its size.
#[test]
fn attests_a_store_larger_than_memory() {
    let evidence_fixture = fixture_with_witness();
    let before = ledger_size(&evidence_fixture.state_directory());
    // A hole after its last page, which SQLite ignores.
    let file = fs::File::options().write(true).open(evidence_fixture.state_directory().join("converger.db")).expect("there");
    file.set_len(3 << 30).expect("a hole");
    drop(file);
    evidence_fixture.run_expecting(&["hold", "lab", "101", "--reason", "so large", "--config", "one.toml"], 0);
    let checkpoint_bytes = fs::read(evidence_fixture.apply_fixture.path("elsewhere/witness")).expect("there");
    let checkpoint = converger_ledger::Checkpoint::parse_unverified(&checkpoint_bytes).expect("a checkpoint");
    assert_eq!((ledger_size(&evidence_fixture.state_directory()), checkpoint.size), (before + 1, before + 1));
}
