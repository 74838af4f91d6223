//! Operations for stories, from a seeded random plan, with the ids, guests and sources that a story needs.

use converger_core::action::{Change, CloneSource, ClonedDisks, GuestClone};
use converger_core::apply::{
    BootId, EnvironmentBinding, IdempotencyKey, JournalRecord, Operation, OperationEnd, OperationHistory, OperationId, OperationSource,
    Resolution, RunId, RunStart, TaskId,
};
use converger_core::artifact::Digest;
use converger_core::guest::{EnvironmentName, GuestIdentity, GuestKind, GuestName, NodeName, RunState, Vmid};
use converger_core::plan::{Step, StepReason};
use converger_core::testing::{Rng, random_outcome_with_end, some_binding, some_inputs, some_operations};

use crate::write::{Batch, StoreWrite};

/// Generates operations. The same seed gives the same operations.
#[derive(Clone, Debug)]
pub struct OperationSample {
    pattern: Operation,
    rng: Rng,
}

const WELL_FORMED: &str = "the samples are well-formed";

impl OperationSample {
    /// The sample of this seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let pattern = some_operations(&mut rng, "run-0").swap_remove(0);
        Self { pattern: Operation { source: OperationSource::Convergent, ..pattern }, rng }
    }

    /// The default environment.
    #[must_use]
    pub fn environment(&self) -> EnvironmentName {
        self.pattern.environment.clone()
    }

    /// Another environment.
    #[must_use]
    pub fn other_environment(&self) -> EnvironmentName {
        EnvironmentName::new("elsewhere").expect(WELL_FORMED)
    }

    /// The default run of operations.
    #[must_use]
    pub fn run(&self) -> RunStart {
        let Operation { run, environment, plan, .. } = &self.pattern;
        RunStart { id: run.clone(), environment: environment.clone(), plan: *plan, by: "ann".into(), at_ms: 1, boot: Some(self.boot()) }
    }

    /// The boot id of the simulated machine.
    #[must_use]
    pub fn boot(&self) -> BootId {
        BootId::new("boot-1").expect(WELL_FORMED)
    }

    /// The history of an operation after its intent.
    #[must_use]
    pub fn history_after_intent(&self, operation: &Operation) -> OperationHistory {
        OperationHistory { boot: Some(self.boot()), ..OperationHistory::from_intent(Box::new(operation.clone()), 10) }
    }

    /// A run in another environment.
    #[must_use]
    pub fn run_in_other_environment(&self) -> RunStart {
        RunStart { id: RunId::new("run-elsewhere").expect(WELL_FORMED), environment: self.other_environment(), ..self.run() }
    }

    /// The start of [`OperationSample::run`].
    #[must_use]
    pub fn start_write(&self) -> Batch {
        Self::start_write_of(self.run())
    }

    /// The start of a run, in an environment whose cluster is recorded.
    #[must_use]
    pub fn start_write_of(run: RunStart) -> Batch {
        let binding = StoreWrite::Bind(Self::binding(&run.environment));
        Batch::from(binding).with(StoreWrite::RunStarted { run, inputs: Box::new(some_inputs()) })
    }

    /// The binding of an environment; each environment gets its own cluster.
    #[must_use]
    pub fn binding(environment: &EnvironmentName) -> EnvironmentBinding {
        some_binding(environment)
    }

    /// The id of the guest with this number.
    #[must_use]
    pub fn vmid(&self, number: u64) -> Vmid {
        Vmid::new(1000 + number).expect(WELL_FORMED)
    }

    /// The operation with this number, on the guest with that number.
    #[must_use]
    pub fn operation(&self, number: u64, guest: u64) -> Operation {
        let mut operation = self.pattern.clone();
        operation.id = OperationId::new(&format!("op-{number}")).expect(WELL_FORMED);
        operation.guest.vmid = self.vmid(guest);
        operation
    }

    /// The same operation as a one-shot request.
    #[must_use]
    pub fn one_shot(&self, number: u64, guest: u64, key: &str, request: &str) -> Operation {
        let key = IdempotencyKey::new(key).expect(WELL_FORMED);
        let source = OperationSource::OneShot { key, request: Digest::of_bytes(request.as_bytes()) };
        Operation { source, ..self.operation(number, guest) }
    }

    /// A clone that makes the guest with this number from the guest with that number.
    #[must_use]
    pub fn clone_operation(&self, number: u64, guest: u64, source: u64) -> Operation {
        let mut operation = self.operation(number, guest);
        let identity = GuestIdentity::Qemu { uuid: Some("00000000-0000-4000-8000-000000000001".into()), ctime: Some(1) };
        let node = NodeName::new("pve1").expect(WELL_FORMED);
        let source = CloneSource {
            digest: "90c9867238def2fe4d646be13e412474af227aee".into(),
            identity,
            kind: GuestKind::Qemu,
            name: "debian".into(),
            node: node.clone(),
            template: true,
            vmid: self.vmid(source),
        };
        let name = GuestName::new("web").expect(WELL_FORMED);
        let clone = GuestClone {
            grows: false,
            disks: ClonedDisks::Linked,
            name,
            node,
            pool: None,
            provisions: true,
            source,
            storage: None,
            vmid: self.vmid(guest),
        };
        let step =
            Step { change: Change::Clone(Box::new(clone)), reason: StepReason::Requested, from: RunState::Stopped, wait: Box::new([]) };
        (operation.guest.kind, operation.guest.identity) = (GuestKind::Qemu, None);
        operation.step = step;
        (operation.impact, operation.risk, operation.class) = (operation.step.impact(), operation.step.risk(), operation.step.class());
        operation
    }

    /// The intent of an operation.
    #[must_use]
    pub fn intent_record(&self, operation: &Operation) -> JournalRecord {
        JournalRecord::Intent { operation: Box::new(operation.clone()), at_ms: 10 }
    }

    /// Its sending mark.
    #[must_use]
    pub fn sending_record(&self, operation: &Operation) -> JournalRecord {
        JournalRecord::Sending { id: operation.id.clone(), at_ms: 11, up_ms: 7 }
    }

    /// The record of its task.
    #[must_use]
    pub fn task_record(&self, operation: &Operation) -> JournalRecord {
        JournalRecord::TaskStarted { id: operation.id.clone(), task: self.task(operation), at_ms: 11 }
    }

    /// The id of its task.
    pub fn task(&self, operation: &Operation) -> TaskId {
        let name = format!("UPID:pve1:0000ABCD:00001234:65A0B1C2:qmstart:{}:root@pam!{}:", operation.guest.vmid, operation.id);
        TaskId::new(&name).expect(WELL_FORMED)
    }

    /// Its end, with random evidence.
    pub fn end_record(&mut self, operation: &Operation, end: OperationEnd) -> JournalRecord {
        JournalRecord::Ended { id: operation.id.clone(), outcome: random_outcome_with_end(&mut self.rng, end), at_ms: 12 }
    }

    /// A person's resolution of the operation.
    #[must_use]
    pub fn resolution_record(&self, operation: &Operation, resolution: Resolution) -> JournalRecord {
        JournalRecord::Resolved { id: operation.id.clone(), resolution, by: "bob".into(), reason: "the log says so".into(), at_ms: 13 }
    }
}
