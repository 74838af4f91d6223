//! The one command for each ask, or the answer to an ask that cannot be put into a request: then nothing is sent.

use converger_core::action::{Change, FieldChange};
use converger_core::apply::{Answer, Ask, Cause, Place, Revision, Sent, TaskId, Trouble};
use converger_core::guest::Kind;

use super::revision;
use crate::proxmox::codec::{Command, ConfigSet, GuestPath, Read, Shown, Unwritable, Upid, Write};

/// The one command for an ask.
///
/// # Errors
/// The answer to an ask that cannot be put into a request. Nothing is sent then.
pub fn command(ask: &Ask) -> Result<Command, Box<Answer>> {
    match ask {
        Ask::Cluster => Ok(Command::Read(Read::ClusterStatus)),
        Ask::Status(place) => Ok(Command::Read(Read::GuestStatus(path(place)))),
        // `/pending` and not `/config`: it gives both the values in effect and what waits, as of one moment.
        Ask::Config(place) => Ok(Command::Read(Read::GuestPending(path(place)))),
        Ask::Where(_) => Ok(Command::Read(Read::Resources)),
        Ask::Send { place, change, revision } => write(place, change, revision.as_ref()).map(Command::Write),
        Ask::Task(task) => status_of(task).map(Command::Read),
        // Without a time: what is at work leads the list, whatever the node's clock was when it began.
        Ask::Tasks { place, .. } => {
            let (node, vmid) = (place.node.clone(), place.vmid);
            Ok(Command::Read(Read::Tasks { node, vmid }))
        }
    }
}

fn path(place: &Place) -> GuestPath {
    GuestPath { node: place.node.clone(), kind: place.kind, vmid: place.vmid }
}

fn status_of(task: &TaskId) -> Result<Read, Box<Answer>> {
    let unknown = || Box::new(Answer::Unread(Cause::new(Trouble::Unsupported, "not-a-task", "this is not the id of a task of Proxmox")));
    Upid::new(task.as_str()).map(Read::TaskStatus).ok_or_else(unknown)
}

fn write(place: &Place, change: &Change, revision: Option<&Revision>) -> Result<Write, Box<Answer>> {
    let guest = path(place);
    match change {
        Change::Start => Ok(Write::Start(guest)),
        Change::Shutdown { timeout_secs } => Ok(Write::Shutdown { guest, timeout_secs: *timeout_secs }),
        Change::Stop => Ok(Write::Stop(guest)),
        Change::Reboot { timeout_secs } if guest.kind == Kind::Qemu => {
            Ok(Write::RebootQemu { node: guest.node, vmid: guest.vmid, timeout_secs: *timeout_secs })
        }
        Change::Reboot { .. } => Err(unsent("reboot-kills", "Proxmox's reboot of a container ends it by force after the timeout")),
        Change::ConfigSet(fields) => config_set(guest, fields, revision).map(Write::ConfigSet),
    }
}

fn config_set(guest: GuestPath, fields: &[FieldChange], revision: Option<&Revision>) -> Result<ConfigSet, Box<Answer>> {
    let Some(basis) = revision.and_then(revision::basis) else {
        return Err(unsent("no-digest", "there is no digest that the write could be bound to"));
    };
    ConfigSet::new(guest, fields, &basis).map_err(|unwritable| {
        let trouble = match unwritable {
            Unwritable::Waits(_) | Unwritable::ReachesHost(_) | Unwritable::WaitsOtherwise(_) => Trouble::Changed,
            _ => Trouble::Unsupported,
        };
        Box::new(Answer::Sent(Sent::No(Cause::new(trouble, "unwritable", &shown(&unwritable)))))
    })
}

/// Nothing was sent, because this program cannot.
fn unsent(word: &str, text: &str) -> Box<Answer> {
    Box::new(Answer::Sent(Sent::No(Cause::new(Trouble::Unsupported, word, text))))
}

fn shown(unwritable: &Unwritable) -> String {
    match unwritable {
        Unwritable::NotManaged(field) => format!("`{}` is not a field that is written for this kind of guest", field.word()),
        Unwritable::NotAValue(field) => format!("the value of `{}` cannot be written", field.word()),
        Unwritable::NotRemovable(field) => format!("`{}` cannot be removed", field.word()),
        Unwritable::Nothing => "there is nothing to write".to_owned(),
        Unwritable::Waits(key) => format!("`{}` waits for the next start, and a write would try to apply it", Shown(key)),
        Unwritable::ReachesHost(key) => {
            format!("`{}` waits for the next start and reaches the host; a write would try to apply it", Shown(key))
        }
        Unwritable::WaitsOtherwise(field) => format!("under `{}` waits for the next start what was not planned on", field.word()),
    }
}
