//! Why something could not be done: the codes of failures, beside those of refusals.
//!
//! A refusal is a decision; a failure is an inability. They have codes of the same form and never share one. What never enters
//! here: which answer of which system amounts to which failure (the adapter knows that).

mod table;

pub use table::{FailureEntry, TABLE};

/// What failed. The order is that of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FailureCode {
    /// The command was called with something that cannot be meant.
    UsageWrong,
    /// A file cannot be read.
    FileUnreadable,
    /// A file cannot be written.
    FileUnwritable,
    /// A file is there already and stays as it is.
    FileTaken,
    /// Standard output cannot be written.
    OutputUnwritable,
    /// A declared state, a recording or a plan is not written as one is.
    InputInvalid,
    /// converger.toml is not written as it has to be.
    ConfigInvalid,
    /// Nothing says how the environment is reached.
    EnvironmentUnconfigured,
    /// The recording is of another environment.
    RecordingOther,
    /// The file describes no world that a lab could be.
    WorldInvalid,
    /// The lab cannot be served.
    LabUnserved,
    /// The system does not give this process what it needs.
    ProcessLimited,
    /// This side of the connection cannot be made ready.
    ClientSetup,
    /// No endpoint answers.
    EndpointUnreachable,
    /// The certificate is from nobody who is trusted.
    CertificateUntrusted,
    /// The certificate is not valid at this time.
    CertificateExpired,
    /// The certificate is for another name.
    CertificateOtherName,
    /// The certificate is none of those that are pinned.
    PinMismatch,
    /// The token was not accepted.
    TokenRejected,
    /// The token may not read what everything rests on.
    TokenForbidden,
    /// The server sends us elsewhere.
    Redirected,
    /// What answers does not speak as Proxmox does.
    NotProxmox,
    /// The answer is compressed, which was not asked for.
    AnswerCompressed,
    /// The answer is larger than anything that is read.
    AnswerTooLarge,
    /// The answer did not come in time.
    AnswerTooSlow,
    /// The connection broke before the answer was whole.
    AnswerInterrupted,
    /// The answers of one reading are together larger than is read.
    ReadingTooLarge,
    /// One reading takes longer than is waited.
    ReadingTooSlow,
    /// The node cannot say anything about its cluster.
    ClusterDown,
    /// Another cluster answered.
    OtherCluster,
    /// There is no reading for another reason.
    EnvironmentUnreadable,
    /// The change reached nobody.
    NotDelivered,
    /// The environment decided against the change.
    ChangeRejected,
    /// The task that was to carry it out ended with an error.
    TaskFailed,
    /// It was carried out, and the guest is not as promised.
    PromiseBroken,
    /// The guest was taken down for a restart, and was not started again.
    GuestLeftDown,
    /// The answer was lost, and there is no trace of the change.
    NotCarriedOut,
    /// The guest did not go down in the time that it was given.
    ShutdownTimeout,
    /// The task takes longer than anything that is waited for.
    TaskOverdue,
    /// A task of an earlier run is still at work.
    TaskAtWork,
    /// How the task ended is not known.
    TaskLost,
    /// What became of the change cannot be read at the moment.
    OutcomeUnread,
    /// What became of the change cannot be told.
    OutcomeUnclear,
    /// The journal cannot be written.
    JournalUnwritable,
    /// What the journal remembers cannot be read.
    JournalUnreadable,
    /// An earlier step of the guest did not end well.
    LaneHalted,
    /// A step of another guest that must come first did not end well.
    DependencyNotDone,
    /// The run was ended before the step's turn.
    RunStopped,
    /// The run was left while the step was under way.
    RunLeft,
    /// A newer step took its place.
    Superseded,
    /// The request was carried out before.
    RequestRepeated,
    /// There is no room for more steps.
    QueueFull,
    /// What is kept is not what was recorded.
    IntegrityViolation,
    /// What a decision rests on was let go by a person.
    EvidencePruned,
    /// Another planner made the decision, or other tables were in force.
    OtherPlanner,
    /// What a decision rests on is not kept.
    EvidenceMissing,
    /// The same inputs give another decision.
    DeterminismBreach,
    /// Something was carried out that the ledger does not know.
    UnloggedExecution,
}

impl FailureCode {
    /// What there is to know about it.
    #[must_use]
    pub fn entry(self) -> &'static FailureEntry {
        TABLE.iter().find(|entry| entry.code == self).unwrap_or(&table::MISSING_ENTRY)
    }

    /// Its word.
    #[must_use]
    pub fn word(self) -> &'static str {
        self.entry().word
    }

    /// What it is called, where these keys, or this cause, are in what was found.
    #[must_use]
    pub fn title(self, has: impl Fn(&str) -> bool) -> &'static str {
        match self {
            Self::ChangeRejected if has("tag-not-permitted") => "the datacenter does not let the token change this tag",
            Self::PromiseBroken if has("pending_restart") => "the value was written and is pending until the guest restarts",
            Self::PromiseBroken if has("pending") => "the value is still pending after the restart that was to apply it",
            code => code.entry().title,
        }
    }

    /// What to do about it, where these keys, or this cause, are in what was found.
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
            code => code.entry().remedy,
        }
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
        assert_eq!(FailureCode::TaskFailed.remedy(|_| true), FailureCode::TaskFailed.entry().remedy);
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
