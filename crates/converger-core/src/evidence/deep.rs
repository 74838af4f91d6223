//! A record, read from its first entry to its last: each entry is one that this program writes, none stands where it could not, what they name
//! is kept as it was, and what was admitted was admitted on what is kept.
//!
//! What never enters: where entries and bytes are kept, and the hashes over them.

use std::collections::{BTreeMap, BTreeSet};

use super::{Answer, Bundle, Decision, Entry, Inputs, Replay, parse_entry};
use crate::apply::{Record, RunId, Word};
use crate::approve::Confirmation;
use crate::artifact::Digest;
use crate::failure::Code;

/// What is wrong with a record, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wrong {
    /// Its code.
    pub code: Code,
    /// The entry that it was found at.
    pub index: u64,
    /// What it is.
    pub what: String,
}

/// A walk through the entries of a record.
#[derive(Clone, Debug, Default)]
pub struct Deep {
    replay: Replay,
    entries: u64,
    /// What entries name by digest, with the first that does.
    named: BTreeMap<Digest, u64>,
    /// What a person let go.
    pruned: BTreeSet<Digest>,
    /// What runs that are under way have said of themselves.
    runs: BTreeMap<RunId, Said>,
    /// What was weighed, in order.
    weighed: Vec<Weighed>,
}

/// What the entries of a run say that its admission rests on.
#[derive(Clone, Debug)]
struct Said {
    by: Box<str>,
    inputs: Inputs,
    judgement: Option<Digest>,
    approvals: Vec<Approval>,
    refusals: BTreeSet<Word>,
    /// Whether its plan may be carried out.
    is_admitted: bool,
}

/// That somebody agreed, in what its entry and the bundle have in common.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Approval {
    plan: Digest,
    by: Box<str>,
    how: Box<str>,
    names: Box<[Box<str>]>,
}

/// An admission, and what its bundle must say.
#[derive(Clone, Debug)]
struct Weighed {
    index: u64,
    bundle: Digest,
    answer: Word,
    by: Box<str>,
    decision: Decision,
    approvals: Vec<Approval>,
    refusals: BTreeSet<Word>,
}

impl Entry {
    /// What it names by digest, all of which is kept beside it.
    #[must_use]
    pub fn names(&self) -> Vec<Digest> {
        match self {
            Self::RunStarted { inputs, .. } => vec![inputs.config, inputs.desired, inputs.observation, inputs.rules, inputs.catalogue],
            Self::PlanMade { plan, judgement, .. } => vec![*plan, *judgement],
            Self::Admitted { bundle, .. } => vec![*bundle],
            _ => Vec::new(),
        }
    }
}

impl Deep {
    /// The next entry.
    ///
    /// # Errors
    /// It is none, or it cannot stand here.
    pub fn take(&mut self, bytes: &[u8]) -> Result<(), Wrong> {
        let index = self.entries;
        let entry = parse_entry(bytes).map_err(|error| violated(index, format!("is none that this program writes: {error}")))?;
        for digest in entry.names() {
            self.named.entry(digest).or_insert(index);
        }
        self.hear(index, &entry)?;
        self.entries = index + 1;
        self.replay.take(entry).map_err(|misplaced| violated(index, format!("cannot stand where it does: {misplaced}")))
    }

    /// What an entry adds to what its run has said.
    fn hear(&mut self, index: u64, entry: &Entry) -> Result<(), Wrong> {
        match entry {
            Entry::Pruned { digests, .. } => self.pruned.extend(digests),
            Entry::RunStarted { run, inputs } => {
                // What is named again is kept again.
                self.pruned.remove(&inputs.observation);
                let (by, inputs) = (run.by.clone(), inputs.clone());
                let said = Said { by, inputs, judgement: None, approvals: Vec::new(), refusals: BTreeSet::new(), is_admitted: false };
                self.runs.insert(run.id.clone(), said);
            }
            Entry::PlanMade { run, judgement, .. } => self.of(run, |said| said.judgement = Some(*judgement)),
            Entry::Refused { run, code, guest: None, .. } => self.of(run, |said| said.refusals.extend([code.clone()])),
            Entry::Approved { run, plan, by, how, names, .. } => {
                let approval = Approval { plan: *plan, by: by.clone(), how: how.as_str().into(), names: names.clone() };
                self.of(run, |said| said.approvals.push(approval));
            }
            Entry::Admitted { run, plan, bundle, answer, .. } => {
                let Some(said) = self.runs.get_mut(run) else { return Ok(()) };
                let Some(judgement) = said.judgement else {
                    return Err(violated(index, format!("admits the plan of the run {}, which made none", run.as_str())));
                };
                said.is_admitted = answer.as_str() == Answer::Admissible.word();
                let Said { by, inputs, approvals, refusals, .. } = said.clone();
                let decision = Decision { inputs, plan: *plan, judgement };
                self.weighed.push(Weighed { index, bundle: *bundle, answer: answer.clone(), by, decision, approvals, refusals });
            }
            Entry::Record(Record::Intent { operation, .. }) if !self.runs.get(&operation.run).is_some_and(|said| said.is_admitted) => {
                let what =
                    format!("entry {index}: the operation {} was begun, and its plan was not admitted before", operation.id.as_str());
                return Err(Wrong { code: Code::UnloggedExecution, index, what });
            }
            Entry::RunEnded { run, .. } => drop(self.runs.remove(run)),
            _ => {}
        }
        Ok(())
    }

    fn of(&mut self, run: &RunId, hear: impl FnOnce(&mut Said)) {
        self.runs.get_mut(run).map(hear);
    }

    /// How many entries there were.
    #[must_use]
    pub fn entries(&self) -> u64 {
        self.entries
    }

    /// What they amount to.
    #[must_use]
    pub fn replay(&self) -> &Replay {
        &self.replay
    }

    /// What they name, with the first entry that does.
    pub fn named(&self) -> impl Iterator<Item = (Digest, u64)> {
        self.named.iter().map(|(digest, index)| (*digest, *index))
    }

    /// Whether a person let this go.
    #[must_use]
    pub fn is_pruned(&self, digest: Digest) -> bool {
        self.pruned.contains(&digest)
    }

    /// How many things that are named a person let go; all else is kept as it was, and says what its entries say. `kept` gives the bytes under a
    /// digest, where they are kept.
    ///
    /// # Errors
    /// The first that is not there, or is another. What `kept` cannot tell ends it too.
    pub fn kept<E: From<Wrong>>(&self, kept: impl Fn(Digest) -> Result<Option<Vec<u8>>, E>) -> Result<u64, E> {
        let mut gone = 0;
        let mut named: Vec<(u64, Digest)> = self.named().map(|(digest, index)| (index, digest)).collect();
        named.sort_unstable();
        for (index, digest) in named {
            match kept(digest)? {
                None if self.is_pruned(digest) => gone += 1,
                None => {
                    let what = format!("what entry {index} names {digest} is not there, and no entry says that it was let go");
                    return Err(Wrong { code: Code::EvidenceMissing, index, what }.into());
                }
                Some(bytes) if Digest::of_bytes(&bytes) == digest => {}
                Some(bytes) => {
                    let what = format!("what entry {index} names {digest} is kept with the digest {}", Digest::of_bytes(&bytes));
                    return Err(Wrong { code: Code::IntegrityViolation, index, what }.into());
                }
            }
        }
        for weighed in &self.weighed {
            // That it is there was seen above.
            if let Some(bytes) = kept(weighed.bundle)? {
                weighed.is_of(&bytes).map_err(|what| violated(weighed.index, what))?;
            }
        }
        Ok(gone)
    }
}

impl Weighed {
    /// Whether a bundle says what the entries of its run say, and gives the answer that was recorded. Whether it gives it rightly
    /// [`admissible`](super::admissible) finds out, which decides everything again.
    fn is_of(&self, bytes: &[u8]) -> Result<(), String> {
        let Some(Bundle { by, decision, admission, gates }) = Bundle::read(bytes) else {
            return Err("was weighed on a bundle that is none that this program writes".into());
        };
        if by != self.by {
            return Err("was weighed for somebody else than its run is of".into());
        }
        if decision != self.decision {
            return Err("was weighed on the evidence of another decision than its run made".into());
        }
        let approval = match admission.confirmation {
            Confirmation::None => None,
            Confirmation::Typed { by, names } => Some(Approval { plan: decision.plan, by, how: "typed".into(), names: names.into() }),
            Confirmation::FullDigest { by, digest } => Some(Approval { plan: digest, by, how: "digest".into(), names: Box::default() }),
        };
        if self.approvals != Vec::from_iter(approval) {
            return Err("was weighed on other approvals than the entries of its run have".into());
        }
        let mut refused = gates.iter().filter(|gate| !gate.is_passed());
        let word = if refused.clone().next().is_none() { Answer::Admissible.word() } else { Answer::Inadmissible(Vec::new()).word() };
        // What was broken, or could not be told, has a bundle whose gates decide nothing.
        let is_decided = [Answer::Admissible.word(), Answer::Inadmissible(Vec::new()).word()].contains(&self.answer.as_str());
        if is_decided && self.answer.as_str() != word {
            return Err(format!("has the answer `{}`, and its bundle gives `{word}`", self.answer.as_str()));
        }
        match refused.find(|gate| gate.is_of_run() && !self.refusals.iter().any(|code| code.as_str() == gate.id)) {
            Some(gate) => Err(format!("was refused by `{}`, and no entry of its run says so", gate.id)),
            None => Ok(()),
        }
    }
}

fn violated(index: u64, what: impl AsRef<str>) -> Wrong {
    Wrong { code: Code::IntegrityViolation, index, what: format!("entry {index} {}", what.as_ref()) }
}
