//! Why something could not be read: short words for the observation, and notes with remedies for people.

use converger_core::guest::Vmid;
use converger_core::observe;

use crate::proxmox::codec::{EscapedText, FailureCause, ProxmoxFailure, ProxmoxVersion, shorten};
use crate::proxmox::shell_quote::quote;

/// Why a guest or the whole observation is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum UnknownReason {
    /// Its node is not an online member of the cluster.
    NodeOffline,
    /// Its node did not respond.
    NodeSilent,
    /// Its node responds, but not for this guest.
    NoAnswer,
    /// Its node lists it without its run-state.
    NotReported,
    /// Its run-state is neither running nor stopped.
    RunStateUnclear,
    /// The token may not read it.
    NotPermitted,
    /// It is on another node or of another kind than the list said a moment ago.
    Moved,
    /// The guest list of its node could not be read.
    NodeListUnread,
    /// It no longer exists.
    Gone,
    /// Its name is not the one that the list had a moment ago.
    Renamed,
    /// Its id belongs to another guest than a moment ago.
    Replaced,
    /// A value in its config is not understood.
    NotUnderstood,
    /// The response about it is malformed.
    Malformed,
    /// It could not be read for another reason.
    Unreadable,
    /// It is not listed, but its id is taken.
    Hidden,
    /// It is not listed, but its absence could not be proven.
    NotProven,
    /// The list contains no guest at all.
    ListEmpty,
    /// The list lacks a guest that exists, or more guests than can have vanished.
    ListShrunken,
    /// The cluster's state could not be read again at the end, or only from another node.
    ClusterUnread,
    /// The snapshots of a guest could not be read, or belong to another state of its config.
    SnapshotsUnread,
    /// The replication jobs could not be read.
    ReplicationUnread,
    /// Memory and CPUs of a node could not be read.
    CapacityUnread,
    /// The storages of a node could not be read, or the token may see none.
    StoragesUnread,
    /// A node does not report its guests to the cluster, or not in time.
    ReportLate,
    /// This program does not support the release of Proxmox VE.
    ReleaseUnsupported,
    /// The release of Proxmox VE could not be read.
    ReleaseUnread,
}

impl UnknownReason {
    /// All reasons.
    pub const ALL: [Self; 26] = [
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
        Self::SnapshotsUnread,
        Self::ReplicationUnread,
        Self::CapacityUnread,
        Self::StoragesUnread,
        Self::ReportLate,
        Self::ReleaseUnsupported,
        Self::ReleaseUnread,
    ];

    /// Its word in observations.
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
            Self::SnapshotsUnread => "snapshots-unread",
            Self::ReplicationUnread => "replication-unread",
            Self::CapacityUnread => "capacity-unread",
            Self::StoragesUnread => "storages-unread",
            Self::ReportLate => "report-late",
            Self::ReleaseUnsupported => "release-unsupported",
            Self::ReleaseUnread => "release-unread",
        }
    }

    /// The remedy, with the placeholders `<vmid>`, `<user>` and `<token>`.
    #[must_use]
    pub fn remedy(self) -> &'static str {
        match self {
            Self::NodeOffline => "bring the node back or wait for it; its guests are not changed until then",
            Self::NodeSilent => "check pvedaemon and pveproxy on the node, and its load",
            Self::NoAnswer => {
                "check these guests on their node: a storage, a task or a process may hang, or the node is busy; they are not changed until then"
            }
            Self::NotReported => "observe again; if this persists, check the guest on its node",
            Self::RunStateUnclear => "check the guest: it is neither running nor stopped, and is not changed until it is",
            Self::NotPermitted => {
                "allow the token to see the guest; on a node: pveum acl modify /vms/<vmid> --users <user> --tokens <token> --roles PVEAuditor"
            }
            Self::Moved => "it was moved or replaced while it was read; observe again",
            Self::NodeListUnread => "read the error of Proxmox; check pvedaemon on the node and proxies in between",
            Self::Gone => "it was removed while it was read; observe again",
            Self::Renamed => "it was renamed or replaced just now, and the list lags by some seconds; observe again after that",
            Self::Replaced => "it was deleted and recreated, or its birth marks changed, while it was read; observe again",
            Self::NotUnderstood => "its config contains a value that this version does not know; check the named key",
            Self::Malformed => "check proxies between this machine and the node",
            Self::Unreadable => "read the error of Proxmox and check the guest there",
            Self::Hidden => {
                "a guest has this id, and the token may not see it. Allow it; on a node: \
                 pveum acl modify /vms/<vmid> --users <user> --tokens <token> --roles PVEAuditor"
            }
            Self::NotProven => {
                "bring the node back or wait until it responds; remove a guest that is known to be gone from the declared state"
            }
            Self::ListEmpty => "if there are guests, pmxcfs is restarting or the token may see none: observe again or grant it PVEAuditor",
            Self::ListShrunken => {
                "observe again; if this persists, check pve-cluster on the node, the identity of the cluster and the permissions of the token"
            }
            Self::ClusterUnread => "it is unknown whether the cluster had quorum all the time, so the whole run is refused; observe again",
            Self::SnapshotsUnread => {
                "read the error and observe again. The token needs VM.Audit; on a node: \
                 pveum acl modify /vms/<vmid> --users <user> --tokens <token> --roles PVEAuditor"
            }
            Self::ReplicationUnread => {
                "read the error of Proxmox; if it persists, check with `pvesr list` on a node. Nothing that replication forbids is done until then"
            }
            Self::CapacityUnread => {
                "read the error of Proxmox. The token needs Sys.Audit; on a node: \
                 pveum acl modify /nodes --users <user> --tokens <token> --roles PVEAuditor"
            }
            Self::StoragesUnread => {
                "read the error of Proxmox. The token needs Datastore.Audit; on a node: \
                 pveum acl modify /storage --users <user> --tokens <token> --roles PVEAuditor"
            }
            Self::ReportLate => {
                "if this persists for half a minute, check pvestatd on the node (systemctl status pvestatd): it is dead or waits for a hung storage"
            }
            Self::ReleaseUnsupported => "expect calls to fail or to behave differently; try it on a test host first",
            Self::ReleaseUnread => "check the release on a node with `pveversion`: this program supports Proxmox VE 7, 8 and 9",
        }
    }

    /// The reason for a failed read of a guest, other than that the guest does not exist.
    pub(in crate::proxmox) fn from_failure(failure: &ProxmoxFailure) -> Self {
        match failure.cause {
            cause if cause.is_connect_failure() => Self::NodeSilent,
            // Only this failure means a missing permission; the token was accepted a moment ago, so other errors are reported as they are.
            FailureCause::Forbidden => Self::NotPermitted,
            FailureCause::NodeUnreachable | FailureCause::NodeUnknown | FailureCause::ClusterDown => Self::NodeSilent,
            // A timeout for one guest says nothing about the other guests on its node.
            FailureCause::TooSlow | FailureCause::Interrupted => Self::NoAnswer,
            FailureCause::Malformed | FailureCause::TooLarge | FailureCause::Compressed | FailureCause::Redirected => Self::Malformed,
            _ => Self::Unreadable,
        }
    }
}

/// A note for people about an irregularity. What it means for the plan is in the observation itself.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ReadingNote {
    /// The guest, if the note is about one.
    pub vmid: Option<Vmid>,
    /// The reason.
    pub reason: UnknownReason,
    /// The finding.
    pub text: String,
}

impl ReadingNote {
    /// The remedy, for this token.
    #[must_use]
    pub fn remedy(&self, token: &str) -> String {
        let vmid = self.vmid.map_or_else(|| "<vmid>".to_owned(), |vmid| vmid.to_string());
        let user = token.split_once('!').map_or(token, |(user, _)| user);
        let remedy = self.reason.remedy().replace("<vmid>", &vmid);
        remedy.replace("<user>", &quote(user)).replace("<token>", &quote(token))
    }

    /// Converts the note to its core type, for this token.
    #[must_use]
    pub fn to_core_note(&self, token: &str) -> observe::Note {
        let (code, remedy) = (self.reason.word().into(), self.remedy(token).into());
        observe::Note { code, guest: self.vmid, remedy, text: self.text.as_str().into() }
    }

    pub(super) fn for_guest(vmid: Vmid, reason: UnknownReason, text: impl Into<String>) -> Self {
        Self { vmid: Some(vmid), reason, text: shorten(&text.into()).into() }
    }

    /// A note about the release, if it is not supported or could not be read.
    pub(in crate::proxmox) fn of_release(release: &Result<ProxmoxVersion, ProxmoxFailure>) -> Option<Self> {
        match release {
            Ok(version) if version.is_known() => None,
            Ok(version) => {
                let text = format!("the release is Proxmox VE {}, and this program supports 7, 8 and 9", EscapedText(&version.version));
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
        let undocumented: Vec<&str> =
            UnknownReason::ALL.map(UnknownReason::word).into_iter().filter(|word| !page.contains(&format!("\n| `{word}` |"))).collect();
        assert_eq!(undocumented, [""; 0]);
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
