//! Checks the lints that apply everywhere: forbidden in the workspace, inherited by every crate,
//! denied in core.
//!
//! Dependencies are checked in `crate_rules`. Manifests are read line by line, in the form that
//! cargo writes.

use super::package_graph::PackageGraph;
use super::rust_source::RustSource;
use super::{TidyViolation, TrackedFile, find_file};

const ROOT_MANIFEST: &str = "Cargo.toml";
const CORE_FILE: &str = "crates/converger-core/src/lib.rs";

/// Lints that keep core from panicking.
const DENIED_IN_CORE: &[&str] = &["clippy::unwrap_used", "clippy::expect_used", "clippy::panic", "clippy::indexing_slicing"];

pub(super) fn violations(graph: &PackageGraph, files: &[TrackedFile]) -> Vec<TidyViolation> {
    let text = |path: &str| find_file(files, path).map_or("", |file| file.text.as_str());
    let root = unsafe_violation(text(ROOT_MANIFEST));
    let members = graph.members().filter_map(|(_, manifest)| inheritance_violation(manifest, text(manifest)));
    let core = RustSource::new(&TrackedFile { path: CORE_FILE.to_owned(), text: text(CORE_FILE).to_owned() });
    root.into_iter().chain(members).chain(denied_lint_violations(&core)).collect()
}

fn unsafe_violation(manifest: &str) -> Option<TidyViolation> {
    let forbidden = manifest_value(manifest, "[workspace.lints.rust]", "unsafe_code") == Some("\"forbid\"");
    let sentence = "`unsafe_code = \"forbid\"` is missing in [workspace.lints.rust]";
    (!forbidden).then(|| TidyViolation::new(ROOT_MANIFEST, 1, sentence))
}

fn inheritance_violation(path: &str, manifest: &str) -> Option<TidyViolation> {
    let inherited = manifest_value(manifest, "[lints]", "workspace") == Some("true");
    let sentence = "the lints of the workspace are not inherited; add `[lints]` with `workspace = true`";
    (!inherited).then(|| TidyViolation::new(path, 1, sentence))
}

/// The value of `key` in the section that starts with `header`.
fn manifest_value<'a>(manifest: &'a str, header: &str, key: &str) -> Option<&'a str> {
    let mut lines = manifest.lines().map(str::trim).skip_while(|line| *line != header).skip(1);
    let section = lines.by_ref().take_while(|line| !line.starts_with('['));
    let mut pairs = section.filter_map(|line| line.split_once('='));
    pairs.find(|(name, _)| name.trim() == key).map(|(_, value)| value.trim())
}

fn denied_lint_violations(core: &RustSource) -> Vec<TidyViolation> {
    let denied = denied_lints(&core.code);
    let missing = DENIED_IN_CORE.iter().filter(|lint| !denied.contains(*lint));
    missing.map(|lint| TidyViolation::new(&core.path, 1, format!("core must not panic; add `{lint}` to its `#![deny(...)]`"))).collect()
}

/// All lints that an inner attribute of the crate denies or forbids.
fn denied_lints(code: &str) -> Vec<&str> {
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

    const ALL_LINTS: &str = "\
#![deny(clippy::unwrap_used, clippy::expect_used)]
#![forbid(
    clippy::panic,
    clippy::indexing_slicing,
)]
";

    #[test]
    fn a_workspace_that_does_not_forbid_unsafe_is_found() {
        for manifest in ["", "[workspace.lints.rust]\nunsafe_code = \"warn\"\n", "[workspace.lints.clippy]\nunsafe_code = \"forbid\"\n"] {
            assert!(unsafe_violation(manifest).is_some(), "{manifest}");
        }
        assert!(unsafe_violation("[workspace.lints.rust]\nmissing_docs = \"warn\"\nunsafe_code = \"forbid\"\n").is_none());
    }

    #[test]
    fn a_crate_that_does_not_inherit_the_lints_is_found() {
        for manifest in ["[package]\n", "[lints]\n\n[other]\nworkspace = true\n", "[lints.rust]\nworkspace = true\n"] {
            assert!(inheritance_violation("a/Cargo.toml", manifest).is_some(), "{manifest}");
        }
        assert!(inheritance_violation("a/Cargo.toml", "[package]\n\n[lints]\nworkspace = true\n").is_none());
    }

    #[test]
    fn every_lint_that_core_does_not_deny_is_found() {
        let missing = |text: &str| denied_lint_violations(&source(CORE_FILE, text)).len();
        assert_eq!(missing(""), 4);
        assert_eq!(missing("// #![deny(clippy::panic)]\n#![warn(clippy::panic)]"), 4);
        assert_eq!(missing(&ALL_LINTS.replace("clippy::panic", "clippy::print_stdout")), 1);
        assert_eq!(missing(ALL_LINTS), 0);
    }
}
