//! G1, G6, G10 and G17 through `after`: what is refused of one guest never gives another a step, keeps its causes, and does
//! not hang on the order of ids.

use serde_json::{Value, json};

use converger_core::testing::World;

use crate::{check, guest, row, scene, verdict, without};

/// 200 is to be stopped, and 100, which comes after it, is declared running and down.
fn contradiction(app: Value) -> World {
    let guests = json!([guest(100, "app", json!({ "state": "running", "after": [200] })), guest(200, "db", json!({ "state": "stopped" }))]);
    scene(guests, json!([app, row(200, "db", "running", json!({}))]))
}

#[test]
fn g10_a_refusal_that_spreads_keeps_its_causes() {
    let world = contradiction(row(100, "app", "stopped", json!({})));
    check(&world, 200, "refused: dependent-running");
    check(&world, 100, "refused: dependency-refused");
}

#[test]
fn g17_a_refused_start_does_not_free_the_stop_of_another() {
    let app = row(100, "app", "stopped", json!({}));
    let before = verdict(&contradiction(app.clone()), 200);
    for guard in ["lock", "ha", "template", "protection", "tags", "pending"] {
        let after = verdict(&contradiction(without(app.clone(), guard)), 200);
        assert!(after == before || after.starts_with("refused: "), "{guard} hidden: {before:?} becomes {after:?}");
    }
}

/// The verdict does not hang on which of the two has the smaller id.
#[test]
fn g6_ids_do_not_decide_who_may_stop() {
    let guests = json!([guest(100, "db", json!({ "state": "stopped" })), guest(200, "app", json!({ "state": "running", "after": [100] }))]);
    let world = scene(guests, json!([row(100, "db", "running", json!({})), row(200, "app", "stopped", json!({}))]));
    let other = contradiction(row(100, "app", "stopped", json!({})));
    check(&world, 100, &verdict(&other, 200));
    check(&world, 200, &verdict(&other, 100));
}

#[test]
fn g1_a_stop_does_not_rely_on_the_last_status_from_a_silent_node() {
    let guests = json!([guest(100, "db", json!({ "state": "stopped" })), guest(101, "app", json!({ "after": [100] }))]);
    let db = row(100, "db", "running", json!({}));
    check(&scene(guests.clone(), json!([db, row(101, "app", "stopped", json!({}))])), 100, "steps: shutdown");
    check(&scene(guests.clone(), json!([db, row(101, "app", "stopped", json!({ "node": "pve2" }))])), 100, "refused: dependent-running");
    check(&scene(guests, json!([db, row(101, "somebody-else", "stopped", json!({}))])), 100, "refused: dependent-running");
}

/// 100 is locked, and its declared value is in effect but pending to be lost; 101 comes after it.
#[test]
fn g17_hiding_what_waits_does_not_free_those_that_come_after() {
    let guests =
        json!([guest(100, "db", json!({ "config": { "cores": 2 } })), guest(101, "app", json!({ "state": "running", "after": [100] }))]);
    let db = row(100, "db", "running", json!({ "lock": "backup", "pending": [{ "key": "cores", "value": 4 }] }));
    let app = row(101, "app", "stopped", json!({}));
    check(&scene(guests.clone(), json!([db, app])), 101, "refused: dependency-refused");
    check(&scene(guests, json!([without(db, "pending"), app])), 101, "refused: dependency-refused");
}
