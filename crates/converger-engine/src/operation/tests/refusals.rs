//! What must not be sent: every precondition, broken one at a time between plan and apply.

use converger_core::apply::Reliance;
use converger_core::guest::{Identity, Kind, NodeName, RunState, Vmid};
use converger_core::normalize::{Field, Value, Words};
use converger_core::observe::Pending;

use super::*;

/// After these answers it ends like this, and nothing was sent.
#[track_caller]
fn check_refused(word: &str, answers: &[Answer], ends: &str) {
    let (state, trace) = play(fresh(word), answers);
    assert_eq!(end(&state), ends, "{word}: {trace:?}");
    assert!(!trace.contains(&"send".to_owned()), "{word}: {trace:?}");
    assert!(state.is_recorded(), "a refusal is recorded (G10)");
}

fn tags(tags: &[&str]) -> Words {
    Words::new(tags.iter().map(|tag| (*tag).into()).collect())
}

#[test]
fn g1_a_guest_that_cannot_be_read_is_not_touched() {
    let unread = || Answer::Unread(cause(Trouble::Other));
    check_refused("start", &[unread(), unread(), unread()], "refused guest-unknown");
    check_refused("start", &[cluster(), unread(), unread(), unread()], "refused guest-unknown");
    check_refused("start", &[cluster(), status("stopped"), unread(), unread(), unread()], "refused guest-unknown");
    check_refused("start", &[cluster(), status("paused"), config(2)], "refused guest-unknown");
    check_refused("start", &[cluster(), ended(), sent_task(), config(2)], "refused guest-unknown");
}

#[test]
fn one_lost_reading_is_asked_for_again() {
    let unread = Answer::Unread(cause(Trouble::Other));
    let answers = [unread.clone(), cluster(), status("stopped"), unread, config(2)];
    let (state, trace) = play(fresh("start"), &answers);
    assert_eq!((trace.last().map(String::as_str), end(&state).as_str()), (Some("send"), "under way"));
}

#[test]
fn g1_nothing_is_sent_without_quorum_or_to_a_node_that_is_offline() {
    let Answer::Cluster(whole) = cluster() else { panic!("a cluster") };
    let node = NodeName::new("pve1").expect("a node");
    let mut none = whole.clone();
    none.quorate = false;
    check_refused("start", &[Answer::Cluster(none)], "refused not-quorate");
    let mut offline = whole.clone();
    offline.nodes.insert(node.clone(), false);
    check_refused("start", &[Answer::Cluster(offline)], "refused node-offline");
    let mut unlisted = whole;
    unlisted.nodes.remove(&node);
    check_refused("start", &[Answer::Cluster(unlisted)], "refused node-offline");
}

#[test]
fn a_guest_that_is_not_the_planned_one_is_not_touched() {
    let other = |identity| changed(|config| config.identity = identity);
    let uuid = |uuid: &str, ctime| Identity::Qemu { uuid: Some(uuid.into()), ctime };
    for identity in [uuid("other", None), uuid(UUID, Some(5)), Identity::Qemu { uuid: None, ctime: None }] {
        check_refused("start", &[cluster(), status("stopped"), other(identity)], "refused identity-mismatch");
    }
    let renamed = changed(|config| config.name = "web-2".into());
    check_refused("start", &[cluster(), status("stopped"), renamed], "refused name-mismatch");
    // Also where it looks as if somebody had done the work: it is another guest.
    let recycled = changed(|config| config.identity = uuid("other", None));
    check_refused("start", &[cluster(), status("running"), recycled], "refused identity-mismatch");
}

#[test]
fn g3_a_guest_that_became_protected_is_not_interrupted() {
    let tagged = || changed(|config| config.tags = tags(&["Prod"]));
    let flagged = || changed(|config| config.protection = true);
    let about_to_be = || {
        let pending = Pending::Known(Field::Tags, Some(Value::Tags(tags(&["prod"]))));
        changed(|config| config.pending = Box::new([pending]))
    };
    for word in ["shutdown", "stop", "reboot"] {
        for answer in [tagged(), flagged()] {
            check_refused(word, &[cluster(), status("running"), answer], "refused protected-guest");
        }
        check_refused(word, &[cluster(), status("running"), about_to_be()], "refused config-pending");
    }
    let (state, _) = play(fresh("start"), &[cluster(), status("stopped"), tagged()]);
    assert_eq!(state.phase(), Phase::Checked, "a start interrupts nothing");
}

#[test]
fn g12_a_guest_that_somebody_works_on_is_not_touched() {
    let locked = changed(|config| config.lock = Some("backup".into()));
    check_refused("start", &[cluster(), status("stopped"), locked], "refused guest-locked");
    let template = changed(|config| config.template = true);
    check_refused("start", &[cluster(), status("stopped"), template], "refused guest-template");
    let held = changed(|config| config.tags = tags(&["converger-hold"]));
    check_refused("start", &[cluster(), status("stopped"), held], "refused guest-held");
    for state in [Some("started"), Some("migrate"), None] {
        check_refused("start", &[cluster(), owned(state, "stopped"), config(2)], "refused ha-owned");
    }
    check_refused("config.set", &[cluster(), owned(Some("migrate"), "stopped"), config(2)], "refused ha-owned");
    let (state, _) = play(fresh("config.set"), &[cluster(), owned(Some("stopped"), "stopped"), config(2)]);
    assert_eq!(state.phase(), Phase::Checked, "config of a settled guest is ours");
}

#[test]
fn what_is_not_as_planned_is_stale() {
    check_refused("config.set", &[cluster(), status("running"), config(2)], "refused plan-stale");
    check_refused("config.set", &[cluster(), status("stopped"), config(3)], "refused plan-stale");
    check_refused("config.set", &[cluster(), status("stopped"), config_waiting()], "refused plan-stale");
    check_refused("reboot", &[cluster(), status("stopped"), config_waiting()], "refused plan-stale");
    let without = changed(|config| config.revision = None);
    check_refused("config.set", &[cluster(), status("stopped"), without], "refused config-unreadable");
}

#[test]
fn what_waits_and_is_not_ours_is_not_applied() {
    let foreign = || changed(|config| config.pending = Box::new([Pending::Other("net0".into())]));
    let undeclared = || changed(|config| config.pending = Box::new([Pending::Known(Field::Sockets, Some(Value::Count(2)))]));
    for word in ["start", "config.set"] {
        for answer in [foreign(), undeclared()] {
            check_refused(word, &[cluster(), status("stopped"), answer], "refused config-pending");
        }
    }
    let other_value = changed(|config| config.pending = Box::new([Pending::Known(Field::Cores, Some(Value::Count(8)))]));
    check_refused("reboot", &[cluster(), status("running"), other_value], "refused config-pending");
    let (state, _) = play(fresh("reboot"), &[cluster(), status("running"), config_waiting()]);
    assert_eq!(state.phase(), Phase::Checked, "what waits with the declared value is ours");
}

#[test]
fn what_is_already_as_wanted_is_not_done_again() {
    let already = |word: &str, state: &str, config: Answer| {
        let told = "commit intent, cluster, status, config, commit ended, -";
        let state = check_story(word, &[cluster(), status(state), config], told, "done");
        assert!(state.ended().expect("ended").findings().evidence.get("found_so").is_some(), "{word}");
    };
    already("start", "running", config(2));
    already("shutdown", "stopped", config(2));
    already("stop", "stopped", config(2));
    already("config.set", "stopped", config(4));
    already("config.set running", "running", config_waiting());
    already("start", "running", changed(|config| config.lock = Some("backup".into())));
}

/// Somebody rebooted it while the question stood: what it would go down for is in effect.
#[test]
fn a_restart_whose_reason_is_gone_takes_nobody_down() {
    let told = "commit intent, cluster, status, config, commit ended, -";
    let state = check_story("reboot", &[cluster(), status("running"), config(4)], told, "done");
    assert!(state.ended().expect("ended").findings().evidence.get("not_needed").is_some());
    // Somebody took back what waited, or both what waited and what was in effect are others now.
    check_refused("reboot", &[cluster(), status("running"), config(2)], "refused plan-stale");
    check_refused("reboot", &[cluster(), status("running"), config(3)], "refused plan-stale");
}

#[test]
fn a_guest_that_moved_is_followed_once_and_checked_there() {
    let gone = || Answer::NotThere(cause(Trouble::NotThere));
    let moved = |node: &str| Answer::Where(Some(place(node)));
    let answers = [cluster(), gone(), moved("pve2"), cluster(), status("stopped"), config(2)];
    let (state, trace) = play(fresh("start"), &answers);
    assert_eq!(trace.join(", "), "commit intent, cluster, status, where, cluster, status, config, send");
    assert_eq!(state.place(), &place("pve2"));
    check_refused("start", &[cluster(), gone(), moved("pve2"), cluster(), gone(), moved("pve3")], "refused guest-unknown");
    check_refused("start", &[cluster(), gone(), moved("pve1")], "refused guest-unknown");
    check_refused("start", &[cluster(), gone(), Answer::Where(None)], "refused guest-unknown");
    let lxc = Answer::Where(Some(Place { kind: Kind::Lxc, ..place("pve2") }));
    check_refused("start", &[cluster(), gone(), lxc], "refused kind-mismatch");
    let other = Answer::Where(Some(Place { vmid: Vmid::new(101).expect("an id"), ..place("pve2") }));
    check_refused("start", &[cluster(), gone(), other], "refused guest-unknown");
}

/// A start that relies on another guest being so.
fn relying(state: RunState) -> State {
    let (operation, terms) = step_of("start");
    let place = Place { node: NodeName::new("pve2").expect("a node"), kind: Kind::Qemu, vmid: Vmid::new(200).expect("an id") };
    State::new(operation, terms.with_reliances(vec![Reliance { place, state }]), Patience::default())
}

#[test]
fn what_a_step_relies_on_is_read_again_before_anything_is_sent() {
    let unread = || Answer::Unread(cause(Trouble::Other));
    let cases = [
        (RunState::Running, vec![status("stopped")], "refused dependency-not-running"),
        (RunState::Stopped, vec![status("running")], "refused dependent-running"),
        (RunState::Running, vec![status("paused")], "refused dependency-refused"),
        (RunState::Running, vec![unread(), unread(), unread()], "refused dependency-refused"),
    ];
    for (state, answers, ends) in cases {
        let (state, trace) = play(relying(state), &[vec![cluster()], answers].concat());
        assert_eq!((end(&state).as_str(), trace.contains(&"send".to_owned())), (ends, false), "{trace:?}");
    }
    let (state, trace) = play(relying(RunState::Running), &[cluster(), status("running"), status("stopped"), config(2)]);
    assert_eq!((end(&state).as_str(), trace.last().map(String::as_str)), ("under way", Some("send")), "{trace:?}");
}

/// Up to the moment at which everything was read and nothing speaks against it, and what is asked for then.
fn ready(word: &str, now_ms: u64) -> State {
    let (mut state, _) = step(fresh(word), Event::Begin, now_ms);
    let read = [cluster(), status("stopped"), config(2)].map(Event::Answered);
    for event in [&[Event::Committed], &read[..], &[Event::Committed]].concat() {
        let (next, command) = step(state, event.clone(), now_ms);
        assert!(command.is_some(), "{event:?}");
        state = next;
    }
    state
}

#[test]
fn g12_what_people_and_signals_say_before_it_is_sent_keeps_it_from_being_sent() {
    let held = Refusal::guest_held_by("ann", "disk swap");
    for (why, ends) in [
        (NotCleared::Refused(held), "refused guest-held"),
        (NotCleared::Refused(Refusal::frozen("audit")), "refused frozen"),
        (NotCleared::Stopped(Code::RunStopped), "not-run run-stopped"),
        (NotCleared::Failed("no store".into()), "not-run journal-unwritable"),
    ] {
        let (state, trace) = feed(ready("start", NOW_MS), &[Event::NotCleared(why), Event::Committed]);
        assert_eq!((trace.join(", ").as_str(), end(&state).as_str()), ("commit ended, -", ends));
    }
}

/// A machine that slept, a slow node, a terminal that was stopped: what was read before is not true of now.
#[test]
fn s4_what_was_read_too_long_ago_is_read_again_before_it_is_sent() {
    let cleared = |now_ms: u64| {
        let (_, command) = step(ready("start", NOW_MS), Event::Cleared, now_ms);
        shown(command.as_ref())
    };
    assert_eq!(cleared(NOW_MS + 10_000), "send");
    assert_eq!(cleared(NOW_MS + 10_001), "cluster");
    assert_eq!(cleared(NOW_MS - 1), "cluster", "a clock that went back shows no age");
}

#[test]
fn a_guest_whose_readings_are_always_old_is_refused_and_not_sent() {
    let (mut state, mut now_ms) = (ready("start", NOW_MS), NOW_MS);
    for round in 1..=5 {
        now_ms += 20_000;
        let (next, command) = step(state, Event::Cleared, now_ms);
        state = next;
        if round == 5 {
            assert_eq!(shown(command.as_ref()), "commit ended");
            break;
        }
        for event in [cluster(), status("stopped"), config(2)].map(Event::Answered).into_iter().chain([Event::Committed]) {
            state = step(state, event, now_ms).0;
        }
    }
    assert_eq!(end(&step(state, Event::Committed, now_ms).0), "refused guest-unknown");
}

/// The same where the room is asked for before the last word.
#[test]
fn a_change_for_which_there_is_no_room_is_checked_anew_without_being_sent() {
    let no_room = || Event::NotCleared(NotCleared::NoRoom(cause(Trouble::Busy)));
    let read = || [cluster(), status("stopped"), config(2)].map(Event::Answered);
    let rounds: Vec<Event> =
        std::iter::repeat_with(|| [&[no_room()], &read()[..], &[Event::Committed]].concat()).take(4).flatten().collect();
    let (state, trace) = feed(ready("start", NOW_MS), &rounds);
    assert!(!trace.contains(&"send".to_owned()) && state.ended().is_none(), "{trace:?}");
    let (state, trace) = feed(state, &[no_room(), Event::Committed]);
    assert_eq!((trace.join(", ").as_str(), end(&state).as_str()), ("commit ended, -", "failed not-delivered"));
}

/// A change for which there was no room was not sent: it is checked anew, and tried again a few times.
#[test]
fn a_change_that_found_no_room_is_checked_anew_and_given_up_in_the_end() {
    let busy = || Answer::Sent(Sent::NotDelivered(cause(Trouble::Busy)));
    let round = || [cluster(), status("stopped"), config(2), busy()];
    let (state, trace) = play(fresh("start"), &[&round()[..], &[cluster(), status("stopped"), config(2)]].concat());
    assert_eq!(trace.join(", "), "commit intent, cluster, status, config, send, cluster, status, config, send");
    assert!(state.ended().is_none());
    let rounds: Vec<Answer> = std::iter::repeat_with(round).take(5).flatten().collect();
    let (state, trace) = play(fresh("start"), &rounds);
    assert_eq!((trace.iter().filter(|word| *word == "send").count(), end(&state).as_str()), (5, "failed not-delivered"));
}
