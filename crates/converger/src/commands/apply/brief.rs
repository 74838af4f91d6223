//! What whoever comes back after a crash waits for: it reads what became of things, and waits for no node that is silent.
//!
//! One guest whose node hangs must not keep everybody from the others (L4, L6): it stays held, and the next apply reads it again. What never enters:
//! asking itself.

use std::collections::BTreeSet;
use std::future::Future;
use std::pin::pin;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use converger_adapters::proxmox::codec::Upid;
use converger_core::apply::{Answer, Ask, Cause, Trouble};
use converger_core::guest::NodeName;
use futures_util::future::{Either, select};

/// How long an answer is waited for. Proxmox itself waits for a node three times as long; whatever answers at all does so sooner.
const PATIENCE: Duration = Duration::from_secs(10);

/// Nodes that did not answer in time: nobody waits for them again.
#[derive(Default)]
pub(super) struct Silent(Mutex<BTreeSet<NodeName>>);

impl Silent {
    /// The answer to this, where it comes in time.
    pub(super) async fn waited(&self, node: Option<NodeName>, answer: impl Future<Output = Answer>) -> Answer {
        self.limited(node, answer, tokio::time::sleep(PATIENCE)).await
    }

    /// The answer, where it comes from a node that is not silent, and in time.
    async fn limited(&self, node: Option<NodeName>, answer: impl Future<Output = Answer>, patience: impl Future<Output = ()>) -> Answer {
        let silent = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if node.as_ref().is_some_and(|node| silent().contains(node)) {
            return unread("it did not answer a moment ago");
        }
        match select(pin!(answer), pin!(patience)).await {
            Either::Left((answer, _)) => answer,
            Either::Right(_) => {
                silent().extend(node);
                unread("no answer came in time, and whoever comes back after a crash waits no longer")
            }
        }
    }
}

fn unread(text: &str) -> Answer {
    Answer::Unread(Cause::new(Trouble::Other, "node-silent", text))
}

/// The node that an answer comes from, where it is a certain one.
pub(super) fn node(ask: &Ask) -> Option<NodeName> {
    match ask {
        Ask::Status(place) | Ask::Config(place) | Ask::Tasks { place, .. } => Some(place.node.clone()),
        Ask::Task(task) => Upid::new(task.as_str()).map(|upid| upid.node().clone()),
        // What any node answers; and nothing that was found in the journal is sent.
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use converger_core::apply::{Place, TaskId, TaskState};
    use converger_core::guest::{Kind, Vmid};
    use futures_util::FutureExt as _;

    use super::*;

    fn node_named(name: &str) -> Option<NodeName> {
        NodeName::new(name)
    }

    /// What is told of an answer that comes at once, or never.
    fn told(silent: &Silent, node: Option<NodeName>, comes: bool) -> Option<String> {
        let answer = async { if comes { Answer::Task(TaskState::Running) } else { pending().await } };
        match silent.limited(node, answer, ready(())).now_or_never() {
            Some(Answer::Unread(cause)) => Some(cause.text.to_string()),
            Some(_) => None,
            None => panic!("it waits for a node that is silent"),
        }
    }

    #[test]
    fn l4_a_silent_node_is_waited_for_once_and_others_are_asked() {
        let silent = Silent::default();
        assert_eq!(told(&silent, node_named("pve1"), true), None, "what comes in time is the answer");
        let late = told(&silent, node_named("pve1"), false).expect("unread");
        assert!(late.contains("no answer came in time"), "{late}");
        let again = told(&silent, node_named("pve1"), true).expect("unread");
        assert!(again.contains("a moment ago"), "it is not asked again: {again}");
        assert_eq!(told(&silent, node_named("pve2"), true), None);
        // What any node can answer says nothing about one.
        assert!(told(&silent, None, false).is_some() && told(&silent, None, true).is_none());
    }

    #[test]
    fn every_reading_of_a_guest_and_its_task_is_known_by_its_node() {
        let place = Place { node: node_named("pve2").expect("a name"), kind: Kind::Qemu, vmid: Vmid::new(101).expect("an id") };
        let task = TaskId::new("UPID:pve2:0000C0DE:00A1B2C3:6AFAF0B3:qmstart:101:root@pam!lab:").expect("an id");
        for ask in [Ask::Status(place.clone()), Ask::Config(place), Ask::Task(task)] {
            assert_eq!(node(&ask), node_named("pve2"), "{ask:?}");
        }
        assert_eq!(node(&Ask::Cluster), None);
    }
}
