//! YAML text as events, strictly: what makes YAML surprising (anchors, aliases, tags, directives, several
//! documents) is reported where it stands.

use granit_parser::{Event as Raw, Options, Parser, ScalarStyle, ScanError, Span as RawSpan, StrInput};

use super::{DEPTH_MAX, Diagnostic, Diagnostics, Event, Scalar, Source, Span, Stop, Style, quoted};

pub(super) struct Yaml<'t> {
    parser: Parser<'t, StrInput<'t>>,
    text: &'t str,
    documents: usize,
    span: Span,
    diagnostics: Diagnostics,
}

impl<'t> Yaml<'t> {
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

    fn document(&mut self) -> Result<(), Stop> {
        self.documents += 1;
        if self.documents > 1 {
            let fault = Diagnostic::new(self.span, "a second YAML document begins here");
            return self.stop(fault.help("one file holds one document; remove the `---`"));
        }
        Ok(())
    }

    fn syntax(&self, error: &ScanError) -> Diagnostic {
        let start = error.marker().byte_offset().unwrap_or(self.text.len());
        Diagnostic::new(Span::at(start), format!("this is not valid YAML: {}", error.info()))
            .help("check the indentation and the quotes around this place")
    }

    fn stop<T>(&mut self, fault: Diagnostic) -> Result<T, Stop> {
        self.diagnostics.push(fault);
        Err(Stop)
    }
}

impl<'t> Source<'t> for Yaml<'t> {
    fn next(&mut self) -> Result<Event<'t>, Stop> {
        loop {
            let (raw, raw_span) = match self.parser.next_event() {
                Some(Ok(next)) => next,
                Some(Err(error)) => return self.stop(self.syntax(&error)),
                None => {
                    self.span = Span::at(self.text.len());
                    return Ok(Event::End);
                }
            };
            self.span = span_of(&raw_span);
            if let Some(fault) = surprise(&raw, self.span) {
                self.diagnostics.push(fault);
            }
            if self.diagnostics.is_cut() {
                return Err(Stop);
            }
            return Ok(match raw {
                Raw::DocumentStart(..) => {
                    self.document()?;
                    continue;
                }
                Raw::StreamEnd => Event::End,
                Raw::MappingStart(..) => Event::MapStart,
                Raw::MappingEnd => Event::MapEnd,
                Raw::SequenceStart(..) => Event::ListStart,
                Raw::SequenceEnd => Event::ListEnd,
                // The parser shows a value that is not there as `~`.
                Raw::Scalar(_, ScalarStyle::Plain, ..) if self.span.start == self.span.end => {
                    Event::Scalar(Scalar { text: "".into(), style: Style::Plain })
                }
                Raw::Scalar(text, style, ..) => Event::Scalar(Scalar { text, style: style_of(style) }),
                Raw::Alias(_) | Raw::UnresolvedAlias(_) => Event::Broken,
                Raw::StreamStart | Raw::DocumentEnd | Raw::Anchor(..) => continue,
                _ => return self.stop(Diagnostic::new(self.span, "this kind of YAML is not accepted")),
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

/// What is legal YAML and not accepted here.
fn surprise(event: &Raw<'_>, span: Span) -> Option<Diagnostic> {
    let help = "write the value out where it is meant";
    if matches!(event, Raw::Alias(_) | Raw::UnresolvedAlias(_)) {
        return Some(Diagnostic::new(span, "aliases (`*name`) are not accepted").help(help));
    }
    if matches!(event, Raw::Anchor(..)) {
        return Some(Diagnostic::new(span, "anchors (`&name`) are not accepted").help(help));
    }
    let tag = event.tag()?;
    Some(Diagnostic::new(span, format!("tags ({}) are not accepted", quoted(&tag.original()))).help("write the value without a tag"))
}

fn style_of(style: ScalarStyle) -> Style {
    if style == ScalarStyle::Plain { Style::Plain } else { Style::Quoted }
}

fn span_of(raw: &RawSpan) -> Span {
    // Byte offsets are always known for string input; character indexes would be wrong after the first umlaut.
    Span::new(raw.start.byte_offset().unwrap_or(0), raw.end.byte_offset().unwrap_or(0))
}
