//! The doctor: reports what an environment lacks for this program, and the commands that grant it.
//!
//! `gather` sends each request once and writes nothing (G4, G5). Everything else is pure and converts the responses to findings. A check
//! that fails does not prevent the others. Must not decide what to do with guests; the core does.

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

use super::codec::{EscapedText, FailureCause, ProxmoxFailure};
use gather::{EndpointAnswers, VersionFailure};

/// The result of an examination.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DoctorReport {
    /// What was found.
    pub findings: Vec<DoctorFinding>,
    /// One remedy that grants everything that plans may need and the token lacks.
    pub grant: Option<Remedy>,
}

/// Converts the responses to findings, in a fixed order: endpoints, token, privileges, cluster, nodes, guests, and finally what only a
/// request by name would need.
#[must_use]
pub fn examine_answers(doctor_answers: &DoctorAnswers) -> DoctorReport {
    let mut findings = endpoint::endpoint_findings(doctor_answers);
    let mut grant = None;
    findings.extend(cluster::other_cluster_findings(doctor_answers));
    findings.extend(token::token_findings(doctor_answers));
    match &doctor_answers.answers {
        Some(answers) => {
            let privileges = privileges::examine_privileges(doctor_answers, answers);
            let (planned, requested): (Vec<_>, Vec<_>) =
                privileges.findings.into_iter().partition(|finding| finding.part != Some(PrivilegeUse::Request));
            grant = privileges.grant;
            findings.extend(planned);
            findings.extend(tags::findings(doctor_answers, answers));
            findings.extend(cluster::cluster_findings(doctor_answers, answers));
            findings.extend(guests::guest_findings(doctor_answers, answers));
            findings.extend(requested);
        }
        None => findings.push(not_asked_finding(doctor_answers)),
    }
    DoctorReport { findings, grant }
}

/// If no endpoint could be used, one finding covers all the rest.
fn not_asked_finding(doctor_answers: &DoctorAnswers) -> DoctorFinding {
    let is_other = doctor_answers.endpoints.iter().any(|seen| matches!(&seen.cluster, Some(Ok(_))));
    let causes: Vec<FailureCause> = doctor_answers.endpoints.iter().filter_map(version_failure_cause).collect();
    let is_silent = |cause: &FailureCause| matches!(cause, FailureCause::Unreachable | FailureCause::TooSlow | FailureCause::Interrupted);
    let why = if is_other {
        "no endpoint is in the pinned cluster"
    } else if causes.contains(&FailureCause::Unauthenticated) {
        "no endpoint accepts the token"
    } else if causes.iter().all(|cause| *cause == FailureCause::Unreachable) {
        "no endpoint was reached"
    } else if causes.iter().all(is_silent) {
        "no endpoint responds"
    } else {
        "no endpoint can be used"
    };
    DoctorFinding::new("rest", FindingLevel::Unknown, format!("privileges, cluster and guests were not checked, because {why}"))
        .with_remedy("fix what failed above, then run `converger doctor` again")
}

/// Why the version of an endpoint could not be read, if a request failed.
fn version_failure_cause(seen: &EndpointAnswers) -> Option<FailureCause> {
    match &seen.version {
        Err(VersionFailure::Failed(failure)) => Some(failure.cause),
        Ok(_) | Err(VersionFailure::NoClient(_)) => None,
    }
}

/// A check that could not be made, with its failure.
fn unreadable_finding(check: &'static str, what: &str, failure: &ProxmoxFailure) -> DoctorFinding {
    DoctorFinding::new(check, FindingLevel::Unknown, format!("{what} could not be read: {failure}"))
}

/// Quotes and escapes a foreign text.
fn quote_foreign(text: &str) -> String {
    format!("`{}`", EscapedText(text))
}
