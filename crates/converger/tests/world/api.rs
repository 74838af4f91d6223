//! Every call that the client can make, in each release: `Way` checks each request and each answer against the table of the API, and here is
//! shown that none of them was left out. Which calls there are is read out of the codec's source.

use std::collections::BTreeSet;

use converger_adapters::proxmox::codec::{Accepted, Command, Event, GuestPath, Read, Upid, UserId, Write};
use converger_core::guest::Kind;
use converger_lab::Flavour;

use crate::actions::{Action, prepared};
use crate::actuator::all_done_well;
use crate::commands::left_out;
use crate::spine::{ask, call, node, path, vmid};
use crate::way::Checked;

/// Everything that can be read of a world with one guest, which a task is about.
fn reads(guest: GuestPath, upid: Upid) -> Vec<Read> {
    let user = || UserId::new("root@pam").unwrap_or_else(|| panic!("an id"));
    vec![
        Read::Version,
        Read::ClusterStatus,
        Read::Resources,
        Read::NodeGuests { node: node("pve1"), kind: guest.kind },
        Read::NodeGuestsInFull(node("pve1")),
        Read::Permissions,
        Read::PermissionsOn(vmid(100)),
        Read::PermissionsOf(user()),
        Read::User(user()),
        Read::Roles,
        Read::NextId(vmid(100)),
        Read::NextId(vmid(999)),
        Read::GuestStatus(guest.clone()),
        Read::GuestPending(guest.clone()),
        Read::Snapshots(guest),
        Read::HaStatus,
        Read::TagOptions,
        Read::NodeVersion(node("pve1")),
        Read::NodeTime(node("pve1")),
        Read::Certificates(node("pve1")),
        Read::TaskStatus(upid),
        Read::Tasks { node: node("pve1"), vmid: vmid(100) },
    ]
}

/// Reads everything, each at least once; what was checked by it, and what was asked.
fn read_everything(flavour: Flavour) -> (Checked, Vec<Command>) {
    let (mut checked, mut commands) = (Checked::new(), Vec::new());
    for kind in Kind::ALL {
        let way = prepared(flavour, kind, Action::Start);
        let guest = path("pve1", kind, 100);
        let Ok(Event::Accepted(Accepted::Task(upid))) = call(&way, Command::Write(Write::Start(guest.clone()))) else { panic!("no task") };
        for read in reads(guest, upid) {
            way.lab().checked.clear();
            ask(&way, read.clone()).unwrap_or_else(|failure| panic!("{flavour:?} {read:?}: {failure}"));
            assert_eq!(way.lab().checked.len(), 1, "{flavour:?} {read:?}: no method of the table gave the answer");
            checked.extend(way.lab().checked.iter());
            commands.push(Command::Read(read));
        }
    }
    (checked, commands)
}

#[test]
fn every_call_of_the_client_is_checked_in_every_release() {
    let mut releases = Vec::new();
    for flavour in [Flavour::V7, Flavour::V8, Flavour::V9] {
        let (mut checked, mut commands) = read_everything(flavour);
        let (written, writes) = all_done_well(flavour);
        checked.extend(written);
        commands.extend(writes);
        assert_eq!(left_out(&commands), [""; 0], "{flavour:?}: calls that are not checked");
        println!("{flavour:?}: {} methods were checked", checked.len());
        releases.push(checked.into_iter().map(|(_, verb, template)| (verb, template)).collect::<BTreeSet<_>>());
    }
    assert!(releases.windows(2).all(|pair| pair[0] == pair[1]), "the client asks for the same in every release: {releases:#?}");
}
