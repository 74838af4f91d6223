//! The contract of this program: the text of the guarantees and the golden plans, both pinned by digest.
//!
//! [`check`] can run at any time: it compares the text with the pinned digest, plans every golden vector again and compares the bytes. If
//! the contract does not hold, the program may still read, but not apply.

use std::io;
use std::sync::Arc;

use crate::artifact::{self, Digest};
use crate::document::Notation;
use crate::intent::Intent;
use crate::policy::Rules;
use crate::{desired, observe, plan};

/// The guarantees, as DESIGN.md states them.
const DESIGN: &str = include_str!("../../../DESIGN.md");

/// The digest of [`DESIGN`]. Changing it changes the contract: see CONTRIBUTING.md.
const DESIGN_PINNED: &str = "sha256:07ad092b6c5651c6f64b54e13dd89dffd76c533d1ca20b78974ec8433e26e12b";

/// The digest of all `VECTORS`.
const VECTORS_PINNED: &str = "sha256:b0b3ef418cdeb86af8f88cc2c080fbabc5fff1ebba72ab702c6faa6baf0e32e3";

/// The tests named after a guarantee, one per line; `cargo xtask gen-docs` writes the file.
const TESTS: &str = include_str!("../contract/tests.txt");

/// A golden plan: inputs and the expected body.
struct GoldenPlan {
    name: &'static str,
    /// A desired state as YAML, or a request in its stored form.
    intent: &'static str,
    current: &'static str,
    body: &'static str,
}

macro_rules! vectors {
    ($($name:literal: $intent:literal),* $(,)?) => {
        [$(GoldenPlan {
            name: $name,
            intent: include_str!(concat!("../contract/vectors/", $name, "/", $intent)),
            current: include_str!(concat!("../contract/vectors/", $name, "/current.json")),
            body: include_str!(concat!("../contract/vectors/", $name, "/body.json")),
        }),*]
    };
}

static VECTORS: [GoldenPlan; 18] = vectors![
    "after": "desired.yaml",
    "births": "desired.yaml",
    "containers": "desired.yaml",
    "converged": "desired.yaml",
    "drift": "desired.yaml",
    "guards": "desired.yaml",
    "incomplete": "desired.yaml",
    "no-quorum": "desired.yaml",
    "pending": "desired.yaml",
    "protected": "desired.yaml",
    "request-clone": "request.json",
    "request-disk-grow": "request.json",
    "request-migrate": "request.json",
    "request-provision": "request.json",
    "request-refused": "request.json",
    "request-snapshot-create": "request.json",
    "request-snapshot-rollback": "request.json",
    "strangers": "desired.yaml",
];

/// The result of [`check`].
#[derive(Clone, Debug)]
pub struct ContractReport {
    /// The text of the guarantees.
    pub design: PinnedDigest,
    /// The golden vectors.
    pub vectors: PinnedDigest,
    /// The number of vectors that were planned again.
    pub planned: usize,
    /// The names of vectors that gave different bytes.
    pub differing: Vec<&'static str>,
    /// The guarantees with their tests.
    pub guarantees: Vec<Guarantee>,
}

/// A digest that must not change unnoticed.
#[derive(Clone, Debug)]
pub struct PinnedDigest {
    /// The digest in the code.
    pub pinned: &'static str,
    /// The digest that was found.
    pub found: Digest,
}

impl PinnedDigest {
    /// Whether both are equal.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.found.to_string() == self.pinned
    }
}

/// One guarantee.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Guarantee {
    /// Its id, such as `G3`.
    pub id: &'static str,
    /// Its title.
    pub title: &'static str,
    /// The tests named after it.
    pub tests: Vec<&'static str>,
}

impl ContractReport {
    /// Whether the contract holds.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.design.holds()
            && self.vectors.holds()
            && self.differing.is_empty()
            && self.guarantees.iter().all(|guarantee| !guarantee.tests.is_empty())
    }
}

/// Checks the contract.
#[must_use]
pub fn check() -> ContractReport {
    check_with(DESIGN, DESIGN_PINNED, &VECTORS, VECTORS_PINNED)
}

fn check_with(design: &'static str, design_pinned: &'static str, vectors: &[GoldenPlan], vectors_pinned: &'static str) -> ContractReport {
    ContractReport {
        design: PinnedDigest { pinned: design_pinned, found: digest_of_text(design) },
        vectors: PinnedDigest { pinned: vectors_pinned, found: digest_of_vectors(vectors) },
        planned: vectors.len(),
        differing: vectors.iter().filter(|vector| !reproduces_body(vector)).map(|vector| vector.name).collect(),
        guarantees: parse_guarantees(design, TESTS),
    }
}

/// Normalises line endings, since a checkout may change them.
fn normalise_line_endings(text: &str) -> String {
    text.replace("\r\n", "\n")
}

fn digest_of_text(text: &str) -> Digest {
    Digest::of_bytes(normalise_line_endings(text).as_bytes())
}

/// Hashes each part on its own, so that text moved between parts changes the digest.
fn digest_of_vectors(vectors: &[GoldenPlan]) -> Digest {
    let parts = |vector: &GoldenPlan| {
        let digests = [vector.intent, vector.current, vector.body].map(|part| digest_of_text(part).to_string());
        format!("{} {}\n", vector.name, digests.join(" "))
    };
    Digest::of_bytes(vectors.iter().map(parts).collect::<String>().as_bytes())
}

fn reproduces_body(vector: &GoldenPlan) -> bool {
    plan_body(vector.intent, vector.current).is_some_and(|body| body == normalise_line_endings(vector.body).trim_end().as_bytes())
}

/// The body of the plan for these inputs under the built-in rules.
fn plan_body(intent: &str, current: &str) -> Option<Vec<u8>> {
    let text = normalise_line_endings(intent);
    let intent = match text.starts_with('{') {
        true => Intent::parse_normal(text.trim_end().as_bytes()).ok()?,
        false => desired::parse(text.as_bytes(), Notation::Yaml).ok()?.into(),
    };
    let observation = observe::parse(normalise_line_endings(current).as_bytes()).ok()?.into_scoped(&intent.scope());
    let plan = plan::plan(intent, Arc::new(observation), Arc::new(Rules::default()));
    let mut body = Vec::new();
    let written: io::Result<Digest> = artifact::write_body(&mut body, &plan);
    written.ok().map(|_| body)
}

/// Parses headings of the form `## G3 · title`, and assigns the lines of `tests` that begin with the same id.
fn parse_guarantees(design: &'static str, tests: &'static str) -> Vec<Guarantee> {
    let heading = |line: &'static str| line.strip_prefix("## ")?.split_once(" · ").filter(|(id, _)| id.starts_with('G'));
    let tests_of =
        |id: &str| tests.lines().filter_map(|line| line.split_once(' ')).filter(|(own, _)| *own == id).map(|(_, test)| test).collect();
    design.lines().filter_map(heading).map(|(id, title)| Guarantee { id, title: title.trim(), tests: tests_of(id) }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pinned_contract_holds() {
        let report = check();
        assert!(report.design.holds(), "DESIGN.md changed; if that is intended, pin {} and say why in docs/decisions", report.design.found);
        assert!(report.differing.is_empty(), "plans changed: {:?}; if that is intended, raise PLANNER_VERSION", report.differing);
        assert!(report.vectors.holds(), "the vectors changed; if that is intended, pin {}", report.vectors.found);
        assert!(report.holds(), "a guarantee has no test: {:?}", report.guarantees);
    }

    #[test]
    fn changed_text_breaks_the_contract_but_line_endings_do_not() {
        let changed: &'static str = Box::leak(DESIGN.replacen("never", "seldom", 1).into_boxed_str());
        assert!(!check_with(changed, DESIGN_PINNED, &VECTORS, VECTORS_PINNED).holds());
        let windows: &'static str = Box::leak(DESIGN.replace('\n', "\r\n").into_boxed_str());
        assert!(check_with(windows, DESIGN_PINNED, &VECTORS, VECTORS_PINNED).design.holds());
    }

    #[test]
    fn changed_golden_plan_is_reported() {
        let [first, ..] = &VECTORS;
        let forged = [GoldenPlan { name: "forged", intent: first.intent, current: first.current, body: "{}" }];
        let report = check_with(DESIGN, DESIGN_PINNED, &forged, VECTORS_PINNED);
        assert_eq!(report.differing, ["forged"]);
        assert!(!report.vectors.holds() && !report.holds());
    }

    #[test]
    fn a_guarantee_without_a_test_breaks_the_contract() {
        let untested = parse_guarantees("## G98 · never tested\n", TESTS);
        assert_eq!(untested, [Guarantee { id: "G98", title: "never tested", tests: vec![] }]);
        let report = ContractReport { guarantees: untested, ..check() };
        assert!(!report.holds());
    }
}
