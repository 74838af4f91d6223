//! A served lab, and clients that see every byte.
//!
//! Must not contain expectations of single tests.

use std::future::Future;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use converger_lab::server::{ClockMode, LabCertificates, LabServer, ServerOptions};
use converger_lab::{RequestFault, ResponseFault, World, WorldSpec};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, duplex};
use tokio::runtime::Builder;
use tokio::time::Instant;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

pub(crate) const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// The buffer size of a stream, like that of a socket whose client does not read.
pub(crate) const PIPE_BYTES: usize = 16 * 1024;

/// Two nodes with one guest each.
pub(crate) const WORLD: &str = "
cluster: lab
nodes: { a: {}, b: {} }
tokens: { root@pam!t: { secret: s, full: true } }
guests:
  - { vmid: 100, kind: qemu, node: a, name: web, state: running }
  - { vmid: 101, kind: qemu, node: b, name: db, state: running }
";

pub(crate) const TOKEN: &str = "Authorization: PVEAPIToken=root@pam!t=s\r\n";

/// A request with the token of the world.
pub(crate) fn get_request(path: &str) -> String {
    format!("GET /api2/json{path} HTTP/1.1\r\nHost: x\r\n{TOKEN}\r\n")
}

pub(crate) fn put_request(path: &str, form: &str) -> String {
    let length = form.len();
    format!("PUT /api2/json{path} HTTP/1.1\r\nHost: x\r\n{TOKEN}Content-Length: {length}\r\n\r\n{form}")
}

/// Runs a test on a paused clock, which jumps ahead when all tasks are idle.
pub(crate) fn run_paused(test: impl Future<Output = ()>) {
    let runtime = Builder::new_current_thread().enable_all().start_paused(true).build().expect("a runtime");
    runtime.block_on(test);
}

/// Runs a test with sockets, in real time.
pub(crate) fn run_real(test: impl Future<Output = ()>) {
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(test);
}

pub(crate) fn test_certificates() -> LabCertificates {
    LabCertificates::new(["a", "b"].into_iter(), LOOPBACK).expect("a certificate")
}

pub(crate) fn server_options(clock: ClockMode, identity: LabCertificates) -> ServerOptions {
    ServerOptions { listen: SocketAddr::new(LOOPBACK, 0), clock, identity, watcher: None }
}

/// A lab without ports, and a TLS connector that trusts it.
pub(crate) struct StreamLab {
    pub(crate) server: LabServer,
    pub(crate) tls: TlsConnector,
    /// The node to connect to.
    pub(crate) node: &'static str,
}

impl StreamLab {
    /// A lab whose clock is that of the test.
    pub(crate) fn new() -> Self {
        Self::from_yaml(WORLD, ClockMode::Real { speed: 1 })
    }

    pub(crate) fn from_yaml(yaml: &str, clock: ClockMode) -> Self {
        let spec = WorldSpec::from_yaml(yaml).unwrap_or_else(|error| panic!("{error}"));
        let world = World::new(&spec).unwrap_or_else(|error| panic!("{error}"));
        let identity = test_certificates();
        let tls = trusting_connector(&identity);
        Self { server: LabServer::from_world(world, server_options(clock, identity)).expect("a server"), tls, node: "a" }
    }

    /// A lab with this fault on every request.
    pub(crate) fn with_fault(fault: ResponseFault) -> Self {
        let lab = Self::new();
        lab.server.world().lock().add_request_fault(RequestFault { fault: Some(fault), ..RequestFault::default() });
        lab
    }

    /// Connects without TLS.
    pub(crate) fn connect_plain(&self) -> TestClient<DuplexStream> {
        let (client_stream, server_stream) = duplex(PIPE_BYTES);
        tokio::spawn(self.server.serve_stream(self.node, server_stream));
        TestClient::new(client_stream)
    }

    /// Connects with TLS.
    pub(crate) async fn connect(&self) -> TestClient<TlsStream<DuplexStream>> {
        self.try_connect("localhost").await.unwrap_or_else(|error| panic!("{error}"))
    }

    /// Connects with TLS to a server of this name.
    pub(crate) async fn try_connect(&self, name: &'static str) -> io::Result<TestClient<TlsStream<DuplexStream>>> {
        let (client_stream, server_stream) = duplex(PIPE_BYTES);
        tokio::spawn(self.server.serve_stream(self.node, server_stream));
        self.tls.connect(server_name(name), client_stream).await.map(TestClient::new)
    }

    pub(crate) fn requests(&self) -> u64 {
        self.server.world().lock().requests()
    }
}

pub(crate) fn server_name(name: &'static str) -> ServerName<'static> {
    ServerName::try_from(name).expect("a name")
}

/// A client that trusts only the authority of these certificates.
pub(crate) fn trusting_connector(identity: &LabCertificates) -> TlsConnector {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(identity.authority_pem().as_bytes()).expect("PEM")).expect("an authority");
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    TlsConnector::from(Arc::new(config))
}

/// A response as received.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ReceivedResponse {
    pub(crate) line: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl ReceivedResponse {
    pub(crate) fn header_values(&self, name: &str) -> Vec<&str> {
        self.headers.iter().filter(|(key, _)| key == name).map(|(_, value)| value.as_str()).collect()
    }

    pub(crate) fn body_text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

/// A client on a connection.
pub(crate) struct TestClient<S> {
    pub(crate) stream: S,
    received: Vec<u8>,
}

impl<S: AsyncRead + AsyncWrite + Unpin> TestClient<S> {
    pub(crate) fn new(stream: S) -> Self {
        Self { stream, received: Vec::new() }
    }

    pub(crate) async fn send(&mut self, text: &str) {
        self.try_send(text.as_bytes()).await.unwrap_or_else(|error| panic!("{error}"));
    }

    pub(crate) async fn try_send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes).await?;
        self.stream.flush().await
    }

    /// Reads more bytes; returns whether there were any. Like with Proxmox, TLS may end without `close_notify`.
    pub(crate) async fn read_more(&mut self) -> bool {
        matches!(self.stream.read_buf(&mut self.received).await, Ok(read) if read > 0)
    }

    /// The head of the next response; `None` if the connection closes.
    pub(crate) async fn read_head(&mut self) -> Option<ReceivedResponse> {
        let end = loop {
            if let Some(end) = self.received.windows(4).position(|window| window == b"\r\n\r\n") {
                break end;
            }
            if !self.read_more().await {
                assert_eq!(String::from_utf8_lossy(&self.received), "", "the connection closed in the middle of a head");
                return None;
            }
        };
        let head: Vec<u8> = self.received.drain(..end + 4).collect();
        let head = String::from_utf8(head).expect("text");
        let mut lines = head.trim_end().split("\r\n");
        let line = lines.next().unwrap_or_default().to_owned();
        let header = |line: &str| line.split_once(": ").map(|(name, value)| (name.to_owned(), value.to_owned()));
        Some(ReceivedResponse { line, headers: lines.filter_map(header).collect(), body: Vec::new() })
    }

    /// The next response: with its announced length, or up to the end of the connection.
    pub(crate) async fn read_response(&mut self) -> Option<ReceivedResponse> {
        let mut response = self.read_head().await?;
        let length = response.header_values("Content-Length").first().map(|length| length.parse::<usize>().expect("a number"));
        while length.is_none_or(|length| self.received.len() < length) {
            if !self.read_more().await {
                break;
            }
        }
        let length = length.unwrap_or(self.received.len()).min(self.received.len());
        response.body = self.received.drain(..length).collect();
        Some(response)
    }

    pub(crate) async fn request(&mut self, text: &str) -> ReceivedResponse {
        self.send(text).await;
        self.read_response().await.unwrap_or_else(|| panic!("no response to {text}"))
    }

    /// How long it takes until the connection closes; nothing more must arrive.
    pub(crate) async fn closed_after_ms(&mut self) -> u128 {
        let began = Instant::now();
        while self.read_more().await {}
        assert_eq!(String::from_utf8_lossy(&self.received), "", "unexpected bytes before the end");
        began.elapsed().as_millis()
    }
}
