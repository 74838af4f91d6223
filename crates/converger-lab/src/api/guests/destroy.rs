//! Destroying a guest: what a call refuses at once.
//!
//! What never enters here: the destruction itself.

use crate::api::Call;
use crate::engine::Fork;
use crate::guest::Kind;
use crate::respond::{Data, Fail};
use crate::work::Work;
use crate::world::World;

pub(super) fn destroy(world: &mut World, call: &Call) -> Result<Data, Fail> {
    let guest = call.guest(world)?;
    let (vmid, word, purge) = (guest.vmid, guest.kind.word(), call.flag("purge"));
    let stop = call.kind == Kind::Lxc && call.flag("force");
    if guest.is_protected() {
        return Err(Fail::died(format!("can't remove {word} {vmid} - protection mode enabled")));
    }
    if let Some(locked) = guest.locked().filter(|_| call.kind == Kind::Lxc) {
        return Err(Fail::died(locked));
    }
    if world.ha.is_managed(&guest.service()) && !purge {
        let text = format!("unable to remove {word} {vmid} - used in HA resources and purge parameter not set.");
        return Err(Fail::died(text));
    }
    if guest.is_running() && !stop {
        let text = match call.kind {
            Kind::Qemu => format!("VM {vmid} is running - destroy failed"),
            Kind::Lxc => format!("unable to destroy CT {vmid} - container is running"),
        };
        return Err(Fail::died(text));
    }
    let name = format!("{}destroy", call.kind.prefix());
    Ok(world.fork(Fork::holding(&call.node, &call.who, &name, vmid, Work::Destroy { vmid, purge })).into())
}
