//! Wraps lines that are too long for the terminal between words, with a hanging indent.
//!
//! A terminal would break them inside words and continue at the margin, where new lines start. Files, pipes and terminals without cursor
//! movement get every line whole.

use std::io::{self, IsTerminal};
use std::os::fd::AsFd;

use rustix::termios::tcgetwinsize;

/// Nothing is wrapped in a narrower terminal: there is no room for an indent.
const COLUMNS_MIN: usize = 40;

/// The indent of a continued line, relative to its first one.
const HANGING_INDENT: usize = 2;

/// Whether the stream is a terminal that can move its cursor (not `TERM=dumb`).
pub(crate) fn is_screen(stream: &impl IsTerminal) -> bool {
    stream.is_terminal() && std::env::var_os("TERM").is_none_or(|kind| kind != "dumb")
}

/// The columns of the terminal, if it is one that lines are wrapped for.
fn screen_columns(stream: &(impl AsFd + IsTerminal)) -> Option<usize> {
    let size = is_screen(stream).then(|| tcgetwinsize(stream).ok()).flatten()?;
    Some(usize::from(size.ws_col)).filter(|columns| *columns >= COLUMNS_MIN)
}

/// The columns of standard error, if it is a terminal that lines are wrapped for.
pub(crate) fn stderr_columns() -> Option<usize> {
    screen_columns(&io::stderr())
}

/// Wraps a text for standard output.
pub(crate) fn wrap_for_stdout(text: &str) -> String {
    wrap_text(text, screen_columns(&io::stdout()))
}

/// Wraps a text for standard error.
pub(crate) fn wrap_for_stderr(text: &str) -> String {
    wrap_text(text, stderr_columns())
}

/// Wraps every line that is wider than the terminal. A word that is wider stays whole.
fn wrap_text(text: &str, columns: Option<usize>) -> String {
    let Some(columns) = columns else { return text.to_owned() };
    text.split_inclusive('\n').map(|line| wrap_line(line, columns)).collect()
}

fn wrap_line(line: &str, columns: usize) -> String {
    if display_width(line) <= columns {
        return line.to_owned();
    }
    let margin = line.len() - line.trim_start_matches(' ').len();
    let indent = " ".repeat(margin + HANGING_INDENT);
    let (mut text, mut column) = (String::new(), 0);
    for word in split_words(&line[margin..]) {
        let width = display_width(word.trim_end_matches(' '));
        if column == 0 {
            text.push_str(&line[..margin]);
            column = margin;
        } else if column + width > columns {
            text.truncate(text.trim_end_matches(' ').len());
            text.push('\n');
            text.push_str(&indent);
            column = indent.len();
        }
        text.push_str(word);
        column += display_width(word);
    }
    text
}

/// The words of a line, each with the blanks behind it. Text between backquotes is one word, so that a command can be copied in one piece.
fn split_words(line: &str) -> Vec<&str> {
    let (mut words, mut begin, mut is_quoted) = (Vec::new(), 0, false);
    for (at, character) in line.char_indices() {
        match character {
            '`' => is_quoted = !is_quoted,
            ' ' if !is_quoted => {
                words.push(&line[begin..=at]);
                begin = at + 1;
            }
            _ => {}
        }
    }
    words.push(&line[begin..]);
    words
}

/// The number of columns of a text. Styles have none.
fn display_width(text: &str) -> usize {
    anstream::adapter::strip_str(text).map(|part| part.chars().filter(|character| *character != '\n').count()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::{BOLD, apply_style};

    #[test]
    fn wraps_a_long_line_with_a_hanging_indent_and_keeps_a_short_one() {
        let text = "short\n    remedy: one two three four five six seven eight nine\n\nend";
        let expected = "short\n    remedy: one two three four five six\n      seven eight nine\n\nend";
        assert_eq!(wrap_text(text, Some(40)), expected);
        assert_eq!(wrap_text(text, None), text);
    }

    #[test]
    fn keeps_a_long_word_whole_and_counts_no_width_for_styles() {
        let digest = format!("digest: sha256:{}\n", "0".repeat(64));
        assert_eq!(wrap_text(&digest, Some(40)), format!("digest:\n  sha256:{}\n", "0".repeat(64)));
        let styled = format!("{} {}\n", apply_style(BOLD, "a".repeat(20)), apply_style(BOLD, "b".repeat(19)));
        assert_eq!(wrap_text(&styled, Some(40)), styled);
    }

    #[test]
    fn a_long_change_continues_below_its_key() {
        let line = format!("      description: \"{}\" -> \"{}\"\n", "old words ".repeat(4).trim_end(), "new words ".repeat(4).trim_end());
        let expected = "      description: \"old words old words old words\n        old words\" -> \"new words new words new\n        words new words\"\n";
        assert_eq!(wrap_text(&line, Some(50)), expected);
        assert_eq!(wrap_text(&line, Some(200)), line);
    }

    #[test]
    fn never_wraps_inside_backquotes() {
        let command = "`converger apply desired.yaml --only 101,102 --confirm sha256:00`";
        assert_eq!(
            wrap_text(&format!("help: if you want this: {command} or not\n"), Some(40)),
            format!("help: if you want this:\n  {command}\n  or not\n")
        );
    }

    #[test]
    fn wrapping_keeps_all_words() {
        let words: Vec<String> = (0..200).map(|number| "x".repeat(number % 13 + 1)).collect();
        for margin in [0, 4, 38] {
            let line = format!("{}{}", " ".repeat(margin), words.join(" "));
            let wrapped = wrap_text(&line, Some(60));
            assert!(wrapped.lines().all(|line| display_width(line) <= 60), "{wrapped}");
            assert_eq!(wrapped.split_whitespace().collect::<Vec<_>>(), words);
        }
    }
}
