//! Stories about what people do: start runs, store plans, hold guests, freeze environments.

use std::sync::Arc;

use converger_core::apply::{Freeze, Hold, OperationEnd, RunId, RunStart};
use converger_core::artifact::Digest;

use super::{
    OperationSample, StoreFixture, StoreStory, StoryResult, block_on, expect_equal, expect_readable, expect_refused, expect_written,
};
use crate::{Batch, RunHistory, StoreReader, StoreRefusal, StoreWrite};

pub(super) fn stories<S: StoreFixture>() -> Vec<StoreStory<S>> {
    vec![
        ("runs", run_lifecycle),
        ("plans are stored by digest", blobs_by_digest),
        ("a guest that is held", guest_holds),
        ("an environment that is frozen", environment_freezes),
    ]
}

fn run_lifecycle<S: StoreFixture>(fixture: &mut S) -> StoryResult {
    let (store, sample) = (fixture.new_store(), OperationSample::new(20));
    let run = |number: u64| {
        let id = RunId::new(&format!("run-{number}")).ok_or("a run")?;
        Ok::<_, String>(RunStart { id, at_ms: number, ..sample.run() })
    };
    for number in 0..5 {
        expect_written(&store, "a run", OperationSample::start_write_of(run(number)?))?;
    }
    expect_written(&store, "a run elsewhere", OperationSample::start_write_of(sample.run_in_other_environment()))?;
    expect_refused(&store, "a run twice", OperationSample::start_write_of(run(3)?), StoreRefusal::RunExists(run(3)?.id))?;
    let nameless = RunStart { by: "  ".into(), ..run(7)? };
    expect_refused(&store, "a run without an author", OperationSample::start_write_of(nameless), StoreRefusal::NotStorable)?;
    let unknown = StoreWrite::RunEnded { id: run(8)?.id, end: OperationEnd::Done, at_ms: 1 };
    expect_refused(&store, "the end of an unknown run", unknown, StoreRefusal::RunUnknown(run(8)?.id))?;
    expect_written(&store, "an end", StoreWrite::RunEnded { id: run(4)?.id, end: OperationEnd::Held, at_ms: 30 })?;
    let store = fixture.reopen_store(store);
    let wanted = vec![RunHistory { run: run(4)?, ended: Some((OperationEnd::Held, 30)) }, RunHistory { run: run(3)?, ended: None }];
    expect_equal("the newest runs", expect_readable("runs", block_on(store.runs(sample.environment(), 2)))?, wanted)?;
    expect_equal("all runs of this environment", expect_readable("runs", block_on(store.runs(sample.environment(), u32::MAX)))?.len(), 5)?;
    expect_equal("a run", expect_readable("a run", block_on(store.run(run(2)?.id)))?, Some(RunHistory { run: run(2)?, ended: None }))?;
    expect_equal("no run", expect_readable("a run", block_on(store.run(run(9)?.id)))?, None)
}

fn blobs_by_digest<S: StoreFixture>(fixture: &mut S) -> StoryResult {
    let store = fixture.new_store();
    let bodies: [Arc<[u8]>; 3] = [Arc::from(*b"{}"), Arc::from(vec![0xff; 100_000]), Arc::from(*b"")];
    for body in &bodies {
        let plan = |digest| StoreWrite::Blob { digest, body: Arc::clone(body) };
        let (claimed, found) = (Digest::of_bytes(b"other"), Digest::of_bytes(body));
        expect_refused(&store, "a plan under another digest", plan(claimed), StoreRefusal::BlobDiffers { claimed, found })?;
        expect_written(&store, "a plan", plan(found))?;
        expect_written(&store, "the same plan", plan(found))?;
    }
    let store = fixture.reopen_store(store);
    for body in &bodies {
        let found = expect_readable("a plan", block_on(store.blob(Digest::of_bytes(body))))?;
        expect_equal("a plan", found.as_deref(), Some(&**body))?;
    }
    expect_equal("a plan that was never written", expect_readable("a plan", block_on(store.blob(Digest::of_bytes(b"other"))))?, None)
}

fn guest_holds<S: StoreFixture>(fixture: &mut S) -> StoryResult {
    let (store, mut sample) = (fixture.new_store(), OperationSample::new(21));
    let (operation, vmid) = (sample.operation(1, 1), sample.vmid(1));
    let hold = Hold { environment: sample.environment(), vmid, by: "ann".into(), reason: "disk swap".into(), at_ms: 5 };
    let release = StoreWrite::Release { environment: sample.environment(), vmid, by: "bob".into(), at_ms: 6 };
    expect_written(&store, "a run", sample.start_write())?;
    expect_refused(&store, "a release without a hold", release.clone(), StoreRefusal::NotHeld(vmid))?;
    expect_refused(
        &store,
        "a hold without a reason",
        StoreWrite::Hold(Hold { reason: "".into(), ..hold.clone() }),
        StoreRefusal::NotStorable,
    )?;
    expect_written(&store, "an intent before the hold", sample.intent_record(&operation))?;
    expect_written(&store, "a hold", StoreWrite::Hold(hold.clone()))?;
    let store = fixture.reopen_store(store);
    expect_refused(
        &store,
        "a hold twice",
        StoreWrite::Hold(Hold { by: "bob".into(), ..hold.clone() }),
        StoreRefusal::AlreadyHeld(hold.clone()),
    )?;
    expect_equal("the holds", expect_readable("holds", block_on(store.holds(sample.environment())))?, vec![hold.clone()])?;
    expect_equal("the holds elsewhere", expect_readable("holds", block_on(store.holds(sample.other_environment())))?, Vec::new())?;
    let done = sample.end_record(&operation, OperationEnd::Done);
    expect_written(&store, "the outcome of an operation on a held guest", done)?;
    let next = sample.operation(2, 1);
    expect_refused(&store, "an intent on a held guest", sample.intent_record(&next), StoreRefusal::GuestHeld(hold.clone()))?;
    expect_written(&store, "an intent on another guest", sample.intent_record(&sample.operation(3, 2)))?;
    let back = Batch::default().with(release.clone()).with(StoreWrite::Hold(hold.clone())).with(sample.intent_record(&next));
    expect_refused(&store, "held again in the same batch", back, StoreRefusal::GuestHeld(hold.clone()))?;
    expect_equal(
        "the hold after the refused batch",
        expect_readable("holds", block_on(store.holds(sample.environment())))?,
        vec![hold.clone()],
    )?;
    expect_written(&store, "a release", release.clone())?;
    expect_refused(&store, "a release twice", release, StoreRefusal::NotHeld(vmid))?;
    expect_written(&store, "an intent after the release", sample.intent_record(&next))?;
    expect_written(&store, "a hold again", StoreWrite::Hold(hold))
}

fn environment_freezes<S: StoreFixture>(fixture: &mut S) -> StoryResult {
    let (store, sample) = (fixture.new_store(), OperationSample::new(22));
    let operation = sample.operation(1, 1);
    let freeze = Freeze { environment: sample.environment(), by: "ann".into(), reason: "audit".into(), at_ms: 5 };
    let thaw = StoreWrite::Thaw { environment: sample.environment(), by: "bob".into(), at_ms: 6 };
    let frozen = StoreRefusal::Frozen { environment: sample.environment(), reason: "audit".into() };
    let is_frozen = |store: &S::Store| expect_readable("a freeze", block_on(store.freeze(sample.environment())));
    expect_written(&store, "a run", sample.start_write())?;
    expect_refused(&store, "a thaw without a freeze", thaw.clone(), StoreRefusal::NotFrozen(sample.environment()))?;
    expect_equal("no freeze", is_frozen(&store)?, None)?;
    expect_written(&store, "an intent before the freeze", sample.intent_record(&operation))?;
    expect_written(&store, "a freeze", StoreWrite::Freeze(freeze.clone()))?;
    let store = fixture.reopen_store(store);
    expect_equal("a freeze", is_frozen(&store)?, Some(freeze.clone()))?;
    expect_refused(&store, "a freeze twice", StoreWrite::Freeze(freeze.clone()), frozen.clone())?;
    expect_refused(&store, "an intent in a freeze", sample.intent_record(&sample.operation(2, 2)), frozen)?;
    let back = Batch::default().with(thaw.clone()).with(sample.intent_record(&sample.operation(1, 3)));
    expect_refused(&store, "a thaw in a refused batch", back, second_intent_refusal(&sample))?;
    expect_equal("the freeze after the refused batch", is_frozen(&store)?, Some(freeze))?;
    expect_written(&store, "a thaw", thaw)?;
    expect_equal("no freeze any more", is_frozen(&store)?, None)?;
    let done = OperationSample::new(22).end_record(&operation, OperationEnd::Done);
    expect_written(
        &store,
        "an end and an intent after it",
        Batch::default().with(done).with(sample.intent_record(&sample.operation(2, 1))),
    )?;
    expect_equal("another environment", expect_readable("a freeze", block_on(store.freeze(sample.other_environment())))?, None)
}

fn second_intent_refusal(sample: &OperationSample) -> StoreRefusal {
    StoreRefusal::Record { id: sample.operation(1, 3).id, illegal: converger_core::apply::IllegalRecord::SecondIntent }
}
