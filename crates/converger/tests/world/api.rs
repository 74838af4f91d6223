//! Every call that the client can make, in each release: `Way` checks each request and each answer against the table of the API, and here is
//! counted that none of them was left out.

use std::collections::BTreeSet;

use converger_adapters::proxmox::codec::{Accepted, Command, Event, Read, TaskSource, Write};
use converger_core::guest::Kind;
use converger_lab::Flavour;

use crate::actions::{Action, prepared};
use crate::actuator::all_done_well;
use crate::spine::{ask, call, node, path, vmid};
use crate::way::Checked;

/// Ten about the whole and its tasks, four about a guest of each kind.
const READS: usize = 10 + 2 * 4;

/// Eleven changes of a guest of each kind, and the reboot of a virtual machine.
const WRITES: usize = 2 * 11 + 1;

/// Everything that can be read, each at least once.
fn read_everything(flavour: Flavour) -> Checked {
    let mut checked = Checked::new();
    for kind in Kind::ALL {
        let way = prepared(flavour, kind, Action::Start);
        let guest = path("pve1", kind, 100);
        let Ok(Event::Accepted(Accepted::Task(upid))) = call(&way, Command::Write(Write::Start(guest.clone()))) else { panic!("no task") };
        let reads = [
            Read::Version,
            Read::ClusterStatus,
            Read::Resources,
            Read::Nodes,
            Read::Permissions,
            Read::PermissionsOn(vmid(100)),
            Read::NextId(vmid(100)),
            Read::NextId(vmid(999)),
            Read::GuestStatus(guest.clone()),
            Read::GuestConfig(guest.clone()),
            Read::GuestPending(guest.clone()),
            Read::Snapshots(guest),
            Read::HaResources,
            Read::TaskStatus(upid.clone()),
            Read::TaskLog { upid, start: 0, limit: 500 },
            Read::Tasks { node: node("pve1"), vmid: vmid(100), source: TaskSource::Active, since_secs: Some(1) },
            Read::Tasks { node: node("pve1"), vmid: vmid(100), source: TaskSource::Archive, since_secs: None },
        ];
        for read in reads {
            ask(&way, read.clone()).unwrap_or_else(|failure| panic!("{flavour:?} {read:?}: {failure}"));
        }
        checked.extend(way.lab().checked.iter());
    }
    checked
}

#[test]
fn every_call_of_the_client_is_checked_in_every_release() {
    let mut checked = Checked::new();
    for flavour in [Flavour::V7, Flavour::V8, Flavour::V9] {
        checked.extend(read_everything(flavour));
        checked.extend(all_done_well(flavour));
        let count = |is_read: bool| checked.iter().filter(|(own, verb, _)| *own == flavour && (*verb == "GET") == is_read).count();
        assert_eq!((count(true), count(false)), (READS, WRITES), "{flavour:?}: {checked:#?}");
    }
    println!("{} methods, each in its release, were checked", checked.len());
    let distinct: BTreeSet<(&str, &str)> = checked.iter().map(|(_, verb, template)| (*verb, *template)).collect();
    assert_eq!(distinct.len(), READS + WRITES, "the client asks for the same in every release");
}
