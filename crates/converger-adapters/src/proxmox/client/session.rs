//! A session: one endpoint for the duration of one observation or operation, so that the views of several endpoints never mix. It allows at
//! most two requests in flight per node, changes before reads. A session for an observation stops sending requests once the responses
//! exceed its budget.
//!
//! Proxmox handles calls sequentially in three workers per node. A client that sends more at once delays itself and everybody else.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use converger_core::guest::NodeName;
use tokio::time::Instant;

use super::node_queue::{CHANGE_WAIT_MAX, NodePermit, NodeQueue};
use super::{EndpointMonitor, ProxmoxTransport, RequestLimits};
use crate::proxmox::codec::{self, Delivery, FailureCause, HttpResponse, ProxmoxCommand, ProxmoxEvent, ProxmoxFailure};

/// Maximum number of requests in flight per node.
pub const REQUESTS_PER_NODE_MAX: usize = 2;

/// A connection to one endpoint with a request queue per node.
#[derive(Debug)]
pub struct ProxmoxSession<E> {
    transport: E,
    /// The node that the endpoint runs on, once known. Its own responses count against that node's queue.
    local: OnceLock<NodeName>,
    queues: Mutex<BTreeMap<Option<NodeName>, Arc<NodeQueue>>>,
    requests: AtomicU64,
    budget: Option<ReadingBudget>,
}

/// The budget of one observation and its current use.
#[derive(Debug)]
struct ReadingBudget {
    bounds: RequestLimits,
    began: Instant,
    bytes: AtomicU64,
    /// The failure that reported the exhausted budget first.
    exhausted_by: OnceLock<ProxmoxFailure>,
}

impl<E: ProxmoxTransport> ProxmoxSession<E> {
    /// A session without a budget, for an operation.
    pub fn new(exchange: E) -> Self {
        Self { transport: exchange, local: OnceLock::new(), queues: Mutex::default(), requests: AtomicU64::new(0), budget: None }
    }

    /// A session for one observation, which begins now.
    pub fn for_reading(exchange: E, bounds: RequestLimits) -> Self {
        let allowance = ReadingBudget { bounds, began: Instant::now(), bytes: AtomicU64::new(0), exhausted_by: OnceLock::new() };
        Self { budget: Some(allowance), ..Self::new(exchange) }
    }

    /// The name of the endpoint.
    pub fn endpoint_name(&self) -> &str {
        self.transport.endpoint_name()
    }

    /// A view of what the endpoint presents of itself.
    pub fn monitor(&self) -> EndpointMonitor {
        self.transport.monitor()
    }

    /// Number of requests that were sent.
    pub fn request_count(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    /// The failure that exhausted the budget, if so. The observation up to that point is incomplete.
    pub fn budget_failure(&self) -> Option<ProxmoxFailure> {
        self.budget.as_ref()?.exhausted_by.get().cloned()
    }

    /// Sends a command once, as soon as its node's queue has a permit, and decodes the response.
    ///
    /// # Errors
    /// The command failed, or its result cannot be determined.
    pub async fn call(&self, command: &ProxmoxCommand) -> Result<ProxmoxEvent, ProxmoxFailure> {
        let permit = match command.is_change() {
            true => self.acquire_permit(command.node()).await?,
            false => self.node_queue(command.node()).acquire_for_reading().await,
        };
        self.call_with_permit(permit, command).await
    }

    /// Like [`Self::call`], with a permit that was acquired before. The permit is released when the response has arrived.
    ///
    /// # Errors
    /// The command failed, or its result cannot be determined.
    pub async fn call_with_permit(&self, permit: NodePermit, command: &ProxmoxCommand) -> Result<ProxmoxEvent, ProxmoxFailure> {
        let _turn = permit;
        if let Some(allowance) = &self.budget {
            allowance.check_budget(self.endpoint_name())?;
        }
        self.requests.fetch_add(1, Ordering::Relaxed);
        let result = self.transport.exchange(&codec::encode(command)).await;
        if let Some(allowance) = &self.budget {
            allowance.count_response(&result);
        }
        let event = self.transport.decode(command, &result?)?;
        if let ProxmoxEvent::Cluster(cluster) = &event
            && let Some(local) = &cluster.local
        {
            // The endpoint's own node. The first response counts, because a session has one endpoint.
            let _ = self.local.set(local.clone());
        }
        Ok(event)
    }

    /// Acquires the permit of a change at a node, ahead of all reads. The holder sends one request with it or drops it.
    ///
    /// # Errors
    /// No permit became free in time. The change is not sent, neither now nor later, because its checks grow stale.
    pub async fn acquire_permit(&self, node: Option<NodeName>) -> Result<NodePermit, ProxmoxFailure> {
        self.node_queue(node).acquire_for_change().await.ok_or_else(|| {
            let secs = CHANGE_WAIT_MAX.as_secs();
            let text = format!("{}: the node was busy with other requests for {secs} s; the change was not sent", self.endpoint_name());
            ProxmoxFailure::without_response(Delivery::NotDelivered, FailureCause::Busy, text)
        })
    }

    fn node_queue(&self, node: Option<NodeName>) -> Arc<NodeQueue> {
        let node = node.or_else(|| self.local.get().cloned());
        let mut queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        queues.entry(node).or_insert_with(NodeQueue::new).clone()
    }
}

impl ReadingBudget {
    fn check_budget(&self, endpoint_name: &str) -> Result<(), ProxmoxFailure> {
        let RequestLimits { reading_bytes_max, reading, .. } = self.bounds;
        let spent = if self.bytes.load(Ordering::Relaxed) > reading_bytes_max {
            (FailureCause::ReadingTooLarge, format!("the responses of one observation exceed {} MiB in total", reading_bytes_max >> 20))
        } else if self.began.elapsed() > reading {
            (FailureCause::ReadingTooSlow, format!("the observation took longer than {} s", reading.as_secs()))
        } else {
            return Ok(());
        };
        let failure = ProxmoxFailure::without_response(Delivery::NotDelivered, spent.0, format!("{endpoint_name}: {}", spent.1));
        Err(self.exhausted_by.get_or_init(|| failure).clone())
    }

    /// An oversized response was read up to its limit, so it counts with that limit.
    fn count_response(&self, result: &Result<HttpResponse, ProxmoxFailure>) {
        let bytes = match result {
            Ok(answer) => answer.body.len(),
            Err(failure) if failure.cause == FailureCause::TooLarge => self.bounds.body_bytes_max,
            Err(_) => 0,
        };
        self.bytes.fetch_add(u64::try_from(bytes).unwrap_or(u64::MAX), Ordering::Relaxed);
    }
}
