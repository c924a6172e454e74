//! The command line: subcommands, logs, exit codes.
//!
//! What it never does: the work of a subcommand.

use crate::{Failure, cmd, log};
use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// A multi-tenant cache server that knows what each request costs its device, and keeps each tenant
/// to its part.
#[derive(Parser, Debug)]
#[command(
    name = "nyx",
    version,
    propagate_version = true,
    arg_required_else_help = true,
    after_help = "Examples:
  nyx serve                              one tenant on 127.0.0.1:11211
  nyx serve --config config/nyx.toml     devices, tenants and policy from a file
  nyx check-config config/nyx.toml       what that file says, or what is wrong with it
  nyx top                                how the tenants of a running server fare
  nyx explain web                        why one of them is as it is
  nyx inspect FILE                       what an image or data file holds, and its health
  nyx sim FILE                           a scenario in virtual time, on a modelled device
  nyx model                              what two devices give together, cached and split
  nyx block --fast F --deep D            a disk image behind a cache, over NBD
  nyx swap run --memory 20% -- CMD       a program in a fifth of its memory
  nyx demo                               a noisy neighbour, before and after the policy

Exit codes (sysexits): 64 usage or configuration, 65 damaged data, 66 missing input,
69 unavailable, 70 bug, 71 operating system, 73 cannot create, 74 input or output, 77 permission."
)]
pub struct Cli {
    #[command(flatten)]
    log: log::Options,
    #[command(subcommand)]
    command: Command,
}

#[allow(
    clippy::large_enum_variant,
    reason = "one per process: a box would save nothing"
)]
#[derive(Subcommand, Debug)]
enum Command {
    Serve(cmd::serve::Args),
    Memcached(cmd::memcached::Args),
    CheckConfig(cmd::check_config::Args),
    Knobs(cmd::knobs::Args),
    Profile(cmd::profile::Args),
    Bench(cmd::bench::Args),
    Replay(cmd::replay::Args),
    Top(cmd::top::Args),
    Sim(cmd::sim::Args),
    Model(cmd::model::Args),
    Explain(cmd::explain::Args),
    Inspect(cmd::inspect::Args),
    Block(cmd::block::Args),
    Swap(cmd::swap::Args),
    Demo(cmd::demo::Args),
    NullServer(cmd::null_server::Args),
}

/// Runs the process's command line and gives its exit code.
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version are errors to clap, but not to whoever asked for them.
            let code = if error.use_stderr() {
                crate::Exit::Usage as u8
            } else {
                0
            };
            // Nothing is left to do where even this cannot be printed.
            let _ = error.print();
            return ExitCode::from(code);
        }
    };
    cli.log.start();
    match run(cli.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("nyx: {failure}");
            ExitCode::from(failure.code as u8)
        }
    }
}

fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::Serve(args) => cmd::serve::run(args),
        Command::Memcached(args) => cmd::memcached::run(args),
        Command::CheckConfig(args) => cmd::check_config::run(args),
        Command::Knobs(args) => cmd::knobs::run(args),
        Command::Profile(args) => cmd::profile::run(args),
        Command::Bench(args) => cmd::bench::run(args),
        Command::Replay(args) => cmd::replay::run(args),
        Command::Top(args) => cmd::top::run(args),
        Command::Sim(args) => cmd::sim::run(args),
        Command::Model(args) => cmd::model::run(args),
        Command::Explain(args) => cmd::explain::run(args),
        Command::Inspect(args) => cmd::inspect::run(args),
        Command::Block(args) => cmd::block::run(args),
        Command::Swap(args) => cmd::swap::run(args),
        Command::Demo(args) => cmd::demo::run(args),
        Command::NullServer(args) => cmd::null_server::run(args),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_subcommand_teaches_by_examples() {
        for command in Cli::command().get_subcommands() {
            let (name, help) = (command.get_name(), command.get_after_help());
            let examples = help.map(ToString::to_string).unwrap_or_default();
            assert!(
                command.get_about().is_some(),
                "{name} does not say what it does"
            );
            assert!(
                examples.matches(&format!("nyx {name}")).count() >= 2,
                "{name}: {examples:?}"
            );
        }
    }

    /// Two arguments of one name and different types panic only when they are read.
    #[test]
    fn every_subcommand_can_be_parsed() {
        fn paths(command: &clap::Command, path: &[String]) -> Vec<Vec<String>> {
            let own = command.get_name().to_owned();
            let path: Vec<String> = path.iter().cloned().chain([own]).collect();
            let below = command
                .get_subcommands()
                .flat_map(|below| paths(below, &path));
            let below: Vec<_> = below.collect();
            [path].into_iter().chain(below).collect()
        }
        for path in paths(&Cli::command(), &[]) {
            // An error is a fine answer; a panic is not.
            for more in [&[][..], &["a-file"], &["--memory", "1G", "--", "true"]] {
                let more = more.iter().map(|word| (*word).to_owned());
                let _ = Cli::try_parse_from(path.iter().cloned().chain(more));
            }
        }
    }
}
