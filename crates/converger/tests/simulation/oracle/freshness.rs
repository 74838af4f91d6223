//! What a change relies on when it is sent: reads that are at most seconds old (S4), and the hold check, which requires that the guest is
//! not held and nothing is frozen (S12; `docs/decisions/0017-the-last-word-before-sending.md`).
//!
//! Ages are measured on the world's clock, which never jumps, and holds are those of the store at the time of the check. Must not depend on
//! how the process interprets either.

use converger_core::apply::OperationId;

use super::send::RuleBreach;
use super::{Oracle, OracleCase};

/// Maximum age of the guest's own reads when its change is sent. The cluster and the dependencies are read before them, in the same check,
/// and have no limit of their own (0017).
const AGE_MS_MAX: u64 = 10_000;

/// The holds and freezes at the time of the hold check.
#[derive(Clone, Copy, Debug)]
pub(super) struct HoldCheck {
    at_ms: u64,
    against: Option<HoldOrFreeze>,
}

/// What prevents a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HoldOrFreeze {
    /// The guest is held.
    Hold,
    /// The environment is frozen.
    Freeze,
}

impl Oracle {
    /// The hold check was made, with this result according to the store.
    pub(crate) fn on_hold_check(&mut self, id: &OperationId, against: Option<HoldOrFreeze>, at_ms: u64) {
        if let Some(case) = self.cases.get_mut(id) {
            case.hold_check = Some(HoldCheck { at_ms, against });
        }
    }

    /// A change is about to reach Proxmox. `awake_ms` is the current time without the time that the machine slept after the hold check: no
    /// program can prevent that sleep or detect it before it sends (0016). All other delays count.
    pub(crate) fn check_freshness(&mut self, id: &OperationId, awake_ms: u64) {
        let Some(case) = self.cases.get(id) else { return };
        if let Some((rule, text)) = case.check_reading_age(awake_ms).or_else(|| case.check_hold_check(awake_ms)) {
            self.report_violation(rule, format!("{id} is sent: {text}"));
        }
    }
}

impl OracleCase {
    /// S4: the guest's own reads are recent.
    fn check_reading_age(&self, awake_ms: u64) -> RuleBreach {
        let begun_ms = [&self.status, &self.config].into_iter().flatten().map(|snapshot| snapshot.at_ms).min()?;
        let age_ms = awake_ms.saturating_sub(begun_ms);
        (age_ms > AGE_MS_MAX).then(|| ("S4", format!("what was read of the guest is {age_ms} ms old")))
    }

    /// S12: the hold check came after the last read and found nothing.
    fn check_hold_check(&self, awake_ms: u64) -> RuleBreach {
        let Some(HoldCheck { at_ms, against }) = self.hold_check else {
            return Some(("S12", "nobody asked what people had said since it was read".into()));
        };
        if awake_ms.saturating_sub(at_ms) > AGE_MS_MAX {
            return Some(("S12", "what people had said was asked for long ago".into()));
        }
        against.map(|against| ("S12", format!("a person said no, and that was in the journal: {against:?}")))
    }
}
