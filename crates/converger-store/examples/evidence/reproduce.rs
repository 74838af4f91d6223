//! A decision made again of what was kept, against what anybody would pay who looks at the same bytes.

use std::collections::BTreeMap;
use std::hint::black_box;

use converger_core::artifact::Digest;
use converger_core::evidence::{Decision, Piece, reproduce as again};
use converger_core::testing::understood;
use serde_json::json;

use crate::runs::Decided;
use crate::{Told, cpu, typed};

struct Recorded {
    decision: Decision,
    blobs: BTreeMap<Digest, Vec<u8>>,
}

impl Recorded {
    fn piece(&self, piece: Piece) -> &[u8] {
        &self.blobs[&self.decision.digest(piece)]
    }
}

pub(crate) fn reproduce(guests: u32, turns: u32) -> Told {
    let decided = Decided::of(guests);
    let recorded = Recorded { decision: decided.decision(), blobs: decided.blobs() };
    let [bare_ns, reproduce_ns] = cpu::least(turns, &recorded, [bare_once, reproduce_once]);
    let bytes: BTreeMap<&str, usize> = Piece::ALL.iter().map(|piece| (piece.word(), recorded.piece(*piece).len())).collect();
    Ok(json!({ "guests": guests, "bytes": bytes, "bare_ns": bare_ns, "reproduce_ns": reproduce_ns }))
}

/// The digest of each piece, and a typed parse of what was declared and what was seen.
#[inline(never)]
fn bare_once(recorded: &Recorded) {
    for piece in Piece::ALL {
        black_box(Digest::of_bytes(recorded.piece(piece)));
    }
    let desired: typed::Desired = serde_json::from_slice(recorded.piece(Piece::Desired)).expect("it is well-formed");
    let observation: typed::Observation = serde_json::from_slice(recorded.piece(Piece::Observation)).expect("it is well-formed");
    black_box((desired, observation));
}

#[inline(never)]
fn reproduce_once(recorded: &Recorded) {
    let recalled = again(&recorded.decision, |digest| recorded.blobs.get(&digest).cloned(), understood);
    black_box(recalled.expect("the same inputs give the same decision"));
}
