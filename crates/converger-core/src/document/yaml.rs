//! YAML text as events. Surprising features of YAML (anchors, aliases, tags, directives, several documents) are reported as faults.

use granit_parser::{Event as Raw, Options, Parser, ScalarStyle, ScanError, Span as RawSpan, StrInput};

use super::{DEPTH_MAX, DecodeAborted, Diagnostic, Diagnostics, DocumentEvent, EventSource, QuoteStyle, ScalarToken, Span, quote};

pub(super) struct YamlEvents<'t> {
    parser: Parser<'t, StrInput<'t>>,
    text: &'t str,
    documents: usize,
    span: Span,
    diagnostics: Diagnostics,
}

impl<'t> YamlEvents<'t> {
    pub(super) fn new(text: &'t str) -> Self {
        let mut options = Options::default();
        options.flow_nesting_limit = DEPTH_MAX;
        options.block_nesting_limit = DEPTH_MAX;
        options.disallow_directives = true;
        options.strict_indentation = true;
        options.emit_anchor_events = true;
        let parser = Parser::new_from_str_with_options(text, options);
        Self { parser, text, documents: 0, span: Span::at(0), diagnostics: Diagnostics::default() }
    }

    fn start_document(&mut self) -> Result<(), DecodeAborted> {
        self.documents += 1;
        if self.documents > 1 {
            let fault = Diagnostic::new(self.span, "a second YAML document begins here");
            return self.abort(fault.with_help("one file holds one document; remove the `---`"));
        }
        Ok(())
    }

    fn syntax_fault(&self, error: &ScanError) -> Diagnostic {
        let start = error.marker().byte_offset().unwrap_or(self.text.len());
        Diagnostic::new(Span::at(start), format!("this is not valid YAML: {}", error.info()))
            .with_help("check the indentation and the quotes around this place")
    }

    fn abort<T>(&mut self, fault: Diagnostic) -> Result<T, DecodeAborted> {
        self.diagnostics.push(fault);
        Err(DecodeAborted)
    }
}

impl<'t> EventSource<'t> for YamlEvents<'t> {
    fn next_event(&mut self) -> Result<DocumentEvent<'t>, DecodeAborted> {
        loop {
            let (raw, raw_span) = match self.parser.next_event() {
                Some(Ok(next)) => next,
                Some(Err(error)) => {
                    // Wrong indentation also moves keys to another map, so that faults before this one are mostly its consequences.
                    self.diagnostics = Diagnostics::default();
                    return self.abort(self.syntax_fault(&error));
                }
                None => {
                    self.span = Span::at(self.text.len());
                    return Ok(DocumentEvent::End);
                }
            };
            self.span = span_of(&raw_span);
            if let Some(fault) = find_unsupported(&raw, self.span) {
                self.diagnostics.push(fault);
            }
            if self.diagnostics.is_truncated() {
                return Err(DecodeAborted);
            }
            return Ok(match raw {
                Raw::DocumentStart(..) => {
                    self.start_document()?;
                    continue;
                }
                Raw::StreamEnd => DocumentEvent::End,
                Raw::MappingStart(..) => DocumentEvent::MapStart,
                Raw::MappingEnd => DocumentEvent::MapEnd,
                Raw::SequenceStart(..) => DocumentEvent::ListStart,
                Raw::SequenceEnd => DocumentEvent::ListEnd,
                // The parser represents a missing value as `~`.
                Raw::Scalar(_, ScalarStyle::Plain, ..) if self.span.start == self.span.end => {
                    DocumentEvent::Scalar(ScalarToken { text: "".into(), style: QuoteStyle::Plain })
                }
                Raw::Scalar(text, style, ..) => DocumentEvent::Scalar(ScalarToken { text, style: style_of(style) }),
                Raw::Alias(_) | Raw::UnresolvedAlias(_) => DocumentEvent::Broken,
                Raw::StreamStart | Raw::DocumentEnd | Raw::Anchor(..) => continue,
                _ => return self.abort(Diagnostic::new(self.span, "this kind of YAML is not accepted")),
            });
        }
    }

    fn span(&self) -> Span {
        self.span
    }

    fn diagnostics(&mut self) -> &mut Diagnostics {
        &mut self.diagnostics
    }
}

/// Reports legal YAML that is not accepted here.
fn find_unsupported(event: &Raw<'_>, span: Span) -> Option<Diagnostic> {
    let help = "write the value out where it is used";
    if matches!(event, Raw::Alias(_) | Raw::UnresolvedAlias(_)) {
        return Some(Diagnostic::new(span, "aliases (`*name`) are not accepted").with_help(help));
    }
    if matches!(event, Raw::Anchor(..)) {
        return Some(Diagnostic::new(span, "anchors (`&name`) are not accepted").with_help(help));
    }
    let tag = event.tag()?;
    Some(Diagnostic::new(span, format!("tags ({}) are not accepted", quote(&tag.original()))).with_help("write the value without a tag"))
}

fn style_of(style: ScalarStyle) -> QuoteStyle {
    if style == ScalarStyle::Plain { QuoteStyle::Plain } else { QuoteStyle::Quoted }
}

fn span_of(raw: &RawSpan) -> Span {
    // Byte offsets are always known for string input; character indices would be wrong after the first non-ASCII character.
    Span::new(raw.start.byte_offset().unwrap_or(0), raw.end.byte_offset().unwrap_or(0))
}
