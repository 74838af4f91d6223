//! Findings about the guests: who can be read, who is locked, what high availability has, what waits for the next start, templates.

use std::collections::{BTreeMap, BTreeSet};

use converger_core::guest::{Kind, Vmid};
use converger_core::observe::{Observation, ObservedGuest, Pending, Reading, Status};

use super::finding::{Finding, Level, Where, counted, listed};
use super::gather::{Answers, DETAILS_MAX, Gathered};
use super::{theirs, untold};
use crate::proxmox::codec::{Cause, Shown};
use crate::proxmox::observe::{self, Note, Reason, Taken, Unread};

/// States in which high availability has its hands on a guest.
const MOVING: [&str; 6] = ["fence", "recovery", "migrate", "relocate", "freeze", "request_start_balance"];

pub(super) fn findings(gathered: &Gathered, answers: &Answers) -> Vec<Finding> {
    let taken = match &answers.reading {
        Ok(taken) => taken,
        Err(unread) => return vec![unreadable(gathered, unread)],
    };
    let observation = &taken.observation;
    let rows: Vec<&ObservedGuest> = observation.guests.iter().filter(|row| answers.guests.has(row.vmid)).collect();
    let mut findings = readable(gathered, answers, taken, &rows);
    findings.extend(late_reports(taken));
    findings.push(locks(&rows));
    findings.extend(ha(answers, &rows));
    findings.extend(pending(gathered, &rows));
    findings.extend(templates(&rows));
    findings
}

fn unreadable(gathered: &Gathered, unread: &Unread) -> Finding {
    match unread {
        Unread::Failed { failure, .. } if failure.cause == Cause::Forbidden => {
            untold("guests", "the guests", failure).remedy("see `may-read`")
        }
        Unread::Failed { failure, .. } => untold("guests", "the guests", failure).remedy(observe::remedy(failure, gathered.token.as_str())),
        Unread::OtherCluster { .. } => Finding::new("guests", Level::Unknown, unread.to_string()),
    }
}

/// Whether all of them can be read; if not, by reason.
fn readable(gathered: &Gathered, answers: &Answers, taken: &Taken, rows: &[&ObservedGuest]) -> Vec<Finding> {
    let mut by_cause: BTreeMap<&str, Vec<Vmid>> = BTreeMap::new();
    for row in rows {
        if let Status::Unknown(cause) = &row.status {
            by_cause.entry(cause.as_deref().unwrap_or("unknown")).or_default().push(row.vmid);
        }
    }
    let mut findings: Vec<Finding> = by_cause.iter().map(|(cause, ids)| unknown(cause, ids)).collect();
    findings.extend(missing(gathered, answers, &taken.observation, rows));
    if findings.is_empty() {
        let of = if gathered.scope.is_some() { "in scope" } else { "that the token sees" };
        findings.push(Finding::new("guests", Level::Ok, format!("{} {of}, all readable", counted(rows.len(), "guest"))));
    }
    findings
}

/// Nodes that do not report their guests to the cluster: every list in the web interface is out of date for them.
fn late_reports(taken: &Taken) -> impl Iterator<Item = Finding> {
    taken.notes.iter().filter(|note| note.reason == Reason::ReportLate).map(|note| {
        let finding = Finding::new("reports", Level::Warn, note.text.clone());
        finding.remedy(note.reason.remedy()).line(Where::Node, "systemctl status pvestatd")
    })
}

fn unknown(cause: &str, ids: &[Vmid]) -> Finding {
    let found = format!("{} cannot be read ({}): {}", counted(ids.len(), "guest"), theirs(cause), listed(ids));
    let finding = Finding::new("guests", Level::Warn, found);
    match Reason::ALL.into_iter().find(|reason| reason.word() == cause) {
        // Who may be read is said, with lines, where the privileges are.
        Some(Reason::NotPermitted | Reason::Hidden) => finding.remedy("see `may-read`"),
        Some(reason) => finding.remedy(reason.remedy()),
        None => finding,
    }
}

/// Guests that are in scope and were not seen: absent, where that was proven.
fn missing(gathered: &Gathered, answers: &Answers, observation: &Observation, rows: &[&ObservedGuest]) -> Option<Finding> {
    let seen: BTreeSet<Vmid> = rows.iter().map(|row| row.vmid).collect();
    let unseen: Vec<Vmid> = answers.guests.ids().iter().copied().filter(|vmid| !seen.contains(vmid)).collect();
    if unseen.is_empty() || gathered.scope.is_none() {
        return None;
    }
    let guests = format!("{} in scope {}", counted(unseen.len(), "guest"), if unseen.len() == 1 { "is" } else { "are" });
    Some(if observation.complete {
        Finding::new("guests", Level::Warn, format!("{guests} not there: {}", listed(&unseen)))
            .remedy("take them out of desired.yaml, or check the environment and their ids")
    } else {
        let is_about_them = |note: &&Note| match note.vmid {
            Some(vmid) => unseen.contains(&vmid),
            None => matches!(note.reason, Reason::ListEmpty | Reason::ListShrunken),
        };
        let why = answers.reading.iter().flat_map(|taken| &taken.notes).find(is_about_them);
        let why = why.map_or_else(String::new, |note| format!(" ({})", Shown(&note.text)));
        Finding::new("guests", Level::Warn, format!("{guests} not seen, and not proven to be absent: {}{why}", listed(&unseen)))
            .remedy("see `may-read`; if that is in order, take a new reading")
    })
}

fn read<T>(reading: &Reading<T>) -> Option<&T> {
    reading.as_ref().read()
}

fn locks(rows: &[&ObservedGuest]) -> Finding {
    let mut by_lock: BTreeMap<&str, Vec<&ObservedGuest>> = BTreeMap::new();
    for row in rows {
        if let Some(lock) = read(&row.lock).and_then(|lock| lock.as_deref()) {
            by_lock.entry(lock).or_default().push(row);
        }
    }
    if by_lock.is_empty() {
        return Finding::new("locks", Level::Ok, "no guest is locked");
    }
    let list = by_lock.iter().map(|(lock, rows)| format!("{} ({})", listed(rows.iter().map(|row| row.vmid)), theirs(lock)));
    let found = format!("locked, and left alone until they are not: {}", list.collect::<Vec<_>>().join("; "));
    let first = by_lock.values().flatten().next();
    let finding = Finding::new("locks", Level::Warn, found)
        .remedy("wait for the task that holds the lock; if there is none, it was left behind, and is taken away by hand")
        .line(Where::Node, "pvesh get /cluster/tasks");
    match first {
        Some(row) => finding.line(Where::Node, format!("{} unlock {}", tool(row.kind), row.vmid)),
        None => finding,
    }
}

fn tool(kind: Kind) -> &'static str {
    match kind {
        Kind::Qemu => "qm",
        Kind::Lxc => "pct",
    }
}

fn ha(answers: &Answers, rows: &[&ObservedGuest]) -> Vec<Finding> {
    let managed: Vec<(&ObservedGuest, &str)> = rows
        .iter()
        .filter_map(|row| Some((*row, read(&row.ha)?.as_ref()?.state.as_deref().unwrap_or("not said"))))
        .filter(|(_, state)| *state != "ignored")
        .collect();
    let mut findings = Vec::new();
    if managed.is_empty() {
        findings.push(Finding::new("ha", Level::Ok, format!("none of {} is managed by high availability", counted(rows.len(), "guest"))));
    } else {
        findings.push(managed_guests(rows.len(), &managed));
        findings.extend(broken(&managed));
    }
    match &answers.ha {
        Ok(status) => findings.extend(fencing(status.fencing.as_deref(), !managed.is_empty())),
        Err(failure) if !managed.is_empty() => {
            findings.push(untold("ha-fencing", "the state of fencing", failure).remedy("see `may-read`"))
        }
        Err(_) => {}
    }
    findings
}

fn managed_guests(all: usize, managed: &[(&ObservedGuest, &str)]) -> Finding {
    let mut states: BTreeMap<&str, Vec<Vmid>> = BTreeMap::new();
    for (row, state) in managed {
        states.entry(state).or_default().push(row.vmid);
    }
    let list: Vec<String> = states.iter().map(|(state, ids)| format!("{} {}", theirs(state), listed(ids))).collect();
    let found = format!("{} of {} managed by high availability: {}", managed.len(), counted(all, "guest"), list.join("; "));
    let is_moving = managed.iter().any(|(_, state)| MOVING.contains(state));
    let finding = Finding::new("ha", if is_moving { Level::Warn } else { Level::Ok }, found);
    if is_moving { finding.remedy("high availability is at work on some of them; they are left alone until it is done") } else { finding }
}

/// Guests that high availability has given up on.
fn broken(managed: &[(&ObservedGuest, &str)]) -> Option<Finding> {
    let broken: Vec<&ObservedGuest> = managed.iter().filter(|(_, state)| *state == "error").map(|(row, _)| *row).collect();
    let first = broken.first()?;
    let sid = match first.kind {
        Kind::Qemu => format!("vm:{}", first.vmid),
        Kind::Lxc => format!("ct:{}", first.vmid),
    };
    let found = format!("high availability has given up on {}", listed(broken.iter().map(|row| row.vmid)));
    Some(
        Finding::new("ha-error", Level::Warn, found)
            .remedy("disable it, mend it, and let it be started again")
            .line(Where::Node, format!("ha-manager set {sid} --state disabled"))
            .line(Where::Node, format!("ha-manager set {sid} --state started")),
    )
}

/// Whether a node that is lost would be fenced. Before version 9 nothing is said about it.
fn fencing(status: Option<&str>, is_needed: bool) -> Option<Finding> {
    let status = status.filter(|_| is_needed)?;
    let is_off = status.starts_with("disarm");
    let finding = Finding::new("ha-fencing", if is_off { Level::Warn } else { Level::Ok }, format!("fencing is {}", theirs(status)));
    Some(if is_off { finding.remedy("while it is so, guests of a lost node are not started elsewhere") } else { finding })
}

/// What waits in configs for the next start. Whose it is stands in desired.yaml, which is not looked at here.
fn pending(gathered: &Gathered, rows: &[&ObservedGuest]) -> Option<Finding> {
    gathered.scope.as_ref()?;
    if rows.len() > DETAILS_MAX {
        let found = format!("what waits for the next start was not read of more than {DETAILS_MAX} guests");
        return Some(Finding::new("pending", Level::Unknown, found));
    }
    let waiting = rows.iter().filter_map(|row| {
        let keys: Vec<String> = read(&row.pending)?.iter().map(Pending::key).map(theirs).collect();
        (!keys.is_empty()).then(|| format!("{} ({})", row.vmid, listed(keys)))
    });
    let waiting: Vec<String> = waiting.collect();
    if waiting.is_empty() {
        return Some(Finding::new("pending", Level::Ok, "no change waits for a start"));
    }
    let text = "a restart would bring them into effect. Those that are not declared in desired.yaml keep such guests from being started or \
                stopped: let their owner bring them in or take them back";
    Some(Finding::new("pending", Level::Warn, format!("changes wait for the next start: {}", listed(waiting))).remedy(text))
}

fn templates(rows: &[&ObservedGuest]) -> Option<Finding> {
    let templates: Vec<Vmid> = rows.iter().filter(|row| read(&row.template) == Some(&true)).map(|row| row.vmid).collect();
    if templates.is_empty() {
        return None;
    }
    Some(Finding::new(
        "templates",
        Level::Ok,
        format!("{} never started or changed: {}", counted(templates.len(), "template"), listed(&templates)),
    ))
}
