//! Prints a store with rows in every table as SQL: how `tests/data/store-v2.sql` was made. A later version gets a file of
//! its own; old ones stay as they are.

use std::error::Error;
use std::sync::Arc;

use converger_core::apply::{End, EnvironmentRename, Freeze, Hold, Resolution};
use converger_core::artifact::Digest;
use converger_core::guest::EnvironmentName;
use converger_store::conformance::{Sample, now};
use converger_store::{Batch, Settings, SqliteStore, Store, Write};
use rusqlite::Connection;
use rusqlite::types::Value;

fn main() -> Result<(), Box<dyn Error>> {
    let directory = std::env::args_os().nth(1).ok_or("usage: fixture <new state directory>")?;
    let store = SqliteStore::open(directory.as_ref(), Settings::new(|cause| eprintln!("{cause}")))?;
    let _ = now(store.commit(content()))?;
    let connection = Connection::open(store.place())?;
    print!("{}", dump(&connection)?);
    Ok(())
}

fn content() -> Batch {
    let mut sample = Sample::new(100);
    let body: Arc<[u8]> = Arc::from(*b"{\"planner\":1}");
    let plan = Write::Blob { digest: Digest::of_bytes(&body), body };
    let (open, done, held) = (sample.one_shot(1, 1, "key-1", "it"), sample.operation(2, 2), sample.operation(3, 3));
    let (environment, vmid) = (sample.environment(), sample.guest(9));
    let (ended, left) = (sample.ended(&done, End::Done), sample.ended(&held, End::Held));
    let hold = Hold { environment: environment.clone(), vmid, by: "ann".into(), reason: "it's being moved".into(), at_ms: 5 };
    let freeze = Freeze { environment: environment.clone(), by: "ann".into(), reason: "audit".into(), at_ms: 6 };
    let former = EnvironmentName::new("site-a").unwrap_or_else(|| environment.clone());
    let other = EnvironmentName::new("site-b").unwrap_or_else(|| environment.clone());
    let rename = EnvironmentRename { from: former.clone(), to: other, by: "ann".into(), reason: "moved".into(), at_ms: 4 };
    Batch::from(plan)
        .with(sample.start())
        .with(Write::Bind(Sample::binding(&former)))
        .with(Write::Rename(rename))
        .with(sample.intent(&open))
        .with(sample.tasked(&open))
        .with(sample.intent(&done))
        .with(ended)
        .with(sample.intent(&held))
        .with(sample.sending(&held))
        .with(left)
        .with(sample.resolved(&held, Resolution::NotRun))
        .with(Write::RunEnded { id: sample.run().id, end: End::Held, at_ms: 7 })
        .with(Write::Hold(hold.clone()))
        .with(Write::Release { environment: environment.clone(), vmid, by: "bob".into(), at_ms: 8 })
        .with(Write::Hold(hold))
        .with(Write::Freeze(freeze.clone()))
        .with(Write::Thaw { environment, by: "bob".into(), at_ms: 9 })
        .with(Write::Freeze(freeze))
}

fn dump(connection: &Connection) -> rusqlite::Result<String> {
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
            text += &inserts(connection, &name)?;
        }
    }
    Ok(text)
}

fn inserts(connection: &Connection, table: &str) -> rusqlite::Result<String> {
    let mut statement = connection.prepare(&format!("SELECT * FROM {table}"))?;
    let columns = statement.column_count();
    let mut rows = statement.query([])?;
    let mut text = String::new();
    while let Some(row) = rows.next()? {
        let values = (0..columns).map(|column| row.get(column).map(literal)).collect::<rusqlite::Result<Vec<String>>>()?;
        text += &format!("INSERT INTO {table} VALUES ({});\n", values.join(", "));
    }
    Ok(text)
}

fn literal(value: Value) -> String {
    match value {
        Value::Null => "NULL".into(),
        Value::Integer(number) => number.to_string(),
        Value::Real(number) => number.to_string(),
        Value::Text(text) => format!("'{}'", text.replace('\'', "''")),
        // Plain bodies are JSON that a reviewer can read; hostile ones are not put before anybody's editor.
        Value::Blob(bytes) if bytes.is_ascii() => format!("CAST('{}' AS BLOB)", String::from_utf8_lossy(&bytes).replace('\'', "''")),
        Value::Blob(bytes) => format!("X'{}'", bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>()),
    }
}
