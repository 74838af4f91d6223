//! Writes standard output completely, or reports that it is incomplete.
//!
//! JSON is printed byte for byte as it is stored. On a terminal, where nobody stores it, what would act there or cannot be seen is written
//! as `\uXXXX`, which is the same JSON. What never enters: what is printed.

use std::io::{self, IsTerminal as _, StdoutLock, Write};

use converger_core::document::is_invisible;

/// Where JSON goes.
pub(crate) enum JsonOutput {
    /// Directly to the reader.
    Stream(StdoutLock<'static>),
    /// To a terminal, once it is whole: a character may come in two parts.
    Terminal(Vec<u8>),
}

impl Write for JsonOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Stream(out) => out.write(bytes),
            Self::Terminal(kept) => kept.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Stream(out) => out.flush(),
            Self::Terminal(_) => Ok(()),
        }
    }
}

/// Prints JSON. Lines may be several.
pub(crate) fn print_json(write: impl FnOnce(&mut JsonOutput) -> io::Result<()>) -> io::Result<()> {
    let out = io::stdout().lock();
    let mut out = if out.is_terminal() { JsonOutput::Terminal(Vec::new()) } else { JsonOutput::Stream(out) };
    write(&mut out)?;
    match out {
        JsonOutput::Stream(mut out) => out.flush(),
        JsonOutput::Terminal(kept) => io::stdout().write_all(escape_hidden(&String::from_utf8_lossy(&kept)).as_bytes()),
    }
}

/// The same JSON, in which nothing acts on a terminal or is overlooked. Outside of strings there is nothing of the kind but line breaks.
fn escape_hidden(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    for character in json.chars() {
        if is_invisible(character) && character != '\n' {
            let mut units = [0; 2];
            character.encode_utf16(&mut units).iter().for_each(|unit| text.push_str(&format!("\\u{unit:04x}")));
        } else {
            text.push(character);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escaped_json_is_inert_on_a_terminal_and_has_the_same_value() {
        let value = serde_json::json!({ "a\u{9b}2J": "x\u{202e}y\u{2066}\u{7f}\u{e0041}\u{feff}", "plain": "ä\t€😀" });
        let shown = escape_hidden(&format!("{value}\n"));
        assert!(!shown.chars().any(|character| is_invisible(character) && character != '\n'), "{shown:?}");
        assert!(
            shown.contains("\\u009b2J") && shown.contains("\\u202e") && shown.contains("\\udb40\\udc41") && shown.contains("ä\\t€😀"),
            "{shown}"
        );
        assert_eq!(serde_json::from_str::<serde_json::Value>(&shown).expect("JSON"), value);
    }
}
