//! The encoding of requests: method, path and form. No character of a value can be mistaken for syntax.
//!
//! Proxmox splits a form at `&` *and* `;` and drops everything after a second `=`. So every byte other than letters, digits and `-._~` is
//! percent-encoded. Must not depend on the endpoint or on credentials.

use std::fmt;

/// The base of every path. `docs/decisions/0007-extjs-and-forms.md` explains why it is not `json`.
pub const BASE: &str = "/api2/extjs";

/// The method of a request. Proxmox supports these four.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HttpMethod {
    /// Reads.
    Get,
    /// Acts, or creates.
    Post,
    /// Writes.
    Put,
    /// Removes. Its parameters are in the query, because Proxmox rejects a body with 501.
    Delete,
}

impl HttpMethod {
    /// The method as sent in the request line.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Post => "POST",
            Self::Put => "PUT",
            Self::Delete => "DELETE",
        }
    }

    fn has_body(self) -> bool {
        matches!(self, Self::Post | Self::Put)
    }
}

/// One encoded request. Only [`super::encode`] creates one: there is no raw endpoint.
#[derive(Clone, PartialEq, Eq)]
pub struct HttpRequest {
    method: HttpMethod,
    path: String,
    form: Option<String>,
}

/// Shows everything but the value of a password.
impl fmt::Debug for HttpRequest {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_secret = |pair: &str| pair.starts_with("cipassword=");
        let show = |pair: &str| if is_secret(pair) { "cipassword=(secret)".to_owned() } else { pair.to_owned() };
        let form = self.form.as_deref().map(|form| form.split('&').map(show).collect::<Vec<_>>().join("&"));
        formatter.debug_struct("HttpRequest").field("method", &self.method).field("path", &self.path).field("form", &form).finish()
    }
}

/// Typical length of a path.
const PATH_BYTES: usize = 100;

impl HttpRequest {
    /// The method.
    #[must_use]
    pub fn method(&self) -> HttpMethod {
        self.method
    }

    /// The path, including the query if there is one.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The body of POST and PUT, `application/x-www-form-urlencoded`.
    #[must_use]
    pub fn form(&self) -> Option<&str> {
        self.form.as_deref()
    }

    pub(super) fn new(method: HttpMethod, segments: &[&str], parameters: &FormParameters) -> Self {
        let mut path = String::with_capacity(PATH_BYTES);
        path.push_str(BASE);
        for segment in segments {
            path.push('/');
            percent_encode(segment, &mut path);
        }
        let pairs = if parameters.0.is_empty() { String::new() } else { parameters.encode() };
        if method.has_body() {
            return Self { method, path, form: Some(pairs) };
        }
        if !pairs.is_empty() {
            path.push('?');
            path.push_str(&pairs);
        }
        Self { method, path, form: None }
    }
}

/// Parameters in insertion order.
#[derive(Clone, Debug, Default)]
pub(super) struct FormParameters(Vec<(&'static str, String)>);

impl FormParameters {
    pub(super) fn empty() -> Self {
        Self::default()
    }

    pub(super) fn with(mut self, key: &'static str, value: impl ToString) -> Self {
        self.0.push((key, value.to_string()));
        self
    }

    pub(super) fn with_optional(self, key: &'static str, value: Option<impl ToString>) -> Self {
        match value {
            Some(value) => self.with(key, value),
            None => self,
        }
    }

    fn encode(&self) -> String {
        let mut text = String::new();
        for (index, (key, value)) in self.0.iter().enumerate() {
            if index > 0 {
                text.push('&');
            }
            percent_encode(key, &mut text);
            text.push('=');
            percent_encode(value, &mut text);
        }
        text
    }
}

/// Bytes that are unreserved in RFC 3986.
static UNRESERVED: [bool; 256] = {
    let mut plain = [false; 256];
    let mut byte = 0;
    while byte < plain.len() {
        let own = byte as u8;
        plain[byte] = own.is_ascii_alphanumeric() || matches!(own, b'-' | b'.' | b'_' | b'~');
        byte += 1;
    }
    plain
};

/// Appends `text` and percent-encodes every byte that is not unreserved in RFC 3986. A blank becomes `%20`, never `+`.
pub fn percent_encode(text: &str, onto: &mut String) {
    let is_plain = |byte: u8| UNRESERVED[usize::from(byte)];
    // Most words need no encoding.
    if text.bytes().all(is_plain) {
        return onto.push_str(text);
    }
    let digit = |half: u8| char::from(if half < 10 { b'0' + half } else { b'A' + half - 10 });
    let mut rest = text;
    while let Some(at) = rest.bytes().position(|byte| !is_plain(byte)) {
        let (plain, from) = rest.split_at(at);
        onto.push_str(plain);
        // A character may have several bytes, none of which is unreserved.
        let others = from.bytes().take_while(|byte| !is_plain(*byte)).count();
        for byte in from.bytes().take(others) {
            onto.push('%');
            onto.push(digit(byte >> 4));
            onto.push(digit(byte & 15));
        }
        rest = from.get(others..).unwrap_or_default();
    }
    onto.push_str(rest);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Decodes a form as Proxmox does: it splits at `&` and `;`, then at each `=`, and keeps only the first two parts.
    fn decode_form_as_proxmox(form: &str) -> Vec<(String, String)> {
        let pairs = form.split(['&', ';']);
        pairs
            .map(|pair| {
                let mut parts = pair.split('=');
                (percent_decode(parts.next().unwrap_or("")), percent_decode(parts.next().unwrap_or("")))
            })
            .collect()
    }

    fn percent_decode(text: &str) -> String {
        let text = text.replace('+', " ");
        let mut bytes = Vec::new();
        let mut rest = text.bytes();
        while let Some(byte) = rest.next() {
            if byte != b'%' {
                bytes.push(byte);
                continue;
            }
            let hex: Vec<u8> = rest.by_ref().take(2).collect();
            let hex = String::from_utf8(hex).expect("two digits");
            bytes.push(u8::from_str_radix(&hex, 16).expect("hexadecimal"));
        }
        String::from_utf8(bytes).expect("UTF-8")
    }

    #[test]
    fn proxmox_decodes_the_form_that_was_encoded() {
        let values = ["a=b=c", "a;b", "a&b", "a+b", "100%", "ä ö\nü", "", "=", "order=scsi0;net0", "\u{1F600}", "a%3Bb"];
        for value in values {
            let request = HttpRequest::new(HttpMethod::Put, &["x"], &FormParameters::empty().with("description", value).with("cores", 2));
            let expected = [("description".to_owned(), value.to_owned()), ("cores".to_owned(), "2".to_owned())];
            assert_eq!(decode_form_as_proxmox(request.form().expect("a form")), expected, "{value:?}");
        }
    }

    #[test]
    fn path_segment_cannot_escape() {
        let request = HttpRequest::new(HttpMethod::Get, &["nodes", "../x", "a/b?c#d"], &FormParameters::empty());
        assert_eq!(request.path(), "/api2/extjs/nodes/..%2Fx/a%2Fb%3Fc%23d");
        assert_eq!(request.form(), None);
    }

    #[test]
    fn delete_parameters_are_in_the_query() {
        let request = HttpRequest::new(HttpMethod::Delete, &["a"], &FormParameters::empty().with("b", "c d"));
        assert_eq!((request.path(), request.form()), ("/api2/extjs/a?b=c%20d", None));
        let bare = HttpRequest::new(HttpMethod::Post, &["a"], &FormParameters::empty());
        assert_eq!((bare.path(), bare.form()), ("/api2/extjs/a", Some("")));
    }
}
