//! Which crate may use which: the table below is the architecture, compared with cargo's resolved
//! graph.
//!
//! Dev-dependencies are free: a test may combine what the program must keep apart. Words in source
//! files are checked in `purity` and `banned_words`.

use std::collections::{BTreeSet, VecDeque};

use super::package_graph::{CargoPackage, DependencyKind, PackageGraph};
use super::{TidyViolation, TrackedFile, find_file};

/// What a crate may use.
#[derive(Clone, Copy)]
enum AllowedCrates {
    Any,
    Only(&'static [&'static str]),
}

impl AllowedCrates {
    fn contains(self, name: &str) -> bool {
        match self {
            Self::Any => true,
            Self::Only(names) => names.contains(&name),
        }
    }
}

/// One row of the architecture.
struct CrateRules {
    name: &'static str,
    /// Crates of this workspace that it may use.
    ours: AllowedCrates,
    /// External crates that it may use directly.
    others: AllowedCrates,
    /// Crates that it must not reach, directly or indirectly.
    unreachable: &'static [&'static str],
    has_binary: bool,
}

/// No I/O, clock, randomness, async or logging.
const IMPURE: &[&str] = &["tokio", "reqwest", "rand", "getrandom", "tracing", "log", "chrono", "jiff", "rusqlite", "axum", "clap"];

/// Crates that print for people, parse a command line or serve HTTP. The program does that; the run library is used without it.
const OF_A_PROGRAM: &[&str] = &[
    "clap",
    "anstream",
    "indicatif",
    "annotate-snippets",
    "axum",
    "tonic",
    "warp",
    "actix",
    "actix-http",
    "actix-server",
    "actix-web",
    "rocket",
    "poem",
    "salvo",
    "tiny_http",
    "tide",
];

/// Crates that also serve HTTP if a feature is enabled. Cargo unifies features over the workspace, so what counts is which package requests
/// the feature.
const SERVING: &[(&str, &str)] =
    &[("hyper", "server"), ("hyper-util", "server"), ("hyper-util", "server-auto"), ("hyper-util", "server-graceful")];

const CRATE_RULES: &[CrateRules] = &[
    CrateRules {
        name: "converger-core",
        ours: AllowedCrates::Only(&[]),
        others: AllowedCrates::Only(&["granit-parser", "serde", "serde_json", "sha2"]),
        unreachable: IMPURE,
        has_binary: false,
    },
    CrateRules {
        name: "converger-adapters",
        ours: AllowedCrates::Only(&["converger-core"]),
        others: AllowedCrates::Any,
        unreachable: &[],
        has_binary: false,
    },
    CrateRules {
        name: "converger-ledger",
        ours: AllowedCrates::Only(&[]),
        others: AllowedCrates::Only(&["base64", "ed25519-dalek", "sha2", "thiserror"]),
        // Its test oracles depend on randomness (`getrandom`); the crate itself uses none.
        unreachable: &["tokio", "reqwest", "tracing", "log", "chrono", "jiff", "rusqlite", "axum", "clap"],
        has_binary: false,
    },
    CrateRules {
        name: "converger-store",
        ours: AllowedCrates::Only(&["converger-core", "converger-ledger"]),
        others: AllowedCrates::Only(&["rusqlite", "rustix", "thiserror", "tokio"]),
        unreachable: &["reqwest"],
        has_binary: false,
    },
    CrateRules {
        name: "converger-engine",
        ours: AllowedCrates::Only(&["converger-core", "converger-store"]),
        others: AllowedCrates::Only(&["rustix", "thiserror", "tokio"]),
        unreachable: &["reqwest"],
        has_binary: false,
    },
    CrateRules {
        name: "converger-runtime",
        ours: AllowedCrates::Only(&["converger-core", "converger-ledger", "converger-store", "converger-engine", "converger-adapters"]),
        others: AllowedCrates::Any,
        unreachable: OF_A_PROGRAM,
        has_binary: false,
    },
    CrateRules {
        name: "converger-lab",
        ours: AllowedCrates::Only(&[]),
        others: AllowedCrates::Any,
        unreachable: &["reqwest"],
        has_binary: false,
    },
    CrateRules {
        name: "converger",
        ours: AllowedCrates::Only(&[
            "converger-core",
            "converger-adapters",
            "converger-engine",
            "converger-lab",
            "converger-ledger",
            "converger-runtime",
            "converger-store",
        ]),
        others: AllowedCrates::Any,
        unreachable: &[],
        has_binary: true,
    },
    CrateRules { name: "xtask", ours: AllowedCrates::Any, others: AllowedCrates::Any, unreachable: &[], has_binary: true },
];

const TABLE: &str = "xtask/src/tidy/crate_rules.rs";

/// Features that change the bytes of a plan: with them, two builds would give one plan two digests.
const BANNED_FEATURES: &[(&str, &str)] = &[("serde_json", "preserve_order"), ("serde_json", "arbitrary_precision")];

pub(super) fn violations(graph: &PackageGraph, files: &[TrackedFile]) -> Vec<TidyViolation> {
    let members = graph.members().flat_map(|(package, manifest)| {
        let text = find_file(files, manifest).map_or("", |file| file.text.as_str());
        member_violations(graph, package, CRATE_RULES)
            .into_iter()
            .map(|broken| TidyViolation::new(manifest, dependency_line(text, &broken.used), broken.sentence))
    });
    let banned = find_banned_features(graph).into_iter();
    members.chain(stale_rules(graph, CRATE_RULES)).chain(banned).collect()
}

/// A violated rule of a crate, and the dependency that violates it.
struct CrateViolation {
    used: String,
    sentence: String,
}

impl CrateViolation {
    fn new(used: &str, sentence: String) -> Self {
        Self { used: used.to_owned(), sentence }
    }
}

fn member_violations(graph: &PackageGraph, package: &CargoPackage, all_rules: &[CrateRules]) -> Vec<CrateViolation> {
    let name = &package.name;
    let Some(rules) = all_rules.iter().find(|rules| rules.name == name) else {
        let sentence = format!("no rule says what `{name}` may use; add it to the table in {TABLE}");
        return vec![CrateViolation::new(name, sentence)];
    };
    let direct = direct_violations(graph, package, rules);
    let reached = rules.unreachable.iter().filter_map(|banned| find_path_to_banned(graph, package, banned));
    let serving = (rules.unreachable == OF_A_PROGRAM).then(|| served(graph, package)).flatten();
    direct.into_iter().chain(reached).chain(serving).chain(binary_violation(package, rules)).collect()
}

fn direct_violations(graph: &PackageGraph, package: &CargoPackage, rules: &CrateRules) -> Vec<CrateViolation> {
    let used = graph.used_packages(package, &[DependencyKind::Normal, DependencyKind::Build]);
    let wrong = used.filter(|used| {
        let allowed = if used.manifest.is_some() { rules.ours } else { rules.others };
        !allowed.contains(&used.name)
    });
    wrong.map(|used| CrateViolation::new(&used.name, not_allowed_text(rules, &used.name))).collect()
}

fn not_allowed_text(rules: &CrateRules, used: &str) -> String {
    let crate_name = rules.name;
    format!("`{crate_name}` may not use `{used}`; move the code that needs it, or change {TABLE}")
}

fn find_path_to_banned(graph: &PackageGraph, package: &CargoPackage, banned: &str) -> Option<CrateViolation> {
    shortest_path(graph, package, |last| last.name == banned).map(|path| reached_violation(&path))
}

/// The shortest path to a package that requests a server.
fn served(graph: &PackageGraph, package: &CargoPackage) -> Option<CrateViolation> {
    let requests_server =
        |last: &CargoPackage| last.asks.iter().any(|(name, feature)| SERVING.contains(&(name.as_str(), feature.as_str())));
    let path = shortest_path(graph, package, requests_server)?;
    let names: Vec<&str> = path.iter().map(|package| package.name.as_str()).collect();
    let sentence =
        format!("no HTTP server may be reachable, and the last of these packages requests one: {}; drop the feature", names.join(" -> "));
    Some(CrateViolation::new(names.get(1).or(names.first()).unwrap_or(&""), sentence))
}

/// The shortest path from `package` to one that `is_target`. Build dependencies run on the build machine and are not part of the program,
/// so only normal dependencies are followed.
fn shortest_path<'a>(
    graph: &'a PackageGraph,
    package: &'a CargoPackage,
    is_target: impl Fn(&CargoPackage) -> bool,
) -> Option<Vec<&'a CargoPackage>> {
    let mut queue = VecDeque::from([vec![package]]);
    let mut seen = BTreeSet::new();
    while let Some(path) = queue.pop_front() {
        let last = *path.last()?;
        if is_target(last) {
            return Some(path);
        }
        for next in graph.used_packages(last, &[DependencyKind::Normal]) {
            if seen.insert(std::ptr::from_ref(next)) {
                queue.push_back([path.as_slice(), &[next]].concat());
            }
        }
    }
    None
}

fn reached_violation(path: &[&CargoPackage]) -> CrateViolation {
    let names: Vec<&str> = path.iter().map(|package| package.name.as_str()).collect();
    let sentence = format!("this must not be reachable: {}; drop the dependency or the feature", names.join(" -> "));
    CrateViolation::new(names.get(1).unwrap_or(&""), sentence)
}

fn binary_violation(package: &CargoPackage, rules: &CrateRules) -> Option<CrateViolation> {
    let wrong = package.has_binary && !rules.has_binary;
    let sentence = format!("`{}` has a binary; `converger` is the only program, make this a subcommand of it", rules.name);
    wrong.then(|| CrateViolation::new("[[bin]]", sentence))
}

fn stale_rules(graph: &PackageGraph, all_rules: &[CrateRules]) -> Vec<TidyViolation> {
    let members: BTreeSet<&str> = graph.members().map(|(package, _)| package.name.as_str()).collect();
    let stale = all_rules.iter().filter(|rules| !members.contains(rules.name));
    stale
        .map(|rules| TidyViolation::new(TABLE, 1, format!("the table names `{}`, which is not one of our crates; remove it", rules.name)))
        .collect()
}

fn find_banned_features(graph: &PackageGraph) -> Vec<TidyViolation> {
    let on = |(name, feature): &&(&str, &str)| {
        let namesakes = graph.packages.values().filter(|package| package.name == *name);
        namesakes.flat_map(|package| &package.features).any(|enabled| enabled == feature)
    };
    let banned = BANNED_FEATURES.iter().filter(on);
    banned
        .map(|(name, feature)| {
            let advice = format!("`cargo tree --workspace -e features -i {name}` shows what requests it");
            TidyViolation::new("Cargo.toml", 1, format!("the feature `{feature}` of `{name}` is enabled; {advice}"))
        })
        .collect()
}

/// The line of a manifest that starts with `key`; the first line if a rename or a table hides it.
fn dependency_line(manifest: &str, key: &str) -> usize {
    let follows = |rest: &str| rest.is_empty() || rest.starts_with([' ', '.', '=']);
    let begins = |line: &str| line.strip_prefix(key).is_some_and(follows);
    manifest.lines().position(begins).map_or(1, |index| index + 1)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::package_graph::PackageUse;
    use super::super::sample::file;
    use super::*;

    /// A package that is ours if its name starts with `converger` or is `xtask`.
    fn test_package(name: &str, uses: &[(&str, DependencyKind)]) -> CargoPackage {
        let is_ours = name.starts_with("converger") || name == "xtask";
        let arrow = |(id, kind): &(&str, DependencyKind)| PackageUse { id: (*id).to_owned(), kinds: vec![*kind] };
        CargoPackage {
            name: name.to_owned(),
            manifest: is_ours.then(|| format!("{name}/Cargo.toml")),
            has_binary: false,
            features: Vec::new(),
            asks: Vec::new(),
            uses: uses.iter().map(arrow).collect(),
        }
    }

    fn test_graph(packages: impl IntoIterator<Item = CargoPackage>) -> PackageGraph {
        let by_name = packages.into_iter().map(|package| (package.name.clone(), package));
        PackageGraph { packages: by_name.collect::<BTreeMap<_, _>>() }
    }

    /// The violations of `subject` in a graph with the other packages.
    fn violation_texts(subject: CargoPackage, others: &[&str]) -> Vec<String> {
        let name = subject.name.clone();
        let others = others.iter().map(|other| test_package(other, &[]));
        let graph = test_graph(others.chain([subject]));
        member_violations(&graph, &graph.packages[&name], CRATE_RULES).into_iter().map(|broken| broken.sentence).collect()
    }

    #[test]
    fn crates_without_rules_are_found() {
        let found = violation_texts(test_package("converger-attic", &[]), &[]);
        assert!(found[0].contains("add it to the table"), "{found:?}");
    }

    #[test]
    fn core_may_use_nothing_of_ours_and_little_of_others() {
        for (used, kind) in [
            ("converger-adapters", DependencyKind::Normal),
            ("xtask", DependencyKind::Build),
            ("thiserror", DependencyKind::Normal),
            ("cc", DependencyKind::Build),
        ] {
            let found = violation_texts(test_package("converger-core", &[(used, kind)]), &[used]);
            assert_eq!(found.len(), 1, "{used}");
            assert!(found[0].starts_with(&format!("`converger-core` may not use `{used}`;")), "{found:?}");
        }
        assert!(violation_texts(test_package("converger-core", &[("serde", DependencyKind::Normal)]), &["serde"]).is_empty());
    }

    #[test]
    fn adapters_may_not_use_the_binary_but_anything_of_others() {
        assert_eq!(violation_texts(test_package("converger-adapters", &[("converger", DependencyKind::Normal)]), &["converger"]).len(), 1);
        let allowed =
            test_package("converger-adapters", &[("converger-core", DependencyKind::Normal), ("reqwest", DependencyKind::Normal)]);
        assert!(violation_texts(allowed, &["converger-core", "reqwest"]).is_empty());
    }

    #[test]
    fn transitive_uses_of_banned_crates_are_found_with_their_path() {
        let graph = test_graph([
            test_package("converger-core", &[("serde", DependencyKind::Normal)]),
            test_package("serde", &[("middle", DependencyKind::Normal), ("serde", DependencyKind::Normal)]),
            test_package("middle", &[("getrandom", DependencyKind::Normal)]),
            test_package("getrandom", &[]),
        ]);
        let found = member_violations(&graph, &graph.packages["converger-core"], CRATE_RULES);
        assert_eq!(found.len(), 1);
        assert!(found[0].sentence.contains("converger-core -> serde -> middle -> getrandom;"), "{}", found[0].sentence);
        assert_eq!(found[0].used, "serde");
    }

    #[test]
    fn dev_and_build_dependencies_are_not_followed() {
        let graph = test_graph([
            test_package(
                "converger-core",
                &[("serde", DependencyKind::Normal), ("rand", DependencyKind::Dev), ("proptest", DependencyKind::Dev)],
            ),
            test_package("serde", &[("getrandom", DependencyKind::Build)]),
            test_package("proptest", &[("rand", DependencyKind::Normal)]),
            test_package("getrandom", &[]),
            test_package("rand", &[]),
        ]);
        assert!(member_violations(&graph, &graph.packages["converger-core"], CRATE_RULES).is_empty());
    }

    #[test]
    fn second_binaries_are_found() {
        let with_binary = |name| CargoPackage { has_binary: true, ..test_package(name, &[]) };
        assert_eq!(violation_texts(with_binary("converger-adapters"), &[]).len(), 1);
        assert!(violation_texts(with_binary("converger"), &[]).is_empty());
        assert!(violation_texts(with_binary("xtask"), &[]).is_empty());
    }

    #[test]
    fn rules_without_a_crate_are_found() {
        let all = || CRATE_RULES.iter().map(|rules| test_package(rules.name, &[]));
        assert_eq!(stale_rules(&test_graph(all().skip(1)), CRATE_RULES).len(), 1);
        assert!(stale_rules(&test_graph(all()), CRATE_RULES).is_empty());
    }

    #[test]
    fn the_run_library_uses_our_libraries_but_neither_the_lab_nor_the_program() {
        let libraries = ["converger-core", "converger-ledger", "converger-store", "converger-engine", "converger-adapters"];
        let uses = libraries.map(|name| (name, DependencyKind::Normal));
        assert!(violation_texts(test_package("converger-runtime", &uses), &libraries).is_empty());
        for used in ["converger-lab", "converger", "xtask"] {
            assert_eq!(violation_texts(test_package("converger-runtime", &[(used, DependencyKind::Normal)]), &[used]).len(), 1, "{used}");
        }
        assert!(
            violation_texts(test_package("converger", &[("converger-runtime", DependencyKind::Normal)]), &["converger-runtime"]).is_empty()
        );
        assert_eq!(
            violation_texts(test_package("converger-engine", &[("converger-runtime", DependencyKind::Normal)]), &["converger-runtime"])
                .len(),
            1
        );
    }

    #[test]
    fn the_run_library_reaches_nothing_that_prints_parses_arguments_or_serves() {
        for banned in OF_A_PROGRAM {
            let graph = test_graph([
                test_package("converger-runtime", &[("converger-adapters", DependencyKind::Normal)]),
                test_package("converger-adapters", &[(*banned, DependencyKind::Normal)]),
                test_package(banned, &[]),
            ]);
            let found = member_violations(&graph, &graph.packages["converger-runtime"], CRATE_RULES);
            assert_eq!(found.len(), 1, "{banned}");
            assert!(found[0].sentence.contains(&format!("converger-runtime -> converger-adapters -> {banned};")), "{}", found[0].sentence);
        }
    }

    #[test]
    fn the_run_library_reaches_the_client_of_hyper_but_not_its_server() {
        let with = |feature: &str| {
            let requests = vec![("hyper".to_owned(), feature.to_owned())];
            let graph = test_graph([
                test_package("converger-runtime", &[("middle", DependencyKind::Normal)]),
                CargoPackage { asks: requests, ..test_package("middle", &[("hyper", DependencyKind::Normal)]) },
                test_package("hyper", &[]),
            ]);
            member_violations(&graph, &graph.packages["converger-runtime"], CRATE_RULES)
                .into_iter()
                .map(|broken| broken.sentence)
                .collect::<Vec<_>>()
        };
        assert!(with("client").is_empty());
        assert!(with("server")[0].contains("converger-runtime -> middle;"), "{:?}", with("server"));
    }

    #[test]
    fn banned_features_are_found() {
        let with = |feature: &str| test_graph([CargoPackage { features: vec![feature.to_owned()], ..test_package("serde_json", &[]) }]);
        for (_, feature) in BANNED_FEATURES {
            assert_eq!(find_banned_features(&with(feature)).len(), 1, "{feature}");
        }
        assert!(find_banned_features(&with("std")).is_empty());
    }

    #[test]
    fn a_violation_points_at_the_line_of_the_dependency() {
        let manifest = "[package]\n\n[dependencies]\nserde_json = 1\nrand.workspace = true\n";
        let graph = test_graph([test_package("converger-core", &[("rand", DependencyKind::Normal)]), test_package("rand", &[])]);
        let found = violations(&graph, &[file("converger-core/Cargo.toml", manifest)]);
        assert!(found.iter().any(|violation| violation.path.starts_with("converger-core/") && violation.line == 5));
        assert_eq!(dependency_line(manifest, "serde"), 1);
    }
}
