//! Response timeout for recovery. A node that does not answer within 10 s is skipped and its guests stay held, so that one hung node does not
//! delay the others (L4, L6).

use std::collections::BTreeSet;
use std::future::Future;
use std::pin::pin;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use converger_adapters::proxmox::codec::Upid;
use converger_core::apply::{EnvFault, EnvFaultKind, EnvRequest, EnvResponse};
use converger_core::guest::NodeName;
use futures_util::future::{Either, select};

/// A third of what Proxmox itself waits for a node; a node that answers at all answers sooner.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);

/// Nodes that missed the response timeout during recovery; they are not asked again in this run.
#[derive(Default)]
pub(crate) struct UnresponsiveNodes(Mutex<BTreeSet<NodeName>>);

impl UnresponsiveNodes {
    /// The answer, or `Unread` if the node does not answer in time.
    pub(crate) async fn bound_response(&self, node: Option<NodeName>, answer: impl Future<Output = EnvResponse>) -> EnvResponse {
        self.bound_by(node, answer, tokio::time::sleep(RESPONSE_TIMEOUT)).await
    }

    async fn bound_by(
        &self,
        node: Option<NodeName>,
        answer: impl Future<Output = EnvResponse>,
        patience: impl Future<Output = ()>,
    ) -> EnvResponse {
        let silent = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if node.as_ref().is_some_and(|node| silent().contains(node)) {
            return unread_answer("it did not answer a moment ago");
        }
        match select(pin!(answer), pin!(patience)).await {
            Either::Left((answer, _)) => answer,
            Either::Right(_) => {
                silent().extend(node);
                unread_answer("no answer came in time, and whoever comes back after a crash waits no longer")
            }
        }
    }
}

fn unread_answer(text: &str) -> EnvResponse {
    EnvResponse::Unreadable(EnvFault::new(EnvFaultKind::Other, "node-silent", text))
}

/// The node that answers this, where it is a certain one.
pub(crate) fn answering_node(ask: &EnvRequest) -> Option<NodeName> {
    match ask {
        EnvRequest::Status(place) | EnvRequest::Config(place) | EnvRequest::Tasks { address: place, .. } => Some(place.node.clone()),
        EnvRequest::Task(task) => Upid::new(task.as_str()).map(|upid| upid.node().clone()),
        // Any node answers these; recovery sends nothing.
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use converger_core::apply::{GuestAddress, TaskId, TaskState};
    use converger_core::guest::{GuestKind, Vmid};
    use futures_util::FutureExt as _;

    use super::*;

    fn node_named(name: &str) -> Option<NodeName> {
        NodeName::new(name)
    }

    /// What is told of an answer that comes at once, or never.
    fn told(silent: &UnresponsiveNodes, node: Option<NodeName>, comes: bool) -> Option<String> {
        let answer = async { if comes { EnvResponse::Task(TaskState::Running) } else { pending().await } };
        match silent.bound_by(node, answer, ready(())).now_or_never() {
            Some(EnvResponse::Unreadable(cause)) => Some(cause.text.to_string()),
            Some(_) => None,
            None => panic!("it waits for a node that is silent"),
        }
    }

    #[test]
    fn l4_a_silent_node_is_waited_for_once_and_others_are_asked() {
        let silent = UnresponsiveNodes::default();
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
        let place = GuestAddress { node: node_named("pve2").expect("a name"), kind: GuestKind::Qemu, vmid: Vmid::new(101).expect("an id") };
        let task = TaskId::new("UPID:pve2:0000C0DE:00A1B2C3:6AFAF0B3:qmstart:101:root@pam!lab:").expect("an id");
        for ask in [EnvRequest::Status(place.clone()), EnvRequest::Config(place), EnvRequest::Task(task)] {
            assert_eq!(answering_node(&ask), node_named("pve2"), "{ask:?}");
        }
        assert_eq!(answering_node(&EnvRequest::Cluster), None);
    }
}
