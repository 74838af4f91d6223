//! Parses request heads like Proxmox's server: line by line, each scanned once, with the same
//! limits and errors.
//!
//! It does not use a library, because Proxmox is more lenient than the standard in some places and
//! stricter in others. Must not depend on sockets or time.

use crate::wire::LabRequest;

/// Maximum of unparsed bytes; beyond it the server closes the connection without a response.
pub(super) const UNPARSED_BYTES_MAX: usize = 64 * 1024;

/// Maximum of lines after the first, including the empty one; the server does not respond beyond it.
const HEADER_LINES_MAX: usize = 64;

/// Maximum of bytes in these lines; the server does not respond beyond it.
const HEADER_BYTES_MAX: usize = 8 * 1024;

/// A request with a complete head.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct RequestHead {
    pub(super) request: LabRequest,
    /// The minor version after `HTTP/1.`, which the response repeats.
    pub(super) minor: String,
    /// The length of the head.
    pub(super) head_bytes: usize,
    /// The announced length of the body.
    pub(super) body_bytes: u64,
}

/// The result of parsing the input so far.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum HeadParse {
    /// The head is not complete yet.
    Incomplete,
    /// A complete head.
    Complete(RequestHead),
    /// An error that is answered at once, whatever follows.
    Rejected {
        /// The status.
        status: u16,
        /// The reason phrase, which is also the body.
        text: String,
        /// The minor version of the response.
        minor: String,
    },
    /// Too many lines or bytes: no response, and further input is ignored.
    TooMuch,
}

/// An incremental parser. Each call gets the whole input so far and continues where the last call stopped.
#[derive(Debug, Default)]
pub(super) struct HeadParser {
    /// The start of the first incomplete line.
    line_at: usize,
    /// How much of that line was already searched for its end.
    scanned: usize,
    partial: Option<PartialHead>,
}

#[derive(Debug)]
struct PartialHead {
    request: LabRequest,
    minor: String,
    lines: usize,
    bytes: usize,
}

/// The effect of a line on a head.
enum LineResult {
    Continue,
    End(HeadParse),
    Whole,
}

impl HeadParser {
    /// Parses the input so far.
    pub(super) fn parse(&mut self, input: &[u8]) -> HeadParse {
        while let Some(line) = self.next_line(input) {
            match self.take_line(line) {
                LineResult::Continue => {}
                LineResult::End(parsed) => return parsed,
                LineResult::Whole => return self.finish_head(),
            }
        }
        HeadParse::Incomplete
    }

    fn next_line<'i>(&mut self, input: &'i [u8]) -> Option<&'i [u8]> {
        let rest = input.get(self.scanned..)?;
        let Some(length) = rest.iter().position(|byte| *byte == b'\n') else {
            self.scanned = input.len();
            return None;
        };
        let end = self.scanned + length;
        let line = input.get(self.line_at..end)?;
        (self.line_at, self.scanned) = (end + 1, end + 1);
        Some(line.strip_suffix(b"\r").unwrap_or(line))
    }

    fn take_line(&mut self, line: &[u8]) -> LineResult {
        let Some(partial) = &mut self.partial else { return self.take_first_line(line) };
        partial.lines += 1;
        partial.bytes += line.len();
        if partial.lines >= HEADER_LINES_MAX || partial.bytes >= HEADER_BYTES_MAX {
            return LineResult::End(HeadParse::TooMuch);
        }
        if line.is_empty() {
            return LineResult::Whole;
        }
        let text = String::from_utf8_lossy(line);
        match (parse_header(&text), partial.request.headers.last_mut()) {
            (Some(header), _) => partial.request.headers.push(header),
            (None, Some((_, value))) if text.starts_with([' ', '\t']) => {
                value.push(' ');
                value.push_str(text.trim_start());
            }
            _ => return LineResult::End(reject(506, "unable to parse request header".to_owned(), partial.minor.clone())),
        }
        LineResult::Continue
    }

    /// Parses the request line. Empty lines before it are skipped.
    fn take_first_line(&mut self, line: &[u8]) -> LineResult {
        if line.is_empty() {
            return LineResult::Continue;
        }
        // Errors before the version is known are answered as HTTP/1.0.
        let oldest = || "0".to_owned();
        match parse_request_line(&String::from_utf8_lossy(line)) {
            None => LineResult::End(reject(400, "bad request".to_owned(), oldest())),
            Some((_, _, "1", minor)) if minor.len() > MINOR_BYTES_MAX => LineResult::End(reject(400, "bad request".to_owned(), oldest())),
            Some((method, path, "1", minor)) => {
                self.partial = Some(PartialHead { request: LabRequest::new(method, path), minor: minor.to_owned(), lines: 0, bytes: 0 });
                LineResult::Continue
            }
            Some((_, _, major, minor)) => {
                LineResult::End(reject(506, format!("http protocol version {major}.{minor} not supported"), oldest()))
            }
        }
    }

    fn finish_head(&mut self) -> HeadParse {
        let head_bytes = self.line_at;
        let Some(PartialHead { request, minor, .. }) = self.partial.take() else { return HeadParse::Incomplete };
        let body_bytes = request.content_length().unwrap_or(0);
        *self = Self::default();
        HeadParse::Complete(RequestHead { request, minor, head_bytes, body_bytes })
    }
}

/// The response repeats the minor version, so its length is bounded.
const MINOR_BYTES_MAX: usize = 9;

fn reject(status: u16, text: String, minor: String) -> HeadParse {
    HeadParse::Rejected { status, text, minor }
}

/// Method, path, and major and minor version of a request line.
fn parse_request_line(line: &str) -> Option<(&str, &str, &str, &str)> {
    let (before, after) = line.split_once(" HTTP/")?;
    let (major, rest) = split_digits(after);
    let (minor, _) = split_digits(rest.strip_prefix('.')?);
    let (rest, path) = before.rsplit_once(' ')?;
    let method = rest.rsplit(char::is_whitespace).next()?;
    let is_whole = ![method, path, major, minor].iter().any(|part| part.is_empty()) && !path.contains(char::is_whitespace);
    is_whole.then_some((method, path, major, minor))
}

fn split_digits(text: &str) -> (&str, &str) {
    let end = text.find(|character: char| !character.is_ascii_digit()).unwrap_or(text.len());
    text.split_at(end)
}

/// Parses `name: value`; blanks around the colon are allowed.
fn parse_header(line: &str) -> Option<(String, String)> {
    let (name, value) = line.split_once(':')?;
    let name = name.trim_end();
    let is_name = !name.is_empty() && !name.contains(char::is_whitespace);
    is_name.then(|| (name.to_owned(), value.trim_start().to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_head(input: &[u8]) -> HeadParse {
        HeadParser::default().parse(input)
    }

    fn parse_complete_head(input: &[u8]) -> RequestHead {
        match parse_head(input) {
            HeadParse::Complete(head) => head,
            other => panic!("no head: {other:?}"),
        }
    }

    fn rejection_text(input: &str) -> String {
        match parse_head(input.as_bytes()) {
            HeadParse::Rejected { status, text, minor } => format!("HTTP/1.{minor} {status} {text}"),
            other => format!("{other:?}"),
        }
    }

    #[test]
    fn invalid_requests_are_rejected_at_their_first_line() {
        assert_eq!(rejection_text("PRI * HTTP/2.0\r\n"), "HTTP/1.0 506 http protocol version 2.0 not supported");
        assert_eq!(rejection_text("hello\r\n"), "HTTP/1.0 400 bad request");
        assert_eq!(rejection_text("GET  HTTP/1.1\r\n"), "HTTP/1.0 400 bad request");
        assert_eq!(rejection_text("GET / HTTP/1.\r\n"), "HTTP/1.0 400 bad request");
        assert_eq!(rejection_text("GET / HTTP/1.99999999999\r\n"), "HTTP/1.0 400 bad request");
        assert_eq!(rejection_text("GET / HTTP/1.1\r\nno header\r\n"), "HTTP/1.1 506 unable to parse request header");
        assert_eq!(rejection_text("GET / HTTP/1.1\r\n folded: first\r\n"), "HTTP/1.1 506 unable to parse request header");
        assert_eq!(rejection_text("hello"), "Incomplete", "the line is not complete");
    }

    #[test]
    fn a_head_may_arrive_byte_by_byte() {
        let text = b"\r\n\nPOST /x?y HTTP/1.1\r\nHost : a\r\nX: one\r\n two\nContent-Length: 3\r\n\r\na=b";
        let mut parser = HeadParser::default();
        let whole = parse_complete_head(text);
        let found =
            (1..=text.len()).map(|length| (length, parser.parse(&text[..length]))).find(|(_, parsed)| *parsed != HeadParse::Incomplete);
        assert_eq!(
            found,
            Some((whole.head_bytes, HeadParse::Complete(parse_complete_head(text)))),
            "parsing ends with the last byte and gives the same head as parsing it at once"
        );
        let headers = [("Host", "a"), ("X", "one two"), ("Content-Length", "3")].map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(whole.request, LabRequest { headers: headers.to_vec(), ..LabRequest::new("POST", "/x?y") });
        assert_eq!((whole.minor.as_str(), whole.body_bytes, whole.head_bytes), ("1", 3, text.len() - 3));
    }

    #[test]
    fn every_line_counts_including_the_empty_one() {
        let lines = |count: usize| format!("GET / HTTP/1.1\r\n{}\r\n", "X: y\r\n".repeat(count));
        assert_eq!(parse_complete_head(lines(62).as_bytes()).request.headers.len(), 62);
        assert_eq!(parse_head(lines(63).as_bytes()), HeadParse::TooMuch);
        let long = |bytes: usize| format!("GET / HTTP/1.1\r\nX: {}\r\n\r\n", "y".repeat(bytes));
        assert_eq!(parse_complete_head(long(8 * 1024 - 4).as_bytes()).request.headers.len(), 1);
        assert_eq!(parse_head(long(8 * 1024 - 3).as_bytes()), HeadParse::TooMuch);
    }

    #[test]
    fn invalid_content_length_is_ignored_and_a_huge_one_saturates() {
        for (length, bytes) in [("3", 3), (" 3 ", 3), ("-3", 0), ("abc", 0), ("", 0), ("99999999999999999999999", u64::MAX)] {
            let text = format!("PUT / HTTP/1.0\r\nContent-Length: {length}\r\n\r\n");
            assert_eq!(parse_complete_head(text.as_bytes()).body_bytes, bytes, "{length:?}");
        }
    }

    #[test]
    fn invalid_utf8_is_replaced() {
        assert_eq!(parse_complete_head(b"GET /\xff HTTP/1.1\r\nX: \xfe\r\n\r\n").request.path, "/\u{fffd}");
        assert_eq!(parse_head(&[0xff; 4096]), HeadParse::Incomplete);
    }
}
