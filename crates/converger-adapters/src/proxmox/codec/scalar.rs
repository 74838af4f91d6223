//! Values as Perl encodes them: a number may be a text, a flag may be 0, 1, "0", "1", true or false, and a field may be absent or null.
//! They are normalised here, so that no other code deals with these forms.

use std::borrow::Cow;
use std::fmt;

use serde::de::{IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

/// A scalar of any type. Lists and objects become [`PerlScalar::NotScalar`]. They must not pass for absent, or else an oddly encoded guard
/// would count as off.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum PerlScalar<'a> {
    /// Not present.
    #[default]
    Absent,
    /// `null`: present without a value. Proxmox omits what a guest does not have, so a guard with `null` tells nothing.
    Null,
    /// A list or an object.
    NotScalar,
    /// A whole number, or a flag: true is 1 and false is 0.
    Number(u64),
    /// A text, or a fractional or negative number as text. Borrowed from the response if possible: a list of 10,000 guests has 200,000 of
    /// them.
    Text(Cow<'a, str>),
}

impl PerlScalar<'_> {
    pub(super) fn text(&self) -> Option<Cow<'_, str>> {
        match self {
            Self::Absent | Self::Null | Self::NotScalar => None,
            Self::Number(number) => Some(number.to_string().into()),
            Self::Text(text) => Some(Cow::Borrowed(text)),
        }
    }

    /// The text, if it is not empty.
    pub(super) fn word(&self) -> Option<Box<str>> {
        self.text().filter(|text| !text.is_empty()).map(Into::into)
    }

    /// Whether the value is absent or `null`.
    pub(super) fn is_absent_or_null(&self) -> bool {
        matches!(self, Self::Absent | Self::Null)
    }

    /// Whether the value is present but cannot be a guard.
    pub(super) fn is_invalid_guard(&self) -> bool {
        matches!(self, Self::Null | Self::NotScalar)
    }

    /// Whether it is this text.
    pub(super) fn is_text(&self, expected: &str) -> bool {
        matches!(self, Self::Text(text) if text == expected)
    }

    /// A whole number that is not negative.
    pub(super) fn number(&self) -> Option<u64> {
        match self {
            Self::Absent | Self::Null | Self::NotScalar => None,
            Self::Number(number) => Some(*number),
            Self::Text(text) => parse_whole_number(text),
        }
    }

    /// 0 or 1, and nothing else.
    pub(super) fn flag(&self) -> Option<bool> {
        match self {
            Self::Text(text) if text.is_empty() => Some(false),
            _ => match self.number()? {
                0 => Some(false),
                1 => Some(true),
                _ => None,
            },
        }
    }
}

/// A whole number, also in the form `2.0`.
fn parse_whole_number(text: &str) -> Option<u64> {
    let (digits, fraction) = text.split_once('.').unwrap_or((text, ""));
    let is_whole = fraction.bytes().all(|digit| digit == b'0');
    is_whole.then(|| digits.parse().ok()).flatten()
}

impl<'de: 'a, 'a> Deserialize<'de> for PerlScalar<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(PerlScalarVisitor)
    }
}

struct PerlScalarVisitor;

impl<'de> Visitor<'de> for PerlScalarVisitor {
    type Value = PerlScalar<'de>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a value")
    }

    fn visit_bool<E>(self, flag: bool) -> Result<PerlScalar<'de>, E> {
        Ok(PerlScalar::Number(u64::from(flag)))
    }

    fn visit_i64<E>(self, number: i64) -> Result<PerlScalar<'de>, E> {
        Ok(PerlScalar::Text(number.to_string().into()))
    }

    fn visit_u64<E>(self, number: u64) -> Result<PerlScalar<'de>, E> {
        Ok(PerlScalar::Number(number))
    }

    fn visit_f64<E>(self, number: f64) -> Result<PerlScalar<'de>, E> {
        Ok(PerlScalar::Text(number.to_string().into()))
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<PerlScalar<'de>, E> {
        Ok(PerlScalar::Text(Cow::Borrowed(text)))
    }

    fn visit_str<E>(self, text: &str) -> Result<PerlScalar<'de>, E> {
        Ok(PerlScalar::Text(Cow::Owned(text.to_owned())))
    }

    fn visit_unit<E>(self) -> Result<PerlScalar<'de>, E> {
        Ok(PerlScalar::Null)
    }

    fn visit_none<E>(self) -> Result<PerlScalar<'de>, E> {
        Ok(PerlScalar::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<PerlScalar<'de>, A::Error> {
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(PerlScalar::NotScalar)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<PerlScalar<'de>, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(PerlScalar::NotScalar)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_scalar(json: &str) -> PerlScalar<'_> {
        serde_json::from_str(json).expect("JSON")
    }

    #[test]
    fn reads_numbers_and_flags_in_every_form() {
        for json in ["7", "\"7\"", "7.0", "\"7.0\""] {
            assert_eq!(parse_scalar(json).number(), Some(7), "{json}");
        }
        for json in ["1", "\"1\"", "true"] {
            assert_eq!(parse_scalar(json).flag(), Some(true), "{json}");
        }
        for json in ["0", "\"0\"", "false", "\"\""] {
            assert_eq!(parse_scalar(json).flag(), Some(false), "{json}");
        }
    }

    #[test]
    fn other_values_are_neither_number_nor_flag() {
        assert_eq!((parse_scalar("null"), parse_scalar("null").flag(), parse_scalar("null").text()), (PerlScalar::Null, None, None));
        for json in ["[1,[2]]", "{\"a\":{\"b\":1}}", "[]", "{}"] {
            assert_eq!(parse_scalar(json), PerlScalar::NotScalar, "{json}");
            assert_eq!((parse_scalar(json).text(), parse_scalar(json).number(), parse_scalar(json).flag()), (None, None, None), "{json}");
        }
        for json in ["-1", "1.5", "\"x\"", "\"\"", "1e400"] {
            assert_eq!(serde_json::from_str::<PerlScalar<'_>>(json).ok().and_then(|scalar| scalar.number()), None, "{json}");
        }
        assert_eq!(parse_scalar("2").flag(), None);
    }
}
