//! What a run decided, as the ledger keeps it: with all that it rests on, and before anybody is told of it.
//!
//! A run begins here once there is something to decide on, and ends here where nothing is carried out; what is carried out the engine records.
//!
//! What never enters: deciding, and secrets. The configuration is kept as it was understood, without remarks.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use converger_core::apply::{End as Fate, OperationId, Run, RunId, Word};
use converger_core::approve::{Admission, Confirmation};
use converger_core::artifact::Digest;
use converger_core::evidence::{Answer, Bundle, Decision, Entry, Kept, admissible, keep};
use converger_core::failure::Code;
use converger_core::guest::{EnvironmentName, Vmid};
use converger_core::plan::Verdict;
use converger_core::refusal::{self, Reach, Refusal};
use converger_core::safety::Judged;
use converger_engine::clock::{Clock as _, SystemClock};
use converger_store::{Batch, Write};

use super::super::Stop;
use super::super::memory::Memory;
use crate::{config, state};

/// A run that the ledger has.
pub(super) struct Recorded<'m> {
    memory: &'m Memory,
    run: RunId,
    decision: Decision,
    /// What was refused with its plan, for the whole of it.
    refused: BTreeSet<refusal::Code>,
    /// All that was refused so far: of a guest, or the whole of it.
    refusals: RefCell<Vec<(Option<Vmid>, Refusal)>>,
    /// What it rests on, as it is kept.
    blobs: BTreeMap<Digest, Vec<u8>>,
}

/// Records that a run began, what it rests on, its plan, and everything that is refused in it.
pub(super) fn begin<'m>(memory: &'m Memory, judged: &Judged, config: Vec<u8>, run: RunId) -> Result<Recorded<'m>, Stop> {
    let unwritten = |error: std::io::Error| Stop::failed(format!("what the run rests on cannot be written: {error}"));
    let Kept { inputs, plan, judgement, blobs } = keep(judged, env!("CARGO_PKG_VERSION"), config).map_err(unwritten)?;
    let (environment, at_ms) = (judged.plan().desired().environment().clone(), state::now_ms());
    let boot = SystemClock.uptime().map(|uptime| uptime.boot);
    let started = Run { id: run.clone(), environment, plan, by: state::actor().into(), at_ms, boot };
    let mut writes: Vec<Write> = blobs.iter().cloned().map(Write::blob).collect();
    writes.push(Write::RunStarted { run: started, inputs: Box::new(inputs.clone()) });
    writes.push(Write::decision(Entry::PlanMade { run: run.clone(), plan, judgement, at_ms }));
    let blobs = blobs.into_iter().map(|bytes| (Digest::of_bytes(&bytes), bytes)).collect();
    let refused = refusals(judged).filter(|(guest, _)| guest.is_none()).map(|(_, refusal)| refusal.code()).collect();
    let decision = Decision { inputs, plan, judgement };
    let recorded = Recorded { memory, run, decision, refused, refusals: RefCell::default(), blobs };
    writes.extend(refusals(judged).map(|(guest, refusal)| recorded.refusal(guest, refusal, at_ms)));
    recorded.write(writes)?;
    Ok(recorded)
}

/// Records that operations of an earlier run are looked at before anything else is.
pub(super) fn recovery(memory: &Memory, environment: &EnvironmentName, operations: Vec<OperationId>) -> Result<(), Stop> {
    let entry = |some: &[OperationId]| {
        Write::decision(Entry::Recovery { environment: environment.clone(), operations: some.into(), at_ms: state::now_ms() })
    };
    memory.commit(Batch::new(operations.chunks(OPERATIONS_MAX).map(entry).collect())).map(drop)
}

/// So many ids are below the bound of an entry, whatever they are.
const OPERATIONS_MAX: usize = 256;

/// All that a judged plan refuses: for the whole run, for a guest, and by its judgement.
fn refusals(judged: &Judged) -> impl Iterator<Item = (Option<Vmid>, &Refusal)> {
    let plan = judged.plan();
    let whole = plan.refusals().iter().chain(judged.judgement().refusals()).map(|refusal| (None, refusal));
    let guests = plan.guests().filter_map(|(guest, verdict)| match verdict {
        Verdict::Refused(refusals) => Some(refusals.iter().map(|refusal| (Some(guest.vmid), refusal))),
        _ => None,
    });
    whole.chain(guests.flatten())
}

impl Recorded<'_> {
    /// The run.
    pub(super) fn run(&self) -> &RunId {
        &self.run
    }

    /// Its plan.
    pub(super) fn plan(&self) -> Digest {
        self.decision.plan
    }

    /// All that was refused in it.
    pub(super) fn refusals(&self) -> Vec<(Option<Vmid>, Refusal)> {
        self.refusals.borrow().clone()
    }

    /// Records what else is against it.
    pub(super) fn refused(&self, refusals: &[Refusal]) -> Result<(), Stop> {
        let at_ms = state::now_ms();
        self.write(refusals.iter().map(|refusal| self.refusal(None, refusal, at_ms)).collect())
    }

    /// Weighs whether it may be carried out on its evidence alone, and records that with who agreed to it and what is against it.
    ///
    /// What was decided before is not believed here: where the evidence gives another answer, nothing is carried out. What was refused with the
    /// plan, and whatever is refused of its guests, is recorded already.
    pub(super) fn admitted(&self, admission: &Admission, causes: &[Refusal]) -> Result<(), Stop> {
        let failed = |error: std::io::Error| Stop::failed(format!("the evidence cannot be written: {error}"));
        let bundle = Bundle::new(&state::actor(), self.decision.clone(), admission.clone(), causes).write().map_err(failed)?;
        let answer = admissible(&bundle, |digest| self.blobs.get(&digest).cloned(), config::understood);
        let (run, plan, at_ms) = (self.run.clone(), self.decision.plan, admission.now_ms);
        let mut writes: Vec<Write> = self.approval(&admission.confirmation, at_ms).into_iter().collect();
        let is_new = |refusal: &&Refusal| refusal.code().entry().reach == Reach::Run && !self.refused.contains(&refusal.code());
        writes.extend(causes.iter().filter(is_new).map(|refusal| self.refusal(None, refusal, at_ms)));
        let (digest, word) = (Digest::of_bytes(&bundle), word(answer.word()));
        writes.extend([Write::blob(bundle), Write::decision(Entry::Admitted { run, plan, bundle: digest, answer: word, at_ms })]);
        self.write(writes)?;
        match answer {
            Answer::Admissible if causes.is_empty() => Ok(()),
            Answer::Inadmissible(_) if !causes.is_empty() => Ok(()),
            Answer::Broken(broken) => Err(Stop::broken(broken.code, broken.what)),
            Answer::Admissible | Answer::Inadmissible(_) | Answer::Untold(_) => {
                let text = "the evidence of this plan gives another answer than its admission gave";
                Err(Stop::broken(Code::DeterminismBreach, text))
            }
        }
    }

    /// Who agreed to it, if somebody did.
    fn approval(&self, confirmation: &Confirmation, at_ms: u64) -> Option<Write> {
        let (by, how, plan, names) = match confirmation {
            Confirmation::None | Confirmation::Declined { .. } => return None,
            Confirmation::Typed { by, names } => (by, "typed", self.decision.plan, names.as_slice()),
            // Whether that is this plan is for the admission to say.
            Confirmation::FullDigest { by, digest } => (by, "digest", *digest, [].as_slice()),
        };
        let (run, by, how, names) = (self.run.clone(), by.clone(), word(how), names.into());
        Some(Write::decision(Entry::Approved { run, plan, by, how, names, at_ms }))
    }

    /// Records that nothing of it is carried out. A run whose end cannot be written down has ended all the same.
    pub(super) fn ended(&self, end: Fate) {
        let ended = Write::RunEnded { id: self.run.clone(), end, at_ms: state::now_ms() };
        let _ = self.memory.commit(Batch::from(ended));
    }

    fn refusal(&self, guest: Option<Vmid>, refusal: &Refusal, at_ms: u64) -> Write {
        self.refusals.borrow_mut().push((guest, refusal.clone()));
        Write::decision(Entry::refused(self.run.clone(), guest, refusal, at_ms))
    }

    /// As few transactions as there can be; what comes first is there first.
    fn write(&self, mut writes: Vec<Write>) -> Result<(), Stop> {
        while !writes.is_empty() {
            let rest = writes.split_off(writes.len().min(Batch::WRITES_MAX));
            let _ = self.memory.commit(Batch::new(writes))?;
            writes = rest;
        }
        Ok(())
    }
}

/// A word of ours.
fn word(text: &str) -> Word {
    // INVARIANT: the words of our own tables are words; `every_code_is_a_word` and the table of stages hold it.
    Word::new(text).unwrap_or_else(|| unreachable!("`{text}` is no word"))
}
