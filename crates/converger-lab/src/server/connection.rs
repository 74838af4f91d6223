//! One connection: request after request until somebody closes it, in the ways in which Proxmox's server does.
//!
//! What never enters here: which port it came over, and what an answer is.

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Duration, timeout};
use tokio_rustls::TlsAcceptor;

use super::clock::Time;
use super::http::{self, Head, Heard, Manners};
use super::{Request, Shared, Watcher};
use crate::respond;
use crate::wire::{Answer, Fate};

/// A connection on which nothing comes is closed.
const IDLE: Duration = Duration::from_secs(5);

/// So many requests, and the connection ends.
const REQUESTS_MAX: u32 = 100;

/// The first byte of a TLS record that opens a handshake.
const TLS_HANDSHAKE: u8 = 0x16;

/// What a connection needs to answer.
#[derive(Clone)]
pub(super) struct Desk {
    pub(super) world: Shared,
    pub(super) time: Time,
    pub(super) watcher: Option<Watcher>,
}

/// Serves a connection to its end.
pub(super) async fn serve(desk: Desk, node: &str, stream: TcpStream, acceptor: &TlsAcceptor) {
    let mut first = [0];
    // Whoever says nothing for so long never will.
    match timeout(IDLE, stream.peek(&mut first)).await {
        Ok(Ok(1)) if first == [TLS_HANDSHAKE] => {
            if let Ok(Ok(stream)) = timeout(IDLE, acceptor.accept(stream)).await {
                Line { desk, node, stream, input: Vec::new(), served: 0 }.talk().await;
            }
        }
        Ok(Ok(1)) => Line { desk, node, stream, input: Vec::new(), served: 0 }.redirect().await,
        _ => {}
    }
}

/// Whether the connection goes on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Next {
    Request,
    Close,
}

struct Line<'n, S> {
    desk: Desk,
    node: &'n str,
    stream: S,
    /// Bytes that came and are not used up.
    input: Vec<u8>,
    served: u32,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Line<'_, S> {
    async fn talk(mut self) {
        while let Ok(Some(heard)) = timeout(IDLE, self.head()).await {
            let next = match heard {
                Heard::Head(head) => self.request(head).await,
                Heard::Version(version) => self.other_version(&version).await,
                Heard::Part | Heard::Noise => Next::Close,
            };
            if next == Next::Close {
                break;
            }
        }
        let _ = self.stream.shutdown().await;
    }

    /// What is asked without TLS is sent on to the same place with it.
    async fn redirect(mut self) {
        if let Ok(Some(Heard::Head(head))) = timeout(IDLE, self.head()).await {
            let (status, reason) = if head.request.method == "GET" { (301, "Moved Permanently") } else { (308, "Permanent Redirect") };
            let mut answer = respond::raw(status, reason, reason, 0);
            let host = head.request.find("Host").unwrap_or("localhost").to_owned();
            answer.headers.push(("Location".to_owned(), format!("https://{host}{}", head.request.path)));
            self.put(&answer, Manners { is_old: head.is_old, closes: false, takes_gzip: false }).await;
        }
        let _ = self.stream.shutdown().await;
    }

    /// The next head, or nothing where the caller went away.
    async fn head(&mut self) -> Option<Heard> {
        loop {
            match http::hear(&self.input) {
                Heard::Part if self.input.len() < http::HEAD_BYTES_MAX => {}
                heard => return Some(heard),
            }
            self.more().await?;
        }
    }

    async fn more(&mut self) -> Option<()> {
        let read = self.stream.read_buf(&mut self.input).await.ok()?;
        (read > 0).then_some(())
    }

    async fn request(&mut self, head: Head) -> Next {
        let Head { mut request, is_old, taken, body_bytes } = head;
        self.input.drain(..taken);
        while self.input.len() < body_bytes {
            match timeout(IDLE, self.more()).await {
                Ok(Some(())) => {}
                _ => return Next::Close,
            }
        }
        request.body = self.input.drain(..body_bytes).collect();
        self.served += 1;
        let answer = self.ask(&request);
        let closes = is_old || self.served >= REQUESTS_MAX || answer.status >= 400 || http::wants_close(&request);
        let manners = Manners { is_old, closes, takes_gzip: http::takes_gzip(&request) };
        self.desk.time.wait(answer.delay_ms).await;
        self.give(&answer, manners).await
    }

    fn ask(&self, request: &Request) -> Answer {
        let mut world = self.desk.world.lock();
        let now_ms = self.desk.time.arrive_ms();
        let answer = world.answer_at(now_ms, self.node, request);
        if let (Some(watcher), Some(record)) = (&self.desk.watcher, world.records().next_back()) {
            watcher(record);
        }
        answer
    }

    async fn give(&mut self, answer: &Answer, manners: Manners) -> Next {
        match answer.fate {
            Fate::Deliver => {
                let is_put = self.put(answer, manners).await;
                if is_put && !manners.closes { Next::Request } else { Next::Close }
            }
            Fate::Truncated(bytes) => {
                let (head, body) = http::write(answer, manners, self.now_s());
                let part = body.get(..bytes.min(body.len())).unwrap_or_default();
                let _ = self.send(head.as_bytes(), part).await;
                Next::Close
            }
            Fate::LostBefore | Fate::LostAfter | Fate::CloseWithoutAnswer => Next::Close,
        }
    }

    async fn other_version(&mut self, version: &str) -> Next {
        let reason = format!("http protocol version {version} not supported");
        let answer = respond::raw(506, &reason, &reason, 0);
        self.put(&answer, Manners { is_old: true, closes: true, takes_gzip: false }).await;
        Next::Close
    }

    fn now_s(&self) -> u64 {
        self.desk.world.lock().wall_s()
    }

    async fn put(&mut self, answer: &Answer, manners: Manners) -> bool {
        let (head, body) = http::write(answer, manners, self.now_s());
        self.send(head.as_bytes(), &body).await
    }

    async fn send(&mut self, head: &[u8], body: &[u8]) -> bool {
        self.stream.write_all(head).await.is_ok() && self.stream.write_all(body).await.is_ok() && self.stream.flush().await.is_ok()
    }
}
