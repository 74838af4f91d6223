//! Clones with a first configuration: one request whose plan has several steps, all but the first for the new guest.

use std::collections::BTreeMap;

use converger_lab::{GuestSpec, LabGuestKind, ScalarSpec, WorldSpec};

use super::super::setup::WantedGuest;
use super::{
    LOCAL_STORAGE, NEW_ID, SimulatedRequest, TEMPLATE_ID, WantedRequest, clone_parameters, complete_guest, disk_key, guest_id, guest_kind,
    new_wanted_request, parse_request, request_key,
};
use converger_core::intent::ActionTarget;

/// The bridge of the template, which no node has, and the one that a new guest gets: it starts only if it is on this one.
const OLD_BRIDGE: &str = "vmbr9";
pub(super) const NEW_BRIDGE: &str = "vmbr0";
/// The size that the disk of a new guest gets, as requested and as sent.
const DISK_SIZE: (&str, &str) = ("10GiB", "10G");

/// What the new guest gets, from a number: `cores` or `memory`, a bridge if its source has a network device, a larger disk, and mostly a
/// start.
struct FirstConfig {
    /// The field with its requested text and its raw text.
    field: (&'static str, &'static str, &'static str),
    bridge: Option<&'static str>,
    starts: bool,
}

impl FirstConfig {
    fn of_variant(source: &GuestSpec, variant: u64) -> Self {
        let field = if variant.is_multiple_of(2) { ("memory", "768MiB", "768") } else { ("cores", "3", "3") };
        let bridge = source.config.contains_key("net0").then_some(NEW_BRIDGE);
        Self { field, bridge, starts: !variant.is_multiple_of(4) }
    }

    fn parameters(&self) -> Vec<(&'static str, String)> {
        let (field, text, _) = self.field;
        let bridge = self.bridge.map(|bridge| ("bridge", bridge.to_owned()));
        let start = self.starts.then(|| ("start", "true".to_owned()));
        [(field, text.to_owned()), ("disk-size", DISK_SIZE.0.to_owned())].into_iter().chain(bridge).chain(start).collect()
    }

    /// What the config of the new guest must have, in raw texts. Of the network device it is one part.
    fn raw(&self) -> BTreeMap<&'static str, Option<String>> {
        let (field, _, raw) = self.field;
        let bridge = self.bridge.map(|bridge| ("net0", Some(format!("bridge={bridge}"))));
        [(field, Some(raw.to_owned()))].into_iter().chain(bridge).collect()
    }

    /// The steps after the clone, which are sent to the new guest.
    fn later_steps(&self, source: &GuestSpec) -> Vec<WantedRequest> {
        let of_new = |verb, parameters| WantedRequest { vmid: NEW_ID, verb, parameters, ..WantedRequest::default() };
        let disk = disk_key(source.kind == LabGuestKind::Qemu);
        let (field, _, raw) = self.field;
        let grow = of_new("resize", vec![("disk", disk.to_owned()), ("size", DISK_SIZE.1.to_owned())]);
        let start = self.starts.then(|| of_new("start", Vec::new()));
        [of_new("config", vec![(field, raw.to_owned())]), grow].into_iter().chain(start).collect()
    }
}

/// The request for a new guest with a first configuration.
pub(super) fn provision_request(source: &GuestSpec, is_full: bool, variant: u64, number: usize) -> SimulatedRequest {
    let first = FirstConfig::of_variant(source, variant);
    let (mut parameters, sent) = clone_parameters(source, is_full);
    parameters.extend(first.parameters());
    let target = ActionTarget { kind: guest_kind(source), vmid: guest_id(source.vmid) };
    let guest = WantedGuest { name: format!("web-{NEW_ID}"), config: first.raw(), ..WantedGuest::default() };
    let wanted = WantedRequest { parameters: sent, guest, later: first.later_steps(source), ..new_wanted_request(source, "clone") };
    SimulatedRequest { key: request_key("vm.clone", number), intent: parse_request("vm.clone", target, &parameters), wanted }
}

/// The template with a disk and a network device, which is added to the world.
pub(super) fn add_template(spec: &mut WorldSpec) -> &GuestSpec {
    let node = spec.nodes.keys().next().cloned().unwrap_or_default();
    let at = spec.guests.iter().position(|guest| guest.vmid == TEMPLATE_ID).unwrap_or_else(|| {
        let mut guest = GuestSpec::new(TEMPLATE_ID, LabGuestKind::Qemu, &node);
        (guest.name, guest.template) = (Some("debian".to_owned()), true);
        let card = format!("virtio=BC:24:11:00:09:00,bridge={OLD_BRIDGE}");
        guest.config.insert("net0".to_owned(), ScalarSpec::Text(card));
        complete_guest(&mut guest, LOCAL_STORAGE);
        spec.guests.push(guest);
        spec.guests.len() - 1
    });
    &spec.guests[at]
}
