//! Every call of the client in each release. `LabTransport` checks each request and response against the API table; these tests show that
//! no call is missing. The calls are extracted from the codec's source.

use std::collections::BTreeSet;

use converger_adapters::proxmox::codec::{
    AcceptedChange, GuestPath, ProxmoxCommand, ProxmoxEvent, ProxmoxRead, ProxmoxWrite, Upid, UserId,
};
use converger_core::guest::GuestKind;
use converger_lab::Flavour;

use crate::actuator::run_undisturbed;
use crate::changes::{ClientChange, prepare_lab};
use crate::client::{call_command, call_read, guest_path, node_name, snapshot_name, vmid};
use crate::commands::unused_variants;
use crate::lab_transport::CheckedMethods;

/// Every read in a world with one guest and one of its tasks.
fn all_reads(guest: GuestPath, upid: Upid) -> Vec<ProxmoxRead> {
    let user = || UserId::new("root@pam").unwrap_or_else(|| panic!("an id"));
    vec![
        ProxmoxRead::Version,
        ProxmoxRead::ClusterStatus,
        ProxmoxRead::Resources,
        ProxmoxRead::NodeGuests { node: node_name("pve1"), kind: guest.kind },
        ProxmoxRead::NodeGuestsInFull(node_name("pve1")),
        ProxmoxRead::Permissions,
        ProxmoxRead::PermissionsOn(vmid(100)),
        ProxmoxRead::PermissionsOf(user()),
        ProxmoxRead::User(user()),
        ProxmoxRead::Roles,
        ProxmoxRead::NextId(vmid(100)),
        ProxmoxRead::NextId(vmid(999)),
        ProxmoxRead::GuestStatus(guest.clone()),
        ProxmoxRead::GuestPending(guest.clone()),
        ProxmoxRead::Snapshots(guest.clone()),
        ProxmoxRead::SnapshotConfig { guest, name: snapshot_name("first") },
        ProxmoxRead::ReplicationJobs,
        ProxmoxRead::NodeStatus(node_name("pve1")),
        ProxmoxRead::NodeStorages(node_name("pve1")),
        ProxmoxRead::HaStatus,
        ProxmoxRead::TagOptions,
        ProxmoxRead::NodeVersion(node_name("pve1")),
        ProxmoxRead::NodeTime(node_name("pve1")),
        ProxmoxRead::Certificates(node_name("pve1")),
        ProxmoxRead::TaskStatus(upid),
        ProxmoxRead::Tasks { node: node_name("pve1"), vmid: vmid(100) },
    ]
}

/// Sends every read at least once; returns the checked methods and the commands.
fn read_everything(flavour: Flavour) -> (CheckedMethods, Vec<ProxmoxCommand>) {
    let (mut checked, mut commands) = (CheckedMethods::new(), Vec::new());
    for kind in GuestKind::ALL {
        let transport = prepare_lab(flavour, kind, ClientChange::Start);
        let guest = guest_path("pve1", kind, 100);
        let Ok(ProxmoxEvent::Accepted(AcceptedChange::Task(upid))) =
            call_command(&transport, ProxmoxCommand::Write(ProxmoxWrite::Start(guest.clone())))
        else {
            panic!("no task")
        };
        for read in all_reads(guest, upid) {
            transport.lock_lab().checked.clear();
            call_read(&transport, read.clone()).unwrap_or_else(|failure| panic!("{flavour:?} {read:?}: {failure}"));
            assert_eq!(transport.lock_lab().checked.len(), 1, "{flavour:?} {read:?}: no method of the table gave the answer");
            checked.extend(transport.lock_lab().checked.iter());
            commands.push(ProxmoxCommand::Read(read));
        }
    }
    (checked, commands)
}

#[test]
fn every_call_of_the_client_is_checked_in_every_release() {
    let mut releases = Vec::new();
    for flavour in [Flavour::V7, Flavour::V8, Flavour::V9] {
        let (mut checked, mut commands) = read_everything(flavour);
        let (written, writes) = run_undisturbed(flavour);
        checked.extend(written);
        commands.extend(writes);
        assert_eq!(unused_variants(&commands), [""; 0], "{flavour:?}: calls that are not checked");
        println!("{flavour:?}: {} methods were checked", checked.len());
        releases.push(checked.into_iter().map(|(_, verb, template)| (verb, template)).collect::<BTreeSet<_>>());
    }
    assert!(releases.windows(2).all(|pair| pair[0] == pair[1]), "the client asks for the same in every release: {releases:#?}");
}
