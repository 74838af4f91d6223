//! The proofs of the record at the size that they are asked for; CI runs the same tests with smaller counts.
//!
//! What never enters here: what is changed, killed or made again. The tests know that.

use crate::shell::{self, TaskResult};

/// So many bytes are changed or cut of the database and of an export each, and a quarter of that of a log: over 100,000 together.
const FLIPS: &str = "50000";

/// Byte flips and truncations, a death, EIO and ENOSPC at every write of the store, exports killed at every write, and ten thousand decisions.
const TEST_FILTER: &str =
    "(binary(evidence) & test(/^(flips|interrupted|reproduce|oracle)::/)) | (binary(sqlite) & test(/^(fault_injection|kill)::/))";

/// Run them, and show the numbers that they print.
pub(crate) fn run_evidence_tests() -> TaskResult {
    let mut tests =
        shell::cargo_command(&["nextest", "run", "--workspace", "--all-features", "--cargo-profile", "ci", "--success-output", "final"]);
    tests.args(["--profile", "proof", "-E", TEST_FILTER]).env("CONVERGER_FLIPS", FLIPS).env("CONVERGER_TEST_EVERY_POINT", "yes");
    shell::run_visibly(&mut tests)
}
