//! The world as a server: HTTPS on one port per node, in real time or on a clock that only requests move.
//!
//! The world stays pure; this room brings it sockets and time. What never enters here: what an answer is.

mod clock;
mod connection;
mod http;
mod identity;

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

pub use clock::Clock;
pub use identity::{Identity, IdentityError};

use crate::setting::Setting;
use crate::wire::Request;
use crate::world::{Record, World};
use connection::Desk;

/// Where and how a world is served.
pub struct Options {
    /// The address of the first node; each further node has the next port, or any free one where this is port 0.
    pub listen: SocketAddr,
    /// What time is.
    pub clock: Clock,
    /// Who the nodes say that they are.
    pub identity: Identity,
    /// Called with every request once it was answered.
    pub watcher: Option<Watcher>,
}

/// Looks at every request.
pub type Watcher = Arc<dyn Fn(&Record) + Send + Sync>;

/// A node and where it listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The name of the node.
    pub node: String,
    /// Its address.
    pub address: SocketAddr,
}

/// The world, for everybody who serves or changes it.
#[derive(Clone)]
pub struct Shared(Arc<Mutex<World>>);

impl Shared {
    /// The world itself, for as long as it is held.
    ///
    /// A thread that panicked while it held the world leaves it as it was.
    pub fn lock(&self) -> MutexGuard<'_, World> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A world that listens, and does not answer yet.
pub struct Server {
    world: Shared,
    listeners: Vec<(Place, TcpListener)>,
    desk: Desk,
    acceptor: TlsAcceptor,
}

/// Why a world cannot be served.
#[derive(Debug)]
pub enum ServeError {
    /// The setting makes no world.
    Setting(String),
    /// A port cannot be had.
    Port(SocketAddr, io::Error),
    /// The certificate is none, or does not fit its key.
    Certificate(String),
}

impl std::fmt::Display for ServeError {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Setting(fault) => write!(out, "the setting makes no world: {fault}"),
            Self::Port(address, error) => write!(out, "cannot listen on {address}: {error}"),
            Self::Certificate(fault) => write!(out, "the certificate cannot be used: {fault}"),
        }
    }
}

impl std::error::Error for ServeError {}

impl Server {
    /// A server of the world of a setting. It listens from here on, and answers once it [runs](Self::run).
    ///
    /// # Errors
    /// The setting makes no world, a port cannot be had, or the certificate cannot be used.
    pub async fn bind(setting: &Setting, options: Options) -> Result<Self, ServeError> {
        let mut setting = setting.clone();
        setting.start_ms = options.clock.begin_ms(setting.start_ms);
        let world = World::new(&setting).map_err(ServeError::Setting)?;
        let acceptor = acceptor(&options.identity)?;
        let mut listeners = Vec::new();
        for (index, node) in world.node_names().enumerate() {
            let address = nth(options.listen, index);
            let listener = TcpListener::bind(address).await.map_err(|error| ServeError::Port(address, error))?;
            let address = listener.local_addr().map_err(|error| ServeError::Port(address, error))?;
            listeners.push((Place { node: node.to_owned(), address }, listener));
        }
        let world = Shared(Arc::new(Mutex::new(world)));
        let desk = Desk { world: world.clone(), time: clock::Time::start(options.clock, setting.start_ms), watcher: options.watcher };
        Ok(Self { world, listeners, desk, acceptor })
    }

    /// The nodes, in order.
    pub fn places(&self) -> impl Iterator<Item = &Place> {
        self.listeners.iter().map(|(place, _)| place)
    }

    /// The world that is served.
    #[must_use]
    pub fn world(&self) -> Shared {
        self.world.clone()
    }

    /// Answers until `end` is there. What is under way then is cut off.
    pub async fn run(self, end: impl Future<Output = ()>) {
        let mut tasks = tokio::task::JoinSet::new();
        for (place, listener) in self.listeners {
            tasks.spawn(accept(listener, place.node, self.desk.clone(), self.acceptor.clone()));
        }
        end.await;
        tasks.shutdown().await;
    }
}

fn nth(first: SocketAddr, index: usize) -> SocketAddr {
    let port = match first.port() {
        0 => 0,
        port => port.saturating_add(u16::try_from(index).unwrap_or(u16::MAX)),
    };
    SocketAddr::new(first.ip(), port)
}

async fn accept(listener: TcpListener, node: String, desk: Desk, acceptor: TlsAcceptor) {
    let mut connections = tokio::task::JoinSet::new();
    loop {
        // A connection that cannot be taken, for want of descriptors, is the caller's loss and not the end of the lab.
        let Ok((stream, _)) = listener.accept().await else {
            tokio::task::yield_now().await;
            continue;
        };
        let _ = stream.set_nodelay(true);
        let (desk, acceptor, node) = (desk.clone(), acceptor.clone(), node.clone());
        connections.spawn(async move { connection::serve(desk, &node, stream, &acceptor).await });
        while connections.try_join_next().is_some() {}
    }
}

fn acceptor(identity: &Identity) -> Result<TlsAcceptor, ServeError> {
    let wrong = |error: rustls::Error| ServeError::Certificate(error.to_string());
    let provider = Arc::new(aws_lc_rs::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(wrong)?
        .with_no_client_auth()
        .with_single_cert(identity.chain(), identity.key())
        .map_err(wrong)?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}
