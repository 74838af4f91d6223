//! Idempotency keys of requests: a request with the key of an earlier one is not executed again (G13).
//!
//! The store enforces that a key begins each step once. This module answers before anything is planned, so that a caller learns what the first request did.

use converger_core::apply::{IdempotencyKey, JournalProgress, OperationEnd, OperationHistory, OperationSource, Resolution, RunId};
use converger_core::artifact::{Digest, RecordedPlan};
use converger_core::failure::FailureCode;
use converger_core::guest::EnvironmentName;
use converger_core::intent::Intent;
use converger_core::refusal::Refusal;
use converger_store::{LIST_MAX, OperationFilter, StoreError, StoreReader as _};

use crate::error::RuntimeError;
use crate::report::RunReport;
use crate::state_dir::{StateStore, store_error};

/// The longest key of a caller. The stored key has its scope in front.
const CALLER_KEY_CHARS_MAX: usize = 100;

/// A request that an earlier run executed with the same key.
#[derive(Debug)]
pub struct RepeatedRequest {
    /// The key, with its scope.
    pub key: IdempotencyKey,
    /// What the earlier run did.
    pub report: RunReport,
}

/// The key that a caller chose, within the scope of an endpoint and of the user of this process: the same key of another user is another key.
///
/// # Errors
/// The key is empty, too long, or not visible ASCII.
pub fn scope_key(endpoint: &str, key: &str) -> Result<IdempotencyKey, RuntimeError> {
    let user = rustix::process::getuid().as_raw();
    let fits = key.len() <= CALLER_KEY_CHARS_MAX && !key.is_empty();
    fits.then(|| IdempotencyKey::new(&format!("{endpoint}:{user}:{key}"))).flatten().ok_or_else(|| {
        RuntimeError::input(format!("`{}` is not an idempotency key", key.escape_debug()))
            .with_code(FailureCode::UsageWrong)
            .with_help(format!("use 1 to {CALLER_KEY_CHARS_MAX} letters, digits and signs of ASCII, without blanks"))
    })
}

/// The key of a request whose caller chose none: its run is executed once anyway.
pub(crate) fn key_of_run(run: &RunId) -> Result<IdempotencyKey, RuntimeError> {
    IdempotencyKey::new(&format!("run:{run}")).ok_or_else(|| RuntimeError::failed(format!("the id of run `{run}` does not fit into a key")))
}

/// What the journal has under a key.
pub(crate) enum KeyUse {
    /// Nothing: the request is new.
    Unused,
    /// The same request: the operations of the runs that executed it, in the order in which they began.
    Repeated(Vec<OperationHistory>),
    /// The same request, cut off after a step that is done: the steps that were never begun are left. They begin under the same key.
    CutOff,
    /// Another request.
    Reused(Refusal),
}

impl KeyUse {
    /// Whether an operation of the earlier run may still be in flight.
    pub(crate) fn is_open(&self) -> bool {
        matches!(self, Self::Repeated(histories) if histories.iter().any(|history| history.progress().is_open()))
    }
}

/// Finds the request that used a key first.
pub(crate) async fn find_key_use(
    store: &StateStore,
    environment: &EnvironmentName,
    key: &IdempotencyKey,
    intent: &Intent,
) -> Result<KeyUse, RuntimeError> {
    let failed = |error: StoreError| store_error(&error);
    let Some(first) = store.operation_of_key(environment.clone(), key.clone()).await.map_err(failed)? else {
        return Ok(KeyUse::Unused);
    };
    let request: Digest = intent.digest().map_err(|error| RuntimeError::failed(format!("cannot encode the request: {error}")))?;
    match &first.operation.source {
        OperationSource::OneShot { request: earlier, .. } if *earlier == request => find_repeated(store, &first, key).await.map_err(failed),
        OperationSource::OneShot { .. } | OperationSource::Convergent => Ok(KeyUse::Reused(Refusal::key_reused(key, first.id()))),
    }
}

/// What the runs of a request did. To report a request as done that was cut off between two steps would leave its guest half made.
async fn find_repeated(store: &StateStore, first: &OperationHistory, key: &IdempotencyKey) -> Result<KeyUse, StoreError> {
    let of_first_run = load_run_operations(store, &first.operation.run).await?;
    let Some(planned) = count_planned_steps(store, first.operation.plan).await?.filter(|planned| of_first_run.len() < *planned) else {
        return Ok(KeyUse::Repeated(of_first_run));
    };
    let own = |history: &OperationHistory| matches!(&history.operation.source, OperationSource::OneShot { key: own, .. } if own == key);
    let guest = OperationFilter {
        environment: Some(first.operation.environment.clone()),
        vmid: Some(first.operation.guest.vmid),
        ..OperationFilter::default()
    };
    let mut begun = load_operations(store, guest).await?;
    begun.retain(own);
    begun.reverse();
    let is_done = |history: &OperationHistory| {
        let JournalProgress { end, resolution, .. } = history.progress();
        end == Some(OperationEnd::Done) || resolution == Some(Resolution::Done)
    };
    Ok(if begun.len() < planned && begun.iter().all(is_done) { KeyUse::CutOff } else { KeyUse::Repeated(begun) })
}

/// The number of steps of a recorded plan. `None` if its body is gone.
async fn count_planned_steps(store: &StateStore, plan: Digest) -> Result<Option<usize>, StoreError> {
    let body = store.blob(plan).await?.and_then(|bytes| serde_json::from_slice(&bytes).ok());
    Ok(body.map(|body| RecordedPlan::from_body(&body).step_count()))
}

/// The operations of a run that the journal has, in the order of its plan.
pub(crate) async fn load_run_operations(store: &StateStore, run: &RunId) -> Result<Vec<OperationHistory>, StoreError> {
    let mut found = load_operations(store, OperationFilter { run: Some(run.clone()), ..OperationFilter::default() }).await?;
    found.sort_by_key(|history| history.operation.position);
    Ok(found)
}

/// All operations that a filter lets through, newest first.
async fn load_operations(store: &StateStore, mut filter: OperationFilter) -> Result<Vec<OperationHistory>, StoreError> {
    let mut found = Vec::new();
    loop {
        let page = store.operations(filter.clone(), LIST_MAX).await?;
        let is_last = page.len() < LIST_MAX as usize;
        filter.before = page.last().map(|history| history.id().clone());
        found.extend(page);
        if is_last {
            return Ok(found);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_is_scoped_to_endpoint_and_user() {
        let user = rustix::process::getuid().as_raw();
        assert_eq!(scope_key("cli", "deploy-7").expect("a key").as_str(), format!("cli:{user}:deploy-7"));
        for bad in ["", "a b", "é", &"k".repeat(101)] {
            let error = scope_key("cli", bad).expect_err("not a key");
            assert!(matches!(&error, RuntimeError::Input(fault) if fault.message().contains("is not an idempotency key")), "{bad:?}");
        }
        assert!(scope_key("cli", &"k".repeat(100)).is_ok());
    }
}
