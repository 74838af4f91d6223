//! Findings about the guests: readability, locks, high availability, pending changes, templates.

use std::collections::{BTreeMap, BTreeSet};

use converger_core::guest::{GuestKind, Vmid};
use converger_core::observe::{Observation, ObservedGuest, ObservedStatus, PendingChange, Reading};

use super::finding::{DoctorFinding, FindingLevel, RemedyTarget, count_noun, join_some};
use super::gather::{DETAILS_MAX, DoctorAnswers, EnvironmentAnswers};
use super::{quote_foreign, unreadable_finding};
use crate::proxmox::codec::{EscapedText, FailureCause};
use crate::proxmox::observe::{self, ProxmoxReading, ReadingError, ReadingNote, UnknownReason};

/// States in which high availability is working on a guest.
const MOVING_HA_STATES: [&str; 6] = ["fence", "recovery", "migrate", "relocate", "freeze", "request_start_balance"];

pub(super) fn guest_findings(doctor_answers: &DoctorAnswers, answers: &EnvironmentAnswers) -> Vec<DoctorFinding> {
    let reading = match &answers.reading {
        Ok(reading) => reading,
        Err(unread) => return vec![unreadable_guests_finding(doctor_answers, unread)],
    };
    let observation = &reading.observation;
    let rows: Vec<&ObservedGuest> = observation.guests.iter().filter(|row| answers.guests.contains(row.vmid)).collect();
    let mut findings = readability_findings(doctor_answers, answers, reading, &rows);
    findings.extend(late_reports(reading));
    // Guests that were not read may be locked or managed all the same: nothing is said about them.
    let read: Vec<&ObservedGuest> = rows.into_iter().filter(|row| !matches!(row.status, ObservedStatus::Unknown(_))).collect();
    if !read.is_empty() {
        let are_all_read = findings.iter().all(|finding| finding.check != "guests" || finding.level == FindingLevel::Ok);
        findings.push(lock_finding(&read, are_all_read));
        findings.extend(ha_findings(answers, &read, are_all_read));
        findings.extend(pending_finding(doctor_answers, &read));
        findings.extend(template_finding(&read));
    }
    findings
}

fn unreadable_guests_finding(doctor_answers: &DoctorAnswers, unread: &ReadingError) -> DoctorFinding {
    match unread {
        ReadingError::Failed { failure, .. } if failure.cause == FailureCause::Forbidden => {
            unreadable_finding("guests", "the guests", failure).with_remedy("see `may-read`")
        }
        ReadingError::Failed { failure, .. } => {
            unreadable_finding("guests", "the guests", failure).with_remedy(observe::failure_remedy(failure, doctor_answers.token.as_str()))
        }
        ReadingError::OtherCluster { .. } => DoctorFinding::new("guests", FindingLevel::Unknown, unread.to_string()),
    }
}

/// Whether all of them can be read; if not, one finding per reason.
fn readability_findings(
    doctor_answers: &DoctorAnswers,
    answers: &EnvironmentAnswers,
    reading: &ProxmoxReading,
    rows: &[&ObservedGuest],
) -> Vec<DoctorFinding> {
    let mut by_cause: BTreeMap<&str, Vec<Vmid>> = BTreeMap::new();
    for row in rows {
        if let ObservedStatus::Unknown(cause) = &row.status {
            by_cause.entry(cause.as_deref().unwrap_or("unknown")).or_default().push(row.vmid);
        }
    }
    // With a declared state all of its guests count; without one those that the token sees, which are all that can be counted.
    let (all, of) = match &doctor_answers.scope {
        Some(_) => (answers.guests.ids().len(), "in scope"),
        None => (rows.len(), "visible to the token"),
    };
    let all = format!("{} {of}", count_noun(all, "guest"));
    let mut findings: Vec<DoctorFinding> = by_cause.iter().map(|(cause, ids)| unknown_finding(cause, ids, &all)).collect();
    findings.extend(missing_finding(doctor_answers, answers, &reading.observation, rows, &all));
    if rows.is_empty() && doctor_answers.scope.is_none() {
        let finding = DoctorFinding::new("guests", FindingLevel::Warn, "the token sees no guest");
        findings.push(finding.with_remedy("if the environment has guests, let the token read them: see `may-read`"));
    }
    if findings.is_empty() {
        findings.push(DoctorFinding::new("guests", FindingLevel::Ok, format!("{all}, all readable")));
    }
    findings
}

/// Nodes that do not report their guests to the cluster: all lists in the web interface are outdated for them.
fn late_reports(reading: &ProxmoxReading) -> impl Iterator<Item = DoctorFinding> {
    reading.notes.iter().filter(|note| note.reason == UnknownReason::ReportLate).map(|note| {
        let finding = DoctorFinding::new("reports", FindingLevel::Warn, note.text.clone());
        finding.with_remedy(note.reason.remedy()).with_line(RemedyTarget::Node, "systemctl status pvestatd")
    })
}

fn unknown_finding(cause: &str, ids: &[Vmid], all: &str) -> DoctorFinding {
    let found = format!("{} of {all} cannot be read ({}): {}", ids.len(), quote_foreign(cause), join_some(ids));
    let finding = DoctorFinding::new("guests", FindingLevel::Warn, found);
    match UnknownReason::ALL.into_iter().find(|reason| reason.word() == cause) {
        // The findings about privileges contain the commands for this.
        Some(UnknownReason::NotPermitted | UnknownReason::Hidden) => finding.with_remedy("see `may-read`"),
        Some(reason) => finding.with_remedy(reason.remedy()),
        None => finding,
    }
}

/// Guests in scope that were not observed. They are absent only if that was proven.
fn missing_finding(
    doctor_answers: &DoctorAnswers,
    answers: &EnvironmentAnswers,
    observation: &Observation,
    rows: &[&ObservedGuest],
    all: &str,
) -> Option<DoctorFinding> {
    let seen: BTreeSet<Vmid> = rows.iter().map(|row| row.vmid).collect();
    let unseen: Vec<Vmid> = answers.guests.ids().iter().copied().filter(|vmid| !seen.contains(vmid)).collect();
    if unseen.is_empty() || doctor_answers.scope.is_none() {
        return None;
    }
    let (count, ids) = (unseen.len(), join_some(&unseen));
    Some(if observation.complete {
        DoctorFinding::new(
            "guests",
            FindingLevel::Warn,
            format!("{count} of {all} {} not exist: {ids}", if count == 1 { "does" } else { "do" }),
        )
        .with_remedy("remove them from desired.yaml, or check the environment and their ids")
    } else {
        let is_about_them = |note: &&ReadingNote| match note.vmid {
            Some(vmid) => unseen.contains(&vmid),
            None => matches!(note.reason, UnknownReason::ListEmpty | UnknownReason::ListShrunken),
        };
        let why = answers.reading.iter().flat_map(|reading| &reading.notes).find(is_about_them);
        let why = why.map_or_else(String::new, |note| format!(" ({})", EscapedText(&note.text)));
        DoctorFinding::new("guests", FindingLevel::Warn, format!("{count} of {all} cannot be read, and may exist: {ids}{why}"))
            .with_remedy("see `may-read`; if that is in order, observe again")
    })
}

fn value_if_read<T>(reading: &Reading<T>) -> Option<&T> {
    reading.as_ref().into_option()
}

/// The guests that were read, in words.
fn describe_read(count: usize, are_all_read: bool) -> String {
    match (are_all_read, count) {
        (true, _) => count_noun(count, "guest"),
        (false, 1) => "1 readable guest".to_owned(),
        (false, _) => format!("{count} readable guests"),
    }
}

fn lock_finding(rows: &[&ObservedGuest], are_all_read: bool) -> DoctorFinding {
    let mut by_lock: BTreeMap<&str, Vec<&ObservedGuest>> = BTreeMap::new();
    for row in rows {
        if let Some(lock) = value_if_read(&row.lock).and_then(|lock| lock.as_deref()) {
            by_lock.entry(lock).or_default().push(row);
        }
    }
    if by_lock.is_empty() {
        return DoctorFinding::new("locks", FindingLevel::Ok, format!("none of {} is locked", describe_read(rows.len(), are_all_read)));
    }
    let list = by_lock.iter().map(|(lock, rows)| format!("{} ({})", join_some(rows.iter().map(|row| row.vmid)), quote_foreign(lock)));
    let found = format!("locked, and not changed until they are unlocked: {}", list.collect::<Vec<_>>().join("; "));
    let first = by_lock.values().flatten().next();
    let finding = DoctorFinding::new("locks", FindingLevel::Warn, found)
        .with_remedy("wait for the task that holds the lock; if there is none, the lock is stale and must be removed by hand")
        .with_line(RemedyTarget::Node, "pvesh get /cluster/tasks");
    match first {
        Some(row) => finding.with_line(RemedyTarget::Node, format!("{} unlock {}", cli_tool(row.kind), row.vmid)),
        None => finding,
    }
}

fn cli_tool(kind: GuestKind) -> &'static str {
    match kind {
        GuestKind::Qemu => "qm",
        GuestKind::Lxc => "pct",
    }
}

fn ha_findings(answers: &EnvironmentAnswers, rows: &[&ObservedGuest], are_all_read: bool) -> Vec<DoctorFinding> {
    let all = describe_read(rows.len(), are_all_read);
    let managed: Vec<(&ObservedGuest, &str)> = rows
        .iter()
        .filter_map(|row| Some((*row, value_if_read(&row.ha)?.as_ref()?.state.as_deref().unwrap_or("not said"))))
        .filter(|(_, state)| *state != "ignored")
        .collect();
    let mut findings = Vec::new();
    if managed.is_empty() {
        findings.push(DoctorFinding::new("ha", FindingLevel::Ok, format!("none of {all} is managed by high availability")));
    } else {
        findings.push(managed_finding(&all, &managed));
        findings.extend(ha_error_finding(&managed));
    }
    match &answers.ha {
        Ok(status) => findings.extend(fencing_finding(status.fencing.as_deref(), !managed.is_empty())),
        Err(failure) if !managed.is_empty() => {
            findings.push(unreadable_finding("ha-fencing", "the state of fencing", failure).with_remedy("see `may-read`"))
        }
        Err(_) => {}
    }
    findings
}

fn managed_finding(all: &str, managed: &[(&ObservedGuest, &str)]) -> DoctorFinding {
    let mut states: BTreeMap<&str, Vec<Vmid>> = BTreeMap::new();
    for (row, state) in managed {
        states.entry(state).or_default().push(row.vmid);
    }
    let list: Vec<String> = states.iter().map(|(state, ids)| format!("{} {}", quote_foreign(state), join_some(ids))).collect();
    let found = format!("{} of {} managed by high availability: {}", managed.len(), all, list.join("; "));
    let is_moving = managed.iter().any(|(_, state)| MOVING_HA_STATES.contains(state));
    let finding = DoctorFinding::new("ha", if is_moving { FindingLevel::Warn } else { FindingLevel::Ok }, found);
    if is_moving {
        finding.with_remedy("high availability is working on some of them; they are not changed until it is done")
    } else {
        finding
    }
}

/// Guests that high availability has given up on.
fn ha_error_finding(managed: &[(&ObservedGuest, &str)]) -> Option<DoctorFinding> {
    let broken: Vec<&ObservedGuest> = managed.iter().filter(|(_, state)| *state == "error").map(|(row, _)| *row).collect();
    let first = broken.first()?;
    let sid = match first.kind {
        GuestKind::Qemu => format!("vm:{}", first.vmid),
        GuestKind::Lxc => format!("ct:{}", first.vmid),
    };
    let found = format!("high availability has given up on {}", join_some(broken.iter().map(|row| row.vmid)));
    Some(
        DoctorFinding::new("ha-error", FindingLevel::Warn, found)
            .with_remedy("disable it in high availability, fix the cause, and start it again")
            .with_line(RemedyTarget::Node, format!("ha-manager set {sid} --state disabled"))
            .with_line(RemedyTarget::Node, format!("ha-manager set {sid} --state started")),
    )
}

/// Whether a lost node would be fenced. Releases before 9 do not report it.
fn fencing_finding(status: Option<&str>, is_needed: bool) -> Option<DoctorFinding> {
    let status = status.filter(|_| is_needed)?;
    let is_off = status.starts_with("disarm");
    let finding = DoctorFinding::new(
        "ha-fencing",
        if is_off { FindingLevel::Warn } else { FindingLevel::Ok },
        format!("fencing is {}", quote_foreign(status)),
    );
    Some(if is_off { finding.with_remedy("in this state, guests of a lost node are not started elsewhere") } else { finding })
}

/// Pending changes in configs. Whether they are declared is not checked here.
fn pending_finding(doctor_answers: &DoctorAnswers, rows: &[&ObservedGuest]) -> Option<DoctorFinding> {
    doctor_answers.scope.as_ref()?;
    if rows.len() > DETAILS_MAX {
        let found = format!("pending changes were not read because there are more than {DETAILS_MAX} guests");
        return Some(DoctorFinding::new("pending", FindingLevel::Unknown, found));
    }
    let waiting = rows.iter().filter_map(|row| {
        let keys: Vec<String> = value_if_read(&row.pending)?.iter().map(PendingChange::key).map(quote_foreign).collect();
        (!keys.is_empty()).then(|| format!("{} ({})", row.vmid, join_some(keys)))
    });
    let waiting: Vec<String> = waiting.collect();
    if waiting.is_empty() {
        return Some(DoctorFinding::new("pending", FindingLevel::Ok, "no changes are pending"));
    }
    let text = "a restart would apply them. Those that are not declared in desired.yaml prevent their guests from being started or \
                stopped: apply or revert them in Proxmox";
    Some(
        DoctorFinding::new("pending", FindingLevel::Warn, format!("changes are pending until the next start: {}", join_some(waiting)))
            .with_remedy(text),
    )
}

fn template_finding(rows: &[&ObservedGuest]) -> Option<DoctorFinding> {
    let templates: Vec<Vmid> = rows.iter().filter(|row| value_if_read(&row.template) == Some(&true)).map(|row| row.vmid).collect();
    if templates.is_empty() {
        return None;
    }
    Some(DoctorFinding::new(
        "templates",
        FindingLevel::Ok,
        format!("{} never started or changed: {}", count_noun(templates.len(), "template"), join_some(&templates)),
    ))
}
