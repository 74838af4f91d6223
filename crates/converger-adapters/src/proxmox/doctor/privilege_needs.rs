//! The table of privileges that each verb needs. It is derived from Proxmox's own checks, in its API schema and inside its calls, and
//! verified in the lab: a verb works with exactly these privileges, and fails without any one of them.
//!
//! The releases differ in one point: `SDN.Use` was added in 8, and bridges needed no privilege before. The other additions and removals
//! (`VM.Monitor`, `VM.GuestAgent.*`, `Mapping.*`) concern calls that this program never makes.

use std::collections::{BTreeMap, BTreeSet};

use converger_core::desired::{Desired, DesiredGuest, RestartPolicy};
use converger_core::guest::{GuestKind, RunState, Vmid};
use converger_core::normalize::{Field, FieldValue, WordSet};

/// Kinds of access to an environment that need different privileges.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum PrivilegedVerb {
    /// Observe, audit and plan.
    Read,
    Start,
    /// Shut down, stop, reboot.
    Stop,
    SetCpu,
    SetMemory,
    SetOptions,
    SetStartup,
    SetBoot,
    /// Network devices and addresses of a new guest; for containers also DNS.
    SetNetwork,
    /// Cloud-init and DNS of a new virtual machine.
    SetCloudInit,
    /// Create and delete snapshots.
    Snapshot,
    Rollback,
    Clone,
    Migrate,
    Grow,
}

impl PrivilegedVerb {
    /// All verbs.
    pub const ALL: [Self; 15] = [
        Self::Read,
        Self::Start,
        Self::Stop,
        Self::SetCpu,
        Self::SetMemory,
        Self::SetOptions,
        Self::SetStartup,
        Self::SetBoot,
        Self::SetNetwork,
        Self::SetCloudInit,
        Self::Snapshot,
        Self::Rollback,
        Self::Clone,
        Self::Migrate,
        Self::Grow,
    ];

    /// The name of its check.
    #[must_use]
    pub fn check_name(self) -> &'static str {
        match self {
            Self::Read => "may-read",
            Self::Start => "may-start",
            Self::Stop => "may-stop",
            Self::SetCpu => "may-set-cpu",
            Self::SetMemory => "may-set-memory",
            Self::SetOptions => "may-set-options",
            Self::SetStartup => "may-set-startup",
            Self::SetBoot => "may-set-boot",
            Self::SetNetwork => "may-set-network",
            Self::SetCloudInit => "may-set-cloud-init",
            Self::Snapshot => "may-snapshot",
            Self::Rollback => "may-rollback",
            Self::Clone => "may-clone",
            Self::Migrate => "may-migrate",
            Self::Grow => "may-grow",
        }
    }

    /// A description that follows "can" or "cannot".
    #[must_use]
    pub fn description(self) -> &'static str {
        match self {
            Self::Read => "observe, audit and plan",
            Self::Start => "start",
            Self::Stop => "shut down, stop and reboot",
            Self::SetCpu => "set cores, sockets, cpulimit and cpuunits",
            Self::SetMemory => "set memory, balloon and swap",
            Self::SetOptions => "set description, tags, onboot and agent",
            Self::SetStartup => "set startup",
            Self::SetBoot => "set boot",
            Self::SetNetwork => "set the network of new guests",
            Self::SetCloudInit => "set cloud-init of new virtual machines",
            Self::Snapshot => "create and delete snapshots",
            Self::Rollback => "roll back to a snapshot",
            Self::Clone => "clone",
            Self::Migrate => "migrate",
            Self::Grow => "grow disks",
        }
    }

    /// The verb that setting a field needs.
    #[must_use]
    pub fn of_field(field: Field) -> Self {
        match field {
            Field::Cores | Field::Cpulimit | Field::Cpuunits | Field::Numa | Field::Sockets => Self::SetCpu,
            Field::Balloon | Field::Memory | Field::Swap => Self::SetMemory,
            Field::Agent | Field::Description | Field::Hotplug | Field::Onboot | Field::Tags => Self::SetOptions,
            Field::Startup => Self::SetStartup,
            Field::Boot => Self::SetBoot,
        }
    }

    /// Whether a declared state may need it. The other verbs are only requested by name.
    #[must_use]
    pub fn is_planned(self) -> bool {
        match self {
            Self::Read | Self::Start | Self::Stop => true,
            Self::SetCpu | Self::SetMemory | Self::SetOptions | Self::SetStartup | Self::SetBoot => true,
            Self::SetNetwork | Self::SetCloudInit => false,
            Self::Snapshot | Self::Rollback | Self::Clone | Self::Migrate | Self::Grow => false,
        }
    }

    /// The privileges it needs on this release, for a guest of this kind.
    pub fn needs(self, major: u32, kind: GuestKind) -> impl Iterator<Item = &'static PrivilegeNeed> {
        NEEDS.iter().filter(move |need| need.verb == self && need.since <= major && need.kind.is_none_or(|own| own == kind))
    }
}

/// The verbs that a declared state may need, by guest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequiredVerbs {
    verbs: BTreeMap<PrivilegedVerb, BTreeSet<Vmid>>,
    tags: BTreeSet<Box<str>>,
}

impl RequiredVerbs {
    /// Read access to every declared guest, and the verbs of its possible steps.
    #[must_use]
    pub fn from_desired(desired: &Desired) -> Self {
        let mut required = Self { verbs: BTreeMap::from([(PrivilegedVerb::Read, BTreeSet::new())]), tags: BTreeSet::new() };
        for guest in desired.guests() {
            for verb in required_verbs(guest) {
                required.verbs.entry(verb).or_default().insert(guest.vmid);
            }
            let declared = guest.config.iter().filter_map(|setting| match &setting.wanted {
                Some(FieldValue::Tags(tags)) => Some(tags),
                _ => None,
            });
            required.tags.extend(declared.flat_map(WordSet::iter).map(Into::into));
        }
        required
    }

    /// The guests that need a verb; `None` if there are none.
    #[must_use]
    pub fn guests(&self, verb: PrivilegedVerb) -> Option<&BTreeSet<Vmid>> {
        self.verbs.get(&verb)
    }

    /// All declared tags.
    #[must_use]
    pub fn tags(&self) -> &BTreeSet<Box<str>> {
        &self.tags
    }
}

/// The verbs of a guest's possible steps. A restart is a stop; a start follows only if the guest is declared to run.
fn required_verbs(guest: &DesiredGuest) -> Vec<PrivilegedVerb> {
    let state = guest.state.map(|state| match state {
        RunState::Running => PrivilegedVerb::Start,
        RunState::Stopped => PrivilegedVerb::Stop,
    });
    let restarts = guest.restart == RestartPolicy::WhenNeeded && !guest.config.is_empty();
    let fields = guest.config.iter().map(|setting| PrivilegedVerb::of_field(setting.field));
    [PrivilegedVerb::Read].into_iter().chain(state).chain(restarts.then_some(PrivilegedVerb::Stop)).chain(fields).collect()
}

/// Where a privilege is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PrivilegePath {
    /// On `/` itself.
    Root,
    /// On the guest: `/vms/<vmid>`.
    Guest,
    /// On a guest that does not exist yet: `/vms/<vmid>`.
    NewGuest,
    /// On the storages of the guest's disks: `/storage/<name>`.
    Storage,
    /// On the bridges of the guest's network cards: `/sdn/zones/localnetwork/<bridge>`.
    Bridge,
}

/// One privilege that a verb needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrivilegeNeed {
    /// The verb.
    pub verb: PrivilegedVerb,
    /// The path.
    pub on: PrivilegePath,
    /// The privilege, followed by alternatives that also suffice.
    pub any_of: &'static [&'static str],
    /// The first release that requires it.
    pub since: u32,
    /// The kind of guest, if only one requires it.
    pub kind: Option<GuestKind>,
    /// The role that contains it.
    pub role: &'static str,
}

impl PrivilegeNeed {
    /// The privilege that is granted for it.
    #[must_use]
    pub fn privilege(&self) -> &'static str {
        self.any_of.first().copied().unwrap_or("")
    }

    /// Whether the role propagates from its path. Except for reading, a privilege on `/` itself must not propagate to everything below.
    #[must_use]
    pub fn spreads(&self) -> bool {
        self.on != PrivilegePath::Root || self.verb == PrivilegedVerb::Read
    }
}

/// The privileges of a role: those of its needs. A role for guests also contains `VM.Audit`, because an ACL entry on a guest replaces
/// inherited ones.
pub fn role_privileges(role: &str, major: u32) -> Vec<&'static str> {
    let own = || NEEDS.iter().filter(|need| need.role == role && need.since <= major);
    let sees = own().any(|need| need.on == PrivilegePath::Guest).then_some("VM.Audit");
    let mut privileges: Vec<&str> = own().map(PrivilegeNeed::privilege).chain(sees).collect();
    privileges.sort_unstable();
    privileges.dedup();
    privileges
}

const fn privilege_need(verb: PrivilegedVerb, on: PrivilegePath, any_of: &'static [&'static str], role: &'static str) -> PrivilegeNeed {
    PrivilegeNeed { verb, on, any_of, since: 7, kind: None, role }
}

/// The table.
pub static NEEDS: [PrivilegeNeed; 22] = [
    privilege_need(PrivilegedVerb::Read, PrivilegePath::Root, &["Sys.Audit"], "ConvergerRead"),
    privilege_need(PrivilegedVerb::Read, PrivilegePath::Guest, &["VM.Audit"], "ConvergerRead"),
    privilege_need(PrivilegedVerb::Start, PrivilegePath::Guest, &["VM.PowerMgmt"], "ConvergerPower"),
    privilege_need(PrivilegedVerb::Stop, PrivilegePath::Guest, &["VM.PowerMgmt"], "ConvergerPower"),
    privilege_need(PrivilegedVerb::SetCpu, PrivilegePath::Guest, &["VM.Config.CPU"], "ConvergerCpu"),
    privilege_need(PrivilegedVerb::SetMemory, PrivilegePath::Guest, &["VM.Config.Memory"], "ConvergerMemory"),
    privilege_need(PrivilegedVerb::SetOptions, PrivilegePath::Guest, &["VM.Config.Options"], "ConvergerOptions"),
    privilege_need(PrivilegedVerb::SetStartup, PrivilegePath::Guest, &["VM.Config.Options"], "ConvergerOptions"),
    // The start order concerns the whole host. Containers do not need this privilege.
    PrivilegeNeed {
        kind: Some(GuestKind::Qemu),
        ..privilege_need(PrivilegedVerb::SetStartup, PrivilegePath::Root, &["Sys.Modify"], "ConvergerStartup")
    },
    PrivilegeNeed {
        kind: Some(GuestKind::Qemu),
        ..privilege_need(PrivilegedVerb::SetBoot, PrivilegePath::Guest, &["VM.Config.Disk"], "ConvergerBoot")
    },
    privilege_need(PrivilegedVerb::SetNetwork, PrivilegePath::Guest, &["VM.Config.Network"], "ConvergerNetwork"),
    PrivilegeNeed { since: 8, ..privilege_need(PrivilegedVerb::SetNetwork, PrivilegePath::Bridge, &["SDN.Use"], "ConvergerNetwork") },
    PrivilegeNeed {
        kind: Some(GuestKind::Qemu),
        ..privilege_need(PrivilegedVerb::SetCloudInit, PrivilegePath::Guest, &["VM.Config.Cloudinit"], "ConvergerCloudInit")
    },
    privilege_need(PrivilegedVerb::Snapshot, PrivilegePath::Guest, &["VM.Snapshot"], "ConvergerSnapshot"),
    privilege_need(PrivilegedVerb::Rollback, PrivilegePath::Guest, &["VM.Snapshot.Rollback", "VM.Snapshot"], "ConvergerRollback"),
    privilege_need(PrivilegedVerb::Clone, PrivilegePath::Guest, &["VM.Clone"], "ConvergerClone"),
    privilege_need(PrivilegedVerb::Clone, PrivilegePath::NewGuest, &["VM.Allocate"], "ConvergerClone"),
    privilege_need(PrivilegedVerb::Clone, PrivilegePath::Storage, &["Datastore.AllocateSpace"], "ConvergerClone"),
    PrivilegeNeed { since: 8, ..privilege_need(PrivilegedVerb::Clone, PrivilegePath::Bridge, &["SDN.Use"], "ConvergerClone") },
    privilege_need(PrivilegedVerb::Migrate, PrivilegePath::Guest, &["VM.Migrate"], "ConvergerMigrate"),
    privilege_need(PrivilegedVerb::Grow, PrivilegePath::Guest, &["VM.Config.Disk"], "ConvergerGrow"),
    privilege_need(PrivilegedVerb::Grow, PrivilegePath::Storage, &["Datastore.AllocateSpace"], "ConvergerGrow"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_verb_has_needs_and_a_unique_name() {
        assert!(NEEDS.is_sorted_by_key(|need| need.verb));
        for verb in PrivilegedVerb::ALL {
            assert!(verb.needs(9, GuestKind::Qemu).next().is_some(), "{verb:?}");
        }
        let mut names: Vec<&str> = PrivilegedVerb::ALL.map(PrivilegedVerb::check_name).into();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), PrivilegedVerb::ALL.len());
    }

    #[test]
    fn roles_hold_only_needed_privileges() {
        assert_eq!(role_privileges("ConvergerRead", 9), ["Sys.Audit", "VM.Audit"]);
        assert_eq!(role_privileges("ConvergerPower", 9), ["VM.Audit", "VM.PowerMgmt"]);
        assert_eq!(role_privileges("ConvergerStartup", 9), ["Sys.Modify"], "does not propagate to guests");
        assert_eq!(role_privileges("ConvergerOptions", 7), ["VM.Audit", "VM.Config.Options"]);
        let clone = ["Datastore.AllocateSpace", "VM.Allocate", "VM.Audit", "VM.Clone"];
        assert_eq!(role_privileges("ConvergerClone", 7), clone, "release 7 has no SDN.Use and rejects a role with it");
        assert_eq!(role_privileges("ConvergerClone", 8).len(), 5);
    }

    #[test]
    fn only_read_access_propagates_from_the_root() {
        let spread: Vec<&str> =
            NEEDS.iter().filter(|need| need.on == PrivilegePath::Root && need.spreads()).map(PrivilegeNeed::privilege).collect();
        assert_eq!(spread, ["Sys.Audit"]);
    }
}
