-- Made by the example `fixture` of converger-store.
PRAGMA application_id = 1684237942;
PRAGMA user_version = 3;
CREATE TABLE blobs (
    digest TEXT NOT NULL PRIMARY KEY,
    body BLOB NOT NULL
) STRICT;
INSERT INTO blobs VALUES ('sha256:0174f101d922ce59638dbf40e186d010405461aca5223b1bf7d4ef47e3026b77', CAST('{"planner":1}' AS BLOB));
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
INSERT INTO runs VALUES (1, 'run-0', 'lab', 'sha256:2477391f9b91cb884f77282140808cb73d01becbab5a1aafc2a8e1cb9a1bf579', 'ann', 1, 'boot-1', 5742896909743680354);
CREATE TABLE run_ends (
    run INTEGER PRIMARY KEY REFERENCES runs (seq),
    ending TEXT NOT NULL,
    at_ms INTEGER NOT NULL,
    sum INTEGER NOT NULL CHECK (sum = row_sum(run, ending, at_ms))
) STRICT;
INSERT INTO run_ends VALUES (1, 'held', 7, -1614674504370030189);
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
INSERT INTO operations VALUES (1, 'op-1', 1, 'lab', 1001, 10, CAST('{"environment":"lab","guest":{"guards":{"ha":null,"lock":null,"protection":false,"tags":["Web"],"template":false},"identity":{"mac":"BC:24:11:00:00:01","rootfs":"local-lvm:vm-102-disk-0"},"kind":"lxc","name":"3com-102","node":"pve0","vmid":1001},"id":"op-1","plan":"sha256:2477391f9b91cb884f77282140808cb73d01becbab5a1aafc2a8e1cb9a1bf579","position":0,"run":"run-0","schema":"converger.operation/1","source":{"key":"key-1","kind":"one-shot","request":"sha256:2ad8a7049d7c5511ac254f5f51fe70a046ebd884729056f0fe57f5160d467153"},"step":{"change":"config.set","class":"benign","fields":{"cpuunits":{"after":100,"before":2,"effect":"recorded"},"description":{"after":null,"before":"front end","effect":"recorded"},"memory":{"after":512,"before":1536,"effect":"recorded"},"tags":{"after":null,"before":["Web"],"effect":"recorded"}},"from":"stopped","impact":"none","reason":"config-differs","risk":"medium","wait":[]}}' AS BLOB), 1074033144911142606);
INSERT INTO operations VALUES (2, 'op-2', 1, 'lab', 1002, 10, CAST('{"environment":"lab","guest":{"guards":{"ha":null,"lock":null,"protection":false,"tags":["Web"],"template":false},"identity":{"mac":"BC:24:11:00:00:01","rootfs":"local-lvm:vm-102-disk-0"},"kind":"lxc","name":"3com-102","node":"pve0","vmid":1002},"id":"op-2","plan":"sha256:2477391f9b91cb884f77282140808cb73d01becbab5a1aafc2a8e1cb9a1bf579","position":0,"run":"run-0","schema":"converger.operation/1","source":{"kind":"convergent"},"step":{"change":"config.set","class":"benign","fields":{"cpuunits":{"after":100,"before":2,"effect":"recorded"},"description":{"after":null,"before":"front end","effect":"recorded"},"memory":{"after":512,"before":1536,"effect":"recorded"},"tags":{"after":null,"before":["Web"],"effect":"recorded"}},"from":"stopped","impact":"none","reason":"config-differs","risk":"medium","wait":[]}}' AS BLOB), -7594490038603474717);
INSERT INTO operations VALUES (3, 'op-3', 1, 'lab', 1003, 10, CAST('{"environment":"lab","guest":{"guards":{"ha":null,"lock":null,"protection":false,"tags":["Web"],"template":false},"identity":{"mac":"BC:24:11:00:00:01","rootfs":"local-lvm:vm-102-disk-0"},"kind":"lxc","name":"3com-102","node":"pve0","vmid":1003},"id":"op-3","plan":"sha256:2477391f9b91cb884f77282140808cb73d01becbab5a1aafc2a8e1cb9a1bf579","position":0,"run":"run-0","schema":"converger.operation/1","source":{"kind":"convergent"},"step":{"change":"config.set","class":"benign","fields":{"cpuunits":{"after":100,"before":2,"effect":"recorded"},"description":{"after":null,"before":"front end","effect":"recorded"},"memory":{"after":512,"before":1536,"effect":"recorded"},"tags":{"after":null,"before":["Web"],"effect":"recorded"}},"from":"stopped","impact":"none","reason":"config-differs","risk":"medium","wait":[]}}' AS BLOB), -8530894576366646194);
CREATE INDEX operations_by_guest ON operations (environment, vmid);
CREATE TABLE sendings (
    operation INTEGER PRIMARY KEY REFERENCES operations (seq),
    at_ms INTEGER NOT NULL,
    up_ms INTEGER NOT NULL,
    sum INTEGER NOT NULL CHECK (sum = row_sum(operation, at_ms, up_ms))
) STRICT;
INSERT INTO sendings VALUES (3, 11, 7, -7562924691017516513);
CREATE TABLE tasks (
    operation INTEGER PRIMARY KEY REFERENCES operations (seq),
    task TEXT NOT NULL,
    at_ms INTEGER NOT NULL,
    sum INTEGER NOT NULL CHECK (sum = row_sum(operation, task, at_ms))
) STRICT;
INSERT INTO tasks VALUES (1, 'UPID:pve1:0000ABCD:00001234:65A0B1C2:qmstart:1001:root@pam!op-1:', 11, -2398943411210287542);
CREATE INDEX tasks_by_name ON tasks (task);
CREATE TABLE ends (
    operation INTEGER PRIMARY KEY REFERENCES operations (seq),
    ending TEXT NOT NULL,
    at_ms INTEGER NOT NULL,
    body BLOB NOT NULL,
    sum INTEGER NOT NULL CHECK (sum = row_sum(operation, ending, at_ms, body))
) STRICT;
INSERT INTO ends VALUES (2, 'done', 12, X'7b22656e64223a22646f6e65222c2265766964656e6365223a7b22737461747573223a22e280ae676e702e312d626577222c2274616773223a5b222d70726f642d6462225d7d2c226f62736572766564223a7b7d2c22736368656d61223a22636f6e7665726765722e6f7574636f6d652f31227d', -2563227701643610051);
INSERT INTO ends VALUES (3, 'held', 12, CAST('{"code":"guest-locked","end":"held","evidence":{"tags":["web-1\u001b[2J\u001b[31mPROD"]},"observed":{"seen.at":"converger-hold "},"release":"reading","schema":"converger.outcome/1"}' AS BLOB), 3762249475970633711);
CREATE INDEX ends_by_time ON ends (at_ms);
CREATE TABLE resolutions (
    operation INTEGER PRIMARY KEY REFERENCES operations (seq),
    resolution TEXT NOT NULL,
    who TEXT NOT NULL,
    reason TEXT NOT NULL,
    at_ms INTEGER NOT NULL,
    sum INTEGER NOT NULL CHECK (sum = row_sum(operation, resolution, who, reason, at_ms))
) STRICT;
INSERT INTO resolutions VALUES (3, 'not-run', 'bob', 'the log says so', 13, -3281620168657882166);
CREATE TABLE occupants (
    environment TEXT NOT NULL,
    vmid INTEGER NOT NULL,
    operation INTEGER NOT NULL REFERENCES operations (seq),
    sum INTEGER NOT NULL CHECK (sum = row_sum(environment, vmid, operation)),
    PRIMARY KEY (environment, vmid)
) STRICT, WITHOUT ROWID;
INSERT INTO occupants VALUES ('lab', 1001, 1, 8803027519212443611);
CREATE TABLE idempotency_keys (
    environment TEXT NOT NULL,
    name TEXT NOT NULL,
    change TEXT NOT NULL,
    request TEXT NOT NULL,
    operation INTEGER NOT NULL REFERENCES operations (seq),
    sum INTEGER NOT NULL CHECK (sum = row_sum(environment, name, change, request, operation)),
    PRIMARY KEY (environment, name, change)
) STRICT, WITHOUT ROWID;
INSERT INTO idempotency_keys VALUES ('lab', 'key-1', 'config.set', 'sha256:2ad8a7049d7c5511ac254f5f51fe70a046ebd884729056f0fe57f5160d467153', 1, -3851976137153879873);
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
INSERT INTO holds VALUES (1, 'lab', 1009, 'ann', 'it''s being moved', 5, 'bob', 8, -758964824827769514);
INSERT INTO holds VALUES (2, 'lab', 1009, 'ann', 'it''s being moved', 5, NULL, NULL, -2925903338139399693);
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
INSERT INTO freezes VALUES (1, 'lab', 'ann', 'audit', 6, 'bob', 9, -7088073921578016596);
INSERT INTO freezes VALUES (2, 'lab', 'ann', 'audit', 6, NULL, NULL, 8828481951405525406);
CREATE UNIQUE INDEX freezes_in_force ON freezes (environment) WHERE thawed_at_ms IS NULL;
CREATE TABLE bindings (
    environment TEXT NOT NULL PRIMARY KEY,
    cluster TEXT NOT NULL,
    who TEXT NOT NULL,
    at_ms INTEGER NOT NULL,
    sum INTEGER NOT NULL CHECK (sum = row_sum(environment, cluster, who, at_ms))
) STRICT, WITHOUT ROWID;
INSERT INTO bindings VALUES ('lab', '7F:83:A1:30:B3:51:61:09:96:86:84:7B:E3:05:37:09:42:B9:E5:D1:FC:48:AB:E2:99:FF:77:08:3D:64:11:5A', 'ann', 1, 4075200080225950647);
INSERT INTO bindings VALUES ('site-b', '30:27:3A:6C:C5:24:D6:DD:9D:66:FF:EC:2C:80:77:DA:C6:BE:99:6F:BB:DB:9C:CF:0D:C2:42:00:EF:F1:A4:7D', 'ann', 1, -5851495395834379041);
CREATE UNIQUE INDEX bindings_by_cluster ON bindings (cluster);
CREATE TABLE former_names (
    name TEXT NOT NULL PRIMARY KEY,
    environment TEXT NOT NULL,
    sum INTEGER NOT NULL CHECK (sum = row_sum(name, environment))
) STRICT, WITHOUT ROWID;
INSERT INTO former_names VALUES ('site-a', 'site-b', -7497100223965187828);
CREATE TABLE ledger_entries (
    seq INTEGER PRIMARY KEY,
    body BLOB NOT NULL,
    sum INTEGER NOT NULL CHECK (sum = row_sum(seq, body))
) STRICT;
INSERT INTO ledger_entries VALUES (1, CAST('{"at_ms":1,"kind":"binding","schema":"converger.entry/1","what":{"by":"ann","cluster":"7F:83:A1:30:B3:51:61:09:96:86:84:7B:E3:05:37:09:42:B9:E5:D1:FC:48:AB:E2:99:FF:77:08:3D:64:11:5A","environment":"lab"}}' AS BLOB), -8265068411609607028);
INSERT INTO ledger_entries VALUES (2, CAST('{"at_ms":1,"kind":"run-started","schema":"converger.entry/1","what":{"boot":"boot-1","by":"ann","catalogue":"sha256:d2504e52b8b07484a2b690e7ffaedeabe91320c09012844d0f7c81c2ec72e882","config":"sha256:b79606fb3afea5bd1609ed40b622142f1c98125abcfe89a76a661b0e8e343910","environment":"lab","intent":"sha256:282bcbc3f0a34a8a4ac6f00c276fcf66cf3757a3332e83d92208e5079af46922","observation":"sha256:772c6953848bf5b19aedf9a34ccb066f31eacca29bdbfcb1b9821765f1060149","plan":"sha256:2477391f9b91cb884f77282140808cb73d01becbab5a1aafc2a8e1cb9a1bf579","planner":1,"program":"0.1.0","rules":"sha256:6c621d1a05138a7888d37d9269a9da8e2e11e4aced2f6cfd24b05ab1b9e61bb0","run":"run-0"}}' AS BLOB), -2017266099672236630);
INSERT INTO ledger_entries VALUES (3, CAST('{"at_ms":1,"kind":"binding","schema":"converger.entry/1","what":{"by":"ann","cluster":"30:27:3A:6C:C5:24:D6:DD:9D:66:FF:EC:2C:80:77:DA:C6:BE:99:6F:BB:DB:9C:CF:0D:C2:42:00:EF:F1:A4:7D","environment":"site-a"}}' AS BLOB), 4038215100129842863);
INSERT INTO ledger_entries VALUES (4, CAST('{"at_ms":4,"kind":"rename","schema":"converger.entry/1","what":{"by":"ann","environment":"site-a","reason":"moved","to":"site-b"}}' AS BLOB), 6111869612239657718);
INSERT INTO ledger_entries VALUES (5, CAST('{"at_ms":10,"kind":"intent","schema":"converger.entry/1","what":{"operation":{"environment":"lab","guest":{"guards":{"ha":null,"lock":null,"protection":false,"tags":["Web"],"template":false},"identity":{"mac":"BC:24:11:00:00:01","rootfs":"local-lvm:vm-102-disk-0"},"kind":"lxc","name":"3com-102","node":"pve0","vmid":1001},"id":"op-1","plan":"sha256:2477391f9b91cb884f77282140808cb73d01becbab5a1aafc2a8e1cb9a1bf579","position":0,"run":"run-0","schema":"converger.operation/1","source":{"key":"key-1","kind":"one-shot","request":"sha256:2ad8a7049d7c5511ac254f5f51fe70a046ebd884729056f0fe57f5160d467153"},"step":{"change":"config.set","class":"benign","fields":{"cpuunits":{"after":100,"before":2,"effect":"recorded"},"description":{"after":null,"before":"front end","effect":"recorded"},"memory":{"after":512,"before":1536,"effect":"recorded"},"tags":{"after":null,"before":["Web"],"effect":"recorded"}},"from":"stopped","impact":"none","reason":"config-differs","risk":"medium","wait":[]}}}}' AS BLOB), 7863699090009503174);
INSERT INTO ledger_entries VALUES (6, CAST('{"at_ms":11,"kind":"task","schema":"converger.entry/1","what":{"id":"op-1","task":"UPID:pve1:0000ABCD:00001234:65A0B1C2:qmstart:1001:root@pam!op-1:"}}' AS BLOB), 4885689839879490008);
INSERT INTO ledger_entries VALUES (7, CAST('{"at_ms":10,"kind":"intent","schema":"converger.entry/1","what":{"operation":{"environment":"lab","guest":{"guards":{"ha":null,"lock":null,"protection":false,"tags":["Web"],"template":false},"identity":{"mac":"BC:24:11:00:00:01","rootfs":"local-lvm:vm-102-disk-0"},"kind":"lxc","name":"3com-102","node":"pve0","vmid":1002},"id":"op-2","plan":"sha256:2477391f9b91cb884f77282140808cb73d01becbab5a1aafc2a8e1cb9a1bf579","position":0,"run":"run-0","schema":"converger.operation/1","source":{"kind":"convergent"},"step":{"change":"config.set","class":"benign","fields":{"cpuunits":{"after":100,"before":2,"effect":"recorded"},"description":{"after":null,"before":"front end","effect":"recorded"},"memory":{"after":512,"before":1536,"effect":"recorded"},"tags":{"after":null,"before":["Web"],"effect":"recorded"}},"from":"stopped","impact":"none","reason":"config-differs","risk":"medium","wait":[]}}}}' AS BLOB), 6584946209965022646);
INSERT INTO ledger_entries VALUES (8, X'7b2261745f6d73223a31322c226b696e64223a226f7574636f6d65222c22736368656d61223a22636f6e7665726765722e656e7472792f31222c2277686174223a7b226964223a226f702d32222c226f7574636f6d65223a7b22656e64223a22646f6e65222c2265766964656e6365223a7b22737461747573223a22e280ae676e702e312d626577222c2274616773223a5b222d70726f642d6462225d7d2c226f62736572766564223a7b7d2c22736368656d61223a22636f6e7665726765722e6f7574636f6d652f31227d7d7d', 1611572288173997581);
INSERT INTO ledger_entries VALUES (9, CAST('{"at_ms":10,"kind":"intent","schema":"converger.entry/1","what":{"operation":{"environment":"lab","guest":{"guards":{"ha":null,"lock":null,"protection":false,"tags":["Web"],"template":false},"identity":{"mac":"BC:24:11:00:00:01","rootfs":"local-lvm:vm-102-disk-0"},"kind":"lxc","name":"3com-102","node":"pve0","vmid":1003},"id":"op-3","plan":"sha256:2477391f9b91cb884f77282140808cb73d01becbab5a1aafc2a8e1cb9a1bf579","position":0,"run":"run-0","schema":"converger.operation/1","source":{"kind":"convergent"},"step":{"change":"config.set","class":"benign","fields":{"cpuunits":{"after":100,"before":2,"effect":"recorded"},"description":{"after":null,"before":"front end","effect":"recorded"},"memory":{"after":512,"before":1536,"effect":"recorded"},"tags":{"after":null,"before":["Web"],"effect":"recorded"}},"from":"stopped","impact":"none","reason":"config-differs","risk":"medium","wait":[]}}}}' AS BLOB), -2060391213430234364);
INSERT INTO ledger_entries VALUES (10, CAST('{"at_ms":11,"kind":"sending","schema":"converger.entry/1","what":{"id":"op-3","up_ms":7}}' AS BLOB), 6560173347551664136);
INSERT INTO ledger_entries VALUES (11, CAST('{"at_ms":12,"kind":"outcome","schema":"converger.entry/1","what":{"id":"op-3","outcome":{"code":"guest-locked","end":"held","evidence":{"tags":["web-1\u001b[2J\u001b[31mPROD"]},"observed":{"seen.at":"converger-hold "},"release":"reading","schema":"converger.outcome/1"}}}' AS BLOB), -6651228375072508980);
INSERT INTO ledger_entries VALUES (12, CAST('{"at_ms":13,"kind":"resolution","schema":"converger.entry/1","what":{"by":"bob","id":"op-3","reason":"the log says so","resolution":"not-run"}}' AS BLOB), -4856351062819139421);
INSERT INTO ledger_entries VALUES (13, CAST('{"at_ms":7,"kind":"run-ended","schema":"converger.entry/1","what":{"end":"held","run":"run-0"}}' AS BLOB), 535537046290567000);
INSERT INTO ledger_entries VALUES (14, CAST('{"at_ms":5,"kind":"hold","schema":"converger.entry/1","what":{"by":"ann","environment":"lab","guest":1009,"reason":"it''s being moved"}}' AS BLOB), -6240193666160282454);
INSERT INTO ledger_entries VALUES (15, CAST('{"at_ms":8,"kind":"release","schema":"converger.entry/1","what":{"by":"bob","environment":"lab","guest":1009}}' AS BLOB), 7267623670929606922);
INSERT INTO ledger_entries VALUES (16, CAST('{"at_ms":5,"kind":"hold","schema":"converger.entry/1","what":{"by":"ann","environment":"lab","guest":1009,"reason":"it''s being moved"}}' AS BLOB), -8858440976818493440);
INSERT INTO ledger_entries VALUES (17, CAST('{"at_ms":6,"kind":"freeze","schema":"converger.entry/1","what":{"by":"ann","environment":"lab","reason":"audit"}}' AS BLOB), 8727778301781316846);
INSERT INTO ledger_entries VALUES (18, CAST('{"at_ms":9,"kind":"thaw","schema":"converger.entry/1","what":{"by":"bob","environment":"lab"}}' AS BLOB), 5178759025756143757);
INSERT INTO ledger_entries VALUES (19, CAST('{"at_ms":6,"kind":"freeze","schema":"converger.entry/1","what":{"by":"ann","environment":"lab","reason":"audit"}}' AS BLOB), 7072704604958042964);
INSERT INTO ledger_entries VALUES (20, CAST('{"at_ms":10,"kind":"resync","schema":"converger.entry/1","what":{"by":"ann","epoch":2,"reason":"restored","size":20}}' AS BLOB), -6839281874544868902);
CREATE TABLE ledger_tiles (
    level INTEGER NOT NULL,
    place INTEGER NOT NULL,
    hashes BLOB NOT NULL,
    root BLOB NOT NULL,
    sum INTEGER NOT NULL CHECK (sum = row_sum(level, place, hashes, root)),
    PRIMARY KEY (level, place)
) STRICT;
CREATE TABLE ledger_head (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    size INTEGER NOT NULL,
    root BLOB NOT NULL,
    durable_size INTEGER NOT NULL,
    durable_root BLOB NOT NULL,
    sum INTEGER NOT NULL CHECK (sum = row_sum(one, size, root, durable_size, durable_root))
) STRICT;
INSERT INTO ledger_head VALUES (1, 20, X'e061d4332263d3452d00fc6dca4f844b61ba4400e5b156fd833f7f0bf8281e37', 20, X'e061d4332263d3452d00fc6dca4f844b61ba4400e5b156fd833f7f0bf8281e37', -8878566515415009187);
CREATE TABLE epoch (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    number INTEGER NOT NULL CHECK (number > 1),
    sum INTEGER NOT NULL CHECK (sum = row_sum(one, number))
) STRICT;
INSERT INTO epoch VALUES (1, 2, 2201250746934096838);
