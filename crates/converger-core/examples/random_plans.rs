//! Prints random plans, one plan.json per line, for other programs to check: `random_plans COUNT`.
//!
//! CI compares them with an independent implementation of canonical JSON. The seed is fixed, so that a line can be identified by its
//! number.
#![expect(clippy::disallowed_methods, reason = "an example is a separate program that prints")]

use std::io::{self, BufWriter, Write};

use converger_core::artifact::{Provenance, write_plan};
use converger_core::policy::{Circumstances, Limits};
use converger_core::safety;
use converger_core::testing::{Rng, TestWorld};

const SEED: u64 = 8785;

fn main() -> io::Result<()> {
    let count: usize = std::env::args().nth(1).and_then(|count| count.parse().ok()).unwrap_or(10);
    let mut rng = Rng::new(SEED);
    let mut out = BufWriter::new(io::stdout().lock());
    for _ in 0..count {
        let inputs = TestWorld::random_small(&mut rng).parse().map_err(|faults| io::Error::other(format!("{faults:?}")))?;
        let limits = Limits { guests: 3, percent: 50, stops: 1 };
        let freeze = rng.one_in(3).then(|| "month's end: \"ledger\" \u{e9}\u{1f512}\u{7f}\u{1}".to_owned());
        let judged = safety::judge(inputs.plan(), limits, Circumstances { freeze, ..Circumstances::default() });
        write_plan(&mut out, &judged, Provenance::Replay)?;
    }
    out.flush()
}
