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
pub(crate) fn check_detected(bed: &EvidenceFixture, what: &str, change: impl FnOnce(&DatabaseForger), words: &str) {
    let whole = bed.copy_state_to("whole");
    change(&DatabaseForger::open(&bed.state_directory()));
    // Also a copy on another machine without a configuration.
    let copy = bed.copy_state_to("copy");
    for arguments in [&["verify"][..], &["verify", "--db", "copy"]] {
        let said = bed.run(arguments);
        assert_eq!(said.code, Some(6), "{what}: {said:?}");
        assert!(said.err.contains(words) && said.out.is_empty(), "{what} must be told as `{words}`: {said:?}");
    }
    bed.restore_state(&whole);
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
    let bed = EvidenceFixture::with_short_history();
    let id = DatabaseForger::open(&bed.state_directory()).text(LAST_OPERATION);
    let gone = format!("error[unlogged-execution]: the ledger has the operation {id}, and the journal does not");
    check_detected(&bed, "an operation", |forger| forger.run(&delete_operation_sql(&id)), &gone);
    let other = format!("error[unlogged-execution]: the journal differs from the ledger in the operation {id}");
    for table in ["ends", "tasks", "sendings"] {
        let removed = format!("DELETE FROM {table} WHERE operation = (SELECT max(seq) FROM operations)");
        check_detected(&bed, table, |forger| forger.run(&removed), &other);
    }
    let later = "UPDATE ends SET at_ms = at_ms + 1, sum = row_sum(operation, ending, at_ms + 1, body)";
    check_detected(&bed, "another time", |forger| forger.run(later), "error[unlogged-execution]: the journal differs from the ledger in ");
    bed.run_expecting(&["verify"], 0);
}

#[test]
fn detects_an_operation_missing_from_the_ledger() {
    let bed = EvidenceFixture::with_short_history();
    let id = DatabaseForger::open(&bed.state_directory()).text(LAST_OPERATION);
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
    check_detected(&bed, "all its entries", without(""), &unlogged);
    let other = format!("error[unlogged-execution]: the journal differs from the ledger in the operation {id}");
    check_detected(&bed, "its outcome", without("\"kind\":\"outcome\""), &other);
    let bare = format!("cannot stand where it does: it is about the operation {id}, which has no intent before it");
    check_detected(&bed, "its intent", without("\"kind\":\"intent\""), &bare);
}

/// Runs, holds and freezes are in both the journal and the ledger, too.
#[test]
fn detects_a_run_hold_or_freeze_missing_from_journal_or_ledger() {
    let bed = EvidenceFixture::with_short_history();
    let check = |statements: &str, words: &str| check_detected(&bed, statements, |forger| forger.run(statements), words);
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
    bed.run_expecting(&["verify"], 0);
}

/// A finding is located at the entry that the journal contradicts, for people and for programs.
#[test]
fn detects_a_journal_mismatch_at_its_entry() {
    let bed = EvidenceFixture::with_short_history();
    let kinds: Vec<String> = DatabaseForger::open(&bed.state_directory())
        .entries()
        .iter()
        .map(|entry| parse_entry(entry).expect("an entry").kind().to_owned())
        .collect();
    let last = |kind: &str| kinds.iter().rposition(|own| own == kind).expect("one") as u64;
    let of_last = "WHERE operation = (SELECT max(seq) FROM operations)";
    let hold = "seq, environment, vmid, who, reason, at_ms";
    let id = DatabaseForger::open(&bed.state_directory()).text(LAST_OPERATION);
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
        let (whole, index) = (bed.copy_state_to("whole"), last(kind));
        DatabaseForger::open(&bed.state_directory()).run(&statements);
        let said = bed.run(&["verify", "--json"]);
        let json: serde_json::Value = serde_json::from_str(&said.out).unwrap_or_else(|error| panic!("{error}: {said:?}"));
        assert_eq!((&json["code"], &json["index"]), (&"unlogged-execution".into(), &index.into()), "{kind}: {said:?}");
        assert!(said.err.contains(&format!("(entry {index})")), "{kind}: {said:?}");
        bed.restore_state(&whole);
        fs::remove_dir_all(whole).expect("removed");
    }
}

/// With `--since`, faults are reported like without it: the key for the checkpoint is found while the ledger is verified.
#[test]
fn broken_record_is_reported_with_since_too() {
    let bed = EvidenceFixture::with_short_history();
    let seen = bed.run_expecting(&["ledger", "checkpoint"], 0);
    bed.stage.write_private("seen", &seen);
    bed.run_expecting(&["verify", "--since", "seen"], 0);
    let none = "UPDATE ledger_entries SET body = CAST('{}' AS BLOB), sum = row_sum(seq, CAST('{}' AS BLOB)) WHERE seq = 1";
    let cases = [("DELETE FROM ledger_entries WHERE seq = 1", "entry 0 is missing"), (none, "entry 0 is none that this program writes")];
    for (statements, words) in cases {
        let whole = bed.copy_state_to("whole");
        DatabaseForger::open(&bed.state_directory()).run(statements);
        bed.check_broken(&["verify", "--since", "seen"], words);
        let said = bed.run(&["verify", "--since", "seen", "--json"]);
        let json: serde_json::Value = serde_json::from_str(&said.out).unwrap_or_else(|error| panic!("{error}: {said:?}"));
        assert_eq!((said.code, &json["whole"], &json["index"]), (Some(6), &false.into(), &0.into()), "{said:?}");
        bed.restore_state(&whole);
        fs::remove_dir_all(whole).expect("removed");
    }
    // A changed checkpoint is not a checkpoint, whatever the state of the record.
    bed.stage.write_private("seen", &seen.replacen('\n', "\n1", 1));
    bed.check_broken(&["verify", "--since", "seen"], "seen: ");
}

/// A step that runs twice in one run acts twice; each of the two is a step of the plan.
#[test]
fn detects_a_step_started_twice_in_one_run() {
    let bed = EvidenceFixture::with_short_history();
    let id = DatabaseForger::open(&bed.state_directory()).text(LAST_OPERATION);
    let twin = format!("{id}9");
    let twice = |forger: &DatabaseForger| {
        let mut entries: Vec<String> = forger.entries().into_iter().map(|entry| String::from_utf8(entry).expect("text")).collect();
        let about = |entry: &&String, kind: &str| entry.contains(&id) && entry.contains(kind);
        let again = ["\"kind\":\"intent\"", "\"kind\":\"outcome\""]
            .map(|kind| entries.iter().find(|entry| about(entry, kind)).expect("one").replace(&id, &twin));
        let behind = 1 + entries.iter().rposition(|entry| about(&entry, "\"kind\":\"outcome\"")).expect("one");
        entries.splice(behind..behind, again);
        forger.rewrite(&entries.into_iter().map(String::into_bytes).collect::<Vec<_>>());
    };
    let words = format!("the operation {twin} repeats a step of guest 102 in the run ");
    check_detected(&bed, "a step twice", twice, &words);
}

/// A blob that an entry references is unchanged, or a person pruned it.
#[test]
fn detects_a_missing_or_changed_blob() {
    let bed = EvidenceFixture::with_short_history();
    let digest = DatabaseForger::open(&bed.state_directory()).text("SELECT plan FROM runs LIMIT 1");
    let gone = format!("names {digest}, which is not stored, and no entry says that it was pruned");
    check_detected(&bed, "gone", |forger| forger.run(&format!("DELETE FROM blobs WHERE digest = '{digest}'")), &gone);
    let other = format!("UPDATE blobs SET body = CAST('{{}}' AS BLOB) WHERE digest = '{digest}'");
    check_detected(&bed, "another", |forger| forger.run(&other), "its bytes do not match the digest");
}

/// Row checksums protect against disk errors. An attacker makes them right, and is detected by the hashes.
#[test]
fn detects_moved_changed_or_removed_entries_with_their_index() {
    let bed = EvidenceFixture::with_long_history();
    let size = usize::try_from(bed.entry_count()).expect("small");
    let edited = |edit: fn(&mut Vec<Vec<u8>>)| {
        move |forger: &DatabaseForger| {
            let mut entries = forger.entries();
            edit(&mut entries);
            forger.put_entries(&entries);
        }
    };
    let kept = "the stored hashes are not those of the entries";
    check_detected(&bed, "moved", edited(|entries| entries.swap(40, 41)), &format!("entry 40 (tile/0/000): {kept}"));
    check_detected(&bed, "moved far", edited(|entries| entries.swap(300, 400)), &format!("entry 300 (tile/0/001): {kept}"));
    let strange = "entry 40 cannot stand where it does: it is about the run ";
    check_detected(&bed, "moved into another run", edited(|entries| entries.swap(40, 400)), strange);
    let blank = |entries: &mut Vec<Vec<u8>>| {
        let at = entries[310].iter().position(|byte| *byte == b'1').expect("a number");
        entries[310][at] = b'2';
    };
    check_detected(&bed, "changed", edited(blank), &format!("entry 310 (tile/0/001): {kept}"));
    let doubled = |entries: &mut Vec<Vec<u8>>| {
        let twin = entries[50].clone();
        entries[51] = twin;
    };
    check_detected(&bed, "written over", edited(doubled), &format!("entry 51 (tile/0/000): {kept}"));
    // The entry before it was changed, which its hash reveals once the tile is full.
    let both = |entries: &mut Vec<Vec<u8>>| {
        let at = entries[205].iter().position(|byte| *byte == b'1').expect("a number");
        entries[205][at] = b'2';
        entries[209] = b"{}".to_vec();
    };
    check_detected(&bed, "changed, and one behind it is none", edited(both), &format!("entry 205 (tile/0/000): {kept}"));
    let none = |entries: &mut Vec<Vec<u8>>| {
        entries[205] = b"{}".to_vec();
        entries.swap(209, 210);
    };
    check_detected(&bed, "none, and one behind it is another", edited(none), "entry 205 is none that this program writes");
    let gap = |forger: &DatabaseForger| forger.run("DELETE FROM ledger_entries WHERE seq = 100");
    check_detected(&bed, "a gap", gap, "entry 99 is missing");
    let last = format!("DELETE FROM ledger_entries WHERE seq = {size}");
    check_detected(&bed, "a cut tail", |forger| forger.run(&last), &format!("entry {} is missing", size - 1));
    let tail = |entries: &mut Vec<Vec<u8>>| {
        let last = entries.len() - 1;
        entries.swap(last - 2, last - 1);
    };
    let body = "CAST('{}' AS BLOB)";
    let more = format!("INSERT INTO ledger_entries VALUES ({0}, {body}, row_sum({0}, {body}))", size + 1);
    check_detected(&bed, "one more", |forger| forger.run(&more), &format!("the ledger should have {size} entries and "));
    check_detected(&bed, "a moved tail", edited(tail), &format!("an entry from 512 to {} was changed, or the root was", size - 1));
    bed.run_expecting(&["verify"], 0);
}

#[test]
fn detects_changed_hashes_and_heads() {
    let bed = EvidenceFixture::with_long_history();
    let size = bed.entry_count();
    let kept = "entry 259 (tile/0/001): the stored hashes are not those of the entries";
    let tile = |forger: &DatabaseForger| {
        let (mut growth, mut full) = (LogBuilder::default(), Vec::new());
        for entry in forger.entries() {
            growth.append(LogHash::of_leaf(&entry), |tile, hashes, root| full.push((tile, hashes.to_vec(), root)));
        }
        let (tile, mut hashes, root) = full.swap_remove(1);
        hashes[3] = LogHash::of_leaf(b"another");
        forger.put_tile(tile, &hashes, root);
    };
    check_detected(&bed, "a tile", tile, kept);
    for place in [0, 1] {
        let gone = format!("DELETE FROM ledger_tiles WHERE level = 0 AND place = {place}");
        let missing = format!("entry {} (tile/0/00{place}): its hashes are missing", place * 256);
        check_detected(&bed, "a tile that is gone", |forger| forger.run(&gone), &missing);
    }
    let head = |root| move |forger: &DatabaseForger| forger.put_head(LedgerHead { size, root: LogHash::of_leaf(root) });
    check_detected(&bed, "a root", head(b"another"), &format!("an entry from 512 to {} was changed, or the root was", size - 1));
}

/// An attacker who repairs everything has a consistent log. It differs from the log that others have seen.
#[test]
fn earlier_checkpoint_detects_a_rewritten_log() {
    let bed = EvidenceFixture::with_short_history();
    let export = bed.export_to("export");
    let plain = fs::read_to_string(bed.stage.path("converger.toml")).expect("there");
    fs::create_dir(bed.stage.path("elsewhere")).expect("made");
    bed.stage.write_private("converger.toml", &format!("{plain}[ledger]\nwitness = \"elsewhere/witness\"\n"));
    bed.run_expecting(&["ledger", "resync", "--reason", "a new witness"], 0);
    bed.run_expecting(&["ledger", "export", &export.display().to_string()], 0);
    bed.run_expecting(&["release", "lab", "103"], 0);
    let size = bed.entry_count();
    let forger = DatabaseForger::open(&bed.state_directory());
    let mut entries = forger.entries();
    // No other entry depends on the reason of the resync.
    entries.retain(|entry| !String::from_utf8_lossy(entry).contains("\"kind\":\"resync\""));
    forger.rewrite(&entries);
    drop(forger);
    bed.check_broken(&["verify"], &format!("the witness has seen {size} entries of its ledger"));
    bed.check_broken(&["ledger", "export", &export.display().to_string()], "the witness has seen ");
    bed.stage.write_private("converger.toml", &plain);
    bed.check_broken(&["ledger", "export", &export.display().to_string()], "differ within their first ");
    // One more entry makes it as long as before.
    bed.run_expecting(&["hold", "lab", "103", "--reason", "again"], 0);
    bed.stage.write_private("converger.toml", &format!("{plain}[ledger]\nwitness = \"elsewhere/witness\"\n"));
    bed.check_broken(&["verify"], &format!("they differ in the first {size} entries"));
    bed.check_broken(&["apply", "desired.yaml"], &format!("they differ in the first {size} entries"));
}

/// All commands that sign or print the key.
const SIGNING_COMMANDS: [&[&str]; 5] =
    [&["verify"], &["ledger", "key"], &["ledger", "checkpoint"], &["ledger", "export", "out"], &["ledger", "prove", "0"]];

#[test]
fn detects_a_replaced_removed_or_exposed_key() {
    let bed = EvidenceFixture::with_short_history();
    let export = bed.export_to("export");
    let path = bed.state_directory().join("ledger.key");
    let own = fs::read(&path).expect("there");
    assert_eq!(fs::metadata(&path).expect("there").permissions().mode() & 0o777, 0o600);
    let put = |bytes: &[u8]| {
        fs::write(&path, bytes).expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("set");
    };
    let check = |code, words: &str| SIGNING_COMMANDS.iter().for_each(|arguments| bed.check_fails(arguments, code, words));
    put(format!("{}\n", NoteSigner::new("converger-stranger", &[9; 32]).expect("a key").to_secret_text()).as_bytes());
    check(6, "ledger.key is not the key that the ledger names: someone replaced it");
    bed.check_broken(&["ledger", "export", "export"], "ledger.key is not the key that the ledger names");
    for cut in [0, own.len() / 2, own.len() - 2] {
        put(&own[..cut]);
        check(6, "ledger.key is damaged: ");
    }
    fs::remove_file(&path).expect("removed");
    // `verify` needs no secret key, but reports that it is missing.
    let told = bed.run_expecting(&["verify"], 0);
    assert!(told.contains("the signing key is not in the directory"), "{told}");
    SIGNING_COMMANDS[1..].iter().for_each(|arguments| bed.check_broken(arguments, "the key of this ledger is missing: "));
    put(&own);
    for mode in [0o644, 0o640, 0o602] {
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("set");
        check(1, &format!("and anyone who has it can sign (mode {mode:o})"));
    }
    put(&own);
    assert!(!bed.stage.path("out").exists(), "nothing was written");
    bed.run_expecting(&["verify"], 0);
    bed.run_expecting(&["verify", &export.display().to_string()], 0);
}

#[test]
fn database_of_a_later_version_is_not_touched() {
    let bed = EvidenceFixture::with_short_history();
    bed.key();
    let forger = DatabaseForger::open(&bed.state_directory());
    forger.run("CREATE TABLE later (x); INSERT INTO later VALUES (1); PRAGMA user_version = 99;");
    drop(forger);
    let before = fs::read(bed.state_directory().join("converger.db")).expect("there");
    let words = "version 99";
    for arguments in SIGNING_COMMANDS {
        bed.check_fails(arguments, 1, words);
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
        let said = bed.run(arguments);
        assert_eq!(said.code, Some(1), "{arguments:?}: {said:?}");
        assert!(said.err.contains(words) && said.err.contains("error[journal-unreadable]: "), "{arguments:?}: {said:?}");
    }
    assert_eq!(fs::read(bed.state_directory().join("converger.db")).expect("there"), before, "nothing is changed in it");
}

/// A missing or empty database must not be mistaken for a new one: its key and its locks prove otherwise.
#[test]
fn detects_a_missing_database() {
    let bed = EvidenceFixture::new();
    bed.run_expecting(&["hold", "lab", "101", "--reason", "a disk"], 0);
    bed.key();
    let path = bed.state_directory().join("converger.db");
    for name in ["converger.db-wal", "converger.db-shm"] {
        let _ = fs::remove_file(bed.state_directory().join(name));
    }
    let words = "ledger.key shows that it was in use";
    for emptied in [true, false] {
        if emptied { fs::write(&path, "") } else { fs::remove_file(&path) }.expect("done");
        bed.check_broken(&["verify"], words);
        bed.check_broken(&["ledger", "tail"], words);
        for arguments in [&["apply", "desired.yaml"][..], &["hold", "lab", "101", "--reason", "x"], &["audit", "desired.yaml"]] {
            bed.check_fails(arguments, 1, words);
        }
        assert_eq!(path.exists(), emptied, "nothing is made in its place");
    }
}
