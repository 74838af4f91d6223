//! Tampering with a state directory: rows removed from the journal or the ledger, moved entries, replaced keys, a file of a later version.
//! Each is detected with its location, and no tampered content is presented as true.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use converger_core::evidence::parse_entry;
use converger_ledger::{LogBuilder, LogHash, NoteSigner};
use converger_store::LedgerHead;

use crate::fixture::EvidenceFixture;
use crate::forge::DatabaseForger;

/// Changes the state, checks that it is reported as broken with these words, and restores it.
#[track_caller]
pub(crate) fn check_detected(fixture: &EvidenceFixture, what: &str, change: impl FnOnce(&DatabaseForger), expected: &str) {
    let whole = fixture.copy_state_to("whole");
    change(&DatabaseForger::open(&fixture.state_directory()));
    // Also a copy on another machine without a configuration.
    let copy = fixture.copy_state_to("copy");
    for arguments in [&["verify"][..], &["verify", "--db", "copy"]] {
        let output = fixture.run(arguments);
        assert_eq!(output.code, Some(6), "{what}: {output:?}");
        assert!(output.err.contains(expected) && output.out.is_empty(), "{what} must be told as `{expected}`: {output:?}");
    }
    fixture.restore_state(&whole);
    fs::remove_dir_all(whole).and_then(|()| fs::remove_dir_all(copy)).expect("removed");
}

/// SQL that removes an operation from the journal with all dependent rows.
fn delete_operation_sql(id: &str) -> String {
    let rows: String = ["sendings", "tasks", "ends", "resolutions", "occupants", "idempotency_keys"]
        .iter()
        .map(|table| format!("DELETE FROM {table} WHERE operation = (SELECT seq FROM operations WHERE id = '{id}');"))
        .collect();
    format!("{rows} DELETE FROM operations WHERE id = '{id}';")
}

const LAST_OPERATION: &str = "SELECT id FROM operations ORDER BY seq DESC LIMIT 1";

#[test]
fn detects_an_operation_missing_from_the_journal() {
    let fixture = EvidenceFixture::with_short_history();
    let id = DatabaseForger::open(&fixture.state_directory()).text(LAST_OPERATION);
    let missing_error = format!("error[unlogged-execution]: the ledger has the operation {id}, and the journal does not");
    check_detected(&fixture, "an operation", |forger| forger.run(&delete_operation_sql(&id)), &missing_error);
    let other = format!("error[unlogged-execution]: the journal differs from the ledger in the operation {id}");
    for table in ["ends", "tasks", "sendings"] {
        let removed = format!("DELETE FROM {table} WHERE operation = (SELECT max(seq) FROM operations)");
        check_detected(&fixture, table, |forger| forger.run(&removed), &other);
    }
    let later = "UPDATE ends SET at_ms = at_ms + 1, sum = row_sum(operation, ending, at_ms + 1, body)";
    check_detected(
        &fixture,
        "another time",
        |forger| forger.run(later),
        "error[unlogged-execution]: the journal differs from the ledger in ",
    );
    fixture.run_expecting(&["verify"], 0);
}

#[test]
fn detects_an_operation_missing_from_the_ledger() {
    let fixture = EvidenceFixture::with_short_history();
    let id = DatabaseForger::open(&fixture.state_directory()).text(LAST_OPERATION);
    let about = |entry: &[u8], kind: &str| {
        let text = String::from_utf8_lossy(entry);
        text.contains(&id) && text.contains(kind)
    };
    let without = |kind: &'static str| {
        move |forger: &DatabaseForger| {
            let mut entries = forger.entries();
            let before = entries.len();
            entries.retain(|entry| !about(entry, kind));
            assert!(entries.len() < before, "{kind}");
            forger.rewrite(&entries);
        }
    };
    let unlogged = format!("error[unlogged-execution]: the journal has the operation {id}, and the ledger does not");
    check_detected(&fixture, "all its entries", without(""), &unlogged);
    let other = format!("error[unlogged-execution]: the journal differs from the ledger in the operation {id}");
    check_detected(&fixture, "its outcome", without("\"kind\":\"outcome\""), &other);
    let missing_intent = format!("is out of place: it is about the operation {id}, which has no intent before it");
    check_detected(&fixture, "its intent", without("\"kind\":\"intent\""), &missing_intent);
}

/// Runs, holds and freezes are in both the journal and the ledger, too.
#[test]
fn detects_a_run_hold_or_freeze_missing_from_journal_or_ledger() {
    let fixture = EvidenceFixture::with_short_history();
    let check = |statements: &str, expected: &str| check_detected(&fixture, statements, |forger| forger.run(statements), expected);
    // The run of the refused apply has no operations.
    let refused = "(SELECT seq FROM runs WHERE seq NOT IN (SELECT run FROM operations) LIMIT 1)";
    check(&format!("DELETE FROM run_ends WHERE run = {refused}; DELETE FROM runs WHERE seq = {refused}"), "the ledger has the run ");
    check("DELETE FROM run_ends", "error[unlogged-execution]: the journal differs from the ledger in the run ");
    let another = "INSERT INTO runs (seq, id, environment, plan, who, at_ms, sum) SELECT 9, 'another', environment, plan, who, at_ms, \
        row_sum(9, 'another', environment, plan, who, at_ms, NULL) FROM runs LIMIT 1";
    check(another, "error[unlogged-execution]: the journal has the run another, and the ledger does not");
    let held = "error[unlogged-execution]: the journal and the ledger have different active holds: the hold of guest 103 in lab (entry ";
    check("DELETE FROM holds WHERE released_at_ms IS NULL", held);
    let released = "UPDATE holds SET released_by = 'eve', released_at_ms = 5, \
        sum = row_sum(seq, environment, vmid, who, reason, at_ms, 'eve', 5) WHERE released_at_ms IS NULL";
    check(released, held);
    let other =
        "UPDATE holds SET vmid = 101, sum = row_sum(seq, environment, 101, who, reason, at_ms, NULL, NULL) WHERE released_at_ms IS NULL";
    check(other, held);
    let frozen = "INSERT INTO freezes (seq, environment, who, reason, at_ms, sum) \
        VALUES (9, 'lab', 'eve', 'x', 5, row_sum(9, 'lab', 'eve', 'x', 5, NULL, NULL))";
    check(frozen, "error[unlogged-execution]: the journal and the ledger have different active freezes: the freeze of lab");
    fixture.run_expecting(&["verify"], 0);
}

/// A finding is located at the entry that the journal contradicts, for people and for programs.
#[test]
fn detects_a_journal_mismatch_at_its_entry() {
    let fixture = EvidenceFixture::with_short_history();
    let kinds: Vec<String> = DatabaseForger::open(&fixture.state_directory())
        .entries()
        .iter()
        .map(|entry| parse_entry(entry).expect("an entry").kind().to_owned())
        .collect();
    let last = |kind: &str| kinds.iter().rposition(|own| own == kind).expect("one") as u64;
    let of_last = "WHERE operation = (SELECT max(seq) FROM operations)";
    let hold = "seq, environment, vmid, who, reason, at_ms";
    let id = DatabaseForger::open(&fixture.state_directory()).text(LAST_OPERATION);
    let cases = [
        (format!("DELETE FROM ends {of_last}"), "outcome"),
        (format!("DELETE FROM tasks {of_last}"), "task"),
        (format!("UPDATE sendings SET at_ms = 5, sum = row_sum(operation, 5, up_ms) {of_last}"), "sending"),
        (delete_operation_sql(&id), "intent"),
        ("DELETE FROM run_ends WHERE run = (SELECT max(seq) FROM runs)".to_owned(), "run-ended"),
        ("DELETE FROM holds WHERE released_at_ms IS NULL".to_owned(), "hold"),
        (
            format!("UPDATE holds SET released_by = 'eve', sum = row_sum({hold}, 'eve', released_at_ms) WHERE released_by IS NOT NULL"),
            "release",
        ),
        (
            "UPDATE freezes SET thawed_by = 'eve', sum = row_sum(seq, environment, who, reason, at_ms, 'eve', thawed_at_ms)".to_owned(),
            "thaw",
        ),
    ];
    for (statements, kind) in cases {
        let (whole, index) = (fixture.copy_state_to("whole"), last(kind));
        DatabaseForger::open(&fixture.state_directory()).run(&statements);
        let output = fixture.run(&["verify", "--json"]);
        let json: serde_json::Value = serde_json::from_str(&output.out).unwrap_or_else(|error| panic!("{error}: {output:?}"));
        assert_eq!((&json["code"], &json["index"]), (&"unlogged-execution".into(), &index.into()), "{kind}: {output:?}");
        assert!(output.err.contains(&format!("(entry {index})")), "{kind}: {output:?}");
        fixture.restore_state(&whole);
        fs::remove_dir_all(whole).expect("removed");
    }
}

/// With `--since`, faults are reported like without it: the key for the checkpoint is found while the ledger is verified.
#[test]
fn broken_record_is_reported_with_since_too() {
    let fixture = EvidenceFixture::with_short_history();
    let seen = fixture.run_expecting(&["ledger", "checkpoint"], 0);
    fixture.apply_fixture.write_private("seen", &seen);
    fixture.run_expecting(&["verify", "--since", "seen"], 0);
    let none = "UPDATE ledger_entries SET body = CAST('{}' AS BLOB), sum = row_sum(seq, CAST('{}' AS BLOB)) WHERE seq = 1";
    let cases = [("DELETE FROM ledger_entries WHERE seq = 1", "entry 0 is missing"), (none, "entry 0 is not valid")];
    for (statements, expected) in cases {
        let whole = fixture.copy_state_to("whole");
        DatabaseForger::open(&fixture.state_directory()).run(statements);
        fixture.check_broken(&["verify", "--since", "seen"], expected);
        let output = fixture.run(&["verify", "--since", "seen", "--json"]);
        let json: serde_json::Value = serde_json::from_str(&output.out).unwrap_or_else(|error| panic!("{error}: {output:?}"));
        assert_eq!((output.code, &json["whole"], &json["index"]), (Some(6), &false.into(), &0.into()), "{output:?}");
        fixture.restore_state(&whole);
        fs::remove_dir_all(whole).expect("removed");
    }
    // A changed checkpoint is not a checkpoint, whatever the state of the record.
    fixture.apply_fixture.write_private("seen", &seen.replacen('\n', "\n1", 1));
    fixture.check_broken(&["verify", "--since", "seen"], "seen: ");
}

/// A step that runs twice in one run acts twice; each of the two is a step of the plan.
#[test]
fn detects_a_step_started_twice_in_one_run() {
    let fixture = EvidenceFixture::with_short_history();
    let id = DatabaseForger::open(&fixture.state_directory()).text(LAST_OPERATION);
    let duplicate_id = format!("{id}9");
    let repeat_step = |forger: &DatabaseForger| {
        let mut entries: Vec<String> = forger.entries().into_iter().map(|entry| String::from_utf8(entry).expect("text")).collect();
        let about = |entry: &&String, kind: &str| entry.contains(&id) && entry.contains(kind);
        let again = ["\"kind\":\"intent\"", "\"kind\":\"outcome\""]
            .map(|kind| entries.iter().find(|entry| about(entry, kind)).expect("one").replace(&id, &duplicate_id));
        let behind = 1 + entries.iter().rposition(|entry| about(&entry, "\"kind\":\"outcome\"")).expect("one");
        entries.splice(behind..behind, again);
        forger.rewrite(&entries.into_iter().map(String::into_bytes).collect::<Vec<_>>());
    };
    let expected = format!("the operation {duplicate_id} repeats a step of guest 102 in the run ");
    check_detected(&fixture, "a step twice", repeat_step, &expected);
}

/// A blob that an entry references is unchanged, or a person pruned it.
#[test]
fn detects_a_missing_or_changed_blob() {
    let fixture = EvidenceFixture::with_short_history();
    let digest = DatabaseForger::open(&fixture.state_directory()).text("SELECT plan FROM runs LIMIT 1");
    let missing_error = format!("names {digest}, which is not stored, and no entry says that it was pruned");
    check_detected(&fixture, "gone", |forger| forger.run(&format!("DELETE FROM blobs WHERE digest = '{digest}'")), &missing_error);
    let other = format!("UPDATE blobs SET body = CAST('{{}}' AS BLOB) WHERE digest = '{digest}'");
    check_detected(&fixture, "another", |forger| forger.run(&other), "its bytes do not match the digest");
}

/// Row checksums protect against disk errors. An attacker makes them right, and is detected by the hashes.
#[test]
fn detects_moved_changed_or_removed_entries_with_their_index() {
    let fixture = EvidenceFixture::with_long_history();
    let size = usize::try_from(fixture.entry_count()).expect("small");
    let edited = |edit: fn(&mut Vec<Vec<u8>>)| {
        move |forger: &DatabaseForger| {
            let mut entries = forger.entries();
            edit(&mut entries);
            forger.put_entries(&entries);
        }
    };
    let hash_mismatch = "the stored hashes are not those of the entries";
    check_detected(&fixture, "moved", edited(|entries| entries.swap(40, 41)), &format!("entry 40 (tile/0/000): {hash_mismatch}"));
    check_detected(&fixture, "moved far", edited(|entries| entries.swap(300, 400)), &format!("entry 300 (tile/0/001): {hash_mismatch}"));
    let misplaced = "entry 40 is out of place: it is about the run ";
    check_detected(&fixture, "moved into another run", edited(|entries| entries.swap(40, 400)), misplaced);
    let blank = |entries: &mut Vec<Vec<u8>>| {
        let at = entries[310].iter().position(|byte| *byte == b'1').expect("a number");
        entries[310][at] = b'2';
    };
    check_detected(&fixture, "changed", edited(blank), &format!("entry 310 (tile/0/001): {hash_mismatch}"));
    let doubled = |entries: &mut Vec<Vec<u8>>| {
        let duplicate = entries[50].clone();
        entries[51] = duplicate;
    };
    check_detected(&fixture, "written over", edited(doubled), &format!("entry 51 (tile/0/000): {hash_mismatch}"));
    // The entry before it was changed, which its hash reveals once the tile is full.
    let both = |entries: &mut Vec<Vec<u8>>| {
        let at = entries[205].iter().position(|byte| *byte == b'1').expect("a number");
        entries[205][at] = b'2';
        entries[209] = b"{}".to_vec();
    };
    check_detected(&fixture, "changed, and one behind it is none", edited(both), &format!("entry 205 (tile/0/000): {hash_mismatch}"));
    let none = |entries: &mut Vec<Vec<u8>>| {
        entries[205] = b"{}".to_vec();
        entries.swap(209, 210);
    };
    check_detected(&fixture, "none, and one behind it is another", edited(none), "entry 205 is not valid");
    let gap = |forger: &DatabaseForger| forger.run("DELETE FROM ledger_entries WHERE seq = 100");
    check_detected(&fixture, "a gap", gap, "entry 99 is missing");
    let last = format!("DELETE FROM ledger_entries WHERE seq = {size}");
    check_detected(&fixture, "a cut tail", |forger| forger.run(&last), &format!("entry {} is missing", size - 1));
    let tail = |entries: &mut Vec<Vec<u8>>| {
        let last = entries.len() - 1;
        entries.swap(last - 2, last - 1);
    };
    let body = "CAST('{}' AS BLOB)";
    let more = format!("INSERT INTO ledger_entries VALUES ({0}, {body}, row_sum({0}, {body}))", size + 1);
    check_detected(&fixture, "one more", |forger| forger.run(&more), &format!("the ledger should have {size} entries and "));
    check_detected(&fixture, "a moved tail", edited(tail), &format!("an entry from 512 to {} was changed, or the root was", size - 1));
    fixture.run_expecting(&["verify"], 0);
}

#[test]
fn detects_changed_hashes_and_heads() {
    let fixture = EvidenceFixture::with_long_history();
    let size = fixture.entry_count();
    let hash_mismatch = "entry 259 (tile/0/001): the stored hashes are not those of the entries";
    let tile = |forger: &DatabaseForger| {
        let (mut log_builder, mut full) = (LogBuilder::default(), Vec::new());
        for entry in forger.entries() {
            log_builder.append(LogHash::of_leaf(&entry), |tile, hashes, root| full.push((tile, hashes.to_vec(), root)));
        }
        let (tile, mut hashes, root) = full.swap_remove(1);
        hashes[3] = LogHash::of_leaf(b"another");
        forger.put_tile(tile, &hashes, root);
    };
    check_detected(&fixture, "a tile", tile, hash_mismatch);
    for tile_index in [0, 1] {
        let delete_sql = format!("DELETE FROM ledger_tiles WHERE level = 0 AND place = {tile_index}");
        let missing = format!("entry {} (tile/0/00{tile_index}): its hashes are missing", tile_index * 256);
        check_detected(&fixture, "a tile that is gone", |forger| forger.run(&delete_sql), &missing);
    }
    let head = |root| move |forger: &DatabaseForger| forger.put_head(LedgerHead { size, root: LogHash::of_leaf(root) });
    check_detected(&fixture, "a root", head(b"another"), &format!("an entry from 512 to {} was changed, or the root was", size - 1));
}

/// An attacker who repairs everything has a consistent log. It differs from the log that others have seen.
#[test]
fn earlier_checkpoint_detects_a_rewritten_log() {
    let fixture = EvidenceFixture::with_short_history();
    let export = fixture.export_to("export");
    let plain = fs::read_to_string(fixture.apply_fixture.path("converger.toml")).expect("there");
    fs::create_dir(fixture.apply_fixture.path("elsewhere")).expect("made");
    fixture.apply_fixture.write_private("converger.toml", &format!("{plain}[ledger]\nwitness = \"elsewhere/witness\"\n"));
    fixture.run_expecting(&["ledger", "resync", "--reason", "a new witness"], 0);
    fixture.run_expecting(&["ledger", "export", &export.display().to_string()], 0);
    fixture.run_expecting(&["release", "lab", "103"], 0);
    let size = fixture.entry_count();
    let forger = DatabaseForger::open(&fixture.state_directory());
    let mut entries = forger.entries();
    // No other entry depends on the reason of the resync.
    entries.retain(|entry| !String::from_utf8_lossy(entry).contains("\"kind\":\"resync\""));
    forger.rewrite(&entries);
    // The resync began an epoch, which the store has too.
    forger.run("DELETE FROM epoch");
    drop(forger);
    fixture.check_broken(&["verify"], &format!("the witness has seen {size} entries of its ledger"));
    fixture.check_broken(&["ledger", "export", &export.display().to_string()], "the witness has seen ");
    fixture.apply_fixture.write_private("converger.toml", &plain);
    fixture.check_broken(&["ledger", "export", &export.display().to_string()], "differ within their first ");
    // One more entry makes it as long as before.
    fixture.run_expecting(&["hold", "lab", "103", "--reason", "again"], 0);
    fixture.apply_fixture.write_private("converger.toml", &format!("{plain}[ledger]\nwitness = \"elsewhere/witness\"\n"));
    fixture.check_broken(&["verify"], &format!("they differ in the first {size} entries"));
    fixture.check_broken(&["apply", "desired.yaml"], &format!("they differ in the first {size} entries"));
}

/// All commands that sign or print the key.
const SIGNING_COMMANDS: [&[&str]; 5] =
    [&["verify"], &["ledger", "key"], &["ledger", "checkpoint"], &["ledger", "export", "out"], &["ledger", "prove", "0"]];

#[test]
fn detects_a_replaced_removed_or_exposed_key() {
    let fixture = EvidenceFixture::with_short_history();
    let export = fixture.export_to("export");
    let path = fixture.state_directory().join("ledger.key");
    let own = fs::read(&path).expect("there");
    assert_eq!(fs::metadata(&path).expect("there").permissions().mode() & 0o777, 0o600);
    let put = |bytes: &[u8]| {
        fs::write(&path, bytes).expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("set");
    };
    let check = |code, expected: &str| SIGNING_COMMANDS.iter().for_each(|arguments| fixture.check_fails(arguments, code, expected));
    put(format!("{}\n", NoteSigner::new("converger-stranger", &[9; 32]).expect("a key").to_secret_text()).as_bytes());
    check(6, "ledger.key is not the key that the ledger names: someone replaced it");
    fixture.check_broken(&["ledger", "export", "export"], "ledger.key is not the key that the ledger names");
    for cut in [0, own.len() / 2, own.len() - 2] {
        put(&own[..cut]);
        check(6, "ledger.key is damaged: ");
    }
    fs::remove_file(&path).expect("removed");
    // `verify` needs no secret key, but reports that it is missing.
    let output = fixture.run_expecting(&["verify"], 0);
    assert!(output.contains("the signing key is not in the directory"), "{output}");
    SIGNING_COMMANDS[1..].iter().for_each(|arguments| fixture.check_broken(arguments, "the key of this ledger is missing: "));
    put(&own);
    for mode in [0o644, 0o640, 0o602] {
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("set");
        check(1, &format!("and anyone who has it can sign (mode {mode:o})"));
    }
    put(&own);
    assert!(!fixture.apply_fixture.path("out").exists(), "nothing was written");
    fixture.run_expecting(&["verify"], 0);
    fixture.run_expecting(&["verify", &export.display().to_string()], 0);
}

#[test]
fn database_of_a_later_version_is_not_touched() {
    let fixture = EvidenceFixture::with_short_history();
    fixture.key();
    let forger = DatabaseForger::open(&fixture.state_directory());
    forger.run("CREATE TABLE later (x); INSERT INTO later VALUES (1); PRAGMA user_version = 99;");
    drop(forger);
    let before = fs::read(fixture.state_directory().join("converger.db")).expect("there");
    let expected = "version 99";
    for arguments in SIGNING_COMMANDS {
        fixture.check_fails(arguments, 1, expected);
    }
    for arguments in [
        &["verify", "--db", "state"][..],
        &["ledger", "tail"],
        &["ledger", "show", "0"],
        &["apply", "desired.yaml"],
        &["hold", "lab", "101", "--reason", "x"],
        &["ops", "list", "lab"],
        &["audit", "desired.yaml"],
        &["plan", "desired.yaml"],
        &["ledger", "tail", "--db", "state"],
        &["reproduce", "a-run"],
        &["explain", "a-run"],
        &["diff", "a-run", "a-run", "--db", "state"],
        &["backtest", "--config", "converger.toml"],
        &["ledger", "prune", "--before", "0d"],
        &["ledger", "key"],
    ] {
        let output = fixture.run(arguments);
        assert_eq!(output.code, Some(1), "{arguments:?}: {output:?}");
        assert!(output.err.contains(expected) && output.err.contains("error[journal-unreadable]: "), "{arguments:?}: {output:?}");
    }
    assert_eq!(fs::read(fixture.state_directory().join("converger.db")).expect("there"), before, "nothing is changed in it");
}

/// A missing or empty database must not be mistaken for a new one: its key and its locks prove otherwise.
#[test]
fn detects_a_missing_database() {
    let fixture = EvidenceFixture::new();
    fixture.run_expecting(&["hold", "lab", "101", "--reason", "a disk"], 0);
    fixture.key();
    let path = fixture.state_directory().join("converger.db");
    for name in ["converger.db-wal", "converger.db-shm"] {
        let _ = fs::remove_file(fixture.state_directory().join(name));
    }
    let expected = "ledger.key shows that it was in use";
    for emptied in [true, false] {
        if emptied { fs::write(&path, "") } else { fs::remove_file(&path) }.expect("done");
        fixture.check_broken(&["verify"], expected);
        fixture.check_broken(&["ledger", "tail"], expected);
        for arguments in [&["apply", "desired.yaml"][..], &["hold", "lab", "101", "--reason", "x"], &["audit", "desired.yaml"]] {
            fixture.check_fails(arguments, 1, expected);
        }
        assert_eq!(path.exists(), emptied, "nothing is made in its place");
    }
}
