//! An admission is checked by its evidence only: an honest bundle gives the recorded answer, a refusal stays a refusal, and changed
//! evidence is distinguished from both.

use std::collections::{BTreeMap, BTreeSet};

use converger_core::approve::{Admission, Admitted, ApprovalMode, Confirmation, RefusedGuestPolicy, admit};
use converger_core::artifact::{Digest, Provenance};
use converger_core::evidence::{
    Admissibility, AdmissionBundle, AdmissionGate, Decision, DecisionPart, EvidenceFault, PolicyDecision, ReproduceError,
    check_admissibility, record_decision,
};
use converger_core::failure::FailureCode;
use converger_core::policy::{Circumstances, Limits};
use converger_core::refusal::Refusal;
use converger_core::safety::{Judged, judge};
use converger_core::testing::{Rng, parse_config, some_config};

use crate::holds::random_holds;
use crate::{PropertyCase, random_cases};

const SEED: u64 = 91;
const ADMISSIONS: u64 = 3_000;
/// A minute after the observations of random worlds.
const NOW_SECS: u64 = 1_794_744_060;

#[derive(Clone)]
pub(crate) struct AdmissionFixture {
    pub(crate) bundle: AdmissionBundle,
    pub(crate) blobs: BTreeMap<Digest, Vec<u8>>,
    pub(crate) is_approved: bool,
}

impl AdmissionFixture {
    fn check_bundle(&self, bundle: &AdmissionBundle) -> Admissibility {
        check_admissibility(&bundle.to_canonical_json().expect("memory takes it"), |digest| self.blobs.get(&digest).cloned(), parse_config)
    }
}

fn random_admission(rng: &mut Rng, plan: Digest, names: Vec<Box<str>>) -> Admission {
    let by = || "ann@desk".into();
    let other = Digest::of_bytes(b"another plan");
    let confirmation = match rng.below(5) {
        0 if rng.one_in(2) => Confirmation::Declined { by: by() },
        0 => Confirmation::None,
        1 => Confirmation::FullDigest { by: by(), digest: if rng.one_in(4) { other } else { plan } },
        2 => Confirmation::Typed { by: by(), names: Vec::new() },
        _ => Confirmation::Typed { by: by(), names },
    };
    Admission {
        mode: ApprovalMode::Solo,
        provenance: if rng.one_in(8) { Provenance::Replay } else { Provenance::Live },
        confirmation,
        refused: if rng.one_in(3) { RefusedGuestPolicy::StopRun } else { RefusedGuestPolicy::LeaveOut },
        now_ms: (NOW_SECS + if rng.one_in(8) { 3_600 } else { 0 }) * 1000,
        age_secs_max: Admission::AGE_SECS_MAX,
    }
}

/// Does what a run does: plans, judges, admits, and records the evidence.
pub(crate) fn admit_case(case: &PropertyCase) -> AdmissionFixture {
    let (rng, inputs) = (&mut Rng::new(case.number ^ SEED), case.inputs());
    let limits = if rng.one_in(4) { Limits { guests: 1, percent: 50, stops: 0 } } else { Limits::default() };
    let circumstances = Circumstances {
        cluster: None,
        epoch: None,
        freeze: rng.one_in(8).then(|| "a move".to_owned()),
        holds: random_holds(rng, &inputs.desired),
    };
    let judged = judge(inputs.plan(), limits, circumstances);
    let mode = if rng.one_in(8) { ApprovalMode::Shared } else { ApprovalMode::Solo };
    let config = some_config(&inputs.rules, limits, Some(mode));
    let record = record_decision(&judged, "0.1.0", config).expect("memory takes it");
    let names = inputs.desired.guests().iter().filter_map(|guest| judged.plan().name_of(guest)).map(Into::into).collect();
    let admission = Admission { mode, ..random_admission(rng, record.proposal, names) };
    let causes: Vec<Refusal> = match judged {
        Judged::Refused(_) => judged.judgement().refusals().iter().chain(judged.plan().refusals()).cloned().collect(),
        Judged::Safe(safe) => match admit(safe, &admission).expect("memory takes it") {
            Admitted::Approved(_) => Vec::new(),
            Admitted::Refused(causes) => causes,
        },
    };
    let decision = Decision { inputs: record.inputs, plan: record.plan, judgement: record.judgement };
    let bundle = AdmissionBundle::new("ann@desk", decision, record.proposal, admission, &causes);
    let blobs = record.blobs.into_iter().map(|bytes| (Digest::of_bytes(&bytes), bytes)).collect();
    AdmissionFixture { bundle, blobs, is_approved: causes.is_empty() }
}

#[test]
fn unchanged_bundle_gives_the_recorded_answer() {
    let mut seen = BTreeSet::new();
    for case in random_cases(SEED, ADMISSIONS) {
        let fixture = admit_case(&case);
        let answer = fixture.check_bundle(&fixture.bundle);
        match &answer {
            Admissibility::Admissible => assert!(fixture.is_approved, "{case:?}"),
            Admissibility::Inadmissible(gates) => {
                assert!(!fixture.is_approved && !gates.is_empty(), "{case:?}");
                seen.extend(gates.clone());
            }
            _ => panic!("{case:?} {answer:?}"),
        }
        seen.insert(answer.word().to_owned());
    }
    let expected = [
        "admitted",
        "approval-missing",
        "frozen",
        "limit-guests",
        "limit-percent",
        "limit-stops",
        "no-guest-refused",
        "not-quorate",
        "observation-incomplete",
        "observation-stale",
        "refused",
        "replay-not-appliable",
    ];
    assert_eq!(seen, expected.map(str::to_owned).into(), "every gate must refuse in some case, and all must pass in some case");
}

fn is_integrity_violation(answer: &Admissibility) -> bool {
    matches!(answer, Admissibility::Broken(broken) if broken.code == FailureCode::IntegrityViolation)
}

/// A gate that refused and is removed, or any gate that is duplicated or inverted.
#[test]
fn removed_refusals_and_duplicated_or_changed_gates_are_detected() {
    for case in random_cases(SEED + 1, ADMISSIONS / 30) {
        let fixture = admit_case(&case);
        let honest = fixture.check_bundle(&fixture.bundle);
        for at in 0..fixture.bundle.gates.len() {
            let [mut removed, mut duplicated, mut inverted] = [(); 3].map(|()| fixture.bundle.clone());
            let gate = removed.gates.remove(at);
            duplicated.gates.insert(at, gate.clone());
            let result = &mut inverted.gates[at].result;
            *result = if result == "passed" { "refused" } else { "passed" }.into();
            for bundle in [duplicated, inverted] {
                let answer = fixture.check_bundle(&bundle);
                assert!(is_integrity_violation(&answer), "{case:?} {at} {answer:?}");
            }
            // A program without this gate would have recorded the same, unless the gate refuses.
            let answer = fixture.check_bundle(&removed);
            let is_expected = if gate.result == "refused" { is_integrity_violation(&answer) } else { answer == honest };
            assert!(is_expected, "{case:?} {at} {answer:?}");
        }
    }
}

#[test]
fn a_gate_or_policy_that_this_program_does_not_have_is_undecidable() {
    for case in random_cases(SEED + 7, ADMISSIONS / 30) {
        let fixture = admit_case(&case);
        let mut later = fixture.bundle.clone();
        let at = later.gates.partition_point(|gate| *gate.id < *"later-gate");
        later.gates.insert(at, AdmissionGate { id: "later-gate".into(), result: "passed".into() });
        let unknown = ReproduceError::UnknownGate { gate: "later-gate".into() };
        assert_eq!(fixture.check_bundle(&later), Admissibility::Undecidable(unknown), "{case:?}");
        let (mut decided, digest) = (fixture.bundle.clone(), Digest::of_bytes(b"a policy").to_string());
        decided.policy = Some(PolicyDecision { decision: "allow".into(), digest: digest.clone() });
        assert_eq!(fixture.check_bundle(&decided), Admissibility::Undecidable(ReproduceError::UnknownPolicy { digest }), "{case:?}");
        // What contradicts the evidence is a fault, even if something else is unknown.
        if let Some(gate) = later.gates.iter_mut().find(|gate| gate.id == "frozen") {
            gate.result = if gate.result == "passed" { "refused" } else { "passed" }.into();
        }
        assert!(is_integrity_violation(&fixture.check_bundle(&later)), "{case:?}");
    }
}

#[test]
fn a_bundle_has_a_list_of_approvals() {
    let case = random_cases(SEED + 8, 1).next().expect("a case");
    let mut bundle = admit_case(&case).bundle;
    bundle.admission.confirmation = Confirmation::Typed { by: "ann@desk".into(), names: vec!["web".into()] };
    bundle.further_approvals = vec![Confirmation::FullDigest { by: "bob@desk".into(), digest: bundle.decision.plan }];
    let bytes = bundle.to_canonical_json().expect("memory takes it");
    assert_eq!(AdmissionBundle::parse(&bytes), Ok(bundle));
}

#[test]
fn a_bundle_of_the_earlier_format_is_refused_with_its_name() {
    let case = random_cases(SEED + 8, 1).next().expect("a case");
    let text = String::from_utf8(admit_case(&case).bundle.to_canonical_json().expect("memory takes it")).expect("text");
    let earlier = text.replace("converger.bundle/2", "converger.bundle/1");
    let why = "has the format `converger.bundle/1`, and this version reads only `converger.bundle/2`".to_owned();
    assert_eq!(AdmissionBundle::parse(earlier.as_bytes()), Err(why));
}

#[test]
fn confirmation_of_another_plan_is_not_admissible() {
    for case in random_cases(SEED + 2, ADMISSIONS / 10) {
        let fixture = admit_case(&case);
        if !fixture.is_approved || !has_steps(&fixture) {
            continue;
        }
        let other = Digest::of_bytes(b"another plan");
        for confirmation in [Confirmation::None, Confirmation::FullDigest { by: "eve".into(), digest: other }] {
            let mut forged = fixture.bundle.clone();
            forged.admission.confirmation = confirmation;
            let answer = fixture.check_bundle(&forged);
            assert!(
                matches!(&answer, Admissibility::Broken(broken) if broken.code == FailureCode::IntegrityViolation),
                "{case:?} {answer:?}"
            );
        }
    }
}

/// In another mode than that of the configuration, another person would have had to approve.
#[test]
fn admission_in_another_mode_breaks_the_evidence() {
    for case in random_cases(SEED + 5, ADMISSIONS / 30) {
        let fixture = admit_case(&case);
        let mut forged = fixture.bundle.clone();
        forged.admission.mode = if forged.admission.mode == ApprovalMode::Solo { ApprovalMode::Shared } else { ApprovalMode::Solo };
        let answer = fixture.check_bundle(&forged);
        assert!(matches!(&answer, Admissibility::Broken(broken) if broken.code == FailureCode::IntegrityViolation), "{case:?} {answer:?}");
    }
}

/// Replaces the configuration of an admission with one without a mode or for another environment.
#[test]
fn admission_under_another_configuration_breaks_the_evidence() {
    for case in random_cases(SEED + 6, ADMISSIONS / 30) {
        let fixture = admit_case(&case);
        let config = String::from_utf8_lossy(&fixture.blobs[&fixture.bundle.decision.inputs.config]).into_owned();
        let mode = if fixture.bundle.admission.mode == ApprovalMode::Solo { "\"solo\"" } else { "\"shared\"" };
        let others = [
            (config.replacen(mode, "null", 1), "the configuration has no mode, or another one than the admission"),
            (config.replacen("\"lab\"", "\"prod\"", 1), "it configures another environment than that of the decision"),
        ];
        for (other, expected) in others {
            assert_ne!(other, config);
            let (mut forged, digest) = (fixture.clone(), Digest::of_bytes(other.as_bytes()));
            forged.bundle.decision.inputs.config = digest;
            forged.blobs.insert(digest, other.into_bytes());
            let answer = forged.check_bundle(&forged.bundle);
            let is_told = |broken: &EvidenceFault| broken.code == FailureCode::IntegrityViolation && broken.what.contains(expected);
            assert!(matches!(&answer, Admissibility::Broken(broken) if is_told(broken)), "{case:?} {answer:?}");
        }
    }
}

/// Whether a guest has steps that the judgement does not refuse.
fn has_steps(fixture: &AdmissionFixture) -> bool {
    let count = |digest: Digest, text: &str| String::from_utf8_lossy(&fixture.blobs[&digest]).matches(text).count();
    let judgement: serde_json::Value = serde_json::from_slice(&fixture.blobs[&fixture.bundle.decision.judgement]).expect("JSON");
    count(fixture.bundle.decision.plan, "\"verdict\":\"steps\"") > judgement["guests"].as_array().map_or(0, Vec::len)
}

#[test]
fn missing_changed_and_forged_evidence_have_distinct_codes() {
    let is = |answer: &Admissibility, code: FailureCode| matches!(answer, Admissibility::Broken(broken) if broken.code == code);
    for case in random_cases(SEED + 3, ADMISSIONS / 30) {
        let mut fixture = admit_case(&case);
        for part in DecisionPart::ALL {
            let digest = fixture.bundle.decision.digest(part);
            let whole = fixture.blobs.remove(&digest).expect("it is kept");
            assert!(is(&fixture.check_bundle(&fixture.bundle), FailureCode::EvidenceMissing), "{case:?} {part}");
            fixture.blobs.insert(digest, whole[..whole.len() - 1].to_vec());
            assert!(is(&fixture.check_bundle(&fixture.bundle), FailureCode::IntegrityViolation), "{case:?} {part}");
            fixture.blobs.insert(digest, whole);
        }
        let mut body = fixture.blobs[&fixture.bundle.decision.plan].clone();
        let at = body.windows(5).position(|window| window == b"\"lab\"").expect("the environment");
        body[at + 1] = b'L';
        let mut forged = fixture.bundle.clone();
        forged.decision.plan = Digest::of_bytes(&body);
        fixture.blobs.insert(forged.decision.plan, body);
        assert!(is(&fixture.check_bundle(&forged), FailureCode::DeterminismBreach), "{case:?}");
    }
}

/// Changing any byte of a bundle makes it invalid or inadmissible.
#[test]
fn changing_a_byte_of_a_bundle_never_admits() {
    for case in random_cases(SEED + 4, ADMISSIONS / 300) {
        let fixture = admit_case(&case);
        let bytes = fixture.bundle.to_canonical_json().expect("memory takes it");
        let honest = fixture.check_bundle(&fixture.bundle);
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            let answer = check_admissibility(&changed, |digest| fixture.blobs.get(&digest).cloned(), parse_config);
            // The ledger, not the bundle, covers the requester, the program, the time and the configuration.
            assert!(answer == honest || !matches!(answer, Admissibility::Admissible), "{case:?} at {at}");
        }
    }
}
