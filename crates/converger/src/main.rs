//! The program: arguments in, one command run, an exit code out. Everything else stands in its own room.

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

use std::process::ExitCode;
use std::sync::Arc;

use clap::Parser;
use converger_runtime::{config, files, host};
use signal_hook::consts::SIGXFSZ;

fn main() -> ExitCode {
    ignore_file_size_signal();
    let end = match cli::Cli::try_parse() {
        Ok(arguments) => commands::run(arguments.command),
        Err(unparsed) => commands::report_usage_error(&unparsed),
    };
    end.exit_code()
}

/// Makes a file that grows beyond what this process may write an error with a message. The signal that comes with it would otherwise end the
/// program and leave half a file behind.
fn ignore_file_size_signal() {
    // Listening is enough: the write fails then. Where that is not possible, only the message is lost.
    let _ = signal_hook::flag::register(SIGXFSZ, Arc::default());
}
