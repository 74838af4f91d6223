//! Texts that a guest's config can contain for the known fields, each with its meaning, written by hand. Nothing here uses the codec, so
//! that the codec can be compared with it.

use converger_core::guest::GuestKind;
use converger_core::normalize::{BootOrder, Field, FieldValue, HotplugFeatures, StartupOrder, WordSet};

/// The meaning of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ConfigMeaning {
    /// This value.
    Value(FieldValue),
    /// The same as an absent key.
    Nothing,
    /// A text that this program must not claim to understand.
    Odd,
}

use ConfigMeaning::{Nothing, Odd};

/// The forms of a key besides plain numbers.
pub(crate) fn known_forms(kind: GuestKind, field: Field) -> Vec<(&'static str, ConfigMeaning)> {
    let qemu = kind == GuestKind::Qemu;
    match field {
        Field::Agent if qemu => agent_forms(),
        Field::Boot if qemu => boot_forms(),
        Field::Hotplug if qemu => hotplug_forms(),
        Field::Numa if qemu => vec![("1", flag(true)), ("0", flag(false))],
        Field::Balloon if qemu => vec![("0", mib(0)), ("256", mib(256))],
        Field::Memory if qemu => vec![("2048", mib(2048)), ("current=2048", mib(2048)), ("current=1024,max=2048", Odd)],
        Field::Sockets if qemu => vec![("2", count(2)), ("four", Odd)],
        Field::Memory => vec![("2048", mib(2048))],
        Field::Swap if !qemu => vec![("0", mib(0)), ("256", mib(256))],
        Field::Cores => vec![("3", count(3))],
        Field::Cpulimit => vec![("0.5", thousandths(500)), ("2", thousandths(2000)), ("1.25", thousandths(1250))],
        Field::Cpuunits => vec![("1024", count(1024)), ("100", count(100))],
        Field::Description => vec![("a: b%\nc=d;e", text("a: b%\nc=d;e")), ("end \n\n", text("end")), ("ü 😀", text("ü 😀"))],
        Field::Onboot => vec![("1", flag(true)), ("0", flag(false))],
        Field::Startup => startup_forms(),
        Field::Tags => {
            vec![("b;a", tags(&["a", "b"])), (" ", Nothing), ("PROD;web", tags(&["PROD", "web"])), ("a,b c", tags(&["a", "b", "c"]))]
        }
        _ => Vec::new(),
    }
}

/// The meaning of a text for a key of a kind: one of the forms, or the result of Proxmox's own normalisation.
pub(crate) fn meaning(kind: GuestKind, field: Field, written: &str) -> ConfigMeaning {
    let known = known_forms(kind, field).into_iter().find(|(form, _)| *form == written);
    if let Some((_, meaning)) = known {
        return meaning;
    }
    let number = written.parse::<u32>().ok();
    match (field, number) {
        (Field::Cores | Field::Sockets | Field::Cpuunits, Some(number)) => count(number),
        (Field::Memory | Field::Balloon | Field::Swap, Some(number)) => mib(number),
        (Field::Description, _) => text(written.trim_end()),
        (Field::Tags, _) => tags(&written.split(';').collect::<Vec<_>>()),
        // The value of a guest without disk and network card.
        (Field::Boot, _) if written == " " => Odd,
        (Field::Boot, _) => devices(&written.trim_start_matches("order=").split_terminator(';').collect::<Vec<_>>()),
        _ => Odd,
    }
}

fn agent_forms() -> Vec<(&'static str, ConfigMeaning)> {
    vec![
        ("1", flag(true)),
        ("0", flag(false)),
        ("enabled=1,type=isa", flag(true)),
        ("fstrim_cloned_disks=1,enabled=on", flag(true)),
        ("0,fstrim_cloned_disks=1", flag(false)),
        ("maybe", Odd),
    ]
}

fn boot_forms() -> Vec<(&'static str, ConfigMeaning)> {
    let legacy = |letters: &str| ConfigMeaning::Value(FieldValue::Boot(BootOrder::Legacy(letters.into())));
    vec![("order=scsi0;net0", devices(&["scsi0", "net0"])), ("cdn", legacy("cdn")), ("legacy=dn", legacy("dn"))]
}

fn hotplug_forms() -> Vec<(&'static str, ConfigMeaning)> {
    let features = |names: &[&str]| {
        let indexes = names.iter().filter_map(|feature| HotplugFeatures::WORDS.iter().position(|own| own == feature));
        ConfigMeaning::Value(FieldValue::Features(indexes.fold(HotplugFeatures::empty(), HotplugFeatures::with)))
    };
    let usual = ["network", "disk", "usb"];
    vec![("1", features(&usual)), ("0", features(&[])), ("disk,network,usb", features(&usual)), ("memory", features(&["memory"]))]
}

fn startup_forms() -> Vec<(&'static str, ConfigMeaning)> {
    let startup = |order, up, down| ConfigMeaning::Value(FieldValue::Startup(StartupOrder { order, up, down }));
    vec![
        ("1", startup(Some(1), None, None)),
        ("order=2,up=30", startup(Some(2), Some(30), None)),
        ("down=4,up=3", startup(None, Some(3), Some(4))),
        ("order=1,sideways=2", Odd),
    ]
}

fn flag(flag: bool) -> ConfigMeaning {
    ConfigMeaning::Value(FieldValue::Flag(flag))
}

fn count(number: u32) -> ConfigMeaning {
    ConfigMeaning::Value(FieldValue::Count(number))
}

fn mib(number: u32) -> ConfigMeaning {
    ConfigMeaning::Value(FieldValue::Mib(number))
}

fn thousandths(number: u32) -> ConfigMeaning {
    ConfigMeaning::Value(FieldValue::Thousandths(number))
}

fn text(text: &str) -> ConfigMeaning {
    ConfigMeaning::Value(FieldValue::Text(text.into()))
}

fn tags(names: &[&str]) -> ConfigMeaning {
    ConfigMeaning::Value(FieldValue::Tags(WordSet::new(names.iter().map(|tag| (*tag).into()).collect())))
}

fn devices(names: &[&str]) -> ConfigMeaning {
    ConfigMeaning::Value(FieldValue::Boot(BootOrder::Devices(names.iter().map(|device| (*device).into()).collect())))
}
