//! The way back from what was seen to what is declared: birth marks for guests that are declared ([`pin`]), and a declared state for
//! guests that are not ([`scaffold`]).
//!
//! Both give text and decide nothing about steps. A guest that a plan would refuse to look at is refused here for the same causes.
//!
//! What never enters: files, and the carrying out of anything.

mod pin;
mod scaffold;

pub use pin::{GuestPin, PinOutcome, PinRequest, PinResult, PinSelection, pin};
pub use scaffold::{AdoptedGuest, OmittedField, Scaffold, UnadoptableGuest, scaffold};

use crate::guest::GuestIdentity;

/// A mark of blanks would hold for every guest that has none.
fn drop_blank_marks(marks: &GuestIdentity) -> GuestIdentity {
    let text = |mark: &Option<Box<str>>| mark.clone().filter(|mark| !mark.trim().is_empty());
    match marks {
        GuestIdentity::Qemu { uuid, ctime } => GuestIdentity::Qemu { uuid: text(uuid), ctime: *ctime },
        GuestIdentity::Lxc { rootfs, mac } => GuestIdentity::Lxc { rootfs: text(rootfs), mac: text(mac) },
    }
}

fn has_marks(identity: &GuestIdentity) -> bool {
    identity.marks().iter().any(|(_, mark)| mark.is_some())
}
