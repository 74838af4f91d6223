//! Classifies error texts of Proxmox. There is no 404, 409 or 423: a missing, locked or modified guest is a 500, and only the text
//! distinguishes them. The exit status of a task is such a text too.
//!
//! The cause informs people and the engine's next read. It never selects a target.

use converger_core::failure::FailureCode;

/// The kind of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FailureCause {
    /// No connection could be established.
    Unreachable,
    /// Its node had too many other requests, and it was not sent.
    Busy,
    /// The server could not be trusted to be the intended one.
    Untrusted,
    /// Its certificate is not valid at this time.
    CertificateExpired,
    /// Its certificate is for another name.
    CertificateOtherName,
    /// Its certificate matches no pinned fingerprint.
    PinMismatch,
    /// The server does not speak valid TLS.
    NotTls,
    /// The response did not arrive in time.
    TooSlow,
    /// The response exceeds the size limit.
    TooLarge,
    /// The responses of one observation exceed the size limit in total.
    ReadingTooLarge,
    /// The observation exceeds the time limit.
    ReadingTooSlow,
    /// The response is compressed, which was not requested.
    Compressed,
    /// The token was not accepted.
    Unauthenticated,
    /// The token lacks a privilege.
    Forbidden,
    /// Only `Sys.Modify` on `/` may change this tag.
    TagForbidden,
    /// A parameter is invalid.
    BadParameter,
    /// The server has no such call.
    NotImplemented,
    /// The endpoint cannot reach the node.
    NodeUnreachable,
    /// The name of the node is unknown.
    NodeUnknown,
    /// The connection to the node broke or timed out.
    Interrupted,
    /// The cluster's file system is not available.
    ClusterDown,
    /// The cluster has no quorum.
    NoQuorum,
    /// The guest does not exist on this node or is of another kind.
    NoSuchGuest,
    /// The id is taken.
    AlreadyExists,
    /// The guest's config contains a lock.
    Locked,
    /// Another process holds the lock of the guest or of the cluster's files.
    LockTimeout,
    /// The config has changed since it was read.
    Changed,
    /// Protection is on.
    Protected,
    /// The guest runs already.
    AlreadyRunning,
    /// The guest does not run.
    NotRunning,
    /// The guest is paused and cannot react to a shutdown request.
    Paused,
    /// The guest runs, but must not for this change.
    Running,
    /// The guest is a template.
    Template,
    /// The guest is in the error state of high availability, which must be fixed first.
    HaError,
    /// The guest did not shut down in time; it still may.
    ShutdownTimeout,
    /// The snapshot does not exist.
    NoSuchSnapshot,
    /// A snapshot of this name exists.
    SnapshotExists,
    /// The disk already has this size or a larger one.
    NotGrown,
    /// A device of the running guest could not be changed; the new value is pending.
    HotplugFailed,
    /// The node does not know the task any more.
    NoSuchTask,
    /// The task was killed, or its node went down.
    TaskKilled,
    /// The response does not belong to this API.
    Malformed,
    /// The response is a redirect, which is not followed.
    Redirected,
    /// Any other cause.
    Other,
}

impl FailureCause {
    /// The failure code if the whole observation depends on the failed read.
    #[must_use]
    pub fn code(self) -> FailureCode {
        match self {
            Self::Unreachable => FailureCode::EndpointUnreachable,
            Self::Untrusted => FailureCode::CertificateUntrusted,
            Self::CertificateExpired => FailureCode::CertificateExpired,
            Self::CertificateOtherName => FailureCode::CertificateOtherName,
            Self::PinMismatch => FailureCode::PinMismatch,
            // The request waited in the queue behind requests without a response.
            Self::TooSlow | Self::Busy => FailureCode::AnswerTooSlow,
            Self::TooLarge => FailureCode::AnswerTooLarge,
            Self::ReadingTooLarge => FailureCode::ReadingTooLarge,
            Self::ReadingTooSlow => FailureCode::ReadingTooSlow,
            Self::Compressed => FailureCode::AnswerCompressed,
            Self::Unauthenticated => FailureCode::TokenRejected,
            Self::Forbidden | Self::TagForbidden => FailureCode::TokenForbidden,
            Self::Interrupted => FailureCode::AnswerInterrupted,
            Self::ClusterDown => FailureCode::ClusterDown,
            Self::Malformed | Self::NotImplemented | Self::NotTls => FailureCode::NotProxmox,
            Self::Redirected => FailureCode::Redirected,
            Self::BadParameter | Self::NodeUnreachable | Self::NodeUnknown | Self::NoQuorum | Self::NoSuchGuest | Self::AlreadyExists => {
                FailureCode::EnvironmentUnreadable
            }
            Self::Locked | Self::LockTimeout | Self::Changed | Self::Protected | Self::AlreadyRunning | Self::NotRunning | Self::Paused => {
                FailureCode::EnvironmentUnreadable
            }
            Self::Running | Self::Template | Self::HaError | Self::ShutdownTimeout | Self::NoSuchSnapshot | Self::SnapshotExists => {
                FailureCode::EnvironmentUnreadable
            }
            Self::NotGrown | Self::HotplugFailed | Self::NoSuchTask | Self::TaskKilled | Self::Other => FailureCode::EnvironmentUnreadable,
        }
    }

    /// Whether no connection was ever established for the request.
    #[must_use]
    pub fn is_connect_failure(self) -> bool {
        let is_distrust = matches!(self, Self::Untrusted | Self::CertificateExpired | Self::CertificateOtherName | Self::PinMismatch);
        is_distrust || matches!(self, Self::Unreachable | Self::NotTls)
    }
}

/// The message of Proxmox's quorum check, which precedes any effect.
const NOT_READY: &str = "cluster not ready - no quorum?";

/// The directory of the task list.
const TASKS_LIST: &str = "/var/log/pve/tasks/";

/// Parts of texts with their causes. The first match counts, so specific parts come first.
const CAUSES_BY_TEXT: [(&str, FailureCause); 40] = [
    ("Sys.Modify for modifying tag '", FailureCause::TagForbidden),
    ("RPCEnvironment init request failed", FailureCause::ClusterDown),
    ("hostname lookup '", FailureCause::NodeUnknown),
    (NOT_READY, FailureCause::NoQuorum),
    ("no quorum!", FailureCause::NoQuorum),
    ("is locked (", FailureCause::Locked),
    ("checksum mismatch", FailureCause::Changed),
    ("checksum missmatch", FailureCause::Changed),
    ("detected modified configuration", FailureCause::Changed),
    ("protection mode enabled", FailureCause::Protected),
    ("can't lock file", FailureCause::LockTimeout),
    ("got lock request timeout", FailureCause::LockTimeout),
    ("cfs-lock '", FailureCause::LockTimeout),
    ("in error state, must be disabled and fixed first", FailureCause::HaError),
    ("powerdown failed - got timeout", FailureCause::ShutdownTimeout),
    ("container did not stop", FailureCause::ShutdownTimeout),
    ("hotplug problem - ", FailureCause::HotplugFailed),
    ("unable to apply pending change", FailureCause::HotplugFailed),
    ("if it's a template", FailureCause::Template),
    ("snapshot name '", FailureCause::SnapshotExists),
    ("shrinking disks is not supported", FailureCause::NotGrown),
    ("unable to shrink disk size", FailureCause::NotGrown),
    ("disk is already at specified size", FailureCause::NotGrown),
    ("unable to find configuration file for", FailureCause::NoSuchGuest),
    ("already exists on node", FailureCause::AlreadyExists),
    ("config file already exists", FailureCause::AlreadyExists),
    ("failed: File exists", FailureCause::AlreadyExists),
    ("already exists", FailureCause::AlreadyExists),
    ("already running", FailureCause::AlreadyRunning),
    ("VM is paused", FailureCause::Paused),
    ("is running - destroy failed", FailureCause::Running),
    ("container is running", FailureCause::Running),
    ("can't migrate running", FailureCause::Running),
    ("not running", FailureCause::NotRunning),
    ("no such task", FailureCause::NoSuchTask),
    ("unable to get last line from task log", FailureCause::TaskKilled),
    ("unexpected status", FailureCause::TaskKilled),
    ("received interrupt", FailureCause::TaskKilled),
    ("Permission check failed", FailureCause::Forbidden),
    ("only root can set", FailureCause::Forbidden),
];

/// Classifies a text.
#[must_use]
pub fn classify_text(text: &str) -> FailureCause {
    if has_both_parts(text, "Configuration file '", "' does not exist") {
        return FailureCause::NoSuchGuest;
    }
    if has_both_parts(text, "snapshot '", "' does not exist") {
        return FailureCause::NoSuchSnapshot;
    }
    // Without quorum, the cluster's files are read-only, and only the kernel reports that.
    if has_both_parts(text, "unable to open file '/etc/pve/", "' - Permission denied") {
        return FailureCause::NoQuorum;
    }
    CAUSES_BY_TEXT.iter().find(|(part, _)| text.contains(part)).map_or(FailureCause::Other, |(_, cause)| *cause)
}

fn has_both_parts(text: &str, opening: &str, end: &str) -> bool {
    text.split_once(opening).is_some_and(|(_, rest)| rest.contains(end))
}

impl FailureCause {
    /// Whether Proxmox sends this error before any effect, whatever the call. A quorum error can also occur midway, because a config is
    /// written once per key; only the initial check has this message.
    pub(super) fn is_before_any_effect(self, text: &str) -> bool {
        let is_checked = self != Self::NoQuorum || text.contains(NOT_READY);
        is_checked
            && matches!(
                self,
                Self::Unauthenticated
                    | Self::Forbidden
                    | Self::TagForbidden
                    | Self::NotImplemented
                    | Self::NodeUnknown
                    | Self::ClusterDown
                    | Self::NoQuorum
                    | Self::NoSuchGuest
                    | Self::AlreadyExists
                    | Self::Locked
                    | Self::LockTimeout
                    | Self::Changed
                    | Self::Protected
                    | Self::Redirected
            )
    }

    /// Whether Proxmox sends this error before it starts a task, for calls that are carried out by one. Errors of the task itself do not
    /// count. Nor does a locked task list, because it is written after the task has started.
    pub(super) fn is_before_any_task(self, text: &str) -> bool {
        let is_checked_first = matches!(
            self,
            Self::AlreadyRunning
                | Self::NotRunning
                | Self::Paused
                | Self::Running
                | Self::Template
                | Self::HaError
                | Self::NoSuchSnapshot
                | Self::SnapshotExists
                | Self::NotGrown
        );
        !text.contains(TASKS_LIST) && (is_checked_first || self.is_before_any_effect(text))
    }

    /// Its word in causes and reports.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Unreachable => "unreachable",
            Self::Busy => "busy",
            Self::Untrusted => "untrusted",
            Self::CertificateExpired => "certificate-expired",
            Self::CertificateOtherName => "certificate-other-name",
            Self::PinMismatch => "pin-mismatch",
            Self::NotTls => "not-tls",
            Self::TooSlow => "too-slow",
            Self::ReadingTooLarge => "reading-too-large",
            Self::ReadingTooSlow => "reading-too-slow",
            Self::TooLarge => "too-large",
            Self::Compressed => "compressed",
            Self::Unauthenticated => "unauthenticated",
            Self::Forbidden => "not-permitted",
            Self::TagForbidden => "tag-not-permitted",
            Self::BadParameter => "bad-parameter",
            Self::NotImplemented => "not-implemented",
            Self::NodeUnreachable => "node-unreachable",
            Self::NodeUnknown => "node-unknown",
            Self::Interrupted => "interrupted",
            Self::ClusterDown => "cluster-down",
            Self::NoQuorum => "no-quorum",
            Self::NoSuchGuest => "no-such-guest",
            Self::AlreadyExists => "already-exists",
            Self::Locked => "locked",
            Self::LockTimeout => "lock-timeout",
            Self::Changed => "changed-by-others",
            Self::Protected => "protected",
            Self::AlreadyRunning => "already-running",
            Self::NotRunning => "not-running",
            Self::Paused => "paused",
            Self::Running => "running",
            Self::Template => "template",
            Self::HaError => "ha-error",
            Self::ShutdownTimeout => "shutdown-timeout",
            Self::NoSuchSnapshot => "no-such-snapshot",
            Self::SnapshotExists => "snapshot-exists",
            Self::NotGrown => "not-grown",
            Self::HotplugFailed => "hotplug-failed",
            Self::NoSuchTask => "no-such-task",
            Self::TaskKilled => "task-killed",
            Self::Malformed => "malformed",
            Self::Redirected => "redirected",
            Self::Other => "other",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_node_is_reported_as_a_slow_response() {
        assert_eq!((FailureCause::Busy.code(), FailureCause::Busy.word()), (FailureCode::AnswerTooSlow, "busy"));
        assert_eq!(FailureCause::NoQuorum.code(), FailureCode::EnvironmentUnreadable);
    }

    #[test]
    fn classifies_messages_of_proxmox() {
        let texts = [
            ("Configuration file 'nodes/pve1/qemu-server/9999.conf' does not exist\n", FailureCause::NoSuchGuest),
            ("unable to find configuration file for VM 301 on node 'pve-a'", FailureCause::NoSuchGuest),
            ("snapshot 'nosuch' does not exist", FailureCause::NoSuchSnapshot),
            ("snapshot name 's1' already used", FailureCause::SnapshotExists),
            ("VM is locked (backup)", FailureCause::Locked),
            ("CT is locked (snapshot-delete)\n", FailureCause::Locked),
            ("checksum missmatch (file change by other user?)", FailureCause::Changed),
            ("checksum mismatch (file change by other user?)", FailureCause::Changed),
            ("detected modified configuration - file changed by other user? Try again.\n", FailureCause::Changed),
            ("can't remove VM 100 - protection mode enabled", FailureCause::Protected),
            ("VM 100 already running", FailureCause::AlreadyRunning),
            ("CT 100 already running", FailureCause::AlreadyRunning),
            ("CT 100 not running", FailureCause::NotRunning),
            ("can't lock file '/var/lock/qemu-server/lock-100.conf' - got timeout", FailureCause::LockTimeout),
            ("generating token failed: cfs-lock 'file-user_cfg' error: no quorum!", FailureCause::NoQuorum),
            ("cfs-lock 'storage-x' error: got lock request timeout", FailureCause::LockTimeout),
            ("cluster not ready - no quorum?\n", FailureCause::NoQuorum),
            ("unable to open file '/etc/pve/nodes/pve-a/qemu-server/300.conf.tmp.21882' - Permission denied", FailureCause::NoQuorum),
            ("unable to create VM 100 - VM 100 already exists on node 'pve1'", FailureCause::AlreadyExists),
            ("close (rename) atomic file '/etc/pve/nodes/pve-a/qemu-server/301.conf' failed: File exists", FailureCause::AlreadyExists),
            ("service 'vm:100' in error state, must be disabled and fixed first", FailureCause::HaError),
            ("VM quit/powerdown failed - got timeout", FailureCause::ShutdownTimeout),
            ("VM is paused - cannot shutdown", FailureCause::Paused),
            ("VM 100 is running - destroy failed", FailureCause::Running),
            ("you can't start a CT if it's a template", FailureCause::Template),
            ("shrinking disks is not supported", FailureCause::NotGrown),
            ("bridge 'vmbr9' does not exist", FailureCause::Other),
            ("disk 'scsi5' does not exist", FailureCause::Other),
            ("invalid bootorder: device 'scsi7' does not exist'", FailureCause::Other),
            ("unexpected status", FailureCause::TaskKilled),
            ("received interrupt", FailureCause::TaskKilled),
            ("hostname lookup 'x' failed - failed to get address info for: x: Name or service not known", FailureCause::NodeUnknown),
            ("only root can set 'args' config", FailureCause::Forbidden),
            ("Permission check failed (/, Sys.Modify for modifying tag 'web')\n", FailureCause::TagForbidden),
            ("", FailureCause::Other),
        ];
        for (text, cause) in texts {
            assert_eq!(classify_text(text), cause, "{text}");
        }
    }
}
