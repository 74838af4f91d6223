//! What must not be sent: every precondition, broken one at a time between plan and apply.

use converger_core::apply::DependencyCheck;
use converger_core::guest::{GuestIdentity, GuestKind, NodeName, RunState, Vmid};
use converger_core::normalize::{Field, FieldValue, WordSet};
use converger_core::observe::PendingChange;

use super::*;

/// After these responses it ends like this, and nothing was sent.
#[track_caller]
fn check_refused(change: &str, answers: &[EnvResponse], ends: &str) {
    let (state, trace) = play_responses(new_operation(change), answers);
    assert_eq!(render_end(&state), ends, "{change}: {trace:?}");
    assert!(!trace.contains(&"send".to_owned()), "{change}: {trace:?}");
    assert!(state.is_recorded(), "a refusal is recorded (G10)");
}

fn tag_words(tags: &[&str]) -> WordSet {
    WordSet::new(tags.iter().map(|tag| (*tag).into()).collect())
}

#[test]
fn g1_does_not_touch_an_unreadable_guest() {
    let unread = || EnvResponse::Unreadable(test_fault(EnvFaultKind::Other));
    check_refused("start", &[unread(), unread(), unread()], "refused guest-unknown");
    check_refused("start", &[cluster_response(), unread(), unread(), unread()], "refused guest-unknown");
    check_refused("start", &[cluster_response(), status_response("stopped"), unread(), unread(), unread()], "refused guest-unknown");
    check_refused("start", &[cluster_response(), status_response("paused"), config_response(2)], "refused guest-unknown");
    check_refused("start", &[cluster_response(), task_ended_response(), task_sent_response(), config_response(2)], "refused guest-unknown");
}

#[test]
fn retries_one_failed_reading() {
    let unread = EnvResponse::Unreadable(test_fault(EnvFaultKind::Other));
    let answers = [unread.clone(), cluster_response(), status_response("stopped"), unread, config_response(2)];
    let (state, trace) = play_responses(new_operation("start"), &answers);
    assert_eq!((trace.last().map(String::as_str), render_end(&state).as_str()), (Some("send"), "in flight"));
}

#[test]
fn g1_sends_nothing_without_quorum_or_to_an_offline_node() {
    let EnvResponse::Cluster(whole) = cluster_response() else { panic!("a cluster") };
    let node = NodeName::new("pve1").expect("a node");
    let mut none = whole.clone();
    none.quorate = false;
    check_refused("start", &[EnvResponse::Cluster(none)], "refused not-quorate");
    let mut offline = whole.clone();
    offline.nodes.insert(node.clone(), false);
    check_refused("start", &[EnvResponse::Cluster(offline)], "refused node-offline");
    let mut unlisted = whole;
    unlisted.nodes.remove(&node);
    check_refused("start", &[EnvResponse::Cluster(unlisted)], "refused node-offline");
}

#[test]
fn does_not_touch_a_guest_with_another_identity() {
    let other = |identity| altered_config_response(|config| config.identity = identity);
    let uuid = |uuid: &str, ctime| GuestIdentity::Qemu { uuid: Some(uuid.into()), ctime };
    for identity in [uuid("other", None), uuid(UUID, Some(5)), GuestIdentity::Qemu { uuid: None, ctime: None }] {
        check_refused("start", &[cluster_response(), status_response("stopped"), other(identity)], "refused identity-mismatch");
    }
    let renamed = altered_config_response(|config| config.name = "web-2".into());
    check_refused("start", &[cluster_response(), status_response("stopped"), renamed], "refused name-mismatch");
    // Even if it looks as if the work were done: it is another guest.
    let recycled = altered_config_response(|config| config.identity = uuid("other", None));
    check_refused("start", &[cluster_response(), status_response("running"), recycled], "refused identity-mismatch");
}

#[test]
fn g3_does_not_interrupt_a_newly_protected_guest() {
    let tagged = || altered_config_response(|config| config.tags = tag_words(&["Prod"]));
    let flagged = || altered_config_response(|config| config.protection = true);
    let about_to_be = || {
        let pending = PendingChange::Known(Field::Tags, Some(FieldValue::Tags(tag_words(&["prod"]))));
        altered_config_response(|config| config.pending = Box::new([pending]))
    };
    for change in ["shutdown", "stop", "reboot"] {
        for answer in [tagged(), flagged()] {
            check_refused(change, &[cluster_response(), status_response("running"), answer], "refused protected-guest");
        }
        check_refused(change, &[cluster_response(), status_response("running"), about_to_be()], "refused config-pending");
    }
    let (state, _) = play_responses(new_operation("start"), &[cluster_response(), status_response("stopped"), tagged()]);
    assert_eq!(state.phase(), Phase::Checked, "a start interrupts nothing");
}

#[test]
fn g12_does_not_touch_a_locked_or_held_guest() {
    let locked = altered_config_response(|config| config.lock = Some("backup".into()));
    check_refused("start", &[cluster_response(), status_response("stopped"), locked], "refused guest-locked");
    let template = altered_config_response(|config| config.template = true);
    check_refused("start", &[cluster_response(), status_response("stopped"), template], "refused guest-template");
    let held = altered_config_response(|config| config.tags = tag_words(&["converger-hold"]));
    check_refused("start", &[cluster_response(), status_response("stopped"), held], "refused guest-held");
    for state in [Some("started"), Some("migrate"), None] {
        check_refused("start", &[cluster_response(), ha_status_response(state, "stopped"), config_response(2)], "refused ha-owned");
    }
    check_refused(
        "config.set",
        &[cluster_response(), ha_status_response(Some("migrate"), "stopped"), config_response(2)],
        "refused ha-owned",
    );
    let (state, _) = play_responses(
        new_operation("config.set"),
        &[cluster_response(), ha_status_response(Some("stopped"), "stopped"), config_response(2)],
    );
    assert_eq!(state.phase(), Phase::Checked, "the config of a guest in its final HA state may be changed");
}

#[test]
fn changed_guest_makes_the_plan_stale() {
    check_refused("config.set", &[cluster_response(), status_response("running"), config_response(2)], "refused plan-stale");
    check_refused("config.set", &[cluster_response(), status_response("stopped"), config_response(3)], "refused plan-stale");
    check_refused("config.set", &[cluster_response(), status_response("stopped"), pending_config_response()], "refused plan-stale");
    check_refused("reboot", &[cluster_response(), status_response("stopped"), pending_config_response()], "refused plan-stale");
    let without = altered_config_response(|config| config.revision = None);
    check_refused("config.set", &[cluster_response(), status_response("stopped"), without], "refused config-unreadable");
}

#[test]
fn does_not_apply_foreign_pending_config() {
    let foreign_pending = || altered_config_response(|config| config.pending = Box::new([PendingChange::Other("net0".into())]));
    let undeclared =
        || altered_config_response(|config| config.pending = Box::new([PendingChange::Known(Field::Sockets, Some(FieldValue::Count(2)))]));
    for change in ["start", "config.set"] {
        for answer in [foreign_pending(), undeclared()] {
            check_refused(change, &[cluster_response(), status_response("stopped"), answer], "refused config-pending");
        }
    }
    let other_value =
        altered_config_response(|config| config.pending = Box::new([PendingChange::Known(Field::Cores, Some(FieldValue::Count(8)))]));
    check_refused("reboot", &[cluster_response(), status_response("running"), other_value], "refused config-pending");
    let (state, _) = play_responses(new_operation("reboot"), &[cluster_response(), status_response("running"), pending_config_response()]);
    assert_eq!(state.phase(), Phase::Checked, "a pending declared value is ours");
}

#[test]
fn sends_nothing_if_the_desired_state_is_reached() {
    let already = |change: &str, state: &str, config: EnvResponse| {
        let expected_trace = "commit intent, cluster, status, config, commit ended, -";
        let state = check_story(change, &[cluster_response(), status_response(state), config], expected_trace, "done");
        assert!(state.outcome().expect("ended").findings().evidence.get("found_so").is_some(), "{change}");
    };
    already("start", "running", config_response(2));
    already("shutdown", "stopped", config_response(2));
    already("stop", "stopped", config_response(2));
    already("config.set", "stopped", config_response(4));
    already("config.set running", "running", pending_config_response());
    already("start", "running", altered_config_response(|config| config.lock = Some("backup".into())));
}

/// The guest was rebooted while the confirmation was pending: the config that the restart is for is in effect.
#[test]
fn skips_a_restart_whose_reason_is_gone() {
    let expected_trace = "commit intent, cluster, status, config, commit ended, -";
    let state = check_story("reboot", &[cluster_response(), status_response("running"), config_response(4)], expected_trace, "done");
    assert!(state.outcome().expect("ended").findings().evidence.get("not_needed").is_some());
    // The pending value was reverted, or both the pending and the current value have changed.
    check_refused("reboot", &[cluster_response(), status_response("running"), config_response(2)], "refused plan-stale");
    check_refused("reboot", &[cluster_response(), status_response("running"), config_response(3)], "refused plan-stale");
}

#[test]
fn follows_a_moved_guest_once_and_checks_it_there() {
    let not_found = || EnvResponse::GuestNotFound(test_fault(EnvFaultKind::GuestNotFound));
    let located_on = |node: &str| EnvResponse::Located(Some(address_on(node)));
    let answers = [cluster_response(), not_found(), located_on("pve2"), cluster_response(), status_response("stopped"), config_response(2)];
    let (state, trace) = play_responses(new_operation("start"), &answers);
    assert_eq!(trace.join(", "), "commit intent, cluster, status, where, cluster, status, config, send");
    assert_eq!(state.address(), &address_on("pve2"));
    check_refused(
        "start",
        &[cluster_response(), not_found(), located_on("pve2"), cluster_response(), not_found(), located_on("pve3")],
        "refused guest-unknown",
    );
    check_refused("start", &[cluster_response(), not_found(), located_on("pve1")], "refused guest-unknown");
    check_refused("start", &[cluster_response(), not_found(), EnvResponse::Located(None)], "refused guest-unknown");
    let lxc = EnvResponse::Located(Some(GuestAddress { kind: GuestKind::Lxc, ..address_on("pve2") }));
    check_refused("start", &[cluster_response(), not_found(), lxc], "refused kind-mismatch");
    let other = EnvResponse::Located(Some(GuestAddress { vmid: Vmid::new(101).expect("an id"), ..address_on("pve2") }));
    check_refused("start", &[cluster_response(), not_found(), other], "refused guest-unknown");
}

/// A start that depends on another guest being in this state.
fn start_with_dependency(state: RunState) -> OperationState {
    let (operation, context) = last_step_for("start");
    let address =
        GuestAddress { node: NodeName::new("pve2").expect("a node"), kind: GuestKind::Qemu, vmid: Vmid::new(200).expect("an id") };
    OperationState::new(operation, context.with_dependencies(vec![DependencyCheck { address, state }]), Patience::default())
}

#[test]
fn rereads_dependencies_before_sending() {
    let unread = || EnvResponse::Unreadable(test_fault(EnvFaultKind::Other));
    let cases = [
        (RunState::Running, vec![status_response("stopped")], "refused dependency-not-running"),
        (RunState::Stopped, vec![status_response("running")], "refused dependent-running"),
        (RunState::Running, vec![status_response("paused")], "refused dependency-refused"),
        (RunState::Running, vec![unread(), unread(), unread()], "refused dependency-refused"),
    ];
    for (state, answers, ends) in cases {
        let (state, trace) = play_responses(start_with_dependency(state), &[vec![cluster_response()], answers].concat());
        assert_eq!((render_end(&state).as_str(), trace.contains(&"send".to_owned())), (ends, false), "{trace:?}");
    }
    let (state, trace) = play_responses(
        start_with_dependency(RunState::Running),
        &[cluster_response(), status_response("running"), status_response("stopped"), config_response(2)],
    );
    assert_eq!((render_end(&state).as_str(), trace.last().map(String::as_str)), ("in flight", Some("send")), "{trace:?}");
}

/// An operation after all readings, waiting for the final hold check.
fn operation_before_hold_recheck(change: &str, now_ms: u64) -> OperationState {
    let (mut state, _) = step(new_operation(change), OperationEvent::Begin, now_ms);
    let read = [cluster_response(), status_response("stopped"), config_response(2)].map(OperationEvent::Responded);
    for event in [&[OperationEvent::Committed], &read[..], &[OperationEvent::Committed]].concat() {
        let (next, command) = step(state, event.clone(), now_ms);
        assert!(command.is_some(), "{event:?}");
        state = next;
    }
    state
}

#[test]
fn g12_hold_freeze_or_stop_before_sending_prevents_it() {
    let held = Refusal::guest_held_by_person("ann", "disk swap");
    for (why, ends) in [
        (SendBlock::Refused(held), "refused guest-held"),
        (SendBlock::Refused(Refusal::changes_frozen("audit")), "refused frozen"),
        (SendBlock::Stopped(FailureCode::RunStopped), "not-run run-stopped"),
        (SendBlock::Failed("no store".into()), "not-run journal-unwritable"),
    ] {
        let (state, trace) =
            feed_events(operation_before_hold_recheck("start", NOW_MS), &[OperationEvent::SendBlocked(why), OperationEvent::Committed]);
        assert_eq!((trace.join(", ").as_str(), render_end(&state).as_str()), ("commit ended, -", ends));
    }
}

/// After a suspend, a slow node or a paused terminal, earlier readings no longer describe the guest.
#[test]
fn s4_rereads_stale_readings_before_sending() {
    let cleared = |now_ms: u64| {
        let (_, command) = step(operation_before_hold_recheck("start", NOW_MS), OperationEvent::SendAllowed, now_ms);
        command_word(command.as_ref())
    };
    assert_eq!(cleared(NOW_MS + 10_000), "send");
    assert_eq!(cleared(NOW_MS + 10_001), "cluster");
    assert_eq!(cleared(NOW_MS - 1), "cluster", "a clock that went back shows no age");
}

#[test]
fn refuses_a_guest_whose_readings_are_always_stale() {
    let (mut state, mut now_ms) = (operation_before_hold_recheck("start", NOW_MS), NOW_MS);
    for round in 1..=5 {
        now_ms += 20_000;
        let (next, command) = step(state, OperationEvent::SendAllowed, now_ms);
        state = next;
        if round == 5 {
            assert_eq!(command_word(command.as_ref()), "commit ended");
            break;
        }
        for event in [cluster_response(), status_response("stopped"), config_response(2)]
            .map(OperationEvent::Responded)
            .into_iter()
            .chain([OperationEvent::Committed])
        {
            state = step(state, event, now_ms).0;
        }
    }
    assert_eq!(render_end(&step(state, OperationEvent::Committed, now_ms).0), "refused guest-unknown");
}

/// The same if the permit is not available before the final hold check.
#[test]
fn rechecks_a_change_without_permit_and_does_not_send_it() {
    let no_room = || OperationEvent::SendBlocked(SendBlock::NodeBusy(test_fault(EnvFaultKind::Busy)));
    let read = || [cluster_response(), status_response("stopped"), config_response(2)].map(OperationEvent::Responded);
    let rounds: Vec<OperationEvent> =
        std::iter::repeat_with(|| [&[no_room()], &read()[..], &[OperationEvent::Committed]].concat()).take(4).flatten().collect();
    let (state, trace) = feed_events(operation_before_hold_recheck("start", NOW_MS), &rounds);
    assert!(!trace.contains(&"send".to_owned()) && state.outcome().is_none(), "{trace:?}");
    let (state, trace) = feed_events(state, &[no_room(), OperationEvent::Committed]);
    assert_eq!((trace.join(", ").as_str(), render_end(&state).as_str()), ("commit ended, -", "failed not-delivered"));
}

/// A change that a busy node did not accept was not sent: it is checked again and retried a few times.
#[test]
fn retries_a_busy_node_and_gives_up_in_the_end() {
    let busy = || EnvResponse::Sent(SendResult::NotDelivered(test_fault(EnvFaultKind::Busy)));
    let round = || [cluster_response(), status_response("stopped"), config_response(2), busy()];
    let (state, trace) = play_responses(
        new_operation("start"),
        &[&round()[..], &[cluster_response(), status_response("stopped"), config_response(2)]].concat(),
    );
    assert_eq!(trace.join(", "), "commit intent, cluster, status, config, send, cluster, status, config, send");
    assert!(state.outcome().is_none());
    let rounds: Vec<EnvResponse> = std::iter::repeat_with(round).take(5).flatten().collect();
    let (state, trace) = play_responses(new_operation("start"), &rounds);
    assert_eq!((trace.iter().filter(|command| *command == "send").count(), render_end(&state).as_str()), (5, "failed not-delivered"));
}
