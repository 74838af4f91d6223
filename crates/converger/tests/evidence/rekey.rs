//! A recorded decision replaces a lost or leaked key: the ledger continues, the last checkpoint of the old key stays as evidence, and
//! `verify` reports which key attests which part.
//!
//! Trust in the new key is up to people.

use std::fs;

use converger_ledger::{Checkpoint, NoteSigner};

use crate::export_files::ExportFiles;
use crate::fixture::{CommandOutput, EvidenceFixture, copy_state};

/// A fixture whose key was lost after an export.
fn bed() -> (EvidenceFixture, String, String) {
    let fixture = EvidenceFixture::with_short_history();
    let old = fixture.key();
    fixture.export_to("web");
    fixture.run_expecting(&["hold", "lab", "102", "--reason", "after the export"], 0);
    let secret = fs::read_to_string(fixture.state_directory().join("ledger.key")).expect("there");
    fs::remove_file(fixture.state_directory().join("ledger.key")).expect("removed");
    (fixture, old, secret)
}

fn rekey(fixture: &EvidenceFixture, more: &[&str]) -> String {
    let output = fixture.run_expecting(&[&["ledger", "rekey", "--reason", "the disk broke"], more].concat(), 0);
    output.lines().next().expect("a key").to_owned()
}

#[test]
fn replaces_a_lost_key_and_reports_which_key_attests_each_part() {
    let (fixture, old, _) = bed();
    fixture.check_fails(&["ledger", "checkpoint"], 6, "`converger ledger rekey --reason");
    let signed = fixture.entry_count();
    let new = rekey(&fixture, &["--checkpoint", "web/checkpoint"]);
    assert_ne!(new, old);
    assert_eq!(new.split('+').next(), old.split('+').next(), "the log keeps its name");
    // The earlier export is extended, although another key signs now.
    fixture.export_to("web");
    let covered = signed - 1;
    let output = fixture.run_expecting(&["verify", "web", "--key", &new], 0);
    for expected in [
        format!("note   entry {signed}: "),
        " replaced the key at ".to_owned(),
        format!(
            "the first {covered} entries are attested by the old key {old} too, the entries from {covered} to {covered} by the new key alone"
        ),
        format!("from entry {signed} on {new} signs"),
    ] {
        assert!(output.contains(&expected), "`{expected}`: {output}");
    }
    assert_eq!(fixture.key(), new);
    assert!(fixture.run_expecting(&["verify"], 0).contains(&format!("from entry {signed} on {new} signs")));
    // With the old key only, `verify` explains what to do and claims nothing.
    let old_key_output = fixture.run(&["verify", "web", "--key", &old]);
    assert_eq!((old_key_output.code, old_key_output.out.as_str()), (Some(6), ""), "{old_key_output:?}");
    assert!(
        old_key_output.err.contains("not signed with this key") && old_key_output.err.contains("get the new key there"),
        "{old_key_output:?}"
    );
    fixture.run_expecting(&["ledger", "prove", "0", "--out", "receipt.txt"], 0);
    fixture.run_expecting(&["verify", "receipt.txt", "--key", &new], 0);
}

/// A checkpoint from before the rekey is signed by the old key; a later one is not.
#[test]
fn checkpoint_from_before_a_rekey_is_still_extended() {
    let (fixture, _, secret) = bed();
    fs::copy(fixture.apply_fixture.path("web/checkpoint"), fixture.apply_fixture.path("seen")).expect("copied");
    let new = rekey(&fixture, &[]);
    let output = fixture.run_expecting(&["verify", "--since", "seen"], 0);
    assert!(output.contains("no checkpoint of the old key") && output.contains(&format!("only the key {new} attests")), "{output}");
    fixture.export_to("web");
    fixture.run_expecting(&["verify", "web", "--key", &new, "--since", "seen"], 0);
    // The old key turns up, and an attacker signs later entries with it.
    let checkpoint = fs::read(fixture.apply_fixture.path("web/checkpoint")).expect("there");
    let leaked = NoteSigner::parse(&secret).expect("a key");
    let forged = Checkpoint::parse_unverified(&checkpoint).expect("a checkpoint").sign(&leaked);
    fixture.apply_fixture.write_private("seen", &forged);
    fixture.check_broken(&["verify", "web", "--key", &new, "--since", "seen"], "seen: the note is not signed with this key");
    let mut files = ExportFiles::read(&fixture.apply_fixture.path("web"));
    *files.file_mut("checkpoint") = forged.into_bytes();
    files.write(&fixture.apply_fixture.path("changed"));
    let expected = format!("the checkpoint is signed with {}, and the ledger records {new}", leaked.verifier());
    fixture.check_broken(&["verify", "changed", "--key", &leaked.verifier().to_string()], &expected);
    // The program does not sign with it either.
    fixture.apply_fixture.write_private("state/ledger.key", &secret);
    fixture.check_broken(&["ledger", "checkpoint"], "ledger.key is not the key that the ledger names");
}

#[test]
fn refuses_to_replace_an_existing_key_unless_told_to() {
    let fixture = EvidenceFixture::with_short_history();
    fixture.check_fails(&["ledger", "rekey", "--reason", "x"], 2, "this ledger has no key yet");
    let old = fixture.key();
    let before = fs::read(fixture.state_directory().join("ledger.key")).expect("there");
    fixture.check_fails(&["ledger", "rekey", "--reason", "x"], 2, "add `--replace-key`");
    assert_eq!(fs::read(fixture.state_directory().join("ledger.key")).expect("there"), before);
    let size = fixture.entry_count();
    let new = rekey(&fixture, &["--replace-key"]);
    let output = fixture.run_expecting(&["verify"], 0);
    assert!(
        output.contains(&format!("the first {size} entries are attested by the old key {old} too, and from entry {size} on {new} signs")),
        "{output}"
    );
    assert!(!fs::read_dir(fixture.state_directory()).expect("read").any(|file| file.expect("read").file_name() == "ledger.key.next"));
}

#[test]
fn rejects_the_checkpoint_of_another_ledger_as_evidence() {
    let (fixture, ..) = bed();
    let other = EvidenceFixture::with_short_history();
    other.export_to("web");
    fixture.apply_fixture.write_private("other", &fs::read_to_string(other.apply_fixture.path("web/checkpoint")).expect("there"));
    let size = fixture.entry_count();
    fixture.check_broken(&["ledger", "rekey", "--reason", "x", "--checkpoint", "other"], "other: the note is not signed with this key");
    assert_eq!(fixture.entry_count(), size, "nothing was recorded");
    fixture.apply_fixture.write_private("notes", "notes\n");
    fixture.check_broken(&["ledger", "rekey", "--reason", "x", "--checkpoint", "notes"], "notes: this is not a signed note");
}

/// Killed before the entry, the old state remains; killed after it, the next command installs the new key.
#[test]
fn killed_rekey_is_complete_or_has_no_effect() {
    let mut ends = [0, 0];
    for (call, nth) in [("linkat", 1), ("/^rename", 1)] {
        let (fixture, old, _) = bed();
        let size = fixture.entry_count();
        let (trace, inject) = (format!("trace={call}"), format!("inject={call}:signal=KILL:when={nth}"));
        let strace = ["-f", "-qq", "-o", "/dev/null", "-e", &trace, "-e", &inject, env!("CARGO_BIN_EXE_converger")];
        let arguments = [&strace[..], &["ledger", "rekey", "--reason", "the disk broke"]].concat();
        let output: CommandOutput = fixture.apply_fixture.command("strace", &arguments).output().expect("strace is installed").into();
        assert_eq!(output.code, None, "{call}: {output:?}");
        fixture.run_expecting(&["verify"], 0);
        let is_done = fixture.entry_count() > size;
        ends[usize::from(is_done)] += 1;
        if is_done {
            assert_ne!(fixture.key(), old, "{call}");
            fixture.run_expecting(&["verify"], 0);
        } else {
            fixture.check_fails(&["ledger", "key"], 6, "the key of this ledger is missing");
            rekey(&fixture, &[]);
        }
    }
    assert_eq!(ends, [1, 1]);
}

#[test]
fn witness_accepts_only_a_recorded_rekey() {
    let fixture = EvidenceFixture::new();
    let plain = fs::read_to_string(fixture.apply_fixture.path("converger.toml")).expect("there");
    fs::create_dir(fixture.apply_fixture.path("elsewhere")).expect("made");
    fixture.apply_fixture.write_private("converger.toml", &format!("{plain}[ledger]\nwitness = \"elsewhere/witness\"\n"));
    fixture.run_expecting(&["hold", "lab", "103", "--reason", "first"], 0);
    let witness = fixture.apply_fixture.path("elsewhere/witness");
    let (old, seen) = (fixture.key(), fs::read_to_string(&witness).expect("told"));
    copy_state(&fixture.state_directory(), &fixture.apply_fixture.path("copy"));
    fs::remove_file(fixture.state_directory().join("ledger.key")).expect("removed");
    let new = rekey(&fixture, &[]);
    // The witness had seen the old key's last checkpoint, which is kept.
    let output = fixture.run_expecting(&["verify"], 0);
    assert!(output.contains(&format!("entries are attested by the old key {old} too")), "{output}");
    assert_ne!(fs::read_to_string(&witness).expect("told"), seen);
    // The witness was not updated in time: the recorded entry explains why its checkpoint has another key.
    fs::write(&witness, &seen).expect("written");
    fixture.run_expecting(&["hold", "lab", "102", "--reason", "second"], 0);
    assert_eq!(fixture.key(), new);
    // The state from before the rekey does not know the new key and is not used.
    fixture.restore_state(&fixture.apply_fixture.path("copy"));
    fixture.check_fails(&["hold", "lab", "101", "--reason", "third"], 6, "the witness");
}
