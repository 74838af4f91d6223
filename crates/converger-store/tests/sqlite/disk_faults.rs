//! Disk faults: a full disk, another writer, damaged rows and failing writes.

use std::env;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use converger_core::apply::{Freeze, Hold, OperationId};
use converger_core::artifact::Digest;
use converger_store::conformance::{OperationSample, block_on};
use converger_store::{
    Batch, OperationFilter, SqliteStore, StoreError, StoreOpenError, StoreReader as _, StoreRefusal, StoreSettings, StoreWrite,
};
use rusqlite::Connection;

use super::{commit_batch, commit_written, open_store, open_unchecked_connection, panicking_settings, state_directory_path};

fn blob_write(size: usize, fill: u8) -> StoreWrite {
    let body: Arc<[u8]> = vec![fill; size].into();
    StoreWrite::Blob { digest: Digest::of_bytes(&body), body }
}

#[test]
fn full_disk_is_reported_before_acknowledging_and_the_store_continues() {
    let (_above, directory) = state_directory_path();
    let store = SqliteStore::open(&directory, panicking_settings().with_bytes_max(1 << 20)).expect("opens");
    let sample = OperationSample::new(1);
    commit_written(&store, sample.start_write());
    let intent = || StoreWrite::from(sample.intent_record(&sample.operation(1, 1)));
    let full = commit_batch(&store, Batch::from(intent()).with(blob_write(2 << 20, 1)));
    assert!(matches!(&full, Err(error @ StoreError::Full { .. }) if error.to_string().contains("make room")), "{full:?}");
    assert_eq!(block_on(store.operation(sample.operation(1, 1).id)), Ok(None), "nothing of the batch is there");
    commit_written(&store, intent());
    let mut written = Vec::new();
    let stopped = loop {
        let plan = blob_write(100_000, u8::try_from(written.len()).expect("few"));
        match commit_batch(&store, plan.clone()) {
            Ok(_) => written.push(plan),
            stopped => break stopped,
        }
    };
    assert!(matches!(stopped, Err(StoreError::Full { .. })) && (3..11).contains(&written.len()), "{stopped:?} {}", written.len());
    drop(store);
    let store = open_store(&directory);
    for plan in written {
        let StoreWrite::Blob { digest, body } = plan else { panic!("a plan") };
        assert_eq!(block_on(store.blob(digest)).expect("read").as_deref(), Some(&*body));
    }
    commit_written(&store, blob_write(2 << 20, 1));
}

#[test]
fn waits_for_another_writer_then_reports_it() {
    let (_above, directory) = state_directory_path();
    let store = SqliteStore::open(&directory, panicking_settings().with_patience(Duration::ZERO)).expect("opens");
    let sample = OperationSample::new(1);
    let other = Connection::open(store.path()).expect("opens");
    other.execute_batch("BEGIN IMMEDIATE").expect("SQL");
    let busy = commit_batch(&store, sample.start_write());
    // In this test the other writer is this process.
    let own = format!("is in use by process {}", std::process::id());
    assert!(matches!(&busy, Err(error @ StoreError::Busy { .. }) if error.to_string().contains(&own)), "{busy:?}");
    assert_eq!(block_on(store.run(sample.run().id)), Ok(None), "reading goes on");
    other.execute_batch("ROLLBACK").expect("SQL");
    commit_written(&store, sample.start_write());
}

#[test]
fn commits_of_another_process_take_effect_at_once() {
    let (_above, directory) = state_directory_path();
    let (running, sample) = (open_store(&directory), OperationSample::new(1));
    commit_written(&running, sample.start_write());
    let other = open_store(&directory);
    let environment = sample.environment();
    commit_written(&other, StoreWrite::Freeze(Freeze { environment, by: "ann".into(), reason: "stop everything".into(), at_ms: 1 }));
    let refused = commit_batch(&running, sample.intent_record(&sample.operation(1, 1)));
    assert!(matches!(refused, Err(StoreError::Refused(StoreRefusal::Frozen { .. }))), "{refused:?}");
    assert!(block_on(running.freeze(sample.environment())).expect("read").is_some());
}

#[test]
fn damaged_row_is_named_and_never_skipped() {
    let rots = [
        ("UPDATE operations SET body = CAST('{}' AS BLOB)", "op-1"),
        ("UPDATE operations SET body = CAST(replace(CAST(body AS TEXT), 'operation/1', 'operation/2') AS BLOB)", "converger.operation/2"),
        ("UPDATE operations SET id = 'op-9'", "its body belongs to operation `op-1`"),
        ("UPDATE operations SET at_ms = -1", "is negative"),
        ("INSERT INTO tasks VALUES (1, 'a b', 1, 0)", "not a well-formed task"),
    ];
    for (sql, part) in rots {
        let (_above, directory) = state_directory_path();
        let (store, sample) = (open_store(&directory), OperationSample::new(1));
        commit_written(&store, sample.start_write().with(sample.intent_record(&sample.operation(1, 1))));
        open_unchecked_connection(store.path()).execute_batch(sql).expect("SQL");
        let listed = block_on(store.operations(OperationFilter::default(), 9)).map(|_| ());
        let open = block_on(store.open_operations(sample.environment())).map(|_| ());
        for answer in [listed, open] {
            assert!(matches!(&answer, Err(error @ StoreError::Malformed { .. }) if error.to_string().contains(part)), "{sql}: {answer:?}");
        }
    }
}

/// Rows that are changed behind the program's back are found at the next start, and the error names the table.
#[test]
fn finds_externally_changed_rows_at_next_start() {
    let changes = [
        ("UPDATE holds SET released_at_ms = 9", "holds"),
        ("UPDATE holds SET vmid = vmid + 1", "holds"),
        ("UPDATE freezes SET environment = 'la'", "freezes"),
        ("UPDATE occupants SET operation = 2", "occupants"),
        ("UPDATE operations SET at_ms = at_ms + 1", "operations"),
        ("UPDATE sendings SET up_ms = 0", "sendings"),
        ("UPDATE runs SET boot = NULL", "runs"),
        ("UPDATE runs SET seq = seq + 10", "runs"),
        ("UPDATE operations SET seq = seq + 10", "operations"),
        ("UPDATE holds SET seq = seq + 10", "holds"),
        ("UPDATE freezes SET seq = seq + 10", "freezes"),
        ("DELETE FROM operations", "has an orphaned row"),
    ];
    for (sql, part) in changes {
        let (_above, directory) = state_directory_path();
        let (store, sample) = (open_store(&directory), OperationSample::new(1));
        let (environment, vmid, by, reason) = (sample.environment(), sample.vmid(9), Box::from("ann"), Box::from("a disk"));
        let hold = StoreWrite::Hold(Hold { environment: environment.clone(), vmid, by, reason, at_ms: 1 });
        let [first, second] = [1, 2].map(|number| sample.operation(number, number));
        commit_written(
            &store,
            sample.start_write().with(sample.intent_record(&first)).with(sample.intent_record(&second)).with(sample.sending_record(&first)),
        );
        commit_written(
            &store,
            Batch::from(hold).with(StoreWrite::Freeze(Freeze { environment, by: "ann".into(), reason: "audit".into(), at_ms: 1 })),
        );
        drop(store);
        open_unchecked_connection(&directory.join("converger.db"))
            .execute_batch(&format!("PRAGMA foreign_keys = OFF; {sql}"))
            .expect("SQL");
        let error = SqliteStore::open(&directory, panicking_settings()).map(drop).expect_err(sql);
        assert!(matches!(&error, StoreOpenError::Damaged { .. }) && error.to_string().contains(part), "{sql}: {error}");
    }
}

#[test]
fn does_not_return_a_blob_with_wrong_digest() {
    let (_above, directory) = state_directory_path();
    let store = open_store(&directory);
    let StoreWrite::Blob { digest, body } = blob_write(10, 1) else { panic!("a plan") };
    commit_written(&store, StoreWrite::Blob { digest, body });
    Connection::open(store.path()).expect("opens").execute_batch("UPDATE blobs SET body = X'00'").expect("SQL");
    assert!(matches!(block_on(store.blob(digest)), Err(StoreError::Malformed { .. })));
}

const DIRECTORY: &str = "CONVERGER_TEST_FAILING_IN";

/// Runs itself again in a process with a file size limit. Beyond the limit a write fails, which SQLite reports as an input/output error
/// (S18).
#[test]
fn failed_write_stops_all_acknowledgements() {
    if let Some(directory) = env::var_os(DIRECTORY) {
        return run_failing_store(Path::new(&directory));
    }
    let (_above, directory) = state_directory_path();
    let this = env::current_exe().expect("this test");
    let name = "disk_faults::failed_write_stops_all_acknowledgements";
    // The shell counts in blocks of 512 bytes. The signal that would end the process is ignored, so that the call fails instead.
    let output = Command::new("sh")
        .args(["-c", "trap '' XFSZ; ulimit -f 1024; exec \"$0\" --exact \"$1\" --nocapture"])
        .args([this.as_os_str(), name.as_ref()])
        .env(DIRECTORY, &directory)
        .output()
        .expect("starts");
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{stdout}{}", String::from_utf8_lossy(&output.stderr));
    let acknowledged: Vec<&str> = stdout.lines().filter_map(|line| line.strip_prefix("acknowledged ")).collect();
    assert!(acknowledged.len() > 2 && stdout.contains("stopped once"), "{stdout}");
    let store = open_store(&directory);
    for id in acknowledged {
        let id = OperationId::new(id).expect("an id");
        assert!(block_on(store.operation(id.clone())).expect("read").is_some(), "{id} was acknowledged");
    }
}

fn run_failing_store(directory: &Path) {
    let (fatal, cause) = (Arc::new(AtomicU32::new(0)), Arc::new(Mutex::new(String::new())));
    let (count, text) = (Arc::clone(&fatal), Arc::clone(&cause));
    let settings = StoreSettings::new(move |cause| {
        count.fetch_add(1, Ordering::SeqCst);
        cause.to_string().clone_into(&mut text.lock().expect("a text"));
    });
    let store = SqliteStore::open(directory, settings).expect("opens");
    let sample = OperationSample::new(1);
    commit_written(&store, sample.start_write());
    let stopped = (0..100_000).find_map(|number| {
        let operation = sample.operation(number, number);
        match commit_batch(
            &store,
            Batch::from(sample.intent_record(&operation)).with(blob_write(20_000, u8::try_from(number % 251).expect("small"))),
        ) {
            Ok(_) => println!("\nacknowledged {}", operation.id),
            Err(error) => return Some(error),
        }
        None
    });
    assert!(matches!(stopped, Some(StoreError::Stopped { .. })), "{stopped:?}");
    // Even a batch that would fit fails: it is unknown what is on the disk.
    let small = commit_batch(&store, sample.intent_record(&sample.operation(200_000, 200_000)));
    assert!(matches!(small, Err(StoreError::Stopped { .. })), "{small:?}");
    assert_eq!(fatal.load(Ordering::SeqCst), 1, "on_fatal is called once");
    assert!(cause.lock().expect("a text").contains("converger.db"), "{cause:?}");
    println!("\nstopped once");
}
