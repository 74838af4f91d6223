//! A mark waits for no disk: it is there for whoever comes after this process, no sync is made for it, and the next one takes it along.

use std::env;
use std::path::Path;

use converger_store::conformance::{Sample, now};
use converger_store::{Receipt, SqliteStore, Store};

use super::inject::{DIRECTORY, traced};
use super::{open, place, settings, write};

const NAME: &str = "marks::a_mark_outlives_the_process_without_a_sync";

#[test]
fn a_mark_outlives_the_process_without_a_sync() {
    if let Some(directory) = env::var_os(DIRECTORY) {
        return victim(Path::new(&directory));
    }
    let (above, directory) = place();
    let log = above.path().join("strace");
    let output = traced(NAME, &directory, &log, &["-e", "trace=fsync,fdatasync,write"]);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.contains("recorded again") && !output.status.success(), "it kills itself: {said}");
    let log = std::fs::read_to_string(&log).expect("a log");
    let syncs = |from: &str, to: &str| {
        let between = log.lines().skip_while(|line| !line.contains(from)).take_while(|line| !line.contains(to));
        between.filter(|line| line.contains("sync(")).count()
    };
    assert_eq!((syncs("recorded\\n", "marked\\n"), syncs("marked\\n", "recorded again\\n")), (0, 1), "{log}");
    let sample = Sample::new(1);
    let sending = |number| now(open(&directory).operation(sample.operation(number, number).id)).expect("read").expect("there").sending;
    assert!(sending(1).is_some() && sending(2).is_some(), "the last one was never synced, and the process is dead");
}

/// Ends without closing anything, as by `kill -9`.
fn victim(directory: &Path) {
    let store = SqliteStore::open(directory, settings()).expect("opens");
    let sample = Sample::new(1);
    let [first, second] = [1, 2].map(|number| sample.operation(number, number));
    write(&store, sample.start());
    write(&store, sample.intent(&first));
    println!("\nrecorded");
    write(&store, sample.sending(&first));
    println!("\nmarked");
    write(&store, sample.intent(&second));
    println!("\nrecorded again");
    write(&store, sample.sending(&second));
    std::process::abort();
}

#[test]
fn a_mark_is_no_durable_commit_and_names_the_one_that_takes_it_along() {
    let (_above, directory) = place();
    let (store, sample) = (open(&directory), Sample::new(1));
    let [first, second] = [1, 2].map(|number| sample.operation(number, number));
    write(&store, sample.start());
    write(&store, sample.intent(&first));
    let written = |transaction| Ok(Receipt::Written { transaction });
    assert_eq!((super::commit(&store, sample.sending(&first)), store.transactions()), (written(3), 2));
    assert_eq!((super::commit(&store, sample.intent(&second)), store.transactions()), (written(3), 3));
}
