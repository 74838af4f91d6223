//! Every claim of an observation, held against what really was: it must have been so at some moment of the reading. What the cluster's list
//! tells of run-states and names is old by itself; that must have been so at some moment that the list may remember.
//!
//! What never enters: how the reading was taken. This room sees an observation and the truth, and nothing between.

use std::collections::BTreeMap;

use converger_core::guest::{Identity, Kind, RunState, Vmid};
use converger_core::normalize::{Field, Value, Words, rule_of};
use converger_core::observe::{Config, Ha, Observation, ObservedGuest, Pending, Reading, Status};
use converger_lab::Truth;

use crate::forms::{Meaning, meaning};
use crate::witness::{Moment, Witness};

/// A kind of claim: what it is about, and which way it went.
pub(crate) type What = (&'static str, &'static str);

/// How often what was claimed, or was the cause of not knowing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally(pub(crate) BTreeMap<What, u64>);

impl Tally {
    pub(crate) fn count(&mut self, what: What) {
        *self.0.entry(what).or_default() += 1;
    }

    pub(crate) fn add(&mut self, other: &Self) {
        for (what, count) in &other.0 {
            *self.0.entry(*what).or_default() += count;
        }
    }
}

/// One claim, and whether it was so.
struct Claim {
    what: What,
    held: bool,
}

fn claim(about: &'static str, which: &'static str, held: bool) -> Claim {
    Claim { what: (about, which), held }
}

/// Hold an observation of these guests against the truth. Every claim that never held, in words.
pub(crate) fn check(observation: &Observation, scope: &[Vmid], witness: &Witness, tally: &mut Tally) -> Vec<String> {
    let mut wrong = settle("the cluster", of_cluster(observation, witness), tally);
    for vmid in scope.iter().filter(|vmid| observation.complete && observation.find(**vmid).is_none()) {
        let lacks = |moment: &Moment| !moment.has(vmid.get());
        let claims = vec![claim("guest", "missing", witness.reading().iter().any(lacks))];
        wrong.extend(settle(&format!("guest {vmid}"), claims, tally));
    }
    for row in &observation.guests {
        let claims = of_guest(observation, row, witness);
        let found = settle("a row", claims, tally);
        wrong.extend(found.into_iter().map(|text| format!("{text}: {row:#?}")));
    }
    wrong
}

fn settle(whose: &str, claims: Vec<Claim>, tally: &mut Tally) -> Vec<String> {
    claims.iter().for_each(|claim| tally.count(claim.what));
    let wrong = claims.iter().filter(|claim| !claim.held);
    wrong.map(|claim| format!("{whose}: {} {} was never so", claim.what.0, claim.what.1)).collect()
}

fn of_cluster(observation: &Observation, witness: &Witness) -> Vec<Claim> {
    let reading = witness.reading();
    let is_quorate = !observation.quorate || reading.iter().any(|moment| moment.quorate);
    let mut claims = vec![claim("quorate", yes(observation.quorate), is_quorate), claim("complete", yes(observation.complete), true)];
    for node in &observation.nodes {
        let was_online = || reading.iter().any(|moment| moment.online.contains(node.name.as_str()));
        claims.push(claim("node online", yes(node.online), !node.online || was_online()));
    }
    claims
}

fn of_guest(observation: &Observation, row: &ObservedGuest, witness: &Witness) -> Vec<Claim> {
    let node = observation.node_of(row).map_or("", |node| node.name.as_str());
    let placed = |truth: &Truth| truth.node == node && kind(truth) == row.kind;
    let mut claims = vec![claim("placed", row.kind.word(), witness.was(row.vmid.get(), placed))];
    claims.extend(run_state(observation, row, witness));
    claims.extend(ha(row, witness));
    claims.extend(match &row.digest {
        Some(digest) => of_config(row, digest, witness).into_iter().chain(of_one(row, digest, witness)).collect(),
        None => of_list(row, witness),
    });
    claims
}

fn yes(is: bool) -> &'static str {
    if is { "yes" } else { "no" }
}

fn kind(truth: &Truth) -> Kind {
    match truth.kind {
        converger_lab::Kind::Qemu => Kind::Qemu,
        converger_lab::Kind::Lxc => Kind::Lxc,
    }
}

/// Where a run-state is from.
fn source(row: &ObservedGuest) -> &'static str {
    ["live", "node-list"].into_iter().find(|source| row.source.as_deref() == Some(source)).unwrap_or("cache")
}

/// What is live must have been so during the reading, what is from the cluster's list within its memory. By the list of its node a guest had a
/// process during the reading, or had none; what its process was at, such as being paused, may be as old as a recent report.
fn run_state(observation: &Observation, row: &ObservedGuest, witness: &Witness) -> Vec<Claim> {
    let (source, vmid) = (source(row), row.vmid.get());
    let was_during = |so: &dyn Fn(&str) -> bool| witness.was(vmid, |truth| so(truth.process.as_deref().unwrap_or("stopped")));
    let was = |so: &dyn Fn(&str) -> bool| match source {
        "live" => was_during(so),
        "node-list" if so("stopped") => was_during(so),
        "node-list" => was_during(&|word| word != "stopped") && witness.was_recently(vmid, |glance| so(&glance.word)),
        _ => witness.was_told(vmid, |glance| so(&glance.word)),
    };
    let mut claims = Vec::new();
    if let Some(raw) = row.run_state.as_deref().filter(|raw| *raw != "unknown") {
        claims.push(claim("raw word", source, was(&|word| word == raw)));
    }
    if let Status::Known(state) = row.status {
        let is = |word: &str| match state {
            RunState::Running => word == "running",
            RunState::Stopped => word == "stopped",
        };
        claims.push(claim(state.word(), source, was(&is)));
        let is_online = observation.node_of(row).is_some_and(|node| node.online);
        claims.push(claim("known", "on a node that is online", is_online));
    }
    claims
}

/// A guest that is to be ignored is not managed, as its own node says; the list says `ignored`.
fn ha(row: &ObservedGuest, witness: &Witness) -> Option<Claim> {
    let Reading::Read(claimed) = &row.ha else { return None };
    let is_live = row.source.as_deref() == Some("live");
    let fits = |truth: &Truth| match (&truth.ha, claimed) {
        (None, claimed) => claimed.is_none(),
        (Some(own), None) => is_live && own.wanted == "ignored",
        (Some(own), Some(Ha { state })) => match own.believed.as_deref() {
            Some(believed) => state.as_deref() == Some(believed),
            None if is_live => state.is_none(),
            None => state.as_deref() == Some(own.wanted.as_str()),
        },
    };
    let what = match claimed {
        None => "none",
        Some(Ha { state: None }) => "without a word",
        Some(Ha { state: Some(_) }) => "managed",
    };
    Some(claim("ha", what, witness.was(row.vmid.get(), fits)))
}

/// What the list alone says: lock and tags are from the config, name and template from what its node last told.
fn of_list(row: &ObservedGuest, witness: &Witness) -> Vec<Claim> {
    let vmid = row.vmid.get();
    let mut claims = Vec::new();
    let is_of_node = source(row) == "node-list";
    if let Some(name) = &row.name {
        let held = match is_of_node {
            true => witness.was(vmid, |truth| *shown_name(truth) == **name),
            false => witness.was_told(vmid, |glance| *glance.name == **name),
        };
        claims.push(claim("name", if is_of_node { "listed by its node" } else { "listed" }, held));
    }
    if let Reading::Read(template) = row.template {
        let held = match is_of_node {
            true => witness.was(vmid, |truth| is_on(truth, "template") == template),
            false => witness.was_told(vmid, |glance| glance.template == template),
        };
        claims.push(claim("template listed", yes(template), held));
    }
    if let Reading::Read(lock) = &row.lock {
        let held = witness.was(vmid, |truth| truth.config.get("lock").map(String::as_str) == lock.as_deref());
        claims.push(claim("lock listed", yes(lock.is_some()), held));
    }
    if let Reading::Read(tags) = &row.tags {
        claims.push(claim("tags listed", yes(!tags.is_empty()), witness.was(vmid, |truth| tags_of(truth) == *tags)));
    }
    let unread = !row.config.is_read() && !row.pending.is_read() && !row.identity.is_read() && !row.protection.is_read();
    claims.push(claim("config", "not read and not claimed", unread));
    claims
}

/// One answer gave all of this, so it must all have been so at one moment: that of the digest.
fn of_config(row: &ObservedGuest, digest: &str, witness: &Witness) -> Vec<Claim> {
    let Some(truth) = witness.seen(row.vmid.get()).find(|truth| truth.digest == digest) else {
        return vec![claim("config", "digest", false)];
    };
    let lock: Option<Box<str>> = truth.config.get("lock").map(|lock| lock.as_str().into());
    let tags = tags_of(truth);
    let mut claims = vec![
        claim("config", "digest", true),
        claim("name", if truth.name.is_some() { "read" } else { "made of its id" }, row.name.as_deref() == Some(&*shown_name(truth))),
        claim("lock", yes(lock.is_some()), row.lock == Reading::Read(lock)),
        said("template", row.template, is_on(truth, "template")),
        said("protection", row.protection, is_on(truth, "protection")),
        claim("tags", yes(!tags.is_empty()), row.tags == Reading::Read(tags)),
        claim("identity", row.kind.word(), row.identity == Reading::Read(Box::new(identity(truth)))),
    ];
    claims.extend(values(row, truth));
    claims.extend(waiting(row, truth));
    claims
}

/// What is told live of a guest and what was read of its config is of one guest: all of it was so at one moment, or of one with these birth
/// marks. A root disk is no mark of a container by itself: the next one under its id has one of the same name.
///
/// A run-state of the list is not held to this: the list knows guests by their ids alone, and says so (`cache`).
fn of_one(row: &ObservedGuest, digest: &str, witness: &Witness) -> Option<Claim> {
    let raw = row.run_state.as_deref().filter(|_| row.source.as_deref() == Some("live"))?;
    let is_marked = |identity: &Identity| match identity {
        Identity::Qemu { uuid, ctime } => uuid.is_some() || ctime.is_some(),
        Identity::Lxc { mac, .. } => mac.is_some(),
    };
    let has_marks = |truth: &Truth| matches!(&row.identity, Reading::Read(own) if is_marked(own) && **own == identity(truth));
    let was = |truth: &Truth| truth.process.as_deref().unwrap_or("stopped") == raw && (truth.digest == digest || has_marks(truth));
    Some(claim("run-state and config", "of one guest", witness.was(row.vmid.get(), was)))
}

fn said(what: &'static str, claimed: Reading<bool>, is: bool) -> Claim {
    claim(what, yes(is), claimed == Reading::Read(is))
}

fn is_on(truth: &Truth, key: &str) -> bool {
    truth.config.get(key).is_some_and(|text| text == "1")
}

fn shown_name(truth: &Truth) -> String {
    truth.name.clone().unwrap_or_else(|| match truth.kind {
        converger_lab::Kind::Qemu => format!("VM {}", truth.vmid),
        converger_lab::Kind::Lxc => format!("CT{}", truth.vmid),
    })
}

fn tags_of(truth: &Truth) -> Words {
    match truth.config.get("tags").map(|text| meaning(kind(truth), Field::Tags, text)) {
        Some(Meaning::Value(Value::Tags(words))) => words,
        _ => Words::default(),
    }
}

/// What stands behind a key of a property string.
fn part<'t>(truth: &'t Truth, key: &str, name: &str) -> Option<&'t str> {
    truth.config.get(key)?.split(',').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))
}

fn identity(truth: &Truth) -> Identity {
    match truth.kind {
        converger_lab::Kind::Qemu => Identity::Qemu {
            uuid: part(truth, "smbios1", "uuid").map(|uuid| uuid.to_lowercase().into()),
            ctime: part(truth, "meta", "ctime").and_then(|ctime| ctime.parse().ok()),
        },
        converger_lab::Kind::Lxc => {
            let cards = (0..32).map(|number| format!("net{number}")).find(|key| truth.config.contains_key(key));
            Identity::Lxc {
                rootfs: truth.config.get("rootfs").and_then(|text| text.split(',').next()).map(Into::into),
                mac: cards.and_then(|key| part(truth, &key, "hwaddr")).map(|mac| mac.to_uppercase().into()),
            }
        }
    }
}

/// The fields of a kind with what the texts of a config mean for them.
fn meanings<'t>(truth: &'t Truth, texts: &'t BTreeMap<String, String>) -> impl Iterator<Item = (Field, Meaning)> + 't {
    let kind = kind(truth);
    let fields = Field::ALL.into_iter().filter(move |field| rule_of(kind, *field).is_some());
    fields.filter_map(move |field| texts.get(field.word()).map(|text| (field, meaning(kind, field, text))))
}

/// The config is whole and right: of a text that nobody understands nothing is claimed but the text itself.
fn values(row: &ObservedGuest, truth: &Truth) -> Vec<Claim> {
    let known: Vec<(Field, Meaning)> = meanings(truth, &truth.config).filter(|(field, _)| *field != Field::Tags).collect();
    let odd = known.iter().filter(|(_, meaning)| *meaning == Meaning::Odd);
    let odd = odd.filter_map(|(field, _)| Some((*field, truth.config.get(field.word())?.as_str().into()))).collect();
    let Reading::Read(config) = &row.config else {
        return vec![claim("config", "unread", false)];
    };
    let expected = Config::new(known.into_iter().filter_map(|(field, meaning)| Some((field, value(meaning)?))).collect());
    let expected = expected.with_not_understood(odd);
    let of_field = |(field, value): &(Field, Value)| claim("config", field.word(), expected.get(*field) == Some(value));
    let mut claims: Vec<Claim> = config.values().iter().map(of_field).collect();
    let is_same = expected.all_not_understood() == config.all_not_understood();
    claims.push(claim("config", if config.all_not_understood().is_empty() { "understood" } else { "not understood" }, is_same));
    claims.push(claim("config", "whole", expected == *config));
    claims
}

fn value(meaning: Meaning) -> Option<Value> {
    match meaning {
        Meaning::Value(value) => Some(value),
        Meaning::Nothing | Meaning::Odd => None,
    }
}

fn waiting(row: &ObservedGuest, truth: &Truth) -> Vec<Claim> {
    let Reading::Read(claimed) = &row.pending else { return vec![claim("pending", "unread", false)] };
    let expected = expected_waiting(row.kind, truth);
    let what = |entry: &Pending| match entry {
        Pending::Known(_, Some(_)) => "value",
        Pending::Known(_, None) => "removal",
        Pending::Other(_) => "other",
    };
    let of_entry = |entry: &Pending| claim("pending", what(entry), expected.get(entry.key()) == Some(entry));
    let mut claims: Vec<Claim> = claimed.iter().map(of_entry).collect();
    claims.push(claim("pending", if claimed.is_empty() { "none" } else { "all of it" }, claimed.len() == expected.len()));
    claims
}

fn expected_waiting(kind: Kind, truth: &Truth) -> BTreeMap<String, Pending> {
    let mut expected: BTreeMap<String, Pending> = BTreeMap::new();
    for key in truth.pending.keys().chain(&truth.pending_delete) {
        expected.insert(key.clone(), Pending::Other(key.as_str().into()));
    }
    for (field, meaning) in meanings(truth, &truth.pending).filter(|(_, meaning)| *meaning != Meaning::Odd) {
        expected.insert(field.word().to_owned(), Pending::Known(field, value(meaning)));
    }
    let goes = |field: &Field| rule_of(kind, *field).is_some() && truth.pending_delete.iter().any(|key| key == field.word());
    for field in Field::ALL.into_iter().filter(goes) {
        expected.insert(field.word().to_owned(), Pending::Known(field, None));
    }
    expected
}
