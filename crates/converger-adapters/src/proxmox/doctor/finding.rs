//! A finding: what was looked at, how it stands, and what to type about it.
//!
//! What others wrote is escaped before it becomes part of a sentence (G16), and never becomes part of a line that is to be typed
//! unless it is one plain word.

use converger_core::failure::Code;
use serde::Serialize;

/// How something stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
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

impl Level {
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
pub struct Finding {
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
    pub level: Level,
    /// What it matters for, where it is about a privilege.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub part: Option<Part>,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<Remedy>,
}

/// What a privilege is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Part {
    /// A plan can come to ask for it today.
    Apply,
    /// Only a person who asks for it by name; no plan does.
    Request,
}

/// What to do about a finding.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Remedy {
    /// Lines to type, in order.
    pub lines: Vec<Line>,
    /// What to do, in words.
    pub text: String,
}

/// A line that can be typed as it stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Line {
    /// The line.
    pub text: String,
    /// Where it is typed.
    pub r#where: Where,
}

/// Where a line is typed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Where {
    /// In a shell on a node, as root.
    Node,
    /// In converger.toml, where the environment stands.
    Config,
    /// In a shell on this machine.
    Here,
}

impl Finding {
    /// What was found by a check.
    pub fn new(check: &'static str, level: Level, found: impl Into<String>) -> Self {
        Self { about: None, check, code: None, found: found.into(), level, part: None, remedy: None }
    }

    /// The same, about one of several things.
    #[must_use]
    pub fn about(self, about: impl Into<String>) -> Self {
        Self { about: Some(about.into()), ..self }
    }

    /// The same, as a matter of privileges.
    #[must_use]
    pub(super) fn part(self, part: Part) -> Self {
        Self { part: Some(part), ..self }
    }

    /// The same, under the code of a failure.
    #[must_use]
    pub fn code(self, code: Code) -> Self {
        Self { code: Some(code.word()), ..self }
    }

    /// The same, with what to do about it.
    #[must_use]
    pub fn remedy(mut self, text: impl Into<String>) -> Self {
        self.remedy.get_or_insert_default().text = text.into();
        self
    }

    /// The same, with a line to type.
    #[must_use]
    pub fn line(mut self, r#where: Where, text: impl Into<String>) -> Self {
        self.remedy.get_or_insert_default().lines.push(Line { text: text.into(), r#where });
        self
    }

    /// The same, with these lines to type.
    #[must_use]
    pub fn lines(mut self, lines: Vec<Line>) -> Self {
        self.remedy.get_or_insert_default().lines.extend(lines);
        self
    }
}

/// Some of many, so that a line stays a line.
pub(super) fn listed<T: ToString>(items: impl IntoIterator<Item = T>) -> String {
    const SHOWN_MAX: usize = 12;
    let items: Vec<String> = items.into_iter().map(|item| item.to_string()).collect();
    match items.get(..SHOWN_MAX).filter(|_| items.len() > SHOWN_MAX + 1) {
        Some(first) => format!("{} and {} more", first.join(", "), items.len() - SHOWN_MAX),
        None => items.join(", "),
    }
}

/// `1 guest`, `2 guests`.
pub(super) fn counted(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_things_are_counted_and_not_listed() {
        assert_eq!(listed(1..4), "1, 2, 3");
        assert_eq!(listed(1..14), "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13", "one more takes no more room than its count");
        assert_eq!(listed(1..100), "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12 and 87 more");
    }

    #[test]
    fn a_remedy_is_made_of_words_and_lines() {
        let finding = Finding::new("x-y", Level::Warn, "z").line(Where::Node, "a").remedy("do").line(Where::Config, "b");
        let remedy = finding.remedy.expect("a remedy");
        assert_eq!((remedy.text.as_str(), remedy.lines.len()), ("do", 2));
        assert!(Level::ALL.windows(2).all(|pair| pair[0] < pair[1]));
    }
}
