//! What the toll costs: GETs in process, over real memory, with the gate and its accounts against
//! the same program with both compiled out (NyxCache section 4.1, figure 5a).
//!
//! What it never does: compare within one process, which cannot be both. Alone it prints what it is
//! and how long a GET takes; with `--compare` it builds both, runs them by turns and compares
//! medians. Times are CPU times of the thread: what else runs on the machine disturbs its caches,
//! not its clock. Numbers are *real*.
//!
//! `cargo run --release -p nyx --example metering -- --compare`

use clap::Parser;
use nyx::demo::stage::{Medium, Stage};
use nyx::{Exit, Failure};
use nyx_base::{DevicePs, Nanos, Rng};
use nyx_engine::{Binding, Outcome, Session, Worker};
use nyx_gate::CostTable;
use nyx_gate::cost::STEPS;
use nyx_policy::sharing::limit::Leased;
use nyx_proto::{Command, Out};
use nyx_sim::client::{Load, get, set};
use rustix::time::{ClockId, clock_gettime};
use std::path::{Path, PathBuf};
use std::process::{Command as Process, ExitCode};

const SIZES: [usize; 4] = [64, 256, 1024, 4096];
/// The most that metering may cost, by size: what the paper's does.
const CEILING: [f64; 4] = [0.12, 0.06, 0.06, 0.06];
const GOAL: [f64; 4] = [0.03, 0.01, 0.01, 0.01];
const BATCH: usize = 16;
/// All values together: beyond the processor's caches, as a cache's are.
const VALUES_BYTES: u64 = 256 << 20;
const KEYS_MAX: u64 = 1 << 20;
/// A measurement is the median of so many, so that a moment's disturbance is none.
const SLICES: u64 = 9;

/// Measures what metering costs a GET. Exit code 1 where it costs more than the paper's.
#[derive(Parser)]
struct Args {
    /// Build the metered and the unmetered program, run them by turns and compare.
    #[arg(long)]
    compare: bool,
    /// How many times each is run.
    #[arg(long, default_value_t = 9)]
    rounds: usize,
    /// CPU time of one measurement of one size, of which the median of nine slices counts.
    #[arg(long, default_value_t = 450)]
    millis: u64,
}

fn cpu() -> Nanos {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Nanos(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

fn load(value_bytes: usize) -> Load {
    let keys = (VALUES_BYTES / value_bytes as u64).min(KEYS_MAX);
    Load::uniform(keys, value_bytes, 1.0, BATCH)
}

type Key = [u8; 16];

fn key_of(index: u64) -> Key {
    let mut key = [b'k'; 16];
    key[..8].copy_from_slice(&index.to_le_bytes());
    key
}

/// One tenant, its values stored, and the hands of one worker.
struct Rig {
    stage: Stage,
    worker: Worker,
    session: Session,
    out: Out,
}

impl Rig {
    /// With a limit that is leased all the time and never reached: a get is charged 50 ns.
    fn new(load: &Load) -> Result<Rig, Failure> {
        let rates = [2e7; STEPS];
        let cost = CostTable::from_max_iops(&rates, &rates);
        let stage = Stage::new(Medium::Memory(&cost), &[("L", load.clone())], 1)?;
        let mut rig = Rig {
            worker: stage.worker(0),
            stage,
            session: Session::new(&Binding::to(load.tenant)),
            out: Out::new(),
        };
        let value = vec![b'v'; load.value_bytes];
        for index in 0..load.keys {
            rig.execute([set(&key_of(index), &value)]);
        }
        let policy = Leased::new(vec![Some(DevicePs::SECOND)]);
        rig.stage.engine.set_policy(Box::new(policy));
        rig.stage.engine.control(rig.stage.clock.now());
        Ok(rig)
    }

    /// Executes commands as a server does: warmed together, then one by one.
    fn execute<const N: usize>(&mut self, commands: [Command<'_>; N]) {
        let Rig {
            stage,
            worker,
            session,
            out,
        } = self;
        let engine = &stage.engine;
        worker.enter();
        let mut requests = commands.map(|command| engine.request(session, command));
        requests
            .iter_mut()
            .for_each(|request| engine.warm_item(request));
        for request in &requests {
            engine.warm_value(worker, request);
        }
        let now = stage.at(stage.clock.now());
        for request in &requests {
            let outcome = engine.execute(worker, session, request, now, out);
            assert_eq!(outcome, Outcome::Done);
        }
        out.consume(out.len());
    }

    /// Gets at random until so much CPU time is spent; gives the nanoseconds that one took.
    fn get(&mut self, keys: u64, rng: &mut Rng, length: Nanos) -> f64 {
        let (begin, mut ops) = (cpu(), 0);
        loop {
            for _ in 0..64 {
                let picks: [Key; BATCH] = std::array::from_fn(|_| key_of(rng.u64(..keys)));
                self.execute(picks.each_ref().map(|key| get(key)));
            }
            ops += 64 * BATCH;
            let spent = Nanos(cpu().0 - begin.0);
            if spent >= length {
                return spent.0 as f64 / ops as f64;
            }
        }
    }
}

/// Measures every size in this process, and prints a line for each.
fn measure(millis: u64) -> Result<(), Failure> {
    for value_bytes in SIZES {
        let load = load(value_bytes);
        let mut rig = Rig::new(&load)?;
        let mut rng = Rng::with_seed(1);
        let slice = Nanos(millis * 1_000_000 / SLICES);
        rig.get(load.keys, &mut rng, slice);
        let ns = median((0..SLICES).map(|_| rig.get(load.keys, &mut rng, slice)));
        let metered = rig.stage.used(0) > DevicePs::ZERO;
        let what = if metered { METERED } else { UNMETERED };
        println!("{what} {value_bytes} {ns:.2} ns/get");
    }
    Ok(())
}

const METERED: &str = "metered";
const UNMETERED: &str = "unmetered";

/// Builds this example, with or without the toll, and puts the program aside.
fn build(what: &str) -> Result<PathBuf, Failure> {
    let failed = |why: String| Failure::new(Exit::Unavailable, format!("building {what}: {why}"));
    let mut cargo = Process::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["build", "--release", "-p", "nyx", "--example", "metering"]);
    if what == UNMETERED {
        cargo.args(["--features", "nyx-gate/unmetered"]);
    }
    let status = cargo.status().map_err(|error| failed(error.to_string()))?;
    if !status.success() {
        return Err(failed(status.to_string()));
    }
    let own = std::env::current_exe().map_err(|error| failed(error.to_string()))?;
    let aside = own.with_file_name(format!("metering-{what}"));
    std::fs::copy(own.with_file_name("metering"), &aside)
        .map_err(|error| failed(error.to_string()))?;
    Ok(aside)
}

/// Runs one of the two programs; gives its nanoseconds by size.
fn run(program: &Path, what: &str, millis: u64) -> Result<[f64; 4], Failure> {
    let bad = |why: String| Failure::new(Exit::Software, format!("{}: {why}", program.display()));
    let output = Process::new(program)
        .args(["--millis", &millis.to_string()])
        .output()
        .map_err(|error| bad(error.to_string()))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let mut ns = [0.0; 4];
    for (ns, (line, size)) in ns.iter_mut().zip(text.lines().zip(SIZES)) {
        let words: Vec<&str> = line.split_whitespace().collect();
        *ns = match words[..] {
            [is, bytes, took, _] if is == what && bytes == size.to_string() => {
                took.parse().map_err(|_| bad(line.to_owned()))?
            }
            _ => return Err(bad(format!("{line:?} is not of a {what} program"))),
        };
    }
    Ok(ns)
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_unstable_by(f64::total_cmp);
    values[values.len() / 2]
}

/// One round: without the toll, with it, and without it once more, each first in its turn. The
/// third measures nothing but the noise.
fn round(
    round: usize,
    [without, with]: &[PathBuf; 2],
    millis: u64,
) -> Result<[[f64; 4]; 3], Failure> {
    let mut ns = [[0.0; 4]; 3];
    for turn in 0..3 {
        let at = (turn + round) % 3;
        ns[at] = match at {
            1 => run(with, METERED, millis)?,
            _ => run(without, UNMETERED, millis)?,
        };
    }
    Ok(ns)
}

/// Builds both, runs them by turns, and prints medians. Says whether the ceilings held.
fn compare(args: &Args) -> Result<bool, Failure> {
    let programs = [build(UNMETERED)?, build(METERED)?];
    let rounds: Result<Vec<_>, Failure> = (0..args.rounds)
        .map(|at| round(at, &programs, args.millis))
        .collect();
    let rounds = rounds?;
    println!(
        "real: gets in process over memory, {BATCH} at a time, ns of CPU time, medians of {} \
         rounds by turns\n",
        args.rounds
    );
    println!(
        "{:>6} {:>10} {:>10} {:>8} {:>16} {:>9} {:>6}",
        "bytes", "without", "metered", "costs", "noise (without)", "at most", "goal"
    );
    let mut all = true;
    for (at, size) in SIZES.into_iter().enumerate() {
        let of = |which: usize| median(rounds.iter().map(|round| round[which][at]));
        let (without, metered, again) = (of(0), of(1), of(2));
        // Both runs without the toll are as good: their mean is what it is compared with.
        let cost = metered / ((without + again) / 2.0) - 1.0;
        println!(
            "{size:>6} {without:>10.1} {metered:>10.1} {:>+6.1} % {:>+14.1} % {:>7.0} % {:>4.0} %",
            cost * 100.0,
            (again / without - 1.0) * 100.0,
            CEILING[at] * 100.0,
            GOAL[at] * 100.0
        );
        all &= cost <= CEILING[at];
    }
    println!(
        "\n{}  metering costs at most what the paper's does",
        ["FAILS", "holds"][usize::from(all)]
    );
    Ok(all)
}

fn main() -> ExitCode {
    let args = Args::parse();
    let done = if args.compare {
        compare(&args)
    } else {
        measure(args.millis).map(|()| true)
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(failure) => {
            eprintln!("metering: {failure}");
            ExitCode::from(failure.code as u8)
        }
    }
}
