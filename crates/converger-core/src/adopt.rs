//! The way back from what was seen to what is declared: birth marks for guests that are declared ([`pin`]), and a declared state for
//! guests that are not ([`scaffold`]).
//!
//! Both give text and decide nothing about steps. A guest that a plan would refuse to look at is refused here for the same causes.
//!
//! What never enters: files, and the carrying out of anything.

mod pin;
mod scaffold;

pub use pin::{Chosen, GuestPin, Outcome, Pinned, Wish, pin};
pub use scaffold::{Adopted, LeftOut, Scaffold, Unadopted, scaffold};

use crate::guest::Identity;

/// A mark of blanks would hold for every guest that has none.
fn without_blanks(marks: &Identity) -> Identity {
    let text = |mark: &Option<Box<str>>| mark.clone().filter(|mark| !mark.trim().is_empty());
    match marks {
        Identity::Qemu { uuid, ctime } => Identity::Qemu { uuid: text(uuid), ctime: *ctime },
        Identity::Lxc { rootfs, mac } => Identity::Lxc { rootfs: text(rootfs), mac: text(mac) },
    }
}

fn has_marks(identity: &Identity) -> bool {
    identity.marks().iter().any(|(_, mark)| mark.is_some())
}
