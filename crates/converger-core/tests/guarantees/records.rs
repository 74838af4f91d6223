//! G7 and G10: a plan does not depend on whether its observation was recorded, and every refusal is a record with a code, evidence and a
//! remedy.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use converger_core::artifact::{Provenance, write_plan};
use converger_core::policy::{Circumstances, Limits};
use converger_core::refusal::{RefusalCode, RefusalStage, TABLE};
use converger_core::safety::judge;
use converger_core::testing::{Rng, TestWorld};

use crate::{body_json, desired_guest, observed_row, world_of};

fn judged_plan_json(world: &TestWorld, limits: Limits, circumstances: Circumstances, provenance: Provenance) -> Value {
    let judged = judge(world.parse().expect("it parses").plan(), limits, circumstances);
    let mut bytes = Vec::new();
    write_plan(&mut bytes, &judged, provenance).expect("memory takes it");
    serde_json::from_slice(&bytes).expect("JSON")
}

#[test]
fn g7_provenance_is_outside_the_body() {
    let mut rng = Rng::new(7);
    for _ in 0..200 {
        let world = TestWorld::random_small(&mut rng);
        let of = |provenance| judged_plan_json(&world, Limits::default(), Circumstances::default(), provenance);
        let (mut live, mut replay) = (of(Provenance::Live), of(Provenance::Replay));
        assert_eq!((&live["provenance"], &replay["provenance"]), (&json!("live"), &json!("replay")));
        assert_eq!((&live["body"], &live["digest"]), (&replay["body"], &replay["digest"]));
        assert!(!live["body"].to_string().contains("provenance"));
        live["provenance"] = Value::Null;
        replay["provenance"] = Value::Null;
        assert_eq!(live, replay);
    }
}

#[test]
fn g7_observer_and_time_are_outside_the_body() {
    let declared = json!([desired_guest(100, "web", json!({ "state": "running" }))]);
    let mut world = world_of(declared, json!([observed_row(100, "web", "stopped", json!({}))]));
    let expected = body_json(&world);
    for (source, taken_at) in [("proxmox", "2026-11-15T12:00:00Z"), ("replay", "1970-01-01T00:00:00Z")] {
        world.observation["source"] = json!(source);
        world.observation["taken_at"] = json!(taken_at);
        assert_eq!(body_json(&world), expected);
    }
}

fn list_refusals(plan: &Value) -> Vec<Value> {
    let lists = plan["guests"].as_array().into_iter().flatten().map(|guest| &guest["refusals"]);
    let all = lists.chain([&plan["refusals"]]).flat_map(|list| list.as_array().into_iter().flatten());
    all.cloned().collect()
}

fn check_refusal_record(refusal: &Value) {
    let keys: Vec<&String> = refusal.as_object().expect("a record").keys().collect();
    assert_eq!(keys, ["code", "evidence", "remedy", "stage"], "{refusal}");
    let code = refusal["code"].as_str().and_then(RefusalCode::from_word).unwrap_or_else(|| panic!("no such code: {refusal}"));
    assert_eq!(refusal["remedy"], code.entry().remedy);
    assert_eq!(refusal["stage"], code.entry().stage.word());
    let evidence = refusal["evidence"].as_object().unwrap_or_else(|| panic!("no evidence: {refusal}"));
    // For these codes there is nothing to add as evidence.
    let has_no_evidence =
        [RefusalCode::NotQuorate, RefusalCode::ObservationIncomplete, RefusalCode::GuestMissing, RefusalCode::GuestTemplate]
            .contains(&code);
    assert_eq!(evidence.is_empty(), has_no_evidence, "{refusal}");
}

#[test]
fn g10_every_refusal_has_code_evidence_and_remedy() {
    let mut rng = Rng::new(10);
    let mut codes = BTreeSet::new();
    for _ in 0..3_000 {
        let world = TestWorld::random_small(&mut rng);
        let none = Limits { guests: 0, percent: 0, stops: 0 };
        let document = judged_plan_json(
            &world,
            none,
            Circumstances { freeze: Some("audit week".into()), ..Circumstances::default() },
            Provenance::Live,
        );
        for refusal in list_refusals(&document["body"]).iter().chain(document["judgement"]["refusals"].as_array().into_iter().flatten()) {
            check_refusal_record(refusal);
            codes.extend(refusal["code"].as_str().map(str::to_owned));
        }
    }
    // All codes that the planner and the judgement can give for a desired state. Those of requests are in `plan::request_tests`.
    let expected = TABLE.iter().filter(|entry| {
        let is_of_request = entry.code >= RefusalCode::SnapshotExists;
        entry.stage != RefusalStage::Apply && entry.code != RefusalCode::GuaranteeBroken && !is_of_request
    });
    assert_eq!(codes, expected.map(|entry| entry.word.to_owned()).collect());
}

#[test]
fn g10_all_causes_are_named() {
    let declared = desired_guest(100, "prod-db", json!({ "state": "stopped", "config": { "tags": ["web"], "balloon": "1GiB" } }));
    let seen = observed_row(
        100,
        "prod-db",
        "running",
        json!({ "lock": "backup", "template": true, "ha": { "state": "started" }, "tags": ["prod", "converger-hold"],
            "pending": [{ "key": "net0" }], "protection": true }),
    );
    let all = "refused: guest-locked, guest-template, ha-owned, guest-held, config-pending, unsupported-change, protected-guest, protection-change";
    crate::check_verdict(&world_of(json!([declared]), json!([seen])), 100, all);
}

#[test]
fn g10_refused_guests_are_never_omitted() {
    let mut rng = Rng::new(11);
    for _ in 0..500 {
        let world = TestWorld::random_small(&mut rng);
        let plan = body_json(&world);
        let planned: BTreeSet<u64> = plan["guests"].as_array().into_iter().flatten().filter_map(|guest| guest["vmid"].as_u64()).collect();
        let declared: BTreeSet<u64> =
            world.desired["guests"].as_array().into_iter().flatten().filter_map(|guest| guest["vmid"].as_u64()).collect();
        assert_eq!(planned, declared);
    }
}
