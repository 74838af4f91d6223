//! The ledger in the file: entries, full tiles, and one head row with size and root.
//!
//! Only the head row is ever rewritten: an append costs one insert, and one more tile for every 256th entry. Opening the file hashes the
//! entries that no full tile covers again, at most 255. Row checksums detect a faulty disk; the hashes detect manipulation.
//!
//! Must not interpret entries, or depend on keys and signatures.

use converger_ledger::{LogBuilder, LogHash, TILE_WIDTH, Tile};
use rusqlite::types::FromSqlError;
use rusqlite::{Connection, OptionalExtension as _, Row, params};

use super::sql_fault::SqlFault;
use super::tables::to_sql_integer;
use super::writer::SyncMode;
use crate::query::{LedgerHead, LedgerHeads};

type LedgerResult<T> = Result<T, SqlFault>;

const INSERT_ENTRY: &str = "INSERT INTO ledger_entries (seq, body, sum) VALUES (?1, ?2, row_sum(?1, ?2))";
const SELECT_ENTRIES: &str = "SELECT seq, body FROM ledger_entries WHERE seq > ?1 ORDER BY seq LIMIT ?2";
const SELECT_LAST_SEQ: &str = "SELECT coalesce(max(seq), 0) FROM ledger_entries";
const INSERT_TILE: &str = "INSERT INTO ledger_tiles (level, place, hashes, root, sum) VALUES (?1, ?2, ?3, ?4, row_sum(?1, ?2, ?3, ?4))";
const SELECT_TILE: &str = "SELECT hashes FROM ledger_tiles WHERE level = ?1 AND place = ?2";
const SELECT_ROOTS: &str = "SELECT place, root FROM ledger_tiles WHERE level = ?1 AND place >= ?2 AND place < ?3 ORDER BY place";
const SELECT_HEAD: &str = "SELECT size, root, durable_size, durable_root FROM ledger_head WHERE one = 1";
const REPLACE_HEAD: &str = "INSERT OR REPLACE INTO ledger_head (one, size, root, durable_size, durable_root, sum) \
    VALUES (1, ?1, ?2, ?3, ?4, row_sum(1, ?1, ?2, ?3, ?4))";

/// The size and root of the ledger. An empty ledger has no head row.
pub(super) fn read_heads(connection: &Connection) -> LedgerResult<LedgerHeads> {
    let mut statement = connection.prepare_cached(SELECT_HEAD)?;
    let found = statement.query_row([], |row| Ok((row.get(0)?, hash_column(row, 1)?, row.get(2)?, hash_column(row, 3)?))).optional()?;
    let Some((size, root, durable_size, durable_root)) = found else { return Ok(LedgerHeads::default()) };
    let head = |size: i64, root| {
        let size = u64::try_from(size).map_err(|_| damaged_ledger_error("its size is negative"))?;
        Ok::<_, SqlFault>(LedgerHead { size, root })
    };
    if durable_size > size {
        return Err(damaged_ledger_error("its durable size is larger than its size"));
    }
    Ok(LedgerHeads { all: head(size, root)?, durable: head(durable_size, durable_root)? })
}

/// Inserts an entry at an index (zero-based).
pub(super) fn insert_entry(connection: &Connection, index: u64, entry: &[u8]) -> LedgerResult<()> {
    connection.prepare_cached(INSERT_ENTRY)?.execute(params![to_sql_integer(index + 1), entry])?;
    Ok(())
}

/// Entries starting at index `from`, without gaps.
pub(super) fn read_entries(connection: &Connection, from: u64, limit: u32) -> LedgerResult<Vec<Vec<u8>>> {
    let mut statement = connection.prepare_cached(SELECT_ENTRIES)?;
    let rows = statement.query_map(params![to_sql_integer(from), limit], |row| Ok((row.get::<_, i64>(0)?, row.get(1)?)))?;
    let mut entries = Vec::new();
    for (row, seq) in rows.zip(to_sql_integer(from) + 1..) {
        let (found, body) = row?;
        if found != seq {
            return Err(damaged_ledger_error(&format!("entry {} is missing", seq - 1)));
        }
        entries.push(body);
    }
    Ok(entries)
}

/// The hashes of a tile, from the stored full tile or computed from the level below; `None` if the log does not reach that far.
///
/// Full tiles are always stored. A missing one was removed, so it is reported and not silently recomputed.
pub(super) fn read_hashes(connection: &Connection, tile: Tile) -> LedgerResult<Option<Vec<LogHash>>> {
    let width = usize::from(tile.width);
    let found = match read_full_tile(connection, tile)? {
        Some(hashes) => hashes,
        None if tile.is_full() => {
            check_tile_not_removed(connection, tile)?;
            return Ok(None);
        }
        None => hash_partial_tile(connection, tile)?,
    };
    Ok((found.len() >= width).then(|| found.into_iter().take(width).collect()))
}

/// The stored hashes of a full tile; `None` if the tile is not stored.
pub(super) fn read_full_tile(connection: &Connection, tile: Tile) -> LedgerResult<Option<Vec<LogHash>>> {
    let stored =
        connection.prepare_cached(SELECT_TILE)?.query_row(params![tile.level, to_sql_integer(tile.index)], |row| row.get::<_, Vec<u8>>(0));
    let whole = |bytes: Vec<u8>| {
        split_hashes(&bytes).ok_or_else(|| damaged_ledger_error(&format!("tile {} of level {} is incomplete", tile.index, tile.level)))
    };
    stored.optional()?.map(whole).transpose()
}

/// Checks that the log is too short for this tile to be full. Otherwise the tile was removed.
fn check_tile_not_removed(connection: &Connection, tile: Tile) -> LedgerResult<()> {
    // A full tile of this level covers `1 << levels` entries.
    let (size, levels) = (read_heads(connection)?.all.size, 8 * (u32::from(tile.level) + 1));
    let full = size.checked_shr(levels).unwrap_or(0);
    if tile.index >= full {
        return Ok(());
    }
    let first = tile.index << levels;
    Err(damaged_ledger_error(&format!("tile {} of level {}, which covers the entries from {first} on, is missing", tile.index, tile.level)))
}

/// The hashes of a partial tile: those of its entries, or the roots of the full tiles below it.
fn hash_partial_tile(connection: &Connection, tile: Tile) -> LedgerResult<Vec<LogHash>> {
    let first = tile.index.saturating_mul(TILE_WIDTH);
    let Some(level) = tile.level.checked_sub(1) else {
        let entries = read_entries(connection, first, u32::from(tile.width))?;
        return Ok(entries.iter().map(|entry| LogHash::of_leaf(entry)).collect());
    };
    let mut statement = connection.prepare_cached(SELECT_ROOTS)?;
    let last = first.saturating_add(tile.width.into());
    let rows = statement
        .query_map(params![level, to_sql_integer(first), to_sql_integer(last)], |row| Ok((row.get::<_, i64>(0)?, hash_column(row, 1)?)))?;
    let mut roots = Vec::new();
    for row in rows {
        let (index, root) = row?;
        if index != to_sql_integer(first + roots.len() as u64) {
            break;
        }
        roots.push(root);
    }
    // Report the first tile that is missing, not the tile above it.
    if roots.len() < usize::from(tile.width) {
        check_tile_not_removed(connection, Tile { level, index: first + roots.len() as u64, width: TILE_WIDTH as u16 })?;
    }
    Ok(roots)
}

/// Loads the log from the file. Hashes what no full tile covers; the result must match the stored root.
pub(super) fn resume_log(connection: &Connection) -> LedgerResult<LogBuilder> {
    let LedgerHead { size, root } = read_heads(connection)?.all;
    let last: i64 = connection.prepare_cached(SELECT_LAST_SEQ)?.query_row([], |row| row.get(0))?;
    if last != to_sql_integer(size) {
        let what = if last < to_sql_integer(size) { "is missing" } else { "is beyond its end" };
        return Err(damaged_ledger_error(&format!("it has {size} entries, and entry {} {what}", last.min(to_sql_integer(size)))));
    }
    let mut open = Vec::new();
    let log_builder = LogBuilder::resume(size, |level, index| {
        let at = index % TILE_WIDTH;
        if at == 0 {
            let width = (size >> (8 * u32::from(level))) - index;
            let tile = Tile { level, index: index / TILE_WIDTH, width: u16::try_from(width).unwrap_or(u16::MAX) };
            open = read_hashes(connection, tile)?
                .ok_or_else(|| damaged_ledger_error(&format!("tile {} of level {level} is missing", tile.index)))?;
        }
        // `open` has as many hashes as were requested.
        usize::try_from(at).ok().and_then(|at| open.get(at).copied()).ok_or_else(|| damaged_ledger_error("a tile is incomplete"))
    })?;
    if log_builder.tree().root() == root {
        Ok(log_builder)
    } else {
        Err(damaged_ledger_error(&format!("its last entries, up to {size}, do not match its root")))
    }
}

/// The log as another process may have left it; loaded again only if the stored head has changed.
pub(super) fn refresh_log(connection: &Connection, known: Option<LogBuilder>) -> LedgerResult<LogBuilder> {
    let head = read_heads(connection)?.all;
    match known {
        Some(log_builder) if LedgerHead::from_tree(log_builder.tree()) == head => Ok(log_builder),
        _ => resume_log(connection),
    }
}

/// Appends leaves whose entries are already written.
pub(super) fn append_leaves(
    connection: &Connection,
    log_builder: &mut LogBuilder,
    leaves: &[LogHash],
    syncs: SyncMode,
) -> LedgerResult<()> {
    let mut full = Vec::new();
    for leaf in leaves {
        log_builder.append(*leaf, |tile, hashes, root| full.push((tile, join_hashes(hashes), root)));
    }
    for (tile, hashes, root) in full {
        connection.prepare_cached(INSERT_TILE)?.execute(params![tile.level, to_sql_integer(tile.index), hashes, root.0.as_slice()])?;
    }
    let all = LedgerHead::from_tree(log_builder.tree());
    // An unsynced commit becomes durable with the next synced one, and only that one advances the durable head.
    let durable = if syncs == SyncMode::Now { all } else { read_heads(connection)?.durable };
    let row = params![to_sql_integer(all.size), all.root.0.as_slice(), to_sql_integer(durable.size), durable.root.0.as_slice()];
    connection.prepare_cached(REPLACE_HEAD)?.execute(row)?;
    Ok(())
}

fn join_hashes(hashes: &[LogHash]) -> Vec<u8> {
    hashes.iter().flat_map(|hash| hash.0).collect()
}

fn split_hashes(bytes: &[u8]) -> Option<Vec<LogHash>> {
    let (hashes, rest) = bytes.as_chunks::<{ LogHash::BYTES }>();
    rest.is_empty().then(|| hashes.iter().map(|hash| LogHash(*hash)).collect())
}

fn hash_column(row: &Row<'_>, column: usize) -> rusqlite::Result<LogHash> {
    let bytes: Vec<u8> = row.get(column)?;
    let length = bytes.len();
    let found = <[u8; LogHash::BYTES]>::try_from(bytes);
    let other = |_| FromSqlError::InvalidBlobSize { expected_size: LogHash::BYTES, blob_size: length };
    Ok(LogHash(found.map_err(other)?))
}

fn damaged_ledger_error(cause: &str) -> SqlFault {
    SqlFault::damaged_row("the ledger", cause)
}
