//! The head of a request as Proxmox's server reads it: line by line, each looked at once, with its limits and its ways to
//! refuse.
//!
//! By hand and not by a library, because it is more lenient here and stricter there than the standard. What never enters
//! here: sockets and time.

use crate::wire::Request;

/// So much can wait to be understood; beyond that the server closes at once and without a word.
pub(super) const WAITING_BYTES_MAX: usize = 64 * 1024;

/// Lines after the first, the empty one included: as many and the server says nothing more.
const LINES_MAX: usize = 64;

/// Bytes of these lines: as many and the server says nothing more.
const LINES_BYTES_MAX: usize = 8 * 1024;

/// A request whose head is there.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) request: Request,
    /// What stands behind `HTTP/1.`, and comes back in the answer.
    pub(super) minor: String,
    /// How many bytes of the input the head took.
    pub(super) taken: usize,
    /// How many bytes of body are announced.
    pub(super) body_bytes: u64,
}

/// What the input so far comes to.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Heard {
    /// There is more to come.
    Part,
    /// A whole head.
    Head(Head),
    /// Something that is answered at once, whatever follows.
    Wrong {
        /// The status.
        status: u16,
        /// Reason and body.
        text: String,
        /// What stands behind `HTTP/1.` in the answer.
        minor: String,
    },
    /// More lines or bytes than are taken: no answer, and nothing else is listened to.
    TooMuch,
}

/// A head on its way. It is given the same input again and again, longer each time, and goes on where it was.
#[derive(Debug, Default)]
pub(super) struct Hearing {
    /// Where the line begins that is not whole yet.
    line_at: usize,
    /// How far that line was looked through for its end.
    seen: usize,
    begun: Option<Begun>,
}

#[derive(Debug)]
struct Begun {
    request: Request,
    minor: String,
    lines: usize,
    bytes: usize,
}

/// What a line does to a head.
enum Step {
    On,
    End(Heard),
    Whole,
}

impl Hearing {
    /// What the input comes to by now.
    pub(super) fn hear(&mut self, input: &[u8]) -> Heard {
        while let Some(line) = self.next_line(input) {
            match self.take(line) {
                Step::On => {}
                Step::End(heard) => return heard,
                Step::Whole => return self.whole(),
            }
        }
        Heard::Part
    }

    fn next_line<'i>(&mut self, input: &'i [u8]) -> Option<&'i [u8]> {
        let rest = input.get(self.seen..)?;
        let Some(length) = rest.iter().position(|byte| *byte == b'\n') else {
            self.seen = input.len();
            return None;
        };
        let end = self.seen + length;
        let line = input.get(self.line_at..end)?;
        (self.line_at, self.seen) = (end + 1, end + 1);
        Some(line.strip_suffix(b"\r").unwrap_or(line))
    }

    fn take(&mut self, line: &[u8]) -> Step {
        let Some(begun) = &mut self.begun else { return self.begin(line) };
        begun.lines += 1;
        begun.bytes += line.len();
        if begun.lines >= LINES_MAX || begun.bytes >= LINES_BYTES_MAX {
            return Step::End(Heard::TooMuch);
        }
        if line.is_empty() {
            return Step::Whole;
        }
        let text = String::from_utf8_lossy(line);
        match (header(&text), begun.request.headers.last_mut()) {
            (Some(header), _) => begun.request.headers.push(header),
            (None, Some((_, value))) if text.starts_with([' ', '\t']) => {
                value.push(' ');
                value.push_str(text.trim_start());
            }
            _ => return Step::End(wrong(506, "unable to parse request header".to_owned(), begun.minor.clone())),
        }
        Step::On
    }

    /// The first line. Empty ones before it are passed over.
    fn begin(&mut self, line: &[u8]) -> Step {
        if line.is_empty() {
            return Step::On;
        }
        // What came before there was a version is answered as in the first one.
        let oldest = || "0".to_owned();
        match first_line(&String::from_utf8_lossy(line)) {
            None => Step::End(wrong(400, "bad request".to_owned(), oldest())),
            Some((_, _, "1", minor)) if minor.len() > MINOR_BYTES_MAX => Step::End(wrong(400, "bad request".to_owned(), oldest())),
            Some((method, path, "1", minor)) => {
                self.begun = Some(Begun { request: Request::new(method, path), minor: minor.to_owned(), lines: 0, bytes: 0 });
                Step::On
            }
            Some((_, _, major, minor)) => Step::End(wrong(506, format!("http protocol version {major}.{minor} not supported"), oldest())),
        }
    }

    fn whole(&mut self) -> Heard {
        let taken = self.line_at;
        let Some(Begun { request, minor, .. }) = self.begun.take() else { return Heard::Part };
        let body_bytes = request.announced_bytes().unwrap_or(0);
        *self = Self::default();
        Heard::Head(Head { request, minor, taken, body_bytes })
    }
}

/// No version has a longer number, and it comes back in the answer.
const MINOR_BYTES_MAX: usize = 9;

fn wrong(status: u16, text: String, minor: String) -> Heard {
    Heard::Wrong { status, text, minor }
}

/// Method, path and the two numbers of the version, wherever in the line they stand.
fn first_line(line: &str) -> Option<(&str, &str, &str, &str)> {
    let (before, after) = line.split_once(" HTTP/")?;
    let (major, rest) = digits(after);
    let (minor, _) = digits(rest.strip_prefix('.')?);
    let (rest, path) = before.rsplit_once(' ')?;
    let method = rest.rsplit(char::is_whitespace).next()?;
    let is_whole = ![method, path, major, minor].iter().any(|part| part.is_empty()) && !path.contains(char::is_whitespace);
    is_whole.then_some((method, path, major, minor))
}

fn digits(text: &str) -> (&str, &str) {
    let end = text.find(|character: char| !character.is_ascii_digit()).unwrap_or(text.len());
    text.split_at(end)
}

/// `name: value`; blanks may stand around the colon.
fn header(line: &str) -> Option<(String, String)> {
    let (name, value) = line.split_once(':')?;
    let name = name.trim_end();
    let is_name = !name.is_empty() && !name.contains(char::is_whitespace);
    is_name.then(|| (name.to_owned(), value.trim_start().to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hear(input: &[u8]) -> Heard {
        Hearing::default().hear(input)
    }

    fn head(input: &[u8]) -> Head {
        match hear(input) {
            Heard::Head(head) => head,
            other => panic!("no head: {other:?}"),
        }
    }

    fn refused(input: &str) -> String {
        match hear(input.as_bytes()) {
            Heard::Wrong { status, text, minor } => format!("HTTP/1.{minor} {status} {text}"),
            other => format!("{other:?}"),
        }
    }

    #[test]
    fn what_is_no_request_is_answered_at_its_first_line() {
        assert_eq!(refused("PRI * HTTP/2.0\r\n"), "HTTP/1.0 506 http protocol version 2.0 not supported");
        assert_eq!(refused("hello\r\n"), "HTTP/1.0 400 bad request");
        assert_eq!(refused("GET  HTTP/1.1\r\n"), "HTTP/1.0 400 bad request");
        assert_eq!(refused("GET / HTTP/1.\r\n"), "HTTP/1.0 400 bad request");
        assert_eq!(refused("GET / HTTP/1.99999999999\r\n"), "HTTP/1.0 400 bad request");
        assert_eq!(refused("GET / HTTP/1.1\r\nno header\r\n"), "HTTP/1.1 506 unable to parse request header");
        assert_eq!(refused("GET / HTTP/1.1\r\n folded: first\r\n"), "HTTP/1.1 506 unable to parse request header");
        assert_eq!(refused("hello"), "Part", "the line is not whole");
    }

    #[test]
    fn a_head_can_come_byte_by_byte() {
        let text = b"\r\n\nPOST /x?y HTTP/1.1\r\nHost : a\r\nX: one\r\n two\nContent-Length: 3\r\n\r\na=b";
        let mut hearing = Hearing::default();
        let whole = head(text);
        let found = (1..=text.len()).map(|length| (length, hearing.hear(&text[..length]))).find(|(_, heard)| *heard != Heard::Part);
        assert_eq!(found, Some((whole.taken, Heard::Head(head(text)))), "as soon as it is whole, and the same as at once");
        let headers = [("Host", "a"), ("X", "one two"), ("Content-Length", "3")].map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(whole.request, Request { headers: headers.to_vec(), ..Request::new("POST", "/x?y") });
        assert_eq!((whole.minor.as_str(), whole.body_bytes, whole.taken), ("1", 3, text.len() - 3));
    }

    #[test]
    fn every_line_counts_also_the_empty_one() {
        let lines = |count: usize| format!("GET / HTTP/1.1\r\n{}\r\n", "X: y\r\n".repeat(count));
        assert_eq!(head(lines(62).as_bytes()).request.headers.len(), 62);
        assert_eq!(hear(lines(63).as_bytes()), Heard::TooMuch);
        let long = |bytes: usize| format!("GET / HTTP/1.1\r\nX: {}\r\n\r\n", "y".repeat(bytes));
        assert_eq!(head(long(8 * 1024 - 4).as_bytes()).request.headers.len(), 1);
        assert_eq!(hear(long(8 * 1024 - 3).as_bytes()), Heard::TooMuch);
    }

    #[test]
    fn a_length_that_is_no_number_is_none_and_one_too_large_is_the_largest() {
        for (length, bytes) in [("3", 3), (" 3 ", 3), ("-3", 0), ("abc", 0), ("", 0), ("99999999999999999999999", u64::MAX)] {
            let text = format!("PUT / HTTP/1.0\r\nContent-Length: {length}\r\n\r\n");
            assert_eq!(head(text.as_bytes()).body_bytes, bytes, "{length:?}");
        }
    }

    #[test]
    fn bytes_that_are_no_text_do_not_hurt() {
        assert_eq!(head(b"GET /\xff HTTP/1.1\r\nX: \xfe\r\n\r\n").request.path, "/\u{fffd}");
        assert_eq!(hear(&[0xff; 4096]), Heard::Part);
    }
}
