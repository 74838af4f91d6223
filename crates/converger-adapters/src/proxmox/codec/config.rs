//! A guest's config in core types: values in effect, pending changes, birth marks and guards.
//!
//! `/pending` returns values in effect and pending ones as of one moment; `/config` is not read. Keys that the core does not know are
//! dropped.

use std::borrow::Cow;
use std::collections::BTreeSet;

use converger_core::apply::LiveDayOne;
use converger_core::artifact::INTEGER_MAX;
use converger_core::guest::{GuestIdentity, GuestKind};
use converger_core::normalize::{Field, FieldValue, WordSet, rule_of};
use converger_core::observe::{EffectiveValues, GuestHardware, PendingChange};
use serde::Deserialize;

use super::day_one::parse_day_one;
use super::field;
use super::hardware::parse_hardware;
use super::identifiers::{ConfigDigest, DiskKey, DiskSize};
use super::property::{self, PropertyString};
use super::scalar::PerlScalar;

/// The config of a guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestConfig {
    /// The name in the config. Proxmox shows a guest without one under a name made of its id.
    pub name: Option<Box<str>>,
    /// The values in effect of the managed fields, or the key that makes the whole guest unknown: a guard or a birth mark that is not
    /// understood, a value of the wrong type, or a key that is listed twice.
    pub config: Result<EffectiveValues, Box<str>>,
    /// The pending changes.
    pub pending: Box<[PendingChange]>,
    /// The birth marks.
    pub identity: GuestIdentity,
    /// The hardware addresses of the network devices, in upper case.
    pub macs: WordSet,
    /// The lock.
    pub lock: Option<Box<str>>,
    /// Whether it is a template.
    pub template: bool,
    /// Whether protection is on.
    pub protection: bool,
    /// The tags.
    pub tags: WordSet,
    /// The digest of the config, which a write sends back.
    pub digest: Option<ConfigDigest>,
    /// The whole `agent` property. A write keeps its other options.
    pub agent: Option<Box<str>>,
    /// The first network device. A write keeps its other options.
    pub net0: Option<Box<str>>,
    /// Attributes that are written once, when a guest is made.
    pub day_one: LiveDayOne,
    /// The disks, and what ties the guest to its node; or the key of a disk or CPU whose value is not understood.
    pub hardware: Result<GuestHardware, Box<str>>,
}

impl GuestConfig {
    /// The size of a disk, if there is such a disk and it has one.
    #[must_use]
    pub fn disk_size(&self, key: &DiskKey) -> Option<DiskSize> {
        self.hardware.as_ref().ok()?.disks.iter().find(|disk| disk.key == *key)?.size
    }
}

/// One item of `/pending`.
#[derive(Deserialize)]
pub(super) struct PendingItem<'a> {
    #[serde(borrow)]
    pub(super) key: Cow<'a, str>,
    #[serde(borrow, default)]
    pub(super) value: PerlScalar<'a>,
    #[serde(borrow, default)]
    pub(super) pending: PerlScalar<'a>,
    #[serde(borrow, default)]
    delete: PerlScalar<'a>,
}

/// Builds the config from the list that `/pending` returns; its values are those in effect.
pub(super) fn from_items(kind: GuestKind, items: &[PendingItem<'_>]) -> GuestConfig {
    let mut pending: Vec<PendingChange> = items.iter().filter_map(|item| pending_change(kind, item)).collect();
    pending.sort_by(|left, right| left.key().cmp(right.key()));
    pending.dedup_by(|second, first| second.key() == first.key());
    let mut ordered: Vec<&PendingItem<'_>> = items.iter().collect();
    ordered.sort_by(|left, right| left.key.cmp(&right.key));
    let is_single = ordered.windows(2).all(|two| two.first().map(|item| &item.key) != two.last().map(|item| &item.key));
    let values = ordered.into_iter().filter_map(|item| Some((&*item.key, item.value.text()?)));
    let config = build_config(kind, &RawConfigValues(values.collect()), pending.into(), parse_hardware(kind, items));
    match find_invalid_key(kind, items, is_single) {
        Some(key) => GuestConfig { config: Err(key.into()), ..config },
        None => config,
    }
}

/// A key that is listed twice, or whose value has the wrong type. The guest's guards are then unknown.
fn find_invalid_key<'i>(kind: GuestKind, items: &'i [PendingItem<'_>], is_single: bool) -> Option<&'i str> {
    let mut seen: BTreeSet<&'i str> = BTreeSet::new();
    let is_no_flag = |item: &PendingItem<'_>| is_flag(&item.key) && item.value != PerlScalar::Absent && item.value.flag().is_none();
    let is_no_guard = |item: &PendingItem<'_>| is_guard(&item.key) && item.value.is_invalid_guard();
    let is_no_value = |item: &PendingItem<'_>| item.value == PerlScalar::NotScalar && is_known_key(kind, &item.key);
    let mut keys = items.iter().map(|item| (&*item.key, is_no_flag(item) || is_no_guard(item) || is_no_value(item)));
    keys.find_map(|(key, is_strange)| ((!is_single && !seen.insert(key)) || is_strange).then_some(key))
}

fn is_flag(key: &str) -> bool {
    matches!(key, "protection" | "template")
}

/// Whether steps on the guest depend on this key.
fn is_guard(key: &str) -> bool {
    is_flag(key) || matches!(key, "lock" | "tags")
}

/// Whether the value of this key is used.
fn is_known_key(kind: GuestKind, key: &str) -> bool {
    let own = ["name", "hostname", "lock", "tags", "digest", "agent", "smbios1", "meta", "rootfs"];
    own.contains(&key) || managed_field(kind, key).is_some() || net_index(key).is_some() || DiskKey::new(kind, key).is_some()
}

fn net_index(key: &str) -> Option<u32> {
    key.strip_prefix("net")?.parse().ok()
}

/// The pending change of an item, if there is one. Only values of the kind's own fields are kept.
fn pending_change(kind: GuestKind, item: &PendingItem<'_>) -> Option<PendingChange> {
    let other = || PendingChange::Other((&*item.key).into());
    // Something is pending, but it is unclear what, so it counts as foreign.
    if item.delete.is_invalid_guard() || item.pending.is_invalid_guard() {
        return Some(other());
    }
    let is_removed = item.delete.text().is_some_and(|text| text != "0" && !text.is_empty());
    if !is_removed && item.pending.text().is_none() {
        return None;
    }
    let Some(field) = managed_field(kind, &item.key) else { return Some(other()) };
    if is_removed {
        return Some(PendingChange::Known(field, None));
    }
    let value = item.pending.text().and_then(|text| field::parse_value(field, &text));
    // A value that is not understood is not ours, so it counts as foreign.
    Some(value.map_or_else(other, |value| PendingChange::Known(field, Some(value).filter(|value| !is_empty_value(value)))))
}

fn managed_field(kind: GuestKind, key: &str) -> Option<Field> {
    let field = Field::from_word(key)?;
    rule_of(kind, field).map(|_| field)
}

/// An empty description equals none, and so does an empty list of tags.
fn is_empty_value(value: &FieldValue) -> bool {
    match value {
        FieldValue::Text(text) => text.is_empty(),
        FieldValue::Tags(tags) => tags.is_empty(),
        _ => false,
    }
}

/// Values by key, sorted. The last one of duplicates wins; the config is rejected in that case anyway.
struct RawConfigValues<'a>(Vec<(&'a str, Cow<'a, str>)>);

impl RawConfigValues<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        let end = self.0.partition_point(|(own, _)| *own <= key);
        self.0.get(end.checked_sub(1)?).filter(|(own, _)| *own == key).map(|(_, text)| &**text)
    }

    fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(key, text)| (*key, &**text))
    }
}

fn build_config(
    kind: GuestKind,
    values: &RawConfigValues<'_>,
    pending: Box<[PendingChange]>,
    hardware: Result<GuestHardware, Box<str>>,
) -> GuestConfig {
    let text = |key: &str| values.get(key).filter(|text| !text.is_empty());
    // A value that is neither on nor off has made the whole config invalid before.
    let is_on = |key: &str| text(key) == Some("1");
    let name = match kind {
        GuestKind::Qemu => "name",
        GuestKind::Lxc => "hostname",
    };
    // An invalid birth mark must not be mistaken for a missing one.
    let (config, identity) = match parse_identity(kind, values) {
        Ok(identity) => (parse_fields(kind, values), identity),
        Err(key) => (Err(key), identity_without_marks(kind)),
    };
    GuestConfig {
        name: text(name).map(Into::into),
        config,
        pending,
        identity,
        macs: parse_macs(kind, values),
        lock: text("lock").map(Into::into),
        template: is_on("template"),
        protection: is_on("protection"),
        tags: text("tags").and_then(field::parse_tags).unwrap_or_default(),
        digest: text("digest").and_then(ConfigDigest::new),
        agent: text("agent").map(Into::into),
        net0: text("net0").map(Into::into),
        day_one: parse_day_one(kind, text),
        hardware,
    }
}

/// Parses all fields of the kind. A text that is not understood only affects its own key. Tags are the exception, because they protect: the
/// core keeps them beside the config, and here they are only checked.
fn parse_fields(kind: GuestKind, values: &RawConfigValues<'_>) -> Result<EffectiveValues, Box<str>> {
    let (mut known, mut invalid) = (Vec::new(), Vec::new());
    for (key, text) in values.iter() {
        let Some(field) = managed_field(kind, key) else { continue };
        match field::parse_value(field, text) {
            None if field == Field::Tags => return Err(key.into()),
            None => invalid.push((field, text.into())),
            Some(value) if field != Field::Tags && !is_empty_value(&value) => known.push((field, value)),
            Some(_) => {}
        }
    }
    Ok(EffectiveValues::new(known).with_not_understood(invalid))
}

/// The birth marks, or the key of an invalid one.
fn parse_identity(kind: GuestKind, values: &RawConfigValues<'_>) -> Result<GuestIdentity, Box<str>> {
    Ok(match kind {
        GuestKind::Qemu => {
            let ctime = birth_mark(values, "meta", "", "ctime")?
                .map(|text| text.parse().ok().filter(|seconds| *seconds <= INTEGER_MAX).ok_or("meta"));
            GuestIdentity::Qemu {
                uuid: birth_mark(values, "smbios1", "", "uuid")?.map(|uuid| uuid.to_ascii_lowercase().into()),
                ctime: ctime.transpose()?,
            }
        }
        GuestKind::Lxc => {
            // The network device with the smallest number.
            let first = values.iter().filter_map(|(key, _)| Some((net_index(key)?, key))).min();
            let mac = first.map_or(Ok(None), |(_, key)| birth_mark(values, key, "name", "hwaddr"))?;
            let rootfs = birth_mark(values, "rootfs", "volume", "volume")?.map(Into::into);
            GuestIdentity::Lxc { rootfs, mac: mac.map(|mac| mac.to_ascii_uppercase().into()) }
        }
    })
}

/// The addresses of all network devices. A virtual machine has them under the name of the model (`virtio=BC:24:11:..`), a container under
/// `hwaddr`.
fn parse_macs(kind: GuestKind, values: &RawConfigValues<'_>) -> WordSet {
    let devices = values.iter().filter(|(key, _)| net_index(key).is_some());
    let addresses = devices.flat_map(|(_, text)| {
        let properties = PropertyString::parse(text, "model");
        let models = properties.iter().filter(|(name, _)| kind == GuestKind::Qemu || *name == "hwaddr");
        models.map(|(_, value)| value.to_ascii_uppercase()).filter(|value| is_mac(value)).collect::<Vec<_>>()
    });
    WordSet::new(addresses.map(String::into_boxed_str).collect())
}

fn is_mac(text: &str) -> bool {
    let is_byte = |part: &str| part.len() == 2 && part.bytes().all(|byte| byte.is_ascii_hexdigit());
    text.split(':').count() == 6 && text.split(':').all(is_byte)
}

/// The identity of a guest without marks.
fn identity_without_marks(kind: GuestKind) -> GuestIdentity {
    match kind {
        GuestKind::Qemu => GuestIdentity::Qemu { uuid: None, ctime: None },
        GuestKind::Lxc => GuestIdentity::Lxc { rootfs: None, mac: None },
    }
}

/// The part of a property that is a birth mark; an error if it is present but empty.
fn birth_mark<'v>(values: &'v RawConfigValues<'_>, key: &str, default: &'static str, part: &str) -> Result<Option<&'v str>, Box<str>> {
    match values.get(key).and_then(|text| property::find_part(text, default, part)) {
        Some(mark) if mark.trim().is_empty() => Err(key.into()),
        mark => Ok(mark),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config_from_list(kind: GuestKind, json: &str) -> GuestConfig {
        from_items(kind, &serde_json::from_str::<Vec<PendingItem<'_>>>(json).expect("items"))
    }

    fn config_from_map(kind: GuestKind, json: &str) -> GuestConfig {
        let map: serde_json::Map<String, serde_json::Value> = serde_json::from_str(json).expect("a map");
        let items: Vec<_> = map.iter().map(|(key, value)| serde_json::json!({ "key": key, "value": value })).collect();
        config_from_list(kind, &serde_json::to_string(&items).expect("serialises"))
    }

    const GUEST: &str = r#"{"name": "web1", "cores": 2, "memory": "2048", "cpulimit": "1.5", "onboot": 1, "tags": "prod;web",
        "description": "a\nb: %", "smbios1": "uuid=24868D8A-09cb-423d-b4a0-b8e0ee08cb19", "meta": "creation-qemu=10.0.2,ctime=1794770489",
        "scsi0": "dir1:100/vm-100-disk-0.qcow2,size=32G", "ide2": "local:iso/x.iso,media=cdrom,size=4M", "agent": "1,fstrim_cloned_disks=1",
        "boot": "order=scsi0;net0", "digest": "90c9867238def2fe4d646be13e412474af227aee", "vmgenid": "f37b6cd1", "cipassword": "**********",
        "lock": "backup", "protection": 1, "unheard-of": {"a": [1]}}"#;

    #[test]
    fn maps_a_config_to_core_values() {
        let guest = config_from_map(GuestKind::Qemu, GUEST);
        let config = guest.config.as_ref().expect("understood");
        assert_eq!(config.get(Field::Cores), Some(&FieldValue::Count(2)));
        assert_eq!(config.get(Field::Memory), Some(&FieldValue::Mib(2048)));
        assert_eq!(config.get(Field::Cpulimit), Some(&FieldValue::Thousandths(1500)));
        assert_eq!(config.get(Field::Agent), Some(&FieldValue::Flag(true)));
        assert_eq!(config.get(Field::Tags), None);
        assert_eq!(guest.tags.iter().collect::<Vec<_>>(), ["prod", "web"]);
        assert_eq!(
            guest.identity,
            GuestIdentity::Qemu { uuid: Some("24868d8a-09cb-423d-b4a0-b8e0ee08cb19".into()), ctime: Some(1_794_770_489) }
        );
        assert_eq!((guest.lock.as_deref(), guest.protection, guest.template), (Some("backup"), true, false));
        let size = |key: &str| guest.disk_size(&DiskKey::new(GuestKind::Qemu, key)?);
        assert_eq!((size("scsi0"), size("ide2"), size("scsi1")), (DiskSize::parse("32G"), None, None));
        assert!(guest.pending.is_empty());
        assert_eq!(guest.agent.as_deref(), Some("1,fstrim_cloned_disks=1"));
    }

    #[test]
    fn accepts_numbers_and_flags_as_text() {
        let loose = GUEST.replace("\"cores\": 2", "\"cores\": \"2\"").replace("\"2048\"", "2048").replace("\"1.5\"", "1.5");
        let loose = loose.replace("\"onboot\": 1", "\"onboot\": true").replace("\"protection\": 1", "\"protection\": \"1\"");
        assert_eq!(config_from_map(GuestKind::Qemu, &loose), config_from_map(GuestKind::Qemu, GUEST));
    }

    #[test]
    fn maps_a_container_with_its_birth_marks() {
        let guest = config_from_map(
            GuestKind::Lxc,
            r#"{"hostname": "ct", "name": "not this", "cores": 1, "swap": 0, "description": "abc\n", "rootfs": "dir1:200/vm-200-disk-0.raw,size=1G",
                "net1": "name=eth1,hwaddr=BC:24:11:00:00:01", "net0": "name=eth0,bridge=vmbr0,hwaddr=bc:24:11:ae:29:f0,type=veth",
                "lxc": [["lxc.apparmor.profile", "unconfined"]], "agent": "1", "sockets": 9}"#,
        );
        assert_eq!(guest.name.as_deref(), Some("ct"));
        let config = guest.config.expect("understood");
        assert_eq!(config.get(Field::Description), Some(&FieldValue::Text("abc".into())));
        assert_eq!((config.get(Field::Agent), config.get(Field::Sockets)), (None, None), "not fields of containers");
        let marks = GuestIdentity::Lxc { rootfs: Some("dir1:200/vm-200-disk-0.raw".into()), mac: Some("BC:24:11:AE:29:F0".into()) };
        assert_eq!(guest.identity, marks);
        assert_eq!(guest.macs.iter().collect::<Vec<_>>(), ["BC:24:11:00:00:01", "BC:24:11:AE:29:F0"]);
    }

    #[test]
    fn g3_reads_the_address_of_every_network_device() {
        let nets = r#"{"net0": "virtio=bc:24:11:00:00:01,bridge=vmbr0,tag=5", "net12": "model=e1000,macaddr=BC:24:11:00:00:02", "net1": "virtio,bridge=vmbr0",
            "netx": "virtio=BC:24:11:00:00:03", "smbios1": "uuid=a,serial=BC:24:11:00:00:04"}"#;
        assert_eq!(config_from_map(GuestKind::Qemu, nets).macs.iter().collect::<Vec<_>>(), ["BC:24:11:00:00:01", "BC:24:11:00:00:02"]);
    }

    #[test]
    fn old_guests_have_no_birth_marks() {
        assert_eq!(config_from_map(GuestKind::Qemu, "{}").identity, GuestIdentity::Qemu { uuid: None, ctime: None });
        assert_eq!(config_from_map(GuestKind::Lxc, "{}").identity, GuestIdentity::Lxc { rootfs: None, mac: None });
    }

    #[test]
    fn separates_pending_values_from_effective_ones() {
        let guest = config_from_list(
            GuestKind::Qemu,
            r#"[{"key": "cores", "value": 1, "pending": 2}, {"key": "memory", "value": "128", "pending": "256"},
                {"key": "ostype", "value": "l26", "delete": 1}, {"key": "balloon", "value": 64, "delete": "2"},
                {"key": "net0", "pending": "virtio=BC:24:11:BC:13:60,bridge=vmbr0"}, {"key": "swap", "pending": 5},
                {"key": "name", "value": "web1", "delete": 0}, {"key": "digest", "value": "0fe8dcaad38c42e5626b836ae80a400e0792ac21"}]"#,
        );
        let config = guest.config.expect("understood");
        assert_eq!((config.get(Field::Cores), config.get(Field::Memory)), (Some(&FieldValue::Count(1)), Some(&FieldValue::Mib(128))));
        let expected = [
            PendingChange::Known(Field::Balloon, None),
            PendingChange::Known(Field::Cores, Some(FieldValue::Count(2))),
            PendingChange::Known(Field::Memory, Some(FieldValue::Mib(256))),
            PendingChange::Other("net0".into()),
            PendingChange::Other("ostype".into()),
            PendingChange::Other("swap".into()),
        ];
        assert_eq!(*guest.pending, expected);
        assert_eq!((guest.name.as_deref(), guest.digest.is_some()), (Some("web1"), true));
    }

    #[test]
    fn g3_unreadable_guard_is_not_treated_as_off() {
        for value in ["[1]", "{}", "\"yes\"", "2", "\"true\"", "-1", "null"] {
            for key in ["protection", "template"] {
                let json = format!(r#"[{{"key": "cores", "value": 1}}, {{"key": "{key}", "value": {value}}}]"#);
                assert_eq!(config_from_list(GuestKind::Qemu, &json).config, Err(key.into()), "{json}");
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
            assert_eq!(config_from_list(GuestKind::Qemu, &json).config, Err(key.into()), "{json}");
        }
        for key in ["protection", "cores", "tags", "unheard-of"] {
            let json = format!(r#"[{{"key": "{key}", "value": 1}}, {{"key": "{key}", "value": 0}}]"#);
            assert_eq!(config_from_list(GuestKind::Qemu, &json).config, Err(key.into()), "{json}");
        }
        for value in ["0", "\"0\"", "false", "\"\""] {
            let guest = config_from_list(GuestKind::Qemu, &format!(r#"[{{"key": "protection", "value": {value}}}]"#));
            assert!(guest.config.is_ok() && !guest.protection, "{value}");
        }
    }

    #[test]
    fn g12_pending_change_in_an_unusual_form_still_counts() {
        for part in
            [r#""pending": null"#, r#""delete": null"#, r#""pending": [8]"#, r#""pending": {}"#, r#""delete": {}"#, r#""delete": [1]"#]
        {
            let guest = config_from_list(GuestKind::Qemu, &format!(r#"[{{"key": "cores", "value": 2, {part}}}]"#));
            assert_eq!(*guest.pending, [PendingChange::Other("cores".into())], "{part}");
        }
    }

    #[test]
    fn unknown_value_affects_only_its_own_key() {
        let config =
            config_from_map(GuestKind::Qemu, r#"{"cores": 1, "memory": "current=1,max=2", "boot": " "}"#).config.expect("a config");
        assert_eq!((config.get(Field::Cores), config.not_understood(Field::Cores)), (Some(&FieldValue::Count(1)), None));
        assert_eq!((config.get(Field::Memory), config.not_understood(Field::Memory)), (None, Some("current=1,max=2")));
        assert_eq!((config.get(Field::Boot), config.not_understood(Field::Boot)), (None, Some(" ")));
        assert_eq!(config_from_map(GuestKind::Qemu, r#"{"tags": "prod;#1"}"#).config, Err("tags".into()), "a tag may protect");
        let invalid = config_from_list(GuestKind::Qemu, r#"[{"key": "cores", "value": 1, "pending": "many"}]"#);
        assert_eq!(*invalid.pending, [PendingChange::Other("cores".into())]);
    }
}
