//! Why something could not be read: short words for the reading, and sentences for people that say what to do.

use converger_core::guest::Vmid;
use converger_core::observe;

use crate::proxmox::codec::{EscapedText, FailureCause, ProxmoxFailure, ProxmoxVersion, shorten};
use crate::proxmox::shell_quote::quote;

/// Why a guest, or the reading as a whole, is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum UnknownReason {
    /// Its node is not a member of the cluster that answers.
    NodeOffline,
    /// Its node did not answer when it was asked.
    NodeSilent,
    /// Its node answers, and about it there came no answer.
    NoAnswer,
    /// Its node lists it and does not say whether it runs.
    NotReported,
    /// Its run-state is neither running nor stopped.
    RunStateUnclear,
    /// The token may not read it.
    NotPermitted,
    /// It is on another node, or of another kind, than the list said a moment ago.
    Moved,
    /// The list of guests of its node could not be read.
    NodeListUnread,
    /// It is not there any more.
    Gone,
    /// It has another name than the list said a moment ago.
    Renamed,
    /// Another guest has its id than a moment ago.
    Replaced,
    /// A value in its config is not understood.
    NotUnderstood,
    /// The answer about it makes no sense.
    Malformed,
    /// It could not be read for another reason.
    Unreadable,
    /// It is not listed, and its id is taken.
    Hidden,
    /// It is not listed, and that it does not exist could not be shown.
    NotProven,
    /// The list holds no guest at all.
    ListEmpty,
    /// The list lacks a guest that is there, or more guests than can have vanished.
    ListShrunken,
    /// The cluster's state could not be read again at the end, or from another node only.
    ClusterUnread,
    /// A node does not report its guests to the cluster, or not in time.
    ReportLate,
    /// The release of Proxmox VE is none that this program knows.
    ReleaseUnsupported,
    /// The release of Proxmox VE could not be read.
    ReleaseUnread,
}

impl UnknownReason {
    /// All reasons.
    pub const ALL: [Self; 22] = [
        Self::NodeOffline,
        Self::NodeSilent,
        Self::NoAnswer,
        Self::NotReported,
        Self::RunStateUnclear,
        Self::NotPermitted,
        Self::Moved,
        Self::NodeListUnread,
        Self::Gone,
        Self::Renamed,
        Self::Replaced,
        Self::NotUnderstood,
        Self::Malformed,
        Self::Unreadable,
        Self::Hidden,
        Self::NotProven,
        Self::ListEmpty,
        Self::ListShrunken,
        Self::ClusterUnread,
        Self::ReportLate,
        Self::ReleaseUnsupported,
        Self::ReleaseUnread,
    ];

    /// The word for it.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::NodeOffline => "node-offline",
            Self::NodeSilent => "node-silent",
            Self::NoAnswer => "no-answer",
            Self::NotReported => observe::CAUSE_NOT_REPORTED,
            Self::RunStateUnclear => observe::CAUSE_RUN_STATE_UNCLEAR,
            Self::NotPermitted => "not-permitted",
            Self::Moved => "moved-while-read",
            Self::NodeListUnread => "node-list-unread",
            Self::Gone => "gone-while-read",
            Self::Renamed => "renamed-while-read",
            Self::Replaced => "replaced-while-read",
            Self::NotUnderstood => "config-not-understood",
            Self::Malformed => "answer-malformed",
            Self::Unreadable => "unreadable",
            Self::Hidden => "hidden",
            Self::NotProven => "absence-not-proven",
            Self::ListEmpty => "list-empty",
            Self::ListShrunken => "list-shrunken",
            Self::ClusterUnread => "cluster-unread",
            Self::ReportLate => "report-late",
            Self::ReleaseUnsupported => "release-unsupported",
            Self::ReleaseUnread => "release-unread",
        }
    }

    /// What to do about it, with `<vmid>`, `<user>` and `<token>` where those belong.
    #[must_use]
    pub fn remedy(self) -> &'static str {
        match self {
            Self::NodeOffline => "bring the node back, or wait until it is; its guests are left alone until then",
            Self::NodeSilent => "look at pvedaemon and pveproxy on the node, and at its load",
            Self::NoAnswer => {
                "look at these guests on their node: what they wait for may be a storage, a task or a process that hangs, or the node is busy"
            }
            Self::NotReported => "take a new reading; if it stays so, look at the guest on its node",
            Self::RunStateUnclear => "look at the guest: it is neither running nor stopped, and is left alone until it is one of them",
            Self::NotPermitted => {
                "let the token see the guest, on a node: pveum acl modify /vms/<vmid> --users <user> --tokens <token> --roles PVEAuditor"
            }
            Self::Moved => "it was moved or replaced while it was read; take a new reading",
            Self::NodeListUnread => "read what Proxmox said, and look at pvedaemon on the node and at what is between here and the node",
            Self::Gone => "it was removed while it was read; take a new reading",
            Self::Renamed => "it was renamed or replaced just now, and the list lags by some seconds; take a new reading then",
            Self::Replaced => "it was deleted and made anew, or its marks were changed, while it was read; take a new reading",
            Self::NotUnderstood => "its config holds a value that this version does not know; look at the key that is named",
            Self::Malformed => "look at what is between here and the node",
            Self::Unreadable => "read what Proxmox said, and look at the guest there",
            Self::Hidden => {
                "somebody has this id, and the token may not see who. Let it, on a node: \
                 pveum acl modify /vms/<vmid> --users <user> --tokens <token> --roles PVEAuditor"
            }
            Self::NotProven => {
                "bring the node back, or wait until it answers; a guest that is known to be gone is taken out of the declared state"
            }
            Self::ListEmpty => {
                "if there are guests, pmxcfs is restarting or the token may see none: take a new reading, or give it PVEAuditor"
            }
            Self::ListShrunken => {
                "take a new reading; if it stays so, look at pve-cluster on the node, and check that this is the right cluster and what the token may see"
            }
            Self::ClusterUnread => {
                "whether the cluster had quorum all the time is not known, so that the whole run is refused; take a new reading"
            }
            Self::ReportLate => {
                "if it stays so for half a minute, look at pvestatd on the node (systemctl status pvestatd): it is dead, or it waits for a storage that hangs"
            }
            Self::ReleaseUnsupported => "expect calls to be refused or to answer otherwise; try it on a host that does not matter",
            Self::ReleaseUnread => "check the release on a node with `pveversion`: this program knows Proxmox VE 7, 8 and 9",
        }
    }

    /// The reason that a failed reading of a guest amounts to, other than that it is not there.
    pub(in crate::proxmox) fn from_failure(failure: &ProxmoxFailure) -> Self {
        match failure.cause {
            cause if cause.is_connect_failure() => Self::NodeSilent,
            // Another answer than this to a token that was accepted a moment ago is no matter of what it may do: that is told as it was said.
            FailureCause::Forbidden => Self::NotPermitted,
            FailureCause::NodeUnreachable | FailureCause::NodeUnknown | FailureCause::ClusterDown => Self::NodeSilent,
            // Whoever waits in vain for one guest knows nothing of the others there.
            FailureCause::TooSlow | FailureCause::Interrupted => Self::NoAnswer,
            FailureCause::Malformed | FailureCause::TooLarge | FailureCause::Compressed | FailureCause::Redirected => Self::Malformed,
            _ => Self::Unreadable,
        }
    }
}

/// Something that was not as it should be while reading, for people. What it means for the plan stands in the reading itself.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ReadingNote {
    /// The guest, if it is about one.
    pub vmid: Option<Vmid>,
    /// Why.
    pub reason: UnknownReason,
    /// What was seen.
    pub text: String,
}

impl ReadingNote {
    /// What to do about it, for the token that asked.
    #[must_use]
    pub fn remedy(&self, token: &str) -> String {
        let vmid = self.vmid.map_or_else(|| "<vmid>".to_owned(), |vmid| vmid.to_string());
        let user = token.split_once('!').map_or(token, |(user, _)| user);
        let remedy = self.reason.remedy().replace("<vmid>", &vmid);
        remedy.replace("<user>", &quote(user)).replace("<token>", &quote(token))
    }

    /// The same in the words of the core, for the token that asked.
    #[must_use]
    pub fn to_core_note(&self, token: &str) -> observe::Note {
        let (code, remedy) = (self.reason.word().into(), self.remedy(token).into());
        observe::Note { code, guest: self.vmid, remedy, text: self.text.as_str().into() }
    }

    pub(super) fn for_guest(vmid: Vmid, reason: UnknownReason, text: impl Into<String>) -> Self {
        Self { vmid: Some(vmid), reason, text: shorten(&text.into()).into() }
    }

    /// What is to be said about the release that answers, if it is none that this program knows.
    pub(in crate::proxmox) fn of_release(release: &Result<ProxmoxVersion, ProxmoxFailure>) -> Option<Self> {
        match release {
            Ok(version) if version.is_known() => None,
            Ok(version) => {
                let text = format!("Proxmox VE {} answers, and this program knows 7, 8 and 9", EscapedText(&version.version));
                Some(Self::for_reading(UnknownReason::ReleaseUnsupported, text))
            }
            Err(failure) => {
                Some(Self::for_reading(UnknownReason::ReleaseUnread, format!("the release of Proxmox VE could not be read: {failure}")))
            }
        }
    }

    pub(super) fn for_reading(reason: UnknownReason, text: impl Into<String>) -> Self {
        Self { vmid: None, reason, text: shorten(&text.into()).into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_is_listed_once_with_a_unique_word() {
        assert_eq!(UnknownReason::ALL.len(), UnknownReason::ReleaseUnread as usize + 1);
        for (index, reason) in UnknownReason::ALL.iter().enumerate() {
            assert_eq!(index, *reason as usize, "{}", reason.word());
            assert_eq!(UnknownReason::ALL.iter().filter(|other| other.word() == reason.word()).count(), 1, "{}", reason.word());
        }
    }

    #[test]
    fn observer_docs_explain_every_reason() {
        let page = include_str!("../../../../../docs/adapters.md");
        let lacking: Vec<&str> =
            UnknownReason::ALL.map(UnknownReason::word).into_iter().filter(|word| !page.contains(&format!("\n| `{word}` |"))).collect();
        assert_eq!(lacking, [""; 0]);
    }

    #[test]
    fn remedy_line_names_guest_user_and_token() {
        let note = ReadingNote::for_guest(Vmid::new(101).expect("an id"), UnknownReason::Hidden, "");
        let line = "pveum acl modify /vms/101 --users 'svc@pve' --tokens 'svc@pve!probe' --roles PVEAuditor";
        assert!(note.remedy("svc@pve!probe").ends_with(line), "{}", note.remedy("svc@pve!probe"));
        let odd = note.remedy("x';id;'@pve!probe");
        assert!(odd.contains(r"--users 'x'\'';id;'\''@pve' --tokens 'x'\'';id;'\''@pve!probe'"), "{odd}");
    }
}
