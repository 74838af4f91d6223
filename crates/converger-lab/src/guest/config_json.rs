//! A guest's configuration as JSON, with the types that Proxmox uses for each key.
//!
//! The run-state is in `api::guests::status`.

use std::borrow::Cow;

use serde_json::{Map, Value, json};

use super::{ConfigSection, LabGuest, LabGuestKind};
use crate::flavour::Flavour;
use crate::json_text::{self, JsonMember, JsonObject};
use crate::schema::{ValueType, config_key_schema};

const HIDDEN_VALUE: &str = "**********";

/// A value with the JSON type of its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TypedConfigValue<'t> {
    Number(i64),
    Text(Cow<'t, str>),
}

impl JsonMember for TypedConfigValue<'_> {
    fn write_json(&self, out: &mut Vec<u8>) {
        match self {
            Self::Number(number) => number.write_json(out),
            Self::Text(text) => text.write_json(out),
        }
    }
}

impl From<TypedConfigValue<'_>> for Value {
    fn from(typed: TypedConfigValue<'_>) -> Self {
        match typed {
            TypedConfigValue::Number(number) => number.into(),
            TypedConfigValue::Text(text) => text.into(),
        }
    }
}

impl LabGuest {
    /// A value with the JSON type of its key: integers and booleans are numbers, `number` stays a string.
    pub(crate) fn type_value<'t>(&self, key: &str, text: &'t str, flavour: Flavour) -> TypedConfigValue<'t> {
        let base = match key {
            "memory" if self.kind == LabGuestKind::Qemu && flavour.memory_is_number() => ValueType::Integer,
            "snaptime" => ValueType::Integer,
            _ => config_key_schema(self.kind.config_template(), key, flavour).map_or(ValueType::Text, |shape| shape.base),
        };
        let plain = || TypedConfigValue::Text(text.into());
        match (key, base) {
            ("cipassword", _) => TypedConfigValue::Text(HIDDEN_VALUE.into()),
            ("description", _) if self.kind == LabGuestKind::Lxc => {
                TypedConfigValue::Text(format!("{}\n", text.trim_end_matches('\n')).into())
            }
            (_, ValueType::Integer | ValueType::Boolean) => text.parse().map_or_else(|_| plain(), TypedConfigValue::Number),
            _ => plain(),
        }
    }

    /// The configuration with pending values applied, which is what GET returns by default.
    pub(crate) fn merge_pending(&self) -> ConfigSection {
        let mut merged = self.config.clone();
        merged.extend(self.pending.iter().map(|(key, value)| (key.clone(), value.clone())));
        // Proxmox tests the value and not the key, so a key with a false value stays although its deletion is pending.
        let is_deleted = |key: &str| self.deletions.contains_key(key) && self.get(key) != Some("0");
        merged.retain(|key, _| !is_deleted(key));
        merged
    }

    /// A section as JSON with the digest and, for containers, the raw lines.
    pub(crate) fn section_json(&self, section: &ConfigSection, flavour: Flavour) -> Map<String, Value> {
        let typed = section.iter().map(|(key, text)| (key.clone(), self.type_value(key, text, flavour).into()));
        let mut fields: Map<String, Value> = typed.collect();
        if !self.raw.is_empty() {
            fields.insert("lxc".to_owned(), json!(self.raw));
        }
        fields
    }

    /// The response of `pending`: each key with its value, its pending value or its pending deletion; the digest comes last.
    pub(crate) fn render_pending(&self, digest: &str, flavour: Flavour) -> Vec<u8> {
        let keys = self.config.keys().chain(self.pending.keys()).chain(self.deletions.keys());
        let mut keys: Vec<&str> = keys.map(String::as_str).collect();
        keys.sort_unstable();
        keys.dedup();
        json_text::write_list(keys.into_iter().map(Some).chain([None]), |item, key| match key {
            Some(key) => self.put_pending(item, key, flavour),
            None => drop(item.put("key", "digest").put("value", digest)),
        })
    }

    fn put_pending(&self, item: &mut JsonObject<'_>, key: &str, flavour: Flavour) {
        item.put_some("delete", self.deletions.get(key).map(|force| if *force { 2 } else { 1 }));
        item.put("key", key);
        item.put_some("pending", self.pending.get(key).map(|text| self.type_value(key, text, flavour)));
        item.put_some("value", self.config.get(key).map(|text| self.type_value(key, text, flavour)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn test_guest(pairs: &[(&str, &str)]) -> LabGuest {
        let mut guest = LabGuest::new(100, LabGuestKind::Qemu, "pve1");
        guest.config.extend(pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())));
        guest
    }

    #[test]
    fn value_types_depend_on_key_and_release() {
        let guest = test_guest(&[]);
        assert_eq!(Value::from(guest.type_value("cores", "2", Flavour::V9)), json!(2));
        assert_eq!(Value::from(guest.type_value("onboot", "1", Flavour::V9)), json!(1));
        assert_eq!(Value::from(guest.type_value("cpulimit", "2", Flavour::V9)), json!("2"));
        assert_eq!(Value::from(guest.type_value("memory", "128", Flavour::V9)), json!("128"));
        assert_eq!(Value::from(guest.type_value("memory", "128", Flavour::V7)), json!(128));
        assert_eq!(Value::from(guest.type_value("agent", "1", Flavour::V9)), json!("1"));
        assert_eq!(Value::from(guest.type_value("cipassword", "$5$x", Flavour::V9)), json!(HIDDEN_VALUE));
    }

    #[test]
    fn a_pending_deletion_of_a_false_value_is_not_shown() {
        let mut guest = test_guest(&[("ostype", "l26"), ("numa", "0"), ("cores", "1")]);
        guest.deletions.extend([("ostype".to_owned(), false), ("numa".to_owned(), false)]);
        guest.pending.insert("cores".to_owned(), "2".to_owned());
        let merged = guest.merge_pending();
        assert_eq!(merged.get("ostype"), None);
        assert_eq!(merged.get("numa").map(String::as_str), Some("0"));
        assert_eq!(merged.get("cores").map(String::as_str), Some("2"));
    }

    #[test]
    fn a_containers_notes_end_with_a_line_end() {
        let container = LabGuest::new(200, LabGuestKind::Lxc, "pve1");
        assert_eq!(Value::from(container.type_value("description", "abc", Flavour::V9)), json!("abc\n"));
    }
}
