//! Property strings: `key=value` pairs separated by commas. The first pair may omit its key.
//!
//! Proxmox stores most of them as sent, so one value has several forms: `1`, `enabled=1` and `enabled=on` are the same `agent`.

/// The pairs of a property string, in order. A part without `=` belongs to the default key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PropertyString<'t>(Vec<(&'t str, &'t str)>);

fn split_parts<'t>(text: &'t str, default_key: &'t str) -> impl Iterator<Item = (&'t str, &'t str)> {
    let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
    parts.map(move |part| part.split_once('=').unwrap_or((default_key, part)))
}

/// Like [`PropertyString::get`], for a single key of a text.
pub(super) fn find_part<'t>(text: &'t str, default_key: &'t str, key: &str) -> Option<&'t str> {
    split_parts(text, default_key).find(|(own, _)| *own == key).map(|(_, value)| value)
}

impl<'t> PropertyString<'t> {
    pub(super) fn parse(text: &'t str, default_key: &'t str) -> Self {
        Self(split_parts(text, default_key).collect())
    }

    pub(super) fn get(&self, key: &str) -> Option<&'t str> {
        self.0.iter().find(|(own, _)| *own == key).map(|(_, value)| *value)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&'t str, &'t str)> {
        self.0.iter().copied()
    }

    /// Whether there is any key besides these.
    pub(super) fn has_others(&self, keys: &[&str]) -> bool {
        self.0.iter().any(|(own, _)| !keys.contains(own))
    }

    /// Formats the string with this key first and all others unchanged.
    pub(super) fn with_first(&self, key: &str, value: &str) -> String {
        let others = self.0.iter().filter(|(own, _)| *own != key).map(|(own, value)| format!("{own}={value}"));
        std::iter::once(format!("{key}={value}")).chain(others).collect::<Vec<_>>().join(",")
    }
}

/// Parses a flag; accepts every spelling that Proxmox accepts in property strings.
pub(super) fn parse_property_flag(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "1" | "on" | "yes" | "true" => Some(true),
        "0" | "off" | "no" | "false" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_key_may_be_omitted() {
        for text in ["1,fstrim_cloned_disks=1", "enabled=1,fstrim_cloned_disks=1", "fstrim_cloned_disks=1, enabled=1"] {
            let properties = PropertyString::parse(text, "enabled");
            assert_eq!(properties.get("enabled"), Some("1"), "{text}");
            assert_eq!(properties.with_first("enabled", "0"), "enabled=0,fstrim_cloned_disks=1");
        }
        assert_eq!(PropertyString::parse("", "enabled").get("enabled"), None);
        assert!(PropertyString::parse("2048,x=1", "current").has_others(&["current"]));
    }

    #[test]
    fn property_flags_accept_more_words() {
        assert_eq!(
            (parse_property_flag("on"), parse_property_flag("No"), parse_property_flag("1"), parse_property_flag("2")),
            (Some(true), Some(false), Some(true), None)
        );
    }
}
