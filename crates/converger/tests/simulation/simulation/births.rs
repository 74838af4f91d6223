//! Guests that requests make: the births that planning takes from the journal, and the person who continues a request after everything has
//! healed, each time under a new key.

use std::sync::Arc;

use converger_core::apply::births;
use converger_core::guest::Vmid;
use converger_core::observe::{Reading, Scoped};
use converger_core::plan::Verdict;
use converger_core::policy::{Birth, Rules};
use converger_store::StoreReader as _;
use futures_util::FutureExt as _;

use super::super::planted_bugs::PlantedBug;
use super::super::requests::{NEW_ID, SimulatedRequest, continued_request};
use super::Simulation;
use super::intention::IntendedRun;

/// What is left of a request after the last process has planned it.
pub(super) type RequestVerdict = (SimulatedRequest, Verdict);

impl Simulation {
    /// The rules with the guests that this program made, as the run library takes them from the journal.
    pub(super) fn rules_with_births(&self, seen: &Scoped) -> Arc<Rules> {
        let makes_guest = self.setup.requests.iter().any(|request| request.wanted.verb == "clone");
        let vmid = Vmid::new(u64::from(NEW_ID)).filter(|_| makes_guest);
        let Some(vmid) = vmid else { return Arc::clone(&self.setup.rules) };
        let environment = self.setup.desired.environment().clone();
        let histories = self.store.guest_operations(environment, vec![vmid]).now_or_never().and_then(Result::ok).unwrap_or_default();
        let found = births(&histories).into_iter().map(|birth| self.buggy_birth(birth, seen)).collect();
        Arc::new(Rules::clone(&self.setup.rules).with_births(found))
    }

    /// With the bug, whatever guest has the id is the one that was made.
    fn buggy_birth(&self, birth: Birth, seen: &Scoped) -> Birth {
        let row = seen.find(birth.vmid).filter(|_| self.bug == Some(PlantedBug::ContinueWithoutMarks));
        match row.map(|row| &row.identity) {
            Some(Reading::Read(identity)) => Birth { identity: Some((**identity).clone()), ..birth },
            _ => birth,
        }
    }

    /// A person continues each request that configures a new guest, one after the other: two of them may want the same id.
    pub(super) fn plan_continued_requests(&mut self) -> Vec<IntendedRun> {
        let requests: Vec<SimulatedRequest> =
            self.setup.requests.iter().filter(|request| request.wanted.provisions()).map(|own| continued_request(own, self.runs)).collect();
        let mut runs = Vec::new();
        self.continued.clear();
        for request in requests {
            self.oracle.add_continued_request(&request);
            let Some(seen) = self.observe(&request.intent) else { continue };
            let plan = self.make_plan(&request.intent, seen);
            self.note_request_verdict(&plan);
            self.continued.extend(plan.guests().map(|(_, verdict)| (request.clone(), verdict.clone())));
            runs.extend(self.admit_plan(plan, Some(&request.key)));
            if !runs.is_empty() {
                break;
            }
        }
        runs
    }

    /// L1 and L2 for the requests that were continued: each has made its guest completely, or is refused for a reason.
    pub(super) fn check_continued_requests(&mut self) {
        for (request, verdict) in std::mem::take(&mut self.continued) {
            let world = &self.stage.as_ref().unwrap_or_else(|| panic!("the stage is there")).world;
            let (source, now) = (world.guest_truth(request.wanted.vmid), world.guest_truth(NEW_ID));
            match verdict {
                Verdict::Converged { .. } => self.oracle.check_complete(&request, now.as_ref()),
                Verdict::Refused(refusals) => {
                    for refusal in refusals {
                        self.oracle.check_clone_refusal(&request, refusal.code().word(), source.as_ref(), now.as_ref());
                    }
                }
                Verdict::Steps(steps) => {
                    let changes: Vec<&str> = steps.iter().map(|step| step.change.word()).collect();
                    self.oracle
                        .report("L1", format!("{} still has steps although everything has healed: {changes:?}", request.key.as_str()));
                }
            }
        }
    }
}
