//! The command line: subcommands, logging, exit codes.
//!
//! What it never does: the work of a subcommand.

use crate::{Failure, cmd};
use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// A multi-tenant cache server that meters every access to its devices.
#[derive(Parser, Debug)]
#[command(name = "nyx", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    Serve(cmd::serve::Args),
    Profile(cmd::profile::Args),
    Bench(cmd::bench::Args),
    Replay(cmd::replay::Args),
    Demo(cmd::demo::Args),
}

/// Runs the process's command line and gives its exit code.
pub fn main() -> ExitCode {
    match run(Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("nyx: {failure}");
            ExitCode::from(failure.code as u8)
        }
    }
}

fn run(cli: Cli) -> Result<(), Failure> {
    match cli.command {
        Command::Serve(args) => cmd::serve::run(args),
        Command::Profile(args) => cmd::profile::run(args),
        Command::Bench(args) => cmd::bench::run(args),
        Command::Replay(args) => cmd::replay::run(args),
        Command::Demo(args) => cmd::demo::run(args),
    }
}
