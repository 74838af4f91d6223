//! How a declared guest is made if it was never made: as a clone of a template, with what it gets at first.
//!
//! The keys below `from` are parameters of the action `vm.clone`, and the same parser reads their values. They are used once: a guest that
//! exists is not compared with them.
//!
//! Must not decide whether a guest is made.

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

use super::parse::{finish_identity, read_vmid};
use super::{DesiredGuest, DesiredSetting, ValueForm};
use crate::action::{ClonedDisks, Provisioning};
use crate::birth_marks::{self, MarksDraft};
use crate::document::{DecodeAborted as End, Diagnostic, DocumentReader, EventSource, Span, ValueKind};
use crate::guest::{
    DayOne, DiskKey, DiskSize, GuestIdentity, GuestKind, GuestName, NodeName, RunState, SecretReference, StorageName, Vmid,
};
use crate::intent::{self, ActionTarget, CloneRequest, ParameterFault};

/// The template of a guest, and what the guest gets when it is made beside its declared config and run-state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestOrigin {
    /// The template.
    pub template: Vmid,
    /// The birth marks of the template. Nothing is made from a template without them.
    pub identity: Option<GuestIdentity>,
    /// How its disks are made; linked if neither this nor a storage is given.
    pub disks: Option<ClonedDisks>,
    /// The node; that of the template if it is not given.
    pub node: Option<NodeName>,
    /// The storage of its disks.
    pub storage: Option<StorageName>,
    /// The pool that it becomes a member of.
    pub pool: Option<Box<str>>,
    /// Attributes outside the table of managed fields.
    pub attributes: DayOne,
    /// Where the password of the user is stored that cloud-init makes.
    pub password: Option<SecretReference>,
    /// The disk that grows; the one that it boots from if it is not given.
    pub disk: Option<DiskKey>,
    /// The size of that disk; that of the template if it is not given.
    pub disk_size: Option<DiskSize>,
}

impl DesiredGuest {
    /// The clone that makes the guest, if it is declared how to make it.
    #[must_use]
    pub fn clone_request(&self) -> Option<CloneRequest> {
        let (origin, name) = (self.from.as_deref()?, self.name.clone()?);
        let GuestOrigin { disks, node, storage, pool, attributes, password, disk, disk_size, .. } = origin.clone();
        let provisioning = Provisioning { attributes, fields: self.config.clone(), kind: self.kind, password };
        let start = self.state == Some(RunState::Running);
        Some(CloneRequest { vmid: self.vmid, name, disks, node, storage, pool, provisioning, disk, disk_size, start })
    }
}

/// What is declared below `from`, in canonical form: sorted by key, every value but the template and its birth marks as text.
pub(super) struct OriginRow<'g> {
    origin: &'g GuestOrigin,
    clone: CloneRequest,
}

impl<'g> OriginRow<'g> {
    pub(super) fn of(guest: &'g DesiredGuest) -> Option<Self> {
        Some(Self { origin: guest.from.as_deref()?, clone: guest.clone_request()? })
    }
}

impl Serialize for OriginRow<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut texts: Vec<(&str, String)> = intent::origin_texts(&self.clone).collect();
        texts.sort_by_key(|(name, _)| *name);
        let mut map = serializer.serialize_map(None)?;
        let split = texts.partition_point(|(name, _)| *name < "identity");
        let (before, after) = texts.split_at_checked(split).unwrap_or_default();
        before.iter().try_for_each(|(name, text)| map.serialize_entry(name, text))?;
        if let Some(identity) = &self.origin.identity {
            map.serialize_entry("identity", identity)?;
        }
        let split = after.partition_point(|(name, _)| *name < "template");
        let (before, after) = after.split_at_checked(split).unwrap_or_default();
        before.iter().try_for_each(|(name, text)| map.serialize_entry(name, text))?;
        map.serialize_entry("template", &self.origin.template)?;
        after.iter().try_for_each(|(name, text)| map.serialize_entry(name, text))?;
        map.end()
    }
}

const ORIGIN_KEYS: [&str; 19] = [
    "template",
    "identity",
    "disks",
    "node",
    "storage",
    "pool",
    "disk",
    "disk-size",
    "cpu",
    "bridge",
    "vlan",
    "mac",
    "addresses",
    "gateway",
    "dns",
    "search-domain",
    "ci-user",
    "ssh-keys",
    "password",
];

/// The parts of `from` that were read without a fault.
pub(super) struct OriginDraft {
    template: Option<(Vmid, Span)>,
    identity: Option<(MarksDraft, Span)>,
    parameters: Vec<OriginParameter>,
    span: Span,
}

/// A parameter of the clone, as text.
struct OriginParameter {
    name: &'static str,
    text: String,
    span: Span,
}

/// What is declared of the guest itself.
pub(super) struct NewGuest<'g> {
    pub(super) vmid: Vmid,
    pub(super) kind: GuestKind,
    pub(super) name: Option<&'g GuestName>,
    pub(super) settings: &'g [DesiredSetting],
}

pub(super) fn read_origin<'t, S: EventSource<'t>>(reader: &mut DocumentReader<'t, S>, form: ValueForm) -> Result<Option<OriginDraft>, End> {
    let (mut template, mut identity, mut parameters) = (None, None, Vec::new());
    let seen = reader.read_fields("`from`", &ORIGIN_KEYS, |reader, key, span| {
        match key {
            0 => template = read_vmid(reader, "`template`")?,
            1 => identity = birth_marks::read_marks(reader)?.map(|marks| (marks, span)),
            _ => {
                let Some(name) = ORIGIN_KEYS.get(key).copied() else { return Ok(()) };
                // The value of a password may be the password itself: a fault points at its key.
                let place = |value: Span| if name == "password" { span } else { value };
                parameters.extend(read_parameter(reader, name, form)?.map(|(text, value)| OriginParameter {
                    name,
                    text,
                    span: place(value),
                }));
            }
        }
        Ok(())
    })?;
    let Some(seen) = seen else { return Ok(None) };
    reader.require_keys(&seen, "`from`", &ORIGIN_KEYS, &[0])?;
    Ok(Some(OriginDraft { template, identity, parameters, span: seen.span }))
}

/// The value of a parameter. People may write several addresses or keys as a list.
fn read_parameter<'t, S: EventSource<'t>>(
    reader: &mut DocumentReader<'t, S>,
    name: &'static str,
    form: ValueForm,
) -> Result<Option<(String, Span)>, End> {
    let what = format!("`{name}`");
    let separator = match name {
        "ssh-keys" => Some("\n"),
        "addresses" | "dns" | "gateway" => Some(","),
        "vlan" if form == ValueForm::Declared => {
            return Ok(reader.read_integer(&what, 1, 4094)?.map(|(number, span)| (number.to_string(), span)));
        }
        _ => None,
    };
    let Some(separator) = separator.filter(|_| form == ValueForm::Declared) else { return read_plain_text(reader, &what) };
    if reader.peek_kind()? != ValueKind::List {
        return read_plain_text(reader, &what);
    }
    let mut items: Option<Vec<String>> = Some(Vec::new());
    let span = reader.read_items(&what, |reader| {
        let item = read_plain_text(reader, &format!("an item of {what}"))?;
        items = items.take().zip(item).map(|(mut items, (text, _))| {
            items.push(text);
            items
        });
        Ok(())
    })?;
    Ok(span.zip(items).map(|(span, items)| (items.join(separator), span)))
}

fn read_plain_text<'t, S: EventSource<'t>>(reader: &mut DocumentReader<'t, S>, what: &str) -> Result<Option<(String, Span)>, End> {
    Ok(reader.read_text(what)?.map(|(text, span)| (text.into_owned(), span)))
}

/// Checks what can only be checked once the whole guest was read.
pub(super) fn finish_origin<'t, S: EventSource<'t>>(
    reader: &mut DocumentReader<'t, S>,
    draft: OriginDraft,
    new: &NewGuest<'_>,
) -> Result<Option<GuestOrigin>, End> {
    let identity = finish_identity(reader, draft.identity, new.kind)?;
    let Some(name) = new.name else {
        let fault = Diagnostic::new(draft.span, "a guest with `from` lacks the key `name`");
        return reader.report_none(fault.with_help("add the name that it gets"));
    };
    let Some((template, template_span)) = draft.template else { return Ok(None) };
    if template == new.vmid {
        return reader.report_none(Diagnostic::new(template_span, format!("guest {template} cannot be made from itself")));
    }
    let newid = new.vmid.to_string();
    let own = [("newid", newid.as_str()), ("name", name.as_str())];
    let parameters: Vec<(&str, &str)> = own.into_iter().chain(draft.parameters.iter().map(|own| (own.name, own.text.as_str()))).collect();
    let target = ActionTarget { kind: new.kind, vmid: template };
    match intent::parse_clone(target, &parameters, new.settings.into()) {
        Ok(clone) => {
            let CloneRequest {
                disks, node, storage, pool, provisioning: Provisioning { attributes, password, .. }, disk, disk_size, ..
            } = clone;
            Ok(Some(GuestOrigin { template, identity, disks, node, storage, pool, attributes, password, disk, disk_size }))
        }
        Err(faults) => {
            for fault in faults {
                let at = draft.parameters.iter().find(|own| fault.parameter.as_deref() == Some(own.name));
                reader.report(describe_fault(fault, at.map_or(draft.span, |own| own.span)))?;
            }
            Ok(None)
        }
    }
}

/// The fault of a parameter, in the words of desired.yaml.
fn describe_fault(fault: ParameterFault, span: Span) -> Diagnostic {
    let message = match fault.message.strip_prefix("parameter `") {
        Some(rest) => format!("`from.{rest}"),
        None => fault.message,
    };
    let help = fault.help.map(|help| help.replace("disk-size=SIZE", "disk-size: SIZE"));
    Diagnostic { help, ..Diagnostic::new(span, message) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::desired::{self, Desired};
    use crate::document::Notation;

    fn declare(guest: &str, from: &str) -> String {
        format!("version: 1\nenvironment: lab\nguests:\n  - {{ vmid: 120, {guest}, from: {{ {from} }} }}\n")
    }

    const GUEST: &str = "kind: qemu, name: web-7, state: running, config: { cores: 4 }";

    fn parse(from: &str) -> Desired {
        let text = declare(GUEST, from);
        desired::parse(text.as_bytes(), Notation::Yaml).unwrap_or_else(|faults| panic!("{text}\n{faults:#?}"))
    }

    /// The messages of all faults, with their help.
    fn faults(guest: &str, from: &str) -> Vec<(String, Option<String>)> {
        let faults = desired::parse(declare(guest, from).as_bytes(), Notation::Yaml).expect_err(from);
        faults.list().iter().map(|fault| (fault.message.clone(), fault.help.clone())).collect()
    }

    #[track_caller]
    fn check_fault(from: &str, expected: &str) {
        let found = faults(GUEST, from);
        assert!(found.iter().any(|(message, _)| message.contains(expected)), "{from}: {found:?}");
    }

    const FULL: &str = "template: 900, identity: { uuid: 1f0c, ctime: 5 }, disks: full, node: pve2, storage: tank, pool: web, bridge: vmbr0, \
        vlan: 30, mac: 'BC:24:11:00:00:07', addresses: [10.0.0.7/24, dhcp6], gateway: 10.0.0.1, dns: [10.0.0.2, 10.0.0.3], \
        search-domain: example.org, ci-user: admin, password: 'env:WEB_PASSWORD', disk: scsi0, disk-size: 16GiB, cpu: host";

    #[test]
    fn reads_everything_that_the_clone_action_takes() {
        let desired = parse(FULL);
        let guest = desired.guests().first().expect("a guest");
        let clone = guest.clone_request().expect("it has `from`");
        let texts: Vec<(&str, String)> = intent::origin_texts(&clone).collect();
        assert_eq!(texts.len(), ORIGIN_KEYS.len() - 3, "all but the template, its marks and the keys: {texts:?}");
        assert!(clone.start && clone.name.as_str() == "web-7" && clone.provisioning.fields.len() == 1);
        assert_eq!(desired.templates().map(Vmid::get).collect::<Vec<_>>(), [900]);
    }

    #[test]
    fn canonical_form_reads_back_and_is_sorted() {
        for from in [
            FULL,
            "template: 900",
            "template: 900, ssh-keys: ['ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ1Yv1y0b1kJ6l0oTq2p5bqg8m3f0yX9b2v7c4d5e6f7 ann']",
        ] {
            let desired = parse(from);
            let bytes = serde_json::to_vec(&desired).expect("memory takes it");
            let again = desired::parse_normal(&bytes).unwrap_or_else(|faults| panic!("{faults:#?}\n{}", String::from_utf8_lossy(&bytes)));
            assert_eq!(again, desired);
            let value: serde_json::Value = serde_json::from_slice(&bytes).expect("JSON");
            assert_eq!(serde_json_canonicalizer::to_vec(&value).expect("canonical"), bytes);
        }
    }

    #[test]
    fn lists_and_texts_mean_the_same() {
        for (list, text) in [
            ("addresses: [10.0.0.7/24, dhcp6]", "addresses: '10.0.0.7/24,dhcp6'"),
            ("dns: [10.0.0.2, 10.0.0.3]", "dns: '10.0.0.2,10.0.0.3'"),
            ("dns: [10.0.0.2]", "dns: 10.0.0.2"),
        ] {
            assert_eq!(parse(&format!("template: 900, {list}")), parse(&format!("template: 900, {text}")));
        }
    }

    #[test]
    fn refuses_what_the_clone_action_refuses_at_the_place_of_the_key() {
        check_fault("bridge: vmbr0", "lacks the key `template`");
        check_fault("template: 120", "cannot be made from itself");
        check_fault("template: 900, bridgee: vmbr0", "unknown key `bridgee`");
        check_fault("template: 900, name: web-8", "unknown key `name`");
        check_fault("template: 900, vlan: 5000", "`vlan`");
        check_fault("template: 900, vlan: '30'", "`vlan`");
        check_fault("template: 900, identity: {}", "`identity` pins nothing");
        check_fault("template: 900, identity: { rootfs: a }", "rootfs");
        check_fault("template: 900, disk: scsi0", "`from.disk` is given without a size");
        check_fault("template: 900, disk-size: 16GB", "`from.disk-size` is `16GB`");
        check_fault("template: 900, disk-size: 16", "`disk-size` must be text");
        check_fault("template: 900, gateway: 10.0.0.1", "`from.gateway` has 10.0.0.1");
        check_fault("template: 900, disks: linked, storage: tank", "`from.storage` does not fit");
        let unnamed = faults("kind: qemu, identity: { uuid: a }", "template: 900");
        assert!(unnamed.iter().any(|(message, _)| message.contains("with `from` lacks the key `name`")), "{unnamed:?}");
        let container = faults("kind: lxc, name: dns", "template: 900, cpu: host, password: 'env:A'");
        assert_eq!(container.len(), 2, "{container:?}");
    }

    #[test]
    fn no_message_repeats_a_password() {
        for from in ["template: 900, password: hunter2", "template: 900, password: [hunter2]", "template: 900, password: { hunter2: 1 }"] {
            let found = faults(GUEST, from);
            assert!(!format!("{found:?}").contains("hunter2"), "{found:?}");
        }
    }
}
