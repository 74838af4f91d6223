//! A session: one endpoint for the length of one reading or operation, so that views of several are never mixed, and never more
//! than two requests at once for one node.
//!
//! Proxmox handles calls one after the other in three workers per node; who asks for more at once waits, and so does everybody
//! else.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use converger_core::guest::NodeName;
use tokio::sync::Semaphore;

use super::{Exchange, Watch};
use crate::proxmox::codec::{self, Cause, Command, Delivery, Event, Failure};

/// Requests that may be under way at once for one node.
pub const REQUESTS_PER_NODE_MAX: usize = 2;

/// A way to one endpoint, with its lanes.
#[derive(Debug)]
pub struct Session<E> {
    exchange: E,
    /// The node that the endpoint is, once that is known: what it answers itself is counted there.
    local: OnceLock<NodeName>,
    lanes: Mutex<BTreeMap<Option<NodeName>, Arc<Semaphore>>>,
    requests: AtomicU64,
}

impl<E: Exchange> Session<E> {
    /// A session over this way.
    pub fn new(exchange: E) -> Self {
        Self { exchange, local: OnceLock::new(), lanes: Mutex::default(), requests: AtomicU64::new(0) }
    }

    /// Who is asked.
    pub fn place(&self) -> &str {
        self.exchange.place()
    }

    /// A view of what the other side shows of itself.
    pub fn watch(&self) -> Watch {
        self.exchange.watch()
    }

    /// How many requests were sent.
    pub fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    /// Sends a command once, when its node's lane has room, and reads the answer.
    ///
    /// # Errors
    /// Why it was not carried out, or why that cannot be told.
    pub async fn call(&self, command: &Command) -> Result<Event, Failure> {
        let lane = self.lane(command.node());
        let closed = |_| Failure::lost(Delivery::NotDelivered, Cause::Other, "the session is closed");
        let _permit = lane.acquire().await.map_err(closed)?;
        self.requests.fetch_add(1, Ordering::Relaxed);
        let answer = self.exchange.exchange(&codec::encode(command)).await?;
        let event = codec::decode(command, &answer)?;
        if let Event::Cluster(cluster) = &event
            && let Some(local) = &cluster.local
        {
            // Which node the endpoint is. The first answer counts: one session has one endpoint.
            let _ = self.local.set(local.clone());
        }
        Ok(event)
    }

    fn lane(&self, node: Option<NodeName>) -> Arc<Semaphore> {
        let node = node.or_else(|| self.local.get().cloned());
        let mut lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        lanes.entry(node).or_insert_with(|| Arc::new(Semaphore::new(REQUESTS_PER_NODE_MAX))).clone()
    }
}
