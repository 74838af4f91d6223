//! Operations of random plans, and random outcomes, for tests of crates that store or execute them.

use serde_json::{Value as Json, json};

use super::{HOSTILE_TEXTS, Rng, TestWorld};
use crate::apply::{
    EnvironmentBinding, Evidence, Fact, Findings, IdempotencyKey, Operation, OperationEnd, OperationId, OperationSource, OperationTarget,
    Outcome, ReleaseCondition, RunId, Slug,
};
use crate::approve::ApprovalMode;
use crate::artifact::Digest;
use crate::evidence::{DecisionInputs, EffectiveConfig};
use crate::guest::{ClusterIdentity, EnvironmentName, Vmid};
use crate::plan::{Plan, Verdict};
use crate::policy::{Limits, Rules};

/// The operations of a plan, with ids that begin with `name`; one in four is one-shot.
#[must_use]
pub fn operations_of_plan(rng: &mut Rng, plan: &Plan, name: &str) -> Vec<Operation> {
    let Some(run) = RunId::new(name) else { return Vec::new() };
    let digest = Digest::of_bytes(&super::plan_body(plan));
    let mut operations = Vec::new();
    for (guest, verdict) in plan.guests() {
        let (Verdict::Steps(steps), Some(target)) = (verdict, OperationTarget::from_plan(plan, guest)) else { continue };
        for (position, step) in (0..).zip(steps) {
            let Some(id) = OperationId::new(&format!("{name}-{}", operations.len())) else { continue };
            let source = if rng.one_in(4) { one_shot(rng, &id) } else { OperationSource::Convergent };
            let environment = plan.desired().environment().clone();
            operations.push(Operation::new(id, run.clone(), environment, target.clone(), step.clone(), position, digest, source));
        }
    }
    operations
}

fn one_shot(rng: &mut Rng, id: &OperationId) -> OperationSource {
    let request = Digest::of_bytes(&rng.next_u64().to_be_bytes());
    IdempotencyKey::new(&format!("key-{id}")).map_or(OperationSource::Convergent, |key| OperationSource::OneShot { key, request })
}

/// The operations of a small random world that has some. `name` is the run id and the prefix of their ids.
#[must_use]
pub fn some_operations(rng: &mut Rng, name: &str) -> Vec<Operation> {
    loop {
        let drawn = TestWorld::random_small(rng).parse().map(|inputs| operations_of_plan(rng, &inputs.plan(), name));
        if let Ok(drawn) = drawn
            && !drawn.is_empty()
        {
            return drawn;
        }
    }
}

/// Decision inputs for tests that do not look at them.
#[must_use]
pub fn some_inputs() -> DecisionInputs {
    let [config, intent, observation, rules, catalogue] =
        ["config", "intent", "observation", "rules", "catalogue"].map(|text| Digest::of_bytes(text.as_bytes()));
    DecisionInputs { program: "0.1.0".into(), planner: 1, config, intent, observation, rules, catalogue }
}

/// The binding of an environment; each environment gets its own cluster.
#[must_use]
pub fn some_binding(environment: &EnvironmentName) -> EnvironmentBinding {
    let digest = Digest::of_bytes(environment.as_str().as_bytes()).to_string();
    let digits: Vec<char> = digest.chars().rev().take(64).collect();
    let pairs: Vec<String> = digits.chunks(2).map(|pair| pair.iter().collect()).collect();
    let cluster = ClusterIdentity::parse(&pairs.join(":")).unwrap_or_else(|| unreachable!("a digest has 32 bytes"));
    EnvironmentBinding { environment: environment.clone(), cluster, by: "ann".into(), at_ms: 1 }
}

/// A configuration with these rules, limits and mode, in its stored form.
#[must_use]
pub fn some_config(rules: &Rules, limits: Limits, mode: Option<ApprovalMode>) -> Vec<u8> {
    let Limits { guests, percent, stops } = limits;
    let mode = mode.map(|mode| if mode == ApprovalMode::Solo { "solo" } else { "shared" });
    let own = json!({ "mode": mode, "protect": { "ids": rules.ids(), "names": rules.names(), "tags": rules.tags() } });
    json!({ "environments": { "lab": own }, "limits": { "guests": guests, "percent": percent, "stops": stops } }).to_string().into_bytes()
}

/// Parses a configuration of [`some_config`]. The program has its own parser, which accepts everything that people write.
///
/// # Errors
/// The bytes are not from [`some_config`].
pub fn parse_config(bytes: &[u8]) -> Result<EffectiveConfig, String> {
    let config: Json = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    let name =
        config.pointer("/environments").and_then(Json::as_object).and_then(|all| all.keys().next()).ok_or("it has no environment")?;
    let (own, list) =
        (&format!("/environments/{name}"), |pointer: &str| config.pointer(pointer).and_then(Json::as_array).into_iter().flatten());
    let texts = |name: &str| list(&format!("{own}/protect/{name}")).filter_map(|text| text.as_str().map(str::to_owned)).collect();
    let ids = list(&format!("{own}/protect/ids")).filter_map(|id| Vmid::new(id.as_u64()?)).collect();
    let number = |name: &str| config.pointer(&format!("/limits/{name}")).and_then(Json::as_u64);
    let limit = |name: &str| number(name).and_then(|limit| u32::try_from(limit).ok()).ok_or("it has no limits");
    let mode = config.pointer(&format!("{own}/mode")).and_then(Json::as_str);
    Ok(EffectiveConfig {
        environment: EnvironmentName::new(name),
        limits: Limits { guests: limit("guests")?, percent: limit("percent")?, stops: limit("stops")? },
        rules: Rules::new(ids, texts("names"), texts("tags")),
        is_frozen: config.pointer("/freeze/on") == Some(&Json::Bool(true)),
        mode: mode.map(|mode| if mode == "solo" { ApprovalMode::Solo } else { ApprovalMode::Shared }),
    })
}

/// An outcome of any kind, with hostile texts in its evidence.
#[must_use]
pub fn random_outcome(rng: &mut Rng) -> Outcome {
    let end = rng.pick(&OperationEnd::ALL).copied().unwrap_or(OperationEnd::Done);
    random_outcome_with_end(rng, end)
}

/// A random outcome of this kind.
#[must_use]
pub fn random_outcome_with_end(rng: &mut Rng, end: OperationEnd) -> Outcome {
    let findings = Findings { evidence: random_evidence(rng), observed: random_evidence(rng) };
    let Some(code) = Slug::new(rng.pick_word(&["task-lost", "timeout", "guest-locked", "plan-stale"])) else {
        return Outcome::Done(findings);
    };
    match end {
        OperationEnd::Done => Outcome::Done(findings),
        OperationEnd::Failed => Outcome::Failed { code, findings },
        OperationEnd::Refused => Outcome::Refused { code, findings },
        OperationEnd::Held => {
            let release = rng.pick(&ReleaseCondition::ALL).copied().unwrap_or(ReleaseCondition::Person);
            Outcome::Held { code, release, findings }
        }
        OperationEnd::NotRun => Outcome::NotRun { code, findings },
    }
}

fn random_evidence(rng: &mut Rng) -> Evidence {
    let keys = ["cause", "cores", "exit_status", "seen.at", "status", "tags"];
    let count = rng.below(4);
    (0..count).fold(Evidence::default(), |evidence, _| {
        let fact = match rng.below(3) {
            0 => Fact::from(rng.next_u64() >> rng.below(64)),
            1 => Fact::from(rng.pick_word(HOSTILE_TEXTS)),
            _ => Fact::Words((0..rng.below(3)).map(|_| rng.pick_word(HOSTILE_TEXTS).into()).collect()),
        };
        evidence.with(rng.pick_word(&keys), fact)
    })
}
