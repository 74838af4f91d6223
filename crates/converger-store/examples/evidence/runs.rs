//! The writes of applies on a made-up fleet: every entry that a real apply leaves, in the same order and of the same size.
//!
//! The same number gives the same writes. Must not depend on an environment: its answers are made up here, worded as in the lab.

use std::collections::BTreeMap;
use std::sync::Arc;

use converger_core::action::Change;
use converger_core::apply::{
    BootId, Evidence, Findings, JournalRecord, Operation, OperationEnd, OperationId, OperationSource, OperationTarget, Outcome, RunId,
    RunStart, Slug, TaskId,
};
use converger_core::approve::{Admission, ApprovalMode, Confirmation, RefusedGuestPolicy};
use converger_core::artifact::{Digest, Provenance};
use converger_core::desired;
use converger_core::document::Notation;
use converger_core::evidence::{AdmissionBundle, Decision, DecisionPart, DecisionRecord, LedgerEntry, record_decision};
use converger_core::guest::{GuestKind, RunState, Vmid};
use converger_core::observe;
use converger_core::plan::plan;
use converger_core::policy::{Circumstances, Limits};
use converger_core::refusal::Refusal;
use converger_core::safety::{Judged, JudgedVerdict, judge};
use converger_core::testing::some_binding;
use converger_store::{Batch, LIST_MAX, MemoryStore, StoreReader as _, StoreWrite};

use crate::fleet::{BenchFleet, GuestShare};

const BY: &str = "ann@pve-admin";
const CONFIG: &str =
    r#"{"environments":{"lab":{"mode":"solo","token":"converger@pve!apply"}},"limits":{"guests":1000000,"percent":100,"stops":1000000}}"#;
const FIRST_MS: u64 = 1_794_700_800_000;

/// A decision about a fleet, with its inputs.
pub(crate) struct FleetDecision {
    judged: Judged,
    record: DecisionRecord,
}

impl FleetDecision {
    /// The decision about a fleet of this size, a quarter of which has drifted.
    pub(crate) fn for_fleet(guests: u32) -> Self {
        let fleet = BenchFleet { guests, drifted_share: GuestShare::OneIn(4), ordered_share: GuestShare::OneIn(10) };
        let desired = desired::parse(fleet.desired_json().as_bytes(), Notation::Json).expect("the fleet is well-formed");
        let seen = observe::parse(fleet.current_json().as_bytes()).expect("the fleet is well-formed").into_scoped(&desired.scope());
        let limits = Limits { guests: 1_000_000, percent: 100, stops: 1_000_000 };
        let judged = judge(plan(Arc::new(desired), Arc::new(seen), Arc::default()), limits, Circumstances::default());
        let record = record_decision(&judged, "0.1.0", CONFIG.into()).expect("it can be written");
        Self { judged, record }
    }

    /// The decision, as the ledger refers to it.
    pub(crate) fn decision(&self) -> Decision {
        let DecisionRecord { inputs, plan, judgement, .. } = &self.record;
        Decision { inputs: inputs.clone(), plan: *plan, judgement: *judgement }
    }

    /// The admission bundle of an apply at this time.
    fn admission_bundle(&self, now_ms: u64) -> Vec<u8> {
        let admission = Admission {
            mode: ApprovalMode::Solo,
            provenance: Provenance::Live,
            confirmation: Confirmation::Typed { by: BY.into(), names: Vec::new() },
            refused: RefusedGuestPolicy::LeaveOut,
            now_ms,
            age_secs_max: Admission::AGE_SECS_MAX,
        };
        AdmissionBundle::new(BY, self.decision(), self.record.proposal, admission, &[]).to_canonical_json().expect("it can be written")
    }

    /// The inputs of the decision, by digest.
    pub(crate) fn blobs(&self) -> BTreeMap<Digest, Vec<u8>> {
        self.record.blobs.iter().map(|bytes| (Digest::of_bytes(bytes), bytes.clone())).collect()
    }

    /// All writes of the apply with this number, in order.
    pub(crate) fn apply_writes(&self, number: u64) -> Vec<StoreWrite> {
        let mut clock = StepClock(FIRST_MS + number * 3_600_000);
        let run = RunId::new(&format!("{:x}-{:08x}", clock.0 / 1000, number.wrapping_mul(0x9e37_79b9) & 0xffff_ffff)).expect("an id");
        let mut writes = self.run_start_writes(&run, clock.advance());
        for operation in self.operations(&run) {
            writes.extend(operation_records(operation, &mut clock).map(StoreWrite::Record));
        }
        writes.push(StoreWrite::RunEnded { id: run, end: OperationEnd::Done, at_ms: clock.advance() });
        writes
    }

    /// All writes before the first operation.
    fn run_start_writes(&self, run: &RunId, at_ms: u64) -> Vec<StoreWrite> {
        let DecisionRecord { inputs, plan, proposal, judgement, blobs } = &self.record;
        let (plan, proposal, judgement, bundle) = (*plan, *proposal, *judgement, self.admission_bundle(at_ms));
        let environment = self.judged.plan().desired().environment().clone();
        let boot = BootId::new("8a5c6f0e-3c0d-4a64-9f0c-2f1d7e5b9a11");
        let started = RunStart { id: run.clone(), environment, plan, by: BY.into(), at_ms, boot };
        let mut writes: Vec<StoreWrite> = blobs.iter().cloned().map(StoreWrite::blob).collect();
        writes.push(StoreWrite::Bind(some_binding(&started.environment)));
        writes.push(StoreWrite::RunStarted { run: started, inputs: Box::new(inputs.clone()) });
        writes.push(StoreWrite::decision(LedgerEntry::PlanMade { run: run.clone(), plan, proposal, judgement, at_ms }));
        writes.extend(
            self.refusals()
                .map(|(guest, refusal)| StoreWrite::decision(LedgerEntry::from_refusal(run.clone(), Some(guest), refusal, at_ms))),
        );
        let (by, how, names) = (BY.into(), test_slug("typed"), Box::default());
        writes.push(StoreWrite::decision(LedgerEntry::Approved { run: run.clone(), proposal, by, how, names, at_ms }));
        let digest = Digest::of_bytes(&bundle);
        writes.push(StoreWrite::blob(bundle));
        writes.push(StoreWrite::decision(LedgerEntry::Admitted {
            run: run.clone(),
            plan,
            bundle: digest,
            answer: test_slug("admitted"),
            at_ms,
        }));
        writes
    }

    fn refusals(&self) -> impl Iterator<Item = (Vmid, &Refusal)> {
        let guests = self.judged.guests().filter_map(|(guest, verdict)| match verdict {
            JudgedVerdict::Refused(refusals) => Some(refusals.iter().map(|refusal| (guest.vmid, refusal))),
            _ => None,
        });
        guests.flatten()
    }

    fn operations(&self, run: &RunId) -> Vec<Operation> {
        let plan = self.judged.plan();
        let mut operations = Vec::new();
        for (guest, verdict) in self.judged.guests() {
            let (JudgedVerdict::Steps(steps), Some(target)) = (verdict, OperationTarget::from_plan(plan, guest)) else { continue };
            for (position, step) in (0..).zip(steps) {
                let id = OperationId::new(&format!("{run}-{}", operations.len())).expect("an id");
                let environment = plan.desired().environment().clone();
                let (target, step, digest) = (target.clone(), step.clone(), self.record.plan);
                operations.push(Operation::new(id, run.clone(), environment, target, step, position, digest, OperationSource::Convergent));
            }
        }
        operations
    }
}

fn test_slug(text: &str) -> Slug {
    Slug::new(text).expect("a word")
}

/// A clock that advances with every read.
struct StepClock(u64);

impl StepClock {
    fn advance(&mut self) -> u64 {
        self.0 += 137;
        self.0
    }
}

/// Intent, sending mark, task and end.
fn operation_records(operation: Operation, clock: &mut StepClock) -> [JournalRecord; 4] {
    let id = operation.id.clone();
    let task = upid_task(&operation, clock.0);
    let evidence = Evidence::default().with("task", task.as_str());
    let outcome = Outcome::Done(Findings { evidence, observed: observed_after(&operation) });
    [
        JournalRecord::Intent { operation: Box::new(operation), at_ms: clock.advance() },
        JournalRecord::Sending { id: id.clone(), at_ms: clock.advance(), up_ms: clock.0 - FIRST_MS },
        JournalRecord::TaskStarted { id: id.clone(), task, at_ms: clock.advance() },
        JournalRecord::Ended { id, outcome, at_ms: clock.advance() },
    ]
}

/// A task id as Proxmox VE forms it.
fn upid_task(operation: &Operation, at_ms: u64) -> TaskId {
    let short = match operation.guest.kind {
        GuestKind::Qemu => "qm",
        GuestKind::Lxc => "vz",
    };
    let (node, vmid, verb) = (operation.guest.node.as_str(), operation.guest.vmid, operation.step.change.word().replace('-', ""));
    let (process, ticks, secs) = (vmid.get(), at_ms & 0xffff_ffff, at_ms / 1000);
    let name = format!("UPID:{node}:{process:08X}:{ticks:08X}:{secs:08X}:{short}{verb}:{vmid}:converger@pve!apply:");
    TaskId::new(&name).expect("a task")
}

/// The state that is read after the operation.
fn observed_after(operation: &Operation) -> Evidence {
    match &operation.step.change {
        Change::ConfigSet(fields) => {
            let to_json = |after: &Option<_>| serde_json::to_string(after).expect("a value can be written");
            fields.iter().fold(Evidence::default(), |seen, change| seen.with(change.field.word(), to_json(&change.after).as_str()))
        }
        Change::Start | Change::Reboot { .. } => Evidence::default().with("run_state", RunState::Running.word()),
        Change::Shutdown { .. } | Change::Stop => Evidence::default().with("run_state", RunState::Stopped.word()),
        // The desired states of the fleets here lead to no requested change.
        other => panic!("the fleet has no step `{}`", other.word()),
    }
}

/// The blobs that entries refer to: the parts of decisions, and the bundles of their admissions.
pub(crate) type NamedBlobs = BTreeMap<Digest, (Option<DecisionPart>, Vec<u8>)>;

/// A ledger of `count` entries, as applies on a fleet of a thousand guests produce it, and all blobs that it refers to.
///
/// Each run has its own decision about its own fleet: an observation contains the time when it was taken, so no two runs share one, or
/// the plan based on it. That is one megabyte per thousand entries.
pub(crate) fn ledger_entries(count: u64) -> (Vec<Vec<u8>>, NamedBlobs) {
    let count = usize::try_from(count).expect("it fits into memory");
    let (mut entries, mut named_blobs) = (Vec::with_capacity(count), NamedBlobs::new());
    for number in 0.. {
        if entries.len() >= count {
            break;
        }
        let decided = FleetDecision::for_fleet(1_000 + number);
        let (more, bundle) = apply_entries(&decided, number.into());
        entries.extend(more);
        named_blobs.insert(Digest::of_bytes(&bundle), (None, bundle));
        let (decision, mut blobs) = (decided.decision(), decided.blobs());
        for part in DecisionPart::ALL {
            let digest = decision.digest(part);
            named_blobs.extend(blobs.remove(&digest).map(|bytes| (digest, (Some(part), bytes))));
        }
    }
    entries.truncate(count);
    (entries, named_blobs)
}

/// The entries of an apply, as the store rules produce them, and its admission bundle.
fn apply_entries(decided: &FleetDecision, number: u64) -> (Vec<Vec<u8>>, Vec<u8>) {
    let store = MemoryStore::new();
    let mut writes = decided.apply_writes(number);
    // INVARIANT: the last blob of an apply is its admission bundle.
    let bundle = writes.iter().rev().find_map(|write| if let StoreWrite::Blob { body, .. } = write { Some(body.to_vec()) } else { None });
    writes.retain(has_entry);
    for batch in split_into_batches(writes) {
        let _ = store.commit_now(batch).expect("a run in order is accepted");
    }
    let mut all: Vec<Vec<u8>> = Vec::new();
    while (all.len() as u64) < block_on_store(store.heads()).all.size {
        all.extend(block_on_store(store.entries(all.len() as u64, LIST_MAX)));
    }
    (all, bundle.expect("every apply is admitted"))
}

/// Whether a write adds a ledger entry.
pub(crate) fn has_entry(write: &StoreWrite) -> bool {
    !matches!(write, StoreWrite::Blob { .. })
}

/// Splits writes into as few batches as possible.
pub(crate) fn split_into_batches(mut writes: Vec<StoreWrite>) -> Vec<Batch> {
    let mut batches = Vec::new();
    while !writes.is_empty() {
        let rest = writes.split_off(writes.len().min(Batch::WRITES_MAX));
        batches.push(Batch::new(std::mem::replace(&mut writes, rest)));
    }
    batches
}

/// The answer of a store that works.
pub(crate) fn block_on_store<T>(answer: impl Future<Output = Result<T, converger_store::StoreError>>) -> T {
    converger_store::conformance::block_on(answer).expect("a store that works answers")
}
