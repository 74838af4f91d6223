//! What somebody holds, path by path, and what of the needs that leaves open.
//!
//! Proxmox's dump of permissions names every path that has an entry of its own, belongs to a pool, or stands at the top; where
//! nothing holds, the path is left out. A guest that is not named has what spreads from `/vms`, if lists show it: one from which
//! an entry takes everything away is named nowhere and shown nowhere, and has to be asked for.

use std::collections::{BTreeMap, BTreeSet};

use converger_core::guest::{Kind, Vmid};

use super::need::{Need, On, Verb};
use crate::proxmox::codec::{Permissions, Spread};

/// What somebody holds.
#[derive(Clone, Copy)]
pub(super) struct Held<'g> {
    pub(super) dump: &'g Permissions,
    /// Guests that were asked for one by one.
    pub(super) asked: &'g BTreeMap<Vmid, Permissions>,
    /// Guests of which it is known that no entry hides them.
    pub(super) shown: &'g BTreeSet<Vmid>,
}

/// Privileges.
pub(super) type Set<'g> = BTreeSet<&'g str>;

impl<'g> Held<'g> {
    fn on(&self, path: &str, spread: Spread) -> Set<'g> {
        self.dump.on(path, spread).collect()
    }

    /// What is held on a guest; `None`: that is not known.
    pub(super) fn on_guest(&self, vmid: Vmid) -> Option<Set<'g>> {
        let path = format!("/vms/{vmid}");
        if let Some(own) = self.asked.get(&vmid) {
            return Some(own.on(&path, Spread::Any).collect());
        }
        if self.dump.0.contains_key(path.as_str()) {
            return Some(self.on(&path, Spread::Any));
        }
        self.shown.contains(&vmid).then(|| self.on("/vms", Spread::Below))
    }

    /// Where an entry has to stand so that it counts: as far down as something else decides than what comes from above.
    pub(super) fn place(&self, on: On, vmid: Option<Vmid>) -> String {
        let class = match on {
            On::Root => return "/".to_owned(),
            On::Guest | On::NewGuest => "/vms",
            On::Storage => "/storage",
            On::Bridge => "/sdn",
        };
        if let Some(vmid) = vmid
            && self.on_guest(vmid).is_some_and(|own| own != self.on("/vms", Spread::Below))
        {
            return format!("/vms/{vmid}");
        }
        let is_from_above = self.on(class, Spread::Any) == self.on("/", Spread::Below);
        if is_from_above { "/".to_owned() } else { class.to_owned() }
    }

    /// Paths below `start` on which a need is met.
    fn met_below(&self, start: &str, need: &Need) -> Vec<&'g str> {
        let is_met = |path: &str| path.starts_with(start) && need.any_of.iter().any(|privilege| self.dump.has(path, privilege));
        self.dump.0.keys().map(|path| &**path).filter(|path| is_met(path)).collect()
    }
}

/// A need that is not met.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Lack {
    pub(super) need: &'static Need,
    /// The guests on which it is not; none, where it is not about single guests.
    pub(super) guests: Vec<Vmid>,
}

/// How the needs of a verb stand.
#[derive(Debug, Default)]
pub(super) struct Standing<'g> {
    pub(super) lacks: Vec<Lack>,
    /// Guests of which it is not known.
    pub(super) unknown: BTreeSet<Vmid>,
    /// Paths to which it is confined.
    pub(super) only: Vec<&'g str>,
}

/// How a verb stands for these guests. A guest of which the kind is not known counts as a virtual machine, which needs more.
pub(super) fn standing<'g>(held: &Held<'g>, verb: Verb, major: u32, guests: &[(Vmid, Kind)]) -> Standing<'g> {
    let kinds: BTreeSet<Kind> = guests.iter().map(|(_, kind)| *kind).collect();
    let kinds: Vec<Kind> = if kinds.is_empty() { vec![Kind::Qemu] } else { kinds.into_iter().collect() };
    let mut needs: Vec<&'static Need> = Vec::new();
    for need in kinds.into_iter().flat_map(|kind| verb.needs(major, kind)) {
        if !needs.contains(&need) {
            needs.push(need);
        }
    }
    let mut standing = Standing::default();
    for need in needs {
        judge(held, need, guests, &mut standing);
    }
    standing
}

fn judge<'g>(held: &Held<'g>, need: &'static Need, guests: &[(Vmid, Kind)], standing: &mut Standing<'g>) {
    let is_met = |own: &Set<'_>| need.any_of.iter().any(|privilege| own.contains(privilege));
    let lack = |guests| Lack { need, guests };
    match need.on {
        On::Root if is_met(&held.on("/", Spread::Any)) => {}
        On::NewGuest if is_met(&held.on("/vms", Spread::Below)) => {}
        On::Guest if guests.is_empty() && is_met(&held.on("/vms", Spread::Below)) => {}
        On::Root | On::NewGuest => standing.lacks.push(lack(Vec::new())),
        On::Guest if guests.is_empty() => standing.lacks.push(lack(Vec::new())),
        On::Guest => {
            let mut lacking = Vec::new();
            for (vmid, _) in guests.iter().filter(|(_, kind)| need.kind.is_none_or(|own| own == *kind)) {
                match held.on_guest(*vmid) {
                    Some(own) if is_met(&own) => {}
                    Some(_) => lacking.push(*vmid),
                    None => {
                        standing.unknown.insert(*vmid);
                    }
                }
            }
            if !lacking.is_empty() {
                standing.lacks.push(lack(lacking));
            }
        }
        On::Storage | On::Bridge => {
            let (class, start) = if need.on == On::Storage { ("/storage", "/storage/") } else { ("/sdn", "/sdn/zones/") };
            if is_met(&held.on(class, Spread::Below)) {
                return;
            }
            let only = held.met_below(start, need);
            if only.is_empty() {
                standing.lacks.push(lack(Vec::new()));
            }
            standing.only.extend(only);
        }
    }
}
