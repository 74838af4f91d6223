//! Observers. Each one reads a source outside the program and returns an [`Observation`] within a scope.
//!
//! An observer reads once and changes nothing. It returns core types; none of its own types leaves this crate. A value that it could not
//! read is unread or unknown, with a cause. It never guesses.
//!
//! [`Observation`]: converger_core::observe::Observation

// The tests inside and outside this crate share one lab transport, which refers to the crate by its name.
#[cfg(test)]
extern crate self as converger_adapters;

pub mod proxmox;
pub mod replay;

#[cfg(any(test, feature = "conformance"))]
pub mod conformance;

use std::future::Future;
use std::io;

use converger_core::desired::Scope;
use converger_core::document::Diagnostics;
use converger_core::guest::EnvironmentName;
use converger_core::observe::Scoped;
use thiserror::Error;

/// Takes one observation of an environment.
pub trait Observer {
    /// Reads the guests of a scope in an environment: one attempt, no retry, no change, nothing outside the scope.
    ///
    /// # Errors
    /// No observation exists. A guest that cannot be read is not an error: its status is unknown, with a cause.
    fn observe(&self, environment: &EnvironmentName, scope: &Scope) -> impl Future<Output = Result<Scoped, ObserveError>> + Send;
}

/// Why there is no observation.
#[derive(Debug, Error)]
pub enum ObserveError {
    /// The source cannot be read.
    #[error("cannot read {endpoint}")]
    Unreadable {
        /// The path or name of the source.
        endpoint: String,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The source exceeds the size limit.
    #[error("{endpoint} is larger than 1 GiB")]
    TooLarge {
        /// The path or name of the source.
        endpoint: String,
    },
    /// The source is readable but is not an observation.
    #[error("{endpoint} is not an observation")]
    Malformed {
        /// The path or name of the source.
        endpoint: String,
        /// Its content, for pointing at the faults.
        bytes: Vec<u8>,
        /// The faults.
        diagnostics: Diagnostics,
    },
    /// A Proxmox environment could not be observed.
    #[error(transparent)]
    Proxmox(Box<proxmox::ProxmoxError>),
    /// The observation is of another environment.
    #[error("{endpoint} is an observation of environment `{found}`, not of `{wanted}`")]
    OtherEnvironment {
        /// The path or name of the source.
        endpoint: String,
        /// The environment of the observation.
        found: String,
        /// The requested environment.
        wanted: String,
    },
}
