//! A store that is foreign, damaged or accessible to others is refused with a reason, and not changed.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use converger_core::apply::{OperationEnd, OperationHistory, Resolution};
use converger_core::guest::EnvironmentName;
use converger_store::conformance::{OperationSample, block_on};
use converger_store::{OperationFilter, SqliteStore, StoreOpenError, StoreReader as _};
use rusqlite::Connection;

use super::ledger::recovery_batch;
use super::{commit_written, open_store, open_unchecked_connection, panicking_settings, peek_conditions, state_directory_path};

fn open_error(directory: &Path) -> StoreOpenError {
    SqliteStore::open(directory, panicking_settings()).map(|_| ()).expect_err("refused")
}

fn permission_bits(path: &Path) -> u32 {
    fs::metadata(path).expect("there").permissions().mode() & 0o777
}

pub(super) fn make_private_directory(directory: &Path) {
    fs::create_dir(directory).expect("made");
    fs::set_permissions(directory, Permissions::from_mode(0o700)).expect("set");
}

#[test]
fn new_store_is_private() {
    let (_above, directory) = state_directory_path();
    let store = open_store(&directory);
    commit_written(&store, OperationSample::new(1).start_write());
    assert_eq!(permission_bits(&directory), 0o700);
    for name in ["converger.db", "converger.db-wal", "converger.db-shm"] {
        assert_eq!(permission_bits(&directory.join(name)), 0o600, "{name}");
    }
    drop(store);
    fs::set_permissions(directory.join("converger.db"), Permissions::from_mode(0o644)).expect("set");
    let _store = open_store(&directory);
    assert_eq!(permission_bits(&directory.join("converger.db")), 0o600);
}

#[test]
fn refuses_a_missing_public_or_invalid_directory() {
    let (above, directory) = state_directory_path();
    let missing = open_error(&directory.join("below"));
    assert!(missing.to_string().contains("cannot create the state directory") && missing.to_string().contains("below"), "{missing}");
    fs::write(&directory, "a file").expect("written");
    let file = open_error(&directory);
    assert!(matches!(&file, StoreOpenError::Unusable { .. }) && file.to_string().contains("it is a file"), "{file}");
    let open = above.path().join("open");
    make_private_directory(&open);
    fs::set_permissions(&open, Permissions::from_mode(0o750)).expect("set");
    let shared = open_error(&open);
    assert!(shared.to_string().contains("chmod 700"), "{shared}");
    assert_eq!(permission_bits(&open), 0o750, "the mode is not changed");
    // Nobody, not even root, can create directories here.
    assert!(matches!(open_error(Path::new("/proc/converger-state")), StoreOpenError::Unusable { .. }));
}

/// The owner can put anything into the directory, even if root uses it.
#[test]
fn refuses_a_directory_of_another_user() {
    let (_above, directory) = state_directory_path();
    make_private_directory(&directory);
    // Only root can change the owner. For other users, the root directory belongs to someone else.
    let is_given = std::os::unix::fs::chown(&directory, Some(65_534), None).is_ok();
    let foreign_directory = if is_given { directory.as_path() } else { Path::new("/") };
    let error = open_error(foreign_directory);
    assert!(error.to_string().contains("use one that you own"), "{error}");
}

#[test]
fn does_not_follow_links() {
    let (above, directory) = state_directory_path();
    make_private_directory(&directory);
    let (victim, path) = (above.path().join("precious"), directory.join("converger.db"));
    std::os::unix::fs::symlink(&victim, &path).expect("linked");
    assert!(open_error(&directory).to_string().contains("not a link"));
    assert!(!victim.exists(), "the target is not created");
    fs::write(&victim, "precious").expect("written");
    fs::set_permissions(&victim, Permissions::from_mode(0o644)).expect("set");
    assert!(open_error(&directory).to_string().contains("not a link"));
    assert_eq!((fs::read_to_string(&victim).expect("there").as_str(), permission_bits(&victim)), ("precious", 0o644));
}

/// Under its second name the store would have another WAL and other locks.
#[test]
fn refuses_a_hard_linked_store() {
    let (above, directory) = state_directory_path();
    drop(open_store(&directory));
    let other = above.path().join("other");
    make_private_directory(&other);
    fs::hard_link(directory.join("converger.db"), other.join("converger.db")).expect("linked");
    for linked_directory in [&directory, &other] {
        let error = open_error(linked_directory);
        assert!(matches!(&error, StoreOpenError::Unusable { help, .. } if help.contains("copy it to a new name")), "{error}");
    }
    fs::remove_file(other.join("converger.db")).expect("removed");
    drop(open_store(&directory));
}

#[test]
fn peek_reports_an_unreadable_or_invalid_store() {
    let (above, directory) = state_directory_path();
    let lab = converger_core::guest::EnvironmentName::new("lab").expect("a name");
    let peek_error = |directory: &Path| match peek_conditions(directory, &lab) {
        Err(StoreOpenError::Unusable { what: "read", source, .. }) => source.to_string(),
        other => panic!("{other:?}"),
    };
    assert!(peek_conditions(&directory, &lab).is_ok(), "there is no store");
    make_private_directory(&directory);
    rustix::fs::mknodat(rustix::fs::CWD, directory.join("converger.db"), rustix::fs::FileType::Fifo, 0o600.into(), 0).expect("a pipe");
    assert!(peek_error(&directory).contains("not a regular file"));
    let file = above.path().join("file");
    fs::write(&file, "a file").expect("written");
    assert!(peek_error(&file).contains("Not a directory"));
}

#[test]
fn refuses_a_file_that_cannot_be_opened() {
    let (_above, directory) = state_directory_path();
    make_private_directory(&directory);
    fs::create_dir(directory.join("converger.db")).expect("made");
    let error = open_error(&directory);
    assert!(matches!(&error, StoreOpenError::Unusable { .. }) && error.to_string().contains("converger.db"), "{error}");
}

#[test]
fn refuses_a_foreign_file_and_leaves_it_unchanged() {
    let garbage = |path: &Path| fs::write(path, "not a database, and longer than the header of one: ".repeat(40)).expect("written");
    let foreign_database = |path: &Path| {
        let connection = Connection::open(path).expect("opens");
        connection.execute_batch("CREATE TABLE theirs (x); INSERT INTO theirs VALUES (1);").expect("SQL");
    };
    for make in [&garbage as &dyn Fn(&Path), &foreign_database] {
        let (_above, directory) = state_directory_path();
        make_private_directory(&directory);
        let path = directory.join("converger.db");
        make(&path);
        fs::set_permissions(&path, Permissions::from_mode(0o644)).expect("set");
        let before = fs::read(&path).expect("there");
        let error = open_error(&directory);
        assert!(matches!(error, StoreOpenError::NotOurs { .. }), "{error}");
        assert_eq!((fs::read(&path).expect("there"), permission_bits(&path)), (before, 0o644));
    }
}

#[test]
fn refuses_a_newer_store_naming_both_versions() {
    let (_above, directory) = state_directory_path();
    let path = open_store(&directory).path().to_path_buf();
    Connection::open(&path).expect("opens").pragma_update(None, "user_version", 9).expect("set");
    let before = fs::read(&path).expect("there");
    let error = open_error(&directory);
    assert!(matches!(error, StoreOpenError::Newer { found: 9, known: 3, .. }), "{error}");
    assert!(error.to_string().contains("version 9") && error.to_string().contains("up to 3"), "{error}");
    assert_eq!(fs::read(&path).expect("there"), before);
}

/// Every page of a store is overwritten with garbage. The damage is found at startup, or the page was unused.
#[test]
fn refuses_a_damaged_store() {
    let (_above, directory) = state_directory_path();
    let store = open_store(&directory);
    let sample = OperationSample::new(2);
    commit_written(&store, sample.start_write());
    for number in 0..200 {
        commit_written(&store, sample.intent_record(&sample.operation(number, number)));
    }
    let path = store.path().to_path_buf();
    drop(store);
    let whole = fs::read(&path).expect("there");
    let mut found = 0;
    let pages = whole.len() / 4096;
    for page in 0..pages {
        let mut damaged = whole.clone();
        damaged[page * 4096..(page + 1) * 4096].fill(0x5a);
        fs::write(&path, damaged).expect("written");
        match SqliteStore::open(&directory, panicking_settings()) {
            Err(StoreOpenError::Damaged { .. } | StoreOpenError::NotOurs { .. }) => found += 1,
            other => panic!("page {page} of {pages}: {other:?}"),
        }
    }
    assert!(found > 20, "{found} pages are too few");
    fs::write(&path, &whole[..whole.len() / 2]).expect("written");
    assert!(matches!(open_error(&directory), StoreOpenError::Damaged { .. }));
}

/// A new store in place of a lost one would know no holds and no operations in flight.
#[test]
fn does_not_recreate_a_lost_store() {
    for remains in ["converger.db-wal", "converger.db-shm", "lab.lock", "ledger.key"] {
        for is_emptied in [false, true] {
            let (_above, directory) = state_directory_path();
            make_private_directory(&directory);
            let file = directory.join("converger.db");
            if is_emptied {
                fs::write(&file, "").expect("written");
            }
            fs::write(directory.join(remains), "").expect("written");
            let error = open_error(&directory);
            assert!(matches!(&error, StoreOpenError::Lost { remains: found, .. } if found.ends_with(remains)), "{remains}: {error}");
            let lab = EnvironmentName::new("lab").expect("a name");
            assert!(matches!(peek_conditions(&directory, &lab), Err(StoreOpenError::Lost { .. })), "{remains}");
            assert!(error.to_string().contains("restore it from a backup"), "{error}");
            assert_eq!(file.exists(), is_emptied, "no new store is created");
        }
    }
}

/// Other programs have files with the suffix `.lock`, too.
#[test]
fn ignores_lock_files_of_other_programs() {
    let (_above, directory) = state_directory_path();
    make_private_directory(&directory);
    for (name, text) in [("Cargo.lock", ""), ("Cargo.lock", "version = 4\n"), ("yarn.lock", "# yarn lockfile v1\n"), ("a b.lock", "")] {
        fs::write(directory.join(name), text).expect("written");
    }
    commit_written(&open_store(&directory), OperationSample::new(1).start_write());
    let (_above, directory) = state_directory_path();
    make_private_directory(&directory);
    fs::write(directory.join("lab.lock"), "4711\n1794700800000\nann\n").expect("written");
    assert!(matches!(open_error(&directory), StoreOpenError::Lost { .. }), "a lock with a holder shows that there was a store");
}

#[test]
fn opens_a_store_left_by_a_crash_at_first_start() {
    let (_above, directory) = state_directory_path();
    make_private_directory(&directory);
    fs::write(directory.join("converger.db"), "").expect("written");
    commit_written(&open_store(&directory), OperationSample::new(1).start_write());
    let (_above, directory) = state_directory_path();
    make_private_directory(&directory);
    let connection = Connection::open(directory.join("converger.db")).expect("opens");
    connection.pragma_update(None, "journal_mode", "wal").expect("set");
    drop(connection);
    let lab = EnvironmentName::new("lab").expect("a name");
    assert_eq!(peek_conditions(&directory, &lab).expect("read"), converger_store::StoreConditions::default(), "the store is still empty");
    commit_written(&open_store(&directory), OperationSample::new(1).start_write());
}

#[test]
fn refuses_a_store_of_version_1_and_names_both_versions() {
    let (_above, directory) = state_directory_path();
    make_private_directory(&directory);
    let connection = open_unchecked_connection(&directory.join("converger.db"));
    connection.execute_batch(include_str!("../data/store-v1.sql")).expect("SQL");
    drop(connection);
    let before = std::fs::read(directory.join("converger.db")).expect("read");
    let error = SqliteStore::open(&directory, panicking_settings()).expect_err("an older format");
    assert!(matches!(error, StoreOpenError::Older { found: 1, known: 3, .. }), "{error}");
    for part in ["schema version 1", "reads version 3 only", env!("CARGO_PKG_VERSION"), "use another state directory"] {
        assert!(error.to_string().contains(part), "{error}");
    }
    let lab = EnvironmentName::new("lab").expect("a name");
    assert!(matches!(peek_conditions(&directory, &lab), Err(StoreOpenError::Older { found: 1, .. })));
    assert_eq!(std::fs::read(directory.join("converger.db")).expect("read"), before, "nothing was changed in it");
}

#[test]
fn opens_a_store_of_this_version() {
    let (_above, directory) = state_directory_path();
    make_private_directory(&directory);
    let connection = open_unchecked_connection(&directory.join("converger.db"));
    connection.execute_batch(include_str!("../data/store-v3.sql")).expect("SQL");
    drop(connection);
    let (store, sample) = (open_store(&directory), OperationSample::new(100));
    let histories = block_on(store.operations(OperationFilter::default(), 9)).expect("read");
    let ids: Vec<&str> = histories.iter().map(|history| history.id().as_str()).collect();
    assert_eq!(ids, ["op-3", "op-2", "op-1"]);
    assert_eq!(*histories[2].operation, sample.one_shot(1, 1, "key-1", "it"));
    assert_eq!(histories[2].task.as_ref().map(|(_, at_ms)| *at_ms), Some(11));
    assert_eq!(histories[1].progress().end, Some(OperationEnd::Done));
    assert_eq!(histories[0].progress().resolution, Some(Resolution::NotRun));
    let open: Vec<OperationHistory> = block_on(store.open_operations(sample.environment())).expect("read");
    assert_eq!(open, histories[2..]);
    assert_eq!(block_on(store.holds(sample.environment())).expect("read").len(), 1);
    assert!(block_on(store.freeze(sample.environment())).expect("read").is_some());
    assert_eq!(block_on(store.epoch()), Ok(2));
    assert_eq!(block_on(store.run(sample.run().id)).expect("read").and_then(|run| run.ended), Some((OperationEnd::Held, 7)));
}

/// Every command opens the store, even while an apply writes to it. An old head with new entries must not be reported as damage.
#[test]
fn opening_during_writes_finds_no_damage() {
    let (_above, directory) = state_directory_path();
    drop(open_store(&directory));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let store = open_store(&directory);
            for number in 0..600 {
                commit_written(&store, recovery_batch(number..number + 1));
            }
        });
        for _ in 0..60 {
            drop(open_store(&directory));
        }
    });
    assert_eq!(block_on(open_store(&directory).heads()).expect("read").all.size, 600);
}
