//! Tests of the simulation itself: a run without violations in which everything occurs, sagas, one schedule per seed in any process, and
//! planted bugs that are detected.

#[path = "../../../converger-adapters/tests/lab/commands.rs"]
#[allow(dead_code, reason = "only the names of the writes are of interest here")]
mod commands;
#[path = "sim.rs"]
mod sim;

use std::collections::BTreeSet;
use std::process::Command;

use converger_core::apply::{JournalRecord, RunStart};
use converger_core::testing::{Rng, some_binding, some_inputs, some_operations};
use converger_store::{Batch, MemoryStore, StoreWrite};
use sim::{
    PlantedBug, SAGAS, SimulationResult, UNPLAYED_WRITES, catch_panic, check_altered_ledgers, detects_wrong_inverses, drawn_fault_names,
    find_bug, run_sagas, simulate_schedules, simulate_seed,
};

/// A few schedules in every build; `cargo xtask simulate` runs any number.
#[test]
fn no_schedule_breaks_a_rule_and_every_fault_and_state_occurs() {
    let tally = simulate_schedules(0, 2_000, 2, None);
    let first = tally.violations.first_key_value().map(|(seed, violation)| format!("seed {seed}: {} {}", violation.rule, violation.text));
    assert_eq!(first, None, "one of {}; `cargo xtask simulate --seed N` tells the story of a seed", tally.violations.len());
    assert_eq!(tally.missing_events(), Vec::<String>::new(), "seeds 0 to 1999");
}

/// A panic is reported with its seed, so that nobody has to search for it.
#[test]
fn panic_is_a_violation_of_its_seed_only() {
    let left = catch_panic(7, || -> SimulationResult { panic!("op-{} cannot be", 1) });
    let violation = left.violation.map(|violation| (violation.rule, violation.text));
    assert_eq!(violation, Some(("panic", "op-1 cannot be".to_owned())));
    assert!(simulate_seed(8, None, false).violation.is_none());
    let many = simulate_schedules(0, 100, 1, Some(PlantedBug::Unwrap));
    let panics = many.violations.values().filter(|violation| violation.rule == "panic").count();
    assert!((1..100).contains(&panics) && many.schedules == 100, "{panics} of {}", many.schedules);
}

/// The ledger check detects what it is meant to detect.
#[test]
fn detects_a_ledger_that_differs_from_its_journal() {
    let store = MemoryStore::new();
    let operation = some_operations(&mut Rng::new(11), "run-1").swap_remove(0);
    let (id, environment, plan) = (operation.run.clone(), operation.environment.clone(), operation.plan);
    let run = RunStart { id, environment: environment.clone(), plan, by: "ann".into(), at_ms: 1, boot: None };
    let intent = JournalRecord::Intent { operation: Box::new(operation), at_ms: 2 };
    let binding = StoreWrite::Bind(some_binding(&environment));
    let batch = Batch::from(binding).with(StoreWrite::RunStarted { run, inputs: Box::new(some_inputs()) }).with(intent);
    assert!(store.commit_now(batch).is_ok());
    let found = check_altered_ledgers(&store);
    assert_eq!(found.iter().map(Option::is_some).collect::<Vec<_>>(), [false, true, true, true], "{found:?}");
}

#[test]
fn g13_every_operation_survives_a_fault_or_crash_at_each_step() {
    let sagas = run_sagas();
    assert_eq!(sagas.wrong, Vec::<String>::new(), "of {} stories", sagas.stories);
    assert!(sagas.stories > 3_000 && sagas.sends > 3_000, "{} stories, {} changes", sagas.stories, sagas.sends);
    let sent: Vec<String> = sagas.sent.iter().map(|(kind, verb)| format!("{kind} {verb}")).collect();
    let of_containers = ["clone", "config", "migrate", "resize", "shutdown", "start", "stop"].map(|verb| format!("lxc {verb}"));
    let of_machines =
        ["clone", "config", "delsnapshot", "migrate", "reboot", "resize", "rollback", "shutdown", "snapshot", "start", "stop"];
    let all: Vec<String> = of_containers.into_iter().chain(of_machines.map(|verb| format!("qemu {verb}"))).collect();
    assert_eq!(sent, all, "every change that there is, and no other");
    assert_eq!(sagas.played.len(), SAGAS.len(), "{:#?}", sagas.played);
    // All except restarts, whose steps are undone individually, and what nothing takes back: deletion, rollback, growth, clones and
    // provisioning.
    let undone = sagas.played.values().filter(|effects| effects.contains_key("undone")).count();
    assert_eq!(undone, SAGAS.len() - 2 - 10, "{:#?}", sagas.played);
}

/// The published inverse is the one that the sagas use.
#[test]
fn s21_detects_an_inverse_that_was_not_published() {
    assert_eq!(detects_wrong_inverses(), [true, true]);
}

/// A new write in the codec needs a saga, or a reason why not.
#[test]
fn every_codec_write_has_a_saga_or_a_stated_reason() {
    let named = UNPLAYED_WRITES.map(|(name, _)| name);
    let of_desired_state = ["Start", "Shutdown", "Stop", "RebootQemu", "ConfigSet"];
    let of_requests = ["SnapshotCreate", "SnapshotDelete", "SnapshotRollback", "Clone", "Migrate", "Grow", "Provision"];
    let played = of_desired_state.into_iter().chain(of_requests);
    let all: BTreeSet<&str> = named.into_iter().chain(played).collect();
    assert_eq!(commands::command_variants("ProxmoxWrite"), all);
    assert!(UNPLAYED_WRITES.iter().all(|(_, reason)| !reason.is_empty()));
}

/// A new fault in the lab or in the store must be drawn here, for each service and each TLS identity too.
#[test]
fn every_fault_of_lab_and_store_is_drawn() {
    let (event_source, fault) =
        (include_str!("../../../converger-lab/src/fault/world_event.rs"), include_str!("../../../converger-lab/src/fault.rs"));
    let (wire, store) = (include_str!("../../../converger-lab/src/wire.rs"), include_str!("../../../converger-store/src/memory.rs"));
    let of = |source: &'static str, name: &str| commands::enum_variants(source, name);
    let named = |source, name: &'static str| of(source, name).into_iter().map(move |variant| format!("{name} {variant}"));
    let mut all: BTreeSet<String> =
        named(event_source, "WorldEvent").chain(named(fault, "ResponseFault")).chain(named(fault, "TaskFaultEffect")).collect();
    all.extend(named(store, "CommitFault"));
    for service in ["ServiceDown", "ServiceHung", "ServiceUp"] {
        all.extend(of(event_source, "NodeService").into_iter().map(|part| format!("{service} {part}")));
    }
    all.extend(of(wire, "TlsIdentity").into_iter().map(|identity| format!("Show {identity}")));
    assert_eq!(drawn_fault_names(), all);
}

/// Run completely, or forked from the shared opening of its world: for as many worlds as there are seeds here.
#[test]
fn same_seed_gives_same_schedule() {
    for seed in (0..2_000).map(|number| number * 17) {
        assert_eq!(simulate_seed(seed, None, false), simulate_whole(seed, None), "{seed}");
    }
}

/// The planted bug affects both.
#[test]
fn same_seed_gives_same_schedule_with_a_bug() {
    let cases = PlantedBug::ALL.into_iter().flat_map(|bug| (0..24).map(move |number| (bug, number * 17)));
    let mut broken = 0;
    for (bug, seed) in cases {
        let short = simulate_seed(seed, Some(bug), false);
        broken += u32::from(short.violation.is_some());
        assert_eq!(short, simulate_whole(seed, Some(bug)), "{seed} {bug:?}");
    }
    assert!(broken > 200, "{broken} rules were broken");
}

/// The result of a simulation from its first moment, without its lines.
fn simulate_whole(seed: u64, bug: Option<PlantedBug>) -> SimulationResult {
    SimulationResult { lines: Vec::new(), ..simulate_seed(seed, bug, true) }
}

/// Many simulations run interleaved.
#[test]
fn same_seed_gives_same_schedule_when_interleaved() {
    let alone = SEEDS.fold(0_u64, |sum, seed| sum.wrapping_add(simulate_seed(seed, None, false).hash.wrapping_mul(seed | 1)));
    assert_eq!(simulate_schedules(SEEDS.start, SEEDS.end - SEEDS.start, 1, None).hash, alone);
}

const SEEDS: std::ops::Range<u64> = 0..50;

/// The hash of each seed's schedule, one per line.
fn seed_hashes() -> Vec<String> {
    SEEDS.map(|seed| format!("seed {seed} {:016x}", simulate_seed(seed, None, false).hash)).collect()
}

/// Almost no two seeds give the same schedule, so the number of schedules is meaningful.
#[test]
fn nearly_every_seed_gives_a_different_schedule() {
    let hashes: BTreeSet<u64> = (0..3_200).map(|seed| simulate_seed(seed, None, false).hash).collect();
    assert!(hashes.len() > 3_100, "{} stories", hashes.len());
}

/// Prints the hashes that the next test compares with another process.
#[test]
fn every_seed_has_a_hash() {
    let hashes = seed_hashes();
    assert!(hashes.iter().all(|line| !line.ends_with(" 0000000000000000")), "{hashes:#?}");
    println!("\n{}", hashes.join("\n"));
}

#[test]
fn same_seed_gives_same_schedule_in_another_process() {
    let own = std::env::current_exe().expect("this test is a program");
    let arguments = ["--exact", "every_seed_has_a_hash", "--nocapture"];
    let output = Command::new(own).args(arguments).output().expect("it can be started again");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let reported_hashes: Vec<&str> = text.lines().filter(|line| line.starts_with("seed ")).collect();
    assert_eq!(reported_hashes, seed_hashes(), "{text}");
}

#[test]
fn detects_every_planted_bug() {
    assert!(PlantedBug::ALL.len() >= 20);
    let missed: Vec<PlantedBug> = PlantedBug::ALL.into_iter().filter(|bug| find_bug(*bug, 10_000).is_none()).collect();
    assert_eq!(missed, []);
}
