//! How a reading is taken: observers, each of which turns something outside into an [`Observation`] in scope.
//!
//! An observer reads once and changes nothing. It gives what it saw in the words of the core; none of its own types
//! crosses the seam. What it could not read is unread or unknown, with a cause, and never guessed.
//!
//! [`Observation`]: converger_core::observe::Observation

// The wire between client and lab is one for the tests inside and outside of this crate, and names it.
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

/// Takes one reading. The seam between the spine and the world that it looks at.
pub trait Observer {
    /// Reads the guests of a scope in an environment: one attempt, no retry, no change, nothing outside of the scope.
    ///
    /// # Errors
    /// There is no reading at all. A guest that cannot be read is not an error: it is unknown, with its cause.
    fn observe(&self, environment: &EnvironmentName, scope: &Scope) -> impl Future<Output = Result<Scoped, ObserveError>> + Send;
}

/// Why there is no reading.
#[derive(Debug, Error)]
pub enum ObserveError {
    /// The source cannot be read.
    #[error("cannot read {place}")]
    Unreadable {
        /// Where it was looked for.
        place: String,
        /// What the system said.
        source: io::Error,
    },
    /// The source is larger than anything that is read.
    #[error("{place} is larger than 1 GiB")]
    TooLarge {
        /// Where it is.
        place: String,
    },
    /// The source is there and is not a reading.
    #[error("{place} is not an observation")]
    Malformed {
        /// Where it is.
        place: String,
        /// Its content, so that faults can be shown in it.
        bytes: Vec<u8>,
        /// What is wrong with it.
        diagnostics: Diagnostics,
    },
    /// A Proxmox environment gave no reading.
    #[error(transparent)]
    Proxmox(Box<proxmox::ProxmoxError>),
    /// The reading is of another environment.
    #[error("{place} is a reading of the environment `{found}`, not of `{wanted}`")]
    OtherEnvironment {
        /// Where it is.
        place: String,
        /// The environment that was read.
        found: String,
        /// The environment that was asked for.
        wanted: String,
    },
}
