//! One connection: serves requests until one side closes it, in the same cases as Proxmox's server.
//!
//! Every wait and every buffer is bounded, whatever the client sends, withholds or does not read.
//! Must not depend on the port, and must not decide what a response contains.

use std::future::Future;
use std::pin::pin;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::{Duration, sleep, timeout};

use super::clock::WorldClock;
use super::oversized_body::{self, GzipBomb};
use super::peeked_stream::ShutdownTcp;
use super::race::{RaceWinner, race};
use super::request_head::{self, HeadParse, HeadParser, RequestHead};
use super::response_bytes::{self, ResponseFraming, WireBody};
use super::{RequestWatcher, ServedExchange, SharedWorld};
use crate::response;
use crate::route;
use crate::wire::{LabRequest, LabResponse, WireDelivery};

/// A connection without traffic is closed after this time.
pub(super) const IDLE_TIMEOUT: Duration = Duration::from_secs(5);

/// Timeout of a whole request. Proxmox's server has none and would serve a client that trickles single bytes for ever.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);

/// A client that closes its sending direction while a response is delayed may still read; the response is sent if it is due within this
/// time.
const HALF_CLOSED_TIMEOUT: Duration = Duration::from_secs(30);

/// How long the rest of an unwanted body is discarded before closing, so that the client reads the response first.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Maximum number of requests per connection.
pub(super) const REQUESTS_MAX: u32 = 100;

/// Bytes per read.
const READ_BYTES: usize = 8 * 1024;

/// What a connection needs to answer requests.
#[derive(Clone)]
pub(super) struct ConnectionContext {
    pub(super) world: SharedWorld,
    pub(super) time: WorldClock,
    pub(super) watcher: Option<RequestWatcher>,
}

impl ConnectionContext {
    /// Answers a request and notifies the watcher.
    fn answer_request(&self, node: &str, request: &LabRequest) -> LabResponse {
        let (answer, record) = {
            let mut world = self.world.lock();
            let at_ms = self.time.arrival_ms(world.now_ms);
            let answer = world.answer_at(at_ms, node, request);
            (answer, self.watcher.is_some().then(|| world.records().next_back().cloned()).flatten())
        };
        // Not while the world is locked: a watcher may do slow I/O.
        if let (Some(watcher), Some(record)) = (&self.watcher, record) {
            watcher(&ServedExchange { record: &record, request, answer: &answer });
        }
        answer
    }

    /// The date header of a response: that of the entry node, even if another node produced the response.
    fn node_clock_s(&self, node: &str) -> u64 {
        let now_ms = self.time.now_ms();
        self.world.lock().node_clock_s_at(node, now_ms)
    }
}

/// Whether a connection is encrypted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConnectionSecurity {
    /// TLS.
    Tls,
    /// Not encrypted: the client is only redirected to HTTPS.
    Plain,
}

/// Whether the connection stays open.
#[derive(Clone, Copy, PartialEq, Eq)]
enum AfterRequest {
    Request,
    Close,
}

/// One client connection.
pub(super) struct LabConnection<'n, S> {
    pub(super) context: ConnectionContext,
    pub(super) node: &'n str,
    pub(super) stream: S,
    pub(super) safety: ConnectionSecurity,
    /// Bytes that were received and not consumed yet.
    pub(super) input: Vec<u8>,
    /// How many more requests are accepted.
    pub(super) requests_left: u32,
    /// A body was announced and not received.
    pub(super) has_unread_body: bool,
}

impl<S: AsyncRead + AsyncWrite + ShutdownTcp + Unpin> LabConnection<'_, S> {
    /// Serves requests until the connection closes.
    pub(super) async fn serve_requests(mut self) {
        while let Ok(Some(parsed)) = timeout(REQUEST_TIMEOUT, self.read_head()).await {
            let next = match parsed {
                HeadParse::Complete(head) => self.serve_request(head).await,
                HeadParse::Rejected { status, text, minor } => self.reject_request(status, &text, minor).await,
                HeadParse::TooMuch => self.close_after_idle().await,
                HeadParse::Incomplete => AfterRequest::Close,
            };
            if next == AfterRequest::Close {
                break;
            }
        }
        self.close().await;
    }

    /// Reads the next request head; `None` if the client closed the connection, stalled, or sent too much.
    async fn read_head(&mut self) -> Option<HeadParse> {
        let mut parser = HeadParser::default();
        loop {
            match parser.parse(&self.input) {
                HeadParse::Incomplete if self.input.len() < request_head::UNPARSED_BYTES_MAX => self.read_more().await?,
                parsed => return Some(parsed),
            }
        }
    }

    async fn read_more(&mut self) -> Option<()> {
        self.input.reserve(READ_BYTES);
        match timeout(IDLE_TIMEOUT, self.stream.read_buf(&mut self.input)).await {
            Ok(Ok(read)) if read > 0 => Some(()),
            _ => None,
        }
    }

    async fn serve_request(&mut self, head: RequestHead) -> AfterRequest {
        let RequestHead { mut request, minor, head_bytes, body_bytes } = head;
        self.input.drain(..head_bytes);
        if self.safety == ConnectionSecurity::Plain {
            self.has_unread_body = body_bytes > 0;
            return self.redirect_to_https(&request, minor).await;
        }
        if route::takes_body(&request) {
            let Some(body) = self.read_body(body_bytes).await else { return AfterRequest::Close };
            request.body = body;
        } else {
            self.has_unread_body = true;
        }
        self.requests_left = self.requests_left.saturating_sub(1);
        let answer = self.context.answer_request(self.node, &request);
        // The ports must match the response: a node that it reports as gone must refuse connections.
        self.context.world.wait_for_ports().await;
        let ends = self.requests_left == 0 || self.has_unread_body || response_bytes::wants_close(&request, &minor);
        let framing = ResponseFraming { minor, closes: ends || answer.status >= 400, takes_gzip: response_bytes::takes_gzip(&request) };
        if !self.wait_delay(answer.delay_ms).await {
            return AfterRequest::Close;
        }
        self.deliver_response(&answer, &framing).await
    }

    /// Reads the whole body. Its length has been checked before.
    async fn read_body(&mut self, bytes: u64) -> Option<Vec<u8>> {
        let bytes = usize::try_from(bytes).ok()?;
        let whole = async {
            while self.input.len() < bytes {
                self.read_more().await?;
            }
            Some(())
        };
        timeout(REQUEST_TIMEOUT, whole).await.ok()??;
        Some(self.input.drain(..bytes).collect())
    }

    /// Waits for a delayed response; returns whether the client is still connected.
    async fn wait_delay(&mut self, delay_ms: u64) -> bool {
        if delay_ms == 0 {
            return true;
        }
        let time = self.context.time.clone();
        let mut pause = pin!(time.wait_delay(delay_ms));
        // Bytes that arrive meanwhile belong to the next request; beyond the limit they stay in the socket.
        while self.input.len() < request_head::UNPARSED_BYTES_MAX {
            self.input.reserve(READ_BYTES);
            match race(pause.as_mut(), self.stream.read_buf(&mut self.input)).await {
                RaceWinner::Left(()) => return true,
                RaceWinner::Right(Ok(read)) if read > 0 => {}
                RaceWinner::Right(_) => return timeout(HALF_CLOSED_TIMEOUT, pause).await.is_ok(),
            }
        }
        pause.await;
        true
    }

    async fn deliver_response(&mut self, answer: &LabResponse, framing: &ResponseFraming) -> AfterRequest {
        let is_given = match answer.delivery {
            WireDelivery::Deliver => self.send_response(answer, framing).await,
            WireDelivery::Drip { bytes, every_ms } => self.send_in_pieces(answer, framing, bytes, every_ms).await,
            WireDelivery::Flood { bytes, announced } => self.send_padded(answer, framing, bytes, announced).await && announced,
            WireDelivery::GzipBomb(bytes) => self.send_gzip_bomb(answer, framing, bytes).await,
            WireDelivery::Truncated(bytes) => self.send_truncated(answer, framing, bytes).await,
            WireDelivery::LostBefore | WireDelivery::LostAfter | WireDelivery::CloseWithoutAnswer => false,
        };
        if is_given && !framing.closes { AfterRequest::Request } else { AfterRequest::Close }
    }

    async fn send_response(&mut self, answer: &LabResponse, framing: &ResponseFraming) -> bool {
        let body = response_bytes::encode_body(answer, framing);
        let head = response_bytes::encode_head(answer, &body, framing, self.context.node_clock_s(self.node));
        self.send_bytes(head.as_bytes()).await && self.send_bytes(&body.bytes).await && self.flush().await
    }

    /// Announces the full length, sends a part and closes the connection.
    async fn send_truncated(&mut self, answer: &LabResponse, framing: &ResponseFraming, bytes: usize) -> bool {
        let body = response_bytes::encode_body(answer, framing);
        let head = response_bytes::encode_head(answer, &body, framing, self.context.node_clock_s(self.node));
        let part = body.bytes.get(..bytes).unwrap_or(&body.bytes);
        let _ = self.send_bytes(head.as_bytes()).await && self.send_bytes(part).await && self.flush().await;
        false
    }

    async fn send_in_pieces(&mut self, answer: &LabResponse, framing: &ResponseFraming, bytes: u32, every_ms: u64) -> bool {
        let body = response_bytes::encode_body(answer, framing);
        let mut all = response_bytes::encode_head(answer, &body, framing, self.context.node_clock_s(self.node)).into_bytes();
        all.extend_from_slice(&body.bytes);
        for piece in all.chunks(usize::try_from(bytes.max(1)).unwrap_or(usize::MAX)) {
            if !(self.send_bytes(piece).await && self.flush().await) {
                return false;
            }
            sleep(Duration::from_millis(every_ms)).await;
        }
        true
    }

    async fn send_padded(&mut self, answer: &LabResponse, framing: &ResponseFraming, bytes: u64, announced: bool) -> bool {
        let plain = answer.body.as_slice();
        let length = announced.then_some(bytes.max(plain.len() as u64));
        let body = WireBody { bytes: plain.into(), is_gzip: false, length };
        let head = response_bytes::encode_head(answer, &body, framing, self.context.node_clock_s(self.node));
        if !(self.send_bytes(head.as_bytes()).await && self.send_bytes(plain).await) {
            return false;
        }
        for piece in oversized_body::blanks(bytes.saturating_sub(plain.len() as u64)) {
            if !self.send_bytes(piece).await {
                return false;
            }
        }
        self.flush().await
    }

    async fn send_gzip_bomb(&mut self, answer: &LabResponse, framing: &ResponseFraming, bytes: u64) -> bool {
        let bomb = GzipBomb::new(&answer.body, bytes);
        let body = WireBody { bytes: Vec::new().into(), is_gzip: true, length: Some(bomb.wire_bytes()) };
        let head = response_bytes::encode_head(answer, &body, framing, self.context.node_clock_s(self.node));
        if !self.send_bytes(head.as_bytes()).await {
            return false;
        }
        for piece in bomb.pieces() {
            if !self.send_bytes(piece).await {
                return false;
            }
        }
        self.send_bytes(&bomb.trailer()).await && self.flush().await
    }

    /// Redirects a plain HTTP request to the same URL with HTTPS.
    async fn redirect_to_https(&mut self, request: &LabRequest, minor: String) -> AfterRequest {
        let (status, reason) = if request.method == "GET" { (301, "Moved Permanently") } else { (308, "Permanent Redirect") };
        let mut answer = response::raw_response(status, reason, reason, 0);
        let host = request.find_header("Host").unwrap_or("localhost");
        answer.headers.push(("Location".into(), format!("https://{host}{}", request.path).into()));
        // Proxmox announces keep-alive here and closes the connection nevertheless.
        self.send_response(&answer, &ResponseFraming { minor, closes: false, takes_gzip: false }).await;
        AfterRequest::Close
    }

    async fn reject_request(&mut self, status: u16, text: &str, minor: String) -> AfterRequest {
        self.has_unread_body = true;
        self.send_response(&response::raw_response(status, text, text, 0), &ResponseFraming::closing(minor)).await;
        AfterRequest::Close
    }

    /// Reads and sends nothing more, and closes when the connection counts as idle.
    async fn close_after_idle(&mut self) -> AfterRequest {
        self.context.time.wait_delay(u64::try_from(IDLE_TIMEOUT.as_millis()).unwrap_or(0)).await;
        AfterRequest::Close
    }

    /// Sends all bytes; returns whether the client received them. A client may read slowly but must not stall.
    async fn send_bytes(&mut self, mut bytes: &[u8]) -> bool {
        while !bytes.is_empty() {
            match timeout(IDLE_TIMEOUT, self.stream.write(bytes)).await {
                Ok(Ok(sent)) if sent > 0 => bytes = bytes.get(sent..).unwrap_or_default(),
                _ => return false,
            }
        }
        true
    }

    async fn flush(&mut self) -> bool {
        matches!(timeout(IDLE_TIMEOUT, self.stream.flush()).await, Ok(Ok(())))
    }

    /// Closes the connection. Unread bytes would turn the close into a reset, which can destroy the response on its way.
    async fn close(mut self) {
        let _ = timeout(CLOSE_TIMEOUT, self.stream.shutdown_tcp()).await;
        if self.has_unread_body {
            let _ = timeout(CLOSE_TIMEOUT, self.discard_input()).await;
        }
    }

    async fn discard_input(&mut self) {
        let mut bin = vec![0; READ_BYTES];
        while matches!(self.stream.read(&mut bin).await, Ok(read) if read > 0) {}
    }
}

/// The result, if the work succeeds within the limit.
pub(super) async fn finish_within<T, E>(limit: Duration, work: impl Future<Output = Result<T, E>>) -> Option<T> {
    timeout(limit, work).await.ok()?.ok()
}
