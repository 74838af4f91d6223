//! Which cluster each environment name stands for, and which names an environment had before.
//!
//! The rules are here once: the replay of a ledger and the store in memory keep an [`EnvironmentNames`], and the store on disk answers the same
//! questions from its tables.
//!
//! What never enters: holds, runs and operations. Whether a name has any is asked of whoever keeps them.

use std::collections::BTreeMap;
use std::fmt;

use super::{EnvironmentBinding, EnvironmentRename};
use crate::guest::{ClusterIdentity, EnvironmentName};

/// The bindings in force, and the former names of environments.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EnvironmentNames {
    bindings: BTreeMap<EnvironmentName, EnvironmentBinding>,
    /// From a former name to the name that the environment has now.
    former: BTreeMap<EnvironmentName, EnvironmentName>,
}

/// Why a name cannot be used for a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NameConflict {
    /// The cluster has another name here.
    SecondName {
        /// The name that was to be bound.
        environment: EnvironmentName,
        /// The name that the cluster has.
        bound_as: EnvironmentName,
    },
    /// The name stands for another cluster.
    OtherCluster {
        /// The binding that is recorded.
        recorded: EnvironmentBinding,
        /// The cluster that answers now.
        found: ClusterIdentity,
    },
    /// The environment was given another name.
    Renamed {
        /// The former name.
        environment: EnvironmentName,
        /// The name that it has now.
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
                "`{}` is recorded for the cluster {}, and leads to {found}; correct its address, or give the other cluster its own name",
                recorded.environment, recorded.cluster
            ),
            Self::Renamed { environment, now } => write!(out, "`{environment}` was renamed to `{now}`; use that name"),
        }
    }
}

impl EnvironmentNames {
    /// What stands against using a name for a cluster.
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

    /// The name that an environment has now, where this is a former one.
    #[must_use]
    pub fn renamed_to(&self, environment: &EnvironmentName) -> Option<&EnvironmentName> {
        self.former.get(environment)
    }

    /// The name that an environment has now: this one, unless it is a former one.
    #[must_use]
    pub fn current<'n>(&'n self, environment: &'n EnvironmentName) -> &'n EnvironmentName {
        self.renamed_to(environment).unwrap_or(environment)
    }

    /// The bindings, by name.
    pub fn bindings(&self) -> impl Iterator<Item = &EnvironmentBinding> {
        self.bindings.values()
    }

    /// Former names, each with the name that the environment has now.
    pub fn former(&self) -> impl Iterator<Item = (&EnvironmentName, &EnvironmentName)> {
        self.former.iter()
    }

    /// Records a binding. Whether it may be recorded is asked before, with [`binding_conflict`].
    pub fn bind(&mut self, binding: EnvironmentBinding) {
        self.bindings.insert(binding.environment.clone(), binding);
    }

    /// Records that a name is a former one of an environment.
    pub fn add_former(&mut self, name: EnvironmentName, now: EnvironmentName) {
        self.former.insert(name, now);
    }

    /// Records a rename. Whether it may be recorded is asked before.
    pub fn rename(&mut self, EnvironmentRename { from, to, .. }: &EnvironmentRename) {
        if let Some(binding) = self.bindings.remove(from) {
            self.bind(EnvironmentBinding { environment: to.clone(), ..binding });
        }
        self.former.remove(to);
        self.former.values_mut().filter(|now| *now == from).for_each(|now| *now = to.clone());
        self.former.insert(from.clone(), to.clone());
    }
}

/// What stands against using a name for a cluster, given what is recorded of both: the current name where this is a former one, the binding of
/// the name, and the binding of the cluster.
#[must_use]
pub fn binding_conflict(
    environment: &EnvironmentName,
    cluster: &ClusterIdentity,
    renamed_to: Option<EnvironmentName>,
    of_name: Option<EnvironmentBinding>,
    of_cluster: Option<EnvironmentBinding>,
) -> Option<NameConflict> {
    // The first of these is the most useful to a person: the name to use instead.
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
    fn former_names_lead_to_the_name_of_today_also_after_a_rename_back() {
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
