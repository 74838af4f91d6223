//! Attributes of a new guest as Proxmox writes them: the first network device, cloud-init, DNS and the type of the CPU.
//!
//! Reading keeps only what is understood exactly. Writing changes the parts of `net0` that were asked for and keeps all others, such as the
//! model of the device, its MAC address and its firewall flag.
//!
//! Must not decide whether anything may be written.

use std::net::IpAddr;

use converger_core::apply::LiveDayOne;
use converger_core::guest::{
    AddressSetting, Addresses, BridgeName, CloudInitUser, CpuType, DayOne, DomainName, GuestKind, IpList, MacAddress, SshPublicKey,
    VlanTag, parse_ssh_keys,
};

use super::property::PropertyString;
use super::request::percent_encode;

/// The attributes in a config; `get` returns the text of a key.
pub(super) fn parse_day_one<'v>(kind: GuestKind, get: impl Fn(&str) -> Option<&'v str>) -> LiveDayOne {
    let net = PropertyString::parse(get("net0").unwrap_or(""), "model");
    let dns = get("nameserver").and_then(|text| IpList::new(&text.split([' ', ',', ';']).collect::<Vec<_>>().join(",")));
    let attributes = DayOne {
        bridge: net.get("bridge").and_then(BridgeName::new),
        vlan: net.get("tag").and_then(|tag| tag.parse().ok()).and_then(VlanTag::new),
        dns,
        search_domain: get("searchdomain").and_then(DomainName::new),
        ..DayOne::default()
    };
    match kind {
        GuestKind::Qemu => {
            let ip = PropertyString::parse(get("ipconfig0").unwrap_or(""), "ip");
            let cpu = PropertyString::parse(get("cpu").unwrap_or(""), "cputype");
            let attributes = DayOne {
                addresses: parse_addresses(&ip),
                gateway: parse_gateways(&ip),
                cpu: cpu.get("cputype").filter(|_| !cpu.has_others(&["cputype"])).and_then(CpuType::new),
                mac: net.iter().find_map(|(key, value)| MacAddress::new(value).filter(|_| key != "bridge")),
                ssh_keys: get("sshkeys").and_then(percent_decode).and_then(|text| parse_ssh_keys(&text)),
                user: get("ciuser").and_then(CloudInitUser::new),
                ..attributes
            };
            LiveDayOne { attributes, has_password: get("cipassword").is_some_and(|text| !text.trim().is_empty()) }
        }
        GuestKind::Lxc => {
            let mac = net.get("hwaddr").and_then(MacAddress::new);
            let attributes = DayOne { addresses: parse_addresses(&net), gateway: parse_gateways(&net), mac, ..attributes };
            LiveDayOne { attributes, has_password: false }
        }
    }
}

/// The addresses in `ip` and `ip6`; `None` if one of them is not understood.
fn parse_addresses(properties: &PropertyString<'_>) -> Option<Addresses> {
    let of = |key: &str, dhcp: &str| match properties.get(key) {
        None | Some("manual") => Some(None),
        Some("dhcp") => Addresses::new(dhcp).map(Some),
        Some(text) => Addresses::new(text).map(Some),
    };
    let settings: Vec<AddressSetting> = [of("ip", "dhcp")?, of("ip6", "dhcp6")?].iter().flatten().flat_map(Addresses::iter).collect();
    Addresses::from_settings(settings)
}

fn parse_gateways(properties: &PropertyString<'_>) -> Option<IpList> {
    let parse = |key: &str| properties.get(key).map(|text| text.parse::<IpAddr>().ok());
    let given: Option<Vec<IpAddr>> = [parse("gw"), parse("gw6")].into_iter().flatten().collect();
    given.and_then(IpList::from_addresses)
}

/// Decodes percent-encoded text; `None` if it is not UTF-8 or has a broken sequence.
fn percent_decode(text: &str) -> Option<String> {
    let (mut bytes, mut rest) = (Vec::with_capacity(text.len()), text.bytes());
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let digit = |byte: Option<u8>| char::from(byte?).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
            bytes.push(digit(rest.next())? << 4 | digit(rest.next())?);
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).ok()
}

/// The keys to write, with their texts; `None` if there is no network device to change and no bridge for a new one.
pub(super) fn encode_day_one(kind: GuestKind, wanted: &DayOne, net0: Option<&str>) -> Option<Vec<(&'static str, String)>> {
    let mut written = Vec::new();
    let changes_net0 = wanted.has_network() || (kind == GuestKind::Lxc && wanted.addresses.is_some());
    if changes_net0 {
        written.push(("net0", encode_net0(kind, wanted, net0)?));
    }
    if let Some(addresses) = wanted.addresses.as_ref().filter(|_| kind == GuestKind::Qemu) {
        let parts: Vec<String> = ip_parts(addresses, wanted.gateway.as_ref()).iter().map(|(key, text)| format!("{key}={text}")).collect();
        written.push(("ipconfig0", parts.join(",")));
    }
    let dns = wanted.dns.as_ref().map(|dns| dns.iter().map(|address| address.to_string()).collect::<Vec<_>>().join(" "));
    // Proxmox stores the text as it was encoded, and the form encodes it once more.
    let keys = wanted.ssh_keys.as_ref().map(|keys| {
        let mut text = String::new();
        percent_encode(&keys.iter().map(SshPublicKey::as_str).collect::<Vec<_>>().join("\n"), &mut text);
        text
    });
    let texts = [
        ("cpu", wanted.cpu.as_ref().map(ToString::to_string)),
        ("ciuser", wanted.user.as_ref().map(ToString::to_string)),
        ("nameserver", dns),
        ("searchdomain", wanted.search_domain.as_ref().map(ToString::to_string)),
        ("sshkeys", keys),
    ];
    written.extend(texts.into_iter().filter_map(|(key, text)| Some((key, text?))));
    Some(written)
}

/// Addresses and gateways as `ip`, `gw`, `ip6` and `gw6`.
fn ip_parts(addresses: &Addresses, gateways: Option<&IpList>) -> Vec<(&'static str, String)> {
    let mut parts = Vec::new();
    for setting in addresses.iter() {
        let (key, gateway_key) = if setting.is_v6() { ("ip6", "gw6") } else { ("ip", "gw") };
        let text = match setting {
            AddressSetting::Dhcp4 | AddressSetting::Dhcp6 => "dhcp".to_owned(),
            other => other.to_string(),
        };
        parts.push((key, text));
        let gateway = gateways.and_then(|gateways| gateways.of_family(setting.is_v6()));
        parts.extend(gateway.map(|gateway| (gateway_key, gateway.to_string())));
    }
    parts
}

fn encode_net0(kind: GuestKind, wanted: &DayOne, net0: Option<&str>) -> Option<String> {
    let mut parts: Vec<(String, String)> = match (net0, kind) {
        (Some(text), _) => PropertyString::parse(text, "model").iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect(),
        (None, _) if wanted.bridge.is_none() => return None,
        (None, GuestKind::Qemu) => vec![("model".to_owned(), "virtio".to_owned())],
        (None, GuestKind::Lxc) => vec![("name".to_owned(), "eth0".to_owned()), ("type".to_owned(), "veth".to_owned())],
    };
    let mut set = |key: &str, text: String| match parts.iter_mut().find(|(own, _)| own == key) {
        Some((_, value)) => *value = text,
        None => parts.push((key.to_owned(), text)),
    };
    if let Some(bridge) = &wanted.bridge {
        set("bridge", bridge.to_string());
    }
    if let Some(vlan) = wanted.vlan {
        set("tag", vlan.to_string());
    }
    if let Some(addresses) = wanted.addresses.as_ref().filter(|_| kind == GuestKind::Lxc) {
        ip_parts(addresses, wanted.gateway.as_ref()).into_iter().for_each(|(key, text)| set(key, text));
        // A gateway of the source does not belong to the new address.
        let given = ip_parts(addresses, wanted.gateway.as_ref());
        let is_left =
            |address: &str, gateway: &str| given.iter().any(|(key, _)| *key == address) && given.iter().all(|(key, _)| *key != gateway);
        parts.retain(|(key, _)| !((key == "gw" && is_left("ip", "gw")) || (key == "gw6" && is_left("ip6", "gw6"))));
    }
    if let Some(mac) = &wanted.mac {
        set_mac(kind, &mut parts, mac);
    }
    Some(parts.into_iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(","))
}

/// A virtual machine has the address as the value of its model (`virtio=BC:24:11:..`), or beside it; a container in `hwaddr`.
fn set_mac(kind: GuestKind, parts: &mut Vec<(String, String)>, mac: &MacAddress) {
    let key = match kind {
        GuestKind::Lxc => "hwaddr",
        GuestKind::Qemu => "macaddr",
    };
    let is_model = |(own, value): &&mut (String, String)| kind == GuestKind::Qemu && own != "bridge" && MacAddress::new(value).is_some();
    let found = match parts.iter().any(|(own, _)| own == key) {
        true => parts.iter_mut().find(|(own, _)| own == key),
        false => parts.iter_mut().find(is_model),
    };
    match found {
        Some((_, value)) => *value = mac.to_string(),
        None => parts.push((key.to_owned(), mac.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ1Yv1y0b1kJ6l0oTq2p5bqg8m3f0yX9b2v7c4d5e6f7 me@host";
    const QEMU_NET: &str = "virtio=BC:24:11:AA:00:01,bridge=vmbr0,firewall=1,tag=10";
    const LXC_NET: &str = "name=eth0,bridge=vmbr0,gw=10.1.0.1,hwaddr=BC:24:11:AA:00:02,ip=10.1.0.2/24,type=veth";

    fn parse_attributes(pairs: &[(&str, &str)]) -> DayOne {
        pairs.iter().fold(DayOne::default(), |all, (name, text)| all.with(name, text).unwrap_or_else(|| panic!("{name}={text}")))
    }

    /// Writes the attributes and reads them back.
    fn check_round_trip(kind: GuestKind, net0: Option<&str>, pairs: &[(&str, &str)]) -> Vec<(&'static str, String)> {
        let wanted = parse_attributes(pairs);
        let written = encode_day_one(kind, &wanted, net0).expect("writable");
        let found = parse_day_one(kind, |key| {
            written.iter().find(|(own, _)| *own == key).map(|(_, text)| text.as_str()).or(net0.filter(|_| key == "net0"))
        });
        let found = found.attributes.entries();
        for entry in wanted.entries() {
            assert!(found.contains(&entry), "{entry:?} in {written:?}");
        }
        written
    }

    #[test]
    fn what_is_written_is_read_back() {
        let both = [("addresses", "10.0.0.7/24,2001:db8::7/64"), ("gateway", "10.0.0.1,2001:db8::1"), ("dns", "10.0.0.53,10.0.0.54")];
        let cloud =
            [("ci-user", "debian"), ("ssh-keys", KEY), ("cpu", "host"), ("search-domain", "example.org"), ("mac", "BC:24:11:00:00:07")];
        let net = [("bridge", "vmbr1"), ("vlan", "30")];
        check_round_trip(GuestKind::Qemu, Some(QEMU_NET), &[&both[..], &cloud, &net].concat());
        check_round_trip(GuestKind::Qemu, None, &net);
        check_round_trip(GuestKind::Lxc, Some(LXC_NET), &[&both[..], &net, &[("mac", "BC:24:11:00:00:07")]].concat());
        check_round_trip(GuestKind::Lxc, None, &[("bridge", "vmbr1"), ("addresses", "dhcp,dhcp6")]);
    }

    #[test]
    fn other_parts_of_the_network_device_stay() {
        let net = |kind, net0, pairs: &[(&str, &str)]| check_round_trip(kind, Some(net0), pairs).remove(0).1;
        assert_eq!(net(GuestKind::Qemu, QEMU_NET, &[("bridge", "vmbr1")]), "virtio=BC:24:11:AA:00:01,bridge=vmbr1,firewall=1,tag=10");
        assert_eq!(
            net(GuestKind::Qemu, QEMU_NET, &[("mac", "BC:24:11:00:00:07")]),
            "virtio=BC:24:11:00:00:07,bridge=vmbr0,firewall=1,tag=10"
        );
        assert_eq!(
            net(GuestKind::Lxc, LXC_NET, &[("addresses", "dhcp")]),
            "name=eth0,bridge=vmbr0,hwaddr=BC:24:11:AA:00:02,ip=dhcp,type=veth",
            "the gateway of the source belongs to its address"
        );
        assert_eq!(
            encode_day_one(GuestKind::Qemu, &parse_attributes(&[("vlan", "30")]), None),
            None,
            "there is no device and no bridge for one"
        );
    }
}
