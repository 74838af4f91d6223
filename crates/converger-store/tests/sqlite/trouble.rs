//! Bad days of a disk: no room, another writer, a row that rots, and writes that fail.

use std::env;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use converger_core::apply::{Freeze, Hold, OperationId};
use converger_core::artifact::Digest;
use converger_store::conformance::{Sample, now};
use converger_store::{Batch, Filter, OpenError, Refused, Settings, SqliteStore, Store, StoreError, Write};
use rusqlite::Connection;

use super::{commit, open, other, place, settings, write};

fn plan(size: usize, fill: u8) -> Write {
    let body: Arc<[u8]> = vec![fill; size].into();
    Write::Blob { digest: Digest::of_bytes(&body), body }
}

#[test]
fn a_full_disk_is_said_before_anything_is_acknowledged_and_the_store_goes_on() {
    let (_above, directory) = place();
    let store = SqliteStore::open(&directory, settings().with_bytes_max(1 << 20)).expect("opens");
    let sample = Sample::new(1);
    write(&store, sample.start());
    let intent = || Write::from(sample.intent(&sample.operation(1, 1)));
    let full = commit(&store, Batch::from(intent()).with(plan(2 << 20, 1)));
    assert!(matches!(&full, Err(error @ StoreError::Full { .. }) if error.to_string().contains("make room")), "{full:?}");
    assert_eq!(now(store.operation(sample.operation(1, 1).id)), Ok(None), "nothing of the batch is there");
    write(&store, intent());
    let mut written = Vec::new();
    let stopped = loop {
        let plan = plan(100_000, u8::try_from(written.len()).expect("few"));
        match commit(&store, plan.clone()) {
            Ok(_) => written.push(plan),
            stopped => break stopped,
        }
    };
    assert!(matches!(stopped, Err(StoreError::Full { .. })) && (3..11).contains(&written.len()), "{stopped:?} {}", written.len());
    drop(store);
    let store = open(&directory);
    for plan in written {
        let Write::Blob { digest, body } = plan else { panic!("a plan") };
        assert_eq!(now(store.blob(digest)).expect("read").as_deref(), Some(&*body));
    }
    write(&store, plan(2 << 20, 1));
}

#[test]
fn another_writer_is_waited_for_and_then_named() {
    let (_above, directory) = place();
    let store = SqliteStore::open(&directory, settings().with_patience(Duration::ZERO)).expect("opens");
    let sample = Sample::new(1);
    let other = Connection::open(store.place()).expect("opens");
    other.execute_batch("BEGIN IMMEDIATE").expect("SQL");
    let busy = commit(&store, sample.start());
    // The other writer is in this process here.
    let own = format!("is in use by process {}", std::process::id());
    assert!(matches!(&busy, Err(error @ StoreError::Busy { .. }) if error.to_string().contains(&own)), "{busy:?}");
    assert_eq!(now(store.run(sample.run().id)), Ok(None), "reading goes on");
    other.execute_batch("ROLLBACK").expect("SQL");
    write(&store, sample.start());
}

#[test]
fn what_another_process_commits_counts_at_once() {
    let (_above, directory) = place();
    let (running, sample) = (open(&directory), Sample::new(1));
    write(&running, sample.start());
    let other = open(&directory);
    let environment = sample.environment();
    write(&other, Write::Freeze(Freeze { environment, by: "ann".into(), reason: "stop everything".into(), at_ms: 1 }));
    let refused = commit(&running, sample.intent(&sample.operation(1, 1)));
    assert!(matches!(refused, Err(StoreError::Refused(Refused::Frozen { .. }))), "{refused:?}");
    assert!(now(running.freeze(sample.environment())).expect("read").is_some());
}

#[test]
fn a_row_that_rots_is_named_and_never_left_out() {
    let rots = [
        ("UPDATE operations SET body = CAST('{}' AS BLOB)", "op-1"),
        ("UPDATE operations SET body = CAST(replace(CAST(body AS TEXT), 'operation/1', 'operation/2') AS BLOB)", "converger.operation/2"),
        ("UPDATE operations SET id = 'op-9'", "its body is of operation `op-1`"),
        ("UPDATE operations SET at_ms = -1", "below zero"),
        ("INSERT INTO tasks VALUES (1, 'a b', 1, 0)", "not a well-formed task"),
    ];
    for (sql, part) in rots {
        let (_above, directory) = place();
        let (store, sample) = (open(&directory), Sample::new(1));
        write(&store, Batch::from(sample.start()).with(sample.intent(&sample.operation(1, 1))));
        other(store.place()).execute_batch(sql).expect("SQL");
        let listed = now(store.operations(Filter::default(), 9)).map(|_| ());
        let open = now(store.open_operations(sample.environment())).map(|_| ());
        for answer in [listed, open] {
            assert!(matches!(&answer, Err(error @ StoreError::Malformed { .. }) if error.to_string().contains(part)), "{sql}: {answer:?}");
        }
    }
}

/// Whatever is written past the program: the next start finds it, and says in which table.
#[test]
fn a_row_that_was_changed_past_the_program_is_found_at_the_next_start() {
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
        ("DELETE FROM operations", "belongs to nothing"),
    ];
    for (sql, part) in changes {
        let (_above, directory) = place();
        let (store, sample) = (open(&directory), Sample::new(1));
        let (environment, vmid, by, reason) = (sample.environment(), sample.guest(9), Box::from("ann"), Box::from("a disk"));
        let hold = Write::Hold(Hold { environment: environment.clone(), vmid, by, reason, at_ms: 1 });
        let [first, second] = [1, 2].map(|number| sample.operation(number, number));
        write(&store, Batch::from(sample.start()).with(sample.intent(&first)).with(sample.intent(&second)).with(sample.sending(&first)));
        write(&store, Batch::from(hold).with(Write::Freeze(Freeze { environment, by: "ann".into(), reason: "audit".into(), at_ms: 1 })));
        drop(store);
        other(&directory.join("converger.db")).execute_batch(&format!("PRAGMA foreign_keys = OFF; {sql}")).expect("SQL");
        let error = SqliteStore::open(&directory, settings()).map(drop).expect_err(sql);
        assert!(matches!(&error, OpenError::Damaged { .. }) && error.to_string().contains(part), "{sql}: {error}");
    }
}

#[test]
fn a_plan_with_other_bytes_than_its_digest_is_not_given_out() {
    let (_above, directory) = place();
    let store = open(&directory);
    let Write::Blob { digest, body } = plan(10, 1) else { panic!("a plan") };
    write(&store, Write::Blob { digest, body });
    Connection::open(store.place()).expect("opens").execute_batch("UPDATE blobs SET body = X'00'").expect("SQL");
    assert!(matches!(now(store.blob(digest)), Err(StoreError::Malformed { .. })));
}

const DIRECTORY: &str = "CONVERGER_TEST_FAILING_IN";

/// The second part of this test is itself again, in a process that may write files up to a size only: beyond it a write
/// fails, which SQLite reports as an input/output error (S18).
#[test]
fn after_a_write_that_failed_nothing_more_is_acknowledged() {
    if let Some(directory) = env::var_os(DIRECTORY) {
        return fail_for_good(Path::new(&directory));
    }
    let (_above, directory) = place();
    let this = env::current_exe().expect("this test");
    let name = "trouble::after_a_write_that_failed_nothing_more_is_acknowledged";
    // The shell counts in blocks of 512 bytes; the signal that would end the process is ignored, so that the call fails.
    let output = Command::new("sh")
        .args(["-c", "trap '' XFSZ; ulimit -f 1024; exec \"$0\" --exact \"$1\" --nocapture"])
        .args([this.as_os_str(), name.as_ref()])
        .env(DIRECTORY, &directory)
        .output()
        .expect("starts");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    let acknowledged: Vec<&str> = said.lines().filter_map(|line| line.strip_prefix("acknowledged ")).collect();
    assert!(acknowledged.len() > 2 && said.contains("stopped once"), "{said}");
    let store = open(&directory);
    for id in acknowledged {
        let id = OperationId::new(id).expect("an id");
        assert!(now(store.operation(id.clone())).expect("read").is_some(), "{id} was acknowledged");
    }
}

fn fail_for_good(directory: &Path) {
    let (fatal, cause) = (Arc::new(AtomicU32::new(0)), Arc::new(Mutex::new(String::new())));
    let (count, text) = (Arc::clone(&fatal), Arc::clone(&cause));
    let settings = Settings::new(move |cause| {
        count.fetch_add(1, Ordering::SeqCst);
        cause.to_string().clone_into(&mut text.lock().expect("a text"));
    });
    let store = SqliteStore::open(directory, settings).expect("opens");
    let sample = Sample::new(1);
    write(&store, sample.start());
    let stopped = (0..100_000).find_map(|number| {
        let operation = sample.operation(number, number);
        match commit(&store, Batch::from(sample.intent(&operation)).with(plan(20_000, u8::try_from(number % 251).expect("small")))) {
            Ok(_) => println!("\nacknowledged {}", operation.id),
            Err(error) => return Some(error),
        }
        None
    });
    assert!(matches!(stopped, Some(StoreError::Stopped { .. })), "{stopped:?}");
    // Even what would fit: nobody knows what the disk has.
    let small = commit(&store, sample.intent(&sample.operation(200_000, 200_000)));
    assert!(matches!(small, Err(StoreError::Stopped { .. })), "{small:?}");
    assert_eq!(fatal.load(Ordering::SeqCst), 1, "the program is told once");
    assert!(cause.lock().expect("a text").contains("converger.db"), "{cause:?}");
    println!("\nstopped once");
}
