//! Prints a store with rows in every table as SQL. `tests/data/store-v3.sql` was made with it. A later version gets a file of its own;
//! old files stay unchanged.

use std::error::Error;
use std::sync::Arc;

use converger_core::apply::{EnvironmentRename, Freeze, Hold, OperationEnd, Resolution};
use converger_core::artifact::Digest;
use converger_core::evidence::LedgerEntry;
use converger_core::guest::EnvironmentName;
use converger_store::conformance::{OperationSample, block_on};
use converger_store::{Batch, SqliteStore, Store, StoreSettings, StoreWrite};
use rusqlite::Connection;
use rusqlite::types::Value;

fn main() -> Result<(), Box<dyn Error>> {
    let directory = std::env::args_os().nth(1).ok_or("usage: fixture <new state directory>")?;
    let store = SqliteStore::open(directory.as_ref(), StoreSettings::new(|cause| eprintln!("{cause}")))?;
    let _ = block_on(store.commit(fixture_batch()))?;
    let connection = Connection::open(store.path())?;
    print!("{}", dump_sql(&connection)?);
    Ok(())
}

fn fixture_batch() -> Batch {
    let mut sample = OperationSample::new(100);
    let body: Arc<[u8]> = Arc::from(*b"{\"planner\":1}");
    let plan = StoreWrite::Blob { digest: Digest::of_bytes(&body), body };
    let (open, done, held) = (sample.one_shot(1, 1, "key-1", "it"), sample.operation(2, 2), sample.operation(3, 3));
    let (environment, vmid) = (sample.environment(), sample.vmid(9));
    let (done_record, left) = (sample.end_record(&done, OperationEnd::Done), sample.end_record(&held, OperationEnd::Held));
    let hold = Hold { environment: environment.clone(), vmid, by: "ann".into(), reason: "it's being moved".into(), at_ms: 5 };
    let freeze = Freeze { environment: environment.clone(), by: "ann".into(), reason: "audit".into(), at_ms: 6 };
    let former = EnvironmentName::new("site-a").unwrap_or_else(|| environment.clone());
    let other = EnvironmentName::new("site-b").unwrap_or_else(|| environment.clone());
    let rename = EnvironmentRename { from: former.clone(), to: other, by: "ann".into(), reason: "moved".into(), at_ms: 4 };
    let (by, reason, root) = ("ann".into(), "restored".into(), None);
    let resync = LedgerEntry::Resync { by, reason, size: 20, root, epoch: 2, at_ms: 10 };
    Batch::from(plan)
        .with(sample.start_write())
        .with(StoreWrite::Bind(OperationSample::binding(&former)))
        .with(StoreWrite::Rename(rename))
        .with(sample.intent_record(&open))
        .with(sample.task_record(&open))
        .with(sample.intent_record(&done))
        .with(done_record)
        .with(sample.intent_record(&held))
        .with(sample.sending_record(&held))
        .with(left)
        .with(sample.resolution_record(&held, Resolution::NotRun))
        .with(StoreWrite::RunEnded { id: sample.run().id, end: OperationEnd::Held, at_ms: 7 })
        .with(StoreWrite::Hold(hold.clone()))
        .with(StoreWrite::Release { environment: environment.clone(), vmid, by: "bob".into(), at_ms: 8 })
        .with(StoreWrite::Hold(hold))
        .with(StoreWrite::Freeze(freeze.clone()))
        .with(StoreWrite::Thaw { environment, by: "bob".into(), at_ms: 9 })
        .with(StoreWrite::Freeze(freeze))
        .with(StoreWrite::decision(resync))
}

fn dump_sql(connection: &Connection) -> rusqlite::Result<String> {
    let mut text = String::from("-- Made by the example `fixture` of converger-store.\n");
    for pragma in ["application_id", "user_version"] {
        let value: i64 = connection.pragma_query_value(None, pragma, |row| row.get(0))?;
        text += &format!("PRAGMA {pragma} = {value};\n");
    }
    let mut schema = connection.prepare("SELECT type, name, sql FROM sqlite_schema WHERE sql IS NOT NULL ORDER BY rowid")?;
    let mut rows = schema.query([])?;
    while let Some(row) = rows.next()? {
        let (kind, name, sql): (String, String, String) = (row.get(0)?, row.get(1)?, row.get(2)?);
        text += &format!("{sql};\n");
        if kind == "table" {
            text += &dump_inserts(connection, &name)?;
        }
    }
    Ok(text)
}

fn dump_inserts(connection: &Connection, table: &str) -> rusqlite::Result<String> {
    let mut statement = connection.prepare(&format!("SELECT * FROM {table}"))?;
    let columns = statement.column_count();
    let mut rows = statement.query([])?;
    let mut text = String::new();
    while let Some(row) = rows.next()? {
        let values = (0..columns).map(|column| row.get(column).map(sql_literal)).collect::<rusqlite::Result<Vec<String>>>()?;
        text += &format!("INSERT INTO {table} VALUES ({});\n", values.join(", "));
    }
    Ok(text)
}

fn sql_literal(value: Value) -> String {
    match value {
        Value::Null => "NULL".into(),
        Value::Integer(number) => number.to_string(),
        Value::Real(number) => number.to_string(),
        Value::Text(text) => format!("'{}'", text.replace('\'', "''")),
        // ASCII bodies are JSON that a reviewer can read; others are printed as hex, so that no editor has to display hostile bytes.
        Value::Blob(bytes) if bytes.is_ascii() => format!("CAST('{}' AS BLOB)", String::from_utf8_lossy(&bytes).replace('\'', "''")),
        Value::Blob(bytes) => format!("X'{}'", bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>()),
    }
}
