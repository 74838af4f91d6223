//! An HTTPS server on the loopback that does to the wire what is asked of it, and remembers what it was asked.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use converger_adapters::proxmox::client::{Bounds, Client, Endpoint, Fingerprint, Secret, Token, TokenId, Trust};
use converger_adapters::proxmox::codec::HttpAnswer;
use rcgen::{CertificateParams, CertifiedIssuer, KeyPair};
use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

/// What the server does with a request.
#[derive(Clone, Debug)]
pub(crate) enum Reply {
    /// A plain answer.
    Answer(HttpAnswer),
    /// The same from the node that was asked itself: the connection stays, and no word says otherwise.
    Kept(HttpAnswer),
    /// These bytes, and then the end of the connection.
    Raw(Vec<u8>),
    /// These bytes, and then the end of TCP without a word of TLS.
    Cut(Vec<u8>),
    /// These bytes below TLS, where no record of it is, and then the end of TCP.
    Garbled(Vec<u8>),
    /// These bytes, and then one more again and again.
    Drip(Vec<u8>),
    /// These bytes, and then the same block without end.
    Flood(Vec<u8>),
    /// Nothing, while the connection stays.
    Hang,
    /// Nothing, and the end of the connection.
    Close,
}

/// A request as it came.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) body: String,
}

/// A number for each node; what the endpoint answers itself is under an empty name.
type Counts = Arc<Mutex<BTreeMap<String, usize>>>;

type Handler = Arc<dyn Fn(&Seen) -> Reply + Send + Sync>;

/// A running server. It ends with the runtime of the test's thread.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    pub(crate) fingerprint: Fingerprint,
    pub(crate) seen: Arc<Mutex<Vec<Seen>>>,
    /// The most requests that were under way at once, by node.
    pub(crate) at_once_max: Counts,
    /// How many connections there were.
    pub(crate) connections: Arc<AtomicUsize>,
    /// Taken only when the server is dropped.
    runtime: Option<tokio::runtime::Runtime>,
}

/// A certificate for names, and the key that it is for.
pub(crate) struct Identity {
    pub(crate) chain: Vec<CertificateDer<'static>>,
    pub(crate) key: PrivateKeyDer<'static>,
}

/// An authority of one's own, as every cluster has one.
pub(crate) struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).expect("parameters");
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key")).expect("signed"))
    }

    pub(crate) fn pem(&self) -> String {
        self.0.pem()
    }

    pub(crate) fn issue(&self, name: &str, change: impl FnOnce(&mut CertificateParams)) -> Identity {
        let mut params = CertificateParams::new(vec![name.to_owned()]).expect("parameters");
        change(&mut params);
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.0).expect("signed");
        Identity { chain: vec![certificate.der().clone()], key: PrivateKeyDer::try_from(key.serialize_der()).expect("a key") }
    }
}

pub(crate) fn identity() -> Identity {
    Authority::new().issue("127.0.0.1", |_| {})
}

pub(crate) fn start(handler: impl Fn(&Seen) -> Reply + Send + Sync + 'static) -> Server {
    let own = identity();
    let config = server_config().with_single_cert(own.chain.clone(), own.key.clone_key()).expect("a certificate");
    start_with(&own.chain[0], config, handler)
}

pub(crate) fn server_config() -> rustls::ConfigBuilder<ServerConfig, rustls::server::WantsServerCert> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().expect("protocols").with_no_client_auth()
}

pub(crate) fn start_with(leaf: &[u8], config: ServerConfig, handler: impl Fn(&Seen) -> Reply + Send + Sync + 'static) -> Server {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
    // Bound without a runtime: a server may be started by code that already runs on one.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.set_nonblocking(true).expect("a listener of the runtime");
    let mut server = Server {
        address: listener.local_addr().expect("an address"),
        fingerprint: Fingerprint::of(leaf),
        seen: Arc::default(),
        at_once_max: Arc::default(),
        connections: Arc::default(),
        runtime: None,
    };
    let desk = Desk {
        acceptor: TlsAcceptor::from(Arc::new(config)),
        handler: Arc::new(handler),
        seen: server.seen.clone(),
        at_once: Arc::default(),
        at_once_max: server.at_once_max.clone(),
    };
    let connections = server.connections.clone();
    runtime.spawn(async move {
        let listener = TcpListener::from_std(listener).expect("a listener");
        while let Ok((stream, _)) = listener.accept().await {
            connections.fetch_add(1, Ordering::SeqCst);
            tokio::spawn(desk.clone().serve(stream));
        }
    });
    server.runtime = Some(runtime);
    server
}

impl Drop for Server {
    /// A runtime must not be dropped by code that runs on one, unless it is left to end by itself.
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Server {
    pub(crate) fn url(&self) -> String {
        format!("https://{}", self.address)
    }

    pub(crate) fn requests(&self) -> Vec<Seen> {
        self.seen.lock().expect("unpoisoned").clone()
    }

    pub(crate) fn pinned(&self) -> Trust {
        Trust::Fingerprints(Box::new([self.fingerprint]))
    }

    pub(crate) fn client(&self, trust: Trust) -> Client {
        Client::new(Endpoint::new(&self.url(), trust).expect("an address"), &token(), bounds()).expect("a client")
    }
}

pub(crate) const SECRET: &str = "f3b1c8de-0000-4000-8000-123456789abc";

pub(crate) fn token() -> Token {
    Token { id: TokenId::new("svc@pve!probe").expect("an id"), secret: Secret::new(SECRET).expect("a secret") }
}

/// Small enough for tests of what is too much, large enough for a busy machine.
pub(crate) fn bounds() -> Bounds {
    let [connect, connect_to_change, deadline] = [Duration::from_secs(20); 3];
    Bounds { body_bytes_max: 1 << 20, connect, connect_to_change, deadline, ..Bounds::default() }
}

#[derive(Clone)]
struct Desk {
    acceptor: TlsAcceptor,
    handler: Handler,
    seen: Arc<Mutex<Vec<Seen>>>,
    at_once: Counts,
    at_once_max: Counts,
}

type Stream = tokio_rustls::server::TlsStream<TcpStream>;

impl Desk {
    fn count(&self, node: &str) {
        let mut at_once = self.at_once.lock().expect("unpoisoned");
        let now = at_once.entry(node.to_owned()).or_default();
        *now += 1;
        let mut most = self.at_once_max.lock().expect("unpoisoned");
        let most = most.entry(node.to_owned()).or_default();
        *most = (*most).max(*now);
    }

    async fn serve(self, stream: TcpStream) {
        let Ok(mut stream) = self.acceptor.accept(stream).await else { return };
        while let Some(request) = next(&mut stream).await {
            self.seen.lock().expect("unpoisoned").push(request.clone());
            let node = request.path.split("/nodes/").nth(1).and_then(|rest| rest.split('/').next()).unwrap_or("").to_owned();
            self.count(&node);
            // Others get their turn before this one is done, so that what may overlap does.
            for _ in 0..8 {
                tokio::task::yield_now().await;
            }
            let reply = (self.handler)(&request);
            *self.at_once.lock().expect("unpoisoned").entry(node).or_default() -= 1;
            if let Reply::Cut(bytes) | Reply::Garbled(bytes) = &reply {
                if matches!(reply, Reply::Cut(_)) {
                    let _ = stream.write_all(bytes).await;
                    let _ = stream.flush().await;
                } else {
                    let _ = stream.get_mut().0.write_all(bytes).await;
                }
                let _ = stream.get_mut().0.shutdown().await;
                return;
            }
            if !give(&mut stream, reply).await {
                let _ = stream.shutdown().await;
                return;
            }
        }
    }
}

/// The next request on the connection.
async fn next(stream: &mut Stream) -> Option<Seen> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    let head = String::from_utf8(head).expect("text");
    let mut lines = head.split("\r\n");
    let mut first = lines.next()?.split(' ');
    let (method, path) = (first.next()?.to_owned(), first.next()?.to_owned());
    let headers: BTreeMap<String, String> =
        lines.filter_map(|line| line.split_once(": ")).map(|(key, value)| (key.to_lowercase(), value.to_owned())).collect();
    let length = headers.get("content-length").map_or(0, |length| length.parse().expect("a length"));
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await.ok()?;
    Some(Seen { method, path, headers, body: String::from_utf8(body).expect("text") })
}

async fn answered(stream: &mut Stream, also: &str, answer: &HttpAnswer) -> bool {
    let (status, reason, length) = (answer.status, &answer.reason, answer.body.len());
    let kind = "Content-Type: application/json;charset=UTF-8";
    let head = format!("HTTP/1.1 {status} {reason}\r\n{also}Connection: Keep-Alive\r\n{kind}\r\nContent-Length: {length}\r\n\r\n");
    stream.write_all(head.as_bytes()).await.is_ok() && stream.write_all(&answer.body).await.is_ok() && stream.flush().await.is_ok()
}

/// Gives the reply; whether the connection goes on.
async fn give(stream: &mut Stream, reply: Reply) -> bool {
    match reply {
        // As Proxmox does where a call is passed on: both words, and the connection stays.
        Reply::Answer(answer) => answered(stream, "Connection: close\r\n", &answer).await,
        Reply::Kept(answer) => answered(stream, "", &answer).await,
        Reply::Raw(bytes) => {
            let _ = stream.write_all(&bytes).await;
            false
        }
        Reply::Drip(bytes) => {
            let _ = stream.write_all(&bytes).await;
            let mut tick = tokio::time::interval(Duration::from_millis(5));
            while stream.write_all(b" ").await.is_ok() && stream.flush().await.is_ok() {
                tick.tick().await;
            }
            false
        }
        Reply::Flood(bytes) => {
            let _ = stream.write_all(&bytes).await;
            while stream.write_all(&[b' '; 1 << 16]).await.is_ok() {}
            false
        }
        Reply::Hang => {
            let _ = stream.read_u8().await;
            false
        }
        Reply::Close | Reply::Cut(_) | Reply::Garbled(_) => false,
    }
}

/// Runs a future of the client to its end.
pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime").block_on(future)
}
