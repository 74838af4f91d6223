//! Faults of an input file for people: file, line, column, and the line itself with a caret.

use annotate_snippets::{AnnotationKind, Group, Level, Origin, Renderer, Snippet};
use converger_core::document::{self, Diagnostic, Diagnostics, LineColumn, Span};
use converger_core::failure::FailureCode;
use converger_runtime::config::ConfigFaults;

use crate::line_wrap;

/// A text with faults.
struct FaultySource<'t> {
    name: &'t str,
    /// Without characters that act on a terminal.
    text: &'t str,
    code: FailureCode,
    /// It may be another file, with a secret in it, so no line of it is shown.
    is_foreign: bool,
}

/// All faults of a declared state or an artifact, ready to be written to a terminal or a pipe (styles are stripped there).
pub(crate) fn render_diagnostics(name: &str, bytes: &[u8], diagnostics: &Diagnostics) -> String {
    let text = mask_passwords(&replace_hidden(&String::from_utf8_lossy(bytes)));
    FaultySource { name, text: &text, code: FailureCode::InputInvalid, is_foreign: !has_known_key(&text) }.render(diagnostics)
}

/// All faults of converger.toml, in the same form.
pub(crate) fn render_config_faults(faults: &ConfigFaults) -> String {
    let ConfigFaults { name, masked_text, is_foreign, diagnostics } = faults;
    let text = replace_hidden(masked_text);
    FaultySource { name, text: &text, code: FailureCode::ConfigInvalid, is_foreign: *is_foreign }.render(diagnostics)
}

impl FaultySource<'_> {
    fn render(&self, diagnostics: &Diagnostics) -> String {
        let renderer = line_wrap::stderr_columns().map_or(Renderer::styled(), |columns| Renderer::styled().term_width(columns));
        let faults = diagnostics.list().iter().map(|fault| self.render_diagnostic(&renderer, fault));
        let mut rendered = faults.collect::<Vec<_>>().join("\n\n");
        if self.is_foreign {
            rendered.push_str("\n\nIts lines are not shown, because it has no known key: it may be another file, with a secret in it.");
        }
        rendered.push_str(&render_fault_count(self.name, diagnostics));
        rendered
    }

    fn render_diagnostic(&self, renderer: &Renderer, fault: &Diagnostic) -> String {
        let Self { name, text, code, is_foreign } = self;
        let related = fault.related.as_ref().filter(|(span, _)| span.start.abs_diff(fault.span.start) < WINDOW_BYTES_MAX);
        let position = LineColumn::at_offset(text, fault.span.start);
        let title = Level::ERROR.primary_title(&fault.message).id(code.word());
        if *is_foreign {
            let mut group = title.element(Origin::path(*name).line(position.line).char_column(position.column));
            if let Some(help) = &fault.help {
                group = group.element(Level::HELP.message(help));
            }
            return renderer.render(&[group]);
        }
        let window = SourceWindow::around(text, fault.span, related.map(|(span, _)| *span));
        let mut snippet = Snippet::source(window.text).line_start(window.first_line).fold(true);
        snippet = snippet.annotation(AnnotationKind::Primary.span(window.clip_span(fault.span)).label("here"));
        if let Some((span, label)) = related {
            snippet = snippet.annotation(AnnotationKind::Context.span(window.clip_span(*span)).label(label));
        }
        let far = fault.related.as_ref().filter(|_| related.is_none()).map(|(span, label)| {
            let position = LineColumn::at_offset(text, span.start);
            format!("{label}: line {}, column {}", position.line, position.column)
        });
        let mut group = if window.starts_at_line {
            title.element(snippet.path(*name))
        } else {
            // A snippet from the middle of a line would count its columns from there.
            title.element(Origin::path(*name).line(position.line).char_column(position.column)).element(snippet)
        };
        if let Some(far) = far {
            group = group.element(Level::NOTE.message(far));
        }
        if let Some(help) = &fault.help {
            group = group.element(Level::HELP.message(help));
        }
        let report: [Group<'_>; 1] = [group];
        renderer.render(&report)
    }
}

/// Replaces each character that acts on a terminal or is invisible by one of the same width in bytes, so that offsets stay.
fn replace_hidden(text: &str) -> String {
    let is_hidden = |character: char| document::is_invisible(character) && !matches!(character, '\n' | '\t');
    if !text.chars().any(is_hidden) {
        return text.to_owned();
    }
    let placeholder = |character: char| match character.len_utf8() {
        1 => '?',
        2 => '·',
        3 => '□',
        _ => '𐄂',
    };
    text.chars().map(|character| if is_hidden(character) { placeholder(character) } else { character }).collect()
}

/// Replaces the value of each key `password` by asterisks of the same width in bytes. It should be a reference, but a person may have written
/// the password itself, which is the fault that is shown.
fn mask_passwords(text: &str) -> String {
    let mut masked = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("password") {
        let (before, found) = rest.split_at(at);
        let after_key = &found["password".len()..];
        let after_quote = after_key.trim_start_matches(['"', '\'']);
        let Some(value) = after_quote.trim_start_matches([' ', '\t']).strip_prefix(':') else {
            let end = found.len() - after_key.len();
            masked.push_str(before);
            masked.push_str(&found[..end]);
            rest = after_key;
            continue;
        };
        masked.push_str(before);
        masked.push_str(&found[..found.len() - value.len()]);
        let indent = before.len() - before.rfind('\n').map_or(0, |newline| newline + 1);
        let (hidden, left) = value.split_at(value_length(value, indent));
        masked.extend(hidden.chars().flat_map(|own| {
            let (shown, width) = if own.is_whitespace() { (own, 1) } else { ('*', own.len_utf8()) };
            std::iter::repeat_n(shown, width)
        }));
        rest = left;
    }
    masked.push_str(rest);
    masked
}

/// How many bytes belong to a value that begins here: a quoted text, or the rest of the line and each line that is indented more.
fn value_length(value: &str, indent: usize) -> usize {
    let start = value.len() - value.trim_start_matches([' ', '\t']).len();
    if let Some(quote @ ('"' | '\'')) = value[start..].chars().next() {
        let body = &value[start + 1..];
        let mut at = 0;
        while let Some(own) = body[at..].chars().next() {
            let escape = if quote == '"' { "\\" } else { "''" };
            let is_escape = body[at..].starts_with(escape);
            if own == quote && !is_escape {
                return start + 1 + at + 1;
            }
            at += own.len_utf8();
            at += if is_escape { body[at..].chars().next().map_or(0, char::len_utf8) } else { 0 };
        }
        return value.len();
    }
    let mut length = 0;
    for (index, line) in value.split_inclusive('\n').enumerate() {
        let is_continued = line.trim().is_empty() || line.len() - line.trim_start().len() > indent;
        if index > 0 && !is_continued {
            break;
        }
        length += line.len();
    }
    length
}

fn render_fault_count(name: &str, diagnostics: &Diagnostics) -> String {
    let count = diagnostics.list().len();
    let faults = if count == 1 { "1 fault".to_owned() } else { format!("{count} faults") };
    let more = if diagnostics.is_truncated() { "; there may be more" } else { "" };
    format!("\n\n{faults} in {name}{more}; nothing was done\n")
}

/// Keys of declared states, recordings and plans.
const KNOWN_KEYS: [&str; 5] = ["version", "environment", "guests", "schema", "vmid"];

/// Whether a text is empty or has any key of a file that is meant to be read here. The lines of any other file are not shown: a file with a
/// secret may have been named by mistake.
fn has_known_key(text: &str) -> bool {
    let is_named = |rest: &str| rest.trim_start_matches(['"', '\'']).trim_start().starts_with(':');
    let is_key = |start: &str| {
        // A comment may be a key that was disabled.
        let start =
            start.trim_start_matches(|own: char| own.is_whitespace() || matches!(own, '\u{feff}' | '□' | '#' | '-' | '{' | '"' | '\''));
        KNOWN_KEYS.iter().any(|key| start.strip_prefix(key).is_some_and(is_named))
    };
    text.trim().is_empty() || text.lines().chain(text.split(['{', ','])).any(is_key)
}

/// The part of a text that is shown around a fault: whole lines, or a piece of a very long one.
struct SourceWindow<'t> {
    text: &'t str,
    offset: usize,
    first_line: usize,
    /// Whether it begins at the start of a line.
    starts_at_line: bool,
}

/// Lines up to this length are shown whole.
const WHOLE_LINE_BYTES_MAX: usize = 500;
/// Artifacts are one line, however many guests they have: this much of it is shown on either side of a fault.
const MARGIN_BYTES: usize = 80;
/// Two places that are further apart than this are not shown in one window.
const WINDOW_BYTES_MAX: u32 = 4096;

impl<'t> SourceWindow<'t> {
    fn around(text: &'t str, span: Span, related: Option<Span>) -> Self {
        let boundaries = || {
            [Some(span), related].into_iter().flatten().flat_map(|span| [char_boundary(text, span.start), char_boundary(text, span.end)])
        };
        let first = boundaries().min().unwrap_or(0);
        let last = boundaries().max().unwrap_or(0);
        let line_start = text[..first].rfind('\n').map_or(0, |newline| newline + 1);
        let line_end = text[last..].find('\n').map_or(text.len(), |newline| last + newline);
        let margin = if line_end - line_start <= WHOLE_LINE_BYTES_MAX { WHOLE_LINE_BYTES_MAX } else { MARGIN_BYTES };
        let start = text.ceil_char_boundary(line_start.max(first.saturating_sub(margin)));
        let end = text.floor_char_boundary(line_end.min(last.saturating_add(margin)));
        let first_line = LineColumn::at_offset(text, u32::try_from(first).unwrap_or(u32::MAX)).line;
        Self { text: &text[start..end.max(start)], offset: start, first_line, starts_at_line: start == line_start }
    }

    fn clip_span(&self, span: Span) -> std::ops::Range<usize> {
        let clip = |offset: u32| char_boundary(self.text, offset.saturating_sub(u32::try_from(self.offset).unwrap_or(u32::MAX)));
        clip(span.start)..clip(span.end)
    }
}

/// The offset of the character boundary at or before a byte offset.
fn char_boundary(text: &str, offset: u32) -> usize {
    text.floor_char_boundary(usize::try_from(offset).unwrap_or(usize::MAX).min(text.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    use converger_core::desired;
    use converger_core::document::Notation;

    #[test]
    fn shows_only_the_surroundings_in_a_very_long_line() {
        let text = format!("{}é!{}", "a".repeat(10_000), "b".repeat(10_000));
        let window = SourceWindow::around(&text, Span::new(10_002, 10_003), None);
        assert!(window.text.len() <= 2 * MARGIN_BYTES + 3, "{}", window.text.len());
        assert_eq!(&window.text[window.clip_span(Span::new(10_002, 10_003))], "!");
    }

    #[test]
    fn hidden_characters_are_replaced_in_place() {
        let text = "a\u{9b}2J\u{200b}\u{1b}[31m\u{e0041}é\n";
        let shown = replace_hidden(text);
        assert_eq!(shown.len(), text.len());
        assert_eq!(shown, "a·2J□?[31m𐄂é\n");
    }

    #[test]
    fn masks_passwords_in_place() {
        for (text, expected) in [
            ("  password: hunter2\n  vlan: 7\n", "  password: *******\n  vlan: 7\n"),
            ("  password: |\n    hun\n\n    ter2\n  vlan: 7\n", "  password: *\n    ***\n\n    ****\n  vlan: 7\n"),
            ("  password: hun\n    ter2\n", "  password: ***\n    ****\n"),
            ("{\"password\":\"a\\\"b\",\"vlan\":\"7\"}", "{\"password\":******,\"vlan\":\"7\"}"),
            ("{ password: a, b }\n", "{ password: ** * *\n"),
            ("password: 'it''s', x\n", "password: *******, x\n"),
            ("\"password\" : é\n", "\"password\" : **\n"),
            ("name: password\n", "name: password\n"),
        ] {
            let masked = mask_passwords(text);
            assert_eq!(masked, expected);
            assert_eq!(masked.len(), text.len());
        }
    }

    #[test]
    fn shows_no_line_of_an_unrelated_file() {
        for foreign in ["5ec2e700-0000-4000-8000-000000000001", "PVE_SECRET=hunter2", "password: hunter2\n", "{\"password\": \"hunter2\"}"]
        {
            assert!(!has_known_key(foreign), "{foreign}");
            let faults = desired::parse(foreign.as_bytes(), Notation::Yaml).expect_err("it declares nothing");
            let shown = render_diagnostics("desired.yaml", foreign.as_bytes(), &faults);
            assert!(!shown.contains("hunter2") && !shown.contains("5ec2e700"), "{shown}");
            assert!(shown.contains("desired.yaml:1:1") && shown.contains("Its lines are not shown"), "{shown}");
        }
        for known_text in [
            "version: 2",
            "# mine\n\"guests\" : []",
            "{\"a\":1,\"schema\":2}",
            "{\n  \"environment\": \"lab\"",
            "{ version: 1 }",
            "# version: 1",
            "- vmid: 100",
            "",
        ] {
            assert!(has_known_key(known_text), "{known_text}");
        }
    }

    #[test]
    fn shows_a_short_line_whole() {
        let window = SourceWindow::around("one\ntwo three\nfour", Span::new(8, 13), None);
        assert_eq!((window.text, window.first_line), ("two three", 2));
    }
}
