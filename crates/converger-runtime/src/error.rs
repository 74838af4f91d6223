//! The errors of this crate. A refusal is not an error: it is a decision, returned as data.
//!
//! Each error has a message, a code that `converger explain` describes, and a remedy. Exit status and HTTP status follow from the code alone
//! (`core::status`).

use converger_adapters::ObserveError;
use converger_core::evidence::LedgerFault;
use converger_core::failure::FailureCode;
use converger_core::guest::EnvironmentName;
use converger_core::status::{RunEnd, failure_status, run_status};
use converger_engine::executor::NotAccepting;
use thiserror::Error;

use crate::config::ConfigFaults;

/// A message with its code and remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuntimeFault {
    message: String,
    code: Option<FailureCode>,
    help: Option<String>,
}

impl RuntimeFault {
    /// A fault with this message.
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), code: None, help: None }
    }

    /// The same with a code.
    #[must_use]
    pub fn with_code(self, code: FailureCode) -> Self {
        Self { code: Some(code), ..self }
    }

    /// The same with a remedy.
    #[must_use]
    pub fn with_help(self, help: impl Into<String>) -> Self {
        Self { help: Some(help.into()), ..self }
    }

    /// What happened, and to which object.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The code of the failure, if it has one.
    #[must_use]
    pub fn code(&self) -> Option<FailureCode> {
        self.code
    }

    /// The remedy.
    #[must_use]
    pub fn help(&self) -> Option<&str> {
        self.help.as_deref()
    }
}

/// Why something was not done, although no rule refused it.
#[derive(Debug, Error)]
pub enum RuntimeError {
    /// The configuration or an argument cannot be used. Nothing was read or sent.
    #[error("{}", .0.message)]
    Input(RuntimeFault),
    /// The configuration file has faults. Nothing was read or sent.
    #[error("{}", fault.message)]
    Config {
        /// The first fault, in a sentence.
        fault: RuntimeFault,
        /// All faults with their places.
        file: Box<ConfigFaults>,
    },
    /// It failed.
    #[error("{}", .0.message)]
    Failed(RuntimeFault),
    /// The recorded evidence contradicts itself, or the program does not keep its contract. Nothing is sent in this state.
    #[error("{}", fault.message)]
    Broken {
        /// What is contradictory.
        fault: RuntimeFault,
        /// The ledger entry at which it was found.
        entry: Option<u64>,
    },
    /// The environment accepts no run now. Nothing was read or sent.
    #[error("{}", fault.message)]
    NotAccepting {
        /// Why.
        reason: NotAccepting,
        /// The same as text for people.
        fault: RuntimeFault,
    },
    /// There is no observation.
    #[error(transparent)]
    Observe(#[from] ObserveError),
}

impl RuntimeError {
    /// The configuration or an argument cannot be used.
    pub fn input(message: impl Into<String>) -> Self {
        Self::Input(RuntimeFault::new(message))
    }

    /// Something failed.
    pub fn failed(message: impl Into<String>) -> Self {
        Self::Failed(RuntimeFault::new(message))
    }

    /// The environment accepts no run now.
    #[must_use]
    pub fn not_accepting(environment: &EnvironmentName, reason: NotAccepting) -> Self {
        let (code, help) = match reason {
            NotAccepting::TooManyRuns => (FailureCode::QueueFull, "wait until one of them has ended, then try again"),
            NotAccepting::Stopping => (FailureCode::RunStopped, "try again after a restart"),
        };
        let fault = RuntimeFault::new(format!("environment `{environment}` accepts no runs: {reason}")).with_code(code).with_help(help);
        Self::NotAccepting { reason, fault }
    }

    /// An error in the evidence, with the remedy of its code.
    pub fn broken(code: FailureCode, message: impl Into<String>) -> Self {
        let fault = RuntimeFault::new(message).with_code(code).with_help(code.entry().remedy);
        Self::Broken { fault, entry: None }
    }

    /// The same with a code.
    #[must_use]
    pub fn with_code(mut self, code: FailureCode) -> Self {
        match &mut self {
            Self::Input(fault)
            | Self::Config { fault, .. }
            | Self::Failed(fault)
            | Self::Broken { fault, .. }
            | Self::NotAccepting { fault, .. } => fault.code = Some(code),
            Self::Observe(_) => {}
        }
        self
    }

    /// The same with another remedy.
    #[must_use]
    pub fn with_help(mut self, help: impl Into<String>) -> Self {
        match &mut self {
            Self::Input(fault)
            | Self::Config { fault, .. }
            | Self::Failed(fault)
            | Self::Broken { fault, .. }
            | Self::NotAccepting { fault, .. } => fault.help = Some(help.into()),
            Self::Observe(_) => {}
        }
        self
    }

    /// The same, found at a ledger entry.
    #[must_use]
    pub fn at_entry(mut self, index: u64) -> Self {
        if let Self::Broken { entry, .. } = &mut self {
            *entry = Some(index);
        }
        self
    }

    /// The index of the ledger entry at which it was found.
    #[must_use]
    pub fn entry_index(&self) -> Option<u64> {
        if let Self::Broken { entry, .. } = self { *entry } else { None }
    }

    /// The message, code and remedy; none for a failed observation.
    #[must_use]
    pub fn fault(&self) -> Option<&RuntimeFault> {
        match self {
            Self::Input(fault)
            | Self::Config { fault, .. }
            | Self::Failed(fault)
            | Self::Broken { fault, .. }
            | Self::NotAccepting { fault, .. } => Some(fault),
            Self::Observe(_) => None,
        }
    }

    /// How a run ends because of this error.
    #[must_use]
    pub fn end(&self) -> RunEnd {
        let exit = self.fault().and_then(RuntimeFault::code).map(|code| failure_status(code).exit);
        let is_status_of = |end: RunEnd| exit == Some(run_status(end).exit);
        if self.is_broken() || is_status_of(RunEnd::EvidenceBroken) {
            RunEnd::EvidenceBroken
        } else if is_status_of(RunEnd::Held) {
            RunEnd::Held
        } else {
            RunEnd::Failed
        }
    }

    /// Whether the evidence is broken.
    #[must_use]
    pub fn is_broken(&self) -> bool {
        matches!(self, Self::Broken { .. })
    }
}

impl From<LedgerFault> for RuntimeError {
    fn from(LedgerFault { code, index, what }: LedgerFault) -> Self {
        Self::broken(code, what).at_entry(index)
    }
}
