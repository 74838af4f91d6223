//! How much a command says: `--quiet`, `--verbose`, or neither.
//!
//! It is a property of the process, like the terminal: `main` sets it once, before a command runs. Functions that render text take what they
//! need as an argument, so that tests need no process of their own.

use std::sync::OnceLock;

/// How much a command says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Verbosity {
    /// Warnings, errors, refusals and results only.
    Quiet,
    /// What a person needs to decide.
    #[default]
    Normal,
    /// Everything, however long.
    Verbose,
}

static CURRENT: OnceLock<Verbosity> = OnceLock::new();

/// Sets the verbosity of this process. Only the first call counts.
pub(crate) fn set_verbosity(verbosity: Verbosity) {
    let _ = CURRENT.set(verbosity);
}

/// The verbosity of this process.
pub(crate) fn current() -> Verbosity {
    CURRENT.get().copied().unwrap_or_default()
}

/// Whether only warnings, errors, refusals and results are wanted.
pub(crate) fn is_quiet() -> bool {
    current() == Verbosity::Quiet
}

/// Whether everything is wanted.
pub(crate) fn is_verbose() -> bool {
    current() == Verbosity::Verbose
}
