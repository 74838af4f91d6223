//! `--verbose` and `--quiet`, which every command accepts.

use clap::error::ErrorKind;
use clap::{Args, CommandFactory as _, Parser as _};

use super::Cli;
use crate::verbosity::Verbosity;

/// How much a command says. Accepted before and after the name of the command.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct VerbosityArgs {
    /// Show everything: each guest, impact and risk of each step, whole values and digests
    #[arg(long, global = true, help_heading = "Output")]
    verbose: bool,
    /// Show only warnings, errors, refusals and results: no progress, no notes; for plans, only refusals and the summary
    #[arg(long, global = true, help_heading = "Output")]
    quiet: bool,
}

impl Cli {
    /// Parses the arguments of the process.
    ///
    /// # Errors
    /// Bad usage, or help or version that was asked for.
    pub(crate) fn parse_process_arguments() -> Result<Self, clap::Error> {
        Self::try_parse().and_then(Self::check_verbosity)
    }

    /// `conflicts_with` does not compare an option before the name of the command with one after it.
    fn check_verbosity(self) -> Result<Self, clap::Error> {
        if self.verbosity.verbose && self.verbosity.quiet {
            let text = "the argument '--verbose' cannot be used with '--quiet'";
            return Err(Self::command().error(ErrorKind::ArgumentConflict, text));
        }
        Ok(self)
    }
}

impl From<VerbosityArgs> for Verbosity {
    fn from(arguments: VerbosityArgs) -> Self {
        match arguments {
            VerbosityArgs { quiet: true, .. } => Self::Quiet,
            VerbosityArgs { verbose: true, .. } => Self::Verbose,
            VerbosityArgs { .. } => Self::Normal,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verbose_and_quiet_are_accepted_on_both_sides_of_the_command_but_not_together() {
        let parsed = |arguments: &str| {
            let cli = Cli::try_parse_from(arguments.split(' ')).and_then(Cli::check_verbosity);
            cli.map(|cli| Verbosity::from(cli.verbosity)).map_err(|error| error.kind())
        };
        assert_eq!(parsed("converger contract"), Ok(Verbosity::Normal));
        assert_eq!([parsed("converger --quiet contract"), parsed("converger contract --quiet")], [Ok(Verbosity::Quiet); 2]);
        assert_eq!([parsed("converger --verbose ledger tail"), parsed("converger ledger tail --verbose")], [Ok(Verbosity::Verbose); 2]);
        for both in ["contract --verbose --quiet", "--verbose contract --quiet", "--quiet ledger tail --verbose"] {
            assert_eq!(parsed(&format!("converger {both}")), Err(ErrorKind::ArgumentConflict), "{both}");
        }
    }
}
