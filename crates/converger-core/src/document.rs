//! Decodes text into values: one decoder over events, for both YAML and JSON.
//!
//! A parser ([`yaml`], [`json`]) turns text into [`DocumentEvent`]s with byte spans, and a [`DocumentReader`] passes them to the decoders
//! of `desired` and `observe`. There is no tree in between: a file of 100,000 guests is decoded while it is read. Every fault becomes a
//! [`Diagnostic`] with a position, and decoding continues, so that a person sees all faults of a file at once.
//!
//! Must not know guests or fields; this module only handles text.

mod diagnostic;
mod invisible_chars;
mod json;
mod reader;
mod unique_keys;
mod yaml;
mod yaml_scalar;

use std::borrow::Cow;

pub use diagnostic::{Diagnostic, Diagnostics, LineColumn, Span};
pub use invisible_chars::is_invisible;
pub use reader::nearest_word;
pub(crate) use reader::{DecodeAborted, DocumentReader, SeenKeys, ValueKind, is_decimal, quote, unknown_key_fault};
pub use unique_keys::check_unique_keys;
pub(crate) use yaml_scalar::{literal_block_lines, to_yaml_comment, to_yaml_quoted, to_yaml_scalar};

/// The largest text that is decoded. Spans are 32 bits wide, so a larger file is rejected before it is read.
pub const TEXT_BYTES_MAX: usize = 1 << 30;

/// The deepest accepted nesting; nothing that this program reads is deeper than six.
pub(crate) const DEPTH_MAX: usize = 32;

/// The notation of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notation {
    /// YAML 1.2 without anchors, aliases, tags or a second document.
    Yaml,
    /// JSON (RFC 8259).
    Json,
}

/// The next event of a parser.
#[derive(Debug)]
pub(crate) enum DocumentEvent<'t> {
    MapStart,
    MapEnd,
    ListStart,
    ListEnd,
    Scalar(ScalarToken<'t>),
    /// A value that was already reported as faulty (an alias); it stands in for a value.
    Broken,
    /// The end of the text.
    End,
}

/// A scalar as written, and whether quotes or a block style mark it as a string.
#[derive(Debug)]
pub(crate) struct ScalarToken<'t> {
    pub(crate) text: Cow<'t, str>,
    pub(crate) style: QuoteStyle,
}

/// How a scalar was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QuoteStyle {
    /// Bare: a number, a boolean, null or, in YAML, an unquoted string.
    Plain,
    /// Quoted or a block scalar: a string, whatever it looks like.
    Quoted,
}

/// A stream of events that also collects the faults of its text.
pub(crate) trait EventSource<'t> {
    /// The next event. `Err` means a syntax error, after which nothing more can be read.
    fn next_event(&mut self) -> Result<DocumentEvent<'t>, DecodeAborted>;

    /// The span of the last event. It is separate because most callers do not need it, and returning it with each event cost a tenth of the
    /// decoding time.
    fn span(&self) -> Span;

    /// The faults so far.
    fn diagnostics(&mut self) -> &mut Diagnostics;
}

/// Decodes `bytes` with `decode`; returns all faults together, sorted by position.
///
/// # Errors
/// Anything that is not exactly one well-formed document that `decode` accepts.
pub(crate) fn decode<T>(bytes: &[u8], notation: Notation, decode: impl DocumentDecoder<T>) -> Result<T, Diagnostics> {
    let text = decode_utf8(bytes)?;
    match notation {
        Notation::Yaml => run_decoder(yaml::YamlEvents::new(text), text, decode),
        Notation::Json => run_decoder(json::JsonEvents::new(text), text, decode),
    }
}

/// A decoder that works on any source. This is a trait because a closure cannot be generic over the source.
pub(crate) trait DocumentDecoder<T> {
    fn decode<'t, S: EventSource<'t>>(self, reader: &mut DocumentReader<'t, S>) -> Result<T, DecodeAborted>;
}

fn run_decoder<'t, T, S: EventSource<'t>>(source: S, text: &'t str, decode: impl DocumentDecoder<T>) -> Result<T, Diagnostics> {
    let mut reader = DocumentReader::new(source, text);
    let decoded = decode.decode(&mut reader);
    let result = decoded.and_then(|value| reader.expect_end().map(|()| value));
    let diagnostics = reader.take_diagnostics();
    match result {
        Ok(value) if diagnostics.is_empty() => Ok(value),
        _ => Err(diagnostics.into_sorted()),
    }
}

/// The text of a file.
pub(crate) fn decode_utf8(bytes: &[u8]) -> Result<&str, Diagnostics> {
    if bytes.len() > TEXT_BYTES_MAX {
        let fault = Diagnostic::new(Span::at(0), "the file is larger than 1 GiB").with_help("split it into several environments");
        return Err(fault.into());
    }
    std::str::from_utf8(bytes).map_err(|error| {
        Diagnostic::new(Span::at(error.valid_up_to()), "this byte is not UTF-8")
            .with_help("save the file as UTF-8; other encodings are not accepted")
            .into()
    })
}
