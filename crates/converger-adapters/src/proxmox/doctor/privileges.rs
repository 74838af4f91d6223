//! Findings about the privileges of the token, verb by verb, with the commands that grant missing ones.
//!
//! Nothing works without read access. Every other verb may be withheld on purpose, so a missing one is only a warning. Verbs that no plan
//! needs are reported separately and are not even a warning.

use std::collections::{BTreeMap, BTreeSet};

use converger_core::guest::{GuestKind, Vmid};

use super::finding::{DoctorFinding, FindingLevel, PrivilegeUse, Remedy, count_noun, join_some};
use super::gather::{DoctorAnswers, EnvironmentAnswers, listed_guests};
use super::grant::{GrantLines, GrantTarget};
use super::held_privileges::{HeldPrivileges, MissingPrivilege, VerbStatus, verb_status};
use super::privilege_needs::{PrivilegePath, PrivilegedVerb};
use super::{DoctorReport, token, unreadable_finding};
use crate::proxmox::codec::Permissions;

pub(super) fn examine_privileges(doctor_answers: &DoctorAnswers, answers: &EnvironmentAnswers) -> DoctorReport {
    let dump = match &answers.permissions {
        Ok(dump) => dump,
        Err(failure) => {
            return DoctorReport { findings: vec![unreadable_finding("may-read", "the permissions of the token", failure)], grant: None };
        }
    };
    let (listed, all, none) = (listed_guests(&answers.reading), answers.guests.ids().iter().copied().collect(), BTreeMap::new());
    let held = HeldPrivileges { dump, individual: &answers.hidden_permissions, shown: &listed };
    let owner = answers.owner.as_ref().ok().map(|dump| owner_privileges(dump, &none, &all));
    let grantee = GrantTarget {
        token: &doctor_answers.token,
        separated: token::token_state(&doctor_answers.token, answers).map(|state| state.separated),
        held,
        owner,
        roles: answers.roles.as_ref().ok(),
        major: answers.version.major,
    };
    let guests = guest_kinds(answers);
    let has_qemu = guests.is_empty() || guests.iter().any(|(_, kind)| *kind == GuestKind::Qemu);
    let verbs = PrivilegedVerb::ALL.into_iter().filter(|verb| has_qemu || *verb != PrivilegedVerb::SetBoot);
    let needed_verbs = verbs.filter_map(|verb| Some((verb, guests_needing(doctor_answers, verb, &guests)?)));
    let statuses: Vec<(PrivilegedVerb, VerbStatus<'_>)> =
        needed_verbs.map(|(verb, guests)| (verb, verb_status(&held, verb, grantee.major, &guests))).collect();
    let findings = statuses.iter().map(|(verb, status)| verb_finding(*verb, status, &grantee)).collect();
    DoctorReport { findings, grant: grant_remedy(&statuses, &grantee) }
}

/// The guests that need a verb; `None` if it is not needed. Without a declared state, every verb may be needed.
fn guests_needing(doctor_answers: &DoctorAnswers, verb: PrivilegedVerb, guests: &[(Vmid, GuestKind)]) -> Option<Vec<(Vmid, GuestKind)>> {
    let Some(required_verbs) = &doctor_answers.wants else { return Some(guests.to_vec()) };
    let own = required_verbs.guests(verb)?;
    Some(guests.iter().filter(|(vmid, _)| own.contains(vmid)).copied().collect())
}

/// One remedy that grants everything that plans may need.
fn grant_remedy(statuses: &[(PrivilegedVerb, VerbStatus<'_>)], grantee: &GrantTarget<'_>) -> Option<Remedy> {
    let planned = statuses.iter().filter(|(verb, _)| verb.is_planned());
    let missing_privileges: Vec<MissingPrivilege> = planned.flat_map(|(_, status)| status.lacks.iter().cloned()).collect();
    if missing_privileges.is_empty() {
        return None;
    }
    let granting = grantee.grant_lines(&missing_privileges);
    let reads = missing_privileges.iter().any(|missing| missing.need.verb == PrivilegedVerb::Read);
    let least = if reads { "ConvergerRead is enough for `audit`" } else { "not needed for `audit`" };
    let text = format!("{}; {least}", with_pool_advice(grant_advice(grantee).to_owned(), &granting));
    Some(Remedy { text, lines: granting.lines })
}

/// The permissions of the user cannot be queried guest by guest; it is assumed that no entry hides a guest from it.
fn owner_privileges<'g>(dump: &'g Permissions, none: &'g BTreeMap<Vmid, Permissions>, all: &'g BTreeSet<Vmid>) -> HeldPrivileges<'g> {
    HeldPrivileges { dump, individual: none, shown: all }
}

/// The examined guests with their kinds; unlisted guests count as virtual machines.
fn guest_kinds(answers: &EnvironmentAnswers) -> Vec<(Vmid, GuestKind)> {
    let rows = answers.reading.iter().flat_map(|reading| reading.observation.guests.iter());
    let seen: BTreeMap<Vmid, GuestKind> = rows.map(|row| (row.vmid, row.kind)).collect();
    answers.guests.ids().iter().map(|vmid| (*vmid, seen.get(vmid).copied().unwrap_or(GuestKind::Qemu))).collect()
}

fn verb_finding(verb: PrivilegedVerb, status: &VerbStatus<'_>, grantee: &GrantTarget<'_>) -> DoctorFinding {
    let what = verb.description();
    if !status.lacks.is_empty() {
        return missing_finding(verb, status, grantee);
    }
    if !status.unknown.is_empty() {
        let found = format!("cannot determine whether the token can {what}: {}", join_some(&status.unknown));
        let level = if verb.is_planned() { FindingLevel::Unknown } else { FindingLevel::Unneeded };
        return DoctorFinding::new(verb.check_name(), level, found)
            .with_part(privilege_use(verb))
            .with_remedy("grant `VM.Audit` on these guests, or check fewer: `converger doctor desired.yaml`");
    }
    let only = match status.confined_to.as_slice() {
        [] => String::new(),
        paths => format!(", but only on {}", join_some(paths.iter().map(|path| super::quote_foreign(path)))),
    };
    DoctorFinding::new(verb.check_name(), FindingLevel::Ok, format!("the token can {what}{only}")).with_part(privilege_use(verb))
}

fn privilege_use(verb: PrivilegedVerb) -> PrivilegeUse {
    if verb.is_planned() { PrivilegeUse::Apply } else { PrivilegeUse::Request }
}

fn missing_finding(verb: PrivilegedVerb, status: &VerbStatus<'_>, grantee: &GrantTarget<'_>) -> DoctorFinding {
    let missing_texts: Vec<String> = status.lacks.iter().map(describe_missing).collect();
    let found = format!("the token cannot {}: {}", verb.description(), missing_texts.join("; "));
    let granting = grantee.grant_lines(&status.lacks);
    let (level, text) = match verb {
        PrivilegedVerb::Read => (FindingLevel::Fail, grant_advice(grantee).to_owned()),
        _ if verb.is_planned() => (FindingLevel::Warn, with_pool_advice("if it should, grant it".to_owned(), &granting)),
        _ => (FindingLevel::Unneeded, with_pool_advice("if it should, grant it".to_owned(), &granting)),
    };
    DoctorFinding::new(verb.check_name(), level, found).with_part(privilege_use(verb)).with_remedy(text).with_lines(granting.lines)
}

/// Adds the advice to use a pool if that applies.
fn with_pool_advice(mut text: String, granting: &GrantLines) -> String {
    if granting.is_wide {
        text.push_str("; to limit it to some guests, add them to a pool and grant it on /pool/<name> instead");
    }
    if granting.is_cut {
        text.push_str("; more guests have ACL entries of their own than are listed here: a pool covers them all");
    }
    text
}

/// Whom to grant the privileges to.
fn grant_advice(grantee: &GrantTarget<'_>) -> &'static str {
    match (grantee.separated, &grantee.owner) {
        (Some(false), _) => "grant it to the user, whose privileges the token has",
        (Some(true), Some(_)) => "grant it to the token, and to its user if a line says so",
        (_, None) => {
            "grant it to the token and to its user, whose privileges limit those of the token; granting a privilege again changes \
             nothing"
        }
        (None, Some(_)) => {
            "grant it to the token, and to its user if a line says so; without privilege separation only the user's privileges count"
        }
    }
}

fn describe_missing(missing: &MissingPrivilege) -> String {
    let privilege = missing.need.any_of.join(" or ");
    match missing.need.on {
        PrivilegePath::Root => format!("{privilege} is missing on /"),
        PrivilegePath::NewGuest => format!("{privilege} is missing on /vms, for new guests"),
        PrivilegePath::Storage => format!("{privilege} is missing on /storage"),
        PrivilegePath::Bridge => format!("{privilege} is missing on /sdn/zones"),
        PrivilegePath::Guest if missing.guests.is_empty() => format!("{privilege} is missing on /vms"),
        PrivilegePath::Guest => {
            format!("{privilege} is missing on {} ({})", count_noun(missing.guests.len(), "guest"), join_some(&missing.guests))
        }
    }
}
