//! Who waits for whom at one node: two requests at once, changes before readings, and a change that waited is not sent at all.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use converger_adapters::proxmox::client::{Exchange, REQUESTS_PER_NODE_MAX, Session};
use converger_adapters::proxmox::codec::{
    Cause, Command, Delivery, Event, Failure, GuestPath, HttpAnswer, HttpRequest, Method, Read, Write,
};
use converger_core::guest::{Kind, NodeName, Vmid};
use futures_util::future::{self, FutureExt};
use tokio::time::Instant;

use crate::desk::raw;

/// A node whose answers to readings take so long on the clock of the test; what it was asked, and when.
#[derive(Clone)]
struct Slow {
    takes: Duration,
    began: Instant,
    asked: Arc<Mutex<Vec<(Method, u64)>>>,
    at_once: Arc<Mutex<BTreeMap<&'static str, usize>>>,
}

impl Slow {
    fn taking(secs: u64) -> Self {
        Self { takes: Duration::from_secs(secs), began: Instant::now(), asked: Arc::default(), at_once: Arc::default() }
    }

    fn changes(&self) -> Vec<u64> {
        let asked = self.asked.lock().expect("unpoisoned");
        asked.iter().filter(|(method, _)| *method != Method::Get).map(|(_, at)| *at).collect()
    }

    fn readings(&self) -> usize {
        self.asked.lock().expect("unpoisoned").iter().filter(|(method, _)| *method == Method::Get).count()
    }

    fn count(&self, more: bool) {
        let mut counts = self.at_once.lock().expect("unpoisoned");
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

    fn at_once_max(&self) -> usize {
        self.at_once.lock().expect("unpoisoned").get("most").copied().unwrap_or(0)
    }
}

impl Exchange for Slow {
    async fn exchange(&self, request: &HttpRequest) -> Result<HttpAnswer, Failure> {
        self.asked.lock().expect("unpoisoned").push((request.method(), self.began.elapsed().as_secs()));
        self.count(true);
        if request.method() == Method::Get {
            tokio::time::sleep(self.takes).await;
        }
        self.count(false);
        Ok(raw(595, "No route to host"))
    }

    fn place(&self) -> &str {
        "desk"
    }
}

fn guest() -> GuestPath {
    GuestPath { node: NodeName::new("n1").expect("a name"), kind: Kind::Qemu, vmid: Vmid::new(100).expect("an id") }
}

async fn read(session: &Session<Slow>) -> Result<Event, Failure> {
    session.call(&Command::Read(Read::GuestStatus(guest()))).await
}

async fn change(session: &Session<Slow>) -> Failure {
    session.call(&Command::Write(Write::Stop(guest()))).await.expect_err("nobody carries it out")
}

/// On a clock that moves when nobody has anything else to do.
fn on_paused_time(test: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().expect("a runtime").block_on(test);
}

#[test]
fn a_change_that_gets_no_turn_in_time_is_not_sent_now_or_later() {
    on_paused_time(async {
        let slow = Slow::taking(15);
        let session = Session::new(slow.clone());
        let readings = future::join_all((0..6).map(|_| read(&session)));
        let late = async {
            let failure = change(&session).await;
            (failure, slow.began.elapsed())
        };
        let (_, (failure, after)) = future::join(readings, late).await;
        assert_eq!((failure.cause, failure.delivery), (Cause::Busy, Delivery::NotDelivered), "{failure}");
        assert_eq!(after.as_secs(), 5, "it is told once it is given up");
        assert!(failure.to_string().contains("desk: the node was busy") && failure.to_string().contains("not sent"), "{failure}");
        assert_eq!((slow.readings(), slow.changes()), (6, vec![]), "who reads goes on, and the change is not sent later");
        assert_eq!(slow.at_once_max(), REQUESTS_PER_NODE_MAX);
        assert_eq!(change(&session).await.cause, Cause::NodeUnreachable, "one who gave up takes no room");
        assert_eq!(slow.changes(), [45]);
    });
}

#[test]
fn a_change_goes_before_all_readings_that_wait() {
    on_paused_time(async {
        let slow = Slow::taking(1);
        let session = Session::new(slow.clone());
        let readings = future::join_all((0..8).map(|_| read(&session)));
        let changes = future::join(change(&session), change(&session));
        let (_, (first, second)) = future::join(readings, changes).await;
        assert_eq!((first.cause, second.cause), (Cause::NodeUnreachable, Cause::NodeUnreachable), "both were sent");
        let asked = slow.asked.lock().expect("unpoisoned").iter().map(|(method, _)| *method).collect::<Vec<_>>();
        assert_eq!(asked[..4], [Method::Get, Method::Get, Method::Post, Method::Post], "{asked:?}");
        assert_eq!((slow.changes(), slow.at_once_max()), (vec![1, 1], REQUESTS_PER_NODE_MAX));
        assert_eq!(slow.began.elapsed().as_secs(), 4, "eight readings, two at once");
    });
}

/// Whoever asks for a last word before sending has the turn already: between both nothing is waited for.
#[test]
fn a_turn_that_was_taken_before_waits_for_nobody_and_is_given_on_unused() {
    on_paused_time(async {
        let slow = Slow::taking(3);
        let session = Session::new(slow.clone());
        let turn = session.turn(Some(guest().node)).await.expect("there is room");
        let readings = future::join_all((0..4).map(|_| read(&session)));
        let later = async {
            tokio::time::sleep(Duration::from_secs(4)).await;
            session.call_in(turn, &Command::Write(Write::Stop(guest()))).await.expect_err("nobody carries it out")
        };
        let (_, failure) = future::join(readings, later).await;
        assert_eq!((failure.cause, slow.changes()), (Cause::NodeUnreachable, vec![4]), "it was sent at once");
        // Readings from 0, 3, 4 and 6 on: until the change was sent one at a time, beside the turn.
        assert_eq!((slow.began.elapsed().as_secs(), slow.at_once_max()), (9, 2));
        assert_eq!(slow.asked.lock().expect("unpoisoned").iter().map(|(_, at)| *at).collect::<Vec<_>>(), [0, 3, 4, 4, 6]);
        let unused = session.turn(Some(guest().node)).await.expect("there is room");
        drop(unused);
        future::join_all((0..2).map(|_| read(&session))).await;
        assert_eq!(slow.began.elapsed().as_secs(), 12, "both at once: nobody has the turn any more");
    });
}

#[test]
fn who_stops_waiting_leaves_no_gap() {
    on_paused_time(async {
        let slow = Slow::taking(1);
        let session = Session::new(slow.clone());
        let mut running: Vec<_> = (0..2).map(|_| Box::pin(read(&session))).collect();
        let mut waiting: Vec<_> = (0..1000).map(|_| Box::pin(read(&session))).collect();
        for call in running.iter_mut().chain(&mut waiting) {
            assert!(call.as_mut().now_or_never().is_none());
        }
        drop(waiting.split_off(1));
        drop(running);
        waiting.remove(0).await.expect_err("595");
        future::join(read(&session), read(&session)).await.0.expect_err("595");
        assert_eq!((slow.readings(), slow.began.elapsed().as_secs()), (5, 2), "both places are there again");
    });
}
