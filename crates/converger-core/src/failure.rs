//! The codes of failures.
//!
//! A refusal is a decision, a failure is an inability; no code is both. Which response of which system amounts to which failure is decided
//! by the adapters.

mod table;

pub use table::{FailureEntry, TABLE};

/// The word of an adapter for a cluster without quorum.
const CAUSE_NO_QUORUM: &str = "no-quorum";

/// The word of an adapter for a response that was cut off.
const CAUSE_INTERRUPTED: &str = "interrupted";

/// What to do where a change failed because the cluster had no quorum.
const NO_QUORUM_REMEDY: &str = "Run `pvecm status` on a node and bring back enough nodes that it says `Quorate: Yes`; then apply again: the new plan starts from what the guest is now.";

/// What to do where the response to a change was cut off.
const INTERRUPTED_REMEDY: &str = "Look at `systemctl status pveproxy pvedaemon` on the node, and at proxies and firewalls on the way to it; then apply again: the new plan starts from what the guest is now.";

/// What to do where nothing can be read because the cluster has no quorum.
pub const READING_NO_QUORUM_REMEDY: &str =
    "run `pvecm status` on a node and bring back enough nodes that it says `Quorate: Yes`, then run the command again";

/// What failed. The order is that of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FailureCode {
    /// An argument of the command is wrong.
    UsageWrong,
    /// A file cannot be read.
    FileUnreadable,
    /// A file cannot be written.
    FileUnwritable,
    /// A file exists already and is not replaced.
    FileTaken,
    /// Standard output cannot be written.
    OutputUnwritable,
    /// A declared state, a recording or a plan has faults.
    InputInvalid,
    /// converger.toml has faults.
    ConfigInvalid,
    /// No configuration says how to reach the environment.
    EnvironmentUnconfigured,
    /// The recording is of another environment.
    RecordingOther,
    /// The file does not describe a valid lab.
    WorldInvalid,
    /// The lab cannot be served.
    LabUnserved,
    /// A limit of the operating system was reached.
    ProcessLimited,
    /// The connection cannot be set up on this machine.
    ClientSetup,
    /// No endpoint responds.
    EndpointUnreachable,
    /// The issuer of the certificate is not trusted.
    CertificateUntrusted,
    /// The certificate is not valid at this time.
    CertificateExpired,
    /// The certificate is for another name.
    CertificateOtherName,
    /// The certificate is not one of the pinned ones.
    PinMismatch,
    /// The token was not accepted.
    TokenRejected,
    /// The token may not read the cluster.
    TokenForbidden,
    /// The server redirects to another address.
    Redirected,
    /// The response is not one of Proxmox.
    NotProxmox,
    /// The response is compressed although that was not requested.
    AnswerCompressed,
    /// The response exceeds the maximum size.
    AnswerTooLarge,
    /// The response did not arrive in time.
    AnswerTooSlow,
    /// The connection was closed before the response was complete.
    AnswerInterrupted,
    /// The responses of one observation together exceed the maximum size.
    ReadingTooLarge,
    /// An observation took longer than its timeout.
    ReadingTooSlow,
    /// The node cannot read the state of its cluster.
    ClusterDown,
    /// Another cluster responded.
    OtherCluster,
    /// The environment could not be read for another reason.
    EnvironmentUnreadable,
    /// The change did not reach the environment.
    NotDelivered,
    /// The environment rejected the change.
    ChangeRejected,
    /// The task of the change ended with an error.
    TaskFailed,
    /// The change was applied, and the guest is not in the promised state.
    PromiseBroken,
    /// The guest was shut down for a restart and did not start again.
    GuestLeftDown,
    /// The response was lost, and there is no trace of the change.
    NotCarriedOut,
    /// The guest did not shut down in time.
    ShutdownTimeout,
    /// The task exceeded its timeout.
    TaskOverdue,
    /// A task of an earlier run is still running.
    TaskAtWork,
    /// It is unknown how the task ended.
    TaskLost,
    /// The outcome of the change cannot be read at the moment.
    OutcomeUnread,
    /// The outcome of the change cannot be determined.
    OutcomeUnclear,
    /// The journal cannot be written.
    JournalUnwritable,
    /// The journal cannot be read.
    JournalUnreadable,
    /// An earlier step of the guest was not done.
    LaneHalted,
    /// A step of another guest that must come first was not done.
    DependencyNotDone,
    /// The run ended before the step started.
    RunStopped,
    /// The run was aborted while the step was in flight.
    RunLeft,
    /// A newer step replaced it.
    Superseded,
    /// The same request was made before.
    RequestRepeated,
    /// The queue of steps is full.
    QueueFull,
    /// The stored bytes are not the recorded ones.
    IntegrityViolation,
    /// A person pruned the inputs of the decision.
    EvidencePruned,
    /// Another planner, or other tables, made the decision.
    OtherPlanner,
    /// The inputs of the decision are missing.
    EvidenceMissing,
    /// The same inputs give another decision.
    DeterminismBreach,
    /// The journal and the ledger disagree about an operation.
    UnloggedExecution,
}

impl FailureCode {
    /// Its entry in the table.
    #[must_use]
    pub fn entry(self) -> &'static FailureEntry {
        TABLE.iter().find(|entry| entry.code == self).unwrap_or(&table::MISSING_ENTRY)
    }

    /// Its word.
    #[must_use]
    pub fn word(self) -> &'static str {
        self.entry().word
    }

    /// What happened. `has` says whether a key is in the evidence, or whether the word is the recorded cause.
    #[must_use]
    pub fn title(self, has: impl Fn(&str) -> bool) -> &'static str {
        match self {
            Self::ChangeRejected if has("tag-not-permitted") => "the datacenter does not let the token change this tag",
            Self::PromiseBroken if has("pending_restart") => "the value was written and is pending until the guest restarts",
            Self::PromiseBroken if has("pending") => "the value is still pending after the restart that was to apply it",
            Self::NotCarriedOut if has(CAUSE_NO_QUORUM) => "the cluster lost quorum, and nothing shows that the change was applied",
            Self::NotCarriedOut if has(CAUSE_INTERRUPTED) => "the response was cut off, and nothing shows that the change was applied",
            code => code.entry().title,
        }
    }

    /// What to do about it. `has` says whether a key is in the evidence, or whether the word is the recorded cause.
    #[must_use]
    pub fn remedy(self, has: impl Fn(&str) -> bool) -> &'static str {
        match self {
            Self::PromiseBroken if has("pending_restart") => {
                "Restart the guest, or declare `restart: when-needed` and apply again; until then the old value is in effect."
            }
            Self::ChangeRejected if has("tag-not-permitted") => {
                "The datacenter lets only `Sys.Modify` on `/` change this tag (user tag access, registered tags): grant it to the token, allow the tag there, or declare other tags; then apply again."
            }
            Self::PromiseBroken if has("pending") => {
                "Read the log of the guest's last start on its node, which says why Proxmox did not apply it; then apply again."
            }
            code if code.is_about_a_change() && has(CAUSE_NO_QUORUM) => NO_QUORUM_REMEDY,
            code if code.is_about_a_change() && has(CAUSE_INTERRUPTED) => INTERRUPTED_REMEDY,
            code => code.entry().remedy,
        }
    }

    /// Whether it says that a change was not applied, so that the next apply starts from a fresh observation.
    fn is_about_a_change(self) -> bool {
        matches!(self, Self::NotDelivered | Self::ChangeRejected | Self::TaskFailed | Self::NotCarriedOut)
    }

    /// The code of that word.
    #[must_use]
    pub fn from_word(word: &str) -> Option<Self> {
        TABLE.iter().find(|entry| entry.word == word).map(|entry| entry.code)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::refusal;

    #[test]
    fn a_broken_promise_says_that_the_value_is_pending() {
        let title = |key: &'static str| FailureCode::PromiseBroken.title(|own| own == key);
        assert_eq!(title("pending_restart"), "the value was written and is pending until the guest restarts");
        assert_eq!(title("run_state"), FailureCode::PromiseBroken.entry().title);
        assert!(FailureCode::PromiseBroken.remedy(|own| own == "pending_restart").contains("`restart: when-needed`"));
        assert_eq!(FailureCode::TaskLost.remedy(|_| true), FailureCode::TaskLost.entry().remedy);
    }

    #[test]
    fn lost_quorum_and_cut_off_responses_have_remedies_of_their_own() {
        for code in [FailureCode::NotCarriedOut, FailureCode::TaskFailed, FailureCode::NotDelivered, FailureCode::ChangeRejected] {
            assert!(code.remedy(|own| own == "no-quorum").contains("`pvecm status`"), "{}", code.word());
            assert!(code.remedy(|own| own == "interrupted").contains("pveproxy"), "{}", code.word());
        }
        assert!(FailureCode::NotCarriedOut.title(|own| own == "no-quorum").contains("lost quorum"));
        let interrupted = FailureCode::AnswerInterrupted.entry().remedy;
        assert!(interrupted.contains("`journalctl -u pveproxy`") && interrupted.contains("again"), "{interrupted}");
    }

    #[test]
    fn every_code_has_one_entry_and_one_word() {
        for pair in TABLE.windows(2) {
            let [one, other] = pair else { continue };
            assert!(one.code < other.code, "{} and {}", one.word, other.word);
        }
        for entry in &TABLE {
            assert_eq!(FailureCode::from_word(entry.word), Some(entry.code));
            assert_eq!(entry.code.word(), entry.word);
            assert_eq!(refusal::RefusalCode::from_word(entry.word), None, "{} is a refusal too", entry.word);
            assert!(entry.remedy.ends_with('.') && entry.meaning.ends_with('.') && !entry.title.ends_with('.'), "{}", entry.word);
        }
        assert_eq!(TABLE.last().map(|entry| entry.code), Some(FailureCode::UnloggedExecution));
        assert_eq!(TABLE.len(), FailureCode::UnloggedExecution as usize + 1);
    }
}
