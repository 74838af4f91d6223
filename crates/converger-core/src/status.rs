//! Maps every refusal and failure code to an exit status and an HTTP status.
//!
//! Exit statuses are those of the whole program; HTTP statuses are for a service that embeds it. Must not define what a code means (see
//! `refusal` and `failure`).

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

const FAILED: u8 = 1;
const INPUT: u8 = 2;
const REFUSED: u8 = 3;
const HELD: u8 = 5;
const BROKEN: u8 = 6;

/// The status of a refusal.
#[must_use]
pub fn refusal_status(code: Refusal) -> EndStatus {
    let http = match code {
        Refusal::GuestMissing | Refusal::EnvironmentUnrecorded => 404,
        Refusal::ProtectedGuest
        | Refusal::OwnGuestUntold
        | Refusal::ProtectionChange
        | Refusal::LimitGuests
        | Refusal::LimitPercent
        | Refusal::LimitStops
        | Refusal::ApprovalMissing
        | Refusal::GuaranteeBroken => 403,
        Refusal::GuestLocked | Refusal::GuestHeld | Refusal::Frozen => 423,
        Refusal::UnsupportedChange | Refusal::ReplayNotAppliable => 422,
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
        | Refusal::NotFrozen
        | Refusal::NotHeld
        | Refusal::EnvironmentAlias
        | Refusal::EnvironmentRenamed
        | Refusal::ClusterMismatch
        | Refusal::ClusterUnidentified
        | Refusal::NameInUse => 409,
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
