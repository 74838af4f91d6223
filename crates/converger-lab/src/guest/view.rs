//! A guest's configuration as JSON: the types that Proxmox gives each key.
//!
//! What never enters here: run state; that is in the status rooms.

use std::borrow::Cow;

use serde_json::{Map, Value, json};

use super::{Guest, Kind, Section};
use crate::flavour::Flavour;
use crate::schema::{Base, config_key};
use crate::text::{self, Member, Object};

const HIDDEN: &str = "**********";

/// A value with the type that its key has in JSON.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Typed<'t> {
    Number(i64),
    Text(Cow<'t, str>),
}

impl Member for Typed<'_> {
    fn write(&self, out: &mut Vec<u8>) {
        match self {
            Self::Number(number) => number.write(out),
            Self::Text(text) => text.write(out),
        }
    }
}

impl From<Typed<'_>> for Value {
    fn from(typed: Typed<'_>) -> Self {
        match typed {
            Typed::Number(number) => number.into(),
            Typed::Text(text) => text.into(),
        }
    }
}

impl Guest {
    /// One value with the type that its key has in JSON: integers and booleans are numbers, `number` stays text.
    pub(crate) fn typed<'t>(&self, key: &str, text: &'t str, flavour: Flavour) -> Typed<'t> {
        let base = match key {
            "memory" if self.kind == Kind::Qemu && flavour.memory_is_number() => Base::Integer,
            "snaptime" => Base::Integer,
            _ => config_key(self.kind.config_template(), key, flavour).map_or(Base::Text, |shape| shape.base),
        };
        let plain = || Typed::Text(text.into());
        match (key, base) {
            ("cipassword", _) => Typed::Text(HIDDEN.into()),
            ("description", _) if self.kind == Kind::Lxc => Typed::Text(format!("{}\n", text.trim_end_matches('\n')).into()),
            (_, Base::Integer | Base::Boolean) => text.parse().map_or_else(|_| plain(), Typed::Number),
            _ => plain(),
        }
    }

    /// The configuration with pending values applied, as GET shows it by default.
    pub(crate) fn merged(&self) -> Section {
        let mut merged = self.main.clone();
        merged.extend(self.pending.iter().map(|(key, value)| (key.clone(), value.clone())));
        // A value that is false stays although it is to go: Proxmox tests the value, not the key.
        let goes = |key: &str| self.deletions.contains_key(key) && self.get(key) != Some("0");
        merged.retain(|key, _| !goes(key));
        merged
    }

    /// A section as JSON, with the digest and for containers the raw lines.
    pub(crate) fn section_json(&self, section: &Section, flavour: Flavour) -> Map<String, Value> {
        let typed = section.iter().map(|(key, text)| (key.clone(), self.typed(key, text, flavour).into()));
        let mut fields: Map<String, Value> = typed.collect();
        if !self.raw.is_empty() {
            fields.insert("lxc".to_owned(), json!(self.raw));
        }
        fields
    }

    /// What `pending` shows: each key with its value, what it is to become, or that it is to go; and last the digest.
    pub(crate) fn pending_text(&self, digest: &str, flavour: Flavour) -> Vec<u8> {
        let keys = self.main.keys().chain(self.pending.keys()).chain(self.deletions.keys());
        let mut keys: Vec<&str> = keys.map(String::as_str).collect();
        keys.sort_unstable();
        keys.dedup();
        text::list(keys.into_iter().map(Some).chain([None]), |item, key| match key {
            Some(key) => self.put_pending(item, key, flavour),
            None => drop(item.put("key", "digest").put("value", digest)),
        })
    }

    fn put_pending(&self, item: &mut Object<'_>, key: &str, flavour: Flavour) {
        item.put_some("delete", self.deletions.get(key).map(|force| if *force { 2 } else { 1 }));
        item.put("key", key);
        item.put_some("pending", self.pending.get(key).map(|text| self.typed(key, text, flavour)));
        item.put_some("value", self.main.get(key).map(|text| self.typed(key, text, flavour)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guest(pairs: &[(&str, &str)]) -> Guest {
        let mut guest = Guest::new(100, Kind::Qemu, "pve1");
        guest.main.extend(pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())));
        guest
    }

    #[test]
    fn types_follow_key_and_release() {
        let guest = guest(&[]);
        assert_eq!(Value::from(guest.typed("cores", "2", Flavour::V9)), json!(2));
        assert_eq!(Value::from(guest.typed("onboot", "1", Flavour::V9)), json!(1));
        assert_eq!(Value::from(guest.typed("cpulimit", "2", Flavour::V9)), json!("2"));
        assert_eq!(Value::from(guest.typed("memory", "128", Flavour::V9)), json!("128"));
        assert_eq!(Value::from(guest.typed("memory", "128", Flavour::V7)), json!(128));
        assert_eq!(Value::from(guest.typed("agent", "1", Flavour::V9)), json!("1"));
        assert_eq!(Value::from(guest.typed("cipassword", "$5$x", Flavour::V9)), json!(HIDDEN));
    }

    #[test]
    fn a_pending_deletion_of_a_false_value_is_not_shown() {
        let mut guest = guest(&[("ostype", "l26"), ("numa", "0"), ("cores", "1")]);
        guest.deletions.extend([("ostype".to_owned(), false), ("numa".to_owned(), false)]);
        guest.pending.insert("cores".to_owned(), "2".to_owned());
        let merged = guest.merged();
        assert_eq!(merged.get("ostype"), None);
        assert_eq!(merged.get("numa").map(String::as_str), Some("0"));
        assert_eq!(merged.get("cores").map(String::as_str), Some("2"));
    }

    #[test]
    fn a_containers_notes_end_with_a_line_end() {
        let container = Guest::new(200, Kind::Lxc, "pve1");
        assert_eq!(Value::from(container.typed("description", "abc", Flavour::V9)), json!("abc\n"));
    }
}
