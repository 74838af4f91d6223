//! Converts one managed field between the text of Proxmox and the core value.
//!
//! Both directions are in one module because they must agree: a written value must be read back as the same value
//! (`docs/proxmox-facts.md`). A key that is not in the core's table of fields cannot be converted, so keys that reach the host cannot be
//! written.

use converger_core::guest::{GuestKind, is_observed_tag};
use converger_core::normalize::{BootOrder, Field, FieldRole, FieldValue, HotplugFeatures, StartupOrder, ValueShape, WordSet, rule_of};

use super::property::{self, PropertyString};

/// Parses the value in effect from the text of its config key; `None` if this program does not understand the text.
pub(super) fn parse_value(field: Field, text: &str) -> Option<FieldValue> {
    let text = text.trim_end();
    match field.shape() {
        ValueShape::Flag => parse_flag(field, text).map(FieldValue::Flag),
        ValueShape::Count => text.parse().ok().map(FieldValue::Count),
        ValueShape::Mib => parse_mib(text).map(FieldValue::Mib),
        ValueShape::Thousandths => parse_thousandths(text).map(FieldValue::Thousandths),
        ValueShape::Text => Some(FieldValue::Text(text.into())),
        ValueShape::Tags => parse_tags(text).map(FieldValue::Tags),
        ValueShape::Startup => parse_startup(text).map(FieldValue::Startup),
        ValueShape::Boot => parse_boot(text).map(FieldValue::Boot),
        ValueShape::Features => Some(FieldValue::Features(parse_features(text))),
    }
}

/// Words separated by commas, semicolons or blanks. Proxmox stores `tags=` as one blank, which is no tag.
pub(super) fn parse_tags(text: &str) -> Option<WordSet> {
    let words = text.split(|own: char| matches!(own, ',' | ';' | '\0') || own.is_whitespace()).filter(|word| !word.is_empty());
    words.map(|word| is_observed_tag(word).then(|| word.into())).collect::<Option<Vec<_>>>().map(WordSet::new)
}

fn parse_flag(field: Field, text: &str) -> Option<bool> {
    if field == Field::Agent {
        let properties = PropertyString::parse(text, "enabled");
        return properties.get("enabled").map_or(Some(false), property::parse_property_flag);
    }
    property::parse_property_flag(text)
}

/// A number, or since version 8 also `current=2048`. Text with further keys is not understood, because a write would lose them.
fn parse_mib(text: &str) -> Option<u32> {
    let properties = PropertyString::parse(text, "current");
    let number = properties.get("current").filter(|_| !properties.has_others(&["current"]))?;
    number.parse().ok()
}

/// A decimal in thousandths. Further digits are rounded, because the core compares in thousandths.
fn parse_thousandths(text: &str) -> Option<u32> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let is_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() && fraction.is_empty() || !is_digits(whole) || !is_digits(fraction) {
        return None;
    }
    let whole: u64 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
    let digits = format!("{fraction:0<4}");
    let ten_thousandths: u64 = digits.get(..4)?.parse().ok()?;
    u32::try_from(whole.checked_mul(1000)?.checked_add((ten_thousandths + 5) / 10)?).ok()
}

fn parse_startup(text: &str) -> Option<StartupOrder> {
    let properties = PropertyString::parse(text, "order");
    if properties.has_others(&["order", "up", "down"]) {
        return None;
    }
    let part = |key| properties.get(key).map(|text| text.parse::<u32>().ok());
    let number = |key| match part(key) {
        None => Some(None),
        Some(number) => number.map(Some),
    };
    Some(StartupOrder { order: number("order")?, up: number("up")?, down: number("down")? })
}

fn parse_boot(text: &str) -> Option<BootOrder> {
    let properties = PropertyString::parse(text, "legacy");
    match properties.get("order") {
        Some(order) => {
            Some(BootOrder::Devices(order.split(';').map(str::trim).filter(|device| !device.is_empty()).map(Into::into).collect()))
        }
        None => BootOrder::from_legacy(properties.get("legacy")?),
    }
}

/// `1` is the default set and `0` is none. Unknown words have no effect here and are dropped.
fn parse_features(text: &str) -> HotplugFeatures {
    match text {
        "1" => HotplugFeatures::DEFAULT,
        "0" => HotplugFeatures::empty(),
        _ => {
            let indexes = text.split([',', ';', ' ']).filter_map(|word| HotplugFeatures::WORDS.iter().position(|own| *own == word));
            indexes.fold(HotplugFeatures::empty(), HotplugFeatures::with)
        }
    }
}

/// How to write a field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum FieldWrite {
    /// Sets the key to this text.
    Set(String),
    /// Removes the key.
    Delete,
}

/// A change that cannot be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UnwritableChange {
    /// The kind of guest has no such field, or this program only reads it.
    NotManaged(Field),
    /// The value is not of the field's type, or is in a form that is only read.
    NotAValue(Field),
    /// Proxmox does not allow the key to be removed.
    NotRemovable(Field),
    /// There is nothing to write, which Proxmox rejects.
    Nothing,
    /// A change of this key, which cannot be declared, is pending; a write would try to apply it.
    ForeignPending(Box<str>),
    /// Like [`UnwritableChange::ForeignPending`], for a key that reaches the host.
    ReachesHost(Box<str>),
    /// The pending change of the field differs from the planned one, or one of them does not exist.
    PendingDiffers(Field),
    /// The guest has no network device, and no bridge is given for a new one.
    NoNetworkDevice,
}

/// Encodes the value of a field; `None` removes the key. `agent` is the current `agent` property of the guest, whose other options are
/// kept.
pub(super) fn encode_field(
    kind: GuestKind,
    field: Field,
    value: Option<&FieldValue>,
    agent: Option<&str>,
) -> Result<FieldWrite, UnwritableChange> {
    let rule = rule_of(kind, field).filter(|rule| rule.role == FieldRole::Managed).ok_or(UnwritableChange::NotManaged(field))?;
    let written = match value {
        None => FieldWrite::Delete,
        Some(value) => encode_value(field, value, agent).ok_or(UnwritableChange::NotAValue(field))?,
    };
    if written == FieldWrite::Delete && !rule.can_unset {
        return Err(UnwritableChange::NotRemovable(field));
    }
    Ok(written)
}

fn encode_value(field: Field, value: &FieldValue, agent: Option<&str>) -> Option<FieldWrite> {
    let text = match (field.shape(), value) {
        (ValueShape::Flag, FieldValue::Flag(flag)) => {
            let digit = if *flag { "1" } else { "0" };
            if field == Field::Agent {
                PropertyString::parse(agent.unwrap_or(""), "enabled").with_first("enabled", digit)
            } else {
                digit.into()
            }
        }
        (ValueShape::Count, FieldValue::Count(number)) | (ValueShape::Mib, FieldValue::Mib(number)) => number.to_string(),
        (ValueShape::Thousandths, FieldValue::Thousandths(number)) => format_thousandths(*number),
        // An empty text removes a description, and an empty list of tags would be stored as a blank.
        (ValueShape::Text, FieldValue::Text(text)) if text.is_empty() => return Some(FieldWrite::Delete),
        (ValueShape::Tags, FieldValue::Tags(tags)) if tags.is_empty() => return Some(FieldWrite::Delete),
        (ValueShape::Startup, FieldValue::Startup(startup)) if *startup == StartupOrder::default() => return Some(FieldWrite::Delete),
        (ValueShape::Text, FieldValue::Text(text)) => text.to_string(),
        (ValueShape::Tags, FieldValue::Tags(tags)) => tags.iter().collect::<Vec<_>>().join(";"),
        (ValueShape::Startup, FieldValue::Startup(startup)) => format_startup(startup),
        (ValueShape::Boot, FieldValue::Boot(BootOrder::Devices(devices))) => format!("order={}", devices.join(";")),
        _ => return None,
    };
    Some(FieldWrite::Set(text))
}

fn format_thousandths(thousandths: u32) -> String {
    let text = format!("{}.{:03}", thousandths / 1000, thousandths % 1000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn format_startup(startup: &StartupOrder) -> String {
    let parts = [("order", startup.order), ("up", startup.up), ("down", startup.down)];
    let written: Vec<String> = parts.iter().filter_map(|(key, part)| part.map(|number| format!("{key}={number}"))).collect();
    written.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_parse(field: Field, texts: &[&str], value: &FieldValue) {
        for text in texts {
            assert_eq!(parse_value(field, text).as_ref(), Some(value), "{field:?} {text:?}");
        }
    }

    #[test]
    fn parses_equivalent_forms_alike() {
        check_parse(
            Field::Agent,
            &["1", "enabled=1", "enabled=on,type=virtio", "fstrim_cloned_disks=1,enabled=true"],
            &FieldValue::Flag(true),
        );
        check_parse(Field::Agent, &["0", "enabled=0", "0,fstrim_cloned_disks=1", "fstrim_cloned_disks=1"], &FieldValue::Flag(false));
        check_parse(Field::Memory, &["2048", "current=2048"], &FieldValue::Mib(2048));
        check_parse(Field::Startup, &["1", "order=1"], &FieldValue::Startup(StartupOrder { order: Some(1), ..StartupOrder::default() }));
        check_parse(
            Field::Startup,
            &["down=9,order=1,up=5"],
            &FieldValue::Startup(StartupOrder { order: Some(1), up: Some(5), down: Some(9) }),
        );
        check_parse(Field::Boot, &["order=scsi0;net0"], &FieldValue::Boot(BootOrder::Devices(["scsi0".into(), "net0".into()].into())));
        check_parse(Field::Boot, &["cdn", "legacy=cdn"], &FieldValue::Boot(BootOrder::Legacy("cdn".into())));
        check_parse(
            Field::Hotplug,
            &["1", "network,disk,usb", "usb,network,disk,unheard-of"],
            &FieldValue::Features(HotplugFeatures::DEFAULT),
        );
        check_parse(Field::Hotplug, &["0", ""], &FieldValue::Features(HotplugFeatures::empty()));
        check_parse(Field::Tags, &["b;a", "a,b", " a b ", "a;b;a"], &FieldValue::Tags(WordSet::new(vec!["a".into(), "b".into()])));
        check_parse(Field::Tags, &["", " "], &FieldValue::Tags(WordSet::default()));
        check_parse(Field::Description, &["abc\n", "abc", "abc  \n\n"], &FieldValue::Text("abc".into()));
        check_parse(Field::Onboot, &["1"], &FieldValue::Flag(true));
        check_parse(Field::Cpuunits, &["1"], &FieldValue::Count(1));
    }

    #[test]
    fn parses_decimals_as_thousandths() {
        check_parse(Field::Cpulimit, &["1.5", "1.50", "1.500"], &FieldValue::Thousandths(1500));
        check_parse(Field::Cpulimit, &["2", "2.", "2.0"], &FieldValue::Thousandths(2000));
        check_parse(Field::Cpulimit, &[".5"], &FieldValue::Thousandths(500));
        check_parse(Field::Cpulimit, &["0.3333", "0.333"], &FieldValue::Thousandths(333));
        check_parse(Field::Cpulimit, &["0.3335", "0.334"], &FieldValue::Thousandths(334));
        for bad in ["", ".", "-1", "1e3", "1,5", "99999999999"] {
            assert_eq!(parse_value(Field::Cpulimit, bad), None, "{bad}");
        }
    }

    #[test]
    fn unknown_values_are_not_guessed() {
        assert_eq!(parse_value(Field::Memory, "current=2048,max=4096"), None);
        assert_eq!(parse_value(Field::Cores, "four"), None);
        assert_eq!(parse_value(Field::Onboot, "2"), None);
        assert_eq!(parse_value(Field::Startup, "order=1,sideways=2"), None);
        assert_eq!(parse_value(Field::Startup, "order=x"), None);
        assert_eq!((parse_value(Field::Tags, "prod;#1"), parse_value(Field::Tags, "é")), (None, None));
        assert_eq!((parse_value(Field::Boot, "xyz"), parse_value(Field::Boot, "legacy=")), (None, None));
    }

    #[test]
    fn agent_keeps_its_other_options() {
        let write = |agent| encode_field(GuestKind::Qemu, Field::Agent, Some(&FieldValue::Flag(true)), agent);
        assert_eq!(write(Some("0,fstrim_cloned_disks=1")), Ok(FieldWrite::Set("enabled=1,fstrim_cloned_disks=1".into())));
        assert_eq!(write(None), Ok(FieldWrite::Set("enabled=1".into())));
    }

    #[test]
    fn refuses_unwritable_fields() {
        let flag = FieldValue::Flag(true);
        assert_eq!(encode_field(GuestKind::Qemu, Field::Numa, Some(&flag), None), Err(UnwritableChange::NotManaged(Field::Numa)));
        assert_eq!(encode_field(GuestKind::Lxc, Field::Agent, Some(&flag), None), Err(UnwritableChange::NotManaged(Field::Agent)));
        assert_eq!(encode_field(GuestKind::Qemu, Field::Cores, Some(&flag), None), Err(UnwritableChange::NotAValue(Field::Cores)));
        assert_eq!(encode_field(GuestKind::Lxc, Field::Memory, None, None), Err(UnwritableChange::NotRemovable(Field::Memory)));
        let legacy = FieldValue::Boot(BootOrder::Legacy("cdn".into()));
        assert_eq!(encode_field(GuestKind::Qemu, Field::Boot, Some(&legacy), None), Err(UnwritableChange::NotAValue(Field::Boot)));
        assert_eq!(encode_field(GuestKind::Qemu, Field::Tags, Some(&FieldValue::Tags(WordSet::default())), None), Ok(FieldWrite::Delete));
        assert_eq!(encode_field(GuestKind::Lxc, Field::Description, Some(&FieldValue::Text("".into())), None), Ok(FieldWrite::Delete));
    }
}
