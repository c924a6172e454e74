//! `nyx top`: the tenants of a running server, as they fare now.

use crate::Failure;
use crate::load::address::Address;
use crate::top::{self, Server};

/// Watch the tenants of a running server: rates, latencies, device time, limits, decisions.
///
/// A view of the tenants within reach of one connection: those behind the door at ADDRESS, or of
/// the user that logs in. Without a terminal, or for scripts, --once prints one table.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  nyx top                                the server on 127.0.0.1:11211; ? shows the keys
  nyx top unix:/run/nyx.sock             behind a unix socket
  nyx top --interval 200ms cache1:11211  a closer look
  NYX_LOGIN=web:secret nyx top           where a login is asked for
  nyx top --programs                     programs in less memory than they use (nyx swap)
  nyx top --once | sort -k7              one table of the next second, and no more
  nyx top --json | jq '.tenants[] | {name, latency_us_p99}'")]
pub struct Args {
    /// Where the server listens: HOST:PORT or unix:PATH.
    #[arg(value_name = "ADDRESS", default_value = top::ADDRESS)]
    address: Address,
    #[command(flatten)]
    server: Server,
    /// Watch the programs of this machine that run under `nyx swap` instead: memory, faults, how
    /// long a page takes to come back, stalls, the reclaimer. No server is asked.
    #[arg(long, conflicts_with_all = ["address", "login"])]
    programs: bool,
    /// Print one table of the next interval, and end.
    #[arg(long)]
    once: bool,
    /// Print all figures of the next interval and the last decisions as JSON, and end.
    #[arg(long)]
    json: bool,
}

/// Watches, or prints once.
pub fn run(args: Args) -> Result<(), Failure> {
    if args.programs {
        return top::programs(&args.server, args.once, args.json);
    }
    match args.once || args.json {
        true => top::once(&args.server, &args.address, args.json),
        false => top::live(&args.server, &args.address),
    }
}
