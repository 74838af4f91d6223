//! The port of a node: open while the node listens, otherwise refusing, with a bounded number of
//! connections.
//!
//! Must not depend on the contents of requests.

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

/// With fewer permits left, a connection closes after one request, so that waiting clients get a turn.
const CROWDED_PERMITS: usize = 20;

/// Retry interval if a port cannot be bound, or if accepting fails for lack of file descriptors.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// Listen backlog.
const BACKLOG: u32 = 1_024;

/// The port of a node.
pub(super) struct NodePort {
    pub(super) host: ConnectionAcceptor,
    pub(super) served_node: ServedNode,
    pub(super) listener: Option<TcpListener>,
    /// One permit per connection.
    pub(super) permits: Arc<Semaphore>,
    /// The number of permits.
    pub(super) permits_max: usize,
    /// The nodes whose port is open.
    pub(super) open: watch::Receiver<BTreeSet<String>>,
}

impl NodePort {
    /// Accepts connections while the node listens. Never returns by itself; dropping it closes its connections.
    pub(super) async fn serve_port(mut self) {
        let mut inside = JoinSet::new();
        let mut closed = None;
        let mut open = self.open.clone();
        loop {
            if !open.borrow_and_update().contains(&self.served_node.node) {
                // An open listener without an accept loop would accept clients and let them wait.
                self.listener = None;
                closed = bind_closed_port(self.served_node.address).ok();
                self.report_state(false);
            }
            if self.wait_until_port(&mut open, true).await.is_none() {
                return;
            }
            let listener = self.reopen_listener(closed.take()).await;
            race(self.accept_connections(&listener, &mut inside), self.wait_until_port(&mut open, false)).await;
        }
    }

    /// Waits until the port should be open or closed; `None` if the world is gone.
    async fn wait_until_port(&self, open: &mut watch::Receiver<BTreeSet<String>>, is_open: bool) -> Option<()> {
        open.wait_for(|open| open.contains(&self.served_node.node) == is_open).await.ok().map(drop)
    }

    /// Reopens the node's port. If it could not be reserved while closed, another process may use it for a while; retry until it is free.
    async fn reopen_listener(&mut self, mut closed: Option<TcpSocket>) -> TcpListener {
        loop {
            let had = match (self.listener.take(), closed.take()) {
                (Some(listener), _) => Ok(listener),
                (None, Some(socket)) => socket.listen(BACKLOG),
                (None, None) => bind_closed_port(self.served_node.address).and_then(|socket| socket.listen(BACKLOG)),
            };
            self.report_state(true);
            match had {
                Ok(listener) => return listener,
                Err(_) => sleep(RETRY_INTERVAL).await,
            }
        }
    }

    fn report_state(&self, is_open: bool) {
        self.host.context.world.report_port(&self.served_node.node, is_open);
    }

    async fn accept_connections(&self, listener: &TcpListener, inside: &mut JoinSet<()>) {
        while let Ok(permit) = Arc::clone(&self.permits).acquire_owned().await {
            match listener.accept().await {
                Ok((stream, _)) => {
                    let _ = stream.set_nodelay(true);
                    self.spawn_connection(stream, permit, inside);
                }
                Err(_) => sleep(RETRY_INTERVAL).await,
            }
            while inside.try_join_next().is_some() {}
        }
    }

    fn spawn_connection(&self, stream: tokio::net::TcpStream, permit: OwnedSemaphorePermit, inside: &mut JoinSet<()>) {
        let (host, node) = (self.host.clone(), self.served_node.node.clone());
        let is_crowded = self.permits.available_permits() < CROWDED_PERMITS.min(self.permits_max / 4);
        let requests = if is_crowded { 1 } else { REQUESTS_MAX };
        inside.spawn(async move {
            host.serve_connection(&node, stream, requests).await;
            drop(permit);
        });
    }
}

/// Binds a port without listening: clients are refused, and no other process can get it as a free port.
fn bind_closed_port(address: SocketAddr) -> io::Result<TcpSocket> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    Ok(socket)
}
