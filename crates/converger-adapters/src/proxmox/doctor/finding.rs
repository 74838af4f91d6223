//! A finding: what was looked at, how it stands, and what to type about it.
//!
//! What others wrote is escaped before it becomes part of a sentence (G16), and never becomes part of a line that is to be typed
//! unless it is one plain word.

use converger_core::failure::FailureCode;
use serde::Serialize;

/// How something stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FindingLevel {
    /// As it should be.
    Ok,
    /// It works, and somebody should look at it.
    Warn,
    /// It does not work.
    Fail,
    /// It could not be told.
    Unknown,
    /// It is missing, and nothing that is planned asks for it.
    Unneeded,
}

impl FindingLevel {
    /// All levels.
    pub const ALL: [Self; 5] = [Self::Ok, Self::Warn, Self::Fail, Self::Unknown, Self::Unneeded];

    /// The word for it.
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

/// What was found about one thing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DoctorFinding {
    /// What it is about, where one check looks at several things: an endpoint, a node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub about: Option<String>,
    /// What was looked at, in kebab-case; stable.
    pub check: &'static str,
    /// The failure that it is, where it keeps commands from reading: under this word `explain` has more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<&'static str>,
    /// What was found, in a sentence.
    pub found: String,
    /// How it stands.
    pub level: FindingLevel,
    /// What it matters for, where it is about a privilege.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub part: Option<PrivilegeUse>,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<Remedy>,
}

/// What a privilege is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum PrivilegeUse {
    /// A plan can come to ask for it today.
    Apply,
    /// Only a person who asks for it by name; no plan does.
    Request,
}

/// What to do about a finding.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Remedy {
    /// Lines to type, in order.
    pub lines: Vec<RemedyLine>,
    /// What to do, in words.
    pub text: String,
}

/// A line that can be typed as it stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RemedyLine {
    /// The line.
    pub text: String,
    /// Where it is typed.
    pub r#where: RemedyTarget,
}

/// Where a line is typed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum RemedyTarget {
    /// In a shell on a node, as root.
    Node,
    /// In converger.toml, where the environment stands.
    Config,
    /// In a shell on this machine.
    Here,
}

impl DoctorFinding {
    /// What was found by a check.
    pub fn new(check: &'static str, level: FindingLevel, found: impl Into<String>) -> Self {
        Self { about: None, check, code: None, found: found.into(), level, part: None, remedy: None }
    }

    /// The same, about one of several things.
    #[must_use]
    pub fn with_subject(self, about: impl Into<String>) -> Self {
        Self { about: Some(about.into()), ..self }
    }

    /// The same, as a matter of privileges.
    #[must_use]
    pub(super) fn with_part(self, part: PrivilegeUse) -> Self {
        Self { part: Some(part), ..self }
    }

    /// The same, under the code of a failure.
    #[must_use]
    pub fn with_code(self, code: FailureCode) -> Self {
        Self { code: Some(code.word()), ..self }
    }

    /// The same, with what to do about it.
    #[must_use]
    pub fn with_remedy(mut self, text: impl Into<String>) -> Self {
        self.remedy.get_or_insert_default().text = text.into();
        self
    }

    /// The same, with a line to type.
    #[must_use]
    pub fn with_line(mut self, r#where: RemedyTarget, text: impl Into<String>) -> Self {
        self.remedy.get_or_insert_default().lines.push(RemedyLine { text: text.into(), r#where });
        self
    }

    /// The same, with these lines to type.
    #[must_use]
    pub fn with_lines(mut self, lines: Vec<RemedyLine>) -> Self {
        self.remedy.get_or_insert_default().lines.extend(lines);
        self
    }
}

/// Some of many, so that a line stays a line.
pub(super) fn join_some<T: ToString>(items: impl IntoIterator<Item = T>) -> String {
    const SHOWN_MAX: usize = 12;
    let items: Vec<String> = items.into_iter().map(|item| item.to_string()).collect();
    match items.get(..SHOWN_MAX).filter(|_| items.len() > SHOWN_MAX + 1) {
        Some(first) => format!("{} and {} more", first.join(", "), items.len() - SHOWN_MAX),
        None => items.join(", "),
    }
}

/// `1 guest`, `2 guests`.
pub(super) fn count_noun(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lists_are_cut_and_counted() {
        assert_eq!(join_some(1..4), "1, 2, 3");
        assert_eq!(join_some(1..14), "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13", "one more takes no more room than its count");
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
