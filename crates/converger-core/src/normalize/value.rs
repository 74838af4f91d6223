//! Values of fields, in the form in which they are compared, displayed and hashed.

use std::fmt;

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

use super::ValueShape;

/// A value of a field. Values that Proxmox writes in several ways have one form here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FieldValue {
    /// On or off.
    Flag(bool),
    /// A number.
    Count(u32),
    /// Memory in MiB.
    Mib(u32),
    /// Thousandths of a CPU.
    Thousandths(u32),
    /// Text without trailing whitespace.
    Text(Box<str>),
    /// A sorted set of tags.
    Tags(WordSet),
    /// When the guest starts with its host.
    Startup(StartupOrder),
    /// The boot order.
    Boot(BootOrder),
    /// The features that can be changed while the guest runs.
    Features(HotplugFeatures),
}

impl FieldValue {
    /// The type of the field.
    #[must_use]
    pub fn shape(&self) -> ValueShape {
        match self {
            Self::Flag(_) => ValueShape::Flag,
            Self::Count(_) => ValueShape::Count,
            Self::Mib(_) => ValueShape::Mib,
            Self::Thousandths(_) => ValueShape::Thousandths,
            Self::Text(_) => ValueShape::Text,
            Self::Tags(_) => ValueShape::Tags,
            Self::Startup(_) => ValueShape::Startup,
            Self::Boot(_) => ValueShape::Boot,
            Self::Features(_) => ValueShape::Features,
        }
    }
}

/// A sorted set of words.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WordSet(Box<[Box<str>]>);

impl WordSet {
    /// The set of these words.
    #[must_use]
    pub fn new(mut words: Vec<Box<str>>) -> Self {
        words.sort_unstable();
        words.dedup();
        Self(words.into())
    }

    /// The words, in order.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(AsRef::as_ref)
    }

    /// Whether there are no words.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The words in lower case.
    #[must_use]
    pub fn lowered(&self) -> Self {
        Self::new(self.iter().map(|word| word.to_ascii_lowercase().into_boxed_str()).collect())
    }

    /// Whether a word contains an upper-case letter.
    #[must_use]
    pub fn has_upper_case(&self) -> bool {
        self.iter().any(|word| word.contains(|letter: char| letter.is_ascii_uppercase()))
    }

    /// Whether it contains this word, ignoring letter case.
    #[must_use]
    pub fn contains_ignore_case(&self, word: &str) -> bool {
        self.iter().any(|own| own.eq_ignore_ascii_case(word))
    }
}

impl Serialize for WordSet {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.iter())
    }
}

/// `startup`: the position in the order, and how long to wait after starting and for stopping.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StartupOrder {
    /// The position in the order.
    pub order: Option<u32>,
    /// Seconds to wait after the start.
    pub up: Option<u32>,
    /// Seconds to wait for the stop.
    pub down: Option<u32>,
}

impl StartupOrder {
    /// Each part with its key, sorted by key.
    #[must_use]
    pub fn parts(&self) -> [(&'static str, Option<u32>); 3] {
        [("down", self.down), ("order", self.order), ("up", self.up)]
    }
}

impl Serialize for StartupOrder {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for (key, part) in self.parts() {
            if let Some(number) = part {
                map.serialize_entry(key, &number)?;
            }
        }
        map.end()
    }
}

/// `boot`: the devices in order, or the letters of old configs. Letters are read, never written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BootOrder {
    /// The devices in boot order.
    Devices(Box<[Box<str>]>),
    /// The legacy letters, such as `cdn`.
    Legacy(Box<str>),
}

impl BootOrder {
    /// What an absent `boot` means.
    pub const LEGACY_DEFAULT: &'static str = "cdn";

    /// Parses the letters of an old config.
    #[must_use]
    pub fn from_legacy(letters: &str) -> Option<Self> {
        let fits = !letters.is_empty() && letters.bytes().all(|letter| b"acdn".contains(&letter));
        fits.then(|| Self::Legacy(letters.into()))
    }
}

impl Serialize for BootOrder {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Devices(devices) => serializer.collect_seq(devices.iter()),
            Self::Legacy(letters) => serializer.serialize_str(letters),
        }
    }
}

/// `hotplug`: what can be changed while the guest runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HotplugFeatures(u8);

impl HotplugFeatures {
    /// The words, in order.
    pub const WORDS: [&'static str; 6] = ["cloudinit", "cpu", "disk", "memory", "network", "usb"];
    /// What an absent `hotplug` means.
    pub const DEFAULT: Self = Self(0b11_0100);

    /// No feature.
    #[must_use]
    pub fn empty() -> Self {
        Self(0)
    }

    /// Adds the feature with this index in [`HotplugFeatures::WORDS`].
    #[must_use]
    pub fn with(self, index: usize) -> Self {
        Self(self.0 | (1u8.checked_shl(u32::try_from(index).unwrap_or(u32::MAX)).unwrap_or(0)))
    }

    /// Whether it contains the feature with this name.
    #[must_use]
    pub fn has(self, name: &str) -> bool {
        self.iter().any(|own| own == name)
    }

    /// Their words, in order.
    pub fn iter(self) -> impl Iterator<Item = &'static str> {
        Self::WORDS.into_iter().enumerate().filter(move |(index, _)| self.0 >> index & 1 == 1).map(|(_, name)| name)
    }
}

impl Serialize for HotplugFeatures {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.iter())
    }
}

impl Serialize for FieldValue {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Flag(flag) => serializer.serialize_bool(*flag),
            Self::Count(number) | Self::Mib(number) | Self::Thousandths(number) => serializer.serialize_u32(*number),
            Self::Text(text) => serializer.serialize_str(text),
            Self::Tags(tags) => tags.serialize(serializer),
            Self::Startup(startup) => startup.serialize(serializer),
            Self::Boot(boot) => boot.serialize(serializer),
            Self::Features(features) => features.serialize(serializer),
        }
    }
}

/// Formats a value as in desired.yaml. Text is quoted and escaped, so that it cannot act on a terminal.
impl fmt::Display for FieldValue {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag(flag) => flag.fmt(formatter),
            Self::Count(number) => number.fmt(formatter),
            Self::Mib(mib) if *mib > 0 && mib.is_multiple_of(1024 * 1024) => write!(formatter, "{}TiB", mib / (1024 * 1024)),
            Self::Mib(mib) if *mib > 0 && mib.is_multiple_of(1024) => write!(formatter, "{}GiB", mib / 1024),
            Self::Mib(mib) => write!(formatter, "{mib}MiB"),
            Self::Thousandths(number) => write_decimal(*number, formatter),
            Self::Text(text) => write!(formatter, "{text:?}"),
            Self::Tags(tags) => write_list(tags.iter(), formatter),
            Self::Startup(startup) => write_parts(startup, formatter),
            Self::Boot(BootOrder::Devices(devices)) => write_list(devices.iter().map(AsRef::as_ref), formatter),
            Self::Boot(BootOrder::Legacy(letters)) => write!(formatter, "{letters:?}"),
            Self::Features(features) => write_list(features.iter(), formatter),
        }
    }
}

fn write_decimal(thousandths: u32, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
    let fraction = format!("{:03}", thousandths % 1000);
    match fraction.trim_end_matches('0') {
        "" => write!(formatter, "\"{}\"", thousandths / 1000),
        digits => write!(formatter, "\"{}.{digits}\"", thousandths / 1000),
    }
}

/// Untrusted words are escaped like text, without the quotes that well-formed words do not need.
fn write_list<'w>(words: impl Iterator<Item = &'w str>, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
    formatter.write_str("[")?;
    for (index, word) in words.enumerate() {
        write!(formatter, "{}{}", if index > 0 { ", " } else { "" }, word.escape_debug())?;
    }
    formatter.write_str("]")
}

fn write_parts(startup: &StartupOrder, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
    let parts: Vec<String> = startup.parts().iter().filter_map(|(key, part)| part.map(|number| format!("{key}: {number}"))).collect();
    write!(formatter, "{{{}}}", parts.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(value: &FieldValue, text: &str, json: &str) {
        assert_eq!(value.to_string(), text);
        assert_eq!(serde_json::to_string(value).expect("serialises"), json);
    }

    #[test]
    fn values_are_displayed_with_units_and_stored_as_numbers() {
        check(&FieldValue::Mib(8192), "8GiB", "8192");
        check(&FieldValue::Mib(2 << 20), "2TiB", "2097152");
        check(&FieldValue::Mib(1536), "1536MiB", "1536");
        check(&FieldValue::Mib(0), "0MiB", "0");
        check(&FieldValue::Thousandths(1500), "\"1.5\"", "1500");
        check(&FieldValue::Thousandths(2000), "\"2\"", "2000");
        check(&FieldValue::Thousandths(1005), "\"1.005\"", "1005");
        check(&FieldValue::Text("a\n\u{1b}".into()), r#""a\n\u{1b}""#, "\"a\\n\\u001b\"");
        check(&FieldValue::Tags(WordSet::new(vec!["b".into(), "a".into(), "b".into()])), "[a, b]", r#"["a","b"]"#);
        check(
            &FieldValue::Startup(StartupOrder { order: Some(1), up: None, down: Some(5) }),
            "{down: 5, order: 1}",
            r#"{"down":5,"order":1}"#,
        );
        check(&FieldValue::Features(HotplugFeatures::DEFAULT), "[disk, network, usb]", r#"["disk","network","usb"]"#);
    }

    #[test]
    fn ignores_features_out_of_bounds() {
        assert_eq!(HotplugFeatures::empty().with(99), HotplugFeatures::empty());
        assert!(HotplugFeatures::empty().with(3).has("memory"));
    }
}
