//! The store in a file: SQLite with a write-ahead log (WAL), synced at every commit.
//!
//! One thread writes and one reads, each with its own connection, so that nothing here blocks an async runtime. Other processes may use
//! the file at the same time: `converger freeze` reaches a running apply through it.
//!
//! Must not have rules about what may be written (see `tables` of the crate).

mod checksums;
mod copy;
mod holder;
mod ledger;
mod open;
mod peek;
mod rows;
mod schema;
mod sql_fault;
mod store_view;
mod tables;
mod wal_snapshot;
mod writer;

use std::fmt;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rusqlite::Connection;
use thiserror::Error;
use tokio::sync::{mpsc, oneshot};

use crate::file_identity::FileIdentity;
use crate::read_access::ReadAccess;
use crate::{Batch, EnvironmentLock, Store, StoreError, StoreOpenError};
use open::OpenedStore;
use sql_fault::SqlFault;
use tables::SqlTables;
use writer::{CommitResult, StoreWriter, SyncMode, WriteJob};

#[cfg(feature = "conformance")]
pub(crate) use checksums::register_row_sum;
pub use copy::{StoreCopyError, copy_store};
pub(crate) use open::NO_FOLLOW;
pub use open::{STAGING_DIRECTORY, STORE_FILE, check_state_directory};
pub use store_view::StoreView;

/// Called once if a write may not have reached the disk. It must end the program (S18).
pub type OnFatal = Box<dyn FnMut(&FatalCause) + Send>;

/// Why the store acknowledges nothing more.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum FatalCause {
    /// It is unknown what is on the disk, or it cannot be trusted.
    #[error("{0}")]
    DurabilityUnknown(String),
    /// A file of the store is not at the path where it was opened, so the next process will not find what is written to it.
    #[error("{0}")]
    FileReplaced(String),
}

/// Settings for opening a store.
pub struct StoreSettings {
    on_fatal: OnFatal,
    bytes_max: u64,
    patience: Duration,
}

impl StoreSettings {
    /// The default limit for the size of the file: 64 GiB, enough for tens of millions of operations.
    pub const BYTES_MAX: u64 = 64 << 30;

    /// How long a batch waits for another process that writes.
    pub const PATIENCE: Duration = Duration::from_secs(10);

    /// Default settings. `on_fatal` is called if durability is in doubt; it must end the program and not return.
    #[must_use]
    pub fn new(on_fatal: impl FnMut(&FatalCause) + Send + 'static) -> Self {
        Self { on_fatal: Box::new(on_fatal), bytes_max: Self::BYTES_MAX, patience: Self::PATIENCE }
    }

    /// Sets the limit for the size of the file. A batch that does not fit fails as on a full disk.
    #[must_use]
    pub fn with_bytes_max(self, bytes_max: u64) -> Self {
        Self { bytes_max, ..self }
    }

    /// Sets how long a batch waits for another process that writes.
    #[must_use]
    pub fn with_patience(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }
}

impl fmt::Debug for StoreSettings {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("StoreSettings")
            .field("bytes_max", &self.bytes_max)
            .field("patience", &self.patience)
            .finish_non_exhaustive()
    }
}

/// The maximum number of queued batches, and of queued reads. Further callers wait until there is a slot.
const QUEUE_MAX: usize = 1024;

type ReadJob = Box<dyn FnOnce(&Connection) + Send>;

/// A store in a file. Clones share it. When the last clone is dropped, queued batches are finished and the store is closed.
#[derive(Clone, Debug)]
pub struct SqliteStore {
    shared: Arc<SqliteShared>,
}

#[derive(Debug)]
struct SqliteShared {
    path: PathBuf,
    transactions: Arc<AtomicU64>,
    watched_files: Arc<Mutex<Vec<FileIdentity>>>,
    /// `None` only during drop: closing the queues ends the threads.
    queues: Option<(mpsc::Sender<WriteJob>, mpsc::Sender<ReadJob>)>,
    writer: Option<JoinHandle<()>>,
    reader: Option<JoinHandle<()>>,
}

impl SqliteStore {
    /// Opens `converger.db` in a state directory. Creates the directory if its parent exists.
    ///
    /// # Errors
    /// The directory or file cannot be used, is not a store of this program, is damaged, or was written by a later version. A file that
    /// is not a store of this program is not changed.
    pub fn open(directory: &Path, settings: StoreSettings) -> Result<Self, StoreOpenError> {
        let OpenedStore { connection, path, wal_state: settled, log: log_builder } = open::open_writer(directory, &settings)?;
        let reader = open::open_reader(&path, settings.patience)?;
        let transactions = Arc::new(AtomicU64::new(0));
        let files = [path.clone(), open::wal_path(&path)];
        let identities = Arc::new(Mutex::new(files.iter().filter_map(|file| FileIdentity::read_from(file)).collect()));
        let writer = StoreWriter {
            connection,
            path: path.clone(),
            wal_state: settled,
            log: Some(log_builder),
            patience: settings.patience,
            on_fatal: settings.on_fatal,
            transactions: Arc::clone(&transactions),
            stop_cause: None,
            sync_mode: SyncMode::Now,
            watched_files: Arc::clone(&identities),
        };
        let (jobs, waiting_jobs) = mpsc::channel(QUEUE_MAX);
        let (reads, waiting_reads) = mpsc::channel(QUEUE_MAX);
        let writer = Some(spawn_thread(&path, "store-writer", move || writer.run(waiting_jobs))?);
        let reader = Some(spawn_thread(&path, "store-reader", move || serve_reads(&reader, waiting_reads))?);
        Ok(Self {
            shared: Arc::new(SqliteShared { path, transactions, watched_files: identities, queues: Some((jobs, reads)), writer, reader }),
        })
    }

    /// From now on, acknowledges nothing if the file of this lock is not where it was taken: another process could take the lock a second
    /// time.
    pub fn rely_on(&self, lock: &EnvironmentLock) {
        self.shared.watched_files.lock().unwrap_or_else(PoisonError::into_inner).push(lock.file_identity().clone());
    }

    /// The number of durable transactions since the store was opened. Batches can share a transaction; sending marks alone count as none.
    #[must_use]
    pub fn transactions(&self) -> u64 {
        self.shared.transactions.load(Ordering::Relaxed)
    }

    /// The path of the store file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.shared.path
    }
}

impl ReadAccess for SqliteStore {
    type Fault = SqlFault;
    type Tables<'t> = SqlTables<'t>;

    fn run_read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&SqlTables<'_>) -> Result<T, SqlFault> + Send + 'static,
    ) -> impl Future<Output = Result<T, StoreError>> + Send {
        let path = self.shared.path.clone();
        let (caller, answer) = oneshot::channel();
        let job: ReadJob = Box::new(move |connection| {
            let _ = caller.send(read_in_snapshot(connection, read).map_err(|fault| fault.into_read_error(&path)));
        });
        let queued = self.shared.queues.as_ref().map(|(_, reads)| enqueue(reads, job));
        async move { await_answer(queued, answer).await }
    }
}

fn spawn_thread(path: &Path, name: &str, work: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, StoreOpenError> {
    let failed =
        |error: std::io::Error| StoreOpenError::Failed { place: path.to_path_buf(), cause: format!("cannot start a thread: {error}") };
    thread::Builder::new().name(name.into()).spawn(work).map_err(failed)
}

fn serve_reads(connection: &Connection, mut reads: mpsc::Receiver<ReadJob>) {
    while let Some(read) = reads.blocking_recv() {
        read(connection);
    }
}

/// Runs a read in one transaction, so that all its statements see the same snapshot.
fn read_in_snapshot<T>(connection: &Connection, read: impl FnOnce(&SqlTables<'_>) -> Result<T, SqlFault>) -> Result<T, SqlFault> {
    let transaction = connection.unchecked_transaction()?;
    let value = read(&SqlTables::for_reading(&transaction))?;
    transaction.commit()?;
    Ok(value)
}

/// Queues a job at once if there is space, so that jobs run in the order of the calls. If the queue is full, the job waits in the
/// caller's future: a second queue would have no bound (S23).
fn enqueue<J: Send + 'static>(queue: &mpsc::Sender<J>, job: J) -> impl Future<Output = ()> + Send + use<J> {
    let late = match queue.try_send(job) {
        Ok(()) => None,
        // The thread has ended. The caller notices because the answer channel is closed.
        Err(mpsc::error::TrySendError::Closed(_)) => None,
        Err(mpsc::error::TrySendError::Full(job)) => Some((queue.clone(), job)),
    };
    async move {
        if let Some((queue, job)) = late {
            let _ = queue.send(job).await;
        }
    }
}

async fn await_answer<T>(
    queued: Option<impl Future<Output = ()>>,
    answer: oneshot::Receiver<Result<T, StoreError>>,
) -> Result<T, StoreError> {
    if let Some(queued) = queued {
        queued.await;
    }
    answer.await.unwrap_or_else(|_| Err(StoreError::Stopped { cause: "the store thread has ended".into() }))
}

impl Drop for SqliteShared {
    fn drop(&mut self) {
        // A thread that panicked dropped its answer channels, so its callers got an error.
        let join = |thread: &mut Option<JoinHandle<()>>| drop(thread.take().map(JoinHandle::join));
        let jobs = self.queues.take().map(|(jobs, _)| jobs);
        // The writer closes last, because only a writable connection can checkpoint the WAL. After a clean exit the file contains
        // everything and can be copied alone.
        join(&mut self.reader);
        drop(jobs);
        join(&mut self.writer);
    }
}

impl Store for SqliteStore {
    fn commit(&self, batch: Batch) -> impl Future<Output = CommitResult> + Send {
        let (caller, answer) = oneshot::channel();
        let queued = self.shared.queues.as_ref().map(|(jobs, _)| enqueue(jobs, WriteJob { batch, caller }));
        async move { await_answer(queued, answer).await }
    }
}
