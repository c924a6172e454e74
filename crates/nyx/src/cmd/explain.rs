//! `nyx explain`: why a tenant of a running server is as it is.

use crate::Failure;
use crate::load::address::Address;
use crate::top::{self, Server};

/// Explain a tenant of a running server: its promise, its use, what holds it back and why.
///
/// In whole sentences, from one interval and the controller's last decisions: who hurts it and by
/// how much, for whom it is throttled, and what you could do. Reasons that name other tenants are
/// told where all tenants are within reach of the connection.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  nyx explain web                        the tenant web of the server on 127.0.0.1:11211
  nyx explain batch unix:/run/nyx.sock   of another server
  nyx explain web --interval 10s --json  over a longer interval, for programs")]
pub struct Args {
    /// The tenant's name.
    #[arg(value_name = "TENANT")]
    tenant: String,
    /// Where the server listens: HOST:PORT or unix:PATH.
    #[arg(value_name = "ADDRESS", default_value = top::ADDRESS)]
    address: Address,
    #[command(flatten)]
    server: Server,
    /// Print JSON, with the figures that the sentences were made from.
    #[arg(long)]
    json: bool,
}

/// Explains.
pub fn run(args: Args) -> Result<(), Failure> {
    top::explain(&args.server, &args.address, &args.tenant, args.json)
}
