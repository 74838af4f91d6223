//! What the design rules about a run: whoever leaves it, what is found in the journal, what was asked for once, what waits for a
//! restart, and guests that do not listen.

use converger_core::apply::{Findings, IdempotencyKey, Record, Resolution, Source, Terms};
use converger_core::artifact::Digest;
use converger_core::plan::Verdict;

use super::*;

fn one_at_a_time() -> Settings {
    Settings { limits: Limits { per_node: 1, overall: 1 }, ..Settings::default() }
}

/// What was said before the first step counts for the first step.
#[test]
fn a_drain_that_was_said_before_the_run_lets_nothing_begin() {
    for signal in [Signal::Drain, Signal::Quit] {
        let (world, store) = (started(), MemoryStore::new());
        let (says, hears) = watch::channel(Signal::GoOn);
        let plan = approved(&wanted(), &world);
        let run = begun(&world, &store, &plan, "r1").expect("taken");
        let report = block(async {
            let process = Process::start(&world, store.clone(), Settings::default(), hears);
            // The run was accepted before: it is not refused, and ends without having begun.
            let slot = process.executor.reserve_slot().expect("a slot");
            says.send(signal).expect("somebody listens");
            process.executor.submit(slot, process.submission(plan, run)).wait().await.expect("the run is answered")
        });
        let ended = block(store.run(RunId::new("r1").expect("an id"))).expect("readable").expect("it is there").ended;
        assert_eq!(ended.map(|(end, _)| end), Some(End::NotRun), "{signal:?}");
        assert!(shown(&report).iter().all(|line| line.ends_with("not-run run-stopped")), "{signal:?}: {:?}", shown(&report));
        assert_eq!((world.sends(), world.asked()), (std::collections::BTreeMap::new(), 0), "{signal:?}");
        let known = block(store.operations(Filter::default(), 10)).expect("readable");
        assert_eq!(known, [], "{signal:?}: not even an intent");
    }
}

/// Two nodes with two guests each, of which one was emptied after the plan was made: the other one is asked for no more at once than it
/// would have been, and everything is done.
#[test]
fn a_node_that_took_the_guests_of_another_has_one_limit_for_all_of_them() {
    let ids = [100, 101, 102, 103];
    let (world, store) = (World::new(&ids.map(|vmid| (vmid, "stopped"))), MemoryStore::new());
    let wanted = ids.map(|vmid| json!({ "vmid": vmid, "kind": "qemu", "name": "web", "state": "running" }));
    let mut rows = world.rows();
    rows[2]["node"] = json!("pve2");
    rows[3]["node"] = json!("pve2");
    let plan = approved_on(&wanted, &rows);
    world.move_all_to("pve2");
    let settings = Settings { limits: Limits { per_node: 1, overall: 9 }, ..Settings::default() };
    let report = apply_plan(&world, &store, plan, "r1", settings);
    assert_eq!(shown(&report), ids.map(|vmid| format!("{vmid} start: done")));
    assert_eq!((world.sends(), world.most_tasks()), (ids.map(|vmid| (vmid, 1)).into(), 1));
}

/// Somebody restored a store in which the operation has ended: nothing that this run writes can be relied on, and nothing more is sent.
#[test]
fn a_journal_that_turns_a_record_down_stops_the_run_and_says_why() {
    let (world, store) = (started(), MemoryStore::new());
    let other = store.clone();
    world.on_first_send(move || {
        let id = OperationId::new("r1-0").expect("an id");
        let outcome = Outcome::failed(Code::TaskFailed, Findings::default());
        let _ = other.commit_now(Record::Ended { id, outcome, at_ms: NOW_MS }.into()).expect("taken");
    });
    let report = apply(&world, &store, "r1", one_at_a_time(), quiet()).expect("the run begins");
    assert_eq!(shown(&report)[0], "100 start: held journal-unwritable");
    let said = report.operations()[0].outcome.findings().evidence.get("said");
    assert_eq!(said, Some(&Fact::from("operation `r1-0`: it has ended already: failed")));
    assert!(shown(&report)[1..].iter().all(|line| line.ends_with("not-run journal-unwritable")), "{:?}", shown(&report));
    assert_eq!(world.sends(), [(100, 1)].into());
}

#[test]
fn what_is_left_in_the_middle_is_found_out_at_the_next_start_and_not_sent_again() {
    let (world, store) = (started(), MemoryStore::new());
    let (says, hears) = watch::channel(Signal::GoOn);
    world.on_first_send(move || says.send(Signal::Quit).expect("somebody listens"));
    let report = apply(&world, &store, "r1", one_at_a_time(), hears).expect("the run begins");
    assert_eq!(shown(&report)[0], "100 start: held run-left");
    assert!(!report.operations()[0].is_recorded, "the journal has it open");
    assert!(shown(&report)[1..].iter().all(|line| line.ends_with("not-run run-stopped")), "{:?}", shown(&report));
    let again = apply(&world, &store.crash(), "r2", Settings::default(), quiet()).expect("the run begins");
    assert_eq!(shown(&again)[0], "100 start: done", "found out by reading");
    assert!(again.operations()[0].is_recovered);
    assert_eq!(world.sends().get(&100), Some(&1));
    assert_eq!(again.end(), End::Done, "{:?}", shown(&again));
}

/// A guest whose past is not known comes later, and others do not wait for it.
#[test]
fn g12_nothing_new_of_a_guest_begins_before_its_past_is_found_out() {
    let (world, store) = (started(), MemoryStore::new());
    let (says, hears) = watch::channel(Signal::GoOn);
    world.on_first_send(move || says.send(Signal::Quit).expect("somebody listens"));
    apply(&world, &store, "r1", one_at_a_time(), hears).expect("the run begins");
    let store = store.crash();
    // The plan does not know yet that guest 100 is about to run, and wants it once more.
    let plan = approved(&wanted(), &World::new(&[(100, "stopped"), (101, "running"), (102, "running"), (103, "stopped")]));
    let run = begun(&world, &store, &plan, "r2").expect("taken");
    let told = Arc::new(Mutex::new(Vec::new()));
    let listen = || -> OnNotice {
        let own = Arc::clone(&told);
        Box::new(move |notice| {
            own.lock().expect("told").push((notice.operation.guest.vmid.get(), notice.operation.run.as_str().to_owned(), notice.phase));
        })
    };
    let report = block(async {
        let process = Process::start(&world, store.clone(), Settings::default(), quiet());
        let unsettled = process.executor.find_unsettled().await.expect("readable");
        assert_eq!(unsettled.histories().len(), 1);
        let (actuator, patience) = (Arc::new(world.clone()), Patience::default());
        let recovered = process.executor.recover(RecoverySubmission { unsettled, actuator, patience, on_notice: listen() });
        let slot = process.executor.reserve_slot().expect("a slot");
        let applied = process.executor.submit(slot, RunSubmission { on_notice: listen(), ..process.submission(plan, run) });
        recovered.wait().await.expect("it is found out");
        applied.wait().await.expect("the run begins")
    });
    let told = told.lock().expect("told");
    let at = |run: &str, phase: Phase| told.iter().position(|own| *own == (100, run.to_owned(), phase)).expect("it was told");
    assert!(at("r1", Phase::Ended) < at("r2", Phase::Recorded), "{told:?}");
    let others = told.iter().position(|(vmid, run, _)| *vmid != 100 && run == "r2").expect("others were told");
    assert!(others < at("r1", Phase::Ended), "others do not wait: {told:?}");
    assert_eq!((report.end(), world.sends().get(&100)), (End::Done, Some(&1)), "{:?}", shown(&report));
}

/// A person holds guest 100.
fn hold(store: &MemoryStore) {
    let (vmid, by, reason) = (Vmid::new(100).expect("an id"), "bob".into(), "maintenance".into());
    let hold = Hold { environment: environment(), vmid, by, reason, at_ms: NOW_MS };
    assert!(store.commit_now(Batch::from(Write::Hold(hold))).is_ok());
}

/// What comes of the plan to start guest 100, and how much was sent.
fn start_one(world: &World, store: &MemoryStore, signal: watch::Receiver<Signal>) -> (String, usize) {
    let plan = approved(&wanted()[..1], world);
    let run = begun(world, store, &plan, "r1").expect("taken");
    let run = async { Process::start(world, store.clone(), Settings::default(), signal).submit(plan, run).wait().await };
    (shown(&block(run).expect("the run begins")).concat(), world.sends().len())
}

/// Decision 0017: what is said while a change waits for room in its node's lane is heard before it is sent.
#[test]
fn g12_what_is_said_while_a_change_waits_for_room_keeps_it_from_being_sent() {
    let said = |say: fn(MemoryStore, watch::Sender<Signal>)| {
        let (world, store) = (World::new(&[(100, "stopped")]), MemoryStore::new());
        let (says, hears) = watch::channel(Signal::GoOn);
        let own = store.clone();
        world.on_first_turn(move || say(own, says));
        start_one(&world, &store, hears)
    };
    let held = said(|store, _| hold(&store));
    assert_eq!(held, ("100 start: refused guest-held".into(), 0));
    let frozen = said(|store, _| {
        let freeze = Freeze { environment: environment(), by: "bob".into(), reason: "audit week".into(), at_ms: NOW_MS };
        assert!(store.commit_now(Batch::from(Write::Freeze(freeze))).is_ok());
    });
    assert_eq!(frozen, ("100 start: refused frozen".into(), 0));
    let stopped = said(|_, says| says.send(Signal::Drain).expect("somebody listens"));
    assert_eq!(stopped, ("100 start: not-run run-stopped".into(), 0));
}

/// The process is stopped by a signal right after its last question, a person holds the guest, and the process goes on.
#[test]
fn g12_what_is_said_after_a_last_word_that_is_heard_late_keeps_it_from_being_sent() {
    let after = |ms: u64| {
        let (world, store) = (World::new(&[(100, "stopped")]), MemoryStore::new());
        let (own, clock) = (store.clone(), world.clone());
        let held_late = move || {
            hold(&own);
            clock.pass(ms);
        };
        let looks = world.clone();
        world.on_first_turn(move || looks.after_next_look(held_late));
        start_one(&world, &store, quiet())
    };
    assert_eq!(after(2_001), ("100 start: refused guest-held".into(), 0));
    assert_eq!(after(2_000), ("100 start: done".into(), 1), "so late may a hold be, and no later");
}

/// One operation under a key, as an action service would have it.
fn once(run: &str, key: &str, request: &str) -> (Operation, Terms) {
    let (mut operation, terms) = testing::step_of("start");
    operation.id = OperationId::new(&format!("{run}-0")).expect("an id");
    operation.run = RunId::new(run).expect("an id");
    operation.source = Source::OneShot { key: IdempotencyKey::new(key).expect("a key"), request: Digest::of_bytes(request.as_bytes()) };
    (operation, terms)
}

fn act_once(world: &World, store: &MemoryStore, (operation, terms): (Operation, Terms)) -> Report {
    let (id, environment, plan) = (operation.run.clone(), operation.environment.clone(), operation.plan);
    let run = Run { id: id.clone(), environment: environment.clone(), plan, by: "ann".into(), at_ms: NOW_MS, boot: None };
    let run = Write::RunStarted { run, inputs: Box::new(some_inputs()) };
    let binding = Write::Bind(some_binding(&environment));
    let _ = store.commit_now(Batch::from(binding).with(run)).expect("taken");
    let clock = Arc::new(Ticking::new(NOW_MS, world.clone()));
    let (executor, mut execution) = Executor::parts(environment, Arc::new(store.clone()), clock, Limits::default(), quiet());
    let slot = executor.reserve_slot().expect("a slot");
    // No plan leads to such an operation yet: it is handed to the task itself.
    block(async {
        let report = execution.submit_operations(vec![(operation, terms)], id, slot, Arc::new(world.clone()));
        drop(executor);
        execution.run().await;
        report.await.expect("answered").expect("the run begins")
    })
}

#[test]
fn g13_a_request_under_one_key_is_carried_out_once() {
    let (world, store) = (World::new(&[(100, "stopped")]), MemoryStore::new());
    assert_eq!(shown(&act_once(&world, &store, once("r1", "key-1", "start web"))), ["100 start: done"]);
    let store = store.crash();
    for (run, request) in [("r2", "start web"), ("r3", "start something else")] {
        let report = act_once(&world, &store, once(run, "key-1", request));
        assert_eq!(shown(&report), ["100 start: not-run request-repeated"], "{request}");
        let evidence = &report.operations()[0].outcome.findings().evidence;
        assert_eq!(evidence.get("operation"), Some(&Fact::from("r1-0")), "{request}: the first one is named");
    }
    assert_eq!(world.sends(), [(100, 1)].into());
    assert_eq!(shown(&act_once(&world, &store, once("r4", "key-2", "start web"))), ["100 start: done"], "another key is another request");
}

/// Design 6.21: what cannot be plugged is written and waits; that is done, and the next plan finds nothing to do.
#[test]
fn config_that_waits_for_a_restart_is_done_and_stays_so() {
    let (world, store) = (World::new(&[(102, "running")]), MemoryStore::new());
    let guests = [json!({ "vmid": 102, "kind": "qemu", "name": "web", "config": { "cores": 4 } })];
    let run = |name: &str| apply_plan(&world, &store, approved(&guests, &world), name, Settings::default());
    let report = run("r1");
    assert_eq!(shown(&report), ["102 config.set: done"]);
    let observed = &report.operations()[0].outcome.findings().observed;
    assert_eq!(observed.get("pending_restart"), Some(&Fact::Words(Box::new(["cores".into()]))));
    let plan = testing::plan(&guests, &world.rows());
    assert_eq!(plan.verdicts(), [Verdict::Converged { pending_restart: true }]);
    assert_eq!((run("r2").operations().len(), world.sends()), (0, [(102, 1)].into()), "nobody restarts it");
}

/// Design 6.22: a guest that does not go down is held until it is read, and nothing harder is ever tried.
#[test]
fn a_guest_that_does_not_listen_is_held_then_let_go_and_never_stopped_hard() {
    let (world, store) = (started(), MemoryStore::new());
    world.is_deaf(101);
    let report = apply(&world, &store, "r1", Settings::default(), quiet()).expect("the run begins");
    assert_eq!(shown(&report)[1], "101 shutdown: held shutdown-timeout");
    assert!(matches!(&report.operations()[1].outcome, Outcome::Held { release: Release::Reading, .. }), "{:?}", report.operations()[1]);
    for run in ["r2", "r3"] {
        let report = apply(&world, &store.clone(), run, Settings::default(), quiet()).expect("the run begins");
        let told = shown(&report);
        assert_eq!(told, ["101 shutdown: failed shutdown-timeout", "101 shutdown: held shutdown-timeout"], "{run}");
    }
    let words: Vec<String> = world.order().into_iter().filter(|(vmid, _)| *vmid == 101).map(|(_, word)| word).collect();
    assert_eq!(words, ["shutdown"; 3]);
}

/// A person resolves what is being read again: what they said stands, and nobody else is stopped for it.
#[test]
fn a_person_who_resolves_faster_than_the_reading_stops_nobody() {
    let (world, store) = (started(), MemoryStore::new());
    world.is_deaf(101);
    apply(&world, &store, "r1", Settings::default(), quiet()).expect("the run begins");
    let plan = approved(&wanted(), &world);
    let run = begun(&world, &store, &plan, "r2").expect("taken");
    let (id, recovered, applied) = block(async {
        let process = Process::start(&world, store.clone(), Settings::default(), quiet());
        let unsettled = process.executor.find_unsettled().await.expect("readable");
        let [held] = unsettled.histories() else { panic!("{unsettled:?}") };
        let (id, by, reason) = (held.operation.id.clone(), "ann".into(), "it went down at last, and was started again".into());
        let said = Record::Resolved { id: id.clone(), resolution: Resolution::Done, by, reason, at_ms: NOW_MS };
        let _ = store.commit_now(Batch::from(said)).expect("taken");
        let (actuator, patience) = (Arc::new(world.clone()), Patience::default());
        let recovery = RecoverySubmission { unsettled, actuator, patience, on_notice: Box::new(|_| ()) };
        let (recovered, applied) = (process.executor.recover(recovery), process.submit(plan, run));
        (id, recovered.wait().await.expect("it is read"), applied.wait().await.expect("the run begins"))
    });
    assert_eq!(shown(&recovered), ["101 shutdown: failed shutdown-timeout"]);
    assert_eq!(shown(&applied), ["101 shutdown: held shutdown-timeout"]);
    let known = block(store.operation(id)).expect("readable").expect("it is there");
    assert_eq!(known.progress().resolution, Some(Resolution::Done), "what the person said stands");
}
