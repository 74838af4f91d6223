//! Messages on the wire: a request as received, a response as sent, and what the network does to
//! it.
//!
//! Must not depend on sockets or on the meaning of requests.

use std::borrow::Cow;

use serde::Deserialize;

/// One HTTP request as the server received it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LabRequest {
    /// The method, in upper case.
    pub method: String,
    /// Path and query, percent-encoded.
    pub path: String,
    /// Header lines in order; names in any case.
    pub headers: Vec<(String, String)>,
    /// The body, without transfer coding.
    pub body: Vec<u8>,
}

impl LabRequest {
    /// A request without headers and body.
    #[must_use]
    pub fn new(method: &str, path: &str) -> Self {
        Self { method: method.to_owned(), path: path.to_owned(), headers: Vec::new(), body: Vec::new() }
    }

    /// Adds a header line.
    #[must_use]
    pub fn with_header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Adds an API token (`user@realm!name=secret`).
    #[must_use]
    pub fn with_token(mut self, token: &str) -> Self {
        self.headers.push(("Authorization".to_owned(), ["PVEAPIToken=", token].concat()));
        self
    }

    /// Sets a form body.
    #[must_use]
    pub fn with_form(mut self, body: &str) -> Self {
        self.body = body.as_bytes().to_vec();
        self.with_header("Content-Type", "application/x-www-form-urlencoded")
    }

    /// The first header with this name.
    pub(crate) fn find_header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key.len() == name.len() && key.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    /// The announced content length, if any.
    pub(crate) fn content_length(&self) -> Option<u64> {
        let length = self.find_header("Content-Length")?.trim();
        let is_number = !length.is_empty() && length.bytes().all(|byte| byte.is_ascii_digit());
        is_number.then(|| length.parse().unwrap_or(u64::MAX))
    }
}

/// A response header: name and value. Most are constants.
pub type ResponseHeader = (Cow<'static, str>, Cow<'static, str>);

/// One HTTP response, and how the wire delivers it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LabResponse {
    /// The status code; 0 if no response is delivered.
    pub status: u16,
    /// The reason phrase, one line.
    pub reason: String,
    /// Header lines in order. `Connection` can occur twice, as in responses of Proxmox's proxy.
    pub headers: Vec<ResponseHeader>,
    /// The body.
    pub body: Vec<u8>,
    /// How long the client waits before the first byte.
    pub delay_ms: u64,
    /// What the wire does to it.
    pub delivery: WireDelivery,
}

/// What the wire does to a request and its response.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WireDelivery {
    /// The response arrives.
    #[default]
    Deliver,
    /// The request never arrives: nothing happens, and the connection breaks.
    LostBefore,
    /// The request is executed, and the response is lost: the connection breaks after the effect.
    LostAfter,
    /// The head announces the full length, and only this many bytes of the body arrive.
    Truncated(usize),
    /// The server closes the connection without a response, as for too many headers.
    CloseWithoutAnswer,
    /// The whole response arrives in chunks with pauses, including the head. The pauses are real even with a virtual clock.
    Drip {
        /// Bytes per chunk.
        bytes: u32,
        /// The pause.
        every_ms: u64,
    },
    /// The body is padded with blanks.
    Flood {
        /// Total bytes of the body.
        bytes: u64,
        /// Whether the content length is announced.
        announced: bool,
    },
    /// The body arrives compressed, even if the client does not accept that, and decompresses to this many bytes.
    GzipBomb(u64),
}

/// The TLS identity that a node presents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TlsIdentity {
    /// Its own certificate.
    #[default]
    Own,
    /// An expired certificate with the right names, authority and key.
    Expired,
    /// A certificate of its authority for another name.
    OtherName,
    /// A certificate of another authority, with another key.
    OtherKey,
    /// No TLS: bytes without meaning.
    Noise,
}
