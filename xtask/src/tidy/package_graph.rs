//! Cargo's view of our dependencies: packages, their features, and which package uses which for
//! what.
//!
//! Must not judge it (see `crate_rules`), and must not resolve graphs itself.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

use crate::shell::{self, TaskError};

/// The resolved graph of the workspace with all features, by package id.
pub(super) struct PackageGraph {
    pub(super) packages: BTreeMap<String, CargoPackage>,
}

pub(super) struct CargoPackage {
    pub(super) name: String,
    /// Relative to the root; `None` for external packages.
    pub(super) manifest: Option<String>,
    pub(super) has_binary: bool,
    pub(super) features: Vec<String>,
    /// The features that it requests by name in its normal dependencies: package and feature.
    pub(super) asks: Vec<(String, String)>,
    pub(super) uses: Vec<PackageUse>,
}

/// One dependency: the id of the used package, and the kinds.
pub(super) struct PackageUse {
    pub(super) id: String,
    pub(super) kinds: Vec<DependencyKind>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DependencyKind {
    Normal,
    Build,
    Dev,
}

impl PackageGraph {
    /// Reads the graph from cargo, without a platform filter: what core must not reach, it must not reach on any platform.
    pub(super) fn read() -> Result<Self, TaskError> {
        let arguments = ["metadata", "--format-version", "1", "--all-features"];
        let answer = shell::capture_stdout(&mut shell::cargo_command(&arguments))?;
        let metadata = serde_json::from_str(&answer)
            .map_err(|error| TaskError::new(format!("the output of `cargo metadata` is not JSON: {error}")))?;
        Self::parse(&metadata)
            .ok_or_else(|| TaskError::new("the output of `cargo metadata` has a form that xtask/src/tidy/package_graph.rs cannot read"))
    }

    fn parse(metadata: &Value) -> Option<Self> {
        let members = json_texts(metadata.get("workspace_members")?)?;
        let root = Path::new(metadata.get("workspace_root")?.as_str()?);
        let nodes = index_by_id(metadata.get("resolve")?.get("nodes")?)?;
        let mut packages = BTreeMap::new();
        for (id, package) in index_by_id(metadata.get("packages")?)? {
            let root = members.contains(&id).then_some(root);
            packages.insert(id.clone(), parse_package(package, nodes.get(&id)?, root)?);
        }
        Some(Self { packages })
    }

    /// The crates of this workspace.
    pub(super) fn members(&self) -> impl Iterator<Item = (&CargoPackage, &str)> {
        self.packages.values().filter_map(|package| Some((package, package.manifest.as_deref()?)))
    }

    /// The packages that `package` uses by a dependency of one of these kinds.
    pub(super) fn used_packages<'a>(
        &'a self,
        package: &'a CargoPackage,
        kinds: &'a [DependencyKind],
    ) -> impl Iterator<Item = &'a CargoPackage> {
        package
            .uses
            .iter()
            .filter(move |arrow| arrow.kinds.iter().any(|kind| kinds.contains(kind)))
            .filter_map(|arrow| self.packages.get(&arrow.id))
    }
}

fn parse_package(package: &Value, node: &Value, root: Option<&Path>) -> Option<CargoPackage> {
    Some(CargoPackage {
        name: package.get("name")?.as_str()?.to_owned(),
        manifest: root.and_then(|root| manifest_path(package, root)),
        has_binary: json_items(package.get("targets")?)?.iter().any(is_binary),
        features: json_texts(node.get("features")?)?,
        asks: json_items(package.get("dependencies")?)?.iter().map(parse_asks).collect::<Option<Vec<_>>>()?.concat(),
        uses: json_items(node.get("deps")?)?.iter().map(parse_use).collect::<Option<_>>()?,
    })
}

fn manifest_path(package: &Value, root: &Path) -> Option<String> {
    let path = Path::new(package.get("manifest_path")?.as_str()?);
    Some(path.strip_prefix(root).ok()?.to_str()?.to_owned())
}

fn is_binary(target: &Value) -> bool {
    target.get("kind").and_then(json_texts).is_some_and(|kinds| kinds.iter().any(|kind| kind == "bin"))
}

fn parse_asks(dependency: &Value) -> Option<Vec<(String, String)>> {
    let name = dependency.get("name")?.as_str()?;
    let features = json_texts(dependency.get("features")?)?.into_iter();
    let is_normal = dependency.get("kind")?.is_null();
    Some(features.filter(|_| is_normal).map(|feature| (name.to_owned(), feature)).collect())
}

fn parse_use(dependency: &Value) -> Option<PackageUse> {
    let kinds = json_items(dependency.get("dep_kinds")?)?.iter();
    Some(PackageUse { id: dependency.get("pkg")?.as_str()?.to_owned(), kinds: kinds.map(parse_kind).collect::<Option<_>>()? })
}

fn parse_kind(kind: &Value) -> Option<DependencyKind> {
    match kind.get("kind")? {
        Value::Null => Some(DependencyKind::Normal),
        kind if kind == "build" => Some(DependencyKind::Build),
        kind if kind == "dev" => Some(DependencyKind::Dev),
        _ => None,
    }
}

fn index_by_id(list: &Value) -> Option<BTreeMap<String, &Value>> {
    json_items(list)?.iter().map(|item| Some((item.get("id")?.as_str()?.to_owned(), item))).collect()
}

fn json_items(list: &Value) -> Option<&Vec<Value>> {
    list.as_array()
}

fn json_texts(list: &Value) -> Option<Vec<String>> {
    json_items(list)?.iter().map(|item| item.as_str().map(str::to_owned)).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn test_metadata() -> Value {
        json!({
            "workspace_root": "/r", "workspace_members": ["core#1"],
            "packages": [
                { "id": "core#1", "name": "core", "targets": [{ "kind": ["lib"] }], "dependencies": [
                    { "name": "json", "kind": null, "features": ["std", "raw"] },
                    { "name": "hyper", "kind": "dev", "features": ["server"] } ],
                  "manifest_path": "/r/crates/core/Cargo.toml" },
                { "id": "json#1", "name": "json", "targets": [{ "kind": ["bin"] }], "dependencies": [],
                  "manifest_path": "/elsewhere/json/Cargo.toml" },
            ],
            "resolve": { "nodes": [
                { "id": "core#1", "features": [], "deps": [
                    { "pkg": "json#1", "dep_kinds": [{ "kind": null }, { "kind": "dev" }] } ] },
                { "id": "json#1", "features": ["std"], "deps": [
                    { "pkg": "core#1", "dep_kinds": [{ "kind": "build" }] } ] },
            ] },
        })
    }

    #[test]
    fn incomplete_metadata_is_refused() {
        for key in ["workspace_root", "workspace_members", "packages", "resolve"] {
            let mut metadata = test_metadata();
            metadata.as_object_mut().unwrap().remove(key);
            assert!(PackageGraph::parse(&metadata).is_none(), "{key}");
        }
    }

    #[test]
    fn packages_uses_and_features_are_parsed() {
        let graph = PackageGraph::parse(&test_metadata()).unwrap();
        let members: Vec<_> = graph.members().map(|(package, manifest)| (package.name.as_str(), manifest)).collect();
        assert_eq!(members, [("core", "crates/core/Cargo.toml")]);
        let (core, json) = (&graph.packages["core#1"], &graph.packages["json#1"]);
        assert!(!core.has_binary && json.has_binary);
        assert_eq!(core.uses[0].kinds, [DependencyKind::Normal, DependencyKind::Dev]);
        assert_eq!(json.uses[0].kinds, [DependencyKind::Build]);
        assert_eq!(json.features, ["std"]);
        assert_eq!(core.asks, [("json".to_owned(), "std".to_owned()), ("json".to_owned(), "raw".to_owned())]);
    }
}
