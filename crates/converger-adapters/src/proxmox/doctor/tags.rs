//! Findings about the datacenter's rules for tags, if tags are declared: who may set them, and in which case they are stored.

use converger_core::observe::TagCase;

use super::finding::{DoctorFinding, FindingLevel, RemedyTarget, join_some};
use super::gather::{DoctorAnswers, EnvironmentAnswers};
use super::{quote_foreign, unreadable_finding};
use crate::proxmox::codec::TagOptions;

pub(super) fn findings(doctor_answers: &DoctorAnswers, answers: &EnvironmentAnswers) -> Vec<DoctorFinding> {
    let Some(tags) = doctor_answers.wants.as_ref().map(|required_verbs| required_verbs.tags()) else { return Vec::new() };
    let options = match &answers.tag_options {
        None => return Vec::new(),
        Some(Err(failure)) => {
            let finding = unreadable_finding("tags", "the datacenter's rules for tags", failure);
            return vec![finding.with_remedy("declare tags in lower case only: the case of stored tags is unknown")];
        }
        Some(Ok(options)) => options,
    };
    let tags: Vec<&str> = tags.iter().map(|tag| &**tag).collect();
    let found: Vec<DoctorFinding> = denied(answers, options, &tags).into_iter().chain(lowered(options, &tags)).collect();
    if found.is_empty() { vec![DoctorFinding::new("tags", FindingLevel::Ok, "the token may set the declared tags")] } else { found }
}

/// Declared tags that the token may neither add nor remove.
fn denied(answers: &EnvironmentAnswers, options: &TagOptions, tags: &[&str]) -> Option<DoctorFinding> {
    let is_privileged = answers.permissions.as_ref().is_ok_and(|permissions| permissions.has("/", "Sys.Modify"));
    let stored = |tag: &str| if options.tag_case == TagCase::Kept { tag.to_owned() } else { tag.to_ascii_lowercase() };
    let denied: Vec<String> = tags.iter().map(|tag| stored(tag)).filter(|tag| !is_privileged && options.needs_privilege(tag)).collect();
    (!denied.is_empty()).then(|| {
        let list = join_some(denied.iter().map(|tag| quote_foreign(tag)));
        let found =
            format!("the datacenter requires `Sys.Modify` on `/` to add or remove these tags: {list}; otherwise Proxmox responds with 403");
        DoctorFinding::new("tags", FindingLevel::Warn, found)
            .with_remedy(
                "give the token `Sys.Modify` on `/`, or allow the tags in the datacenter's options (user tag access, registered tags)",
            )
            .with_line(RemedyTarget::Node, "pvesh get /cluster/options")
    })
}

/// Declared tags that are stored in another case than declared.
fn lowered(options: &TagOptions, tags: &[&str]) -> Option<DoctorFinding> {
    let has_upper_case = |tag: &&&str| tag.contains(|letter: char| letter.is_ascii_uppercase());
    let found: Vec<String> = tags.iter().filter(has_upper_case).map(|tag| quote_foreign(tag)).collect();
    (options.tag_case == TagCase::Lowered && !found.is_empty()).then(|| {
        DoctorFinding::new("tags", FindingLevel::Warn, format!("the datacenter stores these tags in lower case: {}", join_some(found)))
            .with_remedy("declare them in lower case; `tag-style: case-sensitive=1` in the datacenter's options keeps the case")
    })
}
