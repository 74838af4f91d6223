//! Faults of a text as people read them: file, line, column, and the line itself with a caret.

use annotate_snippets::{AnnotationKind, Group, Level, Renderer, Snippet};
use converger_core::document::{Diagnostic, Diagnostics, Span};

/// All faults of a text, ready to be written to a terminal or a pipe (styles are stripped there).
pub(crate) fn render(name: &str, bytes: &[u8], diagnostics: &Diagnostics) -> String {
    let text = String::from_utf8_lossy(bytes);
    let renderer = Renderer::styled();
    let faults = diagnostics.list().iter().map(|fault| one(&renderer, name, &text, fault));
    let mut rendered = faults.collect::<Vec<_>>().join("\n\n");
    rendered.push_str(&closing(name, diagnostics));
    rendered
}

fn closing(name: &str, diagnostics: &Diagnostics) -> String {
    let count = diagnostics.list().len();
    let faults = if count == 1 { "1 fault".to_owned() } else { format!("{count} faults") };
    let more = if diagnostics.is_cut() { "; there may be more" } else { "" };
    format!("\n\n{faults} in {name}{more}; nothing was read from it and nothing was done\n")
}

fn one(renderer: &Renderer, name: &str, text: &str, fault: &Diagnostic) -> String {
    // A large file is not scanned for one line: the snippet is of the lines around the fault.
    let window = Window::around(text, &[Some(fault.span), fault.related.as_ref().map(|(span, _)| *span)]);
    let mut snippet = Snippet::source(window.text).path(name).line_start(window.first_line).fold(true);
    snippet = snippet.annotation(AnnotationKind::Primary.span(window.range(fault.span)).label("here"));
    if let Some((span, label)) = &fault.related {
        snippet = snippet.annotation(AnnotationKind::Context.span(window.range(*span)).label(label));
    }
    let mut group = Level::ERROR.primary_title(&fault.message).element(snippet);
    if let Some(help) = &fault.help {
        group = group.element(Level::HELP.message(help));
    }
    let report: [Group<'_>; 1] = [group];
    renderer.render(&report)
}

/// The lines of a text that hold some spans.
struct Window<'t> {
    text: &'t str,
    offset: usize,
    first_line: usize,
}

impl<'t> Window<'t> {
    fn around(text: &'t str, spans: &[Option<Span>]) -> Self {
        let places = || spans.iter().flatten().flat_map(|span| [offset(text, span.start), offset(text, span.end)]);
        let start = places().min().unwrap_or(0);
        let end = places().max().unwrap_or(0);
        let offset = text[..start].rfind('\n').map_or(0, |newline| newline + 1);
        let end = text[end..].find('\n').map_or(text.len(), |newline| end + newline);
        let first_line = text[..offset].bytes().filter(|byte| *byte == b'\n').count() + 1;
        Self { text: &text[offset..end], offset, first_line }
    }

    fn range(&self, span: Span) -> std::ops::Range<usize> {
        let clip = |place: u32| offset(self.text, place.saturating_sub(u32::try_from(self.offset).unwrap_or(u32::MAX)));
        clip(span.start)..clip(span.end)
    }
}

/// A byte offset within the text that is the border of a character.
fn offset(text: &str, place: u32) -> usize {
    text.floor_char_boundary(usize::try_from(place).unwrap_or(usize::MAX).min(text.len()))
}
