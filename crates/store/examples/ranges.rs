//! What an order of keys costs a store, and what a range costs: CPU time per operation and bytes
//! per item, without an order and with each tree, over real DRAM, in turns.
//!
//! Keys are `user:` and twelve digits, values 100 B; keys come in random order, and every item of a
//! range is read.
//!
//! What it never does: state a figure that it did not measure in this run.
//!
//! `cargo run --release -p nyx-store --example ranges [-- --items 1000000] [--rounds 3]`

#![allow(
    clippy::disallowed_methods,
    reason = "a driver: it measures real time on real threads"
)]

#[path = "../tests/rig/mod.rs"]
mod rig;

use clap::Parser;
use nyx_base::UnixSeconds;
use nyx_store::{Condition, Range, StoreConfig, Tree};
use rig::{Rig, TENANT, Worker, small};
use rustix::time::{ClockId, clock_gettime};
use std::ops::{Bound, ControlFlow};

/// Operations of each kind that are measured in one round.
const OPERATIONS: u64 = 200_000;
const RANGE_KEYS: usize = 100;
const VALUE: [u8; 100] = [b'v'; 100];
const KINDS: [&str; 6] = [
    "new keys",
    "overwrites",
    "gets",
    "delete",
    "range key",
    "bytes",
];

/// What an order of keys costs a store.
#[derive(Parser)]
struct Args {
    /// Items in the store.
    #[arg(long, default_value_t = 1_000_000)]
    items: u64,
    /// Stores of each kind, in turns; medians are told.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
}

/// CPU time that this thread has had, in ns.
fn cpu_ns() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}

/// The key of a number; numbers in a row are far apart.
fn key(number: u64) -> [u8; 17] {
    let mut key = *b"user:000000000000";
    let mut rest = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) % 1_000_000_000_000;
    for digit in key[5..].iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    key
}

/// ns of CPU time for each of `count` calls.
fn timed(w: &mut Worker<'_>, count: u64, mut each: impl FnMut(&mut Worker<'_>, u64)) -> f64 {
    let begin = cpu_ns();
    for at in 0..count {
        if at % 16 == 0 {
            w.enter();
        }
        each(w, at);
    }
    (cpu_ns() - begin) / count as f64
}

/// One store; what of [`KINDS`] took.
fn measure(order: Option<Tree>, items: u64) -> [f64; KINDS.len()] {
    let size = items * 400 + (64 << 20);
    let rig = Rig::new(StoreConfig {
        segment_bytes: 1 << 20,
        order,
        ..small(size)
    });
    let mut w = rig.worker(0);
    let mut rng = fastrand::Rng::with_seed(items);
    let new = timed(&mut w, items, |w, at| {
        w.store(&key(at), &VALUE);
    });
    let figures = rig.store.figures();
    assert_eq!(figures.items, items, "nothing was evicted");
    let bytes = figures.used_bytes as f64 / items as f64;
    let overwrites = timed(&mut w, OPERATIONS, |w, _| {
        w.store(&key(rng.u64(..items)), &VALUE);
    });
    let gets = timed(&mut w, OPERATIONS, |w, _| {
        assert!(w.get(&key(rng.u64(..items))).is_some());
    });
    let range = order.map_or(f64::NAN, |_| {
        timed(&mut w, OPERATIONS / RANGE_KEYS as u64, |w, _| {
            read_range(w, &key(rng.u64(..items)));
        }) / RANGE_KEYS as f64
    });
    let deletes = timed(&mut w, OPERATIONS.min(items), |w, at| {
        let (key, always) = (key(at), Condition::Always);
        let hash = w.hash(&key);
        let lane = &mut w.tolls.lane(TENANT);
        let now: UnixSeconds = w.now;
        w.store.delete(&mut w.writer, lane, &key, hash, always, now);
    });
    [new, overwrites, gets, deletes, range, bytes]
}

fn read_range(w: &mut Worker<'_>, from: &[u8]) {
    let range = Range {
        prefix: b"",
        from: Bound::Included(from),
        to: Bound::Unbounded,
        descending: false,
    };
    let (mut count, mut value) = (0, [0; VALUE.len()]);
    let (store, now) = (w.store, w.now);
    let scanned = store.scan(
        &mut w.writer,
        &mut w.tolls.lane(TENANT),
        &range,
        now,
        |lane, _, item| {
            item.expect("it is there").read(lane, &mut value);
            count += 1;
            match count < RANGE_KEYS {
                true => ControlFlow::Continue(()),
                false => ControlFlow::Break(()),
            }
        },
    );
    scanned.expect("a whole order");
}

fn main() {
    let args = Args::parse();
    let orders = [None].into_iter().chain(Tree::ALL.map(Some));
    let orders: Vec<Option<Tree>> = orders.collect();
    let mut taken = vec![Vec::new(); orders.len()];
    for round in 0..args.rounds {
        for (order, taken) in orders.iter().zip(&mut taken) {
            taken.push(measure(*order, args.items));
        }
        eprintln!("round {} of {}", round + 1, args.rounds);
    }
    println!(
        "{} items (real DRAM), one thread, medians of {}: ns of CPU time each; bytes per item",
        args.items, args.rounds
    );
    let kinds: String = KINDS.iter().map(|kind| format!("{kind:>12}")).collect();
    println!("{:<12}{kinds}", "order");
    for (order, taken) in orders.iter().zip(&taken) {
        let name = order.map_or_else(|| "none".to_owned(), |tree| tree.to_string());
        let figures: String = (0..KINDS.len())
            .map(|kind| format!("{:>12.1}", median(taken.iter().map(|run| run[kind]))))
            .collect();
        println!("{name:<12}{figures}");
    }
}

fn median(figures: impl Iterator<Item = f64>) -> f64 {
    let mut figures: Vec<f64> = figures.collect();
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}
