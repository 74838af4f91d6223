//! The doctor: says what an environment lacks for this program to work with it, and the lines that grant it.
//!
//! `gather` asks, each thing once, and writes nothing (G4, G5); everything else turns the answers into findings and is pure. What
//! one check cannot tell does not keep the others from telling. What never enters: what to do with guests (the core).

mod cluster;
mod endpoint;
mod finding;
mod gather;
mod grant;
mod guests;
mod held_privileges;
pub mod privilege_needs;
mod privileges;
mod tags;
mod token;

pub use finding::{DoctorFinding, FindingLevel, PrivilegeUse, Remedy, RemedyLine, RemedyTarget};
pub use gather::{DoctorAnswers, DoctorRequest, EndpointSession, gather_answers};

use super::codec::{EscapedText, ProxmoxFailure};

/// What an examination came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DoctorReport {
    /// What was found.
    pub findings: Vec<DoctorFinding>,
    /// What grants all that plans can come to need and is missing, in one go.
    pub grant: Option<Remedy>,
}

/// What the answers amount to, in a fixed order: endpoints, token, privileges, cluster, nodes, guests, and at the end what only a request
/// would need.
#[must_use]
pub fn examine_answers(gathered: &DoctorAnswers) -> DoctorReport {
    let mut findings = endpoint::endpoint_findings(gathered);
    let mut grant = None;
    findings.extend(cluster::other_cluster_findings(gathered));
    findings.extend(token::token_findings(gathered));
    match &gathered.answers {
        Some(answers) => {
            let privileges = privileges::examine_privileges(gathered, answers);
            let (planned, requested): (Vec<_>, Vec<_>) =
                privileges.findings.into_iter().partition(|finding| finding.part != Some(PrivilegeUse::Request));
            grant = privileges.grant;
            findings.extend(planned);
            findings.extend(tags::findings(gathered, answers));
            findings.extend(cluster::cluster_findings(gathered, answers));
            findings.extend(guests::guest_findings(gathered, answers));
            findings.extend(requested);
        }
        None => findings.push(not_asked_finding(gathered)),
    }
    DoctorReport { findings, grant }
}

/// Where nobody could be asked, one line says so for all the rest.
fn not_asked_finding(gathered: &DoctorAnswers) -> DoctorFinding {
    let is_other = gathered.endpoints.iter().any(|seen| matches!(&seen.cluster, Some(Ok(_))));
    let why = if is_other { "no endpoint is in the cluster that is pinned" } else { "no endpoint answers to the token" };
    DoctorFinding::new("rest", FindingLevel::Unknown, format!("privileges, cluster and guests were not asked for, because {why}"))
        .with_remedy("fix what failed above, then run `converger doctor` again")
}

/// A check that could not be made, with what came instead of an answer.
fn unreadable_finding(check: &'static str, what: &str, failure: &ProxmoxFailure) -> DoctorFinding {
    DoctorFinding::new(check, FindingLevel::Unknown, format!("{what} could not be read: {failure}"))
}

/// Words of others in a sentence.
fn quote_foreign(text: &str) -> String {
    format!("`{}`", EscapedText(text))
}
