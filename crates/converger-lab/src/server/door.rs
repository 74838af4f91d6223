//! The port of a node: open while the node listens, refused while it does not, and never more callers inside than there is
//! room for.
//!
//! What never enters here: what is said on a connection.

use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{Duration, sleep};

use super::connection::REQUESTS_MAX;
use super::race::race;
use super::{Host, Place};

/// With fewer places left than that a connection is not kept: others wait.
const CROWDED: usize = 20;

/// A listener that cannot be had, or cannot accept for want of descriptors, is asked again after this time.
const AGAIN: Duration = Duration::from_millis(100);

/// So many may knock before one of them is let in.
const BACKLOG: u32 = 1_024;

/// The port of a node.
pub(super) struct Door {
    pub(super) host: Host,
    pub(super) place: Place,
    pub(super) listener: Option<TcpListener>,
    /// Who is inside.
    pub(super) room: Arc<Semaphore>,
    /// How many it holds.
    pub(super) each: usize,
    /// The nodes whose port is open.
    pub(super) open: watch::Receiver<BTreeSet<String>>,
}

impl Door {
    /// Lets callers in whenever the node listens. It does not end by itself; dropped, it takes its connections with it.
    pub(super) async fn keep(mut self) {
        let mut inside = JoinSet::new();
        let mut closed = None;
        let mut open = self.open.clone();
        loop {
            if !open.borrow_and_update().contains(&self.place.node) {
                // Held and not listened to it would take callers and leave them waiting.
                self.listener = None;
                closed = held(self.place.address).ok();
                self.tell(false);
            }
            if self.until(&mut open, true).await.is_none() {
                return;
            }
            let listener = self.listen(closed.take()).await;
            race(self.let_in(&listener, &mut inside), self.until(&mut open, false)).await;
        }
    }

    /// Waits until the port is to be open, or closed; nothing where nobody decides any more.
    async fn until(&self, open: &mut watch::Receiver<BTreeSet<String>>, is_open: bool) -> Option<()> {
        open.wait_for(|open| open.contains(&self.place.node) == is_open).await.ok().map(drop)
    }

    /// The port that it has always had; where it could not be held somebody else may sit there for a while.
    async fn listen(&mut self, mut closed: Option<TcpSocket>) -> TcpListener {
        loop {
            let had = match (self.listener.take(), closed.take()) {
                (Some(listener), _) => Ok(listener),
                (None, Some(socket)) => socket.listen(BACKLOG),
                (None, None) => held(self.place.address).and_then(|socket| socket.listen(BACKLOG)),
            };
            self.tell(true);
            match had {
                Ok(listener) => return listener,
                Err(_) => sleep(AGAIN).await,
            }
        }
    }

    fn tell(&self, is_open: bool) {
        self.host.desk.world.door_is(&self.place.node, is_open);
    }

    async fn let_in(&self, listener: &TcpListener, inside: &mut JoinSet<()>) {
        while let Ok(place) = Arc::clone(&self.room).acquire_owned().await {
            match listener.accept().await {
                Ok((stream, _)) => {
                    let _ = stream.set_nodelay(true);
                    self.welcome(stream, place, inside);
                }
                Err(_) => sleep(AGAIN).await,
            }
            while inside.try_join_next().is_some() {}
        }
    }

    fn welcome(&self, stream: tokio::net::TcpStream, place: OwnedSemaphorePermit, inside: &mut JoinSet<()>) {
        let (host, node) = (self.host.clone(), self.place.node.clone());
        let is_crowded = self.room.available_permits() < CROWDED.min(self.each / 4);
        let requests = if is_crowded { 1 } else { REQUESTS_MAX };
        inside.spawn(async move {
            host.serve(&node, stream, requests).await;
            drop(place);
        });
    }
}

/// A port on which nobody listens and which nobody else is given who takes any: whoever knocks is refused.
fn held(address: SocketAddr) -> io::Result<TcpSocket> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    Ok(socket)
}
