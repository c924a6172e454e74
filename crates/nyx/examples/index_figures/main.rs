//! The indexes of Han et al. (HybridIndex+ section 3) compared as the paper did, on memory that is
//! as far away as its AEP: HybridIndex beside HybridIndex+ (figure 17), and ACS before FAST-FAIR,
//! FP-Tree and skip list (figures 19 and 20).
//!
//! All numbers but those of *cost* are *emulated*: this machine's DRAM with AEP's latencies added
//! (`nyx_media::pmem::distant`, which says what it leaves out). *cost* is what the model itself
//! takes, over memory that is no slower. Candidates take turns within a round; medians of rounds.
//! Waits are spun, so CPU time has them. What is put off or filled in later is done by the same
//! thread after each 64 operations: it counts for CPU and wall time and not for latencies.
//!
//! With `--simulated` they are *simulated* instead: the same indexes do the same work, time is
//! virtual (`simulated.rs`), AEP and DRAM take what the paper's tables say, and whatever the
//! processor does a constant. So there may be more threads than processors.
//!
//! What it never does: judge. What the paper says stands beside the tables.
//!
//! `cargo run --release -p nyx --example index_figures [-- --keys 3000000 --out DIR]`
//! `cargo run --release -p nyx --features simulate --example index_figures -- --simulated`

#![allow(clippy::disallowed_methods, reason = "a driver: it measures real time")]

mod caches;
mod hybrids;
mod report;
mod rig;
mod simulated;

use clap::{Parser, ValueEnum};
use nyx_index::fast_fair::FastFair;
use nyx_index::heap::Heap;
use nyx_index::{Eras, Persistent};
use nyx_media::pmem::distant::{Distant, Extra, Kind, Machine, cache_share_bytes, dram_ns};
use nyx_media::{Pmem, TscClock};
use report::{Report, Row};
use rig::{Law, Memory, Pace, Subject, Work, anonymous, load};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

/// The most threads that run together.
const THREADS_MAX: usize = 16;
/// A thread's part of the last-level cache, unless something else is asked for, at most: a virtual
/// machine is told of one that it has not for itself.
const CACHE_BYTES_MAX: u64 = 16 << 20;
/// Bytes of a heap's chunk.
const CHUNK_BYTES: u64 = 2 << 20;

/// Compares persistent indexes on memory as far away as AEP.
#[derive(Parser)]
#[command(after_help = "Examples:
  index_figures                                three million keys, tables on stdout
  index_figures --keys 100000 --ops 50000      a look at it, a minute
  index_figures --keys 50000000 --out figures  as published, with JSON and drawings
  index_figures --device none                  what the model itself costs, everywhere
  index_figures --simulated --ops 200000       in virtual time, by up to 16 threads")]
struct Args {
    /// Keys of 8 bytes, in random order.
    #[arg(long, default_value_t = 3_000_000, value_parser = clap::value_parser!(u64).range(1000..))]
    keys: u64,
    /// Operations of a measurement, over all threads.
    #[arg(long, default_value_t = 1_000_000)]
    ops: usize,
    /// Rounds; medians are told.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=100))]
    rounds: u64,
    /// The exponent of Zipf's law; the paper names none, YCSB has this one.
    #[arg(long, default_value_t = 0.99)]
    theta: f64,
    /// How far away the memory is.
    #[arg(long, value_enum, default_value_t = Far::AepAbove)]
    device: Far,
    /// A thread's part of the last-level cache in MiB; where it is left out as the kernel tells, 16
    /// at most. 2 in simulated runs: that of one core of the paper's ten.
    #[arg(long)]
    cache_mib: Option<u64>,
    /// Virtual time, by 1, 2, 4, 8 and 16 threads. Needs the feature `simulate`.
    #[arg(long)]
    simulated: bool,
    /// In a simulated run, what the processor takes for each place that it looks at.
    #[arg(long, default_value_t = 10)]
    look_ns: u64,
    /// Only this part.
    #[arg(long, value_enum)]
    only: Option<Part>,
    /// ACS over this index only.
    #[arg(long, value_enum)]
    index: Option<caches::Which>,
    /// A directory for figures.json, figure-17.svg and figure-19.svg.
    #[arg(long)]
    out: Option<PathBuf>,
}

/// How far away the memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Far {
    /// AEP's latency, whatever this machine's DRAM has.
    Aep,
    /// As far from this machine's DRAM as AEP is from the paper's.
    AepAbove,
    /// DRAM, with the model.
    None,
}

/// Parts of the evaluation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// What the model costs.
    Cost,
    /// HybridIndex and HybridIndex+.
    Hybrids,
    /// ACS.
    Caches,
}

impl Part {
    /// As tables have it.
    fn name(self) -> &'static str {
        match self {
            Part::Cost => "cost",
            Part::Hybrids => "hybrids",
            Part::Caches => "caches",
        }
    }
}

/// What all parts are run with.
struct Bench<C> {
    keys: u64,
    ops: usize,
    rounds: u64,
    theta: f64,
    /// As many run together, one number after the other.
    threads: &'static [u16],
    clock: C,
    machine: Arc<Machine<C>>,
}

impl<C: Pace> Bench<C> {
    fn new(args: &Args, clock: C, machine: Machine<C>, threads: &'static [u16]) -> Bench<C> {
        Bench {
            keys: args.keys,
            ops: args.ops,
            rounds: args.rounds,
            theta: args.theta,
            threads,
            clock,
            machine: Arc::new(machine),
        }
    }

    fn memory(&self) -> Memory<C> {
        Distant::new(anonymous(self.keys), self.machine.clone())
    }
}

/// An index of that kind on empty memory.
fn made<P: Pmem, I: Persistent<P>>(pm: P, eras: &Arc<Eras>) -> I {
    let heap = Heap::format(pm, CHUNK_BYTES, 1, eras.clone()).expect("room for a heap");
    I::open(Arc::new(heap), 0, nyx_base::WorkerId(0)).expect("room for an index")
}

/// FAST-FAIR on this machine's memory, and on the same with the model around it that adds nothing.
fn cost(bench: &Bench<TscClock>, cache_bytes: u64, report: &mut Report) {
    let extra = Extra::new(Kind::None).expect("nothing is too slow for it");
    let machine = Arc::new(Machine::new(extra, cache_bytes, bench.clock));
    let eras = Arc::new(Eras::new(1));
    let bare = made::<_, FastFair<_>>(anonymous(bench.keys), &eras);
    let memory = Distant::new(anonymous(bench.keys), machine);
    let modelled = made::<_, FastFair<_>>(&memory, &eras);
    eprintln!("cost: loading {} keys twice", bench.keys);
    load(&bare, (bench.keys, &bench.clock), &eras, |_| ());
    load(&modelled, (bench.keys, &bench.clock), &eras, |_| ());
    for round in 0..bench.rounds {
        for writes_pct in [0, 100] {
            let work = Work::Points { writes_pct };
            let how = (
                (bench.keys, Law::Uniform),
                work,
                (bench.ops, 1),
                (round, &bench.clock),
            );
            let row = |candidate| Row::new("cost", candidate, Law::Uniform, work, 1);
            let (eras, behind) = (&*eras, &|_| ());
            let found = Subject {
                index: &bare,
                eras,
                behind,
            }
            .run(how.0, how.1, how.2, how.3);
            report.note(row("fast-fair, no model"), found);
            let found = Subject {
                index: &modelled,
                eras,
                behind,
            }
            .run(how.0, how.1, how.2, how.3);
            report.note(row("fast-fair, model of no distance"), found);
        }
    }
}

/// Makes a part, where it is asked for, and tells of it at once: all may take hours.
fn part(
    args: &Args,
    report: &mut Report,
    part: Part,
    make: impl FnOnce(&mut Report),
) -> Result<(), String> {
    if args.only.is_some_and(|only| only != part) {
        return Ok(());
    }
    make(report);
    println!("{}", report.text(part.name()));
    match &args.out {
        Some(dir) => report.write(dir),
        None => Ok(()),
    }
}

fn emulated(args: &Args) -> Result<(), String> {
    let clock = TscClock::start();
    let own_ns = dram_ns(&clock).map_err(|error| error.to_string())?;
    let kind = match args.device {
        Far::Aep => Kind::Aep { dram_ns: own_ns },
        Far::AepAbove => Kind::AepAbove { dram_ns: own_ns },
        Far::None => Kind::None,
    };
    let extra = Extra::new(kind).map_err(|error| format!("{error}; try --device aep-above"))?;
    let told = cache_share_bytes().map(|bytes| bytes.min(CACHE_BYTES_MAX));
    let cache_bytes = args.cache_mib.map(|mib| mib << 20).or(told);
    let cache_bytes = cache_bytes.ok_or("the kernel tells no cache: give --cache-mib")?;
    println!(
        "emulated: {} keys, {} operations, {} rounds; {:?}: this DRAM takes {own_ns:.0} ns, {:.0} \
         ns are added to a line, {:.0} to 512 bytes, {:.0} to writing one; {} MiB of cache per \
         thread\n",
        args.keys,
        args.ops,
        args.rounds,
        args.device,
        extra.read_ns(1),
        extra.read_ns(8),
        extra.write_ns(1),
        cache_bytes >> 20
    );
    let machine = Machine::new(extra, cache_bytes, clock);
    let bench = Bench::new(args, clock, machine, &[1, 2]);
    let mut report = Report::of("emulated");
    part(args, &mut report, Part::Cost, |report| {
        cost(&bench, cache_bytes, report);
    })?;
    compare(args, &bench, report)
}

fn simulated(args: &Args) -> Result<(), String> {
    if !nyx_media::observed::IS_ON {
        return Err("--simulated needs `cargo run --features simulate`".to_owned());
    }
    let cache_mib = args.cache_mib.unwrap_or(2);
    println!(
        "simulated: {} keys, {} operations, {} rounds; AEP and DRAM as in tables 3 to 8, 7 GB/s of \
         reading, 2 of writing; {cache_mib} MiB of cache per thread, {} ns for each place that is \
         looked at\n",
        args.keys, args.ops, args.rounds, args.look_ns
    );
    let clock = simulated::Virtual::default();
    let machine = Machine::simulated(cache_mib << 20, args.look_ns, clock.clone());
    let bench = Bench::new(args, clock, machine, &[1, 2, 4, 8, 16]);
    bench.clock.tell(bench.machine.clone());
    let report = Report::of("simulated");
    compare(args, &bench, report)
}

fn compare(args: &Args, bench: &Bench<impl Pace>, mut report: Report) -> Result<(), String> {
    part(args, &mut report, Part::Hybrids, |report| {
        hybrids::run(bench, report);
    })?;
    part(args, &mut report, Part::Caches, |report| {
        caches::run(bench, report, args.index);
    })
}

fn run(args: &Args) -> Result<(), String> {
    match args.simulated {
        true => simulated(args),
        false => emulated(args),
    }
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("index_figures: {why}");
            ExitCode::FAILURE
        }
    }
}
