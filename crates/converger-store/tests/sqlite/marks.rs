//! A sending mark does not wait for the disk: the next process sees it, no sync is made for it, and the next sync covers it.

use std::env;
use std::path::Path;

use converger_store::conformance::{OperationSample, block_on};
use converger_store::{CommitAck, SqliteStore, StoreReader as _};

use super::fault_injection::{DIRECTORY, run_under_strace};
use super::{commit_written, open_store, panicking_settings, state_directory_path};

const NAME: &str = "marks::mark_survives_the_process_without_a_sync";

#[test]
fn mark_survives_the_process_without_a_sync() {
    if let Some(directory) = env::var_os(DIRECTORY) {
        return run_victim(Path::new(&directory));
    }
    let (above, directory) = state_directory_path();
    let log = above.path().join("strace");
    let output = run_under_strace(NAME, &directory, &log, &["-e", "trace=fsync,fdatasync,write"]);
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(stdout.contains("recorded again") && !output.status.success(), "it kills itself: {stdout}");
    let log = std::fs::read_to_string(&log).expect("a log");
    let syncs = |from: &str, to: &str| {
        let between = log.lines().skip_while(|line| !line.contains(from)).take_while(|line| !line.contains(to));
        between.filter(|line| line.contains("sync(")).count()
    };
    assert_eq!((syncs("recorded\\n", "marked\\n"), syncs("marked\\n", "recorded again\\n")), (0, 1), "{log}");
    let sample = OperationSample::new(1);
    let sending =
        |number| block_on(open_store(&directory).operation(sample.operation(number, number).id)).expect("read").expect("there").sending;
    assert!(sending(1).is_some() && sending(2).is_some(), "the last mark is found although it was never synced");
}

/// Ends without closing anything, as after `kill -9`.
fn run_victim(directory: &Path) {
    let store = SqliteStore::open(directory, panicking_settings()).expect("opens");
    let sample = OperationSample::new(1);
    let [first, second] = [1, 2].map(|number| sample.operation(number, number));
    commit_written(&store, sample.start_write());
    commit_written(&store, sample.intent_record(&first));
    println!("\nrecorded");
    commit_written(&store, sample.sending_record(&first));
    println!("\nmarked");
    commit_written(&store, sample.intent_record(&second));
    println!("\nrecorded again");
    commit_written(&store, sample.sending_record(&second));
    std::process::abort();
}

#[test]
fn mark_is_not_a_durable_commit_and_names_the_next_one() {
    let (_above, directory) = state_directory_path();
    let (store, sample) = (open_store(&directory), OperationSample::new(1));
    let [first, second] = [1, 2].map(|number| sample.operation(number, number));
    commit_written(&store, sample.start_write());
    commit_written(&store, sample.intent_record(&first));
    let written = |transaction| Ok(CommitAck::Written { transaction });
    assert_eq!((super::commit_batch(&store, sample.sending_record(&first)), store.transactions()), (written(3), 2));
    assert_eq!((super::commit_batch(&store, sample.intent_record(&second)), store.transactions()), (written(3), 3));
}
