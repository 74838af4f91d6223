//! What is kept, as a program would have it that believes its files: typed, owned structs for serde_json, each member where it belongs.
//!
//! Nothing is checked here but types. What never enters: the types of core.
#![expect(dead_code, reason = "what is parsed is not looked at")]

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Deserialize, Deserializer, SeqAccess, Visitor};
use serde::{Deserialize as Derived, de};

#[derive(Derived)]
pub(crate) struct Entry {
    at_ms: u64,
    kind: String,
    schema: String,
    what: What,
}

/// Everything that an entry of any kind can say.
#[derive(Derived)]
struct What {
    answer: Option<String>,
    boot: Option<String>,
    bundle: Option<String>,
    by: Option<String>,
    catalogue: Option<String>,
    code: Option<String>,
    config: Option<String>,
    desired: Option<String>,
    end: Option<String>,
    environment: Option<String>,
    evidence: Option<BTreeMap<String, Loose>>,
    guest: Option<u32>,
    how: Option<String>,
    id: Option<String>,
    judgement: Option<String>,
    names: Option<Vec<String>>,
    observation: Option<String>,
    operation: Option<Box<Operation>>,
    operations: Option<Vec<String>>,
    outcome: Option<Outcome>,
    plan: Option<String>,
    planner: Option<u32>,
    program: Option<String>,
    reason: Option<String>,
    resolution: Option<String>,
    rules: Option<String>,
    run: Option<String>,
    size: Option<u64>,
    stage: Option<String>,
    task: Option<String>,
    up_ms: Option<u64>,
    verifier: Option<String>,
}

#[derive(Derived)]
struct Operation {
    environment: String,
    guest: Target,
    id: String,
    plan: String,
    position: u32,
    run: String,
    schema: String,
    source: Source,
    step: Step,
}

#[derive(Derived)]
struct Target {
    guards: Guards,
    identity: Option<Identity>,
    kind: String,
    name: String,
    node: String,
    vmid: u32,
}

#[derive(Derived)]
struct Guards {
    ha: Option<Ha>,
    lock: Option<String>,
    protection: bool,
    tags: Vec<String>,
    template: bool,
}

#[derive(Derived)]
struct Ha {
    state: Option<String>,
}

#[derive(Derived)]
struct Identity {
    uuid: Option<String>,
    ctime: Option<u64>,
    rootfs: Option<String>,
    mac: Option<String>,
}

#[derive(Derived)]
struct Source {
    key: Option<String>,
    kind: String,
    request: Option<String>,
}

#[derive(Derived)]
struct Step {
    change: String,
    class: String,
    fields: Option<BTreeMap<String, FieldChange>>,
    from: String,
    impact: String,
    reason: String,
    restart_for: Option<Vec<String>>,
    restart_to: Option<BTreeMap<String, Loose>>,
    risk: String,
    timeout_secs: Option<u32>,
    wait: Vec<u32>,
}

#[derive(Derived)]
struct FieldChange {
    after: Loose,
    before: Loose,
    effect: String,
    pending: Option<Loose>,
}

#[derive(Derived)]
struct Outcome {
    code: Option<String>,
    end: String,
    evidence: BTreeMap<String, Loose>,
    observed: BTreeMap<String, Loose>,
    release: Option<String>,
    schema: String,
}

/// The declared state, as it is kept.
#[derive(Derived)]
pub(crate) struct Desired {
    version: u32,
    environment: String,
    guests: Vec<Declared>,
}

#[derive(Derived)]
struct Declared {
    vmid: u32,
    kind: String,
    name: Option<String>,
    state: Option<String>,
    config: Option<BTreeMap<String, Loose>>,
    after: Option<Vec<u32>>,
    identity: Option<Identity>,
}

/// The reading, as it is kept.
#[derive(Derived)]
pub(crate) struct Observation {
    schema: String,
    environment: String,
    source: Option<String>,
    taken_at: Option<String>,
    complete: bool,
    quorate: bool,
    nodes: Vec<Node>,
    guests: Vec<Observed>,
}

#[derive(Derived)]
struct Node {
    name: String,
    online: bool,
}

#[derive(Derived)]
struct Observed {
    vmid: u32,
    kind: String,
    name: Option<String>,
    node: String,
    status: String,
    cause: Option<String>,
    cpus: Option<u32>,
    maxmem: Option<u64>,
    lock: Option<String>,
    ha: Option<Ha>,
    template: Option<bool>,
    protection: Option<bool>,
    tags: Option<Vec<String>>,
    identity: Option<Identity>,
    config: Option<Config>,
    pending: Option<Vec<Pending>>,
    digest: Option<String>,
}

#[derive(Derived)]
struct Config {
    cores: Option<u32>,
    memory: Option<u32>,
    description: Option<String>,
    onboot: Option<bool>,
}

#[derive(Derived)]
struct Pending {
    key: String,
}

/// The body of a plan, as it is kept.
#[derive(Derived)]
pub(crate) struct Plan {
    catalogue_digest: String,
    desired_digest: String,
    environment: String,
    guests: Vec<Planned>,
    observation_digest: String,
    planner: u32,
    refusals: Vec<Refusal>,
    rules_digest: String,
}

#[derive(Derived)]
struct Planned {
    kind: String,
    name: Option<String>,
    pending_restart: Option<bool>,
    precondition: Option<Found>,
    refusals: Option<Vec<Refusal>>,
    steps: Option<Vec<PlannedStep>>,
    verdict: String,
    vmid: u32,
}

#[derive(Derived)]
struct Found {
    ha: Option<Ha>,
    identity: Option<Identity>,
    lock: Option<String>,
    name: Option<String>,
    protection: Option<bool>,
    tags: Option<Vec<String>>,
    template: Option<bool>,
}

#[derive(Derived)]
struct PlannedStep {
    change: String,
    class: String,
    fields: Option<BTreeMap<String, FieldChange>>,
    impact: String,
    precondition: BTreeMap<String, String>,
    reason: String,
    risk: String,
    timeout_secs: Option<u32>,
    undo: Undo,
    wait: Option<Vec<u32>>,
}

#[derive(Derived)]
struct Undo {
    change: Option<String>,
    fields: Option<BTreeMap<String, Loose>>,
}

#[derive(Derived)]
struct Refusal {
    code: String,
    evidence: BTreeMap<String, Loose>,
    remedy: String,
    stage: String,
}

/// A value of any type, read at once: an untagged enum would be read twice.
enum Loose {
    Null,
    Flag(bool),
    Number(u64),
    Text(String),
    List(Vec<Loose>),
}

impl<'de> Deserialize<'de> for Loose {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Any)
    }
}

struct Any;

impl<'de> Visitor<'de> for Any {
    type Value = Loose;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a value")
    }

    fn visit_unit<E: de::Error>(self) -> Result<Loose, E> {
        Ok(Loose::Null)
    }

    fn visit_bool<E: de::Error>(self, flag: bool) -> Result<Loose, E> {
        Ok(Loose::Flag(flag))
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<Loose, E> {
        Ok(Loose::Number(number))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Loose, E> {
        Ok(Loose::Text(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Loose, A::Error> {
        let mut all = Vec::new();
        while let Some(one) = list.next_element()? {
            all.push(one);
        }
        Ok(Loose::List(all))
    }
}
