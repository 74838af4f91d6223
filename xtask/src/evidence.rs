//! Runs the evidence tests at full size; CI runs the same tests with smaller counts.
//!
//! What is changed, killed or reproduced is up to the tests.

use crate::shell::{self, TaskResult};

/// How many bytes of the database and of an export are changed or cut, each; a quarter of that for a log. More than 100,000 in total.
const FLIPS: &str = "50000";

/// Byte flips and truncations; a kill, EIO and ENOSPC at every write of the store; exports killed at every write; ten thousand decisions.
const TEST_FILTER: &str =
    "(binary(evidence) & test(/^(flips|interrupted|reproduce|oracle)::/)) | (binary(sqlite) & test(/^(fault_injection|kill)::/))";

/// Runs the tests and shows the numbers that they print.
pub(crate) fn run_evidence_tests() -> TaskResult {
    let mut tests =
        shell::cargo_command(&["nextest", "run", "--workspace", "--all-features", "--cargo-profile", "ci", "--success-output", "final"]);
    tests.args(["--profile", "proof", "-E", TEST_FILTER]).env("CONVERGER_FLIPS", FLIPS).env("CONVERGER_TEST_EVERY_POINT", "yes");
    shell::run_visibly(&mut tests)
}
