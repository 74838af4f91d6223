//! Findings about the token itself: whether it is accepted, when it expires, and whether it has privilege separation.

use super::finding::{DoctorFinding, FindingLevel, RemedyTarget};
use super::gather::{DoctorAnswers, EnvironmentAnswers, VersionFailure};
use super::quote_foreign;
use crate::proxmox::client::TokenId;
use crate::proxmox::codec::{Expiry, FailureCause, Permissions, ProxmoxUser, TokenState};
use crate::proxmox::shell_quote::quote;
use converger_core::timestamp;

/// A token or user that expires sooner is worth a warning.
const ENDS_SOON_SECS: u64 = 14 * 86_400;

pub(super) fn token_findings(doctor_answers: &DoctorAnswers) -> Vec<DoctorFinding> {
    let mut findings: Vec<DoctorFinding> = refused_finding(doctor_answers).into_iter().collect();
    let Some(answers) = &doctor_answers.answers else { return findings };
    if findings.is_empty() {
        findings.push(DoctorFinding::new(
            "token",
            FindingLevel::Ok,
            format!("{} is accepted at {}", quote_foreign(doctor_answers.token.as_str()), answers.endpoint),
        ));
    }
    findings.extend(separation_finding(doctor_answers, answers));
    findings.extend(answers.user.as_ref().ok().and_then(|user| expiry_finding(doctor_answers, user)));
    findings
}

/// Proxmox does not say why it rejects a token; all causes have the same response.
fn refused_finding(doctor_answers: &DoctorAnswers) -> Option<DoctorFinding> {
    let is_refused = |version_failure: &VersionFailure| matches!(version_failure, VersionFailure::Failed(failure) if failure.cause == FailureCause::Unauthenticated);
    let endpoint_names =
        doctor_answers.endpoints.iter().filter(|seen| seen.version.as_ref().is_err_and(is_refused)).map(|seen| seen.endpoint.as_str());
    let endpoint_names: Vec<&str> = endpoint_names.collect();
    if endpoint_names.is_empty() {
        return None;
    }
    let (token, endpoint_names) = (quote_foreign(doctor_answers.token.as_str()), endpoint_names.join(", "));
    let user = quote(doctor_answers.token.user());
    let text = "Proxmox does not say why: the secret is wrong, the token or its user does not exist or has expired, or the user is \
                disabled. Find both in these lists, and compare the secret with the one shown when the token was created";
    Some(
        DoctorFinding::new("token", FindingLevel::Fail, format!("{token} is not accepted at {endpoint_names}"))
            .with_remedy(text)
            .with_line(RemedyTarget::Node, format!("pveum user token list {user}"))
            .with_line(RemedyTarget::Node, "pveum user list"),
    )
}

/// The settings of the token, if they could be read.
pub(super) fn token_state(token: &TokenId, answers: &EnvironmentAnswers) -> Option<TokenState> {
    let name = token.as_str().split_once('!').map(|(_, name)| name)?;
    answers.user.as_ref().ok().and_then(|user| user.tokens.get(name).copied())
}

/// Whether the token has privilege separation. Separation without ACL entries of its own is the most frequent problem of new tokens.
fn separation_finding(doctor_answers: &DoctorAnswers, answers: &EnvironmentAnswers) -> Option<DoctorFinding> {
    let held = answers.permissions.as_ref().ok()?;
    let user = quote_foreign(doctor_answers.token.user());
    let state = token_state(&doctor_answers.token, answers);
    if held.0.is_empty() {
        return Some(no_privileges_finding(doctor_answers, state, answers.owner.as_ref().ok()));
    }
    let found = match state?.separated {
        true => format!("it has its own privileges, limited by those of {user} (privilege separation)"),
        false => format!("it has the privileges of {user} (no privilege separation)"),
    };
    Some(DoctorFinding::new("token-separation", FindingLevel::Ok, found))
}

fn no_privileges_finding(doctor_answers: &DoctorAnswers, state: Option<TokenState>, owner: Option<&Permissions>) -> DoctorFinding {
    let user = quote_foreign(doctor_answers.token.user());
    let is_separated = state.map(|state| state.separated);
    let why = match (is_separated, owner) {
        (Some(false), _) => format!("it has the privileges of {user}, who has none"),
        (_, Some(owner)) if !owner.0.is_empty() => {
            format!("{user} has privileges, but with privilege separation the token needs ACL entries of its own")
        }
        _ => format!(
            "most likely it has privilege separation but no ACL entries of its own; or {user} has no privileges, which limit those of \
             the token"
        ),
    };
    DoctorFinding::new("token-separation", FindingLevel::Fail, format!("it has no privilege at all: {why}"))
        .with_remedy("grant the privileges listed under `may-read` below")
}

fn expiry_finding(doctor_answers: &DoctorAnswers, user: &ProxmoxUser) -> Option<DoctorFinding> {
    let name = doctor_answers.token.as_str().split_once('!').map(|(_, name)| name)?;
    // A token that the response does not mention exists nevertheless: it was accepted.
    let token = user.tokens.get(name).map_or(Expiry::Unclear, |token| token.expiry);
    let expiries = [(token, "the token"), (user.expiry, "its user")];
    let soonest =
        expiries.iter().filter_map(|(expiry, subject)| if let Expiry::At(secs) = expiry { Some((*secs, *subject)) } else { None }).min();
    let unclear = expiries.iter().find(|(expiry, _)| *expiry == Expiry::Unclear);
    let Some((secs, subject)) = soonest else {
        return Some(match unclear {
            None => DoctorFinding::new("token-expiry", FindingLevel::Ok, "neither the token nor its user expires"),
            Some((_, subject)) => {
                DoctorFinding::new("token-expiry", FindingLevel::Unknown, format!("Proxmox does not say when {subject} expires"))
            }
        });
    };
    let found = format!("{subject} expires on {}", timestamp::format_date(secs));
    let is_soon = secs.saturating_sub(doctor_answers.now_secs) <= ENDS_SOON_SECS;
    if !is_soon {
        return Some(DoctorFinding::new("token-expiry", FindingLevel::Ok, found));
    }
    let own = quote(doctor_answers.token.user());
    let line = match subject {
        "the token" => format!("pveum user token modify {own} {} --expire 0", quote(name)),
        _ => format!("pveum user modify {own} --expire 0"),
    };
    Some(
        DoctorFinding::new("token-expiry", FindingLevel::Warn, found)
            .with_remedy("set a later time, in seconds since 1970; 0 means never")
            .with_line(RemedyTarget::Node, line),
    )
}
