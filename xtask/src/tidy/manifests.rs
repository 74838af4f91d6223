//! The lints that hold everywhere: forbidden in the workspace, inherited by every crate, denied in
//! core.
//!
//! What never enters here: dependencies (see `arrows`). Manifests are read line by line, as cargo's
//! own form has them.

use super::graph::Graph;
use super::rust::Source;
use super::{File, Violation, find};

const ROOT: &str = "Cargo.toml";
const CORE: &str = "crates/converger-core/src/lib.rs";

/// Core never panics.
const DENIED_IN_CORE: &[&str] = &["clippy::unwrap_used", "clippy::expect_used", "clippy::panic", "clippy::indexing_slicing"];

pub(super) fn violations(graph: &Graph, files: &[File]) -> Vec<Violation> {
    let text = |path: &str| find(files, path).map_or("", |file| file.text.as_str());
    let root = unsafe_allowed(text(ROOT));
    let members = graph.members().filter_map(|(_, manifest)| not_inherited(manifest, text(manifest)));
    let core = Source::new(&File { path: CORE.to_owned(), text: text(CORE).to_owned() });
    root.into_iter().chain(members).chain(not_denied(&core)).collect()
}

fn unsafe_allowed(manifest: &str) -> Option<Violation> {
    let forbidden = value(manifest, "[workspace.lints.rust]", "unsafe_code") == Some("\"forbid\"");
    let sentence = "`unsafe_code = \"forbid\"` is missing in [workspace.lints.rust]";
    (!forbidden).then(|| Violation::new(ROOT, 1, sentence))
}

fn not_inherited(path: &str, manifest: &str) -> Option<Violation> {
    let inherited = value(manifest, "[lints]", "workspace") == Some("true");
    let sentence = "the lints of the workspace are not inherited; add `[lints]` with `workspace = true`";
    (!inherited).then(|| Violation::new(path, 1, sentence))
}

/// The value of `key` in the section that opens with `header`.
fn value<'a>(manifest: &'a str, header: &str, key: &str) -> Option<&'a str> {
    let mut lines = manifest.lines().map(str::trim).skip_while(|line| *line != header).skip(1);
    let section = lines.by_ref().take_while(|line| !line.starts_with('['));
    let mut pairs = section.filter_map(|line| line.split_once('='));
    pairs.find(|(name, _)| name.trim() == key).map(|(_, value)| value.trim())
}

fn not_denied(core: &Source) -> Vec<Violation> {
    let denied = denied(&core.code);
    let missing = DENIED_IN_CORE.iter().filter(|lint| !denied.contains(*lint));
    missing.map(|lint| Violation::new(&core.path, 1, format!("core must not panic; add `{lint}` to its `#![deny(...)]`"))).collect()
}

/// Every lint that an inner attribute of the crate denies or forbids.
fn denied(code: &str) -> Vec<&str> {
    let attributes = code.split("#![").skip(1).filter_map(|after| after.split(']').next());
    let lists = attributes.filter_map(|attribute| {
        let list = attribute.strip_prefix("deny(").or_else(|| attribute.strip_prefix("forbid("))?;
        list.trim_end().strip_suffix(')')
    });
    lists.flat_map(|list| list.split(',')).map(str::trim).collect()
}

#[cfg(test)]
mod tests {
    use super::super::sample::source;
    use super::*;

    const ALL: &str = "\
#![deny(clippy::unwrap_used, clippy::expect_used)]
#![forbid(
    clippy::panic,
    clippy::indexing_slicing,
)]
";

    #[test]
    fn a_workspace_that_does_not_forbid_unsafe_is_found() {
        for manifest in ["", "[workspace.lints.rust]\nunsafe_code = \"warn\"\n", "[workspace.lints.clippy]\nunsafe_code = \"forbid\"\n"] {
            assert!(unsafe_allowed(manifest).is_some(), "{manifest}");
        }
        assert!(unsafe_allowed("[workspace.lints.rust]\nmissing_docs = \"warn\"\nunsafe_code = \"forbid\"\n").is_none());
    }

    #[test]
    fn a_crate_that_does_not_inherit_the_lints_is_found() {
        for manifest in ["[package]\n", "[lints]\n\n[other]\nworkspace = true\n", "[lints.rust]\nworkspace = true\n"] {
            assert!(not_inherited("a/Cargo.toml", manifest).is_some(), "{manifest}");
        }
        assert!(not_inherited("a/Cargo.toml", "[package]\n\n[lints]\nworkspace = true\n").is_none());
    }

    #[test]
    fn every_lint_that_core_does_not_deny_is_found() {
        let missing = |text: &str| not_denied(&source(CORE, text)).len();
        assert_eq!(missing(""), 4);
        assert_eq!(missing("// #![deny(clippy::panic)]\n#![warn(clippy::panic)]"), 4);
        assert_eq!(missing(&ALL.replace("clippy::panic", "clippy::print_stdout")), 1);
        assert_eq!(missing(ALL), 0);
    }
}
