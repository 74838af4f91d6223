//! Two copies of a state directory that are written to at once, with one witness: one of them is refused, whichever came later.

use std::fs;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use converger_store::Looked;

use crate::bed::{Bed, Said};

/// Longer than any of it takes; a test that hangs says so.
const PATIENCE: Duration = Duration::from_secs(60);

/// A bed with a witness, and a second configuration that leads to a copy of its state.
fn bed() -> Bed {
    let bed = Bed::short();
    bed.key();
    let plain = fs::read_to_string(bed.stage.path("converger.toml")).expect("there");
    fs::create_dir(bed.stage.path("elsewhere")).expect("made");
    let with = |directory: &str| format!("{plain}[store]\ndirectory = \"{directory}\"\n[ledger]\nwitness = \"elsewhere/witness\"\n");
    bed.stage.put("one.toml", &with("state"));
    bed.stage.put("two.toml", &with("fork"));
    bed.told(&["ledger", "resync", "--reason", "a new witness", "--config", "one.toml"], 0);
    bed.keep_state("fork");
    bed
}

fn holding(bed: &Bed, config: &str, vmid: &str) -> Child {
    let arguments = ["hold", "lab", vmid, "--reason", "at once", "--config", config];
    bed.stage.converger(&arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts")
}

fn size(state: &Path) -> u64 {
    Looked::open(state).expect("opens").expect("there").heads().expect("read").all.size
}

/// Neither is told that the other is there: both have looked at the witness and have written before either of them tells it.
#[test]
fn of_two_copies_that_write_at_once_one_is_refused() {
    let bed = bed();
    let before = size(&bed.state());
    let turn = fs::File::options().write(true).open(bed.stage.path("elsewhere/witness.lock")).expect("there since the witness was told");
    turn.lock().expect("nobody has it");
    let children = [holding(&bed, "one.toml", "101"), holding(&bed, "two.toml", "102")];
    let begun = Instant::now();
    while [bed.state(), bed.stage.path("fork")].iter().any(|state| size(state) == before) {
        assert!(begun.elapsed() < PATIENCE, "both write before they tell the witness");
        std::thread::yield_now();
    }
    turn.unlock().expect("given back");
    let said: Vec<Said> = children.into_iter().map(|child| child.wait_with_output().expect("it ends").into()).collect();
    let mut codes: Vec<Option<i32>> = said.iter().map(|said| said.code).collect();
    codes.sort();
    assert_eq!(codes, [Some(0), Some(6)], "{said:?}");
    let words = format!("is not the one that the witness has seen: they differ in the first {} entries", before + 1);
    assert!(said.iter().any(|said| said.code == Some(6) && said.err.contains(&words)), "{said:?}");
    // From now on the one that lost is only looked at, and the other goes on.
    let (won, lost) = if said[0].code == Some(0) { ("one.toml", "two.toml") } else { ("two.toml", "one.toml") };
    bed.check_broken(&["hold", "lab", "103", "--reason", "later", "--config", lost], &words);
    bed.check_broken(&["apply", "desired.yaml", "--config", lost], &words);
    bed.told(&["freeze", "lab", "--reason", "it goes on", "--config", won], 0);
    bed.told(&["verify", "--config", won], 0);
}

/// And whatever the order is in which they come, over and over.
#[test]
fn however_two_copies_meet_exactly_one_goes_on() {
    let bed = bed();
    for round in 0..12 {
        let children = [holding(&bed, "one.toml", "101"), holding(&bed, "two.toml", "102")];
        let said: Vec<Said> = children.into_iter().map(|child| child.wait_with_output().expect("it ends").into()).collect();
        let mut codes: Vec<Option<i32>> = said.iter().map(|said| said.code).collect();
        codes.sort();
        assert_eq!(codes, [Some(0), Some(6)], "round {round}: {said:?}");
        // The one that won is taken back to where both were, as a person would who puts a copy of the other in its place.
        let (from, to) = if said[0].code == Some(0) { ("state", "fork") } else { ("fork", "state") };
        let (won, vmid) = if from == "state" { ("one.toml", "101") } else { ("two.toml", "102") };
        bed.told(&["release", "lab", vmid, "--config", won], 0);
        fs::remove_dir_all(bed.stage.path(to)).expect("removed");
        crate::bed::copy_state(&bed.stage.path(from), &bed.stage.path(to));
    }
}
