//! One managed field, from the text that Proxmox keeps to the value of the core, and back.
//!
//! The two directions stand together because they must agree: what is written is read back as the same value (section 5 of
//! the facts). A key that is not in the core's table of fields has no way through here, so nothing that reaches the host can
//! be written.

use converger_core::guest::{Kind, is_seen_tag};
use converger_core::normalize::{Boot, Features, Field, Role, Shape, Startup, Value, Words, rule_of};

use super::property::{self, Properties};

/// The value of a field in effect, from the text of its config key. `None`: this program does not understand the text.
pub(super) fn read(field: Field, text: &str) -> Option<Value> {
    let text = text.trim_end();
    match field.shape() {
        Shape::Flag => flag(field, text).map(Value::Flag),
        Shape::Count => text.parse().ok().map(Value::Count),
        Shape::Mib => mib(text).map(Value::Mib),
        Shape::Thousandths => thousandths(text).map(Value::Thousandths),
        Shape::Text => Some(Value::Text(text.into())),
        Shape::Tags => tags(text).map(Value::Tags),
        Shape::Startup => startup(text).map(Value::Startup),
        Shape::Boot => boot(text).map(Value::Boot),
        Shape::Features => Some(Value::Features(features(text))),
    }
}

/// Words between commas, semicolons and blanks. `tags=` was stored as one blank by Proxmox, and is no tag.
pub(super) fn tags(text: &str) -> Option<Words> {
    let words = text.split(|own: char| matches!(own, ',' | ';' | '\0') || own.is_whitespace()).filter(|word| !word.is_empty());
    words.map(|word| is_seen_tag(word).then(|| word.into())).collect::<Option<Vec<_>>>().map(Words::new)
}

fn flag(field: Field, text: &str) -> Option<bool> {
    if field == Field::Agent {
        let properties = Properties::parse(text, "enabled");
        return properties.get("enabled").map_or(Some(false), property::flag);
    }
    property::flag(text)
}

/// A number, or since version 8 also `current=2048`. What stands beside it would be lost by a write, so it is not understood.
fn mib(text: &str) -> Option<u32> {
    let properties = Properties::parse(text, "current");
    let number = properties.get("current").filter(|_| !properties.has_others(&["current"]))?;
    number.parse().ok()
}

/// A decimal in thousandths. Finer parts are rounded: the core compares in thousandths.
fn thousandths(text: &str) -> Option<u32> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let is_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() && fraction.is_empty() || !is_digits(whole) || !is_digits(fraction) {
        return None;
    }
    let whole: u64 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
    let digits = format!("{fraction:0<4}");
    let fine: u64 = digits.get(..4)?.parse().ok()?;
    u32::try_from(whole.checked_mul(1000)?.checked_add((fine + 5) / 10)?).ok()
}

fn startup(text: &str) -> Option<Startup> {
    let properties = Properties::parse(text, "order");
    if properties.has_others(&["order", "up", "down"]) {
        return None;
    }
    let part = |key| properties.get(key).map(|text| text.parse::<u32>().ok());
    let number = |key| match part(key) {
        None => Some(None),
        Some(number) => number.map(Some),
    };
    Some(Startup { order: number("order")?, up: number("up")?, down: number("down")? })
}

fn boot(text: &str) -> Option<Boot> {
    let properties = Properties::parse(text, "legacy");
    match properties.get("order") {
        Some(order) => Some(Boot::Devices(order.split(';').map(str::trim).filter(|device| !device.is_empty()).map(Into::into).collect())),
        None => Boot::legacy(properties.get("legacy")?),
    }
}

/// `1` is the default set and `0` is none. Words that this program does not know decide nothing here and are left out.
fn features(text: &str) -> Features {
    match text {
        "1" => Features::DEFAULT,
        "0" => Features::none(),
        _ => {
            let indexes = text.split([',', ';', ' ']).filter_map(|word| Features::WORDS.iter().position(|own| *own == word));
            indexes.fold(Features::none(), Features::with)
        }
    }
}

/// How a field is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Written {
    /// The key gets this text.
    Set(String),
    /// The key is removed.
    Delete,
}

/// A change that cannot be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unwritable {
    /// The kind of guest has no such field, or this program only reads it.
    NotManaged(Field),
    /// The value is not of the field's type, or is a form that is read and never written.
    NotAValue(Field),
    /// Proxmox does not allow the key to be removed.
    NotRemovable(Field),
    /// There is nothing to write, which Proxmox answers with an error.
    Nothing,
    /// Under this key waits what cannot be declared; a write would try to bring it into effect.
    Waits(Box<str>),
    /// The same, with a key that reaches the host.
    ReachesHost(Box<str>),
    /// Under the field waits something else than was planned, or something where nothing was, or nothing where something was.
    WaitsOtherwise(Field),
}

/// The text for a value of a field (`None`: the key is to go). `agent` is the whole property of the guest's agent as it is, so
/// that its other options stay.
pub(super) fn write(kind: Kind, field: Field, value: Option<&Value>, agent: Option<&str>) -> Result<Written, Unwritable> {
    let rule = rule_of(kind, field).filter(|rule| rule.role == Role::Managed).ok_or(Unwritable::NotManaged(field))?;
    let written = match value {
        None => Written::Delete,
        Some(value) => text(field, value, agent).ok_or(Unwritable::NotAValue(field))?,
    };
    if written == Written::Delete && !rule.can_unset {
        return Err(Unwritable::NotRemovable(field));
    }
    Ok(written)
}

fn text(field: Field, value: &Value, agent: Option<&str>) -> Option<Written> {
    let text = match (field.shape(), value) {
        (Shape::Flag, Value::Flag(flag)) => {
            let digit = if *flag { "1" } else { "0" };
            if field == Field::Agent {
                Properties::parse(agent.unwrap_or(""), "enabled").with_first("enabled", digit)
            } else {
                digit.into()
            }
        }
        (Shape::Count, Value::Count(number)) | (Shape::Mib, Value::Mib(number)) => number.to_string(),
        (Shape::Thousandths, Value::Thousandths(number)) => decimal(*number),
        // An empty text removes a description, and an empty list of tags would be stored as a blank.
        (Shape::Text, Value::Text(text)) if text.is_empty() => return Some(Written::Delete),
        (Shape::Tags, Value::Tags(tags)) if tags.is_empty() => return Some(Written::Delete),
        (Shape::Startup, Value::Startup(startup)) if *startup == Startup::default() => return Some(Written::Delete),
        (Shape::Text, Value::Text(text)) => text.to_string(),
        (Shape::Tags, Value::Tags(tags)) => tags.iter().collect::<Vec<_>>().join(";"),
        (Shape::Startup, Value::Startup(startup)) => startup_text(startup),
        (Shape::Boot, Value::Boot(Boot::Devices(devices))) => format!("order={}", devices.join(";")),
        _ => return None,
    };
    Some(Written::Set(text))
}

fn decimal(thousandths: u32) -> String {
    let text = format!("{}.{:03}", thousandths / 1000, thousandths % 1000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn startup_text(startup: &Startup) -> String {
    let parts = [("order", startup.order), ("up", startup.up), ("down", startup.down)];
    let written: Vec<String> = parts.iter().filter_map(|(key, part)| part.map(|number| format!("{key}={number}"))).collect();
    written.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(field: Field, texts: &[&str], value: &Value) {
        for text in texts {
            assert_eq!(read(field, text).as_ref(), Some(value), "{field:?} {text:?}");
        }
    }

    #[test]
    fn one_meaning_in_several_forms() {
        check(Field::Agent, &["1", "enabled=1", "enabled=on,type=virtio", "fstrim_cloned_disks=1,enabled=true"], &Value::Flag(true));
        check(Field::Agent, &["0", "enabled=0", "0,fstrim_cloned_disks=1", "fstrim_cloned_disks=1"], &Value::Flag(false));
        check(Field::Memory, &["2048", "current=2048"], &Value::Mib(2048));
        check(Field::Startup, &["1", "order=1"], &Value::Startup(Startup { order: Some(1), ..Startup::default() }));
        check(Field::Startup, &["down=9,order=1,up=5"], &Value::Startup(Startup { order: Some(1), up: Some(5), down: Some(9) }));
        check(Field::Boot, &["order=scsi0;net0"], &Value::Boot(Boot::Devices(["scsi0".into(), "net0".into()].into())));
        check(Field::Boot, &["cdn", "legacy=cdn"], &Value::Boot(Boot::Legacy("cdn".into())));
        check(Field::Hotplug, &["1", "network,disk,usb", "usb,network,disk,unheard-of"], &Value::Features(Features::DEFAULT));
        check(Field::Hotplug, &["0", ""], &Value::Features(Features::none()));
        check(Field::Tags, &["b;a", "a,b", " a b ", "a;b;a"], &Value::Tags(Words::new(vec!["a".into(), "b".into()])));
        check(Field::Tags, &["", " "], &Value::Tags(Words::default()));
        check(Field::Description, &["abc\n", "abc", "abc  \n\n"], &Value::Text("abc".into()));
        check(Field::Onboot, &["1"], &Value::Flag(true));
    }

    #[test]
    fn decimals_are_thousandths() {
        check(Field::Cpulimit, &["1.5", "1.50", "1.500"], &Value::Thousandths(1500));
        check(Field::Cpulimit, &["2", "2.", "2.0"], &Value::Thousandths(2000));
        check(Field::Cpulimit, &[".5"], &Value::Thousandths(500));
        check(Field::Cpulimit, &["0.3333", "0.333"], &Value::Thousandths(333));
        check(Field::Cpulimit, &["0.3335", "0.334"], &Value::Thousandths(334));
        for bad in ["", ".", "-1", "1e3", "1,5", "99999999999"] {
            assert_eq!(read(Field::Cpulimit, bad), None, "{bad}");
        }
    }

    #[test]
    fn what_is_not_understood_is_not_guessed() {
        assert_eq!(read(Field::Memory, "current=2048,max=4096"), None);
        assert_eq!(read(Field::Cores, "four"), None);
        assert_eq!(read(Field::Onboot, "2"), None);
        assert_eq!(read(Field::Startup, "order=1,sideways=2"), None);
        assert_eq!(read(Field::Startup, "order=x"), None);
        assert_eq!((read(Field::Tags, "prod;#1"), read(Field::Tags, "é")), (None, None));
        assert_eq!((read(Field::Boot, "xyz"), read(Field::Boot, "legacy=")), (None, None));
    }

    #[test]
    fn the_agent_keeps_its_other_options() {
        let write = |agent| write(Kind::Qemu, Field::Agent, Some(&Value::Flag(true)), agent);
        assert_eq!(write(Some("0,fstrim_cloned_disks=1")), Ok(Written::Set("enabled=1,fstrim_cloned_disks=1".into())));
        assert_eq!(write(None), Ok(Written::Set("enabled=1".into())));
    }

    #[test]
    fn what_must_not_be_written_is_not() {
        let flag = Value::Flag(true);
        assert_eq!(write(Kind::Qemu, Field::Numa, Some(&flag), None), Err(Unwritable::NotManaged(Field::Numa)));
        assert_eq!(write(Kind::Lxc, Field::Agent, Some(&flag), None), Err(Unwritable::NotManaged(Field::Agent)));
        assert_eq!(write(Kind::Qemu, Field::Cores, Some(&flag), None), Err(Unwritable::NotAValue(Field::Cores)));
        assert_eq!(write(Kind::Lxc, Field::Memory, None, None), Err(Unwritable::NotRemovable(Field::Memory)));
        let legacy = Value::Boot(Boot::Legacy("cdn".into()));
        assert_eq!(write(Kind::Qemu, Field::Boot, Some(&legacy), None), Err(Unwritable::NotAValue(Field::Boot)));
        assert_eq!(write(Kind::Qemu, Field::Tags, Some(&Value::Tags(Words::default())), None), Ok(Written::Delete));
        assert_eq!(write(Kind::Lxc, Field::Description, Some(&Value::Text("".into())), None), Ok(Written::Delete));
    }
}
