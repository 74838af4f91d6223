//! HTTP/1 as Proxmox's server speaks it: what a request is, and the very bytes of an answer.
//!
//! By hand and not by a library, because the traps are in the bytes: two `Connection` headers, answers without a length,
//! reason phrases that carry the message. What never enters here: sockets and time.

use std::fmt::Write as _;
use std::io::Write as _;
use std::time::{Duration, UNIX_EPOCH};

use crate::wire::{Answer, Request};

/// A head larger than that is not read to its end; the server closes without a word.
pub(super) const HEAD_BYTES_MAX: usize = 64 * 1024;

/// One byte more than the world takes is enough for it to refuse; the rest is not received.
const BODY_BYTES_MAX: usize = 512 * 1024 + 1;

const HEADERS_MAX: usize = 512;

/// Smaller answers are never compressed.
const COMPRESS_BYTES_MIN: usize = 1024;

/// A request whose head is there.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) request: Request,
    /// HTTP/1.0 has no connection that stays.
    pub(super) is_old: bool,
    /// How many bytes of the input the head took.
    pub(super) taken: usize,
    /// How many bytes of body follow.
    pub(super) body_bytes: usize,
}

/// What the input so far comes to.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Heard {
    /// There is more to come.
    Part,
    /// A whole head.
    Head(Head),
    /// Another version of HTTP, which is named.
    Version(String),
    /// No HTTP at all.
    Noise,
}

/// Reads the head of a request.
pub(super) fn hear(input: &[u8]) -> Heard {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut parsed = httparse::Request::new(&mut headers);
    match parsed.parse(input) {
        Ok(httparse::Status::Partial) => Heard::Part,
        Ok(httparse::Status::Complete(taken)) => Heard::Head(head(&parsed, taken)),
        Err(httparse::Error::Version) => version(input).map_or(Heard::Noise, Heard::Version),
        Err(_) => Heard::Noise,
    }
}

fn head(parsed: &httparse::Request<'_, '_>, taken: usize) -> Head {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let headers = parsed.headers.iter().map(|header| (header.name.to_owned(), text(header.value))).collect();
    let (method, path) = (parsed.method.unwrap_or("").to_owned(), parsed.path.unwrap_or("").to_owned());
    let request = Request { method, path, headers, body: Vec::new() };
    let length: u64 = request.find("Content-Length").and_then(|text| text.trim().parse().ok()).unwrap_or(0);
    let body_bytes = usize::try_from(length).unwrap_or(usize::MAX).min(BODY_BYTES_MAX);
    Head { request, is_old: parsed.version == Some(0), taken, body_bytes }
}

fn version(input: &[u8]) -> Option<String> {
    let line = input.split(|byte| *byte == b'\n').next()?;
    let line = std::str::from_utf8(line).ok()?.trim_end();
    line.rsplit_once(" HTTP/").map(|(_, version)| version.to_owned())
}

/// What the connection is to become after an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Manners {
    /// The line begins with HTTP/1.0.
    pub(super) is_old: bool,
    /// The connection ends with this answer.
    pub(super) closes: bool,
    /// The caller takes gzip.
    pub(super) takes_gzip: bool,
}

/// Whether the caller takes gzip.
pub(super) fn takes_gzip(request: &Request) -> bool {
    request.find("Accept-Encoding").is_some_and(|accepted| accepted.contains("gzip"))
}

/// Whether the caller wants the connection to end.
pub(super) fn wants_close(request: &Request) -> bool {
    request.find("Connection").is_some_and(|word| word.eq_ignore_ascii_case("close"))
}

/// The bytes of an answer: its head, and its body as it travels.
pub(super) fn write(answer: &Answer, manners: Manners, now_s: u64) -> (String, Vec<u8>) {
    let packed = (manners.takes_gzip && answer.body.len() > COMPRESS_BYTES_MIN).then(|| gzip(&answer.body)).flatten();
    let is_packed = packed.is_some();
    let body = packed.unwrap_or_else(|| answer.body.clone());
    let date = httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs(now_s));
    let mut head = format!("HTTP/1.{} {} {}\r\n", u8::from(!manners.is_old), answer.status, answer.reason);
    let mut line = |name: &str, value: &str| {
        let _ = write!(head, "{name}: {value}\r\n");
    };
    line("Cache-Control", "max-age=0");
    for value in connection(answer, manners) {
        line("Connection", value);
    }
    line("Date", &date);
    line("Pragma", "no-cache");
    for (name, value) in others(answer, "Location") {
        line(name, value);
    }
    line("Server", "pve-api-daemon/3.0");
    if is_packed {
        line("Content-Encoding", "gzip");
    }
    if answer.headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("Content-Length")) {
        line("Content-Length", &body.len().to_string());
    }
    for (name, value) in answer.headers.iter().filter(|(name, _)| !KNOWN.iter().any(|known| name.eq_ignore_ascii_case(known))) {
        line(name, value);
    }
    line("Expires", &date);
    head.push_str("\r\n");
    (head, body)
}

/// Headers with a place of their own.
const KNOWN: &[&str] = &["Connection", "Content-Length", "Location"];

fn others<'a>(answer: &'a Answer, wanted: &'a str) -> impl Iterator<Item = (&'a str, &'a str)> {
    answer.headers.iter().filter(move |(name, _)| name.eq_ignore_ascii_case(wanted)).map(|(name, value)| (name.as_str(), value.as_str()))
}

/// Both words where the world says so: Proxmox's proxy copies the daemon's and adds its own.
fn connection(answer: &Answer, manners: Manners) -> Vec<&str> {
    if manners.closes { vec!["close"] } else { others(answer, "Connection").map(|(_, value)| value).collect() }
}

fn gzip(body: &[u8]) -> Option<Vec<u8>> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(body).ok()?;
    encoder.finish().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Manners = Manners { is_old: false, closes: false, takes_gzip: false };

    fn answer(body: &[u8]) -> Answer {
        let headers = [("Connection", "Keep-Alive"), ("Content-Length", "0"), ("Content-Type", "application/json;charset=UTF-8")];
        let headers = headers.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
        Answer { status: 200, reason: "OK".into(), headers, body: body.to_vec(), ..Answer::default() }
    }

    #[test]
    fn what_is_no_request_is_told_apart() {
        assert_eq!(hear(b"GET / HTTP/1.1\r\nHo"), Heard::Part);
        assert_eq!(hear(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), Heard::Version("2.0".into()));
        assert_eq!(hear(b"\x16\x03\x01\x00"), Heard::Noise);
        assert_eq!(hear(b"nonsense\r\n\r\n"), Heard::Noise);
    }

    #[test]
    fn a_head_says_how_much_follows() {
        let Heard::Head(head) = hear(b"POST /x HTTP/1.1\r\nContent-Length: 3\r\n\r\na=b") else { panic!("no head") };
        assert_eq!((head.body_bytes, head.is_old, head.request.method.as_str()), (3, false, "POST"));
        let Heard::Head(head) = hear(b"POST /x HTTP/1.0\r\nContent-Length: 99999999999\r\n\r\n") else { panic!("no head") };
        assert_eq!((head.body_bytes, head.is_old), (BODY_BYTES_MAX, true));
    }

    #[test]
    fn an_answer_has_its_headers_in_proxmox_s_order() {
        let (head, body) = write(&answer(b"{}"), PLAIN, 1_794_770_868);
        assert_eq!(
            head,
            "HTTP/1.1 200 OK\r\nCache-Control: max-age=0\r\nConnection: Keep-Alive\r\nDate: Sun, 15 Nov 2026 19:27:48 GMT\r\n\
             Pragma: no-cache\r\nServer: pve-api-daemon/3.0\r\nContent-Length: 2\r\nContent-Type: application/json;charset=UTF-8\r\n\
             Expires: Sun, 15 Nov 2026 19:27:48 GMT\r\n\r\n"
        );
        assert_eq!(body, b"{}");
    }

    #[test]
    fn only_large_answers_to_those_who_take_it_are_packed() {
        let large = answer(&[b' '; 4096]);
        assert!(!write(&large, PLAIN, 0).0.contains("gzip"));
        let (head, body) = write(&large, Manners { takes_gzip: true, ..PLAIN }, 0);
        assert!(head.contains("Content-Encoding: gzip\r\n") && body.len() < 100, "{head}");
        assert!(!write(&answer(&[b' '; 1024]), Manners { takes_gzip: true, ..PLAIN }, 0).0.contains("gzip"));
    }
}
