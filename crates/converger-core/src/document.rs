//! Reads text into decoded values: one decoder over events, for YAML and for JSON alike.
//!
//! A parser ([`yaml`], [`json`]) turns text into [`DocumentEvent`]s with byte spans; a [`DocumentReader`] hands them to the
//! decoders of `desired` and `observe`. There is no tree in between: a file of 100,000 guests is decoded as it is
//! read. Every fault becomes a [`Diagnostic`] with a place, and decoding goes on, so that a person sees all faults
//! of a file at once.
//!
//! What never enters: guests, fields, meaning. This room knows text only.

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

/// The largest text that is decoded. Spans are 32 bits wide; a larger file is refused before it is read.
pub const TEXT_BYTES_MAX: usize = 1 << 30;

/// Nesting above this is refused: nothing that this program reads is deeper than six.
pub(crate) const DEPTH_MAX: usize = 32;

/// The notation of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notation {
    /// YAML 1.2, of which only the plain part is accepted: no anchors, aliases, tags or second document.
    Yaml,
    /// JSON (RFC 8259).
    Json,
}

/// What a parser tells next.
#[derive(Debug)]
pub(crate) enum DocumentEvent<'t> {
    MapStart,
    MapEnd,
    ListStart,
    ListEnd,
    Scalar(ScalarToken<'t>),
    /// A value that was already reported as faulty (an alias): it takes a value's place.
    Broken,
    /// The text is at its end.
    End,
}

/// A scalar as written: its text and whether quotes (or a block style) say that it is a string.
#[derive(Debug)]
pub(crate) struct ScalarToken<'t> {
    pub(crate) text: Cow<'t, str>,
    pub(crate) style: QuoteStyle,
}

/// How a scalar was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QuoteStyle {
    /// Bare: a number, a boolean, null or, in YAML, a plain word.
    Plain,
    /// Quoted or a block scalar: a string, whatever it looks like.
    Quoted,
}

/// A stream of events, which holds the faults that were found in its text.
pub(crate) trait EventSource<'t> {
    /// The next event. `Err` follows a fault of syntax, after which nothing more can be read.
    fn next_event(&mut self) -> Result<DocumentEvent<'t>, DecodeAborted>;

    /// The place of the last event. Apart from it, because most events are never asked for their place, and moving it
    /// along with each of them took a tenth of the time of decoding.
    fn span(&self) -> Span;

    /// The faults so far.
    fn diagnostics(&mut self) -> &mut Diagnostics;
}

/// Decodes `bytes` with `decode`; all faults are returned together, in the order of their places.
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

/// A decoder that works on any source. A trait because a closure cannot be generic over the source.
pub(crate) trait DocumentDecoder<T> {
    fn decode<'t, S: EventSource<'t>>(self, reader: &mut DocumentReader<'t, S>) -> Result<T, DecodeAborted>;
}

fn run_decoder<'t, T, S: EventSource<'t>>(source: S, text: &'t str, decode: impl DocumentDecoder<T>) -> Result<T, Diagnostics> {
    let mut reader = DocumentReader::new(source, text);
    let decoded = decode.decode(&mut reader);
    let ended = decoded.and_then(|value| reader.expect_end().map(|()| value));
    let diagnostics = reader.take_diagnostics();
    match ended {
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
