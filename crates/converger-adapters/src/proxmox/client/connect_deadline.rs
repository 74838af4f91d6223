//! What may lie between the last word about a change and its sending: nothing but a connection, if none stands, and not for long.
//!
//! A connection that stands late is not used for the change, which is then not sent, now or later (docs/decisions/0017). What never enters: readings,
//! which have the longer bound of every connection.

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
    /// Until when a connection must stand for the change that this task sends.
    static CONNECT_UNTIL: Instant;
}

/// No connection stood in time.
#[derive(Clone, Copy, Debug, Error)]
#[error("no connection stood in time")]
pub(super) struct ConnectTooLate;

/// Sends a change, for which a connection must stand within this time.
pub(super) async fn with_connect_deadline<T>(bound: Duration, sending: impl Future<Output = T>) -> T {
    CONNECT_UNTIL.scope(Instant::now() + bound, sending).await
}

/// Holds every connection that is made for a change to its time.
pub(super) fn deadline_layer<S>() -> impl Layer<S, Service = ConnectDeadline<S>> + Clone {
    layer_fn(ConnectDeadline)
}

/// Makes connections, and none late.
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

    fn call(&mut self, place: R) -> Self::Future {
        let connecting = self.0.call(place);
        match CONNECT_UNTIL.try_with(|until| *until) {
            Ok(until) => Box::pin(connect_in_time(until, connecting)),
            Err(_) => Box::pin(connecting),
        }
    }
}

/// Whoever was stopped meanwhile finds a connection that stands, and that its time is over.
async fn connect_in_time<T>(until: Instant, connecting: impl Future<Output = Result<T, BoxedError>>) -> Result<T, BoxedError> {
    let connection = timeout_at(until, connecting).await.map_err(|_| ConnectTooLate)??;
    if Instant::now() > until { Err(ConnectTooLate.into()) } else { Ok(connection) }
}
