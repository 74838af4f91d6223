//! Guests that are selected by ranges of ids, and the inventory of all guests: lists alone, however many guests there are.

use converger_adapters::proxmox::client::ProxmoxSession;
use converger_adapters::proxmox::observe::{self, ObservationRequest, ProxmoxReading, ReadSet};
use converger_core::desired::{GuestSelection, Scope, VmidRange};
use converger_core::guest::{EnvironmentName, Vmid};
use converger_core::observe::Reading;

use crate::observe::{find_guest, running_guest, status_or_cause, three_guests};
use crate::scripted_proxmox::{ScriptedGuest, ScriptedProxmox, cluster_rows, failure_response, scope_of, stopped_guest, success_response};

fn take_selected(proxmox: &ScriptedProxmox, needs: &ReadSet, selection: &GuestSelection) -> (ProxmoxReading, Scope) {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let environment = EnvironmentName::new("lab").expect("a name");
    let (cluster, scope) = (None, selection.named_ids());
    let question = ObservationRequest { environment: &environment, cluster, token: "svc@pve!probe", scope, needs };
    runtime
        .block_on(observe::take_selected_reading(&ProxmoxSession::new(proxmox.clone()), &question, selection, &|_, _| {}))
        .expect("a reading")
}

fn take_inventory(proxmox: &ScriptedProxmox) -> ProxmoxReading {
    take_selected(proxmox, &ReadSet::Lists, &GuestSelection::all()).0
}

fn single_guest_requests(proxmox: &ScriptedProxmox) -> Vec<String> {
    let is_single = |path: &String| path.contains("/pending") || path.contains("/status/current") || path.contains("vmid=");
    proxmox.requests().into_iter().filter(is_single).collect()
}

#[test]
fn g4_an_inventory_of_a_thousand_guests_takes_five_requests_on_two_nodes() {
    let cluster = cluster_rows("lab", 1, &[("n1", 1), ("n2", 1)]);
    let guests = (100..1100).map(|vmid| (vmid, if vmid % 2 == 0 { stopped_guest(vmid, "n1") } else { running_guest(vmid, "n2") }));
    let proxmox = ScriptedProxmox::with_guests(&cluster, guests);
    let reading = take_inventory(&proxmox);
    assert_eq!((reading.observation.guests.len(), reading.notes.len()), (1000, 0));
    assert!(reading.observation.guests.iter().all(|guest| guest.source.as_deref() == Some("node-list")));
    assert_eq!((status_or_cause(&reading, 100), status_or_cause(&reading, 101)), ("stopped".into(), "running".into()));
    let requests = proxmox.requests();
    assert_eq!(requests.len(), 5, "the cluster twice, its list, and one list of each node: {requests:?}");
}

#[test]
fn g1_a_guest_that_its_node_does_not_list_stays_unknown_and_is_not_read_by_itself() {
    let gone = ScriptedGuest { own: None, ..stopped_guest(101, "n1") };
    let cluster = cluster_rows("lab", 1, &[("n1", 1)]);
    let proxmox = ScriptedProxmox::with_guests(&cluster, [(100, stopped_guest(100, "n1")), (101, gone)])
        .with_override("nodes/n1/qemu", vec![success_response(r#"[{"vmid":100,"status":"stopped","name":"g100"}]"#)]);
    let reading = take_inventory(&proxmox);
    assert_eq!((status_or_cause(&reading, 100), status_or_cause(&reading, 101)), ("stopped".into(), "moved-while-read".into()));
    assert_eq!((find_guest(&reading, 101).run_state.as_deref(), &find_guest(&reading, 101).tags), (None, &Reading::Unread));
    assert_eq!(single_guest_requests(&proxmox), [""; 0]);
}

#[test]
fn g1_guests_of_a_node_that_does_not_list_them_are_unknown_and_the_others_are_known() {
    let cluster = cluster_rows("lab", 1, &[("n1", 1), ("n2", 1)]);
    let proxmox = ScriptedProxmox::with_guests(&cluster, [(100, running_guest(100, "n1")), (101, running_guest(101, "n2"))])
        .with_override("nodes/n2/qemu", vec![failure_response("500", "no such thing")]);
    let reading = take_inventory(&proxmox);
    assert_eq!((status_or_cause(&reading, 100), status_or_cause(&reading, 101)), ("running".into(), "node-list-unread".into()));
    assert_eq!(reading.notes.len(), 1, "{:?}", reading.notes);
}

#[test]
fn a_row_that_says_too_little_is_a_guest_of_the_inventory_all_the_same() {
    let rows = format!(r#"[{{"vmid":101,"type":"qemu","name":"g101"}},{}]"#, stopped_guest(100, "n1").listed.unwrap_or_default());
    let proxmox = three_guests().with_override("resources?type=vm", vec![success_response(&rows)]);
    let reading = take_inventory(&proxmox);
    let unlisted: Vec<(u32, &str)> = reading.observation.unlisted.iter().map(|own| (own.vmid.get(), &*own.cause)).collect();
    assert_eq!((reading.observation.guests.len(), unlisted), (1, vec![(101, "answer-malformed")]));
}

/// Proxmox leaves out what the token may not see, so an empty list shows nothing.
#[test]
fn g2_an_empty_list_is_noted_and_is_no_proof_that_there_are_no_guests() {
    let proxmox = three_guests().with_override("resources?type=vm", vec![success_response("[]")]);
    let reading = take_inventory(&proxmox);
    let codes: Vec<&str> = reading.observation.notes.iter().map(|note| &*note.code).collect();
    assert_eq!((reading.observation.guests.len(), codes), (0, vec!["list-empty"]));
    assert_eq!(reading.notes.len(), 1);
}

#[test]
fn a_range_selects_listed_guests_and_proves_nothing_about_its_other_ids() {
    let [first, last, named] = [100, 150, 999].map(|id| Vmid::new(id).expect("an id"));
    let range = VmidRange::new(first, last).expect("in order");
    let proxmox = three_guests();
    let (_, scope) = take_selected(&proxmox, &ReadSet::Everything, &GuestSelection::new(vec![], vec![range]));
    assert_eq!(scope, scope_of(&[100, 101]));
    assert!(proxmox.requests().iter().all(|path| !path.contains("nextid")), "{:?}", proxmox.requests());
    let (_, scope) = take_selected(&proxmox, &ReadSet::Everything, &GuestSelection::new(vec![named], vec![range]));
    assert_eq!(scope, scope_of(&[100, 101, 999]));
    assert!(proxmox.requests().iter().any(|path| path.contains("nextid?vmid=999")), "an id by itself must exist: {:?}", proxmox.requests());
}
