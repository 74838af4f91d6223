//! What is wrong with converger.toml, and where. The line itself is never shown: it may hold a secret, though none belongs there.

use converger_core::document::LineColumn;
use converger_core::failure::FailureCode;
use toml::Spanned;

use crate::error::RuntimeError;

/// Whether the key that a message quotes is a plain word.
fn is_plain_key(found: &str) -> bool {
    let key = found.split('`').nth(1).unwrap_or_default();
    key.len() <= 20 && key.bytes().all(|byte| byte.is_ascii_lowercase() || matches!(byte, b'-' | b'_'))
}

/// Why there is nothing to go by, in a sentence for people.
#[derive(Debug)]
pub struct ConfigError {
    /// Its code.
    pub code: FailureCode,
    /// What is wrong.
    pub text: String,
}

impl From<ConfigError> for RuntimeError {
    fn from(unusable: ConfigError) -> Self {
        let help = match unusable.code {
            FailureCode::FileUnreadable => "check the path, or who may read it with `ls -l`",
            _ => "mend it there; nothing was read and nothing was done",
        };
        Self::input(unusable.text).with_code(unusable.code).with_help(help)
    }
}

/// A fault of the file.
#[derive(Debug)]
pub(super) struct ConfigFault {
    /// The offset of what is wrong, in bytes.
    offset: Option<usize>,
    code: FailureCode,
    text: String,
}

impl ConfigFault {
    /// This value is wrong.
    pub(super) fn at_value<T>(value: &Spanned<T>, text: impl Into<String>) -> Self {
        Self { offset: Some(value.span().start), code: FailureCode::ConfigInvalid, text: text.into() }
    }

    /// It is about no place in particular.
    pub(super) fn without_position(text: impl Into<String>) -> Self {
        Self { offset: None, code: FailureCode::ConfigInvalid, text: text.into() }
    }

    /// The environment is not there.
    pub(super) fn environment_missing(text: impl Into<String>) -> Self {
        Self { offset: None, code: FailureCode::EnvironmentUnconfigured, text: text.into() }
    }

    /// The file is not TOML, or not of the shape that is read.
    pub(super) fn from_toml(error: &toml::de::Error) -> Self {
        // "invalid type: string \"hunter2\", expected u32": what was found stays out, what is expected is said.
        let text = match error.message().split_once(", expected ") {
            Some((found, expected)) if found.starts_with("invalid ") => {
                let expected = if matches!(expected, "u32" | "u64") { "a whole number that is not negative" } else { expected };
                format!("this value is wrong; expected is {expected}")
            }
            Some((found, expected)) if found.starts_with("unknown variant ") => format!("this value is wrong; expected is {expected}"),
            // A misspelt key is a plain word; anything else may be a secret that was pasted here.
            Some((found, expected)) if found.starts_with("unknown field ") && !is_plain_key(found) => {
                format!("this key is unknown, expected {expected}")
            }
            _ => crate::files::escape_hidden(error.message()),
        };
        Self { offset: Some(error.span().map_or(0, |span| span.start)), code: FailureCode::ConfigInvalid, text }
    }

    /// The same, in this part of the file.
    pub(super) fn in_section(self, part: &str) -> Self {
        Self { text: format!("{part}: {}", self.text), ..self }
    }

    /// The same as what ends a command.
    pub(super) fn to_config_error(&self, name: &str, file: &str) -> ConfigError {
        ConfigError { code: self.code, text: format!("{name}: {}", self.describe(file)) }
    }

    /// Where and what, for people.
    pub(super) fn describe(&self, file: &str) -> String {
        let Some(at) = self.offset else { return self.text.clone() };
        let place = LineColumn::at_offset(file, u32::try_from(at).unwrap_or(u32::MAX));
        format!("line {}, column {}: {}", place.line, place.column, self.text)
    }
}
