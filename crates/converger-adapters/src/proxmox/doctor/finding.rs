//! A finding: what was checked, the result, and the commands that fix it.
//!
//! Foreign text is escaped before it becomes part of a sentence (G16), and becomes part of a command only if it is one plain word.

use converger_core::failure::FailureCode;
use serde::Serialize;

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FindingLevel {
    /// In order.
    Ok,
    /// Works, but needs attention.
    Warn,
    /// Does not work.
    Fail,
    /// Could not be determined.
    Unknown,
    /// Missing, but no plan needs it.
    Unneeded,
}

impl FindingLevel {
    /// All levels.
    pub const ALL: [Self; 5] = [Self::Ok, Self::Warn, Self::Fail, Self::Unknown, Self::Unneeded];

    /// Its word in output.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Fail => "fail",
            Self::Unknown => "unknown",
            Self::Unneeded => "unneeded",
        }
    }
}

/// A finding about one thing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DoctorFinding {
    /// The subject if one check covers several things: an endpoint or a node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub about: Option<String>,
    /// The name of the check, in kebab-case; stable.
    pub check: &'static str,
    /// The failure code if the finding prevents commands from observing; `explain` knows more about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<&'static str>,
    /// The finding in a sentence.
    pub found: String,
    /// The result.
    pub level: FindingLevel,
    /// The use of the privilege, if the finding is about one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub part: Option<PrivilegeUse>,
    /// The remedy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<Remedy>,
}

/// What a privilege is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum PrivilegeUse {
    /// Plans may need it.
    Apply,
    /// Only a person who requests the change by name needs it; no plan does.
    Request,
}

/// What to do about a finding.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Remedy {
    /// Commands or settings to type, in order.
    pub lines: Vec<RemedyLine>,
    /// An instruction in words.
    pub text: String,
}

/// A line to type literally.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RemedyLine {
    /// The line.
    pub text: String,
    /// Where to type it.
    pub r#where: RemedyTarget,
}

/// Where to type a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum RemedyTarget {
    /// In a shell on a node, as root.
    Node,
    /// In converger.toml, in the section of the environment.
    Config,
    /// In a shell on this machine.
    Here,
}

impl DoctorFinding {
    /// A finding of a check, without a subject or a remedy.
    pub fn new(check: &'static str, level: FindingLevel, found: impl Into<String>) -> Self {
        Self { about: None, check, code: None, found: found.into(), level, part: None, remedy: None }
    }

    /// Sets the subject.
    #[must_use]
    pub fn with_subject(self, about: impl Into<String>) -> Self {
        Self { about: Some(about.into()), ..self }
    }

    /// Sets the use of the privilege.
    #[must_use]
    pub(super) fn with_part(self, part: PrivilegeUse) -> Self {
        Self { part: Some(part), ..self }
    }

    /// Sets the failure code.
    #[must_use]
    pub fn with_code(self, code: FailureCode) -> Self {
        Self { code: Some(code.word()), ..self }
    }

    /// Sets the text of the remedy.
    #[must_use]
    pub fn with_remedy(mut self, text: impl Into<String>) -> Self {
        self.remedy.get_or_insert_default().text = text.into();
        self
    }

    /// Adds a line to the remedy.
    #[must_use]
    pub fn with_line(mut self, r#where: RemedyTarget, text: impl Into<String>) -> Self {
        self.remedy.get_or_insert_default().lines.push(RemedyLine { text: text.into(), r#where });
        self
    }

    /// Adds lines to the remedy.
    #[must_use]
    pub fn with_lines(mut self, lines: Vec<RemedyLine>) -> Self {
        self.remedy.get_or_insert_default().lines.extend(lines);
        self
    }
}

/// Joins items and shortens long lists.
pub(super) fn join_some<T: ToString>(items: impl IntoIterator<Item = T>) -> String {
    const SHOWN_MAX: usize = 12;
    let items: Vec<String> = items.into_iter().map(|item| item.to_string()).collect();
    match items.get(..SHOWN_MAX).filter(|_| items.len() > SHOWN_MAX + 1) {
        Some(first) => format!("{} and {} more", first.join(", "), items.len() - SHOWN_MAX),
        None => items.join(", "),
    }
}

/// Formats a count: `1 guest`, `2 guests`.
pub(super) fn count_noun(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lists_are_cut_and_counted() {
        assert_eq!(join_some(1..4), "1, 2, 3");
        assert_eq!(join_some(1..14), "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13", "one more item takes no more space than its count");
        assert_eq!(join_some(1..100), "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12 and 87 more");
    }

    #[test]
    fn remedy_has_text_and_lines() {
        let finding = DoctorFinding::new("x-y", FindingLevel::Warn, "z")
            .with_line(RemedyTarget::Node, "a")
            .with_remedy("do")
            .with_line(RemedyTarget::Config, "b");
        let remedy = finding.remedy.expect("a remedy");
        assert_eq!((remedy.text.as_str(), remedy.lines.len()), ("do", 2));
        assert!(FindingLevel::ALL.windows(2).all(|pair| pair[0] < pair[1]));
    }
}
