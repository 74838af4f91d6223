//! What a change rests on at the moment at which it is sent: readings that are seconds old at most (S4), and the last word of the journal,
//! which is that nobody holds the guest and nothing is frozen (S12; `docs/decisions/0017-the-last-word-before-sending.md`).
//!
//! Ages are those of the world's clock, which never jumps, and what people said is what the store had when it was asked. What never enters:
//! what the process makes of either.

use converger_core::apply::OperationId;

use super::send::RuleBreach;
use super::{Oracle, OracleCase};

/// So old the guest's own readings may be when its change is sent. The cluster and the guests that it relies on are read before them, in the
/// same check, and have no bound of their own (0017).
const AGE_MS_MAX: u64 = 10_000;

/// What people had said about a guest when the last word was asked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct HoldCheck {
    at_ms: u64,
    against: Option<HoldOrFreeze>,
}

/// What people say against a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HoldOrFreeze {
    /// The guest is held.
    Hold,
    /// The environment is frozen.
    Freeze,
}

impl Oracle {
    /// The last word was asked for, and this is what the store has against the change.
    pub(crate) fn on_hold_check(&mut self, id: &OperationId, against: Option<HoldOrFreeze>, at_ms: u64) {
        if let Some(case) = self.cases.get_mut(id) {
            case.hold_check = Some(HoldCheck { at_ms, against });
        }
    }

    /// A change is about to reach Proxmox. `awake_ms` is now, less what the machine slept between the last word and this: no program can keep
    /// it awake there, and what it sends is no older by anything that it can ask (0016). Whatever else takes its time counts.
    pub(crate) fn check_freshness(&mut self, id: &OperationId, awake_ms: u64) {
        let Some(case) = self.cases.get(id) else { return };
        if let Some((rule, text)) = case.check_reading_age(awake_ms).or_else(|| case.check_hold_check(awake_ms)) {
            self.report_violation(rule, format!("{id} is sent: {text}"));
        }
    }
}

impl OracleCase {
    /// S4: the guest's own readings are young.
    fn check_reading_age(&self, awake_ms: u64) -> RuleBreach {
        let begun_ms = [&self.status, &self.config].into_iter().flatten().map(|snapshot| snapshot.at_ms).min()?;
        let age_ms = awake_ms.saturating_sub(begun_ms);
        (age_ms > AGE_MS_MAX).then(|| ("S4", format!("what was read of the guest is {age_ms} ms old")))
    }

    /// S12: somebody asked after the last reading whether anything was said, and nothing was.
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
