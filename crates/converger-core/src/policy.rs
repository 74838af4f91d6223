//! The rules for a run: what is protected, and how much may be changed at once.
//!
//! Configuration can extend protection but not reduce it: `prod-` and `prod` protect in every environment.

use serde::Serialize;

use crate::artifact::Digest;
use crate::desired::{DesiredGuest, Scope};
use crate::guest::{ClusterIdentity, GuestIdentity, Vmid};
use crate::normalize::{Field, FieldValue, WordSet};
use crate::observe::{ObservedGuest, PendingChange, Reading};
use crate::refusal::Refusal;

/// The tag with which people exclude a guest from changes.
pub const HOLD_TAG: &str = "converger-hold";

const PROTECTED_NAME_PREFIX: &str = "prod-";
const PROTECTED_TAG: &str = "prod";

/// What is protected from interruption. Its digest is part of every plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Rules {
    /// Omitted if empty, so that a plan does not depend on whether a state directory exists.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    births: Vec<Birth>,
    ids: Vec<Vmid>,
    names: Vec<String>,
    tags: Vec<String>,
    /// Not stored; refusals that follow from it are. Links of containers come and go on a machine, and a plan that was approved on one
    /// machine may be applied from another.
    #[serde(skip)]
    machine: MachineIdentity,
    /// Omitted if empty, like the births.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    own_writes: Vec<OwnWrite>,
}

/// A pending change of a guest that this program wrote itself.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct OwnWrite {
    /// The field.
    pub field: Field,
    /// The pending value as displayed in a plan; `None` for a removal.
    pub value: Option<String>,
    /// The guest.
    pub vmid: Vmid,
}

/// A guest that this program made as a clone, according to its journal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Birth {
    /// Whether the disk that was to grow is recorded as grown.
    #[serde(skip_serializing_if = "Clone::clone")]
    pub grown: bool,
    /// The birth marks that it had when the clone was verified; `None` if a person said that it was made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub identity: Option<GuestIdentity>,
    /// Whether everything that it was to get at first is recorded as written.
    pub provisioned: bool,
    /// The request that it was made for; `None` for a declared state.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request: Option<Digest>,
    /// Whether this program started it: it was complete then, and is not started again for its birth.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub started: bool,
    /// The guest.
    pub vmid: Vmid,
}

impl OwnWrite {
    /// The pending change of a field of a guest to this value, or its removal.
    #[must_use]
    pub fn new(vmid: Vmid, field: Field, value: Option<&FieldValue>) -> Self {
        Self { field, value: value.map(ToString::to_string), vmid }
    }
}

/// A guest that must not be changed: a person holds it, or the result of an operation on it is unknown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GuestBlock {
    /// Who blocks it.
    pub by: BlockedBy,
    /// The guest.
    pub vmid: Vmid,
}

/// Who blocks a guest.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum BlockedBy {
    /// A person, by `converger hold`.
    Person {
        /// Who.
        by: String,
        /// Why.
        reason: String,
    },
    /// A held operation.
    Operation(String),
}

impl GuestBlock {
    /// The refusal for this block.
    pub(crate) fn refusal(&self) -> Refusal {
        match &self.by {
            BlockedBy::Person { by, reason } => Refusal::guest_held_by_person(by, reason),
            BlockedBy::Operation(id) => Refusal::guest_held_by_operation(id),
        }
    }
}

/// Marks of the machine that this program runs on, used to recognise its own guest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct MachineIdentity {
    /// Whether at least one address belongs to a device of this machine. In a container, all addresses may be virtual.
    has_device: bool,
    macs: Vec<String>,
    unread: Vec<MachineMark>,
    uuids: Vec<String>,
}

/// A kind of machine mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum MachineMark {
    /// The UUID from the firmware; for a virtual machine it comes from its config.
    FirmwareUuid,
    /// The MAC addresses of the network devices.
    HardwareAddresses,
}

impl MachineMark {
    /// The word for it.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::FirmwareUuid => "firmware-uuid",
            Self::HardwareAddresses => "hardware-addresses",
        }
    }
}

/// Whether a guest is the one that this program runs in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnGuest {
    /// It is.
    Yes,
    /// It is not.
    No,
    /// Some marks of the machine are unreadable, and the others do not decide it.
    Unknown,
}

impl MachineIdentity {
    /// A machine with these MAC addresses and UUIDs.
    ///
    /// Older firmware reports the first three parts of a UUID with reversed bytes, so both forms count.
    #[must_use]
    pub fn new(macs: impl IntoIterator<Item = String>, uuids: impl IntoIterator<Item = String>) -> Self {
        let macs = macs.into_iter().map(|mac| mac.to_ascii_uppercase()).collect();
        let both = |uuid: String| [swap_uuid_bytes(&uuid), Some(uuid)].into_iter().flatten().map(|uuid| uuid.to_ascii_lowercase());
        Self { macs: sort_unique(macs), uuids: sort_unique(uuids.into_iter().flat_map(both).collect()), ..Self::default() }
    }

    /// States that at least one address belongs to a device, not to a virtual link inside the machine.
    #[must_use]
    pub fn with_device(self) -> Self {
        Self { has_device: true, ..self }
    }

    /// Adds marks that exist but cannot be read.
    #[must_use]
    pub fn with_unreadable(self, unread: impl IntoIterator<Item = MachineMark>) -> Self {
        Self { unread: sort_unique(unread.into_iter().collect()), ..self }
    }

    fn is_unknown(&self) -> bool {
        self.macs.is_empty() && self.uuids.is_empty() && self.unread.is_empty()
    }

    /// The words of the unreadable marks.
    #[must_use]
    pub fn unreadable_marks(&self) -> Vec<String> {
        self.unread.iter().map(|mark| mark.word().to_owned()).collect()
    }

    /// Whether a guest with these birth marks and MAC addresses is this machine.
    #[must_use]
    pub fn match_guest(&self, identity: &GuestIdentity, macs: &WordSet) -> OwnGuest {
        let among = |list: &[String], mark: &Option<Box<str>>| mark.as_deref().is_some_and(|mark| list.iter().any(|own| own == mark));
        let is_linked = macs.iter().any(|mac| self.macs.iter().any(|own| own == mac));
        let (is_marked, is_told) = match identity {
            GuestIdentity::Qemu { uuid, .. } => (among(&self.uuids, uuid), self.distinguishes_qemu(uuid.is_some(), macs)),
            GuestIdentity::Lxc { mac, .. } => (among(&self.macs, mac), !self.is_unreadable(MachineMark::HardwareAddresses)),
        };
        match (is_marked || is_linked, is_told) {
            (true, _) => OwnGuest::Yes,
            (false, true) => OwnGuest::No,
            (false, false) => OwnGuest::Unknown,
        }
    }

    fn is_unreadable(&self, mark: MachineMark) -> bool {
        self.unread.contains(&mark)
    }

    /// Whether a virtual machine that shares no mark with this machine must be another one: by its UUID, or by its MAC addresses if those
    /// of this machine belong to devices.
    fn distinguishes_qemu(&self, has_uuid: bool, macs: &WordSet) -> bool {
        let by_uuid = !self.is_unreadable(MachineMark::FirmwareUuid) && (self.uuids.is_empty() || has_uuid);
        let by_macs = !self.is_unreadable(MachineMark::HardwareAddresses) && self.has_device && !macs.is_empty();
        self.unread.is_empty() || by_uuid || by_macs
    }
}

/// Reverses the bytes of the first three parts of a UUID.
fn swap_uuid_bytes(uuid: &str) -> Option<String> {
    let reverse_bytes = |part: &str| -> Option<String> {
        let bytes: Vec<&str> = (0..part.len()).step_by(2).map(|at| part.get(at..at + 2)).collect::<Option<_>>()?;
        Some(bytes.into_iter().rev().collect())
    };
    let parts: Vec<&str> = uuid.split('-').collect();
    let &[first, second, third, fourth, fifth] = parts.as_slice() else { return None };
    Some([&reverse_bytes(first)?, &reverse_bytes(second)?, &reverse_bytes(third)?, fourth, fifth].join("-"))
}

impl Rules {
    /// The built-in rules plus these ids, name prefixes and tags.
    #[must_use]
    pub fn new(ids: Vec<Vmid>, names: Vec<String>, tags: Vec<String>) -> Self {
        let lower = |words: Vec<String>, built_in: &str| {
            sort_unique(words.iter().map(|word| word.to_ascii_lowercase()).chain([built_in.into()]).collect())
        };
        Self {
            ids: sort_unique(ids),
            names: lower(names, PROTECTED_NAME_PREFIX),
            tags: lower(tags, PROTECTED_TAG),
            machine: MachineIdentity::default(),
            births: Vec::new(),
            own_writes: Vec::new(),
        }
    }

    /// Adds the machine that this program runs on.
    #[must_use]
    pub fn with_machine(self, host: MachineIdentity) -> Self {
        Self { machine: host, ..self }
    }

    /// Sets the pending changes that this program wrote itself.
    #[must_use]
    pub fn with_own_writes(self, own_writes: Vec<OwnWrite>) -> Self {
        Self { own_writes: sort_unique(own_writes), ..self }
    }

    /// Sets the guests that this program made; the first one of each id counts.
    #[must_use]
    pub fn with_births(self, mut births: Vec<Birth>) -> Self {
        births.sort_by_key(|birth| birth.vmid);
        births.dedup_by_key(|birth| birth.vmid);
        Self { births, ..self }
    }

    /// The guests that this program made, sorted by id.
    #[must_use]
    pub fn births(&self) -> &[Birth] {
        &self.births
    }

    /// The birth of an observed guest, if this program made it and it still has its birth marks.
    #[must_use]
    pub fn birth_of(&self, row: &ObservedGuest) -> Option<&Birth> {
        let Reading::Read(identity) = &row.identity else { return None };
        self.last_birth(row.vmid).filter(|birth| birth.identity.as_ref() == Some(&**identity))
    }

    /// The last guest that this program made under an id, whatever is there now.
    #[must_use]
    pub fn last_birth(&self, vmid: Vmid) -> Option<&Birth> {
        let index = self.births.binary_search_by_key(&vmid, |birth| birth.vmid).ok()?;
        self.births.get(index)
    }

    /// Pending changes that this program wrote itself.
    #[must_use]
    pub fn own_writes(&self) -> &[OwnWrite] {
        &self.own_writes
    }

    /// Whether this program wrote this pending change itself.
    #[must_use]
    pub fn is_own_write(&self, vmid: Vmid, pending: &PendingChange) -> bool {
        let PendingChange::Known(field, value) = pending else { return false };
        let is_same = |own: &OwnWrite| own.vmid == vmid && own.field == *field && own.value == value.as_ref().map(ToString::to_string);
        self.own_writes.iter().any(is_same)
    }

    /// The machine that this program runs on, if anything is known about it.
    #[must_use]
    pub fn machine(&self) -> Option<&MachineIdentity> {
        (!self.machine.is_unknown()).then_some(&self.machine)
    }

    /// The protected ids.
    #[must_use]
    pub fn ids(&self) -> &[Vmid] {
        &self.ids
    }

    /// The protecting name prefixes, in lower case.
    #[must_use]
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// The protecting tags, in lower case.
    #[must_use]
    pub fn tags(&self) -> &[String] {
        &self.tags
    }

    /// Whether a tag protects.
    #[must_use]
    pub fn is_protecting_tag(&self, tag: &str) -> bool {
        self.tags.iter().any(|own| own.eq_ignore_ascii_case(tag))
    }

    /// What protects this guest; empty if nothing does.
    #[must_use]
    pub fn protection_grounds(&self, desired: &DesiredGuest, observed: &ObservedGuest) -> Vec<String> {
        let mut grounds = Vec::new();
        if desired.name.as_ref().is_some_and(|name| self.is_protected_name(name.as_str())) {
            grounds.push("desired-name".to_owned());
        }
        let tags: Vec<&str> = observed.current_and_pending_tags().collect();
        let marks = match &observed.identity {
            Reading::Read(identity) => Some((&**identity, &observed.macs)),
            Reading::Unread => None,
        };
        let flag = observed.protection == Reading::Read(true);
        let mut seen = self.protection_grounds_for(desired.vmid, observed.name.as_deref().unwrap_or(""), &tags, flag, marks);
        // A guest that is declared as protected counts as protected at once. Names come before tags.
        let names = usize::from(seen.first().is_some_and(|ground| ground == "observed-name"));
        seen.splice(names..names, declared_tags(desired).filter(|tag| self.is_protecting_tag(tag)).map(|tag| format!("desired-tag:{tag}")));
        grounds.append(&mut seen);
        grounds
    }

    /// What protects a guest with these observed properties.
    #[must_use]
    pub fn protection_grounds_for(
        &self,
        vmid: Vmid,
        name: &str,
        tags: &[&str],
        protection: bool,
        marks: Option<(&GuestIdentity, &WordSet)>,
    ) -> Vec<String> {
        let mut grounds = Vec::new();
        if self.is_protected_name(name) {
            grounds.push("observed-name".to_owned());
        }
        grounds.extend(tags.iter().filter(|tag| self.is_protecting_tag(tag)).map(|tag| format!("tag:{tag}")));
        if protection {
            grounds.push("protection-flag".to_owned());
        }
        if self.ids.binary_search(&vmid).is_ok() {
            grounds.push("listed-id".to_owned());
        }
        if marks.is_some_and(|(identity, macs)| self.machine.match_guest(identity, macs) == OwnGuest::Yes) {
            grounds.push("runs-this-program".to_owned());
        }
        grounds
    }

    pub(crate) fn is_protected_name(&self, name: &str) -> bool {
        // Proxmox has no names with leading whitespace; trim it anyway so that such a name cannot evade protection.
        let name = name.trim_start();
        self.names.iter().any(|prefix| name.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix)))
    }
}

fn declared_tags(desired: &DesiredGuest) -> impl Iterator<Item = &str> {
    let tags = desired.config.iter().find_map(|setting| match &setting.wanted {
        Some(FieldValue::Tags(tags)) => Some(tags),
        _ => None,
    });
    tags.into_iter().flat_map(|tags| tags.iter())
}

impl Default for Rules {
    fn default() -> Self {
        Self::new(Vec::new(), Vec::new(), Vec::new())
    }
}

fn sort_unique<T: Ord>(mut list: Vec<T>) -> Vec<T> {
    list.sort();
    list.dedup();
    list
}

/// How much one run may change. 0 means none, not unlimited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Limits {
    /// Maximal number of changed guests.
    pub guests: u32,
    /// Maximal percentage of the scope that may be changed, rounded down, but at least one guest unless it is 0.
    pub percent: u32,
    /// Maximal number of interrupted (stopped or rebooted) guests.
    pub stops: u32,
}

impl Default for Limits {
    /// The limits of an interactive run if nothing is configured.
    fn default() -> Self {
        Self { guests: 50, percent: 100, stops: 5 }
    }
}

impl Limits {
    /// How many guests `percent` allows in a scope of this size.
    #[must_use]
    pub fn guests_allowed(&self, scope: u32) -> u32 {
        let share = u64::from(scope) * u64::from(self.percent) / 100;
        let share = u32::try_from(share).unwrap_or(u32::MAX);
        if self.percent == 0 { 0 } else { share.max(1) }
    }
}

/// What holds at the moment of a judgement and is not part of the plan.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Circumstances {
    /// The cluster that was read; `None` for a recorded observation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster: Option<ClusterIdentity>,
    /// The epoch of the state directory; `None` in its first epoch, without a state directory, and for a recorded observation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub epoch: Option<u64>,
    /// Why changes are frozen, if they are.
    pub freeze: Option<String>,
    /// The guests that must not be changed. Omitted if empty, so that a judgement does not depend on whether a state directory exists.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub holds: Vec<GuestBlock>,
}

impl Circumstances {
    /// Sorts the holds and removes those of guests outside the scope: such guests have no steps, so their holds must not change the digest
    /// of a judgement.
    #[must_use]
    pub fn restrict_to_scope(mut self, scope: &Scope) -> Self {
        self.holds.retain(|hold| scope.contains(hold.vmid));
        self.holds.sort_by(|one, other| (one.vmid, &one.by).cmp(&(other.vmid, &other.by)));
        self.holds.dedup();
        self
    }

    /// The holds of this guest.
    pub fn holds_on(&self, vmid: Vmid) -> impl Iterator<Item = &GuestBlock> {
        self.holds.iter().filter(move |hold| hold.vmid == vmid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn built_in_protection_cannot_be_removed() {
        let rules = Rules::new(vec![], vec!["Core-".into()], vec!["Keep".into()]);
        assert!(rules.is_protected_name("PROD-db") && rules.is_protected_name("prod-"));
        assert!(rules.is_protected_name("core-switch"));
        assert!(!rules.is_protected_name("preprod-web") && !rules.is_protected_name("prod") && !rules.is_protected_name("éprod-"));
        assert!(rules.is_protecting_tag("PROD") && rules.is_protecting_tag("keep") && !rules.is_protecting_tag("production"));
    }

    #[test]
    fn recognises_its_own_guest_by_both_forms_of_its_uuid() {
        let host = MachineIdentity::new(["bc:24:11:00:00:01".into()], ["00112233-4455-6677-8899-AABBCCDDEEFF".into()]);
        let is = |identity: &GuestIdentity| host.match_guest(identity, &WordSet::default()) == OwnGuest::Yes;
        let qemu = |uuid: &str| is(&GuestIdentity::Qemu { uuid: Some(uuid.into()), ctime: None });
        assert!(qemu("00112233-4455-6677-8899-aabbccddeeff") && qemu("33221100-5544-7766-8899-aabbccddeeff"));
        assert!(!qemu("00112233-4455-6677-8899-aabbccddeefe"));
        assert!(is(&GuestIdentity::Lxc { rootfs: None, mac: Some("BC:24:11:00:00:01".into()) }));
        assert!(!is(&GuestIdentity::Lxc { rootfs: None, mac: None }) && !is(&GuestIdentity::Qemu { uuid: None, ctime: Some(1) }));
    }

    /// Matches a virtual machine with this UUID, and a container, each with these addresses.
    fn match_both_kinds(host: &MachineIdentity, uuid: Option<&str>, macs: &[&str]) -> (OwnGuest, OwnGuest) {
        let macs = WordSet::new(macs.iter().map(|mac| (*mac).into()).collect());
        let qemu = GuestIdentity::Qemu { uuid: uuid.map(Into::into), ctime: None };
        (host.match_guest(&qemu, &macs), host.match_guest(&GuestIdentity::Lxc { rootfs: None, mac: None }, &macs))
    }

    #[test]
    fn unreadable_mark_is_not_a_different_mark() {
        let linked = || MachineIdentity::new(["bc:24:11:00:00:01".into()], []);
        let hidden = linked().with_device().with_unreadable([MachineMark::FirmwareUuid]);
        assert_eq!(match_both_kinds(&hidden, Some("a"), &["BC:24:11:00:00:01"]), (OwnGuest::Yes, OwnGuest::Yes));
        assert_eq!(match_both_kinds(&hidden, Some("a"), &["BC:24:11:00:00:02"]), (OwnGuest::No, OwnGuest::No));
        assert_eq!(match_both_kinds(&hidden, Some("a"), &[]), (OwnGuest::Unknown, OwnGuest::No));
        // In a container inside a virtual machine, the addresses are not those of the virtual machine.
        assert_eq!(
            match_both_kinds(&linked().with_unreadable([MachineMark::FirmwareUuid]), Some("a"), &["BC:24:11:00:00:02"]),
            (OwnGuest::Unknown, OwnGuest::No)
        );
        let blind = MachineIdentity::new([], ["b".into()]).with_unreadable([MachineMark::HardwareAddresses]);
        assert_eq!(match_both_kinds(&blind, Some("a"), &["BC:24:11:00:00:02"]), (OwnGuest::No, OwnGuest::Unknown));
        assert_eq!(match_both_kinds(&blind, None, &["BC:24:11:00:00:02"]), (OwnGuest::Unknown, OwnGuest::Unknown));
        let both = MachineIdentity::default().with_unreadable([MachineMark::HardwareAddresses, MachineMark::FirmwareUuid]);
        assert_eq!(match_both_kinds(&both, Some("a"), &["BC:24:11:00:00:02"]), (OwnGuest::Unknown, OwnGuest::Unknown));
        assert_eq!(match_both_kinds(&MachineIdentity::default(), None, &[]), (OwnGuest::No, OwnGuest::No));
        assert!(Rules::default().with_machine(both).machine().is_some());
    }

    #[test]
    fn percent_is_rounded_down_to_at_least_one() {
        let limits = |percent| Limits { percent, ..Limits::default() };
        assert_eq!(limits(10).guests_allowed(99), 9);
        assert_eq!(limits(10).guests_allowed(5), 1);
        assert_eq!(limits(0).guests_allowed(1000), 0);
        assert_eq!(limits(100).guests_allowed(u32::MAX), u32::MAX);
    }
}
