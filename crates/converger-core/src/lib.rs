//! The spine of Dedalus Converger: what is wanted, what was seen, what would be done, and whether it may be.
//!
//! ```text
//! desired.yaml -> observe -> plan -> safety -> [ audit | apply ]
//! ```
//!
//! Everything here is pure: no input or output, clock, randomness, environment, threads or logging; the same inputs
//! give the same bytes. The modules stand in the order in which a run passes through them.
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

pub mod guest;
pub mod timestamp;

mod birth_marks;
pub mod document;

pub mod desired;

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
