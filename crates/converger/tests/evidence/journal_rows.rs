//! Forged rows of the journal with correct checksums that do not change the current state: releases, the order of rows, the guest of an
//! operation, and idempotency keys. `verify` detects each of them by the ledger.

use converger_core::apply::{IdempotencyKey, JournalRecord, Operation, OperationSource, RunStart};
use converger_core::artifact::Digest;
use converger_core::evidence::{DecisionInputs, LedgerEntry};
use converger_core::testing::{Rng, some_inputs, some_operations};
use converger_store::conformance::block_on;
use converger_store::{Batch, SqliteStore, Store as _, StoreSettings, StoreWrite};

use crate::fixture::EvidenceFixture;
use crate::forge::DatabaseForger;
use crate::tampering::check_detected;

const HOLD_COLUMNS: &str = "seq, environment, vmid, who, reason, at_ms";
const FREEZE_COLUMNS: &str = "seq, environment, who, reason, at_ms";
const OPERATION_COLUMNS: &str = "seq, id, run, environment, vmid, at_ms, body";

#[test]
fn detects_a_changed_or_missing_release() {
    let fixture = EvidenceFixture::with_short_history();
    let check = |statements: &str, expected: &str| check_detected(&fixture, statements, |forger| forger.run(statements), expected);
    let hold = "error[unlogged-execution]: the journal differs from the ledger in the hold of guest 103 in lab";
    let by = format!(
        "UPDATE holds SET released_by = 'eve', sum = row_sum({HOLD_COLUMNS}, 'eve', released_at_ms) WHERE released_at_ms IS NOT NULL"
    );
    check(&by, hold);
    let at = format!("UPDATE holds SET released_at_ms = 5, sum = row_sum({HOLD_COLUMNS}, released_by, 5) WHERE released_at_ms IS NOT NULL");
    check(&at, hold);
    check("DELETE FROM holds WHERE released_at_ms IS NOT NULL", hold);
    let more = "INSERT INTO holds SELECT 9, environment, 101, who, reason, at_ms, 'eve', 5, \
        row_sum(9, environment, 101, who, reason, at_ms, 'eve', 5) FROM holds LIMIT 1";
    check(more, "error[unlogged-execution]: the journal has a hold that the ledger does not have: the hold of guest 101 in lab");
    let freeze = "error[unlogged-execution]: the journal differs from the ledger in the freeze of lab";
    check(&format!("UPDATE freezes SET thawed_by = 'eve', sum = row_sum({FREEZE_COLUMNS}, 'eve', thawed_at_ms)"), freeze);
    check("DELETE FROM freezes", "error[unlogged-execution]: the ledger has a freeze that the journal does not have: the freeze of lab");
    fixture.run_expecting(&["verify"], 0);
}

/// SQL that swaps the first two rows of a table, with all references and checksums.
fn swap_rows_sql(table: &str, columns: &str, referring: &[(&str, &str, &str)]) -> String {
    // Step by step, because two rows must never share a number, not even for a moment.
    let exchange = |table: &str, column: &str, columns: &str| {
        format!(
            "UPDATE {table} SET {column} = -{column} WHERE {column} IN (1, 2); \
             UPDATE {table} SET {column} = 3 + {column} WHERE {column} IN (-1, -2); \
             UPDATE {table} SET sum = row_sum({columns});"
        )
    };
    let others: String = referring.iter().map(|(table, column, columns)| exchange(table, column, columns)).collect();
    format!("PRAGMA ignore_check_constraints = 1; {} {others}", exchange(table, "seq", columns))
}

#[test]
fn detects_reordered_runs_and_operations() {
    let fixture = EvidenceFixture::with_short_history();
    let check = |statements: &str, expected: &str| check_detected(&fixture, statements, |forger| forger.run(statements), expected);
    // Only the number changes, with everything that refers to it; the checksum reveals it.
    let moved_row = "PRAGMA ignore_check_constraints = 1; UPDATE runs SET seq = 77 WHERE seq = 2; \
        UPDATE run_ends SET run = 77, sum = row_sum(77, ending, at_ms) WHERE run = 2; \
        UPDATE operations SET run = 77, sum = row_sum(seq, id, 77, environment, vmid, at_ms, body) WHERE run = 2";
    check(moved_row, "runs");
    let of_run = [("run_ends", "run", "run, ending, at_ms"), ("operations", "run", OPERATION_COLUMNS)];
    let runs = swap_rows_sql("runs", "seq, id, environment, plan, who, at_ms, boot", &of_run);
    check(&runs, "error[unlogged-execution]: the journal differs from the ledger in the position of the run ");
    let of_operation = [
        ("sendings", "operation", "operation, at_ms, up_ms"),
        ("tasks", "operation", "operation, task, at_ms"),
        ("ends", "operation", "operation, ending, at_ms, body"),
    ];
    let operations = swap_rows_sql("operations", OPERATION_COLUMNS, &of_operation);
    check(&operations, "error[unlogged-execution]: the journal differs from the ledger in the position of the operation ");
    fixture.run_expecting(&["verify"], 0);
}

#[test]
fn detects_an_operation_under_another_guest_environment_or_run() {
    let fixture = EvidenceFixture::with_short_history();
    let check = |statements: &str, expected: &str| check_detected(&fixture, statements, |forger| forger.run(statements), expected);
    let guest = "UPDATE operations SET vmid = 999, sum = row_sum(seq, id, run, environment, 999, at_ms, body)";
    check(guest, "its row belongs to guest 999 in `lab`, but its body to ");
    let environment = "UPDATE operations SET environment = 'other', sum = row_sum(seq, id, run, 'other', vmid, at_ms, body)";
    check(environment, "its row belongs to guest 102 in `other`, but its body to 102 in `lab`");
    let run = "UPDATE operations SET run = 1, sum = row_sum(seq, id, 1, environment, vmid, at_ms, body)";
    check(run, "its row belongs to another run than ");
    fixture.run_expecting(&["verify"], 0);
}

/// A column beside the body of an end tells whether the guest is held. Changing it would release a guest whose state is unknown.
#[test]
fn detects_an_end_row_that_contradicts_its_body() {
    let fixture = EvidenceFixture::with_short_history();
    let held = "UPDATE ends SET ending = 'held', sum = row_sum(operation, 'held', at_ms, body)";
    check_detected(&fixture, "an end", |forger| forger.run(held), "its row says `held`, but its body says `done`");
}

/// A value that no row of ours can have is no disk error: an attacker wrote it.
#[test]
fn detects_a_short_root() {
    let fixture = EvidenceFixture::with_short_history();
    let short = "UPDATE ledger_head SET root = x'00', sum = row_sum(one, size, x'00', durable_size, durable_root)";
    check_detected(&fixture, "a short root", |forger| forger.run(short), "cannot be read: Cannot read 32 byte value out of 1 byte blob");
}

/// A view in place of a table may contain anything, even endless rows.
#[test]
fn refuses_a_view_in_place_of_a_table() {
    let fixture = EvidenceFixture::with_short_history();
    for table in ["holds", "ledger_entries", "ends"] {
        let view = format!(
            "ALTER TABLE {table} RENAME TO moved; CREATE VIEW {table} AS WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) \
             SELECT x AS seq, x AS operation FROM c WHERE x < 0"
        );
        check_detected(&fixture, table, |forger| forger.alter(&view), "its tables are not those of this program");
    }
}

/// Records a run whose operation has an idempotency key, although its plan was not admitted.
fn record_unadmitted_operation(fixture: &EvidenceFixture) -> Operation {
    let mut seeds = (0..).map(|seed| some_operations(&mut Rng::new(seed), "keyed"));
    let found = seeds.find_map(|mut operations| operations.pop()).expect("one of many plans has a step");
    let (key, request) = (IdempotencyKey::new("key-1").expect("a key"), Digest::of_bytes(b"a request"));
    let body = b"what they rest on".to_vec();
    let digest = Digest::of_bytes(&body);
    let operation = Operation { source: OperationSource::OneShot { key, request }, plan: digest, ..found };
    let (run, environment, plan, at_ms) = (operation.run.clone(), operation.environment.clone(), operation.plan, 1_794_700_800_000);
    let inputs = DecisionInputs { config: digest, intent: digest, observation: digest, rules: digest, catalogue: digest, ..some_inputs() };
    let started = RunStart { id: run.clone(), environment, plan, by: "ann".into(), at_ms, boot: None };
    let writes = vec![
        StoreWrite::blob(body),
        StoreWrite::RunStarted { run: started, inputs: Box::new(inputs) },
        StoreWrite::decision(LedgerEntry::PlanMade { run, plan, proposal: digest, judgement: digest, at_ms }),
        StoreWrite::from(JournalRecord::Intent { operation: Box::new(operation.clone()), at_ms }),
    ];
    let store = SqliteStore::open(&fixture.state_directory(), StoreSettings::new(|fatal| panic!("{fatal}"))).expect("opens");
    let _ = block_on(store.commit(Batch::new(writes))).expect("written");
    operation
}

#[test]
fn detects_a_missing_changed_or_orphaned_key() {
    let fixture = EvidenceFixture::with_short_history();
    let run = fixture.apply_action(&["vm.snapshot.create", "vm/101", "name=pre", "--key", "key-1"]);
    fixture.run_expecting(&["verify"], 0);
    let check = |statements: &str, expected: &str| check_detected(&fixture, statements, |forger| forger.run(statements), expected);
    let key = format!("the idempotency key of the operation {run}-0");
    check(
        "DELETE FROM idempotency_keys",
        &format!("error[unlogged-execution]: the ledger has an idempotency key that the journal does not have: {key}"),
    );
    let other = "UPDATE idempotency_keys SET name = 'key-2', sum = row_sum(environment, 'key-2', change, request, operation)";
    check(other, &format!("error[unlogged-execution]: the journal differs from the ledger in {key}"));
    let more = "INSERT INTO idempotency_keys SELECT environment, 'key-2', change, request, operation, \
        row_sum(environment, 'key-2', change, request, operation) FROM idempotency_keys";
    check(more, &format!("error[unlogged-execution]: the journal has an idempotency key that the ledger does not have: {key}"));
}

/// A one-shot request needs an admitted plan like any other operation.
#[test]
fn detects_a_keyed_operation_without_an_admitted_plan() {
    let fixture = EvidenceFixture::with_short_history();
    let size = fixture.entry_count();
    let id = record_unadmitted_operation(&fixture).id;
    let expected = format!(
        "error[unlogged-execution]: entry {}: the operation {} started, but its plan was not admitted before",
        size + 2,
        id.as_str()
    );
    fixture.check_broken(&["verify"], &expected);
}

#[test]
fn detects_an_unreferenced_blob() {
    let fixture = EvidenceFixture::with_short_history();
    let digest = Digest::of_bytes(b"nobody's").to_string();
    DatabaseForger::open(&fixture.state_directory()).run(&format!("INSERT INTO blobs VALUES ('{digest}', CAST('nobody''s' AS BLOB))"));
    fixture.check_broken(&["verify"], &format!("1 thing is stored that no entry names, the first is {digest}\n"));
}
