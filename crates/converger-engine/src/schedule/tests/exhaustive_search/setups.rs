//! The setups that the search explores: operations, guests and possible faults.

use super::*;

impl SearchSetup {
    /// Three operations on two guests, one of which depends on the other guest, and all faults.
    pub(in super::super) fn all_faults() -> Self {
        Self {
            limits: ConcurrencyLimits { per_node: 2, overall: 2 },
            on_failure: OnFailure::Continue,
            plans: vec![vec![schedule_item("r", 100, 0), schedule_item("r", 100, 1), after_guests(&[100], schedule_item("r", 101, 0))]],
            ends: &OperationEnd::ALL,
            may_drain: true,
            may_hold: Some(100),
            may_move: None,
            may_lose_journal: true,
            crashes_max: 1,
            planted: None,
        }
    }

    /// Six guests, two of which have dependencies, on two nodes with different load, with tight limits.
    pub(in super::super) fn with_tight_limits() -> Self {
        let plan = vec![
            schedule_item("r", 100, 0),
            schedule_item("r", 101, 0),
            schedule_item("r", 102, 0),
            on_node("pve2", after_guests(&[100], schedule_item("r", 103, 0))),
            on_node("pve2", schedule_item("r", 104, 0)),
            on_node("pve2", after_guests(&[101, 104], schedule_item("r", 105, 0))),
        ];
        let (limits, ends): (_, &'static [OperationEnd]) =
            (ConcurrencyLimits { per_node: 2, overall: 3 }, &[OperationEnd::Done, OperationEnd::Failed]);
        Self { limits, ends, plans: vec![plan], may_hold: None, may_lose_journal: false, crashes_max: 0, ..Self::all_faults() }
    }

    /// A newer plan comes while the first is in flight, beside a one-shot request.
    pub(in super::super) fn with_newer_plan() -> Self {
        let once = ScheduleItem { is_convergent: false, ..schedule_item("o", 100, 7) };
        let first = vec![
            schedule_item("r", 100, 0),
            schedule_item("r", 100, 1),
            schedule_item("r", 101, 0),
            after_guests(&[100], schedule_item("r", 101, 1)),
        ];
        let second = vec![schedule_item("s", 100, 0), after_guests(&[100], schedule_item("s", 101, 0))];
        let (limits, ends): (_, &'static [OperationEnd]) =
            (ConcurrencyLimits { per_node: 1, overall: 1 }, &[OperationEnd::Done, OperationEnd::Failed, OperationEnd::Held]);
        Self { limits, ends, plans: vec![first, vec![once], second], may_lose_journal: false, crashes_max: 0, ..Self::all_faults() }
    }

    /// The first failure stops the run.
    pub(in super::super) fn stop_on_failure() -> Self {
        let plan = vec![
            schedule_item("r", 100, 0),
            schedule_item("r", 101, 0),
            on_node("pve2", schedule_item("r", 102, 0)),
            after_guests(&[102], schedule_item("r", 103, 0)),
        ];
        let more = vec![on_node("pve2", schedule_item("s", 104, 0))];
        Self {
            on_failure: OnFailure::Stop,
            plans: vec![plan, more],
            ends: &[OperationEnd::Done, OperationEnd::Refused],
            crashes_max: 0,
            ..Self::all_faults()
        }
    }

    /// More operations were in flight at a crash than can be recovered at once, and each may fail or be met by a drain.
    pub(in super::super) fn recovery_setup() -> Self {
        let plan =
            vec![schedule_item("r", 100, 0), on_node("pve2", schedule_item("r", 101, 0)), after_guests(&[101], schedule_item("r", 102, 0))];
        Self {
            limits: ConcurrencyLimits { per_node: 1, overall: 1 },
            on_failure: OnFailure::Continue,
            plans: vec![plan],
            ends: &[OperationEnd::Done, OperationEnd::Held],
            may_hold: None,
            may_lose_journal: false,
            crashes_max: 2,
            ..Self::all_faults()
        }
    }

    /// A guest is found on another node with few free slots; it has more steps and a dependent.
    pub(in super::super) fn moved_guest() -> Self {
        let plan = vec![
            schedule_item("r", 100, 0),
            schedule_item("r", 100, 1),
            on_node("pve2", schedule_item("r", 101, 0)),
            on_node("pve2", schedule_item("r", 102, 0)),
            after_guests(&[100], schedule_item("r", 103, 0)),
        ];
        let (limits, ends): (_, &'static [OperationEnd]) =
            (ConcurrencyLimits { per_node: 1, overall: 2 }, &[OperationEnd::Done, OperationEnd::Failed]);
        let may_move = Some((100, "pve2"));
        Self { limits, ends, plans: vec![plan], may_hold: None, may_move, may_lose_journal: false, crashes_max: 0, ..Self::all_faults() }
    }

    /// A guest is stopped and started again, while everything else may stop or be lost.
    pub(in super::super) fn restart_in_two_steps() -> Self {
        let up = ScheduleItem { completes_restart: true, ..schedule_item("r", 100, 2) };
        let config = ScheduleItem { is_power: false, ..schedule_item("r", 100, 0) };
        let plan =
            vec![config, schedule_item("r", 100, 1), up, schedule_item("r", 101, 0), after_guests(&[100], schedule_item("r", 102, 0))];
        let (limits, ends): (_, &'static [OperationEnd]) =
            (ConcurrencyLimits { per_node: 1, overall: 1 }, &[OperationEnd::Done, OperationEnd::Failed]);
        Self {
            limits,
            ends,
            on_failure: OnFailure::Stop,
            plans: vec![plan],
            may_hold: None,
            may_move: Some((100, "pve2")),
            ..Self::all_faults()
        }
    }

    /// Two crashes; the second may hit the recovery after the first.
    pub(in super::super) fn two_crashes() -> Self {
        let plan = vec![
            schedule_item("r", 100, 0),
            schedule_item("r", 100, 1),
            schedule_item("r", 101, 0),
            after_guests(&[100], schedule_item("r", 102, 0)),
        ];
        let ends: &'static [OperationEnd] = &[OperationEnd::Done, OperationEnd::Failed, OperationEnd::Held];
        Self { ends, plans: vec![plan], may_drain: false, may_hold: None, may_lose_journal: false, crashes_max: 2, ..Self::all_faults() }
    }

    /// More guests at once than a person could reason about, with a newer plan, a drain, a hold and a crash.
    pub(in super::super) fn large_plan() -> Self {
        let config = ScheduleItem { is_power: false, ..schedule_item("r", 101, 0) };
        let first = vec![
            schedule_item("r", 100, 0),
            schedule_item("r", 100, 1),
            config,
            on_node("pve2", schedule_item("r", 102, 0)),
            on_node("pve2", after_guests(&[100, 102], schedule_item("r", 103, 0))),
        ];
        let ends: &'static [OperationEnd] = &[OperationEnd::Done, OperationEnd::Failed];
        let limits = ConcurrencyLimits { per_node: 2, overall: 3 };
        Self { limits, ends, plans: vec![first], may_hold: None, may_lose_journal: false, ..Self::all_faults() }
    }

    /// The setups that are fast to search.
    pub(in super::super) fn small_setups() -> [(&'static str, Self); 7] {
        let (everything, limited) = (("everything", Self::all_faults()), ("limited", Self::with_tight_limits()));
        let (moved_guest, restart) = (("moved", Self::moved_guest()), ("restart", Self::restart_in_two_steps()));
        [
            everything,
            limited,
            ("newer", Self::with_newer_plan()),
            ("wave", Self::stop_on_failure()),
            ("recovery", Self::recovery_setup()),
            moved_guest,
            restart,
        ]
    }

    pub(in super::super) fn explore_all(self) -> Result<SearchSummary, BrokenRule> {
        explore(&ScheduleModel::new(self), 300_000)
    }
}
