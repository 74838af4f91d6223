//! Group commit: callers that wait at the same time share a transaction, and each gets its own answer.

use converger_store::conformance::{OperationSample, block_on};
use converger_store::{CommitAck, Store, StoreError, StoreReader as _, StoreRefusal};
use rusqlite::Connection;

use super::{commit_written, open_store, state_directory_path};

/// Another connection blocks the writer, so that the groups do not depend on the speed of the disk.
#[test]
fn two_hundred_callers_share_two_transactions() {
    let (_above, directory) = state_directory_path();
    let (store, sample) = (open_store(&directory), OperationSample::new(1));
    commit_written(&store, sample.start_write());
    let other = Connection::open(store.path()).expect("opens");
    other.execute_batch("BEGIN IMMEDIATE").expect("SQL");
    // Every tenth operation is a second one on the guest of the previous operation.
    let operations: Vec<_> = (0..200).map(|number| sample.operation(number, if number % 10 == 9 { number - 1 } else { number })).collect();
    let answers: Vec<_> = operations.iter().map(|operation| store.commit(sample.intent_record(operation).into())).collect();
    other.execute_batch("ROLLBACK").expect("SQL");
    let answers: Vec<_> = answers.into_iter().map(block_on).collect();
    for (number, answer) in answers.iter().enumerate() {
        match answer {
            Ok(CommitAck::Written { transaction: 2 | 3 }) if number % 10 != 9 => {}
            Err(StoreError::Refused(StoreRefusal::GuestTaken { .. })) if number % 10 == 9 => {}
            answer => panic!("{number}: {answer:?}"),
        }
    }
    let transactions = store.transactions() - 1;
    assert!((1..=2).contains(&transactions), "{transactions} transactions for 200 batches");
    assert_eq!(block_on(store.open_operations(sample.environment())).expect("read").len(), 180);
}

/// Callers that find the queue full wait for a slot, and a later caller may get one first. Callers that found a slot are served in order.
#[test]
fn serves_all_callers_beyond_the_queue_and_keeps_queue_order() {
    const ROOM: usize = 1024;
    let (_above, directory) = state_directory_path();
    let (store, sample) = (open_store(&directory), OperationSample::new(1));
    commit_written(&store, sample.start_write());
    let other = Connection::open(store.path()).expect("opens");
    other.execute_batch("BEGIN IMMEDIATE").expect("SQL");
    let operations: Vec<_> = (0..1100).map(|number| sample.operation(number, number)).collect();
    let answers: Vec<_> = operations.iter().map(|operation| store.commit(sample.intent_record(operation).into())).collect();
    other.execute_batch("ROLLBACK").expect("SQL");
    let mut last = 0;
    for (number, answer) in answers.into_iter().enumerate() {
        let Ok(CommitAck::Written { transaction }) = block_on(answer) else { panic!("{number} is not written") };
        assert!(number >= ROOM || transaction >= last, "transaction {transaction} after {last}");
        last = transaction;
    }
    let mut open = block_on(store.open_operations(sample.environment())).expect("read");
    let mut open: Vec<_> = open.drain(..).map(|history| history.id().clone()).collect();
    open[ROOM..].sort_by_key(|id| operations.iter().position(|own| own.id == *id));
    assert_eq!(open, operations.into_iter().map(|own| own.id).collect::<Vec<_>>());
}

#[test]
fn refused_batches_make_no_transaction() {
    let (_above, directory) = state_directory_path();
    let (store, sample) = (open_store(&directory), OperationSample::new(1));
    let refused = block_on(store.commit(sample.intent_record(&sample.operation(1, 1)).into()));
    assert!(matches!(refused, Err(StoreError::Refused(StoreRefusal::RunUnknown(_)))), "{refused:?}");
    assert_eq!(store.transactions(), 0);
}

/// The WAL is checkpointed repeatedly and stays short.
#[test]
fn wal_stays_short() {
    let (_above, directory) = state_directory_path();
    let (store, sample) = (open_store(&directory), OperationSample::new(1));
    commit_written(&store, sample.start_write());
    let log = directory.join("converger.db-wal");
    let mut longest = 0;
    for number in 0..40 {
        let body: std::sync::Arc<[u8]> = vec![number; 500_000].into();
        let digest = converger_core::artifact::Digest::of_bytes(&body);
        commit_written(&store, converger_store::StoreWrite::Blob { digest, body });
        longest = longest.max(log.metadata().expect("there").len());
    }
    assert!((8 << 20..12 << 20).contains(&longest), "{longest} bytes of log for 20 MB");
}
