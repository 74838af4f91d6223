//! How the program ends: one function from the kind of end to the exit code.

use std::process::ExitCode;

use converger_core::audit::AuditConclusion;

/// The ends of a command. Done, refused and failed are never mixed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExitStatus {
    /// Done, or all is as declared.
    Done,
    /// It could not be done.
    Failed,
    /// Bad usage or input.
    Input,
    /// A decision not to.
    Refused,
    /// Something would be done.
    ChangesPending,
    /// It is not known what became of something.
    Held,
    /// Evidence or the contract is broken.
    Broken,
}

impl ExitStatus {
    pub(crate) fn exit_code(self) -> ExitCode {
        ExitCode::from(self.exit_number())
    }

    /// The end that a table of codes means by a number.
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

    /// Where both apply (design 7).
    pub(crate) fn worse_of(self, other: Self) -> Self {
        let order = [Self::Broken, Self::Failed, Self::Input, Self::Held, Self::Refused, Self::ChangesPending];
        order.into_iter().find(|end| [self, other].contains(end)).unwrap_or(Self::Done)
    }

    /// The same as a number.
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

impl From<AuditConclusion> for ExitStatus {
    fn from(conclusion: AuditConclusion) -> Self {
        match conclusion {
            AuditConclusion::Converged => Self::Done,
            AuditConclusion::ChangesPending => Self::ChangesPending,
            AuditConclusion::Refused => Self::Refused,
        }
    }
}
