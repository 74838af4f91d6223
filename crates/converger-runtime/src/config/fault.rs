//! What is wrong with converger.toml, and where. The line itself is never shown: it may hold a secret, though none belongs there.

use converger_core::document::Place;
use converger_core::failure::Code;
use toml::Spanned;

use crate::error::RuntimeError;

/// Whether the key that a message quotes is a plain word.
fn is_word(found: &str) -> bool {
    let key = found.split('`').nth(1).unwrap_or_default();
    key.len() <= 20 && key.bytes().all(|byte| byte.is_ascii_lowercase() || matches!(byte, b'-' | b'_'))
}

/// Why there is nothing to go by, in a sentence for people.
#[derive(Debug)]
pub struct Unusable {
    /// Its code.
    pub code: Code,
    /// What is wrong.
    pub text: String,
}

impl From<Unusable> for RuntimeError {
    fn from(unusable: Unusable) -> Self {
        let help = match unusable.code {
            Code::FileUnreadable => "check the path, or who may read it with `ls -l`",
            _ => "mend it there; nothing was read and nothing was done",
        };
        Self::input(unusable.text).with_code(unusable.code).with_help(help)
    }
}

/// A fault of the file.
#[derive(Debug)]
pub(super) struct Fault {
    /// The offset of what is wrong, in bytes.
    at: Option<usize>,
    code: Code,
    text: String,
}

impl Fault {
    /// This value is wrong.
    pub(super) fn at<T>(value: &Spanned<T>, text: impl Into<String>) -> Self {
        Self { at: Some(value.span().start), code: Code::ConfigInvalid, text: text.into() }
    }

    /// It is about no place in particular.
    pub(super) fn nowhere(text: impl Into<String>) -> Self {
        Self { at: None, code: Code::ConfigInvalid, text: text.into() }
    }

    /// The environment is not there.
    pub(super) fn unconfigured(text: impl Into<String>) -> Self {
        Self { at: None, code: Code::EnvironmentUnconfigured, text: text.into() }
    }

    /// The file is not TOML, or not of the shape that is read.
    pub(super) fn of_toml(error: &toml::de::Error) -> Self {
        // "invalid type: string \"hunter2\", expected u32": what was found stays out, what is expected is said.
        let text = match error.message().split_once(", expected ") {
            Some((found, expected)) if found.starts_with("invalid ") => {
                let expected = if matches!(expected, "u32" | "u64") { "a whole number that is not negative" } else { expected };
                format!("this value is wrong; expected is {expected}")
            }
            Some((found, expected)) if found.starts_with("unknown variant ") => format!("this value is wrong; expected is {expected}"),
            // A misspelt key is a plain word; anything else may be a secret that was pasted here.
            Some((found, expected)) if found.starts_with("unknown field ") && !is_word(found) => {
                format!("this key is unknown, expected {expected}")
            }
            _ => crate::files::plain(error.message()),
        };
        Self { at: Some(error.span().map_or(0, |span| span.start)), code: Code::ConfigInvalid, text }
    }

    /// The same, in this part of the file.
    pub(super) fn under(self, part: &str) -> Self {
        Self { text: format!("{part}: {}", self.text), ..self }
    }

    /// The same as what ends a command.
    pub(super) fn unusable(&self, name: &str, file: &str) -> Unusable {
        Unusable { code: self.code, text: format!("{name}: {}", self.told(file)) }
    }

    /// Where and what, for people.
    pub(super) fn told(&self, file: &str) -> String {
        let Some(at) = self.at else { return self.text.clone() };
        let place = Place::of(file, u32::try_from(at).unwrap_or(u32::MAX));
        format!("line {}, column {}: {}", place.line, place.column, self.text)
    }
}
