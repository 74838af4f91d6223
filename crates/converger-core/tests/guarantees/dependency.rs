//! G1, G6, G10 and G17 through `after`: refusing one guest never gives another one a step, keeps all refusals, and does not depend on the
//! order of ids.

use serde_json::{Value, json};

use converger_core::testing::TestWorld;

use crate::{check_verdict, describe_verdict, desired_guest, observed_row, remove_member, world_of};

/// 200 is declared stopped, and its dependent 100 is declared running but stopped.
fn contradicting_world(app: Value) -> TestWorld {
    let guests = json!([
        desired_guest(100, "app", json!({ "state": "running", "after": [200] })),
        desired_guest(200, "db", json!({ "state": "stopped" }))
    ]);
    world_of(guests, json!([app, observed_row(200, "db", "running", json!({}))]))
}

#[test]
fn g10_propagated_refusals_keep_their_causes() {
    let world = contradicting_world(observed_row(100, "app", "stopped", json!({})));
    check_verdict(&world, 200, "refused: dependent-running");
    check_verdict(&world, 100, "refused: dependency-refused");
}

#[test]
fn g17_refused_start_does_not_allow_another_guest_to_stop() {
    let app = observed_row(100, "app", "stopped", json!({}));
    let before = describe_verdict(&contradicting_world(app.clone()), 200);
    for guard in ["lock", "ha", "template", "protection", "tags", "pending"] {
        let after = describe_verdict(&contradicting_world(remove_member(app.clone(), guard)), 200);
        assert!(after == before || after.starts_with("refused: "), "{guard} hidden: {before:?} becomes {after:?}");
    }
}

/// The verdict does not depend on which of the two has the smaller id.
#[test]
fn g6_ids_do_not_decide_which_guest_may_stop() {
    let guests = json!([
        desired_guest(100, "db", json!({ "state": "stopped" })),
        desired_guest(200, "app", json!({ "state": "running", "after": [100] }))
    ]);
    let world = world_of(guests, json!([observed_row(100, "db", "running", json!({})), observed_row(200, "app", "stopped", json!({}))]));
    let other = contradicting_world(observed_row(100, "app", "stopped", json!({})));
    check_verdict(&world, 100, &describe_verdict(&other, 200));
    check_verdict(&world, 200, &describe_verdict(&other, 100));
}

#[test]
fn g1_stop_does_not_rely_on_a_status_from_an_offline_node() {
    let guests = json!([desired_guest(100, "db", json!({ "state": "stopped" })), desired_guest(101, "app", json!({ "after": [100] }))]);
    let db = observed_row(100, "db", "running", json!({}));
    check_verdict(&world_of(guests.clone(), json!([db, observed_row(101, "app", "stopped", json!({}))])), 100, "steps: shutdown");
    check_verdict(
        &world_of(guests.clone(), json!([db, observed_row(101, "app", "stopped", json!({ "node": "pve2" }))])),
        100,
        "refused: dependent-running",
    );
    check_verdict(
        &world_of(guests, json!([db, observed_row(101, "somebody-else", "stopped", json!({}))])),
        100,
        "refused: dependent-running",
    );
}

/// 100 is locked, and its declared value is in effect but a pending change would replace it; 101 comes after it.
#[test]
fn g17_hiding_pending_changes_does_not_give_dependents_a_step() {
    let guests = json!([
        desired_guest(100, "db", json!({ "config": { "cores": 2 } })),
        desired_guest(101, "app", json!({ "state": "running", "after": [100] }))
    ]);
    let db = observed_row(100, "db", "running", json!({ "lock": "backup", "pending": [{ "key": "cores", "value": 4 }] }));
    let app = observed_row(101, "app", "stopped", json!({}));
    check_verdict(&world_of(guests.clone(), json!([db, app])), 101, "refused: dependency-refused");
    check_verdict(&world_of(guests, json!([remove_member(db, "pending"), app])), 101, "refused: dependency-refused");
}
