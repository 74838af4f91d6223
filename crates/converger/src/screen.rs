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
const STEP: usize = 2;

/// Whether lines can be drawn over there: it is a terminal, and not one that only takes lines (`TERM=dumb`).
pub(crate) fn is_screen(stream: &impl IsTerminal) -> bool {
    stream.is_terminal() && std::env::var_os("TERM").is_none_or(|kind| kind != "dumb")
}

/// How many columns there are, if it is a screen.
fn columns(stream: &(impl AsFd + IsTerminal)) -> Option<usize> {
    let size = is_screen(stream).then(|| tcgetwinsize(stream).ok()).flatten()?;
    Some(usize::from(size.ws_col)).filter(|columns| *columns >= COLUMNS_MIN)
}

/// A text for people on standard output.
pub(crate) fn out(text: &str) -> String {
    laid(text, columns(&io::stdout()))
}

/// A text for people on standard error.
pub(crate) fn err(text: &str) -> String {
    laid(text, columns(&io::stderr()))
}

/// The text with no line that is wider than the screen, as far as words let it.
fn laid(text: &str, columns: Option<usize>) -> String {
    let Some(columns) = columns else { return text.to_owned() };
    text.split_inclusive('\n').map(|line| broken(line, columns)).collect()
}

fn broken(line: &str, columns: usize) -> String {
    if wide(line) <= columns {
        return line.to_owned();
    }
    let margin = line.len() - line.trim_start_matches(' ').len();
    let below = " ".repeat(margin + STEP);
    let (mut text, mut at) = (String::new(), 0);
    for word in words(&line[margin..]) {
        let own = wide(word.trim_end_matches(' '));
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
        at += wide(word);
    }
    text
}

/// The words of a line, each with the blanks behind it. What stands between backquotes is typed somewhere else: it stays in one piece, and
/// whoever takes it from the screen gets it whole.
fn words(line: &str) -> Vec<&str> {
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
fn wide(text: &str) -> usize {
    anstream::adapter::strip_str(text).map(|part| part.chars().filter(|character| *character != '\n').count()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::{BOLD, styled};

    #[test]
    fn a_long_line_goes_on_below_where_it_began_and_a_short_one_stays() {
        let text = "short\n    remedy: one two three four five six seven eight nine\n\nend";
        let expected = "short\n    remedy: one two three four five six\n      seven eight nine\n\nend";
        assert_eq!(laid(text, Some(40)), expected);
        assert_eq!(laid(text, None), text);
    }

    #[test]
    fn a_word_that_is_too_long_is_left_whole_and_styles_take_no_room() {
        let digest = format!("digest: sha256:{}\n", "0".repeat(64));
        assert_eq!(laid(&digest, Some(40)), format!("digest:\n  sha256:{}\n", "0".repeat(64)));
        let styled = format!("{} {}\n", styled(BOLD, "a".repeat(20)), styled(BOLD, "b".repeat(19)));
        assert_eq!(laid(&styled, Some(40)), styled);
    }

    #[test]
    fn a_command_to_be_typed_is_never_broken() {
        let command = "`converger apply desired.yaml --only 101,102 --confirm sha256:00`";
        assert_eq!(
            laid(&format!("help: if you want this: {command} or not\n"), Some(40)),
            format!("help: if you want this:\n  {command}\n  or not\n")
        );
    }

    #[test]
    fn whatever_is_laid_out_says_the_same() {
        let words: Vec<String> = (0..200).map(|number| "x".repeat(number % 13 + 1)).collect();
        for margin in [0, 4, 38] {
            let line = format!("{}{}", " ".repeat(margin), words.join(" "));
            let laid = laid(&line, Some(60));
            assert!(laid.lines().all(|line| wide(line) <= 60), "{laid}");
            assert_eq!(laid.split_whitespace().collect::<Vec<_>>(), words);
        }
    }
}
