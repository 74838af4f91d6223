//! Compares every claim of an observation with the truth: it must have been true at some moment of the observation. Run-states and names in
//! the cluster's list are old by nature; they must have been true at some moment that the list may remember.
//!
//! Uses only the observation and the truth, and not how the observation was taken.

use std::collections::BTreeMap;

use converger_core::guest::{GuestIdentity, GuestKind, RunState, Vmid};
use converger_core::normalize::{Field, FieldValue, WordSet, rule_of};
use converger_core::observe::{EffectiveValues, HaState, Observation, ObservedGuest, ObservedStatus, PendingChange, Reading};
use converger_lab::GuestTruth;

use crate::config_forms::{ConfigMeaning, meaning};
use crate::truth_history::{TruthHistory, WorldMoment};

/// A kind of claim: its subject and its value.
pub(crate) type ClaimKind = (&'static str, &'static str);

/// How often each claim, or cause of not knowing, occurred.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ClaimTally(pub(crate) BTreeMap<ClaimKind, u64>);

impl ClaimTally {
    pub(crate) fn count(&mut self, what: ClaimKind) {
        *self.0.entry(what).or_default() += 1;
    }

    pub(crate) fn add(&mut self, other: &Self) {
        for (what, count) in &other.0 {
            *self.0.entry(*what).or_default() += count;
        }
    }
}

/// One claim, and whether it was true.
struct Claim {
    what: ClaimKind,
    is_true: bool,
}

fn new_claim(about: &'static str, which: &'static str, held: bool) -> Claim {
    Claim { what: (about, which), is_true: held }
}

/// Compares an observation of these guests with the truth; returns every false claim as text.
pub(crate) fn check_claims(observation: &Observation, scope: &[Vmid], witness: &TruthHistory, tally: &mut ClaimTally) -> Vec<String> {
    let mut wrong = count_claims("the cluster", cluster_claims(observation, witness), tally);
    for vmid in scope.iter().filter(|vmid| observation.complete && observation.find(**vmid).is_none()) {
        let lacks_guest = |moment: &WorldMoment| !moment.has_guest(vmid.get());
        let claims = vec![new_claim("guest", "missing", witness.reading_moments().iter().any(lacks_guest))];
        wrong.extend(count_claims(&format!("guest {vmid}"), claims, tally));
    }
    for row in &observation.guests {
        let claims = guest_claims(observation, row, witness);
        let found = count_claims("a row", claims, tally);
        wrong.extend(found.into_iter().map(|text| format!("{text}: {row:#?}")));
    }
    wrong
}

fn count_claims(subject: &str, claims: Vec<Claim>, tally: &mut ClaimTally) -> Vec<String> {
    claims.iter().for_each(|claim| tally.count(claim.what));
    let wrong = claims.iter().filter(|claim| !claim.is_true);
    wrong.map(|claim| format!("{subject}: {} {} was never so", claim.what.0, claim.what.1)).collect()
}

fn cluster_claims(observation: &Observation, witness: &TruthHistory) -> Vec<Claim> {
    let reading = witness.reading_moments();
    let is_quorate = !observation.quorate || reading.iter().any(|moment| moment.quorate);
    let mut claims = vec![
        new_claim("quorate", yes_or_no(observation.quorate), is_quorate),
        new_claim("complete", yes_or_no(observation.complete), true),
    ];
    for node in &observation.nodes {
        let was_online = || reading.iter().any(|moment| moment.online.contains(node.name.as_str()));
        claims.push(new_claim("node online", yes_or_no(node.online), !node.online || was_online()));
    }
    claims
}

fn guest_claims(observation: &Observation, row: &ObservedGuest, witness: &TruthHistory) -> Vec<Claim> {
    let node = observation.node_of(row).map_or("", |node| node.name.as_str());
    let placed = |truth: &GuestTruth| truth.node == node && guest_kind(truth) == row.kind;
    let mut claims = vec![new_claim("placed", row.kind.word(), witness.was_ever(row.vmid.get(), placed))];
    claims.extend(run_state_claims(observation, row, witness));
    claims.extend(ha_claim(row, witness));
    claims.extend(match &row.digest {
        Some(digest) => config_claims(row, digest, witness).into_iter().chain(same_guest_claim(row, digest, witness)).collect(),
        None => list_claims(row, witness),
    });
    claims
}

fn yes_or_no(is: bool) -> &'static str {
    if is { "yes" } else { "no" }
}

fn guest_kind(truth: &GuestTruth) -> GuestKind {
    match truth.kind {
        converger_lab::LabGuestKind::Qemu => GuestKind::Qemu,
        converger_lab::LabGuestKind::Lxc => GuestKind::Lxc,
    }
}

/// The source of a run-state.
fn source(row: &ObservedGuest) -> &'static str {
    ["live", "node-list"].into_iter().find(|source| row.source.as_deref() == Some(source)).unwrap_or("cache")
}

/// A live run-state must have been true during the observation, one from the cluster's list within its memory. According to the list of its
/// node, a guest had a process during the observation, or had none; the state of the process, such as paused, may be as old as a recent
/// report.
fn run_state_claims(observation: &Observation, row: &ObservedGuest, witness: &TruthHistory) -> Vec<Claim> {
    let (source, vmid) = (source(row), row.vmid.get());
    let was_during = |so: &dyn Fn(&str) -> bool| witness.was_ever(vmid, |truth| so(truth.process.as_deref().unwrap_or("stopped")));
    let was = |so: &dyn Fn(&str) -> bool| match source {
        "live" => was_during(so),
        "node-list" if so("stopped") => was_during(so),
        "node-list" => {
            was_during(&|process_state| process_state != "stopped") && witness.was_recently(vmid, |summary| so(&summary.process_state))
        }
        _ => witness.was_ever_listed(vmid, |summary| so(&summary.process_state)),
    };
    let mut claims = Vec::new();
    if let Some(raw) = row.run_state.as_deref().filter(|raw| *raw != "unknown") {
        claims.push(new_claim("raw word", source, was(&|process_state| process_state == raw)));
    }
    if let ObservedStatus::Known(state) = row.status {
        let is = |process_state: &str| match state {
            RunState::Running => process_state == "running",
            RunState::Stopped => process_state == "stopped",
        };
        claims.push(new_claim(state.word(), source, was(&is)));
        let is_online = observation.node_of(row).is_some_and(|node| node.online);
        claims.push(new_claim("known", "on a node that is online", is_online));
    }
    claims
}

/// According to its own node, an ignored guest is not managed; the list says `ignored`.
fn ha_claim(row: &ObservedGuest, witness: &TruthHistory) -> Option<Claim> {
    let Reading::Read(claimed) = &row.ha else { return None };
    let is_live = row.source.as_deref() == Some("live");
    let fits = |truth: &GuestTruth| match (&truth.ha, claimed) {
        (None, claimed) => claimed.is_none(),
        (Some(own), None) => is_live && own.wanted == "ignored",
        (Some(own), Some(HaState { state })) => match own.believed.as_deref() {
            Some(believed) => state.as_deref() == Some(believed),
            None if is_live => state.is_none(),
            None => state.as_deref() == Some(own.wanted.as_str()),
        },
    };
    let what = match claimed {
        None => "none",
        Some(HaState { state: None }) => "without a word",
        Some(HaState { state: Some(_) }) => "managed",
    };
    Some(new_claim("ha", what, witness.was_ever(row.vmid.get(), fits)))
}

/// Claims from the list alone: lock and tags are from the config, name and template from the last report of the node.
fn list_claims(row: &ObservedGuest, witness: &TruthHistory) -> Vec<Claim> {
    let vmid = row.vmid.get();
    let mut claims = Vec::new();
    let is_of_node = source(row) == "node-list";
    if let Some(name) = &row.name {
        let held = match is_of_node {
            true => witness.was_ever(vmid, |truth| *shown_name(truth) == **name),
            false => witness.was_ever_listed(vmid, |summary| *summary.name == **name),
        };
        claims.push(new_claim("name", if is_of_node { "listed by its node" } else { "listed" }, held));
    }
    if let Reading::Read(template) = row.template {
        let held = match is_of_node {
            true => witness.was_ever(vmid, |truth| is_on(truth, "template") == template),
            false => witness.was_ever_listed(vmid, |summary| summary.template == template),
        };
        claims.push(new_claim("template listed", yes_or_no(template), held));
    }
    if let Reading::Read(lock) = &row.lock {
        let held = witness.was_ever(vmid, |truth| truth.config.get("lock").map(String::as_str) == lock.as_deref());
        claims.push(new_claim("lock listed", yes_or_no(lock.is_some()), held));
    }
    if let Reading::Read(tags) = &row.tags {
        claims.push(new_claim("tags listed", yes_or_no(!tags.is_empty()), witness.was_ever(vmid, |truth| tags_of(truth) == *tags)));
    }
    let unread = !row.config.is_read() && !row.pending.is_read() && !row.identity.is_read() && !row.protection.is_read();
    claims.push(new_claim("config", "not read and not claimed", unread));
    claims
}

/// One response contained all of this, so all of it must have been true at one moment: that of the digest.
fn config_claims(row: &ObservedGuest, digest: &str, witness: &TruthHistory) -> Vec<Claim> {
    let Some(truth) = witness.visible_states(row.vmid.get()).find(|truth| truth.digest == digest) else {
        return vec![new_claim("config", "digest", false)];
    };
    let lock: Option<Box<str>> = truth.config.get("lock").map(|lock| lock.as_str().into());
    let tags = tags_of(truth);
    let mut claims = vec![
        new_claim("config", "digest", true),
        new_claim("name", if truth.name.is_some() { "read" } else { "made of its id" }, row.name.as_deref() == Some(&*shown_name(truth))),
        new_claim("lock", yes_or_no(lock.is_some()), row.lock == Reading::Read(lock)),
        flag_claim("template", row.template, is_on(truth, "template")),
        flag_claim("protection", row.protection, is_on(truth, "protection")),
        new_claim("tags", yes_or_no(!tags.is_empty()), row.tags == Reading::Read(tags)),
        new_claim("identity", row.kind.word(), row.identity == Reading::Read(Box::new(true_identity(truth)))),
    ];
    claims.extend(value_claims(row, truth));
    claims.extend(pending_claims(row, truth));
    claims
}

/// The live run-state and the config belong to one guest: both were true at one moment, or of one guest with these birth marks. A root disk
/// alone does not identify a container, because the next guest with its id has a root disk of the same name.
///
/// A run-state of the list is exempt: the list knows guests by their ids only, and says so (`cache`).
fn same_guest_claim(row: &ObservedGuest, digest: &str, witness: &TruthHistory) -> Option<Claim> {
    let raw = row.run_state.as_deref().filter(|_| row.source.as_deref() == Some("live"))?;
    let is_marked = |identity: &GuestIdentity| match identity {
        GuestIdentity::Qemu { uuid, ctime } => uuid.is_some() || ctime.is_some(),
        GuestIdentity::Lxc { mac, .. } => mac.is_some(),
    };
    let has_marks = |truth: &GuestTruth| matches!(&row.identity, Reading::Read(own) if is_marked(own) && **own == true_identity(truth));
    let was = |truth: &GuestTruth| truth.process.as_deref().unwrap_or("stopped") == raw && (truth.digest == digest || has_marks(truth));
    Some(new_claim("run-state and config", "of one guest", witness.was_ever(row.vmid.get(), was)))
}

fn flag_claim(what: &'static str, claimed: Reading<bool>, is: bool) -> Claim {
    new_claim(what, yes_or_no(is), claimed == Reading::Read(is))
}

fn is_on(truth: &GuestTruth, key: &str) -> bool {
    truth.config.get(key).is_some_and(|text| text == "1")
}

fn shown_name(truth: &GuestTruth) -> String {
    truth.name.clone().unwrap_or_else(|| match truth.kind {
        converger_lab::LabGuestKind::Qemu => format!("VM {}", truth.vmid),
        converger_lab::LabGuestKind::Lxc => format!("CT{}", truth.vmid),
    })
}

fn tags_of(truth: &GuestTruth) -> WordSet {
    match truth.config.get("tags").map(|text| meaning(guest_kind(truth), Field::Tags, text)) {
        Some(ConfigMeaning::Value(FieldValue::Tags(tags))) => tags,
        _ => WordSet::default(),
    }
}

/// The value of a key in a property string.
fn property_value<'t>(truth: &'t GuestTruth, key: &str, name: &str) -> Option<&'t str> {
    truth.config.get(key)?.split(',').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))
}

fn true_identity(truth: &GuestTruth) -> GuestIdentity {
    match truth.kind {
        converger_lab::LabGuestKind::Qemu => GuestIdentity::Qemu {
            uuid: property_value(truth, "smbios1", "uuid").map(|uuid| uuid.to_lowercase().into()),
            ctime: property_value(truth, "meta", "ctime").and_then(|ctime| ctime.parse().ok()),
        },
        converger_lab::LabGuestKind::Lxc => {
            let network_key = (0..32).map(|number| format!("net{number}")).find(|key| truth.config.contains_key(key));
            GuestIdentity::Lxc {
                rootfs: truth.config.get("rootfs").and_then(|text| text.split(',').next()).map(Into::into),
                mac: network_key.and_then(|key| property_value(truth, &key, "hwaddr")).map(|mac| mac.to_uppercase().into()),
            }
        }
    }
}

/// The fields of a kind, with the meaning of their texts in a config.
fn meanings<'t>(truth: &'t GuestTruth, texts: &'t BTreeMap<String, String>) -> impl Iterator<Item = (Field, ConfigMeaning)> + 't {
    let kind = guest_kind(truth);
    let fields = Field::ALL.into_iter().filter(move |field| rule_of(kind, *field).is_some());
    fields.filter_map(move |field| texts.get(field.word()).map(|text| (field, meaning(kind, field, text))))
}

/// The config is complete and right. Of a text that is not understood, only the text itself is claimed.
fn value_claims(row: &ObservedGuest, truth: &GuestTruth) -> Vec<Claim> {
    let known: Vec<(Field, ConfigMeaning)> = meanings(truth, &truth.config).filter(|(field, _)| *field != Field::Tags).collect();
    let odd = known.iter().filter(|(_, meaning)| *meaning == ConfigMeaning::Odd);
    let odd = odd.filter_map(|(field, _)| Some((*field, truth.config.get(field.word())?.as_str().into()))).collect();
    let Reading::Read(config) = &row.config else {
        return vec![new_claim("config", "unread", false)];
    };
    let expected = EffectiveValues::new(known.into_iter().filter_map(|(field, meaning)| Some((field, known_value(meaning)?))).collect());
    let expected = expected.with_not_understood(odd);
    let of_field = |(field, value): &(Field, FieldValue)| new_claim("config", field.word(), expected.get(*field) == Some(value));
    let mut claims: Vec<Claim> = config.values().iter().map(of_field).collect();
    let is_same = expected.all_not_understood() == config.all_not_understood();
    claims.push(new_claim("config", if config.all_not_understood().is_empty() { "understood" } else { "not understood" }, is_same));
    claims.push(new_claim("config", "whole", expected == *config));
    claims
}

fn known_value(meaning: ConfigMeaning) -> Option<FieldValue> {
    match meaning {
        ConfigMeaning::Value(value) => Some(value),
        ConfigMeaning::Nothing | ConfigMeaning::Odd => None,
    }
}

fn pending_claims(row: &ObservedGuest, truth: &GuestTruth) -> Vec<Claim> {
    let Reading::Read(claimed) = &row.pending else { return vec![new_claim("pending", "unread", false)] };
    let expected = expected_pending(row.kind, truth);
    let what = |entry: &PendingChange| match entry {
        PendingChange::Known(_, Some(_)) => "value",
        PendingChange::Known(_, None) => "removal",
        PendingChange::Other(_) => "other",
    };
    let of_entry = |entry: &PendingChange| new_claim("pending", what(entry), expected.get(entry.key()) == Some(entry));
    let mut claims: Vec<Claim> = claimed.iter().map(of_entry).collect();
    claims.push(new_claim("pending", if claimed.is_empty() { "none" } else { "all of it" }, claimed.len() == expected.len()));
    claims
}

fn expected_pending(kind: GuestKind, truth: &GuestTruth) -> BTreeMap<String, PendingChange> {
    let mut expected: BTreeMap<String, PendingChange> = BTreeMap::new();
    for key in truth.pending.keys().chain(&truth.pending_delete) {
        expected.insert(key.clone(), PendingChange::Other(key.as_str().into()));
    }
    for (field, meaning) in meanings(truth, &truth.pending).filter(|(_, meaning)| *meaning != ConfigMeaning::Odd) {
        expected.insert(field.word().to_owned(), PendingChange::Known(field, known_value(meaning)));
    }
    let is_deleted = |field: &Field| rule_of(kind, *field).is_some() && truth.pending_delete.iter().any(|key| key == field.word());
    for field in Field::ALL.into_iter().filter(is_deleted) {
        expected.insert(field.word().to_owned(), PendingChange::Known(field, None));
    }
    expected
}
