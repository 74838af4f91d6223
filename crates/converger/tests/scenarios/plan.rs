//! Invariants of every plan, checked on its JSON, as other programs read it.

use converger_core::artifact::Digest;
use serde_json::Value;

/// The contradictions in a plan. `value` has its members in order.
pub(crate) fn find_contradictions(value: &Value) -> Vec<String> {
    let mut faults = Vec::new();
    let mut hold = |holds: bool, sentence: &str| {
        if !holds {
            faults.push(format!("the plan contradicts itself: {sentence}"));
        }
    };
    let found = Digest::of_bytes(value["body"].to_string().as_bytes()).to_string();
    hold(value["digest"] == Value::String(found), "its digest is not that of its body");
    let guests = as_list(&value["body"]["guests"]);
    let judged = as_list(&value["judgement"]["guests"]);
    let of = |verdict: &'static str| guests.iter().filter(move |guest| guest["verdict"] == verdict);
    let is_judged = |guest: &Value| judged.iter().any(|row| row["vmid"] == guest["vmid"]);
    hold(of("refused").all(|guest| !as_list(&guest["refusals"]).is_empty()), "a guest is refused without a cause");
    hold(of("steps").all(|guest| !as_list(&guest["steps"]).is_empty()), "a guest is to be changed without a step");
    hold(of("converged").all(|guest| guest.get("steps").is_none()), "a converged guest has steps");
    hold(judged.iter().all(|row| !as_list(&row["refusals"]).is_empty()), "its judgement refuses a guest without a cause");
    hold(of("steps").filter(|guest| is_judged(guest)).count() == judged.len(), "its judgement refuses a guest without steps");
    let steps = of("steps").filter(|guest| !is_judged(guest)).map(|guest| as_list(&guest["steps"]).len()).sum();
    let refused = of("refused").count() + judged.len();
    let counts = [("guests", guests.len()), ("converged", of("converged").count()), ("refused", refused), ("steps", steps)];
    for (name, count) in counts {
        hold(value["summary"][name] == count, &format!("the summary does not count its {name}"));
    }
    faults
}

/// The exit code of a command that shows this plan: a refusal outweighs pending changes.
pub(crate) fn exit_code(value: &Value) -> i32 {
    let has = |name: &str| value["summary"][name] != 0;
    let run_wide = [&value["body"]["refusals"], &value["judgement"]["refusals"]];
    if has("refused") || run_wide.iter().any(|refusals| !as_list(refusals).is_empty()) {
        3
    } else if has("steps") {
        4
    } else {
        0
    }
}

fn as_list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

#[test]
fn detects_a_plan_that_contradicts_itself() {
    let mut plan: Value = serde_json::from_str(
        r#"{"body": {"guests": [{"vmid": 100, "verdict": "refused", "refusals": [{}]}, {"vmid": 101, "verdict": "steps", "steps": [{}]},
            {"vmid": 102, "verdict": "converged"}]}, "summary": {"guests": 3, "converged": 1, "refused": 1, "steps": 1},
            "judgement": {"guests": [], "refusals": []}}"#,
    )
    .expect("JSON");
    plan["digest"] = Digest::of_bytes(plan["body"].to_string().as_bytes()).to_string().into();
    assert_eq!(find_contradictions(&plan), Vec::<String>::new());
    assert_eq!(exit_code(&plan), 3);
    for (path, forged) in [
        ("/digest", "sha256:0".into()),
        ("/summary/steps", 2.into()),
        ("/body/guests/0/refusals", Value::Array(Vec::new())),
        ("/body/guests/1/steps", Value::Array(Vec::new())),
        ("/judgement/guests", serde_json::json!([{ "vmid": 101, "refusals": [{}] }])),
        ("/judgement/guests", serde_json::json!([{ "vmid": 102, "refusals": [{}] }])),
    ] {
        let mut changed = plan.clone();
        *changed.pointer_mut(path).expect("it is there") = forged;
        assert!(!find_contradictions(&changed).is_empty(), "{path}");
    }
}
