//! Two processes sign a ledger for the first time concurrently: the ledger names one key, both sign with it, and it stays verifiable.

use std::fs;
use std::process::{Child, Stdio};

use crate::fixture::{CommandOutput, EvidenceFixture};

/// Number of attempts; whether two processes collide depends on the system.
const ROUNDS: usize = 24;

fn spawn_key_command(fixture: &EvidenceFixture) -> Child {
    fixture.apply_fixture.converger(&["ledger", "key"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts")
}

#[test]
fn concurrent_first_signatures_record_one_key() {
    let fixture = EvidenceFixture::new();
    for round in 0..ROUNDS {
        fixture.run_expecting(&["hold", "lab", "101", "--reason", "so that there is a ledger"], 0);
        let children = [spawn_key_command(&fixture), spawn_key_command(&fixture), spawn_key_command(&fixture)];
        let outputs: Vec<CommandOutput> = children.into_iter().map(|child| child.wait_with_output().expect("it ends").into()).collect();
        assert!(outputs.iter().all(|one| one.code == Some(0) && one.out == outputs[0].out), "round {round}: {outputs:?}");
        let keys = fixture.run_expecting(&["ledger", "tail", "--kind", "key", "--json"], 0);
        assert_eq!(keys.lines().count(), 1, "round {round}: {keys}");
        fixture.run_expecting(&["verify"], 0);
        fs::remove_dir_all(fixture.state_directory()).expect("removed");
    }
}
