//! What is not a store of ours, not whole or not private is refused by name, and left as it was.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use converger_core::apply::{End, History, Resolution};
use converger_core::guest::EnvironmentName;
use converger_store::conformance::{Sample, now};
use converger_store::{Filter, OpenError, SqliteStore, Store, glance};
use rusqlite::Connection;

use super::ledger::words;
use super::{open, other, place, settings, write};

fn refusal(directory: &Path) -> OpenError {
    SqliteStore::open(directory, settings()).map(|_| ()).expect_err("refused")
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).expect("there").permissions().mode() & 0o777
}

pub(super) fn private(directory: &Path) {
    fs::create_dir(directory).expect("made");
    fs::set_permissions(directory, Permissions::from_mode(0o700)).expect("set");
}

#[test]
fn a_new_store_is_private() {
    let (_above, directory) = place();
    let store = open(&directory);
    write(&store, Sample::new(1).start());
    assert_eq!(mode(&directory), 0o700);
    for name in ["converger.db", "converger.db-wal", "converger.db-shm"] {
        assert_eq!(mode(&directory.join(name)), 0o600, "{name}");
    }
    drop(store);
    fs::set_permissions(directory.join("converger.db"), Permissions::from_mode(0o644)).expect("set");
    let _store = open(&directory);
    assert_eq!(mode(&directory.join("converger.db")), 0o600);
}

#[test]
fn a_directory_that_is_missing_open_or_none_is_refused() {
    let (above, directory) = place();
    let missing = refusal(&directory.join("below"));
    assert!(missing.to_string().contains("cannot make the state directory") && missing.to_string().contains("below"), "{missing}");
    fs::write(&directory, "a file").expect("written");
    let file = refusal(&directory);
    assert!(matches!(&file, OpenError::Unusable { .. }) && file.to_string().contains("it is a file"), "{file}");
    let open = above.path().join("open");
    private(&open);
    fs::set_permissions(&open, Permissions::from_mode(0o750)).expect("set");
    let shared = refusal(&open);
    assert!(shared.to_string().contains("chmod 700"), "{shared}");
    assert_eq!(mode(&open), 0o750, "it is not ours to narrow");
    // Nobody, not even root, makes directories here.
    assert!(matches!(refusal(Path::new("/proc/converger-state")), OpenError::Unusable { .. }));
}

/// Whoever owns it can put anything into it, also under root.
#[test]
fn a_directory_of_somebody_else_is_refused() {
    let (_above, directory) = place();
    private(&directory);
    // Only root may give one away; for everybody else the root directory is somebody else's.
    let is_given = std::os::unix::fs::chown(&directory, Some(65_534), None).is_ok();
    let theirs = if is_given { directory.as_path() } else { Path::new("/") };
    let error = refusal(theirs);
    assert!(error.to_string().contains("name one of your own"), "{error}");
}

#[test]
fn a_link_is_not_followed() {
    let (above, directory) = place();
    private(&directory);
    let (victim, path) = (above.path().join("precious"), directory.join("converger.db"));
    std::os::unix::fs::symlink(&victim, &path).expect("linked");
    assert!(refusal(&directory).to_string().contains("not a link"));
    assert!(!victim.exists(), "it is not made either");
    fs::write(&victim, "precious").expect("written");
    fs::set_permissions(&victim, Permissions::from_mode(0o644)).expect("set");
    assert!(refusal(&directory).to_string().contains("not a link"));
    assert_eq!((fs::read_to_string(&victim).expect("there").as_str(), mode(&victim)), ("precious", 0o644));
}

/// What cannot be looked at may be a store, with a freeze in it.
/// Under its other name it has another log and another lock.
#[test]
fn a_file_with_two_names_is_refused() {
    let (above, directory) = place();
    drop(open(&directory));
    let other = above.path().join("other");
    private(&other);
    fs::hard_link(directory.join("converger.db"), other.join("converger.db")).expect("linked");
    for room in [&directory, &other] {
        let told = refusal(room);
        assert!(matches!(&told, OpenError::Unusable { help, .. } if help.contains("copy it under a new name")), "{told}");
    }
    fs::remove_file(other.join("converger.db")).expect("removed");
    drop(open(&directory));
}

#[test]
fn a_glance_at_what_is_no_store_or_out_of_reach_is_told() {
    let (above, directory) = place();
    let lab = converger_core::guest::EnvironmentName::new("lab").expect("a name");
    let told = |directory: &Path| match converger_store::glance(directory, &lab) {
        Err(OpenError::Unusable { what: "look at", source, .. }) => source.to_string(),
        other => panic!("{other:?}"),
    };
    assert!(converger_store::glance(&directory, &lab).is_ok(), "there is none");
    private(&directory);
    rustix::fs::mknodat(rustix::fs::CWD, directory.join("converger.db"), rustix::fs::FileType::Fifo, 0o600.into(), 0).expect("a pipe");
    assert!(told(&directory).contains("not a regular file"));
    let file = above.path().join("file");
    fs::write(&file, "a file").expect("written");
    assert!(told(&file).contains("Not a directory"));
}

#[test]
fn a_file_that_cannot_be_opened_is_refused() {
    let (_above, directory) = place();
    private(&directory);
    fs::create_dir(directory.join("converger.db")).expect("made");
    let error = refusal(&directory);
    assert!(matches!(&error, OpenError::Unusable { .. }) && error.to_string().contains("converger.db"), "{error}");
}

#[test]
fn a_stranger_is_refused_and_not_touched() {
    let garbage = |path: &Path| fs::write(path, "not a database, and longer than the header of one: ".repeat(40)).expect("written");
    let theirs = |path: &Path| {
        let connection = Connection::open(path).expect("opens");
        connection.execute_batch("CREATE TABLE theirs (x); INSERT INTO theirs VALUES (1);").expect("SQL");
    };
    for make in [&garbage as &dyn Fn(&Path), &theirs] {
        let (_above, directory) = place();
        private(&directory);
        let path = directory.join("converger.db");
        make(&path);
        fs::set_permissions(&path, Permissions::from_mode(0o644)).expect("set");
        let before = fs::read(&path).expect("there");
        let error = refusal(&directory);
        assert!(matches!(error, OpenError::NotOurs { .. }), "{error}");
        assert_eq!((fs::read(&path).expect("there"), mode(&path)), (before, 0o644));
    }
}

#[test]
fn a_newer_store_is_refused_with_both_versions_and_not_touched() {
    let (_above, directory) = place();
    let path = open(&directory).place().to_path_buf();
    Connection::open(&path).expect("opens").pragma_update(None, "user_version", 9).expect("set");
    let before = fs::read(&path).expect("there");
    let error = refusal(&directory);
    assert!(matches!(error, OpenError::Newer { found: 9, known: 2, .. }), "{error}");
    assert!(error.to_string().contains("version 9") && error.to_string().contains("up to 2"), "{error}");
    assert_eq!(fs::read(&path).expect("there"), before);
}

/// Every page of a store, filled with nonsense, is found at the start or belongs to nothing.
#[test]
fn a_damaged_store_is_refused() {
    let (_above, directory) = place();
    let store = open(&directory);
    let sample = Sample::new(2);
    write(&store, sample.start());
    for number in 0..200 {
        write(&store, sample.intent(&sample.operation(number, number)));
    }
    let path = store.place().to_path_buf();
    drop(store);
    let whole = fs::read(&path).expect("there");
    let mut found = 0;
    let pages = whole.len() / 4096;
    for page in 0..pages {
        let mut damaged = whole.clone();
        damaged[page * 4096..(page + 1) * 4096].fill(0x5a);
        fs::write(&path, damaged).expect("written");
        match SqliteStore::open(&directory, settings()) {
            Err(OpenError::Damaged { .. } | OpenError::NotOurs { .. }) => found += 1,
            other => panic!("page {page} of {pages}: {other:?}"),
        }
    }
    assert!(found > 20, "{found} pages are too few");
    fs::write(&path, &whole[..whole.len() / 2]).expect("written");
    assert!(matches!(refusal(&directory), OpenError::Damaged { .. }));
}

/// A new store in the place of one that was lost would know of no hold and of nothing that is under way.
#[test]
fn a_store_that_was_lost_is_not_begun_anew() {
    for remains in ["converger.db-wal", "converger.db-shm", "lab.lock", "ledger.key"] {
        for is_emptied in [false, true] {
            let (_above, directory) = place();
            private(&directory);
            let file = directory.join("converger.db");
            if is_emptied {
                fs::write(&file, "").expect("written");
            }
            fs::write(directory.join(remains), "").expect("written");
            let error = refusal(&directory);
            assert!(matches!(&error, OpenError::Lost { remains: found, .. } if found.ends_with(remains)), "{remains}: {error}");
            let lab = EnvironmentName::new("lab").expect("a name");
            assert!(matches!(glance(&directory, &lab), Err(OpenError::Lost { .. })), "{remains}");
            assert!(error.to_string().contains("restore it from a backup"), "{error}");
            assert_eq!(file.exists(), is_emptied, "nothing is made in its place");
        }
    }
}

/// Other programs have files that end in `.lock` too.
#[test]
fn the_locks_of_others_show_nothing() {
    let (_above, directory) = place();
    private(&directory);
    for (name, text) in [("Cargo.lock", ""), ("Cargo.lock", "version = 4\n"), ("yarn.lock", "# yarn lockfile v1\n"), ("a b.lock", "")] {
        fs::write(directory.join(name), text).expect("written");
    }
    write(&open(&directory), Sample::new(1).start());
    let (_above, directory) = place();
    private(&directory);
    fs::write(directory.join("lab.lock"), "4711\n1794700800000\nann\n").expect("written");
    assert!(matches!(refusal(&directory), OpenError::Lost { .. }), "the lock of one who has it, or died with it");
}

#[test]
fn what_a_process_left_that_died_at_its_first_start_is_opened() {
    let (_above, directory) = place();
    private(&directory);
    fs::write(directory.join("converger.db"), "").expect("written");
    write(&open(&directory), Sample::new(1).start());
    let (_above, directory) = place();
    private(&directory);
    let connection = Connection::open(directory.join("converger.db")).expect("opens");
    connection.pragma_update(None, "journal_mode", "wal").expect("set");
    drop(connection);
    let lab = EnvironmentName::new("lab").expect("a name");
    assert_eq!(glance(&directory, &lab).expect("read"), converger_store::Remembered::default(), "nothing is remembered yet");
    write(&open(&directory), Sample::new(1).start());
}

#[test]
fn refuses_a_store_of_version_1_and_names_both_versions() {
    let (_above, directory) = place();
    private(&directory);
    let connection = other(&directory.join("converger.db"));
    connection.execute_batch(include_str!("../data/store-v1.sql")).expect("SQL");
    drop(connection);
    let before = std::fs::read(directory.join("converger.db")).expect("read");
    let error = SqliteStore::open(&directory, settings()).expect_err("an older format");
    assert!(matches!(error, OpenError::Older { found: 1, known: 2, .. }), "{error}");
    for part in ["schema version 1", "reads version 2 only", env!("CARGO_PKG_VERSION"), "name another state directory"] {
        assert!(error.to_string().contains(part), "{error}");
    }
    let lab = EnvironmentName::new("lab").expect("a name");
    assert!(matches!(glance(&directory, &lab), Err(OpenError::Older { found: 1, .. })));
    assert_eq!(std::fs::read(directory.join("converger.db")).expect("read"), before, "nothing was changed in it");
}

#[test]
fn a_store_of_this_version_is_read() {
    let (_above, directory) = place();
    private(&directory);
    let connection = other(&directory.join("converger.db"));
    connection.execute_batch(include_str!("../data/store-v2.sql")).expect("SQL");
    drop(connection);
    let (store, sample) = (open(&directory), Sample::new(100));
    let histories = now(store.operations(Filter::default(), 9)).expect("read");
    let ids: Vec<&str> = histories.iter().map(|history| history.id().as_str()).collect();
    assert_eq!(ids, ["op-3", "op-2", "op-1"]);
    assert_eq!(*histories[2].operation, sample.one_shot(1, 1, "key-1", "it"));
    assert_eq!(histories[2].task.as_ref().map(|(_, at_ms)| *at_ms), Some(11));
    assert_eq!(histories[1].progress().end, Some(End::Done));
    assert_eq!(histories[0].progress().resolution, Some(Resolution::NotRun));
    let open: Vec<History> = now(store.open_operations(sample.environment())).expect("read");
    assert_eq!(open, histories[2..]);
    assert_eq!(now(store.holds(sample.environment())).expect("read").len(), 1);
    assert!(now(store.freeze(sample.environment())).expect("read").is_some());
    assert_eq!(now(store.run(sample.run().id)).expect("read").and_then(|run| run.ended), Some((End::Held, 7)));
}

/// Every command opens the store, also while an apply writes to it: a head of before with entries of after is no damage.
#[test]
fn whoever_opens_while_another_writes_finds_no_damage() {
    let (_above, directory) = place();
    drop(open(&directory));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let store = open(&directory);
            for number in 0..600 {
                write(&store, words(number..number + 1));
            }
        });
        for _ in 0..60 {
            drop(open(&directory));
        }
    });
    assert_eq!(now(open(&directory).heads()).expect("read").all.size, 600);
}
