//! The decision core of Dedalus Converger: desired state, observation, plan, judgement and admission.
//!
//! ```text
//! desired.yaml -> observe -> plan -> safety -> [ audit | apply ]
//! ```
//!
//! Everything here is pure: no I/O, clock, randomness, process environment, threads or logging. The same inputs give the same bytes. The
//! modules are listed in the order in which a run uses them.
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

pub mod guest;
pub mod timestamp;

mod birth_marks;
pub mod document;

pub mod desired;
pub mod intent;

pub mod observe;

pub mod action;
pub mod normalize;

pub mod plan;

pub mod classify;
pub mod policy;

pub mod safety;

pub mod audit;

pub mod approve;

pub mod apply;

pub mod evidence;

pub mod adopt;

pub mod failure;
pub mod refusal;
pub mod status;

pub mod artifact;
pub mod contract;

#[cfg(any(test, feature = "testing"))]
pub mod testing;
