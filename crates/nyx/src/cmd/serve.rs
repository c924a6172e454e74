//! `nyx serve`: serves until a signal or a failure ends it.
//!
//! Signals are memcached's: SIGINT, SIGTERM and SIGUSR1 stop, SIGHUP reads the configuration again.

use crate::config::{Loaded, Source};
use crate::serving::{Options, Reloaded, Serving};
use crate::{Exit, Failure};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use std::time::Duration;

/// Serve memcached clients.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  nyx serve                              one tenant on 127.0.0.1:11211, its data in ./nyx-data
  nyx serve --config config/nyx.toml     devices, tenants and policy from a file
  NYX_WORKERS=4 nyx serve                any knob from the environment (see `nyx knobs`)

Try it:  printf 'set a 0 0 5\\r\\nhello\\r\\nget a\\r\\nquit\\r\\n' | nc 127.0.0.1 11211
SIGINT, SIGTERM or SIGUSR1 stops; tenants with a durability (tenant.durability) go on with what they
held at the next start, those with \"crash\" after kill -9 too.
SIGHUP reads the configuration again: policy, groups, the terms of tenants and users' files change
at once, and tenants that are new are taken in, without dropping a connection; for all else it says
what waits. A new tenant gets what its device has left, so state the sizes: who has none has all
that was left at the start.
Targets that the device cannot keep, as far as its profile tells, are refused (exit 64), by SIGHUP
also those that what the tenants did in the last second would break; `--policy-oversubscribe` makes
warnings of refusals.")]
pub struct Args {
    /// What to serve.
    #[command(flatten)]
    pub source: Source,
    /// Obey the `shutdown` command.
    #[arg(long)]
    pub enable_shutdown: bool,
}

/// Loads the configuration and serves it.
pub fn run(args: Args) -> Result<(), Failure> {
    let source = args.source;
    let reload = || source.load();
    let options = Options {
        shutdown_allowed: args.enable_shutdown,
        unpriced: false,
    };
    start(source.load()?, options, &reload)
}

/// How often a stop that no signal told of is looked for.
const LOOK: Duration = Duration::from_millis(100);

/// Serves a configuration until a signal ends it. `reload` gives it anew on SIGHUP.
pub fn start(
    loaded: Loaded,
    options: Options,
    reload: &dyn Fn() -> Result<Loaded, Failure>,
) -> Result<(), Failure> {
    for warning in &loaded.warnings {
        tracing::warn!("{warning}");
    }
    let mut signals = signal_hook::iterator::Signals::new([SIGINT, SIGTERM, SIGUSR1, SIGHUP])
        .map_err(|error| Failure::new(Exit::Os, format!("cannot watch for signals: {error}")))?;
    let mut serving = Serving::start(&loaded.config, options)?;
    for address in serving.listening() {
        tracing::info!(address, "listening");
    }
    let stop = loop {
        if serving.is_stopping() {
            break "a shutdown command or a failure";
        }
        serving.look();
        match signals.pending().next() {
            Some(SIGHUP) => take_over(&mut serving, reload),
            Some(SIGINT) => break "SIGINT",
            Some(SIGUSR1) => break "SIGUSR1",
            Some(_) => break "SIGTERM",
            None => std::thread::sleep(LOOK),
        }
    };
    tracing::info!(by = stop, "stopping");
    serving.stop()
}

fn take_over(serving: &mut Serving, reload: &dyn Fn() -> Result<Loaded, Failure>) {
    let loaded = match reload() {
        Ok(loaded) => loaded,
        Err(failure) => return tracing::error!("everything stays as it is: {failure}"),
    };
    for warning in &loaded.warnings {
        tracing::warn!("{warning}");
    }
    match serving.reload(&loaded.config) {
        Err(failure) => tracing::error!("everything stays as it is: {failure}"),
        Ok(reloaded) if !reloaded.waits.is_empty() => {
            let waits = reloaded.waits.join("; ");
            tracing::error!("everything stays as it is: a restart is needed for {waits}");
        }
        Ok(Reloaded {
            policy, taken_in, ..
        }) => {
            for tenant in taken_in {
                tracing::info!(tenant, "tenant taken in");
            }
            let policy = if policy { "changed" } else { "the same" };
            tracing::info!(policy, "configuration read again");
        }
    }
}
