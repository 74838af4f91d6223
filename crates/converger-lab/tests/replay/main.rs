//! Compares the lab with recordings of Proxmox: replays every recorded request in order against a
//! world that is set up like the recorded servers, and compares the responses.
//!
//! The fixtures contain requests and the facts expected of the responses; values that change from
//! run to run are markers of their type. Must not depend on internals of the lab.

mod compare;
mod fixture;
#[cfg(feature = "server")]
#[path = "../server/lab.rs"]
#[allow(dead_code, reason = "shared with the server tests, which use more of it")]
mod lab;
mod play;
#[cfg(feature = "server")]
mod wire;

use std::collections::BTreeMap;

use fixture::{ExpectedOutcome, RecordedExchange};

/// How many recordings must be covered and agree. These numbers only rise. Ten recordings are about bytes on the wire and need the server.
const COVERED_MIN: usize = if cfg!(feature = "server") { 885 } else { 875 };
const AGREE_MIN: usize = COVERED_MIN;

/// The number of recorded requests.
const RECORDED_REQUESTS: usize = 887;

#[test]
fn the_lab_answers_as_proxmox_did() {
    let servers = [
        (include_str!("../data/replay/standalone.yaml"), include_str!("../data/replay/standalone.txt")),
        (include_str!("../data/replay/cluster.yaml"), include_str!("../data/replay/cluster.txt")),
    ];
    let mut uncovered: BTreeMap<u32, String> = BTreeMap::new();
    let mut wrong: BTreeMap<u32, String> = BTreeMap::new();
    let mut covered = 0;
    for (yaml, text) in servers {
        let exchanges = fixture::parse_fixture(text);
        let answers = play::play_exchanges(yaml, &exchanges);
        for (exchange, answer) in exchanges.iter().zip(answers) {
            let RecordedExchange { number, label, .. } = exchange;
            match (&exchange.outcome, answer) {
                (ExpectedOutcome::Uncovered(reason), _) => drop(uncovered.insert(*number, format!("{label}: {reason}"))),
                (ExpectedOutcome::Wire(_), _) if !cfg!(feature = "server") => {
                    uncovered.insert(*number, format!("{label}: needs the feature `server`"));
                }
                (_, Ok(())) => covered += 1,
                (_, Err(difference)) => {
                    covered += 1;
                    wrong.insert(*number, format!("{label}: {difference}"));
                }
            }
        }
    }
    print_report(covered, &uncovered, &wrong);
    assert_eq!(covered + uncovered.len(), RECORDED_REQUESTS, "every recording is covered or listed");
    assert!(covered >= COVERED_MIN, "covered {covered}, fewer than the {COVERED_MIN} required");
    assert!(covered - wrong.len() >= AGREE_MIN, "{} agree, fewer than the {AGREE_MIN} required", covered - wrong.len());
}

fn print_report(covered: usize, uncovered: &BTreeMap<u32, String>, wrong: &BTreeMap<u32, String>) {
    for (number, line) in uncovered {
        println!("uncovered [{number}] {line}");
    }
    for (number, line) in wrong {
        println!("differs [{number}] {line}");
    }
    println!("covered {covered}, agree {}", covered - wrong.len());
}
