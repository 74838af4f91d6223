//! Which cluster each environment name is bound to, and which names an environment had before.
//!
//! The rules exist once: ledger replay and the in-memory store keep an [`EnvironmentNames`], and the store on disk answers the same
//! questions from its tables.
//!
//! Must not depend on holds, runs or operations; the store that keeps them checks whether a name has any.

use std::collections::BTreeMap;
use std::fmt;

use super::{EnvironmentBinding, EnvironmentRename};
use crate::guest::{ClusterIdentity, EnvironmentName};

/// The current bindings, and the former names of environments.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EnvironmentNames {
    bindings: BTreeMap<EnvironmentName, EnvironmentBinding>,
    /// Maps a former name to the current name.
    former: BTreeMap<EnvironmentName, EnvironmentName>,
}

/// Why a name cannot be used for a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NameConflict {
    /// The cluster already has another name.
    SecondName {
        /// The name that was to be bound.
        environment: EnvironmentName,
        /// The existing name of the cluster.
        bound_as: EnvironmentName,
    },
    /// The name is bound to another cluster.
    OtherCluster {
        /// The recorded binding.
        recorded: EnvironmentBinding,
        /// The cluster that responds now.
        found: ClusterIdentity,
    },
    /// The environment was renamed.
    Renamed {
        /// The former name.
        environment: EnvironmentName,
        /// The current name.
        now: EnvironmentName,
    },
}

impl fmt::Display for NameConflict {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SecondName { environment, bound_as } => {
                write!(out, "the cluster of `{environment}` is recorded as `{bound_as}`; use that name, or rename it")
            }
            Self::OtherCluster { recorded, found } => write!(
                out,
                "`{}` is recorded for cluster {}, but leads to {found}; correct its address, or give the other cluster its own name",
                recorded.environment, recorded.cluster
            ),
            Self::Renamed { environment, now } => write!(out, "`{environment}` was renamed to `{now}`; use that name"),
        }
    }
}

impl EnvironmentNames {
    /// Why a name cannot be used for a cluster, if it cannot.
    #[must_use]
    pub fn conflict(&self, environment: &EnvironmentName, cluster: &ClusterIdentity) -> Option<NameConflict> {
        let (of_name, of_cluster) = (self.binding(environment).cloned(), self.bound_to(cluster).cloned());
        binding_conflict(environment, cluster, self.renamed_to(environment).cloned(), of_name, of_cluster)
    }

    /// The binding of a name.
    #[must_use]
    pub fn binding(&self, environment: &EnvironmentName) -> Option<&EnvironmentBinding> {
        self.bindings.get(environment)
    }

    /// The binding of a cluster.
    #[must_use]
    pub fn bound_to(&self, cluster: &ClusterIdentity) -> Option<&EnvironmentBinding> {
        self.bindings.values().find(|binding| binding.cluster == *cluster)
    }

    /// The current name of an environment, if this is a former one.
    #[must_use]
    pub fn renamed_to(&self, environment: &EnvironmentName) -> Option<&EnvironmentName> {
        self.former.get(environment)
    }

    /// The current name of an environment: this one, unless it is a former name.
    #[must_use]
    pub fn current<'n>(&'n self, environment: &'n EnvironmentName) -> &'n EnvironmentName {
        self.renamed_to(environment).unwrap_or(environment)
    }

    /// The bindings, by name.
    pub fn bindings(&self) -> impl Iterator<Item = &EnvironmentBinding> {
        self.bindings.values()
    }

    /// Former names, each with the current name.
    pub fn former(&self) -> impl Iterator<Item = (&EnvironmentName, &EnvironmentName)> {
        self.former.iter()
    }

    /// Records a binding. Call [`binding_conflict`] first.
    pub fn bind(&mut self, binding: EnvironmentBinding) {
        self.bindings.insert(binding.environment.clone(), binding);
    }

    /// Records a former name of an environment.
    pub fn add_former(&mut self, name: EnvironmentName, now: EnvironmentName) {
        self.former.insert(name, now);
    }

    /// Records a rename. The caller must have checked that it is allowed.
    pub fn rename(&mut self, EnvironmentRename { from, to, .. }: &EnvironmentRename) {
        if let Some(binding) = self.bindings.remove(from) {
            self.bind(EnvironmentBinding { environment: to.clone(), ..binding });
        }
        self.former.remove(to);
        self.former.values_mut().filter(|now| *now == from).for_each(|now| *now = to.clone());
        self.former.insert(from.clone(), to.clone());
    }
}

/// Why a name cannot be used for a cluster, given the records of both: the current name if this is a former one, the binding of the name,
/// and the binding of the cluster.
#[must_use]
pub fn binding_conflict(
    environment: &EnvironmentName,
    cluster: &ClusterIdentity,
    renamed_to: Option<EnvironmentName>,
    of_name: Option<EnvironmentBinding>,
    of_cluster: Option<EnvironmentBinding>,
) -> Option<NameConflict> {
    // Report the rename first: it tells a person which name to use instead.
    if let Some(now) = renamed_to {
        return Some(NameConflict::Renamed { environment: environment.clone(), now });
    }
    if let Some(other) = of_cluster.filter(|other| other.environment != *environment) {
        return Some(NameConflict::SecondName { environment: environment.clone(), bound_as: other.environment });
    }
    let recorded = of_name.filter(|recorded| recorded.cluster != *cluster)?;
    Some(NameConflict::OtherCluster { recorded, found: cluster.clone() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> EnvironmentName {
        EnvironmentName::new(text).expect("a name")
    }

    fn rename(from: &str, to: &str) -> EnvironmentRename {
        EnvironmentRename { from: name(from), to: name(to), by: "ann".into(), reason: "why".into(), at_ms: 1 }
    }

    #[test]
    fn former_names_resolve_to_the_current_name_even_after_renaming_back() {
        let mut names = EnvironmentNames::default();
        let cluster = ClusterIdentity::parse(&["AB"; 32].join(":")).expect("a fingerprint");
        names.bind(EnvironmentBinding { environment: name("a"), cluster: cluster.clone(), by: "ann".into(), at_ms: 1 });
        names.rename(&rename("a", "b"));
        names.rename(&rename("b", "c"));
        assert_eq!([names.current(&name("a")), names.current(&name("b")), names.current(&name("c"))], [&name("c"); 3]);
        names.rename(&rename("c", "a"));
        assert_eq!([names.current(&name("a")), names.current(&name("b")), names.current(&name("c"))], [&name("a"); 3]);
        assert_eq!(names.renamed_to(&name("a")), None);
        assert_eq!(names.bound_to(&cluster).map(|binding| &binding.environment), Some(&name("a")));
    }
}
