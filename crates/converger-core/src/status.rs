//! Maps every refusal code, failure code and end of a run to an exit status and an HTTP status.
//!
//! Exit statuses are those of the whole program; HTTP statuses are for a service that embeds it. Must not define what a code means (see
//! `refusal` and `failure`).

use crate::apply::OperationEnd;
use crate::failure::FailureCode as Failure;
use crate::refusal::RefusalCode as Refusal;

/// The status of a result, for a shell and for an HTTP client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndStatus {
    /// The exit status of the process.
    pub exit: u8,
    /// The HTTP status of the response.
    pub http: u16,
}

const DONE: u8 = 0;
const FAILED: u8 = 1;
const INPUT: u8 = 2;
const REFUSED: u8 = 3;
const HELD: u8 = 5;
const BROKEN: u8 = 6;

/// How a run ended. The order is that of their weight: the worst is the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RunEnd {
    /// Everything is done, or there was nothing to do.
    Done,
    /// A person was asked for confirmation and declined. Nothing was sent.
    Declined,
    /// The run was refused, or guests of it were, even if they were left out and the others are done.
    Refused,
    /// Some operations were not started, because the run was stopped.
    NotRun,
    /// The outcome of an operation on a guest of the run is unknown, of this run or of an earlier one.
    Held,
    /// Something failed.
    Failed,
    /// The recorded evidence is broken.
    EvidenceBroken,
}

impl RunEnd {
    /// All ends.
    pub const ALL: [Self; 7] = [Self::Done, Self::Declined, Self::Refused, Self::NotRun, Self::Held, Self::Failed, Self::EvidenceBroken];

    /// The word for it, as `result.json` has it.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Declined => "declined",
            Self::Refused => "refused",
            Self::NotRun => "not-run",
            Self::Held => "held",
            Self::Failed => "failed",
            Self::EvidenceBroken => "evidence-broken",
        }
    }
}

impl From<OperationEnd> for RunEnd {
    fn from(end: OperationEnd) -> Self {
        match end {
            OperationEnd::Done => Self::Done,
            OperationEnd::Failed => Self::Failed,
            OperationEnd::Refused => Self::Refused,
            OperationEnd::Held => Self::Held,
            OperationEnd::NotRun => Self::NotRun,
        }
    }
}

/// The status of a run. A response about a single refusal or failure has the status of its code instead.
#[must_use]
pub fn run_status(end: RunEnd) -> EndStatus {
    let (exit, http) = match end {
        RunEnd::Done => (DONE, 200),
        RunEnd::Declined => (REFUSED, 403),
        RunEnd::Refused => (REFUSED, 409),
        RunEnd::NotRun => (FAILED, 409),
        // The request itself succeeded; the document says what is held.
        RunEnd::Held => (HELD, 200),
        RunEnd::Failed => (FAILED, 502),
        RunEnd::EvidenceBroken => (BROKEN, 500),
    };
    EndStatus { exit, http }
}

/// The status of a refusal.
#[must_use]
pub fn refusal_status(code: Refusal) -> EndStatus {
    let http = match code {
        Refusal::GuestMissing | Refusal::EnvironmentUnrecorded | Refusal::SnapshotMissing | Refusal::DiskMissing => 404,
        Refusal::ProtectedGuest
        | Refusal::OwnGuestUntold
        | Refusal::ProtectionChange
        | Refusal::LimitGuests
        | Refusal::LimitPercent
        | Refusal::LimitStops
        | Refusal::ApprovalMissing
        | Refusal::ProtectionCopied
        | Refusal::GuaranteeBroken => 403,
        Refusal::GuestLocked | Refusal::GuestHeld | Refusal::Frozen => 423,
        Refusal::UnsupportedChange
        | Refusal::ReplayNotAppliable
        | Refusal::RamStateUnavailable
        | Refusal::DiskShrink
        | Refusal::LocalResources
        | Refusal::NotTemplate
        | Refusal::StorageUnsuitable
        | Refusal::KeyReused => 422,
        Refusal::DependencyRefused | Refusal::DependencyNotRunning => 424,
        // Repeating the request does not change a refusal, and clients repeat requests after 5xx; these are therefore 4xx.
        Refusal::NotQuorate
        | Refusal::ObservationIncomplete
        | Refusal::NodeOffline
        | Refusal::ConfigUnreadable
        | Refusal::GuardUnread
        | Refusal::GuestUnknown
        | Refusal::KindMismatch
        | Refusal::NameMismatch
        | Refusal::IdentityMismatch
        | Refusal::GuestTemplate
        | Refusal::HaOwned
        | Refusal::ConfigPending
        | Refusal::DependentRunning
        | Refusal::PlanStale
        | Refusal::ObservationStale
        | Refusal::EnvironmentBusy
        | Refusal::OperationsUnsettled
        | Refusal::StoreUnreadable
        | Refusal::NotFrozen
        | Refusal::NotHeld
        | Refusal::EnvironmentAlias
        | Refusal::EnvironmentRenamed
        | Refusal::ClusterMismatch
        | Refusal::ClusterUnidentified
        | Refusal::NameInUse
        | Refusal::SnapshotExists
        | Refusal::SnapshotUnfinished
        | Refusal::SnapshotHardware
        | Refusal::RunStateUnsuitable
        | Refusal::GuestReplicated
        | Refusal::NodeMemory
        | Refusal::StorageFull
        | Refusal::IdTaken
        | Refusal::ProvisioningUnfinished
        | Refusal::TemplateUnpinned
        | Refusal::TemplateMismatch
        | Refusal::TemplateUnusable
        | Refusal::CloudInitMissing => 409,
    };
    EndStatus { exit: REFUSED, http }
}

/// The status of a failure.
#[must_use]
pub fn failure_status(code: Failure) -> EndStatus {
    let (exit, http) = match code {
        Failure::UsageWrong
        | Failure::FileUnreadable
        | Failure::FileTaken
        | Failure::InputInvalid
        | Failure::ConfigInvalid
        | Failure::EnvironmentUnconfigured
        | Failure::RecordingOther
        | Failure::WorldInvalid => (INPUT, 400),
        Failure::FileUnwritable | Failure::OutputUnwritable | Failure::LabUnserved | Failure::ProcessLimited => (FAILED, 500),
        // Input of the operator (converger.toml), but not of the caller of a service.
        Failure::ClientSetup => (INPUT, 500),
        Failure::JournalUnwritable | Failure::JournalUnreadable => (FAILED, 500),
        Failure::EndpointUnreachable
        | Failure::CertificateUntrusted
        | Failure::CertificateExpired
        | Failure::CertificateOtherName
        | Failure::PinMismatch
        | Failure::TokenRejected
        | Failure::TokenForbidden
        | Failure::Redirected
        | Failure::NotProxmox
        | Failure::AnswerCompressed
        | Failure::AnswerTooLarge
        | Failure::AnswerInterrupted
        | Failure::ReadingTooLarge
        | Failure::OtherCluster
        | Failure::EnvironmentUnreadable
        | Failure::NotDelivered
        | Failure::ChangeRejected
        | Failure::TaskFailed
        | Failure::PromiseBroken
        | Failure::GuestLeftDown
        | Failure::NotCarriedOut => (FAILED, 502),
        Failure::ClusterDown | Failure::QueueFull => (FAILED, 503),
        Failure::AnswerTooSlow | Failure::ReadingTooSlow | Failure::ShutdownTimeout => (FAILED, 504),
        // The result is unknown: the guest is held until a person or the next run finds out.
        Failure::TaskOverdue
        | Failure::TaskAtWork
        | Failure::TaskLost
        | Failure::OutcomeUnread
        | Failure::OutcomeUnclear
        | Failure::RunLeft => (HELD, 504),
        Failure::LaneHalted | Failure::DependencyNotDone => (FAILED, 424),
        Failure::RunStopped | Failure::Superseded | Failure::RequestRepeated => (FAILED, 409),
        Failure::EvidencePruned => (FAILED, 410),
        // The ledger is intact; another version of the program can answer.
        Failure::OtherPlanner => (FAILED, 501),
        Failure::IntegrityViolation | Failure::EvidenceMissing | Failure::DeterminismBreach | Failure::UnloggedExecution => (BROKEN, 500),
    };
    EndStatus { exit, http }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{failure, refusal};

    #[test]
    fn only_a_run_that_is_done_has_exit_status_zero() {
        let exits = RunEnd::ALL.map(|end| (end.word(), run_status(end).exit));
        let expected = [("done", 0), ("declined", 3), ("refused", 3), ("not-run", 1), ("held", 5), ("failed", 1), ("evidence-broken", 6)];
        assert_eq!(exits, expected);
        assert!(RunEnd::ALL.is_sorted(), "the worst end is the last");
    }

    /// A client that mistakes a refusal for success would act on it.
    #[test]
    fn no_code_maps_to_success_and_broken_evidence_has_its_own_status() {
        for entry in &refusal::TABLE {
            let EndStatus { exit, http } = refusal_status(entry.code);
            assert!(exit == REFUSED && (400..500).contains(&http), "{}", entry.word);
        }
        for entry in &failure::TABLE {
            let EndStatus { exit, http } = failure_status(entry.code);
            assert!([FAILED, INPUT, HELD, BROKEN].contains(&exit) && (400..600).contains(&http), "{}", entry.word);
        }
        let broken = failure::TABLE.iter().filter(|entry| failure_status(entry.code).exit == BROKEN).map(|entry| entry.word);
        assert_eq!(broken.collect::<Vec<_>>(), ["integrity-violation", "evidence-missing", "determinism-breach", "unlogged-execution"]);
    }
}
