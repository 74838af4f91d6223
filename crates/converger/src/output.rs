//! Standard output and notices. Output that cannot be written is an error, except for a reader that closed its pipe.
//!
//! JSON is printed byte for byte as it is stored. On a terminal, control and invisible characters are printed as `\uXXXX`, which is the same JSON.

use std::io::{self, IsTerminal as _, StdoutLock, Write};

use converger_core::document::is_invisible;

use crate::render::{self, apply_style};
use crate::{line_wrap, verbosity};

/// Writes a text on standard error that `--quiet` leaves out: progress, notes, files that were written.
pub(crate) fn print_notice(text: &str) {
    if !verbosity::is_quiet() {
        let _ = writeln!(anstream::stderr(), "{}", line_wrap::wrap_for_stderr(text));
    }
}

/// Writes a warning on standard error, with `--quiet` too.
pub(crate) fn print_warning(text: &str) {
    let label = apply_style(render::YELLOW.bold(), "warning:");
    let _ = writeln!(anstream::stderr(), "{}", line_wrap::wrap_for_stderr(&format!("{label} {text}")));
}

/// Where JSON is written.
pub(crate) enum JsonOutput {
    /// A file or a pipe, which gets every byte at once.
    Stream(StdoutLock<'static>),
    /// A terminal, which gets the text once it is complete: a write may end in the middle of a character.
    Terminal(Vec<u8>),
}

impl Write for JsonOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Stream(out) => out.write(bytes),
            Self::Terminal(buffer) => buffer.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Stream(out) => out.flush(),
            Self::Terminal(_) => Ok(()),
        }
    }
}

/// Prints one or more lines of JSON.
pub(crate) fn print_json(write: impl FnOnce(&mut JsonOutput) -> io::Result<()>) -> io::Result<()> {
    let out = io::stdout().lock();
    let mut out = if out.is_terminal() { JsonOutput::Terminal(Vec::new()) } else { JsonOutput::Stream(out) };
    write(&mut out)?;
    match out {
        JsonOutput::Stream(mut out) => out.flush(),
        JsonOutput::Terminal(buffer) => io::stdout().write_all(escape_hidden(&String::from_utf8_lossy(&buffer)).as_bytes()),
    }
}

/// The same JSON value without characters that act on a terminal or cannot be seen. Outside of strings only line breaks are such characters.
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
