//! Attributes that a guest gets when it is made and that are not managed later: network, cloud-init and CPU type. Each value is validated
//! once.
//!
//! They are written once, verified once and not compared again. The text of a value is canonical: parsing it gives the same value.
//!
//! Must not depend on what is declared or observed, or on how a platform writes the values.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Defines a newtype over text that differs only in its check and documentation.
macro_rules! checked_text {
    ($(#[$doc:meta])* $name:ident, $parse:expr) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub struct $name(Box<str>);

        impl $name {
            /// Parses a well-formed value.
            #[must_use]
            pub fn new(text: &str) -> Option<Self> {
                let parse: fn(&str) -> Option<Box<str>> = $parse;
                parse(text).map(Self)
            }

            /// The value as text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str(&self.0)
            }
        }

        text_serde!($name);
    };
}

/// Stores a value as its text.
macro_rules! text_serde {
    ($name:ident) => {
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = Box::<str>::deserialize(deserializer)?;
                let parsed = Self::new(&text).filter(|value| *value.to_string() == *text);
                parsed.ok_or_else(|| serde::de::Error::custom(concat!("not a canonical ", stringify!($name))))
            }
        }
    };
}

checked_text!(
    /// The hardware address of a network device, in upper case: not a group address.
    MacAddress,
    parse_mac
);
checked_text!(
    /// The name of a network bridge or virtual network: a letter, then letters, digits, `-`, `_` and `.`, at most 15 in total.
    BridgeName,
    |text| {
        let fits = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'));
        (is_worded(text, 15) && text.len() >= 2 && fits).then(|| text.into())
    }
);
checked_text!(
    /// The type of a virtual CPU, such as `host` or `x86-64-v2-AES`, without flags.
    CpuType,
    |text| {
        let fits = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'));
        (is_worded(text, 64) && fits).then(|| text.into())
    }
);
checked_text!(
    /// The name of the user that cloud-init makes.
    CloudInitUser,
    |text| {
        let starts = text.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_');
        let fits = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'));
        (starts && fits && text.len() <= 32).then(|| text.into())
    }
);
checked_text!(
    /// A domain name: labels of letters, digits and `-`, joined by dots.
    DomainName,
    |text| {
        let is_inner = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        let is_label = |label: &str| {
            (1..=63).contains(&label.len()) && label.bytes().all(is_inner) && !label.starts_with('-') && !label.ends_with('-')
        };
        (text.len() <= 253 && text.split('.').all(is_label)).then(|| text.into())
    }
);
checked_text!(
    /// One public SSH key: its type, its body and perhaps a comment, as in `authorized_keys` without options.
    SshPublicKey,
    parse_ssh_key
);

fn is_worded(text: &str, chars_max: usize) -> bool {
    text.starts_with(|first: char| first.is_ascii_alphabetic()) && text.len() <= chars_max
}

fn parse_mac(text: &str) -> Option<Box<str>> {
    let is_byte = |part: &str| part.len() == 2 && part.bytes().all(|byte| byte.is_ascii_hexdigit());
    let is_group = text.get(..2).and_then(|first| u8::from_str_radix(first, 16).ok()).is_none_or(|first| first & 1 == 1);
    let fits = text.split(':').count() == 6 && text.split(':').all(is_byte) && !is_group;
    fits.then(|| text.to_ascii_uppercase().into())
}

const SSH_KEY_TYPES: [&str; 8] = [
    "ssh-ed25519",
    "ssh-rsa",
    "ssh-dss",
    "ecdsa-sha2-nistp256",
    "ecdsa-sha2-nistp384",
    "ecdsa-sha2-nistp521",
    "sk-ssh-ed25519@openssh.com",
    "sk-ecdsa-sha2-nistp256@openssh.com",
];

fn parse_ssh_key(text: &str) -> Option<Box<str>> {
    let mut words = text.split(' ');
    let (kind, body) = (words.next()?, words.next()?);
    let is_coded = body.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/' | b'='));
    // An Ed25519 key, the shortest, has 68 characters.
    let is_whole = body.len() >= 68 && body.len().is_multiple_of(4) && body.starts_with("AAAA");
    let is_plain = !text.chars().any(char::is_control) && text.trim() == text && text.len() <= 4096;
    (SSH_KEY_TYPES.contains(&kind) && is_coded && is_whole && is_plain).then(|| text.into())
}

/// The tag of a virtual network, from 1 to 4094.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct VlanTag(u16);

impl VlanTag {
    /// A tag in range.
    #[must_use]
    pub fn new(number: u64) -> Option<Self> {
        (1..=4094).contains(&number).then(|| u16::try_from(number).ok().map(Self))?
    }

    /// The number.
    #[must_use]
    pub fn get(self) -> u16 {
        self.0
    }
}

impl fmt::Display for VlanTag {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

impl<'de> Deserialize<'de> for VlanTag {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::new(u64::deserialize(deserializer)?).ok_or_else(|| serde::de::Error::custom("not a VLAN tag"))
    }
}

/// How the first network device gets an address of one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AddressSetting {
    /// IPv4 by DHCP: `dhcp`.
    Dhcp4,
    /// A fixed IPv4 address with the length of its prefix.
    Static4(Ipv4Addr, u8),
    /// IPv6 by DHCP: `dhcp6`.
    Dhcp6,
    /// IPv6 by router advertisements: `auto`.
    Auto6,
    /// A fixed IPv6 address with the length of its prefix.
    Static6(Ipv6Addr, u8),
}

impl AddressSetting {
    fn new(text: &str) -> Option<Self> {
        match text {
            "dhcp" => return Some(Self::Dhcp4),
            "dhcp6" => return Some(Self::Dhcp6),
            "auto" => return Some(Self::Auto6),
            _ => {}
        }
        let (address, prefix) = text.split_once('/')?;
        let bits: u8 = prefix.parse().ok().filter(|bits: &u8| bits.to_string() == prefix)?;
        match address.parse().ok()? {
            IpAddr::V4(own) => (1..=32).contains(&bits).then_some(Self::Static4(own, bits)),
            IpAddr::V6(own) => (1..=128).contains(&bits).then_some(Self::Static6(own, bits)),
        }
    }

    /// Whether it is for IPv6.
    #[must_use]
    pub fn is_v6(self) -> bool {
        matches!(self, Self::Dhcp6 | Self::Auto6 | Self::Static6(..))
    }

    fn is_fixed(self) -> bool {
        matches!(self, Self::Static4(..) | Self::Static6(..))
    }
}

impl fmt::Display for AddressSetting {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dhcp4 => formatter.write_str("dhcp"),
            Self::Static4(address, bits) => write!(formatter, "{address}/{bits}"),
            Self::Dhcp6 => formatter.write_str("dhcp6"),
            Self::Auto6 => formatter.write_str("auto"),
            Self::Static6(address, bits) => write!(formatter, "{address}/{bits}"),
        }
    }
}

/// The addresses of the first network device: at most one setting per family, IPv4 first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Addresses(Box<[AddressSetting]>);

impl Addresses {
    /// Parses settings that are separated by commas, in any order.
    #[must_use]
    pub fn new(text: &str) -> Option<Self> {
        let mut settings = text.split(',').map(|part| AddressSetting::new(part.trim())).collect::<Option<Vec<_>>>()?;
        settings.sort_by_key(|setting| setting.is_v6());
        Self::from_settings(settings)
    }

    /// Settings of different families.
    #[must_use]
    pub fn from_settings(settings: Vec<AddressSetting>) -> Option<Self> {
        let is_ordered = settings.is_sorted_by(|left, right| !left.is_v6() && right.is_v6());
        (!settings.is_empty() && is_ordered).then(|| Self(settings.into()))
    }

    /// The settings, IPv4 first.
    pub fn iter(&self) -> impl Iterator<Item = AddressSetting> {
        self.0.iter().copied()
    }

    /// Whether there is a fixed address of the family of this gateway.
    #[must_use]
    pub fn fits_gateway(&self, gateway: IpAddr) -> bool {
        self.iter().any(|setting| setting.is_fixed() && setting.is_v6() == gateway.is_ipv6())
    }
}

/// IP addresses in order: gateways, at most one per family, or DNS servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IpList(Box<[IpAddr]>);

impl IpList {
    /// The longest list.
    const LEN_MAX: usize = 8;

    /// Parses addresses that are separated by commas.
    #[must_use]
    pub fn new(text: &str) -> Option<Self> {
        Self::from_addresses(text.split(',').map(|part| part.trim().parse().ok()).collect::<Option<Vec<_>>>()?)
    }

    /// A list of some addresses, each once.
    #[must_use]
    pub fn from_addresses(addresses: Vec<IpAddr>) -> Option<Self> {
        let is_repeated = addresses.iter().enumerate().any(|(index, own)| addresses.iter().take(index).any(|other| other == own));
        ((1..=Self::LEN_MAX).contains(&addresses.len()) && !is_repeated).then(|| Self(addresses.into()))
    }

    /// The addresses.
    pub fn iter(&self) -> impl Iterator<Item = IpAddr> {
        self.0.iter().copied()
    }

    /// The first address of a family.
    #[must_use]
    pub fn of_family(&self, is_v6: bool) -> Option<IpAddr> {
        self.iter().find(|address| address.is_ipv6() == is_v6)
    }

    /// Whether there is at most one address per family, IPv4 first.
    #[must_use]
    pub fn is_one_per_family(&self) -> bool {
        self.0.is_sorted_by(|left, right| left.is_ipv4() && right.is_ipv6())
    }
}

/// Writes a list with commas.
fn write_list<T: fmt::Display>(items: &[T], formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
    let texts: Vec<String> = items.iter().map(ToString::to_string).collect();
    formatter.write_str(&texts.join(","))
}

impl fmt::Display for Addresses {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_list(&self.0, formatter)
    }
}

impl fmt::Display for IpList {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_list(&self.0, formatter)
    }
}

/// Where a secret is stored. The secret itself is read right before it is sent, by the part of the program that sends it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SecretReference {
    /// An environment variable: `env:NAME`.
    Environment(Box<str>),
    /// A file by its absolute path: `file:PATH`.
    File(Box<str>),
    /// A systemd credential: `credential:NAME`.
    Credential(Box<str>),
}

impl SecretReference {
    /// Parses a reference. Only conventional names are accepted, so that a secret itself is not mistaken for the name of one.
    #[must_use]
    pub fn new(text: &str) -> Option<Self> {
        let (kind, name) = text.split_once(':')?;
        let is_variable = |byte: u8| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_';
        let is_word = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
        let is_plain = !name.is_empty() && name.len() <= 1024 && !name.chars().any(char::is_control);
        match kind {
            "env" => (is_plain && name.bytes().all(is_variable)).then(|| Self::Environment(name.into())),
            "file" => (is_plain && name.starts_with('/')).then(|| Self::File(name.into())),
            "credential" => (is_plain && name.bytes().all(is_word) && !name.starts_with('.')).then(|| Self::Credential(name.into())),
            _ => None,
        }
    }
}

impl fmt::Display for SecretReference {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Environment(name) => write!(formatter, "env:{name}"),
            Self::File(path) => write!(formatter, "file:{path}"),
            Self::Credential(name) => write!(formatter, "credential:{name}"),
        }
    }
}

text_serde!(Addresses);
text_serde!(IpList);
text_serde!(SecretReference);

/// Attributes outside the table of managed fields; `None` is not declared, or was not found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DayOne {
    /// The addresses of the first network device.
    pub addresses: Option<Addresses>,
    /// The bridge of the first network device.
    pub bridge: Option<BridgeName>,
    /// The type of the virtual CPU.
    pub cpu: Option<CpuType>,
    /// The DNS servers.
    pub dns: Option<IpList>,
    /// The gateways of the first network device.
    pub gateway: Option<IpList>,
    /// The address of the first network device.
    pub mac: Option<MacAddress>,
    /// The domain that short host names are searched in.
    pub search_domain: Option<DomainName>,
    /// The public keys of the user that cloud-init makes.
    pub ssh_keys: Option<Box<[SshPublicKey]>>,
    /// The user that cloud-init makes.
    pub user: Option<CloudInitUser>,
    /// The virtual network of the first network device.
    pub vlan: Option<VlanTag>,
}

impl DayOne {
    /// Each attribute with its name and its text, sorted by name.
    #[must_use]
    pub fn entries(&self) -> Vec<(&'static str, String)> {
        fn entry<T: ToString>(name: &'static str, value: Option<&T>) -> Option<(&'static str, String)> {
            value.map(|value| (name, value.to_string()))
        }
        let keys = self.ssh_keys.as_ref().map(|keys| keys.iter().map(SshPublicKey::as_str).collect::<Vec<_>>().join("\n"));
        let all = [
            entry("addresses", self.addresses.as_ref()),
            entry("bridge", self.bridge.as_ref()),
            entry("ci-user", self.user.as_ref()),
            entry("cpu", self.cpu.as_ref()),
            entry("dns", self.dns.as_ref()),
            entry("gateway", self.gateway.as_ref()),
            entry("mac", self.mac.as_ref()),
            entry("search-domain", self.search_domain.as_ref()),
            entry("ssh-keys", keys.as_ref()),
            entry("vlan", self.vlan.as_ref()),
        ];
        all.into_iter().flatten().collect()
    }

    /// The attribute of this name, parsed into the others; `None` if the text is not a value of it.
    #[must_use]
    pub fn with(mut self, name: &str, text: &str) -> Option<Self> {
        match name {
            "addresses" => self.addresses = Some(Addresses::new(text)?),
            "bridge" => self.bridge = Some(BridgeName::new(text)?),
            "ci-user" => self.user = Some(CloudInitUser::new(text)?),
            "cpu" => self.cpu = Some(CpuType::new(text)?),
            "dns" => self.dns = Some(IpList::new(text)?),
            "gateway" => self.gateway = Some(IpList::new(text).filter(IpList::is_one_per_family)?),
            "mac" => self.mac = Some(MacAddress::new(text)?),
            "search-domain" => self.search_domain = Some(DomainName::new(text)?),
            "ssh-keys" => self.ssh_keys = Some(parse_ssh_keys(text)?),
            "vlan" => self.vlan = Some(text.parse().ok().and_then(VlanTag::new)?),
            _ => return None,
        }
        Some(self)
    }

    /// Whether nothing is declared.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Whether the first network device is concerned.
    #[must_use]
    pub fn has_network(&self) -> bool {
        self.bridge.is_some() || self.mac.is_some() || self.vlan.is_some()
    }
}

/// The most keys of a user.
const SSH_KEYS_MAX: usize = 64;

/// Public keys, one per line; blank lines are ignored.
#[must_use]
pub fn parse_ssh_keys(text: &str) -> Option<Box<[SshPublicKey]>> {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let keys = lines.map(SshPublicKey::new).collect::<Option<Vec<_>>>()?;
    (1..=SSH_KEYS_MAX).contains(&keys.len()).then(|| keys.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ1Yv1y0b1kJ6l0oTq2p5bqg8m3f0yX9b2v7c4d5e6f7 me@host";

    #[test]
    fn accepts_well_formed_attributes_and_keeps_their_text() {
        let good = [
            ("addresses", "10.0.0.5/24,2001:db8::5/64"),
            ("addresses", "dhcp,auto"),
            ("bridge", "vmbr0"),
            ("ci-user", "debian"),
            ("cpu", "x86-64-v2-AES"),
            ("dns", "10.0.0.1,2001:db8::1"),
            ("gateway", "10.0.0.1"),
            ("mac", "BC:24:11:00:00:01"),
            ("search-domain", "example.org"),
            ("ssh-keys", KEY),
            ("vlan", "4094"),
        ];
        for (name, text) in good {
            let parsed = DayOne::default().with(name, text).unwrap_or_else(|| panic!("{name}={text}"));
            assert_eq!(parsed.entries(), [(name, text.to_owned())]);
        }
    }

    #[test]
    fn refuses_malformed_attributes() {
        let bad = [
            ("addresses", ""),
            ("addresses", "10.0.0.5"),
            ("addresses", "10.0.0.5/33"),
            ("addresses", "10.0.0.5/024"),
            ("addresses", "dhcp,10.0.0.5/24"),
            ("addresses", "10.0.0.5/24,gw=10.0.0.1"),
            ("bridge", "vmbr0,firewall=0"),
            ("bridge", "../vmbr0"),
            ("ci-user", "me;rm"),
            ("cpu", "host,flags=+aes"),
            ("dns", "ns1"),
            ("gateway", "10.0.0.1,10.0.0.2"),
            ("mac", "01:24:11:00:00:01"),
            ("mac", "BC:24:11:00:00"),
            ("search-domain", "-x.org"),
            ("ssh-keys", "command=\"sh\" ssh-ed25519 AAAA"),
            ("ssh-keys", "ssh-ed25519 AAAA"),
            ("vlan", "0"),
            ("vlan", "4095"),
            ("cicustom", "user=local:snippets/x.yaml"),
        ];
        for (name, text) in bad {
            assert!(DayOne::default().with(name, text).is_none(), "{name}={text}");
        }
    }

    #[test]
    fn secret_is_a_reference() {
        for good in ["env:WEB_PASSWORD", "file:/run/secrets/web", "credential:web-password"] {
            assert_eq!(SecretReference::new(good).map(|own| own.to_string()).as_deref(), Some(good));
        }
        for bad in ["hunter2", "env:hunter2", "env:", "file:secret", "credential:../x", "credential:a/b", "plain:hunter2"] {
            assert!(SecretReference::new(bad).is_none(), "{bad}");
        }
    }
}
