//! How long an operation waits, in milliseconds of waiting and of requests without a result. No clock ends a wait: one that jumps adds at
//! most half a minute.

use converger_core::action::Change;

use super::precheck::READING_AGE_MS_MAX;

/// How long an operation waits for each kind of event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// For the task of a start or a stop.
    pub task_ms: u64,
    /// For the task of a clone, a migration or a snapshot, which copies disks or memory.
    pub copy_ms: u64,
    /// For the task of a shutdown or reboot, beyond the timeout that the guest was given.
    pub slack_ms: u64,
    /// For any task, at most. Recovery sets it low, so that one guest does not delay the others.
    pub task_ms_max: u64,
    /// For the promised state, after the task has ended.
    pub verify_ms: u64,
    /// For a guest to be up again after a reboot, whose task ends when the guest is down.
    pub reboot_ms: u64,
    /// For any guest to be up again, at most. Recovery does not wait for that.
    pub reboot_ms_max: u64,
    /// For something that cannot be read to become readable again.
    pub unreadable_ms: u64,
    /// Before each search for a change whose response was lost. A daemon that hangs may execute a request half a minute after every
    /// client has given up, so the sum is well above that.
    pub lookup_waits_ms: &'static [u64],
    /// Counted from the sending mark: after this time, a change that was sent before a crash no longer arrives. It covers the time that a
    /// live process would wait for the response and search for the task, and the time that may pass between the mark and the sending.
    pub late_arrival_ms: u64,
}

/// The default limit for the response to a change, including the connection.
pub const RESPONSE_MS_MAX: u64 = 60_000;
/// The most that one response counts, however long it took: a machine that was suspended has not waited.
const COUNTED_RESPONSE_MS_MAX: u64 = 30_000;
/// The waits before each search for a change whose response was lost.
const LOOKUP_WAITS_MS: [u64; 7] = [500, 1_000, 2_000, 4_000, 8_000, 15_000, 30_000];

/// The shortest wait before something is requested again.
const WAIT_MS_MIN: u64 = 250;
/// The longest such wait.
const WAIT_MS_MAX: u64 = 5_000;

impl Default for Patience {
    fn default() -> Self {
        Self {
            task_ms: 600_000,
            copy_ms: 6 * 3_600_000,
            slack_ms: 60_000,
            task_ms_max: u64::MAX,
            verify_ms: 10_000,
            reboot_ms: 120_000,
            reboot_ms_max: u64::MAX,
            unreadable_ms: 60_000,
            lookup_waits_ms: &LOOKUP_WAITS_MS,
            late_arrival_ms: RESPONSE_MS_MAX + lookup_total_ms() + READING_AGE_MS_MAX,
        }
    }
}

impl Patience {
    /// Adapts to a response timeout. The process before a crash may have used a longer one, so a shorter timeout than the default changes
    /// nothing.
    #[must_use]
    pub fn with_response_timeout(self, ms: u64) -> Self {
        Self { late_arrival_ms: ms.max(RESPONSE_MS_MAX).saturating_add(lookup_total_ms() + READING_AGE_MS_MAX), ..self }
    }

    /// For the recovery at startup: a guest whose operation is still running stays occupied until the next reading, and nothing else
    /// waits for it. Each wait is well below the two seconds in which a restart must be ready.
    #[must_use]
    pub fn for_startup(self) -> Self {
        let short = |ms: u64| ms.min(1_000);
        Self {
            task_ms_max: short(self.task_ms_max),
            verify_ms: short(self.verify_ms),
            reboot_ms_max: short(self.reboot_ms_max),
            unreadable_ms: short(self.unreadable_ms),
            ..self
        }
    }

    /// For operations from the journal: searches for what has arrived, and does not wait for what may still arrive. The sum is well below
    /// the two seconds in which a restart must be ready.
    pub(super) fn for_recovery(self) -> Self {
        Self { lookup_waits_ms: &[250, 750], ..self }
    }

    /// For held operations: reads once, and keeps the operation held if that does not settle it.
    pub(super) fn for_held(self) -> Self {
        Self { task_ms_max: 0, reboot_ms_max: 0, ..self.for_startup().for_recovery() }
    }

    /// The timeout for the task of a change.
    pub(super) fn task_timeout_ms(&self, change: &Change) -> u64 {
        let ms = match change {
            Change::Shutdown { timeout_secs } | Change::Reboot { timeout_secs } => {
                u64::from(*timeout_secs).saturating_mul(1000).saturating_add(self.slack_ms)
            }
            Change::ConfigSet(_) | Change::Provision(_) | Change::Start | Change::Stop | Change::DiskGrow(_) => self.task_ms,
            Change::SnapshotCreate(_) | Change::SnapshotDelete(_) | Change::SnapshotRollback(_) | Change::Migrate(_) | Change::Clone(_) => {
                self.copy_ms
            }
        };
        ms.min(self.task_ms_max)
    }

    /// Whether the task of a change is waited for as long as it may take. If the wait is cut short, the task is not overdue.
    pub(super) fn covers_whole_task(&self, change: &Change) -> bool {
        self.task_timeout_ms(change) < self.task_ms_max
    }

    /// The timeout for the promised state.
    pub(super) fn promise_timeout_ms(&self, change: &Change) -> u64 {
        match change {
            Change::Reboot { .. } => self.reboot_ms.min(self.reboot_ms_max),
            Change::ConfigSet(_)
            | Change::Start
            | Change::Shutdown { .. }
            | Change::Stop
            | Change::SnapshotCreate(_)
            | Change::SnapshotDelete(_)
            | Change::SnapshotRollback(_)
            | Change::DiskGrow(_)
            | Change::Migrate(_)
            | Change::Clone(_)
            | Change::Provision(_) => self.verify_ms,
        }
    }

    /// Whether a guest whose reboot started `age_secs` ago may still be booting, if booting is not waited for. Without an age it may; the
    /// next reading has one.
    pub(super) fn may_still_boot(&self, change: &Change, age_secs: Option<u64>) -> bool {
        let Change::Reboot { timeout_secs } = change else { return false };
        let whole_ms = u64::from(*timeout_secs).saturating_mul(1000).saturating_add(self.slack_ms).saturating_add(self.reboot_ms);
        self.reboot_ms_max < self.reboot_ms && age_secs.is_none_or(|secs| secs.saturating_mul(1000) < whole_ms)
    }
}

/// How long a live process searches for a change whose response was lost.
const fn lookup_total_ms() -> u64 {
    let (mut sum, mut at) = (0, 0);
    while at < LOOKUP_WAITS_MS.len() {
        sum += LOOKUP_WAITS_MS[at];
        at += 1;
    }
    sum
}

/// How much a response counts that was requested at `then_ms`.
pub(super) fn counted_response_ms(then_ms: u64, now_ms: u64) -> u64 {
    now_ms.saturating_sub(then_ms).min(COUNTED_RESPONSE_MS_MAX)
}

/// The next wait, after `waited_ms` of waiting: a sixteenth of that, so that changes are noticed soon without frequent requests.
///
/// An operation that notices its end late keeps its slot on the node: with an eighth, a fleet took up to 16 % longer than its tasks.
pub(super) fn next_wait_ms(waited_ms: u64) -> u64 {
    (waited_ms / 16).clamp(WAIT_MS_MIN, WAIT_MS_MAX)
}
