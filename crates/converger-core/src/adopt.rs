//! Derives declarations from an observation: birth marks for declared guests ([`pin`]), and a desired state for guests that are not
//! declared yet ([`scaffold`]).
//!
//! Both return text and decide nothing about steps. They refuse a guest for the same reasons for which a plan would not identify or read
//! it.
//!
//! Must not touch files or execute anything.

mod pin;
mod scaffold;

pub use pin::{GuestPin, PinOutcome, PinRequest, PinResult, PinSelection, pin};
pub use scaffold::{AdoptedGuest, OmittedField, Scaffold, UnadoptableGuest, scaffold};

use crate::guest::GuestIdentity;

/// Drops blank marks: a blank mark would match every guest that has none.
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
