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

use super::lane::{CHANGE_WAIT_MAX, Lane, Turn};
use super::{Bounds, Exchange, Watch};
use crate::proxmox::codec::{self, Cause, Command, Delivery, Event, Failure, HttpAnswer};

/// Requests that may be under way at once for one node.
pub const REQUESTS_PER_NODE_MAX: usize = 2;

/// A way to one endpoint, with its lanes.
#[derive(Debug)]
pub struct Session<E> {
    exchange: E,
    /// The node that the endpoint is, once that is known: what it answers itself is counted there.
    local: OnceLock<NodeName>,
    lanes: Mutex<BTreeMap<Option<NodeName>, Arc<Lane>>>,
    requests: AtomicU64,
    allowance: Option<Allowance>,
}

/// What a reading may take, all its answers together, and what it took.
#[derive(Debug)]
struct Allowance {
    bounds: Bounds,
    began: Instant,
    bytes: AtomicU64,
    /// What was said when nothing more was asked for.
    exhausted: OnceLock<Failure>,
}

impl<E: Exchange> Session<E> {
    /// A session over this way, for as long as there is something to do.
    pub fn new(exchange: E) -> Self {
        Self { exchange, local: OnceLock::new(), lanes: Mutex::default(), requests: AtomicU64::new(0), allowance: None }
    }

    /// A session for one reading, which begins now.
    pub fn for_reading(exchange: E, bounds: Bounds) -> Self {
        let allowance = Allowance { bounds, began: Instant::now(), bytes: AtomicU64::new(0), exhausted: OnceLock::new() };
        Self { allowance: Some(allowance), ..Self::new(exchange) }
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

    /// Why something was not asked for any more: what was read until then is no whole reading.
    pub fn exhausted(&self) -> Option<Failure> {
        self.allowance.as_ref()?.exhausted.get().cloned()
    }

    /// Sends a command once, when its node's lane has room, and reads the answer.
    ///
    /// # Errors
    /// Why it was not carried out, or why that cannot be told.
    pub async fn call(&self, command: &Command) -> Result<Event, Failure> {
        let turn = match command.is_change() {
            true => self.turn(command.node()).await?,
            false => self.lane(command.node()).reading().await,
        };
        self.call_in(turn, command).await
    }

    /// The same in a turn that was taken before. It is given on when the answer is there.
    ///
    /// # Errors
    /// Why it was not carried out, or why that cannot be told.
    pub async fn call_in(&self, turn: Turn, command: &Command) -> Result<Event, Failure> {
        let _turn = turn;
        if let Some(allowance) = &self.allowance {
            allowance.check(self.place())?;
        }
        self.requests.fetch_add(1, Ordering::Relaxed);
        let came = self.exchange.exchange(&codec::encode(command)).await;
        if let Some(allowance) = &self.allowance {
            allowance.count(&came);
        }
        let event = self.exchange.decode(command, &came?)?;
        if let Event::Cluster(cluster) = &event
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
    pub async fn turn(&self, node: Option<NodeName>) -> Result<Turn, Failure> {
        self.lane(node).change().await.ok_or_else(|| {
            let secs = CHANGE_WAIT_MAX.as_secs();
            let text = format!("{}: the node was busy with other requests for {secs} s, and the change was not sent", self.place());
            Failure::lost(Delivery::NotDelivered, Cause::Busy, text)
        })
    }

    fn lane(&self, node: Option<NodeName>) -> Arc<Lane> {
        let node = node.or_else(|| self.local.get().cloned());
        let mut lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        lanes.entry(node).or_insert_with(Lane::new).clone()
    }
}

impl Allowance {
    fn check(&self, place: &str) -> Result<(), Failure> {
        let Bounds { reading_bytes_max, reading, .. } = self.bounds;
        let spent = if self.bytes.load(Ordering::Relaxed) > reading_bytes_max {
            (Cause::ReadingTooLarge, format!("the answers of one reading are together larger than {} MiB", reading_bytes_max >> 20))
        } else if self.began.elapsed() > reading {
            (Cause::ReadingTooSlow, format!("one reading took longer than {} s", reading.as_secs()))
        } else {
            return Ok(());
        };
        let failure = Failure::lost(Delivery::NotDelivered, spent.0, format!("{place}: {}", spent.1));
        Err(self.exhausted.get_or_init(|| failure).clone())
    }

    /// What is too large by itself was read up to its bound.
    fn count(&self, came: &Result<HttpAnswer, Failure>) {
        let bytes = match came {
            Ok(answer) => answer.body.len(),
            Err(failure) if failure.cause == Cause::TooLarge => self.bounds.body_bytes_max,
            Err(_) => 0,
        };
        self.bytes.fetch_add(u64::try_from(bytes).unwrap_or(u64::MAX), Ordering::Relaxed);
    }
}
