//! Misses are free: a limited tenant that asks for more keys than there are gets as many hits a
//! second as one that finds everything, and its misses on top (NyxCache section 4.2, figure 7).
//! 1 KiB gets only, nothing is inserted after a miss.
//!
//! What it never does: limit by hand; the policy and the gate are the server's. Numbers are
//! *emulated*.
//!
//! `cargo run --release -p nyx --example hit_rate [-- --seconds 5 --limit 20]`

use clap::Parser;
use nyx::Failure;
use nyx::demo::stage::{Medium, Stage, modelled};
use nyx_base::{DevicePs, Instant, Nanos};
use nyx_media::Op;
use nyx_policy::Policy;
use nyx_policy::baselines::Unlimited;
use nyx_policy::sharing::limit::Leased;
use nyx_sim::client::{Client, Done, Load};
use nyx_sim::modelled::Modelled;
use std::process::ExitCode;

const KEYS: u64 = 10_000;
const VALUE_BYTES: usize = 1024;
const WARM_UP: Nanos = Nanos::from_millis(500);
/// Hits a second may be this part away from the limit.
const TOLERANCE: f64 = 0.01;
/// All that is asked for, as a multiple of what is there.
const ASKED: [u64; 3] = [1, 2, 10];

/// A tenant with a limit gets 1 KiB values at hit ratios of 100, 50 and 10 %. Exit code 1 where its
/// hits are not at the limit, or its misses are held.
#[derive(Parser)]
struct Args {
    /// Measured time of each hit ratio.
    #[arg(long, default_value_t = 5)]
    seconds: u64,
    /// The device model.
    #[arg(long, default_value = "optane-2dimm/8")]
    model: String,
    /// The tenant's limit, in percent of the device.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u8).range(1..=100))]
    limit: u8,
}

/// What the tenant did in the measured time.
struct Cell {
    done: Done,
    elapsed_s: f64,
    device: f64,
}

impl Cell {
    fn hits_per_s(&self) -> f64 {
        self.done.hits as f64 / self.elapsed_s
    }

    fn ops_per_s(&self) -> f64 {
        self.done.ops as f64 / self.elapsed_s
    }

    fn print(&self, policy: &str, hits_per_s_max: f64) {
        println!(
            "{policy:<8} {:>10.1} {:>12.0} {:>12.0} {:>12.0} {:>10.2} {:>14.4}",
            self.hits_per_s() / self.ops_per_s() * 100.0,
            self.ops_per_s(),
            self.hits_per_s(),
            self.ops_per_s() - self.hits_per_s(),
            self.device * 100.0,
            self.hits_per_s() / hits_per_s_max,
        );
    }
}

fn measure(
    args: &Args,
    device: &Modelled,
    asked: u64,
    policy: Box<dyn Policy>,
) -> Result<Cell, Failure> {
    let load = Load {
        asked: KEYS * asked,
        ..Load::uniform(KEYS, VALUE_BYTES, 1.0, 32)
    };
    let stage = Stage::new(Medium::Modelled(device), &[("L", load.clone())], 1)?;
    let mut worker = stage.worker(0);
    let mut client = Client::new(load, 7);
    let now = stage.at(stage.clock.now());
    client.fill(&stage.engine, &mut worker, now);
    stage.engine.set_policy(policy);
    let begin = stage.clock.now();
    stage.engine.control(begin);
    let from = begin + WARM_UP;
    let until = from + Nanos::from_secs(args.seconds);
    let mut run = |until: Instant| {
        loop {
            let now = stage.clock.now();
            if now >= until {
                return (now, client.done(), stage.used(0));
            }
            if let Some(wait) = client.step(&stage.engine, &mut worker, stage.at(now)) {
                stage.clock.spin_until(wait.min(until));
            }
        }
    };
    let (before, after) = (run(from), run(until));
    let elapsed_s = after.0.since(before.0).as_secs_f64();
    Ok(Cell {
        done: Done {
            ops: after.1.ops - before.1.ops,
            hits: after.1.hits - before.1.hits,
            ..after.1
        },
        elapsed_s,
        device: (after.2 - before.2).as_secs_f64() / elapsed_s,
    })
}

fn say(holds: bool, claim: &str) -> bool {
    println!("{}  {claim}", if holds { "holds" } else { "FAILS" });
    holds
}

fn run(args: &Args) -> Result<bool, Failure> {
    let device = modelled(&args.model)?;
    let limit = f64::from(args.limit) / 100.0;
    let hits_per_s_max = limit / device.cost.price(Op::Read, VALUE_BYTES).as_secs_f64();
    println!(
        "emulated: {} in real time; gets of {VALUE_BYTES} B, limit {} % of the device, that is \
         {hits_per_s_max:.0} hits/s; {} s each\n",
        args.model, args.limit, args.seconds
    );
    println!(
        "{:<8} {:>10} {:>12} {:>12} {:>12} {:>10} {:>14}",
        "policy", "hit %", "ops/s", "hits/s", "misses/s", "device %", "hits of limit"
    );
    let rate = DevicePs((limit * 1e12) as u64);
    let mut limited = Vec::new();
    for asked in ASKED {
        let cell = measure(
            args,
            &device,
            asked,
            Box::new(Leased::new(vec![Some(rate)])),
        )?;
        cell.print("limit", hits_per_s_max);
        limited.push(cell);
    }
    for asked in ASKED {
        measure(args, &device, asked, Box::new(Unlimited))?.print("none", hits_per_s_max);
    }
    println!();
    let at_limit = |cell: &Cell| (cell.hits_per_s() / hits_per_s_max - 1.0).abs() <= TOLERANCE;
    let constant = say(
        limited.iter().all(at_limit),
        "hits a second are at the limit (1 %), whatever the hit ratio",
    );
    let rises = limited
        .windows(2)
        .all(|two| two[1].ops_per_s() > two[0].ops_per_s());
    Ok(constant
        & say(
            rises,
            "operations a second rise as the hit ratio falls: misses are free",
        ))
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(failure) => {
            eprintln!("hit_rate: {failure}");
            ExitCode::from(failure.code as u8)
        }
    }
}
