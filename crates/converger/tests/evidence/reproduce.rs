//! Decisions that were recorded are made again byte for byte by a process that knows nothing of the one that made them: with another locale,
//! another time zone and another working directory.
//!
//! Ten thousand of them are drawn and recorded here, as a run records them. `converger backtest` makes each again before it weighs it, all in
//! one process; `converger reproduce` is asked for some of them.

use std::path::Path;
use std::process::Command;

use converger_core::apply::{End, Run, RunId};
use converger_core::artifact::Digest;
use converger_core::evidence::{Entry, Kept, keep};
use converger_core::guest::EnvironmentName;
use converger_core::policy::{Circumstances, Grip, GripBy, Host, Limits, Mark, Rules};
use converger_core::safety::judge;
use converger_core::testing::{Rng, World, some_config};
use converger_store::conformance::now;
use converger_store::{Batch, Settings, SqliteStore, Store as _, Write};
use serde_json::Value;

use crate::bed::Said;

const SEED: u64 = 20_261_116;
const DECISIONS: u64 = 10_000;
/// So many share a transaction.
const GROUP: u64 = 80;

/// Limits that some plans pass, people who hold guests, and machines of all sorts.
fn decision(number: u64) -> Kept {
    let rng = &mut Rng::new(SEED ^ (number << 20));
    let mut inputs = World::small(rng).parse().unwrap_or_else(|faults| panic!("{number}: {faults:?}"));
    let mut grips = Vec::new();
    for guest in inputs.desired.guests() {
        match rng.below(8) {
            0 => grips.push(Grip { vmid: guest.vmid, by: GripBy::Person { by: "ann".into(), reason: "a \"look\"\n".into() } }),
            1 => grips.push(Grip { vmid: guest.vmid, by: GripBy::Operation("op-1".into()) }),
            _ => (),
        }
    }
    let mut rules: Rules = (*inputs.rules).clone().with_grips(grips);
    if rng.one_in(2) {
        let host = Host::new(["bc:24:11:00:00:01".into()], ["00112233-4455-6677-8899-AABBCCDDEEFF".into()]);
        rules = rules.with_host(if rng.one_in(2) { host.with_device() } else { host.without([Mark::HardwareAddresses]) });
    }
    let [guests, percent, stops] = [50, 100, 5].map(|most| u32::try_from(rng.below(most + 1)).unwrap_or(0));
    let limits = if rng.one_in(2) { Limits::default() } else { Limits { guests, percent, stops } };
    // Letters that change their length, or their case, with a locale.
    let circumstances = Circumstances { freeze: rng.one_in(4).then(|| "\u{131}stanbul I\u{307} \u{202e}move".to_owned()) };
    let config = some_config(&rules, limits, None);
    inputs.rules = rules.into();
    keep(&judge(inputs.plan(), limits, circumstances), env!("CARGO_PKG_VERSION"), config).expect("memory takes it")
}

/// All that a run writes which decides and is refused.
pub(crate) fn decided(number: u64) -> Vec<Write> {
    writes(number, decision(number))
}

fn name(number: u64) -> String {
    format!("run-{number}")
}

/// What a run that is refused writes.
fn writes(number: u64, kept: Kept) -> Vec<Write> {
    let (id, at_ms) = (RunId::new(&name(number)).expect("an id"), 1_794_700_800_000 + number);
    let environment = EnvironmentName::new("lab").expect("a name");
    let run = Run { id: id.clone(), environment, plan: kept.plan, by: "ann".into(), at_ms, boot: None };
    let mut writes: Vec<Write> = kept.blobs.into_iter().map(Write::blob).collect();
    writes.push(Write::RunStarted { run, inputs: Box::new(kept.inputs) });
    writes.push(Write::decision(Entry::PlanMade { run: id.clone(), plan: kept.plan, judgement: kept.judgement, at_ms }));
    writes.push(Write::RunEnded { id, end: End::Refused, at_ms });
    writes
}

/// A state directory with so many decisions, and their digests.
fn recorded(state: &Path, count: u64) -> Vec<(Digest, Digest)> {
    let store = SqliteStore::open(state, Settings::new(|fatal| panic!("{fatal}"))).expect("opens");
    let mut digests = Vec::new();
    for first in (0..count).step_by(usize::try_from(GROUP).expect("small")) {
        let mut batch = Vec::new();
        for number in first..count.min(first + GROUP) {
            let kept = decision(number);
            digests.push((kept.plan, kept.judgement));
            batch.extend(writes(number, kept));
        }
        let _ = now(store.commit(Batch::new(batch))).expect("written");
    }
    digests
}

/// The program far from here: nothing of this process is around it.
fn far_away(room: &Path, state: &Path, arguments: &[&str]) -> Said {
    let elsewhere = room.join("\u{131}rak");
    std::fs::create_dir_all(&elsewhere).expect("made");
    let mut program = Command::new(env!("CARGO_BIN_EXE_converger"));
    program.args(arguments).current_dir(elsewhere).env_clear().env("STATE_DIRECTORY", state).env("USER", "bob");
    program.env("LC_ALL", "tr_TR.UTF-8").env("LANG", "tr_TR.UTF-8").env("TZ", "Pacific/Chatham");
    program.output().expect("it starts").into()
}

fn json(said: &Said) -> Value {
    serde_json::from_str(&said.out).unwrap_or_else(|_| panic!("{said:?}"))
}

#[test]
fn ten_thousand_decisions_are_made_again_in_another_process_with_another_locale_and_time_zone() {
    let room = tempfile::tempdir().expect("a directory");
    let (state, candidate) = (room.path().join("state"), room.path().join("candidate.toml"));
    let digests = recorded(&state, DECISIONS);
    let distinct: std::collections::BTreeSet<_> = digests.iter().collect();
    println!("{DECISIONS} decisions, {} of them distinct; seed {SEED}", distinct.len());
    assert!(distinct.len() as u64 > DECISIONS * 9 / 10);
    std::fs::write(&candidate, "").expect("written");
    let said = far_away(room.path(), &state, &["backtest", "--json", "--config", &candidate.display().to_string()]);
    assert!(matches!(said.code, Some(0 | 4)), "{:?} {}", said.code, said.err);
    let weighed = json(&said);
    assert_eq!((&weighed["weighed"], &weighed["unread"]), (&Value::from(DECISIONS), &Value::Array(Vec::new())));
    for number in (0..DECISIONS).step_by(997) {
        let said = far_away(room.path(), &state, &["reproduce", &name(number), "--json"]);
        assert_eq!(said.code, Some(0), "{said:?}");
        let (plan, judgement) = &digests[usize::try_from(number).expect("small")];
        let again = json(&said);
        assert_eq!((&again["same"], &again["run"]), (&Value::Bool(true), &Value::from(name(number))));
        assert_eq!((&again["plan"], &again["judgement"]), (&Value::from(plan.to_string()), &Value::from(judgement.to_string())));
    }
    let said = far_away(room.path(), &state, &["verify"]);
    assert_eq!(said.code, Some(0), "{said:?}");
}

/// The last of them is taken, and nobody is left to think that it is the only one.
#[test]
fn a_plan_that_several_runs_made_is_told_with_the_run_that_is_taken() {
    let room = tempfile::tempdir().expect("a directory");
    let state = room.path().join("state");
    let store = SqliteStore::open(&state, Settings::new(|fatal| panic!("{fatal}"))).expect("opens");
    for number in [5, 6, 7] {
        let _ = now(store.commit(Batch::new(writes(number, decision(1))))).expect("written");
    }
    drop(store);
    let plan = decision(1).plan.to_string();
    let said = far_away(room.path(), &state, &["reproduce", &plan]);
    assert_eq!(said.code, Some(0), "{said:?}");
    for words in
        ["run-7 in lab", "2 earlier runs made the same plan, the last of them run-6; this is the newest: name a run to take another"]
    {
        assert!(said.out.contains(words), "`{words}`: {said:?}");
    }
    let again = json(&far_away(room.path(), &state, &["reproduce", &plan, "--json"]));
    assert_eq!((&again["run"], &again["also"]), (&"run-7".into(), &serde_json::json!(["run-5", "run-6"])), "{again}");
    let named = far_away(room.path(), &state, &["reproduce", "run-6"]);
    assert!(named.out.contains("run-6 in lab") && !named.out.contains("made the same plan"), "{named:?}");
    let explained = far_away(room.path(), &state, &["explain", &plan]);
    assert!(explained.out.contains("2 earlier runs made the same plan"), "{explained:?}");
}

/// Whoever records another plan than the inputs give, with all digests right, is found; and what cannot be made again is not counted.
#[test]
fn a_plan_that_the_inputs_do_not_give_is_no_decision_of_ours() {
    let room = tempfile::tempdir().expect("a directory");
    let (state, candidate) = (room.path().join("state"), room.path().join("candidate.toml"));
    recorded(&state, 3);
    let store = SqliteStore::open(&state, Settings::new(|fatal| panic!("{fatal}"))).expect("opens");
    let mut kept = decision(3);
    let body = kept.blobs.iter_mut().find(|bytes| Digest::of_bytes(bytes) == kept.plan).expect("the plan");
    let at = body.windows(3).position(|part| part == b"lab").expect("an environment");
    body[at] = b'x';
    kept.plan = Digest::of_bytes(body);
    let _ = now(store.commit(Batch::new(writes(3, kept)))).expect("written");
    let mut lost = decision(4);
    lost.blobs.retain(|bytes| Digest::of_bytes(bytes) != lost.inputs.observation);
    let _ = now(store.commit(Batch::new(writes(4, lost)))).expect("written");
    drop(store);
    let forged = far_away(room.path(), &state, &["reproduce", "run-3"]);
    assert_eq!(forged.code, Some(6), "{forged:?}");
    assert!(forged.err.contains("error[determinism-breach]: the decision of the run run-3: "), "{forged:?}");
    let missing = far_away(room.path(), &state, &["reproduce", "run-4"]);
    assert_eq!(missing.code, Some(6), "{missing:?}");
    assert!(missing.err.contains("error[evidence-missing]: the decision of the run run-4: "), "{missing:?}");
    std::fs::write(&candidate, "").expect("written");
    let weighed = json(&far_away(room.path(), &state, &["backtest", "--json", "--config", &candidate.display().to_string()]));
    let unread: Vec<&Value> = weighed["unread"].as_array().expect("a list").iter().map(|row| &row["run"]).collect();
    assert_eq!((&weighed["weighed"], unread), (&Value::from(3), vec![&Value::from("run-3"), &Value::from("run-4")]));
}
