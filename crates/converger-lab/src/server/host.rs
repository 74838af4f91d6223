//! Who receives a connection: TLS with the face that the node shows just now, or a way to where TLS is.
//!
//! What never enters here: ports, and what is said on a connection.

use std::collections::BTreeMap;
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio_rustls::TlsAcceptor;

use super::ServeError;
use super::connection::{Desk, IDLE, Line, Safety, within};
use super::identity::{Identity, Leaf};
use super::stream::Begun;
use crate::wire::Face;

/// The first byte of a TLS record that opens a handshake.
const TLS_HANDSHAKE: u8 = 0x16;

/// What no TLS client can make anything of.
const NOISE: [u8; 64] = [0xa5; 64];

const FACES: [Face; 5] = [Face::Own, Face::Expired, Face::OtherName, Face::OtherKey, Face::Noise];

/// A world and the faces of its nodes.
#[derive(Clone)]
pub(super) struct Host {
    pub(super) desk: Desk,
    faces: Arc<BTreeMap<Face, TlsAcceptor>>,
}

impl Host {
    pub(super) fn new(desk: Desk, identity: &Identity) -> Result<Self, ServeError> {
        let wrong = |error: &dyn std::fmt::Display| ServeError::Certificate(error.to_string());
        let mut faces = BTreeMap::new();
        for face in FACES {
            if let Some(leaf) = identity.leaf(face).map_err(|error| wrong(&error))? {
                faces.insert(face, acceptor(leaf).map_err(|error| wrong(&error))?);
            }
        }
        Ok(Self { desk, faces: Arc::new(faces) })
    }

    /// Serves a connection of at most so many requests to its end.
    pub(super) async fn serve<S>(&self, node: &str, stream: S, requests: u32)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send,
    {
        // Whoever says nothing for so long never will.
        let Some((first, mut stream)) = within(IDLE, Begun::new(stream)).await else { return };
        if first != TLS_HANDSHAKE {
            return self.line(node, stream, Safety::Plain, requests).talk().await;
        }
        match self.faces.get(&self.face(node)) {
            Some(acceptor) => {
                if let Some(stream) = within(IDLE, acceptor.accept(stream)).await {
                    self.line(node, stream, Safety::Secret, requests).talk().await;
                }
            }
            None => {
                let _ = within(IDLE, stream.write_all(&NOISE)).await;
                let _ = within(IDLE, stream.shutdown()).await;
            }
        }
    }

    fn line<'n, S>(&self, node: &'n str, stream: S, safety: Safety, left: u32) -> Line<'n, S> {
        Line { desk: self.desk.clone(), node, stream, safety, input: Vec::new(), left, is_unread: false }
    }

    fn face(&self, node: &str) -> Face {
        let now_ms = self.desk.time.now_ms();
        let mut world = self.desk.world.lock();
        world.advance_to(now_ms);
        world.face_of(node)
    }
}

fn acceptor(leaf: Leaf) -> Result<TlsAcceptor, rustls::Error> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(vec![leaf.certificate], leaf.key)?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}
