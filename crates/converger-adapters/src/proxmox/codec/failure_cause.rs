//! What a text of Proxmox amounts to. There is no 404, 409 or 423: not found, locked and changed by others are all 500, and
//! the text is all that tells them apart; the end of a task is such a text too.
//!
//! Texts choose a cause for people and for the engine's next reading; they never choose a target.

use converger_core::failure::FailureCode;

/// What kind of no it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FailureCause {
    /// There was no connection.
    Unreachable,
    /// There were too many other requests to its node, and it was not sent.
    Busy,
    /// Whoever answered could not be trusted to be the one that was meant.
    Untrusted,
    /// Its certificate is not valid at this time.
    CertificateExpired,
    /// Its certificate is for another name.
    CertificateOtherName,
    /// Its certificate is none of those that are pinned.
    PinMismatch,
    /// Whoever answered does not speak TLS as it must be spoken.
    NotTls,
    /// The answer did not come in time.
    TooSlow,
    /// The answer is larger than anything that is read.
    TooLarge,
    /// The answers of one reading are together larger than is read.
    ReadingTooLarge,
    /// One reading takes longer than is waited.
    ReadingTooSlow,
    /// The answer is compressed, which was not asked for.
    Compressed,
    /// The token was not accepted.
    Unauthenticated,
    /// The token may not do this.
    Forbidden,
    /// The datacenter lets only `Sys.Modify` on `/` change this tag.
    TagForbidden,
    /// A parameter is not acceptable.
    BadParameter,
    /// This server has no such call.
    NotImplemented,
    /// The node cannot be reached from the one that was asked.
    NodeUnreachable,
    /// The name of the node is not known.
    NodeUnknown,
    /// The connection to the node broke, or it took too long.
    Interrupted,
    /// The file system of the cluster is not there.
    ClusterDown,
    /// The cluster has no quorum.
    NoQuorum,
    /// The guest is not there: not on this node, or not of this kind.
    NoSuchGuest,
    /// The id is taken.
    AlreadyExists,
    /// A lock is held in the guest's config.
    Locked,
    /// Somebody else is working on the guest or on the cluster's files.
    LockTimeout,
    /// The config is not the one that was read.
    Changed,
    /// Protection is on.
    Protected,
    /// It runs already.
    AlreadyRunning,
    /// It does not run.
    NotRunning,
    /// It is paused, and cannot hear a request to go down.
    Paused,
    /// It runs, and must not for this.
    Running,
    /// It is a template.
    Template,
    /// High availability has to be mended first.
    HaError,
    /// The guest did not go down in time; it still may.
    ShutdownTimeout,
    /// There is no such snapshot.
    NoSuchSnapshot,
    /// There is one of this name.
    SnapshotExists,
    /// The disk has this size, or a larger one.
    NotGrown,
    /// A device could not be changed in the running guest; the new value waits for the next start.
    HotplugFailed,
    /// The task is not known there any more.
    NoSuchTask,
    /// The task was ended from outside, or its node went down.
    TaskKilled,
    /// The answer is not one of this API.
    Malformed,
    /// It leads elsewhere; that is not followed.
    Redirected,
    /// Something else.
    Other,
}

impl FailureCause {
    /// The failure that it is where everything rests on the reading that failed.
    #[must_use]
    pub fn code(self) -> FailureCode {
        match self {
            Self::Unreachable => FailureCode::EndpointUnreachable,
            Self::Untrusted => FailureCode::CertificateUntrusted,
            Self::CertificateExpired => FailureCode::CertificateExpired,
            Self::CertificateOtherName => FailureCode::CertificateOtherName,
            Self::PinMismatch => FailureCode::PinMismatch,
            // It waited for its turn behind answers that do not come.
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

    /// Whether there never was a connection over which anything was asked.
    #[must_use]
    pub fn is_connect_failure(self) -> bool {
        let is_distrust = matches!(self, Self::Untrusted | Self::CertificateExpired | Self::CertificateOtherName | Self::PinMismatch);
        is_distrust || matches!(self, Self::Unreachable | Self::NotTls)
    }
}

/// What is said without quorum before anything is done.
const NOT_READY: &str = "cluster not ready - no quorum?";

/// Where the list of tasks is kept.
const TASKS_LIST: &str = "/var/log/pve/tasks/";

/// Parts of texts, each with what they amount to. The first that fits counts, so the narrow ones stand first.
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

/// What a text amounts to.
#[must_use]
pub fn classify_text(text: &str) -> FailureCause {
    if has_both_parts(text, "Configuration file '", "' does not exist") {
        return FailureCause::NoSuchGuest;
    }
    if has_both_parts(text, "snapshot '", "' does not exist") {
        return FailureCause::NoSuchSnapshot;
    }
    // Without quorum the cluster's files cannot be written, and only the kernel says so.
    if has_both_parts(text, "unable to open file '/etc/pve/", "' - Permission denied") {
        return FailureCause::NoQuorum;
    }
    CAUSES_BY_TEXT.iter().find(|(part, _)| text.contains(part)).map_or(FailureCause::Other, |(_, cause)| *cause)
}

fn has_both_parts(text: &str, opening: &str, end: &str) -> bool {
    text.split_once(opening).is_some_and(|(_, rest)| rest.contains(end))
}

impl FailureCause {
    /// Whether Proxmox says this before it changes anything, whatever the call. Of quorum it may speak midway too: a config is
    /// written once for each key, and only the check that comes first has these words.
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

    /// Whether Proxmox says this before it lets a task go, where the call is carried out by one. What the task itself would say is no such
    /// word; nor is that the list of tasks is locked, which is written after the task was let go.
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

    /// The word for it in causes and reports.
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
    fn busy_node_is_reported_as_slow_answers() {
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
