//! Decodes paths, queries, forms and JSON bodies, with the quirks of Proxmox.
//!
//! Must not know which paths exist or who may call them.

use std::borrow::Cow;

use serde_json::Value;

use crate::schema::{GivenParams, GivenValue};

/// The format of the response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResponseFormat {
    Json,
    Extjs,
}

/// What a request path refers to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RequestTarget<'p> {
    Api {
        format: ResponseFormat,
        /// The decoded path after the format.
        rest: Cow<'p, str>,
    },
    /// Below `/api2/` without a format or with an unknown one; contains the error text.
    NoFormat(String),
    /// Anything else.
    OutsideApi(String),
}

/// Splits path and query without decoding them.
pub(crate) fn split_query(path: &str) -> (&str, &str) {
    path.split_once('?').unwrap_or((path, ""))
}

/// The target of an encoded path. The path is decoded before it is split, so `%2F` separates segments.
pub(crate) fn parse_target(path: &str) -> RequestTarget<'_> {
    match decode_cow(path) {
        Cow::Borrowed(path) => parse_decoded_target(path),
        Cow::Owned(path) => match parse_decoded_target(&path) {
            RequestTarget::Api { format, rest } => RequestTarget::Api { format, rest: rest.into_owned().into() },
            RequestTarget::NoFormat(text) => RequestTarget::NoFormat(text),
            RequestTarget::OutsideApi(path) => RequestTarget::OutsideApi(path),
        },
    }
}

fn parse_decoded_target(decoded: &str) -> RequestTarget<'_> {
    let (first, rest) = next_segment(decoded);
    if first != "api2" {
        return RequestTarget::OutsideApi(decoded.to_owned());
    }
    let (format, rest) = next_segment(rest);
    let format = match format {
        "json" => ResponseFormat::Json,
        "extjs" => ResponseFormat::Extjs,
        "" => return RequestTarget::NoFormat("no such uri".to_owned()),
        other => return RequestTarget::NoFormat(format!("no formatter for uri /{}, {other}", split_segments(rest).join("/"))),
    };
    RequestTarget::Api { format, rest: rest.into() }
}

/// The first segment (empty if there is none) and the rest.
fn next_segment(path: &str) -> (&str, &str) {
    // Bytes are compared one by one: segments are short, and this runs for every request.
    let path = &path[path.bytes().take_while(|byte| *byte == b'/').count()..];
    path.split_at(path.bytes().take_while(|byte| *byte != b'/').count())
}

/// The segments of a decoded path; empty ones are ignored.
pub(crate) fn split_segments(path: &str) -> Vec<&str> {
    let mut segments = Vec::with_capacity(8);
    let (mut first, mut rest) = next_segment(path);
    while !first.is_empty() {
        segments.push(first);
        (first, rest) = next_segment(rest);
    }
    segments
}

/// Decodes `%XX`, and `+` as a blank if `plus` is set.
fn decode_percent(text: &[u8], plus: bool) -> Vec<u8> {
    let mut decoded = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((byte, after)) = rest.split_first() {
        rest = after;
        match byte {
            b'%' => match parse_hex_pair(after) {
                Some(value) => {
                    decoded.push(value);
                    rest = &after[2..];
                }
                None => decoded.push(b'%'),
            },
            b'+' if plus => decoded.push(b' '),
            _ => decoded.push(*byte),
        }
    }
    decoded
}

fn parse_hex_pair(text: &[u8]) -> Option<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let [high, low] = *text.first_chunk::<2>()?;
    Some(digit(high)? << 4 | digit(low)?)
}

/// Converts bytes to text; invalid UTF-8 is replaced.
fn lossy_string(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}

/// Decodes a percent-encoded text, such as credentials.
pub(crate) fn decode_text(text: &str) -> String {
    decode_cow(text).into_owned()
}

/// Like [`decode_text`], without a copy if nothing is encoded.
pub(crate) fn decode_cow(text: &str) -> Cow<'_, str> {
    if text.bytes().any(|byte| byte == b'%') { lossy_string(decode_percent(text.as_bytes(), false)).into() } else { text.into() }
}

/// Decodes a form with the quirks of Proxmox: `;` separates pairs like `&`, and everything after a second raw `=` is lost.
pub(crate) fn parse_form(body: &[u8]) -> GivenParams {
    let mut params: GivenParams = Vec::new();
    if body.is_empty() {
        return params;
    }
    for pair in body.split(|byte| *byte == b'&' || *byte == b';') {
        let mut parts = pair.split(|byte| *byte == b'=');
        let (Some(key), Some(value)) = (parts.next(), parts.next()) else { continue };
        let decode_part = |bytes: &[u8]| lossy_string(decode_percent(bytes, true));
        add_param(&mut params, decode_part(key), decode_part(value));
    }
    params
}

/// A repeated key becomes a list.
fn add_param(params: &mut GivenParams, key: String, value: String) {
    match params.iter_mut().find(|(known, _)| *known == key) {
        Some((_, GivenValue::List(items))) => items.push(value),
        Some((_, given_value)) => *given_value = GivenValue::List(vec![given_value.to_text(), value]),
        None => params.push((key, GivenValue::Text(value))),
    }
}

/// Decodes a JSON body; the error has the text of Proxmox's parser.
pub(crate) fn parse_json_body(body: &[u8]) -> Result<GivenParams, String> {
    let source_location = "at /usr/share/perl5/PVE/APIServer/AnyEvent.pm line 934.";
    let parsed: Value = serde_json::from_slice(body).map_err(|_| {
        let offset = body.len();
        let what = "malformed JSON string, neither tag, array, object, number, string or atom";
        format!("{what}, at character offset {offset} (before \"(end of string)\") {source_location}")
    })?;
    match parsed {
        Value::Object(fields) => Ok(fields.iter().map(|(key, value)| (key.clone(), GivenValue::from_json(value))).collect()),
        _ => Err(format!("Not a HASH reference {source_location}")),
    }
}

/// Merges parameters; those of the query win over those of the body.
pub(crate) fn merge_params(body: GivenParams, query: GivenParams) -> GivenParams {
    if query.is_empty() || body.is_empty() {
        return if query.is_empty() { body } else { query };
    }
    let mut merged: GivenParams = body.into_iter().filter(|(key, _)| !query.iter().any(|(known, _)| known == key)).collect();
    merged.extend(query);
    merged
}

#[cfg(test)]
mod tests {
    use super::*;

    fn param_text(params: &GivenParams, key: &str) -> Option<String> {
        params.iter().find(|(known, _)| known == key).map(|(_, value)| value.to_text())
    }

    #[test]
    fn form_decoder_has_the_quirks_of_proxmox() {
        let params = parse_form(b"description=a=b=c&net0=virtio,bridge=vmbr0&onboot=1;name=semi&empty=&alone");
        assert_eq!(param_text(&params, "description").as_deref(), Some("a"));
        assert_eq!(param_text(&params, "net0").as_deref(), Some("virtio,bridge"));
        assert_eq!(param_text(&params, "name").as_deref(), Some("semi"));
        assert_eq!(param_text(&params, "empty").as_deref(), Some(""));
        assert_eq!(param_text(&params, "alone"), None);
    }

    #[test]
    fn percent_encoded_values_are_decoded() {
        let params = parse_form(b"net0=virtio%2Cbridge%3Dvmbr0&description=%C3%BC+%2B%25%zz");
        assert_eq!(param_text(&params, "net0").as_deref(), Some("virtio,bridge=vmbr0"));
        assert_eq!(param_text(&params, "description").as_deref(), Some("ü +%%zz"));
    }

    #[test]
    fn repeated_keys_become_a_list_and_the_query_wins_over_the_body() {
        let params = parse_form(b"cores=1&cores=2&cores=3");
        assert_eq!(params, [("cores".to_owned(), GivenValue::List(vec!["1".to_owned(), "2".to_owned(), "3".to_owned()]))]);
        let merged = merge_params(parse_form(b"cores=2&name=a"), parse_form(b"cores=1"));
        assert_eq!(param_text(&merged, "cores").as_deref(), Some("1"));
        assert_eq!(merged.len(), 2);
    }

    #[test]
    fn paths_are_decoded_before_they_are_split() {
        let segments = |path: &str| match parse_target(path) {
            RequestTarget::Api { rest, .. } => super::split_segments(&rest).join("|"),
            other => format!("{other:?}"),
        };
        assert_eq!(segments("/api2/json//version/"), "version");
        assert_eq!(segments("/api2/json/nodes/a/qemu/%31%30%30"), "nodes|a|qemu|100");
        assert_eq!(parse_target("/api2/"), RequestTarget::NoFormat("no such uri".to_owned()));
        assert_eq!(parse_target("/api2/xml/version"), RequestTarget::NoFormat("no formatter for uri /version, xml".to_owned()));
        assert_eq!(parse_target("/nosuchpage"), RequestTarget::OutsideApi("/nosuchpage".to_owned()));
    }
}
