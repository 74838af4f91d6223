//! Findings about the cluster and its nodes: its name against its pin, quorum, who is there, releases and clocks.

use std::collections::{BTreeMap, BTreeSet};

use converger_core::guest::NodeName;

use super::endpoint::clock_finding;
use super::finding::{Finding, Level, Where, counted, listed};
use super::gather::{Answers, Gathered};
use super::{theirs, untold};
use crate::proxmox::codec::{Cause, Cluster};

pub(super) fn findings(gathered: &Gathered, answers: &Answers) -> Vec<Finding> {
    let mut findings = Vec::new();
    let cluster = match &answers.cluster {
        Ok(cluster) => cluster,
        Err(failure) => {
            findings.push(untold("cluster", "the state of the cluster", failure).remedy("see `may-read`"));
            return findings;
        }
    };
    findings.extend(doubles(gathered));
    findings.push(name(gathered, cluster));
    findings.push(quorum(cluster));
    findings.push(nodes(cluster, answers));
    findings.extend(versions(answers));
    findings.extend(clocks(answers));
    findings
}

/// Endpoints that are in another cluster than the one that is pinned, or than each other.
pub(super) fn strangers(gathered: &Gathered) -> Vec<Finding> {
    let known = gathered.endpoints.iter().filter_map(|seen| Some((seen, seen.cluster.as_ref()?.as_ref().ok()?)));
    let known: Vec<(&str, &str)> = known.map(|(seen, cluster)| (seen.place.as_str(), cluster.known_as())).collect();
    let wanted = gathered.cluster.as_deref().or(known.first().map(|(_, name)| *name));
    let Some(wanted) = wanted else { return Vec::new() };
    let other = known.iter().filter(|(_, name)| *name != wanted);
    other
        .map(|(place, name)| {
            let found = format!("it is in the cluster {}, not in {}", theirs(name), theirs(wanted));
            Finding::new("cluster", Level::Fail, found)
                .about(*place)
                .remedy("check the address; endpoints of one environment are nodes of one cluster")
        })
        .collect()
}

/// Endpoints that are one node under several addresses: the second is no help when the first is gone.
fn doubles(gathered: &Gathered) -> Vec<Finding> {
    let mut seen: BTreeMap<&str, &str> = BTreeMap::new();
    let mut findings = Vec::new();
    for endpoint in &gathered.endpoints {
        let local = endpoint.cluster.as_ref().and_then(|cluster| cluster.as_ref().ok()?.local.as_ref());
        let Some(node) = local.map(NodeName::as_str) else { continue };
        match seen.get(node) {
            None => {
                seen.insert(node, &endpoint.place);
            }
            Some(first) => {
                let found = format!("it is the node {node}, as is {first}");
                let finding = Finding::new("endpoint-node", Level::Warn, found).about(endpoint.place.as_str());
                findings.push(finding.remedy("name another node of the cluster, which answers when that one does not"));
            }
        }
    }
    findings
}

/// The name against its pin. A node that is in no cluster goes by its own.
fn name(gathered: &Gathered, cluster: &Cluster) -> Finding {
    let own = cluster.known_as();
    let kind = if cluster.name.is_some() { "the cluster is" } else { "it is a node without a cluster," };
    if gathered.cluster.is_some() {
        return Finding::new("cluster", Level::Ok, format!("{kind} {}, as pinned", theirs(own)));
    }
    let finding = Finding::new("cluster", Level::Warn, format!("{kind} {}, and its name is not pinned", theirs(own)))
        .remedy("pin it, so that no other cluster is ever taken for this one");
    // A name that is no plain word is not written for anybody to copy.
    let is_plain = !own.is_empty() && own.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'));
    if is_plain { finding.line(Where::Config, format!("cluster = \"{own}\"")) } else { finding }
}

fn quorum(cluster: &Cluster) -> Finding {
    if cluster.quorate {
        return Finding::new("quorum", Level::Ok, "the cluster has quorum");
    }
    Finding::new("quorum", Level::Fail, "the cluster has no quorum: nothing can be changed, and nothing that is seen counts as proof")
        .remedy("bring back more than half of the nodes")
        .line(Where::Node, "pvecm status")
}

fn nodes(cluster: &Cluster, answers: &Answers) -> Finding {
    let offline: Vec<&str> = cluster.nodes.iter().filter(|(_, online)| !**online).map(|(name, _)| name.as_str()).collect();
    let is_silent =
        |node: &&NodeName| answers.nodes.get(*node).is_some_and(|seen| matches!(&seen.version, Err(failure) if is_gone(failure.cause)));
    let silent: Vec<&str> = answers.nodes.keys().filter(is_silent).map(NodeName::as_str).collect();
    let all = counted(cluster.nodes.len(), "node");
    if offline.is_empty() && silent.is_empty() {
        return Finding::new("nodes", Level::Ok, format!("{all}, all online"));
    }
    let mut found = format!("of {all}");
    for (names, how) in [(offline, "offline"), (silent, "online, but not answering")] {
        if !names.is_empty() {
            found.push_str(&format!(" {how}: {};", listed(names)));
        }
    }
    let found = format!("{} guests there are left alone until they are back", found.trim_end_matches(';').to_owned() + ";");
    Finding::new("nodes", Level::Warn, found)
        .remedy("look at them there")
        .line(Where::Node, "systemctl status pve-cluster corosync pvedaemon pveproxy")
}

fn is_gone(cause: Cause) -> bool {
    matches!(cause, Cause::NodeUnreachable | Cause::Interrupted | Cause::TooSlow | Cause::NodeUnknown)
}

/// Nodes with differing releases: an upgrade that is under way.
fn versions(answers: &Answers) -> Option<Finding> {
    let known = answers.nodes.iter().filter_map(|(name, seen)| Some((name, seen.version.as_ref().ok()?)));
    let known: Vec<(&NodeName, &str)> = known.map(|(name, version)| (name, &*version.version)).collect();
    let distinct: BTreeSet<&str> = known.iter().map(|(_, version)| *version).collect();
    if distinct.len() < 2 {
        return None;
    }
    let list = listed(known.iter().map(|(name, version)| format!("{} {}", name.as_str(), theirs(version))));
    Some(
        Finding::new("node-versions", Level::Warn, format!("the nodes run different releases: {list}"))
            .remedy("bring the upgrade to its end"),
    )
}

/// The clocks of all nodes that differ from ours; one line, if none does.
fn clocks(answers: &Answers) -> Vec<Finding> {
    let known: Vec<(&NodeName, i64)> =
        answers.nodes.iter().filter_map(|(name, seen)| Some((name, *seen.ahead_secs.as_ref().ok()?))).collect();
    let findings = known.iter().map(|(name, ahead)| clock_finding("node-clock", *ahead).about(name.as_str()));
    let off: Vec<Finding> = findings.filter(|finding| finding.level != Level::Ok).collect();
    if !off.is_empty() || known.is_empty() {
        return off;
    }
    vec![Finding::new("node-clock", Level::Ok, format!("the clocks of {} agree with ours to a few seconds", counted(known.len(), "node")))]
}
