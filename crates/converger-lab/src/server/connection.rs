//! One connection: request after request until somebody closes it, in the ways in which Proxmox's server does.
//!
//! Bounded whatever the caller does: what it sends, what it does not send, and what it does not read. What never enters here:
//! which port it came over, and what an answer is.

use std::future::Future;
use std::pin::pin;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::{Duration, sleep, timeout};

use super::clock::Time;
use super::flood::{self, Bomb};
use super::head::{self, Head, Heard, Hearing};
use super::race::{First, race};
use super::reply::{self, Body, Manners};
use super::stream::HangUp;
use super::{Passed, Shared, Watcher};
use crate::respond;
use crate::route;
use crate::wire::{Answer, Fate, Request};

/// A connection on which nothing moves is closed.
pub(super) const IDLE: Duration = Duration::from_secs(5);

/// Proxmox's server would listen for ever to somebody who sends a byte now and then; this one does not.
const PATIENCE: Duration = Duration::from_secs(60);

/// Whoever goes away while its answer takes time is waited for so long: it may have closed one direction only.
const GONE: Duration = Duration::from_secs(30);

/// What still comes of a body that nobody wants is thrown away for so long, so that the answer is read first.
const LEAVE: Duration = Duration::from_secs(1);

/// So many requests, and the connection ends.
pub(super) const REQUESTS_MAX: u32 = 100;

/// So much is asked of a stream at once.
const READ_BYTES: usize = 8 * 1024;

/// What a connection needs to answer.
#[derive(Clone)]
pub(super) struct Desk {
    pub(super) world: Shared,
    pub(super) time: Time,
    pub(super) watcher: Option<Watcher>,
}

impl Desk {
    /// The answer, and the watcher told.
    fn ask(&self, node: &str, request: &Request) -> Answer {
        let (answer, record) = {
            let mut world = self.world.lock();
            let at_ms = self.time.arrive_ms(world.now_ms);
            let answer = world.answer_at(at_ms, node, request);
            (answer, self.watcher.is_some().then(|| world.records().next_back().cloned()).flatten())
        };
        // Not while the world is held: a watcher may write to something that is slow.
        if let (Some(watcher), Some(record)) = (&self.watcher, record) {
            watcher(&Passed { record: &record, request, answer: &answer });
        }
        answer
    }

    /// The date that a node writes on an answer: its own, also where another node gave the answer.
    fn wall_s(&self, node: &str) -> u64 {
        let now_ms = self.time.now_ms();
        self.world.lock().wall_s_at(node, now_ms)
    }
}

/// Whether a connection is safe from others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Safety {
    /// TLS.
    Secret,
    /// Everybody can read it: nothing is answered, the caller is sent to where it is safe.
    Plain,
}

/// Whether the connection goes on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Next {
    Request,
    Close,
}

/// A connection.
pub(super) struct Line<'n, S> {
    pub(super) desk: Desk,
    pub(super) node: &'n str,
    pub(super) stream: S,
    pub(super) safety: Safety,
    /// Bytes that came and are not used up.
    pub(super) input: Vec<u8>,
    /// How many more requests are taken.
    pub(super) left: u32,
    /// Something was announced and not received.
    pub(super) is_unread: bool,
}

impl<S: AsyncRead + AsyncWrite + HangUp + Unpin> Line<'_, S> {
    /// Answers to the end.
    pub(super) async fn talk(mut self) {
        while let Ok(Some(heard)) = timeout(PATIENCE, self.head()).await {
            let next = match heard {
                Heard::Head(head) => self.request(head).await,
                Heard::Wrong { status, text, minor } => self.wrong(status, &text, minor).await,
                Heard::TooMuch => self.silence().await,
                Heard::Part => Next::Close,
            };
            if next == Next::Close {
                break;
            }
        }
        self.leave().await;
    }

    /// The next head; nothing where the caller went away, says nothing or says too much at once.
    async fn head(&mut self) -> Option<Heard> {
        let mut hearing = Hearing::default();
        loop {
            match hearing.hear(&self.input) {
                Heard::Part if self.input.len() < head::WAITING_BYTES_MAX => self.more().await?,
                heard => return Some(heard),
            }
        }
    }

    async fn more(&mut self) -> Option<()> {
        self.input.reserve(READ_BYTES);
        match timeout(IDLE, self.stream.read_buf(&mut self.input)).await {
            Ok(Ok(read)) if read > 0 => Some(()),
            _ => None,
        }
    }

    async fn request(&mut self, head: Head) -> Next {
        let Head { mut request, minor, taken, body_bytes } = head;
        self.input.drain(..taken);
        if self.safety == Safety::Plain {
            self.is_unread = body_bytes > 0;
            return self.redirect(&request, minor).await;
        }
        if route::takes_body(&request) {
            let Some(body) = self.body(body_bytes).await else { return Next::Close };
            request.body = body;
        } else {
            self.is_unread = true;
        }
        self.left = self.left.saturating_sub(1);
        let answer = self.desk.ask(self.node, &request);
        // Whoever was told of a node that is gone finds it gone.
        self.desk.world.settled().await;
        let ends = self.left == 0 || self.is_unread || reply::wants_close(&request, &minor);
        let manners = Manners { minor, closes: ends || answer.status >= 400, takes_gzip: reply::takes_gzip(&request) };
        if !self.wait(answer.delay_ms).await {
            return Next::Close;
        }
        self.give(&answer, &manners).await
    }

    /// The body, once it is whole. Its length was found to be within bounds.
    async fn body(&mut self, bytes: u64) -> Option<Vec<u8>> {
        let bytes = usize::try_from(bytes).ok()?;
        let whole = async {
            while self.input.len() < bytes {
                self.more().await?;
            }
            Some(())
        };
        timeout(PATIENCE, whole).await.ok()??;
        Some(self.input.drain(..bytes).collect())
    }

    /// Lets the caller wait; whether it is still there then.
    async fn wait(&mut self, delay_ms: u64) -> bool {
        if delay_ms == 0 {
            return true;
        }
        let time = self.desk.time.clone();
        let mut pause = pin!(time.wait(delay_ms));
        // What comes meanwhile is the next request; more of it than can wait is left where it is.
        while self.input.len() < head::WAITING_BYTES_MAX {
            self.input.reserve(READ_BYTES);
            match race(pause.as_mut(), self.stream.read_buf(&mut self.input)).await {
                First::Left(()) => return true,
                First::Right(Ok(read)) if read > 0 => {}
                First::Right(_) => return timeout(GONE, pause).await.is_ok(),
            }
        }
        pause.await;
        true
    }

    async fn give(&mut self, answer: &Answer, manners: &Manners) -> Next {
        let is_given = match answer.fate {
            Fate::Deliver => self.put(answer, manners).await,
            Fate::Drip { bytes, every_ms } => self.drip(answer, manners, bytes, every_ms).await,
            Fate::Flood { bytes, announced } => self.flood(answer, manners, bytes, announced).await && announced,
            Fate::GzipBomb(bytes) => self.bomb(answer, manners, bytes).await,
            Fate::Truncated(bytes) => self.cut(answer, manners, bytes).await,
            Fate::LostBefore | Fate::LostAfter | Fate::CloseWithoutAnswer => false,
        };
        if is_given && !manners.closes { Next::Request } else { Next::Close }
    }

    async fn put(&mut self, answer: &Answer, manners: &Manners) -> bool {
        let body = reply::body(answer, manners);
        let head = reply::head(answer, &body, manners, self.desk.wall_s(self.node));
        self.send(head.as_bytes()).await && self.send(&body.bytes).await && self.flush().await
    }

    /// The head says more than there is, and the connection breaks.
    async fn cut(&mut self, answer: &Answer, manners: &Manners, bytes: usize) -> bool {
        let body = reply::body(answer, manners);
        let head = reply::head(answer, &body, manners, self.desk.wall_s(self.node));
        let part = body.bytes.get(..bytes).unwrap_or(&body.bytes);
        let _ = self.send(head.as_bytes()).await && self.send(part).await && self.flush().await;
        false
    }

    async fn drip(&mut self, answer: &Answer, manners: &Manners, bytes: u32, every_ms: u64) -> bool {
        let body = reply::body(answer, manners);
        let mut all = reply::head(answer, &body, manners, self.desk.wall_s(self.node)).into_bytes();
        all.extend_from_slice(&body.bytes);
        for piece in all.chunks(usize::try_from(bytes.max(1)).unwrap_or(usize::MAX)) {
            if !(self.send(piece).await && self.flush().await) {
                return false;
            }
            sleep(Duration::from_millis(every_ms)).await;
        }
        true
    }

    async fn flood(&mut self, answer: &Answer, manners: &Manners, bytes: u64, announced: bool) -> bool {
        let plain = answer.body.as_slice();
        let length = announced.then_some(bytes.max(plain.len() as u64));
        let body = Body { bytes: plain.into(), is_packed: false, length };
        let head = reply::head(answer, &body, manners, self.desk.wall_s(self.node));
        if !(self.send(head.as_bytes()).await && self.send(plain).await) {
            return false;
        }
        for piece in flood::blanks(bytes.saturating_sub(plain.len() as u64)) {
            if !self.send(piece).await {
                return false;
            }
        }
        self.flush().await
    }

    async fn bomb(&mut self, answer: &Answer, manners: &Manners, bytes: u64) -> bool {
        let bomb = Bomb::new(&answer.body, bytes);
        let body = Body { bytes: Vec::new().into(), is_packed: true, length: Some(bomb.length()) };
        let head = reply::head(answer, &body, manners, self.desk.wall_s(self.node));
        if !self.send(head.as_bytes()).await {
            return false;
        }
        for piece in bomb.pieces() {
            if !self.send(piece).await {
                return false;
            }
        }
        self.send(&bomb.trailer()).await && self.flush().await
    }

    /// What is asked without TLS is sent on to the same place with it.
    async fn redirect(&mut self, request: &Request, minor: String) -> Next {
        let (status, reason) = if request.method == "GET" { (301, "Moved Permanently") } else { (308, "Permanent Redirect") };
        let mut answer = respond::raw(status, reason, reason, 0);
        let host = request.find("Host").unwrap_or("localhost");
        answer.headers.push(("Location".into(), format!("https://{host}{}", request.path).into()));
        // It says that it stays, and goes.
        self.put(&answer, &Manners { minor, closes: false, takes_gzip: false }).await;
        Next::Close
    }

    async fn wrong(&mut self, status: u16, text: &str, minor: String) -> Next {
        self.is_unread = true;
        self.put(&respond::raw(status, text, text, 0), &Manners::last(minor)).await;
        Next::Close
    }

    /// Nothing more is heard, nothing is said, and the end comes when the connection counts as idle.
    async fn silence(&mut self) -> Next {
        self.desk.time.wait(u64::try_from(IDLE.as_millis()).unwrap_or(0)).await;
        Next::Close
    }

    /// Sends all of it; whether the caller took it. It need not be fast, but it must not stop.
    async fn send(&mut self, mut bytes: &[u8]) -> bool {
        while !bytes.is_empty() {
            match timeout(IDLE, self.stream.write(bytes)).await {
                Ok(Ok(sent)) if sent > 0 => bytes = bytes.get(sent..).unwrap_or_default(),
                _ => return false,
            }
        }
        true
    }

    async fn flush(&mut self) -> bool {
        matches!(timeout(IDLE, self.stream.flush()).await, Ok(Ok(())))
    }

    /// Ends the connection. Bytes that nobody read would make the end a reset, which can take the answer with it.
    async fn leave(mut self) {
        let _ = timeout(LEAVE, self.stream.hang_up()).await;
        if self.is_unread {
            let _ = timeout(LEAVE, self.drain()).await;
        }
    }

    async fn drain(&mut self) {
        let mut bin = vec![0; READ_BYTES];
        while matches!(self.stream.read(&mut bin).await, Ok(read) if read > 0) {}
    }
}

/// Whether something is done in time.
pub(super) async fn within<T, E>(limit: Duration, work: impl Future<Output = Result<T, E>>) -> Option<T> {
    timeout(limit, work).await.ok()?.ok()
}
