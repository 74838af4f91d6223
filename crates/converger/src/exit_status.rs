//! The exit status of a command.

use std::process::ExitCode;

use converger_core::audit::AuditConclusion;
use converger_core::status::{RunEnd, run_status};

/// How a command ends. Done, refused and failed never mix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExitStatus {
    /// Done, or everything is as declared.
    Done,
    /// Something could not be done.
    Failed,
    /// Bad usage or input.
    Input,
    /// The program decided not to act.
    Refused,
    /// An apply would change something.
    ChangesPending,
    /// The outcome of an operation is unknown.
    Held,
    /// Evidence or contract is broken.
    Broken,
}

impl ExitStatus {
    pub(crate) fn exit_code(self) -> ExitCode {
        ExitCode::from(self.exit_number())
    }

    /// The status with this number, as the tables of codes have it.
    pub(crate) fn from_exit_number(exit: u8) -> Self {
        match exit {
            0 => Self::Done,
            2 => Self::Input,
            3 => Self::Refused,
            4 => Self::ChangesPending,
            5 => Self::Held,
            6 => Self::Broken,
            _ => Self::Failed,
        }
    }

    /// The worse of both.
    pub(crate) fn worse_of(self, other: Self) -> Self {
        let order = [Self::Broken, Self::Failed, Self::Input, Self::Held, Self::Refused, Self::ChangesPending];
        order.into_iter().find(|end| [self, other].contains(end)).unwrap_or(Self::Done)
    }

    /// The number that a shell sees.
    pub(crate) fn exit_number(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::Failed => 1,
            Self::Input => 2,
            Self::Refused => 3,
            Self::ChangesPending => 4,
            Self::Held => 5,
            Self::Broken => 6,
        }
    }
}

impl From<RunEnd> for ExitStatus {
    fn from(end: RunEnd) -> Self {
        Self::from_exit_number(run_status(end).exit)
    }
}

impl From<AuditConclusion> for ExitStatus {
    fn from(conclusion: AuditConclusion) -> Self {
        match conclusion {
            AuditConclusion::Converged => Self::Done,
            AuditConclusion::ChangesPending => Self::ChangesPending,
            AuditConclusion::Refused => Self::Refused,
        }
    }
}
