//! The stream under a connection: its first byte looked at before TLS is begun, and the way in which Proxmox hangs up.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio_rustls::server::TlsStream;

/// A stream whose first byte was taken, and is given once more.
pub(super) struct PeekedStream<S> {
    first: Option<u8>,
    stream: S,
}

impl<S: AsyncRead + Unpin> PeekedStream<S> {
    /// Waits for the first byte; it is that, and the stream that begins with it.
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

/// Says to the other side that nothing more comes.
///
/// Proxmox's server closes TCP and leaves TLS as it is: no `close_notify`. A client that reads an answer without a length to
/// its end meets that, and whether it bears it is worth a test.
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
