//! The program: arguments in, one command run, an exit code out. Everything else stands in its own room.

mod cli;
mod commands;
mod config;
mod diagnose;
mod exit;
mod files;
mod host;
mod progress;
mod render;
mod state;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    let arguments = cli::Cli::parse();
    commands::run(arguments.command).code()
}
