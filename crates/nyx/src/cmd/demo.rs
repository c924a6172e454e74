//! `nyx demo`: a noisy neighbour, before and after the policy is switched on.

use crate::Failure;
use crate::demo::{Settings, show};
use nyx_base::Nanos;

/// Watch a noisy neighbour slow down two quiet tenants, and a policy stop it.
///
/// Three tenants share one modelled device, in this process: no socket, no file, no right is
/// needed. web and feed read a little. After a third of the time noisy begins to write as fast as
/// it can; after two thirds a policy is switched on that holds it to a part of the device. A table
/// shows what each tenant gets, and what stays is a summary of before, during and after.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  nyx demo                               25 seconds; q quits
  nyx demo --limit 30                    noisy may use 30 % of the device, not 10
  nyx demo --plain                       a line a second, as without a terminal
  nyx demo --seconds 60 | tee demo.txt

What you see:
  ops/s     requests answered in the last second
  p50, p99  latency that half, and 99 of 100, requests did not exceed, from when they were due
  device    device time charged to the tenant: 1/MaxIOPS for each access (`nyx profile`)
  held/s    how often the tenant was told to wait, because its part of the device was used up
All of it is measured as you watch. The device is a model in real time (emulated), so absolute
figures are its own. Two threads are busy all the time: on a machine that is busy otherwise,
requests whose thread loses its CPU are set aside, and counted.")]
pub struct Args {
    /// How long it takes, in seconds: a third for each of the three acts.
    #[arg(long, default_value_t = 25, value_name = "N",
          value_parser = clap::value_parser!(u64).range(6..=3600))]
    seconds: u64,
    /// What the policy leaves to the noisy tenant, in percent of the device.
    #[arg(long, default_value_t = 10, value_name = "PERCENT",
          value_parser = clap::value_parser!(u8).range(1..=99))]
    limit: u8,
    /// The device: a preset of `nyx profile --model` or a file.
    #[arg(long, default_value = "optane-2dimm/8", value_name = "MODEL")]
    model: String,
    /// Print lines instead of drawing.
    #[arg(long)]
    plain: bool,
}

/// Plays it.
pub fn run(args: Args) -> Result<(), Failure> {
    show(&Settings {
        model: args.model,
        limit: f64::from(args.limit) / 100.0,
        length: Nanos::from_secs(args.seconds),
        plain: args.plain,
    })
}
