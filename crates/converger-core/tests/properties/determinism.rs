//! The same inputs give the same bytes in another process, with other hash seeds, another locale and another time zone.
#![expect(clippy::disallowed_methods, clippy::disallowed_types, reason = "the test starts its own executable twice")]

use std::process::{Command, Stdio};

use converger_core::artifact::Digest;
use converger_core::testing::plan_body;

use crate::random_cases;

const SEED: u64 = 6;
const WORLDS: u64 = 10_000;
/// Set in the child processes, which only print the digest of their plans.
const DIGEST_VARIABLE: &str = "CONVERGER_TELL_DIGEST";
const ANSWER: &str = "digest of all bodies: ";

/// One digest over the bodies of all plans, in order.
fn digest_of_all() -> Digest {
    let bodies = random_cases(SEED, WORLDS).flat_map(|case| Digest::of_bytes(&plan_body(&case.inputs().plan())).to_string().into_bytes());
    Digest::of_bytes(&bodies.collect::<Vec<u8>>())
}

fn spawn_self(variables: &[(&str, &str)]) -> std::process::Child {
    let program = std::env::current_exe().expect("the path of this program");
    let mut command = Command::new(program);
    command.args(["--exact", "determinism::g6_two_processes_plan_the_same_bytes", "--nocapture"]);
    command.env(DIGEST_VARIABLE, "1").envs(variables.iter().copied()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().expect("the child process starts")
}

fn read_digest(child: std::process::Child) -> String {
    let output = child.wait_with_output().expect("it ends");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = text.lines().find_map(|line| line.split_once(ANSWER).map(|(_, digest)| digest.to_owned()));
    line.unwrap_or_else(|| panic!("no digest in {text:?}, {:?}", String::from_utf8_lossy(&output.stderr)))
}

#[test]
fn g6_two_processes_plan_the_same_bytes() {
    if std::env::var_os(DIGEST_VARIABLE).is_some() {
        println!("{ANSWER}{}", digest_of_all());
        return;
    }
    let first = spawn_self(&[("LANG", "C"), ("LC_ALL", "C"), ("TZ", "UTC")]);
    let second = spawn_self(&[("LANG", "tr_TR.UTF-8"), ("LC_ALL", "tr_TR.UTF-8"), ("TZ", "Pacific/Chatham"), ("RUST_BACKTRACE", "0")]);
    let (first, second) = (read_digest(first), read_digest(second));
    assert_eq!(first, second, "seed {SEED}");
    assert!(first.starts_with("sha256:"), "{first}");
}
