//! `nyx serve`: a seam that loads the configuration and holds the server's place.
//!
//! What it never does: serve.

use crate::config::{Loaded, Source};
use crate::{Exit, Failure};

/// Serve memcached clients.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  nyx serve                               one tenant, 1 GiB in ./nyx-data, on 127.0.0.1:11211
  nyx serve --config config/nyx.toml      devices, tenants and policy from a file
  nyx serve --listen 11300 --device-kind anon --device-size 256MiB
  NYX_WORKERS=1 nyx serve -v              variables set what flags do; -v logs more

`nyx check-config FILE` tells what a file amounts to, `nyx knobs` explains every setting.")]
pub struct Args {
    /// What to serve.
    #[command(flatten)]
    pub source: Source,
}

/// Loads the configuration and serves it.
pub fn run(args: Args) -> Result<(), Failure> {
    start(args.source.load()?)
}

/// Serves a configuration until a signal ends it.
pub fn start(loaded: Loaded) -> Result<(), Failure> {
    for warning in &loaded.warnings {
        tracing::warn!("{warning}");
    }
    Err(Failure::new(Exit::Unavailable, "nyx serve is not built yet"))
}
