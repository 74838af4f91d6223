//! A config file of named sections in the order of their creation: HA groups and rules.
//!
//! Must not know which settings exist.

use std::collections::BTreeMap;

use sha1::{Digest, Sha1};

/// The error if the digest of a request does not match.
pub(crate) const MODIFIED_TEXT: &str = "detected modified configuration - file changed by other user? Try again.";

/// The settings of one section.
pub(crate) type SectionSettings = BTreeMap<String, String>;

/// The sections of a file.
#[derive(Clone, Debug, Default)]
pub(crate) struct SectionFile {
    all: Vec<(String, SectionSettings)>,
}

impl SectionFile {
    pub(crate) fn get(&self, name: &str) -> Option<&SectionSettings> {
        self.all.iter().find(|(known, _)| known == name).map(|(_, settings)| settings)
    }

    /// The sections in order, each with its position.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (usize, &str, &SectionSettings)> {
        self.all.iter().enumerate().map(|(position, (name, settings))| (position + 1, name.as_str(), settings))
    }

    /// Appends a section, or replaces the one with that name.
    pub(crate) fn put(&mut self, name: &str, settings: SectionSettings) {
        match self.all.iter_mut().find(|(known, _)| known == name) {
            Some((_, known)) => *known = settings,
            None => self.all.push((name.to_owned(), settings)),
        }
    }

    pub(crate) fn remove(&mut self, name: &str) {
        self.all.retain(|(known, _)| known != name);
    }

    /// The digest of the file, which depends on its content only.
    pub(crate) fn digest(&self) -> String {
        Sha1::digest(format!("{:?}", self.all)).iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_keep_their_order_and_the_digest_depends_on_the_content() {
        let mut sections = SectionFile::default();
        let settings = |text: &str| SectionSettings::from([("comment".to_owned(), text.to_owned())]);
        sections.put("b", settings("one"));
        sections.put("a", settings("two"));
        let before = sections.digest();
        sections.put("b", settings("three"));
        assert_ne!(sections.digest(), before);
        sections.put("b", settings("one"));
        assert_eq!(sections.digest(), before, "the same content has the same digest");
        let names: Vec<(usize, &str)> = sections.iter().map(|(position, name, _)| (position, name)).collect();
        assert_eq!(names, [(1, "b"), (2, "a")]);
        sections.remove("b");
        assert_eq!(sections.get("b"), None);
    }
}
