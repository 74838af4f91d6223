//! How long is waited for what, in milliseconds of waiting, and of asking where that told nothing. No clock ends it: one that jumps adds half a minute
//! at most.

use converger_core::action::Change;

use super::precheck::READING_AGE_MS_MAX;

/// How long is waited for what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// For the task of a start or a stop.
    pub task_ms: u64,
    /// For the task of a shutdown or reboot beyond the time that the guest was given.
    pub slack_ms: u64,
    /// For any task, at most: whoever comes back after a crash does not wait for one guest before looking at the others.
    pub task_ms_max: u64,
    /// For the guest to be as promised, once the task has ended.
    pub verify_ms: u64,
    /// For a guest to come up again after a reboot: its task ends when it is down.
    pub reboot_ms: u64,
    /// For any guest to come up again, at most: whoever comes back after a crash waits for none.
    pub reboot_ms_max: u64,
    /// For something that cannot be read to be readable again.
    pub unreadable_ms: u64,
    /// Before a change whose answer was lost is looked for again. A daemon that hangs may carry a request out
    /// half a minute after everybody has given up on it, so the sum is well above that.
    pub lookup_waits_ms: &'static [u64],
    /// After its mark: so much later what was sent before a crash comes no more. As long as a living process would wait for its answer and look for
    /// it after that, and as much longer as a mark may be older than the sending.
    pub late_arrival_ms: u64,
}

/// What the answer to a change may take, with the connection for it, where nobody says otherwise.
pub const RESPONSE_MS_MAX: u64 = 60_000;
/// What one answer counts for at most, however long it took: a machine that slept meanwhile has not waited.
const COUNTED_RESPONSE_MS_MAX: u64 = 30_000;
/// Before a change whose answer was lost is looked for again.
const LOOKUP_WAITS_MS: [u64; 7] = [500, 1_000, 2_000, 4_000, 8_000, 15_000, 30_000];

/// The shortest wait before something is asked again.
const WAIT_MS_MIN: u64 = 250;
/// The longest.
const WAIT_MS_MAX: u64 = 5_000;

impl Default for Patience {
    fn default() -> Self {
        Self {
            task_ms: 600_000,
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
    /// Where answers may take so long. What was sent before a crash may have been waited for longer than is now, and never for less than usual.
    #[must_use]
    pub fn with_response_timeout(self, ms: u64) -> Self {
        Self { late_arrival_ms: ms.max(RESPONSE_MS_MAX).saturating_add(lookup_total_ms() + READING_AGE_MS_MAX), ..self }
    }

    /// For whoever comes back after a crash and has to know where everything stands: what is still at work keeps its guest until the
    /// next reading, and nobody else waits for it. Each is well below the two seconds in which a restart must be ready.
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

    /// For what was found in the journal: whoever comes back looks for what arrived, and waits for nothing that may still arrive. The sum
    /// is well below the two seconds in which a restart must be ready.
    pub(super) fn for_recovery(self) -> Self {
        Self { lookup_waits_ms: &[250, 750], ..self }
    }

    /// For what was held until it can be read: it is read now, or stays held. Nobody waits for it a second time.
    pub(super) fn for_held(self) -> Self {
        Self { task_ms_max: 0, reboot_ms_max: 0, ..self.for_startup().for_recovery() }
    }

    /// How long the task of a change may take.
    pub(super) fn task_timeout_ms(&self, change: &Change) -> u64 {
        let ms = match change {
            Change::Shutdown { timeout_secs } | Change::Reboot { timeout_secs } => {
                u64::from(*timeout_secs).saturating_mul(1000).saturating_add(self.slack_ms)
            }
            Change::ConfigSet(_) | Change::Start | Change::Stop => self.task_ms,
        };
        ms.min(self.task_ms_max)
    }

    /// Whether the task of a change is waited for as long as it may take: what is given up before is not late.
    pub(super) fn covers_whole_task(&self, change: &Change) -> bool {
        self.task_timeout_ms(change) < self.task_ms_max
    }

    /// How long a guest may take to be as promised.
    pub(super) fn promise_timeout_ms(&self, change: &Change) -> u64 {
        match change {
            Change::Reboot { .. } => self.reboot_ms.min(self.reboot_ms_max),
            Change::ConfigSet(_) | Change::Start | Change::Shutdown { .. } | Change::Stop => self.verify_ms,
        }
    }

    /// Whether a guest whose reboot was begun so long ago may still be on its way up, for whoever does not wait for that. Without an age
    /// it may: the next reading has one.
    pub(super) fn may_still_boot(&self, change: &Change, age_secs: Option<u64>) -> bool {
        let Change::Reboot { timeout_secs } = change else { return false };
        let whole_ms = u64::from(*timeout_secs).saturating_mul(1000).saturating_add(self.slack_ms).saturating_add(self.reboot_ms);
        self.reboot_ms_max < self.reboot_ms && age_secs.is_none_or(|secs| secs.saturating_mul(1000) < whole_ms)
    }
}

/// How long a living process looks for a change whose answer was lost.
const fn lookup_total_ms() -> u64 {
    let (mut sum, mut at) = (0, 0);
    while at < LOOKUP_WAITS_MS.len() {
        sum += LOOKUP_WAITS_MS[at];
        at += 1;
    }
    sum
}

/// What an answer that was asked for then counts for now.
pub(super) fn counted_response_ms(then_ms: u64, now_ms: u64) -> u64 {
    now_ms.saturating_sub(then_ms).min(COUNTED_RESPONSE_MS_MAX)
}

/// The next wait, after so much waiting: a sixteenth of it, so that what is waited for is noticed soon without asking often.
///
/// Whatever is noticed late keeps its room in the lanes for as long: with an eighth a fleet took up to 16 % longer than its tasks.
pub(super) fn next_wait_ms(waited_ms: u64) -> u64 {
    (waited_ms / 16).clamp(WAIT_MS_MIN, WAIT_MS_MAX)
}
