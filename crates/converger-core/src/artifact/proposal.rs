//! The proposal: what a person decides on. One item per guest with judged steps, and the environment and cluster that it is for.
//!
//! A proposal leaves out everything that no step touches, so an edit elsewhere in the cluster does not make an approval worthless, while
//! any change of a step, of its guest or of a second object of it (a snapshot, a template, a volume, a node, a storage) gives another
//! digest. The reason of a step is for people and not part of it.
//!
//! Must not depend on how a proposal is shown or approved.

use std::io;

use serde::Serialize;

use super::Digest;
use super::plan::ProposedSteps;
use crate::apply::OperationTarget;
use crate::guest::{ClusterIdentity, EnvironmentName, GuestIdentity, GuestKind, Vmid};
use crate::plan::Plan;
use crate::safety::{JudgedVerdict, Judgement};

/// Schema id of a proposal.
pub const PROPOSAL_SCHEMA: &str = "converger.proposal/1";

#[derive(Serialize)]
struct ProposalRow<'p> {
    /// `None` for a recorded observation, which is never applied.
    cluster: Option<&'p ClusterIdentity>,
    environment: &'p EnvironmentName,
    /// Omitted in the first epoch. A restored state directory does not know what was done with the approvals of the epochs before.
    #[serde(skip_serializing_if = "Option::is_none")]
    epoch: Option<u64>,
    items: Vec<ProposalItemRef>,
    schema: &'static str,
}

/// One item of a proposal by its digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ProposalItemRef {
    /// The digest of the guest and its steps.
    pub digest: Digest,
    /// The guest.
    pub vmid: Vmid,
}

/// A guest with its judged steps.
#[derive(Serialize)]
struct ProposalItem<'p> {
    /// `None` for a guest that the steps make.
    identity: Option<GuestIdentity>,
    kind: GuestKind,
    name: Option<&'p str>,
    steps: ProposedSteps<'p>,
    vmid: Vmid,
}

/// The items of a judged plan, sorted by guest.
///
/// # Errors
/// See [`Digest::of_value`].
pub fn proposal_items(plan: &Plan, judgement: &Judgement) -> io::Result<Vec<ProposalItemRef>> {
    let mut items = Vec::new();
    for (guest, verdict) in judgement.judged_guests(plan) {
        let JudgedVerdict::Steps(steps) = verdict else { continue };
        let identity = OperationTarget::from_plan(plan, guest).and_then(|target| target.identity);
        let item = ProposalItem { identity, kind: guest.kind, name: plan.name_of(guest), steps: ProposedSteps(steps), vmid: guest.vmid };
        items.push(ProposalItemRef { digest: Digest::of_value(&item)?, vmid: guest.vmid });
    }
    items.sort_by_key(|item| item.vmid);
    Ok(items)
}

/// The digest that approvals, `--confirm` and `apply --plan` bind.
///
/// # Errors
/// See [`Digest::of_value`].
pub fn proposal_digest(plan: &Plan, judgement: &Judgement) -> io::Result<Digest> {
    Digest::of_value(&ProposalRow {
        cluster: judgement.circumstances().cluster.as_ref(),
        environment: plan.intent().environment(),
        epoch: judgement.circumstances().epoch,
        items: proposal_items(plan, judgement)?,
        schema: PROPOSAL_SCHEMA,
    })
}
