//! A store that is moved, removed or replaced while it is open, or whose lock is: nothing more is acknowledged, and whoever waits is told.

use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex};

use converger_store::conformance::Sample;
use converger_store::{EnvironmentLock, Fatal, Settings, SqliteStore, StoreError};

use super::{commit, open, place, write};

/// Something that is done to a state directory.
type Harm = fn(&Path);

/// What the program is told, and what the one who waits, once this was done to the state directory.
fn after(harm: Harm) -> (Vec<Fatal>, Result<u64, String>) {
    let (_above, directory) = place();
    let told: Arc<Mutex<Vec<Fatal>>> = Arc::default();
    let teller = Arc::clone(&told);
    let settings = Settings::new(move |fatal| teller.lock().expect("unpoisoned").push(fatal.clone()));
    let (store, sample) = (SqliteStore::open(&directory, settings).expect("opens"), Sample::new(1));
    let lock = EnvironmentLock::take(&directory, &sample.environment(), "ann", 1).expect("nobody has it");
    store.rely_on(&lock);
    write(&store, sample.start());
    write(&store, sample.intent(&sample.operation(1, 1)));
    harm(&directory);
    let answer = match commit(&store, sample.intent(&sample.operation(2, 2))) {
        Ok(_) => Ok(store.transactions()),
        Err(StoreError::Stopped { cause }) => Err(cause),
        Err(other) => panic!("{other}"),
    };
    if answer.is_err() {
        let again = commit(&store, sample.intent(&sample.operation(3, 3)));
        assert!(matches!(again, Err(StoreError::Stopped { .. })), "{again:?}");
    }
    (told.lock().expect("unpoisoned").clone(), answer)
}

#[test]
fn a_store_that_is_not_where_it_was_opened_acknowledges_nothing_more() {
    let harms: [(&str, &str, Harm); 7] = [
        ("moved", "taken away", |directory| fs::rename(directory, directory.with_file_name("elsewhere")).expect("moved")),
        ("removed", "taken away", |directory| fs::remove_dir_all(directory).expect("removed")),
        ("its file", "taken away", |directory| fs::remove_file(directory.join("converger.db")).expect("removed")),
        ("its log", "taken away", |directory| fs::remove_file(directory.join("converger.db-wal")).expect("removed")),
        ("replaced", "replaced", |directory| {
            fs::rename(directory, directory.with_file_name("elsewhere")).expect("moved");
            write(&open(directory), Sample::new(1).start());
        }),
        ("its lock", "taken away", |directory| fs::remove_file(directory.join("lab.lock")).expect("removed")),
        ("another lock", "replaced", |directory| {
            fs::rename(directory.join("lab.lock"), directory.join("old")).expect("moved");
            fs::write(directory.join("lab.lock"), "").expect("written");
        }),
    ];
    for (what, word, harm) in harms {
        let (told, answer) = after(harm);
        let cause = answer.expect_err(what);
        assert!(cause.contains(word) && cause.contains("while it was in use"), "{what}: {cause}");
        assert_eq!(told, [Fatal::Gone(cause)], "{what}: the program is told once");
    }
}

#[test]
fn what_else_happens_in_its_directory_is_no_concern_of_it() {
    let harmless: [Harm; 3] = [
        |_| {},
        |directory| fs::write(directory.join("other"), "x").expect("written"),
        |directory| {
            fs::rename(directory, directory.with_file_name("elsewhere")).expect("moved");
            fs::rename(directory.with_file_name("elsewhere"), directory).expect("put back");
        },
    ];
    for (number, harm) in harmless.into_iter().enumerate() {
        assert_eq!(after(harm), (Vec::new(), Ok(3)), "{number}");
    }
}
