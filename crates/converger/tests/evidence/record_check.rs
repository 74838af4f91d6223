//! The checks of `verify`, run in this process, so that they can run a hundred thousand times.
//!
//! How the program reports faults is tested with the real program.

use std::path::Path;

use converger_core::evidence::{LedgerCheck, LedgerFault};
use converger_ledger::{LogBuilder, LogHash, NoteVerifier, verify_log};
use converger_store::{LIST_MAX, LedgerHead, LedgerIndex, StoreReader as _, StoreView, find_journal_mismatch, wait_for};
use rusqlite::Connection;
use rusqlite::types::Value;

use crate::export_files::ExportFiles;

/// A fault in the record.
struct RecordFault(String);

impl From<LedgerFault> for RecordFault {
    fn from(wrong: LedgerFault) -> Self {
        Self(wrong.what)
    }
}

/// Checks that an export is intact.
pub(crate) fn check_export(files: &ExportFiles) -> Result<(), String> {
    let key = files.0.get("log.vkey").and_then(|key| std::str::from_utf8(key).ok()).ok_or("no key")?;
    let text = key;
    let key = NoteVerifier::parse(text).map_err(|error| error.to_string())?;
    if *text != format!("{key}\n") {
        return Err("the key is not one line".to_owned());
    }
    let (mut ledger_check, mut wrong) = (LedgerCheck::default(), None);
    let Ok(log_result) =
        verify_log(&mut files.clone(), &key, |_, entry| wrong = wrong.take().or_else(|| ledger_check.add_entry(entry).err()));
    log_result.map_err(|broken| format!("{broken:?}"))?;
    wrong.map_or(Ok(()), |wrong| Err(wrong.what))?;
    ledger_check
        .check_blobs(|digest| Ok(files.0.get(&format!("blob/{}", digest.to_string().replace(':', "/"))).cloned()))
        .map_err(|RecordFault(what)| what)?;
    match ledger_check.replay().keys().iter().any(|named| **named == key.to_string()) {
        true => Ok(()),
        false => Err("the key is not named".into()),
    }
}

/// Checks that the store in a state directory is intact: its file, its ledger and its journal.
pub(crate) fn check_state(directory: &Path) -> Result<(), String> {
    let view = StoreView::open(directory).map_err(|error| error.to_string())?.ok_or("there is nothing")?;
    let read = |error: converger_store::StoreError| error.to_string();
    if let Some(damage) = view.find_damage().map_err(read)? {
        return Err(damage);
    }
    let (ledger_check, ledger_index) = check_ledger(&view)?;
    ledger_check
        .check_blobs(|digest| wait_for(view.blob(digest)).map_err(|error| RecordFault(read(error))))
        .map_err(|RecordFault(what)| what)?;
    wait_for(find_journal_mismatch(&view, ledger_check.replay(), &ledger_index))
        .map_err(read)?
        .map_or(Ok(()), |found| Err(found.to_string()))
}

fn check_ledger(view: &StoreView) -> Result<(LedgerCheck, LedgerIndex), String> {
    let read = |error: converger_store::StoreError| error.to_string();
    let heads = wait_for(view.heads()).map_err(read)?;
    let (mut ledger_check, mut ledger_index, mut log_builder, mut full) =
        (LedgerCheck::default(), LedgerIndex::default(), LogBuilder::default(), Vec::new());
    while log_builder.tree().size() < heads.all.size {
        let page = wait_for(view.entries(log_builder.tree().size(), LIST_MAX)).map_err(read)?;
        if page.is_empty() {
            return Err("entries are missing".into());
        }
        for entry in page {
            let index = ledger_check.entries();
            ledger_check.add_entry_and_visit(&entry, |entry| ledger_index.add_entry(index, entry)).map_err(|wrong| wrong.what)?;
            log_builder.append(LogHash::of_leaf(&entry), |tile, hashes, _| full.push((tile, hashes.to_vec())));
            if log_builder.tree().size() == heads.durable.size && LedgerHead::from_tree(log_builder.tree()) != heads.durable {
                return Err("another root was durable".into());
            }
        }
    }
    for (tile, hashes) in full {
        if wait_for(view.hashes(tile)).map_err(read)? != Some(hashes) {
            return Err(format!("{} is another", tile.path()));
        }
    }
    if LedgerHead::from_tree(log_builder.tree()) == heads.all { Ok((ledger_check, ledger_index)) } else { Err("another root".into()) }
}

/// The rows of all tables by table name.
pub(crate) type TableRows = Vec<(String, Vec<Vec<Value>>)>;

/// Reads all rows of a database without any code of ours.
pub(crate) fn read_tables(database: &Path) -> rusqlite::Result<TableRows> {
    let connection = Connection::open(database)?;
    let names = "SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name";
    let names = connection.prepare(names)?.query_map([], |row| row.get::<_, String>(0))?.collect::<rusqlite::Result<Vec<_>>>()?;
    names.into_iter().map(|name| Ok((name.clone(), read_rows(&connection, &name)?))).collect()
}

/// Skips the number of a hold or a freeze, which is its row number: nothing refers to it and nothing reads it.
fn read_rows(connection: &Connection, table: &str) -> rusqlite::Result<Vec<Vec<Value>>> {
    let first = usize::from(["holds", "freezes"].contains(&table));
    let mut statement = connection.prepare(&format!("SELECT * FROM {table} ORDER BY 1, 2"))?;
    let columns = statement.column_count();
    statement.query_map([], |row| (first..columns).map(|column| row.get(column)).collect())?.collect()
}
