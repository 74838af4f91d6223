//! The way back from what was seen to what is declared: birth marks for guests that are declared ([`pin`]), and a declared state for
//! guests that are not ([`scaffold`]).
//!
//! Both give text and decide nothing about steps. A guest that a plan would refuse to look at is refused here for the same causes.
//!
//! What never enters: files, and the carrying out of anything.

mod pin;

pub use pin::{Chosen, GuestPin, Outcome, Pinned, Wish, pin};
