//! What a token needs for which verb: the one table of privileges. Read from the checks that Proxmox makes itself, in its table
//! of the API and inside of its calls, and held against the lab: with exactly these a verb works, and without any one of them it
//! does not.
//!
//! The releases differ in one of them: `SDN.PackageUse` came with 8, and bridges were free before. What came and went otherwise
//! (`VM.Monitor`, `VM.GuestAgent.*`, `Mapping.*`) is for calls that this program never makes.

use std::collections::{BTreeMap, BTreeSet};

use converger_core::desired::{Desired, DesiredGuest, RestartPolicy};
use converger_core::guest::{GuestKind, RunState, Vmid};
use converger_core::normalize::{Field, FieldValue, WordSet};

/// What is done to an environment, as far as privileges tell it apart.
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
    /// Make and delete snapshots.
    Snapshot,
    Rollback,
    Clone,
    Migrate,
    Grow,
    Delete,
}

impl PrivilegedVerb {
    /// All verbs.
    pub const ALL: [Self; 14] = [
        Self::Read,
        Self::Start,
        Self::Stop,
        Self::SetCpu,
        Self::SetMemory,
        Self::SetOptions,
        Self::SetStartup,
        Self::SetBoot,
        Self::Snapshot,
        Self::Rollback,
        Self::Clone,
        Self::Migrate,
        Self::Grow,
        Self::Delete,
    ];

    /// The name of the check whether it may be done.
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
            Self::Snapshot => "may-snapshot",
            Self::Rollback => "may-rollback",
            Self::Clone => "may-clone",
            Self::Migrate => "may-migrate",
            Self::Grow => "may-grow",
            Self::Delete => "may-delete",
        }
    }

    /// What it is, after "may" and "may not".
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
            Self::Snapshot => "make and delete snapshots",
            Self::Rollback => "roll back to a snapshot",
            Self::Clone => "clone",
            Self::Migrate => "migrate",
            Self::Grow => "grow disks",
            Self::Delete => "delete",
        }
    }

    /// The verb that setting a field is.
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

    /// Whether a plan can come to ask for it today. The others are known to the codec, and only a person would ask for them by name.
    #[must_use]
    pub fn is_planned(self) -> bool {
        match self {
            Self::Read | Self::Start | Self::Stop => true,
            Self::SetCpu | Self::SetMemory | Self::SetOptions | Self::SetStartup | Self::SetBoot => true,
            Self::Snapshot | Self::Rollback | Self::Clone | Self::Migrate | Self::Grow | Self::Delete => false,
        }
    }

    /// What it needs on this release, for a guest of this kind.
    pub fn needs(self, major: u32, kind: GuestKind) -> impl Iterator<Item = &'static PrivilegeNeed> {
        NEEDS.iter().filter(move |need| need.verb == self && need.since <= major && need.kind.is_none_or(|own| own == kind))
    }
}

/// What a declared state can come to ask for, and of which guests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequiredVerbs {
    verbs: BTreeMap<PrivilegedVerb, BTreeSet<Vmid>>,
    tags: BTreeSet<Box<str>>,
}

impl RequiredVerbs {
    /// Of every declared guest reading, and what its plans can be made of.
    #[must_use]
    pub fn from_desired(desired: &Desired) -> Self {
        let mut wants = Self { verbs: BTreeMap::from([(PrivilegedVerb::Read, BTreeSet::new())]), tags: BTreeSet::new() };
        for guest in desired.guests() {
            for verb in required_verbs(guest) {
                wants.verbs.entry(verb).or_default().insert(guest.vmid);
            }
            let declared = guest.config.iter().filter_map(|setting| match &setting.wanted {
                Some(FieldValue::Tags(tags)) => Some(tags),
                _ => None,
            });
            wants.tags.extend(declared.flat_map(WordSet::iter).map(Into::into));
        }
        wants
    }

    /// The guests of which a verb is wanted; `None`: of none.
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

/// What plans for a guest can be made of. A restart is a stop, and a start after it only where the guest is declared to run.
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
    /// On a guest that is yet to be: `/vms/<vmid>`.
    NewGuest,
    /// On the storages of the guest's disks: `/storage/<name>`.
    Storage,
    /// On the bridges of the guest's cards: `/sdn/zones/localnetwork/<bridge>`.
    Bridge,
}

/// One privilege that a verb needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrivilegeNeed {
    /// For what.
    pub verb: PrivilegedVerb,
    /// Where.
    pub on: PrivilegePath,
    /// The privilege, and others any of which will do in its place.
    pub any_of: &'static [&'static str],
    /// The release that began to ask for it.
    pub since: u32,
    /// The kind of guest, where only one is asked for it.
    pub kind: Option<GuestKind>,
    /// The role that would hold it.
    pub role: &'static str,
}

impl PrivilegeNeed {
    /// The privilege that is granted for it.
    #[must_use]
    pub fn privilege(&self) -> &'static str {
        self.any_of.first().copied().unwrap_or("")
    }

    /// Whether the role is to spread from where it is granted. What is needed on `/` itself is too much to be had everywhere,
    /// besides reading.
    #[must_use]
    pub fn spreads(&self) -> bool {
        self.on != PrivilegePath::Root || self.verb == PrivilegedVerb::Read
    }
}

/// What a role holds: whatever the needs that it is for ask for. Where it is about guests, seeing them belongs to it, because an
/// entry for a guest takes the place of what comes from above.
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
pub static NEEDS: [PrivilegeNeed; 20] = [
    privilege_need(PrivilegedVerb::Read, PrivilegePath::Root, &["Sys.Audit"], "ConvergerRead"),
    privilege_need(PrivilegedVerb::Read, PrivilegePath::Guest, &["VM.Audit"], "ConvergerRead"),
    privilege_need(PrivilegedVerb::Start, PrivilegePath::Guest, &["VM.PowerMgmt"], "ConvergerPower"),
    privilege_need(PrivilegedVerb::Stop, PrivilegePath::Guest, &["VM.PowerMgmt"], "ConvergerPower"),
    privilege_need(PrivilegedVerb::SetCpu, PrivilegePath::Guest, &["VM.Config.CPU"], "ConvergerCpu"),
    privilege_need(PrivilegedVerb::SetMemory, PrivilegePath::Guest, &["VM.Config.Memory"], "ConvergerMemory"),
    privilege_need(PrivilegedVerb::SetOptions, PrivilegePath::Guest, &["VM.Config.Options"], "ConvergerOptions"),
    privilege_need(PrivilegedVerb::SetStartup, PrivilegePath::Guest, &["VM.Config.Options"], "ConvergerOptions"),
    // The order of starts is a matter of the whole host; of containers nobody asks for it.
    PrivilegeNeed {
        kind: Some(GuestKind::Qemu),
        ..privilege_need(PrivilegedVerb::SetStartup, PrivilegePath::Root, &["Sys.Modify"], "ConvergerStartup")
    },
    PrivilegeNeed {
        kind: Some(GuestKind::Qemu),
        ..privilege_need(PrivilegedVerb::SetBoot, PrivilegePath::Guest, &["VM.Config.Disk"], "ConvergerBoot")
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
    privilege_need(PrivilegedVerb::Delete, PrivilegePath::Guest, &["VM.Allocate"], "ConvergerDelete"),
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
        assert_eq!(role_privileges("ConvergerStartup", 9), ["Sys.Modify"], "not spread over guests");
        assert_eq!(role_privileges("ConvergerOptions", 7), ["VM.Audit", "VM.Config.Options"]);
        let clone = ["Datastore.AllocateSpace", "VM.Allocate", "VM.Audit", "VM.Clone"];
        assert_eq!(role_privileges("ConvergerClone", 7), clone, "7 has no SDN.Use, and refuses a role with it");
        assert_eq!(role_privileges("ConvergerClone", 8).len(), 5);
    }

    #[test]
    fn only_reading_spreads_from_the_root() {
        let spread: Vec<&str> =
            NEEDS.iter().filter(|need| need.on == PrivilegePath::Root && need.spreads()).map(PrivilegeNeed::privilege).collect();
        assert_eq!(spread, ["Sys.Audit"]);
    }
}
