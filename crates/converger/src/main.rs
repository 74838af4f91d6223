//! The program: parses the arguments, runs one command, exits with its status.

mod cli;
mod commands;
mod diagnostics;
mod draw_target;
mod exit_status;
mod fatal;
mod line_wrap;
mod output;
mod progress;
mod render;
mod verbosity;

use std::process::ExitCode;
use std::sync::Arc;

use converger_runtime::{config, files, host};
use signal_hook::consts::SIGXFSZ;

fn main() -> ExitCode {
    ignore_file_size_signal();
    let status = match cli::Cli::parse_process_arguments() {
        Ok(arguments) => {
            verbosity::set_verbosity(arguments.verbosity.into());
            commands::run(arguments.command)
        }
        Err(error) => commands::report_usage_error(&error),
    };
    status.exit_code()
}

/// Turns SIGXFSZ into a failed write with an error message. Unhandled, the signal ends the process and leaves half a file behind.
fn ignore_file_size_signal() {
    // A handler is enough to make the write fail. Without one only the message is lost.
    let _ = signal_hook::flag::register(SIGXFSZ, Arc::default());
}
