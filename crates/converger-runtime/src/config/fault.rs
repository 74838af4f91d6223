//! Why converger.toml cannot be used: the faults of the file with their places, and its text with everything masked that may be a secret.

use std::path::Path;

use converger_core::document::{Diagnostic, Diagnostics, LineColumn};
use converger_core::failure::FailureCode;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::config_file::known_keys;
use super::connection::looks_like_secret;
use super::table_reader::is_plain_word;
use crate::error::{RuntimeError, RuntimeFault};

/// Why there is no configuration.
#[derive(Clone, Debug)]
pub struct ConfigError {
    /// Its code.
    pub code: FailureCode,
    /// What happened, to which file and why, in one sentence.
    pub text: String,
    /// The faults of the file, if it was read and has some.
    pub faults: Option<Box<ConfigFaults>>,
}

/// The faults of a configuration file, for a program that shows them in the lines of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigFaults {
    /// The name of the file.
    pub name: String,
    /// Its text, in which everything that may be a secret is masked. Byte offsets are those of the file.
    pub masked_text: String,
    /// Whether the file has no key of a configuration: it may be another file, so no line of it is shown.
    pub is_foreign: bool,
    /// All faults, in the order of their places.
    pub diagnostics: Diagnostics,
}

impl ConfigError {
    pub(super) fn new(code: FailureCode, text: impl Into<String>) -> Self {
        Self { code, text: text.into(), faults: None }
    }

    /// The file has these faults.
    pub(super) fn invalid(name: &str, text: &str, diagnostics: Diagnostics) -> Self {
        let first = diagnostics.list().first().map(|fault| describe_fault(text, fault)).unwrap_or_default();
        let more = match diagnostics.list().len() {
            0 | 1 => String::new(),
            2 => " (and 1 more fault)".to_owned(),
            count => format!(" (and {} more faults)", count - 1),
        };
        let faults = ConfigFaults { name: name.to_owned(), masked_text: mask_text(text), is_foreign: is_foreign(text), diagnostics };
        Self { faults: Some(Box::new(faults)), ..Self::new(FailureCode::ConfigInvalid, format!("{name}: {first}{more}")) }
    }
}

/// Line, column and message of a fault.
fn describe_fault(text: &str, fault: &Diagnostic) -> String {
    let position = LineColumn::at_offset(text, fault.span.start);
    let help = fault.help.as_ref().map(|help| format!("; {help}")).unwrap_or_default();
    format!("line {}, column {}: {}{help}", position.line, position.column, fault.message)
}

impl From<ConfigError> for RuntimeError {
    fn from(error: ConfigError) -> Self {
        let fault = RuntimeFault::new(error.text).with_code(error.code);
        match error.faults {
            Some(file) => {
                let help = format!("fix {}; nothing was read from the environment and nothing was done", file.name);
                Self::Config { fault: fault.with_help(help), file }
            }
            None if error.code == FailureCode::FileUnreadable => {
                Self::Input(fault.with_help("check the path, or who may read the file with `ls -l`"))
            }
            None => Self::Input(fault.with_help("write one (`converger explain environment-unconfigured` shows what it needs)")),
        }
    }
}

/// Whether a text has no section or key of a configuration. A file with a secret may have been named by mistake.
fn is_foreign(text: &str) -> bool {
    let (root, _) = DeTable::parse_recoverable(text);
    let is_known = |table: &DeTable<'_>| table.keys().any(|key| known_keys().any(|known| known == key.get_ref()));
    !text.trim().is_empty()
        && !is_known(root.get_ref())
        && !root.get_ref().values().any(|value| value.get_ref().as_table().is_some_and(is_known))
}

/// Keys whose values are shown where they are plain: none of them is a place for a secret.
const SHOWN_KEYS: [&str; 8] = ["mode", "clock", "names", "tags", "cluster", "ca", "directory", "witness"];

/// The text in which only layout, keys, numbers, flags and plain values of [`SHOWN_KEYS`] can be read. It has the same length in bytes.
fn mask_text(text: &str) -> String {
    let (root, _) = DeTable::parse_recoverable(text);
    let mut shown = vec![false; text.len()];
    show_known_words(text, &mut shown);
    show_table(root.get_ref(), text, &mut shown);
    let mask = |(offset, character): (usize, char)| {
        let is_layout = character.is_ascii_whitespace() || "[]{}=,.#\"'".contains(character);
        match (is_layout || shown.get(offset) == Some(&true), character.len_utf8()) {
            (true, _) => character,
            (false, 1) => '*',
            (false, 2) => '·',
            (false, 3) => '□',
            (false, _) => '𐄂',
        }
    };
    text.char_indices().map(mask).collect()
}

/// Shows the words that are keys of the file, wherever they are.
fn show_known_words(text: &str, shown: &mut [bool]) {
    let is_word = |character: char| character.is_ascii_alphanumeric() || matches!(character, '-' | '_');
    for word in text.split(|character: char| !is_word(character)).filter(|word| known_keys().any(|known| known == *word)) {
        let start = word.as_ptr().addr() - text.as_ptr().addr();
        show(shown, start..start + word.len());
    }
}

fn show(shown: &mut [bool], range: std::ops::Range<usize>) {
    shown.get_mut(range).into_iter().flatten().for_each(|byte| *byte = true);
}

fn show_table(table: &DeTable<'_>, text: &str, shown: &mut [bool]) {
    for (key, value) in table {
        let word = key.get_ref().as_ref();
        let follows = text.get(..key.span().start).is_some_and(|before| before.ends_with(['[', '.']));
        let is_section = follows && text.get(key.span()) == Some(word) && !looks_like_secret(Path::new(word));
        if is_plain_word(word) || is_section {
            show(shown, key.span());
        }
        show_value(word, value, text, shown);
    }
}

fn show_value(key: &str, value: &Spanned<DeValue<'_>>, text: &str, shown: &mut [bool]) {
    match value.get_ref() {
        DeValue::Table(table) => show_table(table, text, shown),
        DeValue::Array(entries) => entries.iter().for_each(|entry| show_value(key, entry, text, shown)),
        DeValue::String(word) if is_shown_value(key, word) => show(shown, value.span()),
        DeValue::Integer(number) if number.as_str().len() <= 9 => show(shown, value.span()),
        DeValue::Boolean(_) => show(shown, value.span()),
        _ => {}
    }
}

fn is_shown_value(key: &str, text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphabetic() || matches!(byte, b'-' | b'_' | b'.' | b'/' | b'*');
    let is_address = |text: &str| text.starts_with("http") && !text.contains(['@', '?', '=', '!', '#']);
    SHOWN_KEYS.contains(&key) && text.len() <= 60 && text.bytes().all(is_plain) || key == "url" && is_address(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_pasted_with_its_id_or_without_dashes_is_taken_for_a_secret() {
        let uuid = "aaaabbbb-cccc-4ddd-8eee-ffff00112233";
        let bare = uuid.replace('-', "");
        for pasted in [uuid, &bare, &format!("u@pve!tt={uuid}"), &format!("PVEAPIToken=u@pve!tt={bare}"), "u@pve!tt=short"] {
            assert!(looks_like_secret(Path::new(pasted)), "{pasted}");
        }
        for path in ["/etc/converger/secret", "secrets/pve-1", "u@pve.secret", "deadbeef"] {
            assert!(!looks_like_secret(Path::new(path)), "{path}");
        }
    }

    #[test]
    fn masks_everything_that_may_be_a_secret_and_keeps_offsets() {
        for (text, expected) in [
            ("[environments.lab]\nmode = \"sole\" # hunter2", "[environments.lab]\nmode = \"sole\" # *******"),
            ("secret = \"swordfish\"", "secret = \"*********\""),
            ("token = \"a@pve!me=hunter2\"", "token = \"*************=*\"".replace("*************=*", "********=*******").as_str()),
            ("url = \"https://a:hunter2@b\"", "url = \"*******************\""),
            ("url = \"https://pve1:8006\"", "url = \"https://pve1:8006\""),
            ("hunter2 = 1", "******* = 1"),
            ("[limits]\nguest = -1", "[limits]\nguest = -1"),
            ("[environments.pve2]\n[environments.pve3]\nhunter2", "[environments.pve2]\n[environments.pve3]\n*******"),
            ("é = \"12345678-1234-1234-1234-123456789abc\"", "· = \"************************************\""),
        ] {
            let masked = mask_text(text);
            assert_eq!(masked, expected);
            assert_eq!(masked.len(), text.len());
        }
    }

    #[test]
    fn a_file_without_any_known_key_is_foreign() {
        assert!(is_foreign("5ec2e700-0000-4000-8000-000000000001") && is_foreign("PVE_SECRET=hunter2") && is_foreign("password = \"x\""));
        assert!(!is_foreign("") && !is_foreign("[limit]\nguests = 1") && !is_foreign("[limits"));
    }
}
