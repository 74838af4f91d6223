//! Findings about what the token may do, verb by verb, with the lines that grant what is missing.
//!
//! Without reading nothing works; every other verb may be kept from a token on purpose, so that lacking it is only worth a word.

use std::collections::{BTreeMap, BTreeSet};

use converger_core::guest::{Kind, Vmid};

use super::finding::{Finding, Level, counted, listed};
use super::gather::{Answers, Gathered, shown};
use super::grant::Grantee;
use super::held::{Held, Lack, Standing, standing};
use super::need::{On, Verb};
use super::{token, untold};
use crate::proxmox::codec::Permissions;

pub(super) fn findings(gathered: &Gathered, answers: &Answers) -> Vec<Finding> {
    let dump = match &answers.permissions {
        Ok(dump) => dump,
        Err(failure) => return vec![untold("may-read", "what the token may do", failure)],
    };
    let (shown, all, none) = (shown(&answers.reading), answers.guests.ids().iter().copied().collect(), BTreeMap::new());
    let held = Held { dump, asked: &answers.asked, shown: &shown };
    let owner = answers.owner.as_ref().ok().map(|dump| of_owner(dump, &none, &all));
    let grantee = Grantee {
        token: &gathered.token,
        separated: token::state(&gathered.token, answers).map(|state| state.separated),
        held,
        owner,
        roles: answers.roles.as_ref().ok(),
        major: answers.version.major,
    };
    let guests = kinds(answers);
    let has_qemu = guests.is_empty() || guests.iter().any(|(_, kind)| *kind == Kind::Qemu);
    let verbs = Verb::ALL.into_iter().filter(|verb| has_qemu || *verb != Verb::SetBoot);
    verbs.map(|verb| of_verb(verb, &standing(&held, verb, grantee.major, &guests), &grantee)).collect()
}

/// Of the user it cannot be asked guest by guest; no entry is taken to hide one from it.
fn of_owner<'g>(dump: &'g Permissions, none: &'g BTreeMap<Vmid, Permissions>, all: &'g BTreeSet<Vmid>) -> Held<'g> {
    Held { dump, asked: none, shown: all }
}

/// The guests that it is about, with their kinds as far as they were seen.
fn kinds(answers: &Answers) -> Vec<(Vmid, Kind)> {
    let rows = answers.reading.iter().flat_map(|taken| taken.observation.guests.iter());
    let seen: BTreeMap<Vmid, Kind> = rows.map(|row| (row.vmid, row.kind)).collect();
    answers.guests.ids().iter().map(|vmid| (*vmid, seen.get(vmid).copied().unwrap_or(Kind::Qemu))).collect()
}

fn of_verb(verb: Verb, standing: &Standing<'_>, grantee: &Grantee<'_>) -> Finding {
    let what = verb.words();
    if !standing.lacks.is_empty() {
        return lacking(verb, standing, grantee);
    }
    if !standing.unknown.is_empty() {
        let found = format!("whether it may {what} is not known of {}", listed(&standing.unknown));
        return Finding::new(verb.check(), Level::Unknown, found).remedy("no list shows them, and they are too many to ask for one by one");
    }
    let only = match standing.only.as_slice() {
        [] => String::new(),
        paths => format!(", but only on {}", listed(paths.iter().map(|path| super::theirs(path)))),
    };
    Finding::new(verb.check(), Level::Ok, format!("it may {what}{only}"))
}

fn lacking(verb: Verb, standing: &Standing<'_>, grantee: &Grantee<'_>) -> Finding {
    let lacks: Vec<String> = standing.lacks.iter().map(lack_text).collect();
    let found = format!("it may not {}: {}", verb.words(), lacks.join("; "));
    let granting = grantee.lines(&standing.lacks);
    let mut text = if verb == Verb::Read { whom(grantee).to_owned() } else { "if it is to, grant it".to_owned() };
    if granting.is_wide && verb != Verb::Read {
        text.push_str("; to confine it to some guests, put them into a pool and grant it on /pool/<name> instead");
    }
    if granting.is_cut {
        text.push_str("; there are more guests with entries of their own than are written out here: a pool reaches them all");
    }
    let level = if verb == Verb::Read { Level::Fail } else { Level::Warn };
    Finding::new(verb.check(), level, found).remedy(text).lines(granting.lines)
}

/// To whom something is granted, said once: with what everything else needs.
fn whom(grantee: &Grantee<'_>) -> &'static str {
    match (grantee.separated, &grantee.owner) {
        (Some(false), _) => "grant it to the user, whose privileges the token has",
        (Some(true), Some(_)) => "grant it to the token, and to its user where a line says so",
        (_, None) => {
            "grant it to the token, and to its user, within whose privileges the token has its own; what is there already is not changed \
             by being granted again"
        }
        (None, Some(_)) => {
            "grant it to the token, and to its user where a line says so; without privilege separation the user's counts alone"
        }
    }
}

fn lack_text(lack: &Lack) -> String {
    let privilege = lack.need.any_of.join(" or ");
    match lack.need.on {
        On::Root => format!("{privilege} on / is missing"),
        On::NewGuest => format!("{privilege} on /vms is missing, for guests that are yet to be"),
        On::Storage => format!("{privilege} is missing on /storage"),
        On::Bridge => format!("{privilege} is missing on /sdn/zones"),
        On::Guest if lack.guests.is_empty() => format!("{privilege} on /vms is missing"),
        On::Guest => format!("{privilege} is missing on {} ({})", counted(lack.guests.len(), "guest"), listed(&lack.guests)),
    }
}
