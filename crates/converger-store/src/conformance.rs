//! What any store must pass, whoever wrote it: stories with a known end, each on a store of its own.
//!
//! A store may answer slowly. It may never acknowledge what it does not find again, write a part of a batch, take a
//! record out of order, or let two operations have one guest.

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

/// A place where stores are opened.
pub trait StoreFixture {
    /// The store that is checked.
    type Store: Store;

    /// A store that is empty.
    fn new_store(&mut self) -> Self::Store;

    /// The same store, as the next process finds it.
    fn reopen_store(&mut self, store: Self::Store) -> Self::Store;
}

/// A rule that a store broke.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreFinding {
    /// The story in which it did.
    pub story: &'static str,
    /// The rule, and what was seen.
    pub what: String,
}

impl fmt::Display for StoreFinding {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "in the story `{}`: {}", self.story, self.what)
    }
}

/// What a story comes to: nothing, or the first thing that is not as it must be.
type StoryResult = Result<(), String>;

type StoreStory<S> = (&'static str, fn(&mut S) -> StoryResult);

/// Tells every story. No finding means that the store conforms.
#[must_use]
pub fn check_store<S: StoreFixture>(stage: &mut S) -> Vec<StoreFinding> {
    let stories: Vec<StoreStory<S>> =
        [journal::stories(), holds::stories(), ledger::stories(), names::stories(), reads::stories()].concat();
    let told = stories.into_iter().filter_map(|(story, tell)| tell(stage).err().map(|what| StoreFinding { story, what }));
    told.collect()
}

/// Makes the sums over rows known to a connection of a test.
///
/// # Errors
/// SQLite does not take them.
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

/// The batch is taken.
fn expect_written(store: &impl Store, what: &str, batch: impl Into<Batch>) -> StoryResult {
    match block_on(store.commit(batch.into())) {
        Ok(CommitAck::Written { .. }) => Ok(()),
        other => Err(format!("{what}: must be written, and got {other:?}")),
    }
}

/// The batch is refused, for this cause.
fn expect_refused(store: &impl Store, what: &str, batch: impl Into<Batch>, wanted: StoreRefusal) -> StoryResult {
    expect_equal(what, block_on(store.commit(batch.into())), Err(StoreError::Refused(wanted)))
}

fn expect_readable<T>(what: &str, answer: Result<T, StoreError>) -> Result<T, String> {
    answer.map_err(|error| format!("{what}: cannot be read: {error}"))
}
