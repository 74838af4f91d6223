//! Datacenter options, as far as they concern tags.
//!
//! Must not depend on callers or response encoding.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use crate::schema::split_list;

/// The supported options and the properties of each.
const PARTS: [(&str, &[&str]); 3] = [
    ("registered-tags", &[]),
    ("tag-style", &["case-sensitive", "color-map", "ordering", "shape"]),
    ("user-tag-access", &["user-allow", "user-allow-list"]),
];

/// The values of `user-allow`.
const USER_ALLOW: [&str; 4] = ["existing", "free", "list", "none"];

/// The options of a datacenter as they were written.
#[derive(Clone, Debug, Default)]
pub(crate) struct DatacenterOptions(BTreeMap<String, String>);

impl DatacenterOptions {
    /// Sets one option.
    ///
    /// # Errors
    /// The error in the words of Proxmox.
    pub(crate) fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        let (_, parts) = PARTS.iter().find(|(own, _)| *own == key).ok_or("property is not defined in schema")?;
        if !parts.is_empty() {
            for (name, text) in pairs(value) {
                if !parts.contains(&name) {
                    let unknown = "property is not defined in schema and the schema does not allow additional properties";
                    return Err(format!("invalid format - format error\n{name}: {unknown}\n"));
                }
                if name == "user-allow" && !USER_ALLOW.contains(&text) {
                    let allowed = USER_ALLOW.join(", ");
                    return Err(format!(
                        "invalid format - format error\n{name}: value '{text}' does not have a value in the enumeration '{allowed}'\n"
                    ));
                }
            }
        }
        self.0.insert(key.to_owned(), value.to_owned());
        Ok(())
    }

    pub(crate) fn remove(&mut self, key: &str) {
        self.0.remove(key);
    }

    /// Whether tags keep their case.
    pub(crate) fn keeps_case(&self) -> bool {
        self.part("tag-style", "case-sensitive").is_some_and(|text| text == "1")
    }

    /// Tags as Proxmox stores them: sorted, without duplicates, joined by semicolons.
    pub(crate) fn stored_tags(&self, value: &str) -> String {
        let stored = |tag: &str| if self.keeps_case() { tag.to_owned() } else { tag.to_ascii_lowercase() };
        let tags: BTreeSet<String> = split_list(value).map(stored).collect();
        tags.into_iter().collect::<Vec<_>>().join(";")
    }

    /// Whether a caller without `Sys.Modify` on `/` may add or remove a tag. `seen` contains the tags of the guests that they may audit.
    pub(crate) fn allows(&self, tag: &str, seen: &BTreeSet<&str>) -> bool {
        let mode = self.part("user-tag-access", "user-allow").unwrap_or("free");
        let is_listed = mode != "none" && self.list("user-tag-access", "user-allow-list").any(|own| own == tag);
        let is_seen = mode == "existing" && seen.contains(tag);
        !self.registered().any(|own| own == tag) && (mode == "free" || is_listed || is_seen)
    }

    /// The tags that Proxmox offers to a caller: the configured list, those in use if the mode allows them, and for privileged callers all
    /// registered ones.
    pub(crate) fn offered<'t>(&'t self, seen: &BTreeSet<&'t str>, is_privileged: bool) -> BTreeSet<&'t str> {
        let mode = self.part("user-tag-access", "user-allow").unwrap_or("free");
        let mut tags = BTreeSet::new();
        if mode != "none" || is_privileged {
            tags.extend(self.list("user-tag-access", "user-allow-list"));
        }
        if matches!(mode, "free" | "existing") || is_privileged {
            tags.extend(seen);
        }
        if is_privileged {
            tags.extend(self.registered());
        } else {
            tags.retain(|tag| self.registered().all(|own| own != *tag));
        }
        tags
    }

    /// The options as in `GET /cluster/options`: properties as objects, tag lists as arrays.
    pub(crate) fn shown(&self) -> Map<String, Value> {
        let mut options = Map::new();
        for (key, value) in &self.0 {
            let parts = match key.as_str() {
                "registered-tags" => json!(self.registered().collect::<Vec<_>>()),
                _ => Value::Object(pairs(value).map(|(name, text)| (name.to_owned(), part_shown(name, text))).collect()),
            };
            options.insert(key.clone(), parts);
        }
        options
    }

    fn registered(&self) -> impl Iterator<Item = &str> {
        self.0.get("registered-tags").into_iter().flat_map(|text| split_list(text))
    }

    fn list(&self, key: &str, part: &str) -> impl Iterator<Item = &str> {
        self.part(key, part).into_iter().flat_map(split_list)
    }

    fn part(&self, key: &str, part: &str) -> Option<&str> {
        pairs(self.0.get(key)?).find(|(name, _)| *name == part).map(|(_, text)| text)
    }
}

fn part_shown(name: &str, text: &str) -> Value {
    match name {
        "user-allow-list" => json!(split_list(text).collect::<Vec<_>>()),
        "case-sensitive" => json!(u8::from(text == "1")),
        _ => json!(text),
    }
}

fn pairs(value: &str) -> impl Iterator<Item = (&str, &str)> {
    value.split(',').filter_map(|pair| pair.split_once('='))
}
