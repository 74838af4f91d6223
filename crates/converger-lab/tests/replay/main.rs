//! The lab against Proxmox's own words: every recorded request is played in order to a world that is
//! set up like the recorded servers, and the answers are compared.
//!
//! The fixtures hold requests and the facts expected of the answers; what changes from run to run is
//! a marker of its type. What never enters here: knowledge of the lab's inside.

mod compare;
mod fixture;
#[cfg(feature = "server")]
#[path = "../server/lab.rs"]
#[allow(dead_code, reason = "the caller of the server's own tests can more than is needed here")]
mod lab;
mod play;
#[cfg(feature = "server")]
mod wire;

use std::collections::BTreeMap;

use fixture::{ExpectedOutcome, RecordedExchange};

/// The share that must agree. It only rises. Ten recordings are about the bytes on the wire and need the server.
const COVERED_MIN: usize = if cfg!(feature = "server") { 885 } else { 875 };
const AGREE_MIN: usize = COVERED_MIN;

/// Requests that the world must be able to play at all.
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
    for (setting, text) in servers {
        let exchanges = fixture::parse_fixture(text);
        let answers = play::play_exchanges(setting, &exchanges);
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
    assert!(covered >= COVERED_MIN, "covered {covered}, which was {COVERED_MIN} before");
    assert!(covered - wrong.len() >= AGREE_MIN, "agree {}, which was {AGREE_MIN} before", covered - wrong.len());
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
