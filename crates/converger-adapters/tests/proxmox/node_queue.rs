//! The request queue of one node: two requests in flight, changes before reads, and a change that waited too long is not sent.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use converger_adapters::proxmox::client::{ProxmoxSession, ProxmoxTransport, REQUESTS_PER_NODE_MAX};
use converger_adapters::proxmox::codec::{
    Delivery, FailureCause, GuestPath, HttpMethod, HttpRequest, HttpResponse, ProxmoxCommand, ProxmoxEvent, ProxmoxFailure, ProxmoxRead,
    ProxmoxWrite,
};
use converger_core::guest::{GuestKind, NodeName, Vmid};
use futures_util::future::{self, FutureExt};
use tokio::time::Instant;

use crate::scripted_proxmox::raw_response;

/// A node whose responses to reads take `delay` on the test clock; records its requests with their times.
#[derive(Clone)]
struct SlowNode {
    delay: Duration,
    began: Instant,
    requests: Arc<Mutex<Vec<(HttpMethod, u64)>>>,
    concurrent: Arc<Mutex<BTreeMap<&'static str, usize>>>,
}

impl SlowNode {
    fn with_delay_secs(secs: u64) -> Self {
        Self { delay: Duration::from_secs(secs), began: Instant::now(), requests: Arc::default(), concurrent: Arc::default() }
    }

    fn change_times(&self) -> Vec<u64> {
        let requests = self.requests.lock().expect("unpoisoned");
        requests.iter().filter(|(method, _)| *method != HttpMethod::Get).map(|(_, at)| *at).collect()
    }

    fn reading_count(&self) -> usize {
        self.requests.lock().expect("unpoisoned").iter().filter(|(method, _)| *method == HttpMethod::Get).count()
    }

    fn count_concurrent(&self, more: bool) {
        let mut counts = self.concurrent.lock().expect("unpoisoned");
        let now = counts.entry("now").or_default();
        if more {
            *now += 1
        } else {
            *now -= 1
        }
        let now = *now;
        let most = counts.entry("most").or_default();
        *most = (*most).max(now);
    }

    fn concurrent_max(&self) -> usize {
        self.concurrent.lock().expect("unpoisoned").get("most").copied().unwrap_or(0)
    }
}

impl ProxmoxTransport for SlowNode {
    async fn exchange(&self, request: &HttpRequest) -> Result<HttpResponse, ProxmoxFailure> {
        self.requests.lock().expect("unpoisoned").push((request.method(), self.began.elapsed().as_secs()));
        self.count_concurrent(true);
        if request.method() == HttpMethod::Get {
            tokio::time::sleep(self.delay).await;
        }
        self.count_concurrent(false);
        Ok(raw_response(595, "No route to host"))
    }

    fn endpoint_name(&self) -> &str {
        "desk"
    }
}

fn guest_path() -> GuestPath {
    GuestPath { node: NodeName::new("n1").expect("a name"), kind: GuestKind::Qemu, vmid: Vmid::new(100).expect("an id") }
}

async fn send_reading(session: &ProxmoxSession<SlowNode>) -> Result<ProxmoxEvent, ProxmoxFailure> {
    session.call(&ProxmoxCommand::Read(ProxmoxRead::GuestStatus(guest_path()))).await
}

async fn send_change(session: &ProxmoxSession<SlowNode>) -> ProxmoxFailure {
    session.call(&ProxmoxCommand::Write(ProxmoxWrite::Stop(guest_path()))).await.expect_err("the node is unreachable")
}

/// Runs on a paused clock, which advances only when all tasks are idle.
fn run_on_paused_time(test: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().expect("a runtime").block_on(test);
}

#[test]
fn change_without_timely_permit_is_never_sent() {
    run_on_paused_time(async {
        let slow = SlowNode::with_delay_secs(15);
        let session = ProxmoxSession::new(slow.clone());
        let readings = future::join_all((0..6).map(|_| send_reading(&session)));
        let late = async {
            let failure = send_change(&session).await;
            (failure, slow.began.elapsed())
        };
        let (_, (failure, after)) = future::join(readings, late).await;
        assert_eq!((failure.cause, failure.delivery), (FailureCause::Busy, Delivery::NotDelivered), "{failure}");
        assert_eq!(after.as_secs(), 5, "it fails as soon as it gives up");
        assert!(failure.to_string().contains("desk: the node was busy") && failure.to_string().contains("not sent"), "{failure}");
        assert_eq!((slow.reading_count(), slow.change_times()), (6, vec![]), "reads continue, and the change is not sent later");
        assert_eq!(slow.concurrent_max(), REQUESTS_PER_NODE_MAX);
        assert_eq!(send_change(&session).await.cause, FailureCause::NodeUnreachable, "a cancelled waiter holds no permit");
        assert_eq!(slow.change_times(), [45]);
    });
}

#[test]
fn changes_precede_waiting_reads() {
    run_on_paused_time(async {
        let slow = SlowNode::with_delay_secs(1);
        let session = ProxmoxSession::new(slow.clone());
        let readings = future::join_all((0..8).map(|_| send_reading(&session)));
        let changes = future::join(send_change(&session), send_change(&session));
        let (_, (first, second)) = future::join(readings, changes).await;
        assert_eq!((first.cause, second.cause), (FailureCause::NodeUnreachable, FailureCause::NodeUnreachable), "both were sent");
        let methods = slow.requests.lock().expect("unpoisoned").iter().map(|(method, _)| *method).collect::<Vec<_>>();
        assert_eq!(methods[..4], [HttpMethod::Get, HttpMethod::Get, HttpMethod::Post, HttpMethod::Post], "{methods:?}");
        assert_eq!((slow.change_times(), slow.concurrent_max()), (vec![1, 1], REQUESTS_PER_NODE_MAX));
        assert_eq!(slow.began.elapsed().as_secs(), 4, "eight reads, two at once");
    });
}

/// A caller that checks the holds right before sending already has the permit, so nothing delays the change after the check.
#[test]
fn acquired_permit_sends_at_once_and_is_released_unused() {
    run_on_paused_time(async {
        let slow = SlowNode::with_delay_secs(3);
        let session = ProxmoxSession::new(slow.clone());
        let permit = session.acquire_permit(Some(guest_path().node)).await.expect("there is room");
        let readings = future::join_all((0..4).map(|_| send_reading(&session)));
        let later = async {
            tokio::time::sleep(Duration::from_secs(4)).await;
            session
                .call_with_permit(permit, &ProxmoxCommand::Write(ProxmoxWrite::Stop(guest_path())))
                .await
                .expect_err("the node is unreachable")
        };
        let (_, failure) = future::join(readings, later).await;
        assert_eq!((failure.cause, slow.change_times()), (FailureCause::NodeUnreachable, vec![4]), "it was sent at once");
        // Reads begin at 0, 3, 4 and 6: one at a time beside the acquired permit until the change was sent.
        assert_eq!((slow.began.elapsed().as_secs(), slow.concurrent_max()), (9, 2));
        assert_eq!(slow.requests.lock().expect("unpoisoned").iter().map(|(_, at)| *at).collect::<Vec<_>>(), [0, 3, 4, 4, 6]);
        let unused = session.acquire_permit(Some(guest_path().node)).await.expect("there is room");
        drop(unused);
        future::join_all((0..2).map(|_| send_reading(&session))).await;
        assert_eq!(slow.began.elapsed().as_secs(), 12, "both at once: the permit was released");
    });
}

#[test]
fn cancelled_waiters_leave_no_gap() {
    run_on_paused_time(async {
        let slow = SlowNode::with_delay_secs(1);
        let session = ProxmoxSession::new(slow.clone());
        let mut running: Vec<_> = (0..2).map(|_| Box::pin(send_reading(&session))).collect();
        let mut waiting: Vec<_> = (0..1000).map(|_| Box::pin(send_reading(&session))).collect();
        for call in running.iter_mut().chain(&mut waiting) {
            assert!(call.as_mut().now_or_never().is_none());
        }
        drop(waiting.split_off(1));
        drop(running);
        waiting.remove(0).await.expect_err("595");
        future::join(send_reading(&session), send_reading(&session)).await.0.expect_err("595");
        assert_eq!((slow.reading_count(), slow.began.elapsed().as_secs()), (5, 2), "both permits are free again");
    });
}
