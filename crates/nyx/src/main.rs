//! The nyx binary: hands the command line over and turns a failure into an exit code.

use std::process::ExitCode;

fn main() -> ExitCode {
    nyx::cli::main()
}
