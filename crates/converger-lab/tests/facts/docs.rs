//! Compares docs/lab.md with the parser: every example builds, every key is documented.

use converger_lab::{World, WorldSpec};

const PAGE: &str = include_str!("../../../../docs/lab.md");

const EXAMPLES: [(&str, &str); 3] = [
    ("first-steps", include_str!("../../../../examples/worlds/first-steps.yaml")),
    ("team", include_str!("../../../../examples/worlds/team.yaml")),
    ("bad-day", include_str!("../../../../examples/worlds/bad-day.yaml")),
];

fn check_builds(name: &str, yaml: &str) {
    let spec = WorldSpec::from_yaml(yaml).unwrap_or_else(|fault| panic!("{name}: {fault}\n{yaml}"));
    if let Err(fault) = World::new(&spec) {
        panic!("{name}: {fault}\n{yaml}");
    }
}

#[test]
fn every_documented_example_builds_a_world() {
    let blocks: Vec<&str> = PAGE.split("```yaml\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    assert!(blocks.len() >= 9, "{} examples", blocks.len());
    for block in blocks {
        check_builds("docs/lab.md", block);
    }
    for (name, yaml) in EXAMPLES {
        check_builds(name, yaml);
    }
}

/// The names that the parser accepts instead of `zzz`.
fn accepted_words(yaml: &str) -> Vec<String> {
    let fault = match WorldSpec::from_yaml(yaml) {
        Err(fault) => fault,
        Ok(_) => panic!("taken: {yaml}"),
    };
    let word_list = fault.split(", expected one of ").nth(1).or_else(|| fault.split(", expected ").nth(1));
    let word_list = word_list.unwrap_or_else(|| panic!("{yaml}: {fault}"));
    word_list.split(", ").flat_map(|word_list| word_list.split(" or ")).map(|word| word.trim_matches('`').to_owned()).collect()
}

#[test]
fn every_key_and_every_fault_is_documented() {
    let probes = [
        "zzz: 1",
        "nodes: { a: { zzz: 1 } }",
        "guests: [{ zzz: 1 }]",
        "guests: [{ vmid: 1, kind: zzz }]",
        "storages: { a: { zzz: 1 } }",
        "users: { a: { zzz: 1 } }",
        "tokens: { a: { zzz: 1 } }",
        "acl: [{ zzz: 1 }]",
        "pools: { a: { zzz: 1 } }",
        "ha: { a: { zzz: 1 } }",
        "guests: [{ vmid: 1, kind: qemu, node: a, taken: [{ zzz: 1 }] }]",
        "replication: [{ zzz: 1 }]",
        "new_guests: { zzz: 1 }",
        "pace: { zzz: 1 }",
        "faults: { zzz: 1 }",
        "faults: { requests: [{ zzz: 1 }] }",
        "faults: { requests: [{ twist: zzz }] }",
        "faults: { requests: [{ twist: { instead: { zzz: 1 } } }] }",
        "faults: { requests: [{ twist: { flood: { zzz: 1 } } }] }",
        "faults: { requests: [{ twist: { drip: { zzz: 1 } } }] }",
        "faults: { tasks: [{ zzz: 1 }] }",
        "faults: { tasks: [{ twist: zzz }] }",
        "faults: { moments: [{ zzz: 1 }] }",
        "faults: { moments: [{ at_ms: 1, act: zzz }] }",
        "faults: { moments: [{ at_ms: 1, act: { show: [a, zzz] } }] }",
        "faults: { moments: [{ at_ms: 1, act: { service-down: [a, zzz] } }] }",
        "faults: { chance: { zzz: 1 } }",
        "faults: { bad_day: { zzz: 1 } }",
    ];
    let is_named = |word: &str| {
        let is_letter = |letter: char| letter.is_alphanumeric() || letter == '_' || letter == '-';
        PAGE.match_indices(word).any(|(at, _)| {
            let (before, after) = (PAGE[..at].chars().next_back(), PAGE[at + word.len()..].chars().next());
            !before.is_some_and(is_letter) && !after.is_some_and(is_letter)
        })
    };
    for probe in probes {
        let words = accepted_words(probe);
        let undocumented: Vec<&String> = words.iter().filter(|word| !is_named(word)).collect();
        assert!(!words.is_empty() && undocumented.is_empty(), "{probe}: docs/lab.md does not name {undocumented:?}");
    }
}
