//! Serves a world over HTTPS: one port per node, in real time or on a clock that only requests
//! advance.
//!
//! The world itself stays pure; this module adds sockets and time. The number of connections is
//! bounded, and so is the time that each may be idle. Must not decide what a response contains.

mod acceptor;
mod certificates;
mod clock;
mod connection;
mod node_port;
mod oversized_body;
mod peeked_stream;
mod race;
mod request_head;
mod response_bytes;
mod shared_world;

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Duration, sleep};

pub use certificates::{CertificateError, LabCertificates};
pub use clock::ClockMode;
pub use shared_world::{SharedWorld, WorldGuard};

use crate::wire::{LabRequest, LabResponse};
use crate::world::{RequestRecord, World};
use crate::world_spec::WorldSpec;
use acceptor::ConnectionAcceptor;
use connection::{ConnectionContext, REQUESTS_MAX};
use node_port::NodePort;

/// Default limit of connections: less than half of the usual limit of file descriptors of a process.
const CONNECTIONS_MAX: usize = 480;

/// The world is advanced at least this often, even without requests.
const ADVANCE_INTERVAL: Duration = Duration::from_secs(1);

/// Where and how to serve a world.
pub struct ServerOptions {
    /// The address of the first node. Further nodes use the following ports, or free ones if this port is 0.
    pub listen: SocketAddr,
    /// How time passes.
    pub clock: ClockMode,
    /// The certificates of the nodes.
    pub identity: LabCertificates,
    /// Called after each request with its response.
    pub watcher: Option<RequestWatcher>,
}

/// Observes every request and its response.
pub type RequestWatcher = Arc<dyn Fn(&ServedExchange<'_>) + Send + Sync>;

/// One request and its response, as the world received and produced them.
#[derive(Clone, Copy, Debug)]
pub struct ServedExchange<'p> {
    /// The world's record of it.
    pub record: &'p RequestRecord,
    /// The request.
    pub request: &'p LabRequest,
    /// The response, even if it is lost or delayed on its way.
    pub answer: &'p LabResponse,
}

/// A node and its address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServedNode {
    /// The name of the node.
    pub node: String,
    /// Its address.
    pub address: SocketAddr,
}

/// A world that listens and does not answer yet.
///
/// ```
/// use converger_lab::WorldSpec;
/// use converger_lab::server::{ClockMode, LabCertificates, LabServer, ServerOptions};
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let spec = WorldSpec::from_yaml("nodes: { pve1: {} }")?;
/// let certificates = LabCertificates::new(["pve1"].into_iter(), "127.0.0.1".parse()?)?;
/// let authority = certificates.authority_pem().to_owned(); // for the client
/// let clock = ClockMode::Virtual { step_ms: 1000 };
/// let options = ServerOptions { listen: "127.0.0.1:0".parse()?, clock, identity: certificates, watcher: None };
/// let server = LabServer::bind(&spec, options).await?;
/// let (address, world) = (server.served_nodes().next().map(|node| node.address), server.world());
/// server.run(async { /* ask at `address`, look into `world` */ }).await;
/// assert_eq!(world.lock().requests(), 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct LabServer {
    host: ConnectionAcceptor,
    listeners: Vec<(ServedNode, TcpListener)>,
    connections_max: usize,
}

/// Why a world cannot be served.
#[derive(Debug)]
pub enum ServeError {
    /// The world spec is inconsistent.
    Spec(String),
    /// A port is not available.
    Port(SocketAddr, io::Error),
    /// The last node would need a port beyond 65535.
    Ports(SocketAddr, usize),
    /// The certificate is invalid or does not match its key.
    Certificate(String),
}

impl std::fmt::Display for ServeError {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Spec(fault) => write!(out, "invalid world: {fault}"),
            Self::Port(address, error) => write!(out, "cannot listen on {address}: {error}"),
            Self::Ports(first, nodes) => write!(out, "not enough ports: {nodes} nodes need one each, counted from {}", first.port()),
            Self::Certificate(fault) => write!(out, "unusable certificate: {fault}"),
        }
    }
}

impl std::error::Error for ServeError {}

impl LabServer {
    /// Binds the ports of the world that a spec describes. Clients can connect from here on and get responses once the server
    /// [runs](Self::run).
    ///
    /// # Errors
    /// The spec is inconsistent, a port is not available, or the certificate is unusable.
    pub async fn bind(spec: &WorldSpec, options: ServerOptions) -> Result<Self, ServeError> {
        Self::bind_world(Self::build_world(spec, options.clock)?, options).await
    }

    /// Builds the world of a spec with the start time that the clock requires.
    ///
    /// # Errors
    /// The spec is inconsistent.
    pub fn build_world(spec: &WorldSpec, clock: ClockMode) -> Result<World, ServeError> {
        let spec = WorldSpec { start_ms: clock.start_ms(spec.start_ms), ..spec.clone() };
        World::new(&spec).map_err(ServeError::Spec)
    }

    /// Like [`Self::bind`], for a world that already exists.
    ///
    /// # Errors
    /// A port is not available, or the certificate is unusable.
    pub async fn bind_world(world: World, options: ServerOptions) -> Result<Self, ServeError> {
        let listen = options.listen;
        Self::from_world(world, options)?.open_listeners(listen).await
    }

    /// A server without ports for a running world; connections come through [`Self::serve_stream`].
    ///
    /// # Errors
    /// The certificate is unusable.
    pub fn from_world(mut world: World, options: ServerOptions) -> Result<Self, ServeError> {
        let time = clock::WorldClock::start(options.clock, world.now_ms);
        world.advance_to(time.now_ms());
        let world = SharedWorld::new(world, options.clock);
        let host = ConnectionAcceptor::new(ConnectionContext { world, time, watcher: options.watcher }, &options.identity)?;
        Ok(Self { host, listeners: Vec::new(), connections_max: CONNECTIONS_MAX })
    }

    async fn open_listeners(mut self, first: SocketAddr) -> Result<Self, ServeError> {
        let nodes: Vec<String> = self.world().lock().node_names().map(str::to_owned).collect();
        for (index, node) in nodes.iter().enumerate() {
            let address = nth_address(first, index).ok_or(ServeError::Ports(first, nodes.len()))?;
            let listener = TcpListener::bind(address).await.map_err(|error| ServeError::Port(address, error))?;
            let address = listener.local_addr().map_err(|error| ServeError::Port(address, error))?;
            self.host.context.world.report_port(node, true);
            self.listeners.push((ServedNode { node: node.clone(), address }, listener));
        }
        Ok(self)
    }

    /// Limits the number of connections at once, over all nodes. Further clients wait until a connection closes.
    #[must_use]
    pub fn with_connections_max(self, connections_max: usize) -> Self {
        Self { connections_max, ..self }
    }

    /// The nodes and their addresses, in order.
    pub fn served_nodes(&self) -> impl Iterator<Item = &ServedNode> {
        self.listeners.iter().map(|(node, _)| node)
    }

    /// The world that is served.
    #[must_use]
    pub fn world(&self) -> SharedWorld {
        self.host.context.world.clone()
    }

    /// Serves a connection to a node, including TLS, on a stream that did not come through its port. For tests without sockets.
    pub fn serve_stream<S>(&self, node: &str, stream: S) -> impl Future<Output = ()> + Send + use<S>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send,
    {
        let (host, node) = (self.host.clone(), node.to_owned());
        async move { host.serve_connection(&node, stream, REQUESTS_MAX).await }
    }

    /// Serves requests until `end` completes, then closes all connections.
    pub async fn run(self, end: impl Future<Output = ()>) {
        let mut tasks = JoinSet::new();
        let each = (self.connections_max / self.listeners.len().max(1)).max(1);
        for (node, listener) in self.listeners {
            let open = self.host.context.world.subscribe_ports();
            let door = NodePort {
                host: self.host.clone(),
                served_node: node,
                listener: Some(listener),
                permits: Arc::new(Semaphore::new(each)),
                permits_max: each,
                open,
            };
            tasks.spawn(door.serve_port());
        }
        tasks.spawn(advance_periodically(self.host.context.clone()));
        end.await;
        tasks.shutdown().await;
    }
}

/// Advances the world in real time, so that a scheduled event happens at its time and not with the next request.
async fn advance_periodically(context: ConnectionContext) {
    loop {
        let next_ms = {
            let mut world = context.world.lock();
            world.advance_to(context.time.now_ms());
            world.next_event_ms()
        };
        let Some(pause) = context.time.duration_until(next_ms.unwrap_or(u64::MAX)) else { return };
        sleep(pause.clamp(Duration::from_millis(1), ADVANCE_INTERVAL)).await;
    }
}

fn nth_address(first: SocketAddr, index: usize) -> Option<SocketAddr> {
    let port = match first.port() {
        0 => 0,
        port => port.checked_add(u16::try_from(index).ok()?)?,
    };
    Some(SocketAddr::new(first.ip(), port))
}
