//! What a text of Proxmox amounts to. There is no 404, 409 or 423: not found, locked and changed by others are all 500, and
//! the text is all that tells them apart; the end of a task is such a text too.
//!
//! Texts choose a cause for people and for the engine's next reading; they never choose a target.

use converger_core::failure::Code;

/// What kind of no it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cause {
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

impl Cause {
    /// The failure that it is where everything rests on the reading that failed.
    #[must_use]
    pub fn code(self) -> Code {
        match self {
            Self::Unreachable => Code::EndpointUnreachable,
            Self::Untrusted => Code::CertificateUntrusted,
            Self::CertificateExpired => Code::CertificateExpired,
            Self::CertificateOtherName => Code::CertificateOtherName,
            Self::PinMismatch => Code::PinMismatch,
            // It waited for its turn behind answers that do not come.
            Self::TooSlow | Self::Busy => Code::AnswerTooSlow,
            Self::TooLarge => Code::AnswerTooLarge,
            Self::ReadingTooLarge => Code::ReadingTooLarge,
            Self::ReadingTooSlow => Code::ReadingTooSlow,
            Self::Compressed => Code::AnswerCompressed,
            Self::Unauthenticated => Code::TokenRejected,
            Self::Forbidden | Self::TagForbidden => Code::TokenForbidden,
            Self::Interrupted => Code::AnswerInterrupted,
            Self::ClusterDown => Code::ClusterDown,
            Self::Malformed | Self::NotImplemented | Self::NotTls => Code::NotProxmox,
            Self::Redirected => Code::Redirected,
            Self::BadParameter | Self::NodeUnreachable | Self::NodeUnknown | Self::NoQuorum | Self::NoSuchGuest | Self::AlreadyExists => {
                Code::EnvironmentUnreadable
            }
            Self::Locked | Self::LockTimeout | Self::Changed | Self::Protected | Self::AlreadyRunning | Self::NotRunning | Self::Paused => {
                Code::EnvironmentUnreadable
            }
            Self::Running | Self::Template | Self::HaError | Self::ShutdownTimeout | Self::NoSuchSnapshot | Self::SnapshotExists => {
                Code::EnvironmentUnreadable
            }
            Self::NotGrown | Self::HotplugFailed | Self::NoSuchTask | Self::TaskKilled | Self::Other => Code::EnvironmentUnreadable,
        }
    }

    /// Whether there never was a connection over which anything was asked.
    #[must_use]
    pub fn is_no_connection(self) -> bool {
        let is_distrust = matches!(self, Self::Untrusted | Self::CertificateExpired | Self::CertificateOtherName | Self::PinMismatch);
        is_distrust || matches!(self, Self::Unreachable | Self::NotTls)
    }
}

/// What is said without quorum before anything is done.
const NOT_READY: &str = "cluster not ready - no quorum?";

/// Where the list of tasks is kept.
const TASKS_LIST: &str = "/var/log/pve/tasks/";

/// Parts of texts, each with what they amount to. The first that fits counts, so the narrow ones stand first.
const TEXTS: [(&str, Cause); 40] = [
    ("Sys.Modify for modifying tag '", Cause::TagForbidden),
    ("RPCEnvironment init request failed", Cause::ClusterDown),
    ("hostname lookup '", Cause::NodeUnknown),
    (NOT_READY, Cause::NoQuorum),
    ("no quorum!", Cause::NoQuorum),
    ("is locked (", Cause::Locked),
    ("checksum mismatch", Cause::Changed),
    ("checksum missmatch", Cause::Changed),
    ("detected modified configuration", Cause::Changed),
    ("protection mode enabled", Cause::Protected),
    ("can't lock file", Cause::LockTimeout),
    ("got lock request timeout", Cause::LockTimeout),
    ("cfs-lock '", Cause::LockTimeout),
    ("in error state, must be disabled and fixed first", Cause::HaError),
    ("powerdown failed - got timeout", Cause::ShutdownTimeout),
    ("container did not stop", Cause::ShutdownTimeout),
    ("hotplug problem - ", Cause::HotplugFailed),
    ("unable to apply pending change", Cause::HotplugFailed),
    ("if it's a template", Cause::Template),
    ("snapshot name '", Cause::SnapshotExists),
    ("shrinking disks is not supported", Cause::NotGrown),
    ("unable to shrink disk size", Cause::NotGrown),
    ("disk is already at specified size", Cause::NotGrown),
    ("unable to find configuration file for", Cause::NoSuchGuest),
    ("already exists on node", Cause::AlreadyExists),
    ("config file already exists", Cause::AlreadyExists),
    ("failed: File exists", Cause::AlreadyExists),
    ("already exists", Cause::AlreadyExists),
    ("already running", Cause::AlreadyRunning),
    ("VM is paused", Cause::Paused),
    ("is running - destroy failed", Cause::Running),
    ("container is running", Cause::Running),
    ("can't migrate running", Cause::Running),
    ("not running", Cause::NotRunning),
    ("no such task", Cause::NoSuchTask),
    ("unable to get last line from task log", Cause::TaskKilled),
    ("unexpected status", Cause::TaskKilled),
    ("received interrupt", Cause::TaskKilled),
    ("Permission check failed", Cause::Forbidden),
    ("only root can set", Cause::Forbidden),
];

/// What a text amounts to.
#[must_use]
pub fn classify(text: &str) -> Cause {
    if is_about(text, "Configuration file '", "' does not exist") {
        return Cause::NoSuchGuest;
    }
    if is_about(text, "snapshot '", "' does not exist") {
        return Cause::NoSuchSnapshot;
    }
    // Without quorum the cluster's files cannot be written, and only the kernel says so.
    if is_about(text, "unable to open file '/etc/pve/", "' - Permission denied") {
        return Cause::NoQuorum;
    }
    TEXTS.iter().find(|(part, _)| text.contains(part)).map_or(Cause::Other, |(_, cause)| *cause)
}

fn is_about(text: &str, opening: &str, end: &str) -> bool {
    text.split_once(opening).is_some_and(|(_, rest)| rest.contains(end))
}

impl Cause {
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
    fn who_found_no_room_to_ask_is_told_that_answers_are_slow() {
        assert_eq!((Cause::Busy.code(), Cause::Busy.word()), (Code::AnswerTooSlow, "busy"));
        assert_eq!(Cause::NoQuorum.code(), Code::EnvironmentUnreadable);
    }

    #[test]
    fn texts_of_proxmox_and_what_they_amount_to() {
        let texts = [
            ("Configuration file 'nodes/pve1/qemu-server/9999.conf' does not exist\n", Cause::NoSuchGuest),
            ("unable to find configuration file for VM 301 on node 'pve-a'", Cause::NoSuchGuest),
            ("snapshot 'nosuch' does not exist", Cause::NoSuchSnapshot),
            ("snapshot name 's1' already used", Cause::SnapshotExists),
            ("VM is locked (backup)", Cause::Locked),
            ("CT is locked (snapshot-delete)\n", Cause::Locked),
            ("checksum missmatch (file change by other user?)", Cause::Changed),
            ("checksum mismatch (file change by other user?)", Cause::Changed),
            ("detected modified configuration - file changed by other user? Try again.\n", Cause::Changed),
            ("can't remove VM 100 - protection mode enabled", Cause::Protected),
            ("VM 100 already running", Cause::AlreadyRunning),
            ("CT 100 already running", Cause::AlreadyRunning),
            ("CT 100 not running", Cause::NotRunning),
            ("can't lock file '/var/lock/qemu-server/lock-100.conf' - got timeout", Cause::LockTimeout),
            ("generating token failed: cfs-lock 'file-user_cfg' error: no quorum!", Cause::NoQuorum),
            ("cfs-lock 'storage-x' error: got lock request timeout", Cause::LockTimeout),
            ("cluster not ready - no quorum?\n", Cause::NoQuorum),
            ("unable to open file '/etc/pve/nodes/pve-a/qemu-server/300.conf.tmp.21882' - Permission denied", Cause::NoQuorum),
            ("unable to create VM 100 - VM 100 already exists on node 'pve1'", Cause::AlreadyExists),
            ("close (rename) atomic file '/etc/pve/nodes/pve-a/qemu-server/301.conf' failed: File exists", Cause::AlreadyExists),
            ("service 'vm:100' in error state, must be disabled and fixed first", Cause::HaError),
            ("VM quit/powerdown failed - got timeout", Cause::ShutdownTimeout),
            ("VM is paused - cannot shutdown", Cause::Paused),
            ("VM 100 is running - destroy failed", Cause::Running),
            ("you can't start a CT if it's a template", Cause::Template),
            ("shrinking disks is not supported", Cause::NotGrown),
            ("bridge 'vmbr9' does not exist", Cause::Other),
            ("disk 'scsi5' does not exist", Cause::Other),
            ("invalid bootorder: device 'scsi7' does not exist'", Cause::Other),
            ("unexpected status", Cause::TaskKilled),
            ("received interrupt", Cause::TaskKilled),
            ("hostname lookup 'x' failed - failed to get address info for: x: Name or service not known", Cause::NodeUnknown),
            ("only root can set 'args' config", Cause::Forbidden),
            ("Permission check failed (/, Sys.Modify for modifying tag 'web')\n", Cause::TagForbidden),
            ("", Cause::Other),
        ];
        for (text, cause) in texts {
            assert_eq!(classify(text), cause, "{text}");
        }
    }
}
