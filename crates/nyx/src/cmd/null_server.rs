//! `nyx null-server`: the server's event loop with a canned answer, to measure the loop itself. A
//! server's figures mean little without it: on loopback most of a request's cost is the kernel's.

use crate::{Exit, Failure};
use nyx_base::TenantId;
use nyx_engine::Binding;
use nyx_media::TscClock;
use nyx_server::{Address, Answer, Door, ServerConfig};
use signal_hook::consts::{SIGINT, SIGTERM};
use std::net::SocketAddr;
use std::sync::Arc;

/// Answer every key with the same hit: the limit of what a server can reach.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  nyx null-server --listen 127.0.0.1:11300                    a hit of 100 B for each key
  nyx null-server --listen 127.0.0.1:11300 --value-bytes 4096

Send it `get` and `set` only: it looks for spaces and line ends and for nothing else. See
`nyx bench --pair` for measuring it beside real servers.")]
pub struct Args {
    /// Where to listen.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:11300")]
    listen: SocketAddr,
    /// Bytes of the value in the canned hit.
    #[arg(long, value_name = "BYTES", default_value_t = 100)]
    value_bytes: usize,
    /// Worker threads.
    #[arg(long, value_name = "N", default_value_t = 1)]
    workers: u16,
}

/// Serves until a signal ends it.
pub fn run(args: Args) -> Result<(), Failure> {
    let door = Door {
        address: Address::Tcp(args.listen),
        binding: Binding::to(TenantId(0)),
    };
    let config = ServerConfig {
        doors: vec![door],
        max_connections: 4096,
        idle_timeout_s: None,
        backlog: 1024,
        pin_workers: false,
        record_latencies: false,
        shutdown_allowed: false,
    };
    let mut signals = signal_hook::iterator::Signals::new([SIGINT, SIGTERM])
        .map_err(|error| Failure::new(Exit::Os, format!("cannot watch for signals: {error}")))?;
    let answer = Answer::Canned {
        value_len: args.value_bytes,
    };
    let running = nyx_server::bind(config)
        .and_then(|bound| bound.start(answer, args.workers, Arc::new(TscClock::start())))
        .map_err(|error| Failure::new(Exit::Unavailable, error.to_string()))?;
    for address in running.listening() {
        tracing::info!(address, "answering every key with the same hit");
    }
    signals.forever().next();
    running.stop();
    Ok(())
}
