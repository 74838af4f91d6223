//! Whether the id of a new guest is free: before a clone is sent, and after its response was lost. A new guest counts as not made only once
//! its id is free in the whole cluster.

use converger_core::action::Change;
use converger_core::apply::{BootId, ClusterMembership, IdState, LiveConfig};
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

/// No task is listed, and the new guest is not on its node, however often it is read. The node answers so about its id, and then about the
/// id of its source.
fn recover_without_trace(id_states: &[IdState]) -> (OperationState, Vec<String>) {
    recover_with_status(&status_response("stopped"), id_states)
}

/// The same with this answer about the run-state of the source.
fn recover_with_status(status: &EnvResponse, id_states: &[IdState]) -> (OperationState, Vec<String>) {
    let uptime = Uptime { boot: BootId::new("boot-2").expect("an id"), ms: u64::MAX };
    let state = OperationState::recover(open_clone(), Patience::default(), Some(&uptime)).expect("open");
    let missing = EnvResponse::GuestNotFound(test_fault(EnvFaultKind::GuestNotFound));
    let ids = id_states.iter().map(|id_state| EnvResponse::IdState(*id_state));
    let look: Vec<EnvResponse> = [EnvResponse::Tasks(Vec::new()), status.clone(), missing].into_iter().chain(ids).collect();
    // Late enough that the change cannot arrive any more.
    let now_ms = NOW_MS + Patience::default().late_arrival_ms;
    play_responses_at(now_ms, state, &std::iter::repeat_n(look, 100).flatten().collect::<Vec<_>>())
}

#[test]
fn s5_clone_is_not_carried_out_only_if_its_id_is_free_in_the_whole_cluster() {
    let (state, trace) = recover_without_trace(&[IdState::Free, IdState::Taken]);
    assert_eq!(render_end(&state), "failed not-carried-out");
    assert!(!trace.contains(&"send".to_owned()), "{trace:?}");
    // Proxmox makes a guest for another node on the node of its source first.
    let (state, trace) = recover_without_trace(&[IdState::Taken]);
    assert_eq!(render_end(&state), "held outcome-unclear (person)");
    assert_eq!(state.outcome().expect("ended").findings().observed.get("new_id"), Some(&"taken".into()));
    assert!(trace.iter().filter(|command| *command == "id").count() > 1, "it is read again: {trace:?}");
    assert!(!trace.contains(&"send".to_owned()), "{trace:?}");
}

/// A node whose list of guests is empty calls every id free. That proves nothing about the new id.
#[test]
fn s5_clone_is_not_given_up_because_of_an_incomplete_list_of_ids() {
    let (state, trace) = recover_without_trace(&[IdState::Free, IdState::Free]);
    assert_eq!(render_end(&state), "held outcome-unread (reading)");
    assert!(!trace.contains(&"send".to_owned()), "{trace:?}");
}

/// The config and the ids are answered by another process than the daemon that may still execute the clone.
#[test]
fn s20_clone_is_not_given_up_while_the_daemon_of_its_source_hangs() {
    let silent = EnvResponse::Unreadable(test_fault(EnvFaultKind::Other));
    let (state, trace) = recover_with_status(&silent, &[IdState::Free, IdState::Taken]);
    assert_eq!(render_end(&state), "held outcome-unread (reading)");
    assert!(!trace.contains(&"send".to_owned()), "{trace:?}");
    // A source that is gone is an answer of the daemon too.
    let gone = EnvResponse::GuestNotFound(test_fault(EnvFaultKind::GuestNotFound));
    let (state, _) = recover_with_status(&gone, &[IdState::Free, IdState::Taken]);
    assert_eq!(render_end(&state), "failed not-carried-out");
}

/// A new clone whose checks give these answers about ids, and nothing else wrong.
fn check_with_ids(id_states: &[IdState]) -> (OperationState, Vec<String>) {
    let OperationHistory { operation, .. } = open_clone();
    let parameters = [("newid", "120"), ("name", "web-7"), ("node", "pve2")];
    let plan = RequestWorld::default().plan_action("vm.clone", GuestKind::Qemu, 900, &parameters);
    let (_, context) = plan_operations(&plan).swap_remove(0);
    let Change::Clone(clone) = &operation.step.change else { panic!("a clone") };
    let source = LiveConfig {
        name: clone.source.name.clone(),
        identity: clone.source.identity.clone(),
        template: clone.source.template,
        digest: Some(clone.source.digest.clone()),
        ..live_config(2)
    };
    let nodes = ["pve1", "pve2"].map(|node| (address_on(node).node, true)).into();
    let cluster = EnvResponse::Cluster(ClusterMembership { quorate: true, nodes });
    let readings = [cluster, status_response("stopped"), EnvResponse::Config(Box::new(source))];
    let ids = id_states.iter().map(|id_state| EnvResponse::IdState(*id_state));
    let state = OperationState::new(*operation, context, Patience::default());
    play_responses_at(NOW_MS, state, &readings.into_iter().chain(ids).collect::<Vec<_>>())
}

#[test]
fn s5_clone_is_sent_only_if_a_complete_list_calls_its_id_free() {
    use IdState::{Free, Taken};
    let sends = |id_states: &[IdState]| check_with_ids(id_states).1.contains(&"send".to_owned());
    assert!(sends(&[Free, Taken]));
    assert!(sends(&[Free, Free, Free, Taken]), "the list was incomplete for a moment");
    let (state, trace) = check_with_ids(&[Taken]);
    assert_eq!((render_end(&state).as_str(), trace.contains(&"send".to_owned())), ("refused id-taken", false), "{trace:?}");
    let (state, trace) = check_with_ids(&[Free; 6]);
    assert_eq!((render_end(&state).as_str(), trace.contains(&"send".to_owned())), ("refused guest-unknown", false), "{trace:?}");
}
