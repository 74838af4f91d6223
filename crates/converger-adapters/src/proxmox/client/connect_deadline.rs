//! The connect deadline of changes. After the last check of a change, only connecting may delay the request, and only briefly.
//!
//! A change is not sent on a connection that was established too late, neither now nor later (docs/decisions/0017). Reads are not affected;
//! they have the longer connect timeout of the client.

use std::error::Error;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use thiserror::Error;
use tokio::time::{Instant, timeout_at};
use tower_layer::{Layer, layer_fn};
use tower_service::Service;

tokio::task_local! {
    /// The connect deadline of the change that this task sends.
    static CONNECT_UNTIL: Instant;
}

/// The connection was not established before the deadline.
#[derive(Clone, Copy, Debug, Error)]
#[error("no connection before the deadline")]
pub(super) struct ConnectTooLate;

/// Sends a change whose connection must be established within `bound`.
pub(super) async fn with_connect_deadline<T>(bound: Duration, sending: impl Future<Output = T>) -> T {
    CONNECT_UNTIL.scope(Instant::now() + bound, sending).await
}

/// A layer that applies the deadline to every connection that is established for a change.
pub(super) fn deadline_layer<S>() -> impl Layer<S, Service = ConnectDeadline<S>> + Clone {
    layer_fn(ConnectDeadline)
}

/// Establishes connections, but never after the deadline.
#[derive(Clone, Debug)]
pub(super) struct ConnectDeadline<S>(S);

type BoxedError = Box<dyn Error + Send + Sync>;

impl<S, R> Service<R> for ConnectDeadline<S>
where
    S: Service<R, Error = BoxedError>,
    S::Future: Send + 'static,
    S::Response: 'static,
{
    type Response = S::Response;
    type Error = BoxedError;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, BoxedError>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxedError>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, destination: R) -> Self::Future {
        let connecting = self.0.call(destination);
        match CONNECT_UNTIL.try_with(|until| *until) {
            Ok(until) => Box::pin(connect_in_time(until, connecting)),
            Err(_) => Box::pin(connecting),
        }
    }
}

/// The second check covers a process that was suspended while connecting: it resumes with an established connection but after the deadline.
async fn connect_in_time<T>(until: Instant, connecting: impl Future<Output = Result<T, BoxedError>>) -> Result<T, BoxedError> {
    let connection = timeout_at(until, connecting).await.map_err(|_| ConnectTooLate)??;
    if Instant::now() > until { Err(ConnectTooLate.into()) } else { Ok(connection) }
}
