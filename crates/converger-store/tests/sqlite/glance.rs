//! What is told of a store without touching it.

use std::collections::BTreeSet;

use converger_core::apply::{End, Record, Resolution};
use converger_store::conformance::{Sample, now};
use converger_store::{Batch, Remembered, glance};

use super::{open, place, write};

fn at(record: Record, now_ms: u64) -> Record {
    match record {
        Record::Intent { operation, .. } => Record::Intent { operation, at_ms: now_ms },
        Record::Sending { id, up_ms, .. } => Record::Sending { id, at_ms: now_ms, up_ms },
        Record::Tasked { id, task, .. } => Record::Tasked { id, task, at_ms: now_ms },
        Record::Ended { id, outcome, .. } => Record::Ended { id, outcome, at_ms: now_ms },
        Record::Resolved { id, resolution, by, reason, .. } => Record::Resolved { id, resolution, by, reason, at_ms: now_ms },
    }
}

/// Guests 1 to 5: ended at 100, ended at 200, under way, held since 100, and held at 100 but settled by a person at 200.
fn content(sample: &mut Sample) -> Batch {
    let mut batch = Batch::new(vec![sample.start()]);
    for (guest, end) in [(1, Some((End::Done, 100))), (2, Some((End::Failed, 200))), (3, None), (4, Some((End::Held, 100)))] {
        let operation = sample.operation(guest, guest);
        batch = batch.with(at(sample.intent(&operation), 90));
        if let Some((end, at_ms)) = end {
            batch = batch.with(at(sample.ended(&operation, end), at_ms));
        }
    }
    let settled = sample.operation(5, 5);
    let (intent, held) = (at(sample.intent(&settled), 90), at(sample.ended(&settled, End::Held), 100));
    batch.with(intent).with(held).with(at(sample.resolved(&settled, Resolution::Done), 200))
}

#[test]
fn what_was_changed_of_late_or_may_be_changing_now_is_told() {
    let (_above, directory) = place();
    let mut sample = Sample::new(3);
    let (environment, elsewhere) = (sample.environment(), sample.elsewhere());
    assert_eq!(glance(&directory, &environment, 0).expect("no store remembers nothing"), Remembered::default());
    let store = open(&directory);
    write(&store, content(&mut sample));
    for (since_ms, guests) in [(0, &[1, 2, 3, 4, 5][..]), (101, &[2, 3, 4, 5]), (200, &[2, 3, 4, 5]), (201, &[3, 4])] {
        let wanted: BTreeSet<_> = guests.iter().map(|guest| sample.guest(*guest)).collect();
        assert_eq!(glance(&directory, &environment, since_ms).expect("read").changed, wanted, "since {since_ms}");
        assert_eq!(now(store.remembered(environment.clone(), since_ms)).expect("read").changed, wanted, "since {since_ms}");
        assert_eq!(glance(&directory, &elsewhere, since_ms).expect("read").changed, BTreeSet::new(), "another environment");
    }
}
