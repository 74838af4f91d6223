//! The stream under a connection: peeks at the first byte to detect TLS, and closes connections
//! like Proxmox.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio_rustls::server::TlsStream;

/// A stream whose first byte was read and is delivered again.
pub(super) struct PeekedStream<S> {
    first: Option<u8>,
    stream: S,
}

impl<S: AsyncRead + Unpin> PeekedStream<S> {
    /// Waits for the first byte and returns it with the stream that still contains it.
    pub(super) async fn new(mut stream: S) -> io::Result<(u8, Self)> {
        let first = stream.read_u8().await?;
        Ok((first, Self { first: Some(first), stream }))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for PeekedStream<S> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if buffer.remaining() > 0
            && let Some(first) = self.first.take()
        {
            buffer.put_slice(&[first]);
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for PeekedStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[io::IoSlice<'_>]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// Shuts down the sending direction.
///
/// Proxmox's server closes TCP without a TLS `close_notify`. A client that reads a response without a content length to the end of the
/// stream must cope with that.
pub(super) trait ShutdownTcp {
    fn shutdown_tcp(&mut self) -> impl Future<Output = io::Result<()>> + Send;
}

impl<S: AsyncWrite + Unpin + Send> ShutdownTcp for PeekedStream<S> {
    fn shutdown_tcp(&mut self) -> impl Future<Output = io::Result<()>> + Send {
        self.stream.shutdown()
    }
}

impl<S: ShutdownTcp + Send> ShutdownTcp for TlsStream<S> {
    fn shutdown_tcp(&mut self) -> impl Future<Output = io::Result<()>> + Send {
        self.get_mut().0.shutdown_tcp()
    }
}
