-- Version 1. Never edited once released: what comes later is a version of its own.
--
-- What happened is only added (runs, run_ends, operations, sendings, tasks, ends, resolutions, plans). Two tables are derived and
-- change: `occupants` is who has a guest now, and a hold or freeze is closed by filling in who ended it.

CREATE TABLE plans (
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
    boot TEXT
) STRICT;

CREATE TABLE run_ends (
    run INTEGER PRIMARY KEY REFERENCES runs (seq),
    ending TEXT NOT NULL,
    at_ms INTEGER NOT NULL
) STRICT;

CREATE TABLE operations (
    seq INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    run INTEGER NOT NULL REFERENCES runs (seq),
    environment TEXT NOT NULL,
    vmid INTEGER NOT NULL,
    at_ms INTEGER NOT NULL,
    body BLOB NOT NULL
) STRICT;

CREATE INDEX operations_by_guest ON operations (environment, vmid);

CREATE TABLE sendings (
    operation INTEGER PRIMARY KEY REFERENCES operations (seq),
    at_ms INTEGER NOT NULL,
    up_ms INTEGER NOT NULL
) STRICT;

CREATE TABLE tasks (
    operation INTEGER PRIMARY KEY REFERENCES operations (seq),
    task TEXT NOT NULL,
    at_ms INTEGER NOT NULL
) STRICT;

-- Whose a task is: it carries out one operation.
CREATE INDEX tasks_by_name ON tasks (task);

CREATE TABLE ends (
    operation INTEGER PRIMARY KEY REFERENCES operations (seq),
    ending TEXT NOT NULL,
    at_ms INTEGER NOT NULL,
    body BLOB NOT NULL
) STRICT;

-- What was changed of late is found without walking through all that ever was.
CREATE INDEX ends_by_time ON ends (at_ms);

CREATE TABLE resolutions (
    operation INTEGER PRIMARY KEY REFERENCES operations (seq),
    resolution TEXT NOT NULL,
    who TEXT NOT NULL,
    reason TEXT NOT NULL,
    at_ms INTEGER NOT NULL
) STRICT;

-- The primary key is the guarantee: two operations cannot have one guest.
CREATE TABLE occupants (
    environment TEXT NOT NULL,
    vmid INTEGER NOT NULL,
    operation INTEGER NOT NULL REFERENCES operations (seq),
    PRIMARY KEY (environment, vmid)
) STRICT, WITHOUT ROWID;

CREATE TABLE idempotency_keys (
    environment TEXT NOT NULL,
    name TEXT NOT NULL,
    request TEXT NOT NULL,
    operation INTEGER NOT NULL REFERENCES operations (seq),
    PRIMARY KEY (environment, name)
) STRICT, WITHOUT ROWID;

CREATE TABLE holds (
    seq INTEGER PRIMARY KEY,
    environment TEXT NOT NULL,
    vmid INTEGER NOT NULL,
    who TEXT NOT NULL,
    reason TEXT NOT NULL,
    at_ms INTEGER NOT NULL,
    released_by TEXT,
    released_at_ms INTEGER
) STRICT;

CREATE UNIQUE INDEX holds_in_force ON holds (environment, vmid) WHERE released_at_ms IS NULL;

CREATE TABLE freezes (
    seq INTEGER PRIMARY KEY,
    environment TEXT NOT NULL,
    who TEXT NOT NULL,
    reason TEXT NOT NULL,
    at_ms INTEGER NOT NULL,
    thawed_by TEXT,
    thawed_at_ms INTEGER
) STRICT;

CREATE UNIQUE INDEX freezes_in_force ON freezes (environment) WHERE thawed_at_ms IS NULL;
