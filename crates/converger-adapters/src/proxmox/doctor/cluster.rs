//! Findings about the cluster and its nodes: the name and its pin, quorum, membership, releases and clocks.

use std::collections::{BTreeMap, BTreeSet};

use converger_core::guest::NodeName;

use super::endpoint::clock_finding;
use super::finding::{DoctorFinding, FindingLevel, RemedyTarget, count_noun, join_some};
use super::gather::{DoctorAnswers, EnvironmentAnswers};
use super::{quote_foreign, unreadable_finding};
use crate::proxmox::codec::{ClusterStatus, FailureCause};

pub(super) fn cluster_findings(doctor_answers: &DoctorAnswers, answers: &EnvironmentAnswers) -> Vec<DoctorFinding> {
    let mut findings = Vec::new();
    let cluster = match &answers.cluster {
        Ok(cluster) => cluster,
        Err(failure) => {
            findings.push(unreadable_finding("cluster", "the state of the cluster", failure).with_remedy("see `may-read`"));
            return findings;
        }
    };
    findings.extend(duplicate_endpoint_findings(doctor_answers));
    findings.push(name_finding(doctor_answers, cluster));
    findings.push(quorum_finding(cluster));
    findings.push(nodes_finding(cluster, answers));
    findings.extend(version_finding(answers));
    findings.extend(clock_findings(answers));
    findings
}

/// Endpoints that are in another cluster than the pinned one, or than each other.
pub(super) fn other_cluster_findings(doctor_answers: &DoctorAnswers) -> Vec<DoctorFinding> {
    let known = doctor_answers.endpoints.iter().filter_map(|seen| Some((seen, seen.cluster.as_ref()?.as_ref().ok()?)));
    let known: Vec<(&str, &str)> = known.map(|(seen, cluster)| (seen.endpoint.as_str(), cluster.effective_name())).collect();
    let wanted = doctor_answers.cluster.as_deref().or(known.first().map(|(_, name)| *name));
    let Some(wanted) = wanted else { return Vec::new() };
    let other = known.iter().filter(|(_, name)| *name != wanted);
    other
        .map(|(endpoint_name, name)| {
            let found = format!("it is in the cluster {}, not in {}", quote_foreign(name), quote_foreign(wanted));
            DoctorFinding::new("cluster", FindingLevel::Fail, found)
                .with_subject(*endpoint_name)
                .with_remedy("check the address; endpoints of one environment are nodes of one cluster")
        })
        .collect()
}

/// Endpoints that are one node under several addresses. The second address does not help if the node is down.
fn duplicate_endpoint_findings(doctor_answers: &DoctorAnswers) -> Vec<DoctorFinding> {
    let mut seen: BTreeMap<&str, &str> = BTreeMap::new();
    let mut findings = Vec::new();
    for endpoint in &doctor_answers.endpoints {
        let local = endpoint.cluster.as_ref().and_then(|cluster| cluster.as_ref().ok()?.local.as_ref());
        let Some(node) = local.map(NodeName::as_str) else { continue };
        match seen.get(node) {
            None => {
                seen.insert(node, &endpoint.endpoint);
            }
            Some(first) => {
                let found = format!("it is the same node as {first}: {node}");
                let finding = DoctorFinding::new("endpoint-node", FindingLevel::Warn, found).with_subject(endpoint.endpoint.as_str());
                findings.push(finding.with_remedy("use another node of the cluster, which responds when this one is down"));
            }
        }
    }
    findings
}

/// Compares the name with its pin. A node without a cluster has its own name.
fn name_finding(doctor_answers: &DoctorAnswers, cluster: &ClusterStatus) -> DoctorFinding {
    let own = cluster.effective_name();
    let kind = if cluster.name.is_some() { "the cluster is" } else { "the node without a cluster is" };
    if doctor_answers.cluster.is_some() {
        return DoctorFinding::new("cluster", FindingLevel::Ok, format!("{kind} {}, as pinned", quote_foreign(own)));
    }
    let finding = DoctorFinding::new("cluster", FindingLevel::Warn, format!("{kind} {}, and its name is not pinned", quote_foreign(own)))
        .with_remedy("pin it, so that no other cluster can be mistaken for this one");
    // A name that is not a plain word is not offered for copying.
    let is_plain = !own.is_empty() && own.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'));
    if is_plain { finding.with_line(RemedyTarget::Config, format!("cluster = \"{own}\"")) } else { finding }
}

fn quorum_finding(cluster: &ClusterStatus) -> DoctorFinding {
    if cluster.quorate {
        return DoctorFinding::new("quorum", FindingLevel::Ok, "the cluster has quorum");
    }
    DoctorFinding::new("quorum", FindingLevel::Fail, "the cluster has no quorum: nothing can be changed, and observations prove nothing")
        .with_remedy("bring back more than half of the nodes")
        .with_line(RemedyTarget::Node, "pvecm status")
}

fn nodes_finding(cluster: &ClusterStatus, answers: &EnvironmentAnswers) -> DoctorFinding {
    let offline: Vec<&str> = cluster.nodes.iter().filter(|(_, online)| !**online).map(|(name, _)| name.as_str()).collect();
    let is_silent =
        |node: &&NodeName| answers.nodes.get(*node).is_some_and(|seen| matches!(&seen.version, Err(failure) if is_silence(failure.cause)));
    let silent_nodes: Vec<&str> = answers.nodes.keys().filter(is_silent).map(NodeName::as_str).collect();
    let all = count_noun(cluster.nodes.len(), "node");
    if offline.is_empty() && silent_nodes.is_empty() {
        return DoctorFinding::new("nodes", FindingLevel::Ok, format!("{all}, all online"));
    }
    let mut found = format!("of {all}");
    for (names, how) in [(offline, "offline"), (silent_nodes, "online, but not responding")] {
        if !names.is_empty() {
            found.push_str(&format!(" {how}: {};", join_some(names)));
        }
    }
    let found = format!("{} their guests are not changed until they are back", found.trim_end_matches(';').to_owned() + ";");
    DoctorFinding::new("nodes", FindingLevel::Warn, found)
        .with_remedy("check these services on the nodes")
        .with_line(RemedyTarget::Node, "systemctl status pve-cluster corosync pvedaemon pveproxy")
}

fn is_silence(cause: FailureCause) -> bool {
    matches!(cause, FailureCause::NodeUnreachable | FailureCause::Interrupted | FailureCause::TooSlow | FailureCause::NodeUnknown)
}

/// Nodes with different releases, as during an upgrade.
fn version_finding(answers: &EnvironmentAnswers) -> Option<DoctorFinding> {
    let known = answers.nodes.iter().filter_map(|(name, seen)| Some((name, seen.version.as_ref().ok()?)));
    let known: Vec<(&NodeName, &str)> = known.map(|(name, version)| (name, &*version.version)).collect();
    let distinct: BTreeSet<&str> = known.iter().map(|(_, version)| *version).collect();
    if distinct.len() < 2 {
        return None;
    }
    let list = join_some(known.iter().map(|(name, version)| format!("{} {}", name.as_str(), quote_foreign(version))));
    Some(
        DoctorFinding::new("node-versions", FindingLevel::Warn, format!("the nodes run different releases: {list}"))
            .with_remedy("complete the upgrade"),
    )
}

/// The nodes whose clocks differ from ours, or a single finding if none does.
fn clock_findings(answers: &EnvironmentAnswers) -> Vec<DoctorFinding> {
    let known: Vec<(&NodeName, i64)> =
        answers.nodes.iter().filter_map(|(name, seen)| Some((name, *seen.ahead_secs.as_ref().ok()?))).collect();
    let findings = known.iter().map(|(name, ahead)| clock_finding("node-clock", *ahead).with_subject(name.as_str()));
    let off: Vec<DoctorFinding> = findings.filter(|finding| finding.level != FindingLevel::Ok).collect();
    if !off.is_empty() || known.is_empty() {
        return off;
    }
    vec![DoctorFinding::new(
        "node-clock",
        FindingLevel::Ok,
        format!("the clocks of {} agree with ours to within a few seconds", count_noun(known.len(), "node")),
    )]
}
