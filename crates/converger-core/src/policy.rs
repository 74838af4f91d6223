//! The rules that a run is held to: what is protected, and how much may be changed at once.
//!
//! Protection can be widened here and not narrowed: `prod-` and `prod` protect in every environment.

use serde::Serialize;

use crate::desired::{DesiredGuest, Scope};
use crate::guest::{Identity, Vmid};
use crate::normalize::{Field, Value, Words};
use crate::observe::{ObservedGuest, Pending, Reading};
use crate::refusal::Refusal;

/// The tag by which people keep this program away from a guest.
pub const HOLD_TAG: &str = "converger-hold";

const NAME_PREFIX: &str = "prod-";
const TAG: &str = "prod";

/// What is protected from interruption. The digest of it is part of every plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Rules {
    ids: Vec<Vmid>,
    names: Vec<String>,
    tags: Vec<String>,
    /// Not part of what is stored: what it leads to is, as a refusal. Links of containers come and go on a machine, and a plan that was approved
    /// on one machine may be carried out from another.
    #[serde(skip)]
    host: Host,
    /// Left out where there are none, so that a plan does not depend on whether anything is remembered.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    grips: Vec<Grip>,
    /// Left out where there are none, as grips are.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    own_writes: Vec<OwnWrite>,
}

/// A pending change of a guest that this program wrote itself.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct OwnWrite {
    /// The field.
    pub field: Field,
    /// The value that waits, as a plan shows it; none for a removal.
    pub value: Option<String>,
    /// The guest.
    pub vmid: Vmid,
}

impl OwnWrite {
    /// The pending change of a field of a guest to this value, or its removal.
    #[must_use]
    pub fn new(vmid: Vmid, field: Field, value: Option<&Value>) -> Self {
        Self { field, value: value.map(ToString::to_string), vmid }
    }
}

/// A guest that is left alone: somebody said so, or it is not known what became of an operation on it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Grip {
    /// The guest.
    pub vmid: Vmid,
    /// Who has it.
    pub by: GripBy,
}

/// Who has a guest.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum GripBy {
    /// A person, by `converger hold`.
    Person {
        /// Who.
        by: String,
        /// Why.
        reason: String,
    },
    /// An operation that is held.
    Operation(String),
}

impl Grip {
    /// The refusal that it amounts to.
    pub(crate) fn refusal(&self) -> Refusal {
        match &self.by {
            GripBy::Person { by, reason } => Refusal::guest_held_by(by, reason),
            GripBy::Operation(id) => Refusal::guest_taken_by(id),
        }
    }
}

/// Marks of the machine that this program runs on, by which its own guest is known.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Host {
    /// Whether one of the addresses belongs to a device of this machine: inside of a container all may be made up.
    has_device: bool,
    macs: Vec<String>,
    unread: Vec<Mark>,
    uuids: Vec<String>,
}

/// A kind of mark that a machine has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mark {
    /// The UUID that the firmware gives, which a virtual machine has from its config.
    FirmwareUuid,
    /// The addresses of the network devices.
    HardwareAddresses,
}

impl Mark {
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
pub enum Own {
    /// It is.
    Yes,
    /// It is not.
    No,
    /// The machine has marks that may not be read, and no others tell the two apart.
    Untold,
}

impl Host {
    /// A machine with these hardware addresses and UUIDs.
    ///
    /// Older firmware gives the first three parts of a UUID with their bytes turned round, so that both forms count.
    #[must_use]
    pub fn new(macs: impl IntoIterator<Item = String>, uuids: impl IntoIterator<Item = String>) -> Self {
        let macs = macs.into_iter().map(|mac| mac.to_ascii_uppercase()).collect();
        let both = |uuid: String| [turned(&uuid), Some(uuid)].into_iter().flatten().map(|uuid| uuid.to_ascii_lowercase());
        Self { macs: sorted(macs), uuids: sorted(uuids.into_iter().flat_map(both).collect()), ..Self::default() }
    }

    /// The same, where one of the addresses is that of a device and not of a link inside of a machine.
    #[must_use]
    pub fn with_device(self) -> Self {
        Self { has_device: true, ..self }
    }

    /// The same, with marks that are there and may not be read.
    #[must_use]
    pub fn without(self, unread: impl IntoIterator<Item = Mark>) -> Self {
        Self { unread: sorted(unread.into_iter().collect()), ..self }
    }

    fn is_unknown(&self) -> bool {
        self.macs.is_empty() && self.uuids.is_empty() && self.unread.is_empty()
    }

    /// The marks that may not be read, in words.
    #[must_use]
    pub fn unread(&self) -> Vec<String> {
        self.unread.iter().map(|mark| mark.word().to_owned()).collect()
    }

    /// Whether a guest with these marks and hardware addresses is this machine.
    #[must_use]
    pub fn is(&self, identity: &Identity, macs: &Words) -> Own {
        let among = |list: &[String], mark: &Option<Box<str>>| mark.as_deref().is_some_and(|mark| list.iter().any(|own| own == mark));
        let is_linked = macs.iter().any(|mac| self.macs.iter().any(|own| own == mac));
        let (is_marked, is_told) = match identity {
            Identity::Qemu { uuid, .. } => (among(&self.uuids, uuid), self.tells_qemu(uuid.is_some(), macs)),
            Identity::Lxc { mac, .. } => (among(&self.macs, mac), !self.lacks(Mark::HardwareAddresses)),
        };
        match (is_marked || is_linked, is_told) {
            (true, _) => Own::Yes,
            (false, true) => Own::No,
            (false, false) => Own::Untold,
        }
    }

    fn lacks(&self, mark: Mark) -> bool {
        self.unread.contains(&mark)
    }

    /// Whether a virtual machine that shares no mark is another one: by its UUID, or else by its addresses, of which a virtual machine's
    /// own are those of devices.
    fn tells_qemu(&self, has_uuid: bool, macs: &Words) -> bool {
        let by_uuid = !self.lacks(Mark::FirmwareUuid) && (self.uuids.is_empty() || has_uuid);
        let by_macs = !self.lacks(Mark::HardwareAddresses) && self.has_device && !macs.is_empty();
        self.unread.is_empty() || by_uuid || by_macs
    }
}

/// The UUID with the bytes of its first three parts turned round.
fn turned(uuid: &str) -> Option<String> {
    let turn = |part: &str| -> Option<String> {
        let bytes: Vec<&str> = (0..part.len()).step_by(2).map(|at| part.get(at..at + 2)).collect::<Option<_>>()?;
        Some(bytes.into_iter().rev().collect())
    };
    let parts: Vec<&str> = uuid.split('-').collect();
    let &[first, second, third, fourth, fifth] = parts.as_slice() else { return None };
    Some([&turn(first)?, &turn(second)?, &turn(third)?, fourth, fifth].join("-"))
}

impl Rules {
    /// The built-in rules and these: ids, beginnings of names, and tags.
    #[must_use]
    pub fn new(ids: Vec<Vmid>, names: Vec<String>, tags: Vec<String>) -> Self {
        let lower = |words: Vec<String>, built_in: &str| {
            sorted(words.iter().map(|word| word.to_ascii_lowercase()).chain([built_in.into()]).collect())
        };
        Self {
            ids: sorted(ids),
            names: lower(names, NAME_PREFIX),
            tags: lower(tags, TAG),
            host: Host::default(),
            grips: Vec::new(),
            own_writes: Vec::new(),
        }
    }

    /// The same, and the guest that this program runs in.
    #[must_use]
    pub fn with_host(self, host: Host) -> Self {
        Self { host, ..self }
    }

    /// The same, and guests that are left alone.
    #[must_use]
    pub fn with_grips(self, grips: Vec<Grip>) -> Self {
        Self { grips: sorted(grips), ..self }
    }

    /// The same, without holds and operations of guests outside of this scope: nothing is planned for those, so that they must not change the
    /// digest of a plan or what it is refused for.
    #[must_use]
    pub fn with_grips_in(self, scope: &Scope, mut grips: Vec<Grip>) -> Self {
        grips.retain(|grip| scope.has(grip.vmid));
        self.with_grips(grips)
    }

    /// The same, and pending changes that this program wrote itself.
    #[must_use]
    pub fn with_own_writes(self, own_writes: Vec<OwnWrite>) -> Self {
        Self { own_writes: sorted(own_writes), ..self }
    }

    /// Pending changes that this program wrote itself.
    #[must_use]
    pub fn own_writes(&self) -> &[OwnWrite] {
        &self.own_writes
    }

    /// Whether this program wrote a pending change itself.
    #[must_use]
    pub fn is_own_write(&self, vmid: Vmid, pending: &Pending) -> bool {
        let Pending::Known(field, value) = pending else { return false };
        let is_same = |own: &OwnWrite| own.vmid == vmid && own.field == *field && own.value == value.as_ref().map(ToString::to_string);
        self.own_writes.iter().any(is_same)
    }

    /// Who has this guest, if somebody does.
    pub fn grips_on(&self, vmid: Vmid) -> impl Iterator<Item = &Grip> {
        self.grips.iter().filter(move |grip| grip.vmid == vmid)
    }

    /// The guests that somebody has.
    #[must_use]
    pub fn grips(&self) -> &[Grip] {
        &self.grips
    }

    /// The machine that this program runs on, where that matters.
    #[must_use]
    pub fn host(&self) -> Option<&Host> {
        (!self.host.is_unknown()).then_some(&self.host)
    }

    /// The ids that are protected.
    #[must_use]
    pub fn ids(&self) -> &[Vmid] {
        &self.ids
    }

    /// The beginnings of names that protect, in lower case.
    #[must_use]
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// The tags that protect, in lower case.
    #[must_use]
    pub fn tags(&self) -> &[String] {
        &self.tags
    }

    /// Whether a tag protects.
    #[must_use]
    pub fn is_protecting_tag(&self, tag: &str) -> bool {
        self.tags.iter().any(|own| own.eq_ignore_ascii_case(tag))
    }

    /// What protects this guest, in words; empty where nothing does.
    #[must_use]
    pub fn grounds(&self, desired: &DesiredGuest, observed: &ObservedGuest) -> Vec<String> {
        let mut grounds = Vec::new();
        if desired.name.as_ref().is_some_and(|name| self.is_protected_name(name.as_str())) {
            grounds.push("desired-name".to_owned());
        }
        let tags: Vec<&str> = observed.tags_carried().collect();
        let marks = match &observed.identity {
            Reading::Read(identity) => Some((&**identity, &observed.macs)),
            Reading::Unread => None,
        };
        let flag = observed.protection == Reading::Read(true);
        let mut seen = self.grounds_of(desired.vmid, observed.name.as_deref().unwrap_or(""), &tags, flag, marks);
        // What is declared to be protected is, from the moment on that it is declared. Names stand before tags.
        let names = usize::from(seen.first().is_some_and(|ground| ground == "observed-name"));
        seen.splice(names..names, declared_tags(desired).filter(|tag| self.is_protecting_tag(tag)).map(|tag| format!("desired-tag:{tag}")));
        grounds.append(&mut seen);
        grounds
    }

    /// What protects a guest that was found like this, in words.
    #[must_use]
    pub fn grounds_of(&self, vmid: Vmid, name: &str, tags: &[&str], protection: bool, marks: Option<(&Identity, &Words)>) -> Vec<String> {
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
        if marks.is_some_and(|(identity, macs)| self.host.is(identity, macs) == Own::Yes) {
            grounds.push("runs-this-program".to_owned());
        }
        grounds
    }

    fn is_protected_name(&self, name: &str) -> bool {
        // Proxmox has no names that begin with a blank; one that does is not to slip through.
        let name = name.trim_start();
        self.names.iter().any(|prefix| name.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix)))
    }
}

fn declared_tags(desired: &DesiredGuest) -> impl Iterator<Item = &str> {
    let tags = desired.config.iter().find_map(|setting| match &setting.wanted {
        Some(Value::Tags(tags)) => Some(tags),
        _ => None,
    });
    tags.into_iter().flat_map(|tags| tags.iter())
}

impl Default for Rules {
    fn default() -> Self {
        Self::new(Vec::new(), Vec::new(), Vec::new())
    }
}

fn sorted<T: Ord>(mut list: Vec<T>) -> Vec<T> {
    list.sort();
    list.dedup();
    list
}

/// How much one run may change. There is no "0 means unlimited": 0 means none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Limits {
    /// Guests that may be changed.
    pub guests: u32,
    /// Percent of the scope that may be changed, rounded down, but at least one guest where it is not 0.
    pub percent: u32,
    /// Guests that may be interrupted (stopped or rebooted).
    pub stops: u32,
}

impl Default for Limits {
    /// What a person's run may do where nothing is configured.
    fn default() -> Self {
        Self { guests: 50, percent: 100, stops: 5 }
    }
}

impl Limits {
    /// How many guests `percent` allows in a scope of this size.
    #[must_use]
    pub fn percent_of(&self, scope: u32) -> u32 {
        let share = u64::from(scope) * u64::from(self.percent) / 100;
        let share = u32::try_from(share).unwrap_or(u32::MAX);
        if self.percent == 0 { 0 } else { share.max(1) }
    }
}

/// What holds at the moment of a judgement and is not part of the plan.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Circumstances {
    /// Why changes are frozen, if they are.
    pub freeze: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn built_in_protection_cannot_be_left_out() {
        let rules = Rules::new(vec![], vec!["Core-".into()], vec!["Keep".into()]);
        assert!(rules.is_protected_name("PROD-db") && rules.is_protected_name("prod-"));
        assert!(rules.is_protected_name("core-switch"));
        assert!(!rules.is_protected_name("preprod-web") && !rules.is_protected_name("prod") && !rules.is_protected_name("éprod-"));
        assert!(rules.is_protecting_tag("PROD") && rules.is_protecting_tag("keep") && !rules.is_protecting_tag("production"));
    }

    #[test]
    fn holds_on_guests_outside_of_the_scope_are_no_part_of_the_rules() {
        let vmid = |id: u64| Vmid::new(id).expect("an id");
        let grip = |id: u64| Grip { vmid: vmid(id), by: GripBy::Operation("run-0".into()) };
        let rules = Rules::default().with_grips_in(&Scope::new(vec![vmid(101)]), vec![grip(100), grip(101), grip(102)]);
        assert_eq!(rules, Rules::default().with_grips(vec![grip(101)]));
    }

    #[test]
    fn a_machine_knows_its_own_guest_in_both_forms_of_its_uuid() {
        let host = Host::new(["bc:24:11:00:00:01".into()], ["00112233-4455-6677-8899-AABBCCDDEEFF".into()]);
        let is = |identity: &Identity| host.is(identity, &Words::default()) == Own::Yes;
        let qemu = |uuid: &str| is(&Identity::Qemu { uuid: Some(uuid.into()), ctime: None });
        assert!(qemu("00112233-4455-6677-8899-aabbccddeeff") && qemu("33221100-5544-7766-8899-aabbccddeeff"));
        assert!(!qemu("00112233-4455-6677-8899-aabbccddeefe"));
        assert!(is(&Identity::Lxc { rootfs: None, mac: Some("BC:24:11:00:00:01".into()) }));
        assert!(!is(&Identity::Lxc { rootfs: None, mac: None }) && !is(&Identity::Qemu { uuid: None, ctime: Some(1) }));
    }

    /// A virtual machine with this UUID, and a container, each with these addresses.
    fn owned(host: &Host, uuid: Option<&str>, macs: &[&str]) -> (Own, Own) {
        let macs = Words::new(macs.iter().map(|mac| (*mac).into()).collect());
        let qemu = Identity::Qemu { uuid: uuid.map(Into::into), ctime: None };
        (host.is(&qemu, &macs), host.is(&Identity::Lxc { rootfs: None, mac: None }, &macs))
    }

    #[test]
    fn a_mark_that_may_not_be_read_is_not_one_that_differs() {
        let linked = || Host::new(["bc:24:11:00:00:01".into()], []);
        let hidden = linked().with_device().without([Mark::FirmwareUuid]);
        assert_eq!(owned(&hidden, Some("a"), &["BC:24:11:00:00:01"]), (Own::Yes, Own::Yes));
        assert_eq!(owned(&hidden, Some("a"), &["BC:24:11:00:00:02"]), (Own::No, Own::No));
        assert_eq!(owned(&hidden, Some("a"), &[]), (Own::Untold, Own::No));
        // Inside of a container in a virtual machine the addresses are not those of the virtual machine.
        assert_eq!(owned(&linked().without([Mark::FirmwareUuid]), Some("a"), &["BC:24:11:00:00:02"]), (Own::Untold, Own::No));
        let blind = Host::new([], ["b".into()]).without([Mark::HardwareAddresses]);
        assert_eq!(owned(&blind, Some("a"), &["BC:24:11:00:00:02"]), (Own::No, Own::Untold));
        assert_eq!(owned(&blind, None, &["BC:24:11:00:00:02"]), (Own::Untold, Own::Untold));
        let both = Host::default().without([Mark::HardwareAddresses, Mark::FirmwareUuid]);
        assert_eq!(owned(&both, Some("a"), &["BC:24:11:00:00:02"]), (Own::Untold, Own::Untold));
        assert_eq!(owned(&Host::default(), None, &[]), (Own::No, Own::No));
        assert!(Rules::default().with_host(both).host().is_some());
    }

    #[test]
    fn percent_is_rounded_down_to_at_least_one() {
        let limits = |percent| Limits { percent, ..Limits::default() };
        assert_eq!(limits(10).percent_of(99), 9);
        assert_eq!(limits(10).percent_of(5), 1);
        assert_eq!(limits(0).percent_of(1000), 0);
        assert_eq!(limits(100).percent_of(u32::MAX), u32::MAX);
    }
}
