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
use super::{ConnectionAcceptor, ServedNode};

/// With fewer places left than that a connection is not kept: others wait.
const CROWDED_PERMITS: usize = 20;

/// A listener that cannot be had, or cannot accept for want of descriptors, is asked again after this time.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// So many may knock before one of them is let in.
const BACKLOG: u32 = 1_024;

/// The port of a node.
pub(super) struct NodePort {
    pub(super) host: ConnectionAcceptor,
    pub(super) place: ServedNode,
    pub(super) listener: Option<TcpListener>,
    /// Who is inside.
    pub(super) permits: Arc<Semaphore>,
    /// How many it holds.
    pub(super) permits_max: usize,
    /// The nodes whose port is open.
    pub(super) open: watch::Receiver<BTreeSet<String>>,
}

impl NodePort {
    /// Lets callers in whenever the node listens. It does not end by itself; dropped, it takes its connections with it.
    pub(super) async fn serve_port(mut self) {
        let mut inside = JoinSet::new();
        let mut closed = None;
        let mut open = self.open.clone();
        loop {
            if !open.borrow_and_update().contains(&self.place.node) {
                // Held and not listened to it would take callers and leave them waiting.
                self.listener = None;
                closed = bind_closed_port(self.place.address).ok();
                self.report_state(false);
            }
            if self.wait_until_port(&mut open, true).await.is_none() {
                return;
            }
            let listener = self.reopen_listener(closed.take()).await;
            race(self.accept_connections(&listener, &mut inside), self.wait_until_port(&mut open, false)).await;
        }
    }

    /// Waits until the port is to be open, or closed; nothing where nobody decides any more.
    async fn wait_until_port(&self, open: &mut watch::Receiver<BTreeSet<String>>, is_open: bool) -> Option<()> {
        open.wait_for(|open| open.contains(&self.place.node) == is_open).await.ok().map(drop)
    }

    /// The port that it has always had; where it could not be held somebody else may sit there for a while.
    async fn reopen_listener(&mut self, mut closed: Option<TcpSocket>) -> TcpListener {
        loop {
            let had = match (self.listener.take(), closed.take()) {
                (Some(listener), _) => Ok(listener),
                (None, Some(socket)) => socket.listen(BACKLOG),
                (None, None) => bind_closed_port(self.place.address).and_then(|socket| socket.listen(BACKLOG)),
            };
            self.report_state(true);
            match had {
                Ok(listener) => return listener,
                Err(_) => sleep(RETRY_INTERVAL).await,
            }
        }
    }

    fn report_state(&self, is_open: bool) {
        self.host.desk.world.report_port(&self.place.node, is_open);
    }

    async fn accept_connections(&self, listener: &TcpListener, inside: &mut JoinSet<()>) {
        while let Ok(place) = Arc::clone(&self.permits).acquire_owned().await {
            match listener.accept().await {
                Ok((stream, _)) => {
                    let _ = stream.set_nodelay(true);
                    self.spawn_connection(stream, place, inside);
                }
                Err(_) => sleep(RETRY_INTERVAL).await,
            }
            while inside.try_join_next().is_some() {}
        }
    }

    fn spawn_connection(&self, stream: tokio::net::TcpStream, place: OwnedSemaphorePermit, inside: &mut JoinSet<()>) {
        let (host, node) = (self.host.clone(), self.place.node.clone());
        let is_crowded = self.permits.available_permits() < CROWDED_PERMITS.min(self.permits_max / 4);
        let requests = if is_crowded { 1 } else { REQUESTS_MAX };
        inside.spawn(async move {
            host.serve_connection(&node, stream, requests).await;
            drop(place);
        });
    }
}

/// A port on which nobody listens and which nobody else is given who takes any: whoever knocks is refused.
fn bind_closed_port(address: SocketAddr) -> io::Result<TcpSocket> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    Ok(socket)
}
