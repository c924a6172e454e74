//! `nyx sim`: runs a scenario file in virtual time, or in real time on a modelled device.
//!
//! What it never does: touch a device; the figures are *simulated*, or *emulated* and say so.

use crate::sim::expect::Verdict;
use crate::sim::figures::{FIGURES, Figure};
use crate::sim::file::{self, Instead, Scenario};
use crate::sim::metric::METRICS;
use crate::sim::run::{self, Devices, Result as Outcome};
use crate::sim::{draw, paging, report};
use crate::{Exit, Failure};
use nyx_policy::paging::pool::Rule;
use nyx_sim::paging::Ageing;
use std::path::{Path, PathBuf};

/// Run a scenario file on a modelled device: a configuration, and clients of its tenants.
#[derive(clap::Args, Debug)]
#[command(
    after_help = "A scenario is a configuration (`nyx knobs`) whose device has a model, and
says besides who asks for what:

  [run]
  about = \"does the reader keep its share?\"
  length = \"2s\"            # of the scenario's time, which is virtual unless it is emulated
  settle = \"500ms\"         # left out at the begin of what is counted
  window = \"20ms\"          # of the drawing
  seeds = 10               # runs; figures are means with intervals of 95 %
  detail = \"engine\"        # the whole engine, or \"device\": gate and policy on the event model,
                           # from which alone tails may be claimed; or \"emulated\": the engine
                           # in real time with as many threads as CPUs, which all clients share
  alone = true             # also each tenant alone, to know its slowdown

  [[load]]
  tenant = \"reader\"
  clients = 4              # each waits for its answers,
  think = \"300ns\"          # and so long besides;
  rate = 200000            # or: requests a second of all of them at random times
  value = \"4KiB\"           # keys = 1000, asked = 1000, gets = 1.0, batch = 1
  from = \"1s\"              # to = \"2s\"; in spikes: on = \"10ms\", off = \"30ms\"; by day and
                           # by night: day = \"4s\", night = 0.1; access = \"nt-load\"

  [[sweep]]                # every combination of all sweeps is a case
  key = \"load.reader.clients\"
  values = [2, 4, 8]
  [[sweep]]
  name = \"policy\"
  [[sweep.case]]
  name = \"nyx\"
  set = { \"policy.kind\" = \"share\", \"tenant.reader.weight\" = 2.0 }

  [[expect]]               # exit code 1 where it does not come out
  says = \"the reader keeps its target\"
  metric = \"P99 us\"        # --metrics lists them
  of = [\"reader\"]          # all tenants, unless it says which
  where = { policy = \"nyx\" }
  per = { policy = \"none\" } # as a part of what it is in that case
  at_most = 0.5            # at_least; take = \"max\", min, mean or sd of several; runs = 0.95

  [[draw]]                 # a panel of the picture
  title = \"what the reader gets\"
  metric = \"P99 us\"
  of = [\"reader\"]
  over = \"load.reader.clients\"    # a sweep; over time without it
  where = { policy = \"nyx\" }

Examples:
  nyx sim config/scenarios/noisy-neighbour.toml
  nyx sim FILE --only policy=nyx --decisions      one case, and what the policy did and why
  nyx sim FILE --svg out.svg                      its [[draw]], or each case over time
  nyx sim figures --out figures                   NyxCache's evaluation, redrawn and judged
  nyx sim swap --svg figures                      Ultraswap's, on a modelled P4800X
  nyx sim swap --ageing nyx                       the same machines, with Nyx's own pager",
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true
)]
pub struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    /// The scenario.
    #[arg(value_name = "FILE", required_unless_present = "metrics")]
    file: Option<PathBuf>,
    /// Print what can be expected and drawn.
    #[arg(long)]
    metrics: bool,
    /// Only the cases in which a sweep has this value.
    #[arg(long, value_name = "SWEEP=VALUE")]
    only: Vec<String>,
    #[command(flatten)]
    instead: InsteadArgs,
    /// Print what the policy did in the first run of each case, and why.
    #[arg(long)]
    decisions: bool,
    /// Print JSON: every run of every case.
    #[arg(long)]
    json: bool,
    /// Draw what the file says into this file; a file without `[[draw]]` has the first run of each
    /// case drawn, into NAME-1.svg, NAME-2.svg... where there are several.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

#[derive(clap::Args, Debug)]
struct InsteadArgs {
    /// Runs of each case, whatever the file says.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    seeds: Option<u64>,
    /// Where it is run, whatever the file says.
    #[arg(long, value_name = "DETAIL", value_parser = ["engine", "device", "emulated"])]
    detail: Option<String>,
    /// The device's model, whatever the file says.
    #[arg(long, value_name = "MODEL")]
    model: Option<String>,
}

impl InsteadArgs {
    fn with(&self, only: Vec<(String, String)>) -> Instead {
        Instead {
            only,
            detail: self.detail.clone(),
            model: self.model.clone(),
            seeds: self.seeds,
        }
    }
}

#[derive(clap::Subcommand, Debug)]
enum Command {
    /// Redraw the evaluation of NyxCache (FAST '22): a picture for each figure, and a table of what
    /// the paper says of it, what came out here, and of what kind that is.
    Figures(FiguresArgs),
    /// Ultraswap's evaluation on a modelled P4800X: programs in less memory than they use, as Linux
    /// has it, as Ultraswap does, and with parts of it left out; the paper's figures beside.
    Swap(SwapArgs),
}

#[derive(clap::Args, Debug)]
struct SwapArgs {
    /// Pages of each program (linpack's are the nearest multiple of 441); the paper's have some
    /// hundred times as many.
    #[arg(long, value_name = "N", default_value_t = 8192,
          value_parser = clap::value_parser!(u32).range(512..=1 << 20))]
    pages: u32,
    /// What the reclaimer keeps free: `auto`, as much as is taken until more is freed; `paper`,
    /// 30 % of the limit.
    #[arg(long, value_name = "RULE", default_value = "auto", value_parser = ["auto", "paper"])]
    pool: String,
    /// How pages are aged, by all variants: `linux`, by an active and an inactive list as in the
    /// paper's kernel; `nyx`, by the pager of Nyx's own engines.
    #[arg(long, value_name = "HOW", default_value = "linux", value_parser = ["linux", "nyx"])]
    ageing: String,
    /// Write pictures there: swap-figure-8.svg and swap-parts.svg.
    #[arg(long, value_name = "DIRECTORY")]
    svg: Option<PathBuf>,
}

#[derive(clap::Args, Debug)]
struct FiguresArgs {
    /// Only figures whose name contains this.
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    #[command(flatten)]
    instead: InsteadArgs,
    /// Where pictures and the table go: NAME.svg and figures.md; nowhere without it.
    #[arg(long, value_name = "DIRECTORY")]
    out: Option<PathBuf>,
    /// Write the scenario files there instead of running them.
    #[arg(long, value_name = "DIRECTORY", conflicts_with_all = ["out", "seeds", "detail", "model"])]
    extract: Option<PathBuf>,
}

/// Runs and prints.
pub fn run(args: Args) -> Result<(), Failure> {
    match &args.command {
        Some(Command::Figures(args)) => return figures(args),
        Some(Command::Swap(args)) => return swap(args),
        None => {}
    }
    let Some(path) = &args.file else {
        return super::print(&metrics());
    };
    let only: Vec<(String, String)> = args
        .only
        .iter()
        .map(|text| pair(text))
        .collect::<Result<_, _>>()?;
    let scenario = file::read(path, &args.instead.with(only))?;
    let results = simulate(&path.display().to_string(), &scenario)?;
    let verdicts = judged(&scenario, &results);
    if let Some(path) = &args.svg {
        pictures(path, &scenario, &results)?;
    }
    let each = scenario.cases.iter().zip(&results);
    if args.json {
        let all: Vec<serde_json::Value> = each.map(|(case, one)| report::json(case, one)).collect();
        super::print(&format!("{:#}\n", serde_json::Value::from(all)))?;
    } else {
        for (case, result) in each {
            let mut text = report::table(case, result);
            if args.decisions {
                text += &report::decisions(result, &result.runs[0]);
            }
            super::print(&(text + "\n"))?;
        }
        super::print(&report::verdicts(&verdicts))?;
    }
    all_kept(&verdicts)
}

fn metrics() -> String {
    let line = |metric: &crate::sim::metric::Metric| {
        let whose = if metric.is_of_tenants() {
            "each tenant"
        } else {
            "all"
        };
        format!("  {:<18}{:<13}{}\n", metric.name, whose, metric.about)
    };
    METRICS.iter().map(line).collect()
}

/// Runs all cases, and tells now and then how far it is.
fn simulate(name: &str, scenario: &Scenario) -> Result<Vec<Outcome>, Failure> {
    const TELL: std::time::Duration = std::time::Duration::from_secs(5);
    let started = std::time::Instant::now();
    let told = std::sync::Mutex::new(started);
    let tell = |done: usize, of: usize| {
        let mut told = told
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        if told.elapsed() >= TELL || done == of {
            *told = std::time::Instant::now();
            let took_s = started.elapsed().as_secs_f64();
            tracing::info!(scenario = name, runs = done, of, took_s, "run");
        }
    };
    run::run_all(&scenario.cases, &mut Devices::default(), &tell)
}

fn judged(scenario: &Scenario, results: &[Outcome]) -> Vec<Verdict> {
    let expects = scenario.expects.iter();
    expects
        .filter_map(|expect| expect.judge(&scenario.cases, results))
        .collect()
}

fn all_kept(verdicts: &[Verdict]) -> Result<(), Failure> {
    let failed = verdicts.iter().filter(|verdict| !verdict.is_kept).count();
    match failed {
        0 => Ok(()),
        _ => Err(Failure::new(
            Exit::Unmet,
            format!(
                "{failed} of {} expectations did not come out",
                verdicts.len()
            ),
        )),
    }
}

fn figures(args: &FiguresArgs) -> Result<(), Failure> {
    let is_wanted = |name: &str| {
        args.names.is_empty() || args.names.iter().any(|part| name.contains(part.as_str()))
    };
    let wanted: Vec<&Figure> = FIGURES.iter().filter(|one| is_wanted(one.name)).collect();
    if wanted.is_empty() {
        let names: Vec<&str> = FIGURES.iter().map(|one| one.name).collect();
        let told = format!("no such figure: there are {}", names.join(", "));
        return Err(Failure::usage(told));
    }
    let directory = args.out.as_ref().or(args.extract.as_ref());
    if let Some(directory) = directory {
        std::fs::create_dir_all(directory)
            .map_err(|error| Failure::uncreatable(directory, &error))?;
    }
    if let Some(directory) = &args.extract {
        let write = |one: &&Figure| save(&directory.join(format!("{}.toml", one.name)), one.text);
        return wanted.iter().try_for_each(write);
    }
    let (mut table, mut all) = (report::figures_head(), Vec::new());
    super::print(&table)?;
    for one in wanted {
        let scenario = file::scenario(one.text, &args.instead.with(Vec::new()))
            .map_err(|message| Failure::usage(format!("{}: {message}", one.name)))?;
        let results = simulate(one.name, &scenario)?;
        let verdicts = judged(&scenario, &results);
        let rows = report::figure_rows(one.name, &scenario.cases[0], &verdicts);
        super::print(&rows)?;
        table += &rows;
        all.extend(verdicts);
        if let Some(directory) = &args.out {
            pictures(
                &directory.join(format!("{}.svg", one.name)),
                &scenario,
                &results,
            )?;
            save(&directory.join("figures.md"), &table)?;
        }
    }
    all_kept(&all)
}

fn swap(args: &SwapArgs) -> Result<(), Failure> {
    let rule = match args.pool.as_str() {
        "paper" => Rule::Paper,
        _ => Rule::Demand,
    };
    let ageing = match args.ageing.as_str() {
        "nyx" => Ageing::Nyx,
        _ => Ageing::Linux,
    };
    let evaluation = paging::Evaluation::run(args.pages, rule, ageing);
    super::print(&evaluation.tables())?;
    let Some(directory) = &args.svg else {
        return Ok(());
    };
    std::fs::create_dir_all(directory).map_err(|error| Failure::uncreatable(directory, &error))?;
    for (name, drawn) in [
        ("swap-figure-8.svg", evaluation.draw_figure_8()),
        ("swap-parts.svg", evaluation.draw_parts()),
    ] {
        let svg = drawn.map_err(|message| Failure::new(Exit::Io, message))?;
        save(&directory.join(name), &svg)?;
    }
    Ok(())
}

fn save(path: &Path, text: &str) -> Result<(), Failure> {
    std::fs::write(path, text).map_err(|error| Failure::uncreatable(path, &error))
}

fn pair(text: &str) -> Result<(String, String), Failure> {
    let split = text
        .split_once('=')
        .map(|(name, value)| (name.into(), value.into()));
    split.ok_or_else(|| Failure::usage(format!("--only {text}: write SWEEP=VALUE")))
}

fn pictures(path: &Path, scenario: &Scenario, results: &[Outcome]) -> Result<(), Failure> {
    let told = |message| Failure::new(Exit::Io, message);
    if !scenario.draws.is_empty() {
        let svg = draw::figure(&scenario.draws, &scenario.cases, results).map_err(told)?;
        return save(path, &svg);
    }
    let of = scenario.cases.len();
    for (at, (case, result)) in scenario.cases.iter().zip(results).enumerate() {
        let svg = draw::run(case, result, &result.runs[0]).map_err(told)?;
        save(&picture_path(path, at, of), &svg)?;
    }
    Ok(())
}

fn picture_path(path: &Path, at: usize, of: usize) -> PathBuf {
    if of == 1 {
        return path.to_owned();
    }
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!("{stem}-{}.svg", at + 1))
}
