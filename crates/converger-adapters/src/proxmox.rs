//! Proxmox VE 7, 8 and 9: how it is read, and what can be asked of it.
//!
//! `codec` is pure and knows the API; `client` carries its requests over HTTPS; `observe` takes one reading; `hand` carries out
//! what an operation asks; `doctor` says what is missing. None of the types in here crosses the seam: a reading and an answer are
//! made of the words of the core (G9).

pub mod codec;

pub mod client;

pub mod observe;

pub mod actuator;

pub mod identity;

pub mod doctor;

mod observer;

mod shell_quote;

mod time;

pub use observer::{ConnectionSettings, ObservationReport, ProxmoxError, ProxmoxObserver};
