//! The admission of a decision that was recorded, weighed once more: on the evidence that its entry names, with the approvals that stand before
//! it in the ledger, and with the answer that it gave.
//!
//! What never enters: admitting anything. What comes of it is only told.

use converger_core::apply::Word;
use converger_core::approve::Confirmation;
use converger_core::artifact::Digest;
use converger_core::evidence::{Answer, Bundle, admissible};
use converger_core::failure::Code;
use serde_json::{Value as Json, json};

use super::super::Stop;
use super::record::{Keeper, Record};
use super::{Decision, Made};
use crate::render::theirs;

/// An admission as its entry has it.
#[derive(Clone)]
pub(super) struct Admitted {
    pub(super) index: u64,
    pub(super) plan: Digest,
    pub(super) bundle: Digest,
    pub(super) answer: Word,
    /// What was said to it before, in the order of the entries.
    pub(super) approvals: Vec<Approval>,
}

/// Somebody agreed, as an entry has it.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Approval {
    pub(super) plan: Digest,
    pub(super) by: Box<str>,
    pub(super) how: Box<str>,
    pub(super) names: Box<[Box<str>]>,
}

impl Approval {
    /// What the ledger has where this was said.
    fn of(confirmation: &Confirmation, decision: &Decision) -> Option<Self> {
        match confirmation {
            Confirmation::None => None,
            Confirmation::Typed { by, names } => {
                Some(Self { plan: decision.plan, by: by.clone(), how: "typed".into(), names: names.as_slice().into() })
            }
            Confirmation::FullDigest { by, digest } => {
                Some(Self { plan: *digest, by: by.clone(), how: "digest".into(), names: Box::default() })
            }
        }
    }
}

impl Admitted {
    /// Whether it is the admission of this decision, and the evidence gives the answer that was recorded.
    pub(super) fn weigh(&self, record: &Record<'_>, made: &Made) -> Result<(), Stop> {
        let Self { index, plan, bundle, answer, approvals } = self;
        let wrong =
            |code, what: String| Stop::broken(code, format!("entry {index}, the admission of the run {}: {what}", made.run.id.as_str()));
        let unlike = |what: &str| Err(wrong(Code::IntegrityViolation, what.to_owned()));
        if *plan != made.decision.plan {
            return unlike("it is of another plan than the run made");
        }
        let missing = || wrong(Code::EvidenceMissing, format!("the bundle {bundle} that it weighed is not kept"));
        let bytes = record.blob(*bundle)?.ok_or_else(missing)?;
        let Some(weighed) = Bundle::read(&bytes) else {
            return unlike("the bundle that it weighed is none that this program writes");
        };
        if weighed.decision != made.decision {
            return unlike("the bundle that it weighed is of another decision");
        }
        if weighed.by != made.run.by {
            return unlike("the bundle that it weighed was asked for by somebody else than the run");
        }
        let said: Vec<Approval> = Approval::of(&weighed.admission.confirmation, &made.decision).into_iter().collect();
        if said != *approvals {
            return unlike("the approvals that it weighed are not those that stand before it in the ledger");
        }
        let keeper = Keeper::of(record);
        let found = admissible(&bytes, |digest| keeper.blob(digest));
        keeper.read()?;
        match found {
            found if found.word() == answer.as_str() => Ok(()),
            Answer::Broken(found) => Err(wrong(found.code, found.what)),
            found => {
                let what = format!("the evidence gives `{}`, and `{}` is recorded", found.word(), answer.as_str());
                Err(wrong(Code::DeterminismBreach, what))
            }
        }
    }

    /// In a few words.
    pub(super) fn shown(&self) -> String {
        let by = |approval: &Approval| format!(", agreed to by {} ({})", theirs(&approval.by), approval.how);
        format!("{} in entry {}, and again now{}", self.answer.as_str(), self.index, self.approvals.iter().map(by).collect::<String>())
    }

    pub(super) fn as_json(&self) -> Json {
        let approval = |approval: &Approval| json!({ "by": approval.by, "how": approval.how, "names": approval.names });
        let approvals: Vec<Json> = self.approvals.iter().map(approval).collect();
        json!({ "answer": self.answer.as_str(), "approvals": approvals, "bundle": self.bundle, "entry": self.index })
    }
}
