//! Stored documents as a program would parse them that trusts its files: typed, owned structs for serde_json.
//!
//! Only types are checked here. Must not use the types of core.
#![expect(dead_code, reason = "the parsed values are not used")]

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Deserialize, Deserializer, SeqAccess, Visitor};
use serde::{Deserialize as Derived, de};

#[derive(Derived)]
pub(crate) struct TypedEntry {
    at_ms: u64,
    kind: String,
    schema: String,
    what: TypedEntryBody,
}

/// Every member that an entry of any kind can have.
#[derive(Derived)]
struct TypedEntryBody {
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
    evidence: Option<BTreeMap<String, TypedValue>>,
    guest: Option<u32>,
    how: Option<String>,
    id: Option<String>,
    judgement: Option<String>,
    names: Option<Vec<String>>,
    observation: Option<String>,
    operation: Option<Box<TypedOperation>>,
    operations: Option<Vec<String>>,
    outcome: Option<TypedOutcome>,
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
struct TypedOperation {
    environment: String,
    guest: TypedTarget,
    id: String,
    plan: String,
    position: u32,
    run: String,
    schema: String,
    source: TypedSource,
    step: TypedStep,
}

#[derive(Derived)]
struct TypedTarget {
    guards: TypedGuards,
    identity: Option<TypedIdentity>,
    kind: String,
    name: String,
    node: String,
    vmid: u32,
}

#[derive(Derived)]
struct TypedGuards {
    ha: Option<TypedHa>,
    lock: Option<String>,
    protection: bool,
    tags: Vec<String>,
    template: bool,
}

#[derive(Derived)]
struct TypedHa {
    state: Option<String>,
}

#[derive(Derived)]
struct TypedIdentity {
    uuid: Option<String>,
    ctime: Option<u64>,
    rootfs: Option<String>,
    mac: Option<String>,
}

#[derive(Derived)]
struct TypedSource {
    key: Option<String>,
    kind: String,
    request: Option<String>,
}

#[derive(Derived)]
struct TypedStep {
    change: String,
    class: String,
    fields: Option<BTreeMap<String, TypedFieldChange>>,
    from: String,
    impact: String,
    reason: String,
    restart_for: Option<Vec<String>>,
    restart_to: Option<BTreeMap<String, TypedValue>>,
    risk: String,
    timeout_secs: Option<u32>,
    wait: Vec<u32>,
}

#[derive(Derived)]
struct TypedFieldChange {
    after: TypedValue,
    before: TypedValue,
    effect: String,
    pending: Option<TypedValue>,
}

#[derive(Derived)]
struct TypedOutcome {
    code: Option<String>,
    end: String,
    evidence: BTreeMap<String, TypedValue>,
    observed: BTreeMap<String, TypedValue>,
    release: Option<String>,
    schema: String,
}

/// The desired state as it is stored.
#[derive(Derived)]
pub(crate) struct TypedDesired {
    version: u32,
    environment: String,
    guests: Vec<TypedDeclaredGuest>,
}

#[derive(Derived)]
struct TypedDeclaredGuest {
    vmid: u32,
    kind: String,
    name: Option<String>,
    state: Option<String>,
    config: Option<BTreeMap<String, TypedValue>>,
    after: Option<Vec<u32>>,
    identity: Option<TypedIdentity>,
}

/// The observation as it is stored.
#[derive(Derived)]
pub(crate) struct TypedObservation {
    schema: String,
    environment: String,
    source: Option<String>,
    taken_at: Option<String>,
    complete: bool,
    quorate: bool,
    nodes: Vec<TypedNode>,
    guests: Vec<TypedObservedGuest>,
}

#[derive(Derived)]
struct TypedNode {
    name: String,
    online: bool,
}

#[derive(Derived)]
struct TypedObservedGuest {
    vmid: u32,
    kind: String,
    name: Option<String>,
    node: String,
    status: String,
    cause: Option<String>,
    cpus: Option<u32>,
    maxmem: Option<u64>,
    lock: Option<String>,
    ha: Option<TypedHa>,
    template: Option<bool>,
    protection: Option<bool>,
    tags: Option<Vec<String>>,
    identity: Option<TypedIdentity>,
    config: Option<TypedConfig>,
    pending: Option<Vec<TypedPending>>,
    digest: Option<String>,
}

#[derive(Derived)]
struct TypedConfig {
    cores: Option<u32>,
    memory: Option<u32>,
    description: Option<String>,
    onboot: Option<bool>,
}

#[derive(Derived)]
struct TypedPending {
    key: String,
}

/// The body of a plan as it is stored.
#[derive(Derived)]
pub(crate) struct TypedPlan {
    catalogue_digest: String,
    desired_digest: String,
    environment: String,
    guests: Vec<TypedPlannedGuest>,
    observation_digest: String,
    planner: u32,
    refusals: Vec<TypedRefusal>,
    rules_digest: String,
}

#[derive(Derived)]
struct TypedPlannedGuest {
    kind: String,
    name: Option<String>,
    pending_restart: Option<bool>,
    precondition: Option<TypedPrecondition>,
    refusals: Option<Vec<TypedRefusal>>,
    steps: Option<Vec<TypedPlannedStep>>,
    verdict: String,
    vmid: u32,
}

#[derive(Derived)]
struct TypedPrecondition {
    ha: Option<TypedHa>,
    identity: Option<TypedIdentity>,
    lock: Option<String>,
    name: Option<String>,
    protection: Option<bool>,
    tags: Option<Vec<String>>,
    template: Option<bool>,
}

#[derive(Derived)]
struct TypedPlannedStep {
    change: String,
    class: String,
    fields: Option<BTreeMap<String, TypedFieldChange>>,
    impact: String,
    precondition: BTreeMap<String, String>,
    reason: String,
    risk: String,
    timeout_secs: Option<u32>,
    undo: TypedUndo,
    wait: Option<Vec<u32>>,
}

#[derive(Derived)]
struct TypedUndo {
    change: Option<String>,
    fields: Option<BTreeMap<String, TypedValue>>,
}

#[derive(Derived)]
struct TypedRefusal {
    code: String,
    evidence: BTreeMap<String, TypedValue>,
    remedy: String,
    stage: String,
}

/// A value of any type, parsed in one pass; an untagged enum would need two.
enum TypedValue {
    Null,
    Flag(bool),
    Number(u64),
    Text(String),
    List(Vec<TypedValue>),
}

impl<'de> Deserialize<'de> for TypedValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TypedValueVisitor)
    }
}

struct TypedValueVisitor;

impl<'de> Visitor<'de> for TypedValueVisitor {
    type Value = TypedValue;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a value")
    }

    fn visit_unit<E: de::Error>(self) -> Result<TypedValue, E> {
        Ok(TypedValue::Null)
    }

    fn visit_bool<E: de::Error>(self, flag: bool) -> Result<TypedValue, E> {
        Ok(TypedValue::Flag(flag))
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<TypedValue, E> {
        Ok(TypedValue::Number(number))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<TypedValue, E> {
        Ok(TypedValue::Text(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<TypedValue, A::Error> {
        let mut all = Vec::new();
        while let Some(one) = list.next_element()? {
            all.push(one);
        }
        Ok(TypedValue::List(all))
    }
}
