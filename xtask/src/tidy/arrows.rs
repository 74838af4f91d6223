//! Which crate may use which: the table below is the architecture, and cargo's resolved graph is
//! held against it.
//!
//! Dev-dependencies are free: a test may bring together what the program must keep apart. What
//! never enters here: words in source files (see `purity` and `words`).

use std::collections::{BTreeSet, VecDeque};

use super::graph::{Graph, Kind, Package};
use super::{File, Violation, find};

/// What a crate may use.
#[derive(Clone, Copy)]
enum Allowed {
    Any,
    Only(&'static [&'static str]),
}

impl Allowed {
    fn contains(self, name: &str) -> bool {
        match self {
            Self::Any => true,
            Self::Only(names) => names.contains(&name),
        }
    }
}

/// One row of the architecture.
struct Room {
    name: &'static str,
    /// Crates of this workspace that it may use.
    ours: Allowed,
    /// Crates of others that it may use directly.
    others: Allowed,
    /// Crates that it may not reach over any number of arrows.
    unreachable: &'static [&'static str],
    has_binary: bool,
}

/// No I/O, clock, randomness, async, logging.
const IMPURE: &[&str] = &["tokio", "reqwest", "rand", "getrandom", "tracing", "log", "chrono", "jiff", "rusqlite", "axum", "clap"];

/// What prints for a person, reads a command line, or serves HTTP: the program does that, and the run library is used without it.
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

/// Crates that also serve HTTP if a feature is on. Cargo unifies features over the workspace, so that
/// what counts is which package asks for the feature.
const SERVING: &[(&str, &str)] =
    &[("hyper", "server"), ("hyper-util", "server"), ("hyper-util", "server-auto"), ("hyper-util", "server-graceful")];

/// Rows for crates that do not exist yet; the row applies from the commit that adds the crate.
const PLANNED: &[&str] = &["converger-runtime"];

const ROOMS: &[Room] = &[
    Room {
        name: "converger-core",
        ours: Allowed::Only(&[]),
        others: Allowed::Only(&["granit-parser", "serde", "serde_json", "sha2"]),
        unreachable: IMPURE,
        has_binary: false,
    },
    Room {
        name: "converger-adapters",
        ours: Allowed::Only(&["converger-core"]),
        others: Allowed::Any,
        unreachable: &[],
        has_binary: false,
    },
    Room {
        name: "converger-ledger",
        ours: Allowed::Only(&[]),
        others: Allowed::Only(&["base64", "ed25519-dalek", "sha2", "thiserror"]),
        // Its oracles in the tests bring chance along (`getrandom`); it uses none itself.
        unreachable: &["tokio", "reqwest", "tracing", "log", "chrono", "jiff", "rusqlite", "axum", "clap"],
        has_binary: false,
    },
    Room {
        name: "converger-store",
        ours: Allowed::Only(&["converger-core", "converger-ledger"]),
        others: Allowed::Only(&["rusqlite", "rustix", "thiserror", "tokio"]),
        unreachable: &["reqwest"],
        has_binary: false,
    },
    Room {
        name: "converger-engine",
        ours: Allowed::Only(&["converger-core", "converger-store"]),
        others: Allowed::Only(&["rustix", "thiserror", "tokio"]),
        unreachable: &["reqwest"],
        has_binary: false,
    },
    Room {
        name: "converger-runtime",
        ours: Allowed::Only(&["converger-core", "converger-ledger", "converger-store", "converger-engine", "converger-adapters"]),
        others: Allowed::Any,
        unreachable: OF_A_PROGRAM,
        has_binary: false,
    },
    Room { name: "converger-lab", ours: Allowed::Only(&[]), others: Allowed::Any, unreachable: &["reqwest"], has_binary: false },
    Room {
        name: "converger",
        ours: Allowed::Only(&[
            "converger-core",
            "converger-adapters",
            "converger-engine",
            "converger-lab",
            "converger-ledger",
            "converger-runtime",
            "converger-store",
        ]),
        others: Allowed::Any,
        unreachable: &[],
        has_binary: true,
    },
    Room { name: "xtask", ours: Allowed::Any, others: Allowed::Any, unreachable: &[], has_binary: true },
];

const TABLE: &str = "xtask/src/tidy/arrows.rs";

/// Features that change what bytes a plan has: with them two builds would give one plan two
/// digests.
const BANNED_FEATURES: &[(&str, &str)] = &[("serde_json", "preserve_order"), ("serde_json", "arbitrary_precision")];

pub(super) fn violations(graph: &Graph, files: &[File]) -> Vec<Violation> {
    let members = graph.members().flat_map(|(package, manifest)| {
        let text = find(files, manifest).map_or("", |file| file.text.as_str());
        of_member(graph, package, ROOMS).into_iter().map(|broken| Violation::new(manifest, line_of(text, &broken.used), broken.sentence))
    });
    let banned = banned_features(graph).into_iter();
    members.chain(stale_rooms(graph, ROOMS)).chain(banned).collect()
}

/// A rule that a crate breaks, and the package whose line in the manifest does it.
struct Broken {
    used: String,
    sentence: String,
}

impl Broken {
    fn new(used: &str, sentence: String) -> Self {
        Self { used: used.to_owned(), sentence }
    }
}

fn of_member(graph: &Graph, package: &Package, rooms: &[Room]) -> Vec<Broken> {
    let name = &package.name;
    let Some(room) = rooms.iter().find(|room| room.name == name) else {
        let sentence = format!("nobody said what `{name}` may use; add it to the table in {TABLE}");
        return vec![Broken::new(name, sentence)];
    };
    let direct = direct(graph, package, room);
    let reached = room.unreachable.iter().filter_map(|banned| reached(graph, package, banned));
    let serving = (room.unreachable == OF_A_PROGRAM).then(|| served(graph, package)).flatten();
    direct.into_iter().chain(reached).chain(serving).chain(binary(package, room)).collect()
}

fn direct(graph: &Graph, package: &Package, room: &Room) -> Vec<Broken> {
    let used = graph.used(package, &[Kind::Normal, Kind::Build]);
    let wrong = used.filter(|used| {
        let allowed = if used.manifest.is_some() { room.ours } else { room.others };
        !allowed.contains(&used.name)
    });
    wrong.map(|used| Broken::new(&used.name, not_allowed(room, &used.name))).collect()
}

fn not_allowed(room: &Room, used: &str) -> String {
    let room = room.name;
    format!("`{room}` may not use `{used}`; move the code that needs it, or change {TABLE}")
}

fn reached(graph: &Graph, package: &Package, banned: &str) -> Option<Broken> {
    shortest_path(graph, package, |last| last.name == banned).map(|path| unreachable_reached(&path))
}

/// The shortest path to a package that asks for a server.
fn served(graph: &Graph, package: &Package) -> Option<Broken> {
    let asks = |last: &Package| last.asks.iter().any(|(name, feature)| SERVING.contains(&(name.as_str(), feature.as_str())));
    let path = shortest_path(graph, package, asks)?;
    let names: Vec<&str> = path.iter().map(|package| package.name.as_str()).collect();
    let sentence = format!("no HTTP server may be reachable, and the last of these asks for one: {}; drop the feature", names.join(" -> "));
    Some(Broken::new(names.get(1).or(names.first()).unwrap_or(&""), sentence))
}

/// The shortest path from `package` to one that `is_target`. Build-dependencies of others run on the
/// machine that compiles and never enter the program, so only normal arrows are followed.
fn shortest_path<'a>(graph: &'a Graph, package: &'a Package, is_target: impl Fn(&Package) -> bool) -> Option<Vec<&'a Package>> {
    let mut queue = VecDeque::from([vec![package]]);
    let mut seen = BTreeSet::new();
    while let Some(path) = queue.pop_front() {
        let last = *path.last()?;
        if is_target(last) {
            return Some(path);
        }
        for next in graph.used(last, &[Kind::Normal]) {
            if seen.insert(std::ptr::from_ref(next)) {
                queue.push_back([path.as_slice(), &[next]].concat());
            }
        }
    }
    None
}

fn unreachable_reached(way: &[&Package]) -> Broken {
    let names: Vec<&str> = way.iter().map(|package| package.name.as_str()).collect();
    let sentence = format!("this must not be reachable: {}; drop the dependency or the feature", names.join(" -> "));
    Broken::new(names.get(1).unwrap_or(&""), sentence)
}

fn binary(package: &Package, room: &Room) -> Option<Broken> {
    let wrong = package.has_binary && !room.has_binary;
    let sentence = format!("`{}` has a binary; `converger` is the only program, make this a subcommand of it", room.name);
    wrong.then(|| Broken::new("[[bin]]", sentence))
}

fn stale_rooms(graph: &Graph, rooms: &[Room]) -> Vec<Violation> {
    let members: BTreeSet<&str> = graph.members().map(|(package, _)| package.name.as_str()).collect();
    let stale = rooms.iter().filter(|room| !members.contains(room.name) && !PLANNED.contains(&room.name));
    stale.map(|room| Violation::new(TABLE, 1, format!("the table names `{}`, which is no crate of ours; remove it", room.name))).collect()
}

fn banned_features(graph: &Graph) -> Vec<Violation> {
    let on = |(name, feature): &&(&str, &str)| {
        let namesakes = graph.packages.values().filter(|package| package.name == *name);
        namesakes.flat_map(|package| &package.features).any(|enabled| enabled == feature)
    };
    let banned = BANNED_FEATURES.iter().filter(on);
    banned
        .map(|(name, feature)| {
            let who = format!("`cargo tree --workspace -e features -i {name}` shows who asks for it");
            Violation::new("Cargo.toml", 1, format!("the feature `{feature}` of `{name}` is on; {who}"))
        })
        .collect()
}

/// The line of a manifest that begins with `key`; the first one if a rename or a table hides it.
fn line_of(manifest: &str, key: &str) -> usize {
    let follows = |rest: &str| rest.is_empty() || rest.starts_with([' ', '.', '=']);
    let begins = |line: &str| line.strip_prefix(key).is_some_and(follows);
    manifest.lines().position(begins).map_or(1, |index| index + 1)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::graph::Use;
    use super::super::sample::file;
    use super::*;

    /// A package that is ours if its name begins with `converger` or is `xtask`.
    fn package(name: &str, uses: &[(&str, Kind)]) -> Package {
        let ours = name.starts_with("converger") || name == "xtask";
        let arrow = |(id, kind): &(&str, Kind)| Use { id: (*id).to_owned(), kinds: vec![*kind] };
        Package {
            name: name.to_owned(),
            manifest: ours.then(|| format!("{name}/Cargo.toml")),
            has_binary: false,
            features: Vec::new(),
            asks: Vec::new(),
            uses: uses.iter().map(arrow).collect(),
        }
    }

    fn graph(packages: impl IntoIterator<Item = Package>) -> Graph {
        let by_name = packages.into_iter().map(|package| (package.name.clone(), package));
        Graph { packages: by_name.collect::<BTreeMap<_, _>>() }
    }

    /// What is wrong with `package`, where the others are just there.
    fn sentences(subject: Package, others: &[&str]) -> Vec<String> {
        let name = subject.name.clone();
        let others = others.iter().map(|other| package(other, &[]));
        let graph = graph(others.chain([subject]));
        of_member(&graph, &graph.packages[&name], ROOMS).into_iter().map(|broken| broken.sentence).collect()
    }

    #[test]
    fn an_unknown_crate_is_found() {
        let found = sentences(package("converger-attic", &[]), &[]);
        assert!(found[0].contains("add it to the table"), "{found:?}");
    }

    #[test]
    fn core_may_use_nothing_of_ours_and_little_of_others() {
        for (used, kind) in [("converger-adapters", Kind::Normal), ("xtask", Kind::Build), ("thiserror", Kind::Normal), ("cc", Kind::Build)]
        {
            let found = sentences(package("converger-core", &[(used, kind)]), &[used]);
            assert_eq!(found.len(), 1, "{used}");
            assert!(found[0].starts_with(&format!("`converger-core` may not use `{used}`;")), "{found:?}");
        }
        assert!(sentences(package("converger-core", &[("serde", Kind::Normal)]), &["serde"]).is_empty());
    }

    #[test]
    fn adapters_may_not_use_the_binary_but_anything_of_others() {
        assert_eq!(sentences(package("converger-adapters", &[("converger", Kind::Normal)]), &["converger"]).len(), 1);
        let fine = package("converger-adapters", &[("converger-core", Kind::Normal), ("reqwest", Kind::Normal)]);
        assert!(sentences(fine, &["converger-core", "reqwest"]).is_empty());
    }

    #[test]
    fn what_core_must_not_reach_is_found_far_away_with_the_way_to_it() {
        let graph = graph([
            package("converger-core", &[("serde", Kind::Normal)]),
            package("serde", &[("middle", Kind::Normal), ("serde", Kind::Normal)]),
            package("middle", &[("getrandom", Kind::Normal)]),
            package("getrandom", &[]),
        ]);
        let found = of_member(&graph, &graph.packages["converger-core"], ROOMS);
        assert_eq!(found.len(), 1);
        assert!(found[0].sentence.contains("converger-core -> serde -> middle -> getrandom;"), "{}", found[0].sentence);
        assert_eq!(found[0].used, "serde");
    }

    #[test]
    fn what_only_tests_or_build_scripts_use_is_not_reached() {
        let graph = graph([
            package("converger-core", &[("serde", Kind::Normal), ("rand", Kind::Dev), ("proptest", Kind::Dev)]),
            package("serde", &[("getrandom", Kind::Build)]),
            package("proptest", &[("rand", Kind::Normal)]),
            package("getrandom", &[]),
            package("rand", &[]),
        ]);
        assert!(of_member(&graph, &graph.packages["converger-core"], ROOMS).is_empty());
    }

    #[test]
    fn a_second_program_is_found() {
        let with_binary = |name| Package { has_binary: true, ..package(name, &[]) };
        assert_eq!(sentences(with_binary("converger-adapters"), &[]).len(), 1);
        assert!(sentences(with_binary("converger"), &[]).is_empty());
        assert!(sentences(with_binary("xtask"), &[]).is_empty());
    }

    #[test]
    fn a_row_without_a_crate_is_found() {
        let all = || ROOMS.iter().map(|room| package(room.name, &[]));
        assert_eq!(stale_rooms(&graph(all().skip(1)), ROOMS).len(), 1);
        assert!(stale_rooms(&graph(all()), ROOMS).is_empty());
    }

    #[test]
    fn the_run_library_uses_our_libraries_but_neither_the_lab_nor_the_program() {
        let libraries = ["converger-core", "converger-ledger", "converger-store", "converger-engine", "converger-adapters"];
        let uses = libraries.map(|name| (name, Kind::Normal));
        assert!(sentences(package("converger-runtime", &uses), &libraries).is_empty());
        for used in ["converger-lab", "converger", "xtask"] {
            assert_eq!(sentences(package("converger-runtime", &[(used, Kind::Normal)]), &[used]).len(), 1, "{used}");
        }
        assert!(sentences(package("converger", &[("converger-runtime", Kind::Normal)]), &["converger-runtime"]).is_empty());
        assert_eq!(sentences(package("converger-engine", &[("converger-runtime", Kind::Normal)]), &["converger-runtime"]).len(), 1);
    }

    #[test]
    fn the_run_library_reaches_nothing_that_prints_parses_arguments_or_serves() {
        for banned in OF_A_PROGRAM {
            let graph = graph([
                package("converger-runtime", &[("converger-adapters", Kind::Normal)]),
                package("converger-adapters", &[(*banned, Kind::Normal)]),
                package(banned, &[]),
            ]);
            let found = of_member(&graph, &graph.packages["converger-runtime"], ROOMS);
            assert_eq!(found.len(), 1, "{banned}");
            assert!(found[0].sentence.contains(&format!("converger-runtime -> converger-adapters -> {banned};")), "{}", found[0].sentence);
        }
    }

    #[test]
    fn the_run_library_reaches_the_client_of_hyper_but_not_its_server() {
        let with = |feature: &str| {
            let asks = vec![("hyper".to_owned(), feature.to_owned())];
            let graph = graph([
                package("converger-runtime", &[("middle", Kind::Normal)]),
                Package { asks, ..package("middle", &[("hyper", Kind::Normal)]) },
                package("hyper", &[]),
            ]);
            of_member(&graph, &graph.packages["converger-runtime"], ROOMS).into_iter().map(|broken| broken.sentence).collect::<Vec<_>>()
        };
        assert!(with("client").is_empty());
        assert!(with("server")[0].contains("converger-runtime -> middle;"), "{:?}", with("server"));
    }

    #[test]
    fn a_planned_crate_may_be_missing() {
        let without = ROOMS.iter().filter(|room| !PLANNED.contains(&room.name)).map(|room| package(room.name, &[]));
        assert!(stale_rooms(&graph(without), ROOMS).is_empty());
    }

    #[test]
    fn a_feature_that_changes_bytes_is_found() {
        let with = |feature: &str| graph([Package { features: vec![feature.to_owned()], ..package("serde_json", &[]) }]);
        for (_, feature) in BANNED_FEATURES {
            assert_eq!(banned_features(&with(feature)).len(), 1, "{feature}");
        }
        assert!(banned_features(&with("std")).is_empty());
    }

    #[test]
    fn a_violation_points_at_the_line_of_the_dependency() {
        let manifest = "[package]\n\n[dependencies]\nserde_json = 1\nrand.workspace = true\n";
        let graph = graph([package("converger-core", &[("rand", Kind::Normal)]), package("rand", &[])]);
        let found = violations(&graph, &[file("converger-core/Cargo.toml", manifest)]);
        assert!(found.iter().any(|violation| violation.path.starts_with("converger-core/") && violation.line == 5));
        assert_eq!(line_of(manifest, "serde"), 1);
    }
}
