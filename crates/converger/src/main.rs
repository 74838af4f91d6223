//! The program: arguments in, one command run, an exit code out. Everything else stands in its own room.

mod canvas;
mod cli;
mod commands;
mod config;
mod diagnose;
mod exit;
mod files;
mod host;
mod output;
mod progress;
mod render;
mod screen;
mod state;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    files::bear_limits();
    let end = match cli::Cli::try_parse() {
        Ok(arguments) => commands::run(arguments.command),
        Err(unparsed) => commands::unparsed(&unparsed),
    };
    end.code()
}
