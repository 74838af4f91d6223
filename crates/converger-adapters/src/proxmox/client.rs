//! The client: sends requests of the codec to one API endpoint over HTTPS and returns the responses, bounded in size and time.
//!
//! It follows no redirect, retries nothing, accepts no compressed body, closes idle connections before Proxmox does, and cannot switch
//! verification off. Must not depend on the meaning of a response (`codec`) or on what to read (`observe`).

mod certificate;
mod connect_deadline;
mod endpoint_monitor;
mod node_queue;
mod redact;
mod secret;
mod session;
mod transport_failure;
mod trust;

use std::future::Future;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use hyper::ext::ReasonPhrase;
use reqwest::header::{ACCEPT, AUTHORIZATION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, DATE, HeaderMap, HeaderValue, LOCATION};
use reqwest::{Response, Url};
use thiserror::Error;

use super::codec::{self, HttpMethod, HttpRequest, HttpResponse, ProxmoxCommand, ProxmoxEvent, ProxmoxFailure};
use transport_failure::ExchangeContext;

pub use certificate::CertificateValidity;
pub use endpoint_monitor::EndpointMonitor;
pub use node_queue::NodePermit;
pub use secret::{ApiToken, SecretError, SecretSource, TokenId, TokenSecret};
pub use session::{ProxmoxSession, REQUESTS_PER_NODE_MAX};
pub use trust::{Fingerprint, Trust, TrustError, TrustFailure};

/// The port of Proxmox's API.
const PORT: u16 = 8006;

/// Proxmox closes an idle connection after 5 s. A request sent on a connection that is being closed would be lost.
const IDLE_CONNECTION_MAX: Duration = Duration::from_secs(3);
const _: () = assert!(IDLE_CONNECTION_MAX.as_secs() < 5);

/// This machine. Its addresses are fixed, so no resolver can redirect it.
const LOCALHOST: &str = "localhost";
const LOCALHOST_ADDRESSES: [SocketAddr; 2] =
    [SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0), SocketAddr::new(IpAddr::V6(Ipv6Addr::LOCALHOST), 0)];

/// Sends a request to a Proxmox server and returns its response.
///
/// Simulations implement it in process; the client implements it over HTTPS.
pub trait ProxmoxTransport {
    /// Sends the request once and waits for the whole response.
    fn exchange(&self, request: &HttpRequest) -> impl Future<Output = Result<HttpResponse, ProxmoxFailure>> + Send;

    /// Decodes the response to a command. A simulation that sees the same responses again and again may cache the results.
    ///
    /// # Errors
    /// The command failed, or its result cannot be determined.
    fn decode(&self, command: &ProxmoxCommand, answer: &HttpResponse) -> Result<ProxmoxEvent, ProxmoxFailure> {
        codec::decode(command, answer)
    }

    /// The name of the endpoint, for messages.
    fn endpoint_name(&self) -> &str;

    /// A view of what the endpoint presents of itself; empty if there is no network connection.
    fn monitor(&self) -> EndpointMonitor {
        EndpointMonitor::default()
    }
}

/// One API address of an environment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    url: Url,
    name: String,
    trust: Trust,
}

/// A text that is not an API address.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("`{}` is not an API address; write it as https://name:8006", .0.escape_debug())]
pub struct InvalidAddress(String);

impl Endpoint {
    /// Parses `https://name[:port]`; the port defaults to 8006.
    ///
    /// # Errors
    /// Another scheme, or more than a name and a port: a path or a user has no meaning here.
    pub fn new(address: &str, trust: Trust) -> Result<Self, InvalidAddress> {
        let wrong = || InvalidAddress(address.to_owned());
        let mut url = Url::parse(address).map_err(|_| wrong())?;
        let is_bare = matches!(url.path(), "" | "/") && url.query().is_none() && url.fragment().is_none();
        let has_no_credentials = url.username().is_empty() && url.password().is_none();
        let host = url.host_str().unwrap_or("").to_owned();
        if url.scheme() != "https" || host.is_empty() || !is_bare || !has_no_credentials {
            return Err(wrong());
        }
        // `url` drops an explicit 443, the default port of https, so the text itself must be searched for it.
        let has_port = address.trim_end_matches('/').ends_with(":443");
        let port = url.port().unwrap_or(if has_port { 443 } else { PORT });
        url.set_port(Some(port)).map_err(|()| wrong())?;
        Ok(Self { url, name: format!("{host}:{port}"), trust })
    }

    /// What the client trusts at this endpoint.
    #[must_use]
    pub fn trust(&self) -> &Trust {
        &self.trust
    }

    /// The name and port, for messages.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether the address is a loopback address, at which only this machine can answer.
    #[must_use]
    pub fn is_loopback(&self) -> bool {
        let host = self.url.host_str().unwrap_or("");
        let is_number = host == "[::1]" || host.parse::<Ipv4Addr>().is_ok_and(|address| address.is_loopback());
        is_number || host == LOCALHOST
    }
}

/// Bounds of a single exchange and of a whole observation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestLimits {
    /// Size of a response body.
    pub body_bytes_max: usize,
    /// Time for establishing a connection.
    pub connect: Duration,
    /// Time for establishing a connection for a change, whose checks have already passed and grow stale.
    pub connect_to_change: Duration,
    /// Time until the response is complete, however slowly it arrives.
    pub deadline: Duration,
    /// Total size of the response bodies of one observation.
    pub reading_bytes_max: u64,
    /// Time after which an observation sends no further requests.
    pub reading: Duration,
}

impl Default for RequestLimits {
    /// A list of 10,000 guests is 4 MiB, and all of them in full are 50 MiB. Proxmox itself gives up on a node after 30 s.
    fn default() -> Self {
        Self {
            body_bytes_max: 64 << 20,
            connect: Duration::from_secs(10),
            connect_to_change: Duration::from_secs(2),
            deadline: Duration::from_secs(60),
            reading_bytes_max: 512 << 20,
            reading: Duration::from_secs(15 * 60),
        }
    }
}

impl RequestLimits {
    /// Short limits for checks whose failure does not stop the command (`hold`, `freeze`).
    #[must_use]
    pub fn brief(self) -> Self {
        Self {
            connect: self.connect.min(Duration::from_secs(2)),
            deadline: self.deadline.min(Duration::from_secs(3)),
            reading: self.reading.min(Duration::from_secs(5)),
            ..self
        }
    }
}

/// Why no client could be set up.
#[derive(Debug, Error)]
pub enum ClientError {
    /// The trust settings cannot be used.
    #[error("{endpoint}: {source}")]
    Trust {
        /// The endpoint.
        endpoint: String,
        /// Why.
        source: TrustError,
    },
    /// The token id cannot be sent in a header.
    #[error("the API token id cannot be sent in a header; write it as user@realm!name in plain letters")]
    Token,
    /// The HTTP client cannot be set up.
    #[error("{endpoint}: HTTPS cannot be set up on this machine ({source}); try another build of this program and report a bug")]
    Setup {
        /// The endpoint.
        endpoint: String,
        /// Why.
        source: reqwest::Error,
    },
}

impl ClientError {
    /// Whether the configuration is at fault, and not this machine.
    #[must_use]
    pub fn is_configuration_fault(&self) -> bool {
        match self {
            Self::Trust { source, .. } => !matches!(source, TrustError::Setup(_)),
            Self::Token => true,
            Self::Setup { .. } => false,
        }
    }
}

/// The client of one endpoint.
#[derive(Debug)]
pub struct ProxmoxClient {
    http: reqwest::Client,
    endpoint: Endpoint,
    bounds: RequestLimits,
    monitor: EndpointMonitor,
    /// Redacted from everything that the server sends.
    secret: TokenSecret,
}

impl ProxmoxClient {
    /// Creates a client with this token. It sends nothing yet.
    ///
    /// # Errors
    /// TLS or HTTPS cannot be set up with these settings.
    pub fn new(endpoint: Endpoint, token: &ApiToken, bounds: RequestLimits) -> Result<Self, ClientError> {
        let endpoint_name = || endpoint.name.clone();
        let watch = EndpointMonitor::default();
        let tls = trust::tls_config(&endpoint.trust, &watch).map_err(|source| ClientError::Trust { endpoint: endpoint_name(), source })?;
        let mut headers = HeaderMap::new();
        headers.insert(AUTHORIZATION, token.authorization_header().ok_or(ClientError::Token)?);
        headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
        let http = reqwest::Client::builder()
            .tls_backend_preconfigured(tls)
            .https_only(true)
            .http1_only()
            .redirect(reqwest::redirect::Policy::none())
            .retry(reqwest::retry::never())
            .referer(false)
            .no_proxy()
            .resolve_to_addrs(LOCALHOST, &LOCALHOST_ADDRESSES)
            .pool_idle_timeout(IDLE_CONNECTION_MAX)
            // Shorter than the deadline, so that a hanging handshake is distinguished from a hanging response.
            .connect_timeout(bounds.connect.min(bounds.deadline * 9 / 10))
            .connector_layer(connect_deadline::deadline_layer())
            .timeout(bounds.deadline)
            .user_agent(concat!("converger/", env!("CARGO_PKG_VERSION")))
            .default_headers(headers)
            .build()
            .map_err(|source| ClientError::Setup { endpoint: endpoint_name(), source })?;
        Ok(Self { http, endpoint, bounds, monitor: watch, secret: token.secret.clone() })
    }

    fn exchange_context<'c>(&'c self, request: &'c HttpRequest) -> ExchangeContext<'c> {
        ExchangeContext {
            endpoint: &self.endpoint.name,
            trust: &self.endpoint.trust,
            watch: &self.monitor,
            secret: &self.secret,
            request,
            deadline_secs: self.bounds.deadline.as_secs(),
            connect_to_change_secs: self.bounds.connect_to_change.as_secs(),
        }
    }

    async fn send_request(&self, request: &HttpRequest) -> Result<Response, reqwest::Error> {
        let method = match request.method() {
            HttpMethod::Get => reqwest::Method::GET,
            HttpMethod::Post => reqwest::Method::POST,
            HttpMethod::Put => reqwest::Method::PUT,
            HttpMethod::Delete => reqwest::Method::DELETE,
        };
        let mut url = self.endpoint.url.clone();
        let (path, query) = request.path().split_once('?').map_or((request.path(), None), |(path, query)| (path, Some(query)));
        url.set_path(path);
        url.set_query(query);
        let mut builder = self.http.request(method, url);
        if let Some(form) = request.form() {
            // Proxmox detects a body only by its length, even if the body is empty.
            builder = builder.header(CONTENT_TYPE, "application/x-www-form-urlencoded");
            builder = builder.header(CONTENT_LENGTH, form.len()).body(form.to_owned());
        }
        match request.method() {
            HttpMethod::Get => builder.send().await,
            HttpMethod::Post | HttpMethod::Put | HttpMethod::Delete => {
                connect_deadline::with_connect_deadline(self.bounds.connect_to_change, builder.send()).await
            }
        }
    }

    /// Reads the whole body; fails as soon as it is known to be too large.
    async fn read_body(&self, mut response: Response, request: &HttpRequest) -> Result<Vec<u8>, ProxmoxFailure> {
        let bytes_max = self.bounds.body_bytes_max;
        let announced = response.content_length();
        if usize::try_from(announced.unwrap_or(0)).map_or(true, |bytes| bytes > bytes_max) {
            return Err(transport_failure::too_large_failure(&self.exchange_context(request), bytes_max));
        }
        // Proxmox's raw errors have no length, and it may close TCP without a TLS close. The head of the response is complete, and only the
        // text of an error could be cut off.
        let ends_with_tcp = announced.is_none() && response.status().as_u16() >= 400;
        let mut body = Vec::new();
        loop {
            match response.chunk().await {
                Ok(Some(chunk)) if body.len() + chunk.len() > bytes_max => {
                    return Err(transport_failure::too_large_failure(&self.exchange_context(request), bytes_max));
                }
                Ok(Some(chunk)) => body.extend_from_slice(&chunk),
                Ok(None) => return Ok(body),
                Err(error) if ends_with_tcp && !error.is_timeout() => return Ok(body),
                Err(error) => return Err(transport_failure::from_transport_error(&error, &self.exchange_context(request))),
            }
        }
    }
}

impl ProxmoxTransport for ProxmoxClient {
    async fn exchange(&self, request: &HttpRequest) -> Result<HttpResponse, ProxmoxFailure> {
        let response = self
            .send_request(request)
            .await
            .map_err(|error| transport_failure::from_transport_error(&error, &self.exchange_context(request)))?;
        let status = response.status();
        if let Some(date) = response.headers().get(DATE).and_then(|date| date.to_str().ok()) {
            self.monitor.record_date(&self.secret.redact_text(date.as_bytes()));
        }
        let reason = response.extensions().get::<ReasonPhrase>().map(|phrase| self.secret.redact_text(phrase.as_bytes()));
        if let Some(encoding) = response.headers().get(CONTENT_ENCODING).filter(|encoding| encoding.as_bytes() != b"identity") {
            return Err(transport_failure::compressed_failure(
                &self.exchange_context(request),
                &self.secret.redact_text(encoding.as_bytes()),
            ));
        }
        let elsewhere = response.headers().get(LOCATION).filter(|_| status.is_redirection());
        let elsewhere = elsewhere.map_or_else(String::new, |location| format!(", to {}", self.secret.redact_text(location.as_bytes())));
        let body = self.secret.redact(self.read_body(response, request).await?);
        let reason = reason.unwrap_or_else(|| status.canonical_reason().unwrap_or("").to_owned()) + &elsewhere;
        Ok(HttpResponse { status: status.as_u16(), reason, body })
    }

    fn endpoint_name(&self) -> &str {
        self.endpoint.name()
    }

    fn monitor(&self) -> EndpointMonitor {
        self.monitor.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_is_a_name_and_a_port() {
        let endpoint_name = |address: &str| Endpoint::new(address, Trust::System).map(|endpoint| endpoint.name);
        assert_eq!(endpoint_name("https://pve1.example"), Ok("pve1.example:8006".into()));
        assert_eq!(endpoint_name("https://pve1.example:443"), Ok("pve1.example:443".into()));
        assert_eq!(endpoint_name("https://10.0.0.1:8006/"), Ok("10.0.0.1:8006".into()));
        assert_eq!(endpoint_name("https://[fd00::1]"), Ok("[fd00::1]:8006".into()));
        for bad in ["http://pve1", "pve1:8006", "https://", "https://u:p@pve1", "https://pve1/api2", "https://pve1?x=1", "ftp://pve1"] {
            assert_eq!(endpoint_name(bad), Err(InvalidAddress(bad.into())), "{bad}");
        }
    }

    #[test]
    fn recognises_only_loopback_addresses() {
        let is_loopback = |address: &str| Endpoint::new(address, Trust::System).expect("an address").is_loopback();
        for own in ["https://127.0.0.1", "https://127.8.8.8:443", "https://[::1]:8006", "https://localhost", "https://LOCALHOST:8006"] {
            assert!(is_loopback(own), "{own}");
        }
        for other in
            ["https://10.0.0.1", "https://localhost.example", "https://notlocalhost", "https://127.0.0.1.example", "https://[fd00::1]"]
        {
            assert!(!is_loopback(other), "{other}");
        }
    }
}
