//! An export is accepted by independent verifiers and by `verify`. Any change to it is rejected by both, with its location.

use std::fs;

use converger_core::apply::{OperationEnd, RunId, RunStart};
use converger_core::artifact::Digest;
use converger_core::evidence::DecisionInputs;
use converger_core::guest::EnvironmentName;
use converger_core::testing::some_inputs;
use converger_ledger::{Checkpoint, LogHash, NoteSigner};
use converger_store::conformance::block_on;
use converger_store::{Batch, SqliteStore, Store as _, StoreReader as _, StoreSettings, StoreWrite};

use crate::export_files::ExportFiles;
use crate::fixture::{ENTRIES_MAX, ENTRIES_MIN, EvidenceFixture};
use crate::oracle::{accept_export, check_extends};

/// A foreign key.
pub(crate) fn foreign_signer() -> NoteSigner {
    NoteSigner::new("converger-stranger", &[9; 32]).expect("a key")
}

/// A fixture with a long history, its export, the key, and the number of entries.
fn exported_fixture() -> (EvidenceFixture, ExportFiles, String, u64) {
    let fixture = EvidenceFixture::with_long_history();
    let files = ExportFiles::read(&fixture.export_to("export"));
    let (key, size) = (fixture.key(), fixture.entry_count());
    assert!((ENTRIES_MIN..=ENTRIES_MAX).contains(&size), "{size} entries fill no two tiles and a part of a third");
    (fixture, files, key, size)
}

/// Checks that independent verifiers reject the changed files, and that `verify` does so with and without a key, with these words.
#[track_caller]
fn check_detected(fixture: &EvidenceFixture, key: &str, what: &str, files: &ExportFiles, expected: &str) {
    assert!(accept_export(files, key).is_err(), "{what}: strangers accept it");
    files.write(&fixture.apply_fixture.path("changed"));
    fixture.check_broken(&["verify", "changed"], expected);
    let output = fixture.run(&["verify", "changed", "--key", key]);
    assert_eq!(output.code, Some(6), "{what}: {output:?}");
}

#[test]
fn independent_verifier_accepts_the_export() {
    let (fixture, files, key, size) = exported_fixture();
    let accepted = accept_export(&files, &key).expect("accepted");
    assert_eq!(accepted.size, size);
    for (index, entry) in accepted.entries.iter().enumerate().step_by(97) {
        let shown: serde_json::Value =
            serde_json::from_str(&fixture.run_expecting(&["ledger", "show", &index.to_string(), "--json"], 0)).expect("JSON");
        assert_eq!(shown["entry"], serde_json::from_slice::<serde_json::Value>(entry).expect("JSON"), "{index}");
    }
    let verified = fixture.run_expecting(&["verify", "export", "--key", &key], 0);
    assert!(verified.contains(&format!("{size} entries")), "{verified}");
    // The export grows; each state extends the one before, and full files stay unchanged.
    for round in 0..3 {
        fixture.run_expecting(&["hold", "lab", "101", "--reason", "a look"], 0);
        fixture.run_expecting(&["release", "lab", "101"], 0);
        let extended_files = ExportFiles::read(&fixture.export_to("export"));
        let later = accept_export(&extended_files, &key).expect("accepted");
        assert_eq!(later.size, size + 2 * (round + 1));
        check_extends(&accepted, &later, &extended_files).expect("it extends the first");
        for name in ["tile/0/000", "tile/0/001", "tile/entries/000", "tile/entries/001", "log.vkey"] {
            assert_eq!(extended_files.0[name], files.0[name], "{name}");
        }
    }
}

#[test]
fn independent_verifier_accepts_receipts_and_rejects_changed_ones() {
    let (fixture, files, key, size) = exported_fixture();
    let accepted = accept_export(&files, &key).expect("accepted");
    for index in [0, 255, 256, 511, size - 1] {
        let receipt = fixture.run_expecting(&["ledger", "prove", &index.to_string()], 0);
        let parsed = converger_ledger::Receipt::parse(&receipt).expect("a receipt");
        let proof: Vec<_> = parsed.proof.iter().map(|hash| tlog_tiles::Hash(hash.0)).collect();
        let leaf = tlog_tiles::record_hash(&accepted.entries[usize::try_from(index).expect("small")]);
        tlog_tiles::check_record(&proof, size, accepted.root, index, leaf).expect("strangers accept it");
        fixture.apply_fixture.write_private("receipt.txt", &receipt);
        let output = fixture.run_expecting(&["verify", "receipt.txt", "--key", &key], 0);
        assert!(output.contains(&format!("proves entry {index} of")), "{output}");
        fixture
            .apply_fixture
            .write_private("receipt.txt", &receipt.replacen(&format!("index {index}"), &format!("index {}", index ^ 1), 1));
        fixture.check_broken(&["verify", "receipt.txt", "--key", &key], "receipt.txt proves nothing: ");
        fixture.check_broken(&["verify", "receipt.txt", "--key", &foreign_signer().verifier().to_string()], "receipt.txt proves nothing: ");
    }
}

/// All exported files are in the named directory; links that lead out of it are not followed.
#[test]
fn export_follows_no_link() {
    let fixture = EvidenceFixture::with_short_history();
    std::fs::create_dir(fixture.apply_fixture.path("outside")).expect("made");
    for link in ["blob/sha256", "tile/entries", "tile/0"] {
        let target = fixture.apply_fixture.path("linked");
        std::fs::create_dir_all(target.join(link).parent().expect("a room")).expect("made");
        std::os::unix::fs::symlink(fixture.apply_fixture.path("outside"), target.join(link)).expect("linked");
        fixture.check_fails(&["ledger", "export", "linked"], 2, "is a link that leads out of the export");
        assert_eq!(std::fs::read_dir(fixture.apply_fixture.path("outside")).expect("there").count(), 0, "{link}");
        std::fs::remove_dir_all(target).expect("removed");
    }
}

/// Flips one bit.
fn flip_bit(files: &ExportFiles, name: &str, at: usize) -> ExportFiles {
    let mut changed = files.clone();
    changed.file_mut(name)[at] ^= 1;
    changed
}

/// The position of an entry in its bundle, after its length prefix, and its length.
fn entry_span(bundle: &[u8], number: usize) -> (usize, usize) {
    let length = |at: usize| usize::from(u16::from_be_bytes([bundle[at], bundle[at + 1]]));
    let at = (0..number).fold(0, |at, _| at + 2 + length(at));
    (at + 2, length(at))
}

#[test]
fn detects_a_flipped_bit_in_each_kind_of_file() {
    let (fixture, files, key, size) = exported_fixture();
    let width = size % 256;
    let (bundle, part) = ("tile/entries/000".to_owned(), format!("tile/entries/002.p/{width}"));
    let (third, _) = entry_span(&files.0[&bundle], 3);
    let last = files.0[&part].len() - 2;
    let blob = files.first_below("blob/");
    let digest = blob.replacen("blob/sha256/", "sha256:", 1);
    let tile = "the hashes of the tile are not those of the log";
    let entry = "the entry is not the logged one";
    let cases = [
        ("checkpoint".to_owned(), 3, "checkpoint: ".to_owned()),
        ("checkpoint".to_owned(), files.0["checkpoint"].len() - 5, "checkpoint: ".to_owned()),
        ("tile/0/000".to_owned(), 7 * 32 + 5, format!("entry 7 (tile/0/000): {tile}")),
        ("tile/0/001".to_owned(), 255 * 32, format!("entry 511 (tile/0/001): {tile}")),
        (format!("tile/0/002.p/{width}"), 31, format!("entry 512 (tile/0/002.p/{width}): {tile}")),
        ("tile/1/000.p/2".to_owned(), 32, format!("entry 256 (tile/1/000.p/2): {tile}")),
        (bundle, third + 9, format!("entry 3 (tile/entries/000): {entry}")),
        (part, last, format!("entry {} (tile/entries/002.p/{width}): {entry}", size - 1)),
        (blob, 11, format!("names {digest}, but the stored bytes have the digest sha256:")),
        ("log.vkey".to_owned(), 4, "log.vkey: ".to_owned()),
        ("log.vkey".to_owned(), 40, "log.vkey: ".to_owned()),
    ];
    for (name, at, expected) in cases {
        let changed = flip_bit(&files, &name, at);
        assert!(accept_export(&changed, &key).is_err(), "{name}, byte {at}: strangers accept it");
        changed.write(&fixture.apply_fixture.path("changed"));
        fixture.check_broken(&["verify", "changed"], &expected);
        // With `--key`, the key file of the export is not read.
        let code = if name == "log.vkey" { 0 } else { 6 };
        assert_eq!(fixture.run(&["verify", "changed", "--key", &key]).code, Some(code), "{name}, byte {at}");
    }
}

#[test]
fn detects_a_truncated_or_removed_file_with_its_path() {
    let (fixture, files, key, size) = exported_fixture();
    let width = size % 256;
    let bundle = format!("tile/entries/002.p/{width}");
    let (last, _) = entry_span(&files.0[&bundle], usize::try_from(width - 1).expect("small"));
    let fewer = format!("entry {} ({bundle}): the file has too many or too few entries, or is cut off", size - 1);
    for cut in [files.0[&bundle].len() - 1, last, last - 1, last - 2] {
        let mut changed = files.clone();
        changed.file_mut(&bundle).truncate(cut);
        check_detected(&fixture, &key, "a cut bundle", &changed, &fewer);
    }
    let mut changed = files.clone();
    changed.file_mut("tile/0/001").truncate(31);
    check_detected(&fixture, &key, "a cut tile", &changed, "entry 256 (tile/0/001): the hashes of the tile are not those of the log");
    let removed = [
        ("tile/0/000".to_owned(), 0),
        ("tile/0/001".to_owned(), 256),
        (format!("tile/0/002.p/{width}"), 512),
        ("tile/1/000.p/2".to_owned(), 0),
        ("tile/entries/001".to_owned(), 256),
        (bundle, 512),
    ];
    for (name, index) in removed {
        let mut changed = files.clone();
        changed.0.remove(&name);
        check_detected(&fixture, &key, &name, &changed, &format!("entry {index} ({name}): the file is missing"));
    }
    let mut changed = files.clone();
    let blob = changed.first_below("blob/");
    changed.0.remove(&blob);
    changed.write(&fixture.apply_fixture.path("changed"));
    let digest = blob.replacen("blob/sha256/", "sha256:", 1);
    fixture.check_broken(&["verify", "changed"], &format!("names {digest}, which is not stored, and no entry says that it was pruned"));
    let mut changed = files.clone();
    changed.0.remove("checkpoint");
    check_detected(
        &fixture,
        &key,
        "no checkpoint",
        &changed,
        "the file `checkpoint` is missing: the export was interrupted, or the file was removed",
    );
}

/// Two entries are swapped, and the attacker repairs the layers above them one by one.
#[test]
fn detects_reordered_entries_even_with_repaired_hashes() {
    let (fixture, mut files, key, _) = exported_fixture();
    let bundle = files.file_mut("tile/entries/000");
    let ((five, five_long), (six, six_long)) = (entry_span(bundle, 5), entry_span(bundle, 6));
    let swapped = [&bundle[six - 2..six + six_long], &bundle[five - 2..five + five_long]].concat();
    bundle.splice(five - 2..six + six_long, swapped);
    check_detected(&fixture, &key, "reordered", &files, "entry 5 (tile/entries/000): the entry is not the logged one");
    let tile = files.file_mut("tile/0/000");
    let (left, right) = (tile[5 * 32..6 * 32].to_vec(), tile[6 * 32..7 * 32].to_vec());
    tile.splice(5 * 32..7 * 32, [right, left].concat());
    check_detected(&fixture, &key, "with its tile", &files, "entry 0 (tile/1/000.p/2): the hashes of the tile are not those of the log");
    let mut tree = converger_ledger::MerkleTree::default();
    files.0["tile/0/000"].as_chunks::<32>().0.iter().for_each(|hash| tree.append(LogHash(*hash), |_, _, _| {}));
    files.file_mut("tile/1/000.p/2")[..32].copy_from_slice(&tree.root().0);
    check_detected(&fixture, &key, "with all its tiles", &files, "the root of the entries is ");
}

#[test]
fn detects_a_swapped_checkpoint() {
    let (fixture, files, key, size) = exported_fixture();
    let old = files.0["checkpoint"].clone();
    fixture.run_expecting(&["hold", "lab", "101", "--reason", "a look"], 0);
    let later = ExportFiles::read(&fixture.export_to("later"));
    let mut swapped = later.clone();
    *swapped.file_mut("checkpoint") = old.clone();
    let missing = format!("tile/entries/002.p/{}", size % 256);
    check_detected(&fixture, &key, "an older one", &swapped, &format!("entry 512 ({missing}): the file is missing"));
    let mut ahead = files.clone();
    *ahead.file_mut("checkpoint") = later.0["checkpoint"].clone();
    let missing = format!("tile/entries/002.p/{}", (size + 1) % 256);
    check_detected(&fixture, &key, "a later one", &ahead, &format!("entry 512 ({missing}): the file is missing"));
    let other = EvidenceFixture::with_short_history();
    let mut foreign_files = files.clone();
    *foreign_files.file_mut("checkpoint") = ExportFiles::read(&other.export_to("export")).0["checkpoint"].clone();
    check_detected(&fixture, &key, "of another log", &foreign_files, "checkpoint: ");
}

/// The first fault is reported, even if others follow.
#[test]
fn reports_the_earliest_fault_first() {
    let (fixture, files, key, size) = exported_fixture();
    let part = format!("tile/entries/002.p/{}", size % 256);
    let (fifth, _) = entry_span(&files.0["tile/entries/000"], 5);
    let mut changed = flip_bit(&files, "tile/entries/000", fifth + 12);
    changed.0.remove(&part);
    let expected = "entry 5 (tile/0/000): the entry and its hash differ, and more is missing or broken after them";
    check_detected(&fixture, &key, "an entry and a file behind it", &changed, expected);
}

/// A pruned observation that a later run references again must exist again: an export without it would be broken evidence for its
/// recipient.
#[test]
fn export_requires_a_pruned_blob_that_is_named_again() {
    let fixture = EvidenceFixture::with_short_history();
    let (reading, rest) = (Digest::of_bytes(b"a reading"), Digest::of_bytes(b"what else they rest on"));
    let lab = EnvironmentName::new("lab").expect("a name");
    let started = |id: &str, at_ms| {
        let inputs = DecisionInputs { config: rest, intent: rest, observation: reading, rules: rest, catalogue: rest, ..some_inputs() };
        let id = RunId::new(id).expect("an id");
        let run = RunStart { id: id.clone(), environment: lab.clone(), plan: rest, by: "ann".into(), at_ms, boot: None };
        Batch::from(StoreWrite::RunStarted { run, inputs: Box::new(inputs) }).with(StoreWrite::RunEnded {
            id,
            end: OperationEnd::Done,
            at_ms,
        })
    };
    let store = SqliteStore::open(&fixture.state_directory(), StoreSettings::new(|fatal| panic!("{fatal}"))).expect("opens");
    let put = |batch: Batch| drop(block_on(store.commit(batch)).expect("written"));
    put(Batch::from(StoreWrite::blob(b"a reading".to_vec())).with(StoreWrite::blob(b"what else they rest on".to_vec())));
    put(started("first", 5));
    let seen = block_on(store.heads()).expect("read").all.size;
    put(Batch::from(StoreWrite::Prune { digests: [reading].into(), seen, by: "ann".into(), before_ms: 9, at_ms: 10 }));
    fixture.export_to("before");
    fixture.run_expecting(&["verify", "before"], 0);
    put(started("second", 20));
    drop(store);
    fixture.check_broken(&["ledger", "export", "after"], "error[evidence-missing]: ");
    fixture.check_broken(&["verify"], "error[evidence-missing]: ");
}

/// An extended export still contains the files of its older states. With the older checkpoint it is that older state, complete; `verify`
/// reports that there is more than the checkpoint signs.
#[test]
fn reports_an_older_checkpoint_in_an_extended_export() {
    let (fixture, files, key, size) = exported_fixture();
    fixture.run_expecting(&["hold", "lab", "101", "--reason", "a look"], 0);
    let mut extended = ExportFiles::read(&fixture.export_to("export"));
    *extended.file_mut("checkpoint") = files.0["checkpoint"].clone();
    extended.write(&fixture.apply_fixture.path("changed"));
    let output = fixture.run_expecting(&["verify", "changed", "--key", &key], 0);
    assert!(output.contains(&format!("{size} entries")), "{output}");
    assert!(output.contains("it contains files of a longer log"), "{output}");
    // With the later checkpoint, the truncation is detected without such a note.
    fixture
        .apply_fixture
        .write_private("seen", &String::from_utf8_lossy(&fs::read(fixture.apply_fixture.path("export/checkpoint")).expect("there")));
    let cut = format!("seen covers {} entries, and there are {size}: the ledger was cut, or restored from an older copy", size + 1);
    fixture.check_broken(&["verify", "changed", "--key", &key, "--since", "seen"], &cut);
    let output = fixture.run_expecting(&["verify", "export", "--key", &key], 0);
    assert!(output.contains(&format!("{} entries", size + 1)) && !output.contains("longer log"), "{output}");
}

/// Continuing in both copies of a state directory gives two logs of the same length.
#[test]
fn detects_two_heads_of_one_size() {
    let (fixture, _, key, size) = exported_fixture();
    let fork = fixture.copy_state_to("fork");
    fixture.run_expecting(&["hold", "lab", "101", "--reason", "one"], 0);
    let one = ExportFiles::read(&fixture.export_to("export"));
    fixture.restore_state(&fork);
    fixture.run_expecting(&["hold", "lab", "101", "--reason", "other"], 0);
    let differ = format!("export and the ledger differ within their first {} entries", size + 1);
    fixture.check_broken(&["ledger", "export", "export"], &differ);
    assert_eq!(ExportFiles::read(&fixture.apply_fixture.path("export")), one, "nothing is written over it");
    let other = ExportFiles::read(&fixture.export_to("other"));
    let (head, other_log) = (accept_export(&one, &key).expect("accepted"), accept_export(&other, &key).expect("accepted"));
    assert_eq!((head.size, other_log.size), (size + 1, size + 1));
    assert!(check_extends(&head, &other_log, &other).is_err() && check_extends(&other_log, &head, &one).is_err());
    let differ = format!("export/checkpoint belongs to a different ledger: they differ in the first {} entries", size + 1);
    fixture.check_broken(&["verify", "other", "--since", "export/checkpoint"], &differ);
    fixture.check_broken(&["verify", "--since", "export/checkpoint"], &differ);
    let mut swapped = one.clone();
    *swapped.file_mut("checkpoint") = other.0["checkpoint"].clone();
    check_detected(&fixture, &key, "the other head", &swapped, "the root of the entries is ");
}

/// The witness has seen one of two logs of the same length: the other one must not be written to.
#[test]
fn witness_detects_another_head_of_the_same_size() {
    let fixture = EvidenceFixture::with_short_history();
    fixture.key();
    let plain = fs::read_to_string(fixture.apply_fixture.path("converger.toml")).expect("there");
    fs::create_dir(fixture.apply_fixture.path("elsewhere")).expect("made");
    fixture.apply_fixture.write_private("converger.toml", &format!("{plain}[ledger]\nwitness = \"elsewhere/witness\"\n"));
    fixture.run_expecting(&["ledger", "resync", "--reason", "a new witness"], 0);
    let fork = fixture.copy_state_to("fork");
    fixture.run_expecting(&["hold", "lab", "101", "--reason", "one"], 0);
    let size = fixture.entry_count();
    fixture.restore_state(&fork);
    let shorter = format!("was restored from an older copy: the witness has seen {size} entries of its ledger");
    for arguments in [&["verify"][..], &["hold", "lab", "102", "--reason", "x"], &["apply", "desired.yaml"], &["thaw", "lab"]] {
        fixture.check_broken(arguments, &shorter);
    }
    fixture.apply_fixture.write_private("converger.toml", &plain);
    fixture.run_expecting(&["hold", "lab", "101", "--reason", "other"], 0);
    fixture.apply_fixture.write_private("converger.toml", &format!("{plain}[ledger]\nwitness = \"elsewhere/witness\"\n"));
    let other = format!("is not the one that the witness has seen: they differ in the first {size} entries");
    for arguments in
        [&["verify"][..], &["hold", "lab", "102", "--reason", "x"], &["apply", "desired.yaml"], &["freeze", "lab", "--reason", "x"]]
    {
        fixture.check_broken(arguments, &other);
    }
}

/// An attacker signs the whole log with their own key and adds that key to the export.
#[test]
fn detects_a_replaced_key() {
    let (fixture, files, key, size) = exported_fixture();
    let root = LogHash(accept_export(&files, &key).expect("accepted").root.0);
    let other = foreign_signer();
    let mut replaced = files.clone();
    *replaced.file_mut("log.vkey") = format!("{}\n", other.verifier()).into_bytes();
    assert!(accept_export(&replaced, &key).is_err());
    replaced.write(&fixture.apply_fixture.path("changed"));
    fixture.check_broken(&["verify", "changed"], "checkpoint: ");
    let output = fixture.run_expecting(&["verify", "changed", "--key", &key], 0);
    assert!(output.contains("the key in the export is not the one that signed it"), "{output}");
    let signed = Checkpoint { origin: other.verifier().name().to_owned(), size, root }.sign(&other);
    *replaced.file_mut("checkpoint") = signed.into_bytes();
    let named = format!("the checkpoint is signed with {}, and the ledger records {key}", other.verifier());
    check_detected(&fixture, &key, "another key that signs", &replaced, &named);
    fixture.check_broken(&["verify", "changed", "--key", &other.verifier().to_string()], &named);
}

/// A blob that no entry references is not part of the record.
#[test]
fn detects_an_unreferenced_blob_and_a_wrong_digest() {
    let (fixture, files, key, _) = exported_fixture();
    let own = converger_core::artifact::Digest::of_bytes(b"nobody's").to_string().replace("sha256:", "");
    let zeros = "0".repeat(64);
    for (name, expected) in [
        (format!("blob/sha256/{zeros}"), format!("blob/sha256/{zeros} has a wrong name: its digest is sha256:{own}")),
        (format!("blob/sha256/{own}"), format!("blob/sha256/{own} is named by no entry")),
        ("blob/sha256/notes".to_owned(), "blob/sha256/notes is not part of an export: its name is not a digest".to_owned()),
        ("blob/notes".to_owned(), "blob/notes is not part of an export".to_owned()),
    ] {
        let mut more = files.clone();
        more.0.insert(name, b"nobody's".to_vec());
        more.write(&fixture.apply_fixture.path("changed"));
        fixture.check_broken(&["verify", "changed", "--key", &key], &expected);
    }
    files.write(&fixture.apply_fixture.path("changed"));
    fixture.run_expecting(&["verify", "changed", "--key", &key], 0);
}

/// The author of an export may also have made its key.
#[test]
fn export_with_its_own_key_is_reported_as_unverified() {
    let (fixture, _, key, _) = exported_fixture();
    fixture.export_to("given");
    let output = fixture.run_expecting(&["verify", "given"], 0);
    assert!(output.starts_with("intact under an unverified key: given"), "{output}");
    assert!(
        output.contains("the key is not verified: it was read from the export itself") && output.contains("verify again with `--key KEY`"),
        "{output}"
    );
    let json = |arguments: &[&str]| {
        serde_json::from_str::<serde_json::Value>(&fixture.run_expecting(arguments, 0)).expect("JSON")["key_verified"].clone()
    };
    assert_eq!(json(&["verify", "given", "--json"]), false);
    assert_eq!(json(&["verify", "given", "--key", &key, "--json"]), true);
}

/// A pipe or a directory in place of a file is no disk error: the export was changed.
#[test]
fn detects_a_pipe_or_directory_in_place_of_a_file() {
    let (fixture, files, key, _) = exported_fixture();
    let tile = files.0.keys().find(|path| path.starts_with("tile/entries/")).expect("entries").clone();
    for path in [tile, "checkpoint".to_owned()] {
        files.write(&fixture.apply_fixture.path("changed"));
        let changed_path = fixture.apply_fixture.path("changed").join(&path);
        std::fs::remove_file(&changed_path).expect("removed");
        rustix::fs::mknodat(rustix::fs::CWD, &changed_path, rustix::fs::FileType::Fifo, 0o600.into(), 0).expect("a pipe");
        fixture.check_broken(&["verify", "changed", "--key", &key], &format!("{path} is not a regular file"));
        std::fs::remove_file(&changed_path).expect("removed");
    }
}
