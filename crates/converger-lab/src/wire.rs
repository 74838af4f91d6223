//! What passes over the wire: a request as it arrived, an answer as it leaves, and what the network
//! does to it.
//!
//! What never enters here: sockets, and what a request means.

use std::borrow::Cow;

use serde::Deserialize;

/// One HTTP request, as the server read it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LabRequest {
    /// The method in capitals.
    pub method: String,
    /// Path and query, still percent-encoded.
    pub path: String,
    /// Header lines in order, names in any case.
    pub headers: Vec<(String, String)>,
    /// The body, without any transfer coding.
    pub body: Vec<u8>,
}

impl LabRequest {
    /// A request without headers and body.
    #[must_use]
    pub fn new(method: &str, path: &str) -> Self {
        Self { method: method.to_owned(), path: path.to_owned(), headers: Vec::new(), body: Vec::new() }
    }

    /// The same request with one header line more.
    #[must_use]
    pub fn with_header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// The same request, signed with an API token (`user@realm!name=secret`).
    #[must_use]
    pub fn with_token(mut self, token: &str) -> Self {
        self.headers.push(("Authorization".to_owned(), ["PVEAPIToken=", token].concat()));
        self
    }

    /// The same request with a form body.
    #[must_use]
    pub fn with_form(mut self, body: &str) -> Self {
        self.body = body.as_bytes().to_vec();
        self.with_header("Content-Type", "application/x-www-form-urlencoded")
    }

    /// The first header of that name.
    pub(crate) fn find_header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key.len() == name.len() && key.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    /// How long the body is said to be; `None` where nothing is said.
    pub(crate) fn content_length(&self) -> Option<u64> {
        let length = self.find_header("Content-Length")?.trim();
        let is_number = !length.is_empty() && length.bytes().all(|byte| byte.is_ascii_digit());
        is_number.then(|| length.parse().unwrap_or(u64::MAX))
    }
}

/// A header line of an answer: its name and its value. Most of them are always the same.
pub type ResponseHeader = (Cow<'static, str>, Cow<'static, str>);

/// One HTTP answer, and how the wire treats it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LabResponse {
    /// The status code; zero where the wire delivers none.
    pub status: u16,
    /// The reason phrase: one line.
    pub reason: String,
    /// Header lines in order. `ConnectionConfig` can stand there twice, as Proxmox's proxy sends it.
    pub headers: Vec<ResponseHeader>,
    /// The body.
    pub body: Vec<u8>,
    /// How long the client waits before the first byte.
    pub delay_ms: u64,
    /// What the wire does with it.
    pub delivery: WireDelivery,
}

/// What the wire does with a request and its answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WireDelivery {
    /// The answer arrives.
    #[default]
    Deliver,
    /// The request never arrived: nothing happened, the connection just breaks.
    LostBefore,
    /// The request was carried out, and the answer was lost: the connection breaks after the effect.
    LostAfter,
    /// The head arrives with the full length announced, and then only so many bytes of the body.
    Truncated(usize),
    /// The server itself closes without a word, as it does on too many headers.
    CloseWithoutAnswer,
    /// The answer arrives whole and in pieces, head included: so many bytes, then a pause, then so many again. The pauses are
    /// those of the wire: they last also where the clock of the world stands.
    Drip {
        /// Bytes of a piece.
        bytes: u32,
        /// The pause.
        every_ms: u64,
    },
    /// The answer arrives, and blanks follow until the body has so many bytes.
    Flood {
        /// Bytes of the body.
        bytes: u64,
        /// Whether the length is said before.
        announced: bool,
    },
    /// The body arrives compressed, whether the caller takes that or not, and unpacks to so many bytes.
    GzipBomb(u64),
}

/// What a node shows to those who begin TLS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TlsIdentity {
    /// Its own certificate.
    #[default]
    Own,
    /// One of its authority for its names and its key, that ended years ago.
    Expired,
    /// One of its authority that is for another name.
    OtherName,
    /// One of another authority and with another key.
    OtherKey,
    /// No TLS at all: bytes that mean nothing.
    Noise,
}
