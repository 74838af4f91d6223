//! Stories of what people do: runs that they start, plans that are kept, guests that they hold, environments that they freeze.

use std::sync::Arc;

use converger_core::apply::{End, Freeze, Hold, Run, RunId};
use converger_core::artifact::Digest;

use super::{Sample, Stage, Story, Told, now, read, refused, same, taken};
use crate::{Batch, Refused, RunHistory, Store, Write};

pub(super) fn stories<S: Stage>() -> Vec<Story<S>> {
    vec![
        ("runs", runs),
        ("plans are kept by their digest", plans),
        ("a guest that is held", holds),
        ("an environment that is frozen", freezes),
    ]
}

fn runs<S: Stage>(stage: &mut S) -> Told {
    let (store, sample) = (stage.fresh(), Sample::new(20));
    let run = |number: u64| {
        let id = RunId::new(&format!("run-{number}")).ok_or("a run")?;
        Ok::<_, String>(Run { id, at_ms: number, ..sample.run() })
    };
    for number in 0..5 {
        taken(&store, "a run", Sample::started(run(number)?))?;
    }
    taken(&store, "a run elsewhere", Sample::started(sample.run_elsewhere()))?;
    refused(&store, "a run twice", Sample::started(run(3)?), Refused::RunExists(run(3)?.id))?;
    let nameless = Run { by: "  ".into(), ..run(7)? };
    refused(&store, "a run of nobody", Sample::started(nameless), Refused::NotStorable)?;
    let unknown = Write::RunEnded { id: run(8)?.id, end: End::Done, at_ms: 1 };
    refused(&store, "the end of no run", unknown, Refused::RunUnknown(run(8)?.id))?;
    taken(&store, "an end", Write::RunEnded { id: run(4)?.id, end: End::Held, at_ms: 30 })?;
    let store = stage.reopened(store);
    let wanted = vec![RunHistory { run: run(4)?, ended: Some((End::Held, 30)) }, RunHistory { run: run(3)?, ended: None }];
    same("the newest runs", read("runs", now(store.runs(sample.environment(), 2)))?, wanted)?;
    same("all runs of here", read("runs", now(store.runs(sample.environment(), u32::MAX)))?.len(), 5)?;
    same("a run", read("a run", now(store.run(run(2)?.id)))?, Some(RunHistory { run: run(2)?, ended: None }))?;
    same("no run", read("a run", now(store.run(run(9)?.id)))?, None)
}

fn plans<S: Stage>(stage: &mut S) -> Told {
    let store = stage.fresh();
    let bodies: [Arc<[u8]>; 3] = [Arc::from(*b"{}"), Arc::from(vec![0xff; 100_000]), Arc::from(*b"")];
    for body in &bodies {
        let plan = |digest| Write::Blob { digest, body: Arc::clone(body) };
        let (claimed, found) = (Digest::of_bytes(b"other"), Digest::of_bytes(body));
        refused(&store, "a plan under another digest", plan(claimed), Refused::BlobDiffers { claimed, found })?;
        taken(&store, "a plan", plan(found))?;
        taken(&store, "the same plan", plan(found))?;
    }
    let store = stage.reopened(store);
    for body in &bodies {
        let found = read("a plan", now(store.blob(Digest::of_bytes(body))))?;
        same("a plan", found.as_deref(), Some(&**body))?;
    }
    same("a plan that nobody wrote", read("a plan", now(store.blob(Digest::of_bytes(b"other"))))?, None)
}

fn holds<S: Stage>(stage: &mut S) -> Told {
    let (store, mut sample) = (stage.fresh(), Sample::new(21));
    let (operation, vmid) = (sample.operation(1, 1), sample.guest(1));
    let hold = Hold { environment: sample.environment(), vmid, by: "ann".into(), reason: "disk swap".into(), at_ms: 5 };
    let release = Write::Release { environment: sample.environment(), vmid, by: "bob".into(), at_ms: 6 };
    taken(&store, "a run", sample.start())?;
    refused(&store, "a release without a hold", release.clone(), Refused::NotHeld(vmid))?;
    refused(&store, "a hold without a reason", Write::Hold(Hold { reason: "".into(), ..hold.clone() }), Refused::NotStorable)?;
    taken(&store, "an intent before the hold", sample.intent(&operation))?;
    taken(&store, "a hold", Write::Hold(hold.clone()))?;
    let store = stage.reopened(store);
    refused(&store, "a hold twice", Write::Hold(Hold { by: "bob".into(), ..hold.clone() }), Refused::AlreadyHeld(hold.clone()))?;
    same("the holds", read("holds", now(store.holds(sample.environment())))?, vec![hold.clone()])?;
    same("the holds elsewhere", read("holds", now(store.holds(sample.elsewhere())))?, Vec::new())?;
    let done = sample.ended(&operation, End::Done);
    taken(&store, "what became of an operation on a held guest", done)?;
    let next = sample.operation(2, 1);
    refused(&store, "an intent on a held guest", sample.intent(&next), Refused::GuestHeld(hold.clone()))?;
    taken(&store, "an intent on another guest", sample.intent(&sample.operation(3, 2)))?;
    let back = Batch::default().with(release.clone()).with(Write::Hold(hold.clone())).with(sample.intent(&next));
    refused(&store, "held again in the same batch", back, Refused::GuestHeld(hold.clone()))?;
    same("the hold that came back", read("holds", now(store.holds(sample.environment())))?, vec![hold.clone()])?;
    taken(&store, "a release", release.clone())?;
    refused(&store, "a release twice", release, Refused::NotHeld(vmid))?;
    taken(&store, "an intent after the release", sample.intent(&next))?;
    taken(&store, "a hold again", Write::Hold(hold))
}

fn freezes<S: Stage>(stage: &mut S) -> Told {
    let (store, sample) = (stage.fresh(), Sample::new(22));
    let operation = sample.operation(1, 1);
    let freeze = Freeze { environment: sample.environment(), by: "ann".into(), reason: "audit".into(), at_ms: 5 };
    let thaw = Write::Thaw { environment: sample.environment(), by: "bob".into(), at_ms: 6 };
    let frozen = Refused::Frozen { environment: sample.environment(), reason: "audit".into() };
    let is_frozen = |store: &S::Store| read("a freeze", now(store.freeze(sample.environment())));
    taken(&store, "a run", sample.start())?;
    refused(&store, "a thaw without a freeze", thaw.clone(), Refused::NotFrozen(sample.environment()))?;
    same("no freeze", is_frozen(&store)?, None)?;
    taken(&store, "an intent before the freeze", sample.intent(&operation))?;
    taken(&store, "a freeze", Write::Freeze(freeze.clone()))?;
    let store = stage.reopened(store);
    same("a freeze", is_frozen(&store)?, Some(freeze.clone()))?;
    refused(&store, "a freeze twice", Write::Freeze(freeze.clone()), frozen.clone())?;
    refused(&store, "an intent in a freeze", sample.intent(&sample.operation(2, 2)), frozen)?;
    let back = Batch::default().with(thaw.clone()).with(sample.intent(&sample.operation(1, 3)));
    refused(&store, "a thaw that is undone", back, second_intent(&sample))?;
    same("the freeze that came back", is_frozen(&store)?, Some(freeze))?;
    taken(&store, "a thaw", thaw)?;
    same("no freeze any more", is_frozen(&store)?, None)?;
    let done = Sample::new(22).ended(&operation, End::Done);
    taken(&store, "an end and an intent after it", Batch::default().with(done).with(sample.intent(&sample.operation(2, 1))))?;
    same("another environment", read("a freeze", now(store.freeze(sample.elsewhere())))?, None)
}

fn second_intent(sample: &Sample) -> Refused {
    Refused::Record { id: sample.operation(1, 3).id, illegal: converger_core::apply::Illegal::SecondIntent }
}
