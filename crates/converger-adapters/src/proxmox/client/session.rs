//! A session: one endpoint for the length of one reading or operation, so that views of several are never mixed, and never more
//! than two requests at once for one node, changes before readings. A session that is for a reading asks for nothing more once its answers are too much together.
//!
//! Proxmox handles calls one after the other in three workers per node; who asks for more at once waits, and so does everybody
//! else.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use converger_core::guest::NodeName;
use tokio::time::Instant;

use super::node_queue::{CHANGE_WAIT_MAX, NodePermit, NodeQueue};
use super::{EndpointMonitor, ProxmoxTransport, RequestLimits};
use crate::proxmox::codec::{self, Delivery, FailureCause, HttpResponse, ProxmoxCommand, ProxmoxEvent, ProxmoxFailure};

/// Requests that may be under way at once for one node.
pub const REQUESTS_PER_NODE_MAX: usize = 2;

/// A way to one endpoint, with its lanes.
#[derive(Debug)]
pub struct ProxmoxSession<E> {
    transport: E,
    /// The node that the endpoint is, once that is known: what it answers itself is counted there.
    local: OnceLock<NodeName>,
    queues: Mutex<BTreeMap<Option<NodeName>, Arc<NodeQueue>>>,
    requests: AtomicU64,
    budget: Option<ReadingBudget>,
}

/// What a reading may take, all its answers together, and what it took.
#[derive(Debug)]
struct ReadingBudget {
    bounds: RequestLimits,
    began: Instant,
    bytes: AtomicU64,
    /// What was said when nothing more was asked for.
    exhausted_by: OnceLock<ProxmoxFailure>,
}

impl<E: ProxmoxTransport> ProxmoxSession<E> {
    /// A session over this way, for as long as there is something to do.
    pub fn new(exchange: E) -> Self {
        Self { transport: exchange, local: OnceLock::new(), queues: Mutex::default(), requests: AtomicU64::new(0), budget: None }
    }

    /// A session for one reading, which begins now.
    pub fn for_reading(exchange: E, bounds: RequestLimits) -> Self {
        let allowance = ReadingBudget { bounds, began: Instant::now(), bytes: AtomicU64::new(0), exhausted_by: OnceLock::new() };
        Self { budget: Some(allowance), ..Self::new(exchange) }
    }

    /// Who is asked.
    pub fn endpoint_name(&self) -> &str {
        self.transport.endpoint_name()
    }

    /// A view of what the other side shows of itself.
    pub fn monitor(&self) -> EndpointMonitor {
        self.transport.monitor()
    }

    /// How many requests were sent.
    pub fn request_count(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    /// Why something was not asked for any more: what was read until then is no whole reading.
    pub fn budget_failure(&self) -> Option<ProxmoxFailure> {
        self.budget.as_ref()?.exhausted_by.get().cloned()
    }

    /// Sends a command once, when its node's lane has room, and reads the answer.
    ///
    /// # Errors
    /// Why it was not carried out, or why that cannot be told.
    pub async fn call(&self, command: &ProxmoxCommand) -> Result<ProxmoxEvent, ProxmoxFailure> {
        let turn = match command.is_change() {
            true => self.acquire_permit(command.node()).await?,
            false => self.node_queue(command.node()).acquire_for_reading().await,
        };
        self.call_with_permit(turn, command).await
    }

    /// The same in a turn that was taken before. It is given on when the answer is there.
    ///
    /// # Errors
    /// Why it was not carried out, or why that cannot be told.
    pub async fn call_with_permit(&self, turn: NodePermit, command: &ProxmoxCommand) -> Result<ProxmoxEvent, ProxmoxFailure> {
        let _turn = turn;
        if let Some(allowance) = &self.budget {
            allowance.check_budget(self.endpoint_name())?;
        }
        self.requests.fetch_add(1, Ordering::Relaxed);
        let came = self.transport.exchange(&codec::encode(command)).await;
        if let Some(allowance) = &self.budget {
            allowance.count_response(&came);
        }
        let event = self.transport.decode(command, &came?)?;
        if let ProxmoxEvent::Cluster(cluster) = &event
            && let Some(local) = &cluster.local
        {
            // Which node the endpoint is. The first answer counts: one session has one endpoint.
            let _ = self.local.set(local.clone());
        }
        Ok(event)
    }

    /// Takes the turn of a change at a node, before everybody who reads there. Whoever has it sends one request in it, or gives it on.
    ///
    /// # Errors
    /// There is no room in time, so that the change is not sent, now or later: what it was checked against grows old.
    pub async fn acquire_permit(&self, node: Option<NodeName>) -> Result<NodePermit, ProxmoxFailure> {
        self.node_queue(node).acquire_for_change().await.ok_or_else(|| {
            let secs = CHANGE_WAIT_MAX.as_secs();
            let text = format!("{}: the node was busy with other requests for {secs} s, and the change was not sent", self.endpoint_name());
            ProxmoxFailure::without_response(Delivery::NotDelivered, FailureCause::Busy, text)
        })
    }

    fn node_queue(&self, node: Option<NodeName>) -> Arc<NodeQueue> {
        let node = node.or_else(|| self.local.get().cloned());
        let mut lanes = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        lanes.entry(node).or_insert_with(NodeQueue::new).clone()
    }
}

impl ReadingBudget {
    fn check_budget(&self, place: &str) -> Result<(), ProxmoxFailure> {
        let RequestLimits { reading_bytes_max, reading, .. } = self.bounds;
        let spent = if self.bytes.load(Ordering::Relaxed) > reading_bytes_max {
            (FailureCause::ReadingTooLarge, format!("the answers of one reading are together larger than {} MiB", reading_bytes_max >> 20))
        } else if self.began.elapsed() > reading {
            (FailureCause::ReadingTooSlow, format!("one reading took longer than {} s", reading.as_secs()))
        } else {
            return Ok(());
        };
        let failure = ProxmoxFailure::without_response(Delivery::NotDelivered, spent.0, format!("{place}: {}", spent.1));
        Err(self.exhausted_by.get_or_init(|| failure).clone())
    }

    /// What is too large by itself was read up to its bound.
    fn count_response(&self, came: &Result<HttpResponse, ProxmoxFailure>) {
        let bytes = match came {
            Ok(answer) => answer.body.len(),
            Err(failure) if failure.cause == FailureCause::TooLarge => self.bounds.body_bytes_max,
            Err(_) => 0,
        };
        self.bytes.fetch_add(u64::try_from(bytes).unwrap_or(u64::MAX), Ordering::Relaxed);
    }
}
