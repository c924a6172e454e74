//! `nyx demo`: a seam that holds the subcommand's place until its code is in.

use crate::{Exit, Failure};

/// Takes any arguments.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    rest: Vec<String>,
}

/// Fails with exit code 69.
pub fn run(_args: Args) -> Result<(), Failure> {
    Err(Failure::new(Exit::Unavailable, "nyx demo is not built yet"))
}
