//! Renders each entry as one line.

use converger_core::apply::JournalRecord;
use converger_core::evidence::LedgerEntry;
use converger_core::timestamp;

use crate::render::{self, apply_style, quote_untrusted};

pub(in super::super) fn render_entry(index: u64, entry: &LedgerEntry) -> String {
    let time = timestamp::format_timestamp(entry.at_ms() / 1000);
    format!(
        "{index:>6}  {}  {} {}\n",
        apply_style(render::DIM, time),
        apply_style(render::BOLD, format!("{:<11}", entry.kind())),
        describe_entry(entry)
    )
}

fn describe_entry(entry: &LedgerEntry) -> String {
    match entry {
        LedgerEntry::Key { verifier, .. } => quote_untrusted(verifier).to_string(),
        LedgerEntry::RunStarted { run, inputs } => {
            format!(
                "{} in {} by {}, program {}",
                run.id.as_str(),
                run.environment,
                quote_untrusted(&run.by),
                quote_untrusted(&inputs.program)
            )
        }
        LedgerEntry::PlanMade { run, plan, .. } => format!("{} in {}", render::short_digest(*plan), run.as_str()),
        LedgerEntry::Refused { guest, code, .. } => match guest {
            Some(guest) => format!("{} for guest {guest}", code.as_str()),
            None => format!("{} for the whole run", code.as_str()),
        },
        LedgerEntry::Approved { by, how, .. } => format!("by {} ({})", quote_untrusted(by), how.as_str()),
        LedgerEntry::Admitted { answer, .. } => answer.as_str().to_owned(),
        LedgerEntry::Recovery { environment, operations, .. } => format!("{} operations of {environment}", operations.len()),
        LedgerEntry::Record(record) => describe_record(record),
        LedgerEntry::RunEnded { run, end, .. } => format!("{} {}", run.as_str(), end.word()),
        LedgerEntry::Hold(hold) => {
            format!("guest {} of {} by {}: {}", hold.vmid, hold.environment, quote_untrusted(&hold.by), quote_untrusted(&hold.reason))
        }
        LedgerEntry::Release { environment, guest, by, .. } => format!("guest {guest} of {environment} by {}", quote_untrusted(by)),
        LedgerEntry::Freeze(freeze) => {
            format!("{} by {}: {}", freeze.environment, quote_untrusted(&freeze.by), quote_untrusted(&freeze.reason))
        }
        LedgerEntry::Thaw { environment, by, .. } => format!("{environment} by {}", quote_untrusted(by)),
        LedgerEntry::Pruned { by, before_ms, digests, .. } => {
            let readings = render::count_with_noun(digests.len() as u64, "observation");
            format!("{readings} older than {} by {}", timestamp::format_timestamp(before_ms / 1000), quote_untrusted(by))
        }
        LedgerEntry::Rekeyed { verifier, by, reason, .. } => {
            format!("{} by {}: {}", quote_untrusted(verifier), quote_untrusted(by), quote_untrusted(reason))
        }
        LedgerEntry::Binding(binding) => {
            format!("{} is the cluster {} by {}", binding.environment, binding.cluster, quote_untrusted(&binding.by))
        }
        LedgerEntry::Rename(rename) => {
            format!("{} to {} by {}: {}", rename.from, rename.to, quote_untrusted(&rename.by), quote_untrusted(&rename.reason))
        }
        LedgerEntry::Resync { by, reason, size, epoch, .. } | LedgerEntry::Restored { by, reason, size, epoch, .. } => {
            format!("by {} after {size} entries, epoch {epoch}: {}", quote_untrusted(by), quote_untrusted(reason))
        }
    }
}

fn describe_record(record: &JournalRecord) -> String {
    let id = record.id().as_str();
    match record {
        JournalRecord::Intent { operation, .. } => {
            let guest = &operation.guest;
            format!("{id} {} {} {} {}", guest.vmid, guest.kind, quote_untrusted(&guest.name), operation.step.change.word())
        }
        JournalRecord::Sending { .. } => id.to_owned(),
        JournalRecord::TaskStarted { task, .. } => format!("{id} {}", quote_untrusted(task.as_str())),
        JournalRecord::Ended { outcome, .. } => {
            let code = outcome.code().map(|code| format!(" ({})", code.as_str())).unwrap_or_default();
            format!("{id} {}{code}", outcome.end().word())
        }
        JournalRecord::Resolved { resolution, by, reason, .. } => {
            format!("{id} {} by {}: {}", resolution.word(), quote_untrusted(by), quote_untrusted(reason))
        }
    }
}
