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
    /// The response, or `Unreadable` if the node does not answer in time.
    pub(crate) async fn bound_response(&self, node: Option<NodeName>, answer: impl Future<Output = EnvResponse>) -> EnvResponse {
        self.bound_by(node, answer, tokio::time::sleep(RESPONSE_TIMEOUT)).await
    }

    async fn bound_by(
        &self,
        node: Option<NodeName>,
        answer: impl Future<Output = EnvResponse>,
        patience: impl Future<Output = ()>,
    ) -> EnvResponse {
        let unresponsive = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if node.as_ref().is_some_and(|node| unresponsive().contains(node)) {
            return unread_answer("the node did not respond to an earlier request of this recovery");
        }
        match select(pin!(answer), pin!(patience)).await {
            Either::Left((answer, _)) => answer,
            Either::Right(_) => {
                unresponsive().extend(node);
                unread_answer("no response within 10 s, and recovery waits no longer")
            }
        }
    }
}

fn unread_answer(text: &str) -> EnvResponse {
    EnvResponse::Unreadable(EnvFault::new(EnvFaultKind::Other, "node-silent", text))
}

/// The node that answers this request, if only one can.
pub(crate) fn answering_node(request: &EnvRequest) -> Option<NodeName> {
    match request {
        EnvRequest::Status(address) | EnvRequest::Config(address) | EnvRequest::Tasks { address, .. } => Some(address.node.clone()),
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

    fn node_name(name: &str) -> Option<NodeName> {
        NodeName::new(name)
    }

    /// The error text for a response that comes at once, or never.
    fn error_text(unresponsive_nodes: &UnresponsiveNodes, node: Option<NodeName>, comes: bool) -> Option<String> {
        let answer = async { if comes { EnvResponse::Task(TaskState::Running) } else { pending().await } };
        match unresponsive_nodes.bound_by(node, answer, ready(())).now_or_never() {
            Some(EnvResponse::Unreadable(cause)) => Some(cause.text.to_string()),
            Some(_) => None,
            None => panic!("it waits for a node that does not respond"),
        }
    }

    #[test]
    fn l4_waits_once_for_an_unresponsive_node_and_asks_the_others() {
        let unresponsive_nodes = UnresponsiveNodes::default();
        assert_eq!(error_text(&unresponsive_nodes, node_name("pve1"), true), None, "a response in time is passed on");
        let late = error_text(&unresponsive_nodes, node_name("pve1"), false).expect("unread");
        assert!(late.contains("no response within 10 s"), "{late}");
        let again = error_text(&unresponsive_nodes, node_name("pve1"), true).expect("unread");
        assert!(again.contains("earlier request"), "it is not asked again: {again}");
        assert_eq!(error_text(&unresponsive_nodes, node_name("pve2"), true), None);
        // A request that any node can answer says nothing about one node.
        assert!(error_text(&unresponsive_nodes, None, false).is_some() && error_text(&unresponsive_nodes, None, true).is_none());
    }

    #[test]
    fn requests_for_a_guest_and_its_task_name_their_node() {
        let address =
            GuestAddress { node: node_name("pve2").expect("a name"), kind: GuestKind::Qemu, vmid: Vmid::new(101).expect("an id") };
        let task = TaskId::new("UPID:pve2:0000C0DE:00A1B2C3:6AFAF0B3:qmstart:101:root@pam!lab:").expect("an id");
        for request in [EnvRequest::Status(address.clone()), EnvRequest::Config(address), EnvRequest::Task(task)] {
            assert_eq!(answering_node(&request), node_name("pve2"), "{request:?}");
        }
        assert_eq!(answering_node(&EnvRequest::Cluster), None);
    }
}
