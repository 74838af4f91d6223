//! How text lies on a screen: a line that is too long for it is broken between words, and goes on below where it began.
//!
//! A terminal would break it in the middle of a word and let the rest stand at the margin, where the next line begins. What is no
//! screen (a file, a pipe, a terminal that only takes lines) gets every line whole. What never enters: what is said.

use std::io::{self, IsTerminal};
use std::os::fd::AsFd;

use rustix::termios::tcgetwinsize;

/// Narrower than this nothing is laid out: there is no room to go on below.
const COLUMNS_MIN: usize = 40;

/// How far what goes on stands to the right of where it began.
const HANGING_INDENT: usize = 2;

/// Whether lines can be drawn over there: it is a terminal, and not one that only takes lines (`TERM=dumb`).
pub(crate) fn is_screen(stream: &impl IsTerminal) -> bool {
    stream.is_terminal() && std::env::var_os("TERM").is_none_or(|kind| kind != "dumb")
}

/// How many columns there are, if it is a screen.
fn screen_columns(stream: &(impl AsFd + IsTerminal)) -> Option<usize> {
    let size = is_screen(stream).then(|| tcgetwinsize(stream).ok()).flatten()?;
    Some(usize::from(size.ws_col)).filter(|columns| *columns >= COLUMNS_MIN)
}

/// A text for people on standard output.
pub(crate) fn wrap_for_stdout(text: &str) -> String {
    wrap_text(text, screen_columns(&io::stdout()))
}

/// A text for people on standard error.
pub(crate) fn wrap_for_stderr(text: &str) -> String {
    wrap_text(text, screen_columns(&io::stderr()))
}

/// The text with no line that is wider than the screen, as far as words let it.
fn wrap_text(text: &str, columns: Option<usize>) -> String {
    let Some(columns) = columns else { return text.to_owned() };
    text.split_inclusive('\n').map(|line| wrap_line(line, columns)).collect()
}

fn wrap_line(line: &str, columns: usize) -> String {
    if display_width(line) <= columns {
        return line.to_owned();
    }
    let margin = line.len() - line.trim_start_matches(' ').len();
    let below = " ".repeat(margin + HANGING_INDENT);
    let (mut text, mut at) = (String::new(), 0);
    for word in split_words(&line[margin..]) {
        let own = display_width(word.trim_end_matches(' '));
        if at == 0 {
            text.push_str(&line[..margin]);
            at = margin;
        } else if at + own > columns {
            text.truncate(text.trim_end_matches(' ').len());
            text.push('\n');
            text.push_str(&below);
            at = below.len();
        }
        text.push_str(word);
        at += display_width(word);
    }
    text
}

/// The words of a line, each with the blanks behind it. What stands between backquotes is typed somewhere else: it stays in one piece, and
/// it can be copied from the screen in one piece.
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

/// How many columns a text takes: styles take none.
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
            let laid = wrap_text(&line, Some(60));
            assert!(laid.lines().all(|line| display_width(line) <= 60), "{laid}");
            assert_eq!(laid.split_whitespace().collect::<Vec<_>>(), words);
        }
    }
}
