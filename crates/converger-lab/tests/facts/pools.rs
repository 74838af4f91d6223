//! Pools: membership and refused changes.

use serde_json::{Value, json};

use crate::lab::{FactsLab, SMALL};

fn lab_with_pools(flavour: u8) -> FactsLab {
    FactsLab::new(&format!("{SMALL}flavour: {flavour}\npools: {{ p: {{ guests: [100], storages: [tank] }}, q: {{}} }}\n"))
}

fn list_members(lab: &mut FactsLab, path: &str) -> Vec<String> {
    let pool = lab.get(path);
    let ids = pool["members"].as_array().into_iter().flatten().map(|member| member["id"].clone());
    ids.map(|id: Value| id.as_str().unwrap_or_default().to_owned()).collect()
}

#[test]
fn pool_members_can_be_filtered_by_type() {
    let mut lab = lab_with_pools(9);
    assert_eq!(list_members(&mut lab, "/pools/p"), ["qemu/100", "storage/pve1/tank"]);
    assert_eq!(list_members(&mut lab, "/pools/p?type=storage"), ["storage/pve1/tank"]);
    assert_eq!(list_members(&mut lab, "/pools/p?type=lxc"), Vec::<String>::new());
    let storage = lab.get("/pools/p")["members"][1].clone();
    assert_eq!((&storage["type"], &storage["storage"]), (&json!("storage"), &json!("tank")));
}

#[test]
fn duplicate_joins_and_removals_of_non_members_are_refused() {
    let mut lab = lab_with_pools(9);
    let mut error = |form: &str| lab.request_error("PUT", "/pools/p", form);
    assert_eq!(error("vms=100"), "500 update pools failed: VM 100 is already a pool member");
    assert_eq!(error("vms=200&delete=1"), "500 update pools failed: VM 200 is not a pool member");
    assert_eq!(error("storage=tank"), "500 update pools failed: Storage 'tank' is already a pool member");
    assert_eq!(error("storage=local&delete=1"), "500 update pools failed: Storage 'local' is not a pool member");
    lab.run_ok("PUT", "/pools/p", "vms=100&storage=tank&delete=1");
    assert_eq!(list_members(&mut lab, "/pools/p"), Vec::<String>::new());
}

#[test]
fn guests_are_in_one_pool_and_move_only_with_allow_move() {
    let taken = "500 update pools failed: VM 100 belongs already to pool 'p'";
    assert_eq!(lab_with_pools(7).request_error("PUT", "/pools/q", "vms=100"), taken);
    let mut lab = lab_with_pools(8);
    assert_eq!(lab.request_error("PUT", "/pools/q", "vms=100"), format!("{taken} and allow-move is not set"));
    lab.run_ok("PUT", "/pools/q", "vms=100&allow-move=1");
    assert_eq!(
        (list_members(&mut lab, "/pools/p"), list_members(&mut lab, "/pools/q")),
        (vec!["storage/pve1/tank".to_owned()], vec!["qemu/100".to_owned()])
    );
}

#[test]
fn only_empty_pools_can_be_deleted() {
    let mut lab = lab_with_pools(9);
    assert_eq!(lab.request_error("DELETE", "/pools/p", ""), "500 delete pool failed: pool 'p' is not empty (contains VM 100)");
    lab.run_ok("PUT", "/pools/p", "vms=100&delete=1");
    assert_eq!(lab.request_error("DELETE", "/pools/p", ""), "500 delete pool failed: pool 'p' is not empty (contains storage 'tank')");
    lab.run_ok("PUT", "/pools/p", "storage=tank&delete=1");
    lab.run_ok("DELETE", "/pools/p", "");
    assert_eq!(lab.request_error("GET", "/pools/p", ""), "500 pool 'p' does not exist");
}
