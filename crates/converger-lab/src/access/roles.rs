//! The built-in roles and the privileges in them, by release.
//!
//! What never enters here: entries that give a role to somebody.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, LazyLock};

use crate::flavour::Flavour;

/// Every privilege that all releases know.
const COMMON: &[&str] = &[
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

const SINCE_EIGHT: &[&str] = &["Mapping.Audit", "Mapping.Modify", "Mapping.Use", "SDN.Use", "Sys.AccessNetwork"];

const SINCE_NINE: &[&str] = &[
    "VM.GuestAgent.Audit",
    "VM.GuestAgent.FileRead",
    "VM.GuestAgent.FileSystemMgmt",
    "VM.GuestAgent.FileWrite",
    "VM.GuestAgent.Unrestricted",
    "VM.Replicate",
];

/// Gone with 9.
const UNTIL_EIGHT: &[&str] = &["VM.Monitor"];

/// Roles and what is in them: a word with a `*` stands for everything that begins so.
const ROLES: &[(&str, &str)] = &[
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

/// Privileges by role. Few worlds add roles to the built-in ones, so the others share them.
pub(super) type Roles = Arc<BTreeMap<String, Arc<BTreeSet<String>>>>;

static BUILT_IN: LazyLock<[Roles; 3]> = LazyLock::new(|| [Flavour::V7, Flavour::V8, Flavour::V9].map(of_release));

/// The built-in roles of a release.
pub(super) fn built_in(flavour: Flavour) -> Roles {
    BUILT_IN[flavour as usize].clone()
}

/// Whether these are the built-in roles of a release, all of them and as they were.
pub(super) fn are_built_in(roles: &Roles, flavour: Flavour) -> bool {
    Arc::ptr_eq(roles, &BUILT_IN[flavour as usize])
}

/// Whether a release knows a privilege.
pub(crate) fn knows(flavour: Flavour, privilege: &str) -> bool {
    privileges(flavour).contains(&privilege)
}

fn of_release(flavour: Flavour) -> Roles {
    let known = privileges(flavour);
    ROLES.iter().map(|(role, words)| ((*role).to_owned(), Arc::new(chosen(words, &known)))).collect::<BTreeMap<_, _>>().into()
}

/// Whether a role comes with Proxmox, so that nobody may change it.
pub(crate) fn is_built_in(role: &str) -> bool {
    ROLES.iter().any(|(name, _)| *name == role)
}

fn privileges(flavour: Flavour) -> Vec<&'static str> {
    let eight = if flavour >= Flavour::V8 { SINCE_EIGHT } else { &[] };
    let nine = if flavour >= Flavour::V9 { SINCE_NINE } else { UNTIL_EIGHT };
    [COMMON, eight, nine].concat()
}

fn chosen(words: &str, known: &[&str]) -> BTreeSet<String> {
    let fits = |privilege: &str, word: &str| word.strip_suffix('*').map_or(word == privilege, |stem| privilege.starts_with(stem));
    let held = known.iter().filter(|privilege| words.split_whitespace().any(|word| fits(privilege, word)));
    held.map(|privilege| (*privilege).to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn privileges_follow_the_release() {
        let count = |flavour| built_in(flavour)["Administrator"].len();
        assert_eq!((count(Flavour::V7), count(Flavour::V8), count(Flavour::V9)), (37, 42, 47));
        assert!(built_in(Flavour::V8)["PVEVMAdmin"].contains("VM.Monitor"));
        assert!(!built_in(Flavour::V9)["PVEVMAdmin"].contains("VM.Monitor"));
        assert_eq!(built_in(Flavour::V9)["PVEVMUser"].len(), 10);
    }
}
