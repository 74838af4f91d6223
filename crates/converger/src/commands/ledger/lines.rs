//! One line for each entry, for people.

use converger_core::apply::Record;
use converger_core::evidence::Entry;
use converger_core::moment;

use crate::render::{self, styled, theirs};

pub(in super::super) fn line(index: u64, entry: &Entry) -> String {
    let time = moment::written(entry.at_ms() / 1000);
    format!("{index:>6}  {}  {} {}\n", styled(render::DIM, time), styled(render::BOLD, format!("{:<11}", entry.kind())), what(entry))
}

fn what(entry: &Entry) -> String {
    match entry {
        Entry::Key { verifier, .. } => theirs(verifier).to_string(),
        Entry::RunStarted { run, inputs } => {
            format!("{} in {} by {}, program {}", run.id.as_str(), run.environment, theirs(&run.by), theirs(&inputs.program))
        }
        Entry::PlanMade { run, plan, .. } => format!("{plan} in {}", run.as_str()),
        Entry::Refused { guest, code, .. } => match guest {
            Some(guest) => format!("{} for guest {guest}", code.as_str()),
            None => format!("{} for the whole run", code.as_str()),
        },
        Entry::Approved { by, how, .. } => format!("by {} ({})", theirs(by), how.as_str()),
        Entry::Admitted { answer, .. } => answer.as_str().to_owned(),
        Entry::Recovery { environment, operations, .. } => format!("{} operations of {environment}", operations.len()),
        Entry::Record(record) => recorded(record),
        Entry::RunEnded { run, end, .. } => format!("{} {}", run.as_str(), end.word()),
        Entry::Hold(hold) => format!("guest {} of {} by {}: {}", hold.vmid, hold.environment, theirs(&hold.by), theirs(&hold.reason)),
        Entry::Release { environment, guest, by, .. } => format!("guest {guest} of {environment} by {}", theirs(by)),
        Entry::Freeze(freeze) => format!("{} by {}: {}", freeze.environment, theirs(&freeze.by), theirs(&freeze.reason)),
        Entry::Thaw { environment, by, .. } => format!("{environment} by {}", theirs(by)),
        Entry::Pruned { by, before_ms, digests, .. } => {
            let readings = render::counted(digests.len() as u64, "reading");
            format!("{readings} of before {} by {}", moment::written(before_ms / 1000), theirs(by))
        }
        Entry::Rekeyed { verifier, by, reason, .. } => format!("{} by {}: {}", theirs(verifier), theirs(by), theirs(reason)),
        Entry::Binding(binding) => format!("{} is the cluster {} by {}", binding.environment, binding.cluster, theirs(&binding.by)),
        Entry::Rename(rename) => format!("{} is {} now by {}: {}", rename.from, rename.to, theirs(&rename.by), theirs(&rename.reason)),
        Entry::Resync { by, reason, size, .. } => format!("by {} after {size} entries: {}", theirs(by), theirs(reason)),
    }
}

fn recorded(record: &Record) -> String {
    let id = record.id().as_str();
    match record {
        Record::Intent { operation, .. } => {
            let guest = &operation.guest;
            format!("{id} {} {} {} {}", guest.vmid, guest.kind, theirs(&guest.name), operation.step.change.word())
        }
        Record::Sending { .. } => id.to_owned(),
        Record::Tasked { task, .. } => format!("{id} {}", theirs(task.as_str())),
        Record::Ended { outcome, .. } => {
            let code = outcome.code().map(|code| format!(" ({})", code.as_str())).unwrap_or_default();
            format!("{id} {}{code}", outcome.end().word())
        }
        Record::Resolved { resolution, by, reason, .. } => format!("{id} {} by {}: {}", resolution.word(), theirs(by), theirs(reason)),
    }
}
