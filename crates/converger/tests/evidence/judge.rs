//! What `verify` looks at, by the same parts, in this process: a hundred thousand times as often as a process could be started.
//!
//! What never enters: what is done to the record, and how the program tells what it finds (the tests of the real program).

use std::collections::BTreeSet;
use std::path::Path;

use converger_core::apply::OperationId;
use converger_core::artifact::Digest;
use converger_core::evidence::{Entry, Replay, parse_entry};
use converger_ledger::{Growth, Hash, Verifier, walk};
use converger_store::{Filter, Head, LIST_MAX, Looked};
use rusqlite::Connection;
use rusqlite::types::Value;

use crate::files::Files;

/// What entries name by digest.
fn named(entry: &Entry) -> Vec<Digest> {
    match entry {
        Entry::RunStarted { inputs, .. } => vec![inputs.config, inputs.desired, inputs.observation, inputs.rules, inputs.catalogue],
        Entry::PlanMade { plan, judgement, .. } => vec![*plan, *judgement],
        Entry::Admitted { bundle, .. } => vec![*bundle],
        _ => Vec::new(),
    }
}

/// Entries as they come.
#[derive(Default)]
struct Deep {
    replay: Replay,
    named: BTreeSet<Digest>,
}

impl Deep {
    fn take(&mut self, index: u64, bytes: &[u8]) -> Result<(), String> {
        let entry = parse_entry(bytes).map_err(|error| format!("entry {index}: {error}"))?;
        self.named.extend(named(&entry));
        self.replay.take(entry).map_err(|misplaced| format!("entry {index}: {misplaced}"))
    }
}

/// Whether an export is whole.
pub(crate) fn export(files: &Files) -> Result<(), String> {
    let key = files.0.get("log.vkey").and_then(|key| std::str::from_utf8(key).ok()).ok_or("no key")?;
    let text = key;
    let key = Verifier::parse(text).map_err(|error| error.to_string())?;
    if *text != format!("{key}\n") {
        return Err("the key is not one line".to_owned());
    }
    let (mut deep, mut wrong) = (Deep::default(), None);
    let Ok(walked) = walk(&mut files.clone(), &key, |index, entry| wrong = wrong.take().or_else(|| deep.take(index, entry).err()));
    walked.map_err(|broken| format!("{broken:?}"))?;
    wrong.map_or(Ok(()), Err)?;
    let is_other = |digest: &Digest| {
        let kept = files.0.get(&format!("blob/{}", digest.to_string().replace(':', "/")));
        kept.is_none_or(|bytes| Digest::of_bytes(bytes) != *digest)
    };
    match deep.named.iter().find(|digest| is_other(digest)) {
        Some(digest) => Err(format!("{digest} is another, or gone")),
        None if deep.replay.keys().iter().any(|named| **named == key.to_string()) => Ok(()),
        None => Err("the key is not named".into()),
    }
}

/// Whether the store in a state directory is whole: its file, its ledger, and the journal beside it.
pub(crate) fn state(directory: &Path) -> Result<(), String> {
    let looked = Looked::open(directory).map_err(|error| error.to_string())?.ok_or("there is nothing")?;
    let read = |error: converger_store::StoreError| error.to_string();
    if let Some(damage) = looked.damage().map_err(read)? {
        return Err(damage);
    }
    let deep = ledger(&looked)?;
    for digest in &deep.named {
        looked.blob(digest).map_err(read)?.ok_or_else(|| format!("{digest} is gone"))?;
    }
    journal(&looked, &deep.replay)
}

fn ledger(looked: &Looked) -> Result<Deep, String> {
    let read = |error: converger_store::StoreError| error.to_string();
    let heads = looked.heads().map_err(read)?;
    let (mut deep, mut growth, mut full) = (Deep::default(), Growth::default(), Vec::new());
    while growth.tree().size() < heads.all.size {
        let page = looked.entries(growth.tree().size(), LIST_MAX).map_err(read)?;
        if page.is_empty() {
            return Err("entries are missing".into());
        }
        for entry in page {
            deep.take(growth.tree().size(), &entry)?;
            growth.append(Hash::of_leaf(&entry), |tile, hashes, _| full.push((tile, hashes.to_vec())));
            if growth.tree().size() == heads.durable.size && Head::of(growth.tree()) != heads.durable {
                return Err("another root was durable".into());
            }
        }
    }
    for (tile, hashes) in full {
        if looked.hashes(tile).map_err(read)? != Some(hashes) {
            return Err(format!("{} is another", tile.path()));
        }
    }
    if Head::of(growth.tree()) == heads.all { Ok(deep) } else { Err("another root".into()) }
}

fn journal(looked: &Looked, replay: &Replay) -> Result<(), String> {
    let read = |error: converger_store::StoreError| error.to_string();
    let (mut seen, mut before): (usize, Option<OperationId>) = (0, None);
    loop {
        let page = looked.operations(&Filter { before, ..Filter::default() }, LIST_MAX).map_err(read)?;
        if let Some(other) = page.iter().find(|history| replay.operations().get(history.id()) != Some(history)) {
            return Err(format!("another story of {}", other.id().as_str()));
        }
        seen += page.len();
        before = page.last().map(|history| history.id().clone());
        if before.is_none() {
            break;
        }
    }
    for (id, (run, ended)) in replay.runs() {
        let found = looked.run(id).map_err(read)?.map(|found| (found.run, found.ended));
        if found.as_ref() != Some(&(run.clone(), *ended)) {
            return Err(format!("another story of the run {}", id.as_str()));
        }
    }
    if seen == replay.operations().len() { Ok(()) } else { Err("operations are missing".into()) }
}

/// The rows of all tables, by their names.
pub(crate) type Content = Vec<(String, Vec<Vec<Value>>)>;

/// Everything that a database says, row by row, read by nothing of ours.
pub(crate) fn content(database: &Path) -> rusqlite::Result<Content> {
    let connection = Connection::open(database)?;
    let names = "SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name";
    let names = connection.prepare(names)?.query_map([], |row| row.get::<_, String>(0))?.collect::<rusqlite::Result<Vec<_>>>()?;
    names.into_iter().map(|name| Ok((name.clone(), rows(&connection, &name)?))).collect()
}

/// The number of a hold or a freeze is that of its row: nothing refers to it and nobody reads it.
fn rows(connection: &Connection, table: &str) -> rusqlite::Result<Vec<Vec<Value>>> {
    let first = usize::from(["holds", "freezes"].contains(&table));
    let mut statement = connection.prepare(&format!("SELECT * FROM {table} ORDER BY 1, 2"))?;
    let columns = statement.column_count();
    statement.query_map([], |row| (first..columns).map(|column| row.get(column)).collect())?.collect()
}
