//! Encodes responses: which headers, in which order, and when the body is compressed.
//!
//! It does not use a library, because quirks of Proxmox are in the bytes: two `Connection` headers,
//! responses without a content length, reason phrases that carry the message. Must not depend on
//! sockets or time.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::io::Write as _;
use std::time::{Duration, UNIX_EPOCH};

use crate::wire::{LabRequest, LabResponse};

/// Responses up to this size are never compressed.
const UNCOMPRESSED_BYTES_MAX: usize = 1024;

/// How a response is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ResponseFraming {
    /// The minor version after `HTTP/1.`.
    pub(super) minor: String,
    /// The connection closes after this response.
    pub(super) closes: bool,
    /// The client accepts gzip.
    pub(super) takes_gzip: bool,
}

impl ResponseFraming {
    /// For a response after which the connection closes.
    pub(super) fn closing(minor: String) -> Self {
        Self { minor, closes: true, takes_gzip: false }
    }
}

/// Whether the client accepts gzip.
pub(super) fn takes_gzip(request: &LabRequest) -> bool {
    request.find_header("Accept-Encoding").is_some_and(|accepted| accepted.contains("gzip"))
}

/// Whether the client wants the connection to close: it says so, or it uses HTTP/1.0 without a `Connection` header.
pub(super) fn wants_close(request: &LabRequest, minor: &str) -> bool {
    let wishes = || request.headers.iter().filter(|(name, _)| name.eq_ignore_ascii_case("Connection"));
    let is_silent = wishes().next().is_none();
    is_silent && minor.trim_start_matches('0').is_empty() || wishes().any(|(_, value)| value.to_ascii_lowercase().contains("close"))
}

/// An encoded body.
pub(super) struct WireBody<'a> {
    pub(super) bytes: Cow<'a, [u8]>,
    /// Whether the content encoding is gzip.
    pub(super) is_gzip: bool,
    /// The announced content length, if any.
    pub(super) length: Option<u64>,
}

/// The body of a response, compressed if the client accepts that. An empty body has no content length.
pub(super) fn encode_body<'a>(answer: &'a LabResponse, framing: &ResponseFraming) -> WireBody<'a> {
    let packed = (framing.takes_gzip && answer.body.len() > UNCOMPRESSED_BYTES_MAX).then(|| gzip(&answer.body)).flatten();
    let is_packed = packed.is_some();
    let bytes = packed.map_or(Cow::Borrowed(answer.body.as_slice()), Cow::Owned);
    let length = (!bytes.is_empty()).then_some(bytes.len() as u64);
    WireBody { bytes, is_gzip: is_packed, length }
}

/// The head of a response.
pub(super) fn encode_head(answer: &LabResponse, body: &WireBody<'_>, framing: &ResponseFraming, now_s: u64) -> String {
    let date = httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs(now_s.min(DATE_S_MAX)));
    let mut head = format!("HTTP/1.{} {} {}\r\n", framing.minor, answer.status, answer.reason);
    let mut line = |name: &str, value: &str| {
        // Writing to a string cannot fail.
        let _ = write!(head, "{name}: {value}\r\n");
    };
    line("Cache-Control", "max-age=0");
    for value in connection_values(answer, framing) {
        line("Connection", value);
    }
    line("Date", &date);
    line("Pragma", "no-cache");
    for value in header_values(answer, "Location") {
        line("Location", value);
    }
    line("Server", "pve-api-daemon/3.0");
    if body.is_gzip {
        line("Content-Encoding", "gzip");
    }
    if let Some(length) = body.length {
        line("Content-Length", &length.to_string());
    }
    for (name, value) in answer.headers.iter().filter(|(name, _)| !ORDERED_HEADERS.iter().any(|placed| name.eq_ignore_ascii_case(placed))) {
        line(name, value);
    }
    line("Expires", &date);
    head.push_str("\r\n");
    head
}

/// The last second that an HTTP date can express: the end of the year 9999.
const DATE_S_MAX: u64 = 253_402_300_799;

/// Headers that are written at a fixed position.
const ORDERED_HEADERS: &[&str] = &["Connection", "Content-Length", "Location"];

fn header_values<'a>(answer: &'a LabResponse, wanted: &'a str) -> impl Iterator<Item = &'a str> {
    answer.headers.iter().filter(move |(name, _)| name.eq_ignore_ascii_case(wanted)).map(|(_, value)| &**value)
}

/// The values of the `Connection` headers. There can be two, because Proxmox's proxy copies the daemon's and adds its own. A response that
/// closes the connection has only `close`; one that does not never has `close` alone.
fn connection_values<'a>(answer: &'a LabResponse, framing: &ResponseFraming) -> Vec<&'a str> {
    let own: Vec<&str> = header_values(answer, "Connection").collect();
    match (framing.closes, own.as_slice()) {
        (true, _) => vec!["close"],
        (false, [] | ["close"]) => vec!["Keep-Alive"],
        (false, _) => own,
    }
}

fn gzip(body: &[u8]) -> Option<Vec<u8>> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(body).ok()?;
    encoder.finish().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain_framing() -> ResponseFraming {
        ResponseFraming { minor: "1".to_owned(), closes: false, takes_gzip: false }
    }

    fn response_with_body(body: &[u8]) -> LabResponse {
        let headers = [("Connection", "close"), ("Connection", "Keep-Alive"), ("Content-Type", "application/json;charset=UTF-8")];
        let headers = headers.map(|(name, value)| (name.into(), value.into())).to_vec();
        LabResponse { status: 200, reason: "OK".into(), headers, body: body.to_vec(), ..LabResponse::default() }
    }

    fn encode_to_text(answer: &LabResponse, framing: &ResponseFraming) -> String {
        encode_head(answer, &encode_body(answer, framing), framing, 1_794_770_868)
    }

    #[test]
    fn response_headers_are_in_the_order_of_proxmox() {
        assert_eq!(
            encode_to_text(&response_with_body(b"{}"), &plain_framing()),
            "HTTP/1.1 200 OK\r\nCache-Control: max-age=0\r\nConnection: close\r\nConnection: Keep-Alive\r\n\
             Date: Sun, 15 Nov 2026 19:27:48 GMT\r\nPragma: no-cache\r\nServer: pve-api-daemon/3.0\r\nContent-Length: 2\r\n\
             Content-Type: application/json;charset=UTF-8\r\nExpires: Sun, 15 Nov 2026 19:27:48 GMT\r\n\r\n"
        );
        let last = encode_to_text(&response_with_body(b""), &ResponseFraming::closing("0".to_owned()));
        assert!(last.starts_with("HTTP/1.0 200 OK\r\nCache-Control: max-age=0\r\nConnection: close\r\nDate: "), "{last}");
        assert!(!last.contains("Content-Length"), "{last}");
    }

    #[test]
    fn only_large_responses_are_compressed_and_only_for_clients_that_accept_gzip() {
        let large = response_with_body(&[b' '; 1025]);
        let packs = ResponseFraming { takes_gzip: true, ..plain_framing() };
        assert!(!encode_body(&large, &plain_framing()).is_gzip);
        assert!(encode_body(&large, &packs).is_gzip && encode_body(&large, &packs).bytes.len() < 100);
        assert!(encode_to_text(&large, &packs).contains("Content-Encoding: gzip\r\nContent-Length: "));
        assert!(!encode_body(&response_with_body(&[b' '; 1024]), &packs).is_gzip);
    }

    #[test]
    fn connections_stay_open_by_default_since_http_1_1() {
        let says = |header: &str, minor: &str| {
            let request = LabRequest::new("GET", "/");
            wants_close(&if header.is_empty() { request } else { request.with_header("connection", header) }, minor)
        };
        assert_eq!(
            [says("", "0"), says("", "1"), says("keep-alive", "0"), says("Close", "1"), says("te, CLOSE", "1")],
            [true, false, false, true, true]
        );
    }

    #[test]
    fn dates_beyond_the_year_9999_are_capped() {
        assert!(
            encode_head(&response_with_body(b""), &encode_body(&response_with_body(b""), &plain_framing()), &plain_framing(), u64::MAX)
                .contains("31 Dec 9999")
        );
    }
}
