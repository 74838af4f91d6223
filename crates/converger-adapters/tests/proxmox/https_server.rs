//! An HTTPS server on the loopback that produces faults on request and records what it receives.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use converger_adapters::proxmox::client::{ApiToken, Endpoint, Fingerprint, ProxmoxClient, RequestLimits, TokenId, TokenSecret, Trust};
use converger_adapters::proxmox::codec::HttpResponse;
use rcgen::{CertificateParams, CertifiedIssuer, KeyPair};
use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

/// What the server does with a request.
#[derive(Clone, Debug)]
pub(crate) enum ServerReply {
    /// Sends a response.
    Answer(HttpResponse),
    /// Sends a response without `Connection: close`, as a node does for its own calls, and keeps the connection open.
    KeepAlive(HttpResponse),
    /// Sends these bytes and closes the connection.
    Raw(Vec<u8>),
    /// Sends these bytes and closes TCP without a TLS close.
    Cut(Vec<u8>),
    /// Sends these bytes below TLS, without a TLS record, and closes TCP.
    Garbled(Vec<u8>),
    /// Sends these bytes, then single bytes endlessly.
    Drip(Vec<u8>),
    /// Sends these bytes, then the same block endlessly.
    Flood(Vec<u8>),
    /// Sends nothing and keeps the connection open.
    Hang,
    /// Sends nothing and closes the connection.
    Close,
}

/// A received request.
#[derive(Clone, Debug)]
pub(crate) struct ReceivedRequest {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) body: String,
}

/// A number per node; the endpoint's own calls are under an empty name.
type NodeCounts = Arc<Mutex<BTreeMap<String, usize>>>;

type ReplyHandler = Arc<dyn Fn(&ReceivedRequest) -> ServerReply + Send + Sync>;

/// A running server. It ends with its runtime.
pub(crate) struct TestHttpsServer {
    pub(crate) address: SocketAddr,
    pub(crate) fingerprint: Fingerprint,
    pub(crate) received: Arc<Mutex<Vec<ReceivedRequest>>>,
    /// The maximum number of concurrent requests by node.
    pub(crate) at_once_max: NodeCounts,
    /// Number of connections.
    pub(crate) connections: Arc<AtomicUsize>,
    /// Taken only when the server is dropped.
    runtime: Option<tokio::runtime::Runtime>,
}

/// A certificate with its key.
pub(crate) struct TestCertificate {
    pub(crate) chain: Vec<CertificateDer<'static>>,
    pub(crate) key: PrivateKeyDer<'static>,
}

/// A private authority, as every cluster has one.
pub(crate) struct TestAuthority(CertifiedIssuer<'static, KeyPair>);

impl TestAuthority {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).expect("parameters");
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key")).expect("signed"))
    }

    pub(crate) fn pem(&self) -> String {
        self.0.pem()
    }

    pub(crate) fn issue(&self, name: &str, change: impl FnOnce(&mut CertificateParams)) -> TestCertificate {
        let mut params = CertificateParams::new(vec![name.to_owned()]).expect("parameters");
        change(&mut params);
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.0).expect("signed");
        TestCertificate { chain: vec![certificate.der().clone()], key: PrivateKeyDer::try_from(key.serialize_der()).expect("a key") }
    }
}

pub(crate) fn test_certificate() -> TestCertificate {
    TestAuthority::new().issue("127.0.0.1", |_| {})
}

pub(crate) fn start_server(handler: impl Fn(&ReceivedRequest) -> ServerReply + Send + Sync + 'static) -> TestHttpsServer {
    let own = test_certificate();
    let config = server_config().with_single_cert(own.chain.clone(), own.key.clone_key()).expect("a certificate");
    start_server_with(&own.chain[0], config, handler)
}

pub(crate) fn server_config() -> rustls::ConfigBuilder<ServerConfig, rustls::server::WantsServerCert> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().expect("protocols").with_no_client_auth()
}

pub(crate) fn start_server_with(
    leaf: &[u8],
    config: ServerConfig,
    handler: impl Fn(&ReceivedRequest) -> ServerReply + Send + Sync + 'static,
) -> TestHttpsServer {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
    // Bound without a runtime, because the caller may already run on one.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.set_nonblocking(true).expect("a listener of the runtime");
    let mut server = TestHttpsServer {
        address: listener.local_addr().expect("an address"),
        fingerprint: Fingerprint::of_certificate(leaf),
        received: Arc::default(),
        at_once_max: Arc::default(),
        connections: Arc::default(),
        runtime: None,
    };
    let connection = HttpsConnection {
        acceptor: TlsAcceptor::from(Arc::new(config)),
        handler: Arc::new(handler),
        seen: server.received.clone(),
        at_once: Arc::default(),
        at_once_max: server.at_once_max.clone(),
    };
    let connections = server.connections.clone();
    runtime.spawn(async move {
        let listener = TcpListener::from_std(listener).expect("a listener");
        while let Ok((stream, _)) = listener.accept().await {
            connections.fetch_add(1, Ordering::SeqCst);
            tokio::spawn(connection.clone().serve_connection(stream));
        }
    });
    server.runtime = Some(runtime);
    server
}

impl Drop for TestHttpsServer {
    /// A runtime must not be dropped on another runtime, unless it shuts down in the background.
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl TestHttpsServer {
    pub(crate) fn url(&self) -> String {
        format!("https://{}", self.address)
    }

    pub(crate) fn requests(&self) -> Vec<ReceivedRequest> {
        self.received.lock().expect("unpoisoned").clone()
    }

    pub(crate) fn pinned_trust(&self) -> Trust {
        Trust::Fingerprints(Box::new([self.fingerprint]))
    }

    pub(crate) fn client_with(&self, trust: Trust) -> ProxmoxClient {
        ProxmoxClient::new(Endpoint::new(&self.url(), trust).expect("an address"), &test_token(), test_limits()).expect("a client")
    }
}

pub(crate) const SECRET: &str = "f3b1c8de-0000-4000-8000-123456789abc";

pub(crate) fn test_token() -> ApiToken {
    ApiToken { id: TokenId::new("svc@pve!probe").expect("an id"), secret: TokenSecret::new(SECRET).expect("a secret") }
}

/// Small enough for tests of the limits, large enough for a busy machine.
pub(crate) fn test_limits() -> RequestLimits {
    let [connect, connect_to_change, deadline] = [Duration::from_secs(20); 3];
    RequestLimits { body_bytes_max: 1 << 20, connect, connect_to_change, deadline, ..RequestLimits::default() }
}

#[derive(Clone)]
struct HttpsConnection {
    acceptor: TlsAcceptor,
    handler: ReplyHandler,
    seen: Arc<Mutex<Vec<ReceivedRequest>>>,
    at_once: NodeCounts,
    at_once_max: NodeCounts,
}

type ServerStream = tokio_rustls::server::TlsStream<TcpStream>;

impl HttpsConnection {
    fn count_request(&self, node: &str) {
        let mut at_once = self.at_once.lock().expect("unpoisoned");
        let now = at_once.entry(node.to_owned()).or_default();
        *now += 1;
        let mut most = self.at_once_max.lock().expect("unpoisoned");
        let most = most.entry(node.to_owned()).or_default();
        *most = (*most).max(*now);
    }

    async fn serve_connection(self, stream: TcpStream) {
        let Ok(mut stream) = self.acceptor.accept(stream).await else { return };
        while let Some(request) = next_request(&mut stream).await {
            self.seen.lock().expect("unpoisoned").push(request.clone());
            let node = request.path.split("/nodes/").nth(1).and_then(|rest| rest.split('/').next()).unwrap_or("").to_owned();
            self.count_request(&node);
            // Lets other tasks run first, so that concurrent requests do overlap.
            for _ in 0..8 {
                tokio::task::yield_now().await;
            }
            let reply = (self.handler)(&request);
            *self.at_once.lock().expect("unpoisoned").entry(node).or_default() -= 1;
            if let ServerReply::Cut(bytes) | ServerReply::Garbled(bytes) = &reply {
                if matches!(reply, ServerReply::Cut(_)) {
                    let _ = stream.write_all(bytes).await;
                    let _ = stream.flush().await;
                } else {
                    let _ = stream.get_mut().0.write_all(bytes).await;
                }
                let _ = stream.get_mut().0.shutdown().await;
                return;
            }
            if !send_reply(&mut stream, reply).await {
                let _ = stream.shutdown().await;
                return;
            }
        }
    }
}

/// Reads the next request on the connection.
async fn next_request(stream: &mut ServerStream) -> Option<ReceivedRequest> {
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
    Some(ReceivedRequest { method, path, headers, body: String::from_utf8(body).expect("text") })
}

async fn write_response(stream: &mut ServerStream, also: &str, answer: &HttpResponse) -> bool {
    let (status, reason, length) = (answer.status, &answer.reason, answer.body.len());
    let kind = "Content-Type: application/json;charset=UTF-8";
    let head = format!("HTTP/1.1 {status} {reason}\r\n{also}Connection: Keep-Alive\r\n{kind}\r\nContent-Length: {length}\r\n\r\n");
    stream.write_all(head.as_bytes()).await.is_ok() && stream.write_all(&answer.body).await.is_ok() && stream.flush().await.is_ok()
}

/// Sends the reply; returns whether the connection stays open.
async fn send_reply(stream: &mut ServerStream, reply: ServerReply) -> bool {
    match reply {
        // As Proxmox does for forwarded calls: both headers, and the connection stays open.
        ServerReply::Answer(answer) => write_response(stream, "Connection: close\r\n", &answer).await,
        ServerReply::KeepAlive(answer) => write_response(stream, "", &answer).await,
        ServerReply::Raw(bytes) => {
            let _ = stream.write_all(&bytes).await;
            false
        }
        ServerReply::Drip(bytes) => {
            let _ = stream.write_all(&bytes).await;
            let mut tick = tokio::time::interval(Duration::from_millis(5));
            while stream.write_all(b" ").await.is_ok() && stream.flush().await.is_ok() {
                tick.tick().await;
            }
            false
        }
        ServerReply::Flood(bytes) => {
            let _ = stream.write_all(&bytes).await;
            while stream.write_all(&[b' '; 1 << 16]).await.is_ok() {}
            false
        }
        ServerReply::Hang => {
            let _ = stream.read_u8().await;
            false
        }
        ServerReply::Close | ServerReply::Cut(_) | ServerReply::Garbled(_) => false,
    }
}

/// Runs a future to completion.
pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime").block_on(future)
}
