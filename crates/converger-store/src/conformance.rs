//! What any store must pass, whoever wrote it: stories with a known end, each on a store of its own.
//!
//! A store may answer slowly. It may never acknowledge what it does not find again, write a part of a batch, take a
//! record out of order, or let two operations have one guest.

mod journal;
mod ledger;
mod names;
mod people;
mod sample;

use std::fmt;
use std::future::Future;

use crate::{Batch, Receipt, Refused, Store, StoreError};

pub use sample::Sample;

/// A place where stores are opened.
pub trait Stage {
    /// The store that is checked.
    type Store: Store;

    /// A store that is empty.
    fn fresh(&mut self) -> Self::Store;

    /// The same store, as the next process finds it.
    fn reopened(&mut self, store: Self::Store) -> Self::Store;
}

/// A rule that a store broke.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The story in which it did.
    pub story: &'static str,
    /// The rule, and what was seen.
    pub what: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "in the story `{}`: {}", self.story, self.what)
    }
}

/// What a story comes to: nothing, or the first thing that is not as it must be.
type Told = Result<(), String>;

type Story<S> = (&'static str, fn(&mut S) -> Told);

/// Tells every story. No finding means that the store conforms.
#[must_use]
pub fn check<S: Stage>(stage: &mut S) -> Vec<Finding> {
    let stories: Vec<Story<S>> = [journal::stories(), people::stories(), ledger::stories(), names::stories()].concat();
    let told = stories.into_iter().filter_map(|(story, tell)| tell(stage).err().map(|what| Finding { story, what }));
    told.collect()
}

/// Makes the sums over rows known to a connection of a test.
///
/// # Errors
/// SQLite does not take them.
pub fn teach(connection: &rusqlite::Connection) -> rusqlite::Result<()> {
    crate::sqlite::teach(connection)
}

/// Waits for a future. Stores bring what drives them along, so that any runtime will do.
pub fn now<F: Future>(future: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    runtime.expect("a runtime without drivers needs nothing from the system").block_on(future)
}

fn same<T: fmt::Debug + PartialEq>(what: &str, found: T, wanted: T) -> Told {
    if found == wanted { Ok(()) } else { Err(format!("{what}: found {found:?}, wanted {wanted:?}")) }
}

/// The batch is taken.
fn taken(store: &impl Store, what: &str, batch: impl Into<Batch>) -> Told {
    match now(store.commit(batch.into())) {
        Ok(Receipt::Written { .. }) => Ok(()),
        other => Err(format!("{what}: must be written, and got {other:?}")),
    }
}

/// The batch is refused, for this cause.
fn refused(store: &impl Store, what: &str, batch: impl Into<Batch>, wanted: Refused) -> Told {
    same(what, now(store.commit(batch.into())), Err(StoreError::Refused(wanted)))
}

fn read<T>(what: &str, answer: Result<T, StoreError>) -> Result<T, String> {
    answer.map_err(|error| format!("{what}: cannot be read: {error}"))
}
