-- Version 3. Before the first release (0.2) the schema changes in place and the version goes up: an older file is refused, not migrated.
--
-- Tables of events only grow (runs, run_ends, operations, tasks, ends, resolutions, blobs and the ledger). Other rows change: `occupants`
-- says which operation occupies a guest now, `ledger_head` is the size of the ledger, `epoch` the number of the current epoch, a hold or freeze is ended by setting who ended it,
-- and of `sendings` only the last one counts. A rename changes the environment of everything in force (bindings, holds, freezes,
-- occupants, keys); runs and operations keep the name that they started under, and `former_names` leads from there to the current name.
--
-- `sum` covers all other columns of a row; the program computes it (`checksums.rs`). SQLite verifies it when a row is written and during
-- an integrity check. A blob has its digest instead.

-- Data that ledger entries refer to by digest: bodies of plans, observations, declarations.
CREATE TABLE blobs (
    digest TEXT NOT NULL PRIMARY KEY,
    body BLOB NOT NULL
) STRICT;

CREATE TABLE runs (
    seq INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    environment TEXT NOT NULL,
    plan TEXT NOT NULL,
    who TEXT NOT NULL,
    at_ms INTEGER NOT NULL,
    boot TEXT,
    sum INTEGER NOT NULL CHECK (sum = row_sum(seq, id, environment, plan, who, at_ms, boot))
) STRICT;

CREATE TABLE run_ends (
    run INTEGER PRIMARY KEY REFERENCES runs (seq),
    ending TEXT NOT NULL,
    at_ms INTEGER NOT NULL,
    sum INTEGER NOT NULL CHECK (sum = row_sum(run, ending, at_ms))
) STRICT;

CREATE TABLE operations (
    seq INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    run INTEGER NOT NULL REFERENCES runs (seq),
    environment TEXT NOT NULL,
    vmid INTEGER NOT NULL,
    at_ms INTEGER NOT NULL,
    body BLOB NOT NULL,
    sum INTEGER NOT NULL CHECK (sum = row_sum(seq, id, run, environment, vmid, at_ms, body))
) STRICT;

CREATE INDEX operations_by_guest ON operations (environment, vmid);

CREATE TABLE sendings (
    operation INTEGER PRIMARY KEY REFERENCES operations (seq),
    at_ms INTEGER NOT NULL,
    up_ms INTEGER NOT NULL,
    sum INTEGER NOT NULL CHECK (sum = row_sum(operation, at_ms, up_ms))
) STRICT;

CREATE TABLE tasks (
    operation INTEGER PRIMARY KEY REFERENCES operations (seq),
    task TEXT NOT NULL,
    at_ms INTEGER NOT NULL,
    sum INTEGER NOT NULL CHECK (sum = row_sum(operation, task, at_ms))
) STRICT;

-- A task belongs to one operation.
CREATE INDEX tasks_by_name ON tasks (task);

CREATE TABLE ends (
    operation INTEGER PRIMARY KEY REFERENCES operations (seq),
    ending TEXT NOT NULL,
    at_ms INTEGER NOT NULL,
    body BLOB NOT NULL,
    sum INTEGER NOT NULL CHECK (sum = row_sum(operation, ending, at_ms, body))
) STRICT;

-- Finds recent changes without a scan of all operations.
CREATE INDEX ends_by_time ON ends (at_ms);

CREATE TABLE resolutions (
    operation INTEGER PRIMARY KEY REFERENCES operations (seq),
    resolution TEXT NOT NULL,
    who TEXT NOT NULL,
    reason TEXT NOT NULL,
    at_ms INTEGER NOT NULL,
    sum INTEGER NOT NULL CHECK (sum = row_sum(operation, resolution, who, reason, at_ms))
) STRICT;

-- The primary key enforces that no two operations occupy one guest.
CREATE TABLE occupants (
    environment TEXT NOT NULL,
    vmid INTEGER NOT NULL,
    operation INTEGER NOT NULL REFERENCES operations (seq),
    sum INTEGER NOT NULL CHECK (sum = row_sum(environment, vmid, operation)),
    PRIMARY KEY (environment, vmid)
) STRICT, WITHOUT ROWID;

CREATE TABLE idempotency_keys (
    environment TEXT NOT NULL,
    name TEXT NOT NULL,
    change TEXT NOT NULL,
    request TEXT NOT NULL,
    operation INTEGER NOT NULL REFERENCES operations (seq),
    sum INTEGER NOT NULL CHECK (sum = row_sum(environment, name, change, request, operation)),
    PRIMARY KEY (environment, name, change)
) STRICT, WITHOUT ROWID;

CREATE TABLE holds (
    seq INTEGER PRIMARY KEY,
    environment TEXT NOT NULL,
    vmid INTEGER NOT NULL,
    who TEXT NOT NULL,
    reason TEXT NOT NULL,
    at_ms INTEGER NOT NULL,
    released_by TEXT,
    released_at_ms INTEGER,
    sum INTEGER NOT NULL CHECK (sum = row_sum(seq, environment, vmid, who, reason, at_ms, released_by, released_at_ms))
) STRICT;

CREATE UNIQUE INDEX holds_in_force ON holds (environment, vmid) WHERE released_at_ms IS NULL;

CREATE TABLE freezes (
    seq INTEGER PRIMARY KEY,
    environment TEXT NOT NULL,
    who TEXT NOT NULL,
    reason TEXT NOT NULL,
    at_ms INTEGER NOT NULL,
    thawed_by TEXT,
    thawed_at_ms INTEGER,
    sum INTEGER NOT NULL CHECK (sum = row_sum(seq, environment, who, reason, at_ms, thawed_by, thawed_at_ms))
) STRICT;

CREATE UNIQUE INDEX freezes_in_force ON freezes (environment) WHERE thawed_at_ms IS NULL;

-- Which cluster each environment name refers to. The primary key and the index enforce one name per cluster.
CREATE TABLE bindings (
    environment TEXT NOT NULL PRIMARY KEY,
    cluster TEXT NOT NULL,
    who TEXT NOT NULL,
    at_ms INTEGER NOT NULL,
    sum INTEGER NOT NULL CHECK (sum = row_sum(environment, cluster, who, at_ms))
) STRICT, WITHOUT ROWID;

CREATE UNIQUE INDEX bindings_by_cluster ON bindings (cluster);

-- Former names of environments, each with the current name.
CREATE TABLE former_names (
    name TEXT NOT NULL PRIMARY KEY,
    environment TEXT NOT NULL,
    sum INTEGER NOT NULL CHECK (sum = row_sum(name, environment))
) STRICT, WITHOUT ROWID;

-- The ledger: one entry for each decision, in the transaction of the write that it records. `seq` counts from 1 without gaps.
CREATE TABLE ledger_entries (
    seq INTEGER PRIMARY KEY,
    body BLOB NOT NULL,
    sum INTEGER NOT NULL CHECK (sum = row_sum(seq, body))
) STRICT;

-- Full tiles: 256 hashes of their level, and the root over them, which is one hash of the level above.
CREATE TABLE ledger_tiles (
    level INTEGER NOT NULL,
    place INTEGER NOT NULL,
    hashes BLOB NOT NULL,
    root BLOB NOT NULL,
    sum INTEGER NOT NULL CHECK (sum = row_sum(level, place, hashes, root)),
    PRIMARY KEY (level, place)
) STRICT;

-- One row: the size of the ledger, and how much of it was durable when the row was written. The rest are entries of sending marks.
CREATE TABLE ledger_head (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    size INTEGER NOT NULL,
    root BLOB NOT NULL,
    durable_size INTEGER NOT NULL,
    durable_root BLOB NOT NULL,
    sum INTEGER NOT NULL CHECK (sum = row_sum(one, size, root, durable_size, durable_root))
) STRICT;

-- One row after the first resync or restore; without it the store is in epoch 1.
CREATE TABLE epoch (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    number INTEGER NOT NULL CHECK (number > 1),
    sum INTEGER NOT NULL CHECK (sum = row_sum(one, number))
) STRICT;
