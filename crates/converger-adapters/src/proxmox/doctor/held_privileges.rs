//! The privileges that a token or user holds, path by path, and the needs that they do not meet.
//!
//! Proxmox's permission dump contains the paths with ACL entries of their own, the members of pools, and the top-level paths; a path
//! without privileges is omitted. A guest that is not in the dump has what propagates from `/vms`, provided that it is listed: a guest on
//! which an entry removes all privileges is neither in the dump nor listed, and must be queried by itself.

use std::collections::{BTreeMap, BTreeSet};

use converger_core::guest::{GuestKind, Vmid};

use super::privilege_needs::{PrivilegeNeed, PrivilegePath, PrivilegedVerb};
use crate::proxmox::codec::{Permissions, SpreadFilter};

/// The privileges of a token or user.
#[derive(Clone, Copy)]
pub(super) struct HeldPrivileges<'g> {
    pub(super) dump: &'g Permissions,
    /// Guests that were queried one by one.
    pub(super) individual: &'g BTreeMap<Vmid, Permissions>,
    /// Guests that are known not to be hidden by an ACL entry.
    pub(super) shown: &'g BTreeSet<Vmid>,
}

pub(super) type PrivilegeSet<'g> = BTreeSet<&'g str>;

impl<'g> HeldPrivileges<'g> {
    fn privileges_on(&self, path: &str, spread: SpreadFilter) -> PrivilegeSet<'g> {
        self.dump.privileges_on(path, spread).collect()
    }

    /// The privileges on a guest; `None` if unknown.
    pub(super) fn privileges_on_guest(&self, vmid: Vmid) -> Option<PrivilegeSet<'g>> {
        let path = format!("/vms/{vmid}");
        if let Some(own) = self.individual.get(&vmid) {
            return Some(own.privileges_on(&path, SpreadFilter::Any).collect());
        }
        if self.dump.0.contains_key(path.as_str()) {
            return Some(self.privileges_on(&path, SpreadFilter::Any));
        }
        self.shown.contains(&vmid).then(|| self.privileges_on("/vms", SpreadFilter::Below))
    }

    /// The path on which an ACL entry takes effect: the deepest one that does not just inherit from above.
    pub(super) fn acl_path(&self, on: PrivilegePath, vmid: Option<Vmid>) -> String {
        let class = match on {
            PrivilegePath::Root => return "/".to_owned(),
            PrivilegePath::Guest | PrivilegePath::NewGuest => "/vms",
            PrivilegePath::Storage => "/storage",
            PrivilegePath::Bridge => "/sdn",
        };
        if let Some(vmid) = vmid
            && self.privileges_on_guest(vmid).is_some_and(|own| own != self.privileges_on("/vms", SpreadFilter::Below))
        {
            return format!("/vms/{vmid}");
        }
        let is_from_above = self.privileges_on(class, SpreadFilter::Any) == self.privileges_on("/", SpreadFilter::Below);
        if is_from_above { "/".to_owned() } else { class.to_owned() }
    }

    /// Paths below `start` on which a need is met.
    fn paths_meeting(&self, start: &str, need: &PrivilegeNeed) -> Vec<&'g str> {
        let is_met = |path: &str| path.starts_with(start) && need.any_of.iter().any(|privilege| self.dump.has(path, privilege));
        self.dump.0.keys().map(|path| &**path).filter(|path| is_met(path)).collect()
    }
}

/// A need that is not met.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MissingPrivilege {
    pub(super) need: &'static PrivilegeNeed,
    /// The guests on which it is not met; empty if the need is not about single guests.
    pub(super) guests: Vec<Vmid>,
}

/// Whether the needs of a verb are met.
#[derive(Debug, Default)]
pub(super) struct VerbStatus<'g> {
    pub(super) lacks: Vec<MissingPrivilege>,
    /// Guests for which that is unknown.
    pub(super) unknown: BTreeSet<Vmid>,
    /// Paths to which the verb is confined.
    pub(super) confined_to: Vec<&'g str>,
}

/// Whether the needs of a verb are met for these guests. A guest of unknown kind counts as a virtual machine, which needs more.
pub(super) fn verb_status<'g>(held: &HeldPrivileges<'g>, verb: PrivilegedVerb, major: u32, guests: &[(Vmid, GuestKind)]) -> VerbStatus<'g> {
    let kinds: BTreeSet<GuestKind> = guests.iter().map(|(_, kind)| *kind).collect();
    let kinds: Vec<GuestKind> = if kinds.is_empty() { vec![GuestKind::Qemu] } else { kinds.into_iter().collect() };
    let mut needs: Vec<&'static PrivilegeNeed> = Vec::new();
    for need in kinds.into_iter().flat_map(|kind| verb.needs(major, kind)) {
        if !needs.contains(&need) {
            needs.push(need);
        }
    }
    let mut status = VerbStatus::default();
    for need in needs {
        judge_need(held, need, guests, &mut status);
    }
    status
}

fn judge_need<'g>(held: &HeldPrivileges<'g>, need: &'static PrivilegeNeed, guests: &[(Vmid, GuestKind)], status: &mut VerbStatus<'g>) {
    let is_met = |own: &PrivilegeSet<'_>| need.any_of.iter().any(|privilege| own.contains(privilege));
    let missing = |guests| MissingPrivilege { need, guests };
    match need.on {
        PrivilegePath::Root if is_met(&held.privileges_on("/", SpreadFilter::Any)) => {}
        PrivilegePath::NewGuest if is_met(&held.privileges_on("/vms", SpreadFilter::Below)) => {}
        PrivilegePath::Guest if guests.is_empty() && is_met(&held.privileges_on("/vms", SpreadFilter::Below)) => {}
        PrivilegePath::Root | PrivilegePath::NewGuest => status.lacks.push(missing(Vec::new())),
        PrivilegePath::Guest if guests.is_empty() => status.lacks.push(missing(Vec::new())),
        PrivilegePath::Guest => {
            let mut unmet_guests = Vec::new();
            for (vmid, _) in guests.iter().filter(|(_, kind)| need.kind.is_none_or(|own| own == *kind)) {
                match held.privileges_on_guest(*vmid) {
                    Some(own) if is_met(&own) => {}
                    Some(_) => unmet_guests.push(*vmid),
                    None => {
                        status.unknown.insert(*vmid);
                    }
                }
            }
            if !unmet_guests.is_empty() {
                status.lacks.push(missing(unmet_guests));
            }
        }
        PrivilegePath::Storage | PrivilegePath::Bridge => {
            let (class, start) = if need.on == PrivilegePath::Storage { ("/storage", "/storage/") } else { ("/sdn", "/sdn/zones/") };
            if is_met(&held.privileges_on(class, SpreadFilter::Below)) {
                return;
            }
            let only = held.paths_meeting(start, need);
            if only.is_empty() {
                status.lacks.push(missing(Vec::new()));
            }
            status.confined_to.extend(only);
        }
    }
}
