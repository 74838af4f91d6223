//! Proxmox VE 7, 8 and 9: observing it and changing it.
//!
//! `codec` is pure and knows the API. `client` sends its requests over HTTPS. `observe` takes one observation. `actuator` carries out the
//! requests of an operation. `doctor` reports what is missing. None of the types in here leaves the crate: observations and responses
//! consist of core types (G9).

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
