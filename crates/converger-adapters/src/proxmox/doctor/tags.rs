//! Findings about the datacenter's rules for tags, where tags are declared: who may set them, and how they are stored.

use converger_core::observe::TagCase;

use super::finding::{Finding, Level, Where, listed};
use super::gather::{Answers, Gathered};
use super::{theirs, untold};
use crate::proxmox::codec::TagOptions;

pub(super) fn findings(gathered: &Gathered, answers: &Answers) -> Vec<Finding> {
    let Some(tags) = gathered.wants.as_ref().map(|wants| wants.tags()) else { return Vec::new() };
    let options = match &answers.tag_options {
        None => return Vec::new(),
        Some(Err(failure)) => {
            let finding = untold("tags", "the datacenter's rules for tags", failure);
            return vec![finding.remedy("declare tags in lower case only: how others are stored is not known")];
        }
        Some(Ok(options)) => options,
    };
    let tags: Vec<&str> = tags.iter().map(|tag| &**tag).collect();
    let found: Vec<Finding> = denied(answers, options, &tags).into_iter().chain(lowered(options, &tags)).collect();
    if found.is_empty() { vec![Finding::new("tags", Level::Ok, "the token may set the declared tags")] } else { found }
}

/// Declared tags that the token may neither add nor remove.
fn denied(answers: &Answers, options: &TagOptions, tags: &[&str]) -> Option<Finding> {
    let is_privileged = answers.permissions.as_ref().is_ok_and(|permissions| permissions.has("/", "Sys.Modify"));
    let stored = |tag: &str| if options.tag_case == TagCase::Kept { tag.to_owned() } else { tag.to_ascii_lowercase() };
    let denied: Vec<String> = tags.iter().map(|tag| stored(tag)).filter(|tag| !is_privileged && options.needs_privilege(tag)).collect();
    (!denied.is_empty()).then(|| {
        let list = listed(denied.iter().map(|tag| theirs(tag)));
        let found =
            format!("the datacenter lets only `Sys.Modify` on `/` add or remove these tags: {list}; Proxmox answers others with 403");
        Finding::new("tags", Level::Warn, found)
            .remedy("give the token `Sys.Modify` on `/`, or allow the tags in the datacenter's options (user tag access, registered tags)")
            .line(Where::Node, "pvesh get /cluster/options")
    })
}

/// Declared tags that are stored in another case than they are declared.
fn lowered(options: &TagOptions, tags: &[&str]) -> Option<Finding> {
    let has_upper_case = |tag: &&&str| tag.contains(|letter: char| letter.is_ascii_uppercase());
    let found: Vec<String> = tags.iter().filter(has_upper_case).map(|tag| theirs(tag)).collect();
    (options.tag_case == TagCase::Lowered && !found.is_empty()).then(|| {
        Finding::new("tags", Level::Warn, format!("the datacenter stores tags in lower case, also these: {}", listed(found)))
            .remedy("declare them in lower case; `tag-style: case-sensitive=1` in the datacenter's options keeps the case")
    })
}
