//! `nyx sim`: runs a scenario file in virtual time.
//!
//! What it never does: touch a device or wait for real time; the figures are *simulated*.

use crate::sim::file::{self, Case};
use crate::sim::run::{self, Devices, Result as Outcome};
use crate::sim::{draw, report};
use crate::{Exit, Failure};
use std::path::{Path, PathBuf};

/// Run a scenario file in virtual time: a configuration, and clients of its tenants.
#[derive(clap::Args, Debug)]
#[command(
    after_help = "A scenario is a configuration (`nyx knobs`) whose device has a model, and
says besides who asks for what:

  [run]
  about = \"does the reader keep its share?\"
  length = \"2s\"            # of virtual time
  settle = \"500ms\"         # left out at the begin of what is counted
  window = \"20ms\"          # of the drawing
  seeds = 10               # runs; figures are means with intervals of 95 %
  detail = \"engine\"        # the whole engine, or \"device\": gate and policy on the event model,
                           # from which alone tails may be claimed
  alone = true             # also each tenant alone, to know its slowdown

  [[load]]
  tenant = \"reader\"
  clients = 4              # each waits for its answers,
  think = \"300ns\"          # and so long besides;
  rate = 200000            # or: requests a second of all of them at random times
  value = \"4KiB\"           # keys = 1000, asked = 1000, gets = 1.0, batch = 1
  from = \"1s\"              # to = \"2s\"

  [[sweep]]                # every combination of all sweeps is a case
  key = \"load.reader.clients\"
  values = [2, 4, 8]
  [[sweep]]
  name = \"policy\"
  [[sweep.case]]
  name = \"nyx\"
  set = { \"policy.kind\" = \"share\", \"tenant.reader.weight\" = 2.0 }

Examples:
  nyx sim config/scenarios/noisy-neighbour.toml
  nyx sim FILE --only policy=nyx --decisions      one case, and what the policy did and why
  nyx sim FILE --svg out.svg                      the first run of each case as a picture"
)]
pub struct Args {
    /// The scenario.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Only the cases in which a sweep has this value.
    #[arg(long, value_name = "SWEEP=VALUE")]
    only: Vec<String>,
    /// Runs of each case, whatever the file says.
    #[arg(long, value_name = "N")]
    seeds: Option<u64>,
    /// Print what the policy did in the first run of each case, and why.
    #[arg(long)]
    decisions: bool,
    /// Print JSON: every run of every case.
    #[arg(long)]
    json: bool,
    /// Draw the first run of each case into this file; with several cases NAME-1.svg, NAME-2.svg...
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

/// Runs and prints.
pub fn run(args: Args) -> Result<(), Failure> {
    let only: Vec<(String, String)> = args
        .only
        .iter()
        .map(|text| pair(text))
        .collect::<Result<_, _>>()?;
    let mut cases = file::read(&args.file, &only)?;
    if let Some(seeds) = args.seeds {
        if seeds == 0 {
            return Err(Failure::usage("--seeds 0: at least one run"));
        }
        cases.iter_mut().for_each(|case| case.run.seeds = seeds);
    }
    let mut devices = Devices::default();
    let mut all = Vec::new();
    for (at, case) in cases.iter().enumerate() {
        let started = std::time::Instant::now();
        let result = run::run(case, &devices.of(case)?)?;
        if let Some(path) = &args.svg {
            picture(path, at, cases.len(), case, &result)?;
        }
        match args.json {
            true => all.push(report::json(case, &result)),
            false => {
                let mut text = report::table(case, &result);
                if args.decisions {
                    text += &report::decisions(&result, &result.runs[0]);
                }
                super::print(&(text + "\n"))?;
            }
        }
        let (done, of, took_s) = (at + 1, cases.len(), started.elapsed().as_secs_f64());
        tracing::info!(case = done, of, took_s, "simulated");
    }
    match args.json {
        true => super::print(&format!("{:#}\n", serde_json::Value::from(all))),
        false => Ok(()),
    }
}

fn pair(text: &str) -> Result<(String, String), Failure> {
    let split = text
        .split_once('=')
        .map(|(name, value)| (name.into(), value.into()));
    split.ok_or_else(|| Failure::usage(format!("--only {text}: write SWEEP=VALUE")))
}

fn picture(
    path: &Path,
    at: usize,
    of: usize,
    case: &Case,
    result: &Outcome,
) -> Result<(), Failure> {
    let path = match of {
        1 => path.to_owned(),
        _ => {
            let stem = path.file_stem().unwrap_or_default().to_string_lossy();
            path.with_file_name(format!("{stem}-{}.svg", at + 1))
        }
    };
    let svg = draw::run(case, result, &result.runs[0])
        .map_err(|message| Failure::new(Exit::Io, message))?;
    std::fs::write(&path, svg).map_err(|error| Failure::uncreatable(&path, &error))
}
