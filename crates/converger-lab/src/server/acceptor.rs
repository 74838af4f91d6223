//! Accepts connections: TLS with the identity that the node presents, or a redirect to HTTPS.
//!
//! Must not depend on ports or on the contents of requests.

use std::collections::BTreeMap;
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio_rustls::TlsAcceptor;

use super::ServeError;
use super::certificates::{LabCertificates, LeafCertificate};
use super::connection::{ConnectionContext, ConnectionSecurity, IDLE_TIMEOUT, LabConnection, finish_within};
use super::peeked_stream::PeekedStream;
use crate::wire::TlsIdentity;

/// The first byte of a TLS record that opens a handshake.
const TLS_HANDSHAKE: u8 = 0x16;

/// Bytes that are not TLS.
const NOISE_BYTES: [u8; 64] = [0xa5; 64];

const TLS_IDENTITIES: [TlsIdentity; 5] =
    [TlsIdentity::Own, TlsIdentity::Expired, TlsIdentity::OtherName, TlsIdentity::OtherKey, TlsIdentity::Noise];

/// A world and the TLS identities of its nodes.
#[derive(Clone)]
pub(super) struct ConnectionAcceptor {
    pub(super) context: ConnectionContext,
    tls_acceptors: Arc<BTreeMap<TlsIdentity, TlsAcceptor>>,
}

impl ConnectionAcceptor {
    pub(super) fn new(context: ConnectionContext, identity: &LabCertificates) -> Result<Self, ServeError> {
        let wrong = |error: &dyn std::fmt::Display| ServeError::Certificate(error.to_string());
        let mut faces = BTreeMap::new();
        for tls_identity in TLS_IDENTITIES {
            if let Some(leaf) = identity.leaf_for(tls_identity).map_err(|error| wrong(&error))? {
                faces.insert(tls_identity, build_tls_acceptor(leaf).map_err(|error| wrong(&error))?);
            }
        }
        Ok(Self { context, tls_acceptors: Arc::new(faces) })
    }

    /// Serves one connection until it closes, for at most `requests` requests.
    pub(super) async fn serve_connection<S>(&self, node: &str, stream: S, requests: u32)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send,
    {
        // A client that sends nothing within the idle timeout is dropped.
        let Some((first, mut stream)) = finish_within(IDLE_TIMEOUT, PeekedStream::new(stream)).await else { return };
        if first != TLS_HANDSHAKE {
            return self.new_connection(node, stream, ConnectionSecurity::Plain, requests).serve_requests().await;
        }
        match self.tls_acceptors.get(&self.current_tls_identity(node)) {
            Some(acceptor) => {
                if let Some(stream) = finish_within(IDLE_TIMEOUT, acceptor.accept(stream)).await {
                    self.new_connection(node, stream, ConnectionSecurity::Tls, requests).serve_requests().await;
                }
            }
            None => {
                let _ = finish_within(IDLE_TIMEOUT, stream.write_all(&NOISE_BYTES)).await;
                let _ = finish_within(IDLE_TIMEOUT, stream.shutdown()).await;
            }
        }
    }

    fn new_connection<'n, S>(&self, node: &'n str, stream: S, safety: ConnectionSecurity, left: u32) -> LabConnection<'n, S> {
        LabConnection {
            context: self.context.clone(),
            node,
            stream,
            safety,
            input: Vec::new(),
            requests_left: left,
            has_unread_body: false,
        }
    }

    fn current_tls_identity(&self, node: &str) -> TlsIdentity {
        let now_ms = self.context.time.now_ms();
        let mut world = self.context.world.lock();
        world.advance_to(now_ms);
        world.tls_identity_of(node)
    }
}

fn build_tls_acceptor(leaf: LeafCertificate) -> Result<TlsAcceptor, rustls::Error> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(vec![leaf.certificate], leaf.key)?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}
