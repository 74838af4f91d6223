//! Recovery of a clone whose response was lost: a new guest counts as not made only once its id is free in the whole cluster.

use converger_core::apply::{BootId, IdState};
use converger_core::guest::GuestKind;
use converger_core::testing::RequestWorld;

use super::*;

/// The history of a clone with its intent only: the process died before it recorded a task.
fn open_clone() -> OperationHistory {
    let parameters = [("newid", "120"), ("name", "web-7"), ("node", "pve2")];
    let plan = RequestWorld::default().plan_action("vm.clone", GuestKind::Qemu, 900, &parameters);
    let (operation, _) = plan_operations(&plan).swap_remove(0);
    OperationHistory::from_intent(Box::new(operation), NOW_MS)
}

/// No task is listed, and the new guest is not on its node, however often it is read.
fn recover_without_trace(id_state: IdState) -> (OperationState, Vec<String>) {
    let uptime = Uptime { boot: BootId::new("boot-2").expect("an id"), ms: u64::MAX };
    let state = OperationState::recover(open_clone(), Patience::default(), Some(&uptime)).expect("open");
    let missing = EnvResponse::GuestNotFound(test_fault(EnvFaultKind::GuestNotFound));
    let look = [EnvResponse::Tasks(Vec::new()), missing, EnvResponse::IdState(id_state)];
    // Late enough that the change cannot arrive any more.
    let now_ms = NOW_MS + Patience::default().late_arrival_ms;
    play_responses_at(now_ms, state, &std::iter::repeat_n(look, 20).flatten().collect::<Vec<_>>())
}

#[test]
fn s5_clone_is_not_carried_out_only_if_its_id_is_free_in_the_whole_cluster() {
    let (state, trace) = recover_without_trace(IdState::Free);
    assert_eq!(render_end(&state), "failed not-carried-out");
    assert!(!trace.contains(&"send".to_owned()), "{trace:?}");
    // Proxmox makes a guest for another node on the node of its source first.
    let (state, trace) = recover_without_trace(IdState::Taken);
    assert_eq!(render_end(&state), "held outcome-unclear (person)");
    assert_eq!(state.outcome().expect("ended").findings().observed.get("new_id"), Some(&"taken".into()));
    assert!(trace.iter().filter(|command| *command == "id").count() > 1, "it is read again: {trace:?}");
    assert!(!trace.contains(&"send".to_owned()), "{trace:?}");
}
