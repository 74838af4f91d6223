//! YAML text as events, strictly: what makes YAML surprising (anchors, aliases, tags, directives, several
//! documents) is reported where it stands.

use granit_parser::{Event as Raw, Options, Parser, ScalarStyle, ScanError, Span as RawSpan, StrInput};

use super::{DEPTH_MAX, Diagnostic, Diagnostics, Event, Scalar, Source, Span, Style, quoted};

pub(super) struct Yaml<'t> {
    parser: Parser<'t, StrInput<'t>>,
    text: &'t str,
    documents: usize,
}

impl<'t> Yaml<'t> {
    pub(super) fn new(text: &'t str) -> Self {
        let mut options = Options::default();
        options.flow_nesting_limit = DEPTH_MAX;
        options.block_nesting_limit = DEPTH_MAX;
        options.disallow_directives = true;
        options.strict_indentation = true;
        options.emit_anchor_events = true;
        Self { parser: Parser::new_from_str_with_options(text, options), text, documents: 0 }
    }

    fn document(&mut self, span: Span) -> Result<(), Box<Diagnostic>> {
        self.documents += 1;
        if self.documents > 1 {
            let fault = Diagnostic::new(span, "a second YAML document begins here");
            return Err(Box::new(fault.help("one file holds one document; remove the `---`")));
        }
        Ok(())
    }

    fn syntax(&self, error: &ScanError) -> Diagnostic {
        let start = error.marker().byte_offset().unwrap_or(self.text.len());
        Diagnostic::new(Span::at(start), format!("this is not valid YAML: {}", error.info()))
            .help("check the indentation and the quotes around this place")
    }
}

impl<'t> Source<'t> for Yaml<'t> {
    fn next(&mut self, diagnostics: &mut Diagnostics) -> Result<(Event<'t>, Span), Box<Diagnostic>> {
        loop {
            let Some(next) = self.parser.next_event() else { return Ok((Event::End, Span::at(self.text.len()))) };
            let (raw, raw_span) = next.map_err(|error| Box::new(self.syntax(&error)))?;
            let span = span_of(&raw_span);
            if let Some(fault) = surprise(&raw, span) {
                diagnostics.push(fault);
            }
            let event = match raw {
                Raw::DocumentStart(..) => {
                    self.document(span)?;
                    continue;
                }
                Raw::StreamEnd => Event::End,
                Raw::MappingStart(..) => Event::MapStart,
                Raw::MappingEnd => Event::MapEnd,
                Raw::SequenceStart(..) => Event::ListStart,
                Raw::SequenceEnd => Event::ListEnd,
                // The parser shows a value that is not there as `~`.
                Raw::Scalar(_, ScalarStyle::Plain, ..) if span.start == span.end => {
                    Event::Scalar(Scalar { text: "".into(), style: Style::Plain })
                }
                Raw::Scalar(text, style, ..) => Event::Scalar(Scalar { text, style: style_of(style) }),
                Raw::Alias(_) | Raw::UnresolvedAlias(_) => Event::Broken,
                Raw::StreamStart | Raw::DocumentEnd | Raw::Anchor(..) => continue,
                _ => return Err(Box::new(Diagnostic::new(span, "this kind of YAML is not accepted"))),
            };
            return Ok((event, span));
        }
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
