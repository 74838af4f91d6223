//! Recorded decisions are reproduced byte for byte by another process, with another locale, time zone and working directory.
//!
//! Ten thousand random decisions are recorded here, as a run records them. `converger backtest` reproduces each one before it re-evaluates
//! it, all in one process; `converger reproduce` runs on some of them.

use std::path::Path;
use std::process::Command;

use converger_core::apply::{OperationEnd, RunId, RunStart};
use converger_core::artifact::Digest;
use converger_core::evidence::{DecisionRecord, LedgerEntry, record_decision};
use converger_core::guest::{ClusterIdentity, EnvironmentName};
use converger_core::policy::{BlockedBy, Circumstances, GuestBlock, Limits, MachineIdentity, MachineMark, Rules};
use converger_core::safety::judge;
use converger_core::testing::{Rng, TestWorld, some_config};
use converger_store::conformance::block_on;
use converger_store::{Batch, SqliteStore, Store as _, StoreSettings, StoreWrite};
use serde_json::Value;

use crate::fixture::CommandOutput;

const SEED: u64 = 20_261_116;
const DECISIONS: u64 = 10_000;
/// Number of decisions per transaction.
const GROUP: u64 = 80;

/// A random decision: limits that some plans exceed, people who hold guests, and machines of all sorts.
fn random_decision(number: u64) -> DecisionRecord {
    let rng = &mut Rng::new(SEED ^ (number << 20));
    let mut inputs = TestWorld::random_small(rng).parse().unwrap_or_else(|faults| panic!("{number}: {faults:?}"));
    let mut holds = Vec::new();
    for guest in inputs.desired.guests() {
        match rng.below(8) {
            0 => holds.push(GuestBlock { vmid: guest.vmid, by: BlockedBy::Person { by: "ann".into(), reason: "a \"look\"\n".into() } }),
            1 => holds.push(GuestBlock { vmid: guest.vmid, by: BlockedBy::Operation("op-1".into()) }),
            _ => (),
        }
    }
    let mut rules: Rules = (*inputs.rules).clone();
    if rng.one_in(2) {
        let host = MachineIdentity::new(["bc:24:11:00:00:01".into()], ["00112233-4455-6677-8899-AABBCCDDEEFF".into()]);
        rules = rules.with_machine(if rng.one_in(2) { host.with_device() } else { host.with_unreadable([MachineMark::HardwareAddresses]) });
    }
    let [guests, percent, stops] = [50, 100, 5].map(|most| u32::try_from(rng.below(most + 1)).unwrap_or(0));
    let limits = if rng.one_in(2) { Limits::default() } else { Limits { guests, percent, stops } };
    // Letters whose length or case depends on the locale.
    let freeze = rng.one_in(4).then(|| "\u{131}stanbul I\u{307} \u{202e}move".to_owned());
    let cluster = ClusterIdentity::parse(&["AB"; 32].join(":")).filter(|_| rng.one_in(2));
    let epoch = rng.one_in(2).then(|| 1 + rng.below(5));
    let circumstances = Circumstances { cluster, epoch, freeze, holds };
    let config = some_config(&rules, limits, None);
    inputs.rules = rules.into();
    record_decision(&judge(inputs.plan(), limits, circumstances), env!("CARGO_PKG_VERSION"), config).expect("memory takes it")
}

/// Everything that a refused run writes.
pub(crate) fn decision_writes(number: u64) -> Vec<StoreWrite> {
    refused_run_writes(number, random_decision(number))
}

fn run_name(number: u64) -> String {
    format!("run-{number}")
}

/// The writes of a refused run.
fn refused_run_writes(number: u64, record: DecisionRecord) -> Vec<StoreWrite> {
    let (id, at_ms) = (RunId::new(&run_name(number)).expect("an id"), 1_794_700_800_000 + number);
    let environment = EnvironmentName::new("lab").expect("a name");
    let run = RunStart { id: id.clone(), environment, plan: record.plan, by: "ann".into(), at_ms, boot: None };
    let mut writes: Vec<StoreWrite> = record.blobs.into_iter().map(StoreWrite::blob).collect();
    writes.push(StoreWrite::RunStarted { run, inputs: Box::new(record.inputs) });
    writes.push(StoreWrite::decision(LedgerEntry::PlanMade {
        run: id.clone(),
        plan: record.plan,
        proposal: record.proposal,
        judgement: record.judgement,
        at_ms,
    }));
    writes.push(StoreWrite::RunEnded { id, end: OperationEnd::Refused, at_ms });
    writes
}

/// Records `count` decisions in a state directory; returns their digests.
fn record_decisions(state: &Path, count: u64) -> Vec<(Digest, Digest)> {
    let store = SqliteStore::open(state, StoreSettings::new(|fatal| panic!("{fatal}"))).expect("opens");
    let mut digests = Vec::new();
    for first in (0..count).step_by(usize::try_from(GROUP).expect("small")) {
        let mut batch = Vec::new();
        for number in first..count.min(first + GROUP) {
            let record = random_decision(number);
            digests.push((record.plan, record.judgement));
            batch.extend(refused_run_writes(number, record));
        }
        let _ = block_on(store.commit(Batch::new(batch))).expect("written");
    }
    digests
}

/// Runs the program in another directory without the variables of this process.
fn run_elsewhere(directory: &Path, state: &Path, arguments: &[&str]) -> CommandOutput {
    let elsewhere = directory.join("\u{131}rak");
    std::fs::create_dir_all(&elsewhere).expect("made");
    let mut program = Command::new(env!("CARGO_BIN_EXE_converger"));
    program.args(arguments).current_dir(elsewhere).env_clear().env("STATE_DIRECTORY", state).env("USER", "bob");
    program.env("LC_ALL", "tr_TR.UTF-8").env("LANG", "tr_TR.UTF-8").env("TZ", "Pacific/Chatham");
    program.output().expect("it starts").into()
}

fn parse_output(output: &CommandOutput) -> Value {
    serde_json::from_str(&output.out).unwrap_or_else(|_| panic!("{output:?}"))
}

#[test]
fn reproduces_ten_thousand_decisions_in_another_process_locale_and_time_zone() {
    let directory = tempfile::tempdir().expect("a directory");
    let (state, candidate) = (directory.path().join("state"), directory.path().join("candidate.toml"));
    let digests = record_decisions(&state, DECISIONS);
    let distinct: std::collections::BTreeSet<_> = digests.iter().collect();
    println!("{DECISIONS} decisions, {} of them distinct; seed {SEED}", distinct.len());
    assert!(distinct.len() as u64 > DECISIONS * 9 / 10);
    std::fs::write(&candidate, "").expect("written");
    let output = run_elsewhere(directory.path(), &state, &["backtest", "--json", "--config", &candidate.display().to_string()]);
    assert!(matches!(output.code, Some(0 | 4)), "{:?} {}", output.code, output.err);
    let backtest_report = parse_output(&output);
    assert_eq!((&backtest_report["weighed"], &backtest_report["unread"]), (&Value::from(DECISIONS), &Value::Array(Vec::new())));
    for number in (0..DECISIONS).step_by(997) {
        let output = run_elsewhere(directory.path(), &state, &["reproduce", &run_name(number), "--json"]);
        assert_eq!(output.code, Some(0), "{output:?}");
        let (plan, judgement) = &digests[usize::try_from(number).expect("small")];
        let again = parse_output(&output);
        assert_eq!((&again["same"], &again["run"]), (&Value::Bool(true), &Value::from(run_name(number))));
        assert_eq!((&again["plan"], &again["judgement"]), (&Value::from(plan.to_string()), &Value::from(judgement.to_string())));
    }
    let output = run_elsewhere(directory.path(), &state, &["verify"]);
    assert_eq!(output.code, Some(0), "{output:?}");
}

/// The last run is used, and the output says that there are others.
#[test]
fn reproduce_names_the_run_when_several_made_the_plan() {
    let directory = tempfile::tempdir().expect("a directory");
    let state = directory.path().join("state");
    let store = SqliteStore::open(&state, StoreSettings::new(|fatal| panic!("{fatal}"))).expect("opens");
    for number in [5, 6, 7] {
        let _ = block_on(store.commit(Batch::new(refused_run_writes(number, random_decision(1))))).expect("written");
    }
    drop(store);
    let plan = random_decision(1).plan.to_string();
    let output = run_elsewhere(directory.path(), &state, &["reproduce", &plan]);
    assert_eq!(output.code, Some(0), "{output:?}");
    for expected in [
        "run-7 in lab",
        "2 other runs made a plan with the same body, the last of them run-6; their judgements may differ: name a run to see it",
    ] {
        assert!(output.out.contains(expected), "`{expected}`: {output:?}");
    }
    let again = parse_output(&run_elsewhere(directory.path(), &state, &["reproduce", &plan, "--json"]));
    assert_eq!((&again["run"], &again["also"]), (&"run-7".into(), &serde_json::json!(["run-5", "run-6"])), "{again}");
    let named = run_elsewhere(directory.path(), &state, &["reproduce", "run-6"]);
    assert!(named.out.contains("run-6 in lab") && !named.out.contains("a plan with the same body"), "{named:?}");
    let explained = run_elsewhere(directory.path(), &state, &["explain", &plan]);
    assert!(explained.out.contains("2 other runs made a plan with the same body"), "{explained:?}");
}

#[test]
fn explain_diff_and_reproduce_accept_the_first_digits_of_a_digest() {
    let directory = tempfile::tempdir().expect("a directory");
    let state = directory.path().join("state");
    record_decisions(&state, 3);
    let (plan, other) = (random_decision(1).plan.to_string(), random_decision(2).plan.to_string());
    let said = |arguments: &[&str]| run_elsewhere(directory.path(), &state, arguments);
    for short in [&plan[..19], &plan[..13], &plan["sha256:".len()..13]] {
        let reproduced = said(&["reproduce", short]);
        assert_eq!(reproduced.code, Some(0), "{reproduced:?}");
        assert!(reproduced.out.contains(&format!("plan         {}\n", &plan[..19])) && !reproduced.out.contains(&plan), "{reproduced:?}");
        assert_eq!(said(&["explain", short]).out, said(&["explain", &plan]).out);
    }
    assert!(said(&["reproduce", &plan[..13], "--verbose"]).out.contains(&plan));
    let different = said(&["diff", &plan[..13], &other[..13]]);
    assert_eq!((different.code, different.out), (Some(4), said(&["diff", &plan, &other]).out));
    for (command, name) in [("reproduce", "sha256:00feed"), ("explain", "00feed"), ("reproduce", &plan[..12])] {
        let unknown = said(&[command, name]);
        assert_eq!(unknown.code, Some(2), "{unknown:?}");
        let candidate = format!("  {} of run run-", &plan[..19]);
        assert!(unknown.err.contains(&format!("the ledger has no plan and no run `{name}`")), "{unknown:?}");
        assert!(unknown.err.contains(&candidate), "`{candidate}`: {unknown:?}");
    }
}

/// A recorded plan that differs from the plan of its inputs is detected, even with correct digests. Decisions that cannot be reproduced are
/// not counted.
#[test]
fn detects_a_plan_that_its_inputs_do_not_give() {
    let directory = tempfile::tempdir().expect("a directory");
    let (state, candidate) = (directory.path().join("state"), directory.path().join("candidate.toml"));
    record_decisions(&state, 3);
    let store = SqliteStore::open(&state, StoreSettings::new(|fatal| panic!("{fatal}"))).expect("opens");
    let mut record = random_decision(3);
    let body = record.blobs.iter_mut().find(|bytes| Digest::of_bytes(bytes) == record.plan).expect("the plan");
    let at = body.windows(3).position(|part| part == b"lab").expect("an environment");
    body[at] = b'x';
    record.plan = Digest::of_bytes(body);
    let _ = block_on(store.commit(Batch::new(refused_run_writes(3, record)))).expect("written");
    let mut incomplete_record = random_decision(4);
    incomplete_record.blobs.retain(|bytes| Digest::of_bytes(bytes) != incomplete_record.inputs.observation);
    let _ = block_on(store.commit(Batch::new(refused_run_writes(4, incomplete_record)))).expect("written");
    drop(store);
    let forged = run_elsewhere(directory.path(), &state, &["reproduce", "run-3"]);
    assert_eq!(forged.code, Some(6), "{forged:?}");
    assert!(forged.err.contains("error[determinism-breach]: the decision of run run-3: "), "{forged:?}");
    let missing = run_elsewhere(directory.path(), &state, &["reproduce", "run-4"]);
    assert_eq!(missing.code, Some(6), "{missing:?}");
    assert!(missing.err.contains("error[evidence-missing]: the decision of run run-4: "), "{missing:?}");
    std::fs::write(&candidate, "").expect("written");
    let backtest_report =
        parse_output(&run_elsewhere(directory.path(), &state, &["backtest", "--json", "--config", &candidate.display().to_string()]));
    let unread: Vec<&Value> = backtest_report["unread"].as_array().expect("a list").iter().map(|row| &row["run"]).collect();
    assert_eq!((&backtest_report["weighed"], unread), (&Value::from(3), vec![&Value::from("run-3"), &Value::from("run-4")]));
}
