//! Guests that requests make: what is sent to a new guest goes to the one whose making was recorded and to no other guest that has its id,
//! and in the end the request is complete or its refusal has a reason in the world.
//!
//! Judged by the truth at the time of the reading that verified the clone. Must not use the births that the planner derives from the
//! journal.

use converger_core::apply::{OperationId, OperationSource, Outcome};
use converger_lab::{GuestTruth, LabGuestKind};

use super::super::requests::{NEW_ID, SimulatedRequest, disk_key};
use super::requested::find_disk;
use super::send::{ParsedMutation, RuleBreach};
use super::{Oracle, OracleCase, truth};

/// The size that the disk of a new guest gets, in KiB.
const REQUESTED_KIB: u64 = 10 << 20;

impl Oracle {
    /// Adds requests that continue earlier ones. What all of them do together may have the effect of one.
    pub(crate) fn add_continued_request(&mut self, request: &SimulatedRequest) {
        self.continued.insert(request.key.as_str().to_owned(), request.wanted.clone());
    }

    /// S6: a later step of a request goes to the guest that its clone made.
    pub(super) fn check_birth(&self, id: &OperationId, sent: &ParsedMutation) -> RuleBreach {
        let case = &self.cases[id];
        if case.makes_guest() || sent.vmid != NEW_ID || self.request_of(case).is_none() {
            return None;
        }
        let config = case.config.as_ref()?.guest.as_ref()?;
        match self.recorded_birth().and_then(|birth| birth.made.as_ref()) {
            None => Some(("S6", "no clone is recorded that made the guest".into())),
            Some(made) if *made != truth::birth_marks(config) => {
                Some(("S6", format!("it goes to the guest {:?}, and the clone made {made:?}", truth::birth_marks(config))))
            }
            Some(_) => None,
        }
    }

    /// The last clone that is recorded as done.
    fn recorded_birth(&self) -> Option<&OracleCase> {
        let is_done = |case: &&OracleCase| case.makes_guest() && matches!(case.ended, Some(Outcome::Done(_)));
        self.cases.values().filter(is_done).max_by_key(|case| case.sent_ms)
    }

    /// Whether the guest that has the new id now is the one that a clone of this request made, according to the journal.
    fn is_own_birth(&self, request: &SimulatedRequest, now: &GuestTruth) -> bool {
        let digest = request.intent.digest().ok();
        let is_of_request = |case: &OracleCase| match &case.operation.source {
            OperationSource::OneShot { request, .. } => Some(*request) == digest,
            OperationSource::Convergent => false,
        };
        let birth = self.recorded_birth().filter(|case| is_of_request(case));
        birth.and_then(|case| case.made.clone()) == Some(truth::birth_marks(now))
    }

    /// L1: a request that has nothing left to do has made its guest completely.
    pub(crate) fn check_complete(&mut self, request: &SimulatedRequest, now: Option<&GuestTruth>) {
        let wanted = &request.wanted;
        let is_complete = now.is_some_and(|now| {
            let starts = wanted.later.iter().any(|step| step.verb == "start");
            let disk = disk_key(now.kind == LabGuestKind::Qemu);
            let has_disk = find_disk(now, disk).is_some_and(|(_, kib)| kib >= REQUESTED_KIB);
            let is_named = now.name.as_deref() == Some(&*wanted.guest.name);
            is_named && has_disk && truth::has_first_config(now, &wanted.guest) && (!starts || now.process.is_some())
        });
        self.require(is_complete, "L1", || format!("{} has nothing left to do, and its guest is {now:?}", request.key.as_str()));
    }

    /// L2: a request is refused only because its source or the guest with the new id was changed.
    pub(crate) fn check_clone_refusal(
        &mut self,
        request: &SimulatedRequest,
        code: &str,
        source: Option<&GuestTruth>,
        now: Option<&GuestTruth>,
    ) {
        let is_own = now.is_some_and(|now| self.is_own_birth(request, now));
        let disk_kib = |truth: &GuestTruth| {
            let disk = disk_key(truth.kind == LabGuestKind::Qemu);
            find_disk(truth, disk).map(|(_, kib)| kib)
        };
        let is_justified = match (code, source) {
            ("id-taken" | "kind-mismatch", _) => now.is_some() && !is_own,
            // Another person started it before it had its first config, or holds it, or changed its name.
            ("run-state-unsuitable", _) if is_own => now.is_some_and(|now| now.process.is_some()),
            ("name-mismatch", _) => is_own && now.is_some_and(|now| now.name.as_deref() != Some(&*request.wanted.guest.name)),
            ("guest-held", _) if is_own => now.is_some_and(|now| truth::all_tags(now).any(|tag| tag == "converger-hold")),
            // The id of the source was reused while it was copied: the clone has what the other guest had.
            ("disk-missing" | "unsupported-change", _) if is_own => now.is_some_and(|now| disk_kib(now).is_none()),
            (_, _) if is_own => false,
            ("guest-missing", source) => source.is_none(),
            (_, None) => false,
            ("guest-held", Some(source)) => truth::all_tags(source).any(|tag| tag == "converger-hold"),
            ("protection-copied", Some(source)) => truth::is_protected(source),
            ("run-state-unsuitable", Some(source)) => source.kind == LabGuestKind::Lxc && source.process.is_some(),
            ("disk-shrink", Some(source)) => disk_kib(source).is_some_and(|kib| kib > REQUESTED_KIB),
            // Another guest has the id of the source, and it has no disk or network device, or is no template.
            ("disk-missing" | "unsupported-change", Some(source)) => disk_kib(source).is_none(),
            ("not-a-template", Some(source)) => source.config.get("template").is_none_or(|value| value != "1"),
            _ => false,
        };
        self.require(is_justified, "L2", || {
            format!("{} is refused with `{code}`, and nothing gives cause for that: {source:?} {now:?}", request.key.as_str())
        });
    }
}
