//! Our map in DRAM, FAST-FAIR and FP-Tree beside what else there is for Rust that threads share:
//! inserts, look-ups (each key found by the value of the one before, so that they do not overlap),
//! look-ups of keys that are not there, scans of 100, bytes per key; one thread and two.
//!
//! Each candidate runs in a process of its own, candidates take turns, medians of rounds are told.
//! All numbers are *real*: this machine's DRAM, CPU time of the threads. Ours lie on 2 MiB pages
//! and do not flush; the others have what the allocator gives them, and the same hash function
//! where they can take one. Bytes of the others are counted at the allocator.
//!
//! What it never does: become part of Nyx. It is outside of the workspace.
//!
//! `cargo run --release --manifest-path crates/index/peers/Cargo.toml [-- --keys 10000000]`

mod candidates;

use candidates::{CANDIDATES, Candidate};
use clap::Parser;
use nyx_media::Array;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};
use std::alloc::System;
use std::hint::black_box;
use std::process::{Command, ExitCode};
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Keys of a scan.
const SCAN: usize = 100;
/// Look-ups of a measurement at most; scans are a twentieth of that.
const LOOKS_MAX: u64 = 2_000_000;
const FEWER_SCANS: u64 = 20;
const THREADS: [u16; 2] = [1, 2];

/// Compares indexes that threads share, on DRAM.
#[derive(Parser)]
#[command(after_help = "Examples:
  nyx-index-peers --keys 100000 --rounds 1   a look at it
  nyx-index-peers --keys 10000000            as published")]
struct Args {
    /// Keys of 8 bytes, in random order.
    #[arg(long, default_value_t = 3_000_000, value_parser = clap::value_parser!(u64).range(1000..))]
    keys: u64,
    /// Rounds; medians are told.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=100))]
    rounds: u64,
    /// Only candidates whose name contains this.
    #[arg(long, default_value = "")]
    only: String,
    /// Measure this candidate here, and tell it as JSON.
    #[arg(long, hide = true, requires = "threads")]
    here: Option<String>,
    #[arg(long, hide = true)]
    threads: Option<u16>,
}

/// Nanoseconds of CPU per operation; none where it cannot be asked.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Found {
    insert: f64,
    hit: f64,
    miss: f64,
    scan: Option<f64>,
    bytes_per_key: f64,
}

/// CPU time of this thread, in nanoseconds.
fn cpu_ns() -> f64 {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    now.tv_sec as f64 * 1e9 + now.tv_nsec as f64
}

/// The `at`th of distinct keys in random order, those of `--example indexes`.
fn key(at: u64) -> u64 {
    let mut key = at.wrapping_mul(2).wrapping_add(1);
    key = (key ^ key >> 31).wrapping_mul(0x7fb5_d329_728e_a185);
    key = (key ^ key >> 27).wrapping_mul(0x81da_def4_bc2d_d44d);
    (key ^ key >> 33) >> 1
}

/// Nanoseconds of CPU per call of `each` with a thread and a number, threads beginning together.
fn timed(threads: u16, count: u64, each: impl Fn(u16, u64, &mut u64) + Sync) -> f64 {
    let (barrier, own) = (Barrier::new(threads.into()), count / u64::from(threads));
    let times: f64 = std::thread::scope(|scope| {
        let running = (0..threads).map(|thread| {
            let (barrier, each) = (&barrier, &each);
            scope.spawn(move || {
                barrier.wait();
                let (before, mut last) = (cpu_ns(), 0);
                let first = own * u64::from(thread);
                (first..first + own).for_each(|at| each(thread, at, &mut last));
                black_box(last);
                cpu_ns() - before
            })
        });
        let running: Vec<_> = running.collect();
        let joined = running.into_iter().map(std::thread::ScopedJoinHandle::join);
        joined.map(|time| time.expect("no panic")).sum()
    });
    times / (own * u64::from(threads)) as f64
}

fn allocated() -> isize {
    let stats = ALLOCATOR.stats();
    let bytes = |bytes: usize| isize::try_from(bytes).unwrap_or(isize::MAX);
    bytes(stats.bytes_allocated) - bytes(stats.bytes_deallocated)
}

/// Has the kernel have free memory that a virtual machine's host has given already, in pages of
/// 4 KiB and in ones of 2 MiB: whoever is the first to touch what the host took back waits for it,
/// 5 ms for 2 MiB, and who comes after him does not.
fn have_memory_ready(keys: u64) {
    const BYTES_PER_KEY: u64 = 100;
    const PAGE_WORDS: usize = 512;
    let bytes = (keys * BYTES_PER_KEY) as usize;
    drop(black_box(vec![1u8; bytes]));
    let huge = Array::<AtomicU64>::reserve(bytes / 8, true).expect("memory");
    (huge.iter().step_by(PAGE_WORDS)).for_each(|word| word.store(1, Relaxed));
}

fn measure(make: fn(u64) -> Box<dyn Candidate>, keys: u64, threads: u16) -> Found {
    have_memory_ready(keys);
    let before = allocated();
    let index = make(keys);
    let insert = timed(threads, keys, |thread, at, _| {
        index.insert(thread, key(at), at);
    });
    let bytes = index
        .bytes()
        .unwrap_or((allocated() - before).unsigned_abs() as u64);
    // Threads put whole shares: what is left over was not put.
    let keys = keys / u64::from(threads) * u64::from(threads);
    let looks = keys.min(LOOKS_MAX);
    let spread = |at: u64| at.wrapping_mul(0x9e37_79b9);
    let hit = timed(threads, looks, |thread, at, last| {
        let at = (spread(at) + (*last & 1)) % keys;
        *last = index.get(thread, key(at)).expect("it was put");
    });
    let miss = timed(threads, looks, |thread, at, last| {
        let at = 2 * keys + (spread(at) + *last) % keys;
        *last = u64::from(index.get(thread, key(at)).is_some());
    });
    let scan = index.scan(0, key(0), SCAN).map(|_| {
        timed(threads, looks / FEWER_SCANS, |thread, at, last| {
            let sum = index.scan(thread, key(spread(at) % keys), SCAN);
            *last = last.wrapping_add(sum.unwrap_or_default());
        })
    });
    let bytes_per_key = bytes as f64 / keys as f64;
    Found {
        insert,
        hit,
        miss,
        scan,
        bytes_per_key,
    }
}

/// One measurement in a process of its own.
fn apart(name: &str, keys: u64, threads: u16) -> Result<Found, String> {
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    let (keys, threads) = (keys.to_string(), threads.to_string());
    let output = Command::new(own)
        .args(["--here", name, "--keys", &keys, "--threads", &threads])
        .output()
        .map_err(|error| error.to_string())?;
    let said = String::from_utf8_lossy(&output.stderr);
    match output.status.success() {
        true => serde_json::from_slice(&output.stdout).map_err(|error| error.to_string()),
        false => Err(format!("{name}: {}: {said}", output.status)),
    }
}

fn median(of: impl Iterator<Item = Option<f64>>) -> String {
    let Some(mut of) = of.collect::<Option<Vec<f64>>>() else {
        return "-".to_owned();
    };
    of.sort_by(f64::total_cmp);
    of.get(of.len() / 2).map_or("-".to_owned(), |ns| match ns {
        ns if *ns < 100.0 => format!("{ns:.1}"),
        ns => format!("{ns:.0}"),
    })
}

fn run(args: &Args) -> Result<(), String> {
    if let (Some(name), Some(threads)) = (&args.here, args.threads) {
        let (_, make) = (CANDIDATES.iter().find(|(other, _)| other == name))
            .ok_or_else(|| format!("no candidate {name}"))?;
        let found = measure(*make, args.keys, threads);
        println!(
            "{}",
            serde_json::to_string(&found).map_err(|error| error.to_string())?
        );
        return Ok(());
    }
    let chosen = CANDIDATES
        .iter()
        .filter(|(name, _)| name.contains(&args.only));
    let mut all: Vec<(&str, u16, Vec<Found>)> = (chosen)
        .flat_map(|(name, _)| THREADS.map(|threads| (*name, threads, Vec::new())))
        .collect();
    for round in 0..args.rounds {
        for (name, threads, rounds) in &mut all {
            eprintln!("round {} of {}: {name}, {threads}", round + 1, args.rounds);
            rounds.push(apart(name, args.keys, *threads)?);
        }
    }
    println!(
        "real: DRAM, ns of CPU per operation, {} keys of 8 bytes with values of 8 bytes, medians \
         of {} rounds by turns\n\n| index | threads | insert | hit | miss | scan {SCAN} | \
         bytes/key |\n|---|---:|---:|---:|---:|---:|---:|",
        args.keys, args.rounds
    );
    for (name, threads, rounds) in &all {
        let of = |each: fn(&Found) -> Option<f64>| median(rounds.iter().map(each));
        println!(
            "| {name} | {threads} | {} | {} | {} | {} | {} |",
            of(|found| Some(found.insert)),
            of(|found| Some(found.hit)),
            of(|found| Some(found.miss)),
            of(|found| found.scan),
            of(|found| Some(found.bytes_per_key)),
        );
    }
    Ok(())
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("nyx-index-peers: {why}");
            ExitCode::FAILURE
        }
    }
}
