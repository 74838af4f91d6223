//! How people and service managers end what runs: Ctrl-C, SIGTERM, and the terminal being closed (SIGHUP), listened for from the
//! moment on that anybody could send one.

use std::pin::pin;

use futures_util::future::select;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::Stop;

/// The signals that ask for an end.
pub(super) struct Endings {
    interrupt: Signal,
    terminate: Signal,
    hang_up: Signal,
}

impl Endings {
    /// Listens from here on. Inside of a runtime only.
    pub(super) fn listen() -> Result<Self, Stop> {
        let listen = |kind| signal(kind).map_err(|error| Stop::failed(format!("cannot listen for signals: {error}")));
        let (interrupt, terminate) = (listen(SignalKind::interrupt())?, listen(SignalKind::terminate())?);
        Ok(Self { interrupt, terminate, hang_up: listen(SignalKind::hangup())? })
    }

    /// The next one.
    pub(super) async fn next(&mut self) {
        let (interrupt, terminate) = (pin!(self.interrupt.recv()), pin!(self.terminate.recv()));
        select(select(interrupt, terminate), pin!(self.hang_up.recv())).await;
    }
}
