//! Writes of people to the state directory: resolutions and renames under locks, pruned readings, a new signing key.

use converger_core::apply::{Operation, OperationId, Resolution};
use converger_core::evidence::{LedgerEntry, parse_entry};
use converger_core::failure::FailureCode;
use converger_core::guest::EnvironmentName;
use converger_core::refusal::RefusalCode;
use converger_runtime::environment_rename::RenameRequest;
use converger_runtime::holds::{HoldRequest, HoldSubject};
use converger_runtime::ledger_key::load_or_create_signer;
use converger_runtime::ledger_rekey::{ExistingKey, NamedCheckpoint, RekeyRequest};
use converger_runtime::operation_resolution::{MissingOperation, ResolutionOutcome, ResolutionRequest};
use converger_runtime::state_dir::LockOutcome;
use converger_store::conformance::OperationSample;
use converger_store::{EnvironmentLock, Store as _};

use super::holds::{author, reason, refused_code};
use super::lab::lab_name;
use super::*;

fn named(name: &str) -> EnvironmentName {
    EnvironmentName::new(name).expect("a name")
}

fn lock(state: &StateDirectory, environment: &EnvironmentName) -> EnvironmentLock {
    match state.lock_environment(environment).expect("a lock file") {
        LockOutcome::Taken(lock) => lock,
        LockOutcome::Refused(refusal) => panic!("{refusal:?}"),
    }
}

async fn ledger_entries(state: &StateDirectory) -> Vec<LedgerEntry> {
    let entries = state.store().entries(0, 100).await.expect("readable");
    entries.iter().map(|bytes| parse_entry(bytes).expect("an entry")).collect()
}

/// An operation that a killed process left open.
async fn leave_operation_open(state: &StateDirectory, sample: &OperationSample) -> Operation {
    let operation = sample.operation(1, 1);
    let batch = sample.start_write().with(sample.intent_record(&operation));
    assert!(state.store().commit(batch).await.is_ok(), "writable");
    operation
}

fn resolution(operation: &Operation) -> ResolutionRequest {
    let (environment, id) = (operation.environment.clone(), operation.id.clone());
    ResolutionRequest { environment, id, resolution: Resolution::NotRun, reason: reason(), author: author("bob") }
}

#[test]
fn open_operation_is_resolved_only_under_the_lock_and_only_once() {
    block(async {
        let (stage, sample) = (Stage::start(100), OperationSample::new(7));
        let state = stage.state().await;
        let operation = leave_operation_open(&state, &sample).await;
        let before = ledger_entries(&state).await;

        let driven = lock(&state, &operation.environment);
        let refused = state.resolve_operation(resolution(&operation)).await.expect("readable");
        let ResolutionOutcome::Refused(refusal) = refused else { panic!("{refused:?}") };
        assert_eq!(refusal.code(), RefusalCode::EnvironmentBusy);
        assert_eq!(ledger_entries(&state).await, before, "nothing is written");
        drop(driven);

        let resolved = state.resolve_operation(resolution(&operation)).await.expect("writable");
        let ResolutionOutcome::Resolved(resolved) = resolved else { panic!("{resolved:?}") };
        assert!(resolved.before.progress().is_open() && resolved.hold.is_none(), "{resolved:?}");
        let history = state.store().operation(operation.id.clone()).await.expect("readable").expect("recorded");
        let (outcome, _) = history.ended.as_ref().expect("it is ended first");
        assert_eq!(outcome.code().map(|code| code.to_string()), Some(FailureCode::RunLeft.word().to_owned()));
        let record = history.resolved.expect("it is resolved");
        assert_eq!((record.resolution, &*record.by, record.at_ms), (Resolution::NotRun, "bob", 1_000));
        drop(lock(&state, &operation.environment));

        let refused = state.resolve_operation(resolution(&operation)).await.expect("readable");
        let ResolutionOutcome::Refused(refusal) = refused else { panic!("{refused:?}") };
        assert_eq!(refusal.code(), RefusalCode::NotHeld);
    });
}

#[test]
fn held_operation_is_resolved_while_another_process_drives_the_environment_and_a_hold_stays() {
    block(async {
        let (stage, mut sample) = (Stage::start(100), OperationSample::new(8));
        let state = stage.state().await;
        let operation = leave_operation_open(&state, &sample).await;
        let ended = sample.end_record(&operation, OperationEnd::Held);
        assert!(state.store().commit(ended.into()).await.is_ok(), "writable");
        let subject = HoldSubject::Guest(operation.guest.vmid);
        let hold = HoldRequest { environment: operation.environment.clone(), subject, reason: reason(), author: author("ann") };
        let hold = hold.skip_check(&stage.config(&[]), "there is no such cluster");
        assert_eq!(refused_code(state.record_hold(hold).await.expect("writable")), None);
        let _driven = lock(&state, &operation.environment);
        let resolved = state.resolve_operation(resolution(&operation)).await.expect("writable");
        let ResolutionOutcome::Resolved(resolved) = resolved else { panic!("{resolved:?}") };
        assert_eq!(resolved.hold.map(|hold| hold.by), Some("ann".into()));
    });
}

#[test]
fn operation_of_another_environment_is_missing() {
    block(async {
        let (stage, sample) = (Stage::start(100), OperationSample::new(9));
        let state = stage.state().await;
        let operation = leave_operation_open(&state, &sample).await;
        let elsewhere = ResolutionRequest { environment: named("nowhere"), ..resolution(&operation) };
        let unknown = ResolutionRequest { id: OperationId::new("op-99").expect("an id"), ..resolution(&operation) };
        for (request, expected) in
            [(elsewhere, MissingOperation::OfEnvironment(operation.environment.clone())), (unknown, MissingOperation::Unrecorded)]
        {
            let outcome = state.resolve_operation(request).await.expect("readable");
            assert!(matches!(&outcome, ResolutionOutcome::Missing(missing) if *missing == expected), "{outcome:?}");
        }
    });
}

fn rename(from: &str, to: &str) -> RenameRequest {
    RenameRequest { from: named(from), to: named(to), reason: reason(), author: author("ann") }
}

#[test]
fn rename_needs_both_locks_and_two_names_and_moves_holds() {
    block(async {
        let stage = Stage::start(100);
        let state = stage.state().await;
        let code = |outcome: Result<_, RuntimeError>| refused_code(outcome.expect("usable"));
        assert_eq!(code(state.rename_environment(rename("lab", "site")).await), Some(RefusalCode::EnvironmentUnrecorded));
        let hold = HoldRequest { environment: lab_name(), subject: HoldSubject::Environment, reason: reason(), author: author("ann") };
        let hold = hold.skip_check(&stage.config(&[]), "the caller is offline");
        assert_eq!(code(state.record_hold(hold).await), None);
        for busy in ["lab", "site"] {
            let _driven = lock(&state, &named(busy));
            assert_eq!(code(state.rename_environment(rename("lab", "site")).await), Some(RefusalCode::EnvironmentBusy), "{busy}");
        }
        assert_eq!(code(state.rename_environment(rename("lab", "lab")).await), Some(RefusalCode::NameInUse));
        assert_eq!(code(state.rename_environment(rename("lab", "site")).await), None);
        assert!(state.load_conditions(&named("site")).await.expect("readable").freeze.is_some());
        let _released = [lock(&state, &named("lab")), lock(&state, &named("site"))];
    });
}

#[test]
fn prune_keeps_what_an_active_run_or_a_later_decision_needs_and_records_who_removed_the_rest() {
    block(async {
        let stage = Stage::start(100);
        let state = stage.state().await;
        let environment = stage.open_ready(&state);
        let run = start_run(&environment, CORES_102).await.expect("it starts");
        let later_ms = 1 << 52;
        assert_eq!(state.prune_readings(later_ms, &author("ann")).await.expect("readable"), [], "the run is active");
        let RunAdmission::Ended(_) = run.admit(Confirmation::None).await else { panic!("nobody confirmed it") };
        assert_eq!(state.prune_readings(1, &author("ann")).await.expect("readable"), [], "the decision is later");
        let pruned = state.prune_readings(later_ms, &author("ann")).await.expect("writable");
        let [reading] = pruned.as_slice() else { panic!("{pruned:?}") };
        assert!(reading.bytes > 0 && state.store().blob(reading.digest).await.expect("readable").is_none(), "{reading:?}");
        let last = ledger_entries(&state).await.pop().expect("entries");
        let expected = LedgerEntry::Pruned { by: "ann".into(), before_ms: later_ms, digests: [reading.digest].into(), at_ms: 1_000 };
        assert_eq!(last, expected);
        assert_eq!(state.prune_readings(later_ms, &author("ann")).await.expect("readable"), [], "it is removed");
    });
}

fn rekey(existing: ExistingKey) -> RekeyRequest {
    RekeyRequest { existing, checkpoint: None, reason: reason(), author: author("ann") }
}

#[test]
fn key_is_replaced_only_on_purpose_and_the_entry_names_who_did_it() {
    block(async {
        let (stage, sample) = (Stage::start(100), OperationSample::new(10));
        let state = stage.state().await;
        leave_operation_open(&state, &sample).await;
        let error = state.replace_key(rekey(ExistingKey::Replace)).await.expect_err("there is no key");
        assert!(matches!(error, RuntimeError::Input(_)) && error.to_string() == "this ledger has no key yet", "{error}");
        let old = load_or_create_signer(&state).expect("a key").verifier().to_string();
        let before = ledger_entries(&state).await;

        let error = state.replace_key(rekey(ExistingKey::Keep)).await.expect_err("the key is not lost");
        assert_eq!(error.fault().and_then(|fault| fault.code()), Some(FailureCode::FileTaken), "{error}");
        let foreign = NamedCheckpoint { name: "a file".into(), bytes: b"no checkpoint\n".to_vec() };
        let request = RekeyRequest { checkpoint: Some(foreign), ..rekey(ExistingKey::Replace) };
        assert!(state.replace_key(request).await.expect_err("it is no checkpoint").is_broken());
        assert_eq!(ledger_entries(&state).await, before, "nothing is written");

        let replaced = state.replace_key(rekey(ExistingKey::Replace)).await.expect("it is replaced");
        assert_eq!(replaced.covered_entries, Some(before.len() as u64));
        assert_eq!(load_or_create_signer(&state).expect("a key").verifier().to_string(), replaced.verifier);
        let last = ledger_entries(&state).await.pop();
        let Some(LedgerEntry::Rekeyed { verifier, previous, by, at_ms, .. }) = last else { panic!("{last:?}") };
        assert_eq!((&*verifier, &*previous, &*by, at_ms), (&*replaced.verifier, &*old, "ann", 1_000));
    });
}
