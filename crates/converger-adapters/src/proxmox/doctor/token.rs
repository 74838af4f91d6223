//! Findings about the token itself: whether it is accepted, until when, and whose privileges it has.

use super::finding::{Finding, Level, Where};
use super::gather::{Answers, Gathered, Unasked};
use super::theirs;
use crate::proxmox::client::TokenId;
use crate::proxmox::codec::{Cause, Expiry, Permissions, TokenState, User};
use crate::proxmox::shell::quoted;
use converger_core::moment;

/// A token or user that ends sooner is worth a word.
const ENDS_SOON_SECS: u64 = 14 * 86_400;

pub(super) fn findings(gathered: &Gathered) -> Vec<Finding> {
    let mut findings: Vec<Finding> = refused(gathered).into_iter().collect();
    let Some(answers) = &gathered.answers else { return findings };
    if findings.is_empty() {
        findings.push(Finding::new("token", Level::Ok, format!("{} is accepted at {}", theirs(gathered.token.as_str()), answers.place)));
    }
    findings.extend(separation(gathered, answers));
    findings.extend(answers.user.as_ref().ok().and_then(|user| expiry(gathered, user)));
    findings
}

/// Why a token is not accepted is not said by Proxmox: all that can be wrong answers alike.
fn refused(gathered: &Gathered) -> Option<Finding> {
    let is_refused = |unasked: &Unasked| matches!(unasked, Unasked::Failed(failure) if failure.cause == Cause::Unauthenticated);
    let places = gathered.endpoints.iter().filter(|seen| seen.version.as_ref().is_err_and(is_refused)).map(|seen| seen.place.as_str());
    let places: Vec<&str> = places.collect();
    if places.is_empty() {
        return None;
    }
    let (token, places) = (theirs(gathered.token.as_str()), places.join(", "));
    let user = quoted(gathered.token.user());
    let text = "Proxmox does not say why: the secret is wrong, the token or its user does not exist, has expired, or the user is switched \
                off. Look for both in these lists, and compare the secret with the one that was shown when the token was made";
    Some(
        Finding::new("token", Level::Fail, format!("{token} is not accepted at {places}"))
            .remedy(text)
            .line(Where::Node, format!("pveum user token list {user}"))
            .line(Where::Node, "pveum user list"),
    )
}

/// What is written about the token, where it may be read.
pub(super) fn state(token: &TokenId, answers: &Answers) -> Option<TokenState> {
    let name = token.as_str().split_once('!').map(|(_, name)| name)?;
    answers.user.as_ref().ok().and_then(|user| user.tokens.get(name).copied())
}

/// Whose privileges the token has. Separation without an entry of its own is what most new tokens suffer from.
fn separation(gathered: &Gathered, answers: &Answers) -> Option<Finding> {
    let held = answers.permissions.as_ref().ok()?;
    let user = theirs(gathered.token.user());
    let state = state(&gathered.token, answers);
    if held.0.is_empty() {
        return Some(nothing(gathered, state, answers.owner.as_ref().ok()));
    }
    let found = match state?.separated {
        true => format!("it has what was granted to itself, within what {user} has (privilege separation)"),
        false => format!("it has all that {user} has (no privilege separation)"),
    };
    Some(Finding::new("token-separation", Level::Ok, found))
}

fn nothing(gathered: &Gathered, state: Option<TokenState>, owner: Option<&Permissions>) -> Finding {
    let user = theirs(gathered.token.user());
    let is_separated = state.map(|state| state.separated);
    let why = match (is_separated, owner) {
        (Some(false), _) => format!("it has what {user} has, and that is nothing"),
        (_, Some(owner)) if !owner.0.is_empty() => {
            format!("{user} has privileges, but with privilege separation the token needs entries of its own")
        }
        _ => format!(
            "most likely it has privilege separation, and no entry of its own was made; or {user} has nothing, within which the token \
             could have something"
        ),
    };
    Finding::new("token-separation", Level::Fail, format!("it has no privilege at all: {why}")).remedy("grant what `may-read` names below")
}

fn expiry(gathered: &Gathered, user: &User) -> Option<Finding> {
    let name = gathered.token.as_str().split_once('!').map(|(_, name)| name)?;
    // A token that the answer does not mention is there all the same: it was accepted.
    let token = user.tokens.get(name).map_or(Expiry::Unclear, |token| token.expiry);
    let said = [(token, "the token"), (user.expiry, "its user")];
    let soonest = said.iter().filter_map(|(expiry, who)| if let Expiry::At(secs) = expiry { Some((*secs, *who)) } else { None }).min();
    let unclear = said.iter().find(|(expiry, _)| *expiry == Expiry::Unclear);
    let Some((secs, who)) = soonest else {
        return Some(match unclear {
            None => Finding::new("token-expiry", Level::Ok, "neither the token nor its user expires"),
            Some((_, who)) => Finding::new("token-expiry", Level::Unknown, format!("Proxmox does not say when {who} expires")),
        });
    };
    let found = format!("{who} expires on {}", moment::date(secs));
    let is_soon = secs.saturating_sub(gathered.now_secs) <= ENDS_SOON_SECS;
    if !is_soon {
        return Some(Finding::new("token-expiry", Level::Ok, found));
    }
    let own = quoted(gathered.token.user());
    let line = match who {
        "the token" => format!("pveum user token modify {own} {} --expire 0", quoted(name)),
        _ => format!("pveum user modify {own} --expire 0"),
    };
    Some(
        Finding::new("token-expiry", Level::Warn, found)
            .remedy("set a later time, in seconds since 1970; 0 is never")
            .line(Where::Node, line),
    )
}
