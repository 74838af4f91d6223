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
mod held;
pub mod need;
mod privileges;
mod tags;
mod token;

pub use finding::{Finding, Level, Line, Part, Remedy, Where};
pub use gather::{Asked, Gathered, Way, gather};

use super::codec::{Failure, Shown};

/// What an examination came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Examined {
    /// What was found.
    pub findings: Vec<Finding>,
    /// What grants all that plans can come to need and is missing, in one go.
    pub grant: Option<Remedy>,
}

/// What the answers amount to, in a fixed order: endpoints, token, privileges, cluster, nodes, guests, and at the end what only a request
/// would need.
#[must_use]
pub fn findings(gathered: &Gathered) -> Examined {
    let mut findings = endpoint::findings(gathered);
    let mut grant = None;
    findings.extend(cluster::strangers(gathered));
    findings.extend(token::findings(gathered));
    match &gathered.answers {
        Some(answers) => {
            let privileges = privileges::examined(gathered, answers);
            let (planned, requested): (Vec<_>, Vec<_>) =
                privileges.findings.into_iter().partition(|finding| finding.part != Some(Part::Request));
            grant = privileges.grant;
            findings.extend(planned);
            findings.extend(tags::findings(gathered, answers));
            findings.extend(cluster::findings(gathered, answers));
            findings.extend(guests::findings(gathered, answers));
            findings.extend(requested);
        }
        None => findings.push(unasked(gathered)),
    }
    Examined { findings, grant }
}

/// Where nobody could be asked, one line says so for all the rest.
fn unasked(gathered: &Gathered) -> Finding {
    let is_other = gathered.endpoints.iter().any(|seen| matches!(&seen.cluster, Some(Ok(_))));
    let why = if is_other { "no endpoint is in the cluster that is pinned" } else { "no endpoint answers to the token" };
    Finding::new("rest", Level::Unknown, format!("privileges, cluster and guests were not asked for, because {why}"))
        .remedy("mend what is said above, and ask again")
}

/// A check that could not be made, with what came instead of an answer.
fn untold(check: &'static str, what: &str, failure: &Failure) -> Finding {
    Finding::new(check, Level::Unknown, format!("{what} could not be read: {failure}"))
}

/// Words of others in a sentence.
fn theirs(text: &str) -> String {
    format!("`{}`", Shown(text))
}
