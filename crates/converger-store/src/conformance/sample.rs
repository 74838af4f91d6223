//! Operations to tell stories with: of a seeded random plan, with ids, guests and sources as a story needs them.

use converger_core::apply::{
    BootId, End, EnvironmentBinding, History, IdempotencyKey, Operation, OperationId, Record, Resolution, Run, RunId, Source, TaskId,
};
use converger_core::artifact::Digest;
use converger_core::guest::{EnvironmentName, Vmid};
use converger_core::testing::{Rng, outcome_of, some_binding, some_inputs, some_operations};

use crate::write::{Batch, Write};

/// Where operations come from. The same seed gives the same ones.
#[derive(Clone, Debug)]
pub struct Sample {
    pattern: Operation,
    rng: Rng,
}

const WELL_FORMED: &str = "the samples are well-formed";

impl Sample {
    /// The sample of this seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let pattern = some_operations(&mut rng, "run-0").swap_remove(0);
        Self { pattern: Operation { source: Source::Convergent, ..pattern }, rng }
    }

    /// The environment of everything that does not say otherwise.
    #[must_use]
    pub fn environment(&self) -> EnvironmentName {
        self.pattern.environment.clone()
    }

    /// Another environment.
    #[must_use]
    pub fn elsewhere(&self) -> EnvironmentName {
        EnvironmentName::new("elsewhere").expect(WELL_FORMED)
    }

    /// The run of every operation that does not say otherwise.
    #[must_use]
    pub fn run(&self) -> Run {
        let Operation { run, environment, plan, .. } = &self.pattern;
        Run { id: run.clone(), environment: environment.clone(), plan: *plan, by: "ann".into(), at_ms: 1, boot: Some(self.boot()) }
    }

    /// The start of the machine that everything runs on.
    #[must_use]
    pub fn boot(&self) -> BootId {
        BootId::new("boot-1").expect(WELL_FORMED)
    }

    /// The history that an intent begins.
    #[must_use]
    pub fn begun(&self, operation: &Operation) -> History {
        History { boot: Some(self.boot()), ..History::begin(Box::new(operation.clone()), 10) }
    }

    /// A run in another environment.
    #[must_use]
    pub fn run_elsewhere(&self) -> Run {
        Run { id: RunId::new("run-elsewhere").expect(WELL_FORMED), environment: self.elsewhere(), ..self.run() }
    }

    /// The start of [`Sample::run`].
    #[must_use]
    pub fn start(&self) -> Batch {
        Self::started(self.run())
    }

    /// The start of a run, in an environment whose cluster is recorded.
    #[must_use]
    pub fn started(run: Run) -> Batch {
        let binding = Write::Bind(Self::binding(&run.environment));
        Batch::from(binding).with(Write::RunStarted { run, inputs: Box::new(some_inputs()) })
    }

    /// The binding of an environment, each to a cluster of its own.
    #[must_use]
    pub fn binding(environment: &EnvironmentName) -> EnvironmentBinding {
        some_binding(environment)
    }

    /// A guest.
    #[must_use]
    pub fn guest(&self, number: u64) -> Vmid {
        Vmid::new(1000 + number).expect(WELL_FORMED)
    }

    /// An operation with this number, on the guest with that number.
    #[must_use]
    pub fn operation(&self, number: u64, guest: u64) -> Operation {
        let mut operation = self.pattern.clone();
        operation.id = OperationId::new(&format!("op-{number}")).expect(WELL_FORMED);
        operation.guest.vmid = self.guest(guest);
        operation
    }

    /// The same as a request that acts once.
    #[must_use]
    pub fn one_shot(&self, number: u64, guest: u64, key: &str, request: &str) -> Operation {
        let key = IdempotencyKey::new(key).expect(WELL_FORMED);
        let source = Source::OneShot { key, request: Digest::of_bytes(request.as_bytes()) };
        Operation { source, ..self.operation(number, guest) }
    }

    /// The intent of an operation.
    #[must_use]
    pub fn intent(&self, operation: &Operation) -> Record {
        Record::Intent { operation: Box::new(operation.clone()), at_ms: 10 }
    }

    /// The mark before it is sent.
    #[must_use]
    pub fn sending(&self, operation: &Operation) -> Record {
        Record::Sending { id: operation.id.clone(), at_ms: 11, up_ms: 7 }
    }

    /// Its task.
    #[must_use]
    pub fn tasked(&self, operation: &Operation) -> Record {
        Record::Tasked { id: operation.id.clone(), task: self.task(operation), at_ms: 11 }
    }

    /// The name of its task.
    pub fn task(&self, operation: &Operation) -> TaskId {
        let name = format!("UPID:pve1:0000ABCD:00001234:65A0B1C2:qmstart:{}:root@pam!{}:", operation.guest.vmid, operation.id);
        TaskId::new(&name).expect(WELL_FORMED)
    }

    /// Its end, with random evidence.
    pub fn ended(&mut self, operation: &Operation, end: End) -> Record {
        Record::Ended { id: operation.id.clone(), outcome: outcome_of(&mut self.rng, end), at_ms: 12 }
    }

    /// What a person says became of it.
    #[must_use]
    pub fn resolved(&self, operation: &Operation, resolution: Resolution) -> Record {
        Record::Resolved { id: operation.id.clone(), resolution, by: "bob".into(), reason: "the log says so".into(), at_ms: 13 }
    }
}
