//! What must hold when a change reaches Proxmox: it is recorded, it is sent for the first time, and the guest was just read and was as
//! planned.

use std::collections::BTreeSet;

use converger_adapters::proxmox::codec::HttpMethod;
use converger_core::action::{Change, FieldChange, Provisioning};
use converger_core::apply::{OperationHistory, OperationId};
use converger_lab::GuestTruth;

use super::super::requests::WantedRequest;
use super::super::stage::TruthSnapshot;
use super::{Oracle, OracleCase, forbidden_keys, requested, truth};

/// A parsed request that changes something.
#[derive(Clone, Debug)]
pub(crate) struct ParsedMutation {
    pub(crate) node: String,
    pub(crate) kind: String,
    pub(crate) vmid: u32,
    /// `start`, `shutdown`, `stop`, `reboot`, `config`, `snapshot`, `delsnapshot`, `rollback`, `resize`, `migrate` or `clone`.
    pub(crate) verb: String,
    /// The snapshot that the path names.
    pub(crate) object: Option<String>,
    pub(crate) form: Vec<(String, String)>,
}

impl ParsedMutation {
    /// Parses the path and the form of a request; `None` if it is not about a guest.
    pub(crate) fn parse(method: HttpMethod, path: &str, form: &str) -> Option<Self> {
        let segments: Vec<&str> = path.strip_prefix("/api2/extjs/nodes/")?.split('/').collect();
        let (node, kind, vmid, verb, object) = match (method, segments.as_slice()) {
            (HttpMethod::Delete, [node, kind, vmid, "snapshot", name]) => (node, kind, vmid, "delsnapshot", Some(*name)),
            (HttpMethod::Delete, _) => return None,
            (_, [node, kind, vmid, "status", verb]) => (node, kind, vmid, *verb, None),
            (_, [node, kind, vmid, "snapshot", name, "rollback"]) => (node, kind, vmid, "rollback", Some(*name)),
            (_, [node, kind, vmid, verb]) => (node, kind, vmid, *verb, None),
            _ => return None,
        };
        let pairs = form.split('&').filter(|pair| !pair.is_empty());
        let form = pairs
            .map(|pair| pair.split_once('=').map_or((pair, ""), |pair| pair))
            .map(|(key, value)| (percent_decode(key), percent_decode(value)));
        let vmid = vmid.parse().ok()?;
        Some(Self {
            node: (*node).to_owned(),
            kind: (*kind).to_owned(),
            vmid,
            verb: verb.to_owned(),
            object: object.map(str::to_owned),
            form: form.collect(),
        })
    }

    /// Whether a key is removed from the config.
    fn deletes_key(&self, key: &str) -> bool {
        self.value("delete").is_some_and(|keys| keys.split(',').any(|own| own == key))
    }

    pub(super) fn value(&self, key: &str) -> Option<&str> {
        self.form.iter().find(|(own, _)| own == key).map(|(_, value)| value.as_str())
    }
}

fn percent_decode(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        let hex = (byte == b'%').then(|| [rest.next().unwrap_or(b'0'), rest.next().unwrap_or(b'0')]);
        let number = hex.and_then(|pair| u8::from_str_radix(std::str::from_utf8(&pair).ok()?, 16).ok());
        bytes.push(number.unwrap_or(byte));
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

impl Oracle {
    /// A change is about to reach Proxmox. `history` is its history in the journal, `at_work` the number of our running tasks on the guest.
    pub(crate) fn on_send(
        &mut self,
        id: &OperationId,
        sent: &ParsedMutation,
        history: Option<&OperationHistory>,
        running_tasks: usize,
        now_ms: u64,
    ) {
        self.sends += 1;
        self.sent.insert((sent.kind.clone(), sent.verb.clone()));
        let life = self.process_number;
        let Some(case) = self.cases.get_mut(id) else { return self.report_violation("S1", format!("{id} is nobody's")) };
        case.sends += 1;
        (case.sent_ms, case.is_read) = (now_ms, false);
        case.sent_to.clone_from(&sent.node);
        case.sent_verb.clone_from(&sent.verb);
        let key = case.idempotency_key();
        let mut found = case.check_recorded(sent, history);
        if case.sends > 1 {
            found = found.or(Some(("S2", "it is sent a second time".into())));
        }
        if case.is_recovered || case.process_number != life {
            found = found.or(Some(("S20", "a recovery sends".into())));
        }
        let is_writable = !self.is_unwritable;
        let case = &self.cases[id];
        let found = found.or_else(|| self.check_asked(case, sent));
        let found = found.or_else(|| (!is_writable).then(|| ("S18", "the journal cannot be written".into())));
        let found = found.or_else(|| (running_tasks > 0).then(|| ("S3", "a task of ours is at work on the guest".into())));
        let found = found.or_else(|| case.check_readings(sent)).or_else(|| case.check_guest_state(sent));
        let found = found.or_else(|| self.check_birth(id, sent));
        let found = found.or_else(|| self.check_foreign_pending(id, sent)).or_else(|| self.check_values(id, sent));
        if let Some((rule, text)) = found {
            self.report_violation(rule, format!("{id} {} {}: {text}", sent.verb, sent.vmid));
        }
        // Each step of a request is sent once under its key.
        if let Some(key) = key.map(|key| format!("{key} {}", sent.verb)) {
            let count = self.sent_under_key.entry(key.clone()).or_default();
            *count += 1;
            let count = *count;
            self.require(count <= 1, "G13", || format!("{id}: the request and step `{key}` run a second time"));
        }
        self.check_limits(id, sent);
    }

    /// S22: the guest is declared; or the change is the requested one, of the requested guest.
    fn check_asked(&self, case: &OracleCase, sent: &ParsedMutation) -> RuleBreach {
        let Some(request) = self.request_of(case) else {
            return (!self.wanted.contains_key(&sent.vmid)).then(|| ("S22", "the guest is not declared".into()));
        };
        let is_step = |step: &WantedRequest| {
            let is_same = step.vmid == sent.vmid && step.verb == sent.verb && step.object == sent.object.as_deref();
            is_same && step.parameters.iter().all(|(key, value)| sent.value(key) == Some(value))
        };
        (!request.steps().any(is_step)).then(|| ("S22", format!("that is not what was requested: {:?}", sent.form)))
    }

    /// Design 6.21: we do not apply a pending value that differs from the declared one, unless this write replaces it with ours.
    fn check_foreign_pending(&self, id: &OperationId, sent: &ParsedMutation) -> RuleBreach {
        // Proxmox applies nothing that is pending with these.
        if matches!(sent.verb.as_str(), "snapshot" | "delsnapshot" | "resize" | "clone") {
            return None;
        }
        let case = &self.cases[id];
        let config = case.config.as_ref()?.guest.as_ref()?;
        let wanted = self.wanted_of(case);
        let declared = |key: &str| wanted.and_then(|wanted| wanted.config.get(key)).map(Option::as_deref);
        let is_ours = |key: &str, value: Option<&str>| declared(key) == Some(value) || sent.value(key).is_some() || sent.deletes_key(key);
        let changed = config.pending.iter().find(|(key, value)| !is_ours(key, Some(value))).map(|(key, _)| key);
        let key = changed.or_else(|| config.pending_delete.iter().find(|key| !is_ours(key, None)))?;
        Some(("S12", format!("`{key}` waits and is not ours")))
    }

    /// Checks that the written values are the declared ones.
    fn check_values(&self, id: &OperationId, sent: &ParsedMutation) -> Option<(&'static str, String)> {
        let wanted = self.wanted_of(&self.cases[id])?;
        let keys = sent.form.iter().filter(|(key, _)| key != "digest");
        if sent.verb != "config" {
            return None;
        }
        let declared = |key: &str| wanted.config.get(key).map(Option::as_deref);
        let is_declared = |key: &str, value: &str| match declared(key) {
            // Of a network device only one part is declared.
            Some(Some(part)) if key == "net0" => self.changes_only_part(id, value, part),
            declared => declared == Some(Some(value)),
        };
        let written = keys.filter(|(key, _)| key != "delete").find(|(key, value)| !is_declared(key, value));
        let removed = wanted.config.keys().find(|key| sent.deletes_key(key) && declared(key) != Some(None));
        written
            .map(|(key, value)| ("S1", format!("`{key}` is written as `{value}`, which nobody declared")))
            .or_else(|| removed.map(|key| ("S1", format!("`{key}` is taken away, which nobody declared"))))
    }

    /// Whether the network device that is written is the one that was read, except for this part.
    fn changes_only_part(&self, id: &OperationId, value: &str, part: &str) -> bool {
        let config = self.cases[id].config.as_ref().and_then(|read| read.guest.as_ref());
        // A guest without a network device gets one.
        let before = config.and_then(|truth| truth.config.get("net0")).map_or("model=virtio", String::as_str);
        let name = part.split('=').next().unwrap_or_default();
        let others = |text: &str| -> BTreeSet<String> {
            text.split(',').filter(|own| own.split('=').next() != Some(name)).map(str::to_owned).collect()
        };
        others(before) == others(value) && value.split(',').any(|own| own == part)
    }
}

pub(super) type RuleBreach = Option<(&'static str, String)>;

/// Whether exactly the fields of the journal are set or removed.
fn writes_exactly(fields: &[FieldChange], sent: &ParsedMutation) -> bool {
    let taken_away: BTreeSet<&str> = sent.value("delete").into_iter().flat_map(|keys| keys.split(',')).collect();
    let written: BTreeSet<&str> =
        sent.form.iter().map(|(key, _)| key.as_str()).filter(|key| !matches!(*key, "digest" | "delete")).collect();
    let of = |is_removal: bool| fields.iter().filter(move |own| own.after.is_none() == is_removal).map(|own| own.field.word()).collect();
    taken_away == of(true) && written == of(false)
}

/// Whether exactly the fields and the network device of the journal are set.
fn provisions_exactly(provisioning: &Provisioning, sent: &ParsedMutation) -> bool {
    let written: BTreeSet<&str> = sent.form.iter().map(|(key, _)| key.as_str()).filter(|key| *key != "digest").collect();
    let card = provisioning.attributes.bridge.as_ref().map(|_| "net0");
    written == provisioning.fields.iter().map(|setting| setting.field.word()).chain(card).collect()
}

impl OracleCase {
    /// S1: the journal has an intent with the same id, target and parameters, and no end.
    fn check_recorded(&self, sent: &ParsedMutation, history: Option<&OperationHistory>) -> RuleBreach {
        let Some(history) = history else { return Some(("S1", "the journal has no intent of it".into())) };
        let operation = &history.operation;
        let is_target = operation.sending_address().vmid.get() == sent.vmid && operation.guest.kind.word() == sent.kind;
        let timeout = |secs: u32| sent.value("timeout") == Some(&secs.to_string());
        let is_change = match &operation.step.change {
            Change::Start => sent.verb == "start",
            Change::Shutdown { timeout_secs } => sent.verb == "shutdown" && timeout(*timeout_secs),
            Change::Stop => sent.verb == "stop",
            Change::Reboot { timeout_secs } => sent.verb == "reboot" && timeout(*timeout_secs),
            Change::ConfigSet(fields) => sent.verb == "config" && writes_exactly(fields, sent),
            Change::Provision(provisioning) => sent.verb == "config" && provisions_exactly(provisioning, sent),
            change => requested::sends_exactly(change, sent),
        };
        if !is_target || !is_change || history.ended.is_some() {
            return Some(("S1", format!("the journal has another intent, or it has ended: {:?}", operation.step.change.word())));
        }
        if history.sending.is_none() {
            return Some(("S1", "nobody who comes later would know that it was sent".into()));
        }
        let forbidden = forbidden_keys();
        // A shutdown explicitly forbids the fallback to a hard stop.
        let is_allowed =
            |key: &str, value: &str| (key == "forceStop" && value == "0") || (sent.verb == "clone" && ["name", "hostname"].contains(&key));
        let key = sent.form.iter().find(|(key, value)| forbidden.contains(key.as_str()) && !is_allowed(key, value));
        key.map(|(key, _)| ("S12", format!("`{key}` is sent")))
    }

    /// S4: cluster, run-state and config were read in this life, from the target node, and the config last.
    fn check_readings(&self, sent: &ParsedMutation) -> RuleBreach {
        let (Some(cluster), Some(status), Some(config)) = (&self.cluster, &self.status, &self.config) else {
            return Some(("S4", "not everything was read before".into()));
        };
        if self.last != self.last_check_reading() {
            return Some(("S4", format!("the last reading was of `{}`", self.last)));
        }
        if !cluster.quorate || !cluster.online {
            return Some(("S4", "the cluster had no quorum, or the node was not there".into()));
        }
        let is_there = |snapshot: &TruthSnapshot| snapshot.guest.as_ref().is_some_and(|truth| truth.node == sent.node);
        (!is_there(status) || !is_there(config)).then(|| ("S4", format!("the guest was not read from {}", sent.node)))
    }

    /// As it was read, it was the planned guest in the planned state, and nobody else was working on it.
    fn check_guest_state(&self, sent: &ParsedMutation) -> RuleBreach {
        let step = &self.operation.step;
        if let Change::Clone(clone) = &step.change {
            return self.check_clone_source(clone);
        }
        let status = self.status.as_ref()?.guest.as_ref()?;
        let config = self.config.as_ref()?.guest.as_ref()?;
        if !truth::runs_as(status, step.from) {
            return Some(("S4", format!("it was {:?}, and not as planned", status.process)));
        }
        let is_same = self.operation.guest.identity.as_ref().is_some_and(|identity| truth::has_identity(config, identity));
        if !is_same || config.name.as_deref() != Some(&*self.operation.guest.name) {
            return Some(("S6", "it is another guest than the planned one".into()));
        }
        if sent.verb == "config" && sent.value("digest") != Some(config.digest.as_str()) {
            return Some(("S7", "the write is not bound to the last reading".into()));
        }
        if config.config.contains_key("lock") || status.config.contains_key("lock") {
            return Some(("S12", "it was locked".into()));
        }
        if config.config.get("template").is_some_and(|value| value == "1") {
            return Some(("S12", "it is a template".into()));
        }
        self.check_ha(status, sent).or_else(|| self.check_protection(config, sent)).or_else(|| self.check_second_objects(sent))
    }

    fn check_ha(&self, status: &GuestTruth, sent: &ParsedMutation) -> RuleBreach {
        let is_owned = status.ha.as_ref().is_some_and(|own| own.wanted != "ignored");
        (is_owned && !requested::leaves_availability(&sent.verb)).then(|| ("S12", "high availability owns it".into()))
    }

    fn check_protection(&self, config: &GuestTruth, sent: &ParsedMutation) -> RuleBreach {
        if requested::interrupts(sent) && truth::is_protected(config) {
            return Some(("S13", "it is protected".into()));
        }
        if truth::all_tags(config).any(|tag| tag == "converger-hold") {
            return Some(("S12", "a person holds it by its tag".into()));
        }
        let tags = (sent.verb == "config").then(|| sent.value("tags")).flatten();
        let is_lost =
            tags.is_some_and(|tags| truth::all_tags(config).any(|tag| tag == "prod") && !tags.split(';').any(|tag| tag == "prod"));
        is_lost.then(|| ("S13", "a protecting tag is taken away".into()))
    }
}
