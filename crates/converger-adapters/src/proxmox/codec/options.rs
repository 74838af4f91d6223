//! The datacenter options about tags: whether their case is kept, and who may set which tag.
//!
//! Must not decide what follows from them (`observe`, `doctor`).

use std::collections::BTreeSet;

use converger_core::observe::TagCase;
use serde::Deserialize;
use serde_json::Value;

use super::object::UniqueMap;
use super::property;

/// The datacenter's rules for tags, as they apply to the token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TagOptions {
    /// Whether the case of letters is kept.
    pub tag_case: TagCase,
    /// Whether users may create new tags.
    is_free: bool,
    /// Tags that the token may set if users may not create new ones.
    allowed: BTreeSet<Box<str>>,
    /// Tags that only `Sys.Modify` on `/` may set.
    registered: BTreeSet<Box<str>>,
}

impl TagOptions {
    /// Whether adding or removing a tag needs `Sys.Modify` on `/`.
    #[must_use]
    pub fn needs_privilege(&self, tag: &str) -> bool {
        self.registered.contains(tag) || !(self.is_free || self.allowed.contains(tag))
    }
}

#[derive(Deserialize)]
pub(super) struct OptionsRow {
    #[serde(rename = "tag-style", default)]
    tag_style: Option<Property>,
    #[serde(rename = "user-tag-access", default)]
    user_tag_access: Option<Property>,
    #[serde(rename = "registered-tags", default)]
    registered: Option<Value>,
    #[serde(rename = "allowed-tags", default)]
    allowed: Option<Value>,
}

/// A property as an object, as the API returns it, or as one text, as the file contains it.
#[derive(Deserialize)]
#[serde(untagged)]
enum Property {
    Parts(UniqueMap<Value>),
    Text(String),
}

impl Property {
    fn part(&self, name: &str) -> Option<Value> {
        match self {
            Self::Parts(UniqueMap(parts)) => parts.get(name).cloned(),
            Self::Text(text) => property::find_part(text, "", name).map(Value::from),
        }
    }
}

/// The rules, or the option whose value is unknown to this program.
pub(super) fn tag_options(row: &OptionsRow) -> Result<TagOptions, &'static str> {
    let style = row.tag_style.as_ref().and_then(|style| style.part("case-sensitive"));
    let keeps_case = style.as_ref().map_or(Some(false), flag).ok_or("tag-style")?;
    let access = |name| row.user_tag_access.as_ref().and_then(|access| access.part(name));
    let mode = access("user-allow").unwrap_or_else(|| "free".into());
    let mode = mode.as_str().filter(|mode| ["existing", "free", "list", "none"].contains(mode)).ok_or("user-tag-access")?;
    // The server reports the tags that the token may set. A release that does not still has the configured list.
    let allowed = match (&row.allowed, mode) {
        (Some(allowed), _) => tags(allowed),
        (None, "none") => BTreeSet::new(),
        (None, _) => access("user-allow-list").as_ref().map(tags).unwrap_or_default(),
    };
    Ok(TagOptions {
        tag_case: if keeps_case { TagCase::Kept } else { TagCase::Lowered },
        is_free: mode == "free",
        allowed,
        registered: row.registered.as_ref().map(tags).unwrap_or_default(),
    })
}

fn flag(value: &Value) -> Option<bool> {
    match value {
        Value::Bool(flag) => Some(*flag),
        Value::Number(number) => [false, true].into_iter().find(|flag| number.as_u64() == Some(u64::from(*flag))),
        Value::String(text) => property::parse_property_flag(text),
        _ => None,
    }
}

/// Parses tags from a list or from one text.
fn tags(value: &Value) -> BTreeSet<Box<str>> {
    let split_words = |text: &str| text.split([';', ',', ' ']).filter(|word| !word.is_empty()).map(Into::into).collect::<Vec<Box<str>>>();
    match value {
        Value::Array(list) => list.iter().filter_map(Value::as_str).flat_map(split_words).collect(),
        Value::String(text) => split_words(text).into_iter().collect(),
        _ => BTreeSet::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Result<TagOptions, &'static str> {
        tag_options(&serde_json::from_str(json).expect("an object"))
    }

    #[test]
    fn tags_are_lowered_and_free_by_default() {
        let options = read("{}").expect("options");
        assert_eq!(options.tag_case, TagCase::Lowered);
        assert!(!options.needs_privilege("whatever"));
    }

    #[test]
    fn case_is_kept_if_the_style_says_so() {
        for style in [
            r#"{"case-sensitive":1}"#,
            r#"{"case-sensitive":"1","shape":"full"}"#,
            r#""ordering=config,case-sensitive=1""#,
            r#"{"case-sensitive":true}"#,
        ] {
            assert_eq!(read(&format!(r#"{{"tag-style":{style}}}"#)).expect("options").tag_case, TagCase::Kept, "{style}");
        }
        for style in [r#"{"case-sensitive":0}"#, r#"{"shape":"full"}"#, r#""shape=full""#] {
            assert_eq!(read(&format!(r#"{{"tag-style":{style}}}"#)).expect("options").tag_case, TagCase::Lowered, "{style}");
        }
        assert_eq!(read(r#"{"tag-style":{"case-sensitive":"perhaps"}}"#), Err("tag-style"));
        assert!(serde_json::from_str::<OptionsRow>(r#"{"tag-style":{"case-sensitive":0,"case-sensitive":1}}"#).is_err());
    }

    #[test]
    fn reports_which_tags_need_a_privilege() {
        let list = read(r#"{"user-tag-access":{"user-allow":"list","user-allow-list":["web","db"]},"allowed-tags":["web","db"]}"#);
        let list = list.expect("options");
        assert_eq!(["web", "prod"].map(|tag| list.needs_privilege(tag)), [false, true]);
        let unsaid = read(r#"{"user-tag-access":"user-allow=list,user-allow-list=web;db"}"#).expect("options");
        assert_eq!(["db", "prod"].map(|tag| unsaid.needs_privilege(tag)), [false, true]);
        let none = read(r#"{"user-tag-access":{"user-allow":"none"},"allowed-tags":[]}"#).expect("options");
        assert!(none.needs_privilege("web"));
        let registered = read(r#"{"registered-tags":["prod"],"allowed-tags":["web"]}"#).expect("options");
        assert_eq!(["web", "new", "prod"].map(|tag| registered.needs_privilege(tag)), [false, false, true]);
        assert_eq!(read(r#"{"user-tag-access":{"user-allow":"perhaps"}}"#), Err("user-tag-access"));
    }
}
