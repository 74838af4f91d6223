//! Two who sign a ledger for the first time at the same moment: it names one key, both sign with it, and it can be verified for ever after.

use std::fs;
use std::process::{Child, Stdio};

use crate::bed::{Bed, Said};

/// So often they meet: whether two of them are at it in the same moment is up to the system.
const ROUNDS: usize = 24;

fn signing(bed: &Bed) -> Child {
    bed.stage.converger(&["ledger", "key"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts")
}

#[test]
fn however_first_signatures_meet_the_ledger_names_one_key() {
    let bed = Bed::new();
    for round in 0..ROUNDS {
        bed.told(&["hold", "lab", "101", "--reason", "so that there is a ledger"], 0);
        let children = [signing(&bed), signing(&bed), signing(&bed)];
        let said: Vec<Said> = children.into_iter().map(|child| child.wait_with_output().expect("it ends").into()).collect();
        assert!(said.iter().all(|one| one.code == Some(0) && one.out == said[0].out), "round {round}: {said:?}");
        let keys = bed.told(&["ledger", "tail", "--kind", "key", "--json"], 0);
        assert_eq!(keys.lines().count(), 1, "round {round}: {keys}");
        bed.told(&["verify"], 0);
        fs::remove_dir_all(bed.state()).expect("removed");
    }
}
