//! Standard output: what it takes so that whoever reads it has all of it, or is told that they do not.
//!
//! JSON is printed byte for byte as it is stored. On a terminal, where nobody stores it, what would act there or cannot be seen is written
//! as `\uXXXX`, which is the same JSON. What never enters: what is printed.

use std::io::{self, IsTerminal as _, StdoutLock, Write};

use converger_core::document::is_hidden;

/// Where JSON goes.
pub(crate) enum Out {
    /// To whoever reads it, as it comes.
    Plain(StdoutLock<'static>),
    /// To a terminal, once it is whole: a character may come in two parts.
    Screen(Vec<u8>),
}

impl Write for Out {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(out) => out.write(bytes),
            Self::Screen(kept) => kept.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(out) => out.flush(),
            Self::Screen(_) => Ok(()),
        }
    }
}

/// Prints JSON. Lines may be several.
pub(crate) fn json(write: impl FnOnce(&mut Out) -> io::Result<()>) -> io::Result<()> {
    let out = io::stdout().lock();
    let mut out = if out.is_terminal() { Out::Screen(Vec::new()) } else { Out::Plain(out) };
    write(&mut out)?;
    match out {
        Out::Plain(mut out) => out.flush(),
        Out::Screen(kept) => io::stdout().write_all(visible(&String::from_utf8_lossy(&kept)).as_bytes()),
    }
}

/// The same JSON, in which nothing acts on a terminal or is overlooked. Outside of strings there is nothing of the kind but line breaks.
fn visible(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    for character in json.chars() {
        if is_hidden(character) && character != '\n' {
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
    fn on_a_terminal_nothing_acts_and_the_value_is_the_same() {
        let value = serde_json::json!({ "a\u{9b}2J": "x\u{202e}y\u{2066}\u{7f}\u{e0041}\u{feff}", "plain": "ä\t€😀" });
        let shown = visible(&format!("{value}\n"));
        assert!(!shown.chars().any(|character| is_hidden(character) && character != '\n'), "{shown:?}");
        assert!(
            shown.contains("\\u009b2J") && shown.contains("\\u202e") && shown.contains("\\udb40\\udc41") && shown.contains("ä\\t€😀"),
            "{shown}"
        );
        assert_eq!(serde_json::from_str::<serde_json::Value>(&shown).expect("JSON"), value);
    }
}
