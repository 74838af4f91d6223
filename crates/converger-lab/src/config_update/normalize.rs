//! Normalizes config values that Proxmox does not store as sent: network cards get addresses, tags
//! are sorted, lists are joined again.
//!
//! Most keys are stored as sent and do not appear here.

use crate::flavour::Flavour;
use crate::guest::{LabGuestKind, drive};
use crate::options::DatacenterOptions;
use crate::random::SeededRandom;
use crate::schema::property::{self, PropertyValues};
use crate::schema::{config_key_schema, split_list};

/// A network card of a virtual machine: the model comes first with the MAC address as its value. A card without an address gets a new one
/// on each write.
pub(crate) fn normalize_card(key: &str, value: &str, flavour: Flavour, random: &mut SeededRandom) -> String {
    let Some(mut properties) = parse_card(LabGuestKind::Qemu, key, value, flavour) else { return value.to_owned() };
    let model = properties.remove("model").unwrap_or_default();
    let address = properties.remove("macaddr").unwrap_or_else(|| random.new_mac(flavour.mac_prefix()));
    let rest = properties.iter().map(|(key, text)| format!(",{key}={text}"));
    std::iter::once(format!("{model}={address}")).chain(rest).collect()
}

/// A network card of a container: the name comes first; type and MAC address are added.
pub(crate) fn normalize_container_card(key: &str, value: &str, flavour: Flavour, random: &mut SeededRandom) -> String {
    let Some(mut properties) = parse_card(LabGuestKind::Lxc, key, value, flavour) else { return value.to_owned() };
    properties.entry("type".to_owned()).or_insert_with(|| "veth".to_owned());
    properties.entry("hwaddr".to_owned()).or_insert_with(|| random.new_mac(flavour.mac_prefix()));
    let name = properties.remove("name").unwrap_or_default();
    let rest = properties.iter().map(|(key, text)| format!(",{key}={text}"));
    std::iter::once(format!("name={name}")).chain(rest).collect()
}

fn parse_card(kind: LabGuestKind, key: &str, value: &str, flavour: Flavour) -> Option<PropertyValues> {
    let shape = config_key_schema(kind.config_template(), key, flavour)?;
    property::parse(&shape.properties, value, key).ok()
}

/// Tags as the datacenter stores them, in lower case unless it is configured to keep case. An empty list reads back as one blank.
pub(crate) fn normalize_tags(options: &DatacenterOptions, value: &str) -> String {
    or_blank(&options.stored_tags(value))
}

/// A value that is empty in the file reads back as one blank.
pub(super) fn or_blank(value: &str) -> String {
    let trimmed = value.trim();
    if trimmed.is_empty() { " ".to_owned() } else { trimmed.to_owned() }
}

/// A list of addresses or domains, joined with single blanks.
pub(super) fn join_with_spaces(value: &str) -> String {
    split_list(value).collect::<Vec<_>>().join(" ")
}

/// CPU units outside the bounds are clamped without an error.
pub(super) fn clamp_cpu_units(value: &str) -> String {
    value.parse::<u64>().map_or_else(|_| value.to_owned(), |units| units.clamp(1, 10_000).to_string())
}

/// A boot order in its canonical form.
pub(super) fn normalize_boot_order(value: &str) -> String {
    let devices = drive::parse_boot_order(value);
    if devices.is_empty() { value.to_owned() } else { format!("order={}", devices.join(";")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_sorted_lowered_and_deduplicated() {
        let mut options = DatacenterOptions::default();
        assert_eq!(normalize_tags(&options, "Zed, alpha;beta Alpha"), "alpha;beta;zed");
        assert_eq!(normalize_tags(&options, ""), " ");
        options.set("tag-style", "case-sensitive=1").expect("an option");
        assert_eq!(normalize_tags(&options, "Zed, alpha;beta Alpha"), "Alpha;Zed;alpha;beta");
    }

    #[test]
    fn cards_without_an_address_get_a_new_one_on_each_write() {
        let mut random = SeededRandom::new(1);
        let mut write = || normalize_card("net0", "virtio,bridge=vmbr0", Flavour::V9, &mut random);
        let (first, second) = (write(), write());
        assert!(first.starts_with("virtio=BC:24:11:") && first.ends_with(",bridge=vmbr0"), "{first}");
        assert_ne!(first, second);
    }

    #[test]
    fn a_given_address_keeps_its_case() {
        let printed =
            normalize_card("net0", "e1000=aa:bb:cc:dd:ee:ff,tag=5,bridge=vmbr0,firewall=0", Flavour::V9, &mut SeededRandom::new(1));
        assert_eq!(printed, "e1000=aa:bb:cc:dd:ee:ff,bridge=vmbr0,firewall=0,tag=5");
    }

    #[test]
    fn container_cards_start_with_their_name() {
        let printed = normalize_container_card(
            "net0",
            "ip=dhcp,hwaddr=BC:24:11:00:00:01,bridge=vmbr0,name=eth0",
            Flavour::V9,
            &mut SeededRandom::new(1),
        );
        assert_eq!(printed, "name=eth0,bridge=vmbr0,hwaddr=BC:24:11:00:00:01,ip=dhcp,type=veth");
    }
}
