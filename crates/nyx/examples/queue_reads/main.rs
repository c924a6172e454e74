//! Random 4 KiB reads of a file, by our queues and by fio's io_uring engine, by turns in one run.
//!
//! All figures are *real*: this machine's file, past the page cache, sleeping until something is
//! done as fio does. CPU time is the thread's, user and system. fio (`apt install fio`) is asked
//! for registered buffers and files; without it ours are measured alone.
//!
//!     cargo run --release -p nyx --example queue_reads -- --file /var/tmp/reads --size-mib 1024

mod fio;

use clap::Parser;
use hdrhistogram::Histogram;
use nyx_base::{Clock, Rng};
use nyx_media::TscClock;
use nyx_media::queue::{
    BLOCK_BYTES, BlockFile, Pool, Queue, QueueShape, Request, Support, Through,
};
use rustix::time::{ClockId, clock_gettime};
use std::error::Error;
use std::path::PathBuf;
use std::sync::Arc;

/// Compares our queues' random reads with fio's.
#[derive(Debug, Parser)]
struct Args {
    /// The file; made and filled where it is not there or shorter.
    #[arg(long)]
    file: PathBuf,
    /// Its part that is read, in MiB.
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u64).range(1..))]
    size_mib: u64,
    /// Requests in flight.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 32])]
    depths: Vec<u32>,
    /// How long each turn takes, in seconds.
    #[arg(long, default_value_t = 2)]
    seconds: u64,
    /// Turns of each; medians are told.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..))]
    rounds: u64,
}

/// What one turn found.
#[derive(Clone, Copy, Debug)]
struct Found {
    per_second: f64,
    mean_ns: f64,
    p50_ns: f64,
    p99_ns: f64,
    cpu_ns: f64,
}

fn main() -> Result<(), Box<dyn Error>> {
    let args = Args::parse();
    let len_bytes = args.size_mib << 20;
    fill(&args.file, len_bytes)?;
    let has_fio = fio::is_there();
    if !has_fio {
        eprintln!("fio is not installed (apt install fio): ours alone");
    }
    println!("real: {} MiB of {}", args.size_mib, args.file.display());
    {
        let device = Arc::new(BlockFile::open(&args.file)?);
        println!("ways to it: {}\n", Support::of(&device)?);
    }
    println!("| depth | reader | reads/s | mean us | P50 us | P99 us | CPU us |");
    println!("|---:|---|---:|---:|---:|---:|---:|");
    for &depth in &args.depths {
        let mut found: Vec<(&str, Vec<Found>)> = vec![("nyx", vec![]), ("nyx, spinning", vec![])];
        if has_fio {
            found.push(("fio", vec![]));
        }
        for round in 0..args.rounds {
            for (reader, turns) in &mut found {
                eprintln!(
                    "depth {depth}: round {} of {}, {reader}",
                    round + 1,
                    args.rounds
                );
                turns.push(match *reader {
                    "fio" => fio::run(&args.file, len_bytes, depth, args.seconds)?,
                    _ => ours(&args, len_bytes, depth, *reader != "nyx", round)?,
                });
            }
        }
        for (reader, turns) in &found {
            row(depth, reader, turns);
        }
        if let Some((_, theirs)) = found.get(2) {
            ratios(&found[0].1, theirs);
        }
    }
    Ok(())
}

/// Random bytes, so that nobody can do without reading them.
fn fill(path: &PathBuf, len_bytes: u64) -> Result<(), Box<dyn Error>> {
    let has = std::fs::metadata(path).map_or(0, |metadata| metadata.len());
    if has >= len_bytes {
        return Ok(());
    }
    let device = Arc::new(BlockFile::create(path, len_bytes)?);
    const PIECE: usize = 1 << 20;
    let pool = Pool::new(1, PIECE)?;
    let shape = QueueShape {
        depth: 1,
        through: Through::Auto,
    };
    let mut queue = Queue::new(&device, &[], shape)?;
    let mut rng = Rng::with_seed(1);
    for at in (0..len_bytes).step_by(PIECE) {
        let mut from = pool.take().ok_or("a slot is taken")?;
        rng.fill(&mut from);
        let write = Request::Write {
            at,
            from,
            is_durable: false,
        };
        queue.poll(write, 0).expect("room").result?;
    }
    Ok(queue.poll(Request::Flush, 0).expect("room").result?)
}

/// One turn of ours: as many in flight as asked for, each that is done followed by another, which
/// is set off at once, as fio does it.
fn ours(
    args: &Args,
    len_bytes: u64,
    depth: u32,
    spins: bool,
    seed: u64,
) -> Result<Found, Box<dyn Error>> {
    let device = Arc::new(BlockFile::open(&args.file)?);
    let pool = Pool::new(depth, BLOCK_BYTES as usize)?;
    let shape = QueueShape {
        depth,
        through: Through::Auto,
    };
    let mut queue = Queue::new(&device, std::slice::from_ref(&pool), shape)?;
    let mut rng = Rng::with_seed(seed);
    let mut read = |queue: &mut Queue| {
        let at = rng.u64(0..len_bytes / BLOCK_BYTES) * BLOCK_BYTES;
        let into = pool.take().expect("as many as the queue is deep");
        queue.submit(Request::Read { at, into }, 0).expect("room");
        queue.kick();
    };
    let mut times = Histogram::<u64>::new_with_bounds(100, 10_000_000_000, 3)?;
    let clock = TscClock::start();
    let (begin, cpu) = (clock.now(), cpu_ns());
    let until_ns = args.seconds * 1_000_000_000;
    (0..depth).for_each(|_| read(&mut queue));
    while queue.in_flight() > 0 {
        match spins {
            true => queue.kick(),
            false => queue.rest(),
        }
        let goes_on = clock.now().since(begin).0 < until_ns;
        while let Some(done) = queue.reap() {
            done.result?;
            times.saturating_record(done.took.0);
            drop(done.buffer);
            if goes_on {
                read(&mut queue);
            }
        }
    }
    let (took_ns, count) = (clock.now().since(begin).0 as f64, times.len() as f64);
    Ok(Found {
        per_second: count * 1e9 / took_ns,
        mean_ns: times.mean(),
        p50_ns: times.value_at_quantile(0.5) as f64,
        p99_ns: times.value_at_quantile(0.99) as f64,
        cpu_ns: (cpu_ns() - cpu) as f64 / count,
    })
}

/// What this thread has had of a processor, in ns.
fn cpu_ns() -> u64 {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

fn median(turns: &[Found], of: impl Fn(&Found) -> f64) -> f64 {
    let mut all: Vec<f64> = turns.iter().map(of).collect();
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

fn row(depth: u32, reader: &str, turns: &[Found]) {
    println!(
        "| {depth} | {reader} | {:.0} | {:.2} | {:.2} | {:.2} | {:.2} |",
        median(turns, |found| found.per_second),
        median(turns, |found| found.mean_ns) / 1e3,
        median(turns, |found| found.p50_ns) / 1e3,
        median(turns, |found| found.p99_ns) / 1e3,
        median(turns, |found| found.cpu_ns) / 1e3,
    );
}

/// Of turns that followed each other, the medians of ratios.
fn ratios(ours: &[Found], theirs: &[Found]) {
    let ratio = |of: fn(&Found) -> f64| {
        let mut all: Vec<f64> = ours
            .iter()
            .zip(theirs)
            .map(|(our, their)| of(our) / of(their))
            .collect();
        all.sort_by(f64::total_cmp);
        all[all.len() / 2]
    };
    println!(
        "| | nyx / fio | {:.3} | {:.3} | {:.3} | {:.3} | {:.3} |",
        ratio(|found| found.per_second),
        ratio(|found| found.mean_ns),
        ratio(|found| found.p50_ns),
        ratio(|found| found.p99_ns),
        ratio(|found| found.cpu_ns),
    );
}
