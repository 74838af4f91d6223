//! The conformance suite that every store must pass: stories with a known result, each with a store of its own.
//!
//! A store may answer slowly. It must never acknowledge a batch that it does not find again, write part of a batch, accept a record out
//! of order, or let two operations occupy one guest.

mod holds;
mod journal;
mod ledger;
mod names;
mod reads;
mod sample;

use std::fmt;
use std::future::Future;

use crate::{Batch, CommitAck, Store, StoreError, StoreRefusal};

pub use sample::OperationSample;

/// Opens the stores under test.
pub trait StoreFixture {
    /// The store that is checked.
    type Store: Store;

    /// Opens an empty store.
    fn new_store(&mut self) -> Self::Store;

    /// Reopens a store, as the next process would.
    fn reopen_store(&mut self, store: Self::Store) -> Self::Store;
}

/// A rule that a store broke.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreFinding {
    /// The story that failed.
    pub case: &'static str,
    /// The rule, and what was found.
    pub what: String,
}

impl fmt::Display for StoreFinding {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "in the story `{}`: {}", self.case, self.what)
    }
}

/// The result of a story: nothing, or the first failed expectation.
type StoryResult = Result<(), String>;

type StoreStory<S> = (&'static str, fn(&mut S) -> StoryResult);

/// Runs every story. An empty list means that the store conforms.
#[must_use]
pub fn check_store<S: StoreFixture>(fixture: &mut S) -> Vec<StoreFinding> {
    let stories: Vec<StoreStory<S>> =
        [journal::stories(), holds::stories(), ledger::stories(), names::stories(), reads::stories()].concat();
    let findings = stories.into_iter().filter_map(|(story, tell)| tell(fixture).err().map(|what| StoreFinding { case: story, what }));
    findings.collect()
}

/// Registers `row_sum` with a connection of a test.
///
/// # Errors
/// SQLite rejects the function.
pub fn register_row_sum(connection: &rusqlite::Connection) -> rusqlite::Result<()> {
    crate::sqlite::register_row_sum(connection)
}

/// Waits for a future of a store.
pub fn block_on<F: Future>(future: F) -> F::Output {
    crate::wait_for(future)
}

fn expect_equal<T: fmt::Debug + PartialEq>(what: &str, found: T, wanted: T) -> StoryResult {
    if found == wanted { Ok(()) } else { Err(format!("{what}: found {found:?}, wanted {wanted:?}")) }
}

/// The batch must be written.
fn expect_written(store: &impl Store, what: &str, batch: impl Into<Batch>) -> StoryResult {
    match block_on(store.commit(batch.into())) {
        Ok(CommitAck::Written { .. }) => Ok(()),
        other => Err(format!("{what}: must be written, and got {other:?}")),
    }
}

/// The batch must be refused for this reason.
fn expect_refused(store: &impl Store, what: &str, batch: impl Into<Batch>, wanted: StoreRefusal) -> StoryResult {
    expect_equal(what, block_on(store.commit(batch.into())), Err(StoreError::Refused(wanted)))
}

fn expect_readable<T>(what: &str, answer: Result<T, StoreError>) -> Result<T, String> {
    answer.map_err(|error| format!("{what}: cannot be read: {error}"))
}
