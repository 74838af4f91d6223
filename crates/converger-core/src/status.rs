//! How a code ends a process and answers a request: one table for every refusal and every failure.
//!
//! Exit statuses are those of the whole program; HTTP statuses are for whoever serves it. What never enters: what a code means (`refusal`,
//! `failure`).

use crate::failure::FailureCode as Failure;
use crate::refusal::RefusalCode as Refusal;

/// How something ends, for a shell and for a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndStatus {
    /// The exit status of the process.
    pub exit: u8,
    /// The status of the HTTP answer.
    pub http: u16,
}

const FAILED: u8 = 1;
const INPUT: u8 = 2;
const REFUSED: u8 = 3;
const HELD: u8 = 5;
const BROKEN: u8 = 6;

/// What a refusal ends with.
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
        // What was decided against stays so however often it is asked: no server is to blame, and a client that repeats 5xx must not.
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

/// What a failure ends with.
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
        // What converger.toml leads to is input, and no caller of a service has written it.
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
        // What became of it is not known: the guest is held, and a person or the next run finds out.
        Failure::TaskOverdue
        | Failure::TaskAtWork
        | Failure::TaskLost
        | Failure::OutcomeUnread
        | Failure::OutcomeUnclear
        | Failure::RunLeft => (HELD, 504),
        Failure::LaneHalted | Failure::DependencyNotDone => (FAILED, 424),
        Failure::RunStopped | Failure::Superseded | Failure::RequestRepeated => (FAILED, 409),
        Failure::EvidencePruned => (FAILED, 410),
        // The record is whole; another version of the program answers what this one cannot.
        Failure::OtherPlanner => (FAILED, 501),
        Failure::IntegrityViolation | Failure::EvidenceMissing | Failure::DeterminismBreach | Failure::UnloggedExecution => (BROKEN, 500),
    };
    EndStatus { exit, http }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{failure, refusal};

    /// A client that takes a refusal for a success would act on it.
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
