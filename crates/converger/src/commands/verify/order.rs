//! What entries say in their order beyond what holds in the end: what people said and took back, and which run and operation came first.
//!
//! What never enters: what they amount to (`evidence::Replay`), and the journal that it is held against.

use converger_core::apply::{OperationId, Record, RunId};
use converger_core::evidence::Entry;
use converger_store::Said;

/// The past as the entries tell it.
#[derive(Default)]
pub(super) struct Order {
    pub(super) runs: Vec<RunId>,
    pub(super) operations: Vec<OperationId>,
    pub(super) said: Said,
}

impl Order {
    /// One entry more. Whether it can stand there is asked elsewhere.
    pub(super) fn take(&mut self, entry: &Entry) {
        let Said { holds, freezes } = &mut self.said;
        match entry {
            Entry::RunStarted { run, .. } => self.runs.push(run.id.clone()),
            Entry::Record(Record::Intent { operation, .. }) => self.operations.push(operation.id.clone()),
            Entry::Hold(hold) => holds.push((hold.clone(), None)),
            Entry::Release { environment, guest, by, at_ms } => {
                let is_meant = |(hold, over): &&mut (converger_core::apply::Hold, Option<_>)| {
                    over.is_none() && hold.environment == *environment && hold.vmid == *guest
                };
                if let Some((_, over)) = holds.iter_mut().rev().find(is_meant) {
                    *over = Some((by.clone(), *at_ms));
                }
            }
            Entry::Freeze(freeze) => freezes.push((freeze.clone(), None)),
            Entry::Thaw { environment, by, at_ms } => {
                let is_meant =
                    |(freeze, over): &&mut (converger_core::apply::Freeze, Option<_>)| over.is_none() && freeze.environment == *environment;
                if let Some((_, over)) = freezes.iter_mut().rev().find(is_meant) {
                    *over = Some((by.clone(), *at_ms));
                }
            }
            _ => {}
        }
    }
}
