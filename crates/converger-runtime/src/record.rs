//! Writes what a run decided to the ledger, together with the inputs of the decision, before the caller learns of it (G10).
//!
//! A run starts here once it is planned, and ends here if nothing is applied; the engine records what is applied. Nothing is decided here, and no secret
//! is written: the configuration is stored as parsed, without comments.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use converger_core::apply::{OperationEnd, OperationId, RunId, RunStart, Slug};
use converger_core::approve::{Admission, Confirmation};
use converger_core::artifact::Digest;
use converger_core::evidence::{
    Admissibility, AdmissionBundle, Decision, DecisionRecord, LedgerEntry, check_admissibility, record_decision,
};
use converger_core::failure::FailureCode;
use converger_core::guest::{EnvironmentName, Vmid};
use converger_core::refusal::{self, Refusal, RefusalReach};
use converger_core::safety::{Judged, JudgedVerdict};
use converger_store::{Batch, StoreWrite};

use crate::config;
use crate::error::RuntimeError;
use crate::host::Host;
use crate::reader::{EnvironmentReader, Planned};
use crate::state_dir::StateDirectory;

/// Where a run comes from.
#[derive(Debug)]
pub(crate) struct RunOrigin {
    pub(crate) run: RunId,
    pub(crate) requested_by: Box<str>,
    pub(crate) host: Arc<Host>,
}

/// A run that the ledger has.
#[derive(Debug)]
pub struct RunRecord {
    state: StateDirectory,
    origin: RunOrigin,
    decision: Decision,
    proposal: Digest,
    /// Refusal codes of the plan and its judgement that concern the whole run.
    refused: BTreeSet<refusal::RefusalCode>,
    /// All refusals so far, of a guest or of the whole run.
    refusals: Vec<(Option<Vmid>, Refusal)>,
    /// The inputs of the decision, by digest.
    blobs: BTreeMap<Digest, Vec<u8>>,
}

/// Records that operations of an earlier run are about to be settled.
///
/// # Errors
/// The journal cannot be written.
pub(crate) async fn record_recovery(
    state: &StateDirectory,
    environment: &EnvironmentName,
    operations: &[OperationId],
    at_ms: u64,
) -> Result<(), RuntimeError> {
    let entry = |some: &[OperationId]| {
        StoreWrite::decision(LedgerEntry::Recovery { environment: environment.clone(), operations: some.into(), at_ms })
    };
    state.commit(Batch::new(operations.chunks(OPERATIONS_MAX).map(entry).collect())).await
}

/// This many ids of the largest size fit into one entry.
const OPERATIONS_MAX: usize = 256;

/// All refusals of a judged plan: of the whole run, of its guests, and of its judgement.
fn plan_refusals(judged: &Judged) -> impl Iterator<Item = (Option<Vmid>, &Refusal)> {
    let plan = judged.plan();
    let whole = plan.refusals().iter().chain(judged.judgement().refusals()).map(|refusal| (None, refusal));
    let guests = judged.guests().filter_map(|(guest, verdict)| match verdict {
        JudgedVerdict::Refused(refusals) => Some(refusals.iter().map(|refusal| (Some(guest.vmid), refusal))),
        _ => None,
    });
    whole.chain(guests.flatten())
}

/// Keeps a plan that nobody asked to apply: its inputs, its refusals, and that nothing was sent. Returns the run that it is recorded as.
///
/// # Errors
/// The journal or the witness cannot be written.
pub async fn record_plan(
    state: &StateDirectory,
    reader: &EnvironmentReader,
    planned: &Planned,
    requested_by: &str,
) -> Result<RunId, RuntimeError> {
    let origin = RunOrigin { run: reader.host().new_run_id()?, requested_by: requested_by.into(), host: Arc::clone(reader.host()) };
    let record = RunRecord::start(state, &planned.judged, reader.config().snapshot.clone(), origin).await?;
    record.end_without_sending(OperationEnd::NotRun).await;
    state.attest_ledger().await?;
    Ok(record.run().clone())
}

impl RunRecord {
    /// Records the start of a run, its inputs, its plan and all refusals in it.
    ///
    /// # Errors
    /// The journal cannot be written.
    pub(crate) async fn start(state: &StateDirectory, judged: &Judged, config: Vec<u8>, origin: RunOrigin) -> Result<Self, RuntimeError> {
        let failed = |error: std::io::Error| RuntimeError::failed(format!("cannot encode the inputs of the run: {error}"));
        let DecisionRecord { inputs, plan, proposal, judgement, blobs } =
            record_decision(judged, env!("CARGO_PKG_VERSION"), config).map_err(failed)?;
        let (environment, at_ms) = (judged.plan().intent().environment().clone(), origin.host.now_ms());
        let (run, by, boot) = (origin.run.clone(), origin.requested_by.clone(), origin.host.boot());
        let started = RunStart { id: run.clone(), environment, plan, by, at_ms, boot };
        let mut writes: Vec<StoreWrite> = blobs.iter().cloned().map(StoreWrite::blob).collect();
        writes.push(StoreWrite::RunStarted { run: started, inputs: Box::new(inputs.clone()) });
        writes.push(StoreWrite::decision(LedgerEntry::PlanMade { run, plan, proposal, judgement, at_ms }));
        let blobs = blobs.into_iter().map(|bytes| (Digest::of_bytes(&bytes), bytes)).collect();
        let refused = plan_refusals(judged).filter(|(guest, _)| guest.is_none()).map(|(_, refusal)| refusal.code()).collect();
        let decision = Decision { inputs, plan, judgement };
        let mut record = Self { state: state.clone(), origin, decision, proposal, refused, refusals: Vec::new(), blobs };
        writes.extend(plan_refusals(judged).map(|(guest, refusal)| record.note_refusal(guest, refusal, at_ms)));
        record.write(writes).await?;
        Ok(record)
    }

    /// The run.
    #[must_use]
    pub fn run(&self) -> &RunId {
        &self.origin.run
    }

    /// Who requested it.
    #[must_use]
    pub fn requested_by(&self) -> &str {
        &self.origin.requested_by
    }

    fn now_ms(&self) -> u64 {
        self.origin.host.now_ms()
    }

    /// The digest of its plan.
    #[must_use]
    pub fn plan(&self) -> Digest {
        self.decision.plan
    }

    /// The digest of its proposal.
    pub(crate) fn proposal(&self) -> Digest {
        self.proposal
    }

    /// All refusals in it.
    #[must_use]
    pub fn refusals(&self) -> &[(Option<Vmid>, Refusal)] {
        &self.refusals
    }

    /// Records further refusals of the run.
    ///
    /// # Errors
    /// The journal cannot be written.
    pub(crate) async fn write_refusals(&mut self, refusals: &[Refusal]) -> Result<(), RuntimeError> {
        let at_ms = self.now_ms();
        let writes = refusals.iter().map(|refusal| self.note_refusal(None, refusal, at_ms)).collect();
        self.write(writes).await
    }

    /// Derives the admission again from its evidence alone, and records it with its approval and its refusals.
    ///
    /// The first decision is not trusted: if the evidence leads to another one, nothing is applied (G6, G15). Refusals of the plan and its guests are
    /// recorded already.
    ///
    /// # Errors
    /// The journal cannot be written, or the evidence leads to another decision.
    pub(crate) async fn write_admission(&mut self, admission: &Admission, causes: &[Refusal]) -> Result<(), RuntimeError> {
        let failed = |error: std::io::Error| RuntimeError::failed(format!("cannot encode the evidence of the admission: {error}"));
        let bundle = AdmissionBundle::new(&self.origin.requested_by, self.decision.clone(), self.proposal, admission.clone(), causes)
            .to_canonical_json()
            .map_err(failed)?;
        let answer = check_admissibility(&bundle, |digest| self.blobs.get(&digest).cloned(), config::parse_config_snapshot);
        let (run, plan, at_ms) = (self.origin.run.clone(), self.decision.plan, admission.now_ms);
        let mut writes: Vec<StoreWrite> = self.approval(&admission.confirmation, at_ms).into_iter().collect();
        let is_new = |refusal: &&Refusal| refusal.code().entry().reach == RefusalReach::Run && !self.refused.contains(&refusal.code());
        let new: Vec<&Refusal> = causes.iter().filter(is_new).collect();
        writes.extend(new.into_iter().map(|refusal| self.note_refusal(None, refusal, at_ms)));
        let (digest, answer_slug) = (Digest::of_bytes(&bundle), word(answer.word()));
        writes.extend([
            StoreWrite::blob(bundle),
            StoreWrite::decision(LedgerEntry::Admitted { run, plan, bundle: digest, answer: answer_slug, at_ms }),
        ]);
        self.write(writes).await?;
        match answer {
            Admissibility::Admissible if causes.is_empty() => Ok(()),
            Admissibility::Inadmissible(_) if !causes.is_empty() => Ok(()),
            Admissibility::Broken(broken) => Err(RuntimeError::broken(broken.code, broken.what)),
            Admissibility::Admissible | Admissibility::Inadmissible(_) | Admissibility::Undecidable(_) => {
                let text = "the evidence of this plan leads to another decision than its admission made";
                Err(RuntimeError::broken(FailureCode::DeterminismBreach, text))
            }
        }
    }

    /// The approval of the plan, if there is one.
    fn approval(&self, confirmation: &Confirmation, at_ms: u64) -> Option<StoreWrite> {
        let (by, how, proposal, names): (&str, _, _, _) = match confirmation {
            Confirmation::None | Confirmation::Declined { .. } => return None,
            Confirmation::Typed { by, names } => (by, "typed", self.proposal, names.as_slice()),
            // The admission decides whether it is the digest of this proposal.
            Confirmation::FullDigest { by, digest } => (by, "digest", *digest, [].as_slice()),
            Confirmation::Signed(approval) => (approval.by(), "signed", approval.proposal(), [].as_slice()),
        };
        let (run, by, how, names) = (self.origin.run.clone(), by.into(), word(how), names.into());
        Some(StoreWrite::decision(LedgerEntry::Approved { run, proposal, by, how, names, at_ms }))
    }

    /// Records that the run ends without sending anything. A run whose end cannot be recorded has still ended.
    pub(crate) async fn end_without_sending(&self, end: OperationEnd) {
        let end_write = StoreWrite::RunEnded { id: self.origin.run.clone(), end, at_ms: self.now_ms() };
        let _ = self.state.commit(Batch::from(end_write)).await;
    }

    fn note_refusal(&mut self, guest: Option<Vmid>, refusal: &Refusal, at_ms: u64) -> StoreWrite {
        self.refusals.push((guest, refusal.clone()));
        StoreWrite::decision(LedgerEntry::from_refusal(self.origin.run.clone(), guest, refusal, at_ms))
    }

    /// Writes in as few transactions as possible; earlier writes become durable first.
    async fn write(&self, mut writes: Vec<StoreWrite>) -> Result<(), RuntimeError> {
        while !writes.is_empty() {
            let rest = writes.split_off(writes.len().min(Batch::WRITES_MAX));
            self.state.commit(Batch::new(writes)).await?;
            writes = rest;
        }
        Ok(())
    }
}

/// A word of our own tables.
fn word(text: &str) -> Slug {
    // INVARIANT: the words of our own tables are words; `every_code_is_a_word` and the table of stages prove it.
    Slug::new(text).unwrap_or_else(|| unreachable!("`{text}` is not a word"))
}
