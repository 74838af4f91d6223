//! Findings about what the token may do, verb by verb, with the lines that grant what is missing.
//!
//! Without reading nothing works; every other verb may be kept from a token on purpose, so that lacking it is only worth a word. What no plan
//! asks for is told apart, and is not even that.

use std::collections::{BTreeMap, BTreeSet};

use converger_core::guest::{Kind, Vmid};

use super::finding::{Finding, Level, Part, Remedy, counted, listed};
use super::gather::{Answers, Gathered, shown};
use super::grant::{Grantee, Granting};
use super::held::{Held, Lack, Standing, standing};
use super::need::{On, Verb};
use super::{Examined, token, untold};
use crate::proxmox::codec::Permissions;

pub(super) fn examined(gathered: &Gathered, answers: &Answers) -> Examined {
    let dump = match &answers.permissions {
        Ok(dump) => dump,
        Err(failure) => return Examined { findings: vec![untold("may-read", "what the token may do", failure)], grant: None },
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
    let asked = verbs.filter_map(|verb| Some((verb, wanted(gathered, verb, &guests)?)));
    let standings: Vec<(Verb, Standing<'_>)> = asked.map(|(verb, guests)| (verb, standing(&held, verb, grantee.major, &guests))).collect();
    let findings = standings.iter().map(|(verb, standing)| of_verb(*verb, standing, &grantee)).collect();
    Examined { findings, grant: grant(&standings, &grantee) }
}

/// The guests of which a verb is asked for; `None`: it is asked for of none. Where nothing is declared, everything may come.
fn wanted(gathered: &Gathered, verb: Verb, guests: &[(Vmid, Kind)]) -> Option<Vec<(Vmid, Kind)>> {
    let Some(wants) = &gathered.wants else { return Some(guests.to_vec()) };
    let own = wants.guests(verb)?;
    Some(guests.iter().filter(|(vmid, _)| own.contains(vmid)).copied().collect())
}

/// All that plans can come to need and is missing, granted at once.
fn grant(standings: &[(Verb, Standing<'_>)], grantee: &Grantee<'_>) -> Option<Remedy> {
    let planned = standings.iter().filter(|(verb, _)| verb.is_planned());
    let lacks: Vec<Lack> = planned.flat_map(|(_, standing)| standing.lacks.iter().cloned()).collect();
    if lacks.is_empty() {
        return None;
    }
    let granting = grantee.lines(&lacks);
    let reads = lacks.iter().any(|lack| lack.need.verb == Verb::Read);
    let least = if reads { "ConvergerRead is all that it needs" } else { "it needs nothing of this" };
    let text = format!("{}; for audits alone {least}", confined(whom(grantee).to_owned(), &granting));
    Some(Remedy { text, lines: granting.lines })
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
        let level = if verb.is_planned() { Level::Unknown } else { Level::Unneeded };
        return Finding::new(verb.check(), level, found)
            .part(part(verb))
            .remedy("no list shows them, and they are too many to ask for one by one");
    }
    let only = match standing.only.as_slice() {
        [] => String::new(),
        paths => format!(", but only on {}", listed(paths.iter().map(|path| super::theirs(path)))),
    };
    Finding::new(verb.check(), Level::Ok, format!("it may {what}{only}")).part(part(verb))
}

fn part(verb: Verb) -> Part {
    if verb.is_planned() { Part::Apply } else { Part::Request }
}

fn lacking(verb: Verb, standing: &Standing<'_>, grantee: &Grantee<'_>) -> Finding {
    let lacks: Vec<String> = standing.lacks.iter().map(lack_text).collect();
    let found = format!("it may not {}: {}", verb.words(), lacks.join("; "));
    let granting = grantee.lines(&standing.lacks);
    let (level, text) = match verb {
        Verb::Read => (Level::Fail, whom(grantee).to_owned()),
        _ if verb.is_planned() => (Level::Warn, confined("if it is to, grant it".to_owned(), &granting)),
        _ => (Level::Unneeded, confined("if it is to, grant it".to_owned(), &granting)),
    };
    Finding::new(verb.check(), level, found).part(part(verb)).remedy(text).lines(granting.lines)
}

/// The same, with the other ways that there are.
fn confined(mut text: String, granting: &Granting) -> String {
    if granting.is_wide {
        text.push_str("; to confine it to some guests, put them into a pool and grant it on /pool/<name> instead");
    }
    if granting.is_cut {
        text.push_str("; there are more guests with entries of their own than are written out here: a pool reaches them all");
    }
    text
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
