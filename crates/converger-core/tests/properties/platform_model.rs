//! A model of the platform: how the rows of an observation change when the steps of a plan are executed.
//!
//! It works on the JSON of the artifacts and shares no code with the planner: which changes need a restart is written here independently,
//! from the platform's own rules.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use converger_core::guest::GuestKind;
use converger_core::normalize::Field;
use converger_core::testing::{Rng, default_of};

type ModelRow = Map<String, Value>;

/// Whether pending changes take effect when a guest stops or when it starts again. Releases differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PendingAtStop {
    Applies,
    Keeps,
}

/// The platform, with the rows of one observation.
pub(crate) struct PlatformModel {
    rows: BTreeMap<u64, ModelRow>,
    at_stop: PendingAtStop,
}

impl PlatformModel {
    pub(crate) fn new(observation: &Value, at_stop: PendingAtStop) -> Self {
        let rows =
            elements(&observation["guests"]).map(|row| (vmid_of(row), normalise_row(row.as_object().expect("a row").clone()))).collect();
        Self { rows, at_stop }
    }

    /// The observation that would be taken afterwards.
    pub(crate) fn observation_after(&self, before: &Value) -> Value {
        let mut reading = before.clone();
        reading["guests"] = self.rows.values().cloned().map(Value::Object).collect();
        reading
    }

    pub(crate) fn has_status(&self, vmid: u64, status: &str) -> bool {
        self.rows.get(&vmid).is_some_and(|row| row["status"] == status)
    }

    /// Executes one step of plan.json; the error says what does not fit.
    pub(crate) fn apply_step(&mut self, vmid: u64, step: &Value) -> Result<(), String> {
        let at_stop = self.at_stop;
        let row = self.rows.get_mut(&vmid).ok_or("the guest does not exist")?;
        if row["status"] != step["precondition"]["status"] {
            return Err(format!("the guest is {}, but the step requires {}", row["status"], step["precondition"]["status"]));
        }
        match (text_of(&step["change"]), text_of(&row["status"])) {
            ("config.set", _) => write_config(row, step)?,
            ("start", "stopped") => {
                apply_pending(row, |_, _, _| true);
                row.remove("run_state");
                row.insert("status".into(), json!("running"));
            }
            ("reboot", "running") => apply_pending(row, |_, _, _| true),
            ("stop" | "shutdown", "running") => {
                row.remove("run_state");
                row.insert("status".into(), json!("stopped"));
                if at_stop == PendingAtStop::Applies {
                    apply_pending(row, |_, _, _| true);
                }
            }
            (change, status) => return Err(format!("{change} of a guest that is {status}")),
        }
        Ok(())
    }
}

/// A row as the platform returns it: tags are a sorted set, and a description has no trailing whitespace.
fn normalise_row(mut row: ModelRow) -> ModelRow {
    if let Some(Value::Array(tags)) = row.get_mut("tags") {
        let sorted: BTreeSet<String> = tags.iter().map(|tag| text_of(tag).to_owned()).collect();
        *tags = sorted.into_iter().map(Value::String).collect();
    }
    if let Some(Value::Object(config)) = row.get_mut("config")
        && let Some(description) = config.remove("description")
    {
        let trimmed = text_of(&description).trim_end();
        config.extend((!trimmed.is_empty()).then(|| ("description".to_owned(), json!(trimmed))));
    }
    row
}

/// Whether two values of a field (absent: null) have the same effect.
pub(crate) fn is_same_effect(kind: GuestKind, field: Field, left: &Value, right: &Value) -> bool {
    let effective = |value: &Value| match value {
        Value::Null => default_of(kind, field).unwrap_or_default(),
        Value::String(text) => json!(text.trim_end()),
        value => value.clone(),
    };
    effective(left) == effective(right)
}

/// Makes each key pending, drops pending values that equal the effective ones, and then applies what can take effect: on a stopped guest,
/// everything.
fn write_config(row: &mut ModelRow, step: &Value) -> Result<(), String> {
    let fields = step["fields"].as_object().ok_or("a write without fields")?;
    let is_running = row["status"] == "running";
    for (key, change) in fields {
        let current = effective_value(row, key);
        if change["before"] != current {
            return Err(format!("{key}: the step expects {}, but {current} is in effect", change["before"]));
        }
        // A write that only cancels a pending change has no effect inside the guest.
        let is_at_restart =
            is_running && !is_same_effect_in(row, key, &current, &change["after"]) && needs_restart(row, key, &change["after"]);
        if (change["effect"] == "at-restart") != is_at_restart {
            return Err(format!("{key}: the step states the wrong effect {}", change["effect"]));
        }
        let mut pending = pending_entries(row);
        pending.retain(|entry| entry["key"] != *key);
        if current != change["after"] {
            pending.push(pending_entry(key, &change["after"]));
        }
        row.insert("pending".into(), json!(pending));
    }
    // A foreign pending change that could not be hot-plugged is not retried with this write.
    apply_pending(row, |row, key, value| !is_running || (fields.contains_key(key) && !needs_restart(row, key, value)));
    Ok(())
}

fn apply_pending(row: &mut ModelRow, takes_effect: impl Fn(&ModelRow, &str, &Value) -> bool) {
    let mut left = Vec::new();
    for entry in pending_entries(row) {
        let key = text_of(&entry["key"]).to_owned();
        if !takes_effect(row, &key, &entry["value"]) {
            left.push(entry);
        } else if key == "tags" {
            row.insert("tags".into(), if entry["value"].is_null() { json!([]) } else { entry["value"].clone() });
        } else if let Some(config) = row.get_mut("config").and_then(Value::as_object_mut) {
            config.remove(&key);
            config.extend((!entry["value"].is_null()).then(|| (key, entry["value"].clone())));
        }
    }
    row.insert("pending".into(), json!(left));
}

/// Whether a running guest takes over this change only at a restart.
fn needs_restart(row: &ModelRow, key: &str, after: &Value) -> bool {
    if row["kind"] == "lxc" {
        return false;
    }
    let config = |key: &str| row.get("config").map_or(&Value::Null, |config| &config[key]);
    match key {
        "agent" | "boot" | "cores" | "sockets" => true,
        "memory" => !(config("numa") == &json!(true) && elements(config("hotplug")).any(|part| part == "memory")),
        "balloon" => (config("balloon") == &json!(0)) != (after == &json!(0)),
        _ => false,
    }
}

fn is_same_effect_in(row: &ModelRow, key: &str, left: &Value, right: &Value) -> bool {
    let kind = if row["kind"] == "lxc" { GuestKind::Lxc } else { GuestKind::Qemu };
    let field = Field::ALL.into_iter().find(|field| field.word() == key).expect("a field of the table");
    is_same_effect(kind, field, left, right)
}

/// Whether a declared field of this guest is pending until a restart.
pub(crate) fn has_pending_declared(desired: &Value, observation: &Value, vmid: u64) -> bool {
    let row = elements(&observation["guests"]).find(|row| vmid_of(row) == vmid).and_then(Value::as_object).expect("it has a row");
    let guest = elements(&desired["guests"]).find(|guest| vmid_of(guest) == vmid).expect("it is declared");
    let is_declared = |key: &str| guest["config"].get(key).is_some();
    pending_entries(row).iter().any(|entry| {
        let key = text_of(&entry["key"]);
        is_declared(key) && !is_same_effect_in(row, key, &effective_value(row, key), &entry["value"])
    })
}

/// The effective value; null if absent.
fn effective_value(row: &ModelRow, key: &str) -> Value {
    match key {
        "tags" => row.get("tags").filter(|tags| **tags != json!([])).cloned().unwrap_or_default(),
        _ => row.get("config").map(|config| config[key].clone()).unwrap_or_default(),
    }
}

fn pending_entry(key: &str, value: &Value) -> Value {
    if value.is_null() { json!({ "key": key, "delete": true }) } else { json!({ "key": key, "value": value }) }
}

fn pending_entries(row: &ModelRow) -> Vec<Value> {
    row.get("pending").map(|pending| elements(pending).cloned().collect()).unwrap_or_default()
}

/// The steps of a plan body, by guest.
pub(crate) fn steps_by_guest(body: &Value) -> BTreeMap<u64, Vec<Value>> {
    let guests = elements(&body["guests"]).filter(|guest| guest["verdict"] == "steps");
    guests.map(|guest| (vmid_of(guest), elements(&guest["steps"]).cloned().collect())).collect()
}

/// Executes all steps of a plan in a random order that its `wait` lists allow. At each power step, checks what `after` promises: a guest
/// starts only while all its dependencies run, and stops only while all its dependents are stopped.
pub(crate) fn apply_plan(model: &mut PlatformModel, desired: &Value, body: &Value, rng: &mut Rng) -> Result<(), String> {
    let mut left = steps_by_guest(body);
    left.values_mut().for_each(|steps| steps.reverse());
    while !left.is_empty() {
        let unfinished: BTreeSet<u64> = left.keys().copied().collect();
        let is_ready = |steps: &Vec<Value>| {
            steps.last().is_some_and(|step| elements(&step["wait"]).all(|other| !unfinished.contains(&other.as_u64().expect("an id"))))
        };
        let ready: Vec<u64> = left.iter().filter(|(_, steps)| is_ready(steps)).map(|(vmid, _)| *vmid).collect();
        let vmid = *rng.pick(&ready).ok_or_else(|| format!("all of {unfinished:?} wait for each other"))?;
        let steps = left.get_mut(&vmid).expect("it is unfinished");
        let step = steps.pop().expect("it has steps");
        check_order(model, desired, vmid, &step, steps.is_empty())?;
        model.apply_step(vmid, &step).map_err(|fault| format!("{vmid}: {fault}"))?;
        left.retain(|_, steps| !steps.is_empty());
    }
    Ok(())
}

fn check_order(model: &PlatformModel, desired: &Value, vmid: u64, step: &Value, is_last: bool) -> Result<(), String> {
    let names = |guest: &Value, on: u64| elements(&guest["after"]).any(|id| id.as_u64() == Some(on));
    let mut guests = elements(&desired["guests"]);
    match text_of(&step["change"]) {
        "start" | "reboot" => {
            let down = |on: &Value| !model.has_status(on.as_u64().expect("an id"), "running");
            let guest = guests.find(|guest| vmid_of(guest) == vmid).expect("declared");
            elements(&guest["after"]).find(|on| down(on)).map_or(Ok(()), |on| Err(format!("{vmid} comes up while {on} does not run")))
        }
        // A hard restart stops the guest only to start it again.
        "stop" | "shutdown" if is_last => {
            let up = guests.find(|guest| names(guest, vmid) && !model.has_status(vmid_of(guest), "stopped"));
            up.map_or(Ok(()), |guest| Err(format!("{vmid} goes down while {} is not seen stopped", vmid_of(guest))))
        }
        _ => Ok(()),
    }
}

pub(crate) fn elements(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

pub(crate) fn vmid_of(guest: &Value) -> u64 {
    guest["vmid"].as_u64().expect("an id")
}

pub(crate) fn text_of(value: &Value) -> &str {
    value.as_str().unwrap_or("")
}
