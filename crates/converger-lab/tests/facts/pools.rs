//! Pools: who is in them, and what they refuse.

use serde_json::{Value, json};

use crate::lab::{Lab, SMALL};

fn lab(flavour: u8) -> Lab {
    Lab::new(&format!("{SMALL}flavour: {flavour}\npools: {{ p: {{ guests: [100], storages: [tank] }}, q: {{}} }}\n"))
}

fn members(lab: &mut Lab, path: &str) -> Vec<String> {
    let pool = lab.get(path);
    let ids = pool["members"].as_array().into_iter().flatten().map(|member| member["id"].clone());
    ids.map(|id: Value| id.as_str().unwrap_or_default().to_owned()).collect()
}

#[test]
fn guests_and_storages_are_members_and_can_be_asked_for_by_type() {
    let mut lab = lab(9);
    assert_eq!(members(&mut lab, "/pools/p"), ["qemu/100", "storage/pve1/tank"]);
    assert_eq!(members(&mut lab, "/pools/p?type=storage"), ["storage/pve1/tank"]);
    assert_eq!(members(&mut lab, "/pools/p?type=lxc"), Vec::<String>::new());
    let storage = lab.get("/pools/p")["members"][1].clone();
    assert_eq!((&storage["type"], &storage["storage"]), (&json!("storage"), &json!("tank")));
}

#[test]
fn nobody_joins_twice_or_leaves_where_he_is_not() {
    let mut lab = lab(9);
    let mut error = |form: &str| lab.error("PUT", "/pools/p", form);
    assert_eq!(error("vms=100"), "500 update pools failed: VM 100 is already a pool member");
    assert_eq!(error("vms=200&delete=1"), "500 update pools failed: VM 200 is not a pool member");
    assert_eq!(error("storage=tank"), "500 update pools failed: Storage 'tank' is already a pool member");
    assert_eq!(error("storage=local&delete=1"), "500 update pools failed: Storage 'local' is not a pool member");
    lab.done("PUT", "/pools/p", "vms=100&storage=tank&delete=1");
    assert_eq!(members(&mut lab, "/pools/p"), Vec::<String>::new());
}

#[test]
fn a_guest_is_in_one_pool_and_moves_only_where_that_is_said() {
    let taken = "500 update pools failed: VM 100 belongs already to pool 'p'";
    assert_eq!(lab(7).error("PUT", "/pools/q", "vms=100"), taken);
    let mut lab = lab(8);
    assert_eq!(lab.error("PUT", "/pools/q", "vms=100"), format!("{taken} and allow-move is not set"));
    lab.done("PUT", "/pools/q", "vms=100&allow-move=1");
    assert_eq!(
        (members(&mut lab, "/pools/p"), members(&mut lab, "/pools/q")),
        (vec!["storage/pve1/tank".to_owned()], vec!["qemu/100".to_owned()])
    );
}

#[test]
fn only_an_empty_pool_can_go() {
    let mut lab = lab(9);
    assert_eq!(lab.error("DELETE", "/pools/p", ""), "500 delete pool failed: pool 'p' is not empty (contains VM 100)");
    lab.done("PUT", "/pools/p", "vms=100&delete=1");
    assert_eq!(lab.error("DELETE", "/pools/p", ""), "500 delete pool failed: pool 'p' is not empty (contains storage 'tank')");
    lab.done("PUT", "/pools/p", "storage=tank&delete=1");
    lab.done("DELETE", "/pools/p", "");
    assert_eq!(lab.error("GET", "/pools/p", ""), "500 pool 'p' does not exist");
}
