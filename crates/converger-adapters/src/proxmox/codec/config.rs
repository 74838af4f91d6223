//! A guest's config as Proxmox gives it, in the words of the core: values in effect, what waits for the next start, birth
//! marks and guards.
//!
//! `/pending` gives a list of values with what waits beside them, all of one moment; `/config` is not read.
//! Keys that the core does not know are left behind: their values are nobody's business here.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use converger_core::artifact::INTEGER_MAX;
use converger_core::guest::{Identity, Kind};
use converger_core::normalize::{Field, Value, Words, rule_of};
use converger_core::observe::{Config, Pending};
use serde::Deserialize;

use super::field;
use super::property::{self, Properties};
use super::scalar::Scalar;
use super::words::{Digest, DiskKey, DiskSize};

/// What a guest's config says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestConfig {
    /// The name in the config; a guest without one is shown under a name made of its id.
    pub name: Option<Box<str>>,
    /// The values in effect of the managed fields, or the key that leaves the whole guest unknown: a guard or a birth mark that is not
    /// understood, a value of the wrong type, or a key that is listed twice.
    pub config: Result<Config, Box<str>>,
    /// What waits for the next start.
    pub pending: Box<[Pending]>,
    /// The birth marks.
    pub identity: Identity,
    /// The hardware addresses of the network devices, in upper case.
    pub macs: Words,
    /// The lock.
    pub lock: Option<Box<str>>,
    /// Whether it is a template.
    pub template: bool,
    /// Whether protection is on.
    pub protection: bool,
    /// The tags.
    pub tags: Words,
    /// The digest of all of it, which a write carries back.
    pub digest: Option<Digest>,
    /// The whole property of the guest's agent, whose other options a write keeps.
    pub agent: Option<Box<str>>,
    /// The disks that have a size.
    pub disks: BTreeMap<DiskKey, DiskSize>,
}

/// One item of `/pending`.
#[derive(Deserialize)]
pub(super) struct Item<'a> {
    #[serde(borrow)]
    key: Cow<'a, str>,
    #[serde(borrow, default)]
    value: Scalar<'a>,
    #[serde(borrow, default)]
    pending: Scalar<'a>,
    #[serde(borrow, default)]
    delete: Scalar<'a>,
}

/// The config from the list that `/pending` gives: its values are those in effect.
pub(super) fn from_items(kind: Kind, items: &[Item<'_>]) -> GuestConfig {
    let mut pending: Vec<Pending> = items.iter().filter_map(|item| waiting(kind, item)).collect();
    pending.sort_by(|left, right| left.key().cmp(right.key()));
    pending.dedup_by(|second, first| second.key() == first.key());
    let mut ordered: Vec<&Item<'_>> = items.iter().collect();
    ordered.sort_by(|left, right| left.key.cmp(&right.key));
    let is_single = ordered.windows(2).all(|two| two.first().map(|item| &item.key) != two.last().map(|item| &item.key));
    let values = ordered.into_iter().filter_map(|item| Some((&*item.key, item.value.text()?)));
    let config = interpret(kind, &Values(values.collect()), pending.into());
    match strange(kind, items, is_single) {
        Some(key) => GuestConfig { config: Err(key.into()), ..config },
        None => config,
    }
}

/// A key whose value is no value, is no flag where one belongs, or stands there twice: what guards a guest is then not known.
fn strange<'i>(kind: Kind, items: &'i [Item<'_>], is_single: bool) -> Option<&'i str> {
    let mut seen: BTreeSet<&'i str> = BTreeSet::new();
    let is_no_flag = |item: &Item<'_>| is_flag(&item.key) && item.value != Scalar::Absent && item.value.flag().is_none();
    let is_no_guard = |item: &Item<'_>| is_guard(&item.key) && item.value.is_no_guard();
    let is_no_value = |item: &Item<'_>| item.value == Scalar::Strange && is_read(kind, &item.key);
    let mut keys = items.iter().map(|item| (&*item.key, is_no_flag(item) || is_no_guard(item) || is_no_value(item)));
    keys.find_map(|(key, is_strange)| ((!is_single && !seen.insert(key)) || is_strange).then_some(key))
}

fn is_flag(key: &str) -> bool {
    matches!(key, "protection" | "template")
}

/// Whether a step on the guest hangs on it.
fn is_guard(key: &str) -> bool {
    is_flag(key) || matches!(key, "lock" | "tags")
}

/// Whether anything is made of the value of this key.
fn is_read(kind: Kind, key: &str) -> bool {
    let own = ["name", "hostname", "lock", "tags", "digest", "agent", "smbios1", "meta", "rootfs"];
    own.contains(&key) || field_of(kind, key).is_some() || net_number(key).is_some() || DiskKey::new(kind, key).is_some()
}

fn net_number(key: &str) -> Option<u32> {
    key.strip_prefix("net")?.parse().ok()
}

/// The change that waits in an item, if one does. Only values of the kind's own fields are kept.
fn waiting(kind: Kind, item: &Item<'_>) -> Option<Pending> {
    let other = || Pending::Other((&*item.key).into());
    // Something waits, and nobody can say what: then it is somebody else's.
    if item.delete.is_no_guard() || item.pending.is_no_guard() {
        return Some(other());
    }
    let is_removed = item.delete.text().is_some_and(|text| text != "0" && !text.is_empty());
    if !is_removed && item.pending.text().is_none() {
        return None;
    }
    let Some(field) = field_of(kind, &item.key) else { return Some(other()) };
    if is_removed {
        return Some(Pending::Known(field, None));
    }
    let value = item.pending.text().and_then(|text| field::read(field, &text));
    // A value that is not understood is not ours, so it is somebody else's.
    Some(value.map_or_else(other, |value| Pending::Known(field, Some(value).filter(|value| !is_nothing(value)))))
}

fn field_of(kind: Kind, key: &str) -> Option<Field> {
    let field = Field::of_word(key)?;
    rule_of(kind, field).map(|_| field)
}

/// An empty description is the same as none, and so is a list of no tags.
fn is_nothing(value: &Value) -> bool {
    match value {
        Value::Text(text) => text.is_empty(),
        Value::Tags(tags) => tags.is_empty(),
        _ => false,
    }
}

/// Values by their keys, in order. Where a key stands twice the last one is shown, and the whole is not understood anyway.
struct Values<'a>(Vec<(&'a str, Cow<'a, str>)>);

impl Values<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        let end = self.0.partition_point(|(own, _)| *own <= key);
        self.0.get(end.checked_sub(1)?).filter(|(own, _)| *own == key).map(|(_, text)| &**text)
    }

    fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(key, text)| (*key, &**text))
    }
}

fn interpret(kind: Kind, values: &Values<'_>, pending: Box<[Pending]>) -> GuestConfig {
    let text = |key: &str| values.get(key).filter(|text| !text.is_empty());
    // What is neither on nor off was refused before: the whole config is not understood then.
    let is_on = |key: &str| text(key) == Some("1");
    let name = match kind {
        Kind::Qemu => "name",
        Kind::Lxc => "hostname",
    };
    // A birth mark that is none must not pass for one that the guest never had.
    let (config, identity) = match identity(kind, values) {
        Ok(identity) => (config(kind, values), identity),
        Err(key) => (Err(key), unmarked(kind)),
    };
    GuestConfig {
        name: text(name).map(Into::into),
        config,
        pending,
        identity,
        macs: macs(kind, values),
        lock: text("lock").map(Into::into),
        template: is_on("template"),
        protection: is_on("protection"),
        tags: text("tags").and_then(field::tags).unwrap_or_default(),
        digest: text("digest").and_then(Digest::new),
        agent: text("agent").map(Into::into),
        disks: values.iter().filter_map(|(key, text)| disk(kind, key, text)).collect(),
    }
}

/// All fields of the kind. A text that is not understood concerns its own key only, except for the tags, which protect: the core
/// keeps them beside the config, and here they are only looked at.
fn config(kind: Kind, values: &Values<'_>) -> Result<Config, Box<str>> {
    let (mut known, mut strange) = (Vec::new(), Vec::new());
    for (key, text) in values.iter() {
        let Some(field) = field_of(kind, key) else { continue };
        match field::read(field, text) {
            None if field == Field::Tags => return Err(key.into()),
            None => strange.push((field, text.into())),
            Some(value) if field != Field::Tags && !is_nothing(&value) => known.push((field, value)),
            Some(_) => {}
        }
    }
    Ok(Config::new(known).with_not_understood(strange))
}

/// The birth marks, or the key that holds one that is none.
fn identity(kind: Kind, values: &Values<'_>) -> Result<Identity, Box<str>> {
    Ok(match kind {
        Kind::Qemu => {
            let ctime =
                mark(values, "meta", "", "ctime")?.map(|text| text.parse().ok().filter(|seconds| *seconds <= INTEGER_MAX).ok_or("meta"));
            Identity::Qemu {
                uuid: mark(values, "smbios1", "", "uuid")?.map(|uuid| uuid.to_ascii_lowercase().into()),
                ctime: ctime.transpose()?,
            }
        }
        Kind::Lxc => {
            // The network device with the smallest number.
            let first = values.iter().filter_map(|(key, _)| Some((net_number(key)?, key))).min();
            let mac = first.map_or(Ok(None), |(_, key)| mark(values, key, "name", "hwaddr"))?;
            let rootfs = mark(values, "rootfs", "volume", "volume")?.map(Into::into);
            Identity::Lxc { rootfs, mac: mac.map(|mac| mac.to_ascii_uppercase().into()) }
        }
    })
}

/// The addresses of all network devices: of a virtual machine under the name of the model (`virtio=BC:24:11:..`), of a container under `hwaddr`.
fn macs(kind: Kind, values: &Values<'_>) -> Words {
    let devices = values.iter().filter(|(key, _)| net_number(key).is_some());
    let addresses = devices.flat_map(|(_, text)| {
        let properties = Properties::parse(text, "model");
        let models = properties.iter().filter(|(name, _)| kind == Kind::Qemu || *name == "hwaddr");
        models.map(|(_, value)| value.to_ascii_uppercase()).filter(|value| is_mac(value)).collect::<Vec<_>>()
    });
    Words::new(addresses.map(String::into_boxed_str).collect())
}

fn is_mac(text: &str) -> bool {
    let is_byte = |part: &str| part.len() == 2 && part.bytes().all(|byte| byte.is_ascii_hexdigit());
    text.split(':').count() == 6 && text.split(':').all(is_byte)
}

/// A guest that never had a mark.
fn unmarked(kind: Kind) -> Identity {
    match kind {
        Kind::Qemu => Identity::Qemu { uuid: None, ctime: None },
        Kind::Lxc => Identity::Lxc { rootfs: None, mac: None },
    }
}

/// The part of a property that is a birth mark: there, not there, or there and empty, which is neither.
fn mark<'v>(values: &'v Values<'_>, key: &str, default: &'static str, part: &str) -> Result<Option<&'v str>, Box<str>> {
    match values.get(key).and_then(|text| property::part(text, default, part)) {
        Some(mark) if mark.trim().is_empty() => Err(key.into()),
        mark => Ok(mark),
    }
}

fn disk(kind: Kind, key: &str, text: &str) -> Option<(DiskKey, DiskSize)> {
    let key = DiskKey::new(kind, key)?;
    let properties = Properties::parse(text, "file");
    let is_medium = properties.get("media") == Some("cdrom");
    let size = properties.get("size").filter(|_| !is_medium).and_then(DiskSize::parse)?;
    Some((key, size))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_list(kind: Kind, json: &str) -> GuestConfig {
        from_items(kind, &serde_json::from_str::<Vec<Item<'_>>>(json).expect("items"))
    }

    fn of_map(kind: Kind, json: &str) -> GuestConfig {
        let map: serde_json::Map<String, serde_json::Value> = serde_json::from_str(json).expect("a map");
        let items: Vec<_> = map.iter().map(|(key, value)| serde_json::json!({ "key": key, "value": value })).collect();
        of_list(kind, &serde_json::to_string(&items).expect("serialises"))
    }

    const GUEST: &str = r#"{"name": "web1", "cores": 2, "memory": "2048", "cpulimit": "1.5", "onboot": 1, "tags": "prod;web",
        "description": "a\nb: %", "smbios1": "uuid=24868D8A-09cb-423d-b4a0-b8e0ee08cb19", "meta": "creation-qemu=10.0.2,ctime=1794770489",
        "scsi0": "dir1:100/vm-100-disk-0.qcow2,size=32G", "ide2": "local:iso/x.iso,media=cdrom,size=4M", "agent": "1,fstrim_cloned_disks=1",
        "boot": "order=scsi0;net0", "digest": "90c9867238def2fe4d646be13e412474af227aee", "vmgenid": "f37b6cd1", "cipassword": "**********",
        "lock": "backup", "protection": 1, "unheard-of": {"a": [1]}}"#;

    #[test]
    fn a_config_in_the_words_of_the_core() {
        let guest = of_map(Kind::Qemu, GUEST);
        let config = guest.config.as_ref().expect("understood");
        assert_eq!(config.get(Field::Cores), Some(&Value::Count(2)));
        assert_eq!(config.get(Field::Memory), Some(&Value::Mib(2048)));
        assert_eq!(config.get(Field::Cpulimit), Some(&Value::Thousandths(1500)));
        assert_eq!(config.get(Field::Agent), Some(&Value::Flag(true)));
        assert_eq!(config.get(Field::Tags), None);
        assert_eq!(guest.tags.iter().collect::<Vec<_>>(), ["prod", "web"]);
        assert_eq!(
            guest.identity,
            Identity::Qemu { uuid: Some("24868d8a-09cb-423d-b4a0-b8e0ee08cb19".into()), ctime: Some(1_794_770_489) }
        );
        assert_eq!((guest.lock.as_deref(), guest.protection, guest.template), (Some("backup"), true, false));
        assert_eq!(guest.disks.iter().map(|(key, size)| format!("{} {size}", key.as_str())).collect::<Vec<_>>(), ["scsi0 32G"]);
        assert!(guest.pending.is_empty());
        assert_eq!(guest.agent.as_deref(), Some("1,fstrim_cloned_disks=1"));
    }

    #[test]
    fn numbers_and_flags_may_come_as_text_and_text_as_numbers() {
        let loose = GUEST.replace("\"cores\": 2", "\"cores\": \"2\"").replace("\"2048\"", "2048").replace("\"1.5\"", "1.5");
        let loose = loose.replace("\"onboot\": 1", "\"onboot\": true").replace("\"protection\": 1", "\"protection\": \"1\"");
        assert_eq!(of_map(Kind::Qemu, &loose), of_map(Kind::Qemu, GUEST));
    }

    #[test]
    fn a_container_and_its_marks() {
        let guest = of_map(
            Kind::Lxc,
            r#"{"hostname": "ct", "name": "not this", "cores": 1, "swap": 0, "description": "abc\n", "rootfs": "dir1:200/vm-200-disk-0.raw,size=1G",
                "net1": "name=eth1,hwaddr=BC:24:11:00:00:01", "net0": "name=eth0,bridge=vmbr0,hwaddr=bc:24:11:ae:29:f0,type=veth",
                "lxc": [["lxc.apparmor.profile", "unconfined"]], "agent": "1", "sockets": 9}"#,
        );
        assert_eq!(guest.name.as_deref(), Some("ct"));
        let config = guest.config.expect("understood");
        assert_eq!(config.get(Field::Description), Some(&Value::Text("abc".into())));
        assert_eq!((config.get(Field::Agent), config.get(Field::Sockets)), (None, None), "not fields of containers");
        let marks = Identity::Lxc { rootfs: Some("dir1:200/vm-200-disk-0.raw".into()), mac: Some("BC:24:11:AE:29:F0".into()) };
        assert_eq!(guest.identity, marks);
        assert_eq!(guest.macs.iter().collect::<Vec<_>>(), ["BC:24:11:00:00:01", "BC:24:11:AE:29:F0"]);
    }

    #[test]
    fn g3_every_network_device_of_a_virtual_machine_has_its_address() {
        let nets = r#"{"net0": "virtio=bc:24:11:00:00:01,bridge=vmbr0,tag=5", "net12": "model=e1000,macaddr=BC:24:11:00:00:02", "net1": "virtio,bridge=vmbr0",
            "netx": "virtio=BC:24:11:00:00:03", "smbios1": "uuid=a,serial=BC:24:11:00:00:04"}"#;
        assert_eq!(of_map(Kind::Qemu, nets).macs.iter().collect::<Vec<_>>(), ["BC:24:11:00:00:01", "BC:24:11:00:00:02"]);
    }

    #[test]
    fn old_guests_have_no_marks() {
        assert_eq!(of_map(Kind::Qemu, "{}").identity, Identity::Qemu { uuid: None, ctime: None });
        assert_eq!(of_map(Kind::Lxc, "{}").identity, Identity::Lxc { rootfs: None, mac: None });
    }

    #[test]
    fn what_waits_is_told_apart_from_what_is_in_effect() {
        let guest = of_list(
            Kind::Qemu,
            r#"[{"key": "cores", "value": 1, "pending": 2}, {"key": "memory", "value": "128", "pending": "256"},
                {"key": "ostype", "value": "l26", "delete": 1}, {"key": "balloon", "value": 64, "delete": "2"},
                {"key": "net0", "pending": "virtio=BC:24:11:BC:13:60,bridge=vmbr0"}, {"key": "swap", "pending": 5},
                {"key": "name", "value": "web1", "delete": 0}, {"key": "digest", "value": "0fe8dcaad38c42e5626b836ae80a400e0792ac21"}]"#,
        );
        let config = guest.config.expect("understood");
        assert_eq!((config.get(Field::Cores), config.get(Field::Memory)), (Some(&Value::Count(1)), Some(&Value::Mib(128))));
        let expected = [
            Pending::Known(Field::Balloon, None),
            Pending::Known(Field::Cores, Some(Value::Count(2))),
            Pending::Known(Field::Memory, Some(Value::Mib(256))),
            Pending::Other("net0".into()),
            Pending::Other("ostype".into()),
            Pending::Other("swap".into()),
        ];
        assert_eq!(*guest.pending, expected);
        assert_eq!((guest.name.as_deref(), guest.digest.is_some()), (Some("web1"), true));
    }

    #[test]
    fn g3_a_guard_that_is_not_understood_is_not_off() {
        for value in ["[1]", "{}", "\"yes\"", "2", "\"true\"", "-1", "null"] {
            for key in ["protection", "template"] {
                let json = format!(r#"[{{"key": "cores", "value": 1}}, {{"key": "{key}", "value": {value}}}]"#);
                assert_eq!(of_list(Kind::Qemu, &json).config, Err(key.into()), "{json}");
            }
        }
        for (key, value) in [
            ("tags", r#"["prod"]"#),
            ("tags", "null"),
            ("lock", "null"),
            ("lock", r#"{"x": "backup"}"#),
            ("cores", r#"["2"]"#),
            ("smbios1", "[]"),
            ("net0", "{}"),
        ] {
            let json = format!(r#"[{{"key": "{key}", "value": {value}}}]"#);
            assert_eq!(of_list(Kind::Qemu, &json).config, Err(key.into()), "{json}");
        }
        for key in ["protection", "cores", "tags", "unheard-of"] {
            let json = format!(r#"[{{"key": "{key}", "value": 1}}, {{"key": "{key}", "value": 0}}]"#);
            assert_eq!(of_list(Kind::Qemu, &json).config, Err(key.into()), "{json}");
        }
        for value in ["0", "\"0\"", "false", "\"\""] {
            let guest = of_list(Kind::Qemu, &format!(r#"[{{"key": "protection", "value": {value}}}]"#));
            assert!(guest.config.is_ok() && !guest.protection, "{value}");
        }
    }

    #[test]
    fn g12_a_change_that_waits_in_an_odd_form_still_waits() {
        for part in
            [r#""pending": null"#, r#""delete": null"#, r#""pending": [8]"#, r#""pending": {}"#, r#""delete": {}"#, r#""delete": [1]"#]
        {
            let guest = of_list(Kind::Qemu, &format!(r#"[{{"key": "cores", "value": 2, {part}}}]"#));
            assert_eq!(*guest.pending, [Pending::Other("cores".into())], "{part}");
        }
    }

    #[test]
    fn a_value_that_is_not_understood_concerns_its_own_key_only() {
        let config = of_map(Kind::Qemu, r#"{"cores": 1, "memory": "current=1,max=2", "boot": " "}"#).config.expect("a config");
        assert_eq!((config.get(Field::Cores), config.not_understood(Field::Cores)), (Some(&Value::Count(1)), None));
        assert_eq!((config.get(Field::Memory), config.not_understood(Field::Memory)), (None, Some("current=1,max=2")));
        assert_eq!((config.get(Field::Boot), config.not_understood(Field::Boot)), (None, Some(" ")));
        assert_eq!(of_map(Kind::Qemu, r#"{"tags": "prod;#1"}"#).config, Err("tags".into()), "a tag may protect");
        let strange = of_list(Kind::Qemu, r#"[{"key": "cores", "value": 1, "pending": "many"}]"#);
        assert_eq!(*strange.pending, [Pending::Other("cores".into())]);
    }
}
