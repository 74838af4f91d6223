//! The built-in roles and their privileges, by release.
//!
//! Access control entries are in `access`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, LazyLock};

use crate::flavour::Flavour;

/// Privileges that all releases have.
const COMMON_PRIVILEGES: &[&str] = &[
    "Datastore.Allocate",
    "Datastore.AllocateSpace",
    "Datastore.AllocateTemplate",
    "Datastore.Audit",
    "Group.Allocate",
    "Permissions.Modify",
    "Pool.Allocate",
    "Pool.Audit",
    "Realm.Allocate",
    "Realm.AllocateUser",
    "SDN.Allocate",
    "SDN.Audit",
    "Sys.Audit",
    "Sys.Console",
    "Sys.Incoming",
    "Sys.Modify",
    "Sys.PowerMgmt",
    "Sys.Syslog",
    "User.Modify",
    "VM.Allocate",
    "VM.Audit",
    "VM.Backup",
    "VM.Clone",
    "VM.Config.CDROM",
    "VM.Config.CPU",
    "VM.Config.Cloudinit",
    "VM.Config.Disk",
    "VM.Config.HWType",
    "VM.Config.Memory",
    "VM.Config.Network",
    "VM.Config.Options",
    "VM.Console",
    "VM.Migrate",
    "VM.PowerMgmt",
    "VM.Snapshot",
    "VM.Snapshot.Rollback",
];

const PRIVILEGES_SINCE_8: &[&str] = &["Mapping.Audit", "Mapping.Modify", "Mapping.Use", "SDN.Use", "Sys.AccessNetwork"];

const PRIVILEGES_SINCE_9: &[&str] = &[
    "VM.GuestAgent.Audit",
    "VM.GuestAgent.FileRead",
    "VM.GuestAgent.FileSystemMgmt",
    "VM.GuestAgent.FileWrite",
    "VM.GuestAgent.Unrestricted",
    "VM.Replicate",
];

/// Removed in release 9.
const PRIVILEGES_UNTIL_8: &[&str] = &["VM.Monitor"];

/// Roles and their privileges; a trailing `*` matches every privilege with that prefix.
const BUILT_IN_ROLES: &[(&str, &str)] = &[
    ("Administrator", "*"),
    ("NoAccess", ""),
    ("PVEAdmin", "Datastore.* Group.* Pool.* Realm.AllocateUser SDN.* Mapping.* Sys.Audit Sys.Console Sys.Syslog User.* VM.*"),
    ("PVEAuditor", "Datastore.Audit Mapping.Audit Pool.Audit SDN.Audit Sys.Audit VM.Audit VM.GuestAgent.Audit"),
    ("PVEDatastoreAdmin", "Datastore.*"),
    ("PVEDatastoreUser", "Datastore.AllocateSpace Datastore.Audit"),
    ("PVEMappingAdmin", "Mapping.*"),
    ("PVEMappingAuditor", "Mapping.Audit"),
    ("PVEMappingUser", "Mapping.Audit Mapping.Use"),
    ("PVEPoolAdmin", "Pool.*"),
    ("PVEPoolUser", "Pool.Audit"),
    ("PVESDNAdmin", "SDN.*"),
    ("PVESDNUser", "SDN.Audit SDN.Use"),
    ("PVESysAdmin", "Sys.Audit Sys.Console Sys.Syslog"),
    ("PVETemplateUser", "VM.Audit VM.Clone"),
    ("PVEUserAdmin", "Group.Allocate Realm.AllocateUser User.Modify"),
    ("PVEVMAdmin", "VM.*"),
    (
        "PVEVMUser",
        "VM.Audit VM.Backup VM.Config.CDROM VM.Config.Cloudinit VM.Console VM.PowerMgmt VM.GuestAgent.Audit VM.GuestAgent.FileRead \
         VM.GuestAgent.FileSystemMgmt VM.GuestAgent.FileWrite",
    ),
];

/// Privileges by role. Shared between worlds, because few worlds add roles.
pub(super) type RoleTable = Arc<BTreeMap<String, Arc<BTreeSet<String>>>>;

static ROLES_BY_RELEASE: LazyLock<[RoleTable; 3]> = LazyLock::new(|| [Flavour::V7, Flavour::V8, Flavour::V9].map(roles_of_release));

/// The built-in roles of a release.
pub(super) fn built_in_roles(flavour: Flavour) -> RoleTable {
    ROLES_BY_RELEASE[flavour as usize].clone()
}

/// Whether these are exactly the built-in roles of a release.
pub(super) fn are_built_in(roles: &RoleTable, flavour: Flavour) -> bool {
    Arc::ptr_eq(roles, &ROLES_BY_RELEASE[flavour as usize])
}

/// Whether a release has a privilege.
pub(crate) fn release_has_privilege(flavour: Flavour, privilege: &str) -> bool {
    privileges_of_release(flavour).contains(&privilege)
}

fn roles_of_release(flavour: Flavour) -> RoleTable {
    let known = privileges_of_release(flavour);
    BUILT_IN_ROLES
        .iter()
        .map(|(role, patterns)| ((*role).to_owned(), Arc::new(expand_privileges(patterns, &known))))
        .collect::<BTreeMap<_, _>>()
        .into()
}

/// Whether a role is built in and therefore cannot be changed.
pub(crate) fn is_built_in_role(role: &str) -> bool {
    BUILT_IN_ROLES.iter().any(|(name, _)| *name == role)
}

fn privileges_of_release(flavour: Flavour) -> Vec<&'static str> {
    let eight = if flavour >= Flavour::V8 { PRIVILEGES_SINCE_8 } else { &[] };
    let nine = if flavour >= Flavour::V9 { PRIVILEGES_SINCE_9 } else { PRIVILEGES_UNTIL_8 };
    [COMMON_PRIVILEGES, eight, nine].concat()
}

fn expand_privileges(patterns: &str, known: &[&str]) -> BTreeSet<String> {
    let fits = |privilege: &str, pattern: &str| pattern.strip_suffix('*').map_or(pattern == privilege, |stem| privilege.starts_with(stem));
    let held = known.iter().filter(|privilege| patterns.split_whitespace().any(|pattern| fits(privilege, pattern)));
    held.map(|privilege| (*privilege).to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn privileges_depend_on_the_release() {
        let count = |flavour| built_in_roles(flavour)["Administrator"].len();
        assert_eq!((count(Flavour::V7), count(Flavour::V8), count(Flavour::V9)), (37, 42, 47));
        assert!(built_in_roles(Flavour::V8)["PVEVMAdmin"].contains("VM.Monitor"));
        assert!(!built_in_roles(Flavour::V9)["PVEVMAdmin"].contains("VM.Monitor"));
        assert_eq!(built_in_roles(Flavour::V9)["PVEVMUser"].len(), 10);
    }
}
