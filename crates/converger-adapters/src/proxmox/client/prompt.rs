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
    static UNTIL: Instant;
}

/// No connection stood in time.
#[derive(Clone, Copy, Debug, Error)]
#[error("no connection stood in time")]
pub(super) struct Late;

/// Sends a change, for which a connection must stand within this time.
pub(super) async fn within<T>(bound: Duration, sending: impl Future<Output = T>) -> T {
    UNTIL.scope(Instant::now() + bound, sending).await
}

/// Holds every connection that is made for a change to its time.
pub(super) fn layer<S>() -> impl Layer<S, Service = Prompt<S>> + Clone {
    layer_fn(Prompt)
}

/// Makes connections, and none late.
#[derive(Clone, Debug)]
pub(super) struct Prompt<S>(S);

type Fault = Box<dyn Error + Send + Sync>;

impl<S, R> Service<R> for Prompt<S>
where
    S: Service<R, Error = Fault>,
    S::Future: Send + 'static,
    S::Response: 'static,
{
    type Response = S::Response;
    type Error = Fault;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, Fault>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Fault>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, place: R) -> Self::Future {
        let connecting = self.0.call(place);
        match UNTIL.try_with(|until| *until) {
            Ok(until) => Box::pin(in_time(until, connecting)),
            Err(_) => Box::pin(connecting),
        }
    }
}

/// Whoever was stopped meanwhile finds a connection that stands, and that its time is over.
async fn in_time<T>(until: Instant, connecting: impl Future<Output = Result<T, Fault>>) -> Result<T, Fault> {
    let connection = timeout_at(until, connecting).await.map_err(|_| Late)??;
    if Instant::now() > until { Err(Late.into()) } else { Ok(connection) }
}
